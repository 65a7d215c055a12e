//! Queues and their policies on a real API server: what it refuses by itself, what the coordinator makes of the rest, and
//! what people read there.

use std::net::SocketAddr;

use crate::kubernetes::{KubernetesCluster, until};
use crate::people::{Gang, says};
use crate::support::state;
use phalanx_core::view::QueueView;
use serde_json::{Value, json};

const VOLCANO: &str = "scheduling.volcano.sh/v1beta1";
const PHALANX: &str = "phalanx.dev/v1alpha1";

impl KubernetesCluster {
    /// Applies an object that has no namespace.
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
