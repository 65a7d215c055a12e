//! What the coordinator's messages do.

use std::sync::Arc;

use phalanx_common::ids::{ClusterId, LeaseId, Term};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, LeaseRequest, LeaseState, RefusalCause, ToAgent};

use crate::action::{Action, Warning};
use crate::core::{Core, Waiting};
use crate::event::LinkId;
use crate::leases::{Lease, Leases, Phase};
use crate::links::{Link, Talk};

/// Longest reservation: a promise that is only in memory must not outlive its coordinator's interest.
const MAX_RESERVATION_MS: Millis = Millis(600_000);

impl Core {
    pub(crate) fn message(&mut self, link: LinkId, message: ToAgent, now: Time, actions: &mut Vec<Action>) {
        match message {
            ToAgent::Welcome { version, cluster, term } => {
                return self.welcome(link, version, cluster, term, actions);
            }
            ToAgent::Rejected { message } => return actions.push(Action::Warn(Warning::Rejected(message))),
            ToAgent::Standby { .. } => return self.stands_by(link),
            ToAgent::SayHello if self.is_standby(link) => return self.greet(link, actions),
            // Of a connection that is dead or was never welcomed: as good as lost.
            _ if !self.is_welcome(link) => return,
            _ => {}
        }
        match message {
            ToAgent::Reserve { term, lease, request, expires_in_ms } => {
                if self.obey(term) {
                    self.reserve(link, (term, lease), *request, (expires_in_ms, now), actions);
                } else {
                    let cause = RefusalCause::StaleTerm(self.highest_term);
                    self.reply(link, self.refusal(term, lease, cause), actions);
                }
            }
            ToAgent::Arm { term, lease } => {
                if self.obey_or_refuse(link, "Arm", term, lease, actions) {
                    self.move_on(term, lease, Phase::Armed);
                }
            }
            ToAgent::Bound { term, lease } => {
                if self.obey_or_refuse(link, "Bound", term, lease, actions) {
                    let starts = planted::is(Bug::NoStartGate);
                    let started = Phase::Started { at: now, ended: None };
                    self.move_on(term, lease, if starts { started } else { Phase::Bound });
                }
            }
            ToAgent::GangBound { term, lease } => {
                if self.obey_or_refuse(link, "GangBound", term, lease, actions) {
                    self.move_on(term, lease, Phase::Started { at: now, ended: None });
                }
            }
            ToAgent::Release { term, lease } => {
                if self.obey_or_refuse(link, "Release", term, lease, actions) {
                    self.release(term, lease, actions);
                }
            }
            ToAgent::Welcome { .. }
            | ToAgent::Rejected { .. }
            | ToAgent::Standby { .. }
            | ToAgent::SayHello => {}
        }
    }

    /// The coordinator answered Hello, and does not lead. What it knows of the term changes nothing: only a leader is
    /// obeyed.
    fn stands_by(&mut self, link: LinkId) {
        if let Some(Link { talk: talk @ Talk::Greeted(_), .. }) = self.links.get_mut(&link) {
            *talk = Talk::Standby;
        }
    }

    /// True where a message of this term is to be obeyed. A higher term is taken over first.
    fn obey(&mut self, term: Term) -> bool {
        if term == self.highest_term {
            return true;
        }
        let is_stale = term.counter <= self.highest_term.counter;
        let is_equal = term.counter == self.highest_term.counter;
        if planted::is(Bug::ObeyLowerTerm) && is_stale {
            return true;
        }
        if is_stale && !(is_equal && planted::is(Bug::ObeyEqualTerm)) {
            return false;
        }
        self.highest_term = term;
        self.term_in = self.touch();
        self.tombstones.clear();
        // A reservation was promised to the old leader alone; the new one plans anew.
        let reserved: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|(_, lease)| matches!(lease.phase, Phase::Reserved { .. }))
            .map(|(id, _)| *id)
            .collect();
        for lease in reserved {
            self.drop_reserved(lease);
        }
        self.waiting.retain(|answer| !answer.reserve);
        true
    }

    /// People are told once of each term that is not obeyed.
    fn obey_or_warn(
        &mut self,
        link: LinkId,
        message: &'static str,
        term: Term,
        actions: &mut Vec<Action>,
    ) -> bool {
        let obeyed = self.obey(term);
        let highest = self.highest_term;
        if !obeyed
            && let Some(link) = self.links.get_mut(&link)
            && link.told_stale.replace(term) != Some(term)
        {
            actions.push(Action::Warn(Warning::StaleTerm { message, term, highest }));
        }
        obeyed
    }

    /// A coordinator that does not know that it leads no more is told so once, whatever it asks; it must not go on
    /// asking until a deadline of its own ends that.
    fn obey_or_refuse(
        &mut self,
        link: LinkId,
        message: &'static str,
        term: Term,
        lease: LeaseId,
        actions: &mut Vec<Action>,
    ) -> bool {
        let obeyed = self.obey_or_warn(link, message, term, actions);
        if !obeyed
            && let Some(known) = self.links.get_mut(&link)
            && known.refused_stale.replace(term) != Some(term)
        {
            let cause = RefusalCause::StaleTerm(self.highest_term);
            self.reply(link, self.refusal(term, lease, cause), actions);
        }
        obeyed
    }

    fn welcome(
        &mut self,
        link: LinkId,
        version: u16,
        cluster: ClusterId,
        term: Term,
        actions: &mut Vec<Action>,
    ) {
        let Some(Link { talk, .. }) = self.links.get_mut(&link) else { return };
        let Talk::Greeted(told) = talk else { return };
        *talk = Talk::Up { version, told: told.clone() };
        if self.cluster.as_ref() != Some(&cluster) {
            self.join(cluster, actions);
        }
        // A stale leader will raise its term above the one it read in Hello before it asks for anything.
        self.obey_or_warn(link, "Welcome", term, actions);
        self.tell_inventory(link, actions);
        self.tell_pods(link, actions);
    }

    /// Makes the node a member of a cluster. What it promised to another one counts no more.
    fn join(&mut self, cluster: ClusterId, actions: &mut Vec<Action>) {
        self.touch();
        if let Some(old) = self.cluster.replace(cluster.clone()) {
            actions.push(Action::SetAside { old, new: cluster });
            for (_, lease) in self.leases.iter() {
                if matches!(lease.phase, Phase::Started { ended: None, .. }) {
                    actions.push(Action::StopPod { pod: lease.request.pod.clone() });
                }
            }
            self.leases = Leases::default();
            self.tombstones.clear();
            self.waiting.clear();
            self.highest_term = Term::default();
            self.term_in = 0;
        }
    }

    /// Repeats what pods did: it may have been said into a connection that was already dead.
    fn tell_pods(&self, link: LinkId, actions: &mut Vec<Action>) {
        for (_, lease) in self.leases.iter() {
            let Phase::Started { ended, .. } = lease.phase else { continue };
            if lease.known == LeaseState::Started {
                self.reply(link, FromAgent::PodStarted { pod: lease.request.pod.clone() }, actions);
            }
            if let Some(succeeded) = ended {
                self.reply(link, FromAgent::PodEnded { pod: lease.request.pod.clone(), succeeded }, actions);
            }
        }
    }

    fn reserve(
        &mut self,
        link: LinkId,
        (term, id): (Term, LeaseId),
        request: LeaseRequest,
        (expires_in, now): (Millis, Time),
        actions: &mut Vec<Action>,
    ) {
        match self.can_reserve(term, id, &request) {
            Ok(known) => {
                if known && planted::is(Bug::ReserveAgain) {
                    self.leases.remove(id);
                }
                if !known || planted::is(Bug::ReserveAgain) {
                    self.leases.insert(id, Lease::reserved(request, now, expires_in.min(MAX_RESERVATION_MS)));
                }
                self.keep_waiting(Waiting { needs: self.term_in, term, lease: id, reserve: true });
            }
            Err(cause) => self.reply(link, self.refusal(term, id, cause), actions),
        }
    }

    /// Whether the lease may be promised; true where it is already.
    fn can_reserve(&self, term: Term, id: LeaseId, request: &LeaseRequest) -> Result<bool, RefusalCause> {
        let malformed = |text: String| RefusalCause::Malformed(Arc::from(text));
        if id.term > term.counter {
            return Err(malformed(format!("lease {id} is of a later term than {term}")));
        }
        if let Some(lease) = self.leases.get(id) {
            return match lease.phase {
                Phase::Releasing | Phase::Ending { .. } => Err(RefusalCause::Released),
                _ if lease.request != *request => {
                    Err(malformed(format!("lease {id} is already for pod {}", lease.request.pod_name)))
                }
                _ => Ok(true),
            };
        }
        if self.tombstones.contains(id) {
            return Err(RefusalCause::Released);
        }
        let inventory =
            self.inventory.as_ref().ok_or_else(|| malformed("nothing was read yet".to_owned()))?;
        self.leases.check(request, inventory)?;
        Ok(false)
    }

    /// Brings a lease forward to at least this phase. Each step implies those before it: the messages of the
    /// earlier ones may be lost or late.
    fn move_on(&mut self, term: Term, id: LeaseId, target: Phase) {
        let phase = self.leases.get(id).map(|lease| lease.phase);
        if phase.is_some_and(|phase| phase.state() < target.state()) {
            self.advance(id, target);
        }
        self.answer(term, id);
    }

    fn release(&mut self, term: Term, id: LeaseId, actions: &mut Vec<Action>) {
        match self.leases.get(id).map(|lease| lease.phase) {
            None => {}
            Some(Phase::Reserved { .. }) => self.drop_reserved(id),
            Some(Phase::Armed | Phase::Bound | Phase::Started { ended: Some(_), .. })
                if planted::is(Bug::GoneBeforeDisk) =>
            {
                self.leases.remove(id);
                self.touch();
            }
            Some(Phase::Armed | Phase::Bound | Phase::Started { ended: Some(_), .. }) => {
                self.advance(id, Phase::Ending { stopped: false });
            }
            Some(Phase::Started { ended: None, .. }) => self.stop(id, actions),
            Some(Phase::Releasing | Phase::Ending { .. }) => {}
        }
        // Only what was released in this term stays gone: a new leader may ask anew for what its coming ended.
        if self.leases.get(id).is_none_or(|lease| matches!(lease.phase, Phase::Ending { .. })) {
            self.tombstones.add(id);
        }
        self.answer(term, id);
    }

    /// Stops the pod of a started lease. One whose start is not on disk yet was never let go.
    fn stop(&mut self, id: LeaseId, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.get(id) else { return };
        if lease.known == LeaseState::Started {
            actions.push(Action::StopPod { pod: lease.request.pod.clone() });
            self.advance(id, Phase::Releasing);
        } else {
            self.advance(id, Phase::Ending { stopped: false });
        }
    }
}
