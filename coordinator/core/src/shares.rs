//! What queues are entitled to: `deserved` where it is named, and else by weight of what their parent has, no more than
//! they ask for. In whole numbers, the same whenever the same is asked for.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};

use crate::amounts::{Amounts, ResourceKey};
use crate::core::Core;
use crate::gang::GangKey;
use crate::phase::Phase;
use crate::queue::{Queue, Queues};
use crate::queues::ROOT;
use crate::reason::Reason;

/// What a queue is entitled to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    limits: BTreeMap<ResourceKey, u64>,
}

impl Share {
    /// Of one resource; `None` = it has no limit. What no node has is shared by nobody.
    pub(crate) fn limit(&self, key: ResourceKey) -> Option<u64> {
        self.limits.get(&key).copied()
    }

    /// All of the cluster.
    fn of_root(capacity: &Amounts) -> Self {
        Self { limits: capacity.keys().map(|key| (key, capacity.get(key))).collect() }
    }
}

/// A part of what a queue is entitled to, as an exact fraction. Anything of nothing is more than all else.
#[derive(Clone, Copy, Debug, Eq)]
pub(crate) struct Part {
    used: u64,
    of: u64,
}

impl Part {
    pub(crate) const NONE: Self = Self { used: 0, of: 1 };
}

impl Ord for Part {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.of, other.of) {
            (0, 0) => Ordering::Equal,
            (0, _) => Ordering::Greater,
            (_, 0) => Ordering::Less,
            _ => {
                let left = u128::from(self.used) * u128::from(other.of);
                left.cmp(&(u128::from(other.used) * u128::from(self.of)))
            }
        }
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

/// One who shares by weight: no less than `least`, no more than `most`.
struct Sharer<'a> {
    name: &'a QueueName,
    weight: u64,
    least: u64,
    most: u64,
}

/// Fills all sharers like vessels of the width of their weight until `total` is poured out. Where it does not come to
/// whole numbers, the rest goes one by one to those who lack most of their next, then by name.
fn fill(total: u64, sharers: &[Sharer<'_>]) -> Vec<u64> {
    let sum = |amount: fn(&Sharer<'_>) -> u64| {
        sharers.iter().map(amount).fold(0_u128, |sum, one| sum + u128::from(one))
    };
    if sum(|sharer| sharer.most) <= u128::from(total) {
        return sharers.iter().map(|sharer| sharer.most).collect();
    }
    if sum(|sharer| sharer.least) >= u128::from(total) {
        return sharers.iter().map(|sharer| sharer.least).collect();
    }
    let level_of = |amount: u64, sharer: &Sharer<'_>| Part { used: amount, of: sharer.weight };
    let mut levels: Vec<Part> = sharers
        .iter()
        .flat_map(|sharer| [level_of(sharer.least, sharer), level_of(sharer.most, sharer)])
        .collect();
    levels.sort_unstable();
    // Compared as fractions of the level's own divisor, without rounding.
    let takes_too_much = |level: &Part| {
        let (used, of) = (u128::from(level.used), u128::from(level.of));
        let one = |sharer: &Sharer<'_>| {
            let (least, most) = (u128::from(sharer.least) * of, u128::from(sharer.most) * of);
            (u128::from(sharer.weight) * used).clamp(least, most)
        };
        sharers.iter().map(one).sum::<u128>() > u128::from(total) * of
    };
    let at = levels.partition_point(|level| !takes_too_much(level));
    let floor = at.checked_sub(1).map_or(Part::NONE, |at| levels[at]);
    // Between that level and the next one each either has a fixed amount, or rises with its weight.
    let rises = |sharer: &Sharer<'_>| {
        level_of(sharer.least, sharer) <= floor && level_of(sharer.most, sharer) > floor
    };
    let fixed = |sharer: &Sharer<'_>| {
        if level_of(sharer.most, sharer) <= floor { sharer.most } else { sharer.least }
    };
    let fixed_sum: u128 =
        sharers.iter().filter(|sharer| !rises(sharer)).map(|sharer| u128::from(fixed(sharer))).sum();
    let rest = u128::from(total).saturating_sub(fixed_sum);
    let width: u128 =
        sharers.iter().filter(|sharer| rises(sharer)).map(|sharer| u128::from(sharer.weight)).sum();
    let mut given = Vec::with_capacity(sharers.len());
    let mut remainders = Vec::new();
    for (at, sharer) in sharers.iter().enumerate() {
        if !rises(sharer) || width == 0 {
            given.push(fixed(sharer));
            continue;
        }
        let product = rest * u128::from(sharer.weight);
        let whole = u64::try_from(product / width).unwrap_or(u64::MAX).min(sharer.most);
        given.push(whole);
        remainders.push((Reverse(product % width), sharer.name, at));
    }
    remainders.sort_unstable();
    let mut left = u128::from(total).saturating_sub(given.iter().map(|amount| u128::from(*amount)).sum());
    for (_, _, at) in remainders {
        if left > 0 && given[at] < sharers[at].most {
            given[at] += 1;
            left -= 1;
        }
    }
    given
}

impl Queue {
    fn capped(&self, key: ResourceKey, amount: u64) -> u64 {
        self.limit(key).map_or(amount, |limit| amount.min(limit))
    }

    /// What `deserved` names of a resource, where it names anything; within its ceiling, and no less than its guarantee.
    fn named_share(&self, key: ResourceKey) -> Option<u64> {
        let (_, amount) = self.named.iter().find(|(known, _)| *known == key)?;
        Some(self.capped(key, (*amount).max(self.kept.get(key))))
    }
}

impl Queues {
    /// What is set aside for a queue: its own guarantee, and at least what is set aside for those below it.
    pub(crate) fn guarantee_of(&self, name: &QueueName) -> Amounts {
        let Some(queue) = self.get(name) else { return Amounts::default() };
        let mut below = Amounts::default();
        for child in &queue.children {
            below.add(&self.guarantee_of(child));
        }
        below.raise_to(&queue.guarantee);
        below
    }

    /// Takes the part of its share that a queue has: the largest one of any resource that it has or asks for.
    pub(crate) fn part(&self, name: &QueueName) -> Part {
        let Some(queue) = self.get(name) else { return Part::NONE };
        self.part_of(name, queue.allocated.keys().chain(queue.demand.keys()))
    }

    /// The same of these resources.
    pub(crate) fn part_of(&self, name: &QueueName, keys: impl Iterator<Item = ResourceKey>) -> Part {
        let Some(queue) = self.get(name) else { return Part::NONE };
        let parts = keys.filter_map(|key| {
            let of = queue.share.limit(key)?;
            Some(Part { used: queue.allocated.get(key), of })
        });
        parts.max().unwrap_or(Part::NONE)
    }

    /// Works all shares out, from what is there and asked for now.
    pub(crate) fn share_out(&mut self, capacity: &Amounts) {
        self.count_demand();
        let keys = self.shared_keys(capacity);
        let root = QueueName::from(ROOT);
        if let Some(queue) = self.queues.get_mut(&root) {
            queue.share = Share::of_root(capacity);
        }
        let mut to_do = vec![root];
        while let Some(parent) = to_do.pop() {
            for (name, share) in self.shares_below(&parent, &keys) {
                if let Some(queue) = self.queues.get_mut(&name) {
                    self.shares_moved |= queue.share != share;
                    queue.share = share;
                    to_do.extend((!queue.children.is_empty()).then_some(name));
                }
            }
        }
        self.share_generation += 1;
        self.are_shares_fresh = true;
    }

    /// They are worked out anew the next time.
    pub(crate) fn forget_shares(&mut self) {
        self.queues.values_mut().for_each(|queue| queue.share = Share::default());
        self.are_shares_fresh = false;
    }

    /// Names with their distance from the root, the farthest first.
    fn names_upwards(&self) -> Vec<QueueName> {
        let mut names: Vec<(Reverse<usize>, QueueName)> =
            self.queues.keys().map(|name| (Reverse(self.up_from(name).count()), name.clone())).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// What each queue has and asks for, within its ceiling, and what is kept for it.
    fn count_demand(&mut self) {
        for queue in self.queues.values_mut() {
            queue.demand = Amounts::default();
            queue.kept = Amounts::default();
        }
        for name in self.names_upwards() {
            let asks = self.set_aside(&name).is_none();
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            let mut demand = std::mem::take(&mut queue.demand);
            demand.add(&queue.own_allocated);
            // What nobody may start gets no share.
            if asks && queue.spec.is_some() && queue.children.is_empty() {
                demand.add(&queue.own_wants);
            }
            for (key, limit) in queue.ceilings() {
                demand.set(key, demand.get(key).min(limit));
            }
            queue.kept.raise_to(&queue.guarantee);
            let (up, kept) = (queue.up.clone(), queue.kept.clone());
            queue.demand.clone_from(&demand);
            if let Some(parent) = up.and_then(|up| self.queues.get_mut(&up)) {
                parent.demand.add(&demand);
                parent.kept.add(&kept);
            }
        }
    }

    fn shared_keys(&self, capacity: &Amounts) -> BTreeSet<ResourceKey> {
        let mut keys: BTreeSet<ResourceKey> = capacity.keys().collect();
        for queue in self.queues.values() {
            keys.extend(queue.demand.keys().chain(queue.guarantee.keys()));
            keys.extend(queue.named.iter().map(|(key, _)| *key));
        }
        keys
    }

    fn shares_below(&self, parent: &QueueName, keys: &BTreeSet<ResourceKey>) -> Vec<(QueueName, Share)> {
        let Some(parent) = self.get(parent) else { return Vec::new() };
        let children = parent.children.iter().filter_map(|name| self.queues.get_key_value(name));
        let (by_name, by_weight): (Vec<_>, Vec<_>) = children.partition(|(_, queue)| !queue.named.is_empty());
        let mut shares: BTreeMap<&QueueName, Share> = BTreeMap::new();
        for (name, queue) in &by_name {
            let limits = keys.iter().filter_map(|key| Some((*key, queue.named_share(*key)?))).collect();
            shares.insert(name, Share { limits });
        }
        for (name, _) in &by_weight {
            shares.insert(name, Share::default());
        }
        for key in keys {
            let Some(total) = parent.share.limit(*key) else { continue };
            // Of what those with a share of their own leave; one that names no limit leaves it all to the others.
            let taken = |queue: &Queue| {
                let uses = queue.demand.get(*key).max(queue.kept.get(*key));
                queue.named_share(*key).map_or(0, |share| share.min(uses))
            };
            let taken = by_name.iter().map(|(_, queue)| taken(queue)).fold(0, u64::saturating_add);
            let sharers: Vec<Sharer<'_>> =
                by_weight.iter().map(|(name, queue)| queue.sharer(name, *key)).collect();
            let given = fill(total.saturating_sub(taken), &sharers);
            for ((name, _), amount) in by_weight.iter().zip(given) {
                if let Some(share) = shares.get_mut(name) {
                    share.limits.insert(*key, amount);
                }
            }
        }
        shares.into_iter().map(|(name, share)| (name.clone(), share)).collect()
    }
}

impl Queue {
    fn sharer<'a>(&self, name: &'a QueueName, key: ResourceKey) -> Sharer<'a> {
        let spec = self.spec.as_ref().filter(|_| !planted::is(Bug::IgnoreWeights));
        let weight = spec.map_or(1, |spec| spec.weight.max(1));
        let least = self.capped(key, self.kept.get(key));
        let demand = if planted::is(Bug::IgnoreDemand) { u64::from(u32::MAX) } else { self.demand.get(key) };
        let most = self.capped(key, demand).max(least);
        Sharer { name, weight: u64::from(weight), least, most }
    }
}

impl Core {
    /// Counts what a gang asks for beside what its pods have: what its queue is entitled to follows from it.
    pub(crate) fn note_wants(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let mut wants = Amounts::default();
        // What can never run needs no share that it could start with.
        if (!gang.deleted || planted::is(Bug::KeepWants))
            && !gang.reason.as_ref().is_some_and(Reason::is_lasting)
        {
            let pods = self.gangs.pods_of(&gang.spec.name).map(|(_, pod)| pod);
            pods.filter(|pod| pod.may_be_placed()).for_each(|pod| wants.add(&pod.need.amounts.of_pod()));
            if matches!(gang.phase, Phase::Queued | Phase::Admitted) {
                wants.raise_to(&gang.min_amounts);
            }
        }
        if wants == gang.wants {
            return;
        }
        self.queues.want(&gang.spec.queue, &gang.wants, &wants);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.wants = wants;
            gang.tried_with = None;
        }
    }

    /// What the nodes that are there have together decides what can be kept for queues, and what they are entitled to.
    pub(crate) fn refresh_shares(&mut self) {
        let generation = self.cluster.capacity_generation;
        if self.queues.capacity_seen != Some(generation) {
            let (capacity, is_complete) = self.cluster.capacity_there();
            self.queues.capacity_seen = Some(generation);
            self.queues.note_capacity(&capacity, is_complete);
            self.queues.capacity = capacity;
            if self.queues.queues.values().any(|queue| !queue.asked_guarantee.is_zero()) {
                // What is set aside may be another amount, and statuses say it.
                self.touched_queues.extend(self.queues.queues.keys().cloned());
            }
        }
        if !self.queues.are_shares_fresh {
            let capacity = self.queues.capacity.clone();
            self.queues.share_out(&capacity);
        }
    }

    /// What a queue is entitled to now.
    pub(crate) fn deserved(&mut self, queue: &QueueName) -> Share {
        self.refresh_shares();
        self.queues.get(queue).map(|queue| queue.share.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of queues a, b, c … as (weight, least, most).
    fn filled(total: u64, queues: &[(u64, u64, u64)]) -> Vec<u64> {
        let names: Vec<QueueName> =
            (0..queues.len()).map(|at| QueueName::from(format!("q{at:03}").as_str())).collect();
        let sharers: Vec<Sharer<'_>> = names
            .iter()
            .zip(queues)
            .map(|(name, (weight, least, most))| Sharer { name, weight: *weight, least: *least, most: *most })
            .collect();
        fill(total, &sharers)
    }

    #[test]
    fn shares_follow_weights_within_what_is_asked_for() {
        assert_eq!(filled(400, &[(1, 0, 400), (3, 0, 400)]), [100, 300]);
        // Capped by demand: the other one gets what is left.
        assert_eq!(filled(8, &[(1, 0, 8), (3, 0, 2)]), [6, 2]);
        assert_eq!(filled(100, &[(1, 0, 80), (1, 0, 20)]), [80, 20]);
        assert_eq!(filled(100, &[(1, 0, 40), (1, 0, 60)]), [40, 60]);
        assert_eq!(filled(8, &[(1, 0, 0), (1, 0, 1), (1, 0, 7)]), [0, 1, 7]);
        // No less than is guaranteed, also where that is more than weights give.
        assert_eq!(filled(8, &[(1, 6, 8), (7, 0, 8)]), [6, 2]);
        assert_eq!(filled(4, &[(1, 3, 3), (1, 3, 3)]), [3, 3]);
        // What does not divide goes to who lacks most of the next, then by name.
        assert_eq!(filled(1, &[(1, 0, 5), (1, 0, 5), (1, 0, 5)]), [1, 0, 0]);
        assert_eq!(filled(8, &[(1, 0, 8), (1, 0, 8), (1, 0, 8)]), [3, 3, 2]);
        assert_eq!(filled(10, &[(3, 0, 10), (4, 0, 10)]), [4, 6]);
        assert_eq!(filled(0, &[(1, 0, 5)]), [0]);
        assert_eq!(filled(5, &[]), Vec::<u64>::new());
        assert_eq!(
            filled(u64::MAX, &[(65_535, 0, u64::MAX), (1, 0, u64::MAX)]).iter().sum::<u64>(),
            u64::MAX
        );
    }

    /// Poured one by one into whoever has least for its weight: the same in a simple way, up to what does not divide.
    #[test]
    fn shares_are_those_of_a_simple_model() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..3_000 {
            let queues: Vec<(u64, u64, u64)> = (0..=next(5))
                .map(|_| {
                    let least = next(6);
                    (next(4) + 1, least, least + next(30))
                })
                .collect();
            let total = next(80);
            let shares = filled(total, &queues);
            let most: u64 = queues.iter().map(|(_, _, most)| most).sum();
            let least: u64 = queues.iter().map(|(_, least, _)| least).sum();
            assert_eq!(
                shares.iter().sum::<u64>(),
                total.min(most).max(least),
                "{total} of {queues:?}: {shares:?}"
            );
            for (at, (weight, least, most)) in queues.iter().enumerate() {
                assert!((*least..=*most).contains(&shares[at]), "{total} of {queues:?}: {shares:?}");
                for (other_at, (other_weight, other_least, _)) in queues.iter().enumerate() {
                    // Nobody who could have more has a whole one less, for its weight, than one who could do with less.
                    let (mine, theirs) = (shares[at], shares[other_at]);
                    let is_envious = mine < *most && theirs > *other_least;
                    let has_less = (mine + 1) * other_weight < theirs.saturating_sub(1) * weight;
                    assert!(!(is_envious && has_less), "{total} of {queues:?}: {shares:?}");
                }
            }
        }
    }
}
