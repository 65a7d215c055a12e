//! The life of a plan that evicts others for a gang: it is written, the victims are asked to go, what they free is held,
//! and the gang is placed. It ends when the gang runs, or it is dropped with a cause that is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{ActionId, GangName, LeaseId, PodUid};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod, PlannedVictim};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};
use serde::{Deserialize, Serialize};

use crate::action::{Action, Command};
use crate::amounts::Amounts;
use crate::cluster::EarlyEnd;
use crate::core::{Core, Pending, Timer};
use crate::event::Outcome;
use crate::gang::{GangKey, Pod};
use crate::phase::{Phase, PhaseKind};
use crate::reason::Reason;
use crate::tree::Gone;

mod begin;
mod told;

/// A gang whose plan was dropped is not planned again at once, and later and later.
const FIRST_PAUSE: Millis = Millis::from_seconds(5);
const MOST_DOUBLINGS: u32 = 6;

/// A node whose kubelet does not end a pod takes no new pods for so long, or until it does.
const SUSPECT_FOR: Millis = Millis::from_seconds(3600);

/// How far a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RoomStep {
    /// To be written.
    Unwritten,
    /// Its write is on its way.
    Writing(ActionId),
    /// Its write is tried again then.
    WriteAt(Time),
    /// It is durable: victims go.
    Evicting,
}

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Victim {
    pub(crate) name: GangName,
    pub(crate) gang: GangName,
    pub(crate) lease: Option<LeaseId>,
    /// Its whole gang goes.
    pub(crate) whole: bool,
    /// When it is asked next to go, and how often it was.
    ask_at: Time,
    asked: u32,
    /// When it must be gone, once it was asked.
    gone_by: Option<Time>,
    /// It was told that it will be asked.
    is_noticed: bool,
    cause: Arc<str>,
}

impl Victim {
    /// It has time to save its work until then, and is evicted afterwards.
    fn is_told_only(&self, now: Time) -> bool {
        self.asked == 0 && self.gone_by.is_none() && self.ask_at > now
    }
}

/// A plan that evicts others for a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoomPlan {
    pub(crate) step: RoomStep,
    pub(crate) victims: BTreeMap<PodUid, Victim>,
    places: Vec<PlannedPod>,
    /// What is stored for the gang, or may be, is this plan, and goes with it: it was written by this leader or an earlier
    /// one, and no round has written its own since.
    #[serde(default)]
    stored: bool,
    /// Writes in a row without an answer.
    failures: u32,
    /// Why it came to nothing.
    failed: Option<Arc<str>>,
}

impl Core {
    /// What the victims of a gang's plan still use of their queues.
    pub(crate) fn going_for(&self, key: GangKey) -> Gone {
        let victims = self.rooms.get(&key).into_iter().flat_map(|room| room.victims.values());
        let leases = victims.filter_map(|victim| self.leases.leases.get(&victim.lease?));
        let mut going = Gone::new();
        for lease in leases.filter(|lease| lease.charged) {
            if let Some(gang) = lease.gang.and_then(|key| self.gangs.gangs.get(&key)) {
                going.entry(gang.spec.queue.clone()).or_default().add(&lease.taken.amounts.of_pod());
            }
        }
        going
    }

    /// What the pods use for which a gang's plan makes room, as far as they have no place yet.
    pub(crate) fn coming_for(&self, key: GangKey) -> Amounts {
        let places = self.rooms.get(&key).into_iter().flat_map(|room| &room.places);
        let pods = places.filter_map(|place| self.gangs.pods.get(&place.pod));
        let mut coming = Amounts::default();
        pods.filter(|pod| pod.is_unplaced()).for_each(|pod| coming.add(&pod.need.amounts.of_pod()));
        coming
    }

    /// What gangs for which others are evicted are going to take beside what those still use: with this gang's own plan
    /// left out. It is used already as far as what is set aside for others goes.
    pub(crate) fn promised_to_others(&self, key: GangKey) -> Amounts {
        let mut sum = Amounts::default();
        for other in self.rooms.keys().filter(|other| **other != key) {
            let mut asked = self.coming_for(*other);
            self.going_for(*other).values().for_each(|going| asked.subtract(going));
            sum.add(&asked);
        }
        sum
    }

    /// Goes on with the plan of a gang.
    pub(crate) fn progress_room(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(room) = self.rooms.get(&key) else { return };
        let step = room.step;
        if let Some(why) = room.failed.clone() {
            return self.drop_room(key, &why, now, actions);
        }
        match self.gangs.gangs.get(&key) {
            Some(gang) if gang.deleted => return self.drop_room(key, "its PodGroup is gone", now, actions),
            Some(gang) => match gang.phase.kind() {
                PhaseKind::Running => return self.end_room(key, actions),
                PhaseKind::Finished | PhaseKind::Evicting => {
                    return self.drop_room(key, "it has ended", now, actions);
                }
                PhaseKind::Queued
                | PhaseKind::Admitted
                | PhaseKind::Degraded
                | PhaseKind::Reserving
                | PhaseKind::Committing
                | PhaseKind::Arming
                | PhaseKind::Binding => {}
            },
            None => return self.drop_room(key, "its PodGroup is gone", now, actions),
        }
        let is_gone = |place: &PlannedPod| {
            self.gangs.pods.get(&place.pod).is_none_or(|pod| pod.spec.phase.is_terminal())
        };
        if room.places.iter().any(is_gone) {
            return self.drop_room(key, "pods that it was made for are gone", now, actions);
        }
        if self.gangs.gangs.get(&key).is_some_and(|gang| gang.phase.round().is_some()) {
            // It has found a place: nobody goes for it unless that comes to nothing. Its round's plan is the one stored.
            return;
        }
        match step {
            RoomStep::Unwritten => self.put_room(key, actions),
            RoomStep::WriteAt(at) if at <= now => self.put_room(key, actions),
            RoomStep::WriteAt(at) => {
                self.timers.insert((at, Timer::Gang(key)));
            }
            RoomStep::Writing(_) => {}
            RoomStep::Evicting => self.drive_victims(key, now, actions),
        }
    }

    fn put_room(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        let (Some(gang), Some(room)) = (self.gangs.gangs.get(&key), self.rooms.get(&key)) else { return };
        let victims = room.victims.iter().map(|(uid, victim)| PlannedVictim {
            pod: uid.clone(),
            name: victim.name.clone(),
            whole_gang: victim.whole,
        });
        let plan = GangPlan {
            gang: gang.spec.name.clone(),
            gang_uid: gang.spec.uid.clone(),
            term: self.term.counter,
            binding_deadline: self.now,
            purpose: PlanPurpose::MakeRoom,
            victims: victims.collect(),
            pods: room.places.clone(),
        };
        let id = self.emit_pending(Command::WritePlan(Box::new(plan)), Pending::RoomPlan(key), actions);
        if let Some(room) = self.rooms.get_mut(&key) {
            (room.step, room.stored) = (RoomStep::Writing(id), true);
            if planted::is(Bug::EvictBeforePlan) {
                room.step = RoomStep::Evicting;
                self.touched.insert(key);
            }
        }
    }

    /// The plan was written, or was not.
    pub(crate) fn room_written(
        &mut self,
        key: GangKey,
        id: ActionId,
        outcome: &Outcome,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let pause = self.rooms.get(&key).map(|room| self.retry_after(room.failures));
        let (Some(room), Some(pause)) = (self.rooms.get_mut(&key), pause) else { return };
        if room.step != RoomStep::Writing(id) {
            return;
        }
        self.touched.insert(key);
        match outcome {
            Outcome::Done => room.step = RoomStep::Evicting,
            Outcome::Unknown => {
                room.failures = room.failures.saturating_add(1);
                room.step = RoomStep::WriteAt(now + pause);
            }
            Outcome::Conflict | Outcome::NotFound => {
                self.drop_room(key, "another coordinator wrote a plan for it", now, actions);
            }
            Outcome::Refused(why) => {
                self.drop_room(key, &format!("it could not be written: {why}"), now, actions);
            }
        }
    }

    /// Asks the victims to go, and waits for them.
    fn drive_victims(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(room) = self.rooms.get(&key) else { return };
        let gone = room.victims.iter().filter(|(uid, victim)| self.is_victim_gone(uid, victim));
        let gone: Vec<PodUid> = gone.map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            self.victims.remove(&uid);
            if let Some(room) = self.rooms.get_mut(&key) {
                room.victims.remove(&uid);
            }
        }
        let Some(room) = self.rooms.get(&key) else { return };
        let late = room.victims.iter().find(|(_, victim)| victim.gone_by.is_some_and(|at| at <= now));
        if let Some((uid, victim)) = late {
            let (uid, victim) = (uid.clone(), victim.clone());
            return self.give_victim_up(key, &uid, &victim, now, actions);
        }
        let due: Vec<PodUid> = room
            .victims
            .iter()
            .filter(|(_, victim)| victim.ask_at <= now)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in due {
            self.ask_to_go(key, &uid, now, actions);
        }
        self.give_notice(key, now, actions);
        let Some(room) = self.rooms.get(&key) else { return };
        let times = room.victims.values().flat_map(|victim| [Some(victim.ask_at), victim.gone_by]);
        let next = times.flatten().filter(|at| *at > now).min();
        let is_free = room.victims.is_empty();
        if let Some(next) = next {
            self.timers.insert((next, Timer::Gang(key)));
        }
        let waits = self.gangs.gangs.get(&key).is_some_and(|gang| {
            matches!(gang.phase, Phase::Queued | Phase::Admitted | Phase::Degraded { round: None, .. })
        });
        if is_free && waits {
            self.set_waiting(key, true);
        }
    }

    /// Tells those that get time for a checkpoint when they will be asked to go.
    fn give_notice(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(room) = self.rooms.get_mut(&key) else { return };
        let mut notices = Vec::new();
        for (uid, victim) in &mut room.victims {
            if victim.asked == 0 && victim.ask_at > now && !victim.is_noticed {
                victim.is_noticed = true;
                let (name, cause) = (victim.name.clone(), victim.cause.clone());
                notices.push(Command::AnnounceEviction { pod: uid.clone(), name, at: victim.ask_at, cause });
            }
        }
        for notice in notices {
            self.emit(notice, actions);
        }
    }

    fn is_victim_gone(&self, uid: &PodUid, victim: &Victim) -> bool {
        let pod = self.gangs.pods.get(uid);
        let is_there = pod.is_some_and(|pod| !pod.spec.phase.is_terminal());
        !is_there && victim.lease.is_none_or(|lease| !self.leases.leases.contains_key(&lease))
    }

    /// Asks one victim to go; of a gang that goes as a whole, all of it.
    fn ask_to_go(&mut self, key: GangKey, uid: &PodUid, now: Time, actions: &mut Vec<Action>) {
        let by = self.gangs.gangs.get(&key).map(|gang| gang.spec.name.clone());
        let Some(victim) = self.rooms.get(&key).and_then(|room| room.victims.get(uid)).cloned() else {
            return;
        };
        let policy = self.gangs.pods.get(uid).map(|pod| pod.spec.policy.clone()).unwrap_or_default();
        let ends_by = policy.ends_by.unwrap_or(now + policy.grace_ms);
        let gone_by = victim.gone_by.unwrap_or(ends_by + self.settings.victim_timeout_ms);
        let again = now + self.retry_after(victim.asked);
        let is_there = |pod: &Pod| !pod.spec.deleting && !pod.spec.phase.is_terminal();
        let is_going = !self.gangs.pods.get(uid).is_some_and(is_there);
        // Of a gang that goes as a whole its phase says it to each pod, and again where that is lost.
        let is_asked = match by {
            Some(by) if victim.whole => self.evict_whole(&victim, by, now),
            _ => true,
        };
        if let Some(victim) = self.rooms.get_mut(&key).and_then(|room| room.victims.get_mut(uid)) {
            victim.gone_by = is_asked.then_some(gone_by);
            victim.ask_at = again;
            victim.asked = victim.asked.saturating_add(1);
        }
        if !is_going && !victim.whole {
            let (pod, name, cause) = (uid.clone(), victim.name, victim.cause);
            self.emit(Command::Evict { pod, name, cause }, actions);
        }
    }

    /// All of a gang goes for another one: it waits as a whole once its pods are gone. False where it cannot be told yet.
    fn evict_whole(&mut self, victim: &Victim, by: GangName, now: Time) -> bool {
        let Some(key) = self.gangs.key(&victim.gang) else { return true };
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return true };
        if !gang.phase.is_still() {
            return gang.preempted.is_some();
        }
        gang.preempted = Some((by, now));
        let has_plan = gang.phase.cut_short().is_some();
        let live = self.gangs.pods_of(&victim.gang).filter(|(_, pod)| pod.is_live());
        let pods: BTreeSet<PodUid> = live.map(|(uid, _)| uid.clone()).collect();
        let phase = Phase::Evicting {
            cause: victim.cause.clone(),
            pods,
            fencing: BTreeMap::new(),
            found: BTreeSet::new(),
            retry_at: now,
            tries: 0,
            has_plan,
        };
        self.set_waiting(key, false);
        self.set_phase(key, phase);
        self.touched.insert(key);
        true
    }

    /// A victim does not go, and another plan is made. Where it was told to, its node's kubelet is not to be trusted.
    fn give_victim_up(
        &mut self,
        key: GangKey,
        uid: &PodUid,
        victim: &Victim,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let lease = victim.lease.and_then(|lease| self.leases.leases.get(&lease));
        let is_told = self.gangs.pods.get(uid).is_none_or(|pod| pod.spec.deleting);
        let why = format!("{} did not end in time", victim.name.name);
        let node = lease.map(|lease| lease.node).filter(|_| is_told);
        if let Some(node) = node {
            let until = now + SUSPECT_FOR;
            self.cluster.close_until(node, &why, until, EarlyEnd::Release);
            self.timers.insert((until, Timer::Quarantine(node)));
        }
        self.drop_room(key, &why, now, actions);
        let gave_up = node.map(|node| (self.cluster.node(node).name.clone(), Arc::from(why)));
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.gave_up = gave_up;
            if is_told {
                // The next plan leaves that node out: there is nothing to wait for.
                gang.evict_not_before = now;
            }
        }
    }

    /// The gang runs: nothing is held for it any more.
    fn end_room(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        let room = self.forget_room(key);
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        (gang.evict_failures, gang.evict_not_before) = (0, Time(0));
        let name = gang.spec.name.clone();
        if room.is_some_and(|room| room.stored) {
            // No plan of its own has replaced this one: it was bound without one, or needs fewer pods than it did.
            self.remove_plan(name, actions);
        }
    }

    /// The plan is given up, which is told. Who was asked to go goes.
    pub(crate) fn drop_room(&mut self, key: GangKey, why: &str, now: Time, actions: &mut Vec<Action>) {
        let Some(room) = self.forget_room(key) else { return };
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let pause = FIRST_PAUSE.doubled(gang.evict_failures.min(MOST_DOUBLINGS));
        gang.evict_failures = gang.evict_failures.saturating_add(1);
        gang.evict_not_before = now + pause;
        let name = gang.spec.name.clone();
        let message = format!("evictions for gang {name} are dropped: {why}");
        self.emit(Command::Warn { message }, actions);
        if room.stored {
            self.remove_plan(name, actions);
        }
        self.timers.insert((now + pause, Timer::Gang(key)));
        self.touched.insert(key);
    }

    fn forget_room(&mut self, key: GangKey) -> Option<RoomPlan> {
        let room = self.rooms.remove(&key)?;
        for uid in room.victims.keys() {
            self.victims.remove(uid);
        }
        self.cluster.unhold(key);
        Some(room)
    }

    /// Whether what is stored for a gang is the plan that makes room for it.
    pub(crate) fn note_room_stored(&mut self, key: GangKey, is_stored: bool) {
        if let Some(room) = self.rooms.get_mut(&key) {
            room.stored = is_stored;
        }
    }

    /// Its victims are gone, and nothing is left to wait for but its place.
    pub(crate) fn is_room_free(&self, key: GangKey) -> bool {
        let room = self.rooms.get(&key);
        room.is_some_and(|room| room.step == RoomStep::Evicting && room.victims.is_empty())
    }

    /// A pod that is a victim changed: whoever waits for it looks at it.
    pub(crate) fn touch_claimant(&mut self, uid: &PodUid) {
        if let Some(key) = self.victims.get(uid) {
            self.touched.insert(*key);
        }
    }

    /// Its round was dropped: what was held for it is held again, and its plan is written again where the round's plan
    /// had replaced it. True where there is one.
    pub(crate) fn resume_held(&mut self, key: GangKey, is_stored: bool) -> bool {
        let Some(room) = self.rooms.get_mut(&key) else { return false };
        room.step = RoomStep::Unwritten;
        room.stored |= is_stored;
        self.touched.insert(key);
        true
    }

    /// Its victims are gone, and it does not fit all the same: the plan has failed.
    pub(crate) fn note_room_failed(&mut self, key: GangKey, reason: &Reason) {
        // A short wait after a refusal ends by itself.
        let lasts = !matches!(reason, Reason::InProgress { .. });
        let is_free = lasts && self.is_room_free(key);
        let Some(room) = self.rooms.get_mut(&key).filter(|_| is_free) else { return };
        if room.failed.is_none() {
            room.failed = Some(Arc::from(format!("it does not fit though its victims are gone: {reason}")));
            self.touched.insert(key);
        }
    }

    /// A plan of an earlier leader that evicts others is gone on with: what it holds is held again, and nobody else is
    /// evicted.
    pub(crate) fn resume_room(&mut self, key: GangKey, plan: &GangPlan, now: Time) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let cause: Arc<str> = Arc::from(format!("for {}, as an earlier leader planned", gang.spec.name.name));
        let mut victims = BTreeMap::new();
        for planned in &plan.victims {
            let Some(pod) = self.gangs.pods.get(&planned.pod) else { continue };
            let victim = Victim {
                name: planned.name.clone(),
                gang: pod.spec.gang.clone(),
                lease: pod.lease,
                whole: planned.whole_gang,
                // When it was told to go is not stored: it is told anew.
                ask_at: now + self.notice_again(planned, plan),
                asked: 0,
                gone_by: None,
                is_noticed: false,
                cause: cause.clone(),
            };
            if !self.is_victim_gone(&planned.pod, &victim) {
                victims.insert(planned.pod.clone(), victim);
            }
        }
        let room = RoomPlan {
            step: RoomStep::Unwritten,
            victims,
            places: plan.pods.clone(),
            stored: true,
            failures: 0,
            failed: None,
        };
        self.start_room(key, room);
    }
}
