//! Leases as the coordinator sees them: what it wants each to be, what the agent last said it is, and
//! the one message that brings the two together. Losses, duplicates and reconnects need no case of
//! their own: whatever differs is sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::{ContainerKind, PodRequest};
use phalanx_common::ids::{GpuId, LeaseId, PodUid, Term};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{ContainerDevices, Exactness, LeaseRequest, LeaseState, ToAgent};
use serde::{Deserialize, Serialize};

use crate::cluster::{NodeIndex, Taken};
use crate::gang::GangKey;
use crate::place::PodNeed;

/// One lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) node: NodeIndex,
    /// What it takes from the node.
    pub(crate) taken: Taken,
    pub(crate) request: Arc<LeaseRequest>,
    /// The gang that is charged; `None` for a lease of an agent that nobody here knows.
    pub(crate) gang: Option<GangKey>,
    /// Its amounts count as allocated in the gang's queue.
    pub(crate) charged: bool,
    /// The node has no agent: the coordinator's own ledger is the only one.
    pub(crate) local: bool,
    /// What it shall be.
    pub(crate) wanted: LeaseState,
    /// What the agent last said; `None` = it does not have it.
    pub(crate) known: Option<LeaseState>,
    /// The message about it that is not answered yet.
    pub(crate) sent: Option<Sent>,
    /// Refusals in a row: what is refused again and again is asked for less and less often.
    pub(crate) refused: u32,
}

/// An unanswered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// When it was sent first.
    pub(crate) first: Time,
    /// When it was sent last.
    pub(crate) last: Time,
    /// The state it asks for.
    pub(crate) state: LeaseState,
}

/// Most doublings of the time between two messages.
const MOST_DOUBLINGS: u32 = 6;

impl Lease {
    pub(crate) fn pod(&self) -> &PodUid {
        &self.request.pod
    }

    /// True where it has ended, and nobody's word is waited for.
    pub(crate) fn is_over(&self) -> bool {
        self.wanted == LeaseState::Gone && (self.local || self.known == Some(LeaseState::Gone))
    }

    /// Time between two messages that ask for the same.
    pub(crate) fn resend_after(&self, resend: Millis) -> Millis {
        resend.doubled(self.refused.min(MOST_DOUBLINGS))
    }

    /// The state the next message asks for; `None` where nothing is to be said.
    pub(crate) fn next_state(&self) -> Option<LeaseState> {
        use LeaseState::{Armed, Bound, Gone, Releasing, Reserved, Started};
        match (self.wanted, self.known) {
            (Gone, Some(Gone)) => None,
            (Gone, _) => Some(Gone),
            (_, None) => Some(Reserved),
            (wanted, Some(Reserved)) if wanted >= Armed => Some(Armed),
            (Bound | Started, Some(Armed)) if planted::is(Bug::LoseGangBound) => Some(Bound),
            // To an agent each step implies those before it: a gang whose last pod is bound needs one message a pod.
            (wanted, Some(Armed)) if wanted >= Bound => Some(wanted.min(Started)),
            (Started, Some(Bound)) if !planted::is(Bug::LoseGangBound) => Some(Started),
            (_, Some(Reserved | Armed | Bound | Started | Releasing | Gone)) => None,
        }
    }

    /// The message that asks for a state.
    pub(crate) fn message(&self, state: LeaseState, term: Term, expires_in_ms: Millis) -> ToAgent {
        let lease = self.taken.lease;
        match state {
            LeaseState::Reserved => {
                ToAgent::Reserve { term, lease, request: Box::new((*self.request).clone()), expires_in_ms }
            }
            LeaseState::Armed => ToAgent::Arm { term, lease },
            LeaseState::Bound => ToAgent::Bound { term, lease },
            LeaseState::Started => ToAgent::GangBound { term, lease },
            LeaseState::Releasing | LeaseState::Gone => ToAgent::Release { term, lease },
        }
    }
}

/// All leases.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Leases {
    #[serde(with = "crate::pairs")]
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) by_node: BTreeMap<NodeIndex, BTreeSet<LeaseId>>,
    /// Leases that changed and may have something to send.
    pub(crate) touched: BTreeSet<LeaseId>,
    next_number: u32,
}

impl Leases {
    /// A new id under a term. One that is known already is of a term that was counted twice: the store was
    /// set back.
    pub(crate) fn next_id(&mut self, term: Term) -> LeaseId {
        loop {
            self.next_number = self.next_number.wrapping_add(1);
            let id = LeaseId::new(term, self.next_number);
            if !self.leases.contains_key(&id) {
                return id;
            }
        }
    }

    pub(crate) fn insert(&mut self, lease: Lease) {
        let id = lease.taken.lease;
        self.by_node.entry(lease.node).or_default().insert(id);
        self.leases.insert(id, lease);
        self.touched.insert(id);
    }

    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        if let Some(of_node) = self.by_node.get_mut(&lease.node) {
            of_node.remove(&id);
            if of_node.is_empty() {
                self.by_node.remove(&lease.node);
            }
        }
        self.touched.remove(&id);
        Some(lease)
    }

    /// Raises what a lease shall be; never back.
    pub(crate) fn want_at_least(&mut self, id: LeaseId, state: LeaseState) {
        if self.leases.get(&id).is_some_and(|lease| lease.wanted < state) {
            self.want(id, state);
        }
    }

    pub(crate) fn want(&mut self, id: LeaseId, state: LeaseState) {
        if let Some(lease) = self.leases.get_mut(&id)
            && lease.wanted != state
            && lease.wanted != LeaseState::Gone
        {
            lease.wanted = state;
            self.touched.insert(id);
        }
    }
}

/// What a lease of such a pod promises: exact GPUs, or so many devices of other kinds.
pub(crate) fn exactness(need: &PodNeed) -> Exactness {
    if need.gpus == 0 && need.devices > 0 { Exactness::Count } else { Exactness::Exact }
}

/// Shares a pod's GPUs among its containers, in their order: apps and sidecars get GPUs of their own,
/// an init container uses GPUs that its pod holds anyway and no earlier sidecar has.
pub(crate) fn devices(request: &PodRequest, gpus: &[GpuId]) -> Vec<ContainerDevices> {
    let mut own = 0;
    let mut devices = Vec::new();
    for container in &request.containers {
        let asked = usize::try_from(container.requests.gpus()).unwrap_or(usize::MAX);
        if asked == 0 {
            continue;
        }
        let first = own.min(gpus.len());
        let last = first.saturating_add(asked).min(gpus.len());
        if container.kind != ContainerKind::Init {
            own = last;
        }
        let name = container.name.clone();
        devices.push(ContainerDevices {
            container: name,
            gpus: gpus[first..last].to_vec(),
            nics: Vec::new(),
        });
    }
    devices
}
