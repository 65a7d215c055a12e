//! The shell's parts, each by itself: store, conversion, manifests, jobs, recordings. One program for all of them: each would be
//! as large as this one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod api_embedded;
mod api_store;
mod convert_claims;
mod convert_objects;
mod convert_policy;
mod documents;
mod jobs_expand;
mod manifest_examples;
mod manifest_rules;
mod random_input;
mod recorder;
mod storage_store;

#[path = "../support/disk.rs"]
mod disk;
#[path = "../../../fuzz/src/lib.rs"]
mod inputs;
