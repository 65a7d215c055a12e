//! A configuration of Volcano's scheduler without `preempt` and `reclaim`, imported and run with on a real API server:
//! nobody is ever evicted.

use std::fmt::Write;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use phalanx_devcluster::installation::{Installation, InstallationOptions};
use phalanx_devcluster::{Options, Servers};

use crate::support::{program, run, workspace};

const PATIENCE: Duration = Duration::from_secs(90);
/// For what must not happen: longer than a leader waits for agents before it evicts anybody, which are all there here,
/// and several times as long as anything else takes.
const QUIET: Duration = Duration::from_secs(20);

/// Queues whose shares are half of the cluster, and two classes.
const POLICY: &str = "
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: owner}
spec: {weight: 1, reclaimable: true}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: borrower}
spec: {weight: 1, reclaimable: true}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: regular}
value: 10
---
";

/// A gang of which one pod is enough; each has all GPUs of a node.
fn gang(name: &str, queue: &str, class: &str, pods: usize) -> String {
    let mut text = format!(
        "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default}}
spec: {{minMember: 1, queue: {queue}, priorityClassName: {class}}}
---
"
    );
    for number in 0..pods {
        let _ = write!(
            text,
            "apiVersion: v1
kind: Pod
metadata:
  name: {name}-{number}
  namespace: default
  labels: {{gang: {name}}}
  annotations: {{scheduling.k8s.io/group-name: {name}}}
spec:
  schedulerName: volcano
  priorityClassName: {class}
  containers: [{{name: main, image: none, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]
---
"
        );
    }
    text
}

/// UIDs of a gang's pods that run.
async fn running(client: &Client, gang: &str) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let list = pods.list(&ListParams::default().labels(&format!("gang={gang}"))).await.unwrap();
    let runs =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    list.items.iter().filter(|pod| runs(pod)).filter_map(ResourceExt::uid).collect()
}

async fn until_running(client: &Client, gang: &str, count: usize) -> Vec<String> {
    let began = Instant::now();
    loop {
        let pods = running(client, gang).await;
        if pods.len() == count {
            return pods;
        }
        assert!(began.elapsed() < PATIENCE, "{gang} has {} running pods, of {count}", pods.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_volcano_does_not_evict_is_not_evicted_here() {
    // Also builds the programs.
    let folder = tempfile::tempdir().unwrap();
    let theirs = workspace().join("cli/tests/import/wish.conf");
    let ours = folder.path().join("coordinator.toml");
    let imported =
        run(&["import", "--scheduler-conf", theirs.to_str().unwrap(), "--out", ours.to_str().unwrap()]);
    assert_eq!(imported.code, 0, "{imported:?}");

    let servers = Servers::start(Options::default()).await.unwrap();
    let mut options = InstallationOptions::new(program("phalanx-coordinator"), program("phalanx-agent"));
    (options.replicas, options.hollow) = (1, 2);
    options.coordinator_flags.push(format!("--config={}", ours.display()));
    let mut installation = Installation::start(servers, options).await.unwrap();
    let client = installation.client().clone();
    let apply = async |text: String| {
        let applied = installation.servers().kubectl_with_input(&["apply", "-f", "-"], &text).await;
        applied.unwrap();
    };

    apply(POLICY.to_owned() + &gang("low", "borrower", "regular", 2)).await;
    let before = until_running(&client, "low", 2).await;
    // More urgent in the same queue, and the owner of what is borrowed: each could have one of the two pods.
    apply(gang("urgent", "borrower", "urgent", 1) + &gang("owner", "owner", "urgent", 1)).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(running(&client, "low").await, before);
    for gang in ["urgent", "owner"] {
        assert_eq!(running(&client, gang).await.len(), 0, "{gang}");
        let conditions = ["get", "pg", gang, "-o", "jsonpath={.status.conditions[*].message}"];
        let told = installation.servers().kubectl(&conditions).await.unwrap();
        assert!(told.contains("0 suitable nodes with 8 free GPUs"), "{gang}: {told}");
    }
    assert_eq!(installation.kubelets().counters().deleted.load(std::sync::atomic::Ordering::Relaxed), 0);

    // With the defaults, which evict, both get what is theirs at once.
    std::fs::write(&ours, "").unwrap();
    installation.replica(0).unwrap().terminate().await;
    installation.replica(0).unwrap().start().unwrap();
    until_running(&client, "owner", 1).await;
    installation.check().unwrap();
}
