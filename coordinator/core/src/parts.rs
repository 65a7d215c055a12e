//! Sub-groups: the parts of a gang each of which is placed wholly or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::gang::SubGroupPolicy;
use phalanx_common::ids::PodUid;

use crate::amounts::Amounts;
use crate::core::Core;
use crate::fewer::Lowering;
use crate::gang::{Gang, Pod};
use crate::place::Candidate;
use crate::reason::{Reason, Together};
use crate::required::Required;
use crate::whole::task_minima;

/// Which part a pod is of: number of the sub-group, and the values of its labels.
type PartKey = (usize, Vec<Arc<str>>);

/// Pods that are placed wholly or not at all.
pub(crate) struct Unit {
    part: Option<PartKey>,
    /// They are above what the part needs: only after it.
    is_extra: bool,
    pub(crate) pods: Vec<Candidate>,
}

impl Unit {
    /// What its pods ask for together.
    pub(crate) fn amounts(&self) -> Amounts {
        let mut sum = Amounts::default();
        self.pods.iter().for_each(|pod| sum.add(&pod.need.amounts.of_pod()));
        sum
    }
}

/// What of a gang may be placed.
#[derive(Default)]
pub(crate) struct Units {
    pub(crate) units: Vec<Unit>,
    /// Pods of parts that lack others, and why the first of them waits.
    pub(crate) short: u32,
    first_short: Option<(PartKey, u32)>,
}

/// The part that a pod is of. One that lacks a label by which parts are told apart is of none: it is placed for itself.
fn part_of(gang: &Gang, pod: &Pod) -> Option<PartKey> {
    let labels = &pod.spec.policy.labels;
    let is_met = |policy: &SubGroupPolicy| {
        let value = |key: &Arc<str>| labels.get(key).map(|value| &**value);
        policy.selector.iter().all(|rule| rule.is_met_by(value(&rule.key)))
    };
    let number = gang.spec.policy.sub_groups.iter().position(is_met)?;
    let keys = &gang.spec.policy.sub_groups[number].match_labels;
    let values: Option<Vec<Arc<str>>> = keys.iter().map(|key| labels.get(key).cloned()).collect();
    Some((number, values?))
}

/// `workers (rack=a)`, for people.
fn name_of(policy: &SubGroupPolicy, values: &[Arc<str>]) -> Arc<str> {
    let labels = policy.match_labels.iter().zip(values);
    let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
    Arc::from(if labels.is_empty() { policy.name.to_string() } else { labels.join(",") })
}

fn size_of(policy: &SubGroupPolicy) -> u32 {
    policy.size.max(1)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Core {
    /// Pods by part, of those that count.
    fn parts(&self, gang: &Gang, counts: impl Fn(&PodUid, &Pod) -> bool) -> BTreeMap<PartKey, u32> {
        let mut parts = BTreeMap::new();
        for (_, pod) in self.gangs.pods_of(&gang.spec.name).filter(|(uid, pod)| counts(uid, pod)) {
            if let Some(part) = part_of(gang, pod) {
                *parts.entry(part).or_default() += 1;
            }
        }
        parts
    }

    /// True where of each sub-group the pods that count are as many whole parts as are needed.
    pub(crate) fn has_parts(&self, gang: &Gang, counts: impl Fn(&PodUid, &Pod) -> bool) -> bool {
        let policies = &gang.spec.policy.sub_groups;
        if policies.is_empty() {
            return true;
        }
        let parts = self.parts(gang, counts);
        policies.iter().enumerate().all(|(number, policy)| whole(&parts, number, policy) >= policy.minimum)
    }

    /// Of each sub-group the parts that have all their pods, and how many are needed.
    pub(crate) fn whole_parts(&self, gang: &Gang) -> Vec<(Arc<str>, u32, u32)> {
        let policies = &gang.spec.policy.sub_groups;
        if policies.is_empty() {
            return Vec::new();
        }
        let parts = self.parts(gang, |_, pod| pod.is_live() || pod.ended_well());
        let of = |(number, policy): (usize, &SubGroupPolicy)| {
            let name = Arc::from(format!("whole parts of {}", policy.name));
            (name, whole(&parts, number, policy), policy.minimum)
        };
        policies.iter().enumerate().map(of).collect()
    }

    /// What of a gang may be placed, in order: pods of a part that has not all it needs come together, or not at all.
    pub(crate) fn units(&self, gang: &Gang) -> Units {
        let alone = |candidate| Unit { part: None, is_extra: false, pods: vec![candidate] };
        let candidates = self.candidates(gang);
        if gang.spec.policy.sub_groups.is_empty() {
            return Units { units: candidates.into_iter().map(alone).collect(), ..Units::default() };
        }
        let have = self.parts(gang, |_, pod| pod.is_live() || pod.ended_well());
        let mut of_part: BTreeMap<PartKey, Vec<Candidate>> = BTreeMap::new();
        let mut order: Vec<Result<PartKey, Candidate>> = Vec::new();
        for candidate in candidates {
            match self.gangs.pods.get(&candidate.pod).and_then(|pod| part_of(gang, pod)) {
                Some(part) => {
                    let pods = of_part.entry(part.clone()).or_default();
                    if pods.is_empty() {
                        order.push(Ok(part));
                    }
                    pods.push(candidate);
                }
                None => order.push(Err(candidate)),
            }
        }
        let mut found = Units::default();
        for place in order {
            let part = match place {
                Ok(part) => part,
                Err(candidate) => {
                    found.units.push(alone(candidate));
                    continue;
                }
            };
            let mut pods = of_part.remove(&part).unwrap_or_default();
            let had = have.get(&part).copied().unwrap_or(0);
            let lacks = size_of(&gang.spec.policy.sub_groups[part.0]).saturating_sub(had) as usize;
            if pods.len() < lacks {
                found.short += count(pods.len());
                found.first_short.get_or_insert((part, had + count(pods.len())));
                continue;
            }
            let extra = pods.split_off(lacks);
            if !pods.is_empty() {
                found.units.push(Unit { part: Some(part.clone()), is_extra: false, pods });
            }
            let extra = extra.into_iter();
            found.units.extend(extra.map(|pod| Unit {
                part: Some(part.clone()),
                is_extra: lacks > 0,
                pods: vec![pod],
            }));
        }
        found
    }

    /// The pods that must be placed together of a gang with sub-groups: the parts that each sub-group needs, each task's
    /// minimum, and whole parts and pods in order up to the minimum.
    pub(crate) fn required_parts(&self, gang: &Gang, minimum: u32, all: u32) -> Required {
        let ended = |_: &PodUid, pod: &Pod| pod.ended_well();
        let mut choice = Choice { units: self.units(gang).units, pods: Vec::new() };
        let parts = self.parts(gang, ended);
        for (number, policy) in gang.spec.policy.sub_groups.iter().enumerate() {
            let mut lacks = policy.minimum.saturating_sub(whole(&parts, number, policy));
            choice.take(|unit, _| {
                let is_needed =
                    lacks > 0 && !unit.is_extra && unit.part.as_ref().is_some_and(|part| part.0 == number);
                lacks -= u32::from(is_needed);
                is_needed
            });
        }
        for (task, minimum) in task_minima(gang, self.now) {
            let is_of_task = |candidate: &Candidate| candidate.task == *task;
            let pods = self.gangs.pods_of(&gang.spec.name);
            let mut has = pods.filter(|(uid, pod)| ended(uid, pod) && pod.spec.task == *task).count();
            has += choice.pods.iter().filter(|pod| is_of_task(pod)).count();
            choice.take(|unit, _| {
                let more = unit.pods.iter().filter(|pod| is_of_task(pod)).count();
                let is_needed = has < minimum as usize && more > 0 && !unit.is_extra;
                has += if is_needed { more } else { 0 };
                is_needed
            });
        }
        choice.take(|_, chosen| chosen < minimum as usize);
        let Choice { units, mut pods } = choice;
        reach(&mut pods, units.into_iter().map(|unit| unit.pods).collect(), gang.min_resources(self.now));
        let lowering = Some(Lowering::of(gang, &[], false));
        Required { minimum: minimum.max(count(pods.len())), pods, all, lowering }
    }

    /// A sub-group of which too few parts have all their pods; or, where the gang's minimum is not met, the first part
    /// that lacks some.
    pub(crate) fn too_few_parts(&self, gang: &Gang, required: &Required) -> Option<Together> {
        let policies = &gang.spec.policy.sub_groups;
        if policies.is_empty() {
            return None;
        }
        let chosen = |uid: &PodUid| required.pods.iter().any(|candidate| candidate.pod == *uid);
        let parts = self.parts(gang, |uid, pod| pod.ended_well() || chosen(uid));
        let short = self.units(gang).first_short;
        let lacks = |(number, policy): &(usize, &SubGroupPolicy)| {
            whole(&parts, *number, policy) < policy.minimum
                || (count(required.pods.len()) < required.minimum
                    && short.as_ref().is_some_and(|((of, _), _)| of == number))
        };
        let (number, policy) = policies.iter().enumerate().find(lacks)?;
        Some(too_few(policy, whole(&parts, number, policy), short.filter(|((of, _), _)| *of == number)))
    }

    /// Why pods of parts that lack others wait, of a gang that runs.
    pub(crate) fn short_part(&self, gang: &Gang, units: &Units) -> Option<Reason> {
        let short = units.first_short.clone()?;
        let number = short.0.0;
        let policy = gang.spec.policy.sub_groups.get(number)?;
        let parts = self.parts(gang, |_, pod| pod.is_live() || pod.ended_well());
        Some(Reason::Together(Box::new(too_few(policy, whole(&parts, number, policy), Some(short)))))
    }
}

fn too_few(policy: &SubGroupPolicy, whole: u32, short: Option<(PartKey, u32)>) -> Together {
    Together::TooFewParts {
        sub_group: policy.name.clone(),
        whole,
        minimum: policy.minimum,
        size: size_of(policy),
        short: short.map(|((_, values), exist)| (name_of(policy, &values), exist)),
    }
}

/// Parts of a sub-group that have all they need.
fn whole(parts: &BTreeMap<PartKey, u32>, number: usize, policy: &SubGroupPolicy) -> u32 {
    let parts = parts.iter().filter(|((of, _), pods)| *of == number && **pods >= size_of(policy));
    count(parts.count())
}

/// Units, and the pods of those that were chosen.
struct Choice {
    units: Vec<Unit>,
    pods: Vec<Candidate>,
}

impl Choice {
    /// Chooses all such units, in order; each is asked of with the number of pods that are chosen already.
    fn take(&mut self, mut is_such: impl FnMut(&Unit, usize) -> bool) {
        let mut left = Vec::new();
        for unit in std::mem::take(&mut self.units) {
            if is_such(&unit, self.pods.len()) {
                self.pods.extend(unit.pods);
            } else {
                left.push(unit);
            }
        }
        self.units = left;
    }
}

/// Adds of the rest, in order, what it takes to have so much of each resource, or as much as all have together; true
/// where something was added.
pub(crate) fn reach(chosen: &mut Vec<Candidate>, rest: Vec<Vec<Candidate>>, wanted: &Amounts) -> bool {
    let mut have = Amounts::default();
    chosen.iter().for_each(|pod| have.add(&pod.need.amounts));
    let before = chosen.len();
    for unit in rest {
        let helps =
            |key| have.get(key) < wanted.get(key) && unit.iter().any(|pod| pod.need.amounts.get(key) > 0);
        if wanted.keys().any(helps) {
            unit.iter().for_each(|pod| have.add(&pod.need.amounts));
            chosen.extend(unit);
        }
    }
    chosen.len() > before
}
