//! Stories of users on a real API server, in which nobody is evicted: what runs, what waits, and which numbers those
//! who wait are told.

use std::time::Duration;

use crate::kubernetes::{KubernetesCluster, until};
use crate::people::{Gang, evictions, node, queue, says};
use crate::support::state;

/// For what must not happen: several passes, and several times as long as anything here takes.
const QUIET: Duration = Duration::from_secs(3);

const ONE_GPU: &str = "nvidia.com/gpu: 1";
const EIGHT_GPUS: &str = "nvidia.com/gpu: 8";

#[tokio::test(flavor = "multi_thread")]
async fn of_two_gangs_of_twenty_on_thirty_gpus_one_runs_and_the_other_holds_nothing() {
    let cluster = KubernetesCluster::start(3, 10, 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    cluster.until_ready(&replica, 3).await;
    let admin = replica.admin().await;
    let names = ["a", "b"];
    let gangs = names.map(|name| Gang::new(name, &[("worker", 20)], ONE_GPU).manifest());
    cluster.apply(&gangs.concat()).await;

    let first = until("one of them runs", || async {
        let gangs = state(&admin).await.gangs;
        let first = gangs.iter().find(|gang| &*gang.pod_group_phase == "Running")?;
        Some(first.name.name.to_string())
    })
    .await;
    let second = names.into_iter().find(|name| *name != first).unwrap();
    cluster.until_running(&first, 20).await;
    let text = "20 of 20 pods needed, only 10 of 20 pods fit";
    says(&admin, second, "NoRoom", text).await;
    cluster.until_told(second, text).await;
    cluster.until_row(&format!("pg {first}"), &["Running", "20", "20"]).await;
    cluster.until_row(&format!("pg {second}"), &["Inqueue", "20"]).await;
    // All ledgers hold the first one's leases and nothing else, now and later.
    cluster.until_settled(&[&first]).await;
    tokio::time::sleep(QUIET).await;
    cluster.until_settled(&[&first]).await;
    assert!(cluster.placed(second).await.is_empty());
    let held: usize = state(&admin)
        .await
        .nodes
        .iter()
        .map(|node| node.gpus.iter().filter(|gpu| gpu.holder.is_some()).count())
        .sum();
    assert_eq!(held, 20);

    cluster.delete(&first).await;
    cluster.until_running(second, 20).await;
    cluster.until_settled(&[second]).await;
    assert_eq!((cluster.refused(), evictions(&admin).await), (0, 0));
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_above_the_quota_of_its_queue_waits_beside_idle_gpus_and_says_the_numbers() {
    let cluster = KubernetesCluster::start(20, 8, 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;
    let used = Gang { queue: "q", ..Gang::new("used", &[("worker", 15)], EIGHT_GPUS) };
    cluster.apply(&(queue("q", "capability: {nvidia.com/gpu: 128}") + &used.manifest())).await;
    cluster.until_running("used", 15).await;
    let asks = Gang { queue: "q", ..Gang::new("asks", &[("worker", 2)], EIGHT_GPUS) };
    cluster.apply(&asks.manifest()).await;
    let numbers = "queue q quota: capability nvidia.com/gpu 128, used or admitted 120, asked 16";
    let reason = says(&admin, "asks", "QuotaUsed", numbers).await;
    assert!(reason.fix.contains("8 GPUs of Queue q"), "{reason:?}");
    cluster.until_told("asks", numbers).await;
    cluster.until_row("pg asks", &["Pending", "2"]).await;
    cluster.until_settled(&["used"]).await;

    // What the fix says is enough.
    cluster.apply(&queue("q", "capability: {nvidia.com/gpu: 136}")).await;
    cluster.until_running("asks", 2).await;
    cluster.until_settled(&["used", "asks"]).await;
    assert_eq!((cluster.refused(), evictions(&admin).await), (0, 0));
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_eight_gpus_wait_while_nodes_have_1_5_4_and_6_free_and_are_told_exactly_that() {
    let cluster = KubernetesCluster::start(4, 8, 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;
    for (number, used) in [7, 3, 4, 2].into_iter().enumerate() {
        let resources = format!("nvidia.com/gpu: {used}");
        let name = format!("used-{number}");
        let gang = Gang::new(&name, &[("worker", 1)], &resources).manifest();
        let to = format!("  nodeSelector: {{kubernetes.io/hostname: {}}}\n  containers:", node(number));
        cluster.apply(&gang.replace("  containers:", &to)).await;
        cluster.runs_on(&name, number).await;
    }
    cluster.apply(&Gang::new("asks", &[("worker", 2)], EIGHT_GPUS).manifest()).await;
    let text = "2 of 2 pods needed, only 0 of 2 pods fit: 0 nodes with 8 free GPUs; 16 GPUs free in total; free per \
                node 1,5,4,6; largest free block 6";
    let reason = says(&admin, "asks", "NoRoom", text).await;
    assert_eq!(reason.fix, "wait for room for 2 more pods of 8 GPUs each");
    cluster.until_told("asks", text).await;
    cluster.until_row("pg asks", &["Inqueue", "2"]).await;
    cluster.until_settled(&["used-0", "used-1", "used-2", "used-3"]).await;

    // One node is not enough; two are.
    cluster.delete("used-0").await;
    says(&admin, "asks", "NoRoom", "only 1 of 2 pods fit: 1 node with 8 free GPUs").await;
    assert!(cluster.placed("asks").await.is_empty());
    cluster.delete("used-1").await;
    cluster.until_running("asks", 2).await;
    assert_eq!((cluster.refused(), evictions(&admin).await), (0, 0));
    replica.check();
}
