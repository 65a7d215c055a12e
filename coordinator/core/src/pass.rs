//! The scheduling pass: gangs that may have a chance are tried in order. One that does not fit never
//! stops the ones behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::PodUid;
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};

use crate::action::Action;
use crate::amounts::Amounts;
use crate::class::ModelId;
use crate::core::{Core, Timer};
use crate::eviction::Lack;
use crate::fewer::{Lowering, Terms};
use crate::gang::GangKey;
use crate::phase::{Phase, PhaseKind};
use crate::place::{GangShape, Overlay, Placed, PodNeed, Shortfall, place};
use crate::reason::{Preempted, Reason};
use crate::required::Required;
use crate::tree::Gone;

/// Placements that fail are counted over this time.
const FAILURE_WINDOW: Millis = Millis::from_seconds(60);

/// What makes two gangs equal for placing: a shape that did not fit once does not fit again in the
/// same pass, in which room only shrinks.
pub(crate) type ShapeKey =
    (bool, Vec<(Arc<str>, Arc<PodNeed>)>, BTreeMap<Arc<str>, ModelId>, u32, u32, Option<Arc<Terms>>);

/// Shapes that failed in this pass, and why; true where they can never fit.
pub(crate) type Failed = BTreeMap<ShapeKey, (Reason, bool)>;

/// What holds a single pod up.
enum Held {
    /// Its queue's ceiling, or a fact of its own.
    Known(Reason),
    /// A pod like it did not fit in this pass; true where it never can.
    AsAnother(Reason, bool),
    /// It did not fit.
    ByRoom(Required, Shortfall),
}

/// A plan for single pods of a gang that runs.
struct More {
    placed: Vec<Placed>,
    /// Pods that wait.
    waiting: u32,
    /// What holds the first of them up.
    first: Option<Held>,
    /// When one of them may be placed that nothing else holds up.
    look_again: Option<Time>,
    shape: GangShape,
}

impl Core {
    /// Tries the gangs that may have a chance now.
    pub(crate) fn pass(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.refresh_shares();
        let shares_moved = std::mem::take(&mut self.queues.shares_moved);
        if self.cluster.room_generation != self.room_seen
            || shares_moved
            || (self.quota_freed && !planted::is(Bug::QuotaWakesNobody))
        {
            self.quota_freed = false;
            self.wake_all();
        } else if self.eviction_news {
            self.wake_those_who_evict();
        }
        self.eviction_news = false;
        if !self.queues.to_try.is_empty() {
            self.try_in_turn(now, actions);
        }
        self.room_seen = self.cluster.room_generation;
    }

    /// `behind`: what it would wait behind, were it admissible and able to run at all.
    pub(crate) fn try_start(&mut self, key: GangKey, behind: Option<Reason>, failed: &mut Failed, now: Time) {
        let started = self.start(key, behind, failed, now);
        if let Err((reason, _)) = &started {
            // Whatever keeps it from its place: what was freed for it is not kept from others for it.
            self.note_room_failed(key, reason);
        }
        match started {
            Ok(()) => self.set_reason(key, None),
            Err((reason, PhaseKind::Admitted)) => self.set_reason(key, Some(reason)),
            Err((reason, _)) => {
                self.set_reason(key, Some(reason));
                if self.gangs.gangs.get(&key).is_some_and(|gang| !matches!(gang.phase, Phase::Queued)) {
                    self.set_phase(key, Phase::Queued);
                }
            }
        }
    }

    pub(crate) fn set_reason(&mut self, key: GangKey, reason: Option<Reason>) {
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            let reason = match (gang.preempted.clone(), reason) {
                (Some((by, at)), Some(cause)) => {
                    Some(Reason::Preempted(Box::new(Preempted { by, at, cause: Some(cause) })))
                }
                (_, reason) => reason,
            };
            gang.reason = reason.filter(|_| !planted::is(Bug::SilentReason));
        }
    }

    /// Admits and places a gang. An error says why not, and in which phase the gang stays.
    fn start(
        &mut self,
        key: GangKey,
        behind: Option<Reason>,
        failed: &mut Failed,
        now: Time,
    ) -> Result<(), (Reason, PhaseKind)> {
        if behind.is_none()
            && let Some(result) = self.start_group(key, now)
        {
            return result;
        }
        let queued = |reason| (reason, PhaseKind::Queued);
        let admitted = |reason| (reason, PhaseKind::Admitted);
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        self.check_admissible(gang).map_err(queued)?;
        let required = self.required(gang);
        let charge = self.admission_charge(gang, &required);
        if let Some(reason) =
            behind.filter(|_| self.queues.above_ceiling(&gang.spec.queue, &charge).is_none())
        {
            return Err(queued(reason));
        }
        let behind = self.find_quota(key, &required, &charge, failed, now).map_err(queued)?;
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        if matches!(gang.phase, Phase::Queued) {
            self.set_phase(key, Phase::Admitted);
        }
        self.await_pods(key, &required, &charge, &behind)?;
        if self.rooms.contains_key(&key) && !self.is_room_free(key) && !self.lacks(key, &charge).is_empty() {
            // There may be room for it; its quota is still with those that go for it.
            self.charge_admission(key, charge);
            return self.making_room(key).map_or(Ok(()), |reason| Err(admitted(reason)));
        }
        if let Some(reason) = self.needs_more_than_all_nodes(key, &required) {
            // Where its pods alone are too much, they tell which nodes are missing.
            let never = self.never_fits(key, &required, failed);
            return Err(queued(never.unwrap_or(reason)));
        }
        let placed = match self.check_guarantee(key, &required) {
            Some((reason, never)) => match self.never_fits(key, &required, failed).filter(|_| !never) {
                Some(never) => Err((never, true)),
                None => {
                    let lacks = self.lacks(key, &charge);
                    Err(self.evict_or(key, &required, &lacks, (reason, never), now))
                }
            },
            None => self.place_minimum(key, &required, failed, now),
        };
        match placed {
            Ok(()) => {
                self.push_back(&behind);
                Ok(())
            }
            // What can never fit is charged nothing, and nobody makes room for it.
            Err((reason, true)) => Err(queued(reason)),
            Err((reason, false)) => {
                self.push_back(&behind);
                self.charge_admission(key, charge);
                Err(admitted(reason))
            }
        }
    }

    /// Quota for a gang's minimum, and who is to give way for it.
    fn find_quota(
        &mut self,
        key: GangKey,
        required: &Required,
        charge: &Amounts,
        failed: &mut Failed,
        now: Time,
    ) -> Result<Vec<GangKey>, Reason> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(Vec::new()) };
        let reason = match self.check_quota(key, gang.order, required, charge) {
            Ok(behind) => return Ok(behind),
            Err(reason) => reason,
        };
        if reason.is_lasting() {
            return Err(reason);
        }
        if let Some(never) = self.never_fits(key, required, failed) {
            return Err(never);
        }
        // What it waits for in the first place, once it gave its quota away, are its pods.
        let pods = self.gangs.gangs.get(&key).filter(|gang| self.is_overdue(gang));
        let lacking = pods.and_then(|gang| self.check_pods(gang, required).err());
        let reason = self.with_those_that_exist(required, lacking.unwrap_or(reason));
        self.evict_for_quota(key, required, charge, reason, now)
    }

    /// The pods of a gang that has its quota are all there. While they are being made its charge stands already, so that
    /// they find their quota.
    fn await_pods(
        &mut self,
        key: GangKey,
        required: &Required,
        charge: &Amounts,
        behind: &[GangKey],
    ) -> Result<(), (Reason, PhaseKind)> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        match self.check_pods(gang, required) {
            Err(reason @ (Reason::PodBlocked { .. } | Reason::PodGated { .. } | Reason::Claim(_))) => {
                Err((reason, PhaseKind::Queued))
            }
            Err(reason) => {
                if let Some(reason) = self.larger_than_all_nodes(charge, false) {
                    return Err((reason, PhaseKind::Queued));
                }
                let gang = self.gangs.gangs.get(&key);
                let kept = gang.and_then(|gang| self.kept_from(gang, &Amounts::default(), charge));
                if let Some((reason, _)) = kept.filter(|(_, never)| *never) {
                    return Err((reason, PhaseKind::Queued));
                }
                self.push_back(behind);
                self.charge_admission(key, charge.clone());
                self.note_pods_missing(key);
                Err((self.with_those_that_exist(required, reason), PhaseKind::Admitted))
            }
            Ok(()) => {
                if let Some(gang) = self.gangs.gangs.get_mut(&key) {
                    gang.pods_missing_since = None;
                }
                Ok(())
            }
        }
    }

    /// Places an admitted gang's minimum; an error says why not, and whether it can never fit.
    fn place_minimum(
        &mut self,
        key: GangKey,
        required: &Required,
        failed: &mut Failed,
        now: Time,
    ) -> Result<(), (Reason, bool)> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        if gang.not_before > now {
            let at = gang.not_before;
            self.timers.insert((at, Timer::Gang(key)));
            let cause = gang.refused.as_deref().map(|cause| format!(": {cause}")).unwrap_or_default();
            let step = Arc::from(format!("a short wait after a refused placement{cause}"));
            return Err((Reason::InProgress { step }, false));
        }
        let shape = self.shape(key);
        let shape_key = shape_key(&shape, required);
        let has_own_view = self.has_own_view(key, now);
        if let Some((reason, never)) = failed.get(&shape_key).filter(|_| !has_own_view).cloned() {
            return Err(self.evict_or(key, required, &[], (reason, never), now));
        }
        match place(&self.cluster, &mut self.overlay_for(key, now), &shape, &required.pods) {
            Ok(placed) => {
                self.check_attempts(key, now).map_err(|reason| (reason, false))?;
                let nodes = placed.iter().map(|place| place.node).collect();
                self.take_from_holds(key, &nodes);
                self.begin_round(key, &placed, now);
                Ok(())
            }
            Err(shortfall) => {
                // What is held for it, and what it may take from others, counts as free for it.
                let lifted = self.lift_holds(key, now);
                let (reason, never) = self.diagnose(&shape, required, &shortfall);
                self.cluster.put_back(lifted);
                if !has_own_view {
                    failed.insert(shape_key, (reason.clone(), never));
                }
                Err(self.evict_or(key, required, &[], (reason, never), now))
            }
        }
    }

    /// A gang did not fit: others are evicted for it where that helps; else what it waits for, and whether it can never
    /// fit.
    fn evict_or(
        &mut self,
        key: GangKey,
        required: &Required,
        lacks: &[Lack],
        (mut reason, never): (Reason, bool),
        now: Time,
    ) -> (Reason, bool) {
        if never {
            return (reason, true);
        }
        self.note_room_failed(key, &reason);
        match self.evict_for(key, required, lacks, now) {
            Ok(()) => (self.making_room(key).unwrap_or(reason), false),
            Err(why) => {
                self.consider_hold(key, required, now);
                if let Reason::NoRoom(room) = &mut reason {
                    room.settle_evictions(why);
                }
                (reason, false)
            }
        }
    }

    /// Why a gang can never fit, whatever its quota: more of that would not help it, so that this is what it waits for in
    /// the first place.
    fn never_fits(&mut self, key: GangKey, required: &Required, failed: &mut Failed) -> Option<Reason> {
        let gang = self.gangs.gangs.get(&key)?;
        if self.check_pods(gang, required).is_err() {
            return None;
        }
        let shape = self.shape(key);
        let shape_key = shape_key(&shape, required);
        if !failed.contains_key(&shape_key) {
            let shortfall = place(&self.cluster, &mut Overlay::default(), &shape, &required.pods).err()?;
            let found = self.diagnose(&shape, required, &shortfall);
            failed.insert(shape_key.clone(), found);
        }
        failed.get(&shape_key).filter(|(_, never)| *never).map(|(reason, _)| reason.clone())
    }

    /// Bounds how often the placement of a gang may fail: one that only looks healthy must not win for
    /// ever.
    pub(crate) fn check_attempts(&mut self, key: GangKey, now: Time) -> Result<(), Reason> {
        let limit = self.settings.attempts_per_minute;
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return Ok(()) };
        if now - gang.failures.0 >= FAILURE_WINDOW || gang.failures.1 < limit {
            return Ok(());
        }
        gang.not_before = gang.failures.0 + FAILURE_WINDOW;
        self.timers.insert((gang.not_before, Timer::Gang(key)));
        Err(Reason::InProgress { step: Arc::from("its placement failed too often in this minute") })
    }

    /// A placement failed after it was begun.
    pub(crate) fn count_failure(&mut self, key: GangKey, now: Time) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        if now - gang.failures.0 >= FAILURE_WINDOW {
            gang.failures = (now, 0);
        }
        gang.failures.1 += 1;
    }

    /// Places pods above the minimum, and replaces lost ones, each for itself, with what is idle.
    pub(crate) fn try_grow(&mut self, key: GangKey, failed: &mut Failed, now: Time) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if gang.phase.round().is_some() || gang.deleted {
            return;
        }
        if gang.not_before > now {
            self.timers.insert((gang.not_before, Timer::Gang(key)));
            return;
        }
        let mut more = self.place_more(key, failed, now);
        let is_new = (!gang.was_whole || gang.is_minimum_raised()) && gang.phase.cut_short().is_none();
        if let Some(at) = more.look_again {
            self.timers.insert((at, Timer::Gang(key)));
        }
        let placed: Vec<PodUid> = more.placed.iter().map(|place| place.pod.clone()).collect();
        if is_new && !self.has_minimum(key, &placed) {
            // Somebody else bound some of it, or it needs more than it did: its rest comes together or not at all, as at
            // any start.
            more.waiting += u32::try_from(placed.len()).unwrap_or(u32::MAX);
            more.placed.clear();
            if let Some(rest) = self.rest_that_does_not_fit(key, &more.shape, now) {
                more.first = Some(rest);
            }
        }
        if let Err(reason) = self.check_attempts(key, now) {
            self.set_waiting_reason(key, more.waiting, Some(reason));
            return;
        }
        if !more.placed.is_empty() {
            self.begin_round(key, &more.placed, now);
        }
        // Looked into only now, when what was placed is taken: the reason must show what is left.
        let cause = match more.first {
            Some(Held::Known(reason) | Held::AsAnother(reason, true)) => Some(reason),
            Some(Held::AsAnother(reason, false)) => Some(self.evict_for_missing(key, reason, now)),
            Some(Held::ByRoom(one, shortfall)) => {
                let (reason, never) = self.diagnose(&more.shape, &one, &shortfall);
                failed.insert(shape_key(&more.shape, &one), (reason.clone(), never));
                Some(if never { reason } else { self.evict_for_missing(key, reason, now) })
            }
            None => None,
        };
        if let Some(cause) = cause.as_ref().filter(|_| more.placed.is_empty()) {
            self.note_room_failed(key, cause);
        }
        self.set_waiting_reason(key, more.waiting, cause);
    }

    /// Of a gang whose rest comes together: what of it finds no room.
    fn rest_that_does_not_fit(&self, key: GangKey, shape: &GangShape, now: Time) -> Option<Held> {
        let gang = self.gangs.gangs.get(&key)?;
        let tally = self.gangs.tally(&gang.spec.name);
        let minimum = gang.minimum(now).saturating_sub(tally.live + tally.succeeded);
        let mut pods = self.candidates(gang);
        pods.truncate(usize::try_from(minimum).unwrap_or(usize::MAX));
        let shortfall = place(&self.cluster, &mut self.overlay_for(key, now), shape, &pods).err()?;
        let lowering = Some(Lowering::beside(gang, tally.live + tally.succeeded));
        Some(Held::ByRoom(Required { pods, minimum, all: minimum, lowering }, shortfall))
    }

    /// Plans single pods of a gang that runs.
    fn place_more(&self, key: GangKey, failed: &Failed, now: Time) -> More {
        let shape = self.shape(key);
        let mut more = More { placed: Vec::new(), waiting: 0, first: None, look_again: None, shape };
        let Some(gang) = self.gangs.gangs.get(&key) else { return more };
        let mut asked = Amounts::default();
        let gone = Gone::from([(gang.spec.queue.clone(), gang.charge.clone())]);
        let mut overlay = self.overlay_for(key, now);
        let mut too_large: Vec<ShapeKey> = Vec::new();
        // What is held for it nobody else has seen.
        let has_own_view = self.has_own_view(key, now);
        let units = self.units(gang);
        let (short, reason) = (units.short, self.short_part(gang, &units));
        for unit in units.units {
            let amounts = unit.amounts();
            let one = Required::together(unit.pods);
            let (kind, pods) = (shape_key(&more.shape, &one), one.minimum);
            let mut sum = asked.clone();
            sum.add(&amounts);
            let held = if let Some(reason) = self.queues.unknown_limits(&gang.spec.queue) {
                Held::Known(reason)
            } else if let Some(over) = self.queues.over(&gang.spec.queue, &gone, &sum) {
                Held::Known(over.beside(&asked).reason(&gang.spec.queue))
            } else if let Some((reason, _)) = self.kept_from(gang, &asked, &amounts) {
                Held::Known(reason)
            } else if let Some(until) = self.patience_with(gang, &one.pods[0].pod) {
                more.look_again = more.look_again.max(Some(until));
                let step = "its PodGroup may be about to ask for more pods: they start together then";
                Held::Known(Reason::InProgress { step: Arc::from(step) })
            } else if let Some((reason, never)) = failed.get(&kind).filter(|_| !has_own_view) {
                Held::AsAnother(reason.clone(), *never)
            } else if more.first.is_some() && too_large.contains(&kind) {
                more.waiting += pods;
                continue;
            } else {
                match place(&self.cluster, &mut overlay, &more.shape, &one.pods) {
                    Ok(places) => {
                        asked.add(&amounts);
                        more.placed.extend(places);
                        continue;
                    }
                    Err(shortfall) => {
                        too_large.push(kind);
                        Held::ByRoom(one, shortfall)
                    }
                }
            };
            more.waiting += pods;
            more.first.get_or_insert(held);
        }
        let (count, by_themselves) = self.held_by_themselves(gang);
        more.waiting += count + short;
        more.first = more.first.or(by_themselves.or(reason).map(Held::Known));
        more
    }
}

pub(crate) fn shape_key(shape: &GangShape, required: &Required) -> ShapeKey {
    let pods = required.pods.iter().map(|candidate| (candidate.task.clone(), candidate.need.clone()));
    let terms = required.lowering.as_ref().and_then(|lowering| lowering.terms.clone());
    (shape.mixed_models, pods.collect(), shape.pinned.clone(), required.minimum, required.all, terms)
}
