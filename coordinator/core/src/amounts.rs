//! Amounts as the core adds and compares them: the three common resources as plain numbers, the rest
//! by interned id. Same meaning as `Resources`, without text in the hot path.

use std::collections::BTreeMap;

use phalanx_common::resources::{CPU, MEMORY, NVIDIA_GPU, ResourceName, Resources};
use serde::{Deserialize, Serialize};

/// Pods, as a resource of queues and nodes.
pub(crate) const PODS: &str = "pods";

/// Number of an interned resource name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ResourceId(u32);

/// One resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum ResourceKey {
    Cpu,
    Memory,
    Gpus,
    /// Pods themselves: counted in queues, where each is one; on nodes they are counted beside their amounts.
    Pods,
    More(ResourceId),
}

/// Names of the resources that are not cpu, memory or NVIDIA GPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResourceTable {
    ids: BTreeMap<ResourceName, ResourceId>,
    names: Vec<ResourceName>,
}

impl ResourceTable {
    fn intern(&mut self, name: &ResourceName) -> ResourceId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = ResourceId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        self.ids.insert(name.clone(), id);
        self.names.push(name.clone());
        id
    }

    /// Names known.
    pub(crate) const fn len(&self) -> usize {
        self.names.len()
    }

    /// The resource of a name.
    pub(crate) fn key(&mut self, name: &ResourceName) -> ResourceKey {
        match name.as_str() {
            CPU => ResourceKey::Cpu,
            MEMORY => ResourceKey::Memory,
            NVIDIA_GPU => ResourceKey::Gpus,
            PODS => ResourceKey::Pods,
            _ => ResourceKey::More(self.intern(name)),
        }
    }

    /// The resource of a name that is known.
    pub(crate) fn find(&self, name: &str) -> Option<ResourceKey> {
        match name {
            CPU => Some(ResourceKey::Cpu),
            MEMORY => Some(ResourceKey::Memory),
            NVIDIA_GPU => Some(ResourceKey::Gpus),
            PODS => Some(ResourceKey::Pods),
            _ => self
                .names
                .iter()
                .position(|known| known.as_str() == name)
                .and_then(|at| Some(ResourceKey::More(ResourceId(u32::try_from(at).ok()?)))),
        }
    }

    /// The amounts that a Node lists, without devices that nobody may count by its word: of a node without an agent all
    /// are such, and else parts of GPUs.
    pub(crate) fn listed(&self, amounts: &Amounts, has_agent: bool) -> Amounts {
        let counts = |name: &ResourceName| !name.is_device() || (has_agent && name.is_counted());
        let more = amounts.more.iter().copied();
        let more = more.filter(|(id, _)| self.names.get(id.0 as usize).is_some_and(counts)).collect();
        Amounts { gpus: 0, more, ..amounts.clone() }
    }

    /// The name of a resource.
    pub(crate) fn name(&self, key: ResourceKey) -> &str {
        match key {
            ResourceKey::Cpu => CPU,
            ResourceKey::Memory => MEMORY,
            ResourceKey::Gpus => NVIDIA_GPU,
            ResourceKey::Pods => PODS,
            ResourceKey::More(id) => self.names.get(id.0 as usize).map_or("", ResourceName::as_str),
        }
    }

    /// Text form to numbers.
    pub(crate) fn amounts(&mut self, resources: &Resources) -> Amounts {
        Amounts::of(resources, |name| Some(self.intern(name)))
    }

    /// The same for what only an agent says: names that nobody here knows are left out. No node offers them, no pod
    /// asks for them, and an agent must not make this table grow.
    pub(crate) fn amounts_known(&self, resources: &Resources) -> Amounts {
        Amounts::of(resources, |name| self.ids.get(name).copied())
    }

    /// Numbers to text form; zeros are left out.
    pub(crate) fn resources(&self, amounts: &Amounts) -> Resources {
        let mut resources = Resources::new();
        let common = [
            (CPU, amounts.cpu_milli),
            (MEMORY, amounts.memory_bytes),
            (NVIDIA_GPU, amounts.gpus),
            (PODS, amounts.pods),
        ];
        for (name, amount) in common {
            if amount > 0 {
                resources.set(ResourceName::known(name), amount);
            }
        }
        for (id, amount) in &amounts.more {
            if let (Some(name), true) = (self.names.get(id.0 as usize), *amount > 0) {
                resources.set(name.clone(), *amount);
            }
        }
        resources
    }
}

/// Amounts of resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Amounts {
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) gpus: u64,
    #[serde(default)]
    pub(crate) pods: u64,
    /// Everything else, by id, sorted.
    more: Vec<(ResourceId, u64)>,
}

impl Amounts {
    /// Nothing.
    pub(crate) const NONE: Self = Self { cpu_milli: 0, memory_bytes: 0, gpus: 0, pods: 0, more: Vec::new() };

    fn of(resources: &Resources, mut id_of: impl FnMut(&ResourceName) -> Option<ResourceId>) -> Self {
        let mut amounts = Self::default();
        for (name, amount) in resources.iter() {
            match name.as_str() {
                CPU => amounts.cpu_milli = amount,
                MEMORY => amounts.memory_bytes = amount,
                NVIDIA_GPU => amounts.gpus = amount,
                PODS => amounts.pods = amount,
                _ => amounts.more.extend(id_of(name).map(|id| (id, amount))),
            }
        }
        amounts.more.sort_unstable();
        amounts
    }

    /// What a pod that asks for this counts for in its queue: itself too.
    pub(crate) fn of_pod(&self) -> Self {
        Self { pods: 1, ..self.clone() }
    }

    /// Amount of one resource.
    pub(crate) fn get(&self, key: ResourceKey) -> u64 {
        match key {
            ResourceKey::Cpu => self.cpu_milli,
            ResourceKey::Memory => self.memory_bytes,
            ResourceKey::Gpus => self.gpus,
            ResourceKey::Pods => self.pods,
            ResourceKey::More(id) => self.more(id),
        }
    }

    /// Resources with an amount above zero.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ResourceKey> {
        let common =
            [ResourceKey::Gpus, ResourceKey::Cpu, ResourceKey::Memory, ResourceKey::Pods].into_iter();
        let more = self.more.iter().map(|(id, _)| ResourceKey::More(*id));
        common.chain(more).filter(|key| self.get(*key) > 0)
    }

    /// Makes the amount of one resource another.
    pub(crate) fn set(&mut self, key: ResourceKey, amount: u64) {
        match key {
            ResourceKey::Cpu => self.cpu_milli = amount,
            ResourceKey::Memory => self.memory_bytes = amount,
            ResourceKey::Gpus => self.gpus = amount,
            ResourceKey::Pods => self.pods = amount,
            ResourceKey::More(id) => match self.more.binary_search_by_key(&id, |(known, _)| *known) {
                Ok(at) => self.more[at].1 = amount,
                Err(at) => self.more.insert(at, (id, amount)),
            },
        }
    }

    fn more(&self, id: ResourceId) -> u64 {
        self.more.binary_search_by_key(&id, |(known, _)| *known).map_or(0, |at| self.more[at].1)
    }

    /// The first resource of which `self` does not fit beside `used` into `capacity`. Only what is asked
    /// for counts, and not GPUs: those are counted by mask, since a held GPU may have become unhealthy.
    pub(crate) fn short_beside_gpus(&self, used: &Self, capacity: &Self) -> Option<ResourceKey> {
        let short = |asked: u64, used: u64, capacity: u64| asked > 0 && used.saturating_add(asked) > capacity;
        if short(self.cpu_milli, used.cpu_milli, capacity.cpu_milli) {
            return Some(ResourceKey::Cpu);
        }
        if short(self.memory_bytes, used.memory_bytes, capacity.memory_bytes) {
            return Some(ResourceKey::Memory);
        }
        let more = self.more.iter().find(|(id, asked)| short(*asked, used.more(*id), capacity.more(*id)));
        more.map(|(id, _)| ResourceKey::More(*id))
    }

    /// Adds; a sum stops at the largest number, so that a nonsensical request cannot wrap around.
    pub(crate) fn add(&mut self, other: &Self) {
        self.cpu_milli = self.cpu_milli.saturating_add(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.gpus = self.gpus.saturating_add(other.gpus);
        self.pods = self.pods.saturating_add(other.pods);
        for (id, amount) in &other.more {
            match self.more.binary_search_by_key(id, |(known, _)| *known) {
                Ok(at) => self.more[at].1 = self.more[at].1.saturating_add(*amount),
                Err(at) => self.more.insert(at, (*id, *amount)),
            }
        }
    }

    /// Takes away; stops at zero.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(other.memory_bytes);
        self.gpus = self.gpus.saturating_sub(other.gpus);
        self.pods = self.pods.saturating_sub(other.pods);
        for (id, amount) in &other.more {
            if let Ok(at) = self.more.binary_search_by_key(id, |(known, _)| *known) {
                self.more[at].1 = self.more[at].1.saturating_sub(*amount);
            }
        }
    }

    /// Lowers each amount to at most that of `other` where `other` has one.
    pub(crate) fn lower_to(&mut self, other: &Self) {
        let lower = |mine: u64, theirs: u64| if theirs == 0 { mine } else { mine.min(theirs) };
        self.cpu_milli = lower(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = lower(self.memory_bytes, other.memory_bytes);
    }

    /// Only what `other` has something of.
    pub(crate) fn named_by(&self, other: &Self) -> Self {
        let keep = |mine: u64, theirs: u64| if theirs == 0 { 0 } else { mine };
        Self {
            cpu_milli: keep(self.cpu_milli, other.cpu_milli),
            memory_bytes: keep(self.memory_bytes, other.memory_bytes),
            gpus: keep(self.gpus, other.gpus),
            pods: keep(self.pods, other.pods),
            more: self.more.iter().copied().filter(|(id, _)| other.more(*id) > 0).collect(),
        }
    }

    /// Takes over the interned resources of `other`.
    pub(crate) fn take_more(&mut self, other: Self) {
        self.more = other.more;
    }

    /// Raises each amount to at least that of `other`.
    pub(crate) fn raise_to(&mut self, other: &Self) {
        self.cpu_milli = self.cpu_milli.max(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        self.gpus = self.gpus.max(other.gpus);
        self.pods = self.pods.max(other.pods);
        for (id, amount) in &other.more {
            match self.more.binary_search_by_key(id, |(known, _)| *known) {
                Ok(at) => self.more[at].1 = self.more[at].1.max(*amount),
                Err(at) => self.more.insert(at, (*id, *amount)),
            }
        }
    }

    /// True where all amounts are equal; one that is not named is zero.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let covers = |left: &Self, right: &Self| left.keys().all(|key| left.get(key) == right.get(key));
        covers(self, other) && covers(other, self)
    }

    /// True where nothing is named, or only zeros.
    pub(crate) fn is_zero(&self) -> bool {
        self.cpu_milli == 0
            && self.memory_bytes == 0
            && self.gpus == 0
            && self.pods == 0
            && self.more.iter().all(|(_, n)| *n == 0)
    }
}
