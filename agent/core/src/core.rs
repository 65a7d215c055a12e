//! The machine: what it knows, and what each event does. The coordinator's messages are in `messages`.

use std::sync::Arc;

use phalanx_common::ids::{ClusterId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::planted::{self, Bug};
use phalanx_common::topology::Inventory;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, LeaseState, RefusalCause};

use crate::action::{Action, Warning};
use crate::event::{Event, LinkId};
use crate::inventory::unusable;
use crate::leases::{Lease, Leases, Phase};
use crate::ledger::Ledger;
use crate::links::Links;
use crate::tombstones::Tombstones;

/// A ledger that could not be written is tried again after this time.
pub const LEDGER_RETRY_MS: Millis = Millis(1000);

/// Why time matters to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deadline {
    /// A reservation ends.
    Expiry(LeaseId),
    /// The ledger is to be written again after a failure.
    LedgerRetry,
}

/// Answers that may wait for the disk.
const MAX_WAITING: usize = 4096;

/// An answer that waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Revision of the ledger that must be on disk first.
    pub needs: u64,
    /// Term under which it was asked.
    pub term: Term,
    /// The lease.
    pub lease: LeaseId,
    /// True for the answer to Reserve, false for `LeaseIs`.
    pub reserve: bool,
}

/// Guards the GPUs of one node.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) node: NodeName,
    pub(crate) boot_id: Arc<str>,
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) highest_term: Term,
    /// Revision that holds `highest_term`.
    pub(crate) term_in: u64,
    pub(crate) leases: Leases,
    pub(crate) tombstones: Tombstones,
    pub(crate) inventory: Option<Inventory>,
    pub(crate) links: Links,
    pub(crate) waiting: Vec<Waiting>,
    /// Revision last handed out for writing.
    pub(crate) revision: u64,
    /// Newest revision known to be on disk.
    pub(crate) persisted: u64,
    /// Something durable changed since `revision`.
    pub(crate) dirty: bool,
    /// The last write failed; the next one comes then and not before.
    pub(crate) retry_at: Option<Time>,
    /// Why it failed, as it was told.
    pub(crate) unwritten: Option<Arc<str>>,
}

impl Core {
    /// The machine of a node, from its ledger where there is one. Pods that ran are started again: for the rest of
    /// their time after a restart of the agent, from the beginning after a boot of the machine.
    #[must_use]
    pub fn new(
        node: NodeName,
        boot_id: &str,
        ledger: Option<Ledger>,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> Self {
        let mut core = Self {
            node,
            boot_id: Arc::from(boot_id),
            cluster: None,
            highest_term: Term::default(),
            term_in: 0,
            leases: Leases::default(),
            tombstones: Tombstones::default(),
            inventory: None,
            links: Links::new(),
            waiting: Vec::new(),
            revision: 0,
            persisted: 0,
            dirty: false,
            retry_at: None,
            unwritten: None,
        };
        if let Some(ledger) = ledger {
            core.recover(ledger, now, actions);
        }
        core.finish(actions);
        core
    }

    /// Records what happened.
    pub fn apply(&mut self, event: Event, now: Time, actions: &mut Vec<Action>) {
        self.expire(now);
        match event {
            Event::Inventory(reading) => self.read(reading, now, actions),
            Event::LinkUp(link) => self.link_up(link, actions),
            Event::LinkDown(link) => self.link_down(link),
            Event::Message(link, message) => self.message(link, message, now, actions),
            Event::Persisted { revision } => self.ledger_written(revision, actions),
            Event::PersistFailed { revision, message } => {
                self.persist_failed(revision, message, now, actions)
            }
            Event::PodEnded { pod, succeeded } => self.pod_ended(&pod, succeeded, actions),
            Event::PodStopped { pod } => self.pod_stopped(&pod),
            Event::Tick => {}
        }
        self.finish(actions);
    }

    /// When time itself will matter, and why.
    #[must_use]
    pub fn next_deadline(&self) -> Option<(Time, Deadline)> {
        let expiry = self.leases.iter().filter_map(|(id, lease)| match lease.phase {
            Phase::Reserved { expires_at } => Some((expires_at, Deadline::Expiry(*id))),
            _ => None,
        });
        expiry.chain(self.retry_at.map(|at| (at, Deadline::LedgerRetry))).min()
    }

    /// The leases, for those who watch.
    #[must_use]
    pub const fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Highest term obeyed.
    #[must_use]
    pub const fn highest_term(&self) -> Term {
        self.highest_term
    }

    /// Cluster the state belongs to.
    #[must_use]
    pub const fn cluster(&self) -> Option<&ClusterId> {
        self.cluster.as_ref()
    }

    /// Newest reading of the hardware.
    #[must_use]
    pub const fn inventory(&self) -> Option<&Inventory> {
        self.inventory.as_ref()
    }

    /// Marks durable state as changed; gives the revision that will hold the change.
    pub(crate) const fn touch(&mut self) -> u64 {
        self.dirty = true;
        self.revision + 1
    }

    /// Moves a lease on; the new phase is told once it is on disk.
    pub(crate) fn advance(&mut self, id: LeaseId, phase: Phase) {
        let revision = self.touch();
        if let Some(lease) = self.leases.get_mut(id) {
            lease.phase = phase;
            lease.changed_in = revision;
            if phase.state() == LeaseState::Releasing {
                // That it ends is no promise, and what it was before is true no more.
                lease.known = LeaseState::Releasing;
            }
        }
    }

    /// Ends a reservation at once, or, where a failed write may have left it armed on disk, once the disk
    /// has forgotten it.
    pub(crate) fn drop_reserved(&mut self, id: LeaseId) {
        if self.leases.get(id).is_some_and(|lease| lease.changed_in > self.persisted) {
            self.advance(id, Phase::Ending { stopped: false });
        } else {
            self.leases.remove(id);
        }
    }

    /// Answers with the state of a lease, as soon as the disk holds all that stands behind it.
    pub(crate) fn answer(&mut self, term: Term, lease: LeaseId) {
        let needs = self.leases.get(lease).map_or(0, |known| known.changed_in).max(self.term_in);
        self.keep_waiting(Waiting { needs, term, lease, reserve: false });
    }

    /// Keeps an answer until the disk is done. While that hangs the same is asked again and again: it is answered
    /// once, and beyond a bound not at all, since whoever misses an answer asks anew.
    pub(crate) fn keep_waiting(&mut self, answer: Waiting) {
        if self.waiting.len() < MAX_WAITING && !self.waiting.contains(&answer) {
            self.waiting.push(answer);
        }
    }

    pub(crate) fn refusal(&self, term: Term, lease: LeaseId, cause: RefusalCause) -> FromAgent {
        let inventory = Box::new(self.inventory.clone().unwrap_or_else(|| Inventory::empty(0, 0)));
        let leases = self.leases.reports();
        FromAgent::Refused { term, lease, cause, inventory, leases }
    }

    fn expire(&mut self, now: Time) {
        let is_alone = self.links.is_empty();
        let due = |(id, lease): (&LeaseId, &Lease)| match lease.phase {
            Phase::Reserved { expires_at } if expires_at <= now => Some(*id),
            Phase::Armed if planted::is(Bug::ExpireArmed) && is_alone => Some(*id),
            _ => None,
        };
        let expired: Vec<LeaseId> = self.leases.iter().filter_map(due).collect();
        for lease in expired {
            // No tombstone: whoever has a bound pod asks for its lease again until it is there.
            self.drop_reserved(lease);
            self.answer(self.highest_term, lease);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.touch();
        }
    }

    fn read(&mut self, reading: Inventory, now: Time, actions: &mut Vec<Action>) {
        if let Err(error) = reading.check() {
            let reason = error.to_string();
            actions.push(Action::Warn(Warning::Inventory(error)));
            // An older reading is better than none; without one the node says why it offers nothing.
            self.inventory.get_or_insert_with(|| unusable(reason));
        } else {
            self.inventory = Some(reading);
            self.verify(now, actions);
        }
        self.tell_reading(actions);
    }

    fn link_down(&mut self, link: LinkId) {
        self.links.remove(&link);
        if planted::is(Bug::FreeOnAbsence) {
            self.leases = Leases::default();
            self.touch();
        }
    }

    fn pod_ended(&mut self, pod: &PodUid, succeeded: bool, actions: &mut Vec<Action>) {
        let Some(id) = self.leases.of_pod(pod) else { return };
        match self.leases.get(id).map(|lease| lease.phase) {
            Some(Phase::Started { at, ended: None }) => {
                self.advance(id, Phase::Started { at, ended: Some(succeeded) });
                self.send(FromAgent::PodEnded { pod: pod.clone(), succeeded }, actions);
            }
            Some(Phase::Releasing) => self.pod_stopped(pod),
            _ => {}
        }
    }

    fn pod_stopped(&mut self, pod: &PodUid) {
        let Some(id) = self.leases.of_pod(pod) else { return };
        if self.leases.get(id).is_some_and(|lease| lease.phase == Phase::Releasing) {
            self.advance(id, Phase::Ending { stopped: true });
            self.tombstones.add(id);
            self.answer(self.highest_term, id);
        }
    }

    /// Ends each step: what the disk holds takes effect, what waited for it is said, what changed is written.
    fn finish(&mut self, actions: &mut Vec<Action>) {
        let mut started = Vec::new();
        let mut gone = Vec::new();
        let persisted = self.persisted;
        for (id, lease) in self.leases.iter_mut().filter(|(_, lease)| lease.changed_in <= persisted) {
            match lease.phase {
                Phase::Ending { stopped } => gone.push((*id, stopped, lease.request.pod.clone())),
                // Let through the start gate, and it cannot start before its GPUs are seen.
                Phase::Started { .. } if lease.unverified => {
                    lease.known = lease.known.max(LeaseState::Bound);
                    continue;
                }
                Phase::Started { .. } if lease.known != LeaseState::Started => {
                    actions.push(start_pod(*id, lease, lease.request.run_for));
                    started.push(lease.request.pod.clone());
                }
                _ => {}
            }
            lease.known = lease.phase.state();
        }
        for (id, stopped, pod) in gone {
            self.leases.remove(id);
            if stopped {
                self.send(FromAgent::PodStopped { pod }, actions);
            }
        }
        self.say_what_waited(actions);
        for pod in started {
            self.send(FromAgent::PodStarted { pod }, actions);
        }
        // While writes fail they are not tried for each message: one failure answers all that was asked since the last.
        if self.dirty && self.retry_at.is_none() {
            self.dirty = false;
            self.revision += 1;
            actions.push(Action::Persist { revision: self.revision, ledger: self.ledger() });
        }
    }

    fn say_what_waited(&mut self, actions: &mut Vec<Action>) {
        let persisted = self.persisted;
        let (ready, waiting): (Vec<Waiting>, Vec<Waiting>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|answer| answer.needs <= persisted);
        self.waiting = waiting;
        let mut said: Vec<FromAgent> = Vec::new();
        for Waiting { term, lease, reserve, .. } in ready {
            // The state is looked up now: it may have gone on while the answer waited.
            let state = self.leases.get(lease).map(|known| known.known);
            let answer = match (reserve, state) {
                (true, Some(_)) => FromAgent::Reserved { term, lease },
                (true, None) => continue,
                (false, state) => {
                    FromAgent::LeaseIs { term, lease, state: state.unwrap_or(LeaseState::Gone) }
                }
            };
            if !said.contains(&answer) {
                said.push(answer);
            }
        }
        for answer in said {
            self.send(answer, actions);
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger {
            cluster: self.cluster.clone(),
            highest_term: self.highest_term,
            boot_id: self.boot_id.clone(),
            leases: self.leases.durable(),
        }
    }
}

pub(crate) fn start_pod(id: LeaseId, lease: &Lease, run_for: Option<Millis>) -> Action {
    Action::StartPod {
        pod: lease.request.pod.clone(),
        name: lease.request.pod_name.clone(),
        lease: id,
        gpus: lease.gpus.clone(),
        run_for,
    }
}
