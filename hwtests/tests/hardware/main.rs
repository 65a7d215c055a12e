//! The agent's real probe on machines made from node profiles: real FFI calls into the stand-in
//! library, a generated sysfs tree, and the same code that runs on real nodes.

#![allow(clippy::unwrap_used)]

mod faults;
mod library;
mod readback;
mod support;
