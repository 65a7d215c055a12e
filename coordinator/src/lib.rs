//! The coordinator's shell: everything around the deciding machine.
//!
//! Data flows one way: API and agents -> `Event` -> core -> `Action` -> API and agents. `driver` is the loop in
//! the middle, `coordinator` puts the parts together.

pub mod admin;
pub mod agents;
pub mod api;
pub mod clock;
pub mod config;
pub mod convert;
pub mod coordinator;
pub mod driver;
pub mod jobs;
#[cfg(debug_assertions)]
mod kill_points;
pub mod kubernetes;
pub mod manifest;
pub mod metrics;
pub mod progress;
pub mod recorder;
pub mod replay;
pub mod runner;
pub mod shadow;
pub mod watch;
pub mod writer;
