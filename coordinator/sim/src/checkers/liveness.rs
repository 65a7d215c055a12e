//! When the faults have stopped, everything that fits runs and ends, and whatever waits says why.

use phalanx_common::gang::PodPhase;
use phalanx_common::ids::GangName;

use super::End;
use crate::facts::{Facts, GroupFact, PodFact};

/// Names of what can never run begin with this.
pub const NEVER: &str = "never";

/// True where a gang was made so that it can never run.
#[must_use]
pub fn is_impossible(facts: &Facts, gang: &GangName) -> bool {
    gang.name.starts_with(NEVER) || pods_of(facts, gang).any(|pod| pod.name.name.starts_with(NEVER))
}

fn pods_of<'f>(facts: &'f Facts, gang: &'f GangName) -> impl Iterator<Item = &'f PodFact> {
    facts.pods.values().filter(move |pod| pod.gang == *gang)
}

/// True where everything that can end has ended.
#[must_use]
pub fn is_done(facts: &Facts) -> bool {
    facts.running.is_empty()
        && without_gang(facts).is_none()
        && facts.groups.iter().all(|(name, group)| unfinished(facts, name, group).is_none())
}

/// Gangs that wait and have fewer pods than their minimum; of those of jobs, the ones that will not get more.
#[must_use]
pub fn short_of_pods(facts: &Facts) -> Vec<GangName> {
    let is_short = |(name, group): &(&GangName, &GroupFact)| {
        let is_useful = |pod: &&PodFact| pod.phase != PodPhase::Failed;
        let useful = pods_of(facts, name).filter(is_useful).count();
        let is_enough = group.need.is_met(pods_of(facts, name).filter(is_useful).map(|pod| &*pod.task));
        // One of which somebody else bound a pod may have enough pods, and too few of one of its tasks.
        let by_hand = facts.bound_by_hand.contains(*name) && unfinished(facts, name, group).is_some();
        (by_hand || group.job.is_none() || useful < pods_of(facts, name).count())
            && (by_hand || !is_enough)
            && !pods_of(facts, name).any(PodFact::is_live)
    };
    facts.groups.iter().filter(is_short).map(|(name, _)| name.clone()).collect()
}

/// A pod or job of which no gang was made.
fn without_gang(facts: &Facts) -> Option<String> {
    let has_group = |uid: &String| facts.groups.values().any(|group| group.job.as_ref() == Some(uid));
    if let Some(pod) = facts.loose.first() {
        return Some(format!("no PodGroup was made for pod {pod}"));
    }
    let job = facts.jobs.iter().find(|(uid, is_ended)| !**is_ended && !has_group(uid))?;
    Some(format!("no PodGroup was made for job {}", job.0))
}

/// What of a gang should have run and did not.
fn unfinished(facts: &Facts, name: &GangName, group: &GroupFact) -> Option<String> {
    let pods = || pods_of(facts, name);
    if let Some(pod) = pods().find(|pod| pod.deleting) {
        return Some(format!("pod {} was deleted and is still there", pod.name));
    }
    if is_impossible(facts, name) {
        return None;
    }
    let awaits_pods = group.job.as_ref().is_some_and(|job| facts.jobs.get(job) == Some(&false));
    if awaits_pods && pods().next().is_none() {
        return Some(format!("the pods of gang {name} were never made"));
    }
    let useful = pods().filter(|pod| pod.phase != PodPhase::Failed);
    let is_enough = group.need.is_met(useful.map(|pod| &*pod.task));
    let open = pods().find(|pod| !pod.phase.is_terminal() && (is_enough || pod.node.is_some()))?;
    Some(format!("pod {} of gang {name} has not ended: {:?} on {:?}", open.name, open.phase, open.node))
}

/// Checks that all ended that could, and that all others have a reason.
///
/// # Errors
/// The first gang that should have run, or that does not say why it waits.
pub fn check(end: &End<'_>) -> Result<(), String> {
    let facts = end.facts;
    if let Some(what) = without_gang(facts) {
        return Err(what);
    }
    for (name, group) in &facts.groups {
        if let Some(what) = unfinished(facts, name, group) {
            let gang = end.view.gangs.iter().find(|gang| gang.name == *name);
            let seen = gang.map_or_else(
                || "not known to the coordinator".to_owned(),
                |gang| {
                    let reason = gang.reason.as_ref().map_or("no reason", |reason| reason.text.as_str());
                    format!("{}: {reason}", gang.phase)
                },
            );
            return Err(format!("{what} ({seen})"));
        }
    }
    for gang in &end.view.gangs {
        let waits = matches!(&*gang.phase, "queued" | "admitted");
        let is_awaited = facts.groups.contains_key(&gang.name);
        let is_explained = gang.reason.as_ref().is_some_and(|reason| &*reason.code != "InProgress");
        if waits && is_awaited && !is_explained {
            return Err(format!("gang {} is {} and has no reason: {:?}", gang.name, gang.phase, gang.reason));
        }
        let is_ours = !facts.bound_by_hand.contains(&gang.name);
        if !waits && is_awaited && is_ours && is_impossible(facts, &gang.name) {
            return Err(format!("gang {} can never run and is {}", gang.name, gang.phase));
        }
        check_phase(facts, &gang.name, &gang.pod_group_phase)?;
    }
    Ok(())
}

/// The API shows the phase that the coordinator shows.
fn check_phase(facts: &Facts, name: &GangName, phase: &str) -> Result<(), String> {
    let Some(group) = facts.groups.get(name) else { return Ok(()) };
    let written = group.status.get("phase").and_then(|phase| phase.as_str()).unwrap_or("none");
    if written == phase {
        Ok(())
    } else {
        Err(format!("the status of gang {name} says {written}, the coordinator says {phase}"))
    }
}
