//! The coordinator's shell: everything around the deciding machine.

pub mod api;
