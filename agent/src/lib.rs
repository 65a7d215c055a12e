//! The node agent: probes, link to the coordinator, ledger on disk. The decisions are made by the pure
//! machine of `phalanx_node_core`; everything here translates between it and the world.

pub mod clock;
pub mod config;
pub mod credentials;
mod dial;
mod driver;
pub mod embedded;
pub mod inventory_report;
#[cfg(debug_assertions)]
mod kill_points;
pub mod ledger_file;
mod link;
pub mod probe;
mod runner;

pub use credentials::Credentials;
pub use embedded::{Agent, AgentError, AgentOptions, AgentReport, LedgerPlace, start};
