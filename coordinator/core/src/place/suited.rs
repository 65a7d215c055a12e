//! Which nodes a pod's constraints allow, found out once for all pods of a plan that are alike: with
//! ten thousand nodes and a gang of hundreds each pod must not look at every node's labels again.

use std::sync::Arc;

use super::PodNeed;
use crate::cluster::{Cluster, NodeIndex};
use crate::predicates::{self, Dislike};

/// Kinds of pods of one plan that are remembered.
const MOST_KINDS: usize = 16;

/// Nodes that were looked at in vain for pods of one kind, before it is found out once for all of them. It changes no
/// plan, only how long one takes; builds for tests do it with few nodes.
const ENOUGH: usize = if cfg!(debug_assertions) { 2 } else { 256 };

/// What is known of one kind of pods.
#[derive(Debug)]
pub(super) struct Suited {
    /// By number of the node: no taint, label or affinity keeps the pod away.
    nodes: Vec<bool>,
    /// The least that speaks against any of them.
    pub(super) least: Dislike,
}

impl Suited {
    fn new(cluster: &Cluster, need: &PodNeed) -> Self {
        let mut suited = Self { nodes: Vec::new(), least: predicates::MOST };
        for (index, node) in cluster.nodes() {
            if !predicates::suits(node, need) {
                continue;
            }
            let at = index.0 as usize;
            suited.nodes.resize(suited.nodes.len().max(at + 1), false);
            suited.nodes[at] = true;
            suited.least = suited.least.min(predicates::dislike(node, need));
        }
        suited
    }

    pub(super) fn holds(&self, index: NodeIndex) -> bool {
        self.nodes.get(index.0 as usize) == Some(&true)
    }
}

/// Kinds of pods of a plan for which nodes were looked at in vain.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds {
    known: Vec<Kind>,
}

#[derive(Clone, Debug)]
struct Kind {
    need: Arc<PodNeed>,
    in_vain: usize,
    suited: Option<Arc<Suited>>,
}

impl Kinds {
    fn find(&mut self, need: &Arc<PodNeed>) -> Option<&mut Kind> {
        self.known.iter_mut().find(|kind| Arc::ptr_eq(&kind.need, need) || kind.need == *need)
    }

    /// Where a kind's constraints allow it, once that is worth finding out.
    pub(super) fn suited(&mut self, cluster: &Cluster, need: &Arc<PodNeed>) -> Option<Arc<Suited>> {
        let kind = self.find(need).filter(|kind| kind.in_vain >= ENOUGH)?;
        Some(kind.suited.get_or_insert_with(|| Arc::new(Suited::new(cluster, need))).clone())
    }

    /// For a pod of this kind so many nodes were looked at in vain.
    pub(super) fn note(&mut self, need: &Arc<PodNeed>, in_vain: usize) {
        if let Some(kind) = self.find(need) {
            kind.in_vain = kind.in_vain.saturating_add(in_vain);
        } else if in_vain > 0 && self.known.len() < MOST_KINDS {
            self.known.push(Kind { need: need.clone(), in_vain, suited: None });
        }
    }
}
