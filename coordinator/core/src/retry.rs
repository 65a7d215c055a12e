//! Writes of a round that have no answer: each is tried again, and what goes on failing less and less often. A store
//! that is full or rests fails at once: nothing here may go as fast as it fails.

use std::sync::Arc;

use phalanx_common::ids::{ActionId, GangName, PodUid};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};

use crate::action::{Action, Command};
use crate::core::{Core, Pending, Timer};
use crate::event::Outcome;
use crate::gang::GangKey;
use crate::phase::{BindState, Phase, Round};

/// Most doublings of the time between two tries.
const MOST_DOUBLINGS: u32 = 4;

impl Core {
    /// Time to the next try after so many failures before this one.
    pub(crate) fn retry_after(&self, failures: u32) -> Millis {
        self.settings.resend_ms.doubled(failures.min(MOST_DOUBLINGS))
    }

    /// A gang's plan may have been written or not. Writing the same plan again is harmless.
    pub(crate) fn retry_plan(&mut self, key: GangKey, now: Time) {
        let Some(failures) = self.round_mut(key).map(|round| round.plan_failures) else { return };
        let retry_at = now + self.retry_after(failures);
        let Some(round) = self.round_mut(key) else { return };
        round.plan_write = None;
        round.plan_stored = true;
        round.plan_failures = failures.saturating_add(1);
        round.plan_retry_at = Some(retry_at);
        self.timers.insert((retry_at, Timer::Gang(key)));
    }

    /// A plan has done its work. A removal that fails is tried again: a later start would take what is
    /// left for a placement that was cut short.
    pub(crate) fn remove_plan(&mut self, gang: GangName, actions: &mut Vec<Action>) {
        if planted::is(Bug::KeepPlans) {
            return;
        }
        if let Some(key) = self.gangs.key(&gang) {
            self.note_room_stored(key, false);
        }
        let command = Command::DeletePlan { gang: gang.clone(), term: self.term.counter };
        self.emit_pending(command, Pending::PlanRemoval(gang), actions);
    }

    /// Tries a removal again, unless the gang has written a newer plan since.
    pub(crate) fn retry_removal(&mut self, gang: &GangName, actions: &mut Vec<Action>) {
        if !self.needs_plan(gang) {
            self.remove_plan(gang.clone(), actions);
        }
    }

    /// True where a gang has written a plan, or lives by the one that was found.
    pub(crate) fn needs_plan(&self, gang: &GangName) -> bool {
        let Some(gang) = self.gangs.key(gang).and_then(|key| self.gangs.gangs.get(&key)) else {
            return false;
        };
        if self.rooms.contains_key(&gang.key()) {
            return true;
        }
        let is_rolled_back = matches!(gang.phase, Phase::Evicting { has_plan: true, .. });
        let has_plan = |round: &Round| round.plan_stored || round.plan_write.is_some();
        gang.phase.cut_short().is_some() || is_rolled_back || gang.phase.round().is_some_and(has_plan)
    }

    /// A Binding may have taken effect, and the pod knows: it is read. The first time at once, since one answer that is
    /// lost shall cost a gang no time.
    pub(crate) fn read_again(
        &mut self,
        key: GangKey,
        uid: &PodUid,
        id: ActionId,
        outcome: &Outcome,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(name) = self.gangs.pods.get(uid).map(|pod| pod.spec.name.clone()) else { return };
        if !self.is_sent(key, uid, id) {
            return;
        }
        let what = self.write_name(key, uid);
        let cause = match outcome {
            Outcome::Conflict => "conflict, it was changed or bound meanwhile",
            _ => "no answer in time, and it may have been done",
        };
        // That it could not be read says nothing new: why it is read was told.
        if what != "read" {
            let message = format!("{what} failed: pod {name}: {cause}; it is read again");
            self.note_bind_failure(key, cause, message, actions);
        }
        let Some(member) = self.round_mut(key).and_then(|round| round.members.get_mut(uid)) else { return };
        let before = member.failures;
        member.failures = before.saturating_add(1);
        if before == 0 {
            self.read_member(key, uid, actions);
        } else {
            let at = now + self.retry_after(before - 1);
            self.set_bind(key, uid, BindState::ReadAt(at));
            self.timers.insert((at, Timer::Gang(key)));
        }
    }

    /// What of a pod is on its way, for people.
    pub(crate) fn write_name(&mut self, key: GangKey, uid: &PodUid) -> &'static str {
        match self.round_mut(key).and_then(|round| round.members.get(uid)).map(|member| member.bind) {
            Some(BindState::Fencing(_)) => "fence",
            Some(BindState::Reading(_)) => "read",
            _ => "bind",
        }
    }

    /// Asks for a pod of a round as it is now.
    fn read_member(&mut self, key: GangKey, uid: &PodUid, actions: &mut Vec<Action>) {
        let Some(name) = self.gangs.pods.get(uid).map(|pod| pod.spec.name.clone()) else { return };
        let read = Command::ReadPod { pod: uid.clone(), name };
        let read = self.emit_pending(read, Pending::Pod(key, uid.clone()), actions);
        self.set_bind(key, uid, BindState::Reading(read));
    }

    /// Goes on with the Bindings whose next try is due.
    pub(crate) fn retry_due(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(round) = self.round_mut(key) else { return };
        let mut to_read = Vec::new();
        for (uid, member) in &mut round.members {
            match member.bind {
                BindState::RetryAt(time) if time <= now => {
                    member.bind = BindState::Waiting;
                    round.to_bind.insert(uid.clone());
                }
                BindState::ReadAt(time) if time <= now => to_read.push(uid.clone()),
                BindState::Waiting
                | BindState::Sent(_)
                | BindState::Reading(_)
                | BindState::Fencing(_)
                | BindState::ReadAt(_)
                | BindState::RetryAt(_)
                | BindState::Bound => {}
            }
        }
        for uid in to_read {
            self.read_member(key, &uid, actions);
        }
    }

    /// Keeps it for the reason; says it to people where the cause is another one than before.
    pub(crate) fn note_bind_failure(
        &mut self,
        key: GangKey,
        cause: &str,
        message: String,
        actions: &mut Vec<Action>,
    ) {
        let Some(round) = self.round_mut(key) else { return };
        round.refused = Some(Arc::from(message.as_str()));
        if round.refused_for.as_deref() == Some(cause) {
            return;
        }
        round.refused_for = Some(Arc::from(cause));
        self.emit(Command::Warn { message }, actions);
    }
}
