//! A gang's life outside its rounds: from its pods' facts to its phase, and what is written of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::Time;

use crate::action::{Action, Command};
use crate::amounts::Amounts;
use crate::core::{Core, Pending, Timer};
use crate::gang::{Gang, GangKey, Tally};
use crate::phase::{Member, Phase, PhaseKind, Round};
use crate::whole::GROUP_GONE;

impl Core {
    /// Changes a gang's phase, and everything that is counted by phase.
    pub(crate) fn set_phase(&mut self, key: GangKey, phase: Phase) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let (before, after) = (gang.phase.kind(), phase.kind());
        gang.phase = phase;
        gang.note_phase(after, self.now);
        let order = gang.order.in_phase(after);
        // What runs now may be evicted.
        self.eviction_news |= before != after && after == PhaseKind::Running;
        self.move_order(key, order);
        self.note_giver(key);
        if after == PhaseKind::Running && before != after {
            self.note_size(key);
        }
        self.count_move(key, before, after);
        if after != PhaseKind::Admitted && !planted::is(Bug::CountTwice) {
            self.charge_admission(key, Amounts::default());
        }
    }

    /// Moves a round to its next step.
    pub(crate) fn set_step(&mut self, key: GangKey, step: crate::phase::Step) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let before = gang.phase.kind();
        if let Some(round) = gang.phase.round_mut() {
            round.step = step;
        }
        let after = gang.phase.kind();
        self.count_move(key, before, after);
    }

    fn count_move(&mut self, key: GangKey, before: PhaseKind, after: PhaseKind) {
        debug_assert!(before.may_become(after), "{before:?} -> {after:?}");
        #[cfg(feature = "counted-moves")]
        if before != after {
            *self.gangs.moves.entry((before, after)).or_default() += 1;
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if before != after {
            let name = gang.spec.queue.clone();
            let queue = self.queues.ensure(&name);
            queue.count(before, false);
            queue.count(after, true);
            self.touched_queues.insert(name);
            self.note_group_move(key, before, after);
        }
    }

    #[cfg(feature = "counted-moves")]
    /// How often gangs moved from a phase to another one since the start: what a test has reached.
    pub fn moves(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.gangs.moves.iter().map(|((from, to), count)| (from.as_str(), to.as_str(), *count))
    }

    /// What else happened since the start, and how often.
    #[cfg(feature = "counted-moves")]
    pub fn reached(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.gangs.reached.iter().map(|(what, count)| (*what, *count))
    }

    /// Counts what a test must have seen.
    #[cfg(feature = "counted-moves")]
    pub(crate) fn note_reached(&mut self, what: &'static str) {
        *self.gangs.reached.entry(what).or_default() += 1;
    }

    /// Counts nothing: there is no test.
    #[cfg(not(feature = "counted-moves"))]
    #[allow(clippy::unused_self, clippy::needless_pass_by_ref_mut)]
    pub(crate) const fn note_reached(&mut self, _what: &'static str) {}

    /// All moves that the table of phases allows, in the same words.
    #[cfg(feature = "counted-moves")]
    pub fn legal_moves() -> impl Iterator<Item = (&'static str, &'static str)> {
        PhaseKind::legal_moves().map(|(from, to)| (from.as_str(), to.as_str()))
    }

    /// Charges an admitted gang that has no place yet; zero takes the charge back.
    pub(crate) fn charge_admission(&mut self, key: GangKey, charge: Amounts) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        if gang.charge == charge {
            return;
        }
        self.queues.charge(&gang.spec.queue, &gang.charge, &charge);
        // It was charged for more, or less, than it asks for now.
        let changed = !gang.charge.is_zero() && !charge.is_zero();
        self.quota_freed |= changed && self.queues.is_limited(&gang.spec.queue);
        let queue = self.queues.ensure(&gang.spec.queue);
        let freed = charge.is_zero();
        if freed {
            queue.admitted.remove(&gang.order);
        } else {
            queue.admitted.insert(gang.order, key);
        }
        gang.charge = charge;
        if freed && !matches!(gang.phase, Phase::Placing(_)) {
            self.wake_all();
        }
    }

    /// Reacts to a gang's facts.
    pub(crate) fn progress(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        if self.progress_foreign(key, now, actions) {
            return;
        }
        self.progress_room(key, now, actions);
        self.progress_hold(key, now, actions);
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        match gang.phase.kind() {
            PhaseKind::Reserving | PhaseKind::Committing | PhaseKind::Arming | PhaseKind::Binding => {
                self.set_waiting(key, false);
                if !self.awaits_group(key) {
                    self.progress_round(key, now, actions);
                }
            }
            PhaseKind::Queued | PhaseKind::Admitted | PhaseKind::Finished => self.progress_idle(key, now),
            PhaseKind::Running | PhaseKind::Degraded => self.progress_running(key, now, actions),
            PhaseKind::Evicting => self.progress_evicting(key, now, actions),
        }
        self.watch_times(key, now, actions);
    }

    fn progress_idle(&mut self, key: GangKey, now: Time) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let tally = self.gangs.tally(&gang.spec.name);
        let kind = gang.phase.kind();
        if gang.deleted {
            self.set_waiting(key, false);
            if kind == PhaseKind::Admitted {
                // What it was admitted with is for others, also while pods of it that have ended are still there.
                self.set_phase(key, Phase::Queued);
            }
            if tally.live > 0 {
                // Its pods run to their end, where one shows that it was whole.
                self.settle_found(key, now);
            }
            self.forget_if_empty(key, tally);
            return;
        }
        // Pods that were told to go may end well on their way: their gang has not.
        let all_ended = tally.all > 0 && tally.ended == tally.all && gang.preempted.is_none();
        if tally.live > 0 || (tally.unplaced > 0 && tally.succeeded > 0 && self.is_satisfied(key)) {
            // Pods that run already: found at a start, or bound by somebody else. Or the minimum has ended
            // well already, and what is left goes on one by one.
            self.settle_found(key, now);
        } else if all_ended {
            if kind != PhaseKind::Finished {
                self.set_waiting(key, false);
                self.set_phase(key, Phase::Finished);
            }
        } else if kind == PhaseKind::Finished {
            if tally.unplaced > 0 {
                self.set_phase(key, Phase::Queued);
                self.set_waiting(key, true);
            }
        } else {
            self.set_waiting(key, true);
        }
    }

    /// A gang whose object and pods are gone is forgotten.
    fn forget_if_empty(&mut self, key: GangKey, tally: Tally) {
        let leases = self.gangs.gangs.get(&key).map_or(0, |gang| gang.leases);
        if tally.all > 0 || leases > 0 {
            return;
        }
        self.charge_admission(key, Amounts::default());
        self.leave_group(key);
        self.set_waiting(key, false);
        let Some(gang) = self.gangs.gangs.remove(&key) else { return };
        self.gangs.by_name.remove(&gang.spec.name);
        self.queues.ensure(&gang.spec.queue).count(gang.phase.kind(), false);
        self.queues.count_giver(gang.counted_as, None);
        if !planted::is(Bug::KeepWants) {
            self.queues.want(&gang.spec.queue, &gang.wants, &Amounts::default());
        }
        self.queues.forget_if_unused(&gang.spec.queue);
        self.touched_queues.insert(gang.spec.queue);
    }

    fn progress_running(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let tally = self.gangs.tally(&gang.spec.name);
        let has_round = gang.phase.round().is_some();
        let roll_back = gang.phase.cut_short().is_some_and(|at| at <= now);
        // A binding that was cut short: its plan stands until it is completed or rolled back.
        let cut_short = gang.phase.cut_short().is_some();
        let (name, deleted) = (gang.spec.name.clone(), gang.deleted);
        if has_round {
            self.set_waiting(key, false);
            self.progress_round(key, now, actions);
            return;
        }
        let starts_anew = tally.live == 0 && tally.unplaced > 0 && !self.is_satisfied(key);
        if tally.all == 0 || starts_anew {
            // Nothing of it runs any more: what comes next is a new start, together or not at all.
            self.set_phase(key, Phase::Queued);
            self.set_waiting(key, !deleted);
            self.touched.insert(key);
        } else if tally.ended == tally.all {
            self.set_waiting(key, false);
            self.set_phase(key, Phase::Finished);
            self.touched.insert(key);
        } else if self.is_satisfied(key) {
            self.open_start_gate(key);
            if matches!(gang_kind(self, key), Some(PhaseKind::Degraded)) {
                self.set_phase(key, Phase::Running { round: None });
            }
            self.set_waiting(key, tally.unplaced > 0 && !deleted);
        } else {
            if roll_back && !self.waits_for_word(key, now) {
                self.roll_back(key, now, actions);
            } else {
                self.wait_degraded(key, tally);
            }
            return;
        }
        if cut_short {
            self.remove_plan(name, actions);
        }
    }

    /// Fewer than the minimum are left; what can be replaced waits for a place.
    fn wait_degraded(&mut self, key: GangKey, tally: Tally) {
        let deleted = self.gangs.gangs.get(&key).is_none_or(|gang| gang.deleted);
        if matches!(gang_kind(self, key), Some(PhaseKind::Running)) {
            let cause = Self::degraded_cause(tally.all - tally.live - tally.succeeded);
            self.set_phase(key, Phase::Degraded { cause, round: None, roll_back_at: None });
        }
        self.set_waiting(key, tally.unplaced > 0 && !deleted);
    }

    /// The binding deadline has passed, or the gang cannot be completed: bound pods are deleted, and
    /// leases of pods that are not bound end once no Binding can reach those any more.
    pub(crate) fn roll_back(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let name = gang.spec.name.clone();
        let round = gang.phase.round().cloned();
        // What runs is not taken back because others cannot join it, whether it needs them or not: how long it may run
        // with too few is its grace.
        let runs = matches!(gang.phase, Phase::Running { .. })
            || round.as_ref().is_some_and(|round| self.has_started(key, round));
        let is_growth = runs && !planted::is(Bug::EvictGrown);
        let mut evicted = BTreeSet::new();
        let mut fencing = BTreeMap::new();
        let unbound = round.as_ref().map_or_else(BTreeSet::new, |round| round.unbound.clone());
        for uid in &unbound {
            let Some(pod) = self.gangs.pods.get(uid) else { continue };
            let member = round.as_ref().and_then(|round| round.members.get(uid));
            if member.is_some_and(Member::may_be_bound) {
                let pod_name = pod.spec.name.clone();
                let id = self.emit_fence(uid, &pod_name, Pending::Pod(key, uid.clone()), actions);
                fencing.insert(uid.clone(), id);
            } else if let Some(lease) = self.set_pod_lease(uid, None) {
                self.end_lease(lease);
            }
        }
        if is_growth && fencing.is_empty() {
            // The gang itself runs; only the pods that should have joined it wait on.
            self.run_without_round(key);
            self.remove_plan(name, actions);
            self.touched.insert(key);
            return;
        }
        for (uid, pod) in self.gangs.pods_of(&name) {
            // Who was bound by somebody else is not ours to take back.
            if pod.is_live() && pod.is_bound_by_us() && !is_growth {
                evicted.insert(uid.clone());
            }
        }
        let refused = round.as_ref().and_then(|round| round.refused.as_deref());
        let made_up = self.gangs.gangs.get(&key).is_some_and(Gang::is_made_up);
        let missing = match unbound.len() {
            0 if made_up => GROUP_GONE.to_owned(),
            0 => "pods that it needs were deleted or ended before it was whole".to_owned(),
            1 => "1 of its pods was not bound by the binding deadline".to_owned(),
            count => format!("{count} of its pods were not bound by the binding deadline"),
        };
        let cause: Arc<str> =
            Arc::from(format!("{missing}{}", refused.map(|text| format!(": {text}")).unwrap_or_default()));
        let message = format!("gang {name} is rolled back: {cause}");
        self.emit(Command::Warn { message }, actions);
        let (pods, found, has_plan) = (evicted, BTreeSet::new(), true);
        self.set_phase(
            key,
            Phase::Evicting { cause, pods, fencing, found, retry_at: now, tries: 0, has_plan },
        );
        self.touched.insert(key);
    }

    /// A gang that runs goes on with what it has: nothing joins it for now, and what did may start.
    pub(crate) fn run_without_round(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let tally = self.gangs.tally(&gang.spec.name);
        let phase = match &gang.phase {
            Phase::Running { .. } => Phase::Running { round: None },
            Phase::Degraded { cause, roll_back_at, .. } => {
                Phase::Degraded { cause: cause.clone(), round: None, roll_back_at: *roll_back_at }
            }
            // A start found it in the middle of this round.
            Phase::Queued
            | Phase::Admitted
            | Phase::Placing(_)
            | Phase::Evicting { .. }
            | Phase::Finished => {
                let cause = Self::degraded_cause(tally.all - tally.live - tally.succeeded);
                Phase::Degraded { cause, round: None, roll_back_at: None }
            }
        };
        self.set_phase(key, phase);
        self.open_start_gate(key);
    }

    /// True where the gang was whole before, and pods beside those of a round still run.
    pub(crate) fn has_started(&self, key: GangKey, round: &Round) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        if !gang.was_whole || gang.phase.cut_short().is_some() {
            return false;
        }
        let mut others =
            self.gangs.pods_of(&gang.spec.name).filter(|(uid, _)| !round.members.contains_key(uid));
        others.any(|(_, pod)| pod.is_live())
    }

    /// A write to a pod that makes every Binding on its way fail.
    pub(crate) fn fence(&self, pod: &PodUid, name: &GangName) -> Command {
        let (pod, name, term) = (pod.clone(), name.clone(), self.term);
        if planted::is(Bug::SkipFence) {
            return Command::ReadPod { pod, name };
        }
        Command::FenceWrite { pod, name, term }
    }

    /// What fences of a gang that is rolled back found bound and started. An earlier leader that did not know yet that it
    /// was replaced has completed the gang: where all of it is there it runs on, else this goes with the rest.
    fn judge_found(&mut self, key: GangKey) {
        let is_whole = self.is_satisfied(key);
        let phase = self.gangs.gangs.get_mut(&key).map(|gang| &mut gang.phase);
        let Some(Phase::Evicting { pods, fencing, found, .. }) = phase else { return };
        if fencing.is_empty() {
            let found = std::mem::take(found);
            if !pods.is_empty() || !is_whole {
                pods.extend(found);
            }
        }
    }

    fn progress_evicting(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        self.judge_found(key);
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let Phase::Evicting { tries, .. } = &gang.phase else { return };
        let retry = now + self.retry_after(*tries);
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let name = gang.spec.name.clone();
        let Phase::Evicting { cause, pods, fencing, retry_at, tries, has_plan, .. } = &mut gang.phase else {
            return;
        };
        let pod_table = &self.gangs.pods;
        pods.retain(|uid| pod_table.get(uid).is_some_and(|pod| !pod.spec.phase.is_terminal()));
        fencing.retain(|uid, _| pod_table.contains_key(uid));
        if pods.is_empty() && fencing.is_empty() {
            if *has_plan {
                self.remove_plan(name, actions);
            }
            let runs_on = self.is_satisfied(key);
            self.set_phase(key, if runs_on { Phase::Running { round: None } } else { Phase::Queued });
            self.touched.insert(key);
            return;
        }
        if *retry_at > now {
            return;
        }
        *retry_at = retry;
        *tries = tries.saturating_add(1);
        let cause = cause.clone();
        let uids: Vec<PodUid> = pods.iter().cloned().collect();
        let lost_fences: Vec<PodUid> = fencing
            .iter()
            .filter(|(_, id)| !self.pending.contains_key(id))
            .map(|(uid, _)| uid.clone())
            .collect();
        for pod in uids {
            let Some(known) = self.gangs.pods.get(&pod).filter(|known| !known.spec.deleting) else {
                continue;
            };
            let name = known.spec.name.clone();
            self.emit(Command::Evict { pod, name, cause: cause.clone() }, actions);
        }
        for pod in lost_fences {
            let Some(known) = self.gangs.pods.get(&pod) else { continue };
            let name = known.spec.name.clone();
            let id = self.emit_fence(&pod, &name, Pending::Pod(key, pod.clone()), actions);
            if let Some(Phase::Evicting { fencing, .. }) =
                self.gangs.gangs.get_mut(&key).map(|gang| &mut gang.phase)
            {
                fencing.insert(pod, id);
            }
        }
        self.timers.insert((retry, Timer::Gang(key)));
    }
}

fn gang_kind(core: &Core, key: GangKey) -> Option<PhaseKind> {
    core.gangs.gangs.get(&key).map(|gang| gang.phase.kind())
}
