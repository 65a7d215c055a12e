//! What a queue is.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::QueueName;
use crate::resources::Resources;
use crate::units::Millis;

/// Which gangs of a queue are tried when one of them does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dequeue {
    /// The first one holds back those behind it that could use the same nodes.
    Fifo,
    /// The others go on.
    #[default]
    Traverse,
}

/// A queue as its object states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Name.
    pub name: QueueName,
    /// Served first when higher.
    pub priority: i32,
    /// Hard ceiling. A resource that is not named has no limit; a device named 0 is forbidden;
    /// `cpu: 0` and `memory: 0` mean no limit (Volcano's rule) and are left out here.
    pub capability: Resources,
    /// False: takes no new gangs.
    pub open: bool,
    /// The queue that it is a part of; `None` = the root.
    #[serde(default)]
    pub parent: Option<QueueName>,
    /// Its part of what its parent has, beside that of other queues: 1 to 65535. Counts where `deserved` names nothing.
    #[serde(default = "one")]
    pub weight: u32,
    /// What it is entitled to: lent while it is idle, and taken back. Where nothing is named its weight decides; where
    /// something is, a resource that is not named has no limit.
    #[serde(default)]
    pub deserved: Resources,
    /// What is set aside for it and never lent.
    #[serde(default)]
    pub guarantee: Resources,
    /// Other queues may take back what it has above its share.
    #[serde(default = "yes")]
    pub reclaimable: bool,
    /// What happens behind a gang that does not fit.
    #[serde(default)]
    pub dequeue: Dequeue,
    /// What its status says; `None` where it was not told.
    #[serde(default)]
    pub shown: Option<ShownQueue>,
    /// What of its object cannot be read: its limits are not known then, and none may be taken for no limit.
    #[serde(default)]
    pub unreadable: Option<Unreadable>,
}

/// What the state of a queue that is closed says: it is closing as long as it has gangs, as in Volcano.
#[must_use]
pub const fn closed_state(gangs: u64) -> &'static str {
    if gangs == 0 { "Closed" } else { "Closing" }
}

/// A field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// The field, as people find it below `spec`.
    pub field: Arc<str>,
    /// Its value, and what is allowed.
    pub message: Arc<str>,
}

impl QueueSpec {
    /// An open queue without limits.
    #[must_use]
    pub fn new(name: QueueName) -> Self {
        Self {
            name,
            priority: 0,
            capability: Resources::new(),
            open: true,
            parent: None,
            weight: 1,
            deserved: Resources::new(),
            guarantee: Resources::new(),
            reclaimable: true,
            dequeue: Dequeue::Traverse,
            shown: None,
            unreadable: None,
        }
    }
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

/// What Volcano's Queue has no field for: a `QueuePolicy` of the queue's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePolicySpec {
    /// Name of the queue.
    pub name: QueueName,
    /// Namespaces whose gangs it takes; `None` = all.
    pub namespaces: Option<Vec<Arc<str>>>,
    /// A gang of it is no victim before it has run so long.
    pub minimum_run_ms: Millis,
    /// A gang that waited so long for room gets a hold; `None` = the coordinator's setting.
    pub hold_after_ms: Option<Millis>,
    /// A gang whose pods have not all started after this gives its GPUs back; `None` = never.
    pub startup_deadline_ms: Option<Millis>,
    /// How long a gang is taken to run that says nothing of it.
    pub default_run_ms: Option<Millis>,
    /// A gang is stopped when it has run so long; `None` = never.
    pub maximum_run_ms: Option<Millis>,
}

impl QueuePolicySpec {
    /// A policy that says nothing.
    #[must_use]
    pub const fn new(name: QueueName) -> Self {
        Self {
            name,
            namespaces: None,
            minimum_run_ms: Millis(0),
            hold_after_ms: None,
            startup_deadline_ms: None,
            default_run_ms: None,
            maximum_run_ms: None,
        }
    }
}

/// The status of a queue as the API shows it, cut down to what the coordinator writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownQueue {
    /// Sum of what its pods hold, without what is zero.
    pub allocated: Resources,
    /// What is set aside for it and not used, without what is zero.
    #[serde(default)]
    pub reservation: Resources,
    /// Gangs that wait for quota.
    pub pending: u64,
    /// Gangs admitted and not running.
    pub inqueue: u64,
    /// Gangs that run.
    pub running: u64,
    /// Gangs that have ended.
    pub completed: u64,
}

/// A PriorityClass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityClassSpec {
    /// Name.
    pub name: Arc<str>,
    /// Higher goes first.
    pub value: i32,
    /// Holds for gangs that name no class.
    pub global_default: bool,
    /// False: `preemptionPolicy: Never`, nothing is evicted for its gangs.
    #[serde(default = "yes")]
    pub preempts: bool,
}
