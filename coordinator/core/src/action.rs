//! All we may ask for. Every action has an id, and what came of it returns as an event.

use std::sync::Arc;

use phalanx_common::gang::PodBinding;
use phalanx_common::ids::{ActionId, GangName, NodeName, PodUid, QueueName, Term};
use phalanx_common::plan::GangPlan;
use phalanx_common::resources::Resources;
use phalanx_common::units::Time;
use phalanx_common::wire::{Exactness, ToAgent};
use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// Phase of a PodGroup, in Volcano's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangPhase {
    /// Waits for quota.
    Pending,
    /// Admitted: operators may create its pods.
    Inqueue,
    /// At least minMember pods are bound.
    Running,
    /// Some pods run, and fewer than minMember can.
    Unknown,
    /// All pods have ended.
    Completed,
}

impl GangPhase {
    /// All phases.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Inqueue, Self::Running, Self::Unknown, Self::Completed];

    /// Text as in the PodGroup's status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Inqueue => "Inqueue",
            Self::Running => "Running",
            Self::Unknown => "Unknown",
            Self::Completed => "Completed",
        }
    }
}

/// Status of a PodGroup; written when it differs from what was written last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangStatus {
    /// Phase.
    pub phase: GangPhase,
    /// Why it does not run, where it does not.
    pub reason: Option<Reason>,
    /// Pods that run.
    pub running: u32,
    /// Pods that ended well.
    pub succeeded: u32,
    /// Pods that ended badly.
    pub failed: u32,
}

/// Status of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Sum of what its pods hold, and those of the queues below it.
    pub allocated: Resources,
    /// What is set aside for it, and for those below it, and not used by them.
    #[serde(default)]
    pub reservation: Resources,
    /// Gangs that wait for quota.
    pub pending: u32,
    /// Gangs admitted and not running.
    pub inqueue: u32,
    /// Gangs that run.
    pub running: u32,
    /// Gangs that have ended.
    pub completed: u32,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Send a message to a node's agent. Its answer comes as `AgentSaid`; there is no `ActionDone`.
    Send {
        /// The node.
        node: NodeName,
        /// The connection to use; the message is dropped where that one has ended.
        session: u64,
        /// The message.
        message: Box<ToAgent>,
    },
    /// Raise the term above this counter by compare-and-swap; answered by `TermRaised`.
    RaiseTerm {
        /// Counter to go above.
        above: u64,
    },
    /// Write a GangPlan, replacing the gang's older one. Precondition: the stored one is of no later term; else
    /// the outcome is a conflict.
    WritePlan(Box<GangPlan>),
    /// Delete a gang's GangPlan. Precondition: it is of no later term; else the outcome is a conflict.
    DeletePlan {
        /// The gang.
        gang: GangName,
        /// Counter of the leader's term: a plan that a later leader has written stays.
        term: u64,
    },
    /// Bind a pod. Preconditions: UID and resourceVersion. The annotations lease id, term, exactness
    /// and GPU UUIDs are made from `binding`.
    Bind {
        /// The pod.
        pod: PodUid,
        /// Its namespace and name.
        name: GangName,
        /// Its resourceVersion as last seen.
        resource_version: u64,
        /// Node, lease and GPUs.
        binding: PodBinding,
        /// What the lease promises.
        #[serde(default)]
        exactness: Exactness,
        /// UID of the PodGroup that it is bound for, for an annotation.
        group_uid: Arc<str>,
        /// The leader's term.
        term: Term,
    },
    /// Write the term onto a pod, so that a Binding of an older leader, late on its way, meets a
    /// conflict. Answered by `PodRead`.
    FenceWrite {
        /// The pod.
        pod: PodUid,
        /// Its namespace and name.
        name: GangName,
        /// The leader's term.
        term: Term,
    },
    /// Read a pod; answered by `PodRead`.
    ReadPod {
        /// The pod.
        pod: PodUid,
        /// Its namespace and name.
        name: GangName,
    },
    /// Delete a pod that was bound and whose gang could not be completed. Precondition: UID.
    Evict {
        /// The pod.
        pod: PodUid,
        /// Its namespace and name.
        name: GangName,
        /// Why, for the event.
        cause: Arc<str>,
    },
    /// Tell a pod that it will be evicted, so that it can write a checkpoint. Nothing waits for it.
    AnnounceEviction {
        /// The pod.
        pod: PodUid,
        /// Its namespace and name.
        name: GangName,
        /// When.
        at: Time,
        /// Why.
        cause: Arc<str>,
    },
    /// Write a PodGroup's status.
    SetGangStatus {
        /// The gang.
        gang: GangName,
        /// Its UID.
        uid: Arc<str>,
        /// The status.
        status: Box<GangStatus>,
    },
    /// Write a queue's status.
    SetQueueStatus {
        /// The queue.
        queue: QueueName,
        /// The status.
        status: QueueStatus,
    },
    /// A gang was told when it may expect to start, and this came of it; for the record, no API write depends on it.
    RecordPromise {
        /// The gang.
        gang: GangName,
        /// When it was told.
        made: Time,
        /// The start it was told.
        expected: Time,
        /// When it started; `None` where it did not, or not by that hold.
        started: Option<Time>,
    },
    /// Something a person should know; no API write depends on it.
    Warn {
        /// The text, with values and fix.
        message: String,
    },
}

/// A numbered command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Its number.
    pub id: ActionId,
    /// What to do.
    pub command: Command,
}
