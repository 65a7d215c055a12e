//! Queues: ceilings, charges and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::Resources;
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::action::QueueStatus;
use crate::alike::Alike;
use crate::amounts::{Amounts, ResourceKey, ResourceTable};
use crate::gang::GangKey;
use crate::phase::PhaseKind;
use crate::queues::{QueueProblem, ROOT};
use crate::reason::{Fewer, QueueHeld, Reason};
use crate::shares::Share;
use crate::turn::OrderKey;

/// One queue. A queue that gangs name and nobody made has no spec and takes no gang.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Queue {
    pub(crate) spec: Option<QueueSpec>,
    limits: Vec<(ResourceKey, Arc<str>, u64)>,
    /// What `deserved` names.
    pub(crate) named: Vec<(ResourceKey, u64)>,
    /// What `guarantee` names.
    pub(crate) asked_guarantee: Amounts,
    /// The same without what is more than all nodes have.
    pub(crate) guarantee: Amounts,
    /// Its parent; `None` only for the root.
    pub(crate) up: Option<QueueName>,
    pub(crate) children: BTreeSet<QueueName>,
    /// What sets it aside.
    pub(crate) problem: Option<QueueProblem>,
    /// The problem that was told last.
    pub(crate) told: Option<String>,
    /// What admitted gangs are charged that have no place, with those of the queues below it.
    pub(crate) charged: Amounts,
    /// What placed pods hold, with those of the queues below it.
    pub(crate) allocated: Amounts,
    /// The same of its own gangs only, and what those ask for beside it.
    pub(crate) own_charged: Amounts,
    pub(crate) own_allocated: Amounts,
    pub(crate) own_wants: Amounts,
    /// What it lacks of its guarantee, and what its children lack together.
    pub(crate) unmet: Amounts,
    pub(crate) below_unmet: Amounts,
    /// What it is entitled to, what it and those below it have and ask for, and what is kept for them: worked out
    /// together, and anew where they are missing.
    #[serde(skip)]
    pub(crate) share: Share,
    #[serde(skip)]
    pub(crate) demand: Amounts,
    #[serde(skip)]
    pub(crate) kept: Amounts,
    /// Admitted gangs that hold a charge and no place yet, in order.
    #[serde(with = "crate::pairs")]
    pub(crate) admitted: BTreeMap<OrderKey, GangKey>,
    /// Gangs that wait for a place, or for a place for more pods, and those of them to be tried in the next pass.
    #[serde(with = "crate::pairs")]
    pub(crate) waiting: BTreeMap<OrderKey, GangKey>,
    pub(crate) to_try: BTreeSet<OrderKey>,
    /// Those of them that wait for the same thing; `None` where all are tried each for itself.
    #[serde(skip)]
    pub(crate) alike: Option<Alike>,
    counts: BTreeMap<PhaseKind, u32>,
    /// Gangs that run, whole or not, and of which nothing of their own says that they must not be evicted: how many, by
    /// priority.
    #[serde(default, with = "crate::pairs")]
    pub(crate) givers: BTreeMap<i32, u32>,
    pub(crate) written: Option<QueueStatus>,
    /// When one was written last, or tried.
    #[serde(default)]
    pub(crate) written_at: Option<Time>,
    /// The API shows another status: then it is written again.
    pub(crate) stray_due: Option<Time>,
}

/// A ceiling that a request would pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// Whose ceiling it is.
    pub(crate) queue: QueueName,
    pub(crate) key: ResourceKey,
    pub(crate) resource: Arc<str>,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) asked: u64,
}

impl Over {
    /// The same where a part of what is asked for has its place already: that is used then.
    pub(crate) fn beside(mut self, placed: &Amounts) -> Self {
        let placed = placed.get(self.key);
        self.used = self.used.saturating_add(placed);
        self.asked = self.asked.saturating_sub(placed);
        self
    }

    /// The same as a reason of a gang of this queue.
    pub(crate) fn reason(self, queue: &QueueName) -> Reason {
        let Self { queue: ceiling_of, resource, limit, used, asked, .. } = self;
        let queue = queue.clone();
        if ceiling_of == queue {
            return Reason::QuotaUsed { queue, resource, limit, used, asked, eviction: None };
        }
        let held = QueueHeld::AncestorUsed {
            queue,
            ancestor: ceiling_of,
            resource,
            limit,
            used,
            asked,
            eviction: None,
        };
        Reason::Queue(Box::new(held))
    }
}

impl Over {
    /// The same as a reason of a gang that alone asks for more than the ceiling.
    pub(crate) fn never(self, queue: &QueueName, lower_to: Option<Box<Fewer>>) -> Reason {
        let Self { queue: ancestor, resource, limit, asked, .. } = self;
        let queue = queue.clone();
        if ancestor == queue {
            return Reason::AboveCapability { queue, resource, limit, asked, lower_to };
        }
        Reason::Queue(Box::new(QueueHeld::AboveAncestor {
            queue,
            ancestor,
            resource,
            limit,
            asked,
            lower_to,
        }))
    }
}

impl Queue {
    pub(crate) fn set_spec(&mut self, spec: Option<QueueSpec>, table: &mut ResourceTable) {
        let known = spec.as_ref().filter(|_| !planted::is(Bug::NoCapability));
        self.limits = known.map_or_else(Vec::new, |spec| limits(&spec.capability, table));
        let deserved = spec.iter().flat_map(|spec| spec.deserved.iter());
        self.named = deserved.map(|(name, amount)| (table.key(name), amount)).collect();
        self.asked_guarantee =
            spec.as_ref().map_or_else(Amounts::default, |spec| table.amounts(&spec.guarantee));
        self.guarantee = self.asked_guarantee.clone();
        self.spec = spec;
    }

    /// The first ceiling that `asked` beside `used` would pass; only what is asked for counts.
    pub(crate) fn over(&self, name: &QueueName, used: &Amounts, asked: &Amounts) -> Option<Over> {
        self.limits.iter().find_map(|(key, resource, limit)| {
            let (used, asked) = (used.get(*key), asked.get(*key));
            let most = limit.saturating_add(u64::from(planted::is(Bug::CeilingOffByOne)));
            let passes = asked > 0 && used.saturating_add(asked) > most;
            passes.then(|| Over {
                queue: name.clone(),
                key: *key,
                resource: resource.clone(),
                limit: *limit,
                used,
                asked,
            })
        })
    }

    /// What `asked` beside `used` lacks of each ceiling.
    pub(crate) fn lacks(&self, used: &Amounts, asked: &Amounts) -> Vec<(ResourceKey, u64)> {
        let lacks = self.limits.iter().map(|(key, _, limit)| {
            let needed = used.get(*key).saturating_add(asked.get(*key));
            (*key, if asked.get(*key) > 0 { needed.saturating_sub(*limit) } else { 0 })
        });
        lacks.filter(|(_, short)| *short > 0).collect()
    }

    /// What it lacks of its guarantee: its own, and at least what those below it lack together.
    pub(crate) fn note_unmet(&mut self) {
        self.unmet = self.guarantee.clone();
        self.unmet.subtract(&self.allocated);
        self.unmet.raise_to(&self.below_unmet);
    }

    /// True where gangs may have to wait for others of the queue.
    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// All ceilings.
    pub(crate) fn ceilings(&self) -> impl Iterator<Item = (ResourceKey, u64)> {
        self.limits.iter().map(|(key, _, limit)| (*key, *limit))
    }

    /// Ceiling of a resource.
    pub(crate) fn limit(&self, key: ResourceKey) -> Option<u64> {
        self.limits.iter().find(|(known, _, _)| *known == key).map(|(_, _, limit)| *limit)
    }

    pub(crate) fn priority(&self) -> i32 {
        self.spec.as_ref().map_or(0, |spec| spec.priority)
    }

    pub(crate) fn count(&mut self, kind: PhaseKind, more: bool) {
        let count = self.counts.entry(kind).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.spec.is_none() && self.up.is_some() && self.counts.values().all(|count| *count == 0)
    }

    pub(crate) fn status(&self, table: &ResourceTable) -> QueueStatus {
        let count = |kind| self.counts.get(&kind).copied().unwrap_or(0);
        use PhaseKind::{
            Admitted, Arming, Binding, Committing, Degraded, Evicting, Finished, Queued, Reserving, Running,
        };
        QueueStatus {
            allocated: table.resources(&self.allocated),
            reservation: table.resources(&self.unmet),
            pending: count(Queued),
            inqueue: [Admitted, Reserving, Committing, Arming, Binding].map(count).iter().sum(),
            running: [Running, Degraded, Evicting].map(count).iter().sum(),
            completed: count(Finished),
        }
    }
}

fn limits(capability: &Resources, table: &mut ResourceTable) -> Vec<(ResourceKey, Arc<str>, u64)> {
    capability.iter().map(|(name, limit)| (table.key(name), Arc::from(name.as_str()), limit)).collect()
}

/// All queues.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Queues {
    pub(crate) queues: BTreeMap<QueueName, Queue>,
    /// Those with gangs to be tried in the next pass.
    pub(crate) to_try: BTreeSet<QueueName>,
    /// Counts up with each change of who is to be tried that a pass does not make itself.
    pub(crate) woken: u64,
    /// Something is set aside for one of them.
    pub(crate) has_guarantees: bool,
    /// Nothing is wrong with a queue that was not said.
    pub(crate) are_problems_told: bool,
    /// `capacity_generation` of the cluster that guarantees and shares were last compared with.
    pub(crate) capacity_seen: Option<u64>,
    /// What all nodes that are there had then.
    pub(crate) capacity: Amounts,
    /// Shares are those of what is there and asked for now.
    #[serde(skip)]
    pub(crate) are_shares_fresh: bool,
    /// They are others than when all who wait were last tried: who may take back its share, or is held places.
    #[serde(skip)]
    pub(crate) shares_moved: bool,
    /// Counts up whenever they are worked out.
    #[serde(skip)]
    pub(crate) share_generation: u64,
    #[serde(skip)]
    pub(crate) nothing: Amounts,
}

impl Default for Queues {
    /// Only the root.
    fn default() -> Self {
        Self {
            queues: BTreeMap::from([(QueueName::from(ROOT), Queue::default())]),
            to_try: BTreeSet::new(),
            woken: 0,
            has_guarantees: false,
            are_problems_told: false,
            capacity_seen: None,
            capacity: Amounts::default(),
            are_shares_fresh: false,
            shares_moved: false,
            share_generation: 0,
            nothing: Amounts::default(),
        }
    }
}

impl Queues {
    /// A queue; one that nobody made is a child of the root.
    pub(crate) fn ensure(&mut self, name: &QueueName) -> &mut Queue {
        let root = QueueName::from(ROOT);
        if !self.queues.contains_key(name) {
            let up = Some(root.clone()).filter(|root| root != name);
            self.queues.insert(name.clone(), Queue { up, ..Queue::default() });
            if let Some(root) = self.queues.get_mut(&root) {
                root.children.insert(name.clone());
            }
        }
        self.queues.entry(name.clone()).or_default()
    }

    pub(crate) fn get(&self, name: &QueueName) -> Option<&Queue> {
        self.queues.get(name)
    }

    /// The first queue below this one that takes gangs; `None` where it does itself.
    pub(crate) fn first_leaf_below(&self, name: &QueueName) -> Option<QueueName> {
        let child = self.get(name)?.children.first()?;
        Some(self.first_leaf_below(child).unwrap_or_else(|| child.clone()))
    }

    /// Forgets a queue that nobody made and no gang names any more.
    pub(crate) fn forget_if_unused(&mut self, name: &QueueName) {
        let Some(queue) = self.queues.get(name).filter(|queue| queue.is_unused()) else { return };
        let parent = queue.up.clone().and_then(|up| self.queues.get_mut(&up));
        if let Some(parent) = parent {
            parent.children.remove(name);
        }
        self.queues.remove(name);
    }
}
