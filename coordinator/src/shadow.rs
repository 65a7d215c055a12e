//! Shadow mode: everything is decided and recorded, and nothing is done. It reads one cluster beside the scheduler that
//! serves it, and compares what it would have done with what that one did.
//!
//! ```text
//!   API server ─► mirror ─► Event ─► core ─► Action ─► stand_in: noted, answered as done, never sent
//! ```
//!
//! There is no Lease, no agent and no write: `stand_in` is at once the writer and all agents. What the core has decided
//! holds in its own books until the other scheduler places the pod, and from then on that counts.

mod agents;
pub mod compare;
pub mod run;
mod stand_in;

pub use self::compare::Comparison;
pub use self::run::Shadow;
