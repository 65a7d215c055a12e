//! Plans a gang: pure functions from the ledger and the pods to a placement, or to how far it got.
//! Nothing here changes state; a plan that does not work out is dropped.
//!
//! Order of choice: a set connected as well as the best one anywhere (NVLink, one host bridge,
//! farther), then what pod and node would rather have (`PreferNoSchedule`, preferred affinity), then
//! the node with the fewest GPUs left over, so that whole nodes stay whole, then the best-connected
//! set within it, then the best fragment left for others. A preference decides between nodes that
//! would do; it never keeps a pod waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::constraints::{PodConstraints, TaintEffect};
use phalanx_common::ids::PodUid;
use phalanx_common::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::amounts::Amounts;
use crate::claims::VolumeNeed;
use crate::class::{Class, ModelId, SetScore};
use crate::cluster::{ClassIndex, Cluster, InUse, NodeIndex};
use crate::predicates::{self, Dislike, NONE};

mod suited;

use suited::{Kinds, Suited};

/// What placing a pod needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PodNeed {
    pub(crate) gpus: u32,
    pub(crate) amounts: Amounts,
    pub(crate) selector: BTreeMap<Arc<str>, Arc<str>>,
    pub(crate) constraints: Arc<PodConstraints>,
    /// Volumes that are not reached from every node.
    #[serde(default)]
    pub(crate) volumes: Vec<VolumeNeed>,
    /// It asks for a device: only a node whose agent confirms may take it.
    pub(crate) needs_agent: bool,
    /// Devices beside GPUs that it asks for, all kinds together.
    #[serde(default)]
    pub(crate) devices: u64,
}

impl PodNeed {
    /// It tolerates every taint of this key with the effect `NoSchedule`.
    pub(crate) fn tolerates_no_schedule(&self, key: &str) -> bool {
        let mut tolerations = self.constraints.tolerations.iter();
        tolerations.any(|toleration| toleration.tolerates_key(key, TaintEffect::NoSchedule))
    }

    /// Nodes that are closed to others for their state may be open to it.
    fn visits_cordoned(&self) -> bool {
        self.constraints.tolerations.iter().any(|toleration| toleration.is_for_states())
    }
}

/// A pod to place.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) pod: PodUid,
    pub(crate) task: Arc<str>,
    pub(crate) need: Arc<PodNeed>,
}

/// Where a pod goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) pod: PodUid,
    pub(crate) node: NodeIndex,
    pub(crate) mask: u64,
}

/// How far planning came.
#[derive(Clone, Debug)]
pub(crate) struct Shortfall {
    /// Pods that would fit.
    pub(crate) fit: u32,
    /// What the first pod that does not fit needs.
    pub(crate) need: Arc<PodNeed>,
}

/// Nodes changed by the plan so far, or with other room than for everybody, and nodes not to be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    changed: BTreeMap<NodeIndex, (u64, InUse)>,
    excluded: BTreeSet<NodeIndex>,
    kinds: Kinds,
}

/// Which models a pod may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Models {
    Any,
    Only(ModelId),
}

/// Smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    tier: u8,
    /// What pod and node would rather do without.
    dislike: Dislike,
    left_over: u32,
    score: Option<SetScore>,
    node: NodeIndex,
}

/// Left over on a node with GPUs, for a pod that asks for none: such nodes come last.
const HAS_GPUS: u32 = 1 << 16;

struct Search<'a> {
    cluster: &'a Cluster,
    overlay: &'a Overlay,
    need: &'a PodNeed,
    models: Models,
    /// Where its constraints allow it, when that was found out.
    suited: Option<Arc<Suited>>,
    /// A node against which no more speaks than this is as good as any.
    least: Dislike,
    /// Nodes that were looked at and not taken.
    in_vain: usize,
    best: Option<(Rank, u64)>,
}

impl Search<'_> {
    fn offer(&mut self, rank: Rank, mask: u64) {
        if self.best.is_none_or(|(known, _)| rank < known) {
            self.best = Some((rank, mask));
        }
    }

    /// The best set of one node, whose free GPUs are `free`.
    fn best_set(&self, class: &Class, free: u64) -> Option<(u64, SetScore)> {
        let sets = models_of(class, self.models).filter_map(|mask| class.best(free & mask, self.need.gpus));
        sets.min_by_key(|choice| (choice.score, choice.mask)).map(|choice| (choice.mask, choice.score))
    }

    /// Nodes that the plan has used already.
    fn search_changed(&mut self) {
        for (index, (free, used)) in &self.overlay.changed {
            self.offer_node(*index, *free, used);
        }
    }

    /// Nodes that stand in no index, because they are closed to pods that do not tolerate it.
    fn search_cordoned(&mut self) {
        for (index, node) in self.cluster.nodes() {
            let is_cordoned = node.cordoned().is_some() && node.shut().is_none();
            if is_cordoned && !self.overlay.changed.contains_key(&index) {
                self.offer_node(index, node.free_mask, &node.used);
            }
        }
    }

    /// One node, of which this much is free and in use.
    fn offer_node(&mut self, index: NodeIndex, free: u64, used: &InUse) {
        let node = self.cluster.node(index);
        // A node may be closed since something is held of it.
        if free.count_ones() < self.need.gpus || node.shut().is_some() {
            return;
        }
        if self.overlay.excluded.contains(&index) || predicates::check(node, self.need, used).is_err() {
            return;
        }
        let dislike = predicates::dislike(node, self.need);
        if self.need.gpus == 0 {
            let has_gpus = node.agent.as_ref().is_some_and(|agent| !agent.holders.is_empty());
            let left_over = free.count_ones() + if has_gpus { HAS_GPUS } else { 0 };
            self.offer(Rank { tier: 0, dislike, left_over, score: None, node: index }, 0);
        } else if let Some(agent) = &node.agent
            && let Some((mask, score)) = self.best_set(self.cluster.class(agent.class), free)
        {
            let left_over = free.count_ones() - self.need.gpus;
            let rank = Rank { tier: score.tier, dislike, left_over, score: Some(score), node: index };
            self.offer(rank, mask);
        }
    }

    /// The best-liked of nodes that are alike otherwise; of several the first. One as good as any
    /// ends the search.
    fn first_suitable(&mut self, nodes: &BTreeSet<NodeIndex>) -> Option<(NodeIndex, Dislike)> {
        let mut best: Option<(NodeIndex, Dislike)> = None;
        for index in nodes {
            if self.suited.as_ref().is_some_and(|suited| !suited.holds(*index)) {
                continue;
            }
            if self.overlay.changed.contains_key(index) || self.overlay.excluded.contains(index) {
                continue;
            }
            let node = self.cluster.node(*index);
            if predicates::check(node, self.need, &node.used).is_err() {
                self.in_vain += 1;
                continue;
            }
            let dislike = predicates::dislike(node, self.need);
            if dislike <= self.least {
                return Some((*index, dislike));
            }
            self.in_vain += 1;
            if best.is_none_or(|(_, known)| dislike < known) {
                best = Some((*index, dislike));
            }
        }
        best
    }

    fn search_class(&mut self, class: &Class, index: &ClassIndex) {
        let whole = if class.gpus >= 64 { u64::MAX } else { (1_u64 << class.gpus) - 1 };
        let Some((_, best_possible)) = self.best_set(class, whole) else { return };
        for count in self.need.gpus..=class.gpus {
            let mut found_best = false;
            for (free, nodes) in &index.by_count[count as usize] {
                let Some((mask, score)) = self.best_set(class, *free) else { continue };
                let left_over = count - self.need.gpus;
                let (tier, score, node) = (score.tier, Some(score), NodeIndex(0));
                let bound = Rank { tier, dislike: self.least, left_over, score, node };
                if self.best.is_some_and(|(known, _)| known < bound) {
                    continue;
                }
                if let Some((node, dislike)) = self.first_suitable(nodes) {
                    self.offer(Rank { node, dislike, ..bound }, mask);
                    found_best |= tier == best_possible.tier && dislike <= self.least;
                }
            }
            if found_best {
                return;
            }
        }
    }

    /// Pods without GPUs: nodes without GPUs first, then those with the fewest free ones.
    fn search_without_gpus(&mut self, class: &Class, index: &ClassIndex) {
        for (count, group) in index.by_count.iter().enumerate() {
            for nodes in group.values() {
                let Some((node, dislike)) = self.first_suitable(nodes) else { continue };
                let left_over = u32::try_from(count).unwrap_or(u32::MAX);
                let left_over = left_over.saturating_add(if class.gpus > 0 { HAS_GPUS } else { 0 });
                self.offer(Rank { tier: 0, dislike, left_over, score: None, node }, 0);
                if dislike <= self.least {
                    return;
                }
            }
        }
    }
}

/// The best place for one pod.
fn choose(
    cluster: &Cluster,
    overlay: &mut Overlay,
    need: &Arc<PodNeed>,
    models: Models,
) -> Option<(NodeIndex, u64)> {
    let suited = overlay.kinds.suited(cluster, need);
    let least = suited.as_ref().map_or(NONE, |suited| suited.least);
    let mut search = Search { cluster, overlay, need, models, suited, least, in_vain: 0, best: None };
    search.search_changed();
    for (class, index) in cluster.classes() {
        if need.gpus == 0 {
            search.search_without_gpus(class, index);
        } else {
            search.search_class(class, index);
        }
    }
    if need.visits_cordoned() {
        search.search_cordoned();
    }
    let (best, in_vain) = (search.best, search.in_vain);
    overlay.kinds.note(need, in_vain);
    best.map(|(rank, mask)| (rank.node, mask))
}

impl Overlay {
    /// Nothing used yet, and nodes not to be used.
    pub(crate) fn excluding(excluded: BTreeSet<NodeIndex>) -> Self {
        Self { excluded, ..Self::default() }
    }

    /// Something goes from a node: this is free then.
    pub(crate) fn release(&mut self, cluster: &Cluster, index: NodeIndex, mask: u64, gone: &InUse) {
        let node = cluster.node(index);
        let (free, used) = self.changed.entry(index).or_insert_with(|| (node.free_mask, node.used.clone()));
        *free |= mask;
        used.exclude(gone);
    }

    /// This is free of a node for whom the plan is made, and this in use.
    pub(crate) fn set(&mut self, index: NodeIndex, free: u64, used: InUse) {
        self.changed.insert(index, (free, used));
    }

    /// Nodes that are other than for everybody.
    pub(crate) fn states(&self) -> impl Iterator<Item = (NodeIndex, u64, &InUse)> {
        self.changed.iter().map(|(node, (free, used))| (*node, *free, used))
    }

    fn take(&mut self, cluster: &Cluster, need: &PodNeed, index: NodeIndex, mask: u64) {
        let node = cluster.node(index);
        let (free, used) = self.changed.entry(index).or_insert_with(|| (node.free_mask, node.used.clone()));
        if !planted::is(Bug::SamePlaceTwice) {
            *free &= !mask;
        }
        used.add(&need.amounts, &need.constraints.host_ports);
    }
}

/// Places pods one after the other, each on an allowed model.
fn place_each(
    cluster: &Cluster,
    overlay: &mut Overlay,
    pods: &[Candidate],
    models: Models,
) -> Result<Vec<Placed>, Shortfall> {
    let mut placed = Vec::with_capacity(pods.len());
    for candidate in pods {
        let Some((node, mask)) = choose(cluster, overlay, &candidate.need, models) else {
            let fit = u32::try_from(placed.len()).unwrap_or(u32::MAX);
            return Err(Shortfall { fit, need: candidate.need.clone() });
        };
        overlay.take(cluster, &candidate.need, node, mask);
        placed.push(Placed { pod: candidate.pod.clone(), node, mask });
    }
    Ok(placed)
}

/// Masks of the GPUs of a class that a pod may get together.
pub(crate) fn models_of(class: &Class, models: Models) -> impl Iterator<Item = u64> + use<'_> {
    let masks = class.models.iter().map(|(model, mask)| (*model, *mask));
    let allowed = masks.filter(move |(model, _)| models == Models::Any || models == Models::Only(*model));
    allowed.map(|(_, mask)| mask)
}

/// Pods by task, as they are placed, and the models that each task may have.
pub(crate) fn tasks_with_models(
    cluster: &Cluster,
    shape: &GangShape,
    pods: &[Candidate],
) -> Vec<(Vec<Candidate>, Vec<Models>)> {
    let with_models = |(task, group): (&Arc<str>, Vec<Candidate>)| {
        let models = if shape.mixed_models {
            vec![Models::Any]
        } else {
            models_for(cluster, &group, shape.pinned.get(task).copied())
        };
        (group, models)
    };
    by_task(pods).into_iter().map(with_models).collect()
}

/// The models a task's pods may go to together, the scarcest first.
fn models_for(cluster: &Cluster, pods: &[Candidate], pinned: Option<ModelId>) -> Vec<Models> {
    match pinned {
        Some(model) => vec![Models::Only(model)],
        None if pods.len() == 1 || pods.iter().all(|pod| pod.need.gpus == 0) => vec![Models::Any],
        None => cluster.models_scarcest_first().into_iter().map(Models::Only).collect(),
    }
}

/// Places the pods of one task on GPUs of one model: the scarcest model that takes all of them.
fn place_task(
    cluster: &Cluster,
    overlay: &mut Overlay,
    pods: &[Candidate],
    pinned: Option<ModelId>,
) -> Result<Vec<Placed>, Shortfall> {
    let models = models_for(cluster, pods, pinned);
    let mut nearest: Option<Shortfall> = None;
    for model in models {
        let mut trial = overlay.clone();
        match place_each(cluster, &mut trial, pods, model) {
            Ok(placed) => {
                *overlay = trial;
                return Ok(placed);
            }
            Err(shortfall) if nearest.as_ref().is_none_or(|known| known.fit < shortfall.fit) => {
                nearest = Some(shortfall);
            }
            Err(_) => {}
        }
    }
    Err(nearest.unwrap_or_else(|| Shortfall { fit: 0, need: pods[0].need.clone() }))
}

/// How a gang wants its pods placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct GangShape {
    pub(crate) mixed_models: bool,
    /// Model that a task runs on already.
    pub(crate) pinned: BTreeMap<Arc<str>, ModelId>,
}

/// Places all of `pods`, or none. Larger pods go first; the given order decides among equal ones.
pub(crate) fn place(
    cluster: &Cluster,
    overlay: &mut Overlay,
    shape: &GangShape,
    pods: &[Candidate],
) -> Result<Vec<Placed>, Shortfall> {
    if pods.len() == 1 {
        return place_task(cluster, overlay, pods, shape.pinned.get(&pods[0].task).copied());
    }
    let mut placed = Vec::with_capacity(pods.len());
    for (task, group) in by_task(pods) {
        let result = if shape.mixed_models {
            place_each(cluster, overlay, &group, Models::Any)
        } else {
            place_task(cluster, overlay, &group, shape.pinned.get(task).copied())
        };
        match result {
            Ok(more) => placed.extend(more),
            Err(mut shortfall) => {
                shortfall.fit += u32::try_from(placed.len()).unwrap_or(u32::MAX);
                return Err(shortfall);
            }
        }
    }
    Ok(placed)
}

/// Pods by task, the tasks with the largest pods first, and the largest pods first in each.
fn by_task(pods: &[Candidate]) -> Vec<(&Arc<str>, Vec<Candidate>)> {
    let mut tasks: BTreeMap<&Arc<str>, Vec<Candidate>> = BTreeMap::new();
    for candidate in pods {
        tasks.entry(&candidate.task).or_default().push(candidate.clone());
    }
    let size = |candidate: &Candidate| {
        let need = &candidate.need;
        (need.gpus, need.devices, need.amounts.cpu_milli)
    };
    let mut groups: Vec<(&Arc<str>, Vec<Candidate>)> = tasks.into_iter().collect();
    for (_, group) in &mut groups {
        group.sort_by_key(|candidate| std::cmp::Reverse(size(candidate)));
    }
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.first().map(size)));
    groups
}

/// Those of `pods` that fit nowhere, if all others were placed together.
pub(crate) fn left_over(
    cluster: &Cluster,
    mut overlay: Overlay,
    shape: &GangShape,
    pods: &[Candidate],
) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (task, group) in by_task(pods) {
        let models = if shape.mixed_models {
            vec![Models::Any]
        } else {
            models_for(cluster, &group, shape.pinned.get(task).copied())
        };
        let trials = models.into_iter().map(|models| {
            let mut trial = overlay.clone();
            // Room only shrinks: one like it did not fit, nor does this one.
            let mut failed: Option<Arc<PodNeed>> = None;
            let has_no_place = |candidate: &&Candidate| {
                if failed.as_ref().is_some_and(|need| Arc::ptr_eq(need, &candidate.need)) {
                    return true;
                }
                let place = choose(cluster, &mut trial, &candidate.need, models);
                match place {
                    Some((node, mask)) => trial.take(cluster, &candidate.need, node, mask),
                    None => failed = Some(candidate.need.clone()),
                }
                place.is_none()
            };
            (group.iter().filter(has_no_place).cloned().collect::<Vec<_>>(), trial)
        });
        match trials.rev().min_by_key(|(left, _)| left.len()) {
            Some((left, best)) => {
                all.extend(left);
                overlay = best;
            }
            None => all.extend(group),
        }
    }
    all
}
