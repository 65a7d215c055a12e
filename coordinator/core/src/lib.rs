//! The deciding machine. Two doors: `apply` records a fact, `cycle` decides; both append actions.
//! No clock, no runtime, no Kubernetes, no randomness: the same events give the same actions.
//!
//! What stands where: `facts` records objects, `replies` what agents and the API answer; `claims` keeps
//! the volumes that pods mount; `pass` tries gangs in order, `place` plans, `round` takes a plan from reserving to
//! bound, `lease` and `ledger` keep the promises, `life` follows a gang's pods, `status` what is written of it, `terms`
//! who leads, `recover` rebuilds after a start, `why` and `show` explain.

pub mod action;
mod admission;
mod alike;
mod amounts;
mod backfill;
mod claims;
mod class;
mod cluster;
pub mod core;
pub mod event;
mod evictable;
mod eviction;
mod facts;
mod fewer;
mod foreign;
mod fresh;
mod gang;
mod givers;
mod graces;
mod groups;
pub mod invariants;
pub mod kept;
mod lease;
mod ledger;
mod life;
mod making_room;
mod others;
mod pairs;
mod parts;
mod pass;
mod phase;
mod place;
mod predicates;
mod protected;
mod put_off;
mod queue;
pub mod queues;
mod quotas;
pub mod reason;
mod recover;
mod refuse;
mod replies;
mod required;
mod retry;
mod round;
pub mod settings;
mod shares;
mod shortfall_of_quota;
mod show;
mod status;
mod strict;
mod terms;
mod tree;
mod turn;
mod victims;
pub mod view;
mod whole;
mod why;

pub use crate::core::Core;
pub use crate::settings::Settings;
pub use crate::terms::is_believable;
