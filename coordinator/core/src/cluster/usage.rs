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

    /// As much more.
    pub(crate) fn include(&mut self, other: &Self) {
        self.amounts.add(&other.amounts);
        self.pods = self.pods.saturating_add(other.pods);
        self.ports.extend_from_slice(&other.ports);
    }

    /// As much less.
    pub(crate) fn exclude(&mut self, other: &Self) {
        self.amounts.subtract(&other.amounts);
        self.pods = self.pods.saturating_sub(other.pods);
        self.free_ports(&other.ports);
    }

    /// What of it is more than `other`.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        rest.exclude(other);
        rest
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
        self.free_ports(ports);
    }

    fn free_ports(&mut self, ports: &[HostPort]) {
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
        let (total, is_complete) = self.capacity_there();
        is_complete.then_some(total)
    }

    /// What the nodes that are there have together; false where one is not known yet.
    pub(crate) fn capacity_there(&self) -> (Amounts, bool) {
        let mut total = Amounts::default();
        let mut is_complete = true;
        for (_, node) in self.nodes() {
            is_complete &= !node.is_unknown();
            if node.is_there() {
                total.add(&node.capacity);
            }
        }
        (total, is_complete)
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
