//! When all work is done, nothing is held by anybody any more.

use phalanx_common::resources::Resources;

use super::End;

/// Checks that nothing is left.
///
/// # Errors
/// What is left.
pub fn check(end: &End<'_>) -> Result<(), String> {
    let facts = end.facts;
    if let Some((pod, run)) = facts.running.first_key_value() {
        return Err(format!("pod {pod} still runs on {}", run.node));
    }
    for (node, leases) in &facts.leases {
        if let Some(lease) = leases.first() {
            return Err(format!("node {node} still has lease {} ({:?})", lease.lease, lease.state));
        }
    }
    if let Some((node, leases)) = facts.on_disk.iter().find(|(_, leases)| !leases.is_empty()) {
        return Err(format!("the disk of node {node} still has leases {leases:?}"));
    }
    if let Some(gang) = facts.plans.keys().chain(facts.rooms.stored.keys()).next() {
        return Err(format!("the plan of gang {gang} still stands in the API"));
    }
    for node in &end.view.nodes {
        if let Some(gpu) = node.gpus.iter().find(|gpu| gpu.holder.is_some()) {
            return Err(format!("the coordinator still counts {} of node {} as held", gpu.id, node.name));
        }
    }
    let is_zero = |resources: &Resources| resources.iter().all(|(_, amount)| amount == 0);
    for queue in &end.view.queues {
        if !is_zero(&queue.allocated) {
            return Err(format!("queue {} still has {:?} allocated", queue.name, queue.allocated));
        }
    }
    for (queue, status) in &facts.queue_status {
        let allocated = status.get("allocated").and_then(|allocated| allocated.as_object());
        let held = allocated.into_iter().flatten().find(|(_, amount)| amount.as_str() != Some("0"));
        if let Some((resource, amount)) = held {
            return Err(format!("the status of queue {queue} still says {resource}: {amount}"));
        }
    }
    if end.late_writes > 0 {
        return Err(format!("nothing happens any more, and {} writes went to the API", end.late_writes));
    }
    Ok(())
}
