//! Invariants that hold after every step; checked after each event in tests and simulation.

use std::collections::BTreeMap;

use phalanx_common::ids::QueueName;

use crate::amounts::Amounts;
use crate::cluster::InUse;
use crate::core::Core;
use crate::phase::{Member, Phase, PhaseKind};
use crate::queue::Queue;

/// Checks the ledger and the gangs.
///
/// # Errors
/// The first invariant that does not hold, with the values.
pub fn check(core: &Core) -> Result<(), String> {
    check_nodes(core)?;
    check_queues(core)?;
    check_rooms(core)?;
    core.cluster.check_survey()?;
    core.check_givers()?;
    core.check_claims()?;
    core.check_groups()?;
    check_gangs(core)
}

/// Each GPU has at most one holder; a node's use is the sum of its leases; free is never negative.
fn check_nodes(core: &Core) -> Result<(), String> {
    for (index, node) in core.cluster.nodes() {
        let mut used = InUse::default();
        for id in core.leases.by_node.get(&index).into_iter().flatten() {
            let Some(lease) = core.leases.leases.get(id) else {
                return Err(format!("node {}: lease {id} is listed and not known", node.name));
            };
            used.add(&lease.taken.amounts, &lease.taken.ports);
        }
        for other in core.others.on(index) {
            used.add(&other.amounts, &other.ports);
        }
        used.include(&node.held);
        if !used.is_same(&node.used) {
            return Err(format!("node {}: used {:?}, its leases hold {used:?}", node.name, node.used));
        }
        let Some(agent) = &node.agent else { continue };
        let gpus = || agent.inventory.gpus.iter().zip(&agent.holders);
        for id in core.leases.by_node.get(&index).into_iter().flatten() {
            let Some(lease) = core.leases.leases.get(id) else { continue };
            let free = gpus().find(|(gpu, holder)| holder.is_none() && lease.taken.gpus.contains(&gpu.id));
            if let Some((gpu, _)) = free {
                return Err(format!("node {}: {} is free and lease {id} holds it", node.name, gpu.id));
            }
        }
        for (gpu, holder) in gpus() {
            let held_by_known = holder.is_none_or(|id| {
                core.leases.leases.get(&id).is_some_and(|lease| lease.taken.gpus.contains(&gpu.id))
            });
            if !held_by_known {
                return Err(format!(
                    "node {}: {} is held by {holder:?}, which does not name it",
                    node.name, gpu.id
                ));
            }
        }
    }
    Ok(())
}

/// Whoever goes is a victim of one plan; plans and holds are of gangs that are known, and nothing is held of a node but for
/// them.
fn check_rooms(core: &Core) -> Result<(), String> {
    for (key, room) in &core.rooms {
        if !core.gangs.gangs.contains_key(key) {
            return Err(format!("a plan evicts others for gang {key:?}, which is not known"));
        }
        if let Some(uid) = room.victims.keys().find(|uid| core.victims.get(*uid) != Some(key)) {
            return Err(format!(
                "pod {uid} goes for gang {key:?} and counts for {:?}",
                core.victims.get(uid)
            ));
        }
    }
    for (uid, key) in &core.victims {
        if !core.rooms.get(key).is_some_and(|room| room.victims.contains_key(uid)) {
            return Err(format!("pod {uid} counts as going for gang {key:?}, whose plan does not name it"));
        }
    }
    if let Some(key) = core.holds.keys().find(|key| !core.gangs.gangs.contains_key(key)) {
        return Err(format!("something is held for gang {key:?}, which is not known"));
    }
    core.cluster.check_holds(|key| core.rooms.contains_key(&key) || core.holds.contains_key(&key))
}

/// What a queue has allocated is the sum of its gangs' charged leases and of what its children have; what it charges, of
/// its admitted gangs and of what those charge.
fn check_queues(core: &Core) -> Result<(), String> {
    core.queues.queues.values().try_for_each(Queue::check_alike)?;
    let mut allocated: BTreeMap<&QueueName, Amounts> = BTreeMap::new();
    let mut charged: BTreeMap<&QueueName, Amounts> = BTreeMap::new();
    for lease in core.leases.leases.values().filter(|lease| lease.charged) {
        let Some(gang) = lease.gang.and_then(|key| core.gangs.gangs.get(&key)) else { continue };
        for (name, _) in core.queues.up_from(&gang.spec.queue) {
            allocated.entry(name).or_default().add(&lease.taken.amounts.of_pod());
        }
    }
    for gang in core.gangs.gangs.values() {
        for (name, _) in core.queues.up_from(&gang.spec.queue) {
            charged.entry(name).or_default().add(&gang.charge);
        }
    }
    for (name, queue) in &core.queues.queues {
        let none = Amounts::default();
        let held = allocated.get(name).unwrap_or(&none);
        if !held.is_same(&queue.allocated) {
            return Err(format!("queue {name}: allocated {:?}, its pods hold {held:?}", queue.allocated));
        }
        let asked = charged.get(name).unwrap_or(&none);
        if !asked.is_same(&queue.charged) {
            return Err(format!("queue {name}: charged {:?}, its gangs {asked:?}", queue.charged));
        }
        let lacked = queue.children.iter().filter_map(|child| core.queues.get(child));
        let mut below = Amounts::default();
        lacked.for_each(|child| below.add(&child.unmet));
        if !below.is_same(&queue.below_unmet) {
            return Err(format!(
                "queue {name}: its children lack {below:?}, it counts {:?}",
                queue.below_unmet
            ));
        }
    }
    Ok(())
}

/// Nothing of a gang is bound before its commit point; below its minimum only where that has a name.
fn check_gangs(core: &Core) -> Result<(), String> {
    for gang in core.gangs.gangs.values() {
        let tally = core.gangs.tally(&gang.spec.name);
        let kind = gang.phase.kind();
        let volatile = matches!(kind, PhaseKind::Reserving | PhaseKind::Committing | PhaseKind::Arming);
        // Pods that somebody else bound are none of the round's any more, unless to just the place that the round has
        // for them, without a lease.
        let is_bound = |(uid, member): (_, &Member)| {
            let is_local = core.leases.leases.get(&member.lease).is_some_and(|lease| lease.local);
            !is_local && core.gangs.pods.get(uid).is_some_and(|pod| pod.is_live())
        };
        let has_bound = gang.phase.round().is_some_and(|round| round.members.iter().any(is_bound));
        if volatile && matches!(gang.phase, Phase::Placing(_)) && has_bound {
            return Err(format!(
                "gang {}: {} pods bound in phase {}",
                gang.spec.name,
                tally.live,
                kind.as_str()
            ));
        }
        if let Some(round) = gang.phase.round() {
            for (uid, member) in &round.members {
                let lease = core.leases.leases.get(&member.lease);
                if lease.is_none_or(|lease| lease.pod() != uid) {
                    return Err(format!(
                        "gang {}: lease {} of pod {uid} is gone",
                        gang.spec.name, member.lease
                    ));
                }
            }
        }
        let waits = core.is_waiting(gang);
        if matches!(kind, PhaseKind::Queued | PhaseKind::Admitted)
            && !waits
            && !gang.deleted
            && core.synced
            && !core.foreign.contains_key(&gang.key())
            && !core.touched.contains(&gang.key())
        {
            return Err(format!("gang {} is {} and nothing will look at it", gang.spec.name, kind.as_str()));
        }
    }
    Ok(())
}
