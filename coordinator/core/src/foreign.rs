//! What another coordinator does while this one leads: an earlier one that does not know yet that it was replaced, or
//! a later one that took over.
//!
//! Both act by preconditions of single objects, so that neither can stop the other at once. The later one makes sure
//! in two ways: it writes its term onto every pod that the earlier one may be binding, after which that one's
//! Binding meets a conflict; and whoever reads a later term than its own on a pod gives way.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_common::gang::PodSpec;
use phalanx_common::ids::{LeaseId, PodUid, Term};
use phalanx_common::plan::{GangPlan, PlanPurpose};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseState;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Command};
use crate::core::{Core, Pending, Timer};
use crate::event::Outcome;
use crate::gang::GangKey;
use crate::phase::{Phase, PhaseKind, Step};
use crate::reason::Reason;
use crate::terms::is_believable;

/// Objects with damaged terms that one warning names.
const DAMAGED_NAMED: usize = 3;

/// A plan of an earlier coordinator that was seen while this one leads. Until it is known what became of its pods the
/// gang stands still.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ForeignPlan {
    plan: GangPlan,
    /// Pods that may be bound any moment: a write to them is on its way.
    fencing: BTreeSet<PodUid>,
    /// Those of them whose write failed.
    failed: BTreeSet<PodUid>,
    /// When those are tried again.
    #[serde(default)]
    retry_at: Time,
    /// Writes that failed.
    #[serde(default)]
    failures: u32,
}

impl ForeignPlan {
    fn new(plan: GangPlan, open: BTreeSet<PodUid>) -> Self {
        Self { plan, fencing: open.clone(), failed: open, retry_at: Time(0), failures: 0 }
    }

    /// Why its gang stands still.
    fn reason(&self) -> Reason {
        let (term, open) = (self.plan.term, self.fencing.len());
        let pods = if open == 1 { "pod" } else { "pods" };
        let failures = match self.failures {
            0 => String::new(),
            count => format!("; writes that failed so far: {count}"),
        };
        let step = format!(
            "another coordinator, of term {term}, planned it too and may be binding {open} {pods} of it: each is written \
             to, so that no Binding of that one can reach it{failures}"
        );
        Reason::InProgress { step: Arc::from(step) }
    }
}

impl Core {
    /// A plan was written. One of an earlier term was written late by a leader that is dead, or by one that does
    /// not know yet that it leads no more and may be binding.
    pub(crate) fn plan_seen(&mut self, plan: GangPlan, actions: &mut Vec<Action>) {
        if self.needs_plan(&plan.gang) || planted::is(Bug::IgnoreForeignPlans) {
            return;
        }
        if plan.term >= self.term.counter {
            self.own_plan_seen(plan, actions);
            return;
        }
        if plan.purpose == PlanPurpose::MakeRoom {
            // Who leads now makes its own: nothing of that one is bound by it.
            self.remove_plan(plan.gang, actions);
            return;
        }
        let key = self.gangs.key(&plan.gang);
        let known = key.and_then(|key| self.gangs.gangs.get(&key));
        let Some(key) = key.filter(|_| known.is_some_and(|gang| gang.spec.uid == plan.gang_uid)) else {
            self.remove_plan(plan.gang, actions);
            return;
        };
        if let Some(round) = self.round_mut(key).filter(|round| round.step == Step::Binding) {
            // The gang of a lone pod was committed without a plan: its Binding may be on its way, and nothing of it may be
            // dropped any more. The stored plan goes when that is done.
            round.plan_stored = true;
            return;
        }
        let open = plan.pods.iter().map(|planned| planned.pod.clone());
        let open: BTreeSet<PodUid> = open
            .filter(|uid| self.gangs.pods.get(uid).is_some_and(|pod| pod.spec.binding.is_none()))
            .collect();
        self.foreign.insert(key, ForeignPlan::new(plan, open));
        self.touched.insert(key);
    }

    /// A plan that bears our term, of a gang that needs none. It is seen while its round is on, or while it is being
    /// removed; else our write landed after a removal that found nothing, and nobody would remove it but a later start.
    fn own_plan_seen(&mut self, plan: GangPlan, actions: &mut Vec<Action>) {
        // While a higher term is asked for, what bears the present one may be another's.
        let is_ours = plan.term == self.term.counter && self.raising_above.is_none();
        let is_asked = |what: &Pending| matches!(what, Pending::PlanRemoval(gang) if *gang == plan.gang);
        let is_due = |timer: &Timer| matches!(timer, Timer::PlanRemoval(gang) if *gang == plan.gang);
        let is_removed =
            self.pending.values().any(is_asked) || self.timers.iter().any(|(_, timer)| is_due(timer));
        if is_ours && !is_removed {
            self.remove_plan(plan.gang, actions);
        }
    }

    /// Goes on with a gang of which a foreign plan was seen; false where there is none.
    pub(crate) fn progress_foreign(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) -> bool {
        if !self.foreign.contains_key(&key) {
            return false;
        }
        self.set_waiting(key, false);
        if self.gangs.gangs.get(&key).and_then(|gang| gang.phase.round()).is_some() {
            self.drop_round(key, now, actions);
        }
        let Some(foreign) = self.foreign.get_mut(&key) else { return false };
        let due = if foreign.retry_at <= now { std::mem::take(&mut foreign.failed) } else { BTreeSet::new() };
        for uid in due {
            let Some(name) = self.gangs.pods.get(&uid).map(|pod| pod.spec.name.clone()) else {
                if let Some(foreign) = self.foreign.get_mut(&key) {
                    foreign.fencing.remove(&uid);
                }
                continue;
            };
            self.emit_fence(&uid, &name, Pending::Foreign(key, uid.clone()), actions);
        }
        if let Some(foreign) = self.foreign.get(&key).filter(|foreign| !foreign.fencing.is_empty()) {
            let gang = self.gangs.gangs.get_mut(&key);
            if let Some(gang) = gang.filter(|gang| matches!(gang.phase, Phase::Queued | Phase::Admitted)) {
                gang.reason = Some(foreign.reason());
            }
            return true;
        }
        if let Some(foreign) = self.foreign.remove(&key) {
            self.conclude(key, &foreign.plan, actions);
        }
        self.touched.insert(key);
        false
    }

    /// No Binding of the foreign plan can come any more. Where one came before, and the gang is not whole by it, the
    /// plan is rolled forward as after a start; else it is worth nothing.
    fn conclude(&mut self, key: GangKey, plan: &GangPlan, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        // Degraded without a deadline: somebody else bound a pod of it, and nothing of ours was bound so far.
        let is_by_hand = matches!(gang.phase.kind(), PhaseKind::Degraded) && gang.phase.cut_short().is_none();
        let is_idle = matches!(gang.phase.kind(), PhaseKind::Queued | PhaseKind::Admitted)
            || (is_by_hand && !gang.was_whole);
        let is_half = self.gangs.tally(&gang.spec.name).live > 0 && !self.is_satisfied(key);
        if is_idle && is_half && !gang.deleted {
            self.set_phase(key, Phase::Queued);
            self.resume_plan(plan, actions);
        } else {
            self.remove_plan(plan.gang.clone(), actions);
        }
    }

    /// Answer to the fence of a pod of a foreign plan.
    pub(crate) fn foreign_fenced(&mut self, key: GangKey, uid: &PodUid) {
        if let Some(foreign) = self.foreign.get_mut(&key) {
            foreign.fencing.remove(uid);
        }
        self.touched.insert(key);
    }

    /// The fence of a pod of a foreign plan failed, or may have; or it was done and the pod is none of ours any more.
    pub(crate) fn foreign_fence_done(&mut self, key: GangKey, uid: PodUid, outcome: &Outcome, now: Time) {
        if outcome.is_final() {
            self.foreign_fenced(key, &uid);
            return;
        }
        let failures = self.foreign.get(&key).map_or(0, |foreign| foreign.failures);
        let retry_at = now + self.retry_after(failures);
        if let Some(foreign) = self.foreign.get_mut(&key) {
            foreign.failed.insert(uid);
            if foreign.retry_at <= now {
                foreign.failures = failures.saturating_add(1);
                foreign.retry_at = retry_at;
            }
            self.timers.insert((foreign.retry_at, Timer::Gang(key)));
            self.touched.insert(key);
        }
    }

    /// An agent holds a lease for good that nobody here knows. Whoever had it armed may be binding its pod: it is
    /// let go only when no Binding can come any more.
    pub(crate) fn fence_stranger(&mut self, id: LeaseId, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get(&id).filter(|lease| lease.gang.is_none()) else { return };
        let pod = lease.pod().clone();
        let name = lease.request.pod_name.clone();
        self.strangers_fenced.insert(id, pod.clone());
        self.emit_fence(&pod, &name, Pending::Stranger(id), actions);
    }

    /// The answer to such a fence. Its pod may be one that was not heard of yet; one that was, and is gone since, does
    /// not come back by a late answer.
    pub(crate) fn stranger_read(&mut self, id: LeaseId, pod: Option<PodSpec>) {
        if let Some(uid) = self.strangers_fenced.remove(&id) {
            match pod {
                Some(pod) if pod.uid == uid && !self.gangs.pods.contains_key(&uid) => self.apply_pod(pod),
                pod => self.apply_read(&uid, pod),
            }
        }
        self.stranger_fenced(id);
    }

    /// The pod of such a lease cannot be bound by it any more; where it is bound already, its gang has the lease now.
    pub(crate) fn stranger_fenced(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.leases.get_mut(&id).filter(|lease| lease.gang.is_none()) {
            lease.refused = 0;
            self.leases.want(id, LeaseState::Gone);
        }
    }

    /// Such a fence failed, or may have, and is tried again, less and less often; or it was done and the pod is none
    /// of ours any more.
    pub(crate) fn stranger_fence_done(&mut self, id: LeaseId, outcome: &Outcome, now: Time) {
        self.strangers_fenced.remove(&id);
        if outcome.is_final() {
            self.stranger_fenced(id);
        } else if let Some(lease) = self.leases.leases.get_mut(&id) {
            let retry_at = now + lease.resend_after(self.settings.resend_ms);
            lease.refused = lease.refused.saturating_add(1);
            self.timers.insert((retry_at, Timer::Stranger(id)));
        }
    }

    /// True where a pod shows that this coordinator was replaced. While a higher term is asked for nothing can be told:
    /// all pods are looked at again under that.
    pub(crate) fn is_of_later_leader(&self, pod: &PodSpec) -> bool {
        let is_later = pod.term > self.term.counter && is_believable(pod.term, self.term.counter);
        self.synced && is_later && self.raising_above.is_none()
    }

    /// Reads the term on a pod; true where this machine goes on. Nobody but a later leader writes a later one.
    pub(crate) fn heed_pod(&mut self, pod: &PodSpec, actions: &mut Vec<Action>) -> bool {
        if !self.is_of_later_leader(pod) {
            return true;
        }
        self.overtaken = Some(Term { counter: pod.term, incarnation: 0 });
        let message = format!(
            "another coordinator leads: pod {} bears its term {}, and ours is {}. This one gives way, asks nothing more \
             of any agent and ends; start it again only if it is the one that shall lead",
            pod.name, pod.term, self.term
        );
        self.emit(Command::Warn { message }, actions);
        false
    }

    /// At a start nothing that is stored is of our term. Where it is, or of a later one, the store was set back: ours
    /// must go above it, or what we write could not be told from what an earlier leader wrote.
    pub(crate) fn go_above_stored(&mut self, plans: &[GangPlan], actions: &mut Vec<Action>) {
        let pods = self.gangs.pods.values().map(|pod| (pod.spec.term, "pod", &pod.spec.name));
        let stored = pods.chain(plans.iter().map(|plan| (plan.term, "the plan of gang", &plan.gang)));
        let (mut highest, mut damaged, mut left_out) = (0, Vec::new(), 0);
        for (term, what, name) in stored {
            if is_believable(term, self.term.counter) {
                highest = highest.max(term);
            } else if damaged.len() < DAMAGED_NAMED {
                damaged.push(format!("{what} {name} (term {term})"));
            } else {
                left_out += 1;
            }
        }
        self.warn_of_damage(&damaged, left_out, actions);
        let is_ours_or_later = highest > 0 && highest >= self.term.counter;
        if is_ours_or_later && self.raising_above.is_none_or(|asked| asked < highest) {
            self.raising_above = Some(highest);
            self.emit(Command::RaiseTerm { above: highest }, actions);
        }
    }

    fn warn_of_damage(&mut self, damaged: &[String], left_out: usize, actions: &mut Vec<Action>) {
        if damaged.is_empty() {
            return;
        }
        let more = if left_out > 0 { format!(" and {left_out} more") } else { String::new() };
        let message = format!(
            "{}{more}: no coordinator can have reached such a term; it is damaged, counts for nothing, and the next \
             write to the object replaces it",
            damaged.join(", ")
        );
        self.emit(Command::Warn { message }, actions);
    }
}
