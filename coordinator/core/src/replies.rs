//! What agents say and what came of actions.

use std::sync::Arc;

use phalanx_common::gang::{PodBinding, PodSpec};
use phalanx_common::ids::{ActionId, LeaseId, NodeName, PodUid};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, Hello, LeaseReport, LeaseState, ToAgent};

use crate::action::{Action, Command};
use crate::cluster::{EarlyEnd, NodeIndex};
use crate::core::{Core, Pending, Timer};
use crate::event::Outcome;
use crate::gang::GangKey;
use crate::phase::{BindState, Phase, Step};

/// A Binding that the API refused for good is tried again this many resend times later: it must not
/// win every cycle.
const REFUSED_BINDING_FACTOR: u64 = 10;

impl Core {
    pub(crate) fn agent_connected(&mut self, session: u64, hello: Hello, actions: &mut Vec<Action>) {
        let node = self.apply_inventory(&hello.node, session, hello.inventory);
        self.heed_term(node, hello.highest_term, actions);
        if self.overtaken.is_some() {
            return;
        }
        // Whoever says Hello is silent no more.
        self.cluster.end_early(node, EarlyEnd::Answer);
        self.ask_anew(node);
        self.forget_sent(node);
        if self.synced {
            self.reconcile(node, hello.leases, actions);
        } else {
            self.reports.insert(node, hello.leases);
        }
    }

    /// What was sent over an earlier connection may be lost, also where its end was not heard of yet.
    fn forget_sent(&mut self, node: NodeIndex) {
        let ids: Vec<LeaseId> = self.leases.by_node.get(&node).into_iter().flatten().copied().collect();
        for id in ids {
            if let Some(lease) = self.leases.leases.get_mut(&id) {
                lease.sent = None;
            }
        }
    }

    pub(crate) fn agent_gone(&mut self, name: &NodeName, session: u64, now: Time, actions: &mut Vec<Action>) {
        let Some(node) = self.current_session(name, session) else { return };
        self.cluster.disconnect(node, now);
        let ids: Vec<LeaseId> = self.leases.by_node.get(&node).into_iter().flatten().copied().collect();
        if planted::is(Bug::AwayIsFree) {
            ids.iter().for_each(|id| self.remove_lease(*id));
        }
        for id in ids {
            let Some(lease) = self.leases.leases.get_mut(&id) else { continue };
            lease.sent = None;
            let (Some(key), uid) = (lease.gang, lease.pod().clone()) else { continue };
            let Some(round) = self.round_mut(key) else { continue };
            if round.step == Step::Reserving
                && round.members.get(&uid).is_some_and(|member| member.lease == id)
            {
                round.excluded.insert(node);
                self.end_lease(id);
                self.replace_member(key, &uid, now, actions);
            }
        }
        self.forget_node(node);
    }

    /// The node of a connection, where it is the node's present one.
    fn current_session(&self, name: &NodeName, session: u64) -> Option<NodeIndex> {
        let node = self.cluster.find(name)?;
        let agent = self.cluster.node(node).agent.as_ref()?;
        (agent.session == Some(session)).then_some(node)
    }

    pub(crate) fn agent_said(
        &mut self,
        name: &NodeName,
        session: u64,
        message: FromAgent,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(node) = self.current_session(name, session) else { return };
        match message {
            FromAgent::Inventory(inventory) => {
                self.apply_inventory(name, session, inventory);
                self.ask_anew(node);
            }
            FromAgent::HealthChanged { gpus } => {
                self.cluster.apply_health(node, &gpus);
                self.ask_anew(node);
            }
            FromAgent::Reserved { lease, .. } => {
                self.cluster.note_promise(node);
                self.confirmed(lease);
                self.give_back(node, lease, actions);
            }
            FromAgent::LeaseIs { lease, state: LeaseState::Gone, .. } => {
                self.lease_gone(node, lease, now, actions)
            }
            FromAgent::LeaseIs { lease, state, .. } => {
                if (LeaseState::Armed..=LeaseState::Started).contains(&state) {
                    self.cluster.end_early(node, EarlyEnd::Disk);
                }
                self.lease_known(lease, Some(state));
                self.give_back(node, lease, actions);
            }
            FromAgent::Refused { lease, cause, inventory, leases, .. } => {
                self.apply_inventory(name, session, *inventory);
                self.refused(node, lease, &cause, now, actions);
                self.reconcile(node, leases, actions);
            }
            // Liveness and the pods' own life are the shell's matter.
            FromAgent::Hello(_)
            | FromAgent::Heartbeat
            | FromAgent::Token(_)
            | FromAgent::PodStarted { .. }
            | FromAgent::PodEnded { .. }
            | FromAgent::PodStopped { .. } => {}
        }
    }

    /// A lease of ours that was given up: a message that was asked late, or twice, brought it back.
    fn give_back(&mut self, node: NodeIndex, id: LeaseId, actions: &mut Vec<Action>) {
        if !id.is_of(self.term) || self.leases.leases.contains_key(&id) {
            return;
        }
        let node = self.cluster.node(node);
        let Some(session) = node.agent.as_ref().and_then(|agent| agent.session) else { return };
        let (node, message) = (node.name.clone(), Box::new(ToAgent::Release { term: self.term, lease: id }));
        self.emit(Command::Send { node, session, message }, actions);
    }

    /// A promise; a late one never sets a lease back.
    fn confirmed(&mut self, id: LeaseId) {
        let known = self.leases.leases.get(&id).map(|lease| lease.known);
        if matches!(known, Some(None)) {
            self.lease_known(id, Some(LeaseState::Reserved));
        }
    }

    /// The agent has no such lease any more.
    fn lease_gone(&mut self, node: NodeIndex, id: LeaseId, now: Time, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get(&id) else { return };
        if lease.node != node {
            return;
        }
        if lease.wanted == LeaseState::Gone || lease.gang.is_none() {
            self.remove_lease(id);
        } else {
            self.lease_lost(id, false, now, actions);
        }
    }

    pub(crate) fn action_done(
        &mut self,
        id: ActionId,
        outcome: &Outcome,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        match self.pending.remove(&id) {
            Some(Pending::Plan(key)) => self.plan_written(key, id, outcome, now, actions),
            Some(Pending::RoomPlan(key)) => self.room_written(key, id, outcome, now, actions),
            Some(Pending::Pod(key, uid)) => self.binding_done(key, &uid, id, outcome, now, actions),
            Some(Pending::GangStatus(key)) => {
                if !matches!(outcome, Outcome::Done | Outcome::NotFound)
                    && let Some(gang) = self.gangs.gangs.get_mut(&key)
                {
                    gang.written = None;
                    self.timers.insert((now + self.settings.resend_ms, Timer::Gang(key)));
                }
            }
            Some(Pending::QueueStatus(name)) => {
                if !matches!(outcome, Outcome::Done | Outcome::NotFound)
                    && let Some(queue) = self.queues.queues.get_mut(&name)
                {
                    queue.written = None;
                    self.timers.insert((now + self.settings.resend_ms, Timer::QueueStatus(name)));
                }
            }
            Some(Pending::PlanRemoval(name)) if !matches!(outcome, Outcome::Done | Outcome::NotFound) => {
                self.timers.insert((now + self.settings.resend_ms, Timer::PlanRemoval(name)));
            }
            Some(Pending::Foreign(key, uid)) => self.foreign_fence_done(key, uid, outcome, now),
            Some(Pending::Stranger(id)) => self.stranger_fence_done(id, outcome, now),
            Some(Pending::PlanRemoval(_)) | None => {}
        }
    }

    fn plan_written(
        &mut self,
        key: GangKey,
        id: ActionId,
        outcome: &Outcome,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(round) = self.round_mut(key) else { return };
        if round.plan_write != Some(id) {
            return;
        }
        if round.step == Step::Binding {
            self.plan_adopted(key, outcome, now);
            return;
        }
        match outcome {
            Outcome::Done => self.arm(key, now),
            Outcome::Unknown => self.retry_plan(key, now),
            Outcome::Conflict | Outcome::NotFound | Outcome::Refused(_) => {
                let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
                if let Outcome::Refused(why) = outcome {
                    gang.refused = Some(Arc::from(format!("its plan could not be written: {why}")));
                }
                let name = gang.spec.name.to_string();
                let message =
                    format!("the plan of gang {name} could not be written: {outcome:?}; it is planned again");
                self.emit(Command::Warn { message }, actions);
                let retry_at = self.retry_at(key, now);
                self.drop_round(key, retry_at, actions);
            }
        }
    }

    /// What came of making the plan of an earlier leader ours. Until it is, nothing is bound.
    fn plan_adopted(&mut self, key: GangKey, outcome: &Outcome, now: Time) {
        // Once its PodGroup is gone no later leader heeds the plan: that it could not be written holds up nothing.
        let is_lost = self.gangs.gangs.get(&key).is_none_or(|gang| gang.deleted);
        let Some(round) = self.round_mut(key) else { return };
        round.plan_write = None;
        match outcome {
            Outcome::Unknown => self.retry_plan(key, now),
            Outcome::Conflict | Outcome::NotFound | Outcome::Refused(_) if !is_lost => {
                self.retry_plan(key, now);
            }
            Outcome::Done | Outcome::Conflict | Outcome::NotFound | Outcome::Refused(_) => {
                round.plan_failures = 0;
            }
        }
        self.touched.insert(key);
    }

    fn binding_done(
        &mut self,
        key: GangKey,
        uid: &PodUid,
        id: ActionId,
        outcome: &Outcome,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        self.touched.insert(key);
        match outcome {
            Outcome::Done if self.is_fence(key, uid, id) => self.fence_done(key, uid, id),
            Outcome::Done => self.note_done(key, uid),
            Outcome::Conflict if planted::is(Bug::ConflictIsDone) => self.note_done(key, uid),
            Outcome::Unknown if planted::is(Bug::TimedOutIsFailed) => self.give_up(key, uid),
            Outcome::NotFound => self.delete_pod(uid),
            Outcome::Conflict | Outcome::Unknown => self.read_again(key, uid, id, outcome, now, actions),
            Outcome::Refused(message) => {
                if self.is_sent(key, uid, id) {
                    let retry = now + Millis(self.settings.resend_ms.0 * REFUSED_BINDING_FACTOR);
                    self.set_bind(key, uid, BindState::RetryAt(retry));
                    self.timers.insert((retry, Timer::Gang(key)));
                    let name =
                        self.gangs.pods.get(uid).map(|pod| pod.spec.name.to_string()).unwrap_or_default();
                    let text = match self.write_name(key, uid) {
                        "bind" => {
                            format!("bind failed: the API refuses the Binding of pod {name}: {message}")
                        }
                        what => format!("{what} failed: pod {name}: {message}"),
                    };
                    self.note_bind_failure(key, message, text, actions);
                }
            }
        }
    }

    /// A Binding failed for good: its pod is placed anew.
    fn give_up(&mut self, key: GangKey, uid: &PodUid) {
        self.drop_member(key, uid);
        if let Some(lease) = self.set_pod_lease(uid, None) {
            self.end_lease(lease);
        }
    }

    pub(crate) fn is_sent(&mut self, key: GangKey, uid: &PodUid, id: ActionId) -> bool {
        let member = self.round_mut(key).and_then(|round| round.members.get(uid));
        member.is_some_and(
            |member| matches!(member.bind, BindState::Sent(sent) | BindState::Reading(sent) | BindState::Fencing(sent) if sent == id),
        )
    }

    /// The Binding is done: the pod is bound, though the watch may not have said so yet.
    fn note_done(&mut self, key: GangKey, uid: &PodUid) {
        let Some(pod) = self.gangs.pods.get_mut(uid) else { return };
        let Some(lease) = pod.lease.and_then(|id| self.leases.leases.get(&id)) else { return };
        if pod.spec.binding.is_none() {
            pod.spec.term = pod.spec.term.max(self.term.counter);
            pod.spec.group_uid =
                self.gangs.gangs.get(&key).map(|gang| gang.spec.uid.clone()).unwrap_or_default();
            pod.spec.binding = Some(PodBinding {
                node: self.cluster.node(lease.node).name.clone(),
                lease: (!lease.local).then_some(lease.taken.lease),
                gpus: lease.taken.gpus.clone(),
            });
        }
        self.note_binding(key, uid);
    }

    pub(crate) fn pod_read(&mut self, id: ActionId, pod: Option<PodSpec>) {
        let (key, uid) = match self.pending.remove(&id) {
            Some(Pending::Pod(key, uid)) => (key, uid),
            Some(Pending::Foreign(key, uid)) => {
                self.apply_read(&uid, pod);
                return self.foreign_fenced(key, &uid);
            }
            Some(Pending::Stranger(lease)) => return self.stranger_read(lease, pod),
            Some(
                Pending::Plan(_)
                | Pending::RoomPlan(_)
                | Pending::GangStatus(_)
                | Pending::QueueStatus(_)
                | Pending::PlanRemoval(_),
            )
            | None => return,
        };
        self.apply_read(&uid, pod);
        self.touched.insert(key);
        if self.is_sent(key, &uid, id) {
            self.bind_next(key, &uid);
        } else {
            self.fence_read(key, &uid, id);
        }
    }

    /// What was to come before the Binding of a pod has.
    fn bind_next(&mut self, key: GangKey, uid: &PodUid) {
        let member = self.round_mut(key).and_then(|round| round.members.get_mut(uid));
        if let Some(member) = member.filter(|member| matches!(member.bind, BindState::Fencing(_))) {
            // Whatever was on its way before its fence fails.
            member.failures = 0;
        }
        self.set_bind(key, uid, BindState::Waiting);
        if let Some(round) = self.round_mut(key) {
            round.to_bind.insert(uid.clone());
        }
    }

    /// A pod of a gang that is rolled back was fenced: no Binding can reach it any more.
    fn fence_read(&mut self, key: GangKey, uid: &PodUid, id: ActionId) {
        let has_started = self.gangs.pods.get(uid).is_some_and(|pod| self.is_let_start(pod));
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let Phase::Evicting { fencing, pods, found, retry_at, tries, .. } = &mut gang.phase else { return };
        if fencing.get(uid) != Some(&id) {
            return;
        }
        fencing.remove(uid);
        (*retry_at, *tries) = (self.now, 0);
        let Some(pod) = self.gangs.pods.get(uid) else { return };
        if pod.spec.binding.is_some() {
            (if has_started { found } else { pods }).insert(uid.clone());
        } else if let Some(lease) = self.set_pod_lease(uid, None) {
            self.end_lease(lease);
        }
    }

    /// True for the fence of a pod whose gang is bound, or rolled back.
    fn is_fence(&self, key: GangKey, uid: &PodUid, id: ActionId) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        let member = gang.phase.round().and_then(|round| round.members.get(uid));
        match &gang.phase {
            Phase::Evicting { fencing, .. } => fencing.get(uid) == Some(&id),
            _ => member.is_some_and(|member| member.bind == BindState::Fencing(id)),
        }
    }

    /// A fence was done, and the pod is none of ours any more: it is what it was known to be.
    fn fence_done(&mut self, key: GangKey, uid: &PodUid, id: ActionId) {
        if self.is_sent(key, uid, id) {
            self.bind_next(key, uid);
        } else {
            self.fence_read(key, uid, id);
        }
    }

    /// What a report says of leases, for the ledger's own.
    pub(crate) fn report_state(reports: &[LeaseReport], id: LeaseId) -> Option<&LeaseReport> {
        reports.iter().find(|report| report.lease == id)
    }

    /// Says why a gang is degraded.
    pub(crate) fn degraded_cause(missing: u32) -> Arc<str> {
        Arc::from(match missing {
            1 => "1 of its pods ended badly or was deleted".to_owned(),
            count => format!("{count} of its pods ended badly or were deleted"),
        })
    }
}
