//! With how many fewer pods a gang would start, and what has to be lowered for that: its minimum, and whatever else would
//! go on asking for the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::QueueName;

use crate::amounts::{Amounts, ResourceKey};
use crate::cluster::Cluster;
use crate::core::Core;
use crate::eviction::{Lack, sum_of};
use crate::gang::{Gang, GangKey};
use crate::place::{Candidate, GangShape, Overlay, PodNeed, place};
use crate::queue::Over;
use crate::reason::{Fewer, NoEviction, NoEvictionCause, Reason};
use crate::required::Required;

/// Up to so many pods every lower minimum is tried before one is suggested.
const ALL_MINIMA: u32 = 32;

/// Whose minimum could be lowered so that fewer pods have to be placed together.
#[derive(Clone)]
pub(crate) struct Lowering {
    pub(crate) gang: GangKey,
    /// Pods that it has, to which those join that are placed.
    pub(crate) beside: Option<u32>,
    /// What makes two gangs equal in this, beside what they need now.
    pub(crate) terms: Option<Arc<Terms>>,
}

/// What decides which pods a gang takes when its minimum is lowered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Terms {
    /// It is like no other.
    of: Option<GangKey>,
    minimum: u32,
    tasks: BTreeMap<Arc<str>, u32>,
    resources: Amounts,
    pods: Vec<(Arc<str>, Arc<PodNeed>)>,
}

impl Lowering {
    /// Of a gang that starts. One without minima of tasks and `minResources` takes the first of those that it needs now.
    pub(crate) fn of(gang: &Gang, candidates: &[Candidate], has_ended: bool) -> Self {
        let spec = &gang.spec;
        let is_single = has_ended || !spec.policy.sub_groups.is_empty() || spec.policy.fewer_after.is_some();
        let is_plain = !is_single && spec.min_task_member.is_empty() && gang.min_amounts.is_zero();
        let pods = candidates.iter().filter(|_| !is_single);
        let terms = (!is_plain).then(|| Terms {
            of: is_single.then(|| gang.key()),
            minimum: spec.min_member,
            tasks: spec.min_task_member.clone(),
            resources: gang.min_amounts.clone(),
            pods: pods.map(|pod| (pod.task.clone(), pod.need.clone())).collect(),
        });
        Self { gang: gang.key(), beside: None, terms: terms.map(Arc::new) }
    }

    /// Of a gang that has so many pods, for the rest of them.
    pub(crate) fn beside(gang: &Gang, has: u32) -> Self {
        let (tasks, resources) = (BTreeMap::new(), Amounts::default());
        let terms = Terms { of: Some(gang.key()), minimum: 0, tasks, resources, pods: Vec::new() };
        Self { gang: gang.key(), beside: Some(has), terms: Some(Arc::new(terms)) }
    }
}

impl Core {
    /// What would have to be placed of a gang with this minimum, and what is to be lowered for it. `None` where no minimum
    /// of its own keeps it, or something else would.
    pub(crate) fn with_fewer(&self, required: &Required, minimum: u32) -> Option<(Vec<Candidate>, Fewer)> {
        let lowering = required.lowering.as_ref()?;
        if lowering.terms.is_none() {
            // Most gangs are such: it takes the first of those that it needs now.
            let is_less = minimum < required.minimum;
            let pods = required.pods.get(..minimum as usize).filter(|_| is_less)?.to_vec();
            return Some((
                pods,
                Fewer { minimum, is_so_low: false, tasks: Vec::new(), resources: Vec::new() },
            ));
        }
        let gang = self.gangs.gangs.get(&lowering.gang)?;
        let mut lowered = gang.clone();
        lowered.spec.min_member = minimum;
        lowered.min_amounts = Amounts::default();
        let pods = match lowering.beside {
            Some(has) => required.pods.get(..minimum.checked_sub(has)? as usize)?.to_vec(),
            None => self.required(&lowered).pods,
        };
        let mut tasks = Vec::new();
        for (task, stated) in &mut lowered.spec.min_task_member {
            let counts = self.count_of_task(gang, task, &pods, lowering.beside.is_some());
            if counts < *stated {
                *stated = counts;
                tasks.push((task.clone(), counts));
            }
        }
        if lowering.beside.is_some() {
            let is_new = |uid: &_| pods.iter().any(|pod| pod.pod == *uid);
            let has =
                self.meets_minimum(&lowered, |uid, pod| pod.is_live() || pod.ended_well() || is_new(uid));
            let is_so_low = minimum >= gang.spec.min_member;
            let fewer = Fewer { minimum, is_so_low, tasks, resources: Vec::new() };
            return (has && !pods.is_empty()).then_some((pods, fewer));
        }
        let chosen = self.required(&lowered);
        self.check_pods(&lowered, &chosen).ok()?;
        let resources = self.resources_above(gang, &lowered, required, &chosen);
        let is_so_low = minimum >= gang.spec.min_member.max(1);
        Some((chosen.pods, Fewer { minimum, is_so_low, tasks, resources }))
    }

    /// Too few pods exist: what to lower so that they are enough.
    pub(crate) fn with_those_that_exist(&self, required: &Required, mut reason: Reason) -> Reason {
        if let Reason::TooFewPods { lower_to, .. } = &mut reason {
            *lower_to = self.fewer_that_exist(required).map(Box::new);
        }
        reason
    }

    fn fewer_that_exist(&self, required: &Required) -> Option<Fewer> {
        let gang = self.gangs.gangs.get(&required.lowering.as_ref()?.gang)?;
        let ended = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.ended_well()).count();
        let exist = u32::try_from(required.pods.len() + ended).unwrap_or(u32::MAX);
        let (_, fewer) = self.with_fewer(required, exist.min(gang.minimum(self.now)))?;
        Some(fewer).filter(|fewer| !required.pods.is_empty() && !fewer.is_nothing())
    }

    /// Pods of a task among those that count, with these beside them.
    fn count_of_task(&self, gang: &Gang, task: &Arc<str>, pods: &[Candidate], with_live: bool) -> u32 {
        let all = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.spec.task == *task);
        let had = all.filter(|(_, pod)| pod.ended_well() || (with_live && pod.is_live())).count();
        let more = pods.iter().filter(|pod| pod.task == *task).count();
        u32::try_from(had + more).unwrap_or(u32::MAX)
    }

    /// What of its `minResources` is more than these pods ask, of what any of them asks: it would take more pods to reach it.
    fn resources_above(
        &self,
        gang: &Gang,
        lowered: &Gang,
        required: &Required,
        chosen: &Required,
    ) -> Vec<(Arc<str>, u64)> {
        let mut lowered = lowered.clone();
        lowered.min_amounts.clone_from(&gang.min_amounts);
        let wanted = lowered.min_resources(self.now);
        if wanted.is_zero() {
            return Vec::new();
        }
        let sum = |pods: &[Candidate]| {
            let mut sum = Amounts::default();
            pods.iter().for_each(|pod| sum.add(&pod.need.amounts));
            sum
        };
        let (asked, now) = (sum(&chosen.pods), sum(&required.pods));
        let is_above = |key: &ResourceKey| wanted.get(*key) > asked.get(*key) && now.get(*key) > 0;
        let above = wanted.keys().filter(is_above);
        above.map(|key| (Arc::from(self.cluster.resources.name(key)), asked.get(key))).collect()
    }

    /// The largest minimum with which a gang would start in this cluster.
    pub(crate) fn fewer_that_fit(
        &self,
        cluster: &Cluster,
        shape: &GangShape,
        required: &Required,
    ) -> Option<Fewer> {
        let fits = |pods: &[Candidate]| place(cluster, &mut Overlay::default(), shape, pods).is_ok();
        let most = self.most_to_lower(required)?;
        largest_minimum(most, |minimum| {
            let (pods, fewer) = self.with_fewer(required, minimum)?;
            fits(&pods).then_some(fewer)
        })
    }

    /// Minima below this one are worth a try: the gang's own is, where its `minResources` ask for more pods.
    fn most_to_lower(&self, required: &Required) -> Option<u32> {
        let gang = self.gangs.gangs.get(&required.lowering.as_ref()?.gang)?;
        Some(gang.minimum(self.now).saturating_add(1))
    }

    /// The largest minimum of the gang that the ceiling allows, where there is one. Before its pods exist, they are taken
    /// to be alike.
    pub(crate) fn fewer_below_ceiling(
        &self,
        queue: &QueueName,
        over: &Over,
        required: &Required,
    ) -> Option<Fewer> {
        let most = self.most_to_lower(required)?;
        // Where more is asked than those pods do that exist, `minResources` speaks for the others.
        if required.pods.len() < required.minimum as usize
            && sum_of(&required.pods).get(over.key) < over.asked
        {
            return self.fewer_of_none(over, required);
        }
        largest_minimum(most, |minimum| {
            let (pods, fewer) = self.with_fewer(required, minimum)?;
            let mut sum = Amounts::default();
            pods.iter().for_each(|pod| sum.add(&pod.need.amounts.of_pod()));
            self.queues.above_ceiling(queue, &sum).is_none().then_some(fewer)
        })
    }

    /// The same for a gang whose pods are not made yet, where they are all of one task and so alike: what pods of several
    /// tasks will ask for is not known before they are there.
    fn fewer_of_none(&self, over: &Over, required: &Required) -> Option<Fewer> {
        let gang = self.gangs.gangs.get(&required.lowering.as_ref()?.gang)?;
        let minimum = u128::from(over.limit) * u128::from(required.minimum) / u128::from(over.asked.max(1));
        let minimum = u32::try_from(minimum).ok().filter(|minimum| *minimum > 0)?;
        let (task, stated) = gang.spec.min_task_member.iter().next()?;
        if gang.spec.min_task_member.len() > 1 || *stated < required.minimum {
            return None;
        }
        let tasks = vec![(task.clone(), minimum)];
        let of_each = over.asked / u64::from(required.minimum.max(1));
        let is_named = gang.min_resources(self.now).keys().any(|key| {
            *self.cluster.resources.name(key) == *over.resource
                && gang.min_resources(self.now).get(key) > over.limit
        });
        let resources = is_named.then(|| (over.resource.clone(), of_each.saturating_mul(minimum.into())));
        Some(Fewer { minimum, is_so_low: false, tasks, resources: resources.into_iter().collect() })
    }

    /// Why evictions do not help, with the largest minimum for which they would make room.
    pub(crate) fn with_fewer_evicted_for(
        &mut self,
        key: GangKey,
        required: &Required,
        lacks: &[Lack],
        mut why: NoEviction,
    ) -> NoEviction {
        let may = match why.cause {
            NoEvictionCause::Fit { .. } | NoEvictionCause::OverShare { .. } => lacks.is_empty(),
            NoEvictionCause::NonPreempting
            | NoEvictionCause::Quota
            | NoEvictionCause::AdmittedFirst { .. }
            | NoEvictionCause::Protected
            | NoEvictionCause::AboveMinimum => false,
        };
        if let Some(most) = self.most_to_lower(required).filter(|_| may) {
            let now = self.now;
            why.lower_to = largest_minimum(most, |minimum| {
                let (pods, fewer) = self.with_fewer(required, minimum)?;
                let look = self.look_for_room(key, &pods, lacks, now);
                matches!(look.room, Some(Ok(_))).then_some(fewer)
            });
        }
        why
    }
}

/// The largest number below `all` with which a gang would start.
fn largest_minimum(all: u32, mut starts: impl FnMut(u32) -> Option<Fewer>) -> Option<Fewer> {
    if all <= ALL_MINIMA {
        return (1..all).rev().find_map(starts);
    }
    // Fewer pods hardly ever fit worse than more, so that halving finds the largest or one close to it.
    let (mut fits, mut fails, mut found) = (0, all, None);
    while fits + 1 < fails {
        let middle = fits.midpoint(fails);
        match starts(middle) {
            Some(fewer) => (fits, found) = (middle, Some(fewer)),
            None => fails = middle,
        }
    }
    found
}
