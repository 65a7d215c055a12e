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
use phalanx_core::view::{GangView, PodView, QueueView, StateView};

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

    /// A plan of the gang is stored, or may be, as far as its leader says.
    fn may_stand(&self, gang: &GangName) -> bool {
        self.stored.contains_key(gang) || self.written.get(gang) > self.dropped.get(gang)
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
        let claimant = view.gangs.iter().find(|gang| gang.name == plan.gang)?;
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
                wrong_queue(&self.settings, view, victim)
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
        let units = units_of(plan, new, &claimant.queue, &by_pod);
        self.facts
            .over_budget(new)
            .or_else(|| TakenBack::new(&self.facts, view, plan, claimant).wrong(&units))
    }
}

/// What goes as one: a gang as a whole, or one pod of it.
type Unit<'v> = (&'v GangView, Vec<&'v PodView>);

/// Those of other queues that a plan names anew. In which order they were chosen it does not say.
fn units_of<'v>(
    plan: &GangPlan,
    new: &[&PodUid],
    queue: &QueueName,
    by_pod: &BTreeMap<&PodUid, &'v GangView>,
) -> Vec<Unit<'v>> {
    let mut units: Vec<Unit<'v>> = Vec::new();
    let mut whole: BTreeMap<&GangName, Unit<'v>> = BTreeMap::new();
    for victim in plan.victims.iter().filter(|victim| new.contains(&&victim.pod)) {
        let Some(gang) = by_pod.get(&victim.pod).copied().filter(|gang| gang.queue != *queue) else {
            continue;
        };
        let Some(pod) = gang.pods.iter().find(|pod| pod.uid == victim.pod) else { continue };
        if victim.whole_gang {
            whole.entry(&gang.name).or_insert((gang, Vec::new())).1.push(pod);
        } else {
            units.push((gang, vec![pod]));
        }
    }
    units.into_iter().chain(whole.into_values()).collect()
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

/// The queue and those above it.
fn up<'v>(view: &'v StateView, name: &QueueName) -> impl Iterator<Item = &'v QueueView> {
    std::iter::successors(queue_of(view, name), |queue| queue_of(view, queue.parent.as_ref()?)).take(8)
}

/// The same without those that are above the other one too.
fn chain<'v>(view: &'v StateView, name: &QueueName, other: &QueueName) -> Vec<&'v QueueView> {
    let others: BTreeSet<&str> = up(view, other).map(|queue| queue.name.as_str()).collect();
    up(view, name).filter(|queue| !others.contains(queue.name.as_str())).collect()
}

fn wrong_queue(settings: &Settings, view: &StateView, victim: &GangView) -> Option<String> {
    if !settings.reclaim {
        return Some("taking back is off".to_owned());
    }
    let queue = queue_of(view, &victim.queue)?;
    let name = &queue.name;
    (!queue.reclaimable).then(|| format!("nothing may be taken back from its queue {name}"))
}

/// What a plan takes back from other queues, judged by the numbers that its leader shows.
struct TakenBack<'v> {
    view: &'v StateView,
    claimant: &'v GangView,
    /// What the claimant asks for: of nothing else a queue counts as above its share.
    asked: BTreeSet<&'v str>,
    /// What gangs may still get for which others go already: their queues count as having it.
    coming: BTreeMap<&'v str, Resources>,
}

impl<'v> TakenBack<'v> {
    fn new(facts: &Facts, view: &'v StateView, plan: &GangPlan, claimant: &'v GangView) -> Self {
        let waits = |pod: &&PodView| pod.lease.is_none();
        // Those that the plan names: they may have found other room by the time that this is looked at.
        let is_planned = |pod: &&PodView| plan.pods.iter().any(|planned| planned.pod == pod.uid);
        let requests = claimant.pods.iter().filter(is_planned).flat_map(|pod| pod.request.iter());
        let asked = requests.filter(|(_, amount)| *amount > 0).map(|(name, _)| name.as_str()).collect();
        let mut coming: BTreeMap<&str, Resources> = BTreeMap::new();
        for gang in view.gangs.iter().filter(|gang| facts.rooms.may_stand(&gang.name)) {
            for queue in up(view, &gang.queue) {
                let coming = coming.entry(queue.name.as_str()).or_default();
                gang.pods.iter().filter(waits).for_each(|pod| coming.add(&pod.request));
            }
        }
        Self { view, claimant, asked, coming }
    }

    /// No queue gives anything that has no more than its share of what is asked for, and none comes below what is set
    /// aside for it.
    fn wrong(self, units: &[Unit<'v>]) -> Option<String> {
        // What each queue loses, unit by unit.
        let mut lost: BTreeMap<&str, (&QueueView, Vec<Resources>)> = BTreeMap::new();
        for (gang, pods) in units {
            let mut sum = Resources::new();
            pods.iter().for_each(|pod| sum.add(&pod.request));
            for queue in chain(self.view, &gang.queue, &self.claimant.queue) {
                lost.entry(queue.name.as_str()).or_insert((queue, Vec::new())).1.push(sum.clone());
            }
        }
        lost.into_values().find_map(|(queue, lost)| {
            self.within_share(queue, &lost).or_else(|| self.under_guarantee(queue, &lost))
        })
    }

    /// What is left of what a queue has when these are lost.
    fn left<'l>(&self, queue: &QueueView, lost: impl Iterator<Item = &'l Resources>, resource: &str) -> u64 {
        let coming = self.coming.get(queue.name.as_str()).map_or(0, |coming| coming.amount(resource));
        let lost: u64 = lost.map(|lost| lost.amount(resource)).sum();
        (queue.allocated.amount(resource) + coming).saturating_sub(lost)
    }

    /// Whichever went last, the queue had no more than its share by then.
    fn within_share(&self, queue: &QueueView, lost: &[Resources]) -> Option<String> {
        // What is not known any more judges nobody: a snapshot forgets what can be worked out anew.
        let are_known = self.view.queues.iter().any(|queue| !queue.share.is_empty());
        let is_over = |resource: &str, last: usize| {
            let before = lost.iter().enumerate().filter(|(at, _)| *at != last).map(|(_, lost)| lost);
            self.left(queue, before, resource) > queue.share.amount(resource)
        };
        let limited = || self.asked.iter().filter(|resource| is_limited(self.view, queue, resource));
        let is_right = (0..lost.len()).any(|last| limited().any(|resource| is_over(resource, last)));
        (are_known && !is_right).then(|| {
            format!(
                "queue {} has {:?}, gives {lost:?}, and is entitled to {:?}",
                queue.name, queue.allocated, queue.share
            )
        })
    }

    fn under_guarantee(&self, queue: &QueueView, lost: &[Resources]) -> Option<String> {
        let least = guarantee_of(self.view, queue);
        let is_lost = |resource: &str| lost.iter().any(|lost| lost.amount(resource) > 0);
        let left = |resource: &str| self.left(queue, lost.iter(), resource);
        let mut taken = least.iter().filter(|(name, _)| is_lost(name.as_str()));
        let (resource, least) = taken.find(|(name, least)| left(name.as_str()) < *least)?;
        let (name, left) = (&queue.name, left(resource.as_str()));
        Some(format!("queue {name} keeps {left} {resource} of the {least} set aside for it"))
    }
}

/// True where a queue is entitled to so much of a resource and no more; of what its share does not name then to nothing.
/// One whose `deserved` names other resources alone has no limit of this one: it is never above it.
fn is_limited(view: &StateView, queue: &QueueView, resource: &str) -> bool {
    if !queue.deserved.is_empty() {
        return queue.deserved.get(resource).is_some();
    }
    let parent = queue.parent.as_ref().and_then(|parent| queue_of(view, parent));
    parent.is_none_or(|parent| is_limited(view, parent, resource))
}

/// What is set aside for a queue: its own guarantee, and at least those of the queues below it.
fn guarantee_of(view: &StateView, queue: &QueueView) -> Resources {
    let mut least = Resources::new();
    for below in view.queues.iter().filter(|below| below.parent.as_ref() == Some(&queue.name)) {
        least.add(&guarantee_of(view, below));
    }
    // One that contradicts itself is set aside, and nothing for it; of one that has a guarantee above all that there is
    // nothing of this resource is, and GPUs are the only one that is guaranteed here.
    if queue.problem.is_none() {
        least.raise_to(&queue.guarantee);
    }
    least
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
    /// Since when a gang has run: the pods that it needs were bound then for the first time since none was. It is there
    /// before any coordinator knows of it, and before any pod starts.
    pub whole_since: BTreeMap<GangName, Time>,
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
        let pods = self.pods.iter().filter(|(_, pod)| pod.gang == *gang);
        let of_pods = pods.filter_map(|(uid, _)| self.manners.pods.get(uid)).map(|policy| policy.cooldown_ms);
        let cooldown = of_gang.map(|policy| policy.cooldown_ms).into_iter().chain(of_pods).max()?;
        let queue = self.groups.get(gang).map(|group| QueueName::from(group.queue.as_str()));
        let minimum = queue.and_then(|queue| self.manners.minimum_run.get(&queue)).copied();
        let least = cooldown.max(minimum.unwrap_or(Millis(0)));
        // Whoever has not heard that its minimum was raised takes it for whole before it is.
        let since = self.manners.whole_since.get(gang).or_else(|| self.manners.bound_since.get(gang))?;
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
