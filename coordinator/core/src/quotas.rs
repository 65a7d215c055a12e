//! Views of queues, and of what is left of their ceilings.

use std::sync::Arc;

use phalanx_common::resources::{Resources, format_amount};

use crate::amounts::{Amounts, ResourceKey};
use crate::core::Core;
use crate::gang::Gang;
use crate::phase::PhaseKind;
use crate::queue::Queue;
use crate::queues::ROOT;
use crate::view::{QueueView, QuotaView};

impl Core {
    pub(crate) fn queue_views(&self) -> Vec<QueueView> {
        let views = self.queues.queues.iter().filter_map(|(name, queue)| {
            let spec = queue.spec.as_ref()?;
            let status = queue.status(&self.cluster.resources);
            let mut charged = queue.charged.clone();
            charged.add(&queue.allocated);
            Some(QueueView {
                name: name.clone(),
                priority: spec.priority,
                parent: spec.parent.clone().filter(|parent| parent.as_str() != ROOT),
                weight: spec.weight,
                deserved: spec.deserved.clone(),
                share: self.share_view(queue),
                guarantee: spec.guarantee.clone(),
                reclaimable: spec.reclaimable,
                dequeue: spec.dequeue,
                problem: self.problem_of(queue),
                open: spec.open,
                capability: spec.capability.clone(),
                allocated: status.allocated,
                charged: self.cluster.resources.resources(&charged),
                pending: status.pending,
                inqueue: status.inqueue,
                running: status.running,
                completed: status.completed,
            })
        });
        views.collect()
    }

    fn share_view(&self, queue: &Queue) -> Resources {
        let mut share = Amounts::default();
        let keys = queue.demand.keys().chain(self.queues.capacity.keys());
        for key in keys.collect::<Vec<ResourceKey>>() {
            if let Some(limit) = queue.share.limit(key) {
                share.set(key, limit);
            }
        }
        self.cluster.resources.resources(&share)
    }

    /// What sets a queue aside, or why nothing can be set aside for it.
    fn problem_of(&self, queue: &Queue) -> Option<String> {
        if let Some(problem) = &queue.problem {
            return Some(format!("{}: {}", problem.field, problem.message));
        }
        let key = queue.asked_guarantee.keys().find(|key| queue.guarantee.get(*key) == 0)?;
        let name = self.cluster.resources.name(key);
        Some(format!(
            "guarantee: {name} is {}, above the {} that all nodes have: none of it is set aside",
            format_amount(name, queue.asked_guarantee.get(key)),
            format_amount(name, self.queues.capacity.get(key))
        ))
    }

    /// What is left of the ceilings of a gang's queue, and of those above it, for each resource that it asks for.
    pub(crate) fn quota_views(&self, gang: &Gang) -> Vec<QuotaView> {
        let mut asked = Amounts::default();
        if matches!(gang.phase.kind(), PhaseKind::Running | PhaseKind::Degraded) {
            // It has its minimum, or had it: what waits is placed pod by pod.
            if let Some(next) = self.candidates(gang).first() {
                asked.add(&next.need.amounts.of_pod());
            }
        } else {
            for candidate in self.required(gang).pods {
                asked.add(&candidate.need.amounts.of_pod());
            }
            asked.raise_to(gang.min_resources(self.now));
        }
        let mut views = Vec::new();
        for (name, queue) in self.queues.up_from(&gang.spec.queue) {
            let mut used = queue.charged.clone();
            used.add(&queue.allocated);
            // Its own charge is no use by others.
            used.subtract(&gang.charge);
            let ancestor = Some(name.clone()).filter(|name| *name != gang.spec.queue);
            let is_shown = |key: &ResourceKey| {
                queue.limit(*key).is_some() || (ancestor.is_none() && *key != ResourceKey::Pods)
            };
            let keys = asked.keys().filter(is_shown);
            views.extend(keys.map(|key| QuotaView {
                resource: Arc::from(self.cluster.resources.name(key)),
                ancestor: ancestor.clone(),
                limit: queue.limit(key),
                used: used.get(key),
                asked: asked.get(key),
            }));
        }
        views
    }
}

/// What is left where there is a limit, as text.
pub(crate) fn quota_texts(quota: &[QuotaView]) -> Vec<String> {
    let text = |quota: &QuotaView| {
        let limit = quota.limit?;
        let left = limit.saturating_sub(quota.used);
        let amount = |amount| format_amount(&quota.resource, amount);
        let whose = quota.ancestor.as_ref().map(|name| format!("of ancestor {name}: ")).unwrap_or_default();
        Some(format!(
            "{whose}{} {} left of {} (asks {})",
            quota.resource,
            amount(left),
            amount(limit),
            amount(quota.asked)
        ))
    };
    quota.iter().filter_map(text).collect()
}
