//! Replicas on a real API server: whoever leads binds each pod once, and whatever ends a leader, the next one goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

use std::time::{Duration, Instant};

use kubernetes::{KubernetesCluster, LEASE_SECONDS, until};

const NODES: usize = 4;
const GPUS: u32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_binds_a_gang_and_ledgers_say_what_annotations_say() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 1).await;
    let mut replica = cluster.replica(0, None);
    let (holder, term) = cluster.leader().await;
    assert!(holder.starts_with("replica-0_"), "{holder}");
    assert_eq!(term, 1);
    cluster.until_ready(&replica, NODES).await;
    cluster.gang("first", 4, 3).await;
    let pods = cluster.until_running("first", 4).await;
    assert!(
        pods.iter()
            .all(|pod| pod.metadata.annotations.as_ref().unwrap()["phalanx.dev/term"].starts_with("1."))
    );
    cluster.until_settled(&["first"]).await;
    // Too large for what is left: nothing of it is bound.
    cluster.gang("second", 4, 3).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let bound = cluster.pods("second").await;
    assert!(bound.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_none()));
    cluster.until_settled(&["first"]).await;
    cluster.delete("first").await;
    cluster.until_running("second", 4).await;
    cluster.until_settled(&["second"]).await;
    assert_eq!(cluster.refused(), 0);

    // Told to stop, it gives the Lease back.
    replica.signal("-TERM");
    assert_eq!(replica.ended().await.code(), Some(0));
    assert_eq!(cluster.holder().await, Some((String::new(), 1)));
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_is_followed_at_once() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 2).await;
    let mut first = cluster.replica(0, None);
    cluster.leader().await;
    let second = cluster.replica(1, None);
    cluster.until_ready(&first, NODES).await;
    let standby = second.admin().await;
    until("the replica that stands by names the leader", || async {
        let answer = support::get(&standby, "/v1/state").await;
        let told = answer.status == 503 && answer.error().contains("the leader is replica-0_");
        told.then_some(())
    })
    .await;
    assert_eq!(support::get(&standby, "/healthz").await.status, 200);
    until("the replica that stands by is ready", || async {
        (support::get(&standby, "/readyz").await.status == 200).then_some(())
    })
    .await;
    cluster.gang("first", 4, 2).await;
    cluster.until_running("first", 4).await;
    until("all agents keep a link to it", || async {
        let reports = cluster.hollow.reports().await;
        reports
            .values()
            .all(|report| report.as_ref().is_some_and(|report| report.standbys == 1))
            .then_some(())
    })
    .await;

    let began = Instant::now();
    first.signal("-TERM");
    until("the next leader", || async {
        cluster.holder().await.filter(|(name, _)| name.starts_with("replica-1_"))
    })
    .await;
    let taken = began.elapsed();
    println!("hand-over after SIGTERM: {taken:?}");
    assert_eq!(first.ended().await.code(), Some(0));
    cluster.until_ready(&second, NODES).await;
    println!("all nodes of the next leader after: {:?}", began.elapsed());
    cluster.gang("second", 4, 2).await;
    cluster.until_running("second", 4).await;
    cluster.until_settled(&["first", "second"]).await;
    assert_eq!(cluster.refused(), 0);
    first.check();
    second.check();
}

/// A leader dies at this point; the next one binds what it began.
async fn killed_at(cluster: &KubernetesCluster, point: &str) {
    let mut first = cluster.replica(0, Some(point));
    until("the first leads", || async {
        cluster.holder().await.filter(|(name, _)| name.starts_with("replica-0_"))
    })
    .await;
    let second = cluster.replica(1, None);
    cluster.until_ready(&first, NODES).await;
    let _ = second.admin().await;
    let gang = point.replace(':', "-");
    cluster.gang(&gang, 4, 4).await;
    let status = first.ended().await;
    assert_eq!(status.code(), None, "{point}: it was to be killed: {status:?}");
    let began = Instant::now();
    until("the next leader", || async {
        cluster.holder().await.filter(|(name, _)| name.starts_with("replica-1_"))
    })
    .await;
    let taken = began.elapsed();
    cluster.until_running(&gang, 4).await;
    println!("{point}: next leader after {taken:?}, all run after {:?}", began.elapsed());
    cluster.until_settled(&[&gang]).await;
    assert_eq!(cluster.refused(), 0, "{point}");
    first.check();
    second.check();
    cluster.delete(&gang).await;
    cluster.until_settled(&[]).await;
    // Its Lease is given back, so that the next round begins at once.
    let mut second = second;
    second.signal("-TERM");
    assert_eq!(second.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_dies_at_any_point_is_followed_and_all_are_bound_once() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 2).await;
    for point in
        ["planned", "first-confirm", "all-confirmed", "plan-written", "armed", "first-bind", "last-bind"]
    {
        killed_at(&cluster, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_stopped_and_wakes_up_does_nothing_more() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 2).await;
    let mut first = cluster.replica(0, None);
    cluster.leader().await;
    let second = cluster.replica(1, None);
    cluster.until_ready(&first, NODES).await;
    let _ = second.admin().await;
    cluster.gang("before", 4, 2).await;
    cluster.until_running("before", 4).await;
    cluster.gang("during", 4, 2).await;
    first.signal("-STOP");
    let began = Instant::now();
    until("the next leader", || async {
        cluster.holder().await.filter(|(name, _)| name.starts_with("replica-1_"))
    })
    .await;
    let taken = began.elapsed();
    println!("next leader after SIGSTOP: {taken:?}");
    cluster.until_running("during", 4).await;
    println!("all run after {:?}", began.elapsed());
    cluster.until_settled(&["before", "during"]).await;
    first.signal("-CONT");
    assert_eq!(first.ended().await.code(), Some(3), "one that leads no more says so by its exit code");
    cluster.until_settled(&["before", "during"]).await;
    assert_eq!(cluster.refused(), 0);
    assert!(first.log().contains("leads no more"), "{}", first.log());
    first.check();
    second.check();
    // The Lease lasts as long as it says, also after all this.
    tokio::time::sleep(Duration::from_secs(LEASE_SECONDS[0])).await;
    assert!(cluster.holder().await.unwrap().0.starts_with("replica-1_"));
}
