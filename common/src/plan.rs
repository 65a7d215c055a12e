//! GangPlan: the durable record of a committed placement. Written before any lease is armed and any
//! pod is bound, so that whoever leads next rolls the binding forward instead of guessing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{GangName, GpuId, LeaseId, NodeName, PodUid};
use crate::units::Time;

/// One pod of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPod {
    /// The pod.
    pub pod: PodUid,
    /// Its name, for people.
    pub name: Arc<str>,
    /// Node it goes to.
    pub node: NodeName,
    /// Lease at that node's agent; `None` on a node without an agent.
    pub lease: Option<LeaseId>,
    /// Exact GPUs.
    pub gpus: Vec<GpuId>,
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanPurpose {
    /// Its pods are being bound.
    #[default]
    Bind,
    /// Its victims are being evicted, and what they free is held for its pods.
    MakeRoom,
}

/// A pod that is evicted for a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedVictim {
    /// The pod.
    pub pod: PodUid,
    /// Its namespace and name.
    pub name: GangName,
    /// Its gang goes as a whole.
    pub whole_gang: bool,
}

/// A committed placement of a gang, or of members that joined it later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPlan {
    /// The gang.
    pub gang: GangName,
    /// UID of the PodGroup the plan was made for.
    pub gang_uid: Arc<str>,
    /// Counter of the term that wrote it.
    pub term: u64,
    /// When the binding must be finished.
    pub binding_deadline: Time,
    /// The pods that are placed together.
    pub pods: Vec<PlannedPod>,
    /// What it is for.
    #[serde(default)]
    pub purpose: PlanPurpose,
    /// Pods that are evicted for it.
    #[serde(default)]
    pub victims: Vec<PlannedVictim>,
}
