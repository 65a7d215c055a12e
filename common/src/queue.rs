//! What a queue is.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::QueueName;
use crate::resources::Resources;

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
    /// What its status says; `None` where it was not told.
    #[serde(default)]
    pub shown: Option<ShownQueue>,
}

/// The status of a queue as the API shows it, cut down to what the coordinator writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownQueue {
    /// Sum of what its pods hold, without what is zero.
    pub allocated: Resources,
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
}
