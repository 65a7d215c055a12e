//! What stands for the agents of all nodes. Their GPUs are made up from what the Node offers, and they agree to
//! everything: what the node itself would say is not known in shadow mode.

use phalanx_common::ids::{ClusterId, GpuId, NodeName, Term};
use phalanx_common::resources::{CPU, MEMORY, NVIDIA_GPU};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, MAX_GPUS_PER_NODE, PcieLevel};
use phalanx_common::wire::{FromAgent, Hello, LeaseState, OLDEST_VERSION, ToAgent, VERSION};
use phalanx_core::event::NodeSpec;

/// Label by which NVIDIA's feature discovery tells the model of a node's GPUs.
const MODEL_LABEL: &str = "nvidia.com/gpu.product";
/// Model where no label tells one: all are alike, so that no gang waits for GPUs of one model.
const SOME_MODEL: &str = "GPU";

/// What the agent of a node would show. How its GPUs are connected is not known: all pairs are as far apart as can be.
pub fn inventory(node: &NodeSpec) -> Inventory {
    let gpus =
        usize::try_from(node.allocatable.amount(NVIDIA_GPU)).unwrap_or(usize::MAX).min(MAX_GPUS_PER_NODE);
    let model = node.labels.get(MODEL_LABEL).map_or(SOME_MODEL, |model| &**model);
    let gpu = |index: usize| Gpu {
        id: made_up_id(&node.name, index),
        // At most MAX_GPUS_PER_NODE.
        index: index as u32,
        model: model.to_owned(),
        memory_mib: None,
        pci_bus_id: format!("0000:{index:02x}:00.0"),
        numa: None,
        health: GpuHealth::Healthy,
    };
    let link = |from: usize, to: usize| GpuLink {
        nvlinks: 0,
        pcie: if from == to { PcieLevel::Pix } else { PcieLevel::Sys },
    };
    let capacity = Inventory::empty(node.allocatable.amount(CPU), node.allocatable.amount(MEMORY));
    Inventory {
        gpus: (0..gpus).map(gpu).collect(),
        links: (0..gpus).map(|from| (0..gpus).map(|to| link(from, to)).collect()).collect(),
        ..capacity
    }
}

/// The same number for the same GPU of the same node in each process: FNV-1a over both.
fn made_up_id(node: &NodeName, index: usize) -> GpuId {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let text = format!("{node}/{index}");
    GpuId(text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)))
}

/// An agent's first message.
pub fn hello(node: &NodeSpec, cluster: &ClusterId) -> Box<Hello> {
    Box::new(Hello {
        oldest_version: OLDEST_VERSION,
        newest_version: VERSION,
        node: node.name.clone(),
        cluster: Some(cluster.clone()),
        highest_term: Term::default(),
        inventory: inventory(node),
        leases: Vec::new(),
    })
}

/// What an agent that agrees to everything answers.
pub fn answer(message: &ToAgent) -> Option<Box<FromAgent>> {
    let lease_is = |term: Term, lease, state| Some(FromAgent::LeaseIs { term, lease, state });
    let answer = match *message {
        ToAgent::Reserve { term, lease, .. } => Some(FromAgent::Reserved { term, lease }),
        ToAgent::Arm { term, lease } => lease_is(term, lease, LeaseState::Armed),
        ToAgent::Bound { term, lease } => lease_is(term, lease, LeaseState::Bound),
        ToAgent::GangBound { term, lease } => lease_is(term, lease, LeaseState::Started),
        ToAgent::Release { term, lease } => lease_is(term, lease, LeaseState::Gone),
        ToAgent::Welcome { .. } | ToAgent::Rejected { .. } | ToAgent::Standby { .. } | ToAgent::SayHello => {
            None
        }
    };
    answer.map(Box::new)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use phalanx_common::resources::{ResourceName, Resources};

    use super::*;

    fn node(gpus: u64) -> NodeSpec {
        let mut allocatable = Resources::default();
        allocatable.set(ResourceName::known(NVIDIA_GPU), gpus);
        allocatable.set(ResourceName::known(CPU), 8000);
        NodeSpec {
            name: NodeName::from("n1"),
            labels: BTreeMap::from([(Arc::from(MODEL_LABEL), Arc::from("NVIDIA-L40S"))]),
            allocatable,
            unschedulable: false,
            taints: Vec::new(),
            ready: true,
        }
    }

    #[test]
    fn an_inventory_is_made_of_what_the_node_offers() {
        let inventory = inventory(&node(8));
        inventory.check().unwrap();
        assert_eq!((inventory.gpus.len(), inventory.cpu_milli), (8, 8000));
        assert_eq!(inventory.gpus[7].model, "NVIDIA-L40S");
        // A number that no machine has is cut down, not refused: the node has at least these.
        super::inventory(&node(u64::MAX)).check().unwrap();
    }
}
