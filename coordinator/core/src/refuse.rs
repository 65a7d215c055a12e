//! What an agent refuses, or has lost: the pod is planned elsewhere, its node closed for a while, and whatever the
//! cause is, it is not asked again in a fast loop.

use std::sync::Arc;

use phalanx_common::ids::{GpuId, LeaseId};
use phalanx_common::topology::ProbeState;
use phalanx_common::units::Time;
use phalanx_common::wire::{LEASE_BYTES, LeaseState, RefusalCause};

use crate::action::{Action, Command};
use crate::cluster::{EarlyEnd, NodeIndex};
use crate::core::{Core, Timer};
use crate::gang::GangKey;
use crate::phase::Step;

/// Nodes that may refuse a member of one round; then the gang waits and is planned anew.
const MOST_NODES_TRIED: usize = 16;
/// As many where the request itself is refused: they will all say the same, unless one is mistaken.
const MOST_NODES_ASKED_ALIKE: usize = 3;

impl Core {
    pub(crate) fn refused(
        &mut self,
        node: NodeIndex,
        id: LeaseId,
        cause: &RefusalCause,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(lease) = self.leases.leases.get(&id) else { return };
        if let RefusalCause::StaleTerm(term) = cause {
            self.heed_term(node, *term, actions);
            return;
        }
        let is_gone = lease.wanted == LeaseState::Gone;
        if matches!(cause, RefusalCause::Disk(_)) && (is_gone || lease.known == Some(LeaseState::Reserved)) {
            // The promise stands; writing it down, or that it ends, is tried again by the resend timer. Until it is
            // done nothing more is asked of the node.
            let key = lease.gang.filter(|_| !is_gone);
            let pod = lease.request.pod_name.clone();
            // While the agent has something to write it says so once a second. Where it has not, nothing tells that
            // the disk is well again but the next reservation, which must not wait long.
            let until = now + self.settings.confirm_timeout_ms;
            self.cluster.close_until(node, &cause.to_string(), until, EarlyEnd::Disk);
            self.timers.insert((until, Timer::Quarantine(node)));
            let why = format!("node {} refused pod {pod}: {cause}", self.cluster.node(node).name);
            if let Some(gang) = key.and_then(|key| self.gangs.gangs.get_mut(&key)) {
                gang.refused = Some(Arc::from(why));
            }
            return;
        }
        if is_gone {
            return;
        }
        if let Some(gang) = lease.gang.and_then(|key| self.gangs.gangs.get_mut(&key)) {
            let name = &self.cluster.node(node).name;
            gang.refused =
                Some(Arc::from(format!("node {name} refused pod {}: {cause}", lease.request.pod_name)));
        }
        let budget = self.settings.refusal_budget;
        let until = now + self.settings.quarantine_ms;
        // A request that does not add up is no fault of the node; nor is a promise that comes too late for
        // a pod which is there already.
        let is_bound = self.gangs.pods.get(lease.pod()).is_some_and(|pod| pod.spec.binding.is_some());
        if let (true, RefusalCause::UnknownGpu(gpu)) = (is_bound, cause) {
            self.evict_void(node, id, *gpu, actions);
        }
        let is_nodes_fault = !is_bound && !matches!(cause, RefusalCause::Malformed(_));
        let is_full = matches!(cause, RefusalCause::Short(name, ..) if &**name == LEASE_BYTES);
        let closes = if is_full && !is_bound {
            let why = format!("{cause}; it opens when a pod there ends");
            let is_new = self.cluster.node(node).quarantine.is_none();
            self.cluster.close_until(node, &why, until, EarlyEnd::Release);
            is_new
        } else {
            is_nodes_fault && self.cluster.count_refusal(node, budget, cause, until)
        };
        self.timers.insert((until, Timer::Quarantine(node)));
        if closes {
            let times = if is_full { "a reservation".to_owned() } else { format!("{budget} times in a row") };
            let message = format!(
                "node {} refused {times} and takes no new pods for {}; the last cause: {cause}",
                self.cluster.node(node).name,
                self.settings.quarantine_ms
            );
            self.emit(Command::Warn { message }, actions);
        }
        let is_malformed = matches!(cause, RefusalCause::Malformed(_));
        self.lease_lost(id, is_malformed, now, actions);
    }

    /// The agent has no lease of a bound pod and not the GPU that it names: a board was swapped. The pod can never
    /// start there. Where nothing of the node can be read this proves nothing.
    fn evict_void(&mut self, node: NodeIndex, id: LeaseId, gpu: GpuId, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get(&id) else { return };
        let Some(pod) = self.gangs.pods.get(lease.pod()).filter(|pod| !pod.spec.deleting) else { return };
        let node = self.cluster.node(node);
        let lacks = node.agent.as_ref().is_some_and(|agent| {
            let gpus = &agent.inventory.gpus;
            let reads = agent.inventory.state == ProbeState::Ready && !gpus.is_empty();
            reads && gpus.iter().all(|known| known.id != gpu)
        });
        if lacks {
            let cause = RefusalCause::UnknownGpu(gpu);
            let cause = Arc::from(format!("its lease on node {} is void: {cause}", node.name));
            let (pod, name) = (lease.pod().clone(), pod.spec.name.clone());
            self.emit(Command::Evict { pod, name, cause }, actions);
        }
    }

    /// A lease that was wanted is not to be had. `everywhere`: hardly any other node will have it either.
    pub(crate) fn lease_lost(&mut self, id: LeaseId, everywhere: bool, now: Time, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get_mut(&id) else { return };
        let (node, uid) = (lease.node, lease.pod().clone());
        let bound = self.gangs.pods.get(&uid).is_some_and(|pod| pod.spec.binding.is_some());
        let Some(key) = lease.gang else { return };
        if bound {
            // The pod is there, whatever its agent says: the lease is asked for again until it is known.
            let refused = lease.refused + 1;
            self.lease_known(id, None);
            if let Some(lease) = self.leases.leases.get_mut(&id) {
                lease.refused = refused;
            }
            return;
        }
        let retry_at = self.retry_at(key, now);
        let round = self.gangs.gangs.get_mut(&key).and_then(|gang| gang.phase.round_mut());
        let Some(round) =
            round.filter(|round| round.members.get(&uid).is_some_and(|member| member.lease == id))
        else {
            self.end_lease(id);
            return;
        };
        match round.step {
            Step::Reserving => {
                round.excluded.insert(node);
                let most = if everywhere { MOST_NODES_ASKED_ALIKE } else { MOST_NODES_TRIED };
                if round.excluded.len() >= most {
                    self.drop_round(key, retry_at, actions);
                } else {
                    self.end_lease(id);
                    self.replace_member(key, &uid, retry_at, actions);
                }
            }
            Step::Committing | Step::Arming => self.drop_round(key, retry_at, actions),
            Step::Binding => self.lease_known(id, None),
        }
    }

    /// Something of a node has changed, by its agent's own word: what it refused before it may give now. A pod that is
    /// bound and has lost its lease must not wait until the next time it would be asked for.
    pub(crate) fn ask_anew(&mut self, node: NodeIndex) {
        for id in self.leases.by_node.get(&node).into_iter().flatten() {
            let Some(lease) = self.leases.leases.get_mut(id) else { continue };
            if lease.known.is_none() && lease.refused > 0 {
                (lease.refused, lease.sent) = (0, None);
                self.leases.touched.insert(*id);
            }
        }
    }

    /// When a gang is tried again after a refusal: later each time, so that no cause whatever makes a fast loop.
    pub(crate) fn retry_at(&self, key: GangKey, now: Time) -> Time {
        let drops = self.gangs.gangs.get(&key).map_or(0, |gang| gang.drops_in_row);
        now + self.retry_after(drops)
    }
}
