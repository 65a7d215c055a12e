//! Stories of users on a real API server, in which some give way to others: who goes, how many, what the others do
//! meanwhile, and how those who went come back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::kubernetes::{KubernetesCluster, Replica, until};
use crate::people::{Gang, class, evictions, queue, says};
use kube::ResourceExt;
use phalanx_common::wire::Exactness;
use phalanx_devcluster::hollow::NodeShape;

/// For what must not happen: several passes, and several times as long as anything here takes.
const QUIET: Duration = Duration::from_secs(3);

/// Of which devices a node has eight, and how a reason names 8 and 16 of them that are free.
struct Devices {
    name: &'static str,
    /// What a pod asks for that needs a whole node: its devices, with CPUs and memory.
    whole: &'static str,
    free: [&'static str; 2],
}

impl Devices {
    /// GPUs, one by one on the word of agents.
    const GPUS: Self = Self {
        name: "nvidia.com/gpu",
        whole: "nvidia.com/gpu: 8, cpu: 48, memory: 96Gi",
        free: ["8 free GPUs", "16 GPUs free"],
    };
    /// Another vendor's, which Nodes list and which are counted. There is enough of everything else.
    const COUNTED: Self = Self {
        name: "mars-tech.com/gpu",
        whole: "mars-tech.com/gpu: 8, rdma/hca_cpta: 1, rdma/hca_cptb: 1, cpu: 48, memory: 96Gi",
        free: ["mars-tech.com/gpu 8 free", "mars-tech.com/gpu 16 free"],
    };

    fn shape(&self) -> NodeShape {
        let mut shape = NodeShape { gpus: 0, ..NodeShape::default() };
        if self.name == "nvidia.com/gpu" {
            shape.gpus = 8;
        } else {
            let devices = [self.name, "rdma/hca_cpta", "rdma/hca_cptb"];
            shape.devices = devices.map(|name| (name.to_owned(), 8)).into();
        }
        shape
    }

    /// B has a master and three workers, and this minimum.
    fn gang_b(&self, minimum: usize) -> Gang<'static> {
        let tasks = &[("master", 1), ("worker", 3)];
        Gang { queue: "tenantb", class: "p2", minimum, ..Gang::new("b", tasks, self.whole) }
    }

    fn gang_a(&self) -> Gang<'static> {
        Gang { queue: "tenanta", class: "p0", ..Gang::new("a", &[("worker", 2)], self.whole) }
    }
}

/// Pods of B that were there before and are not any more.
async fn gone(cluster: &KubernetesCluster, before: &BTreeMap<String, String>) -> BTreeSet<String> {
    let placed = cluster.placed("b").await;
    before.iter().filter(|(name, uid)| placed.get(*name) != Some(uid)).map(|(name, _)| name.clone()).collect()
}

/// Two tenants with equal weights on 4 x 8 devices: B borrows all of them, then A's gang comes and runs. Gives B's pods
/// as they were.
async fn b_borrows_and_a_comes(
    devices: &Devices,
    minimum: usize,
) -> (KubernetesCluster, Replica, SocketAddr, BTreeMap<String, String>) {
    let cluster = KubernetesCluster::start_of(4, devices.shape(), 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    cluster.until_ready(&replica, 4).await;
    let admin = replica.admin().await;
    let tenants = ["tenanta", "tenantb"].map(|name| queue(name, "weight: 1, reclaimable: true"));
    cluster.apply(&(tenants.concat() + &class("p0", 1_000_000) + &class("p2", 100))).await;
    cluster.apply(&devices.gang_b(minimum).manifest()).await;
    cluster.until_running("b", 4).await;
    cluster.until_row("pg b", &["Running", &minimum.to_string(), "4"]).await;
    let before = cluster.placed("b").await;
    assert_eq!(evictions(&admin).await, 0);
    cluster.apply(&devices.gang_a().manifest()).await;
    let pods = cluster.until_running("a", 2).await;
    assert!(pods.iter().all(|pod| pod.annotations()["phalanx.dev/exactness"] == "count"), "{pods:?}");
    (cluster, replica, admin, before)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_takes_its_share_back_and_exactly_two_workers_go_never_the_master() {
    two_workers_go(&Devices::GPUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_takes_its_share_of_counted_devices_back_and_exactly_two_workers_go() {
    two_workers_go(&Devices::COUNTED).await;
}

async fn two_workers_go(devices: &Devices) {
    let (cluster, replica, admin, before) = b_borrows_and_a_comes(devices, 1).await;
    cluster.until_row("pg b", &["Running", "1", "2"]).await;
    cluster.until_row("pg a", &["Running", "2", "2"]).await;
    let went = gone(&cluster, &before).await;
    assert_eq!(went.len(), 2, "{went:?}");
    assert!(!went.contains("b-master-0"), "{went:?}");
    let status = cluster.object("pg/b").await["status"].clone();
    assert_eq!((&status["phase"], &status["running"]), (&"Running".into(), &2.into()), "{status}");

    // Made again by their controller they wait, for what is borrowed is not taken back from its owner.
    cluster.make_missing(&devices.gang_b(1).manifest()).await;
    says(&admin, "b", "MorePodsWait", "2 more pods wait for a place").await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(gone(&cluster, &before).await, went);
    assert_eq!(evictions(&admin).await, 2);

    cluster.delete("a").await;
    cluster.until_running("b", 4).await;
    cluster.until_row("pg b", &["Running", "1", "4"]).await;
    assert_eq!(gone(&cluster, &before).await, went, "the others went on all the time");
    cluster.until_settled(&["b"]).await;
    for (_, report) in cluster.hollow.reports().await {
        let leases = report.expect("the agent runs").leases;
        assert_eq!(leases.len(), 1);
        let request = &leases[0].request;
        assert_eq!(request.request.effective().amount(devices.name), 8);
        assert_eq!(request.exactness == Exactness::Count, request.gpus().is_empty());
    }
    assert_eq!((cluster.refused(), evictions(&admin).await), (0, 2));
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_needs_all_of_its_pods_gives_way_as_a_whole_and_returns_when_the_other_ends() {
    all_of_it_goes(&Devices::GPUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_needs_all_of_its_counted_devices_gives_way_as_a_whole_and_returns() {
    all_of_it_goes(&Devices::COUNTED).await;
}

async fn all_of_it_goes(devices: &Devices) {
    let (cluster, replica, admin, before) = b_borrows_and_a_comes(devices, 4).await;
    assert_eq!(gone(&cluster, &before).await.len(), 4);
    cluster.make_missing(&devices.gang_b(4).manifest()).await;
    // It needs 32, and 16 are idle.
    let [of_a_node, of_all] = devices.free;
    let text =
        format!("4 of 4 pods needed, only 2 of 4 pods fit: 2 nodes with {of_a_node}; {of_all} in total");
    let reason = says(&admin, "b", "Preempted", &text).await;
    let over = format!("queue tenantb would be over deserved in {} (32 > 16)", devices.name);
    assert!(reason.text.contains(&over), "{reason:?}");
    cluster.until_told("b", &text).await;
    cluster.until_row("pg b", &["Inqueue", "4"]).await;
    tokio::time::sleep(QUIET).await;
    assert!(cluster.placed("b").await.is_empty());
    cluster.until_settled(&["a"]).await;
    assert_eq!(evictions(&admin).await, 4);

    cluster.delete("a").await;
    cluster.until_running("b", 4).await;
    cluster.until_row("pg b", &["Running", "4", "4"]).await;
    cluster.until_settled(&["b"]).await;
    assert_eq!((cluster.refused(), evictions(&admin).await), (0, 4));
    replica.check();
}

/// How long what runs is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(4);
/// How long urgent gangs keep coming.
const STREAM: Duration = Duration::from_secs(16);

/// A job of low priority is started again whenever it was evicted, and urgent ones that end at once come one after the
/// other, in this queue of one GPU. Nobody counts seconds here, but how often it went.
async fn stream_of_urgent_ones(cluster: &KubernetesCluster, admin: &SocketAddr, queue: &str, cooldown: &str) {
    let low = format!("low-{queue}");
    let low = Gang {
        queue,
        class: "p2",
        annotations: cooldown,
        ..Gang::new(&low, &[("worker", 1)], "nvidia.com/gpu: 1")
    };
    let before = evictions(admin).await;
    let began = Instant::now();
    cluster.apply(&low.manifest()).await;
    cluster.until_running(low.name, 1).await;
    let mut urgent = 0;
    while began.elapsed() < STREAM {
        let name = format!("urgent-{queue}-{urgent}");
        let annotations = ", phalanx.dev/run-for: 100ms";
        let gang = Gang {
            queue,
            class: "p0",
            annotations,
            ..Gang::new(&name, &[("worker", 1)], "nvidia.com/gpu: 1")
        };
        cluster.apply(&gang.manifest()).await;
        urgent += 1;
        until("the urgent one has run", || async {
            cluster.make_missing(&low.manifest()).await;
            let pods = cluster.pods(&name).await;
            let phase = pods.first()?.status.as_ref()?.phase.clone()?;
            (phase == "Succeeded").then_some(())
        })
        .await;
        cluster.until_running(low.name, 1).await;
    }
    let went = evictions(admin).await - before;
    assert_eq!(went, urgent, "each urgent one came while it ran");
    // A pod's start has whole seconds: one that began late in its second looks older than it is.
    let most = began.elapsed().as_secs() / (LEFT_ALONE.as_secs() - 1);
    assert!((2..=most).contains(&went), "{low:?} was evicted {went} times, at most {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_urgent_gangs_evicts_a_restarting_job_only_as_often_as_its_protection_allows() {
    let cluster = KubernetesCluster::start(1, 8, 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    cluster.until_ready(&replica, 1).await;
    let admin = replica.admin().await;
    let one = "capability: {nvidia.com/gpu: 1}";
    let queues = ["own", "policy", "long"].map(|name| queue(name, one));
    cluster.apply(&(queues.concat() + &class("p0", 1_000_000) + &class("p2", 100))).await;
    let seconds = LEFT_ALONE.as_secs();
    cluster
        .apply(&format!(
            "apiVersion: phalanx.dev/v1alpha1
kind: QueuePolicy
metadata: {{name: policy}}
spec: {{minimumRunTime: {seconds}s}}
"
        ))
        .await;
    // One that may not go for an hour, while all of this happens.
    let cooldown = ", volcano.sh/cooldown-time: 1h";
    let tasks = &[("worker", 1)];
    let long = Gang {
        queue: "long",
        class: "p2",
        annotations: cooldown,
        ..Gang::new("long", tasks, "nvidia.com/gpu: 1")
    };
    cluster.apply(&long.manifest()).await;
    let kept = cluster.until_running("long", 1).await[0].metadata.uid.clone();
    let waits = Gang { queue: "long", class: "p0", ..Gang::new("waits", tasks, "nvidia.com/gpu: 1") };
    cluster.apply(&waits.manifest()).await;
    says(&admin, "waits", "QuotaUsed", "long is protected by its cooldown-time until").await;

    let cooldown = format!(", volcano.sh/cooldown-time: {seconds}s");
    stream_of_urgent_ones(&cluster, &admin, "own", &cooldown).await;
    stream_of_urgent_ones(&cluster, &admin, "policy", "").await;
    assert_eq!(cluster.until_running("long", 1).await[0].metadata.uid, kept);
    assert!(cluster.placed("waits").await.is_empty());
    assert_eq!(cluster.refused(), 0);
    replica.check();
}

/// A job of pods of one whole node each.
fn job(name: &str, pods: usize, class: &str) -> String {
    format!(
        "apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: {name}, namespace: default}}
spec:
  minAvailable: {pods}
  schedulerName: phalanx
  queue: q
  priorityClassName: {class}
  tasks:
    - name: worker
      replicas: {pods}
      template:
        metadata: {{labels: {{gang: {name}}}}}
        spec:
          containers: [{{name: main, image: none, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]
---
"
    )
}

impl KubernetesCluster {
    /// Name of a job's PodGroup.
    async fn group_of(&self, job: &str) -> Option<String> {
        let groups = self.kubectl("get pg -o name").await;
        let mut names = groups.lines().filter_map(|line| line.rsplit('/').next());
        names.find(|name| name.starts_with(&format!("{job}-"))).map(str::to_owned)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_job_without_pods_is_admitted_where_less_urgent_ones_can_give_their_quota_back() {
    let cluster = KubernetesCluster::start(4, 8, 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    cluster.until_ready(&replica, 4).await;
    let admin = replica.admin().await;
    cluster.servers.start_controller_manager(&["garbage-collector-controller"]).await.unwrap();
    // The queue is full; two nodes are idle all the time.
    cluster
        .apply(&(queue("q", "capability: {nvidia.com/gpu: 16}") + &class("p0", 1_000) + &class("p2", 10)))
        .await;
    cluster.apply(&job("low", 2, "p2")).await;
    cluster.until_running("low", 2).await;
    // One of the same priority gets no pods: nobody goes for it.
    cluster.apply(&job("equal", 1, "p2")).await;
    let text = "queue q quota: capability nvidia.com/gpu 16, used or admitted 16, asked 8";
    let equal = until("the PodGroup of the job", || cluster.group_of("equal")).await;
    says(&admin, &equal, "QuotaUsed", text).await;
    assert_eq!(evictions(&admin).await, 0);

    cluster.apply(&job("high", 1, "p0")).await;
    cluster.until_running("high", 1).await;
    // It was needed whole: both of its pods went, once.
    let high = cluster.group_of("high").await.unwrap();
    let low = cluster.group_of("low").await.unwrap();
    cluster.until_row(&format!("pg {high}"), &["Running", "1", "1"]).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(evictions(&admin).await, 2);
    assert!(cluster.placed("low").await.is_empty());
    says(&admin, &low, "Preempted", "queue q quota").await;

    cluster.kubectl("delete vcjob high equal").await;
    cluster.until_running("low", 2).await;
    assert_eq!((cluster.refused(), evictions(&admin).await), (0, 2));
    replica.check();
}
