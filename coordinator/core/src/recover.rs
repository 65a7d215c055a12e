//! After a start: the state is rebuilt from stored objects, plans and what agents report. A committed
//! plan is rolled forward; a promise that nobody here knows is given back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::{GangPolicy, GangSpec, PodBinding};
use phalanx_common::ids::{GangName, LeaseId, PodUid, QueueName};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::Time;
use phalanx_common::wire::{LeaseReport, LeaseRequest, LeaseState};

use crate::action::Action;
use crate::amounts::Amounts;
use crate::cluster::{NodeIndex, Taken};
use crate::core::{Core, Pending, Timer};
use crate::gang::{Gang, GangKey};
use crate::lease::{Lease, devices, exactness};
use crate::phase::{BindState, Member, Phase, Round, Step};
use crate::tree::Gone;

impl Core {
    /// Everything stored is known.
    pub(crate) fn recover(&mut self, actions: &mut Vec<Action>) {
        self.synced = true;
        self.started_at = self.now;
        self.make_lost_gangs();
        let bound: Vec<(GangKey, PodUid)> = self
            .gangs
            .pods
            .iter()
            .filter(|(_, pod)| pod.spec.binding.is_some())
            .filter_map(|(uid, pod)| Some((self.gangs.key(&pod.spec.gang)?, uid.clone())))
            .collect();
        for (key, uid) in &bound {
            self.adopt(*key, uid);
        }
        let plans = std::mem::take(&mut self.plans_found);
        self.go_above_stored(&plans, actions);
        let planned: BTreeSet<GangKey> =
            plans.iter().filter_map(|plan| self.key_of_uid(&plan.gang, &plan.gang_uid)).collect();
        // Of what has something bound the rest is bound too, whatever that leaves to others.
        let is_begun = |plan: &&GangPlan| self.gangs.tally(&plan.gang).live > 0;
        let (begun, others): (Vec<&GangPlan>, Vec<&GangPlan>) = plans.iter().partition(is_begun);
        for plan in begun.into_iter().chain(others) {
            self.resume_plan(plan, actions);
        }
        for key in bound.into_iter().map(|(key, _)| key).collect::<BTreeSet<GangKey>>() {
            let has_plan = planned.contains(&key);
            self.find_whole(key, has_plan);
            self.find_times(key);
            if !has_plan && self.gangs.gangs.get(&key).is_some_and(|gang| gang.was_whole) {
                self.open_start_gate(key);
            }
        }
        for (node, reports) in std::mem::take(&mut self.reports) {
            self.reconcile(node, reports, actions);
        }
        self.find_ended();
        self.find_ran_out();
        self.touched.extend(self.gangs.gangs.keys().copied());
    }

    /// A gang that has ended stays so where its pods were deleted since: it waits for none, and is charged nothing.
    fn find_ended(&mut self) {
        let has_ended = |gang: &Gang| {
            gang.had_ended
                && matches!(gang.phase, Phase::Queued)
                && self.gangs.tally(&gang.spec.name).all == 0
        };
        let ended: Vec<GangKey> =
            self.gangs.gangs.iter().filter(|(_, gang)| has_ended(gang)).map(|(key, _)| *key).collect();
        for key in ended {
            self.set_waiting(key, false);
            self.set_phase(key, Phase::Finished);
        }
    }

    /// The gang of this name, where its PodGroup is this very one.
    fn key_of_uid(&self, name: &GangName, uid: &str) -> Option<GangKey> {
        self.gangs.key(name).filter(|key| *self.gangs.gangs[key].spec.uid == *uid)
    }

    /// A bound pod whose PodGroup is gone and that runs keeps its lease until it ends, as it would have without a
    /// restart. Its gang is made up, as one that was deleted; what queue it was in is not known any more.
    fn make_lost_gangs(&mut self) {
        let pods = self.gangs.pods.values().filter(|pod| pod.spec.binding.is_some());
        let names: BTreeSet<GangName> = pods.map(|pod| pod.spec.gang.clone()).collect();
        for name in names {
            if self.gangs.key(&name).is_some() {
                continue;
            }
            self.apply_gang(GangSpec {
                name: name.clone(),
                uid: Arc::from(""),
                created: Time(0),
                queue: QueueName::from(""),
                min_member: 1,
                min_task_member: BTreeMap::new(),
                min_resources: None,
                priority_class: None,
                mixed_gpu_models: false,
                policy: GangPolicy::default(),
                shown: None,
            });
            self.delete_gang(&name);
        }
    }

    /// Counts a pod that is bound already, by us in an earlier life or by somebody else.
    pub(crate) fn adopt(&mut self, key: GangKey, uid: &PodUid) {
        let Some(pod) = self.gangs.pods.get(uid) else { return };
        let Some(binding) = pod.spec.binding.clone() else { return };
        let ended = self.pod_ended(&pod.spec);
        // A pod that ended without a lease of ours holds nothing; one with a lease is released at its agent.
        if pod.lease.is_some() || (ended && binding.lease.is_none()) {
            return;
        }
        let local = binding.lease.is_none();
        let id = binding.lease.unwrap_or_else(|| self.leases.next_id(self.term));
        let wanted = if ended { LeaseState::Gone } else { LeaseState::Bound };
        self.restore_lease(key, uid, id, &binding, local, wanted);
    }

    fn restore_lease(
        &mut self,
        key: GangKey,
        uid: &PodUid,
        id: LeaseId,
        binding: &PodBinding,
        local: bool,
        wanted: LeaseState,
    ) {
        // An agent that reported before its lease was known here had it taken for a stranger's. What it said holds.
        let stranger = self.leases.leases.get(&id).filter(|lease| lease.gang.is_none());
        let said = stranger.filter(|lease| lease.wanted != LeaseState::Gone);
        let said = said.map(|lease| (lease.node, lease.known));
        if stranger.is_some() {
            self.remove_lease(id);
        }
        if self.leases.leases.contains_key(&id) {
            return;
        }
        let node = self.cluster.ensure_node(&binding.node);
        self.set_pod_lease(uid, Some(id));
        let Some(pod) = self.gangs.pods.get(uid) else { return };
        let request = LeaseRequest {
            pod: uid.clone(),
            pod_name: pod.spec.name.clone(),
            gang: pod.spec.gang.clone(),
            request: pod.spec.request.clone(),
            devices: devices(&pod.spec.request, &binding.gpus),
            exactness: exactness(&pod.need),
            run_for: pod.spec.run_for,
        };
        let ports = pod.need.constraints.host_ports.clone();
        let taken = Taken { lease: id, amounts: pod.need.amounts.clone(), gpus: binding.gpus.clone(), ports };
        let request = Arc::new(request);
        self.insert_lease(Lease {
            node,
            taken,
            request,
            gang: Some(key),
            charged: false,
            local,
            wanted,
            known: None,
            sent: None,
            refused: 0,
        });
        if let Some((_, state)) = said.filter(|(at, _)| *at == node && !local) {
            self.lease_known(id, state);
        }
    }

    /// Rolls a committed plan forward. Pods that are not bound are fenced first, so that no Binding of
    /// an earlier life can reach them late.
    pub(crate) fn resume_plan(&mut self, plan: &GangPlan, actions: &mut Vec<Action>) {
        let same = self.key_of_uid(&plan.gang, &plan.gang_uid);
        if plan.purpose == PlanPurpose::MakeRoom {
            match same {
                Some(key) => self.resume_room(key, plan, self.now),
                None => self.remove_plan(plan.gang.clone(), actions),
            }
            return;
        }
        let open: Vec<&PlannedPod> = plan
            .pods
            .iter()
            .filter(|planned| {
                let pod = self.gangs.pods.get(&planned.pod);
                pod.is_some_and(|pod| pod.spec.gang == plan.gang && pod.is_unplaced())
            })
            .collect();
        let Some(key) = same.filter(|_| !open.is_empty()) else {
            let is_cut =
                same.is_some_and(|key| !self.is_satisfied(key) && self.gangs.tally(&plan.gang).live > 0);
            if let Some(key) = same.filter(|_| is_cut) {
                let cause = Arc::from("a pod was deleted while the gang was being bound");
                let roll_back_at = Some(plan.binding_deadline);
                self.set_phase(key, Phase::Degraded { cause, round: None, roll_back_at });
                self.timers.insert((plan.binding_deadline, Timer::Gang(key)));
            } else {
                self.remove_plan(plan.gang.clone(), actions);
            }
            return;
        };
        let mut round = Round::new(Step::Binding, plan.binding_deadline, plan.binding_deadline);
        round.plan_stored = true;
        round.is_above_ceiling = self.is_above_ceiling(key, &open);
        for planned in open {
            let local = planned.lease.is_none();
            let id = planned.lease.unwrap_or_else(|| self.leases.next_id(self.term));
            let binding =
                PodBinding { node: planned.node.clone(), lease: planned.lease, gpus: planned.gpus.clone() };
            self.restore_lease(key, &planned.pod, id, &binding, local, LeaseState::Armed);
            let Some(pod) = self.gangs.pods.get(&planned.pod).filter(|pod| pod.lease == Some(id)) else {
                continue;
            };
            let (name, what) = (pod.spec.name.clone(), Pending::Pod(key, planned.pod.clone()));
            let action = self.emit_fence(&planned.pod, &name, what, actions);
            round.members.insert(planned.pod.clone(), Member::new(id, BindState::Fencing(action)));
            round.unbound.insert(planned.pod.clone());
        }
        self.timers.insert((plan.binding_deadline, Timer::Gang(key)));
        let runs = self.is_satisfied(key);
        let phase = if runs { Phase::Running { round: Some(round) } } else { Phase::Placing(round) };
        self.set_phase(key, phase);
        self.adopt_plan(key, actions);
    }

    /// True where these pods pass a ceiling beside all that is counted so far.
    fn is_above_ceiling(&self, key: GangKey, open: &[&PlannedPod]) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        let mut asked = Amounts::default();
        for pod in open.iter().filter_map(|planned| self.gangs.pods.get(&planned.pod)) {
            asked.add(&pod.need.amounts.of_pod());
        }
        self.queues.over(&gang.spec.queue, &Gone::new(), &asked).is_some()
    }

    /// Brings what an agent holds and what is known here together. What it only promised to an earlier
    /// leader must be asked for again: it drops that as soon as it hears of this one.
    pub(crate) fn reconcile(
        &mut self,
        node: NodeIndex,
        reports: Vec<LeaseReport>,
        actions: &mut Vec<Action>,
    ) {
        let term = self.term.counter;
        let ids: Vec<LeaseId> = self.leases.by_node.get(&node).into_iter().flatten().copied().collect();
        for id in ids {
            let state = Self::report_state(&reports, id).map(|report| report.state);
            let Some(lease) = self.leases.leases.get(&id) else { continue };
            let taken = lease.taken.clone();
            // The lease of a pod that is to go is released once more, though it is not named: a Hello is older than
            // what was armed since, and only the answer tells the runner that nothing of the pod runs.
            let was_bound = lease.gang.is_some() && lease.wanted == LeaseState::Gone && {
                let pod = self.gangs.pods.get(lease.pod());
                pod.is_some_and(|pod| pod.spec.binding.is_some() && !pod.spec.phase.is_terminal())
            };
            let is_dropped = (lease.wanted == LeaseState::Gone && !was_bound)
                || lease.gang.is_none()
                || planted::is(Bug::DropUnreported);
            if is_dropped && state.is_none() {
                self.remove_lease(id);
                continue;
            }
            let is_void = lease.wanted != LeaseState::Gone && id.term < term;
            self.cluster.attach(node, &taken);
            self.lease_known(id, state.filter(|state| !is_void || *state != LeaseState::Reserved));
        }
        for report in reports {
            if !self.leases.leases.contains_key(&report.lease) && !planted::is(Bug::ForgetStrangers) {
                self.count_stranger(node, report, actions);
            }
        }
    }

    /// A lease that nobody here knows: its GPUs stay taken until the agent says that it is gone.
    fn count_stranger(&mut self, node: NodeIndex, report: LeaseReport, actions: &mut Vec<Action>) {
        let (id, state) = (report.lease, report.state);
        let may_be_bound = (LeaseState::Armed..=LeaseState::Started).contains(&state);
        let effective = report.request.request.effective();
        let amounts: Amounts = self.cluster.resources.amounts_known(&effective);
        // Its pod may be known; only then is it known which ports it takes.
        let pod = self.gangs.pods.get(&report.request.pod);
        let ports = pod.map(|pod| pod.need.constraints.host_ports.clone()).unwrap_or_default();
        let taken = Taken { lease: report.lease, amounts, gpus: report.request.gpus(), ports };
        self.insert_lease(Lease {
            node,
            taken,
            request: Arc::new(report.request),
            gang: None,
            charged: false,
            local: false,
            wanted: if may_be_bound { state } else { LeaseState::Gone },
            known: Some(state),
            sent: None,
            refused: 0,
        });
        if may_be_bound {
            self.fence_stranger(id, actions);
        }
    }
}
