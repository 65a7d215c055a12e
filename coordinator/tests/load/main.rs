//! Agents and strangers that are too many, too slow or too loud. Not in one program with other tests: what is counted here is
//! of the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agents;
mod reconnect;
mod strangers;

#[path = "../support/mod.rs"]
mod support;
