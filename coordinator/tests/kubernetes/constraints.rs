//! Constraints of pods on a real API server: what it makes of them is read, pods go where they may, and those that may
//! not say why and delay nobody.

use crate::kubernetes::KubernetesCluster;
use crate::people::{node, says};

const NODES: usize = 5;

impl KubernetesCluster {
    /// A pod of its own PodGroup, with this beside its containers.
    async fn pod(&self, name: &str, container: &str, spec: &str) {
        let manifest = format!(
            "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default}}
spec: {{minMember: 1}}
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: default
  labels: {{gang: {name}}}
  annotations: {{scheduling.k8s.io/group-name: {name}}}
spec:
  schedulerName: phalanx
  {spec}
  containers: [{{name: main, image: none, resources: {{limits: {{nvidia.com/gpu: 1}}}}{container}}}]
"
        );
        self.apply(&manifest).await;
    }
}

fn affinity(rule: &str) -> String {
    format!(
        "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{{rule}}}]}}}}}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_go_where_their_constraints_allow_and_others_say_why() {
    let cluster = KubernetesCluster::start(NODES, 4, 1).await;
    cluster.kubectl(&format!("taint node {} gpu=only:NoSchedule", node(0))).await;
    cluster.kubectl(&format!("label node {} disk=ssd", node(1))).await;
    cluster.kubectl(&format!("cordon {}", node(2))).await;
    cluster.kubectl(&format!("label node {} zone=b", node(3))).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;
    let on = |number: usize| {
        affinity(&format!("matchFields: [{{key: metadata.name, operator: In, values: [{}]}}]", node(number)))
    };

    cluster.pod("selected", "", "nodeSelector: {disk: ssd}").await;
    cluster
        .pod("zoned", "", &affinity("matchExpressions: [{key: zone, operator: In, values: [a, b]}]"))
        .await;
    cluster.pod("kept-away", "", &on(0)).await;
    let tolerant = "tolerations: [{key: gpu, operator: Exists}]";
    cluster.pod("tolerant", "", &format!("{tolerant}\n  {}", on(0))).await;
    cluster.pod("cordoned", "", &on(2)).await;
    let daemon =
        "tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}]";
    cluster.pod("daemon", "", &format!("{daemon}\n  {}", on(2))).await;
    cluster.pod("nowhere", "", "nodeSelector: {disk: nvme}").await;
    cluster.runs_on("selected", 1).await;
    cluster.runs_on("zoned", 3).await;
    cluster.runs_on("tolerant", 0).await;
    cluster.runs_on("daemon", 2).await;
    says(&admin, "kept-away", "NoNodeMatches", "taint gpu=only:NoSchedule that no toleration matches").await;
    says(&admin, "cordoned", "NodesClosed", &format!("{}: unschedulable", node(2))).await;
    says(&admin, "nowhere", "NoNodeMatches", "do not match nodeSelector disk=nvme").await;

    let port = ", ports: [{containerPort: 80, hostPort: 8080}]";
    cluster.pod("port", port, &on(3)).await;
    cluster.runs_on("port", 3).await;
    cluster.pod("same-port", port, &on(3)).await;
    says(&admin, "same-port", "NoRoom", "TCP 0.0.0.0:8080 taken").await;
    cluster.kubectl("delete pod port").await;
    cluster.runs_on("same-port", 3).await;

    cluster.pod("gated", "", &format!("schedulingGates: [{{name: example.com/later}}]\n  {}", on(4))).await;
    says(&admin, "gated", "PodGated", "example.com/later").await;
    cluster
        .kubectl("patch pod gated --type=json -p=[{\"op\":\"remove\",\"path\":\"/spec/schedulingGates\"}]")
        .await;
    cluster.runs_on("gated", 4).await;

    // A change of the node is enough.
    cluster.kubectl(&format!("uncordon {}", node(2))).await;
    cluster.runs_on("cordoned", 2).await;
    cluster.kubectl(&format!("label node {} disk=nvme --overwrite", node(4))).await;
    cluster.runs_on("nowhere", 4).await;
    assert_eq!(cluster.refused(), 0);
    replica.check();
}
