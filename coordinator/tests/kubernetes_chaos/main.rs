//! Replicas of the coordinator under fire on a real API server, under the rights of deploy/: leaders that are killed,
//! stopped, cut off and told to end at each phase of a gang, and pods that another scheduler binds in between.
//!
//! `cargo xtask chaos --kubernetes` runs many rounds from a seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod cluster;
mod rounds;

#[path = "../support/mod.rs"]
mod support;
