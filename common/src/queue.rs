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
