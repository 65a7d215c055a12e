//! Gangs of one queue that wait for the same thing: what did not help the first of them helps none of the others, so that
//! only the first is tried again when room, quota or shares change. The others are tried as soon as the first gets on,
//! or waits for something else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::QueueName;
use phalanx_common::units::{Millis, Time};

use crate::amounts::Amounts;
use crate::core::Core;
use crate::evictable::never_evicts;
use crate::gang::GangKey;
use crate::pass::{ShapeKey, shape_key};
use crate::phase::{Phase, PhaseKind};
use crate::queue::Queue;
use crate::reason::Reason;
use crate::turn::OrderKey;

/// What makes two gangs of a queue alike: all that their place, their quota and who goes for them depend on, but their
/// place in the order. Of those that are alike the first has the best chance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    code: &'static str,
    is_lasting: bool,
    phase: PhaseKind,
    priority: i32,
    never_evicts: bool,
    /// It has waited long enough for a hold.
    is_due: bool,
    /// How long it runs at most: it may use what is held for others until then.
    length: Option<Millis>,
    charge: Amounts,
    shape: ShapeKey,
}

/// Those that wait for one thing.
#[derive(Clone, Debug, Default)]
struct Group {
    members: BTreeSet<OrderKey>,
    /// The reason of all of them, where it is the same to the last number.
    told: Option<Reason>,
}

/// Waiting gangs of a queue by what they wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alike {
    groups: BTreeMap<Arc<Kind>, Group>,
    kind_of: BTreeMap<OrderKey, Arc<Kind>>,
    /// Those that are like no other, as far as it is known.
    single: BTreeSet<OrderKey>,
}

impl Alike {
    fn new(waiting: impl Iterator<Item = OrderKey>) -> Self {
        Self { single: waiting.collect(), ..Self::default() }
    }

    /// A gang leaves its group. The first of those that stay, where it was that itself.
    fn leave(&mut self, order: &OrderKey) -> Option<OrderKey> {
        let kind = self.kind_of.remove(order)?;
        let group = self.groups.get_mut(&kind)?;
        let was_first = group.members.first() == Some(order);
        group.members.remove(order);
        if group.members.is_empty() {
            self.groups.remove(&kind);
            return None;
        }
        group.members.first().copied().filter(|_| was_first)
    }

    fn join(&mut self, order: OrderKey, kind: Kind, reason: Option<Reason>) {
        self.single.remove(&order);
        let known = self.groups.get_key_value(&kind).map(|(known, _)| known.clone());
        let kind = known.unwrap_or_else(|| Arc::new(kind));
        self.kind_of.insert(order, kind.clone());
        let group = self.groups.entry(kind).or_default();
        group.members.insert(order);
        if group.told != reason {
            group.told = if group.members.len() == 1 { reason } else { None };
        }
    }

    /// Those of whom one has to be tried to know of all.
    fn to_ask(&self) -> impl Iterator<Item = OrderKey> {
        let first = self.groups.values().filter_map(|group| group.members.first());
        self.single.iter().chain(first).copied()
    }

    /// Groups, and gangs in them.
    fn count(&self) -> usize {
        self.groups.len() + self.kind_of.len()
    }
}

impl Queue {
    /// A gang waits and is tried in the next pass. Whether it is still like others is seen then.
    pub(crate) fn ask(&mut self, order: OrderKey, key: GangKey) {
        self.waiting.insert(order, key);
        self.to_try.insert(order);
        if let Some(alike) = self.alike.as_mut().filter(|alike| !alike.kind_of.contains_key(&order)) {
            alike.single.insert(order);
        }
    }

    /// It waits no more. True where others are to be tried than before.
    pub(crate) fn ask_no_more(&mut self, order: &OrderKey) -> bool {
        self.waiting.remove(order);
        let was_to_try = self.to_try.remove(order);
        let Some(alike) = &mut self.alike else { return was_to_try };
        alike.single.remove(order);
        let next = alike.leave(order).filter(|next| self.to_try.insert(*next));
        was_to_try || next.is_some()
    }

    /// What it waits for it does not wait for alone, nor with those that were like it. True where one of these is to be
    /// tried now.
    pub(crate) fn stand_alone(&mut self, order: &OrderKey) -> bool {
        let Some(alike) = self.alike.as_mut().filter(|alike| alike.kind_of.contains_key(order)) else {
            return false;
        };
        let next = alike.leave(order);
        alike.single.insert(*order);
        next.is_some_and(|next| self.to_try.insert(next))
    }

    /// Tries all who wait and for whom something may have changed, those that are alike by their first.
    pub(crate) fn ask_all(&mut self, is_such: impl Fn(&OrderKey) -> bool) {
        match &self.alike {
            Some(alike) => self.to_try.extend(alike.to_ask().filter(is_such)),
            None => self.to_try.extend(self.waiting.keys().copied().filter(is_such)),
        }
    }

    pub(crate) fn count_alike(&self) -> usize {
        self.alike.as_ref().map_or(0, Alike::count)
    }

    /// Each waiting gang is either in a group or single, and nobody else is.
    pub(crate) fn check_alike(&self) -> Result<(), String> {
        let Some(alike) = &self.alike else { return Ok(()) };
        let all: BTreeSet<&OrderKey> = alike.single.iter().chain(alike.kind_of.keys()).collect();
        let is_whole = all.len() == alike.single.len() + alike.kind_of.len();
        if is_whole && all.into_iter().eq(self.waiting.keys()) {
            return Ok(());
        }
        Err(format!("{} gangs wait, known as alike or not: {alike:?}", self.waiting.len()))
    }
}

impl Core {
    /// All who wait are tried each for itself the next time.
    pub(crate) fn forget_alike(&mut self) {
        self.queues.queues.values_mut().for_each(|queue| queue.alike = None);
    }

    /// A gang was tried: it waits with those that are like it, or the next of those with which it waited is tried.
    pub(crate) fn note_alike(&mut self, name: &QueueName, order: OrderKey, key: GangKey, now: Time) {
        let kind = self.kind_of(name, order, key, now);
        let reason = self.gangs.gangs.get(&key).and_then(|gang| gang.reason.clone());
        let Some(queue) = self.queues.queues.get_mut(name).filter(|queue| queue.waiting.contains_key(&order))
        else {
            return;
        };
        let waiting = &queue.waiting;
        let alike = queue.alike.get_or_insert_with(|| Alike::new(waiting.keys().copied()));
        let before = alike.kind_of.get(&order);
        if before.is_some_and(|before| kind.as_ref() == Some(&**before)) {
            return self.tell_alike(name, order, reason.as_ref());
        }
        if let Some(next) = alike.leave(&order) {
            queue.to_try.insert(next);
            self.queues.to_try.insert(name.clone());
        }
        match kind {
            Some(kind) => alike.join(order, kind, reason),
            None => {
                alike.single.insert(order);
            }
        }
    }

    /// Those that are like this one wait for the same thing, and are told the same. How much of a ceiling is used is counted
    /// up to each one's own place in the order: there the others keep the number that each found itself.
    fn tell_alike(&mut self, name: &QueueName, order: OrderKey, reason: Option<&Reason>) {
        if reason.is_some_and(|reason| reason.ceiling().is_some()) {
            return;
        }
        let Some(queue) = self.queues.queues.get_mut(name) else { return };
        let Some(alike) = &mut queue.alike else { return };
        let group = alike.kind_of.get(&order).and_then(|kind| alike.groups.get_mut(kind));
        let Some(group) = group.filter(|group| group.told.as_ref() != reason) else { return };
        group.told = reason.cloned();
        for other in &group.members {
            let gang = queue.waiting.get(other).and_then(|key| self.gangs.gangs.get_mut(key));
            if let Some(gang) = gang.filter(|gang| gang.reason.as_ref() != reason) {
                gang.reason = reason.cloned();
            }
        }
    }

    /// What a gang waits for, as far as it is all that matters; `None` where something of its own keeps it.
    fn kind_of(&self, name: &QueueName, order: OrderKey, key: GangKey, now: Time) -> Option<Kind> {
        let gang = self.gangs.gangs.get(&key)?;
        let reason = gang.reason.as_ref().filter(|reason| is_shared(reason))?;
        let queue = self.queues.get(name).filter(|queue| !queue.is_strict())?;
        let is_free = matches!(gang.phase, Phase::Queued | Phase::Admitted)
            && queue.waiting.contains_key(&order)
            && gang.order == order
            && !gang.deleted
            && gang.not_before <= now
            && gang.evict_not_before <= now
            && gang.spec.policy.group.is_none();
        if !is_free || self.has_own_view(key, now) {
            return None;
        }
        let required = self.required(gang);
        self.check_pods(gang, &required).ok()?;
        Some(Kind {
            code: reason.code(),
            is_lasting: reason.is_lasting(),
            phase: gang.phase.kind(),
            priority: order.priority.0,
            never_evicts: never_evicts(self, &gang.spec),
            is_due: gang.waiting_since + self.hold_after(gang) <= now,
            length: self.length_of(gang),
            charge: self.admission_charge(gang, &required),
            shape: shape_key(&self.shape(key), &required),
        })
    }
}

/// It follows from what a gang asks for, and from nodes and queues: from nothing that is the gang's alone.
fn is_shared(reason: &Reason) -> bool {
    match reason {
        Reason::NoRoom(_)
        | Reason::QuotaUsed { .. }
        | Reason::AboveCapability { .. }
        | Reason::NoNodeMatches(_)
        | Reason::NoNodeOffers { .. }
        | Reason::LargerThanAnyNode { .. }
        | Reason::LargerThanCluster { .. } => true,
        Reason::Queue(held) => held.is_of_amounts(),
        _ => false,
    }
}
