//! No object is lost: what a user made and nobody deleted is there, and the coordinator tells of it.

use std::collections::BTreeSet;

use phalanx_coordinator::api::Kind;

use super::End;
use crate::facts::Facts;

/// Checks that nothing went that nobody deleted.
///
/// # Errors
/// The object.
pub fn check(facts: &Facts) -> Result<(), String> {
    facts.lost.first().map_or(Ok(()), |key| Err(format!("{key} is gone, and nobody deleted it")))
}

/// Checks that the coordinator tells of everything that is there.
///
/// # Errors
/// The object of which it does not tell.
pub fn check_told(end: &End<'_>) -> Result<(), String> {
    let view = end.view;
    let queues: BTreeSet<&str> = view.queues.iter().map(|queue| queue.name.as_str()).collect();
    let gangs: BTreeSet<&str> = view.gangs.iter().map(|gang| &*gang.name.name).collect();
    let nodes: BTreeSet<&str> = view.nodes.iter().map(|node| node.name.as_str()).collect();
    let with_gang = view.gangs.iter().flat_map(|gang| &gang.pods);
    let without = view.pods_without_gang.iter().map(|pod| &pod.pod);
    let pods: BTreeSet<&str> = with_gang.chain(without).map(|pod| &*pod.name).collect();
    for key in end.facts.created.keys() {
        let name = key.name.as_str();
        let is_told = match key.kind {
            Kind::Queue => queues.contains(name),
            Kind::PodGroup => gangs.contains(name),
            Kind::Node => nodes.contains(name),
            Kind::Pod => pods.contains(name),
            Kind::Job
            | Kind::GangPlan
            | Kind::QueuePolicy
            | Kind::PriorityClass
            | Kind::PodDisruptionBudget
            | Kind::StorageClass
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim => true,
        };
        if !is_told {
            return Err(format!("{key} is there, and the coordinator does not tell of it"));
        }
    }
    Ok(())
}
