//! What must hold at rest, of each plan that evicts others, and of each gang that waits.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::gang::GangSpec;
use phalanx_common::ids::QueueName;
use phalanx_core::view::GangView;

use super::super::support::watch::Made;
use super::{COUNTED, Model, Unit, devices, gpus, holds, named, number, shared};

/// Sets of units that are looked at for one gang.
const MOST_SETS: usize = 400;
const MOST_UNITS: usize = 4;

/// Allows evictions of pods that a budget counts.
pub type Budget = u64;

/// Whether a gang that waits was looked for whom to evict, and some of it found: what it lacks of its pods then, or of
/// what is set aside for others.
fn has_looked(gang: &GangView) -> bool {
    gang.reason.as_ref().is_some_and(|reason| {
        reason.text.contains("pods would fit after preemption") || &*reason.code == "GuaranteedToOthers"
    })
}

impl Model<'_> {
    /// GPUs have one holder, the same that the coordinator knows; queues have what their pods have.
    pub fn check_ownership(&self) -> Result<(), String> {
        for node in self.seen.view.nodes.iter().filter(|node| self.is_there(node.name.as_str())) {
            let held = &self.seen.held[&node.name];
            for gpu in &node.gpus {
                let holder = held.get(&gpu.id).and_then(|uid| self.seen.pods.get(uid));
                let holder = holder.map(|pod| pod.name.clone());
                if holder != gpu.holder {
                    return Err(format!(
                        "{} {}: agent {holder:?}, shown {:?}",
                        node.name, gpu.index, gpu.holder
                    ));
                }
            }
        }
        for node in &self.seen.view.nodes {
            let bound = self.seen.pods.values().filter(|pod| {
                holds(pod) && pod.binding.as_ref().is_some_and(|binding| binding.node == node.name)
            });
            let (used, all) = (bound.map(gpus).sum::<u64>(), node.capacity.amount(COUNTED));
            if node.gpus.is_empty() && used > all {
                return Err(format!("{} has {all}, and its pods have {used}", node.name));
            }
        }
        if self.seen.view.nodes.iter().any(|node| !self.is_there(node.name.as_str())) {
            // What has ended there is still held until its agent says so.
            return Ok(());
        }
        for (name, view) in &self.views {
            let (shown, all) = (devices(&view.allocated), self.allocated(name));
            if shown != all && self.seen.queues.contains_key(name) {
                return Err(format!("queue {name}: shows {shown}, its pods have {all}"));
            }
        }
        Ok(())
    }

    /// Whether a gang's queues would take so many more GPUs, were `gone` gone.
    fn has_quota(&self, gang: &GangView, spec: &GangSpec, asked: u64, gone: &[&Unit]) -> bool {
        let own = if &*gang.phase == "admitted" { asked } else { 0 };
        let ceilings = self.chain(&spec.queue).into_iter().all(|queue| {
            let limit = self.seen.queues.get(&queue).and_then(|spec| named(&spec.capability));
            let charged = self.views.get(&queue).map_or(0, |view| devices(&view.charged));
            let lost: u64 = gone
                .iter()
                .filter(|unit| self.chain(&unit.queue).contains(&queue))
                .map(|unit| unit.all())
                .sum();
            limit.is_none_or(|limit| charged.saturating_sub(own + lost) + asked <= limit)
        });
        let used: u64 = self.children(None).into_iter().map(|queue| self.held_in(queue)).sum();
        let lost: u64 = gone.iter().map(|unit| unit.all()).sum();
        let kept = self.kept_for_others(&spec.queue);
        let guarantees = kept == 0 || used.saturating_sub(lost) + asked + kept <= self.capacity();
        ceilings && guarantees
    }

    fn fits(&self, count: u64, size: u64, gone: &[&Unit]) -> bool {
        let mut free = self.free();
        for unit in gone {
            for (node, amount) in &unit.gpus {
                if let Some(free) = free.get_mut(node) {
                    *free += amount;
                }
            }
        }
        free.values().map(|free| free / size.max(1)).sum::<u64>() >= count
    }

    /// Whether these may go for a gang, one after another in some order.
    fn may_go(&self, spec: &GangSpec, asked: u64, gone: &[&Unit], budget: Budget) -> bool {
        let (priority, evicts) = self.class(spec);
        let budgeted: u64 = gone.iter().map(|unit| unit.budgeted).sum();
        if !evicts || budgeted > budget {
            return false;
        }
        let (own, others): (Vec<&Unit>, Vec<&Unit>) = gone.iter().partition(|unit| unit.queue == spec.queue);
        if own.iter().any(|unit| unit.priority >= priority) {
            return false;
        }
        if others.is_empty() {
            return true;
        }
        let chain = self.chain(&spec.queue);
        let is_under = chain.iter().all(|queue| {
            let (leave, come) = self.moves_in(queue);
            let leave = leave + self.sum_in(queue, self.placed.iter());
            let has = (self.stays_in(queue).min(self.held_in(queue)) + come).saturating_sub(leave);
            has + asked <= self.share(queue)
        });
        is_under && self.in_some_order(&chain, &others, &BTreeMap::new())
    }

    fn in_some_order(&self, chain: &[QueueName], left: &[&Unit], lost: &BTreeMap<QueueName, u64>) -> bool {
        left.is_empty()
            || (0..left.len()).any(|at| {
                let unit = left[at];
                let above = self.chain(&unit.queue);
                let common = shared(&above, chain);
                let may = above.iter().filter(|queue| !common.contains(queue)).all(|queue| {
                    let (leave, come) = self.moves_in(queue);
                    let gone = leave + lost.get(queue).copied().unwrap_or(0);
                    let has = (self.held_in(queue) + come).saturating_sub(gone);
                    has > self.share(queue) && has.saturating_sub(unit.all()) >= self.kept(queue)
                }) && above
                    .iter()
                    .all(|queue| self.seen.queues.get(queue).is_none_or(|spec| spec.reclaimable));
                let mut lost = lost.clone();
                for queue in &above {
                    *lost.entry(queue.clone()).or_default() += unit.all();
                }
                let rest: Vec<&Unit> = left
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != at)
                    .map(|(_, unit)| *unit)
                    .collect();
                may && self.in_some_order(chain, &rest, &lost)
            })
    }

    /// What is set aside for a queue and those below it.
    fn kept(&self, queue: &QueueName) -> u64 {
        let below = self.children(Some(queue)).into_iter().map(|child| self.kept(child)).sum();
        self.guarantee(queue).max(below)
    }

    /// A plan takes only what may go, no more than needed, and what it takes is enough.
    pub fn check_plan(
        &self,
        made: &Made,
        budget: Budget,
        protected: &BTreeSet<String>,
    ) -> Result<bool, String> {
        let gang = self.seen.view.gangs.iter().find(|gang| gang.name == made.plan.gang);
        let gang = gang.ok_or("the claimant is unknown")?;
        let spec = self.spec(gang).ok_or("the claimant has no object")?;
        let Some((count, size)) = self.asked(gang, spec) else { return Ok(false) };
        let names: BTreeSet<&str> = made.plan.victims.iter().map(|victim| &*victim.name.name).collect();
        let mut gone: Vec<Unit> = Vec::new();
        for (index, victim) in self.seen.view.gangs.iter().enumerate() {
            let Some(victim_spec) = self.spec(victim) else { continue };
            // Those that go for others already leave the rest to go as a whole.
            let mut pods: Vec<_> =
                self.pods_of(victim_spec).filter(|pod| holds(pod) && !pod.deleting).collect();
            pods.sort_by_key(|pod| (!pod.policy.leads, pod.policy.created, number(&pod.name.name)));
            let going = pods.iter().filter(|pod| names.contains(&*pod.name.name)).count();
            if going == 0 {
                continue;
            }
            let name = &victim.name.name;
            if protected.contains(&**name) || victim_spec.policy.preemptable == Some(false) {
                return Err(format!("{name} is protected and goes"));
            }
            let units = self.units(index, victim);
            let is_whole = going == pods.len();
            if is_whole {
                gone.extend(units);
                continue;
            }
            let surplus: Vec<Unit> = units.into_iter().filter(|unit| !unit.is_whole).collect();
            if going > surplus.len() {
                return Err(format!("{name} is cut below its minimum"));
            }
            let leader = pods.iter().find(|pod| pod.policy.leads);
            if leader.is_some_and(|pod| names.contains(&*pod.name.name)) {
                return Err(format!("{name}: its leader goes and others stay"));
            }
            // Any of its pods may be above the minimum, but the one that leads.
            let gone_here = pods.iter().filter(|pod| names.contains(&*pod.name.name));
            gone.extend(gone_here.map(|pod| self.unit(index, victim_spec, &[*pod], false)));
        }
        let all: Vec<&Unit> = gone.iter().collect();
        if all.len() <= 6 && !self.may_go(spec, count * size, &all, budget) {
            return Err(format!("these may not go for {}: {names:?}", spec.name.name));
        }
        let enough =
            |gone: &[&Unit]| self.fits(count, size, gone) && self.has_quota(gang, spec, count * size, gone);
        // What is held for others meanwhile is not known here.
        let is_alone = self.seen.view.gangs.iter().all(|other| {
            other.name == gang.name
                || other.reason.as_ref().is_none_or(|reason| !reason.text.contains("evicted pod"))
        });
        if !made.others.is_empty() || !is_alone {
            return Ok(false);
        }
        for at in 0..all.len() {
            // A whole gang goes with what is above its minimum.
            let needed =
                all.iter().any(|other| other.is_whole && other.gang == all[at].gang && !all[at].is_whole);
            let rest: Vec<&Unit> =
                all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, unit)| *unit).collect();
            if !needed && enough(&rest) {
                return Err(format!("{:?} goes in vain for {}", all[at], spec.name.name));
            }
        }
        Ok(self.would_less_do(spec, count * size, &all, budget, &enough, protected))
    }

    /// True where units of one gang alone would have done, and that is less: the search does not find all.
    fn would_less_do(
        &self,
        spec: &GangSpec,
        asked: u64,
        chosen: &[&Unit],
        budget: Budget,
        enough: &impl Fn(&[&Unit]) -> bool,
        protected: &BTreeSet<String>,
    ) -> bool {
        let rank = |unit: &Unit| {
            let queue = self.seen.queues.get(&unit.queue).map_or(0, |spec| spec.priority);
            (unit.is_whole, if unit.queue == spec.queue { i32::MIN } else { queue }, unit.priority)
        };
        let cost = |units: &[&Unit]| {
            (units.iter().map(|unit| rank(unit)).max(), units.iter().map(|unit| unit.all()).sum::<u64>())
        };
        let chosen_cost = cost(chosen);
        for set in
            self.sets(protected).iter().filter(|set| set.len() == 1 || set.iter().any(|unit| unit.is_whole))
        {
            let set: Vec<&Unit> = set.iter().collect();
            let is_one = set.iter().all(|unit| unit.gang == set[0].gang);
            if is_one && cost(&set) < chosen_cost && self.may_go(spec, asked, &set, budget) && enough(&set) {
                return true;
            }
        }
        false
    }

    /// Sets of what runs and may go at all: of each gang nothing, some of its surplus, or all of it.
    fn sets(&self, protected: &BTreeSet<String>) -> Vec<Vec<Unit>> {
        let mut sets: Vec<Vec<Unit>> = vec![Vec::new()];
        for (index, gang) in self.seen.view.gangs.iter().enumerate() {
            if protected.contains(&*gang.name.name) {
                continue;
            }
            let units = self.units(index, gang);
            let mut more = Vec::new();
            for set in &sets {
                for count in 1..=units.len() {
                    if set.len() + count <= MOST_UNITS && sets.len() + more.len() < MOST_SETS {
                        more.push(set.iter().cloned().chain(units[..count].iter().cloned()).collect());
                    }
                }
            }
            sets.extend(more);
        }
        sets.retain(|set| !set.is_empty());
        sets
    }

    /// No gang waits that could start on what is idle. True where one waits for which evictions that are allowed would
    /// help: the search is quick, and does not find all; nor is it made anew whenever shares change.
    pub fn check_waiting(
        &self,
        budget: Budget,
        protected: &BTreeSet<String>,
        evictions: bool,
    ) -> Result<bool, String> {
        let mut missed = false;
        let sets = if evictions { self.sets(protected) } else { Vec::new() };
        for gang in self.seen.view.gangs.iter().filter(|gang| matches!(&*gang.phase, "queued" | "admitted")) {
            let Some(spec) = self.spec(gang) else { continue };
            let Some((count, size)) = self.asked(gang, spec) else { continue };
            let is_leaf =
                self.children(Some(&spec.queue)).is_empty() && self.seen.queues.contains_key(&spec.queue);
            let has_problem = self
                .chain(&spec.queue)
                .iter()
                .any(|queue| self.views.get(queue).is_none_or(|view| view.problem.is_some()));
            if !is_leaf || (has_problem && self.is_set_aside(&spec.queue)) {
                continue;
            }
            let asked = count * size;
            if self.fits(count, size, &[]) && self.has_quota(gang, spec, asked, &[]) {
                return Err(format!(
                    "{} could start on what is idle; it says {:?}",
                    gang.name.name,
                    gang.reason.as_ref().map(|reason| &reason.text)
                ));
            }
            // What two gangs give together is found in their order only: another order may let more go.
            let of_one = sets.iter().filter(|set| set.iter().all(|unit| unit.gang == set[0].gang));
            let help = of_one.into_iter().find(|set| {
                let set: Vec<&Unit> = set.iter().collect();
                self.may_go(spec, asked, &set, budget)
                    && self.fits(count, size, &set)
                    && self.has_quota(gang, spec, asked, &set)
            });
            let Some(help) = help else { continue };
            if !has_looked(gang) {
                return Err(format!(
                    "{help:?} may go for {} and would help, and it does not say that somebody was looked for: {:?}",
                    gang.name.name,
                    gang.reason.as_ref().map(|reason| &reason.text)
                ));
            }
            missed = true;
        }
        Ok(missed)
    }

    /// A queue of the chain contradicts itself.
    fn is_set_aside(&self, queue: &QueueName) -> bool {
        self.chain(queue).iter().filter_map(|queue| self.seen.queues.get(queue)).any(|spec| {
            let above =
                |low: Option<u64>, high: Option<u64>| low.zip(high).is_some_and(|(low, high)| low > high);
            let (guarantee, deserved, capability) =
                (named(&spec.guarantee), named(&spec.deserved), named(&spec.capability));
            above(guarantee, deserved) || above(guarantee, capability) || above(deserved, capability)
        })
    }

    /// What all pods of a gang have, for messages.
    pub fn text(&self) -> String {
        let gangs = self.seen.view.gangs.iter().map(|gang| {
            let spec = self.spec(gang);
            let pods: Vec<String> = spec
                .into_iter()
                .flat_map(|spec| self.pods_of(spec))
                .map(|pod| {
                    let node = pod.binding.as_ref().map_or("-", |binding| binding.node.as_str());
                    format!("{}:{}@{node}", pod.name.name, gpus(pod))
                })
                .collect();
            format!(
                "{} q={} {} prio {} min {}: {}\n    {}",
                gang.name.name,
                gang.queue,
                gang.phase,
                gang.priority,
                gang.minimum,
                pods.join(" "),
                gang.reason.as_ref().map_or("", |reason| &reason.text)
            )
        });
        let queues = self.seen.view.queues.iter().map(|queue| {
            format!(
                "queue {}: parent {:?} allocated {} charged {} share {:?} cap {:?} guarantee {:?}",
                queue.name,
                queue.parent,
                devices(&queue.allocated),
                devices(&queue.charged),
                named(&queue.share),
                named(&queue.capability),
                named(&queue.guarantee)
            )
        });
        queues.chain(gangs).collect::<Vec<_>>().join("\n  ")
    }
}
