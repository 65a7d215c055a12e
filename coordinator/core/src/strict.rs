//! Queues that serve strictly in order: who waits before holds back those behind it that could use one of the nodes it
//! could use, whatever is free there. Others go on, as do those whose pods do not exist yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::{GangName, QueueName};

use crate::cluster::{InUse, NodeIndex};
use crate::core::Core;
use crate::gang::{Gang, GangKey};
use crate::phase::PhaseKind;
use crate::place::PodNeed;
use crate::predicates::{self, Obstacle};
use crate::reason::{QueueHeld, Reason};
use crate::turn::OrderKey;

/// Nodes, a bit each.
#[derive(Clone, Debug, Default)]
struct NodeSet(Vec<u64>);

impl NodeSet {
    fn insert(&mut self, node: NodeIndex) {
        let at = node.0 as usize;
        if self.0.len() <= at / 64 {
            self.0.resize(at / 64 + 1, 0);
        }
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    fn contains_all(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(at, bits)| bits & !self.0.get(at).copied().unwrap_or(0) == 0)
    }

    /// The first node of both.
    fn first_shared(&self, other: &Self) -> Option<NodeIndex> {
        let (at, bits) = self
            .0
            .iter()
            .zip(&other.0)
            .map(|(mine, theirs)| mine & theirs)
            .enumerate()
            .find(|(_, bits)| *bits != 0)?;
        u32::try_from(at).ok().map(|at| NodeIndex(at * 64 + bits.trailing_zeros()))
    }
}

/// A gang that waits in a strict queue.
struct Blocker {
    name: GangName,
    order: OrderKey,
    nodes: NodeSet,
}

/// The gangs that were tried in this pass and hold others back.
#[derive(Default)]
pub(crate) struct Strict {
    lines: BTreeMap<QueueName, (NodeSet, Vec<Blocker>)>,
    usable: BTreeMap<Arc<PodNeed>, Arc<NodeSet>>,
}

impl Strict {
    /// All are tried again, in their order.
    pub(crate) fn begin_anew(&mut self) {
        self.lines.clear();
    }

    /// Nodes that a gang's pods could use, whatever is free.
    fn nodes_of(&mut self, core: &Core, gang: &Gang) -> NodeSet {
        let mut nodes = NodeSet::default();
        let mut last: Option<Arc<PodNeed>> = None;
        for candidate in core.candidates(gang) {
            if last.as_ref() == Some(&candidate.need) {
                continue;
            }
            let usable = self.usable.entry(candidate.need.clone());
            nodes.add(usable.or_insert_with(|| Arc::new(usable_nodes(core, &candidate.need))));
            last = Some(candidate.need);
        }
        nodes
    }

    /// What keeps a gang back that is served strictly in order.
    pub(crate) fn behind(&mut self, core: &Core, key: GangKey) -> Option<Reason> {
        let gang = core.gangs.gangs.get(&key)?;
        if self.lines.get(&gang.spec.queue)?.1.is_empty() {
            return None;
        }
        let nodes = self.nodes_of(core, gang);
        let (_, blockers) = self.lines.get(&gang.spec.queue)?;
        let is_before = |blocker: &&Blocker| match gang.order.is_surplus {
            true => blocker.order.precedes(&gang.order),
            false => blocker.order < gang.order,
        };
        let before = blockers.iter().filter(is_before);
        let (first, node) =
            before.filter_map(|blocker| Some((blocker, blocker.nodes.first_shared(&nodes)?))).next()?;
        let candidates = core.candidates(gang);
        let selector = candidates.first().map(|candidate| &candidate.need.selector);
        let pool = selector.filter(|selector| !selector.is_empty()).map(|selector| {
            let labels = selector.iter().map(|(key, value)| format!("{key}={value}"));
            Arc::from(labels.collect::<Vec<_>>().join(","))
        });
        Some(Reason::Queue(Box::new(QueueHeld::Behind {
            queue: gang.spec.queue.clone(),
            first: first.name.clone(),
            pool,
            node: core.cluster.node(node).name.clone(),
        })))
    }

    /// A gang of a strict queue was tried: where it waits for room, or for its turn, others wait behind it.
    pub(crate) fn note(&mut self, core: &Core, key: GangKey) {
        let Some(gang) = core.gangs.gangs.get(&key) else { return };
        let waits = match gang.phase.kind() {
            PhaseKind::Queued => gang.reason.as_ref().is_some_and(Reason::is_for_quota),
            PhaseKind::Admitted => {
                let reason = gang.reason.as_ref();
                reason.is_some_and(|reason| reason.is_for_quota() || reason.is_for_room())
            }
            PhaseKind::Degraded => gang.reason.is_some(),
            _ => false,
        };
        if !waits {
            return;
        }
        let nodes = self.nodes_of(core, gang);
        let (all, blockers) = self.lines.entry(gang.spec.queue.clone()).or_default();
        // Who would wait behind this one only waits behind another one already.
        if !all.contains_all(&nodes) {
            all.add(&nodes);
            blockers.push(Blocker { name: gang.spec.name.clone(), order: gang.order, nodes });
        }
    }
}

fn usable_nodes(core: &Core, need: &PodNeed) -> NodeSet {
    let mut nodes = NodeSet::default();
    let unused = InUse::default();
    for (index, node) in core.cluster.nodes().filter(|(_, node)| node.is_there()) {
        let has_gpus = node.capacity.gpus >= u64::from(need.gpus);
        if has_gpus && predicates::obstacles(node, need, &unused).iter().all(Obstacle::is_closed) {
            nodes.insert(index);
        }
    }
    nodes
}
