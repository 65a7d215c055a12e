//! A round: reserve, confirm, commit, arm, bind. Before the commit point it is dropped whole when
//! something fails; after it, it rolls forward, and back only by the binding deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::PodBinding;
use phalanx_common::ids::{LeaseId, PodUid};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::Time;
use phalanx_common::wire::{LeaseRequest, LeaseState};

use crate::action::{Action, Command};
use crate::cluster::{EarlyEnd, NodeIndex, Taken};
use crate::core::{Core, Pending, Timer};
use crate::gang::{GangKey, Pod};
use crate::lease::{Lease, devices, exactness};
use crate::phase::{BindState, Member, Phase, Round, Step};
use crate::place::{Overlay, Placed};

impl Core {
    /// Takes the GPUs in the ledger and asks the agents to promise them.
    pub(crate) fn begin_round(&mut self, key: GangKey, placed: &[Placed], now: Time) {
        let deadline = now + self.settings.confirm_timeout_ms;
        let mut round = Round::new(Step::Reserving, deadline, now + self.settings.binding_deadline_ms);
        self.note_backfill(key, placed);
        self.forget_uses();
        placed.iter().for_each(|place| self.add_member(key, &mut round, place));
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let phase = gang.phase.with_round(round);
        self.set_phase(key, phase);
        // What it has now it asks for no more: it would count twice in the shares that others are measured by.
        self.note_wants(key);
        self.timers.insert((deadline, Timer::Gang(key)));
        self.touched.insert(key);
    }

    /// One pod joins a round on its chosen place.
    pub(crate) fn add_member(&mut self, key: GangKey, round: &mut Round, place: &Placed) {
        let id = self.leases.next_id(self.term);
        let node = self.cluster.node(place.node);
        let named = if planted::is(Bug::OtherNodesGpus) { NodeIndex(0) } else { place.node };
        let gpus = self.cluster.node(named).gpu_ids(place.mask);
        let local = node.agent.is_none();
        self.set_pod_lease(&place.pod, Some(id));
        let Some(pod) = self.gangs.pods.get(&place.pod) else { return };
        let request = LeaseRequest {
            pod: place.pod.clone(),
            pod_name: pod.spec.name.clone(),
            gang: pod.spec.gang.clone(),
            request: pod.spec.request.clone(),
            devices: devices(&pod.spec.request, &gpus),
            exactness: exactness(&pod.need),
            run_for: pod.spec.run_for,
        };
        let ports = pod.need.constraints.host_ports.clone();
        let taken = Taken { lease: id, amounts: pod.need.amounts.clone(), gpus, ports };
        round.members.insert(place.pod.clone(), Member::new(id, BindState::Waiting));
        round.unbound.insert(place.pod.clone());
        if !local {
            round.unconfirmed.insert(id);
            round.unarmed.insert(id);
        }
        self.insert_lease(Lease {
            node: place.node,
            taken,
            request: Arc::new(request),
            gang: Some(key),
            charged: false,
            local,
            wanted: LeaseState::Reserved,
            known: None,
            sent: None,
            refused: 0,
        });
    }

    /// Moves a round on as far as its facts allow.
    pub(crate) fn progress_round(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        let Some(round) = self.round_mut(key) else { return };
        if round.step < Step::Binding && (round.lost_member || round.members.is_empty()) {
            self.drop_round(key, now, actions);
            return;
        }
        match round.step {
            Step::Reserving => {
                let is_some = round.unconfirmed.len() < round.members.len();
                let no_plan =
                    round.unconfirmed.is_empty() && (planted::is(Bug::NoPlan) || self.needs_no_plan(key));
                let Some(round) = self.round_mut(key) else { return };
                if no_plan {
                    self.set_step(key, Step::Committing);
                    self.arm(key, now);
                } else if round.unconfirmed.is_empty() || planted::is(Bug::CommitHalfConfirmed) && is_some {
                    self.write_plan(key, actions);
                } else if now >= round.deadline {
                    let unconfirmed = round.unconfirmed.clone();
                    self.handle_silence(key, &unconfirmed, now, actions);
                }
            }
            // The writer always answers.
            Step::Committing => {
                if round.plan_retry_at.is_some_and(|at| at <= now) {
                    self.put_plan(key, actions);
                }
            }
            Step::Arming => {
                if round.unarmed.is_empty() || planted::is(Bug::BindBeforeArmed) {
                    self.commit(key);
                    self.progress_round(key, now, actions);
                } else if now >= round.deadline {
                    let silent: Vec<LeaseId> = round.unarmed.iter().copied().collect();
                    self.close_silent(&silent, now, actions);
                    self.drop_round(key, now, actions);
                }
            }
            Step::Binding => self.progress_binding(key, now, actions),
        }
    }

    pub(crate) fn round_mut(&mut self, key: GangKey) -> Option<&mut Round> {
        self.gangs.gangs.get_mut(&key)?.phase.round_mut()
    }

    /// All agents confirmed: the plan is written before anything is armed.
    pub(crate) fn write_plan(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        self.put_plan(key, actions);
        self.set_step(key, Step::Committing);
    }

    /// Makes the plan of an earlier leader ours, as soon as our term can be told from that leader's.
    pub(crate) fn adopt_plan(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        if self.raising_above.is_none() {
            self.put_plan(key, actions);
            return;
        }
        let retry_at = self.now + self.settings.resend_ms;
        if let Some(round) = self.round_mut(key) {
            round.plan_retry_at = Some(retry_at);
            self.timers.insert((retry_at, Timer::Gang(key)));
        }
    }

    /// Writes the plan of a round under our term.
    pub(crate) fn put_plan(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        let Some(plan) = self.plan_of(key) else { return };
        let write = self.emit_pending(Command::WritePlan(Box::new(plan)), Pending::Plan(key), actions);
        if let Some(round) = self.round_mut(key) {
            round.plan_write = Some(write);
            round.plan_stored = true;
            round.plan_retry_at = None;
        }
        // It takes the place of a plan that made room for the gang.
        self.note_room_stored(key, false);
    }

    fn plan_of(&self, key: GangKey) -> Option<GangPlan> {
        let gang = self.gangs.gangs.get(&key)?;
        let round = gang.phase.round()?;
        let mut leases: BTreeSet<LeaseId> = round.members.values().map(|member| member.lease).collect();
        if gang.phase.cut_short().is_some() || round.step == Step::Binding {
            // This plan replaces that of the pods bound before: none of them may start before the rest is bound.
            let live = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.is_live());
            leases.extend(live.filter_map(|(_, pod)| pod.lease));
        }
        let pods = leases.into_iter().filter_map(|id| {
            let lease = self.leases.leases.get(&id)?;
            Some(PlannedPod {
                pod: lease.pod().clone(),
                name: lease.request.pod_name.name.clone(),
                node: self.cluster.node(lease.node).name.clone(),
                lease: (!lease.local).then_some(id),
                gpus: lease.taken.gpus.clone(),
            })
        });
        Some(GangPlan {
            gang: gang.spec.name.clone(),
            gang_uid: gang.spec.uid.clone(),
            term: self.term.counter,
            binding_deadline: round.binding_deadline,
            pods: pods.collect(),
            purpose: PlanPurpose::Bind,
            victims: Vec::new(),
        })
    }

    /// The plan is durable, where one is needed: agents may write the leases to disk.
    pub(crate) fn arm(&mut self, key: GangKey, now: Time) {
        let deadline = now + self.settings.confirm_timeout_ms;
        let Some(round) = self.round_mut(key) else { return };
        round.plan_write = None;
        round.plan_failures = 0;
        round.deadline = deadline;
        let leases: Vec<LeaseId> = round.members.values().map(|member| member.lease).collect();
        for lease in leases {
            self.leases.want(lease, LeaseState::Armed);
        }
        self.timers.insert((deadline, Timer::Gang(key)));
        self.set_step(key, Step::Arming);
        self.touched.insert(key);
    }

    /// The commit point: plan durable, every lease armed.
    fn commit(&mut self, key: GangKey) {
        self.set_step(key, Step::Binding);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.drops_in_row = 0;
            gang.refused = None;
        }
        if let Some(round) = self.round_mut(key) {
            round.to_bind = round.unbound.clone();
            let deadline = round.binding_deadline;
            self.timers.insert((deadline, Timer::Gang(key)));
        }
    }

    fn progress_binding(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        self.retry_due(key, now, actions);
        let Some(round) = self.round_mut(key) else { return };
        if round.unbound.is_empty() {
            self.complete_round(key, actions);
            return;
        }
        if now >= round.binding_deadline {
            self.roll_back(key, now, actions);
            return;
        }
        if round.plan_retry_at.is_some_and(|at| at <= now) {
            self.adopt_plan(key, actions);
            return;
        }
        if round.plan_write.is_some() || round.plan_retry_at.is_some() {
            // An earlier leader may still be deleting this plan: what is bound must find one that is ours.
            return;
        }
        if self.yield_before_binding(key, now, actions) {
            return;
        }
        let Some(round) = self.round_mut(key) else { return };
        if round.plan_write.is_some() || round.plan_retry_at.is_some() {
            // A pod was placed anew: the plan that names its place comes first.
            return;
        }
        let ready = std::mem::take(&mut round.to_bind);
        for uid in ready {
            self.send_binding(key, &uid, actions);
        }
    }

    fn send_binding(&mut self, key: GangKey, uid: &PodUid, actions: &mut Vec<Action>) {
        let Some(pod) = self.gangs.pods.get(uid) else { return };
        let Some(lease) = pod.lease.and_then(|id| self.leases.leases.get(&id)) else { return };
        let is_armed =
            lease.known.is_some_and(|state| (LeaseState::Armed..=LeaseState::Started).contains(&state));
        if !lease.local && !is_armed && !planted::is(Bug::BindBeforeArmed) {
            // Its agent lost it, or is letting go of it; it is bound once it is armed again.
            if let Some(round) = self.round_mut(key) {
                round.to_bind.insert(uid.clone());
            }
            return;
        }
        let command = Command::Bind {
            pod: uid.clone(),
            name: pod.spec.name.clone(),
            resource_version: if planted::is(Bug::BindAnyVersion) { 0 } else { pod.spec.resource_version },
            binding: PodBinding {
                node: self.cluster.node(lease.node).name.clone(),
                lease: (!lease.local).then_some(lease.taken.lease),
                gpus: lease.taken.gpus.clone(),
            },
            exactness: lease.request.exactness,
            group_uid: self.gangs.gangs.get(&key).map(|gang| gang.spec.uid.clone()).unwrap_or_default(),
            term: self.term,
        };
        let action = self.emit_pending(command, Pending::Pod(key, uid.clone()), actions);
        self.set_bind(key, uid, BindState::Sent(action));
    }

    pub(crate) fn set_bind(&mut self, key: GangKey, uid: &PodUid, bind: BindState) {
        if let Some(member) = self.round_mut(key).and_then(|round| round.members.get_mut(uid)) {
            member.bind = bind;
        }
    }

    /// All pods of the round are bound: the start gate opens once the gang has its minimum.
    fn complete_round(&mut self, key: GangKey, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let name = gang.spec.name.clone();
        let is_cut_short = gang.phase.cut_short().is_some();
        let round = match &mut gang.phase {
            Phase::Running { round } | Phase::Degraded { round, .. } => round.take(),
            Phase::Placing(round) => Some(round.clone()),
            Phase::Queued | Phase::Admitted | Phase::Evicting { .. } | Phase::Finished => None,
        };
        let Some(round) = round else { return };
        self.eviction_news = true; // Nothing of it could be evicted meanwhile.
        let counts =
            |uid: &PodUid, pod: &Pod| !round.members.contains_key(uid) && (pod.is_live() || pod.ended_well());
        if !self.gangs.pods_of(&name).any(|(uid, pod)| counts(uid, pod))
            && let Some(gang) = self.gangs.gangs.get_mut(&key)
        {
            // What ran before is gone: it begins anew with these.
            gang.running_since = None;
        }
        let had_plan = round.plan_stored || is_cut_short;
        // Without a plan it was committed as the gang of a lone pod: whatever its PodGroup asks since then joins it later.
        if self.is_satisfied(key) || !had_plan {
            self.open_start_gate(key);
            self.set_phase(key, Phase::Running { round: None });
            if had_plan {
                self.remove_plan(name, actions);
            }
        } else if self.has_started(key, &round) {
            // It was whole once: what joins it starts too, though some are missing for ever.
            self.run_without_round(key);
            self.remove_plan(name, actions);
        } else {
            let cause = Arc::from("a pod was deleted while the gang was being bound");
            let before = self.gangs.gangs.get(&key).and_then(|gang| gang.phase.cut_short());
            let roll_back_at = before.or(Some(round.binding_deadline));
            self.set_phase(key, Phase::Degraded { cause, round: None, roll_back_at });
        }
        self.touched.insert(key);
    }

    /// Lets the gang's bound pods start.
    pub(crate) fn open_start_gate(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.gangs.get(&key).filter(|_| !self.group_is_binding(key)) else { return };
        let live = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.is_live());
        let leases: Vec<LeaseId> = live.filter_map(|(_, pod)| pod.lease).collect();
        for lease in leases {
            self.leases.want_at_least(lease, LeaseState::Started);
        }
    }

    /// Gives a round up. Only where nothing is bound: before its commit point, or before its first Binding is sent. The gang is not tried
    /// again before `retry_at`.
    pub(crate) fn drop_round(&mut self, key: GangKey, retry_at: Time, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let name = gang.spec.name.clone();
        let Some(round) = gang.phase.round().cloned() else { return };
        gang.not_before = if planted::is(Bug::NeverRetry) { Time(1 << 50) } else { retry_at };
        gang.drops_in_row = gang.drops_in_row.saturating_add(1);
        self.count_failure(key, retry_at);
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let keeps_plan = gang.phase.cut_short().is_some();
        self.eviction_news = true;
        match &mut gang.phase {
            Phase::Running { round } | Phase::Degraded { round, .. } => *round = None,
            Phase::Queued
            | Phase::Admitted
            | Phase::Placing(_)
            | Phase::Evicting { .. }
            | Phase::Finished => {
                self.set_phase(key, Phase::Admitted);
            }
        }
        let released = if planted::is(Bug::ReleaseOnlyFirst) { 1 } else { usize::MAX };
        for (uid, member) in round.members.iter().take(released) {
            self.end_lease(member.lease);
            self.set_pod_lease(uid, None);
        }
        let is_stored = round.plan_stored || round.plan_write.is_some();
        let keeps_plan = self.resume_held(key, is_stored) || keeps_plan;
        if !keeps_plan && is_stored {
            self.remove_plan(name, actions);
        }
        self.timers.insert((retry_at, Timer::Gang(key)));
        self.touched.insert(key);
        self.drop_group(key, retry_at, actions);
    }

    /// A member's agent will not have it: the rest keeps its leases, this one is planned again. Where it
    /// fits nowhere else, the round is dropped and the gang not tried again before `retry_at`.
    pub(crate) fn replace_member(
        &mut self,
        key: GangKey,
        uid: &PodUid,
        retry_at: Time,
        actions: &mut Vec<Action>,
    ) {
        if !self.gangs.pods.contains_key(uid) {
            return;
        }
        let old = self.set_pod_lease(uid, None);
        let candidate = self.candidate(uid);
        let shape = self.shape(key);
        let Some(round) = self.round_mut(key) else { return };
        round.members.remove(uid);
        round.unbound.remove(uid);
        if let Some(old) = old {
            round.unconfirmed.remove(&old);
            round.unarmed.remove(&old);
        }
        let mut overlay = Overlay::excluding(round.excluded.clone());
        let place = candidate.and_then(|candidate| {
            crate::place::place(&self.cluster, &mut overlay, &shape, &[candidate]).ok()?.pop()
        });
        match (place, self.gangs.gangs.get_mut(&key)) {
            (Some(place), Some(gang)) => {
                let Some(round) = gang.phase.round_mut() else { return };
                let mut round = round.clone();
                self.add_member(key, &mut round, &place);
                if let Some(slot) = self.round_mut(key) {
                    *slot = round;
                }
            }
            _ => self.drop_round(key, retry_at, actions),
        }
        self.touched.insert(key);
    }

    /// Agents that did not answer in time: their nodes are closed, their members planned again.
    pub(crate) fn handle_silence(
        &mut self,
        key: GangKey,
        unconfirmed: &BTreeSet<LeaseId>,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        // One that was asked a moment ago, in the place of one that refused, has not had its time yet.
        let asked_before =
            |lease: &Lease| lease.sent.is_none_or(|sent| sent.first + self.settings.resend_ms <= now);
        let leases = unconfirmed.iter().filter(|id| self.leases.leases.get(id).is_some_and(asked_before));
        let silent: Vec<LeaseId> = leases.copied().collect();
        let patience =
            if silent.is_empty() { self.settings.resend_ms } else { self.settings.confirm_timeout_ms };
        let deadline = now + patience;
        if let Some(round) = self.round_mut(key) {
            round.deadline = deadline;
        }
        self.close_silent(&silent, now, actions);
        for id in silent {
            let Some(lease) = self.leases.leases.get(&id) else { continue };
            let (node, uid) = (lease.node, lease.pod().clone());
            self.end_lease(id);
            let Some(round) = self.round_mut(key) else { return };
            round.excluded.insert(node);
            self.replace_member(key, &uid, now, actions);
        }
        self.timers.insert((deadline, Timer::Gang(key)));
    }

    /// Closes the nodes of leases whose agents did not answer.
    fn close_silent(&mut self, silent: &[LeaseId], now: Time, actions: &mut Vec<Action>) {
        let until = now + self.settings.quarantine_ms;
        let leases = silent.iter().filter_map(|id| self.leases.leases.get(id));
        let nodes: BTreeMap<NodeIndex, Time> =
            leases.map(|lease| (lease.node, lease.sent.map_or(now, |sent| sent.first))).collect();
        for (node, since) in nodes {
            if self.cluster.node(node).quarantine.is_some() {
                // It did answer: with what it is closed for.
                continue;
            }
            let why = format!("no report for {} s", (now - since).0 / 1000);
            self.cluster.close_until(node, &why, until, EarlyEnd::Answer);
            self.timers.insert((until, Timer::Quarantine(node)));
            let name = &self.cluster.node(node).name;
            let message = format!("node {name} takes no new pods for {}: {why}", self.settings.quarantine_ms);
            self.emit(Command::Warn { message }, actions);
        }
    }
}
