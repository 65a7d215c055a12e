//! Who may be evicted: pods above their gang's minimum, each for itself, and whole gangs; and what protects them.
//!
//! Within a queue the priority decides, between queues the shares (preemption and reclaim): what is strictly less urgent
//! makes room in its own queue, and what a queue has above its share makes room for one that is under its own. Nothing
//! else ever does, and no pod of other schedulers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::GangSpec;
use phalanx_common::ids::{GangName, PodUid, QueueName};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;

use crate::amounts::{Amounts, ResourceKey};
use crate::core::Core;
use crate::gang::{Gang, GangKey, Pod, natural};
use crate::givers::Givers;
use crate::lease::Lease;
use crate::phase::PhaseKind;
use crate::reason::Spared;
use crate::victims::{Guard, Part, Rank, Unit};
use crate::whole::task_minima;

/// From this priority on a pod is one of the system's (`system-cluster-critical`).
const SYSTEM_PRIORITY: i32 = 2_000_000_000;

/// Namespace of the system's own pods.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// A gang that may lose pods, and what protects it.
pub(crate) struct Evictable {
    pub(crate) key: GangKey,
    pub(crate) queue: QueueName,
    pub(crate) priority: i32,
    pub(crate) queue_priority: i32,
    /// Not before then.
    pub(crate) not_before: Option<(Time, &'static str)>,
    pub(crate) units: Vec<Unit>,
}

/// What may go for one gang, and what was spared.
#[derive(Default)]
pub(crate) struct Victims {
    pub(crate) units: Vec<Unit>,
    pub(crate) spared: Vec<Spared>,
    /// When the next of what is spared for a time is not any more.
    pub(crate) next: Option<Time>,
}

/// It, or its owner, says that it must not be evicted.
pub(crate) fn is_kept(preemptable: Option<bool>) -> bool {
    preemptable == Some(false) && !planted::is(Bug::EvictProtected)
}

/// One of the system's gangs: never evicted.
pub(crate) fn is_of_the_system(gang: &Gang, priority: i32) -> bool {
    priority >= SYSTEM_PRIORITY || &*gang.spec.name.namespace == SYSTEM_NAMESPACE
}

impl Core {
    /// Everything that runs and could be evicted at all.
    pub(crate) fn evictable(&self) -> BTreeMap<QueueName, Vec<Evictable>> {
        let mut all: BTreeMap<QueueName, Vec<Evictable>> = BTreeMap::new();
        for (key, gang) in &self.gangs.gangs {
            // What is bound half goes on to be whole or gives all back: it has not run, and its own plan stands till then.
            let is_half = gang.phase.cut_short().is_some();
            if !gang.phase.is_still() || is_half || gang.is_made_up() || is_kept(gang.spec.policy.preemptable)
            {
                continue;
            }
            let priority = self.priority_of(&gang.spec).unwrap_or(0);
            if is_of_the_system(gang, priority) {
                continue;
            }
            let units = self.units_of(*key, gang, i64::from(priority));
            if units.is_empty() {
                continue;
            }
            all.entry(gang.spec.queue.clone()).or_default().push(Evictable {
                key: *key,
                queue: gang.spec.queue.clone(),
                priority,
                queue_priority: self.queues.get(&gang.spec.queue).map_or(0, |queue| queue.priority()),
                not_before: self.protected_until(gang),
                units,
            });
        }
        all
    }

    /// A gang is no victim before then: it has just begun to run.
    fn protected_until(&self, gang: &Gang) -> Option<(Time, &'static str)> {
        let since = gang.running_since.filter(|_| !planted::is(Bug::IgnoreCooldown))?;
        let pods = self.gangs.pods_of(&gang.spec.name);
        let of_pods = pods.map(|(_, pod)| pod.spec.policy.cooldown_ms).max().unwrap_or_default();
        let cooldown = gang.spec.policy.cooldown_ms.max(of_pods);
        let policy = self.policies.get(&gang.spec.queue);
        let minimum = policy.map_or(Millis(0), |policy| policy.minimum_run_ms);
        let (time, what) =
            if cooldown >= minimum { (cooldown, "cooldown-time") } else { (minimum, "minimum run time") };
        (time > Millis(0) && since + time > self.now).then(|| (since + time, what))
    }

    /// The units of one gang: its pods above the minimum, the last first, and then all of it.
    fn units_of(&self, key: GangKey, gang: &Gang, priority: i64) -> Vec<Unit> {
        let mut pods: Vec<(&PodUid, &Pod)> =
            self.gangs.pods_of(&gang.spec.name).filter(|(uid, pod)| self.is_live_here(uid, pod)).collect();
        // Who leads goes last, then the oldest.
        pods.sort_by(|(_, left), (_, right)| {
            let order =
                |pod: &Pod| (pod.spec.policy.leads == planted::is(Bug::LeaderFirst), pod.spec.policy.created);
            let name = |pod: &Pod| pod.spec.name.name.clone();
            let (left_name, right_name) = (name(left), name(right));
            (order(left), natural(&left_name)).cmp(&(order(right), natural(&right_name)))
        });
        let mut units = Vec::new();
        let mut live: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        for (_, pod) in &pods {
            *live.entry(pod.spec.task.clone()).or_default() += 1;
        }
        let minima: BTreeMap<Arc<str>, u32> =
            task_minima(gang, self.now).into_iter().map(|(task, minimum)| (task.clone(), minimum)).collect();
        let ended = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.ended_well()).count();
        let minimum = (gang.minimum(self.now) as usize).saturating_sub(ended);
        let mut left = pods.len();
        let mut kept = Vec::new();
        for (uid, pod) in pods.iter().rev() {
            let of_task = live.entry(pod.spec.task.clone()).or_default();
            let is_above = minima.get(&pod.spec.task).is_none_or(|minimum| *of_task > *minimum);
            let is_surplus = left > minimum
                && is_above
                && gang.spec.policy.sub_groups.is_empty()
                && !planted::is(Bug::WholeGangsFirst);
            if is_surplus && !is_kept(pod.spec.policy.preemptable) {
                *of_task -= 1;
                left -= 1;
                let order = u32::try_from(left).unwrap_or(u32::MAX);
                units.extend(self.unit(key, 0, priority, order, &[(uid, pod)], Vec::new()));
            } else {
                kept.push((*uid, *pod));
            }
        }
        if !kept.is_empty() && kept.iter().all(|(_, pod)| !is_kept(pod.spec.policy.preemptable)) {
            let after = (0..units.len()).collect();
            units.extend(self.unit(key, 1, priority, 0, &kept, after));
        }
        units
    }

    /// It runs, and nothing takes it away already.
    fn is_live_here(&self, uid: &PodUid, pod: &Pod) -> bool {
        pod.is_live() && pod.lease.is_some() && !self.victims.contains_key(uid)
    }

    fn unit(
        &self,
        key: GangKey,
        class: u8,
        priority: i64,
        order: u32,
        pods: &[(&PodUid, &Pod)],
        after: Vec<usize>,
    ) -> Option<Unit> {
        let mut unit = Unit {
            rank: Rank {
                class,
                queue_priority: 0,
                priority: if planted::is(Bug::MostUrgentFirst) { -priority } else { priority },
                gpus: 0,
                age: i64::MIN,
                last: (Reverse(key), Reverse(order)),
            },
            gang: key,
            pods: Vec::new(),
            parts: Vec::new(),
            queue: self.gangs.gangs.get(&key)?.spec.queue.clone(),
            amounts: Amounts::default(),
            budgets: Vec::new(),
            after,
        };
        for (uid, pod) in pods {
            let lease = pod.lease.and_then(|id| self.leases.leases.get(&id))?;
            if lease.wanted == LeaseState::Gone {
                continue;
            }
            unit.parts.push(self.part_of(lease));
            unit.amounts.add(&lease.taken.amounts.of_pod());
            unit.pods.push(((*uid).clone(), lease.taken.lease));
            let started = pod.spec.policy.started.unwrap_or(pod.spec.policy.created);
            unit.rank.age = unit.rank.age.max(-i64::try_from(started.0).unwrap_or(i64::MAX));
            for budget in self.budgets_of(pod) {
                match unit.budgets.iter_mut().find(|(known, _)| *known == budget) {
                    Some((_, count)) => *count += 1,
                    None => unit.budgets.push((budget, 1)),
                }
            }
        }
        // Where it has no GPUs, its devices of other kinds tell how much is lost.
        let devices = pods.iter().map(|(_, pod)| pod.need.devices).fold(0, u64::saturating_add);
        unit.rank.gpus = if unit.amounts.gpus > 0 { unit.amounts.gpus } else { devices };
        (!unit.pods.is_empty()).then_some(unit)
    }

    /// What a lease leaves behind: GPUs that are well, and all else that it uses, whoever waits for it.
    pub(crate) fn part_of(&self, lease: &Lease) -> Part {
        let (mask, used) = self.cluster.node(lease.node).left_by(&lease.taken, |_| true);
        Part { node: lease.node, mask, used }
    }

    /// Of what these leave behind, what is held for nobody whom this gang must heed.
    pub(crate) fn heed_holds(&self, key: GangKey, units: &mut [Unit]) {
        if !self.cluster.has_holds() {
            return;
        }
        let lifted = self.sees_past(key, self.now);
        for unit in units {
            for (part, (_, id)) in unit.parts.iter_mut().zip(&unit.pods) {
                let node = self.cluster.node(part.node);
                if node.holds.is_empty() {
                    continue;
                }
                if let Some(lease) = self.leases.leases.get(id) {
                    (part.mask, part.used) = node.left_by(&lease.taken, |other| lifted.contains(&other));
                }
            }
        }
    }

    /// Disruption budgets that count a pod.
    fn budgets_of(&self, pod: &Pod) -> Vec<GangName> {
        let namespace = &pod.spec.name.namespace;
        let first = GangName { namespace: namespace.clone(), name: Arc::from("") };
        let of_namespace = self.budgets.range(first..).take_while(|(name, _)| name.namespace == *namespace);
        let counts = of_namespace.filter(|(_, budget)| {
            let labels = &pod.spec.policy.labels;
            budget.selector.as_ref().is_some_and(|all| {
                let value = |key: &str| labels.get(key).map(|value| &**value);
                all.iter().all(|requirement| requirement.is_met_by(value(&requirement.key)))
            })
        });
        counts.map(|(name, _)| name.clone()).collect()
    }

    /// By disruption budget, how many pods are to be evicted that it still counts as there.
    pub(crate) fn promised_disruptions(&self) -> BTreeMap<GangName, u32> {
        let mut promised = BTreeMap::new();
        if self.budgets.is_empty() {
            return promised;
        }
        let pods = self.victims.keys().filter_map(|uid| self.gangs.pods.get(uid));
        for budget in pods.filter(|pod| pod.is_live()).flat_map(|pod| self.budgets_of(pod)) {
            *promised.entry(budget).or_default() += 1;
        }
        promised
    }

    /// What of all that may go for this gang: of its own queue what is less urgent, and of others only where it `reclaims`.
    pub(crate) fn victims_for(&mut self, key: GangKey, givers: &Givers) -> Victims {
        let mut victims = Victims { units: Vec::new(), spared: Vec::new(), next: None };
        if givers.is_empty() {
            return victims;
        }
        let all = self.all_evictable();
        let Some(gang) = self.gangs.gangs.get(&key) else { return victims };
        let priority = self.priority_of(&gang.spec).unwrap_or(0);
        let above = priority.saturating_add(i32::from(planted::is(Bug::EvictEqualPriority)));
        let mut all: Vec<&Evictable> = givers.queues().filter_map(|queue| all.get(queue)).flatten().collect();
        all.sort_unstable_by_key(|evictable| evictable.key);
        for evictable in all {
            let is_same = evictable.queue == gang.spec.queue;
            let may = !is_same || evictable.priority < above;
            if !may || evictable.units.iter().any(|unit| self.is_going(unit)) {
                continue;
            }
            if let Some((until, what)) = evictable.not_before {
                victims.next = Some(victims.next.map_or(until, |next| next.min(until)));
                let name = self.gangs.gangs.get(&evictable.key).map(|gang| gang.spec.name.clone());
                victims.spared.extend(name.map(|gang| Spared::Until { gang, until, what: what.into() }));
                continue;
            }
            let first = victims.units.len();
            for unit in &evictable.units {
                let mut unit = unit.clone();
                unit.after.iter_mut().for_each(|at| *at += first);
                unit.rank.queue_priority = if is_same { i32::MIN } else { evictable.queue_priority };
                if let Some(spared) = self.exhausted(&unit) {
                    victims.spared.push(spared);
                }
                victims.units.push(unit);
            }
        }
        self.heed_holds(key, &mut victims.units);
        victims
    }

    /// Something of it is on its way out since the list was made.
    fn is_going(&self, unit: &Unit) -> bool {
        let gang = self.gangs.gangs.get(&unit.gang);
        gang.is_none_or(|gang| !matches!(gang.phase.kind(), PhaseKind::Running | PhaseKind::Degraded))
            || unit.pods.iter().any(|(uid, _)| self.victims.contains_key(uid))
    }

    /// A budget that keeps the unit, where one does.
    fn exhausted(&self, unit: &Unit) -> Option<Spared> {
        let (budget, allowed) = unit.budgets.iter().find_map(|(name, count)| {
            let allowed = self.budgets.get(name).map_or(0, |budget| budget.disruptions_allowed);
            (allowed < *count).then(|| (name.clone(), allowed))
        })?;
        let (uid, lease) = unit.pods.first()?;
        let node = self.leases.leases.get(lease).map(|lease| self.cluster.node(lease.node).name.clone())?;
        let pod = self.gangs.pods.get(uid)?.spec.name.name.clone();
        Some(Spared::Budget { node, pod, budget, allowed })
    }
}

/// Whether the gang's own queue is under its share with what it asks, which others are above theirs, what budgets and
/// guarantees leave, and whether the quota has room.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    /// Queue of the gang.
    pub(crate) own: Option<QueueName>,
    /// Resources that it asks for.
    pub(crate) asked: Vec<ResourceKey>,
    /// What went of each queue so far.
    pub(crate) lost: BTreeMap<QueueName, Amounts>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) budgets_left: BTreeMap<GangName, u32>,
}

/// Numbers of the queues, as they are before anything goes.
#[derive(Default)]
pub(crate) struct Facts {
    /// Of each queue that may lose something: itself and those above it, up to where the gang's own queue joins it.
    pub(crate) chains: BTreeMap<QueueName, Vec<QueueName>>,
    /// All queues above each, for what it loses.
    pub(crate) above: BTreeMap<QueueName, Vec<QueueName>>,
    pub(crate) allocated: BTreeMap<QueueName, Amounts>,
    /// Share of a queue for each resource that is asked for, where it has one.
    pub(crate) deserved: BTreeMap<QueueName, Vec<(ResourceKey, u64)>>,
    pub(crate) guarantee: BTreeMap<QueueName, Amounts>,
    /// Names of what queues are guaranteed.
    pub(crate) names: BTreeMap<ResourceKey, Arc<str>>,
    /// What the gang's own queue, and those above it, lack: queue, resource, and how much.
    pub(crate) lacks: Vec<(QueueName, ResourceKey, u64)>,
}

impl Tally {
    pub(crate) fn lost_of(&self, queue: &QueueName, key: ResourceKey) -> u64 {
        self.lost.get(queue).map_or(0, |lost| lost.get(key))
    }

    pub(crate) fn is_over(&self, queue: &QueueName) -> bool {
        let (Some(allocated), Some(shares)) =
            (self.facts.allocated.get(queue), self.facts.deserved.get(queue))
        else {
            return false;
        };
        planted::is(Bug::ReclaimWithinShare)
            || shares.iter().any(|(key, share)| {
                self.asked.contains(key)
                    && allocated.get(*key).saturating_sub(self.lost_of(queue, *key)) > *share
            })
    }

    fn keeps_guarantee(&self, queue: &QueueName, unit: &Unit) -> bool {
        planted::is(Bug::VictimUnderGuarantee) || self.guarantee_broken(queue, unit).is_none()
    }

    /// What a queue is guaranteed and would not have without the unit.
    pub(crate) fn guarantee_broken(&self, queue: &QueueName, unit: &Unit) -> Option<(ResourceKey, u64)> {
        let allocated = self.facts.allocated.get(queue)?;
        let guarantee = self.facts.guarantee.get(queue)?;
        let is_broken = |key: &ResourceKey| {
            let left = allocated.get(*key).saturating_sub(self.lost_of(queue, *key));
            left.saturating_sub(unit.amounts.get(*key)) < guarantee.get(*key)
        };
        unit.amounts.keys().find(is_broken).map(|key| (key, guarantee.get(key)))
    }
}

impl Guard for Tally {
    fn may_go(&self, unit: &Unit) -> bool {
        let has_budget = unit
            .budgets
            .iter()
            .all(|(name, count)| self.budgets_left.get(name).is_some_and(|left| left >= count));
        let by_share = Some(&unit.queue) == self.own.as_ref()
            || self.facts.chains.get(&unit.queue).is_some_and(|chain| {
                chain.iter().all(|queue| self.is_over(queue) && self.keeps_guarantee(queue, unit))
            });
        (has_budget || planted::is(Bug::IgnoreBudgets)) && by_share
    }

    fn gone(&mut self, unit: &Unit) {
        for (name, count) in &unit.budgets {
            if let Some(left) = self.budgets_left.get_mut(name) {
                *left = left.saturating_sub(*count);
            }
        }
        let facts = self.facts.clone();
        for queue in facts.above.get(&unit.queue).into_iter().flatten() {
            self.lost.entry(queue.clone()).or_default().add(&unit.amounts);
        }
    }

    fn has_quota(&self) -> bool {
        self.facts.lacks.iter().all(|(queue, key, short)| self.lost_of(queue, *key) >= *short)
    }

    fn frees_quota(&self, unit: &Unit) -> bool {
        let Some(above) = self.facts.above.get(&unit.queue) else { return false };
        self.facts.lacks.iter().any(|(queue, key, short)| {
            self.lost_of(queue, *key) < *short && above.contains(queue) && unit.amounts.get(*key) > 0
        })
    }
}

/// Queues of gangs that may lose something.
pub(crate) fn queues_of(units: &[Unit]) -> BTreeSet<QueueName> {
    units.iter().map(|unit| unit.queue.clone()).collect()
}

/// True where nothing is ever evicted for it.
pub(crate) fn never_evicts(core: &Core, gang: &GangSpec) -> bool {
    let class = match &gang.priority_class {
        Some(class) => core.priority_classes.get(class),
        None => core.default_class(),
    };
    if planted::is(Bug::IgnoreNever) {
        return false;
    }
    class.is_some_and(|class| !class.preempts)
        || core.gangs.pods_of(&gang.name).any(|(_, pod)| pod.spec.policy.never_preempts)
}
