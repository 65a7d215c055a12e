//! Changes of what a node has. Whoever waits is tried again, and what could ever run is worked out anew, only where
//! one changed anything that counts: agents tell the same again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::constraints::Taint;

use super::{ClassId, Cluster, Node, NodeIndex};
use crate::amounts::Amounts;
use crate::reason::Closed;

/// What placing and reasons look at in a node, beside what is used there.
#[derive(PartialEq)]
struct Outline {
    capacity: Amounts,
    labels: BTreeMap<Arc<str>, Arc<str>>,
    class: Option<ClassId>,
    healthy_mask: u64,
    free_mask: u64,
    closed: Option<Closed>,
    has_object: bool,
    taints: Vec<Taint>,
    most_pods: Option<u64>,
    is_unknown: bool,
}

impl Outline {
    fn of(node: &Node) -> Self {
        let agent = node.agent.as_ref();
        let gpus = agent.into_iter().flat_map(|agent| agent.inventory.gpus.iter().enumerate());
        let healthy = gpus.filter(|(_, gpu)| gpu.health.is_healthy());
        Self {
            capacity: node.capacity.clone(),
            labels: node.labels.clone(),
            class: agent.map(|agent| agent.class),
            healthy_mask: healthy.fold(0, |mask, (at, _)| mask | 1 << at),
            free_mask: node.free_mask,
            closed: node.closed(),
            has_object: node.spec.is_some(),
            taints: node.spec.iter().flat_map(|spec| &spec.taints).cloned().collect(),
            most_pods: node.most_pods,
            is_unknown: node.is_unknown(),
        }
    }
}

impl Cluster {
    /// Changes what a node has, and everything that follows from it.
    pub(super) fn change(&mut self, index: NodeIndex, change: impl FnOnce(&mut Node)) {
        let at = index.0 as usize;
        let before = Outline::of(&self.nodes[at]);
        change(&mut self.nodes[at]);
        self.refresh_capacity(at);
        self.refresh(index);
        if Outline::of(&self.nodes[at]) != before {
            self.note_change();
        }
    }

    /// What the cluster has in all is another.
    pub(super) const fn note_change(&mut self) {
        self.capacity_generation += 1;
        self.room_generation += 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use phalanx_common::ids::{GpuId, NodeName};
    use phalanx_common::resources::{CPU, ResourceName, Resources};
    use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel, ProbeState};
    use phalanx_common::units::Time;

    use super::*;
    use crate::event::NodeSpec;

    fn inventory() -> Inventory {
        let gpu = |at: u32| Gpu {
            id: GpuId(u128::from(at) + 1),
            index: at,
            model: "H100".to_owned(),
            memory_mib: None,
            pci_bus_id: format!("0000:{at:02x}:00.0"),
            numa: None,
            health: GpuHealth::Healthy,
        };
        let link = GpuLink { nvlinks: 12, pcie: PcieLevel::Pix };
        Inventory {
            gpus: (0..2).map(gpu).collect(),
            links: vec![vec![link; 2]; 2],
            ..Inventory::empty(64_000, 1 << 40)
        }
    }

    fn spec(cpu_milli: u64) -> NodeSpec {
        NodeSpec {
            name: NodeName::from("n1"),
            labels: BTreeMap::new(),
            allocatable: Resources::new().with(ResourceName::known(CPU), cpu_milli),
            unschedulable: false,
            taints: Vec::new(),
            ready: true,
        }
    }

    /// True where a change raises both generations, false where it raises none.
    fn counts(cluster: &mut Cluster, change: impl FnOnce(&mut Cluster)) -> bool {
        let before = (cluster.capacity_generation, cluster.room_generation);
        change(cluster);
        let raised = (cluster.capacity_generation > before.0, cluster.room_generation > before.1);
        assert_eq!(raised.0, raised.1);
        raised.0
    }

    #[test]
    fn only_what_changes_anything_wakes_who_waits() {
        let name = NodeName::from("n1");
        let mut cluster = Cluster::default();
        let tell = |inventory: Inventory| {
            let name = name.clone();
            move |cluster: &mut Cluster| {
                cluster.apply_inventory(&name, 1, inventory);
            }
        };
        let write = |spec: NodeSpec| {
            move |cluster: &mut Cluster| {
                cluster.apply_spec(spec);
            }
        };
        assert!(counts(&mut cluster, tell(inventory())));
        let index = cluster.find(&name).unwrap();
        assert!(counts(&mut cluster, write(spec(64_000))));
        let lost = vec![(GpuId(1), GpuHealth::Lost)];
        let mut swapped = inventory();
        swapped.gpus[0].model = "H200".to_owned();
        let mut sick = inventory();
        sick.state = ProbeState::DriverError("code 18".to_owned());
        let mut unschedulable = spec(64_000);
        unschedulable.unschedulable = true;
        let mut labelled = spec(64_000);
        labelled.labels.insert("zone".into(), "a".into());
        for _ in 0..2 {
            assert!(!counts(&mut cluster, tell(inventory())), "the same inventory");
            assert!(!counts(&mut cluster, write(spec(64_000))), "the same object");
            assert!(!counts(&mut cluster, |cluster| cluster.apply_health(index, &[])));
            for other in [&swapped, &sick] {
                assert!(counts(&mut cluster, tell(other.clone())), "{other:?}");
                assert!(!counts(&mut cluster, tell(other.clone())), "{other:?}");
                assert!(counts(&mut cluster, tell(inventory())));
            }
            for other in [&spec(1_000), &unschedulable, &labelled] {
                assert!(counts(&mut cluster, write(other.clone())), "{other:?}");
                assert!(!counts(&mut cluster, write(other.clone())), "{other:?}");
                assert!(counts(&mut cluster, write(spec(64_000))));
            }
            assert!(counts(&mut cluster, |cluster| cluster.apply_health(index, &lost)));
            assert!(!counts(&mut cluster, |cluster| cluster.apply_health(index, &lost)));
            assert!(counts(&mut cluster, |cluster| cluster.disconnect(index, Time(1))));
            assert!(counts(&mut cluster, tell(inventory())), "its agent and its GPU are back");
        }
        assert!(counts(&mut cluster, |cluster| cluster.remove_spec(&name)));
        assert!(counts(&mut cluster, |cluster| cluster.disconnect(index, Time(1))));
        assert!(counts(&mut cluster, |cluster| cluster.forget_if_gone(index)));
    }
}
