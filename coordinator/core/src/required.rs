//! What of a gang must be placed together, and how it wants to be placed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::PodUid;
use phalanx_common::planted::{self, Bug};

use crate::core::Core;
use crate::fewer::Lowering;
use crate::gang::{Gang, GangKey, Pod, natural};
use crate::parts::reach;
use crate::phase::PhaseKind;
use crate::place::{Candidate, GangShape};
use crate::whole::task_minima;

/// What of a gang must be placed together.
pub(crate) struct Required {
    pub(crate) pods: Vec<Candidate>,
    pub(crate) minimum: u32,
    /// Pods of the gang in all.
    pub(crate) all: u32,
    /// Whose minimum could be lowered; `None` where fewer would not do, whatever it is: they are of several gangs.
    pub(crate) lowering: Option<Lowering>,
}

impl Required {
    /// Pods of a gang that runs, which join it together.
    pub(crate) fn together(pods: Vec<Candidate>) -> Self {
        let count = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        Self { pods, minimum: count, all: count, lowering: None }
    }
}

impl Core {
    /// Pods that may be placed, in order of task and number.
    pub(crate) fn candidates(&self, gang: &Gang) -> Vec<Candidate> {
        let mut pods = self.in_order(gang, Pod::may_be_placed);
        self.take_turns(&mut pods);
        let candidate = |(uid, pod): (&PodUid, &Pod)| Candidate {
            pod: uid.clone(),
            task: pod.spec.task.clone(),
            need: pod.need.clone(),
        };
        pods.into_iter().map(candidate).collect()
    }

    /// Such pods of a gang, in order of task and number.
    pub(crate) fn in_order(&self, gang: &Gang, is_such: impl Fn(&Pod) -> bool) -> Vec<(&PodUid, &Pod)> {
        let pods = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| is_such(pod));
        let keyed = pods.map(|(uid, pod)| ((&pod.spec.task, natural(&pod.spec.name.name)), (uid, pod)));
        let mut keyed: Vec<_> = keyed.collect();
        keyed.sort_by_key(|(key, _)| *key);
        keyed.into_iter().map(|(_, pod)| pod).collect()
    }

    pub(crate) fn candidate(&self, uid: &PodUid) -> Option<Candidate> {
        let pod = self.gangs.pods.get(uid)?;
        Some(Candidate { pod: uid.clone(), task: pod.spec.task.clone(), need: pod.need.clone() })
    }

    /// The pods that must be placed together: each task's minimum, or where those do not count one of each, filled up to
    /// minMember, and beyond until they are as much as `minResources` says, or all there are. Of a gang with sub-groups
    /// whole parts.
    pub(crate) fn required(&self, gang: &Gang) -> Required {
        let all = self.gangs.pods_of.get(&gang.spec.name).map_or(0, BTreeSet::len);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let ended = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.ended_well());
        let ended = u32::try_from(ended.count()).unwrap_or(0);
        let min_member = if planted::is(Bug::IgnoreMinMember) { 1 } else { gang.minimum(self.now) };
        let minimum = min_member.saturating_sub(ended);
        if !gang.spec.policy.sub_groups.is_empty() {
            return self.required_parts(gang, minimum, all);
        }
        let candidates = self.candidates(gang);
        let lowering = Some(Lowering::of(gang, &candidates, ended > 0));
        let wanted = usize::try_from(minimum).unwrap_or(usize::MAX);
        if candidates.len() <= wanted {
            return Required { pods: candidates, minimum, all, lowering };
        }
        let minima = task_minima(gang, self.now);
        let has_minima = !minima.is_empty();
        let left = if has_minima { minima } else { self.first_of_tasks(gang, minimum) };
        let has_each = !has_minima && !left.is_empty();
        let (mut first, mut is_fixed) = self.choose(gang, &candidates, left, wanted);
        if is_fixed && has_each {
            // With one of each task it may take more pods to have its `minResources`, which are those of others.
            let (others, others_fixed) = self.choose(gang, &candidates, BTreeMap::new(), wanted);
            if !others_fixed || others.len() < first.len() {
                (first, is_fixed) = (others, others_fixed);
            }
        }
        let minimum =
            if is_fixed { minimum.max(u32::try_from(first.len()).unwrap_or(u32::MAX)) } else { minimum };
        Required { pods: first, minimum, all, lowering }
    }

    /// So many of these pods, first those of which so many more are needed by task, and what it takes beyond to have its
    /// `minResources`; true where that is any.
    fn choose(
        &self,
        gang: &Gang,
        candidates: &[Candidate],
        mut left: BTreeMap<&Arc<str>, u32>,
        wanted: usize,
    ) -> (Vec<Candidate>, bool) {
        let mut has_ended = false;
        for (_, pod) in self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.ended_well()) {
            has_ended = true;
            if let Some(count) = left.get_mut(&pod.spec.task) {
                *count = count.saturating_sub(1);
            }
        }
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match left.get_mut(&candidate.task) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    first.push(candidate.clone());
                }
                _ => rest.push(candidate.clone()),
            }
        }
        let more = wanted.saturating_sub(first.len()).min(rest.len());
        let above = rest.split_off(more);
        first.extend(rest);
        let above = above.into_iter().map(|candidate| vec![candidate]).collect();
        // A gang of which something has ended well had what it needed: the rest goes on with its minimum.
        let is_fixed = !has_ended && reach(&mut first, above, gang.min_resources(self.now));
        (first, is_fixed)
    }

    /// One of each task that has a minimum, for a gang whose minMember covers their sum not, but so many. Workers without
    /// their master, or a master without workers, would be of no use. A task of which a pod has ended well had its turn,
    /// and that pod is of those that `minimum` leaves out.
    fn first_of_tasks<'a>(&self, gang: &'a Gang, minimum: u32) -> BTreeMap<&'a Arc<str>, u32> {
        let ended = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.ended_well());
        let served: BTreeSet<&Arc<str>> = ended.map(|(_, pod)| &pod.spec.task).collect();
        let tasks = gang.spec.min_task_member.iter().filter(|(_, minimum)| **minimum > 0);
        let tasks: BTreeMap<&Arc<str>, u32> =
            tasks.map(|(task, _)| (task, 1)).filter(|(task, _)| !served.contains(task)).collect();
        if tasks.len() > minimum as usize { BTreeMap::new() } else { tasks }
    }

    /// How a gang wants its pods placed, with the models that its tasks run on already.
    pub(crate) fn shape(&self, key: GangKey) -> GangShape {
        let Some(gang) = self.gangs.gangs.get(&key) else { return GangShape::default() };
        let mut shape = GangShape { mixed_models: gang.spec.mixed_gpu_models, ..GangShape::default() };
        let has_placed = gang.phase.kind() != PhaseKind::Queued && gang.phase.kind() != PhaseKind::Admitted;
        if shape.mixed_models || !has_placed {
            return shape;
        }
        for (_, pod) in self.gangs.pods_of(&gang.spec.name) {
            let lease = pod.lease.and_then(|id| self.leases.leases.get(&id));
            let model = lease.and_then(|lease| self.cluster.model_of(lease.node, *lease.taken.gpus.first()?));
            if let Some(model) = model {
                shape.pinned.entry(pod.spec.task.clone()).or_insert(model);
            }
        }
        shape
    }
}
