//! Times that end something of a gang by themselves: how long it waits before it starts with fewer pods, how long it
//! may be below its minimum, how long its pods may take to start, and how long it may run.
//!
//! All of them are counted from facts where there are some: when the gang was made, and when its pods started. What
//! nobody wrote down, since when a gang lacks pods, counts from the start of the coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::{Grace, PodPhase};
use phalanx_common::ids::QueueName;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Command};
use crate::amounts::Amounts;
use crate::core::{Core, Timer};
use crate::gang::{Gang, GangKey, Pod};
use crate::phase::{Phase, PhaseKind};
use crate::reason::{QueueHeld, Reason, Together, clock};
use crate::whole::task_minima;

/// What a gang's times are counted from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GangTimes {
    /// Since when its minimum is bound without a break.
    bound_since: Option<Time>,
    /// Since when it has fewer pods than its minimum.
    below_since: Option<Time>,
    /// Since when that is because it lost some, and not only because its minimum was raised; `None` while nothing of it could
    /// be taken back.
    lost_since: Option<Time>,
    /// It ran at least once, whatever became of it.
    pub(crate) has_run: bool,
    /// Why it gave back what it had, the last time; told while it waits.
    pub(crate) released: Option<Arc<str>>,
    /// It was ended for having run so long.
    #[serde(default)]
    pub(crate) ran_out: Option<Millis>,
}

/// What ends a gang.
struct End {
    /// What people are told.
    cause: String,
    /// The maximum that it ran for, where that is it.
    maximum: Option<Millis>,
}

impl GangTimes {
    /// Keeps in mind when a gang moves to this phase.
    pub(crate) fn note_phase(&mut self, after: PhaseKind, now: Time) {
        match after {
            PhaseKind::Running => {
                self.bound_since.get_or_insert(now);
                (self.below_since, self.released, self.has_run) = (None, None, true);
                self.ran_out = None;
            }
            PhaseKind::Degraded => {
                self.below_since.get_or_insert(now);
                self.bound_since = None;
            }
            PhaseKind::Queued | PhaseKind::Admitted | PhaseKind::Reserving | PhaseKind::Finished => {
                (self.bound_since, self.below_since) = (None, None);
            }
            PhaseKind::Committing | PhaseKind::Arming | PhaseKind::Binding | PhaseKind::Evicting => {}
        }
    }
}

impl Gang {
    /// When it starts with fewer pods, and with how many; `None` where it does not say, or has started before.
    pub(crate) fn fewer_at(&self) -> Option<(Time, u32)> {
        let fewer = self.spec.policy.fewer_after?;
        let at = self.spec.created + fewer.after_ms;
        let may_start = self.running_since.is_none_or(|since| since >= at);
        let minimum = fewer.minimum.max(1);
        (may_start && minimum < self.spec.min_member).then_some((at, minimum))
    }

    /// True where it has waited for so long that it starts with fewer pods, or did so.
    pub(crate) fn has_waited(&self, now: Time) -> bool {
        self.fewer_at().is_some_and(|(at, _)| at <= now)
    }

    /// What it needs beside its pods at this time. A Job's `minResources` are those of all of its minimum: with fewer pods
    /// they do not count.
    pub(crate) fn min_resources(&self, now: Time) -> &Amounts {
        const NONE: &Amounts = &Amounts::NONE;
        if self.has_waited(now) { NONE } else { &self.min_amounts }
    }

    /// Fewest pods that may run together at this time.
    pub(crate) fn minimum(&self, now: Time) -> u32 {
        let all = self.spec.min_member.max(1);
        self.fewer_at().filter(|(at, _)| *at <= now).map_or(all, |(_, fewer)| fewer)
    }
}

impl Core {
    /// After a restart: since when a gang runs, as far as its pods say.
    pub(crate) fn find_times(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.gangs.get(&key).filter(|gang| gang.was_whole) else { return };
        let live = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.is_live());
        let started: Vec<Time> = live.filter_map(|(_, pod)| pod.spec.policy.started).collect();
        let now = self.now;
        let first = started.iter().min().map(|time| (*time).min(now));
        let last = started.iter().max().map(|time| (*time).min(now));
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            (gang.running_since, gang.times.bound_since) = (first.or(gang.running_since), last);
            gang.times.has_run = true;
        }
    }

    /// Ends what is due of a gang, and wakes it up for what is not yet.
    pub(crate) fn watch_times(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        // What somebody else bound is not taken back. What is bound beside it later has the whole grace for itself.
        let has_lost =
            Self::below_since(gang).is_some() && self.has_lost(gang) && self.has_live_of_ours(gang);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            let since = gang.times.lost_since.unwrap_or(now);
            gang.times.lost_since = has_lost.then_some(since);
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let runs = match &gang.phase {
            Phase::Queued | Phase::Admitted => false,
            // A round brings it to an end of its own, and then it is looked at again.
            Phase::Running { round: None } | Phase::Degraded { round: None, .. } => true,
            Phase::Placing(_)
            | Phase::Running { .. }
            | Phase::Degraded { .. }
            | Phase::Evicting { .. }
            | Phase::Finished => return,
        };
        if !runs {
            if let Some((at, _)) = gang.fewer_at().filter(|(at, _)| *at > now) {
                self.timers.insert((at, Timer::Gang(key)));
            }
            return;
        }
        let ends = [self.grace_end(gang), self.startup_end(gang), self.run_end(gang)];
        let mut due = None;
        for (at, end) in ends.into_iter().flatten() {
            if at <= now {
                due = due.or(Some(end));
            } else {
                self.timers.insert((at, Timer::Gang(key)));
            }
        }
        if let Some(end) = due {
            self.release(key, end, now, actions);
        }
    }

    /// How long a gang may be below its minimum; `None` = for ever. What somebody else made, or nobody knows the
    /// minimum of, is not taken back for this.
    fn grace_of(&self, gang: &Gang) -> Option<Millis> {
        match gang.spec.policy.degraded_grace {
            Some(Grace::Never) => None,
            Some(Grace::After(grace)) => Some(grace),
            None => self.settings.degraded_grace_ms,
        }
    }

    /// A gang that was whole and has fewer pods than its minimum: since when.
    fn below_since(gang: &Gang) -> Option<Time> {
        let is_below = matches!(gang.phase, Phase::Degraded { roll_back_at: None, .. });
        gang.times.below_since.filter(|_| is_below && gang.was_whole && !gang.deleted && !gang.is_made_up())
    }

    /// When a gang that is below its minimum gives back what it has. One whose minimum was raised since it was whole, and
    /// that has as many pods as then, has lost nothing; and one of which somebody else bound all that is left keeps it.
    pub(crate) fn released_at(&self, gang: &Gang) -> Option<Time> {
        Self::below_since(gang)?;
        Some(gang.times.lost_since? + self.grace_of(gang)?)
    }

    fn has_lost(&self, gang: &Gang) -> bool {
        !gang.is_minimum_raised() || self.pods_left(gang) < gang.whole_minimum
    }

    /// Pods of a gang that are bound, or have ended well.
    fn pods_left(&self, gang: &Gang) -> u32 {
        let counts = |pod: &Pod| pod.is_live() || pod.ended_well();
        let pods = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| counts(pod));
        u32::try_from(pods.count()).unwrap_or(u32::MAX)
    }

    fn grace_end(&self, gang: &Gang) -> Option<(Time, End)> {
        let since = Self::below_since(gang)?;
        let cause = format!("below its minimum since {}: released", clock(since));
        Some((self.released_at(gang)?, End { cause, maximum: None }))
    }

    /// When the pods that its minimum needs must have started.
    fn startup_end(&self, gang: &Gang) -> Option<(Time, End)> {
        let queue = &gang.spec.queue;
        let deadline = self.policies.get(queue)?.startup_deadline_ms?;
        let since = gang.times.bound_since.filter(|_| matches!(gang.phase, Phase::Running { .. }))?;
        let has_started = |pod: &Pod| pod.spec.phase != PodPhase::Pending && !pod.spec.deleting;
        if self.meets_minimum(gang, |_, pod| has_started(pod)) {
            return None;
        }
        let pods = self.in_order(gang, |pod| pod.is_live() && !has_started(pod));
        let (_, pod) = pods.first()?;
        let cause = format!(
            "pod {} has not started {deadline} after its gang was bound: {} (startupDeadline of QueuePolicy {queue})",
            pod.spec.name.name,
            self.why_not_started(pod)
        );
        Some((since + deadline, End { cause, maximum: None }))
    }

    /// What a bound pod that does not run waits for, as far as it is known here.
    fn why_not_started(&self, pod: &Pod) -> String {
        let node = pod.spec.binding.as_ref().map_or("its node", |binding| binding.node.as_str());
        let lease = pod.lease.and_then(|id| self.leases.leases.get(&id));
        match lease.filter(|lease| !lease.local).map(|lease| lease.known) {
            Some(Some(LeaseState::Started)) | None => {
                format!(
                    "{node} has not started its containers, whose images and volumes are its events' matter"
                )
            }
            Some(_) => format!("the agent of {node} has not let it start"),
        }
    }

    /// When a gang has run as long as its queue allows.
    fn run_end(&self, gang: &Gang) -> Option<(Time, End)> {
        let queue = &gang.spec.queue;
        let maximum = self.policies.get(queue)?.maximum_run_ms?;
        let cause = format!("it has run for {maximum}, the maximumRunTime of QueuePolicy {queue}");
        Some((gang.running_since? + maximum, End { cause, maximum: Some(maximum) }))
    }

    /// A gang that has run as long as its queue allows is not started again: whoever makes its pods anew would have it run
    /// for ever. A policy that allows more lets it in.
    pub(crate) fn check_run_time(&self, gang: &Gang) -> Result<(), Reason> {
        let queue = &gang.spec.queue;
        let maximum = self.policies.get(queue).and_then(|policy| policy.maximum_run_ms);
        match (gang.times.ran_out, maximum) {
            (Some(ran), Some(maximum)) if maximum <= ran => {
                Err(Reason::Queue(Box::new(QueueHeld::RanOut { queue: queue.clone(), ran, maximum })))
            }
            _ => Ok(()),
        }
    }

    /// After a restart: gangs that an earlier leader ended for having run too long, as their status says.
    pub(crate) fn find_ran_out(&mut self) {
        for gang in self.gangs.gangs.values_mut().filter(|gang| gang.shown_ran_out) {
            let policy = self.policies.get(&gang.spec.queue);
            gang.times.ran_out = policy.and_then(|policy| policy.maximum_run_ms);
        }
    }

    /// All pods of a gang that a coordinator bound are evicted; what comes then is a new start, if any.
    fn release(&mut self, key: GangKey, end: End, now: Time, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let name = gang.spec.name.clone();
        let pods = self.gangs.pods_of(&name).filter(|(_, pod)| pod.is_live() && pod.is_bound_by_us());
        let pods: BTreeSet<_> = pods.map(|(uid, _)| uid.clone()).collect();
        if pods.is_empty() {
            return;
        }
        let cause: Arc<str> = Arc::from(end.cause);
        self.emit(Command::Warn { message: format!("gang {name} gives its pods up: {cause}") }, actions);
        self.set_waiting(key, false);
        let phase = Phase::Evicting {
            cause: cause.clone(),
            pods,
            fencing: BTreeMap::new(),
            found: BTreeSet::new(),
            retry_at: now,
            tries: 0,
            has_plan: true,
        };
        self.set_phase(key, phase);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.times.released = Some(cause);
            gang.times.ran_out = end.maximum;
        }
        self.set_reason(key, None);
        self.touched.insert(key);
    }

    /// A gang that lacks pods, as a holder of what others wait for.
    pub(crate) fn degraded_holder(&self, key: GangKey) -> Option<Arc<str>> {
        let gang = self.gangs.gangs.get(&key).filter(|gang| self.has_lost(gang))?;
        Self::below_since(gang)?;
        let until = self.released_at(gang).filter(|at| *at > self.now);
        let until = until.map(|at| format!(" until {}", clock(at))).unwrap_or_default();
        Some(Arc::from(format!("degraded gang {}{until}", gang.spec.name.name)))
    }

    /// Why a gang that is below its minimum waits, and until when it keeps what it has.
    pub(crate) fn degraded_reason(&self, gang: &Gang) -> Option<Reason> {
        let since = Self::below_since(gang)?;
        if gang.is_minimum_raised() && gang.reason.is_some() {
            // It lost nothing: what it waits for says more.
            return None;
        }
        let cause = match &gang.reason {
            Some(Reason::MorePodsWait { cause, .. }) => Some(cause.clone()),
            _ => None,
        };
        let (of, have, minimum) = self.what_is_lost(gang);
        // While more of it is being placed it gives nothing back before that has come to an end.
        let until = self.released_at(gang).map(|at| match gang.phase.round() {
            Some(round) if at <= self.now => round.deadline.max(self.now),
            _ => at,
        });
        Some(Reason::Together(Box::new(Together::Degraded { of, have, minimum, since, until, cause })))
    }

    /// What a gang below its minimum has too few of, how many it has, and how many it needs.
    fn what_is_lost(&self, gang: &Gang) -> (Option<Arc<str>>, u32, u32) {
        let (have, minimum) = (self.pods_left(gang), gang.minimum(self.now));
        if have < minimum {
            return (None, have, minimum);
        }
        let counts = |pod: &Pod| pod.is_live() || pod.ended_well();
        let of_task = |task: &Arc<str>| {
            let pods = self.gangs.pods_of(&gang.spec.name);
            let pods = pods.filter(|(_, pod)| counts(pod) && pod.spec.task == *task);
            u32::try_from(pods.count()).unwrap_or(u32::MAX)
        };
        let tasks = task_minima(gang, self.now)
            .into_iter()
            .map(|(task, needs)| (Arc::from(format!("pods of task {task}")), of_task(task), needs));
        let lost = tasks.chain(self.whole_parts(gang)).find(|(_, have, needs)| have < needs);
        lost.map_or((None, have, minimum), |(of, have, needs)| (Some(of), have, needs))
    }

    /// What `why` says of a gang's times while it waits.
    pub(crate) fn time_lines(&self, gang: &Gang) -> Vec<String> {
        if !matches!(gang.phase, Phase::Queued | Phase::Admitted) {
            return Vec::new();
        }
        let fewer = gang.fewer_at().map(|(at, minimum)| match at <= self.now {
            true => format!("starts with fewer since {}: {minimum} of its pods are enough", clock(at)),
            false => format!("starts with fewer, {minimum}, at {}", clock(at)),
        });
        // Where it is not to start again its reason says so.
        let released = gang.times.released.as_ref().filter(|_| self.check_run_time(gang).is_ok());
        let released = released.map(|cause| format!("it had a place before: {cause}"));
        fewer.into_iter().chain(released).collect()
    }

    /// The times of these gangs are counted anew: a policy of their queue changed.
    pub(crate) fn touch_queue(&mut self, queue: &QueueName) {
        let gangs = self.gangs.gangs.iter().filter(|(_, gang)| gang.spec.queue == *queue);
        self.touched.extend(gangs.map(|(key, _)| *key));
    }
}
