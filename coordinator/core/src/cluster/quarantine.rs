//! Nodes that take no new pods for a while: since when, why, and what opens them before their time.

use std::sync::Arc;

use phalanx_common::units::Time;
use phalanx_common::wire::RefusalCause;
use serde::{Deserialize, Serialize};

use super::{Cluster, NodeIndex};

/// What ends a quarantine before its time, the strictest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum EarlyEnd {
    /// An answer: the agent was silent.
    Answer,
    /// The end of a lease there: the agent's list is full.
    Release,
    /// A lease that was armed: the agent could not write its ledger.
    Disk,
    /// Nothing: what it refuses it would refuse again.
    No,
}

/// A node takes no new pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Quarantine {
    pub(crate) until: Time,
    pub(crate) why: Arc<str>,
    pub(crate) ends_early: EarlyEnd,
}

impl Cluster {
    /// A refusal; closes the node when the budget is used up, and says so.
    pub(crate) fn count_refusal(
        &mut self,
        index: NodeIndex,
        budget: u32,
        cause: &RefusalCause,
        until: Time,
    ) -> bool {
        let node = &mut self.nodes[index.0 as usize];
        node.refusals += 1;
        if node.refusals < budget {
            return false;
        }
        let why = format!("it refused {} reservations in a row, the last one: {cause}", node.refusals);
        self.close_until(index, &why, until, EarlyEnd::No);
        true
    }

    /// Takes no new pods until then. Where it is closed already for something that ends less easily, it stays so: a
    /// cause that goes away must not open a node that has another one.
    pub(crate) fn close_until(&mut self, index: NodeIndex, why: &str, until: Time, ends_early: EarlyEnd) {
        let closed = self.nodes[index.0 as usize].quarantine.as_ref();
        if closed.is_some_and(|closed| closed.ends_early > ends_early) {
            return;
        }
        self.nodes[index.0 as usize].quarantine = Some(Quarantine { until, why: Arc::from(why), ends_early });
        self.refresh(index);
    }

    /// A promise: the count of refusals in a row begins anew, and the agent is silent no more.
    pub(crate) fn note_promise(&mut self, index: NodeIndex) {
        self.nodes[index.0 as usize].refusals = 0;
        self.end_early(index, EarlyEnd::Answer);
    }

    /// Opens the node where this is what it waits for.
    pub(crate) fn end_early(&mut self, index: NodeIndex, by: EarlyEnd) {
        let node = &self.nodes[index.0 as usize];
        if node.quarantine.as_ref().is_some_and(|quarantine| quarantine.ends_early == by) {
            self.end_quarantine(index);
        }
    }

    /// Opens the node again.
    pub(crate) fn end_quarantine(&mut self, index: NodeIndex) {
        let node = &mut self.nodes[index.0 as usize];
        node.refusals = 0;
        if node.quarantine.take().is_some() {
            self.refresh(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::NodeName;
    use phalanx_common::topology::Inventory;

    use super::*;

    #[test]
    fn what_ends_easily_does_not_open_a_node_that_is_closed_for_more() {
        let all = [EarlyEnd::Answer, EarlyEnd::Release, EarlyEnd::Disk, EarlyEnd::No];
        for (at, strict) in all.into_iter().enumerate() {
            for (other, by) in all.into_iter().enumerate() {
                let mut cluster = Cluster::default();
                let node = cluster.apply_inventory(&NodeName::from("n1"), 1, Inventory::empty(1_000, 1));
                cluster.close_until(node, "first", Time(30), strict);
                cluster.close_until(node, "second", Time(31), by);
                let closed = cluster.node(node).quarantine.clone();
                let (why, until) = if other < at { ("first", 30) } else { ("second", 31) };
                let told = closed.map(|closed| (closed.ends_early, closed.why, closed.until));
                assert_eq!(told, Some((strict.max(by), Arc::from(why), Time(until))));
                for easier in all.into_iter().filter(|easier| *easier < strict.max(by)) {
                    cluster.end_early(node, easier);
                    assert!(cluster.node(node).quarantine.is_some(), "{strict:?} {by:?} {easier:?}");
                }
            }
        }
    }
}
