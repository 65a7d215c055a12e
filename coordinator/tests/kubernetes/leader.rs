//! Replicas on a real API server: whoever leads binds each pod once, and whatever ends a leader, the next one goes on.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Binding, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use phalanx_common::ids::{GangName, NodeName, PodUid};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
use phalanx_common::units::Millis;
use phalanx_coordinator::api::{Mutation, ObjectKey};
use phalanx_coordinator::clock::Clock;
use phalanx_coordinator::convert::Reading;
use phalanx_coordinator::convert::plan::{PlanChange, decide, number_of, plan_key};
use phalanx_coordinator::kubernetes::normalize;
use phalanx_devcluster::hollow::NAMESPACE;
use phalanx_kubernetes::election::LEASE_NAME;

use crate::kube_proxy::{Proxy, Spoil};
use crate::kubernetes::{KubernetesCluster, LEASE_SECONDS, Replica, until};
use http::Method;
use serde_json::{Value, json};

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
        let answer = crate::support::get(&standby, "/v1/state").await;
        let told = answer.status == 503 && answer.error().contains("the leader is replica-0_");
        told.then_some(())
    })
    .await;
    assert_eq!(crate::support::get(&standby, "/healthz").await.status, 200);
    until("the replica that stands by is ready", || async {
        (crate::support::get(&standby, "/readyz").await.status == 200).then_some(())
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

/// The API server answers nothing while a new leader reads what is stored: whoever stops it need not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_before_it_has_begun_gives_the_lease_back() {
    let cluster = KubernetesCluster::start(1, GPUS, 2).await;
    let proxy = Proxy::before(cluster.servers.kubeconfig()).await;
    let mut first = cluster.replica(1, None);
    cluster.leader().await;
    let mut second = cluster.replica_over(0, &proxy.kubeconfig(), None, &[]);
    let standby = second.admin().await;
    until("it stands by", || async {
        (crate::support::get(&standby, "/readyz").await.status == 200).then_some(())
    })
    .await;
    // Its watches go on; what is asked from now on has no answer.
    let asked = proxy.count(&Method::GET, "/gangplans");
    proxy.spoil(100, Method::GET, "/gangplans", Spoil::Swallow);
    first.signal("-TERM");
    assert_eq!(first.ended().await.code(), Some(0));
    until("it has the Lease and asks", || async {
        (proxy.count(&Method::GET, "/gangplans") > asked).then_some(())
    })
    .await;
    assert!(cluster.holder().await.is_some_and(|(name, _)| name.starts_with("replica-0_")));
    second.signal("-TERM");
    assert_eq!(second.ended().await.code(), Some(0));
    assert_eq!(cluster.holder().await.map(|(name, _)| name), Some(String::new()));
    first.check();
    second.check();
}

/// Names of so many gangs whose plans are in one object.
fn together(first: &str, count: usize) -> Vec<String> {
    let number = |name: &str| number_of(&GangName::new("default", name));
    let names = (0..).map(|at| format!("{first}-{at}"));
    names.filter(|name| number(name) == number(&format!("{first}-0"))).take(count).collect()
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
    let gangs = together(point, 2);
    let gangs: Vec<&str> = gangs.iter().map(String::as_str).collect();
    cluster.gangs(&gangs, 2, 4).await;
    let status = first.ended().await;
    assert_eq!(status.code(), None, "{point}: it was to be killed: {status:?}");
    let began = Instant::now();
    until("the next leader", || async {
        cluster.holder().await.filter(|(name, _)| name.starts_with("replica-1_"))
    })
    .await;
    let taken = began.elapsed();
    for gang in &gangs {
        cluster.until_running(gang, 2).await;
    }
    println!("{point}: next leader after {taken:?}, all run after {:?}", began.elapsed());
    cluster.until_settled(&gangs).await;
    assert_eq!(cluster.refused(), 0, "{point}");
    first.check();
    second.check();
    for gang in &gangs {
        cluster.delete(gang).await;
    }
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

/// Kinds of gangs that an earlier leader left behind.
const BOUND: usize = 0;
const HALF: usize = 1;
const UNBOUND: usize = 2;
const GONE: usize = 3;

/// Makes a PodGroup and two pods that ask for no GPU, and gives the plan that puts each on a node of its own.
async fn planned(cluster: &KubernetesCluster, gang: &str) -> GangPlan {
    cluster.gang(gang, 2, 0).await;
    let groups =
        ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.volcano.sh", "v1beta1", "PodGroup"));
    let groups: Api<DynamicObject> = Api::default_namespaced_with(cluster.client.clone(), &groups);
    let uid = groups.get(gang).await.unwrap().uid().unwrap();
    let pods = cluster.pods(gang).await.into_iter().zip(["hollow-2", "hollow-3"]);
    let pods = pods.map(|(pod, node)| PlannedPod {
        pod: PodUid::from(pod.uid().unwrap()),
        name: pod.name_any().as_str().into(),
        node: NodeName::from(node),
        lease: None,
        gpus: Vec::new(),
    });
    GangPlan {
        gang: GangName::new("default", gang),
        gang_uid: uid.as_str().into(),
        term: 1,
        binding_deadline: Clock::start().now() + Millis(60_000),
        purpose: PlanPurpose::Bind,
        victims: Vec::new(),
        pods: pods.collect(),
    }
}

/// As the earlier leader did.
async fn bind(cluster: &KubernetesCluster, planned: &PlannedPod) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let binding: Binding = serde_json::from_value(json!({
        "metadata": { "name": &*planned.name, "annotations": { "phalanx.dev/term": "1.00000001" } },
        "target": { "kind": "Node", "name": planned.node.as_str() },
    }))
    .unwrap();
    let parameters = PostParams::default();
    let _: Value = pods.create_subresource("binding", &planned.name, &parameters, &binding).await.unwrap();
}

/// Four gangs in one object. For each of them the next leader does what its state asks for, and nothing stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn plans_in_one_object_are_followed_up_each_as_far_as_it_came() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 1).await;
    let names = together("g", 4);
    let mut plans = Vec::new();
    for name in &names {
        plans.push(planned(&cluster, name).await);
    }
    bind(&cluster, &plans[BOUND].pods[0]).await;
    bind(&cluster, &plans[BOUND].pods[1]).await;
    bind(&cluster, &plans[HALF].pods[0]).await;
    cluster.delete(&names[GONE]).await;
    let stored = ApiResource::from_gvk(&GroupVersionKind::gvk("phalanx.dev", "v1alpha1", "GangPlan"));
    let create = async |key: &ObjectKey, json: Value| {
        let stored: Api<DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), &key.namespace, &stored);
        let object: DynamicObject = serde_json::from_value(json).unwrap();
        stored.create(&PostParams::default(), &object).await.unwrap();
    };
    plans[UNBOUND].term = 2;
    let changes = plans.iter().map(|plan| PlanChange::Write(Box::new(plan.clone()))).collect::<Vec<_>>();
    let key = plan_key(&Reading::default(), &plans[BOUND].gang);
    let Some(Mutation::Create(object)) = decide(&key, None, &changes).mutation else { panic!() };
    create(&key, normalize::to_json(&object)).await;

    let replica = cluster.replica(0, None);
    for at in [BOUND, HALF, UNBOUND] {
        for pod in cluster.until_running(&names[at], 2).await {
            let plan = plans[at].pods.iter().find(|planned| *planned.name == *pod.name_any()).unwrap();
            let node = pod.spec.unwrap().node_name;
            assert_eq!(node.as_deref(), Some(plan.node.as_str()), "{}", plan.name);
        }
    }
    let all: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &stored);
    until("no plan is left", || async {
        all.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
    })
    .await;
    // Each was bound once, and none was taken back.
    for plan in &plans {
        let pods = cluster.pods(&plan.gang.name).await;
        let expected = if *plan.gang.name == *names[GONE] { 0 } else { 2 };
        assert_eq!(pods.len(), expected, "{}", plan.gang);
        for pod in pods {
            assert!(
                plan.pods.iter().any(|planned| planned.pod.as_str() == pod.uid().unwrap()),
                "{}",
                plan.gang
            );
        }
    }
    replica.check();
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

/// Agents obey the present leader and nobody else: what it decides is done, under a term that is above all before.
async fn is_obeyed(cluster: &KubernetesCluster, replica: &Replica, gang: &str, before: &mut u64) {
    cluster.until_ready(replica, NODES).await;
    // The agents tell what they know, and the leader goes above it.
    let raised = || async { Some(cluster.holder().await?.1).filter(|counter| counter > before) };
    let counter = until("a higher counter", raised).await;
    // On all nodes.
    cluster.gang(gang, 4, 4).await;
    let pods = cluster.until_running(gang, 4).await;
    cluster.until_obeyed(counter).await;
    let prefix = format!("{counter}.");
    for pod in pods {
        let term = &pod.metadata.annotations.unwrap()["phalanx.dev/term"];
        assert!(term.starts_with(&prefix), "{gang}: {term}");
    }
    cluster.until_settled(&[gang]).await;
    assert_eq!(cluster.holder().await.unwrap().1, counter, "{gang}: the counter has settled");
    *before = counter;
    cluster.delete(gang).await;
    cluster.until_settled(&[]).await;
}

async fn killed(mut replica: Replica) {
    replica.signal("-KILL");
    replica.ended().await;
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_obey_one_leader_whatever_was_done_to_the_lease() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 1).await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let mut counter = 0;
    let replica = cluster.replica(0, None);
    is_obeyed(&cluster, &replica, "first", &mut counter).await;
    let mut old = leases.get(LEASE_NAME).await.unwrap();
    old.metadata.uid = None;
    old.metadata.resource_version = None;

    // Again under the same name; nothing was given back.
    killed(replica).await;
    let mut replica = cluster.replica(0, None);
    is_obeyed(&cluster, &replica, "same-name", &mut counter).await;

    // Two acquires in a row.
    for _ in 0..2 {
        replica.signal("-TERM");
        assert_eq!(replica.ended().await.code(), Some(0));
        replica = cluster.replica(0, None);
        cluster.until_ready(&replica, NODES).await;
    }
    is_obeyed(&cluster, &replica, "in-a-row", &mut counter).await;

    // The Lease is deleted while it is held: its holder makes it again, and goes on.
    leases.delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    let held = until("the Lease again", || async { cluster.holder().await }).await;
    assert_eq!(held.1, counter);
    counter -= 1;
    is_obeyed(&cluster, &replica, "deleted-while-held", &mut counter).await;

    // It is gone, and nobody is left who knows its counter but the agents.
    killed(replica).await;
    leases.delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    let replica = cluster.replica(0, None);
    is_obeyed(&cluster, &replica, "deleted", &mut counter).await;

    // An old one in its place, as after a restored backup.
    killed(replica).await;
    leases.delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    leases.create(&PostParams::default(), &old).await.unwrap();
    let replica = cluster.replica(0, None);
    is_obeyed(&cluster, &replica, "restored", &mut counter).await;

    // The same while it is held: its holder ends, and the next one is above both.
    let mut replica = replica;
    leases.delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    if leases.create(&PostParams::default(), &old).await.is_ok() {
        assert_eq!(replica.ended().await.code(), Some(3));
        replica.check();
        replica = cluster.replica(0, None);
        is_obeyed(&cluster, &replica, "restored-while-held", &mut counter).await;
    }
    replica.check();
    assert_eq!(cluster.refused(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_from_the_api_server_ends_and_is_followed() {
    let cluster = KubernetesCluster::start(NODES, GPUS, 2).await;
    let (relay, kubeconfig) = cluster.relay().await;
    let mut first = cluster.replica_over(0, &kubeconfig, None, &[]);
    cluster.leader().await;
    let second = cluster.replica(1, None);
    cluster.until_ready(&first, NODES).await;
    let _ = second.admin().await;
    cluster.gang("before", 4, 2).await;
    cluster.until_running("before", 4).await;
    cluster.gang("during", 4, 2).await;
    relay.cut(true);
    let began = Instant::now();
    // It is told by nobody, and ends before the next one leads.
    let code = first.ended().await.code();
    let ended = began.elapsed();
    assert_eq!(code, Some(3));
    until("the next leader", || async {
        cluster.holder().await.filter(|(name, _)| name.starts_with("replica-1_"))
    })
    .await;
    println!("cut off: it ended after {ended:?}, the next one leads after {:?}", began.elapsed());
    // What it sent before arrives now.
    relay.cut(false);
    cluster.until_running("during", 4).await;
    println!("all run after {:?}", began.elapsed());
    cluster.until_settled(&["before", "during"]).await;
    assert_eq!(cluster.refused(), 0);
    first.check();
    second.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn volcanos_pods_are_left_to_its_scheduler_while_it_runs() {
    let cluster = KubernetesCluster::start(1, 1, 1).await;
    let scheduler = "apiVersion: v1
kind: Pod
metadata: {name: volcano-scheduler-0, namespace: default, labels: {app: volcano-scheduler}}
spec: {containers: [{name: main, image: none}]}
";
    cluster.servers.kubectl_with_input(&["apply", "-f", "-"], scheduler).await.unwrap();
    let kubeconfig = cluster.servers.kubeconfig().to_owned();
    let mut alone = cluster.replica_over(0, &kubeconfig, None, &["--scheduler-names", "volcano"]);
    assert_eq!(alone.ended().await.code(), Some(1));
    let log = alone.log();
    assert!(log.contains("volcano alone cannot be served") && log.contains("scale it to 0"), "{log}");

    let both = ["--scheduler-names", "phalanx,volcano"];
    let mut replica = cluster.replica_over(0, &kubeconfig, None, &both);
    cluster.until_ready(&replica, 1).await;
    assert!(replica.log().contains("pods with schedulerName volcano are left to it"), "{}", replica.log());
    replica.signal("-TERM");
    assert_eq!(replica.ended().await.code(), Some(0));

    let gone = ["delete", "pod", "volcano-scheduler-0", "--force", "--grace-period=0"];
    cluster.servers.kubectl(&gone).await.unwrap();
    let replica = cluster.replica_over(0, &kubeconfig, None, &both);
    cluster.until_ready(&replica, 1).await;
    let pod = "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: theirs, namespace: default}
spec: {minMember: 1}
---
apiVersion: v1
kind: Pod
metadata:
  name: theirs-0
  namespace: default
  labels: {gang: theirs}
  annotations: {scheduling.k8s.io/group-name: theirs}
spec:
  schedulerName: volcano
  containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 1}}}]
";
    cluster.servers.kubectl_with_input(&["apply", "-f", "-"], pod).await.unwrap();
    cluster.until_running("theirs", 1).await;
    replica.check();
}
