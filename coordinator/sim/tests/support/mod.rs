//! What the cases at full size share.

#![allow(clippy::unwrap_used)]

use phalanx_common::ids::GpuId;
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel, ProbeState};

const GPUS_PER_NODE: usize = 8;

/// A node of eight GPUs that are all connected, which no other node has.
pub fn inventory(node: usize) -> Inventory {
    let gpu = |at: usize| Gpu {
        id: GpuId((node as u128 + 1) << 8 | at as u128),
        index: u32::try_from(at).unwrap(),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_mib: Some(81_559),
        pci_bus_id: format!("0000:{at:02x}:00.0"),
        numa: Some(0),
        health: GpuHealth::Healthy,
    };
    let link = GpuLink { nvlinks: 18, pcie: PcieLevel::Sys };
    Inventory {
        state: ProbeState::Ready,
        driver: "580.82.07".to_owned(),
        cpu_milli: 192_000,
        memory_bytes: 2 << 40,
        gpus: (0..GPUS_PER_NODE).map(gpu).collect(),
        links: vec![vec![link; GPUS_PER_NODE]; GPUS_PER_NODE],
        nics: Vec::new(),
    }
}
