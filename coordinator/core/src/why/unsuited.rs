//! Which constraints keep a pod from nodes, and which change of the pod would let its gang start.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::constraints::{NodeTerm, Toleration, TolerationOperator};
use phalanx_common::resources::NVIDIA_GPU;

use crate::amounts::ResourceKey;
use crate::cluster::{Cluster, Node};
use crate::place::{Candidate, GangShape, Overlay, PodNeed, place};
use crate::predicates::{self, Obstacle};
use crate::reason::{Unmet, Unsuited};
use crate::required::Required;

/// Sets of changes that are tried before none is suggested.
const SETS_TRIED: usize = 8;

/// Changes that are asked for together, at most.
const CHANGES_ASKED: usize = 8;

/// Longest text of affinity terms.
const TERMS_LENGTH: usize = 200;

/// GPUs are looked at by mask, and are no obstacle of a predicate.
const GPUS: Obstacle<'static> = Obstacle::Short(ResourceKey::Gpus);

/// What keeps the pod from nodes of this cluster; `None` where no constraint does.
pub(super) fn left_out(cluster: &Cluster, need: &PodNeed) -> Option<Unsuited> {
    let counts = |obstacle: &Obstacle<'_>| {
        obstacle.is_lasting() || matches!(obstacle, Obstacle::Port(_) | Obstacle::Pods)
    };
    let found = count(cluster, need, counts);
    (!found.unmet.is_empty()).then_some(found)
}

/// Everything that keeps the pod from nodes; for a pod that none of them would take.
pub(super) fn all_obstacles(cluster: &Cluster, need: &PodNeed) -> Unsuited {
    count(cluster, need, |_| true)
}

fn count(cluster: &Cluster, need: &PodNeed, counts: impl Fn(&Obstacle<'_>) -> bool) -> Unsuited {
    let mut found: BTreeMap<Unmet, u32> = BTreeMap::new();
    let terms = terms(need);
    let mut nodes = 0;
    for kind in cluster.kinds(need).iter().filter(|kind| kind.node.is_there()) {
        let (node, alike) = (kind.node, u32::try_from(kind.count()).unwrap_or(u32::MAX));
        nodes += alike;
        let obstacles = predicates::obstacles(node, need, &node.used);
        let obstacle = obstacles.iter().filter(|obstacle| counts(obstacle));
        let unmet = obstacle.filter_map(|obstacle| unmet(cluster, node, need, &terms, obstacle)).next();
        let gpus = counts(&GPUS) && node.capacity.gpus < need.amounts.gpus;
        if let Some(unmet) = unmet.or(gpus.then(|| Unmet::TooSmall(Arc::from(NVIDIA_GPU)))) {
            *found.entry(unmet).or_default() += alike;
        }
    }
    let mut unmet: Vec<(Unmet, u32)> = found.into_iter().collect();
    unmet.sort_by_key(|(_, count)| Reverse(*count));
    Unsuited { nodes, unmet, help: Vec::new() }
}

/// An obstacle as a value for people; `None` for those that have a name elsewhere.
fn unmet(
    cluster: &Cluster,
    node: &Node,
    need: &PodNeed,
    terms: &Arc<str>,
    obstacle: &Obstacle<'_>,
) -> Option<Unmet> {
    Some(match obstacle {
        Obstacle::NoAgent => Unmet::NoAgent,
        Obstacle::Unschedulable | Obstacle::NotReady | Obstacle::State(_) => return None,
        Obstacle::Taint(taint) => Unmet::Taint((*taint).clone()),
        Obstacle::Labels => {
            let missing = need.selector.iter().filter(|(key, value)| node.labels.get(*key) != Some(*value));
            Unmet::Selector(missing.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        Obstacle::Affinity => Unmet::Affinity(terms.clone()),
        Obstacle::Volume(volume) => {
            Unmet::Volume { claim: volume.claim.clone(), terms: text_of(volume.terms.iter()) }
        }
        Obstacle::Port(port) => Unmet::Port((*port).clone()),
        Obstacle::Pods => Unmet::Pods,
        Obstacle::Short(key) => Unmet::TooSmall(Arc::from(cluster.resources.name(*key))),
    })
}

/// The terms of a pod's required affinity as text.
fn terms(need: &PodNeed) -> Arc<str> {
    text_of(need.constraints.required.iter().flatten())
}

fn text_of<'t>(terms: impl Iterator<Item = &'t NodeTerm>) -> Arc<str> {
    let terms: Vec<String> = terms.map(ToString::to_string).filter(|term| !term.is_empty()).collect();
    let terms = terms.join(" or ");
    let cut = terms.char_indices().nth(TERMS_LENGTH).map(|(at, _)| format!("{} …", &terms[..at]));
    Arc::from(cut.unwrap_or(terms))
}

/// The fewest lasting constraints without which all of `required` would fit into this cluster.
pub(super) fn what_helps(
    cluster: &Cluster,
    shape: &GangShape,
    required: &Required,
    need: &PodNeed,
) -> Vec<Unmet> {
    let mut sets: BTreeMap<BTreeSet<Unmet>, u32> = BTreeMap::new();
    let terms = terms(need);
    for kind in cluster.kinds(need).iter().filter(|kind| kind.node.is_there()) {
        if let Some(set) = lasting(cluster, kind.node, need, &terms) {
            *sets.entry(set).or_default() += u32::try_from(kind.count()).unwrap_or(u32::MAX);
        }
    }
    let all: BTreeSet<Unmet> = sets.keys().flatten().cloned().collect();
    let mut sets: Vec<(BTreeSet<Unmet>, u32)> = sets.into_iter().collect();
    sets.sort_by_key(|(set, count)| (set.len(), Reverse(*count)));
    let tried = sets.into_iter().map(|(set, _)| set).take(SETS_TRIED).chain([all]);
    let tried = tried.filter(|set| (1..=CHANGES_ASKED).contains(&set.len()));
    let mut helps = tried.filter(|set| fits_without(cluster, shape, required, set));
    let Some(mut set) = helps.next() else { return Vec::new() };
    // What helps together may hold more than is needed.
    for unmet in set.clone() {
        set.remove(&unmet);
        if !fits_without(cluster, shape, required, &set) {
            set.insert(unmet);
        }
    }
    set.into_iter().collect()
}

/// The lasting constraints that keep a pod from a node; `None` where there is none, or no change of
/// constraints would help.
fn lasting(cluster: &Cluster, node: &Node, need: &PodNeed, terms: &Arc<str>) -> Option<BTreeSet<Unmet>> {
    let obstacles = predicates::obstacles(node, need, &node.used);
    let mut set = BTreeSet::new();
    for obstacle in obstacles.iter().filter(|obstacle| obstacle.is_lasting()) {
        set.extend(unmet(cluster, node, need, terms, obstacle));
    }
    let taints = predicates::untolerated(node, need).filter(|taint| !taint.is_of_state());
    set.extend(taints.map(|taint| Unmet::Taint(taint.clone())));
    (!set.is_empty() && !obstacles.contains(&Obstacle::NoAgent)).then_some(set)
}

fn fits_without(cluster: &Cluster, shape: &GangShape, required: &Required, set: &BTreeSet<Unmet>) -> bool {
    let pods = pods_without(required, set);
    place(cluster, &mut Overlay::default(), shape, &pods).is_ok()
}

/// The same pods, changed so that these constraints keep them away no more.
pub(super) fn required_without(required: &Required, unmet: &[Unmet]) -> Required {
    let pods = pods_without(required, &unmet.iter().cloned().collect());
    Required { pods, lowering: None, ..*required }
}

fn pods_without(required: &Required, set: &BTreeSet<Unmet>) -> Vec<Candidate> {
    let mut known: BTreeMap<&PodNeed, Arc<PodNeed>> = BTreeMap::new();
    let freed = |candidate: &Candidate, need: Arc<PodNeed>| Candidate { need, ..candidate.clone() };
    let mut pods = Vec::with_capacity(required.pods.len());
    for candidate in &required.pods {
        let need = known.entry(&candidate.need).or_insert_with(|| Arc::new(without(&candidate.need, set)));
        pods.push(freed(candidate, need.clone()));
    }
    pods
}

/// The need of a pod that was changed so that these constraints keep it away no more.
fn without(need: &PodNeed, set: &BTreeSet<Unmet>) -> PodNeed {
    let mut need = need.clone();
    let mut constraints = (*need.constraints).clone();
    for unmet in set {
        match unmet {
            Unmet::Taint(taint) => constraints.tolerations.push(Toleration {
                key: taint.key.clone(),
                operator: TolerationOperator::Equal,
                value: taint.value.clone(),
                effect: Some(taint.effect),
            }),
            Unmet::Selector(labels) => {
                need.selector
                    .retain(|key, value| !labels.iter().any(|(of, is)| (of, is) == (&*key, &*value)));
            }
            Unmet::Affinity(_) => constraints.required = None,
            Unmet::Volume { claim, .. } => need.volumes.retain(|volume| volume.claim != *claim),
            Unmet::Port(_) | Unmet::Pods | Unmet::NoAgent | Unmet::TooSmall(_) => {}
        }
    }
    need.constraints = Arc::new(constraints);
    need
}
