//! The coordinator deletes a bound pod only where its gang was cut short and its binding deadline has passed, where the
//! pod's GPU is not there any more, or where a plan that was stored before says that it goes for another gang. A gang that
//! runs is left alone otherwise, whatever it has lost. A plan that makes room leads to a placement, or it is said why not.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::gang::PodPhase;
use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::units::{Millis, Time};

use crate::facts::{Evicted, Facts, Need, PodFact};

/// A need that was changed counts for so long: what was decided under it is still being done.
const NEED_LAG_MS: Millis = Millis(60_000);
/// A plan that went, and a GPU that is back, count for so long: an eviction that was decided before may be tried again.
const GONE_LAG_MS: Millis = Millis(60_000);
/// Coordinators' clocks are set wrong by so much at most, and one part in this many too fast.
const SKEW_MS: u64 = 10_000;
const DRIFT: u64 = 20;

/// What is remembered of a gang.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// What it needs and needed, and when each was last in force.
    needs: BTreeMap<Need, Time>,
    /// Some pod of it has run since it last had no bound pod: who let it start knew that the gang was whole.
    has_run: bool,
    /// The first binding deadline of its plan since there was none, and when it was last there.
    plan: Option<(Time, Time)>,
    has_plan: bool,
    /// The pods that its last plan names.
    planned: BTreeSet<PodUid>,
    /// Since when it has fewer pods than it needs, though something of it runs.
    below_since: Option<Time>,
    /// It goes as a whole for another one, as long as anything of it is bound.
    is_going: bool,
}

/// The checker.
#[derive(Debug, Default)]
pub struct Eviction {
    gangs: BTreeMap<GangName, Memory>,
}

impl Eviction {
    /// Looks at the facts.
    ///
    /// # Errors
    /// The pod, and why it should have stayed.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        for (name, group) in &facts.groups {
            let memory = self.gangs.entry(name.clone()).or_default();
            memory.needs.insert(group.need.clone(), facts.now);
            memory.needs.retain(|_, last| *last + NEED_LAG_MS >= facts.now);
        }
        for (name, deadline) in &facts.plans {
            let memory = self.gangs.entry(name.clone()).or_default();
            let before = memory.plan.filter(|_| memory.has_plan);
            memory.plan = Some((before.map_or(*deadline, |(before, _)| before.min(*deadline)), facts.now));
            if let Some(pods) = facts.plan_pods.get(name).filter(|pods| **pods != memory.planned) {
                memory.planned.clone_from(pods);
            }
        }
        for (name, memory) in &mut self.gangs {
            memory.has_plan = facts.plans.contains_key(name);
        }
        for name in &facts.rooms.whole {
            self.gangs.entry(name.clone()).or_default().is_going = true;
        }
        check_gone(facts)?;
        for evicted in &facts.evicted {
            let memory = self.gangs.entry(evicted.pod.gang.clone()).or_default();
            if let Some(why) = why_wrong(facts, evicted, memory) {
                return Err(format!("pod {} was evicted, and {why}", evicted.pod.name));
            }
        }
        self.remember_runs(facts);
        Ok(())
    }

    fn remember_runs(&mut self, facts: &Facts) {
        let mut live = BTreeSet::new();
        for (uid, pod) in facts.pods.iter().filter(|(_, pod)| pod.is_live()) {
            live.insert(&pod.gang);
            let runs =
                facts.running.contains_key(uid) || (pod.lease.is_none() && pod.phase == PodPhase::Running);
            if runs && !facts.by_hand.contains(uid) {
                self.gangs.entry(pod.gang.clone()).or_default().has_run = true;
            }
        }
        for (name, memory) in &mut self.gangs {
            let pods = facts.pods.values().filter(|pod| pod.gang == *name);
            let counts = |pod: &&PodFact| pod.is_live() || pod.phase == PodPhase::Succeeded;
            let tasks: Vec<&str> = pods.filter(counts).map(|pod| &*pod.task).collect();
            let is_below = !memory.needs.keys().all(|need| need.is_met(tasks.iter().copied()));
            memory.below_since =
                (is_below && live.contains(name)).then(|| memory.below_since.unwrap_or(facts.now));
            memory.has_run &= live.contains(name);
            memory.is_going &= live.contains(name);
        }
    }
}

/// A plan that makes room goes because its gang has its place, or is gone, or because its leader said that it gives it up.
fn check_gone(facts: &Facts) -> Result<(), String> {
    for (plan, since) in &facts.rooms.gone {
        let group = facts.groups.get(&plan.gang);
        let is_gone = group.is_none_or(|group| *group.uid != *plan.gang_uid);
        let is_late = facts.rooms.late.contains(&(plan.gang.clone(), plan.term));
        // It may be given up before it is stored: its write was on its way then, and its removal comes behind.
        let since = facts.rooms.written.get(&plan.gang).map_or(*since, |asked| (*asked).min(*since));
        let is_told = facts.rooms.dropped.get(&plan.gang).is_some_and(|said| *said >= since);
        let is_placed = facts.plans.contains_key(&plan.gang)
            || group.is_some_and(|group| {
                let pods = facts.pods.values().filter(|pod| pod.gang == plan.gang);
                let counts = |pod: &&PodFact| pod.is_live() || pod.phase == PodPhase::Succeeded;
                group.need.is_met(pods.filter(counts).map(|pod| &*pod.task))
            });
        if !(is_gone || is_late || is_told || is_placed) {
            return Err(format!(
                "the plan that made room for gang {} is gone, it has no place, and nobody said why",
                plan.gang
            ));
        }
    }
    Ok(())
}

/// What is wrong with an eviction.
fn why_wrong(facts: &Facts, evicted: &Evicted, memory: &Memory) -> Option<String> {
    let Evicted { uid, pod, by_leader } = evicted;
    if !by_leader || pod.phase.is_terminal() {
        return None;
    }
    if pod.node.is_none() {
        return Some("was not bound".to_owned());
    }
    let is_missing =
        |gpu| facts.missing_until.get(gpu).is_some_and(|until| *until + GONE_LAG_MS >= facts.now);
    if pod.gpus.iter().any(is_missing) || memory.is_going || facts.rooms.victims.contains_key(uid) {
        return None;
    }
    let has_group = facts.groups.contains_key(&pod.gang);
    if !has_group && !memory.has_run {
        // Nobody can tell whether it was ever whole.
        return None;
    }
    let counted = bound_before(facts, uid, pod);
    let is_whole = !memory.needs.is_empty()
        && memory.needs.keys().all(|need| need.is_met(counted.iter().map(|pod| &*pod.task)));
    // What joins a gang that runs, by a plan of its own, and has not started is rolled back as any other binding is: the
    // gang loses nothing that it worked with.
    let has_started = facts.running.contains_key(uid) || pod.phase != PodPhase::Pending;
    let joins = !has_started && memory.planned.contains(uid);
    if is_whole && memory.has_run && !joins {
        return Some(format!("its gang {} is whole and runs", pod.gang));
    }
    let lag = Millis(SKEW_MS + facts.now.0 / DRIFT);
    if memory.below_since.is_some_and(|since| facts.now + lag >= since + facts.degraded_grace_ms) {
        // What is below its minimum for so long gives back what it has.
        return None;
    }
    match memory.plan {
        Some((deadline, _)) if facts.now + lag < deadline => {
            Some(format!("the binding deadline of gang {} is {} ms", pod.gang, deadline.0))
        }
        Some((_, last)) if last + GONE_LAG_MS >= facts.now => None,
        Some(_) | None if has_group => Some(format!("its gang {} has no plan that was cut short", pod.gang)),
        Some(_) | None => None,
    }
}

/// Pods of the gang that were bound or had ended well, before this one and others were evicted just now.
fn bound_before<'f>(facts: &'f Facts, uid: &PodUid, pod: &'f PodFact) -> Vec<&'f PodFact> {
    let others = facts.pods.iter().filter(|(other, fact)| *other != uid && fact.gang == pod.gang);
    let now = facts.evicted.iter().map(|evicted| &evicted.uid).collect::<BTreeSet<_>>();
    let counts = others.filter(|(other, fact)| {
        fact.is_live()
            || fact.phase == PodPhase::Succeeded
            || (now.contains(other) && !fact.phase.is_terminal())
    });
    counts.map(|(_, fact)| fact).chain([pod]).collect()
}
