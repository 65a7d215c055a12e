//! Who leads. Agents obey the highest term they know. A coordinator that hears of a higher one goes above it, or, where
//! that one came after it, gives way: two that live never raise against each other without end.

use phalanx_common::ids::{LeaseId, Term};
use phalanx_common::wire::LeaseState;

use crate::action::{Action, Command};
use crate::cluster::{EarlyEnd, NodeIndex};
use crate::core::{Core, Timer};

/// Most that a term can be ahead of ours: there are not that many starts of a coordinator.
const MOST_AHEAD: u64 = 1 << 32;

/// True where some coordinator can have led under a term, by what ours has counted to. Any other is damaged: to go above
/// it would use up all terms.
#[must_use]
pub const fn is_believable(term: u64, ours: u64) -> bool {
    term.saturating_sub(ours) <= MOST_AHEAD
}

impl Core {
    /// The term of the coordinator that took over from this one, where one did: this machine does nothing any more,
    /// and its process shall end.
    #[must_use]
    pub const fn overtaken(&self) -> Option<Term> {
        self.overtaken
    }

    pub(crate) fn set_term(&mut self, term: Term, actions: &mut Vec<Action>) {
        if self.raising_above.is_some_and(|above| term.counter <= above) {
            // A higher one was asked for meanwhile, and is on its way: nothing may bear this one.
            return;
        }
        self.term = term;
        self.raising_above = None;
        // What was read in the meantime may be of a leader that came later still.
        if let Some(pod) = self.gangs.pods.values().find(|pod| self.is_of_later_leader(&pod.spec)) {
            let pod = pod.spec.clone();
            self.heed_pod(&pod, actions);
            return;
        }
        for (id, (pod, name)) in std::mem::take(&mut self.fences_held) {
            let command = self.fence(&pod, &name);
            actions.push(Action { id, command });
        }
        // Agents forget promises of an older term, and refused what was asked under it: ask again.
        let ids: Vec<LeaseId> = self.leases.leases.keys().copied().collect();
        for id in ids {
            let Some(lease) = self.leases.leases.get_mut(&id) else { continue };
            lease.sent = None;
            if !lease.local && lease.wanted != LeaseState::Gone && lease.known == Some(LeaseState::Reserved) {
                self.lease_known(id, None);
            }
            self.leases.touched.insert(id);
        }
    }

    /// The highest term that an agent knows, by its own word.
    ///
    /// What an agent knew before it ever obeyed us is of an earlier life, perhaps of a store that was set back:
    /// ours must go above it before anything is asked. One that obeyed us and knows a higher term now has met
    /// another coordinator since we began: that one lives and leads, and we give way.
    pub(crate) fn heed_term(&mut self, node: NodeIndex, known: Term, actions: &mut Vec<Action>) {
        let is_foreign = known.incarnation != self.term.incarnation;
        if !is_foreign || known.counter < self.term.counter {
            self.cluster.note_obedience(node);
            return;
        }
        if !is_believable(known.counter, self.term.counter) {
            self.close_unbelievable(node, known, actions);
            return;
        }
        // Of two with one counter the one of the lower incarnation gives way.
        if self.cluster.node(node).obeyed && known > self.term {
            self.give_way(node, known, actions);
        } else if self.raising_above.is_none_or(|asked| asked < known.counter) {
            self.raising_above = Some(known.counter);
            self.emit(Command::RaiseTerm { above: known.counter }, actions);
        }
    }

    /// Going above such a term would leave no higher ones: one damaged ledger must not end the whole cluster.
    fn close_unbelievable(&mut self, node: NodeIndex, known: Term, actions: &mut Vec<Action>) {
        let closed = self.cluster.node(node).quarantine.as_ref();
        if closed.is_some_and(|closed| closed.ends_early == EarlyEnd::No) {
            return;
        }
        let until = self.now + self.settings.quarantine_ms;
        let why = format!(
            "its agent obeys term {known}, which no coordinator can have reached: its ledger is damaged; stop the \
             agent, move its ledger away and start it again"
        );
        self.cluster.close_until(node, &why, until, EarlyEnd::No);
        self.timers.insert((until, Timer::Quarantine(node)));
        let message = format!("node {} takes no new pods: {why}", self.cluster.node(node).name);
        self.emit(Command::Warn { message }, actions);
    }

    fn give_way(&mut self, node: NodeIndex, to: Term, actions: &mut Vec<Action>) {
        self.overtaken = Some(to);
        let message = format!(
            "another coordinator leads: the agent of node {} obeyed term {} and obeys term {to} now. This one gives \
             way, asks nothing more of any agent and ends; start it again only if it is the one that shall lead",
            self.cluster.node(node).name,
            self.term
        );
        self.emit(Command::Warn { message }, actions);
    }
}
