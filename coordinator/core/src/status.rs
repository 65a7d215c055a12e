//! What is written of gangs and queues, and what the API shows of it. A status follows what is decided, not what was
//! written last: whatever another writer left there is written over.

use phalanx_common::gang::{GangSpec, ShownGang};
use phalanx_common::ids::GangName;
use phalanx_common::queue::{QueueSpec, ShownQueue};
use phalanx_common::units::Time;

use crate::action::{Action, Command, GangPhase, GangStatus, QueueStatus};
use crate::core::{Core, Pending, Timer};
use crate::gang::GangKey;
use crate::phase::PhaseKind;
use crate::reason::Reason;

impl Core {
    /// A PodGroup is there, or changed, and shows this status.
    pub(crate) fn gang_applied(&mut self, mut spec: GangSpec, now: Time) {
        let (name, shown) = (spec.name.clone(), spec.shown.take());
        self.apply_gang(spec);
        if let Some(shown) = shown {
            self.gang_shown(&name, &shown, now);
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
    /// reason counts by its kind: its numbers change all the time and stand in `explain`.
    pub(crate) fn write_gang_status(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if gang.deleted || gang.spec.is_lone_pod() {
            return;
        }
        let tally = self.gangs.tally(&gang.spec.name);
        let phase = pod_group_phase(gang.phase.kind());
        let waits = matches!(phase, GangPhase::Pending | GangPhase::Inqueue | GangPhase::Unknown);
        let status = GangStatus {
            phase,
            reason: gang.reason.clone().filter(|_| waits),
            running: tally.running,
            succeeded: tally.succeeded,
            failed: tally.failed,
        };
        let code = |status: &GangStatus| status.reason.as_ref().map(Reason::code);
        let has_strayed = gang.stray_due.is_some_and(|due| due <= self.now);
        let same = gang.written.as_ref().is_some_and(|written| {
            code(written) == code(&status)
                && GangStatus { reason: None, ..written.clone() }
                    == GangStatus { reason: None, ..status.clone() }
        });
        if same && !has_strayed {
            return;
        }
        let reason = status.reason.map(|reason| self.with_holders(reason));
        let status = GangStatus { reason, ..status };
        let command = Command::SetGangStatus {
            gang: gang.spec.name.clone(),
            uid: gang.spec.uid.clone(),
            status: Box::new(status.clone()),
        };
        self.emit_pending(command, Pending::GangStatus(key), actions);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
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
            queue.stray_due = None;
            queue.written = Some(status.clone());
            let command = Command::SetQueueStatus { queue: name.clone(), status };
            self.emit_pending(command, Pending::QueueStatus(name), actions);
        }
    }
}

/// The phase in Volcano's words.
pub(crate) const fn pod_group_phase(kind: PhaseKind) -> GangPhase {
    match kind {
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
        && shown.reason.as_deref() == told.map(Reason::code)
        && [shown.running, shown.succeeded, shown.failed]
            == [written.running, written.succeeded, written.failed].map(u64::from)
}

fn shows_queue(shown: &ShownQueue, written: &QueueStatus) -> bool {
    shown.allocated == written.allocated
        && [shown.pending, shown.inqueue, shown.running, shown.completed]
            == [written.pending, written.inqueue, written.running, written.completed].map(u64::from)
}
