//! The node agent: probes, link to the coordinator, ledger on disk.

pub mod inventory_report;
pub mod probe;
