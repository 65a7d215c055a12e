//! The leases of one node, and whether one more can be promised.

use std::collections::BTreeMap;
use std::collections::btree_map::{self, Entry};
use std::sync::Arc;

use phalanx_common::ids::{GpuId, LeaseId, PodUid};
use phalanx_common::planted::{self, Bug};
use phalanx_common::resources::{CPU, MEMORY, Resources};
use phalanx_common::topology::Inventory;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{Exactness, LEASE_BYTES, LeaseReport, LeaseRequest, LeaseState, RefusalCause};

use crate::inventory::health;
use crate::ledger::{DurableLease, DurableState};

/// Most bytes that all leases of a node may take in a message: Hello and Refused carry them all, and
/// must fit into one frame.
pub const MAX_LEASE_BYTES: usize = 512 << 10;

/// How far a lease is. `Ending` leases hold their GPUs until the disk has forgotten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In memory only.
    Reserved {
        /// When the promise ends.
        expires_at: Time,
    },
    /// Never ends by itself.
    Armed,
    /// Its pod is bound.
    Bound,
    /// Its pod may run.
    Started {
        /// Since when.
        at: Time,
        /// Whether the pod has ended, and if so whether well.
        ended: Option<bool>,
    },
    /// Its pod is being stopped.
    Releasing,
    /// Nothing of it runs; the disk still names it.
    Ending {
        /// Its pod was stopped on request.
        stopped: bool,
    },
}

impl Phase {
    /// The phase as others see it.
    #[must_use]
    pub const fn state(self) -> LeaseState {
        match self {
            Self::Reserved { .. } => LeaseState::Reserved,
            Self::Armed => LeaseState::Armed,
            Self::Bound => LeaseState::Bound,
            Self::Started { .. } => LeaseState::Started,
            Self::Releasing | Self::Ending { .. } => LeaseState::Releasing,
        }
    }

    /// The phase as it is kept on disk; `None` = not at all.
    #[must_use]
    pub const fn durable(self) -> Option<DurableState> {
        match self {
            Self::Reserved { .. } | Self::Ending { .. } => None,
            Self::Armed => Some(DurableState::Armed),
            Self::Bound => Some(DurableState::Bound),
            Self::Started { at, ended } => Some(DurableState::Started { at, ended }),
            Self::Releasing => Some(DurableState::Releasing),
        }
    }
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What it is for.
    pub request: LeaseRequest,
    /// All its GPUs, sorted.
    pub gpus: Vec<GpuId>,
    /// The pod's peak use.
    pub effective: Resources,
    /// How far it is.
    pub phase: Phase,
    /// Revision of the ledger that first holds this phase.
    pub changed_in: u64,
    /// Newest state that the disk is known to hold: the one that may be told.
    pub known: LeaseState,
    /// How long the reservation was for.
    pub expires_in: Millis,
    /// The machine has booted since: whether it still has the GPUs is not known before they are read.
    pub unverified: bool,
}

impl Lease {
    fn new(request: LeaseRequest, phase: Phase, expires_in: Millis) -> Self {
        Self {
            gpus: request.gpus(),
            effective: request.request.effective(),
            request,
            phase,
            changed_in: 0,
            known: phase.state(),
            expires_in,
            unverified: false,
        }
    }

    /// A lease that is only promised.
    #[must_use]
    pub fn reserved(request: LeaseRequest, now: Time, expires_in: Millis) -> Self {
        Self::new(request, Phase::Reserved { expires_at: now + expires_in }, expires_in)
    }

    /// A lease as the disk had it.
    #[must_use]
    pub fn stored(stored: DurableLease) -> Self {
        let phase = match stored.state {
            DurableState::Armed => Phase::Armed,
            DurableState::Bound => Phase::Bound,
            DurableState::Started { at, ended } => Phase::Started { at, ended },
            DurableState::Releasing => Phase::Releasing,
        };
        Self { unverified: stored.unverified, ..Self::new(stored.request, phase, Millis(0)) }
    }
}

/// All leases of a node, by id.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    by_id: BTreeMap<LeaseId, Lease>,
}

impl Leases {
    /// A lease by id.
    #[must_use]
    pub fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    /// A lease by id, to be changed.
    pub fn get_mut(&mut self, id: LeaseId) -> Option<&mut Lease> {
        self.by_id.get_mut(&id)
    }

    /// Adds a lease; an id that is known keeps its lease.
    pub fn insert(&mut self, id: LeaseId, lease: Lease) {
        if let Entry::Vacant(place) = self.by_id.entry(id) {
            place.insert(lease);
        }
    }

    /// Takes a lease out.
    pub fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        self.by_id.remove(&id)
    }

    /// All leases, by id.
    pub fn iter(&self) -> btree_map::Iter<'_, LeaseId, Lease> {
        self.by_id.iter()
    }

    /// All leases, by id, to be changed.
    pub fn iter_mut(&mut self) -> btree_map::IterMut<'_, LeaseId, Lease> {
        self.by_id.iter_mut()
    }

    /// The lease that has this GPU.
    #[must_use]
    pub fn holder(&self, gpu: GpuId) -> Option<LeaseId> {
        self.by_id.iter().find(|(_, lease)| lease.gpus.binary_search(&gpu).is_ok()).map(|(id, _)| *id)
    }

    /// The lease of a pod.
    #[must_use]
    pub fn of_pod(&self, pod: &PodUid) -> Option<LeaseId> {
        self.by_id.iter().find(|(_, lease)| lease.request.pod == *pod).map(|(id, _)| *id)
    }

    /// The first lease that shares pod or GPU with this one.
    #[must_use]
    pub fn conflict(&self, lease: &Lease) -> Option<LeaseId> {
        self.of_pod(&lease.request.pod).or_else(|| lease.gpus.iter().find_map(|gpu| self.holder(*gpu)))
    }

    /// The leases as they may be told: never further than the disk is known to be.
    #[must_use]
    pub fn reports(&self) -> Vec<LeaseReport> {
        let report = |(id, lease): (&LeaseId, &Lease)| LeaseReport {
            lease: *id,
            state: lease.known,
            request: lease.request.clone(),
        };
        self.by_id.iter().map(report).collect()
    }

    /// The leases as they are kept on disk.
    #[must_use]
    pub fn durable(&self) -> Vec<DurableLease> {
        let durable = |(id, lease): (&LeaseId, &Lease)| {
            let state = lease.phase.durable()?;
            let (request, unverified) = (lease.request.clone(), lease.unverified);
            Some(DurableLease { lease: *id, state, request, unverified })
        };
        self.by_id.iter().filter_map(durable).collect()
    }

    /// Whether a request can be promised on top of all leases.
    ///
    /// # Errors
    /// The first thing that stands against it.
    pub fn check(&self, request: &LeaseRequest, inventory: &Inventory) -> Result<(), RefusalCause> {
        if let Some(other) = self.of_pod(&request.pod) {
            return Err(RefusalCause::PodHasLease(other));
        }
        check_devices(request)?;
        for gpu in request.gpus() {
            match health(inventory, gpu) {
                None => return Err(RefusalCause::UnknownGpu(gpu)),
                Some(health) if !health.is_healthy() && !planted::is(Bug::IgnoreHealth) => {
                    return Err(RefusalCause::Unhealthy(gpu, health.clone()));
                }
                Some(_) => {}
            }
            if let Some(holder) = self.holder(gpu).filter(|_| !planted::is(Bug::ConfirmHeldGpu)) {
                return Err(RefusalCause::Held(gpu, holder));
            }
        }
        self.check_amounts(request, inventory)
    }

    fn check_amounts(&self, request: &LeaseRequest, inventory: &Inventory) -> Result<(), RefusalCause> {
        let asked = request.request.effective();
        for (name, capacity) in [(CPU, inventory.cpu_milli), (MEMORY, inventory.memory_bytes)] {
            let used = self.by_id.values().map(|lease| lease.effective.amount(name));
            check_amount(name, capacity, used.fold(0, u64::saturating_add), asked.amount(name))?;
        }
        // How many devices of other kinds there are the Node says, which the coordinator reads and nobody here: they are
        // counted there. A part of a GPU is promised by nobody, for whole ones are promised here.
        for (name, amount) in asked.iter().filter(|(name, _)| name.is_part_of_gpu()) {
            check_amount(name.as_str(), 0, 0, amount)?;
        }
        let used = self.by_id.values().map(|lease| message_bytes(&lease.request)).sum::<usize>();
        check_amount(LEASE_BYTES, MAX_LEASE_BYTES as u64, used as u64, message_bytes(request) as u64)
    }
}

fn check_amount(name: &str, capacity: u64, used: u64, asked: u64) -> Result<(), RefusalCause> {
    let free = capacity.saturating_sub(used);
    if asked > free { Err(RefusalCause::Short(Arc::from(name), free, asked)) } else { Ok(()) }
}

/// The devices must be those of the request: for each container as many GPUs as it asks for, and for
/// the pod as many as it needs at its peak.
fn check_devices(request: &LeaseRequest) -> Result<(), RefusalCause> {
    let malformed = |text: String| Err(RefusalCause::Malformed(Arc::from(text)));
    if request.exactness == Exactness::Count && request.request.effective().gpus() > 0 {
        return malformed("this agent promises GPUs by their UUIDs only, not so many of them".to_owned());
    }
    for devices in &request.devices {
        let name = &devices.container;
        if !request.request.containers.iter().any(|container| container.name == *name) {
            return malformed(format!("devices for container {name:?}, which the request does not name"));
        }
        if request.devices.iter().filter(|other| other.container == *name).count() > 1 {
            return malformed(format!("devices for container {name:?} are listed twice"));
        }
    }
    for container in &request.request.containers {
        let devices = request.devices.iter().find(|devices| devices.container == container.name);
        let gpus = devices.map(|devices| devices.gpus.as_slice()).unwrap_or_default();
        let asked = container.requests.gpus();
        if gpus.len() as u64 != asked {
            return malformed(format!(
                "container {:?} asks for {asked} GPUs and gets {}",
                container.name,
                gpus.len()
            ));
        }
        if gpus.iter().enumerate().any(|(at, gpu)| gpus[..at].contains(gpu)) {
            return malformed(format!("container {:?} gets a GPU twice", container.name));
        }
    }
    // Containers that run at one time must not share a GPU, and those that follow each other must: both
    // show in the number of different GPUs.
    let (different, peak) = (request.gpus().len(), request.request.effective().gpus());
    if different as u64 != peak {
        return malformed(format!("the pod needs {peak} GPUs at its peak, its containers get {different}"));
    }
    Ok(())
}

/// Bytes a lease takes in a message, from above.
#[must_use]
pub fn message_bytes(request: &LeaseRequest) -> usize {
    const LEASE: usize = 96;
    const ENTRY: usize = 24;
    let names = |resources: &Resources| -> usize {
        resources.iter().map(|(name, _)| ENTRY + name.as_str().len()).sum()
    };
    let containers = request.request.containers.iter();
    let devices = request.devices.iter();
    LEASE
        + [&request.pod_name, &request.gang]
            .iter()
            .map(|name| name.namespace.len() + name.name.len())
            .sum::<usize>()
        + request.pod.as_str().len()
        + names(&request.request.overhead)
        + containers.map(|container| ENTRY + container.name.len() + names(&container.requests)).sum::<usize>()
        + devices
            .map(|devices| {
                let nics: usize = devices.nics.iter().map(|nic| ENTRY + nic.len()).sum();
                ENTRY + devices.container.len() + ENTRY * devices.gpus.len() + nics
            })
            .sum::<usize>()
}
