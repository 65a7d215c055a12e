//! What of a reason changes while a gang waits, though nobody looks at the gang again: how long an agent has
//! been silent, and what the holders of the GPUs it waits for are doing. It is filled in when a person asks; the
//! holders also when the reason is written down, for those who ask the API server.

use std::sync::Arc;

use phalanx_common::ids::NodeName;
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseState;

use crate::cluster::{EarlyEnd, NodeIndex};
use crate::core::Core;
use crate::gang::GangKey;
use crate::lease::Lease;
use crate::place::{Overlay, place};
use crate::reason::{
    ClaimProblem, Closed, Held, HeldFor, HoldCause, NoEviction, NoRoom, QueueHeld, Reason, TERMINATING,
};
use crate::why::fits_mixed;

/// Most holders named.
const MOST_HELD: usize = 4;

/// Most holds named.
const MOST_HOLDS: usize = 8;

impl Core {
    /// The reason of a gang as it is at this moment.
    pub(crate) fn freshen(&self, key: GangKey, mut reason: Reason) -> Reason {
        match &mut reason {
            Reason::MakingRoom(room) => match self.making_room(key) {
                Some(now) => return now,
                // It is told what others of its group wait for.
                None => {
                    let is_to_come = |at: &Time| *at > self.now;
                    room.evicted_at = room.evicted_at.filter(is_to_come);
                    room.until = room.until.filter(is_to_come);
                    if let Some(late) = &mut room.late {
                        late.given_up = late.given_up.filter(is_to_come);
                    }
                }
            },
            Reason::NoRoom(room) => self.freshen_room(room),
            Reason::NodesClosed { nodes, room } => {
                self.freshen_closed(nodes);
                self.freshen_room(room);
            }
            Reason::MorePodsWait { cause, .. } => **cause = self.freshen(key, (**cause).clone()),
            Reason::Together(together) => {
                if let Some(cause) = together.cause_mut() {
                    *cause = self.freshen(key, cause.clone());
                }
            }
            Reason::Preempted(preempted) => {
                preempted.cause = preempted.cause.take().map(|cause| self.freshen(key, cause));
            }
            Reason::Claim(held) => {
                if let ClaimProblem::Binding { since, seconds } = &mut held.problem {
                    *seconds = Some((self.now - *since).0 / 1000);
                }
            }
            _ => {}
        }
        reason
    }

    /// Of a gang whose minimum waits: how much room or quota there is now, where others have taken some of it since the gang
    /// was tried. What is said of evictions stays.
    pub(crate) fn as_of_now(&self, key: GangKey, mut reason: Reason) -> Reason {
        match &mut reason {
            Reason::NoRoom(room) => {
                if let Some(now) = self.room_of_now(key, room) {
                    **room = now;
                }
            }
            Reason::QuotaUsed { .. } | Reason::Queue(_) => {
                if let Some(now) = self.quota_of_now(key, &reason) {
                    return now;
                }
            }
            Reason::Preempted(preempted) => {
                preempted.cause = preempted.cause.take().map(|cause| self.as_of_now(key, cause));
            }
            _ => {}
        }
        reason
    }

    /// The ceiling, or what is guaranteed to others, that keeps it now, where that is another one or used otherwise than it
    /// was.
    fn quota_of_now(&self, key: GangKey, was: &Reason) -> Option<Reason> {
        let gang = self.gangs.gangs.get(&key)?;
        let required = self.required(gang);
        let eviction = was.clone().eviction_mut().and_then(Option::take);
        let mut now = match was {
            Reason::Queue(held) if matches!(**held, QueueHeld::Guaranteed { never: false, .. }) => {
                self.check_guarantee(key, &required)?.0
            }
            _ => {
                was.ceiling()?;
                let charge = self.admission_charge(gang, &required);
                self.check_quota(key, gang.order, &required, &charge).err()?
            }
        };
        now.set_eviction(eviction.as_deref().cloned());
        if !now.is_for_quota() || now == *was {
            return None;
        }
        now.set_eviction(eviction.map(|why| NoEviction { short: None, ..*why }));
        Some(now)
    }

    /// `None` where it sees other room than everybody, or fits now and is tried in a moment.
    fn room_of_now(&self, key: GangKey, before: &NoRoom) -> Option<NoRoom> {
        let gang = self.gangs.gangs.get(&key)?;
        if self.has_own_view(key, self.now) || gang.phase.round().is_some() {
            return None;
        }
        let (shape, required) = (self.shape(key), self.required(gang));
        let shortfall = place(&self.cluster, &mut Overlay::default(), &shape, &required.pods).err()?;
        let mut room = self.no_room(&required, &shape, &shortfall.need);
        room.mixed_models_would_fit = fits_mixed(&self.cluster, &shape, &required);
        room.closed.clone_from(&before.closed);
        room.settle_evictions(before.eviction.clone());
        Some(room)
    }

    /// The reason with those who hold what is waited for now. Times are left out: what is written down would soon be
    /// wrong.
    pub(crate) fn with_holders(&self, mut reason: Reason) -> Reason {
        match &mut reason {
            Reason::NoRoom(room) | Reason::NodesClosed { room, .. } => {
                self.find_holders(room);
                for held in &mut room.holds {
                    if let HoldCause::Waited { start, .. } = &mut held.why {
                        *start = None;
                    }
                }
            }
            Reason::MakingRoom(room) => (room.evicted_at, room.until, room.late) = (None, None, None),
            Reason::MorePodsWait { cause, .. } => **cause = self.with_holders((**cause).clone()),
            Reason::Together(together) => {
                if let Some(cause) = together.cause_mut() {
                    *cause = self.with_holders(cause.clone());
                }
            }
            Reason::Preempted(preempted) => {
                preempted.cause = preempted.cause.take().map(|cause| self.with_holders(cause));
            }
            _ => {}
        }
        reason
    }

    fn freshen_room(&self, room: &mut NoRoom) {
        self.freshen_closed(&mut room.closed);
        self.find_holders(room);
    }

    fn find_holders(&self, room: &mut NoRoom) {
        let nodes: Vec<NodeIndex> =
            room.free_by_node.iter().filter_map(|(name, _, _)| self.cluster.find(name)).collect();
        if let Some(key) = self.cluster.resources.find(&room.resource) {
            let others = nodes.iter().flat_map(|node| self.other_holders(*node, key));
            room.others = others.take(MOST_HELD).collect();
        }
        let leases = nodes.iter().flat_map(|node| self.leases.by_node.get(node).into_iter().flatten());
        let leases = leases.filter_map(|id| self.leases.leases.get(id));
        room.holds = nodes.iter().flat_map(|node| self.holds_of(*node)).take(MOST_HOLDS).collect();
        room.held = Vec::new();
        for held in leases.filter_map(|lease| self.held(lease)) {
            let is_same =
                |known: &&mut Held| known.state.is_empty() && known.by == held.by && known.node == held.node;
            if let Some(known) = room.held.iter_mut().find(is_same) {
                known.gpus.extend(held.gpus);
                known.gpus.sort_unstable();
            } else if room.held.len() < MOST_HELD {
                room.held.push(held);
            }
        }
    }

    /// What is held of a node, and for whom.
    fn holds_of(&self, index: NodeIndex) -> impl Iterator<Item = HeldFor> {
        let node = self.cluster.node(index);
        node.holds.iter().filter_map(|(key, hold)| {
            Some(HeldFor {
                node: node.name.clone(),
                gpus: u32::try_from(hold.gpus.len()).unwrap_or(u32::MAX),
                gang: self.gangs.gangs.get(key)?.spec.name.clone(),
                why: self.hold_cause(*key)?,
            })
        })
    }

    fn freshen_closed(&self, nodes: &mut [(NodeName, Closed)]) {
        for (name, closed) in nodes {
            let since = self.cluster.find(name).and_then(|node| self.cluster.node(node).away_since);
            if let (Closed::AgentAway, Some(since)) = (&*closed, since) {
                *closed = Closed::NoReport { seconds: (self.now - since).0 / 1000 };
            }
        }
    }

    /// A holder that does not use its GPUs yet, is on its way out, or is what is left of a gang.
    fn held(&self, lease: &Lease) -> Option<Held> {
        let pod = self.gangs.pods.get(lease.pod());
        let mut by = lease.request.pod_name.name.clone();
        let is_leaving = lease.wanted == LeaseState::Gone || pod.is_some_and(|pod| pod.spec.deleting);
        let has_taken = lease.local || lease.known == Some(LeaseState::Started);
        let sick = self.cluster.node(lease.node).quarantine.as_ref();
        let sick = sick.filter(|closed| closed.ends_early == EarlyEnd::Disk);
        let state: Arc<str> = if let Some(closed) = sick.filter(|_| is_leaving) {
            Arc::from(format!("terminating, and {}", closed.why))
        } else if is_leaving {
            Arc::from(TERMINATING)
        } else if lease.wanted >= LeaseState::Bound && !has_taken {
            Arc::from("bound, device not yet taken")
        } else {
            by = self.degraded_holder(lease.gang?)?;
            Arc::from("")
        };
        let gpus = self.indexes(lease.node, lease);
        (!gpus.is_empty()).then(|| Held { node: self.cluster.node(lease.node).name.clone(), gpus, by, state })
    }

    fn indexes(&self, node: NodeIndex, lease: &Lease) -> Vec<u32> {
        let agent = self.cluster.node(node).agent.as_ref();
        let gpus = agent.into_iter().flat_map(|agent| &agent.inventory.gpus);
        gpus.filter(|gpu| lease.taken.gpus.contains(&gpu.id)).map(|gpu| gpu.index).collect()
    }
}
