//! Queues and their policies on a real API server: what it refuses by itself, what the coordinator makes of the rest, and
//! what people read there.

use std::net::SocketAddr;

use crate::kubernetes::{KubernetesCluster, until};
use crate::people::{Gang, event_with, events_of, says};
use crate::support::state;
use phalanx_core::view::QueueView;
use serde_json::{Value, json};

const VOLCANO: &str = "scheduling.volcano.sh/v1beta1";
const PHALANX: &str = "phalanx.dev/v1alpha1";

impl KubernetesCluster {
    /// Applies an object that names no namespace.
    async fn apply_spec(&self, version: &str, kind: &str, name: &str, spec: Value) -> Result<String, String> {
        let object =
            json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
        let applied = self.servers.kubectl_with_input(&["apply", "-f", "-"], &object.to_string()).await;
        applied.map_err(|error| error.to_string())
    }

    async fn queue(&self, name: &str, spec: Value) {
        drop(self.apply_spec(VOLCANO, "Queue", name, spec).await.unwrap());
    }

    /// A gang of one pod with one GPU in a queue.
    async fn gang_in(&self, name: &str, queue: &str) {
        let gang = Gang { queue, ..Gang::new(name, &[("worker", 1)], "nvidia.com/gpu: 1") };
        self.apply(&gang.manifest()).await;
    }

    async fn status(&self, queue: &str) -> Value {
        self.object(&format!("queue {queue}")).await["status"].clone()
    }

    async fn until_status(&self, queue: &str, what: &str, is_right: impl Fn(&Value) -> bool) {
        until(&format!("the status of {queue}: {what}"), || async {
            is_right(&self.status(queue).await).then_some(())
        })
        .await;
    }
}

/// Waits until the coordinator shows a queue so.
async fn shows(admin: &SocketAddr, name: &str, is_right: impl Fn(&QueueView) -> bool) {
    until(&format!("{name} is shown"), || async {
        let state = state(admin).await;
        let queue = state.queues.iter().find(|queue| queue.name.as_str() == name)?;
        is_right(queue).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_contradicts_itself_is_refused_or_set_aside_and_all_others_go_on() {
    let cluster = KubernetesCluster::start(2, 4, 1).await;
    // What the API server sees by itself.
    for (kind, spec, named) in [
        ("Queue", json!({ "weight": 0 }), "spec.weight"),
        ("Queue", json!({ "dequeueStrategy": "lifo" }), "\"fifo\", \"traverse\""),
        ("Queue", json!({ "parent": "bad" }), "spec.parent: a queue cannot be above itself"),
        (
            "Queue",
            json!({ "capability": { "nvidia.com/gpu": 4 }, "deserved": { "nvidia.com/gpu": 5 } }),
            "spec.deserved: nvidia.com/gpu must be at most that of spec.capability",
        ),
        (
            "Queue",
            json!({ "capability": { "cpu": "1" }, "guarantee": { "resource": { "cpu": "1500m" } } }),
            "spec.guarantee: cpu must be at most that of spec.capability",
        ),
        ("QueuePolicy", json!({ "holdTime": "5m" }), "unknown field \"spec.holdTime\""),
        ("QueuePolicy", json!({ "maximumRunTime": "one day" }), "spec.maximumRunTime"),
    ] {
        let version = if kind == "Queue" { VOLCANO } else { PHALANX };
        let refusal = cluster.apply_spec(version, kind, "bad", spec).await.unwrap_err();
        assert!(refusal.contains(named), "{kind}: {refusal}");
    }
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;

    cluster.queue("top", json!({ "capability": { "nvidia.com/gpu": 8 } })).await;
    cluster
        .queue(
            "team",
            json!({
                "parent": "top", "weight": 3, "priority": 2, "reclaimable": false, "dequeueStrategy": "fifo",
                "capability": { "nvidia.com/gpu": 4 }, "deserved": { "nvidia.com/gpu": "3" },
                "guarantee": { "resource": { "nvidia.com/gpu": 2 } },
            }),
        )
        .await;
    shows(&admin, "team", |queue| {
        let gpus = |amounts: &phalanx_common::resources::Resources| amounts.get("nvidia.com/gpu");
        queue.parent.as_ref().is_some_and(|parent| parent.as_str() == "top")
            && (queue.weight, queue.priority, queue.reclaimable) == (3, 2, false)
            && queue.dequeue == phalanx_common::queue::Dequeue::Fifo
            && (gpus(&queue.capability), gpus(&queue.deserved), gpus(&queue.guarantee))
                == (Some(4), Some(3), Some(2))
            && queue.problem.is_none()
    })
    .await;
    // What it does not see is set aside: any resource counts.
    let upside_down = json!({
        "capability": { "mars-tech.com/gpu": 4 }, "guarantee": { "resource": { "mars-tech.com/gpu": 5 } },
    });
    cluster.queue("upside-down", upside_down).await;
    cluster.queue("orphan", json!({ "parent": "nobody" })).await;
    shows(&admin, "upside-down", |queue| {
        queue
            .problem
            .as_deref()
            .is_some_and(|problem| problem.contains("mars-tech.com/gpu is 5, above capability 4"))
    })
    .await;
    cluster.gang_in("stuck", "upside-down").await;
    cluster.gang_in("lost", "orphan").await;
    cluster.gang_in("fine", "team").await;
    cluster.until_running("fine", 1).await;
    says(&admin, "stuck", "QueueSetAside", "mars-tech.com/gpu").await;
    says(&admin, "lost", "QueueSetAside", "queue nobody does not exist").await;
    // Repaired, its gang goes too.
    cluster.queue("upside-down", json!({ "capability": { "mars-tech.com/gpu": 5 } })).await;
    cluster.queue("orphan", json!({ "parent": "top" })).await;
    cluster.until_running("stuck", 1).await;
    cluster.until_running("lost", 1).await;

    // What people read: what it has, what is kept for it, and that it is closed.
    cluster
        .until_status("team", "it runs", |status| {
            status["state"] == "Open"
                && status["running"] == 1
                && status["allocated"]["nvidia.com/gpu"] == "1"
                && status["reservation"]["resource"]["nvidia.com/gpu"] == "1"
        })
        .await;
    cluster
        .until_status("top", "its children count", |status| status["allocated"]["nvidia.com/gpu"] == "2")
        .await;
    let columns = cluster.kubectl("get queue team --no-headers").await;
    assert_eq!(columns.split_whitespace().take(4).collect::<Vec<_>>(), ["team", "top", "Open", "3"]);
    let closed = "{\"status\":{\"state\":\"Closed\"}}";
    let close = format!("patch queue team --subresource=status --type=merge -p {closed}");
    cluster.kubectl(&close).await;
    cluster.until_status("team", "closing", |status| status["state"] == "Closing").await;
    cluster.gang_in("late", "team").await;
    says(&admin, "late", "QueueClosed", "team").await;
    cluster.delete("late").await;
    cluster.delete("fine").await;
    cluster.until_status("team", "closed", |status| status["state"] == "Closed").await;
    assert_eq!(cluster.refused(), 0);
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_policy_counts_as_soon_as_it_is_there_and_no_longer() {
    let cluster = KubernetesCluster::start(1, 4, 1).await;
    cluster.queue("red", json!({})).await;
    let policy = json!({ "namespaces": ["elsewhere"], "holdAfter": "5m", "maximumRunTime": "24h" });
    cluster.apply_spec(PHALANX, "QueuePolicy", "red", policy).await.unwrap();
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;
    cluster.gang_in("guest", "red").await;
    says(&admin, "guest", "NamespaceNotAllowed", "elsewhere").await;
    let policies = state(&admin).await.policies;
    assert_eq!(policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>(), ["red"]);
    let columns = cluster.kubectl("get qpol red --no-headers").await;
    assert!(columns.contains("elsewhere") && columns.contains("24h"), "{columns}");
    // A change is enough, in either direction.
    cluster.apply_spec(PHALANX, "QueuePolicy", "red", json!({ "namespaces": ["default"] })).await.unwrap();
    cluster.until_running("guest", 1).await;
    cluster.apply_spec(PHALANX, "QueuePolicy", "red", json!({ "namespaces": [] })).await.unwrap();
    cluster.gang_in("second", "red").await;
    says(&admin, "second", "NamespaceNotAllowed", "red").await;
    cluster.kubectl("delete qpol red").await;
    cluster.until_running("second", 1).await;
    assert!(state(&admin).await.policies.is_empty());
    assert_eq!(cluster.refused(), 0);
    replica.check();
}

/// Line by line what docs/queues.md says under "When something is wrong".
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_set_aside_says_so_itself() {
    let cluster = KubernetesCluster::start(1, 4, 1).await;
    // Every way to write an amount is taken, and what is none is refused.
    let amounts = json!({
        "cpu": "100m", "memory": "64Gi", "pods": "1k", "nvidia.com/gpu": 8, "mars-tech.com/gpu": "+2",
        "ephemeral-storage": "1.5Gi", "rdma/hca_cpta": "1e3", "hugepages-2Mi": 0, "example.com/a": ".5k",
        "example.com/b": "0", "example.com/c": "2E-0", "example.com/d": "3Ei",
    });
    cluster.queue("amounts", json!({ "capability": amounts, "parent": "" })).await;
    for amount in
        [json!(-1), json!("-1"), json!("8 GPUs"), json!("16GB"), json!("1e1.5"), json!(1.5), json!([1])]
    {
        for (field, spec) in [
            ("capability", json!({ "capability": { "nvidia.com/gpu": amount } })),
            ("deserved", json!({ "deserved": { "nvidia.com/gpu": amount } })),
            ("guarantee.resource", json!({ "guarantee": { "resource": { "nvidia.com/gpu": amount } } })),
        ] {
            let refusal = cluster.apply_spec(VOLCANO, "Queue", "bad", spec).await.unwrap_err();
            assert!(refusal.contains(&format!("spec.{field}.nvidia.com/gpu")), "{amount}: {refusal}");
        }
    }
    for parent in [json!(["a"]), json!("No_Name"), json!(7)] {
        let refusal = cluster.apply_spec(VOLCANO, "Queue", "bad", json!({ "parent": parent })).await;
        assert!(refusal.unwrap_err().contains("spec.parent"), "{parent}");
    }
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;
    let set_aside =
        |name: &'static str, text: &'static str| event_with(&cluster, name, "QueueSetAside", text);

    // One that the API server takes and nobody can read is there, and its gangs are told what to correct.
    cluster.queue("half", json!({ "capability": { "nvidia.com/gpu": "0.5" } })).await;
    cluster.queue("below-half", json!({ "parent": "half" })).await;
    cluster.gang_in("stuck", "below-half").await;
    let reason =
        says(&admin, "stuck", "QueueSetAside", "ancestor half is set aside: capability[nvidia.com/gpu]")
            .await;
    assert!(reason.text.contains("\"0.5\" is not a whole number"), "{reason:?}");
    assert!(reason.fix.contains("correct capability[nvidia.com/gpu] of Queue half"), "{reason:?}");
    set_aside("half", "spec.capability[nvidia.com/gpu]: \"0.5\" is not a whole number").await;
    set_aside("below-half", "Queue half above it is set aside: spec.capability[nvidia.com/gpu]").await;
    let described = cluster.kubectl("describe queue half").await;
    assert!(described.contains("QueueSetAside"), "{described}");
    cluster.queue("large", json!({ "deserved": { "cpu": "10E" } })).await;
    set_aside("large", "spec.deserved.cpu: \"10E\" is not at most 9223372036854775807").await;
    cluster.queue("nameless", json!({ "capability": { "a b": 1 } })).await;
    set_aside("nameless", "\"a b\" is not a resource name such as cpu").await;
    // What contradicts itself or others.
    let upside_down =
        json!({ "deserved": { "mars-tech.com/gpu": "4" }, "capability": { "mars-tech.com/gpu": 2 } });
    cluster.queue("upside-down", upside_down).await;
    cluster.queue("round", json!({ "parent": "about" })).await;
    cluster.queue("about", json!({ "parent": "round" })).await;
    for level in 1..=6 {
        let parent = if level == 1 { "root".to_owned() } else { format!("l{}", level - 1) };
        cluster.queue(&format!("l{level}"), json!({ "parent": parent })).await;
    }
    set_aside("upside-down", "spec.deserved: mars-tech.com/gpu is 4, above capability 2").await;
    set_aside("round", "spec.parent: is about, which is below it").await;
    set_aside("l6", "6 levels below root; at most 5 are allowed").await;
    // What becomes wrong by another object.
    cluster.queue("top", json!({})).await;
    cluster.queue("child", json!({ "parent": "top" })).await;
    cluster.gang_in("fine", "child").await;
    cluster.until_running("fine", 1).await;
    cluster.kubectl("delete queue top").await;
    set_aside("child", "spec.parent: queue top does not exist").await;
    // Its status was written meanwhile, and it was told once; wrong in another way, again.
    assert_eq!(events_of(&cluster, "child", "QueueSetAside").await.len(), 1);
    cluster
        .queue("child", json!({ "deserved": { "example.com/a": 3 }, "capability": { "example.com/a": 2 } }))
        .await;
    set_aside("child", "example.com/a is 3, above capability 2").await;
    assert_eq!(events_of(&cluster, "child", "QueueSetAside").await.len(), 2);
    for right in ["amounts", "l5", "default"] {
        assert_eq!(events_of(&cluster, right, "QueueSetAside").await, [""; 0]);
    }
    // A queue with others below it takes no gangs any more.
    cluster.queue("under", json!({ "parent": "amounts" })).await;
    cluster.gang_in("late", "amounts").await;
    says(&admin, "late", "QueueHasChildren", "queue amounts has queues below it").await;
    event_with(&cluster, "late", "Unschedulable", "[QueueHasChildren]").await;
    // Repaired, its gang goes.
    cluster.queue("half", json!({ "capability": { "nvidia.com/gpu": 1 } })).await;
    cluster.until_running("stuck", 1).await;
    assert_eq!(cluster.refused(), 0);
    replica.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_not_taken_is_told_at_its_object() {
    let cluster = KubernetesCluster::start(1, 4, 1).await;
    let replica = cluster.replica(0, None);
    cluster.leader().await;
    let admin = replica.admin().await;
    let wrong = |name: &'static str, text: &'static str| event_with(&cluster, name, "InvalidValue", text);
    // What is no list, no time or no field does not come so far.
    for (spec, named) in [
        (json!({ "namespaces": "team" }), "spec.namespaces"),
        (json!({ "minimumRunTime": "-5m" }), "spec.minimumRunTime"),
        (json!({ "holdAfter": 300 }), "spec.holdAfter"),
    ] {
        let refusal = cluster.apply_spec(PHALANX, "QueuePolicy", "bad", spec).await.unwrap_err();
        assert!(refusal.contains(named), "{refusal}");
    }
    let unknown = json!({ "apiVersion": PHALANX, "kind": "QueuePolicy", "metadata": { "name": "loose" },
        "spec": { "holdTime": "5m" } });
    let unknown = unknown.to_string();
    cluster.servers.kubectl_with_input(&["apply", "--validate=false", "-f", "-"], &unknown).await.unwrap();
    assert_eq!(cluster.object("qpol loose").await["spec"], json!({}));
    let policy = json!({ "namespaces": ["Team_A"], "maximumRunTime": "0s", "startupDeadline": "100000h" });
    cluster.apply_spec(PHALANX, "QueuePolicy", "strange", policy).await.unwrap();
    wrong("strange", "spec.namespaces[0]: must be lower case letters, digits and -").await;
    wrong("strange", "found \"Team_A\"; it is left out").await;
    wrong("strange", "spec.maximumRunTime: must be a time above 0 such as 90s, 5m or 1h30m").await;
    wrong("strange", "found \"0s\"; no gang is stopped").await;
    wrong("strange", "found \"100000h\"; no deadline is taken").await;
    // A PodGroup and its pod, a pod by itself, a job: they run.
    let gang = Gang {
        annotations: ", volcano.sh/cooldown-time: abc, phalanx.dev/checkpoint-grace: x, phalanx.dev/fewer-after: \"4\"",
        ..Gang::new("said", &[("worker", 1)], "nvidia.com/gpu: 1")
    };
    cluster.apply(&gang.manifest()).await;
    let lone = "apiVersion: v1\nkind: Pod\nmetadata: {name: lone, namespace: default, labels: {volcano.sh/preemptable: maybe}, \
                annotations: {kueue.x-k8s.io/max-exec-time-seconds: x}}\nspec:\n  schedulerName: phalanx\n  containers: \
                [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 1}}}]\n";
    cluster.apply(lone).await;
    let job = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: task, namespace: default, annotations: \
               {phalanx.dev/degraded-grace: x}}\nspec:\n  schedulerName: phalanx\n  minAvailable: 1\n  tasks: [{name: w, replicas: \
               1, template: {spec: {containers: [{name: main, image: none}]}}}]\n";
    cluster.apply(job).await;
    wrong("said", "metadata.annotations[volcano.sh/cooldown-time]: must be a time such as 90s").await;
    wrong("said", "found \"abc\"; no cooldown is taken").await;
    wrong("said", "metadata.annotations[phalanx.dev/checkpoint-grace]: must be seconds such as 120").await;
    wrong("said", "metadata.annotations[phalanx.dev/fewer-after]: must be MIN/DURATION such as 4/10m").await;
    wrong("said-worker-0", "found \"abc\"; no cooldown is taken").await;
    wrong("lone", "metadata.labels[volcano.sh/preemptable]: must be \"true\" or \"false\", found \"maybe\"")
        .await;
    wrong("lone", "metadata.annotations[kueue.x-k8s.io/max-exec-time-seconds]: must be a whole number").await;
    wrong("task", "metadata.annotations[phalanx.dev/degraded-grace]: must be never, seconds such as 300")
        .await;
    cluster.until_running("said", 1).await;
    // A PodGroup that cannot be read is not there for its pods.
    let half = json!({ "minResources": { "nvidia.com/gpu": "0.5" } });
    cluster.apply_spec(VOLCANO, "PodGroup", "half", half).await.unwrap();
    wrong("half", "spec.minResources[nvidia.com/gpu]: \"0.5\" is not a whole number").await;
    // So does who asks for it, who would wait for it to be looked at else.
    let why = crate::support::get(&admin, "/v1/explain/default/half").await;
    assert_eq!(why.status, 404, "{}", why.text);
    assert!(why.error().contains("\"0.5\" is not a whole number"), "{}", why.error());
    // A run time that cannot be read makes its gang wait.
    let waits = Gang {
        annotations: ", phalanx.dev/run-for: xx",
        ..Gang::new("waits", &[("worker", 1)], "nvidia.com/gpu: 1")
    };
    cluster.apply(&waits.manifest()).await;
    says(&admin, "waits", "PodBlocked", "phalanx.dev/run-for").await;
    event_with(&cluster, "waits", "Unschedulable", "must be a time such as 30s, 5m or 1h30m, found \"xx\"")
        .await;
    event_with(&cluster, "waits-worker-0", "FailedScheduling", "found \"xx\"").await;
    let job = job.replace("name: task", "name: late").replace("degraded-grace: x", "run-for: xx");
    cluster.apply(&job).await;
    event_with(&cluster, "late", "Unschedulable", "[PodBlocked]").await;
    let described = cluster.kubectl("describe qpol strange").await;
    assert!(described.contains("no gang is stopped"), "{described}");
    for name in ["strange", "said", "lone", "task", "half"] {
        assert_eq!(events_of(&cluster, name, "InvalidValue").await.len(), 1, "{name}");
    }
    assert_eq!(cluster.refused(), 0);
    replica.check();
}
