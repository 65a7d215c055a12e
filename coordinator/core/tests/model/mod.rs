//! A small model of the policy, without a line of the coordinator's: what may never be, who may be evicted for whom, and
//! who waits in vain. Random histories are played, and what is seen is held against it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod history;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::gang::{GangSpec, PodSpec};
use phalanx_common::ids::{NodeName, PodUid, QueueName};
use phalanx_common::plan::GangPlan;
use phalanx_common::resources::Resources;
use phalanx_core::view::{GangView, NodeView, QueueView};

use super::support::watch::{Made, Seen};

pub use history::{Counts, play, play_both};

const GPU: &str = "nvidia.com/gpu";
/// Devices that are only counted. A history has either, and all that holds for the one holds for the other.
const COUNTED: &str = "mars-tech.com/gpu";

/// How many devices these are.
fn devices(list: &Resources) -> u64 {
    list.amount(GPU) + list.amount(COUNTED)
}

/// The same where they are named.
fn named(list: &Resources) -> Option<u64> {
    list.get(GPU).or_else(|| list.get(COUNTED))
}

/// What goes as one: a pod above its gang's minimum, or a whole gang.
#[derive(Clone, Debug)]
struct Unit {
    gang: usize,
    queue: QueueName,
    is_whole: bool,
    /// Named in messages.
    #[allow(dead_code)]
    pods: Vec<String>,
    priority: i32,
    /// GPUs that it has, by node.
    gpus: BTreeMap<String, u64>,
    budgeted: u64,
}

impl Unit {
    fn all(&self) -> u64 {
        self.gpus.values().sum()
    }
}

/// What is seen, with what follows from it at once.
struct Model<'a> {
    seen: &'a Seen,
    views: BTreeMap<QueueName, &'a QueueView>,
    /// Plans that are not done yet, and count as if they were.
    plans: &'a [GangPlan],
    /// Pods that may have got their places later: the claimant's queue may not have had them yet.
    placed: &'a [PodUid],
}

impl<'a> Model<'a> {
    fn new(seen: &'a Seen) -> Self {
        Self::with(seen, &[], &[])
    }

    /// As a plan may have been made: others before it, and some places given after it.
    fn of_pass(made: &'a Made) -> Self {
        Self::with(&made.seen, &made.others, &made.placed)
    }

    fn with(seen: &'a Seen, plans: &'a [GangPlan], placed: &'a [PodUid]) -> Self {
        let views = seen.view.queues.iter().map(|queue| (queue.name.clone(), queue)).collect();
        Self { seen, views, plans, placed }
    }

    /// A queue and those above it.
    fn chain(&self, queue: &QueueName) -> Vec<QueueName> {
        let mut chain = vec![queue.clone()];
        while let Some(parent) = chain.last().and_then(|last| self.seen.queues.get(last)?.parent.clone()) {
            chain.push(parent);
        }
        chain
    }

    fn children(&self, queue: Option<&QueueName>) -> Vec<&QueueName> {
        let all = self.seen.queues.values();
        all.filter(|spec| spec.parent.as_ref() == queue).map(|spec| &spec.name).collect()
    }

    fn spec(&self, gang: &GangView) -> Option<&GangSpec> {
        self.seen.gangs.iter().find(|spec| spec.name == gang.name)
    }

    fn pods_of<'b>(&'b self, gang: &'b GangSpec) -> impl Iterator<Item = &'b PodSpec> {
        self.seen.pods.values().filter(move |pod| pod.gang == gang.name)
    }

    fn class(&self, gang: &GangSpec) -> (i32, bool) {
        let class = gang.priority_class.as_ref().and_then(|class| self.seen.classes.get(&**class));
        class.copied().unwrap_or((0, true))
    }

    /// GPUs that the stored pods of a queue and of those below it hold.
    fn allocated(&self, queue: &QueueName) -> u64 {
        let gangs = self.seen.gangs.iter().filter(|gang| self.chain(&gang.queue).contains(queue));
        gangs.flat_map(|gang| self.pods_of(gang)).filter(|pod| holds(pod)).map(gpus).sum()
    }

    fn capacity(&self) -> u64 {
        // Those whose agents are away too: their pods run on.
        let nodes = self.seen.view.nodes.iter();
        nodes.map(|node| node.gpus.len() as u64 + node.capacity.amount(COUNTED)).sum()
    }

    fn is_there(&self, node: &str) -> bool {
        self.seen.connected.iter().any(|known| known.as_str() == node)
    }

    /// What is set aside for a queue as its object says it; nothing can be that is more than all nodes have.
    fn guarantee(&self, queue: &QueueName) -> u64 {
        let all = self.seen.queues.get(queue).and_then(|spec| named(&spec.guarantee)).unwrap_or(0);
        if all > self.capacity() { 0 } else { all }
    }

    /// What a queue has, or is to be kept for it, whichever is more.
    fn needs(&self, queue: &QueueName) -> u64 {
        let below = self.children(Some(queue)).into_iter().map(|child| self.needs(child)).sum();
        self.allocated(queue).max(self.guarantee(queue)).max(below)
    }

    fn needs_in_all(&self) -> u64 {
        self.children(None).into_iter().map(|queue| self.needs(queue)).sum()
    }

    /// What is kept for others and not used by them.
    fn kept_for_others(&self, queue: &QueueName) -> u64 {
        let chain = self.chain(queue);
        let siblings = chain.iter().flat_map(|own| {
            let parent = self.seen.queues.get(own).and_then(|spec| spec.parent.as_ref());
            self.children(parent).into_iter().filter(move |other| *other != own)
        });
        siblings.map(|other| self.unmet(other)).sum()
    }

    fn unmet(&self, queue: &QueueName) -> u64 {
        let below = self.children(Some(queue)).into_iter().map(|child| self.unmet(child)).sum();
        self.guarantee(queue).saturating_sub(self.held_in(queue)).max(below)
    }

    /// The same as `allocated`, of the moment: places that are being taken count.
    fn held_in(&self, queue: &QueueName) -> u64 {
        self.views.get(queue).map_or(0, |view| devices(&view.allocated))
    }

    /// What the plans take from a queue, and what they give it.
    fn moves_in(&self, queue: &QueueName) -> (u64, u64) {
        let leave = self.plans.iter().flat_map(|plan| &plan.victims).map(|victim| &victim.pod);
        let come = self.plans.iter().flat_map(|plan| &plan.pods).map(|planned| &planned.pod);
        (self.sum_in(queue, leave), self.sum_in(queue, come))
    }

    /// What these pods ask for, of a queue and those below it.
    fn sum_in<'b>(&self, queue: &QueueName, pods: impl Iterator<Item = &'b PodUid>) -> u64 {
        let pods = pods.filter_map(|uid| self.seen.pods.get(uid));
        let is_below = |pod: &&PodSpec| {
            let gang = self.seen.gangs.iter().find(|gang| gang.name == pod.gang);
            gang.is_some_and(|gang| self.chain(&gang.queue).contains(queue))
        };
        pods.filter(is_below).map(gpus).sum()
    }

    /// What of it stays once all pods have gone that were told to.
    fn stays_in(&self, queue: &QueueName) -> u64 {
        let gangs = self.seen.view.gangs.iter().filter(|gang| self.chain(&gang.queue).contains(queue));
        let placed = gangs.flat_map(|gang| &gang.pods).filter(|pod| pod.lease.is_some());
        let pods = placed.filter_map(|pod| self.seen.pods.get(&pod.uid));
        pods.filter(|pod| !pod.deleting && !pod.phase.is_terminal()).map(gpus).sum()
    }

    /// Devices that are only counted and that pods hold on a node: those that have a place there, and those that are gone
    /// and whose leases are not yet.
    fn counted(&self, node: &NodeName) -> u64 {
        let pods = self.seen.view.gangs.iter().flat_map(|gang| &gang.pods);
        let there = pods.filter(|pod| pod.lease.is_some() && pod.node.as_ref() == Some(node));
        let mut held: BTreeMap<_, _> = there.map(|pod| (&pod.uid, pod.request.amount(COUNTED))).collect();
        for (pod, request) in &self.seen.leased[node] {
            held.entry(pod).or_insert_with(|| request.amount(COUNTED));
        }
        held.values().sum()
    }

    /// GPUs that nobody holds, by node that is there.
    fn free(&self) -> BTreeMap<String, u64> {
        let there = self.seen.view.nodes.iter().filter(|node| self.is_there(node.name.as_str()));
        let free = |gpus: &[phalanx_core::view::GpuView]| {
            gpus.iter().filter(|gpu| gpu.holder.is_none()).count() as u64
        };
        let counted =
            |node: &NodeView| node.capacity.amount(COUNTED).saturating_sub(self.counted(&node.name));
        there.map(|node| (node.name.to_string(), free(&node.gpus) + counted(node))).collect()
    }

    /// What a gang must place together: pods, and GPUs of each.
    fn asked(&self, gang: &GangView, spec: &GangSpec) -> Option<(u64, u64)> {
        let waiting: Vec<&PodSpec> =
            self.pods_of(spec).filter(|pod| pod.binding.is_none() && !pod.deleting).collect();
        let size = gpus(waiting.first()?);
        let live = gang.pods.iter().filter(|pod| pod.node.is_some() && !matches!(&*pod.phase, "Succeeded"));
        let ended = gang.pods.iter().filter(|pod| &*pod.phase == "Succeeded").count() as u64;
        let live = if &*gang.phase == "degraded" { live.count() as u64 } else { 0 };
        let count = u64::from(spec.min_member.max(1)).saturating_sub(live + ended);
        (count > 0 && waiting.len() as u64 >= count).then_some((count, size))
    }

    /// Everything of a gang that may be evicted at all, in the order in which it would go.
    fn units(&self, index: usize, gang: &GangView) -> Vec<Unit> {
        let Some(spec) = self.spec(gang) else { return Vec::new() };
        if !matches!(&*gang.phase, "running" | "degraded") || spec.policy.preemptable == Some(false) {
            return Vec::new();
        }
        let mut pods: Vec<&PodSpec> = self.pods_of(spec).filter(|pod| holds(pod) && !pod.deleting).collect();
        // Who leads last, and of the others the oldest.
        pods.sort_by_key(|pod| (!pod.policy.leads, pod.policy.created, number(&pod.name.name)));
        let ended = self.pods_of(spec).filter(|pod| pod.phase.is_terminal()).count();
        let minimum = (spec.min_member.max(1) as usize).saturating_sub(ended);
        let kept = minimum.min(pods.len());
        let mut units: Vec<Unit> =
            pods[kept..].iter().rev().map(|pod| self.unit(index, spec, &[pod], false)).collect();
        if kept > 0 {
            units.push(self.unit(index, spec, &pods[..kept], true));
        }
        units
    }

    /// These pods of a gang as one that goes.
    fn unit(&self, gang: usize, spec: &GangSpec, pods: &[&PodSpec], is_whole: bool) -> Unit {
        let mut unit = Unit {
            gang,
            queue: spec.queue.clone(),
            is_whole,
            pods: pods.iter().map(|pod| pod.name.name.to_string()).collect(),
            priority: self.class(spec).0,
            gpus: BTreeMap::new(),
            budgeted: pods.iter().filter(|pod| !pod.policy.labels.is_empty()).count() as u64,
        };
        for pod in pods {
            let node = pod.binding.as_ref().unwrap().node.to_string();
            *unit.gpus.entry(node).or_default() += gpus(pod);
        }
        unit
    }

    /// What a queue is entitled to; what is not shown is nothing.
    fn share(&self, queue: &QueueName) -> u64 {
        self.views.get(queue).map_or(0, |view| devices(&view.share))
    }
}

fn gpus(pod: &PodSpec) -> u64 {
    devices(&pod.request.effective())
}

/// It is on a node and has not ended.
fn holds(pod: &PodSpec) -> bool {
    pod.binding.is_some() && !pod.phase.is_terminal()
}

fn number(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Names that are in both.
fn shared<'a>(left: &'a [QueueName], right: &[QueueName]) -> BTreeSet<&'a QueueName> {
    left.iter().filter(|name| right.contains(name)).collect()
}
