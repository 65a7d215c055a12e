//! What is written of gangs and queues, and what the API shows of it. A status follows what is decided, not what was
//! written last: whatever another writer left there is written over.

use phalanx_common::gang::{GangSpec, ShownGang};
use phalanx_common::ids::GangName;
use phalanx_common::queue::{QueueSpec, ShownQueue};
use phalanx_common::units::{Millis, Time};

use crate::action::{Action, Command, GangPhase, GangStatus, QueueStatus};
use crate::core::{Core, Pending, Timer};
use crate::gang::{Gang, GangKey};
use crate::phase::PhaseKind;
use crate::reason::{RAN_OUT, Reason};

/// The pods of a gang are made after its PodGroup: what is missing before this is no news.
const FIRST_TEXT_AFTER_MS: Millis = Millis(1_000);

/// A gang that is older when it is first seen waits for its pods in earnest.
const NEW_FOR_MS: Millis = Millis(3_000);

/// Most gangs run so soon after they got a place that nobody needs to be told of what lies between.
const PLACING_AFTER_MS: Millis = Millis(1_000);

/// How often the status of a queue is written at most: each gang that moves changes its numbers.
const QUEUE_EVERY_MS: Millis = Millis(1_000);

/// How often a status follows the number of pods, or of claims, at most.
const NUMBERS_EVERY_MS: Millis = Millis(5_000);

impl Core {
    /// A PodGroup is there, or changed, and shows this status.
    pub(crate) fn gang_applied(&mut self, mut spec: GangSpec, now: Time) {
        let (name, shown) = (spec.name.clone(), spec.shown.take());
        let is_new = self.gangs.key(&name).is_none();
        self.apply_gang(spec);
        let Some(shown) = shown else { return };
        if is_new {
            self.note_ended(&name, &shown);
        }
        self.gang_shown(&name, &shown, now);
    }

    /// An earlier leader saw all of it end, or ended it. Once its pods are gone nothing but its status says so.
    fn note_ended(&mut self, name: &GangName, shown: &ShownGang) {
        let has_ended = &*shown.phase == GangPhase::Completed.as_str();
        let has_run_out = shown.reason.as_deref() == Some(RAN_OUT);
        if let Some(gang) = self.gangs.key(name).and_then(|key| self.gangs.gangs.get_mut(&key)) {
            (gang.had_ended, gang.shown_ran_out) = (has_ended, has_run_out);
        }
    }

    /// Our own writes come back late and in order: one that differs is given the time of a resend to be followed by
    /// what was decided since. So two coordinators that both live do not write over each other faster than that,
    /// and the one that is replaced ends.
    fn gang_shown(&mut self, name: &GangName, shown: &ShownGang, now: Time) {
        let due = now + self.settings.resend_ms;
        let Some(key) = self.gangs.key(name) else { return };
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let Some(written) = gang.written.as_ref() else { return };
        if shows_gang(shown, written) {
            gang.stray_due = None;
        } else if gang.stray_due.is_none() {
            gang.stray_due = Some(due);
            self.timers.insert((due, Timer::Gang(key)));
        }
    }

    /// A queue is there, or changed, and shows this status.
    pub(crate) fn queue_applied(&mut self, mut spec: QueueSpec, now: Time) {
        let (name, shown) = (spec.name.clone(), spec.shown.take());
        self.apply_queue(spec);
        let due = now + self.settings.resend_ms;
        let Some(queue) = self.queues.queues.get_mut(&name) else { return };
        let (Some(shown), Some(written)) = (shown, queue.written.as_ref()) else { return };
        if shows_queue(&shown, written) {
            queue.stray_due = None;
        } else if queue.stray_due.is_none() {
            queue.stray_due = Some(due);
            self.timers.insert((due, Timer::QueueStatus(name)));
        }
    }

    /// Writes a gang's status where it differs from what was written, or from what has been shown for a while. A
    /// reason counts by its kind: its numbers change all the time and stand in `explain`. Only the numbers of pods
    /// that are missing, and of claims, are the cause itself: those are written too, some time after they changed.
    pub(crate) fn write_gang_status(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        let now = self.now;
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if gang.deleted || gang.spec.is_lone_pod() {
            return;
        }
        let tally = self.gangs.tally(&gang.spec.name);
        let phase = pod_group_phase(gang);
        let waits = matches!(phase, GangPhase::Pending | GangPhase::Inqueue | GangPhase::Unknown);
        let mut reason = self.degraded_reason(gang).or_else(|| gang.reason.clone()).filter(|_| waits);
        let partial_since = comes_bit_by_bit(reason.as_ref()).then(|| gang.partial_since.unwrap_or(now));
        if let Some(due) =
            partial_since.and_then(|since| partial_due(gang, reason.as_ref(), since)).filter(|due| *due > now)
        {
            reason = gang.written.as_ref().and_then(|written| written.reason.clone());
            self.timers.insert((due, Timer::Gang(key)));
        }
        let status = GangStatus {
            phase,
            reason,
            running: tally.running,
            succeeded: tally.succeeded,
            failed: tally.failed,
        };
        let has_strayed = gang.stray_due.is_some_and(|due| due <= now);
        let same = gang.written.as_ref().is_some_and(|written| {
            says_the_same(written.reason.as_ref(), status.reason.as_ref())
                && GangStatus { reason: None, ..written.clone() }
                    == GangStatus { reason: None, ..status.clone() }
        });
        let (name, uid) = (gang.spec.name.clone(), gang.spec.uid.clone());
        let placing_since = is_news_of_placing(gang).then(|| gang.placing_since.unwrap_or(now));
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.partial_since = partial_since;
            gang.placing_since = placing_since;
        }
        if same && !has_strayed {
            return;
        }
        if let Some(due) = placing_since.map(|since| since + PLACING_AFTER_MS).filter(|due| *due > now) {
            self.timers.insert((due, Timer::Gang(key)));
            return;
        }
        let reason = status.reason.map(|reason| self.with_holders(reason));
        let status = GangStatus { reason, ..status };
        let command = Command::SetGangStatus { gang: name, uid, status: Box::new(status.clone()) };
        self.emit_pending(command, Pending::GangStatus(key), actions);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            if comes_bit_by_bit(status.reason.as_ref()) {
                gang.partial_told = now;
            }
            gang.written = Some(status);
            gang.stray_due = None;
        }
    }

    /// The same for queues.
    pub(crate) fn write_queue_status(&mut self, actions: &mut Vec<Action>) {
        while let Some(name) = self.touched_queues.pop_first() {
            let Some(queue) = self.queues.queues.get_mut(&name) else { continue };
            let status = queue.status(&self.cluster.resources);
            let has_strayed = queue.stray_due.is_some_and(|due| due <= self.now);
            if queue.spec.is_none() || (queue.written.as_ref() == Some(&status) && !has_strayed) {
                continue;
            }
            let due = queue.written_at.map(|at| at + QUEUE_EVERY_MS);
            if let Some(due) = due.filter(|due| *due > self.now) {
                self.timers.insert((due, Timer::QueueStatus(name)));
                continue;
            }
            queue.stray_due = None;
            queue.written_at = Some(self.now);
            queue.written = Some(status.clone());
            let command = Command::SetQueueStatus { queue: name.clone(), status };
            self.emit_pending(command, Pending::QueueStatus(name), actions);
        }
    }
}

/// True for a gang that is being placed and was not shown as more than waiting before.
fn is_news_of_placing(gang: &Gang) -> bool {
    use PhaseKind::{Arming, Binding, Committing, Reserving};
    let waited = gang.written.as_ref().is_none_or(|written| written.phase == GangPhase::Pending);
    matches!(gang.phase.kind(), Reserving | Committing | Arming | Binding) && waited
}

/// Pods are made, and claims are bound, one after the other.
fn comes_bit_by_bit(reason: Option<&Reason>) -> bool {
    matches!(reason, Some(Reason::TooFewPods { .. } | Reason::Claim(_)))
        || reason.and_then(Reason::cause).is_some_and(|cause| comes_bit_by_bit(Some(cause)))
}

/// The same cause: what it was written for would be written again.
fn says_the_same(written: Option<&Reason>, reason: Option<&Reason>) -> bool {
    if comes_bit_by_bit(reason) {
        return written == reason;
    }
    let (mut written, mut reason) = (written, reason);
    while written.map(Reason::code) == reason.map(Reason::code) {
        if reason.is_none() {
            return true;
        }
        (written, reason) = (written.and_then(Reason::cause), reason.and_then(Reason::cause));
    }
    false
}

/// When the number of pods or claims that are missing since then may be told; `None` where it may at once.
fn partial_due(gang: &Gang, reason: Option<&Reason>, since: Time) -> Option<Time> {
    match gang.written.as_ref().and_then(|written| written.reason.as_ref()) {
        None => (since <= gang.spec.created + NEW_FOR_MS).then(|| since + FIRST_TEXT_AFTER_MS),
        written if comes_bit_by_bit(written) && written != reason => {
            Some(gang.partial_told + NUMBERS_EVERY_MS)
        }
        Some(_) => None,
    }
}

/// The phase in Volcano's words.
pub(crate) fn pod_group_phase(gang: &Gang) -> GangPhase {
    match gang.phase.kind() {
        // It goes as a whole, and waits as a whole.
        PhaseKind::Evicting if gang.preempted.is_some() => GangPhase::Pending,
        PhaseKind::Queued => GangPhase::Pending,
        PhaseKind::Admitted
        | PhaseKind::Reserving
        | PhaseKind::Committing
        | PhaseKind::Arming
        | PhaseKind::Binding => GangPhase::Inqueue,
        PhaseKind::Running => GangPhase::Running,
        PhaseKind::Degraded | PhaseKind::Evicting => GangPhase::Unknown,
        PhaseKind::Finished => GangPhase::Completed,
    }
}

/// True where the API shows what was written. A reason that only says how far the gang is has no condition.
fn shows_gang(shown: &ShownGang, written: &GangStatus) -> bool {
    let told = written.reason.as_ref().filter(|reason| !matches!(reason, Reason::InProgress { .. }));
    &*shown.phase == written.phase.as_str()
        && shown.reason.as_deref() == told.map(Reason::codes).as_deref()
        && [shown.running, shown.succeeded, shown.failed]
            == [written.running, written.succeeded, written.failed].map(u64::from)
}

fn shows_queue(shown: &ShownQueue, written: &QueueStatus) -> bool {
    shown.allocated == written.allocated
        && shown.reservation == written.reservation
        && [shown.pending, shown.inqueue, shown.running, shown.completed]
            == [written.pending, written.inqueue, written.running, written.completed].map(u64::from)
}
