//! What pods take of a node beside its GPUs, ours or not: amounts of resources, a place among its
//! pods, and ports.

use phalanx_common::constraints::HostPort;
use serde::{Deserialize, Serialize};

use super::{Cluster, NodeIndex, Taken};
use crate::amounts::Amounts;

/// What is in use of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InUse {
    pub(crate) amounts: Amounts,
    /// Pods that are there: each takes one of the node's `pods`.
    pub(crate) pods: u64,
    /// Ports that they take, each as often as it is taken.
    pub(crate) ports: Vec<HostPort>,
}

impl InUse {
    /// One more pod.
    pub(crate) fn add(&mut self, amounts: &Amounts, ports: &[HostPort]) {
        self.amounts.add(amounts);
        self.pods = self.pods.saturating_add(1);
        self.ports.extend_from_slice(ports);
    }

    /// The same, in whatever order it came about.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let sorted = |ports: &[HostPort]| {
            let mut ports = ports.to_vec();
            ports.sort_unstable();
            ports
        };
        self.pods == other.pods
            && self.amounts.is_same(&other.amounts)
            && sorted(&self.ports) == sorted(&other.ports)
    }

    /// One pod less.
    pub(crate) fn subtract(&mut self, amounts: &Amounts, ports: &[HostPort]) {
        self.amounts.subtract(amounts);
        self.pods = self.pods.saturating_sub(1);
        for port in ports {
            if let Some(at) = self.ports.iter().position(|known| known == port) {
                self.ports.swap_remove(at);
            }
        }
    }
}

impl Taken {
    /// GPUs that it takes without saying which: somebody else bound its pod.
    pub(crate) const fn unnamed_gpus(&self) -> u64 {
        if self.gpus.is_empty() { self.amounts.gpus } else { 0 }
    }
}

impl Cluster {
    /// A pod is on a node that has no lease of ours: another scheduler's, or one that kubelet made.
    pub(crate) fn occupy(&mut self, index: NodeIndex, amounts: &Amounts, ports: &[HostPort]) {
        let node = &mut self.nodes[index.0 as usize];
        node.used.add(amounts, ports);
        node.others_gpus = node.others_gpus.saturating_add(amounts.gpus);
        self.refresh(index);
    }

    /// What all nodes have together; `None` while one of them is there of which nothing was heard yet.
    pub(crate) fn whole_capacity(&self) -> Option<Amounts> {
        let mut total = Amounts::default();
        for (_, node) in self.nodes() {
            if node.is_unknown() {
                return None;
            }
            if node.is_there() {
                total.add(&node.capacity);
            }
        }
        Some(total)
    }

    /// It is there no more.
    pub(crate) fn vacate(&mut self, index: NodeIndex, amounts: &Amounts, ports: &[HostPort]) {
        let node = &mut self.nodes[index.0 as usize];
        node.used.subtract(amounts, ports);
        node.others_gpus = node.others_gpus.saturating_sub(amounts.gpus);
        self.room_generation += 1;
        self.refresh(index);
    }
}
