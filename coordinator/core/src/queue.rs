//! Queues: ceilings, charges and counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::QueueName;
use phalanx_common::planted::{self, Bug};
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::Resources;
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::action::QueueStatus;
use crate::amounts::{Amounts, ResourceKey, ResourceTable};
use crate::gang::{GangKey, OrderKey};
use crate::phase::PhaseKind;
use crate::reason::Reason;

/// One queue. A queue that gangs name and nobody made has no spec and takes no gang.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Queue {
    pub(crate) spec: Option<QueueSpec>,
    limits: Vec<(ResourceKey, Arc<str>, u64)>,
    pub(crate) charged: Amounts,
    /// What placed pods hold.
    pub(crate) allocated: Amounts,
    /// Admitted gangs that hold a charge and no place yet, in order.
    #[serde(with = "crate::pairs")]
    pub(crate) admitted: BTreeMap<OrderKey, GangKey>,
    counts: BTreeMap<PhaseKind, u32>,
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
    pub(crate) resource: Arc<str>,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) asked: u64,
}

impl Over {
    /// The same as a reason.
    pub(crate) fn reason(self, queue: &QueueName) -> Reason {
        let Self { resource, limit, used, asked } = self;
        Reason::QuotaUsed { queue: queue.clone(), resource, limit, used, asked, eviction: None }
    }
}

impl Queue {
    pub(crate) fn set_spec(&mut self, spec: Option<QueueSpec>, table: &mut ResourceTable) {
        let known = spec.as_ref().filter(|_| !planted::is(Bug::NoCapability));
        self.limits = known.map_or_else(Vec::new, |spec| limits(&spec.capability, table));
        self.spec = spec;
    }

    /// The first ceiling that `asked` beside `used` would pass; only what is asked for counts.
    pub(crate) fn over(&self, used: &Amounts, asked: &Amounts) -> Option<Over> {
        self.limits.iter().find_map(|(key, resource, limit)| {
            let (used, asked) = (used.get(*key), asked.get(*key));
            let passes = asked > 0 && used.saturating_add(asked) > *limit;
            passes.then(|| Over { resource: resource.clone(), limit: *limit, used, asked })
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

    /// True where gangs may have to wait for others of the queue.
    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
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
        self.spec.is_none() && self.counts.values().all(|count| *count == 0)
    }

    pub(crate) fn status(&self, table: &ResourceTable) -> QueueStatus {
        let count = |kind| self.counts.get(&kind).copied().unwrap_or(0);
        use PhaseKind::{
            Admitted, Arming, Binding, Committing, Degraded, Evicting, Finished, Queued, Reserving, Running,
        };
        QueueStatus {
            allocated: table.resources(&self.allocated),
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Queues {
    pub(crate) queues: BTreeMap<QueueName, Queue>,
}

impl Queues {
    pub(crate) fn ensure(&mut self, name: &QueueName) -> &mut Queue {
        if !self.queues.contains_key(name) {
            self.queues.insert(name.clone(), Queue::default());
        }
        self.queues.entry(name.clone()).or_default()
    }

    pub(crate) fn get(&self, name: &QueueName) -> Option<&Queue> {
        self.queues.get(name)
    }
}
