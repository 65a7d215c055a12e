//! Keeps leases, nodes and queues in step: whatever a lease takes from a node is charged to a queue,
//! and given back in both when the lease is gone.

use phalanx_common::gang::PodBinding;
use phalanx_common::ids::{LeaseId, NodeName};
use phalanx_common::planted::{self, Bug};
use phalanx_common::topology::Inventory;
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseState;

use crate::action::{Action, Command};
use crate::cluster::{EarlyEnd, NodeIndex};
use crate::core::{Core, Timer};
use crate::event::NodeSpec;
use crate::lease::{Lease, Sent};
use crate::phase::Step;

impl Core {
    /// A lease comes to be: its resources are taken and charged.
    pub(crate) fn insert_lease(&mut self, lease: Lease) {
        self.cluster.take(lease.node, &lease.taken);
        self.cluster.stand_for_holds(lease.node, lease.gang, &lease.taken);
        let id = lease.taken.lease;
        let gang = lease.gang;
        self.leases.insert(lease);
        if let Some(gang) = gang.and_then(|key| self.gangs.gangs.get_mut(&key)) {
            gang.leases += 1;
            // What has ended, and waits only for its agent's word that it is gone, uses no quota. What is being deleted
            // runs until then.
            let may_run = |lease: &Lease| {
                let pod = self.gangs.pods.get(lease.pod());
                pod.is_some_and(|pod| pod.spec.binding.is_some() && !pod.spec.phase.is_terminal())
            };
            let lease = self.leases.leases.get(&id);
            let counts = lease.is_some_and(|lease| lease.wanted != LeaseState::Gone || may_run(lease));
            self.charge_lease(id, counts);
        }
    }

    /// An agent told what its node has. GPUs that were not seen for a while have their holders back.
    pub(crate) fn apply_inventory(
        &mut self,
        name: &NodeName,
        session: u64,
        inventory: Inventory,
    ) -> NodeIndex {
        let node = self.cluster.apply_inventory(name, session, inventory);
        self.attach_leases(node);
        node
    }

    /// A node object is there, or changed. Where it lists less than before, what was promised may have no place any more.
    pub(crate) fn apply_node(&mut self, spec: NodeSpec) {
        let before = self.cluster.capacity_generation;
        let node = self.cluster.apply_spec(spec);
        if self.cluster.capacity_generation != before {
            self.others.crowded.insert(node);
        }
    }

    /// A node object is gone.
    pub(crate) fn delete_node(&mut self, name: &NodeName) {
        self.cluster.remove_spec(name);
        if let Some(node) = self.cluster.find(name) {
            self.forget_node(node);
        }
    }

    /// Forgets a node that is gone, once its last lease is, and the last pod of others.
    pub(crate) fn forget_node(&mut self, node: NodeIndex) {
        let has_object_deleted = self.cluster.node(node).deleted;
        let is_used = self.leases.by_node.contains_key(&node) || self.others.by_node.contains_key(&node);
        if has_object_deleted && !is_used {
            self.cluster.forget_if_gone(node);
        }
    }

    /// Makes every lease of a node the holder of its GPUs where nobody else is.
    fn attach_leases(&mut self, node: NodeIndex) {
        for id in self.leases.by_node.get(&node).into_iter().flatten() {
            let lease = self.leases.leases.get(id).filter(|lease| !lease.taken.gpus.is_empty());
            if let Some(lease) = lease {
                self.cluster.attach(node, &lease.taken);
            }
        }
    }

    /// Counts a lease as allocated in its gang's queue, or not any more.
    fn charge_lease(&mut self, id: LeaseId, charge: bool) {
        let Some(lease) = self.leases.leases.get_mut(&id).filter(|lease| lease.charged != charge) else {
            return;
        };
        lease.charged = charge;
        let Some(gang) = lease.gang.and_then(|key| self.gangs.gangs.get(&key)) else { return };
        let (queue, amounts) = (gang.spec.queue.clone(), lease.taken.amounts.of_pod());
        if charge {
            self.queues.allocate(&queue, &amounts);
        } else {
            self.queues.release(&queue, &amounts);
            self.quota_freed |= self.queues.is_limited(&queue);
        }
        self.touch_chain(&queue);
    }

    /// Asks for the end of a lease. Its GPUs stay taken until the agent says that it is gone; its queue
    /// has the quota back at once where no pod was ever bound by it.
    pub(crate) fn end_lease(&mut self, id: LeaseId) {
        if self.leases.leases.get(&id).is_some_and(|lease| lease.wanted < LeaseState::Bound) {
            self.charge_lease(id, false);
        }
        self.leases.want(id, LeaseState::Gone);
    }

    /// A lease is gone: its resources are free.
    pub(crate) fn remove_lease(&mut self, id: LeaseId) {
        if !planted::is(Bug::NeverUncharge) {
            self.charge_lease(id, false);
        }
        let Some(lease) = self.leases.remove(id) else { return };
        self.touch_claimant(lease.pod());
        self.cluster.give_back(lease.node, &lease.taken);
        // One whose pod was bound may have gone while its agent was away: nothing but its absence tells of it.
        let is_unbound = self.gangs.pods.get(lease.pod()).is_some_and(|pod| pod.spec.binding.is_none());
        if lease.known.is_some() || (lease.wanted == LeaseState::Gone && !is_unbound) {
            self.cluster.end_early(lease.node, EarlyEnd::Release);
        }
        if !lease.taken.gpus.is_empty() {
            // Two leases may claim one GPU; the one that is left is its holder now.
            self.attach_leases(lease.node);
        }
        self.forget_node(lease.node);
        if self.gangs.pods.get(lease.pod()).is_some_and(|pod| pod.lease == Some(id)) {
            self.set_pod_lease(lease.pod(), None);
        }
        let Some(key) = lease.gang else { return };
        self.touched.insert(key);
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.leases = gang.leases.saturating_sub(1);
        }
    }

    /// True where the coordinator itself keeps the lease and the binding is to its node.
    pub(crate) fn is_local_there(&self, id: LeaseId, binding: &PodBinding) -> bool {
        let lease = self.leases.leases.get(&id);
        lease.is_some_and(|lease| lease.local && self.cluster.node(lease.node).name == binding.node)
    }

    /// An agent said what a lease is.
    pub(crate) fn lease_known(&mut self, id: LeaseId, state: Option<LeaseState>) {
        let Some(lease) = self.leases.leases.get_mut(&id) else { return };
        if lease.known != state {
            // The answer to an earlier message, while one that asks for more is on its way: to forget that one would send
            // it twice.
            let is_between = state > lease.known
                && state.is_some_and(|state| {
                    state < LeaseState::Releasing && lease.sent.is_some_and(|sent| sent.state > state)
                });
            if !is_between {
                lease.sent = None;
            }
            lease.known = state;
            lease.refused = 0;
        }
        self.leases.touched.insert(id);
        let Some(key) = lease.gang else { return };
        let wanted = lease.wanted;
        // A lease that is being given back may be of an earlier life of the gang.
        if state == Some(LeaseState::Started) && !lease.local && wanted != LeaseState::Gone {
            self.note_start(key);
        }
        let Some(round) = self.gangs.gangs.get_mut(&key).and_then(|gang| gang.phase.round_mut()) else {
            return;
        };
        if wanted == LeaseState::Gone || !round.members.values().any(|member| member.lease == id) {
            return;
        }
        let confirmed =
            state.is_some_and(|state| state >= LeaseState::Reserved && state < LeaseState::Releasing);
        let armed = confirmed && state.is_some_and(|state| state >= LeaseState::Armed);
        if confirmed {
            round.unconfirmed.remove(&id)
        } else {
            round.unconfirmed.insert(id)
        };
        if armed {
            round.unarmed.remove(&id)
        } else {
            round.unarmed.insert(id)
        };
        let step_done = match round.step {
            Step::Reserving => round.unconfirmed.is_empty(),
            Step::Arming => round.unarmed.is_empty(),
            Step::Committing => false,
            Step::Binding => !round.to_bind.is_empty(),
        };
        if step_done {
            self.touched.insert(key);
        }
    }

    /// Removes what is over already, and needs no word to anybody: counted in a pass, it would make a queue look as if it
    /// had more than its share, and work that runs would be evicted for it. True where there was any.
    pub(crate) fn remove_over(&mut self) -> bool {
        let is_over = |id: &LeaseId| self.leases.leases.get(id).is_some_and(Lease::is_over);
        let over: Vec<LeaseId> = self.leases.touched.iter().copied().filter(is_over).collect();
        over.iter().for_each(|id| self.remove_lease(*id));
        !over.is_empty()
    }

    /// Sends for each lease what brings it nearer to what it shall be.
    pub(crate) fn drive_leases(&mut self, now: Time, actions: &mut Vec<Action>) {
        while let Some(id) = self.leases.touched.pop_first() {
            self.drive_lease(id, now, actions);
        }
    }

    fn drive_lease(&mut self, id: LeaseId, now: Time, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get_mut(&id) else { return };
        if lease.is_over() {
            self.remove_lease(id);
            return;
        }
        if lease.local {
            lease.known = Some(lease.wanted);
            return;
        }
        let Some(state) = lease.next_state() else { return };
        let node = self.cluster.node(lease.node);
        let Some(session) = node.agent.as_ref().and_then(|agent| agent.session) else { return };
        let delay = lease.resend_after(self.settings.resend_ms);
        let before = lease.sent.filter(|sent| sent.state == state);
        if let Some(sent) = before.filter(|sent| now < sent.last + delay) {
            // Sent, and the answer is not due yet.
            self.timers.insert((sent.last + delay, Timer::Resend(id)));
            return;
        }
        let first = before.map_or(now, |sent| sent.first);
        lease.sent = Some(Sent { first, last: now, state });
        let message = Box::new(lease.message(state, self.term, self.settings.reservation_ms));
        let node = node.name.clone();
        self.timers.insert((now + delay, Timer::Resend(id)));
        self.emit(Command::Send { node, session, message }, actions);
    }
}
