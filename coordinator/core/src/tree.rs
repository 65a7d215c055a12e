//! The tree of queues: what a queue has, its ancestors have too.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};
use phalanx_common::queue::QueueSpec;

use crate::action::{Action, Command};
use crate::amounts::{Amounts, ResourceKey};
use crate::core::Core;
use crate::queue::{Over, Queue, Queues};
use crate::queues::{QueueProblem, ROOT, problem};
use crate::reason::{QueueHeld, Reason};

/// What leaves queues, by the queue that it is counted in: an eviction that is only thought of, or a gang's own charge.
pub(crate) type Gone = BTreeMap<QueueName, Amounts>;

impl Queues {
    /// Works through a queue and its ancestors, the root included, from below.
    fn each_up(&mut self, name: &QueueName, mut change: impl FnMut(&mut Queue)) {
        let mut next = Some(name.clone());
        // What a child lacks of its guarantee before and after: a part of what its parent's children lack.
        let mut lacked: Option<(Amounts, Amounts)> = None;
        while let Some(queue) = next.and_then(|name| self.queues.get_mut(&name)) {
            change(queue);
            if let Some((before, after)) = lacked.take() {
                queue.below_unmet.subtract(&before);
                queue.below_unmet.add(&after);
            }
            if self.has_guarantees {
                let before = queue.unmet.clone();
                queue.note_unmet();
                lacked = Some((before, queue.unmet.clone()));
            }
            next = queue.up.clone();
        }
    }

    /// Counts what placed pods of a queue hold.
    pub(crate) fn allocate(&mut self, name: &QueueName, amounts: &Amounts) {
        self.ensure(name).own_allocated.add(amounts);
        self.each_up(name, |queue| queue.allocated.add(amounts));
        self.are_shares_fresh = false;
    }

    /// They hold it no more.
    pub(crate) fn release(&mut self, name: &QueueName, amounts: &Amounts) {
        self.ensure(name).own_allocated.subtract(amounts);
        self.each_up(name, |queue| queue.allocated.subtract(amounts));
        self.are_shares_fresh = false;
    }

    /// Counts what a gang of a queue is to be charged instead of what it was.
    pub(crate) fn charge(&mut self, name: &QueueName, before: &Amounts, after: &Amounts) {
        let own = self.ensure(name);
        own.own_charged.subtract(before);
        own.own_charged.add(after);
        self.each_up(name, |queue| {
            let times =
                if planted::is(Bug::ChargeChildrenTwice) && !queue.children.is_empty() { 2 } else { 1 };
            for _ in 0..times {
                queue.charged.subtract(before);
                queue.charged.add(after);
            }
        });
    }

    /// Counts what a gang of a queue asks for beside what it has.
    pub(crate) fn want(&mut self, name: &QueueName, before: &Amounts, after: &Amounts) {
        let own = self.ensure(name);
        own.own_wants.subtract(before);
        own.own_wants.add(after);
        self.are_shares_fresh = false;
    }

    /// Where something given back may let others start that wait for quota.
    pub(crate) fn is_limited(&self, name: &QueueName) -> bool {
        self.has_guarantees || self.up_from(name).any(|(_, queue)| queue.has_limits())
    }

    /// A queue and its ancestors, the root included.
    pub(crate) fn up_from(&self, name: &QueueName) -> impl Iterator<Item = (&QueueName, &Queue)> {
        let mut next = self.queues.get_key_value(name);
        std::iter::from_fn(move || {
            let found = next?;
            next = found.1.up.as_ref().and_then(|up| self.queues.get_key_value(up));
            Some(found)
        })
    }

    /// A queue's ancestors below the root, itself first.
    pub(crate) fn chain(&self, name: &QueueName) -> Vec<QueueName> {
        self.up_from(name).map(|(name, _)| name).filter(|name| name.as_str() != ROOT).cloned().collect()
    }

    /// What sets a queue aside: its own problem, or that of an ancestor.
    pub(crate) fn set_aside(&self, name: &QueueName) -> Option<&QueueProblem> {
        self.up_from(name).find_map(|(_, queue)| queue.problem.as_ref())
    }

    /// Of a queue whose limits are not known, or one below it: why nothing more is placed there.
    pub(crate) fn unknown_limits(&self, name: &QueueName) -> Option<Reason> {
        let is_unknown = |queue: &Queue| queue.spec.as_ref().is_some_and(|spec| spec.unreadable.is_some());
        let (_, above) = self.up_from(name).find(|(_, queue)| is_unknown(queue))?;
        let (queue, problem) = (name.clone(), above.problem.clone()?);
        Some(Reason::Queue(Box::new(QueueHeld::SetAside { queue, problem })))
    }

    /// Specs changed: the tree is put together anew. A queue whose parent is missing, or above and below it at once,
    /// hangs below the root, so that what it has is counted somewhere.
    pub(crate) fn rebuild(&mut self) {
        self.are_problems_told = false;
        let specs: Vec<QueueSpec> = self.queues.values().filter_map(|queue| queue.spec.clone()).collect();
        let by_name: BTreeMap<&QueueName, &QueueSpec> = specs.iter().map(|spec| (&spec.name, spec)).collect();
        let root = QueueName::from(ROOT);
        let mut children: BTreeMap<QueueName, BTreeSet<QueueName>> = BTreeMap::new();
        for (name, queue) in &mut self.queues {
            queue.problem = by_name.get(name).and_then(|spec| problem(spec, &by_name));
            let parent = queue.spec.as_ref().and_then(|spec| spec.parent.clone());
            let known = parent.filter(|parent| by_name.contains_key(parent) && !in_circle(name, &by_name));
            queue.up = (*name != root).then(|| known.unwrap_or_else(|| root.clone()));
            if let Some(up) = &queue.up {
                children.entry(up.clone()).or_default().insert(name.clone());
            }
        }
        for (name, queue) in &mut self.queues {
            queue.children = children.remove(name).unwrap_or_default();
        }
        self.recount();
    }

    /// Counts what each queue has with those below it, and what it lacks of its guarantee, from what is its own.
    pub(crate) fn recount(&mut self) {
        self.has_guarantees = self.queues.values().any(|queue| !queue.guarantee.is_zero());
        self.are_shares_fresh = false;
        for queue in self.queues.values_mut() {
            queue.allocated = Amounts::default();
            queue.charged = Amounts::default();
            queue.below_unmet = Amounts::default();
            queue.unmet = Amounts::default();
        }
        let names: Vec<QueueName> = self.queues.keys().cloned().collect();
        for name in names {
            let Some(queue) = self.queues.get(&name) else { continue };
            let (allocated, charged) = (queue.own_allocated.clone(), queue.own_charged.clone());
            self.each_up(&name, |queue| {
                queue.allocated.add(&allocated);
                queue.charged.add(&charged);
            });
        }
    }

    /// The nodes that are there have another capacity: a guarantee above all of it can be kept for nobody, and sets
    /// nothing aside. While some node is not known yet it may still be less than that.
    pub(crate) fn note_capacity(&mut self, capacity: &Amounts, is_complete: bool) {
        for queue in self.queues.values_mut() {
            let mut kept = queue.asked_guarantee.clone();
            if queue.problem.is_some() {
                kept = Amounts::default();
            }
            for key in queue.asked_guarantee.keys() {
                if is_complete && kept.get(key) > capacity.get(key) {
                    kept.set(key, 0);
                }
            }
            queue.guarantee = kept;
        }
        self.recount();
    }

    /// The first ceiling of a queue or its ancestors that `asked` would pass, were `gone` gone.
    pub(crate) fn over(&self, name: &QueueName, gone: &Gone, asked: &Amounts) -> Option<Over> {
        let levels = if planted::is(Bug::IgnoreAncestors) { 1 } else { usize::MAX };
        let mut limited = self.up_from(name).take(levels).filter(|(_, queue)| queue.has_limits());
        limited.find_map(|(above, queue)| {
            let mut used = queue.allocated.clone();
            used.add(&queue.charged);
            for (_, amounts) in gone.iter().filter(|(of, _)| self.is_below(of, above)) {
                used.subtract(amounts);
            }
            queue.over(above, &used, asked)
        })
    }

    /// The first ceiling of a queue or its ancestors that `asked` would pass if nothing else were there.
    pub(crate) fn above_ceiling(&self, name: &QueueName, asked: &Amounts) -> Option<Over> {
        let none = Amounts::default();
        self.up_from(name).find_map(|(above, queue)| queue.over(above, &none, asked))
    }

    /// True for the queue itself too.
    pub(crate) fn is_below(&self, name: &QueueName, above: &QueueName) -> bool {
        self.up_from(name).any(|(known, _)| known == above)
    }

    /// Those that something of a resource is set aside for: the topmost of each branch. `all`: those who use it too.
    pub(crate) fn owners_of_guarantees(
        &self,
        name: &QueueName,
        key: ResourceKey,
        all: bool,
    ) -> Vec<QueueName> {
        let is_owner = |child: &QueueName| {
            let kept = |queue: &Queue| if all { queue.kept.get(key) } else { queue.unmet.get(key) };
            self.queues.get(child).map_or(0, kept) > 0
        };
        let siblings = self.siblings_above(name).filter(|sibling| is_owner(sibling));
        siblings.cloned().collect()
    }

    /// By how much which guarantees are to be lowered, so that `by` less is set aside for these queues. `all`: whether it is
    /// used or not.
    pub(crate) fn less_guaranteed(
        &self,
        owners: &[QueueName],
        key: ResourceKey,
        all: bool,
        by: u64,
    ) -> Vec<(QueueName, u64)> {
        let mut lower = Vec::new();
        self.lower_each(owners.iter(), key, all, by, &mut lower);
        lower
    }

    fn lower_each<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
        key: ResourceKey,
        all: bool,
        mut by: u64,
        lower: &mut Vec<(QueueName, u64)>,
    ) {
        for (name, queue) in queues.filter_map(|name| Some((name, self.queues.get(name)?))) {
            let kept = |queue: &Queue| if all { queue.kept.get(key) } else { queue.unmet.get(key) };
            let part = kept(queue).min(by);
            by -= part;
            // What is kept for a queue is its own guarantee or that of those below it, whichever is more: both go down.
            let rest = kept(queue) - part;
            let used = if all { 0 } else { queue.allocated.get(key) };
            let own = queue.guarantee.get(key).saturating_sub(used);
            if own > rest {
                lower.push((name.clone(), own - rest));
            }
            let children = || queue.children.iter();
            let below: u64 = children().filter_map(|child| self.queues.get(child)).map(kept).sum();
            if below > rest {
                self.lower_each(children(), key, all, below - rest, lower);
            }
        }
    }

    /// The siblings of a queue, and of each above it.
    fn siblings_above(&self, name: &QueueName) -> impl Iterator<Item = &QueueName> {
        self.up_from(name).flat_map(|(own, queue)| {
            let parent = queue.up.as_ref().and_then(|up| self.queues.get(up));
            parent.into_iter().flat_map(|parent| &parent.children).filter(move |child| *child != own)
        })
    }

    /// What is set aside for others, whether they use it or not: what a queue could never have.
    pub(crate) fn all_guaranteed_to_others(&self, name: &QueueName) -> Amounts {
        let mut sum = Amounts::default();
        for sibling in self.siblings_above(name) {
            if let Some(queue) = self.queues.get(sibling) {
                sum.add(&queue.kept);
            }
        }
        sum
    }

    /// What is set aside for others and not used by them, as far as it is not lent to this queue.
    pub(crate) fn guaranteed_to_others(&self, name: &QueueName) -> Amounts {
        let mut sum = Amounts::default();
        if !self.has_guarantees || planted::is(Bug::LendGuarantees) {
            return sum;
        }
        for (_, queue) in self.up_from(name) {
            if let Some(parent) = queue.up.as_ref().and_then(|up| self.queues.get(up)) {
                let mut others = parent.below_unmet.clone();
                others.subtract(&queue.unmet);
                sum.add(&others);
            }
        }
        sum
    }
}

fn in_circle(name: &QueueName, all: &BTreeMap<&QueueName, &QueueSpec>) -> bool {
    let mut at = name;
    for _ in 0..all.len() {
        let Some(parent) = all.get(at).and_then(|spec| spec.parent.as_ref()) else { return false };
        if parent == name {
            return true;
        }
        at = parent;
    }
    false
}

impl Core {
    /// A queue and its ancestors below the root, from below.
    pub(crate) fn chain(&self, queue: &QueueName) -> Vec<QueueName> {
        self.queues.chain(queue)
    }

    /// What a queue has is another, and so is what those above it have.
    pub(crate) fn touch_chain(&mut self, queue: &QueueName) {
        self.touched_queues.extend(self.queues.up_from(queue).map(|(name, _)| name.clone()));
    }

    /// Says once of each queue that is set aside what is wrong with it.
    pub(crate) fn tell_problems(&mut self, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.queues.are_problems_told, true) {
            return;
        }
        let mut messages = Vec::new();
        for queue in self.queues.queues.values_mut() {
            let problem = queue.problem.as_ref().map(ToString::to_string);
            if queue.told != problem {
                messages.extend(problem.clone());
                queue.told = problem;
            }
        }
        for problem in messages {
            let message = format!("{problem}; its gangs wait until that is corrected");
            self.emit(Command::Warn { message }, actions);
        }
    }

    /// What the placed pods of a queue and of those below it hold.
    pub(crate) fn allocated_of(&self, queue: &QueueName) -> &Amounts {
        self.queues.get(queue).map_or(&self.queues.nothing, |queue| &queue.allocated)
    }

    /// What is set aside for a queue: its own guarantee, and at least what is set aside for those below it.
    pub(crate) fn guarantee_of(&self, queue: &QueueName) -> Amounts {
        self.queues.guarantee_of(queue)
    }

    /// Others may take back what it has above its share: all of its chain allows it. What its share is must be known for
    /// that.
    pub(crate) fn is_reclaimable(&self, queue: &QueueName) -> bool {
        let allows = |queue: &Queue| {
            queue.spec.as_ref().is_none_or(|spec| spec.reclaimable && spec.unreadable.is_none())
        };
        planted::is(Bug::ReclaimAlways) || self.queues.up_from(queue).all(|(_, queue)| allows(queue))
    }
}
