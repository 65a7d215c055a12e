//! Copies of the cluster as it would be: with closed nodes open, or with nothing used.

use super::{Cluster, InUse, NodeIndex, Taken};

impl Cluster {
    /// A copy of which everything may change.
    fn copy(&self) -> Self {
        let (nodes, vacant, by_name) = (self.nodes.clone(), self.vacant.clone(), self.by_name.clone());
        let (classes, resources) = (self.classes.clone(), self.resources.clone());
        Self {
            nodes,
            vacant,
            by_name,
            classes,
            resources,
            held_nodes: self.held_nodes.clone(),
            survey: None,
            ..*self
        }
    }

    /// The same nodes in use as they are, but for what is on its way out, with those open that open
    /// again by themselves, or when their agent is back, or by a word of a person: for "would they help".
    pub(crate) fn opened(&self, leaving: &[(NodeIndex, Taken)]) -> Self {
        let mut open = self.copy();
        for (index, taken) in leaving {
            open.give_back(*index, taken);
        }
        for at in 0..open.nodes.len() {
            let node = &mut open.nodes[at];
            node.quarantine = None;
            node.uncordon();
            if let Some(agent) = &mut node.agent {
                agent.session = Some(0);
            }
            open.refresh(NodeIndex(u32::try_from(at).unwrap_or(u32::MAX)));
        }
        open
    }

    /// Takes over the resources that have got a name in the cluster of which this is a copy.
    pub(crate) fn learn_names(&mut self, from: &Self) {
        if self.resources.len() != from.resources.len() {
            self.resources = from.resources.clone();
        }
    }

    /// The same nodes with nothing used and all that are away back: for "could it ever run".
    pub(crate) fn emptied(&self) -> Self {
        let mut empty = self.copy();
        empty.without_holds();
        for at in 0..empty.nodes.len() {
            let node = &mut empty.nodes[at];
            node.used = InUse::default();
            node.others_gpus = 0;
            node.quarantine = None;
            node.recover();
            if let Some(agent) = &mut node.agent {
                agent.session = Some(0);
                agent.holders.iter_mut().for_each(|holder| *holder = None);
            }
            empty.refresh(NodeIndex(u32::try_from(at).unwrap_or(u32::MAX)));
        }
        empty
    }
}
