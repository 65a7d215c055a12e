//! The hardware that a hollow node's agent reports.

use phalanx_common::ids::{GpuId, NodeName};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel};

use super::nodes::NodeShape;

/// NVLinks between each two GPUs, as behind NVSwitches.
const NVLINKS: u8 = 18;

/// A node whose GPUs are all behind the same switches, half of them at each CPU.
#[must_use]
pub fn inventory(node: &NodeName, shape: &NodeShape) -> Inventory {
    let gpus = shape.gpus;
    let numa = |gpu: u32| gpu * 2 / gpus.max(1);
    let gpu = |index: u32| Gpu {
        id: gpu_id(node, index),
        index,
        model: shape.gpu_model.clone(),
        memory_mib: Some(81_559),
        pci_bus_id: format!("0000:{:02x}:00.0", 0x10 + index),
        numa: Some(numa(index)),
        health: GpuHealth::Healthy,
    };
    let link = |one: u32, other: u32| GpuLink {
        nvlinks: if one == other { 0 } else { NVLINKS },
        pcie: match (one == other, numa(one) == numa(other)) {
            (true, _) => PcieLevel::Pix,
            (false, true) => PcieLevel::Node,
            (false, false) => PcieLevel::Sys,
        },
    };
    Inventory {
        driver: "580.95.05".to_owned(),
        gpus: (0..gpus).map(gpu).collect(),
        links: (0..gpus).map(|one| (0..gpus).map(|other| link(one, other)).collect()).collect(),
        ..Inventory::empty(shape.cpus * 1000, shape.memory_bytes)
    }
}

/// The same for the same node and index, whoever asks: FNV-1a over both.
fn gpu_id(node: &NodeName, index: u32) -> GpuId {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let bytes = node.as_str().bytes().chain([0]).chain(index.to_le_bytes());
    GpuId(bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_gpu_has_an_id_of_its_own() {
        let shape = NodeShape::default();
        let nodes = (0..500).map(|number| super::super::node_name("hollow", number));
        let ids: BTreeSet<GpuId> =
            nodes.flat_map(|node| inventory(&node, &shape).gpus.into_iter().map(|gpu| gpu.id)).collect();
        assert_eq!(ids.len(), 4000);
    }
}
