//! All that an agent may be asked to do.

use std::sync::Arc;

use phalanx_common::ids::{ClusterId, GangName, GpuId, LeaseId, PodUid, Term};
use phalanx_common::topology::InventoryError;
use phalanx_common::units::Millis;
use phalanx_common::wire::FromAgent;
use thiserror::Error;

use crate::event::LinkId;
use crate::ledger::Ledger;

/// Something to do. Its outcome, where it has one, comes back as an `Event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the coordinator at the other end of this connection.
    Send(LinkId, FromAgent),
    /// Write the ledger; answered by `Persisted` or `PersistFailed`. A revision may be skipped when a newer one waits.
    Persist {
        /// Grows by one with each.
        revision: u64,
        /// The whole ledger.
        ledger: Ledger,
    },
    /// Keep the ledger file under another name: what it holds belongs to another cluster. Comes before
    /// the `Persist` that replaces it.
    SetAside {
        /// Cluster whose state it is.
        old: ClusterId,
        /// Cluster that the node belongs to now.
        new: ClusterId,
    },
    /// Let a pod start.
    StartPod {
        /// The pod.
        pod: PodUid,
        /// Its namespace and name.
        name: GangName,
        /// Its lease.
        lease: LeaseId,
        /// Its GPUs.
        gpus: Vec<GpuId>,
        /// How long it still runs; `None` = until it is stopped.
        run_for: Option<Millis>,
    },
    /// Stop a pod; answered by `PodStopped`, also where there is no such pod.
    StopPod {
        /// The pod.
        pod: PodUid,
    },
    /// Tell the people who run this node.
    Warn(Warning),
}

/// What the people who run a node should know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Warning {
    /// A message of a coordinator that is not obeyed any more; told once for a term, not for each message.
    #[error("{message} of term {term} is not obeyed: term {highest} is known here")]
    StaleTerm {
        /// Kind of the message.
        message: &'static str,
        /// Its term.
        term: Term,
        /// The term that is obeyed.
        highest: Term,
    },
    /// The coordinator does not want this agent.
    #[error("the coordinator turned this agent away: {0}")]
    Rejected(String),
    /// A reading of the hardware that cannot be used.
    #[error("this reading of the hardware is not used: {0}")]
    Inventory(InventoryError),
    /// The ledger could not be written; told once for a cause, not for each try.
    #[error("the ledger could not be written, no lease is armed until it can: {0}")]
    Ledger(Arc<str>),
    /// The ledger was written, after it could not be.
    #[error("the ledger is written again")]
    LedgerWritten,
    /// A stored lease names something twice; the later one is dropped.
    #[error("lease {0} of the stored ledger is dropped: pod or GPU already belong to lease {1}")]
    StoredLease(LeaseId, LeaseId),
    /// A board was swapped, or is not seen any more, since the last boot: the lease can never be honoured.
    #[error("lease {0} of pod {1} is void: unknown UUID {2}, the node has no such GPU since it booted")]
    VoidLease(LeaseId, GangName, GpuId),
}
