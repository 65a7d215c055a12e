//! Claims of pods on a real API server, bound by hand as Kubernetes' controller would: whoever waits for a volume says
//! so and delays nobody, and runs where the volume is once it is there.

use std::time::Duration;

use crate::kubernetes::{KubernetesCluster, until};
use crate::people::{node, says};
use phalanx_core::view::ReasonView;

fn claim(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: default}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: '', resources: {{requests: {{storage: 1Gi}}}}{fields}}}
---
"
    )
}

/// Pods of one gang, each with the claim of its place in the list.
fn gang(name: &str, claims: &[&str]) -> String {
    let mut text = format!(
        "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default}}
spec: {{minMember: {}}}
---
",
        claims.len()
    );
    for (at, claim) in claims.iter().enumerate() {
        text += &format!(
            "apiVersion: v1
kind: Pod
metadata:
  name: {name}-{at}
  namespace: default
  labels: {{gang: {name}}}
  annotations: {{scheduling.k8s.io/group-name: {name}}}
spec:
  schedulerName: phalanx
  terminationGracePeriodSeconds: 0
  volumes: [{{name: data, {claim}}}]
  containers: [{{name: main, image: none, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
---
"
        );
    }
    text
}

fn mounts(claim: &str) -> String {
    format!("persistentVolumeClaim: {{claimName: {claim}}}")
}

impl KubernetesCluster {
    /// Gives a claim a volume that is reached from the nodes of a zone, as Kubernetes' controller does.
    async fn bind(&self, claim: &str, zone: &str) {
        let uid = self.kubectl(&format!("get pvc {claim} -o jsonpath={{.metadata.uid}}")).await;
        let mode = self.kubectl(&format!("get pvc {claim} -o jsonpath={{.spec.accessModes[0]}}")).await;
        self.apply(&format!(
            "apiVersion: v1
kind: PersistentVolume
metadata: {{name: pv-{claim}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [{mode}]
  local: {{path: /data}}
  claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: default, name: {claim}, uid: {uid}}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: zone, operator: In, values: [{zone}]}}]}}]}}}}
"
        ))
        .await;
        let spec = format!("{{\"spec\":{{\"volumeName\":\"pv-{claim}\"}}}}");
        self.kubectl(&format!("patch pvc {claim} --type=merge -p {spec}")).await;
        self.kubectl(&format!(
            "patch pvc {claim} --subresource=status --type=merge -p {{\"status\":{{\"phase\":\"Bound\"}}}}"
        ))
        .await;
    }

    async fn is_not_bound(&self, name: &str) {
        for pod in self.pods(name).await {
            assert_eq!(pod.spec.unwrap().node_name, None, "{name}");
        }
    }
}

fn seconds(reason: &ReasonView) -> u64 {
    let text = reason.text.strip_prefix("claim x: binding, ").and_then(|text| text.strip_suffix(" s"));
    text.unwrap_or_else(|| panic!("{reason:?}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_084_a_claim_that_hangs_delays_nobody_and_its_pod_runs_where_the_volume_is() {
    let cluster = KubernetesCluster::start(2, 4, 1).await;
    for (number, zone) in ["z1", "z2"].into_iter().enumerate() {
        cluster.kubectl(&format!("label node {} zone={zone}", node(number))).await;
    }
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;

    // A's claim hangs; B, which comes after it, runs.
    cluster.apply(&(claim("x", "") + &gang("a", &[&mounts("x")]))).await;
    let first = says(&admin, "a", "ClaimBinding", "claim x: binding, ").await;
    cluster.apply(&gang("b", &["emptyDir: {}"])).await;
    cluster.until_running("b", 1).await;
    cluster.is_not_bound("a").await;

    // Seconds go by in what is asked for, and nothing is written for them.
    until("the condition is there", || async {
        let text = cluster.kubectl("get podgroup a -o jsonpath={.status.conditions[*].message}").await;
        text.contains("claim x: binding").then_some(())
    })
    .await;
    let version = || cluster.kubectl("get podgroup a -o jsonpath={.metadata.resourceVersion}");
    let before = version().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let later = says(&admin, "a", "ClaimBinding", "claim x: binding, ").await;
    assert!(seconds(&later) >= seconds(&first) + 3, "{first:?} {later:?}");
    assert_eq!(version().await, before);

    cluster.bind("x", "z2").await;
    cluster.runs_on("a", 1).await;

    // Of C's two claims one has a volume: none of its pods is bound before the other one has one too.
    cluster.apply(&(claim("c-0", "") + &claim("c-1", ""))).await;
    cluster.bind("c-0", "z1").await;
    cluster.apply(&gang("c", &[&mounts("c-0"), &mounts("c-1")])).await;
    says(&admin, "c", "ClaimBinding", "1 of 2 claims has a volume: claim c-1: binding, ").await;
    cluster.is_not_bound("c").await;
    cluster.bind("c-1", "z2").await;
    let mut nodes: Vec<String> = Vec::new();
    for pod in cluster.until_running("c", 2).await {
        nodes.extend(pod.spec.unwrap().node_name);
    }
    nodes.sort();
    assert_eq!(nodes, [node(0), node(1)]);
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn case_084_claims_that_cannot_be_used_name_the_cause_and_the_fix() {
    let cluster = KubernetesCluster::start(1, 8, 1).await;
    cluster.kubectl(&format!("label node {} zone=z1", node(0))).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;

    // D's two pods mount a claim that one pod alone may use: neither is bound.
    let one_pod = claim("single", "").replace("ReadWriteOnce]", "ReadWriteOncePod]");
    cluster.apply(&one_pod).await;
    cluster.bind("single", "z1").await;
    cluster.apply(&gang("d", &[&mounts("single"), &mounts("single")])).await;
    says(&admin, "d", "ClaimInUse", "claim single: used by one pod only (by pod d-0)").await;
    cluster.is_not_bound("d").await;
    cluster.kubectl("delete pods,podgroups --all --wait=false").await;

    // It is free again when its pod is gone.
    cluster.apply(&gang("e", &[&mounts("single")])).await;
    cluster.until_running("e", 1).await;
    cluster.apply(&gang("f", &[&mounts("single")])).await;
    let used = says(&admin, "f", "ClaimInUse", "claim single: used by one pod only (by pod e-0)").await;
    assert!(used.fix.starts_with("wait until pod e-0 has ended"), "{used:?}");
    cluster.kubectl("delete pod e-0").await;
    cluster.until_running("f", 1).await;

    // A claim that is not there, one that waits for its first pod, one whose volume no node reaches, and an ephemeral one.
    cluster.apply(&gang("g", &[&mounts("nowhere")])).await;
    says(&admin, "g", "ClaimMissing", "claim nowhere does not exist: create it").await;
    cluster
        .apply(
            "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: example.com/none
volumeBindingMode: WaitForFirstConsumer
",
        )
        .await;
    let late = claim("late", "").replace("storageClassName: ''", "storageClassName: late");
    cluster.apply(&(late + &gang("h", &[&mounts("late")]))).await;
    let awaits =
        says(&admin, "h", "ClaimAwaitsPod", "claim late waits for its first pod to be scheduled").await;
    assert_eq!(awaits.fix, "use a StorageClass with volumeBindingMode: Immediate, or bind the claim first");
    cluster.apply(&claim("far", "")).await;
    cluster.bind("far", "z9").await;
    cluster.apply(&gang("i", &[&mounts("far")])).await;
    let text = "claim far: its volume is only reachable from nodes with zone In [z9]";
    says(&admin, "i", "NoNodeMatches", text).await;
    let template = "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}";
    cluster.apply(&gang("j", &[template])).await;
    says(&admin, "j", "ClaimMissing", "claim j-0-data of an ephemeral volume was not made yet").await;
    cluster.apply(&claim("j-0-data", "")).await;
    says(&admin, "j", "ClaimOfAnother", "does not belong to the pod").await;

    // Each goes on by the event that ends its cause.
    cluster.apply(&claim("nowhere", "")).await;
    cluster.bind("nowhere", "z1").await;
    cluster.bind("late", "z1").await;
    for name in ["g", "h"] {
        cluster.until_running(name, 1).await;
    }
    cluster.kubectl(&format!("label node {} zone=z9 --overwrite", node(0))).await;
    cluster.until_running("i", 1).await;
    replica.check();
}
