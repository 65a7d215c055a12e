//! Creating, watching and removing pods, in plain requests: what is measured must not be the bench.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Failure;
use crate::loads::NAMESPACE;

/// Requests in flight at once, for creates.
pub const AT_ONCE: usize = 16;
/// Bindings in flight at once of the bare loop: as many as of the coordinator.
pub const BINDINGS_AT_ONCE: usize = 32;
/// Nobody is waited for longer.
pub const LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);

/// Sends one object to a path.
pub async fn post(client: &Client, path: &str, object: &Value) -> Result<Value, Failure> {
    let request = Request::post(path).header("content-type", "application/json");
    Ok(client.request(request.body(serde_json::to_vec(object)?)?).await?)
}

/// Creates objects of one kind. Gives each one's name on, as it is there.
pub async fn create(
    client: &Client,
    path: &str,
    objects: Vec<Value>,
    created: Option<mpsc::UnboundedSender<Created>>,
) -> Result<(), Failure> {
    let work = objects.into_iter().map(|object| {
        let created = created.clone();
        async move {
            let stored = post(client, path, &object).await?;
            if let Some(created) = created {
                let text = |name: &str| stored["metadata"][name].as_str().unwrap_or_default().to_owned();
                let version = text("resourceVersion");
                // Nobody listens where the bare loop has failed: it says why itself.
                let _ = created.send(Created { name: text("name"), uid: text("uid"), version });
            }
            Ok::<_, Failure>(())
        }
    });
    stream::iter(work).buffer_unordered(AT_ONCE).try_collect().await
}

/// A pod as it was created.
#[derive(Debug)]
pub struct Created {
    /// Name.
    pub name: String,
    uid: String,
    version: String,
}

/// Binds a pod, as the coordinator would: with the preconditions that keep it from binding another pod, and the
/// annotations that tell whose GPUs these are.
pub async fn bind(client: &Client, pod: &Created, node: &str, gpus: usize) -> Result<(), Failure> {
    let uuids: Vec<String> =
        (0..gpus).map(|gpu| format!("GPU-{gpu:08x}-0000-4000-8000-000000000000")).collect();
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": NAMESPACE,
            "uid": pod.uid,
            "resourceVersion": pod.version,
            "annotations": {
                "phalanx.dev/term": "1.0123456789abcdef",
                "phalanx.dev/lease-id": "1.01234567-1",
                "phalanx.dev/exactness": "count",
                "phalanx.dev/gpu-uuids": uuids.join(","),
                "phalanx.dev/pod-group-uid": "00000000-0000-4000-8000-000000000000",
            },
        },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/binding", pod.name);
    post(client, &path, &binding).await?;
    Ok(())
}

/// Paths of what is created.
pub fn pods_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// The same of PodGroups.
pub fn groups_path() -> String {
    format!("/apis/scheduling.volcano.sh/v1beta1/namespaces/{NAMESPACE}/podgroups")
}

/// One watch that tells when how many pods are bound.
pub struct Bound {
    times: mpsc::UnboundedReceiver<(String, String, Instant)>,
    task: JoinHandle<()>,
    nodes: BTreeMap<String, String>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Bound {
    /// Begins to watch.
    pub fn watch(client: &Client) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
        let (sender, times) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else { continue };
                if let (Some(node), Some(name)) = (pod.data["spec"]["nodeName"].as_str(), pod.metadata.name)
                    && sender.send((name, node.to_owned(), Instant::now())).is_err()
                {
                    return;
                }
            }
        });
        Self { times, task, nodes: BTreeMap::new() }
    }

    /// Waits until so many are bound; when the last one was.
    pub async fn wait(&mut self, count: usize) -> Result<Instant, Failure> {
        let mut last = Instant::now();
        while self.nodes.len() < count {
            let next = tokio::time::timeout(LIMIT, self.times.recv()).await;
            let Ok(Some((name, node, time))) = next else {
                return Err(format!(
                    "{} of {count} pods are bound after {} s",
                    self.nodes.len(),
                    LIMIT.as_secs()
                )
                .into());
            };
            self.nodes.insert(name, node);
            last = time;
        }
        Ok(last)
    }

    /// Where each pod is.
    pub const fn nodes(&self) -> &BTreeMap<String, String> {
        &self.nodes
    }
}

/// Removes every pod and PodGroup, and waits until they are gone. PodGroups are removed again as long as pods were
/// there, for which they may be made anew.
pub async fn remove_all(client: &Client) -> Result<(), Failure> {
    let grace = DeleteParams::default().grace_period(0);
    let api = |group: &str, version: &str, kind: &str| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &resource)
    };
    let kinds = [api("", "v1", "Pod"), api("scheduling.volcano.sh", "v1beta1", "PodGroup")];
    let began = Instant::now();
    loop {
        let mut left = false;
        for api in &kinds {
            if !api.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
                left = true;
                api.delete_collection(&grace, &ListParams::default()).await?;
            }
        }
        if !left {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
            return Err("some pods and PodGroups cannot be removed".into());
        }
        tokio::time::sleep(POLL).await;
    }
}
