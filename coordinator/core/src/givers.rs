//! Which queues could give a gang something: found before anybody in them is looked at, since mostly none can.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::Time;

use crate::amounts::{Amounts, ResourceKey};
use crate::core::Core;
use crate::evictable::is_kept;
use crate::eviction::Lack;
use crate::gang::{Gang, GangKey};
use crate::phase::PhaseKind;
use crate::queue::{Queue, Queues};
use crate::reason::{NoEvictionCause, Spared};
use crate::turn::OrderKey;

/// Admitted gangs of a queue that are looked at for those that have what another lacks.
const MOST_ASKED: usize = 32;

/// Queues, and what protects gangs of each for good.
pub(crate) type Shields = Vec<(QueueName, Vec<Spared>)>;

/// Queues above their share by the resources that are asked for, as of one state of the shares.
#[derive(Clone, Debug, Default)]
pub(crate) struct AboveShare {
    /// Of the shares, and how many gangs others are evicted for.
    generation: (u64, usize),
    by_keys: BTreeMap<Vec<ResourceKey>, Arc<BTreeSet<QueueName>>>,
    /// Those of which something protects gangs for good.
    pub(crate) shielded: BTreeMap<Vec<ResourceKey>, Arc<Shields>>,
}

/// Who could give a gang something.
#[derive(Debug)]
pub(crate) struct Givers {
    /// The gang's queue.
    pub(crate) own: QueueName,
    /// Gangs of its own queue that are less urgent run.
    pub(crate) has_less_urgent: bool,
    /// Other queues from which may be taken back: gangs run there, and it has more than its share.
    pub(crate) others: Arc<BTreeSet<QueueName>>,
}

impl Givers {
    /// Nobody could.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_less_urgent && self.others.is_empty()
    }

    /// All queues to look in.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &QueueName> {
        Some(&self.own).filter(|_| self.has_less_urgent).into_iter().chain(&*self.others)
    }
}

impl Gang {
    /// As what it counts among those that may be evicted: none of its own facts speaks against it.
    fn gives_as(&self) -> Option<(QueueName, i32)> {
        let runs = matches!(self.phase.kind(), PhaseKind::Running | PhaseKind::Degraded);
        let gives = runs && !self.is_made_up() && !is_kept(self.spec.policy.preemptable);
        gives.then(|| (self.spec.queue.clone(), self.order.priority.0))
    }
}

impl Queues {
    /// A gang counts among those that may be evicted otherwise than before.
    pub(crate) fn count_giver(&mut self, before: Option<(QueueName, i32)>, after: Option<(QueueName, i32)>) {
        if let Some((name, priority)) = before {
            let givers = &mut self.ensure(&name).givers;
            let left = givers.get(&priority).map_or(0, |count| count.saturating_sub(1));
            givers.insert(priority, left);
            givers.retain(|_, count| *count > 0);
        }
        if let Some((name, priority)) = after {
            *self.ensure(&name).givers.entry(priority).or_default() += 1;
        }
    }
}

impl Core {
    /// Counts a gang among those that may be evicted, or not any more.
    pub(crate) fn note_giver(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let gives_as = gang.gives_as();
        if gang.counted_as != gives_as {
            let before = std::mem::replace(&mut gang.counted_as, gives_as.clone());
            self.queues.count_giver(before, gives_as);
        }
    }

    /// Who could give a gang what it asks for; `None` where there is no such gang. `reclaims`: it may take back from other
    /// queues.
    pub(crate) fn givers(&mut self, key: GangKey, asked: &Amounts, reclaims: bool) -> Option<Givers> {
        let gang = self.gangs.gangs.get(&key)?;
        let priority = i64::from(self.priority_of(&gang.spec).unwrap_or(0));
        let priority = priority + i64::from(planted::is(Bug::EvictEqualPriority));
        let own = self.queues.get(&gang.spec.queue);
        let lowest = own.and_then(|queue| queue.givers.first_key_value()).map(|(lowest, _)| *lowest);
        let has_less_urgent =
            self.settings.preempt && lowest.is_some_and(|lowest| i64::from(lowest) < priority);
        let own = gang.spec.queue.clone();
        let mut others = if reclaims { self.above_share(asked) } else { Arc::default() };
        if others.contains(&own) {
            Arc::make_mut(&mut others).remove(&own);
        }
        Some(Givers { own, has_less_urgent, others })
    }

    /// What is known of queues above their share as the shares are now.
    pub(crate) fn above_share_memory(&mut self) -> &mut AboveShare {
        self.refresh_shares();
        let generation = (self.queues.share_generation, self.rooms.len());
        let memory = &mut self.eviction_memory.above_share;
        if memory.generation != generation {
            *memory = AboveShare { generation, ..AboveShare::default() };
        }
        memory
    }

    /// Queues whose gangs may be evicted for others, and that have more than their share of anything that is asked for.
    fn above_share(&mut self, asked: &Amounts) -> Arc<BTreeSet<QueueName>> {
        let keys: Vec<ResourceKey> = asked.keys().collect();
        if let Some(known) = self.above_share_memory().by_keys.get(&keys) {
            return known.clone();
        }
        let expected = self.expected();
        let is_above = |name: &QueueName, queue: &Queue| {
            let has = expected.get(name).unwrap_or(&queue.allocated);
            let mut shares = keys.iter().filter_map(|key| Some((*key, queue.share.limit(*key)?)));
            planted::is(Bug::ReclaimWithinShare) || shares.any(|(key, share)| has.get(key) > share)
        };
        let all = self.queues.queues.iter();
        let all = all.filter(|(name, queue)| !queue.givers.is_empty() && self.is_reclaimable(name));
        let found: BTreeSet<QueueName> =
            all.filter(|(name, queue)| is_above(name, queue)).map(|(name, _)| name.clone()).collect();
        let found = Arc::new(found);
        self.eviction_memory.above_share.by_keys.insert(keys, found.clone());
        found
    }

    /// What queues will have once all plans that evict others are done, where that is not what they have now: their
    /// victims are gone, and those they go for are there. Several plans that are made one after the other would take the
    /// same from a queue several times otherwise, and give the same several times.
    pub(crate) fn expected(&mut self) -> Arc<BTreeMap<QueueName, Amounts>> {
        let known = self.eviction_memory.expected.as_ref();
        if let Some((_, found)) = known.filter(|(rooms, _)| *rooms == self.rooms.len()) {
            return found.clone();
        }
        // What leaves a queue, and what comes to it.
        let mut moves: BTreeMap<QueueName, (Amounts, Amounts)> = BTreeMap::new();
        for key in self.rooms.keys() {
            for (queue, amounts) in self.going_for(*key) {
                moves.entry(queue).or_default().0.add(&amounts);
            }
            if let Some(gang) = self.gangs.gangs.get(key) {
                moves.entry(gang.spec.queue.clone()).or_default().1.add(&self.coming_for(*key));
            }
        }
        let mut found: BTreeMap<QueueName, Amounts> = BTreeMap::new();
        for (name, (_, coming)) in &moves {
            for (above, queue) in self.queues.up_from(name) {
                found.entry(above.clone()).or_insert_with(|| queue.allocated.clone()).add(coming);
            }
        }
        for (name, (leaving, _)) in &moves {
            for (above, _) in self.queues.up_from(name) {
                found.entry(above.clone()).or_default().subtract(leaving);
            }
        }
        let found = Arc::new(found);
        self.eviction_memory.expected = Some((self.rooms.len(), found.clone()));
        found
    }

    /// Gangs of other queues run that could go if the gang's queue were under its share.
    pub(crate) fn others_could_give(&self, gang: &Gang) -> bool {
        let mut others = self.queues.queues.iter().filter(|(name, _)| **name != gang.spec.queue);
        self.settings.reclaim
            && others.any(|(name, queue)| !queue.givers.is_empty() && self.is_reclaimable(name))
    }

    /// Each gang that may be evicted is counted, and nobody else is.
    pub(crate) fn check_givers(&self) -> Result<(), String> {
        let mut givers: BTreeMap<QueueName, BTreeMap<i32, u32>> = BTreeMap::new();
        for (name, priority) in self.gangs.gangs.values().filter_map(Gang::gives_as) {
            *givers.entry(name).or_default().entry(priority).or_default() += 1;
        }
        let counted = self.queues.queues.iter().filter(|(_, queue)| !queue.givers.is_empty());
        let counted: BTreeMap<_, _> =
            counted.map(|(name, queue)| (name.clone(), queue.givers.clone())).collect();
        if counted == givers {
            Ok(())
        } else {
            Err(format!("may be evicted: {givers:?}, counted: {counted:?}"))
        }
    }

    /// What is more urgent than the gang uses the quota that it lacks: it is admitted and has no place yet; or it runs, and
    /// might be evicted for what is more urgent still.
    pub(crate) fn more_urgent(&self, gang: &Gang, lacks: &[Lack]) -> Option<NoEvictionCause> {
        let own = gang.order.priority.0;
        if let Some(other) = self.admitted_first(gang, lacks) {
            let (gang, priority) = (other.spec.name.clone(), other.order.priority.0);
            return Some(NoEvictionCause::AdmittedFirst { gang, priority, own });
        }
        let highest = self.queues.get(&gang.spec.queue)?.givers.last_key_value();
        highest.filter(|(highest, _)| **highest > own).map(|_| NoEvictionCause::Quota)
    }

    /// The first of the admitted gangs that are more urgent, where all that the gang lacks is charged to them: without them
    /// it would have its quota. What is lacking of others' guarantees is no charge of theirs.
    fn admitted_first(&self, gang: &Gang, lacks: &[Lack]) -> Option<&Gang> {
        let queue = self.queues.get(&gang.spec.queue)?;
        let has_ceiling =
            |(name, key, _): &Lack| self.queues.get(name).is_some_and(|of| of.limit(*key).is_some());
        if !lacks.iter().all(has_ceiling) {
            return None;
        }
        let first = OrderKey { is_fresh: false, ..OrderKey::new(gang.order.priority.0, Time(0), GangKey(0)) };
        let before = queue.admitted.range(..first).rev().take(MOST_ASKED);
        let before = before.filter_map(|(_, key)| self.gangs.gangs.get(key));
        let (mut named, mut charged) = (None, Amounts::default());
        for other in before.filter(|other| lacks.iter().any(|(_, key, _)| other.charge.get(*key) > 0)) {
            named = named.or(Some(other));
            charged.add(&other.charge);
            if lacks.iter().all(|(_, key, short)| charged.get(*key) >= *short) {
                return named;
            }
        }
        None
    }
}
