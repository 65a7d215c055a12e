//! What another coordinator does while this one leads: an earlier one that does not know yet that it was replaced, or
//! a later one that took over.
//!
//! Both act by preconditions of single objects, so that neither can stop the other at once. The later one makes sure
//! in two ways: it writes its term onto every pod that the earlier one may be binding, after which that one's
//! Binding meets a conflict; and whoever reads a later term than its own on a pod gives way.

use std::collections::BTreeSet;

use phalanx_common::gang::PodSpec;
use phalanx_common::ids::{LeaseId, PodUid, Term};
use phalanx_common::plan::GangPlan;
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseState;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Command};
use crate::core::{Core, Pending, Timer};
use crate::gang::GangKey;
use crate::phase::{Phase, PhaseKind};
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
}

impl Core {
    /// A plan was written. One of an earlier term was written late by a leader that is dead, or by one that does
    /// not know yet that it leads no more and may be binding.
    pub(crate) fn plan_seen(&mut self, plan: GangPlan, actions: &mut Vec<Action>) {
        if plan.term >= self.term.counter || self.needs_plan(&plan.gang) {
            return;
        }
        let key = self.gangs.key(&plan.gang);
        let known = key.and_then(|key| self.gangs.gangs.get(&key));
        let Some(key) = key.filter(|_| known.is_some_and(|gang| gang.spec.uid == plan.gang_uid)) else {
            self.remove_plan(plan.gang, actions);
            return;
        };
        let open = plan.pods.iter().map(|planned| planned.pod.clone());
        let open: BTreeSet<PodUid> = open
            .filter(|uid| self.gangs.pods.get(uid).is_some_and(|pod| pod.spec.binding.is_none()))
            .collect();
        self.foreign.insert(key, ForeignPlan { plan, fencing: open.clone(), failed: open });
        self.touched.insert(key);
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
        for uid in std::mem::take(&mut foreign.failed) {
            let Some(name) = self.gangs.pods.get(&uid).map(|pod| pod.spec.name.clone()) else {
                if let Some(foreign) = self.foreign.get_mut(&key) {
                    foreign.fencing.remove(&uid);
                }
                continue;
            };
            let fence = self.fence(&uid, &name);
            self.emit_pending(fence, Pending::Foreign(key, uid), actions);
        }
        if self.foreign.get(&key).is_some_and(|foreign| !foreign.fencing.is_empty()) {
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
        let is_idle = matches!(gang.phase.kind(), PhaseKind::Queued | PhaseKind::Admitted);
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

    /// The fence of a pod of a foreign plan failed, or may have.
    pub(crate) fn foreign_fence_failed(&mut self, key: GangKey, uid: PodUid, now: Time) {
        if let Some(foreign) = self.foreign.get_mut(&key) {
            foreign.failed.insert(uid);
            self.timers.insert((now + self.settings.resend_ms, Timer::Gang(key)));
        }
    }

    /// An agent holds a lease for good that nobody here knows. Whoever had it armed may be binding its pod: it is
    /// let go only when no Binding can come any more.
    pub(crate) fn fence_stranger(&mut self, id: LeaseId, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get(&id).filter(|lease| lease.gang.is_none()) else { return };
        let pod = lease.pod().clone();
        let fence = self.fence(&pod, &lease.request.pod_name);
        self.strangers_fenced.insert(id, pod);
        self.emit_pending(fence, Pending::Stranger(id), actions);
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
        if self.leases.leases.get(&id).is_some_and(|lease| lease.gang.is_none()) {
            self.leases.want(id, LeaseState::Gone);
        }
    }

    pub(crate) fn stranger_fence_failed(&mut self, id: LeaseId, now: Time) {
        self.strangers_fenced.remove(&id);
        self.timers.insert((now + self.settings.resend_ms, Timer::Stranger(id)));
    }

    /// Reads the term on a pod. Nobody but a later leader writes a later one.
    pub(crate) fn heed_pod(&mut self, pod: &PodSpec, actions: &mut Vec<Action>) {
        let is_later = pod.term > self.term.counter && is_believable(pod.term, self.term.counter);
        if !self.synced || !is_later || self.raising_above.is_some() {
            return;
        }
        self.overtaken = Some(Term { counter: pod.term, incarnation: 0 });
        let message = format!(
            "another coordinator leads: pod {} bears its term {}, and ours is {}. This one gives way, asks nothing more \
             of any agent and ends; start it again only if it is the one that shall lead",
            pod.name, pod.term, self.term
        );
        self.emit(Command::Warn { message }, actions);
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
