//! What the core shows to people: the same values for the admin API, the CLI and the dashboard.

use std::sync::Arc;

use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid, QueueName};
use phalanx_common::queue::{Dequeue, QueuePolicySpec};
use phalanx_common::resources::Resources;
use phalanx_common::topology::{GpuHealth, LinkClass};
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseState;
use serde::{Deserialize, Serialize};

use crate::event::DisruptionBudget;
use crate::reason::Reason;

/// Everything, for `get` and the tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateView {
    /// Queues, by name.
    pub queues: Vec<QueueView>,
    /// Gangs, by namespace and name.
    pub gangs: Vec<GangView>,
    /// Nodes, by name.
    pub nodes: Vec<NodeView>,
    /// Pods that name a PodGroup that does not exist, by it and name.
    pub pods_without_gang: Vec<PodWithoutGang>,
    /// PodDisruptionBudgets, by namespace and name.
    #[serde(default)]
    pub budgets: Vec<DisruptionBudget>,
    /// QueuePolicies, by the queue's name.
    #[serde(default)]
    pub policies: Vec<QueuePolicySpec>,
}

/// A pod without a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodWithoutGang {
    /// Namespace.
    pub namespace: Arc<str>,
    /// The PodGroup it names.
    pub group: Arc<str>,
    /// The pod.
    pub pod: PodView,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Name.
    pub name: QueueName,
    /// Priority.
    pub priority: i32,
    /// The queue that it is a part of; `None` = the root.
    #[serde(default)]
    pub parent: Option<QueueName>,
    /// Its part beside that of its siblings, where `deserved` names nothing.
    #[serde(default)]
    pub weight: u32,
    /// What it is entitled to as its object says.
    #[serde(default)]
    pub deserved: Resources,
    /// What it is entitled to now, as last worked out; what is not named has no limit, or nobody asks for it.
    #[serde(default)]
    pub share: Resources,
    /// What is set aside for it.
    #[serde(default)]
    pub guarantee: Resources,
    /// Others may take back what it has above its share.
    #[serde(default)]
    pub reclaimable: bool,
    /// What happens behind a gang that does not fit.
    #[serde(default)]
    pub dequeue: Dequeue,
    /// What is wrong with it.
    #[serde(default)]
    pub problem: Option<String>,
    /// Takes new gangs.
    pub open: bool,
    /// Ceiling.
    pub capability: Resources,
    /// What its placed pods hold, and those of the queues below it.
    pub allocated: Resources,
    /// What is charged: allocated, and the minimum of admitted gangs.
    pub charged: Resources,
    /// Gangs that wait for quota.
    pub pending: u32,
    /// Gangs admitted and not running.
    pub inqueue: u32,
    /// Gangs that run.
    pub running: u32,
    /// Gangs that have ended.
    pub completed: u32,
}

/// A gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangView {
    /// Namespace and name.
    pub name: GangName,
    /// Queue.
    pub queue: QueueName,
    /// Effective priority.
    pub priority: i32,
    /// Phase, one of `queued`, `admitted`, `reserving`, `committing`, `arming`, `binding`,
    /// `running`, `degraded`, `finished` …
    pub phase: Arc<str>,
    /// Phase in Volcano's words: `Pending`, `Inqueue`, `Running`, `Unknown`, `Completed`.
    pub pod_group_phase: Arc<str>,
    /// Pods that must start together.
    pub minimum: u32,
    /// Creation time.
    pub created: Time,
    /// Pods, by name.
    pub pods: Vec<PodView>,
    /// Why it waits, where it does.
    pub reason: Option<ReasonView>,
}

/// A reason with its texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonView {
    /// Short stable name.
    pub code: Arc<str>,
    /// One line.
    pub text: String,
    /// The nearest fix; empty where waiting is the answer.
    pub fix: String,
    /// The value itself.
    pub reason: Reason,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodView {
    /// Name within the gang's namespace.
    pub name: Arc<str>,
    /// UID.
    pub uid: PodUid,
    /// Task.
    pub task: Arc<str>,
    /// Phase as the API shows it: `Pending`, `Running`, `Succeeded`, `Failed`, or `Terminating`.
    pub phase: Arc<str>,
    /// Effective request.
    pub request: Resources,
    /// Node it is placed on.
    pub node: Option<NodeName>,
    /// Lease there.
    pub lease: Option<LeaseId>,
    /// GPUs it holds.
    pub gpus: Vec<GpuId>,
    /// Link class of those GPUs.
    pub link_class: Option<LinkClass>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Name.
    pub name: NodeName,
    /// `ready`, `no-agent`, or why it takes no new pods.
    pub state: Arc<str>,
    /// Capacity: cpu, memory, GPUs and what else it offers.
    pub capacity: Resources,
    /// Not used now.
    pub free: Resources,
    /// GPUs in PCI order.
    pub gpus: Vec<GpuView>,
    /// Refusals since the last success.
    pub refusals: u32,
    /// Pods there that are none of ours.
    #[serde(default)]
    pub other_pods: usize,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// UUID.
    pub id: GpuId,
    /// NVML index.
    pub index: u32,
    /// Product name.
    pub model: Arc<str>,
    /// Health.
    pub health: GpuHealth,
    /// Pod that holds it.
    pub holder: Option<GangName>,
}

/// A lease as the coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Its id.
    pub lease: LeaseId,
    /// Its node.
    pub node: NodeName,
    /// Its pod.
    pub pod: GangName,
    /// The gang that is charged; `None` for a lease that only its agent knows.
    pub gang: Option<GangName>,
    /// Its GPUs.
    pub gpus: Vec<GpuId>,
    /// What it shall be.
    pub wanted: LeaseState,
    /// What its agent last said; `None` where that does not have it.
    pub known: Option<LeaseState>,
}

/// Answer to "why does my gang not run".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The gang.
    pub gang: GangView,
    /// What is left of its queue's ceiling, for each resource it asks for.
    pub quota: Vec<QuotaView>,
    /// Nodes that have room now for at least one of its waiting pods.
    pub feasible_nodes: u32,
    /// Nodes in all.
    pub nodes: u32,
    /// Its place among the gangs of its queue that wait, from 1; `None` where it does not wait.
    #[serde(default)]
    pub position: Option<u32>,
    /// When it is expected to start, where that is known.
    #[serde(default)]
    pub expected_start: Option<Time>,
    /// The same as text, a line each: quota left, feasible nodes, reason, fix.
    pub lines: Vec<String>,
}

/// Quota of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// The resource.
    pub resource: Arc<str>,
    /// The queue above the gang's own whose ceiling it is; `None` = its own.
    #[serde(default)]
    pub ancestor: Option<QueueName>,
    /// The ceiling; `None` = no limit.
    pub limit: Option<u64>,
    /// Charged now, by all gangs of that queue and of those below it.
    pub used: u64,
    /// What this gang's minimum asks.
    pub asked: u64,
}
