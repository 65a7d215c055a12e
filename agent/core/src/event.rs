//! All that may happen to an agent.

use phalanx_common::ids::PodUid;
use phalanx_common::topology::Inventory;
use phalanx_common::wire::ToAgent;

/// A connection to a coordinator, by a number that no other one of this agent has or had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hardware was read.
    Inventory(Inventory),
    /// A connection to a coordinator stands; nothing was said on it yet.
    LinkUp(LinkId),
    /// The connection is gone.
    LinkDown(LinkId),
    /// The coordinator at the other end says something.
    Message(LinkId, ToAgent),
    /// The ledger of this revision is on disk, and with it all that earlier revisions held.
    Persisted {
        /// Number of the `Action::Persist`.
        revision: u64,
    },
    /// The ledger of this revision could not be written. It may be on disk or not.
    PersistFailed {
        /// Number of the `Action::Persist`.
        revision: u64,
        /// The system's answer.
        message: String,
    },
    /// A pod has ended by itself.
    PodEnded {
        /// The pod.
        pod: PodUid,
        /// It ended well.
        succeeded: bool,
    },
    /// A pod that was to be stopped is gone, or was not there.
    PodStopped {
        /// The pod.
        pod: PodUid,
    },
    /// Time has passed.
    Tick,
}
