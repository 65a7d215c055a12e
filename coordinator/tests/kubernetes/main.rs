//! The coordinator on a real API server, each test on one of its own. One program for all of them: each would be as large
//! as this one. Tests that share a server among themselves have programs of their own beside this folder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod claims;
mod constraints;
mod examples;
mod faults;
mod leader;
mod queues;
mod rbac;
mod shadow;
mod stories;
mod stories_evictions;

#[path = "../kube_proxy/mod.rs"]
mod kube_proxy;
#[path = "../support/kubernetes.rs"]
mod kubernetes;
#[path = "../support/kubernetes_people.rs"]
mod people;
#[path = "../support/mod.rs"]
mod support;
