//! Real processes under fire: coordinators and agents that are killed, stopped or cut off, and what is found
//! afterwards on the nodes' disks, in the store and on the command line.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cluster;
mod dead;
mod kill_points;
mod look;
mod network;
mod proxy;
mod recordings;
mod replaced;
mod rounds;
mod take_over;
mod workload;

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../support/mod.rs"]
mod support;
