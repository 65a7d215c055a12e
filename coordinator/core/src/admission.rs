//! May a gang be admitted: its queue, its priority class, its quota, and whether its pods exist.

use std::sync::Arc;

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};

use crate::amounts::{Amounts, ResourceKey};
use crate::core::{Core, Timer};
use crate::gang::{Gang, GangKey};
use crate::phase::Phase;
use crate::queue::Queue;
use crate::queues::ROOT;
use crate::reason::{QueueHeld, Reason};
use crate::required::Required;
use crate::tree::Gone;
use crate::turn::OrderKey;
use crate::whole::task_minima;

impl Core {
    /// Queue and priority class are there, the queue is a leaf in order, open, and takes gangs of this namespace.
    pub(crate) fn check_admissible(&self, gang: &Gang) -> Result<(), Reason> {
        self.check_queue(gang)?;
        self.check_run_time(gang)?;
        match (&gang.spec.priority_class, self.priority_of(&gang.spec)) {
            (Some(class), None) => Err(Reason::NoSuchPriorityClass { class: class.clone() }),
            _ => Ok(()),
        }
    }

    fn check_queue(&self, gang: &Gang) -> Result<(), Reason> {
        let queue = gang.spec.queue.clone();
        let held = |held| Err(Reason::Queue(Box::new(held)));
        if queue.as_str() == ROOT {
            return held(QueueHeld::NotLeaf { queue, child: None });
        }
        if self.queues.get(&queue).is_none_or(|queue| queue.spec.is_none()) {
            return Err(Reason::NoSuchQueue { queue });
        }
        if let Some(problem) = self.queues.set_aside(&queue) {
            return held(QueueHeld::SetAside { queue, problem: problem.clone() });
        }
        if let Some(leaf) = self.queues.first_leaf_below(&queue) {
            return held(QueueHeld::NotLeaf { queue, child: Some(leaf) });
        }
        for (above, _) in self.queues.up_from(&queue) {
            let allowed = self.policies.get(above).and_then(|policy| policy.namespaces.as_ref());
            if let Some(allowed) = allowed.filter(|allowed| {
                !allowed.contains(&gang.spec.name.namespace) && !planted::is(Bug::AnyNamespace)
            }) {
                let (queue, namespace) = (above.clone(), gang.spec.name.namespace.clone());
                return held(QueueHeld::NotAllowed { queue, namespace, allowed: allowed.clone() });
            }
        }
        let is_closed = |queue: &Queue| queue.spec.as_ref().is_some_and(|spec| !spec.open);
        let closed = self.queues.up_from(&queue).find(|(_, queue)| is_closed(queue));
        match closed.map(|(name, _)| name.clone()).filter(|_| matches!(gang.phase, Phase::Queued)) {
            Some(closed) if closed == queue => Err(Reason::QueueClosed { queue }),
            Some(ancestor) => held(QueueHeld::AncestorClosed { queue, ancestor }),
            None => Ok(()),
        }
    }

    /// What keeps a gang's minimum from what is guaranteed to others; true where it could never have it.
    pub(crate) fn check_guarantee(&self, key: GangKey, required: &Required) -> Option<(Reason, bool)> {
        let gang = self.gangs.gangs.get(&key)?;
        let mut asked = Amounts::default();
        required.pods.iter().for_each(|candidate| asked.add(&candidate.need.amounts.of_pod()));
        self.kept_from(gang, &Amounts::default(), &asked)
    }

    /// The same for more pods, `placed` being planned already.
    pub(crate) fn kept_from(&self, gang: &Gang, placed: &Amounts, asked: &Amounts) -> Option<(Reason, bool)> {
        if !self.queues.has_guarantees {
            return None;
        }
        let queue = &gang.spec.queue;
        let kept = self.queues.guaranteed_to_others(queue);
        let guaranteed = self.queues.all_guaranteed_to_others(queue);
        let capacity = &self.queues.capacity;
        let mut used = self.queues.get(&QueueName::from(ROOT))?.allocated.clone();
        used.add(&self.promised_to_others(gang.key()));
        // More than all nodes have is no matter of what others are guaranteed.
        let is_asked = |key: ResourceKey| asked.get(key) > 0 && asked.get(key) <= capacity.get(key);
        let is_never = |key: &ResourceKey| {
            let sum = guaranteed.get(*key).saturating_add(asked.get(*key));
            guaranteed.get(*key) > 0 && is_asked(*key) && sum > capacity.get(*key)
        };
        let is_short = |key: &ResourceKey| {
            let parts = [used.get(*key), placed.get(*key), asked.get(*key)];
            let sum = parts.into_iter().fold(kept.get(*key), u64::saturating_add);
            kept.get(*key) > 0 && is_asked(*key) && sum > capacity.get(*key)
        };
        let never = guaranteed.keys().find(is_never);
        let key = never.or_else(|| kept.keys().find(is_short))?;
        let never = never.is_some();
        let kept = if never { guaranteed } else { kept };
        let owners = self.queues.owners_of_guarantees(queue, key, never);
        let used = used.get(key).saturating_add(placed.get(key));
        let sum = [kept.get(key), asked.get(key), if never { 0 } else { used }];
        let over = sum.into_iter().fold(0, u64::saturating_add).saturating_sub(capacity.get(key));
        let lower = self.queues.less_guaranteed(&owners, key, never, over);
        let held = QueueHeld::Guaranteed {
            queue: queue.clone(),
            resource: Arc::from(self.cluster.resources.name(key)),
            capacity: capacity.get(key),
            used,
            kept: kept.get(key),
            owners,
            asked: asked.get(key),
            never,
            lower,
        };
        Some((Reason::Queue(Box::new(held)), never))
    }

    /// Whether the ceilings of the queue and of those above it have room for a gang's minimum. Where gangs behind it,
    /// which were admitted and have no place yet, would have to make room, these are returned.
    pub(crate) fn check_quota(
        &self,
        key: GangKey,
        order: OrderKey,
        required: &Required,
        charge: &Amounts,
    ) -> Result<Vec<GangKey>, Reason> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(Vec::new()) };
        let name = gang.spec.queue.clone();
        let Some(queue) = self.queues.get(&name) else { return Ok(Vec::new()) };
        if let Some(over) = self.queues.above_ceiling(&name, charge) {
            let lower_to = self.fewer_below_ceiling(&name, &over, required).map(Box::new);
            return Err(over.never(&name, lower_to));
        }
        // What goes for it counts as gone already.
        let mut gone = self.going_for(key);
        gone.entry(name.clone()).or_default().add(&gang.charge);
        if matches!(gang.phase, Phase::Admitted) && self.queues.over(&name, &gone, charge).is_some() {
            self.count_going_for_others(key, &mut gone);
        }
        let mut behind = Vec::new();
        let gives_way = self.is_overdue(gang) && self.check_pods(gang, required).is_err();
        for (other, other_key) in queue.admitted.iter().rev() {
            if gives_way || *other <= order || self.queues.over(&name, &gone, charge).is_none() {
                break;
            }
            if self.standing(*other_key).is_some_and(|standing| standing <= order) {
                // Its group has its place in the order by its first gang.
                continue;
            }
            // For whom others were evicted keeps its quota: they would have gone in vain.
            let is_other = *other_key != key
                && !self.starts_with(key, *other_key)
                && !self.rooms.contains_key(other_key);
            if let Some(other) = self.gangs.gangs.get(other_key).filter(|_| is_other) {
                gone.entry(name.clone()).or_default().add(&other.charge);
                behind.push(*other_key);
            }
        }
        // Gangs ahead of it whose pods do not come give way to one whose pods are there, and to nobody else.
        let has_pods = self.check_pods(gang, required).is_ok();
        for (other, other_key) in &queue.admitted {
            if *other >= order || !has_pods || self.queues.over(&name, &gone, charge).is_none() {
                break;
            }
            let gives_way = |other: &Gang| self.is_overdue(other) && !self.starts_with(key, *other_key);
            if let Some(other) = self.gangs.gangs.get(other_key).filter(|other| gives_way(other)) {
                gone.entry(name.clone()).or_default().add(&other.charge);
                behind.push(*other_key);
            }
        }
        if !gives_way {
            self.make_way_elsewhere(&name, charge, &mut gone, &mut behind);
        }
        match self.queues.over(&name, &gone, charge) {
            Some(over) => Err(over.reason(&name)),
            None => Ok(behind),
        }
    }

    /// Where the ceiling of a queue above is reached, gangs of other queues below it that were admitted, have no place yet
    /// and whose turn comes after ours make way, the last ones first.
    fn make_way_elsewhere(
        &self,
        name: &QueueName,
        charge: &Amounts,
        gone: &mut Gone,
        behind: &mut Vec<GangKey>,
    ) {
        while let Some(over) = self.queues.over(name, gone, charge) {
            if over.queue == *name {
                return;
            }
            let is_other = |other: &&QueueName| *other != name && self.queues.is_below(other, &over.queue);
            // For whom others are on their way out already goes on.
            let holds_charge = |key: &&GangKey| !behind.contains(*key) && !self.rooms.contains_key(*key);
            let others = self.queues.queues.iter().filter(|(other, queue)| {
                queue.admitted.values().any(|key| holds_charge(&key))
                    && is_other(other)
                    && self.queues.goes_before(name, other)
            });
            let last = others.max_by(|(left, _), (right, _)| self.queues.compare(left, right));
            let Some((other, queue)) = last else { return };
            let Some(key) = queue.admitted.values().rev().find(holds_charge).copied() else { return };
            let Some(gang) = self.gangs.gangs.get(&key) else { return };
            gone.entry(other.clone()).or_default().add(&gang.charge);
            behind.push(key);
        }
    }

    /// True for a gang that was admitted long ago and whose pods are still not all there.
    pub(crate) fn is_overdue(&self, gang: &Gang) -> bool {
        let since = gang.pods_missing_since;
        since.is_some_and(|since| self.now >= since + self.settings.pods_timeout_ms)
    }

    /// Its pods are not all there. The time counts from its first admission until they are: a gang that gave its
    /// quota away pushes nobody back for pods that may never come.
    pub(crate) fn note_pods_missing(&mut self, key: GangKey) {
        let (now, timeout) = (self.now, self.settings.pods_timeout_ms);
        if let Some(gang) = self.gangs.gangs.get_mut(&key)
            && gang.pods_missing_since.is_none()
        {
            gang.pods_missing_since = Some(now);
            self.timers.insert((now + timeout, Timer::PodsMissing(key)));
        }
    }

    /// Takes the admission of gangs back that were admitted and have no place yet.
    pub(crate) fn push_back(&mut self, behind: &[GangKey]) {
        for key in behind {
            self.set_phase(*key, Phase::Queued);
            self.touched.insert(*key);
        }
    }

    /// Why a gang whose pods are not made yet can never fit: all nodes together, empty, have less than its minimum asks.
    /// A node of which nothing was heard yet may have it.
    pub(crate) fn larger_than_all_nodes(&mut self, charge: &Amounts, is_group: bool) -> Option<Reason> {
        let generation = self.cluster.capacity_generation;
        if self.capacity.as_ref().is_none_or(|(known, _)| *known != generation) {
            self.capacity = Some((generation, self.cluster.whole_capacity()));
        }
        let total = self.capacity.as_ref().and_then(|(_, total)| total.as_ref())?;
        // How many pods a node takes, not every node says.
        let mut keys = charge.keys().filter(|key| *key != ResourceKey::Pods);
        let short = keys.find(|key| charge.get(*key) > total.get(*key))?;
        Some(Reason::LargerThanAllNodes {
            resource: Arc::from(self.cluster.resources.name(short)),
            total: total.get(short),
            asked: charge.get(short),
            is_group,
        })
    }

    /// Its `minResources` are more than all nodes have, though its pods may be less. Only what its pods ask for counts:
    /// Volcano's controllers name there what no node has, such as `requests.cpu`.
    pub(crate) fn needs_more_than_all_nodes(&mut self, key: GangKey, required: &Required) -> Option<Reason> {
        let gang = self.gangs.gangs.get(&key).filter(|gang| !gang.min_resources(self.now).is_zero())?;
        let mut asked = Amounts::default();
        required.pods.iter().for_each(|pod| asked.add(&pod.need.amounts));
        let wanted = gang.min_resources(self.now).named_by(&asked);
        self.larger_than_all_nodes(&wanted, false)
    }

    /// What an admitted gang is charged before it has a place: its minimum.
    pub(crate) fn admission_charge(&self, gang: &Gang, required: &Required) -> Amounts {
        let mut charge = Amounts::default();
        for candidate in &required.pods {
            charge.add(&candidate.need.amounts.of_pod());
        }
        charge.raise_to(gang.min_resources(self.now));
        charge
    }

    pub(crate) fn check_pods(&self, gang: &Gang, required: &Required) -> Result<(), Reason> {
        let exist = u32::try_from(required.pods.len()).unwrap_or(u32::MAX);
        let short = self.short_task(gang, required);
        let parts = self.too_few_parts(gang, required);
        if exist >= required.minimum && exist > 0 && short.is_none() && parts.is_none() {
            return Ok(());
        }
        if let (_, Some(reason)) = self.held_by_themselves(gang) {
            return Err(reason);
        }
        if let Some(parts) = parts {
            return Err(Reason::Together(Box::new(parts)));
        }
        Err(match short {
            Some((task, exist, minimum)) => {
                Reason::TooFewPods { exist, minimum, task: Some(task), lower_to: None }
            }
            None => Reason::TooFewPods { exist, minimum: required.minimum, task: None, lower_to: None },
        })
    }

    /// Pods of a gang that something of their own keeps from being placed, and what it is of the first.
    pub(crate) fn held_by_themselves(&self, gang: &Gang) -> (u32, Option<Reason>) {
        let pods = self.gangs.pods_of(&gang.spec.name).map(|(_, pod)| pod);
        let mut held = pods.filter(|pod| pod.is_unplaced() && pod.is_blocked());
        let by_claims = self.held_by_claims(gang);
        let Some(pod) = held.next() else {
            return by_claims.map_or((0, None), |(count, held)| (count, Some(Reason::Claim(Box::new(held)))));
        };
        let name = pod.spec.name.name.clone();
        let reason = match pod.spec.blockers.first() {
            Some(blocker) => {
                let (field, message) = (blocker.field.clone(), blocker.message.clone());
                Reason::PodBlocked { pod: name, field, message }
            }
            None => Reason::PodGated { pod: name, gates: pod.spec.constraints.gates.clone() },
        };
        let count = u32::try_from(held.count()).unwrap_or(u32::MAX).saturating_add(1);
        (count.saturating_add(by_claims.map_or(0, |(count, _)| count)), Some(reason))
    }

    /// A task of which fewer pods can be placed, or have ended well, than its minimum: whatever is bound of the rest
    /// would never make the gang whole.
    fn short_task(&self, gang: &Gang, required: &Required) -> Option<(Arc<str>, u32, u32)> {
        task_minima(gang, self.now).into_iter().find_map(|(task, minimum)| {
            let placed = required.pods.iter().filter(|candidate| candidate.task == *task).count();
            let pods = self.gangs.pods_of(&gang.spec.name);
            let ended = pods.filter(|(_, pod)| pod.spec.task == *task && pod.ended_well());
            let have = u32::try_from(placed + ended.count()).unwrap_or(u32::MAX);
            (have < minimum).then(|| (task.clone(), have, minimum))
        })
    }
}
