//! Whose turn it is: at each level of the tree the queue of the higher priority, then the one that has the smaller part of
//! its share, then the one whose first gang is older. First all gangs that need their minimum, then pods above it.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};
use phalanx_common::queue::Dequeue;
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::core::Core;
use crate::gang::{Gang, GangKey};
use crate::pass::Failed;
use crate::phase::PhaseKind;
use crate::queue::{Queue, Queues};
use crate::queues::ROOT;
use crate::reason::Reason;
use crate::shares::Part;
use crate::strict::Strict;

/// Order of the gangs of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct OrderKey {
    /// It has its minimum: what it asks for beyond comes after all who have not.
    pub(crate) is_surplus: bool,
    /// The higher one goes first.
    pub(crate) priority: Reverse<i32>,
    /// It owns nothing yet. One that does, and has less than its minimum, goes first: what it owns serves nobody.
    pub(crate) is_fresh: bool,
    /// When its PodGroup was made.
    pub(crate) created: Time,
    /// Order of arrival.
    pub(crate) arrival: GangKey,
}

impl OrderKey {
    /// Where a gang that has just come stands.
    pub(crate) const fn new(priority: i32, created: Time, arrival: GangKey) -> Self {
        Self { is_surplus: false, priority: Reverse(priority), is_fresh: true, created, arrival }
    }

    /// The same in another phase.
    pub(crate) fn in_phase(self, kind: PhaseKind) -> Self {
        let is_surplus = matches!(kind, PhaseKind::Running);
        let is_fresh =
            !matches!(kind, PhaseKind::Degraded | PhaseKind::Running) || planted::is(Bug::ForgetDegraded);
        Self { is_surplus, is_fresh, ..self }
    }

    /// Older, or more urgent, whatever either has.
    pub(crate) fn precedes(&self, other: &Self) -> bool {
        let rank = |key: &Self| (key.priority, key.created, key.arrival);
        rank(self) < rank(other)
    }
}

/// What decides between two queues below the same one: the smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_surplus: bool,
    /// Of the queue.
    priority: Reverse<i32>,
    /// The largest part that it has of its share in any resource.
    part: Part,
    /// The same in what its first gang asks for: who has much of another resource does not stand back for that.
    part_of_wants: Part,
    /// Of its first gang.
    created: Time,
    arrival: GangKey,
}

/// A queue with gangs to be tried, its own or those of queues below it.
struct Branch {
    name: QueueName,
    up: Option<usize>,
    /// Of the queues below it that have such gangs.
    below: BTreeSet<(Rank, usize)>,
    /// As it stands in the list of the queue above it.
    rank: Option<Rank>,
}

/// The queues in which gangs are to be tried, in their turn. It stands until another gang is to be tried.
pub(crate) struct Turns {
    branches: Vec<Branch>,
    /// `woken` of the queues when it was made.
    pub(crate) made_at: u64,
}

impl Turns {
    pub(crate) fn new(core: &Core) -> Self {
        let queues = &core.queues;
        let mut turns = Self { branches: Vec::new(), made_at: queues.woken };
        let mut known: BTreeMap<QueueName, usize> = BTreeMap::new();
        turns.branch(queues, &QueueName::from(ROOT), &mut known);
        for name in &queues.to_try {
            let at = turns.branch(queues, name, &mut known);
            turns.place(core, at);
        }
        turns
    }

    /// Where a queue stands, with all that are above it.
    fn branch(&mut self, queues: &Queues, name: &QueueName, known: &mut BTreeMap<QueueName, usize>) -> usize {
        let mut path = Vec::new();
        for (name, _) in queues.up_from(name) {
            if known.contains_key(name) {
                break;
            }
            path.push(name.clone());
        }
        while let Some(name) = path.pop() {
            let up =
                queues.get(&name).and_then(|queue| queue.up.as_ref()).and_then(|up| known.get(up)).copied();
            known.insert(name.clone(), self.branches.len());
            self.branches.push(Branch { name, up, below: BTreeSet::new(), rank: None });
        }
        known.get(name).copied().unwrap_or(0)
    }

    /// The first gang of a queue itself, as a rank.
    fn own_rank(&self, queues: &Queues, at: usize) -> Option<Rank> {
        let queue = queues.get(&self.branches[at].name)?;
        let first = queue.to_try.first()?;
        Some(Rank {
            is_surplus: first.is_surplus,
            priority: Reverse(i32::MAX),
            part: Part::NONE,
            part_of_wants: Part::NONE,
            created: first.created,
            arrival: first.arrival,
        })
    }

    /// Puts a queue, and those above it, where they belong now.
    fn place(&mut self, core: &Core, at: usize) {
        let queues = &core.queues;
        let mut next = Some(at);
        while let Some(at) = next {
            let own = self.own_rank(queues, at);
            let first = self.branches[at].below.first().map(|(rank, _)| *rank).into_iter().chain(own).min();
            let rank = first.map(|first| {
                let name = &self.branches[at].name;
                let priority = Reverse(queues.get(name).map_or(0, |queue| queue.priority()));
                let wants = core.gangs.gangs.get(&first.arrival).map(|gang| &gang.wants);
                let part_of_wants = wants.map_or(Part::NONE, |wants| queues.part_of(name, wants.keys()));
                Rank { priority, part: queues.part(name), part_of_wants, ..first }
            });
            let before = std::mem::replace(&mut self.branches[at].rank, rank);
            next = self.branches[at].up;
            if let Some(up) = next {
                let below = &mut self.branches[up].below;
                before.map(|rank| below.remove(&(rank, at)));
                below.extend(rank.map(|rank| (rank, at)));
            }
        }
    }

    /// The queue whose first gang is to be tried next, by its place.
    pub(crate) fn next(&self, queues: &Queues) -> Option<(usize, &QueueName)> {
        let mut at = 0;
        loop {
            let below = self.branches.get(at)?.below.first();
            match (below, self.own_rank(queues, at)) {
                (Some((rank, child)), own) if own.is_none_or(|own| *rank < own) => at = *child,
                (_, Some(_)) => return Some((at, &self.branches[at].name)),
                (_, None) => return None,
            }
        }
    }

    /// A gang of the queue at this place was tried.
    pub(crate) fn tried(&mut self, core: &Core, at: usize) {
        self.place(core, at);
    }
}

impl Queues {
    /// The turn of one queue comes before that of another one, whatever waits in either.
    pub(crate) fn goes_before(&self, name: &QueueName, other: &QueueName) -> bool {
        self.compare(name, other) == Ordering::Less
    }

    /// Two queues by their turn: by priority and part of the two below the lowest one that is above both.
    pub(crate) fn compare(&self, left: &QueueName, right: &QueueName) -> Ordering {
        let path = |name: &QueueName| {
            let mut path: Vec<QueueName> = self.up_from(name).map(|(name, _)| name.clone()).collect();
            path.reverse();
            path
        };
        let (left, right) = (path(left), path(right));
        let rank = |name: &QueueName| {
            let priority = self.get(name).map_or(0, |queue| queue.priority());
            (Reverse(priority), self.part(name))
        };
        let branches = left.iter().zip(&right).find(|(left, right)| left != right);
        branches.map_or(Ordering::Equal, |(left, right)| rank(left).cmp(&rank(right)))
    }

    /// A gang waits for a place, or for a place for more pods; it is tried in the next pass.
    fn wait(&mut self, queue: &QueueName, order: OrderKey, key: GangKey) {
        self.ensure(queue).ask(order, key);
        self.to_try.insert(queue.clone());
        self.woken += 1;
    }

    /// It waits no more.
    fn wait_no_more(&mut self, queue: &QueueName, order: &OrderKey) {
        let Some(entry) = self.queues.get_mut(queue) else { return };
        let is_other = entry.ask_no_more(order);
        if entry.to_try.is_empty() {
            self.to_try.remove(queue);
        } else {
            self.to_try.insert(queue.clone());
        }
        self.woken += u64::from(is_other);
    }

    /// A gang was tried with others, before its turn.
    pub(crate) fn try_no_more(&mut self, queue: &QueueName, order: &OrderKey) {
        let Some(entry) = self.queues.get_mut(queue) else { return };
        let was_to_try = entry.to_try.remove(order);
        let has_next = entry.stand_alone(order);
        if entry.to_try.is_empty() {
            self.to_try.remove(queue);
        } else {
            self.to_try.insert(queue.clone());
        }
        self.woken += u64::from(was_to_try || has_next);
    }

    /// Takes the first gang to be tried of a queue.
    pub(crate) fn take_first(&mut self, queue: &QueueName) -> Option<(OrderKey, GangKey)> {
        let entry = self.queues.get_mut(queue)?;
        let order = entry.to_try.pop_first();
        if entry.to_try.is_empty() {
            self.to_try.remove(queue);
        }
        Some((order?, *entry.waiting.get(&order?)?))
    }

    /// A gang that waits is tried once more in this pass.
    pub(crate) fn try_again(&mut self, name: &QueueName, order: OrderKey) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.to_try.insert(order);
            self.to_try.insert(name.clone());
        }
    }

    /// Tries those of a queue for whom something may have changed.
    pub(crate) fn ask_all(&mut self, name: &QueueName, is_such: impl Fn(&OrderKey) -> bool) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.ask_all(is_such);
        if !queue.to_try.is_empty() {
            self.to_try.insert(name.clone());
            self.woken += 1;
        }
    }

    /// Where a queue serves strictly in order, who is tried depends on all who wait before.
    pub(crate) fn wake_strict(&mut self) {
        for name in &self.to_try {
            let Some(queue) = self.queues.get_mut(name).filter(|queue| queue.is_strict()) else { continue };
            queue.to_try.extend(queue.waiting.keys().copied());
        }
    }

    /// Gangs that wait.
    pub(crate) fn count_waiting(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    /// Those of them to be tried in the next pass.
    pub(crate) fn count_to_try(&self) -> usize {
        self.queues.values().map(|queue| queue.to_try.len()).sum()
    }
}

impl Queue {
    /// Those to be tried.
    pub(crate) fn gangs_to_try(&self) -> impl Iterator<Item = &GangKey> {
        self.to_try.iter().filter_map(|order| self.waiting.get(order))
    }

    /// It serves strictly in order.
    pub(crate) fn is_strict(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.dequeue == Dequeue::Fifo && !planted::is(Bug::IgnoreFifo))
    }
}

impl Core {
    /// What queues are entitled to stays what it is for the whole pass; what they have of it is that of each moment.
    pub(crate) fn try_in_turn(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.refresh_shares();
        self.forget_evictable();
        self.forget_holds();
        self.queues.wake_strict();
        let (mut failed, mut strict) = (Failed::new(), Strict::default());
        let mut turns = Turns::new(self);
        self.put_off_evictions();
        loop {
            while let Some((at, queue)) = turns.next(&self.queues) {
                let queue = queue.clone();
                let first = self.queues.take_first(&queue);
                if let Some((order, key)) = first {
                    self.try_one(key, &queue, &mut failed, &mut strict, now);
                    self.write_tried(key, actions);
                    self.note_alike(&queue, order, key, now);
                }
                if turns.made_at == self.queues.woken {
                    turns.tried(self, at);
                } else {
                    // Others are to be tried as well, or are no more.
                    self.queues.wake_strict();
                    strict.begin_anew();
                    turns = Turns::new(self);
                }
            }
            if !self.take_up_evictions() {
                return;
            }
            self.queues.wake_strict();
            strict.begin_anew();
            turns = Turns::new(self);
        }
    }

    /// What shows of a gang that was tried, and of those that start with it; not yet where it is tried once more.
    fn write_tried(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        if self.is_put_off(key) {
            return;
        }
        self.write_gang_status(key, actions);
        for other in self.group_mates(key) {
            self.write_gang_status(other, actions);
        }
    }

    fn try_one(
        &mut self,
        key: GangKey,
        queue: &QueueName,
        failed: &mut Failed,
        strict: &mut Strict,
        now: Time,
    ) {
        let is_strict = self.queues.get(queue).is_some_and(Queue::is_strict);
        let behind = if is_strict { strict.behind(self, key) } else { None };
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        match gang.phase.kind() {
            PhaseKind::Queued | PhaseKind::Admitted => self.try_start(key, behind, failed, now),
            PhaseKind::Running | PhaseKind::Degraded => match behind {
                Some(reason) => {
                    let waiting = u32::try_from(self.candidates(gang).len()).unwrap_or(u32::MAX);
                    self.set_waiting_reason(key, waiting, Some(reason));
                }
                None => self.try_grow(key, failed, now),
            },
            PhaseKind::Reserving
            | PhaseKind::Committing
            | PhaseKind::Arming
            | PhaseKind::Binding
            | PhaseKind::Evicting
            | PhaseKind::Finished => {}
        }
        for tried in self.group_mates(key).into_iter().chain([key]) {
            self.note_tried(tried);
        }
        if is_strict {
            strict.note(self, key);
        }
    }

    /// More pods of a gang wait, for this.
    pub(crate) fn set_waiting_reason(&mut self, key: GangKey, waiting: u32, cause: Option<Reason>) {
        let kind = self.gangs.gangs.get(&key).map(|gang| gang.phase.kind());
        let evicts = self.settings.preempt || self.settings.reclaim;
        let cause = cause.map(|cause| match kind {
            Some(PhaseKind::Running) if evicts => cause.above_minimum(),
            _ => cause,
        });
        let reason = |cause| Reason::MorePodsWait { met: None, waiting, cause: Box::new(cause) };
        self.set_reason(key, cause.map(reason));
    }

    /// It is known now whether the gang can run at all, with what is there.
    fn note_tried(&mut self, key: GangKey) {
        let can_run = |gang: &Gang| !gang.reason.as_ref().is_some_and(Reason::is_lasting);
        if self.gangs.gangs.get(&key).is_some_and(|gang| can_run(gang) == gang.wants.is_zero()) {
            self.note_wants(key);
        }
        let generation = self.cluster.capacity_generation;
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.tried_with = Some(generation);
        }
    }

    /// The gang waits for a place, or does not any more.
    pub(crate) fn set_waiting(&mut self, key: GangKey, waits: bool) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if waits {
            self.queues.wait(&gang.spec.queue, gang.order, key);
        } else {
            self.queues.wait_no_more(&gang.spec.queue, &gang.order);
        }
    }

    /// True while something will look at the gang.
    pub(crate) fn is_waiting(&self, gang: &Gang) -> bool {
        self.queues.get(&gang.spec.queue).is_some_and(|queue| queue.waiting.contains_key(&gang.order))
    }

    /// Tries every waiting gang in the next pass.
    pub(crate) fn wake_all(&mut self) {
        for (name, queue) in self.queues.queues.iter_mut().filter(|(_, queue)| !queue.waiting.is_empty()) {
            queue.ask_all(|_| true);
            self.queues.to_try.insert(name.clone());
        }
        self.queues.woken += 1;
    }

    /// The gang stands elsewhere in its queue from now on.
    pub(crate) fn move_order(&mut self, key: GangKey, after: OrderKey) {
        let Some(gang) = self.gangs.gangs.get_mut(&key).filter(|gang| gang.order != after) else { return };
        let before = std::mem::replace(&mut gang.order, after);
        let queue = self.queues.ensure(&gang.spec.queue);
        if queue.admitted.remove(&before).is_some() {
            queue.admitted.insert(after, key);
        }
        if queue.waiting.contains_key(&before) {
            // Whoever stands elsewhere is tried anew.
            queue.ask_no_more(&before);
            queue.ask(after, key);
            let name = gang.spec.queue.clone();
            self.queues.to_try.insert(name);
            self.queues.woken += 1;
        }
        if before.priority != after.priority {
            self.note_giver(key);
        }
    }

    /// The gang and what is known of its place in line go from one queue to another.
    pub(crate) fn move_line(&mut self, from: &QueueName, to: &QueueName, order: OrderKey, key: GangKey) {
        let old = self.queues.ensure(from);
        let (admitted, waits) = (old.admitted.remove(&order).is_some(), old.waiting.contains_key(&order));
        self.queues.wait_no_more(from, &order);
        if admitted {
            self.queues.ensure(to).admitted.insert(order, key);
        }
        if waits {
            self.queues.wait(to, order, key);
        }
    }
}
