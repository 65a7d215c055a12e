//! What a node must offer beside free GPUs, each as a predicate that names its obstacle. A new
//! constraint of pods is one more predicate here and one more `Obstacle`.

use crate::amounts::{Amounts, ResourceKey};
use crate::cluster::Node;
use crate::place::PodNeed;

/// Why a node cannot take a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The pod asks for a device, and no agent vouches for this node's.
    NoAgent,
    /// The node's labels do not meet the pod's selector.
    Labels,
    /// Not enough of a resource beside what is used.
    Short(ResourceKey),
}

/// The first obstacle for a pod on a node of which `used` is in use; GPUs are looked at by mask.
///
/// # Errors
/// The obstacle.
pub(crate) fn check(node: &Node, need: &PodNeed, used: &Amounts) -> Result<(), Obstacle> {
    vouched_for(node, need)?;
    labels(node, need)?;
    enough(node, need, used)
}

fn vouched_for(node: &Node, need: &PodNeed) -> Result<(), Obstacle> {
    if need.needs_agent && node.agent.is_none() { Err(Obstacle::NoAgent) } else { Ok(()) }
}

fn labels(node: &Node, need: &PodNeed) -> Result<(), Obstacle> {
    let meets = need.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    if meets { Ok(()) } else { Err(Obstacle::Labels) }
}

fn enough(node: &Node, need: &PodNeed, used: &Amounts) -> Result<(), Obstacle> {
    need.amounts.short_beside_gpus(used, &node.capacity).map_or(Ok(()), |key| Err(Obstacle::Short(key)))
}
