//! The oracle of reasons over several queues: what a reason suggests is done in a copy of the world, again and again
//! where something else limits the gang then, and it starts; a little less, and the same reason stands.

mod change;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use phalanx_core::reason::{NoEvictionCause, QueueHeld, Reason};

use super::support::World;
use change::{Change, Suggestion, suggestions};

/// So many suggestions are followed one after the other.
const MOST_STEPS: usize = 40;

/// What the states have reached.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Suggestions that were followed, by the reason's code and the kind of change.
    pub followed: BTreeMap<String, u64>,
    /// Started by the first suggestion alone.
    pub at_once: u64,
    /// Others took what was given first.
    pub taken: u64,
    /// What was said was not of that moment any more.
    pub stale: u64,
    /// Gangs of pods of several sizes that there is room for and that find none.
    pub unpacked: u64,
    /// Less was tried.
    pub less: u64,
    /// Reasons without a suggestion that is tried here, by code.
    pub silent: BTreeMap<String, u64>,
}

/// What is to be tried often in a plain run.
const TRIED: [&str; 23] = [
    "AboveAncestorCapability Ceiling",
    "AboveAncestorCapability Minimum",
    "AboveCapability Ceiling",
    "AboveCapability Minimum",
    "AncestorQuotaUsed Ceiling",
    "GuaranteedToOthers Guarantees",
    "LargerThanAllNodes Nodes",
    "LargerThanAnyNode Nodes",
    "LargerThanCluster Minimum",
    "NamespaceNotAllowed Allow",
    "NoNodeMatches Unmet",
    "NoRoom Minimum",
    "NoRoom Rooms",
    "NoRoom Unmet",
    "NoSuchPriorityClass MakeClass",
    "NoSuchQueue MakeQueue",
    "NodesClosed OpenNodes",
    "PodGated Gates",
    "QueueClosed OpenQueue",
    "QueueHasChildren MoveTo",
    "QuotaUsed Ceiling",
    "StrictOrder Traverse",
    "TooFewPods Pods",
];

impl Counts {
    /// What was hardly ever tried.
    pub fn missed(&self) -> Vec<&'static str> {
        let count = |name: &str| self.followed.get(name).copied().unwrap_or(0);
        TRIED.into_iter().filter(|name| count(name) < 15).collect()
    }

    pub fn add(&mut self, other: Self) {
        for (name, count) in other.followed {
            *self.followed.entry(name).or_default() += count;
        }
        for (name, count) in other.silent {
            *self.silent.entry(name).or_default() += count;
        }
        self.at_once += other.at_once;
        self.stale += other.stale;
        self.unpacked += other.unpacked;
        self.taken += other.taken;
        self.less += other.less;
    }
}

/// What limits a gang: two reasons are alike where what was done for the first ought to have ended the second.
fn limit(reason: &Reason) -> String {
    match reason {
        Reason::MorePodsWait { cause, .. } => limit(cause),
        Reason::Preempted(preempted) => preempted.cause.as_ref().map(limit).unwrap_or_default(),
        Reason::QuotaUsed { queue, resource, .. } | Reason::AboveCapability { queue, resource, .. } => {
            format!("{} {queue} {resource}", reason.code())
        }
        Reason::Queue(held) => match &**held {
            QueueHeld::AncestorUsed { ancestor, resource, .. }
            | QueueHeld::AboveAncestor { ancestor, resource, .. } => {
                format!("{} {ancestor} {resource}", reason.code())
            }
            QueueHeld::Guaranteed { resource, never, .. } => format!("{} {resource} {never}", reason.code()),
            _ => reason.code().to_owned(),
        },
        _ => reason.code().to_owned(),
    }
}

/// The same for what is left of it when less is done than is suggested: another limit of the same kind may come first.
fn kind_of_limit(reason: &Reason) -> &'static str {
    match reason {
        Reason::MorePodsWait { cause, .. } => kind_of_limit(cause),
        Reason::Preempted(preempted) => preempted.cause.as_ref().map(kind_of_limit).unwrap_or_default(),
        Reason::AboveCapability { .. } => "ceiling",
        Reason::Queue(held) if matches!(**held, QueueHeld::AboveAncestor { .. }) => "ceiling",
        Reason::NodesClosed { .. } => "NoRoom",
        // Each pod more asks for more, and what limits fewer pods, or on more nodes, may be anything.
        Reason::TooFewPods { .. } | Reason::LargerThanCluster { .. } | Reason::NoNodeMatches(_) => "",
        _ => reason.code(),
    }
}

/// Something that is free is kept for another gang that has waited long.
fn is_held_for_others(reason: &Reason) -> bool {
    match reason {
        Reason::MorePodsWait { cause, .. } => is_held_for_others(cause),
        Reason::Preempted(preempted) => preempted.cause.as_ref().is_some_and(is_held_for_others),
        Reason::NoRoom(room) | Reason::NodesClosed { room, .. } => !room.holds.is_empty(),
        _ => false,
    }
}

/// Others could be evicted on nodes that constraints keep the gang from.
fn is_kept_from_victims(reason: &Reason) -> bool {
    match reason {
        Reason::MorePodsWait { cause, .. } => is_kept_from_victims(cause),
        Reason::Preempted(preempted) => preempted.cause.as_ref().is_some_and(is_kept_from_victims),
        Reason::NoRoom(room) => room.eviction.as_ref().is_some_and(|eviction| {
            matches!(&eviction.cause, NoEvictionCause::Fit { kept_from, .. } if !kept_from.is_empty())
        }),
        _ => false,
    }
}

struct Oracle<'a> {
    gang: &'a str,
    counts: &'a mut Counts,
}

/// Looks at every gang that waits in one state; an error says what is wrong.
pub fn look(seed: u64) -> Result<Counts, String> {
    let (mut world, log) = state::state(seed);
    let mut counts = Counts::default();
    let before = world.waiting();
    look_again(&mut world);
    counts.stale += before.iter().filter(|waits| !world.waiting().contains(waits)).count() as u64;
    for (gang, reason) in world.waiting() {
        let mut oracle = Oracle { gang: &gang, counts: &mut counts };
        let result = oracle.check(&world, &reason);
        result.map_err(|error| {
            let mut world = world.clone();
            let (state, queues) = (world.run("state"), world.run("queues"));
            format!("seed {seed}: {gang}: {error}\n{}\n{state}{queues}", log.join("\n"))
        })?;
    }
    Ok(counts)
}

fn rest(world: &mut World) {
    world.run("settle-quietly");
    for _ in 0..2 {
        let line = format!("quiet-t {}", world.seconds() + 1);
        world.run(&line);
    }
}

/// Has everybody who waits be tried once more, so that what he is told is of now: a class that nobody has changes.
fn look_again(world: &mut World) {
    let line = format!("class nobody {}", world.seconds());
    world.run(&line);
    world.run("settle-quietly");
}

fn kind(change: &Change) -> String {
    let text = format!("{change:?}");
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

impl Oracle<'_> {
    fn started(&self, before: &World, after: &World) -> bool {
        after.bindings_of(self.gang) > before.bindings_of(self.gang)
    }

    /// Another gang has got something since.
    fn is_taken(&self, before: &World, after: &World) -> bool {
        let (before, after) = (before.standing(), after.standing());
        after.iter().any(|(name, (phase, made))| {
            let known = before.get(name);
            let was_made = known.map_or(0, |(_, made)| *made);
            let was_queued = known.is_none_or(|(phase, _)| phase == "queued");
            name != self.gang && (*made > was_made || (was_queued && phase == "admitted"))
        })
    }

    fn has_several_sizes(&self, world: &World) -> bool {
        let sizes: BTreeSet<u64> = world
            .pods_of(self.gang)
            .map(|pod| pod.request.effective().gpus())
            .filter(|gpus| *gpus > 0)
            .collect();
        sizes.len() > 1
    }

    fn done(&self, world: &World, change: &Change) -> World {
        let mut after = world.clone();
        change.apply(&mut after, self.gang);
        rest(&mut after);
        after
    }

    fn check(&mut self, world: &World, reason: &Reason) -> Result<(), String> {
        let all = suggestions(reason);
        if all.is_empty() {
            *self
                .counts
                .silent
                .entry(limit(reason).split(' ').next().unwrap_or("").to_owned())
                .or_default() += 1;
        }
        for suggestion in &all {
            self.check_one(world, reason, suggestion)?;
        }
        Ok(())
    }

    fn check_one(&mut self, world: &World, reason: &Reason, suggestion: &Suggestion) -> Result<(), String> {
        if !reason.fix().contains(&suggestion.text) {
            return Err(format!("the fix does not say {:?}: {}", suggestion.text, reason.fix()));
        }
        let is_known = |less: &&Change| match less {
            // Nodes that are added change what queues are entitled to: others may be evicted then.
            Change::Rooms(_) => world.other_gpus("h0") > 0,
            // Somebody could be evicted on nodes that the pod may not use: a lesser change may let him.
            Change::Unmet(_) => !is_kept_from_victims(reason),
            _ => true,
        };
        for less in suggestion.less.iter().filter(is_known) {
            self.counts.less += 1;
            let after = self.done(world, less);
            let kind = kind_of_limit(reason);
            let stands = kind.is_empty()
                || after.reason(self.gang).is_some_and(|after| {
                    // Who is let in first by less keeps others back in a strict queue.
                    [kind, "StrictOrder"].contains(&kind_of_limit(&after))
                });
            if self.started(world, &after) {
                return Err(format!("less does: {less:?} of {:?}: {reason}", suggestion.change));
            }
            if !stands && !self.is_taken(world, &after) {
                return Err(format!(
                    "less ends the reason: {less:?} of {:?}: {reason}\n  then: {:?}",
                    suggestion.change,
                    after.reason(self.gang).map(|reason| reason.to_string())
                ));
            }
        }
        self.follow(world, reason, suggestion)
    }

    /// Does what is suggested, and then the first thing that is suggested next, until the gang starts.
    fn follow(&mut self, world: &World, reason: &Reason, suggestion: &Suggestion) -> Result<(), String> {
        let name = format!("{} {}", limit(reason).split(' ').next().unwrap_or(""), kind(&suggestion.change));
        *self.counts.followed.entry(name).or_default() += 1;
        let mut told = Vec::new();
        let (mut world, mut reason, mut change) = (world.clone(), reason.clone(), suggestion.change.clone());
        for step in 0..MOST_STEPS {
            told.push(format!("{reason}: {change:?}"));
            let mut after = self.done(&world, &change);
            if self.started(&world, &after) {
                self.counts.at_once += u64::from(step == 0);
                return Ok(());
            }
            let steps = || told.join("\n  then ");
            look_again(&mut after);
            if self.started(&world, &after) {
                return Err(format!("it starts only when all are tried once more: {}", steps()));
            }
            let Some(next) = after.reason(self.gang) else {
                return Err(format!("no reason, and it does not start: {}", steps()));
            };
            // Of nodes that are closed and in use it is only the first that they are closed: then it is not admitted.
            let is_exact = world.phase(self.gang) == "admitted" && kind_of_limit(&reason) == "NoRoom";
            let is_same = limit(&next) == limit(&reason) || (is_exact && kind_of_limit(&next) == "NoRoom");
            if is_same {
                let is_packing = kind_of_limit(&next) == "NoRoom" && self.has_several_sizes(&after);
                if is_packing && !self.is_taken(&world, &after) {
                    // Pods are placed one after another, the largest first, which does not always find room for all.
                    self.counts.unpacked += 1;
                    return Ok(());
                }
                if !self.is_taken(&world, &after) && !is_held_for_others(&next) {
                    return Err(format!("it does not help: {}\n  then {next}", steps()));
                }
                self.counts.taken += 1;
            }
            let Some(first) = suggestions(&next).into_iter().next() else {
                *self
                    .counts
                    .silent
                    .entry(format!("then {}", limit(&next).split(' ').next().unwrap_or("")))
                    .or_default() += 1;
                return Ok(());
            };
            (world, reason, change) = (after, next, first.change);
        }
        Err(format!("it never starts: {}", told.join("\n  then ")))
    }
}
