//! Whole coordinators, in this process with real agents over QUIC, and as the program that users run. One program for all
//! of them: each would be as large as this one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod admin;
mod admin_input;
mod loopback;
mod loopback_agents;
mod loopback_driver;
mod loopback_faults;
mod loopback_standby;
mod loopback_tokens;
mod loopback_two;
mod process;
mod replay;
mod storage_agents;
mod storage_process;

#[path = "../support/mod.rs"]
mod support;
