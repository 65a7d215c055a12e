//! The deciding machine. Two doors: `apply` records a fact, `cycle` decides; both append actions.
//! No clock, no runtime, no Kubernetes, no randomness: the same events give the same actions.

pub mod action;
pub mod core;
pub mod event;
pub mod reason;
pub mod settings;
pub mod view;

pub use crate::core::Core;
pub use crate::settings::Settings;
