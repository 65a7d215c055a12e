//! `scheduling.volcano.sh/v1beta1`: Queue and PodGroup.

#![allow(clippy::duplicated_attributes, reason = "two printer columns may have the same type")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared::{Amounts, NetworkTopology, default_queue, kept_object, one, parent, yes};

/// What a queue is given and may use.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "scheduling.volcano.sh",
    version = "v1beta1",
    kind = "Queue",
    plural = "queues",
    shortname = "q",
    shortname = "queue-v1beta1",
    status = "QueueStatus",
    derive = "PartialEq",
    doc = "A queue in which gangs wait, with its share of the cluster.",
    printcolumn(name = "PARENT", type_ = "string", json_path = ".spec.parent"),
    printcolumn(name = "STATE", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "WEIGHT", type_ = "integer", json_path = ".spec.weight"),
    printcolumn(name = "PENDING", type_ = "integer", json_path = ".status.pending"),
    printcolumn(name = "INQUEUE", type_ = "integer", json_path = ".status.inqueue"),
    printcolumn(name = "RUNNING", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "PRIORITY", type_ = "integer", json_path = ".spec.priority", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// Share among the queues of one parent, where no amount is deserved by name.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 65535))]
    pub weight: i32,
    /// Most that the queue may use. A resource that is not named has no limit; of a device, 0 forbids it; 0 of cpu or
    /// memory means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Amounts>,
    /// What is set aside for the queue and never lent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Guarantee>,
    /// Fair share: lent while the queue does not use it, taken back when it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deserved: Option<Amounts>,
    /// Whether other queues may take back what this one uses above its share.
    #[serde(default = "yes")]
    pub reclaimable: bool,
    /// A queue of higher priority is served first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub priority: Option<i32>,
    /// Queue above this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "parent")]
    pub parent: Option<String>,
    /// fifo: a gang that cannot start blocks those behind it; traverse: they are tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dequeue_strategy: Option<DequeueStrategy>,
    /// Groups of nodes for the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<QueueAffinity>,
    /// Other clusters. Stored, and without effect in Phalanx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extend_clusters: Option<Vec<ExtendCluster>>,
    /// Kind of queue where there are several clusters. Stored, and without effect in Phalanx.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// What is never lent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Guarantee {
    /// Amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Amounts>,
}

/// Order inside a queue. fifo: a gang that cannot start blocks those behind it; traverse: they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DequeueStrategy {
    /// The first one blocks.
    Fifo,
    /// The next one is tried.
    Traverse,
}

/// Groups of nodes for and against a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueAffinity {
    /// Groups the queue's pods go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_group_affinity: Option<NodeGroupTerms>,
    /// Groups they keep away from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_group_anti_affinity: Option<NodeGroupTerms>,
}

/// Names of groups of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroupTerms {
    /// Must.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling_ignored_during_execution: Option<Vec<String>>,
    /// Should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_during_scheduling_ignored_during_execution: Option<Vec<String>>,
}

/// Another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtendCluster {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// What it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Amounts>,
}

/// What is known of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Open, Closing, Closed or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// PodGroups in phase Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<i32>,
    /// PodGroups that are not admitted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// PodGroups that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// PodGroups that are admitted and wait for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inqueue: Option<i32>,
    /// PodGroups that have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<i32>,
    /// What is kept for the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<QueueReservation>,
    /// What the queue's pods hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Amounts>,
}

/// What is kept for a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueReservation {
    /// Nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// Amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Amounts>,
}

/// A gang: pods that start together or not at all.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "scheduling.volcano.sh",
    version = "v1beta1",
    kind = "PodGroup",
    plural = "podgroups",
    namespaced,
    shortname = "pg",
    shortname = "podgroup-v1beta1",
    status = "PodGroupStatus",
    derive = "PartialEq",
    doc = "A gang: pods that start together or not at all.",
    printcolumn(name = "STATUS", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "minMember", type_ = "integer", json_path = ".spec.minMember"),
    printcolumn(name = "RUNNINGS", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "QUEUE", type_ = "string", json_path = ".spec.queue", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// Fewest pods that may run.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub min_member: i32,
    /// Fewest pods of each task that may run, by the task's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_task_member: Option<BTreeMap<String, i32>>,
    /// Queue in which the gang waits.
    #[serde(default = "default_queue")]
    pub queue: String,
    /// PriorityClass of the gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// What has to be free in the queue before the gang is admitted; the pods' sum where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_resources: Option<Amounts>,
    /// How close together the pods must be. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_topology: Option<NetworkTopology>,
    /// Parts of the gang, each of which is placed wholly or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_group_policy: Option<Vec<SubGroupPolicy>>,
    /// Whether the gang may be evicted for others; the annotation volcano.sh/preemptable goes before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptable: Option<bool>,
}

/// Pods of a gang that are gangs of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroupPolicy {
    /// Name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How close together the pods of one sub-group must be. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_topology: Option<NetworkTopology>,
    /// Pods of one sub-group.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub sub_group_size: i32,
    /// Fewest sub-groups that may run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub min_sub_groups: i32,
    /// Pods that the policy is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "kept_object")]
    pub label_selector: Option<Value>,
    /// Labels whose values part the pods into sub-groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_label_keys: Option<Vec<String>>,
}

/// What is known of a gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// Pending, Inqueue, Running, Unknown or Completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Scheduled and Unschedulable, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<PodGroupCondition>>,
    /// Pods that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Pods that have ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Pods that have failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
}

/// One thing that is true of a gang or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupCondition {
    /// Scheduled or Unschedulable.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// True, False or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Which decision it comes from.
    #[serde(default, rename = "transitionID", skip_serializing_if = "Option::is_none")]
    pub transition_id: Option<String>,
    /// When it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// One word, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
