//! What people bring to the real API server of a test, and what they read there: with kubectl, and by what the
//! coordinator explains.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use phalanx_core::view::ReasonView;
use serde_json::Value;

use crate::kubernetes::{KubernetesCluster, until};
use crate::support::{PATIENCE, explain, get};

/// Name of a hollow node.
pub fn node(number: usize) -> String {
    format!("hollow-{number:05}")
}

impl KubernetesCluster {
    /// Applies a manifest; what is there already stays.
    pub async fn apply(&self, manifest: &str) {
        self.servers.kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
    }

    /// Runs kubectl with these words.
    pub async fn kubectl(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        self.servers.kubectl(&arguments).await.unwrap()
    }

    /// An object as stored.
    pub async fn object(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.kubectl(&format!("get {arguments} -o json")).await).unwrap()
    }

    /// Waits until `kubectl get` shows these cells of an object behind its name.
    pub async fn until_row(&self, arguments: &str, cells: &[&str]) {
        until(&format!("{arguments} shows {cells:?}"), || async {
            let shown = self.kubectl(&format!("get {arguments} --no-headers")).await;
            let row: Vec<&str> = shown.split_whitespace().skip(1).collect();
            row.starts_with(cells).then_some(())
        })
        .await;
    }

    /// Waits until a gang's only pod runs on this node.
    pub async fn runs_on(&self, name: &str, number: usize) {
        let pods = self.until_running(name, 1).await;
        let at = pods[0].spec.as_ref().unwrap().node_name.clone();
        assert_eq!(at.as_deref(), Some(&*node(number)), "{name}");
    }

    /// UIDs of a gang's pods by name, of those that have a node.
    pub async fn placed(&self, gang: &str) -> BTreeMap<String, String> {
        let pods = self.pods(gang).await.into_iter();
        let placed = pods.filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
        placed.map(|pod| (pod.name_any(), pod.uid().unwrap())).collect()
    }

    /// Waits until each pod of the gang says so in its condition `PodScheduled`, and its PodGroup in one of its own.
    pub async fn until_told(&self, gang: &str, text: &str) {
        let began = Instant::now();
        loop {
            let pods: Vec<_> = self.pods(gang).await.iter().map(unscheduled).collect();
            let group = self.object(&format!("pg/{gang}")).await["status"]["conditions"].to_string();
            let told = pods.iter().all(|said| said.as_ref().is_some_and(|said| said.contains(text)));
            if told && !pods.is_empty() && group.contains(text) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{gang} never tells {text}: {group} {pods:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What a controller does: makes what is not there, and leaves what is.
    pub async fn make_missing(&self, manifest: &str) {
        // It fails of what is there, after it has made the rest.
        drop(self.servers.kubectl_with_input(&["create", "-f", "-"], manifest).await);
    }
}

/// Message of the condition `PodScheduled`, where it is false.
fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False")?.message.clone()
}

/// Waits until the gang says this.
pub async fn says(admin: &SocketAddr, gang: &str, code: &str, text: &str) -> ReasonView {
    until(&format!("{gang} says {code}: {text}"), || async {
        let reason = explain(admin, &format!("default/{gang}")).await.gang.reason?;
        (&*reason.code == code && reason.text.contains(text)).then_some(reason)
    })
    .await
}

/// Texts of the events with this reason about objects of this name.
pub async fn events_of(cluster: &KubernetesCluster, name: &str, reason: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let all = events.list(&ListParams::default()).await.map(|events| events.items).unwrap_or_default();
    let is_it = |event: &Event| {
        let about = event.regarding.as_ref().and_then(|about| about.name.as_deref());
        event.reason.as_deref() == Some(reason) && about == Some(name)
    };
    all.into_iter().filter(is_it).filter_map(|event| event.note).collect()
}

/// Waits for an event with this reason about an object of this name; its text.
pub async fn event_of(cluster: &KubernetesCluster, name: &str, reason: &str) -> String {
    until(&format!("an event {reason} of {name}"), || async {
        events_of(cluster, name, reason).await.into_iter().next()
    })
    .await
}

/// Waits for one that contains this.
pub async fn event_with(cluster: &KubernetesCluster, name: &str, reason: &str, text: &str) {
    until(&format!("an event {reason} of {name} with {text}"), || async {
        events_of(cluster, name, reason).await.iter().any(|note| note.contains(text)).then_some(())
    })
    .await;
}

/// Pods that the coordinator has evicted.
pub async fn evictions(admin: &SocketAddr) -> u64 {
    let metrics = get(admin, "/metrics").await.text;
    let counter = |line: &&str| line.contains("actions_total{") && line.contains("\"Evict\"");
    let line = metrics.lines().find(counter).unwrap_or_else(|| panic!("no counter of evictions: {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A gang as people write it: a PodGroup and its pods.
#[derive(Clone, Debug)]
pub struct Gang<'a> {
    pub name: &'a str,
    /// The queue.
    pub queue: &'a str,
    /// `minMember`.
    pub minimum: usize,
    /// Pods by their task, `worker` or `master`.
    pub tasks: &'a [(&'a str, usize)],
    /// What each of them asks for beside one name and colon: `nvidia.com/gpu: 1`.
    pub resources: &'a str,
    /// Its PriorityClass; none where it is empty.
    pub class: &'a str,
    /// Annotations of PodGroup and pods, each with a comma in front.
    pub annotations: &'a str,
}

impl Gang<'_> {
    /// A gang in the queue `default`, all of its pods equal and needed.
    pub const fn new<'a>(name: &'a str, tasks: &'a [(&'a str, usize)], resources: &'a str) -> Gang<'a> {
        let minimum = tasks[0].1;
        Gang { name, queue: "default", minimum, tasks, resources, class: "", annotations: "" }
    }

    /// The manifest.
    pub fn manifest(&self) -> String {
        let Gang { name, queue, minimum, resources, annotations, .. } = self;
        let class = match self.class {
            "" => String::new(),
            class => format!("priorityClassName: {class}"),
        };
        let mut text = format!(
            "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default, annotations: {{example.com/of: test{annotations}}}}}
spec: {{minMember: {minimum}, queue: {queue}, {class}}}
---
"
        );
        for (task, count) in self.tasks {
            for number in 0..*count {
                let _ = write!(
                    text,
                    "apiVersion: v1
kind: Pod
metadata:
  name: {name}-{task}-{number}
  namespace: default
  labels: {{gang: {name}, training.kubeflow.org/replica-type: {task}}}
  annotations: {{scheduling.k8s.io/group-name: {name}{annotations}}}
spec:
  schedulerName: phalanx
  {class}
  containers: [{{name: main, image: none, resources: {{limits: {{{resources}}}}}}}]
---
"
                );
            }
        }
        text
    }
}

/// A PriorityClass.
pub fn class(name: &str, value: i32) -> String {
    format!(
        "apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {name}}}
value: {value}
---
"
    )
}

/// A Queue.
pub fn queue(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {{name: {name}}}
spec: {{{spec}}}
---
"
    )
}
