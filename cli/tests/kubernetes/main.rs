//! The command line beside a real API server, each test with one of its own. One program for all of them: each would be
//! as large as this one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod dev_cluster;
mod import;
mod service_proxy;

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod support;
