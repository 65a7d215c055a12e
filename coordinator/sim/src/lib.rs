//! Deterministic simulation: both real machines in virtual time, with a fake API server and a fake network between
//! them. A seed gives workload, faults and order of everything; the same seed gives the same run.
//!
//! The simulation stands in for the shells: `coordinator`, `calls` and `kubelet` for the coordinator's, `agent` for
//! the agent's, `network` for what lies between. `checkers` look from outside after every step.

mod agent;
mod calls;
mod changes;
pub mod checkers;
mod coordinator;
pub mod coverage;
pub mod facts;
mod fake_api;
mod faults;
mod kubelet;
pub mod log;
mod network;
pub mod options;
pub mod random;
mod recording;
mod rooms;
mod seeds;
mod teams;
mod users;
mod workload;
mod world;

pub use crate::options::{Options, Rates};
pub use crate::seeds::run_seeds;
pub use crate::world::{Failure, Report, run};
