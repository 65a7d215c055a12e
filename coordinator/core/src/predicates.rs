//! What a node must offer beside free GPUs, each as a predicate that names its obstacle. A new
//! constraint of pods is one more predicate here and one more `Obstacle`.
//!
//! Taints, affinity and ports mean what they mean in Kubernetes. What a node would only rather not
//! take, or a pod would only rather have, is no obstacle: see `dislike`.

use phalanx_common::constraints::{HostPort, NOT_READY_TAINT, Taint, UNSCHEDULABLE_TAINT};

use crate::amounts::ResourceKey;
use crate::claims::VolumeNeed;
use crate::cluster::{InUse, Node};
use crate::place::PodNeed;
use crate::reason::Closed;

/// Why a node cannot take a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle<'a> {
    /// The pod asks for a device, and no agent vouches for this node's.
    NoAgent,
    /// The node is cordoned, and the pod does not tolerate that.
    Unschedulable,
    /// The node is not ready, and the pod does not tolerate that.
    NotReady,
    /// Kubernetes keeps pods away from the node for its state, and the pod does not tolerate that.
    State(&'a Taint),
    /// A taint that no toleration of the pod matches.
    Taint(&'a Taint),
    /// The node's labels do not meet the pod's selector.
    Labels,
    /// The node meets no term of the pod's required affinity.
    Affinity,
    /// A volume of the pod is not reached from the node.
    Volume(&'a VolumeNeed),
    /// A port that the pod takes is taken.
    Port(&'a HostPort),
    /// It has as many pods as it may have.
    Pods,
    /// Not enough of a resource beside what is used.
    Short(ResourceKey),
}

impl Obstacle<'_> {
    /// Stays whatever else ends or comes back: only a change of the pod or of the node's object helps.
    pub(crate) const fn is_lasting(&self) -> bool {
        matches!(self, Self::Taint(_) | Self::Labels | Self::Affinity | Self::Volume(_))
    }

    /// Something is in use, and goes away when other work ends, or the node is too small.
    pub(crate) const fn is_of_use(&self) -> bool {
        matches!(self, Self::Port(_) | Self::Pods | Self::Short(_))
    }

    /// The node is closed for its state, which ends by itself or by a word of a person.
    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self, Self::Unschedulable | Self::NotReady | Self::State(_))
    }
}

/// Why a node takes no such pod now, whatever is free there.
pub(crate) fn closed_to(node: &Node, need: &PodNeed) -> Option<Closed> {
    let cordoned = || node.cordoned().filter(|_| open(node, need, &node.used).is_err());
    node.shut().or_else(cordoned)
}

/// What pod and node would rather do without: taints, then the weight of terms. Smaller is better.
pub(crate) type Dislike = (u32, u32);

/// Nothing speaks against a node.
pub(crate) const NONE: Dislike = (0, 0);

/// More than speaks against any node.
pub(crate) const MOST: Dislike = (u32::MAX, u32::MAX);

type Check = for<'a> fn(&'a Node, &'a PodNeed, &InUse) -> Result<(), Obstacle<'a>>;

/// In the order in which they are named; those that are cheap and often fail stand first.
const CHECKS: [Check; 9] = [vouched_for, open, taints, labels, affinity, volumes, ports, pods, enough];

/// The first obstacle for a pod on a node of which `used` is in use; GPUs are looked at by mask.
///
/// # Errors
/// The obstacle.
pub(crate) fn check<'a>(node: &'a Node, need: &'a PodNeed, used: &InUse) -> Result<(), Obstacle<'a>> {
    vouched_for(node, need, used)?;
    open(node, need, used)?;
    taints(node, need, used)?;
    labels(node, need, used)?;
    affinity(node, need, used)?;
    volumes(node, need, used)?;
    ports(node, need, used)?;
    pods(node, need, used)?;
    enough(node, need, used)
}

/// True where no taint, label, affinity or volume keeps the pod away, whoever ends.
pub(crate) fn suits(node: &Node, need: &PodNeed) -> bool {
    let unused = InUse::default();
    [taints, labels, affinity, volumes].iter().all(|check: &Check| check(node, need, &unused).is_ok())
}

/// All obstacles, one of each kind.
pub(crate) fn obstacles<'a>(node: &'a Node, need: &'a PodNeed, used: &InUse) -> Vec<Obstacle<'a>> {
    CHECKS.iter().filter_map(|check| check(node, need, used).err()).collect()
}

fn vouched_for<'a>(node: &'a Node, need: &'a PodNeed, _: &InUse) -> Result<(), Obstacle<'a>> {
    if need.needs_agent && node.agent.is_none() { Err(Obstacle::NoAgent) } else { Ok(()) }
}

fn open<'a>(node: &'a Node, need: &'a PodNeed, _: &InUse) -> Result<(), Obstacle<'a>> {
    let Some(spec) = &node.spec else { return Ok(()) };
    if spec.unschedulable && !need.tolerates_no_schedule(UNSCHEDULABLE_TAINT) {
        return Err(Obstacle::Unschedulable);
    }
    if !spec.ready && !need.tolerates_no_schedule(NOT_READY_TAINT) {
        return Err(Obstacle::NotReady);
    }
    let taint = untolerated(node, need).find(|taint| taint.is_of_state());
    taint.map_or(Ok(()), |taint| Err(Obstacle::State(taint)))
}

fn taints<'a>(node: &'a Node, need: &'a PodNeed, _: &InUse) -> Result<(), Obstacle<'a>> {
    let taint = untolerated(node, need).find(|taint| !taint.is_of_state());
    taint.map_or(Ok(()), |taint| Err(Obstacle::Taint(taint)))
}

/// Taints that keep the pod away.
pub(crate) fn untolerated<'a>(node: &'a Node, need: &'a PodNeed) -> impl Iterator<Item = &'a Taint> {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.filter(|taint| taint.keeps_away() && !need.constraints.tolerates(taint))
}

fn labels<'a>(node: &'a Node, need: &'a PodNeed, _: &InUse) -> Result<(), Obstacle<'a>> {
    let meets = need.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    if meets { Ok(()) } else { Err(Obstacle::Labels) }
}

fn affinity<'a>(node: &'a Node, need: &'a PodNeed, _: &InUse) -> Result<(), Obstacle<'a>> {
    let meets = need.constraints.affinity_is_met_by(node.name.as_str(), &node.labels);
    if meets { Ok(()) } else { Err(Obstacle::Affinity) }
}

fn volumes<'a>(node: &'a Node, need: &'a PodNeed, _: &InUse) -> Result<(), Obstacle<'a>> {
    let is_reached = |volume: &&VolumeNeed| {
        volume.terms.iter().any(|term| term.is_met_by(node.name.as_str(), &node.labels))
    };
    need.volumes
        .iter()
        .find(|volume| !is_reached(volume))
        .map_or(Ok(()), |volume| Err(Obstacle::Volume(volume)))
}

fn ports<'a>(_: &'a Node, need: &'a PodNeed, used: &InUse) -> Result<(), Obstacle<'a>> {
    let is_taken = |port: &&HostPort| used.ports.iter().any(|taken| taken.conflicts_with(port));
    need.constraints.host_ports.iter().find(is_taken).map_or(Ok(()), |port| Err(Obstacle::Port(port)))
}

fn pods<'a>(node: &'a Node, _: &'a PodNeed, used: &InUse) -> Result<(), Obstacle<'a>> {
    match node.most_pods {
        Some(most) if used.pods >= most => Err(Obstacle::Pods),
        _ => Ok(()),
    }
}

fn enough<'a>(node: &'a Node, need: &'a PodNeed, used: &InUse) -> Result<(), Obstacle<'a>> {
    let short = need.amounts.short_beside_gpus(&used.amounts, &node.capacity);
    short.map_or(Ok(()), |key| Err(Obstacle::Short(key)))
}

/// How much a node and a pod would rather do without each other: taints with `PreferNoSchedule` that
/// nothing tolerates, then the weight of preferred terms that are not met. Smaller is better.
pub(crate) fn dislike(node: &Node, need: &PodNeed) -> Dislike {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    let soft = taints.filter(|taint| !taint.keeps_away() && !need.constraints.tolerates(taint));
    let missed = need
        .constraints
        .preferred
        .iter()
        .filter(|preferred| !preferred.term.is_met_by(node.name.as_str(), &node.labels));
    let missed = missed.map(|preferred| u32::from(preferred.weight)).sum();
    (u32::try_from(soft.count()).unwrap_or(u32::MAX), missed)
}
