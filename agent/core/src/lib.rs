//! The pure machine that guards one node's GPUs.
//!
//! Two doors: `Core::apply` takes what happened, `Core::next_deadline` says when time itself matters. What
//! is to be done comes out as `Action`s. No clock, no disk, no network, no unordered iteration.
//!
//! The life of a lease: reserved (in memory, ends by itself) → armed (on disk, never ends by itself) → bound →
//! started → releasing → gone. Three rules carry everything:
//!
//! 1. One GPU has at most one lease, from reserved until gone.
//! 2. What is promised beyond `reserved` is on disk before it is said, and what is gone from disk before
//!    it is said to be gone. So a crash at any moment takes back nothing that was said.
//!    A boot of the machine ends what ran: its leases count as bound until their GPUs are seen again.
//! 3. Only the newest term is obeyed. A newer one is on disk before anything is answered under it.

pub mod action;
mod boot;
pub mod core;
mod disk;
pub mod event;
pub mod invariants;
pub mod inventory;
mod kept;
pub mod leases;
pub mod ledger;
mod links;
mod messages;
pub mod tombstones;

pub use action::{Action, Warning};
pub use core::{Core, Deadline};
pub use event::{Event, LinkId};
pub use ledger::{DurableLease, DurableState, Ledger};
