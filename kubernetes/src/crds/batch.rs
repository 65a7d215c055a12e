//! `batch.volcano.sh/v1alpha1`: Job, which kubectl knows as vcjob.

#![allow(clippy::duplicated_attributes, reason = "two printer columns may have the same type")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared::{NetworkTopology, default_queue, duration, kept_object, one, three};

/// What a job runs.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "batch.volcano.sh",
    version = "v1alpha1",
    kind = "Job",
    plural = "jobs",
    namespaced,
    shortname = "vcjob",
    shortname = "vj",
    status = "JobStatus",
    derive = "PartialEq",
    doc = "Tasks whose pods are one gang.",
    printcolumn(name = "STATUS", type_ = "string", json_path = ".status.state.phase"),
    printcolumn(name = "minAvailable", type_ = "integer", json_path = ".status.minAvailable"),
    printcolumn(name = "RUNNINGS", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "QUEUE", type_ = "string", json_path = ".spec.queue", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Scheduler of the pods whose template names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Fewest pods that may run; the sum of the tasks' minima where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_available: Option<i32>,
    /// Volumes of all pods. Phalanx does not serve them yet: a Job that has some is refused, and says so in its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<JobVolume>>,
    /// Tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Task>>,
    /// What is done when something happens. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<LifecyclePolicy>>,
    /// Plugins by name, with their arguments. Stored; Phalanx does not honour them yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<BTreeMap<String, Option<Vec<String>>>>,
    /// How long the job will run, as its user thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub running_estimate: Option<String>,
    /// Queue in which the job waits.
    #[serde(default = "default_queue")]
    pub queue: String,
    /// Times the job is started again before it has failed.
    #[serde(default = "three")]
    pub max_retry: i32,
    /// Seconds after its end until the job is deleted; never where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// PriorityClass of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Pods that have to end well for the job to be complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_success: Option<i32>,
    /// How close together the pods must be. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_topology: Option<NetworkTopology>,
}

/// A volume of all pods of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobVolume {
    /// Where it is mounted.
    pub mount_path: String,
    /// Claim by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_name: Option<String>,
    /// Claim that is made for the job: the spec of a PersistentVolumeClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "kept_object")]
    pub volume_claim: Option<Value>,
}

/// Pods of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Name; `default` and the task's place where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Pods wanted.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Fewest pods of the task that may run; all where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<i32>,
    /// A PodTemplateSpec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "kept_object")]
    pub template: Option<Value>,
    /// What is done when something happens to the task's pods. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<LifecyclePolicy>>,
    /// How CPUs and memory of one pod may be spread over NUMA nodes. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_policy: Option<TopologyPolicy>,
    /// Times a pod of the task is started again before the task has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retry: Option<i32>,
    /// Tasks that come first. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<DependsOn>,
    /// Parts of the task that are gangs of their own. Stored; Phalanx does not honour it yet and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_policy: Option<PartitionPolicy>,
}

/// How a pod may be spread over NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyPolicy {
    /// Any way.
    None,
    /// On one, if that can be.
    BestEffort,
    /// As its hints say, or not at all.
    Restricted,
    /// On one, or not at all.
    SingleNumaNode,
}

/// What is done when something happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LifecyclePolicy {
    /// AbortJob, RestartJob, RestartTask, RestartPod, RestartPartition, TerminateJob, CompleteJob or ResumeJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// What happens: PodFailed, PodEvicted, PodPending, TaskCompleted, TaskFailed, Unknown, or `*` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// The same, several at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    /// Exit code of a container, in place of an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How long it must last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub timeout: Option<String>,
}

/// Tasks that come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependsOn {
    /// Their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Vec<String>>,
    /// any or all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<String>,
}

/// Parts of a task that are gangs of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionPolicy {
    /// Parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_partitions: Option<i32>,
    /// Pods of one part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_size: Option<i32>,
    /// How close together the pods of one part must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_topology: Option<NetworkTopology>,
    /// Fewest parts that may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_partitions: Option<i32>,
}

/// What is known of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// Phase, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Fewest pods that may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<i32>,
    /// Pods by task and phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_status_count: Option<BTreeMap<String, TaskState>>,
    /// Pods that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// Pods that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Pods that have ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Pods that have failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Pods that are being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    /// Pods nobody knows about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<i32>,
    /// Counts the lives of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    /// Times it was started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    /// From its start to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub running_duration: Option<String>,
    /// What was made for the job beside its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controlled_resources: Option<BTreeMap<String, String>>,
    /// Its phases so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<JobCondition>>,
}

/// Phase of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobState {
    /// Pending, Aborting, Aborted, Running, Restarting, Completing, Completed, Terminating, Terminated or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// One word, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// Pods of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskState {
    /// How many, by phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<BTreeMap<String, i32>>,
}

/// A phase that a job was in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCondition {
    /// The phase.
    pub status: String,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}
