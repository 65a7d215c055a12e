//! Which nodes a pod's constraints allow, found out once for all pods of a plan that are alike: with
//! ten thousand nodes and a gang of hundreds each pod must not look at every node's labels again.

use std::sync::Arc;

use super::PodNeed;
use crate::cluster::{Cluster, NodeIndex};
use crate::predicates::{self, Dislike};

/// Kinds of pods of one plan that are remembered.
const MOST_KINDS: usize = 16;

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

/// Kinds of pods that a plan has met.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds {
    /// Where a kind was met once only, nothing is found out: a single pod looks for itself.
    met: Vec<(Arc<PodNeed>, Option<Arc<Suited>>)>,
}

impl Kinds {
    /// What is known of a kind, from the second pod on.
    pub(super) fn suited(&mut self, cluster: &Cluster, need: &Arc<PodNeed>) -> Option<Arc<Suited>> {
        let is_same = |known: &Arc<PodNeed>| Arc::ptr_eq(known, need) || known == need;
        if let Some((_, suited)) = self.met.iter_mut().find(|(known, _)| is_same(known)) {
            return Some(suited.get_or_insert_with(|| Arc::new(Suited::new(cluster, need))).clone());
        }
        if self.met.len() < MOST_KINDS {
            self.met.push((need.clone(), None));
        }
        None
    }
}
