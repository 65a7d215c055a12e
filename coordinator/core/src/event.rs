//! All that may happen. An event is a fact; recording it decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::constraints::{HostPort, LabelRequirement, NodeTerm, Taint};
use phalanx_common::gang::{GangSpec, PodSpec};
use phalanx_common::ids::{ActionId, GangName, NodeName, PodUid, QueueName, Term};
use phalanx_common::plan::GangPlan;
use phalanx_common::queue::{PriorityClassSpec, QueuePolicySpec, QueueSpec};
use phalanx_common::resources::Resources;
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, Hello};
use serde::{Deserialize, Serialize};

/// A node as the API shows it. A node with an agent needs no object; a node without one takes only
/// pods without devices, counted in the coordinator's own ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Name.
    pub name: NodeName,
    /// Labels, for node selectors.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// What pods may use in all.
    pub allocatable: Resources,
    /// Takes no new pods.
    pub unschedulable: bool,
    /// Taints.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Its condition `Ready` is true; one that has no such condition counts as ready.
    #[serde(default = "ready")]
    pub ready: bool,
}

const fn ready() -> bool {
    true
}

/// A pod that runs on a node and is none of ours, cut down to what it uses there: one of another scheduler, of a
/// DaemonSet, or of ours that somebody else bound and that has no PodGroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPod {
    /// UID.
    pub uid: PodUid,
    /// The node it is bound to.
    pub node: NodeName,
    /// The scheduler that it names.
    pub scheduler: Arc<str>,
    /// What it uses at its peak.
    pub request: Resources,
    /// Ports of the node that it takes.
    pub host_ports: Vec<HostPort>,
    /// The claims that it mounts, where it mounts some.
    #[serde(default)]
    pub mounts: Option<Box<Mounts>>,
}

/// Claims that a pod of others mounts: one that a single pod may use is not free while that pod is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounts {
    /// Namespace and name of the pod.
    pub pod: GangName,
    /// Names of the claims, in the same namespace.
    pub claims: Vec<Arc<str>>,
}

/// A PersistentVolumeClaim with its volume, cut down to what decides when and where a pod that mounts it may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSpec {
    /// Namespace and name.
    pub name: GangName,
    /// When it was made.
    pub created: Time,
    /// Only one pod at a time may use it: its access modes name `ReadWriteOncePod`.
    pub one_pod: bool,
    /// The pod that it was made for, where it was made for one.
    pub owner: Option<PodUid>,
    /// How far it is.
    pub state: ClaimState,
}

/// How far a claim is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClaimState {
    /// It has its volume, which is there and says that it is this claim's.
    Bound {
        /// Terms of which a node must meet one to reach the volume; `None` = it is reached from everywhere.
        reachable_from: Option<Arc<[NodeTerm]>>,
    },
    /// It has no volume yet, and whoever provides volumes is to give it one.
    Binding,
    /// It gets a volume only after a scheduler has chosen a node for a pod of it, which is not done here yet.
    AwaitsPod {
        /// Its StorageClass.
        class: Arc<str>,
    },
    /// Its volume is gone.
    Lost,
    /// It was deleted, and is there only until no pod uses it.
    Deleting,
    /// It has its volume, and from where that is reached cannot be read.
    Unreadable {
        /// The field of the volume, and what is wrong with it.
        problem: Arc<str>,
    },
}

/// A PodDisruptionBudget as the API shows it, cut down to what evictions look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisruptionBudget {
    /// Namespace and name.
    pub name: GangName,
    /// What a pod's labels must meet, all of it: none = every pod of the namespace. `None` = no pod.
    pub selector: Option<Vec<LabelRequirement>>,
    /// Pods that may be disrupted now.
    pub disruptions_allowed: u32,
}

/// What came of an action that wrote to the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done.
    Done,
    /// The object is not what it was (UID or resourceVersion differ, or it exists already).
    Conflict,
    /// The object is gone.
    NotFound,
    /// Refused for good; the text is the API's.
    Refused(String),
    /// No answer in time: it may have been done.
    Unknown,
}

impl Outcome {
    /// True where there is nothing more to be written: it is done, or the object is gone.
    pub(crate) const fn is_final(&self) -> bool {
        match self {
            Self::Done | Self::NotFound => true,
            Self::Conflict | Self::Refused(_) | Self::Unknown => false,
        }
    }
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// First of all events: this process leads under this term.
    Started {
        /// The term.
        term: Term,
    },
    /// The term was raised, because an agent knows a higher one.
    TermRaised {
        /// The new term.
        term: Term,
    },
    /// A queue is there, or changed.
    QueueApplied(QueueSpec),
    /// A queue is gone.
    QueueDeleted(QueueName),
    /// A QueuePolicy is there, or changed.
    QueuePolicyApplied(Box<QueuePolicySpec>),
    /// A QueuePolicy is gone.
    QueuePolicyDeleted(QueueName),
    /// A priority class is there, or changed.
    PriorityClassApplied(PriorityClassSpec),
    /// A priority class is gone.
    PriorityClassDeleted(Arc<str>),
    /// A node object is there, or changed.
    NodeApplied(NodeSpec),
    /// A node object is gone.
    NodeDeleted(NodeName),
    /// A PodGroup is there, or changed.
    GangApplied(GangSpec),
    /// A PodGroup is gone.
    GangDeleted(GangName),
    /// A pod is there, or changed.
    PodApplied(Box<PodSpec>),
    /// A pod that names no PodGroup is there, or changed: a gang of its own until there is a PodGroup of that name.
    LonePodApplied {
        /// The gang; its UID is made from the pod's.
        gang: Box<GangSpec>,
        /// The pod.
        pod: Box<PodSpec>,
    },
    /// A pod is gone.
    PodDeleted(PodUid),
    /// A stored GangPlan: read at start, or written since, by us or late by a leader of an earlier term.
    PlanFound(GangPlan),
    /// Everything that was stored has been told; decisions may begin.
    Synced,
    /// An agent's connection is up.
    AgentConnected {
        /// Number of the connection; a later one of the node replaces it.
        session: u64,
        /// What the agent told.
        hello: Box<Hello>,
    },
    /// An agent's connection is down, or it was silent too long.
    AgentGone {
        /// The node.
        node: NodeName,
        /// The connection that ended.
        session: u64,
    },
    /// A message of an agent, other than Hello.
    AgentSaid {
        /// The node.
        node: NodeName,
        /// The connection it came by.
        session: u64,
        /// The message.
        message: Box<FromAgent>,
    },
    /// What came of an action.
    ActionDone {
        /// The action.
        action: ActionId,
        /// Its outcome.
        outcome: Outcome,
    },
    /// Answer to `ReadPod`: the pod as it is now, or `None` where it is gone.
    PodRead {
        /// The action.
        action: ActionId,
        /// The pod.
        pod: Option<Box<PodSpec>>,
    },
    /// A pod that is none of ours runs on a node, or changed; its end is told as `PodDeleted`.
    OtherPodApplied(Box<OtherPod>),
    /// A PodDisruptionBudget is there, or changed.
    BudgetApplied(Box<DisruptionBudget>),
    /// A PodDisruptionBudget is gone; namespace and name.
    BudgetDeleted(GangName),
    /// A PersistentVolumeClaim is there, or changed, or its volume did.
    ClaimApplied(Box<ClaimSpec>),
    /// A PersistentVolumeClaim is gone; namespace and name.
    ClaimDeleted(GangName),
}
