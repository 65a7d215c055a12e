//! Cases of leaders that follow each other, and of pods that another scheduler binds in between.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::DeleteParams;
use phalanx_core::view::Explanation;

use crate::cluster::{Cluster, STOP, held, until};
use crate::rounds::SHORT;
use crate::support::{PATIENCE, get};

impl Cluster {
    /// Waits until a gang says why it waits, with this text; kubectl shows the same.
    async fn until_says(&self, gang: &str, text: &str) {
        let began = Instant::now();
        loop {
            let shown = self.installation.servers().kubectl(&["describe", "podgroup", gang]).await.unwrap();
            let told = self.told(gang).await;
            // Long lines are wrapped.
            let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
            if told.as_ref().is_some_and(|told| told.contains(text)) && words.contains(text) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{gang} never says {text:?}, but {told:?}\n{shown}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn told(&self, gang: &str) -> Option<String> {
        let (leader, _) = self.leader().await?;
        let admin = self.installation.replicas()[leader].admin();
        let answer = get(&admin, &format!("/v1/explain/default/{gang}")).await;
        // It may not know the gang yet, or not lead any more.
        let explanation: Explanation = serde_json::from_str(&answer.text).ok()?;
        Some(explanation.gang.reason?.text)
    }

    /// Nodes and pods of what agents have promised to a gang so far.
    async fn promised(&self, gang: &str) -> Vec<(String, String)> {
        let reports = self.installation.hollow().unwrap().reports().await;
        let mut promised = Vec::new();
        for (node, report) in reports {
            for lease in report.expect("the agent runs").leases {
                if &*lease.request.gang.name == gang {
                    promised.push((node.as_str().to_owned(), lease.request.pod_name.name.to_string()));
                }
            }
        }
        promised
    }

    /// The leader stands still there, as soon as it comes there.
    async fn until_frozen(&self, leader: usize) {
        let replica = &self.installation.replicas()[leader];
        until("it stands still", async || replica.is_frozen().then_some(())).await;
    }

    /// The leader ends without a word, and another one leads.
    async fn killed(&mut self) {
        let (leader, _) = self.leader().await.unwrap();
        self.installation.replica(leader).unwrap().kill();
        self.until_leads(1 - leader).await;
        self.revive(leader).await;
    }

    async fn is_unbound(&self, gang: &str) -> bool {
        self.pods_of(gang).await.iter().all(|pod| held(pod).is_none())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_030_a_new_leader_gives_no_taken_gpus_on_a_real_api_server() {
    let mut cluster = Cluster::start("case-030", 1, SHORT).await;
    cluster.gang("p", 1, 4).await;
    let before = held(&cluster.until_running("p", 1).await[0]).unwrap();
    // Asked for while nobody leads.
    let (leader, _) = cluster.leader().await.unwrap();
    cluster.installation.replica(leader).unwrap().kill();
    cluster.gang_like("t", 1, 4, Cluster::kept()).await;
    cluster.until_leads(1 - leader).await;
    cluster.revive(leader).await;
    let after = held(&cluster.until_running("t", 1).await[0]).unwrap();
    assert!(before.gpus.is_disjoint(&after.gpus), "{before:?} {after:?}");
    cluster.until_settled(&["p", "t"]).await;

    // One that is being deleted has its GPUs until it is gone, whoever leads.
    cluster.pods().delete("t-0", &DeleteParams::default()).await.unwrap();
    cluster.gang("r", 1, 4).await;
    cluster.until_says("r", "g4..g7 held by terminating pod t-0").await;
    cluster.killed().await;
    cluster.until_ready().await;
    cluster.until_says("r", "g4..g7 held by terminating pod t-0").await;
    assert!(cluster.is_unbound("r").await);
    cluster.until_settled(&["p", "t"]).await;
    cluster.let_go("t-0").await;
    let next = held(&cluster.until_running("r", 1).await[0]).unwrap();
    assert_eq!(next.gpus, after.gpus);
    cluster.until_settled(&["p", "r"]).await;
    assert_eq!(cluster.refused(), 0);
    cluster.delete(&["p", "r", "t"]).await;
    cluster.check_logs();
}

/// One that believes to lead stands still there with A; B comes while another one leads.
async fn two_leaders_at(cluster: &mut Cluster, point: &str) {
    let (first, _) = cluster.hand_over(STOP, Some(point)).await;
    // In each round pods of other names.
    let (a, b) = (format!("a-{point}"), format!("b-{point}"));
    cluster.gang(&a, 1, 8).await;
    cluster.until_frozen(first).await;
    let second = 1 - first;
    let counter = cluster.until_leads(second).await;
    // It wakes up in the middle of what the second one does.
    cluster.gang(&b, 1, 8).await;
    cluster.installation.replicas()[first].freeze(false);
    let replica = cluster.installation.replica(first).unwrap();
    until("the first one's end", async || (!replica.runs()).then_some(())).await;
    assert_eq!(replica.exit_code(), Some(3), "{point}");
    assert!(cluster.log(first).contains("leads no more"), "{point}");
    // A is older.
    let pods = cluster.until_running(&a, 1).await;
    let term = held(&pods[0]).unwrap().term;
    let (_, now) = cluster.leader().await.unwrap();
    assert!(now >= counter);
    assert!(term.starts_with(&format!("{now}.")), "{point}: {term}, {now} leads");
    cluster.until_says(&b, "no room").await;
    assert!(cluster.is_unbound(&b).await);
    cluster.until_settled(&[&a]).await;
    cluster.assert_bound_once(&[(&a, 1)]);
    assert_eq!(cluster.refused(), 0);
    cluster.revive(first).await;
    cluster.until_ready().await;
    cluster.delete(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_034_two_leaders_at_once_on_a_real_api_server() {
    let mut cluster = Cluster::start("case-034", 1, SHORT).await;
    // Before its Reserve is sent; when the agent has taken it; before the Binding is sent.
    for point in ["planned", "first-confirm", "armed"] {
        two_leaders_at(&mut cluster, point).await;
    }
    cluster.check_logs();
}

/// When a leader has come there with a gang, another scheduler's pod takes a GPU of a node that it was promised.
async fn taken_at(cluster: &mut Cluster, point: &str) {
    let (leader, _) = cluster.hand_over(STOP, Some(point)).await;
    let nodes = cluster.nodes;
    // One node is left over.
    let gang = format!("moves-{point}");
    cluster.gang(&gang, nodes - 1, 8).await;
    cluster.until_frozen(leader).await;
    let promised = until("what was promised", async || {
        let promised = cluster.promised(&gang).await;
        (promised.len() == nodes - 1).then_some(promised)
    })
    .await;
    let other = format!("other-{point}");
    let (node, pod) = promised.first().unwrap();
    println!("{point}: {other} takes a GPU of {node}, which {pod} was promised");
    cluster.bind_by_hand(&other, node, 1).await;
    cluster.installation.replicas()[leader].freeze(false);
    let pods = cluster.until_running(&gang, nodes - 1).await;
    let used: BTreeSet<String> = pods.iter().map(|pod| held(pod).unwrap().node).collect();
    assert_eq!(used.len(), nodes - 1, "{point}");
    assert!(!used.contains(node), "{point}: {node} is used by {used:?}");
    assert_eq!(cluster.refused(), 0, "{point}: a kubelet had to refuse a pod");
    cluster.until_settled(&[&gang]).await;
    let uids: BTreeSet<_> = pods.iter().map(|pod| pod.name_any()).collect();
    assert_eq!(uids.len(), nodes - 1);
    cluster.delete(&[&gang]).await;

    // A gang that needs that node too waits, and says for whom.
    cluster.gang("waits", nodes, 8).await;
    cluster.until_says("waits", "1 GPU held by a pod of scheduler other-scheduler").await;
    assert!(cluster.is_unbound("waits").await);
    cluster.until_settled(&[]).await;
    // It is no victim.
    assert_eq!(cluster.until_running(&other, 1).await.len(), 1);
    cluster.pods().delete(&other, &DeleteParams::default()).await.unwrap();
    cluster.until_running("waits", nodes).await;
    cluster.until_settled(&["waits"]).await;
    assert_eq!(cluster.refused(), 0);
    cluster.delete(&["waits"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_092_another_scheduler_takes_a_gpu_in_between_on_a_real_api_server() {
    let mut cluster = Cluster::start("case-092", 4, SHORT).await;
    // Between plan and confirmation; between the last confirmation and the first Binding.
    for point in ["first-confirm", "all-confirmed", "plan-written"] {
        taken_at(&mut cluster, point).await;
    }

    cluster.check_logs();
}
