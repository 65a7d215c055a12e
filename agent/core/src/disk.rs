//! What a ledger that could not be written means for what waited for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_common::ids::LeaseId;
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, LeaseState, RefusalCause};

use crate::action::{Action, Warning};
use crate::core::{Core, LEDGER_RETRY_MS, Waiting};
use crate::leases::Phase;

impl Core {
    /// This revision is on disk.
    pub(crate) fn ledger_written(&mut self, revision: u64, actions: &mut Vec<Action>) {
        self.persisted = self.persisted.max(revision.min(self.revision));
        if self.unwritten.take().is_some() {
            actions.push(Action::Warn(Warning::LedgerWritten));
        }
    }

    /// The ledger of this revision may be on disk or not. What is a fact already (bound, started, released) waits for
    /// the next write, what is only wished is taken back.
    pub(crate) fn persist_failed(
        &mut self,
        revision: u64,
        message: String,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        if revision <= self.persisted {
            return;
        }
        let message: Arc<str> = Arc::from(message);
        if self.unwritten.as_ref() != Some(&message) {
            actions.push(Action::Warn(Warning::Ledger(message.clone())));
            self.unwritten = Some(message.clone());
        }
        let cause = RefusalCause::Disk(message);
        self.retry_at = Some(now + LEDGER_RETRY_MS);
        let (failed, waiting): (Vec<Waiting>, Vec<Waiting>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|answer| {
                let lease = self.leases.get(answer.lease);
                answer.needs > self.persisted
                    && answer.needs <= revision
                    && (answer.reserve
                        || lease.is_some_and(|lease| {
                            lease.phase == Phase::Armed && lease.changed_in > self.persisted
                        }))
            });
        self.waiting = waiting;
        for answer in &failed {
            self.take_back(*answer, revision, now);
        }
        self.tell_failure(&failed, &cause, actions);
    }

    /// Undoes a wish that could not be written: an Arm goes back to a reservation, a reservation is dropped.
    fn take_back(&mut self, answer: Waiting, revision: u64, now: Time) {
        let Some(lease) = self.leases.get_mut(answer.lease) else { return };
        match lease.phase {
            Phase::Armed if lease.changed_in > self.persisted && lease.changed_in <= revision => {
                lease.phase = Phase::Reserved { expires_at: now + lease.expires_in };
                // The failed write may have reached the disk all the same: only the next one settles it.
                lease.changed_in = self.revision + 1;
            }
            Phase::Reserved { .. } if answer.reserve => {
                self.drop_reserved(answer.lease);
                if self.leases.get(answer.lease).is_some() {
                    self.answer(answer.term, answer.lease);
                }
            }
            _ => {}
        }
    }

    /// Says why, and what has become of the leases. The why goes out once for those that end, whose GPUs wait for the
    /// disk, once for the reservations that stay and once for those that are dropped, whatever their number: such a
    /// message carries everything that the node has.
    fn tell_failure(&mut self, failed: &[Waiting], cause: &RefusalCause, actions: &mut Vec<Action>) {
        let is_ending = |answer: &&Waiting| {
            let phase = self.leases.get(answer.lease).map(|lease| lease.phase);
            answer.needs > self.persisted && matches!(phase, Some(Phase::Ending { .. }))
        };
        let mut told: BTreeSet<LeaseId> = BTreeSet::new();
        if let Some(answer) = self.waiting.iter().find(is_ending).copied() {
            told.insert(answer.lease);
            self.send(self.refusal(answer.term, answer.lease, cause.clone()), actions);
        }
        let mut told_why: BTreeSet<LeaseState> = BTreeSet::new();
        for Waiting { term, lease, .. } in failed.iter().copied() {
            if !told.insert(lease) {
                continue;
            }
            let state = self.leases.get(lease).map_or(LeaseState::Gone, |known| known.known);
            if told_why.insert(state) {
                self.send(self.refusal(term, lease, cause.clone()), actions);
            } else {
                self.send(FromAgent::LeaseIs { term, lease, state }, actions);
            }
        }
    }
}
