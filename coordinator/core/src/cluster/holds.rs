//! Holds: room of a node that is kept free for one gang. Others neither see its GPUs nor what else it needs there; the
//! gang itself looks at the nodes with its hold lifted.
//!
//! What the gang waits for still uses its part of the room: that stands for the hold until it is gone, so that nothing
//! is counted twice. So do the gang's own pods once they are placed there.

use std::collections::BTreeSet;

use phalanx_common::ids::{GpuId, LeaseId};
use serde::{Deserialize, Serialize};

use super::{Cluster, InUse, Node, NodeIndex, Taken};
use crate::gang::GangKey;

/// What is held of one node for one gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeHold {
    pub(crate) gpus: Vec<GpuId>,
    /// All that its pods will use there.
    whole: InUse,
    /// Leases that stand for it until they are gone, and what they use.
    stands: BTreeSet<LeaseId>,
    covered: InUse,
}

impl NodeHold {
    pub(crate) fn new(gpus: Vec<GpuId>, whole: InUse) -> Self {
        Self { gpus, whole, ..Self::default() }
    }

    fn stand(&mut self, taken: &Taken) {
        if self.stands.insert(taken.lease) {
            self.covered.add(&taken.amounts, &taken.ports);
        }
    }

    fn concerns(&self, taken: &Taken) -> bool {
        taken.gpus.iter().any(|gpu| self.gpus.contains(gpu))
    }
}

impl Node {
    /// Positions of GPUs that are held for gangs.
    pub(crate) fn held_mask(&self) -> u64 {
        self.mask_of(self.holds.values().flat_map(|hold| &hold.gpus))
    }

    /// Positions of those of these GPUs that are well.
    pub(crate) fn healthy_mask(&self, gpus: &[GpuId]) -> u64 {
        let known = self.agent.iter().flat_map(|agent| agent.inventory.gpus.iter().enumerate());
        known
            .filter(|(_, gpu)| gpu.health.is_healthy() && gpus.contains(&gpu.id))
            .fold(0, |mask, (at, _)| mask | 1 << at)
    }

    /// Positions of GPUs that are well and have no holder, whoever they are held for.
    pub(super) fn unused_mask(&self) -> u64 {
        self.agent.as_ref().map_or(0, |agent| {
            let gpus = agent.inventory.gpus.iter().zip(&agent.holders).enumerate();
            gpus.filter(|(_, (gpu, holder))| gpu.health.is_healthy() && holder.is_none())
                .fold(0, |mask, (at, _)| mask | 1 << at)
        })
    }

    /// Positions of these GPUs.
    fn mask_of<'a>(&self, gpus: impl Iterator<Item = &'a GpuId>) -> u64 {
        gpus.filter_map(|gpu| self.position(*gpu)).fold(0, |mask, at| mask | 1 << at)
    }

    /// Leases that use what is held for a gang.
    pub(crate) fn stands_for(&self, key: GangKey) -> impl Iterator<Item = LeaseId> {
        self.holds.get(&key).into_iter().flat_map(|hold| &hold.stands).copied()
    }

    /// GPUs and use that are free once this is gone, with the holds of these gangs lifted: the others take their part.
    pub(crate) fn left_by(&self, taken: &Taken, is_lifted: impl Fn(GangKey) -> bool) -> (u64, InUse) {
        let mut left = InUse::default();
        left.add(&taken.amounts, &taken.ports);
        let mut kept = 0;
        for (_, hold) in self.holds.iter().filter(|(key, _)| !is_lifted(**key)) {
            kept |= self.mask_of(hold.gpus.iter());
            if hold.stands.contains(&taken.lease) {
                let mut covered = hold.covered.clone();
                covered.subtract(&taken.amounts, &taken.ports);
                left.exclude(&hold.whole.without(&covered).without(&hold.whole.without(&hold.covered)));
            }
        }
        (self.healthy_mask(&taken.gpus) & !kept, left)
    }

    /// Free GPUs and use with the holds of these gangs lifted.
    pub(crate) fn lifted(&self, is_lifted: impl Fn(GangKey) -> bool) -> (u64, InUse) {
        let mut used = self.used.clone();
        let (mut kept, mut given) = (0, 0);
        let mut held = InUse::default();
        for (key, hold) in &self.holds {
            let mask = self.mask_of(hold.gpus.iter());
            if is_lifted(*key) {
                given |= mask;
            } else {
                kept |= mask;
                held.include(&hold.whole.without(&hold.covered));
            }
        }
        used.exclude(&self.held);
        used.include(&held);
        (self.free_mask | (self.unused_mask() & given & !kept), used)
    }
}

/// Holds that are lifted for a look, and the generation of its room that the cluster had before.
#[derive(Debug, Default)]
pub(crate) struct Lifted {
    holds: Vec<(NodeIndex, GangKey, NodeHold)>,
    room_generation: u64,
}

impl Cluster {
    /// Lifts what is held for these gangs, for a look at the cluster: it is put back before anything else happens.
    pub(crate) fn lift(&mut self, keys: impl Iterator<Item = GangKey>) -> Lifted {
        let mut lifted = Lifted { holds: Vec::new(), room_generation: self.room_generation };
        for key in keys {
            let nodes: Vec<NodeIndex> = self.held_for(key).collect();
            for index in nodes {
                if let Some(hold) = self.nodes[index.0 as usize].holds.remove(&key) {
                    lifted.holds.push((index, key, hold));
                    self.fold_holds(index);
                }
            }
        }
        lifted
    }

    /// All is as it was before the look, and nobody is to be tried for it.
    pub(crate) fn put_back(&mut self, lifted: Lifted) {
        if lifted.holds.is_empty() {
            return;
        }
        for (index, key, hold) in lifted.holds {
            self.nodes[index.0 as usize].holds.insert(key, hold);
            self.fold_holds(index);
        }
        self.room_generation = lifted.room_generation;
    }

    /// Keeps room of a node free for a gang. These leases use a part of it, and are to go.
    pub(crate) fn hold<'a>(
        &mut self,
        index: NodeIndex,
        key: GangKey,
        mut hold: NodeHold,
        stands: impl Iterator<Item = &'a Taken>,
    ) {
        for taken in stands {
            hold.stand(taken);
        }
        self.nodes[index.0 as usize].holds.insert(key, hold);
        self.held_nodes.entry(key).or_default().insert(index);
        self.fold_holds(index);
    }

    /// Gives all up that is held for a gang.
    pub(crate) fn unhold(&mut self, key: GangKey) {
        for index in self.held_nodes.remove(&key).unwrap_or_default() {
            self.nodes[index.0 as usize].holds.remove(&key);
            self.room_generation += 1;
            self.fold_holds(index);
        }
    }

    /// Something is held for a gang.
    pub(crate) fn has_holds(&self) -> bool {
        !self.held_nodes.is_empty()
    }

    /// Nodes of which something is held for a gang.
    pub(crate) fn held_for(&self, key: GangKey) -> impl Iterator<Item = NodeIndex> {
        self.held_nodes.get(&key).into_iter().flatten().copied()
    }

    /// A gang's pod took its place, or one of others a place that is held meanwhile.
    pub(crate) fn stand_for_holds(&mut self, index: NodeIndex, of: Option<GangKey>, taken: &Taken) {
        let node = &mut self.nodes[index.0 as usize];
        if node.holds.is_empty() {
            return;
        }
        for (key, hold) in &mut node.holds {
            if of == Some(*key) || hold.concerns(taken) {
                hold.stand(taken);
            }
        }
        self.fold_holds(index);
    }

    /// A lease is gone: what it stood for is held itself now.
    pub(super) fn end_stand(&mut self, index: NodeIndex, taken: &Taken) {
        let node = &mut self.nodes[index.0 as usize];
        if node.holds.is_empty() {
            return;
        }
        for hold in node.holds.values_mut() {
            if hold.stands.remove(&taken.lease) {
                hold.covered.subtract(&taken.amounts, &taken.ports);
            }
        }
        self.fold_holds(index);
    }

    /// Brings what counts as used for holds up to date.
    fn fold_holds(&mut self, index: NodeIndex) {
        let node = &mut self.nodes[index.0 as usize];
        let mut held = InUse::default();
        for hold in node.holds.values() {
            held.include(&hold.whole.without(&hold.covered));
        }
        node.used.exclude(&node.held);
        node.used.include(&held);
        node.held = held;
        self.refresh(index);
    }

    /// Gangs for which GPUs at these positions are held.
    #[cfg(feature = "counted-moves")]
    pub(crate) fn holders_of(&self, index: NodeIndex, mask: u64) -> impl Iterator<Item = GangKey> {
        let node = self.node(index);
        let holds = node.holds.iter().filter(move |(_, hold)| node.mask_of(hold.gpus.iter()) & mask != 0);
        holds.map(|(key, _)| *key)
    }

    /// What counts as held of each node is what its holds say, and each is of somebody who has one.
    pub(crate) fn check_holds(&self, has_one: impl Fn(GangKey) -> bool) -> Result<(), String> {
        for (index, node) in self.nodes() {
            let mut held = InUse::default();
            for (key, hold) in &node.holds {
                if !has_one(*key) {
                    return Err(format!(
                        "node {}: something is held for {key:?}, who has no hold",
                        node.name
                    ));
                }
                if !self.held_nodes.get(key).is_some_and(|nodes| nodes.contains(&index)) {
                    return Err(format!("node {}: what is held for {key:?} is not found again", node.name));
                }
                held.include(&hold.whole.without(&hold.covered));
            }
            if !held.is_same(&node.held) {
                return Err(format!("node {}: held {:?}, its holds say {held:?}", node.name, node.held));
            }
        }
        Ok(())
    }

    /// As if nothing were held.
    pub(super) fn without_holds(&mut self) {
        self.held_nodes.clear();
        for node in &mut self.nodes {
            node.holds.clear();
            node.held = InUse::default();
        }
    }
}
