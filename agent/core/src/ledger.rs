//! What an agent keeps on disk: all that it has promised beyond a reservation.

use std::sync::Arc;

use phalanx_common::ids::{ClusterId, LeaseId, Term};
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseRequest;
use serde::{Deserialize, Serialize};

/// The durable state of an agent. Written whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Cluster the state belongs to; `None` before the first Welcome.
    pub cluster: Option<ClusterId>,
    /// Highest term obeyed.
    pub highest_term: Term,
    /// Boot of the machine in which times were taken, but for unverified leases: CLOCK_BOOTTIME begins anew at each.
    pub boot_id: Arc<str>,
    /// The leases, by id.
    pub leases: Vec<DurableLease>,
}

/// One lease on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableLease {
    /// The lease.
    pub lease: LeaseId,
    /// How far it got.
    pub state: DurableState,
    /// What it is for.
    pub request: LeaseRequest,
    /// The machine has booted since its GPUs were last seen: nothing of it runs, and its times are of an earlier boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
}

/// State of a lease that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DurableState {
    /// Promised for good.
    Armed,
    /// Its pod is bound to the node.
    Bound,
    /// Its pod was let through the start gate.
    Started {
        /// When, by the clock of the ledger's boot.
        at: Time,
        /// Whether the pod has ended, and if so whether well.
        ended: Option<bool>,
    },
    /// Its pod is being stopped.
    Releasing,
}
