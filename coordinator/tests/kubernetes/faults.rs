//! A coordinator on a real API server that answers wrongly, late or not at all: all is bound once all the same, nobody
//! else waits for what is refused, and what waits is told without a flood of writes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;

use crate::kube_proxy::{Proxy, Spoil};
use crate::kubernetes::{KubernetesCluster, until};
use crate::people::event_of;

/// Time without a write after which none is to come any more.
const QUIET: Duration = Duration::from_secs(5);

fn groups(cluster: &KubernetesCluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("scheduling.volcano.sh", "v1beta1", "PodGroup");
    Api::namespaced_with(cluster.client.clone(), "default", &ApiResource::from_gvk(&kind))
}

/// Makes so many gangs of one pod each, faster than kubectl does.
async fn single_gangs(cluster: &KubernetesCluster, count: usize, gpus: u32) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let groups = groups(cluster);
    let made = futures::stream::iter(0..count).map(|number| {
        let (pods, groups) = (&pods, &groups);
        async move {
            let name = format!("wait-{number:03}");
            let group = json!({ "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
                "metadata": { "name": name }, "spec": { "minMember": 1 } });
            let group = serde_json::from_value(group).unwrap();
            groups.create(&PostParams::default(), &group).await.unwrap();
            let pod = json!({
                "metadata": { "name": format!("{name}-0"), "annotations": { "scheduling.k8s.io/group-name": name } },
                "spec": { "schedulerName": "phalanx", "containers": [{ "name": "main", "image": "none",
                    "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } } }] },
            });
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        }
    });
    made.buffer_unordered(16).collect::<Vec<()>>().await;
}

/// Writes that were done, but for those of the Lease, by what they are about.
fn writes(proxy: &Proxy) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (method, path) in proxy.done_writes() {
        if !path.contains("/leases/") {
            *counts.entry(format!("{method} {path}")).or_insert(0) += 1;
        }
    }
    counts
}

/// Waits until nothing was written for a while.
async fn until_quiet(proxy: &Proxy) -> usize {
    let mut before = usize::MAX;
    loop {
        let now = writes(proxy).values().sum();
        if now == before {
            return now;
        }
        before = now;
        tokio::time::sleep(QUIET).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_013_no_flood_of_writes() {
    const GANGS: usize = 200;
    let cluster = KubernetesCluster::start(1, 4, 1).await;
    let proxy = Proxy::start(&cluster.servers).await;
    let replica = cluster.replica_over(0, &proxy.kubeconfig(), None, &[]);
    cluster.until_ready(&replica, 1).await;
    cluster.gang("running", 1, 4).await;
    cluster.until_running("running", 1).await;
    single_gangs(&cluster, GANGS, 4).await;
    until_quiet(&proxy).await;

    // Every gang that waits is told of, by its pod, its PodGroup and one event of each.
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let mut told = 0;
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled").unwrap();
        if pod.name_any().starts_with("wait-") {
            assert_eq!((&*scheduled.status, scheduled.reason.as_deref()), ("False", Some("Unschedulable")));
            assert!(scheduled.message.as_ref().unwrap().starts_with("[NoRoom] "), "{scheduled:?}");
            told += 1;
        } else {
            assert_eq!(scheduled.status, "True");
        }
    }
    assert_eq!(told, GANGS);
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let events = events.list(&ListParams::default()).await.unwrap();
    let mut by_object = BTreeMap::new();
    for event in &events {
        let about = event.regarding.as_ref().unwrap().name.clone().unwrap();
        by_object.entry(about).or_insert_with(Vec::new).push(event.reason.clone().unwrap());
    }
    assert_eq!(by_object["running"], ["Scheduled"]);
    assert_eq!(by_object["wait-000-0"], ["FailedScheduling"]);
    assert_eq!(by_object.len(), 2 * GANGS + 1);
    assert!(by_object.values().all(|reasons| reasons.len() == 1), "{by_object:?}");

    let of = |name: &str| -> usize {
        writes(&proxy).iter().filter(|(write, _)| write.contains(name)).map(|(_, count)| count).sum()
    };
    let most = (0..GANGS).map(|number| of(&format!("wait-{number:03}")) + 2).max().unwrap();
    println!("writes for a gang that waits, with its events: at most {most}");
    // One more than before there were events of pods: with a refresh of the pod's text each ten minutes, which has no
    // event, there are at most 13 in an hour.
    assert!(most <= 7, "{:#?}", writes(&proxy));

    // A node that helps nobody changes nothing.
    let before = writes(&proxy);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = json!({ "metadata": { "name": "without-gpus" },
        "status": { "allocatable": { "cpu": "8", "memory": "16Gi", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True" }] } });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    tokio::time::sleep(QUIET).await;
    assert_eq!(writes(&proxy), before);
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_is_bound_once_whatever_its_bindings_are_answered() {
    let cluster = KubernetesCluster::start(4, 4, 1).await;
    let proxy = Proxy::start(&cluster.servers).await;
    let replica = cluster.replica_over(0, &proxy.kubeconfig(), None, &[]);
    cluster.until_ready(&replica, 4).await;
    let faults = [
        Spoil::Answer(500, "etcdserver: request timed out"),
        Spoil::Answer(409, "the object has been modified"),
        Spoil::Busy(1),
        Spoil::Busy(60),
        Spoil::Late(Duration::from_secs(4)),
        Spoil::Cut,
        Spoil::Swallow,
        Spoil::Answer(403, "not now"),
    ];
    for (number, spoil) in faults.iter().enumerate() {
        proxy.spoil(1, Method::POST, &format!("/pods/first-{number}/binding"), spoil.clone());
    }
    proxy.spoil(1, Method::POST, "/gangplans", Spoil::Cut);
    cluster.gang("first", faults.len(), 2).await;
    cluster.until_running("first", faults.len()).await;
    cluster.until_settled(&["first"]).await;
    assert_eq!(cluster.refused(), 0);
    for (number, fault) in faults.iter().enumerate() {
        let sent = proxy.count(&Method::POST, &format!("/pods/first-{number}/binding"));
        assert!((1..=3).contains(&sent), "{fault:?}: {sent} Bindings");
    }
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_refused_for_ever_wins_no_cycle_and_its_gang_gives_its_gpus_back() {
    let cluster = KubernetesCluster::start(2, 4, 1).await;
    let proxy = Proxy::start(&cluster.servers).await;
    let flags = ["--binding-deadline", "15s"];
    let replica = cluster.replica_over(0, &proxy.kubeconfig(), None, &flags);
    cluster.until_ready(&replica, 2).await;
    proxy.spoil(
        u32::MAX,
        Method::POST,
        "/pods/refused-1/binding",
        Spoil::Answer(403, "no Bindings on Sundays"),
    );
    cluster.gang("refused", 2, 2).await;
    until("the first refusal", || async {
        (proxy.count(&Method::POST, "/pods/refused-1/binding") > 0).then_some(())
    })
    .await;
    // Others are bound meanwhile.
    cluster.gang("good", 2, 2).await;
    cluster.until_running("good", 2).await;
    let sent = proxy.count(&Method::POST, "/pods/refused-1/binding");
    assert!(sent <= 10, "{sent} Bindings in a few seconds");
    // After the deadline what was bound of it is evicted.
    until("the other pod of the gang is evicted", || async {
        let count = proxy.count(&Method::POST, "/pods/refused-0/eviction");
        (count > 0).then_some(())
    })
    .await;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    until("the eviction's event", || async {
        let events = events.list(&ListParams::default()).await.unwrap();
        let evicted = events.iter().find(|event| event.reason.as_deref() == Some("Evict"))?;
        let note = evicted.note.as_deref().unwrap();
        assert!(note.contains("no Bindings on Sundays"), "{note}");
        Some(())
    })
    .await;
    assert_eq!(cluster.refused(), 0);
    replica.check();
}

fn of_kind(cluster: &KubernetesCluster, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind.kind == "Queue" {
        return Api::all_with(cluster.client.clone(), &kind);
    }
    Api::namespaced_with(cluster.client.clone(), "default", &kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_as_it_is_says_so_at_the_object_itself() {
    let cluster = KubernetesCluster::start(1, 4, 1).await;
    let replica = cluster.replica(0, None);
    cluster.until_ready(&replica, 1).await;
    let jobs = of_kind(&cluster, "batch.volcano.sh", "v1alpha1", "Job");
    let job = |name: &str, spec: serde_json::Value| {
        let job = json!({ "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
            "metadata": { "name": name }, "spec": spec });
        serde_json::from_value::<DynamicObject>(job).unwrap()
    };
    let tasks = json!([{ "name": "w", "replicas": 2, "template": { "spec": {
        "containers": [{ "name": "main", "image": "none" }] } } }]);
    let spec =
        json!({ "minAvailable": 5, "schedulerName": "phalanx", "plugins": { "svc": [] }, "tasks": tasks });
    jobs.create(&PostParams::default(), &job("wrong", spec)).await.unwrap();
    let note = event_of(&cluster, "wrong", "InvalidJob").await;
    assert!(note.contains("minAvailable 5 > replicas 2"), "{note}");
    let note = event_of(&cluster, "wrong", "NotHonoured").await;
    assert!(note.contains("spec.plugins"), "{note}");
    let state = jobs.get("wrong").await.unwrap().data["status"]["state"].clone();
    assert_eq!((&state["phase"], &state["reason"]), (&json!("Pending"), &json!("InvalidJob")));
    // Repaired it goes on, and nothing of the fault is left.
    let repair = json!({ "spec": { "minAvailable": 2 } });
    jobs.patch("wrong", &PatchParams::default(), &Patch::Merge(&repair)).await.unwrap();
    cluster_pods(&cluster, "wrong-w-", 2).await;
    until("the job's status is repaired", || async {
        let state = jobs.get("wrong").await.ok()?.data["status"]["state"].clone();
        (state["reason"].is_null() && state["message"].is_null()).then_some(())
    })
    .await;
    // A pod of a PodGroup that is not there.
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let pod = json!({ "metadata": { "name": "alone", "annotations": { "scheduling.k8s.io/group-name": "nowhere" } },
        "spec": { "schedulerName": "phalanx", "containers": [{ "name": "main", "image": "none" }] } });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let note = event_of(&cluster, "alone", "FailedScheduling").await;
    assert!(note.starts_with("[NoSuchPodGroup] PodGroup default/nowhere"), "{note}");
    // A queue whose fields have no effect, and the default one that was removed.
    let queues = of_kind(&cluster, "scheduling.volcano.sh", "v1beta1", "Queue");
    let queue = json!({ "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": { "name": "below" }, "spec": { "weight": 1,
            "affinity": { "nodeGroupAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": ["a"] } } } });
    queues.create(&PostParams::default(), &serde_json::from_value(queue).unwrap()).await.unwrap();
    let note = event_of(&cluster, "below", "NotHonoured").await;
    assert!(note.contains("spec.affinity") && !note.contains("spec.weight"), "{note}");
    let before = queues.get("default").await.unwrap().uid();
    queues.delete("default", &DeleteParams::default()).await.unwrap();
    until("the default queue is made again", || async {
        let queue = queues.get("default").await.ok()?;
        (queue.uid() != before).then_some(())
    })
    .await;
    replica.check();
}

/// Waits for so many pods whose names begin so.
async fn cluster_pods(cluster: &KubernetesCluster, prefix: &str, count: usize) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    until(&format!("{count} pods {prefix}"), || async {
        let all = pods.list(&ListParams::default()).await.ok()?;
        (all.iter().filter(|pod| pod.name_any().starts_with(prefix)).count() == count).then_some(())
    })
    .await;
}
