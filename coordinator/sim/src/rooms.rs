//! Plans that make room for a gang by evicting others, as they are seen from outside: what is stored, whom it ever named,
//! and what became of it. Whether a plan was allowed is judged when it is asked for, by what its leader shows then.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::gang::{GangPolicy, PodPolicy};
use phalanx_common::ids::{GangName, PodUid, QueueName};
use phalanx_common::plan::{GangPlan, PlanPurpose};
use phalanx_common::resources::Resources;
use phalanx_common::units::{Millis, Time};
use phalanx_core::Settings;
use phalanx_core::action::Command;
use phalanx_core::view::{GangView, QueueView, StateView};

use crate::facts::Facts;
use crate::world::World;

/// Agents and kubelets tell of a start later than it is.
const LAG_MS: Millis = Millis(1_000);

/// All that is seen of them.
#[derive(Clone, Debug, Default)]
pub struct Rooms {
    /// Those that the API has, with when each came.
    pub stored: BTreeMap<GangName, (GangPlan, Time)>,
    /// Those that went since the last look.
    pub gone: Vec<(GangPlan, Time)>,
    /// Pods that one that was stored named.
    pub victims: BTreeMap<PodUid, bool>,
    /// Gangs that one that was stored named as a whole, since the last look.
    pub whole: BTreeSet<GangName>,
    /// When a leader asked last for one to be written.
    pub written: BTreeMap<GangName, Time>,
    /// When a leader said last that it gives one up.
    pub dropped: BTreeMap<GangName, Time>,
    /// Those that were written by a process that did not lead any more.
    pub late: BTreeSet<(GangName, u64)>,
    /// Whom leaders wanted to evict for whom.
    asked: BTreeSet<(GangName, PodUid)>,
}

impl Rooms {
    /// A plan is stored.
    pub(crate) fn applied(&mut self, plan: GangPlan, gangs: impl Fn(&PodUid) -> Option<GangName>, now: Time) {
        for victim in &plan.victims {
            self.victims.insert(victim.pod.clone(), victim.whole_gang);
            if victim.whole_gang {
                self.whole.extend(gangs(&victim.pod));
            }
        }
        let since = self.stored.get(&plan.gang).map_or(now, |(_, since)| *since);
        self.stored.insert(plan.gang.clone(), (plan, since));
    }

    /// Plans of these gangs are not stored any more.
    pub(crate) fn removed(&mut self, gang: &GangName) {
        self.gone.extend(self.stored.remove(gang));
    }
}

impl World {
    /// A coordinator writes a plan or says something: what matters of it is counted and judged.
    pub(crate) fn look_at_command(&mut self, incarnation: u64, command: &Command) {
        match command {
            Command::WritePlan(plan) if plan.purpose == PlanPurpose::MakeRoom => {
                self.look_at_room(incarnation, plan);
            }
            Command::Evict { name, cause, .. } => {
                self.log.line(self.now, format_args!("core: evict {}: {cause}", name.name));
            }
            Command::Warn { message } => {
                let Some(rest) = message.strip_prefix("evictions for gang ") else { return };
                let Some((gang, cause)) = rest.split_once(" are dropped: ") else { return };
                let Some((namespace, name)) = gang.split_once('/') else { return };
                self.facts.rooms.dropped.insert(GangName::new(namespace, name), self.now);
                let given_up = cause.ends_with("did not end in time");
                self.log.count(if given_up { "room: a victim is given up" } else { "room: dropped" });
            }
            Command::RecordPromise { expected, started, .. } => {
                self.log.count(match started {
                    Some(started) if started.0 <= expected.0 + LAG_MS.0 => "hold: started as expected",
                    Some(_) => "hold: started late",
                    None => "hold: void",
                });
            }
            _ => {}
        }
    }

    fn look_at_room(&mut self, incarnation: u64, plan: &GangPlan) {
        self.facts.rooms.written.insert(plan.gang.clone(), self.now);
        let Some(process) = self.processes.get(&incarnation) else { return };
        let is_resumed = self.facts.rooms.stored.get(&plan.gang).is_some_and(|(old, _)| old.term < plan.term);
        let view = process.core.view();
        let new: Vec<&PodUid> = plan.victims.iter().map(|victim| &victim.pod).collect();
        let new: Vec<&PodUid> = new
            .into_iter()
            .filter(|pod| !self.facts.rooms.asked.contains(&(plan.gang.clone(), (*pod).clone())))
            .collect();
        if is_resumed {
            self.log.count("room: resumed by a new leader");
        } else {
            self.log.count("room: planned");
            let now = process.clock.told(self.now);
            let wrong = self.why_wrong(&view, plan, &new, now);
            if let Some(wrong) = wrong {
                self.fail("eviction", format!("a plan for gang {}: {wrong}", plan.gang));
            }
        }
        let asked = plan.victims.iter().map(|victim| (plan.gang.clone(), victim.pod.clone()));
        self.facts.rooms.asked.extend(asked);
    }

    /// What is wrong with evicting these for a gang, by what the leader knows.
    fn why_wrong(&mut self, view: &StateView, plan: &GangPlan, new: &[&PodUid], now: Time) -> Option<String> {
        let gang_of = |name: &GangName| view.gangs.iter().find(|gang| gang.name == *name);
        let claimant = gang_of(&plan.gang)?;
        if self.facts.manners.never.contains(&plan.gang) {
            return Some("nothing is ever evicted for it".to_owned());
        }
        let by_pod: BTreeMap<&PodUid, &GangView> =
            view.gangs.iter().flat_map(|gang| gang.pods.iter().map(move |pod| (&pod.uid, gang))).collect();
        let mut preempts = false;
        let mut reclaims = false;
        for uid in new {
            let Some(victim) = by_pod.get(uid) else { continue };
            let is_same = victim.queue == claimant.queue;
            preempts |= is_same;
            reclaims |= !is_same;
            let wrong = if is_same {
                wrong_priority(&self.settings, claimant, victim)
            } else {
                wrong_queue(&self.settings, view, claimant, victim)
            };
            let wrong = wrong.or_else(|| self.facts.is_protected(uid, &victim.name, now));
            if let Some(wrong) = wrong {
                return Some(format!("pod {uid} of gang {}: {wrong}", victim.name));
            }
        }
        if preempts {
            self.log.count("room: preempts");
        }
        if reclaims {
            self.log.count("room: reclaims");
        }
        self.facts.over_budget(new).or_else(|| under_guarantee(view, claimant, new, &by_pod))
    }
}

fn wrong_priority(settings: &Settings, claimant: &GangView, victim: &GangView) -> Option<String> {
    if !settings.preempt {
        return Some("preemption is off".to_owned());
    }
    let (high, low) = (claimant.priority, victim.priority);
    (high <= low).then(|| format!("its priority is {low}, and {high} of whom it is evicted for"))
}

fn queue_of<'v>(view: &'v StateView, name: &QueueName) -> Option<&'v QueueView> {
    view.queues.iter().find(|queue| queue.name == *name)
}

/// The queue and those above it, without those that are above the other one too.
fn chain<'v>(view: &'v StateView, name: &QueueName, other: &QueueName) -> Vec<&'v QueueView> {
    let up = |name: &QueueName| {
        std::iter::successors(queue_of(view, name), |queue| queue_of(view, queue.parent.as_ref()?))
            .take(8)
            .collect::<Vec<_>>()
    };
    let others: BTreeSet<&str> = up(other).into_iter().map(|queue| queue.name.as_str()).collect();
    up(name).into_iter().filter(|queue| !others.contains(queue.name.as_str())).collect()
}

fn wrong_queue(
    settings: &Settings,
    view: &StateView,
    claimant: &GangView,
    victim: &GangView,
) -> Option<String> {
    if !settings.reclaim {
        return Some("taking back is off".to_owned());
    }
    let queue = queue_of(view, &victim.queue)?;
    if !queue.reclaimable {
        return Some(format!("nothing may be taken back from its queue {}", queue.name));
    }
    let within = chain(view, &victim.queue, &claimant.queue).into_iter().find(|queue| {
        // What is not named has no limit, or had none when it was last looked at.
        queue
            .allocated
            .iter()
            .all(|(name, has)| queue.share.get(name.as_str()).is_some_and(|share| has <= share))
    });
    within.map(|queue| {
        format!("queue {} has {:?}, and is entitled to {:?}", queue.name, queue.allocated, queue.share)
    })
}

/// No queue from which something is taken back comes below what is set aside for it.
fn under_guarantee(
    view: &StateView,
    claimant: &GangView,
    victims: &[&PodUid],
    by_pod: &BTreeMap<&PodUid, &GangView>,
) -> Option<String> {
    let mut lost: BTreeMap<&str, Resources> = BTreeMap::new();
    for uid in victims {
        let Some(gang) = by_pod.get(uid).filter(|gang| gang.queue != claimant.queue) else { continue };
        let Some(pod) = gang.pods.iter().find(|pod| pod.uid == **uid) else { continue };
        for queue in chain(view, &gang.queue, &claimant.queue) {
            lost.entry(queue.name.as_str()).or_default().add(&pod.request);
        }
    }
    for (name, lost) in lost {
        // One that contradicts itself is set aside, and nothing for it.
        let mut queues = view.queues.iter().filter(|queue| queue.problem.is_none());
        let Some(queue) = queues.find(|queue| queue.name.as_str() == name) else { continue };
        for (resource, least) in queue.guarantee.iter() {
            let has = queue.allocated.get(resource.as_str()).unwrap_or(0);
            let left = has.saturating_sub(lost.get(resource.as_str()).unwrap_or(0));
            if lost.get(resource.as_str()).unwrap_or(0) > 0 && left < least {
                return Some(format!("queue {name} keeps {left} {resource} of the {least} set aside for it"));
            }
        }
    }
    None
}

/// What gangs, pods and their surroundings say of evictions, as the API has it.
#[derive(Clone, Debug, Default)]
pub struct Sayings {
    /// What gangs say.
    pub gangs: BTreeMap<GangName, GangPolicy>,
    /// What pods say.
    pub pods: BTreeMap<PodUid, PodPolicy>,
    /// Gangs for which nothing is ever evicted.
    pub never: BTreeSet<GangName>,
    /// Shortest run time of gangs of a queue.
    pub minimum_run: BTreeMap<QueueName, Millis>,
    /// Pods with this label may be disrupted so often at once.
    pub budget: Option<u32>,
    /// Since when some pod of a gang is bound.
    pub bound_since: BTreeMap<GangName, Time>,
}

impl Facts {
    /// Why a pod is no victim of anybody.
    fn is_protected(&self, uid: &PodUid, gang: &GangName, now: Time) -> Option<String> {
        let of_gang = self.manners.gangs.get(gang);
        let of_pod = self.manners.pods.get(uid);
        let is_kept = of_pod.and_then(|policy| policy.preemptable) == Some(false)
            || of_gang.and_then(|policy| policy.preemptable) == Some(false);
        if is_kept {
            return Some("it says that it is not preemptable".to_owned());
        }
        let cooldown = of_gang.map_or(Millis(0), |policy| policy.cooldown_ms);
        let queue = self.groups.get(gang).map(|group| QueueName::from(group.queue.as_str()));
        let minimum = queue.and_then(|queue| self.manners.minimum_run.get(&queue)).copied();
        let least = cooldown.max(minimum.unwrap_or(Millis(0)));
        let since = self.manners.bound_since.get(gang)?;
        let has_run = Millis(now.0.saturating_sub(since.0) + self.clock_slack_ms + LAG_MS.0);
        (has_run < least).then(|| format!("it has run for {has_run} at most, and may not go before {least}"))
    }

    /// More of those in the budget go than may.
    fn over_budget(&self, victims: &[&PodUid]) -> Option<String> {
        let allowed = self.manners.budget?;
        let is_in = |uid: &&&PodUid| {
            let policy = self.manners.pods.get(**uid);
            policy.is_some_and(|policy| policy.labels.contains_key("careful"))
        };
        let count = victims.iter().filter(is_in).count();
        (count > allowed as usize).then(|| format!("{count} pods of a budget go that allows {allowed}"))
    }
}
