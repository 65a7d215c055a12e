//! The coordinator's ledger of nodes: what each has, what is used, which GPUs are free, and the
//! indexes by topology class and free mask. An index entry moves only when its node changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::constraints::{HOSTNAME_LABEL, HostPort};
use phalanx_common::ids::{GpuId, LeaseId, NodeName};
use phalanx_common::topology::{GpuHealth, Inventory, ProbeState};
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::amounts::{Amounts, ResourceTable};
use crate::class::bits;
use crate::event::NodeSpec;
use crate::gang::GangKey;
use crate::reason::Closed;

mod classes;
mod holds;
mod outline;
mod quarantine;
mod survey;
mod trial;
mod usage;

use classes::Classes;
pub(crate) use classes::{ClassId, ClassIndex};
pub(crate) use holds::{Lifted, NodeHold};
pub(crate) use quarantine::{EarlyEnd, Quarantine};
pub(crate) use survey::Kind;
use survey::Survey;
pub(crate) use usage::InUse;

/// Number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct NodeIndex(pub(crate) u32);

/// The agent's side of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentSide {
    /// Connection, while it is up.
    pub(crate) session: Option<u64>,
    pub(crate) inventory: Inventory,
    pub(crate) class: ClassId,
    /// Holder of each GPU, by position.
    pub(crate) holders: Vec<Option<LeaseId>>,
}

/// One node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: NodeName,
    pub(crate) spec: Option<NodeSpec>,
    /// Its object was there and was deleted.
    pub(crate) deleted: bool,
    pub(crate) agent: Option<AgentSide>,
    pub(crate) labels: BTreeMap<Arc<str>, Arc<str>>,
    pub(crate) capacity: Amounts,
    /// Pods it may have; `None` where nobody says.
    #[serde(default)]
    pub(crate) most_pods: Option<u64>,
    pub(crate) used: InUse,
    /// What of that is held for gangs and used by nobody.
    #[serde(default)]
    pub(crate) held: InUse,
    /// What is held of it, by gang.
    #[serde(default)]
    pub(crate) holds: BTreeMap<GangKey, NodeHold>,
    /// GPUs that pods of others have, and pods of ours that somebody else bound; which ones nobody tells.
    #[serde(default)]
    pub(crate) others_gpus: u64,
    /// Healthy GPUs without holder, but for the last of them where others have some.
    pub(crate) free_mask: u64,
    /// Refusals since the last success.
    pub(crate) refusals: u32,
    /// Closed for a while, and why.
    pub(crate) quarantine: Option<Quarantine>,
    /// Since when the connection to its agent is down.
    pub(crate) away_since: Option<Time>,
    /// Its agent has obeyed this coordinator: it knew no higher term.
    pub(crate) obeyed: bool,
    /// It counts only with its object, whatever its agent says.
    #[serde(default)]
    needs_object: bool,
    /// Where the node stands in the index.
    indexed: Option<(ClassId, u64)>,
}

impl Node {
    fn new(name: NodeName, needs_object: bool) -> Self {
        let hostname = (Arc::from(HOSTNAME_LABEL), Arc::from(name.as_str()));
        Self {
            name,
            spec: None,
            deleted: false,
            agent: None,
            labels: BTreeMap::from([hostname]),
            capacity: Amounts::default(),
            most_pods: None,
            used: InUse::default(),
            held: InUse::default(),
            holds: BTreeMap::new(),
            others_gpus: 0,
            free_mask: 0,
            refusals: 0,
            quarantine: None,
            away_since: None,
            obeyed: false,
            needs_object,
            indexed: None,
        }
    }

    /// Why the node takes no new pods; `None` = it does.
    pub(crate) fn closed(&self) -> Option<Closed> {
        self.cordoned().or_else(|| self.shut())
    }

    /// Its object closes it to all but those pods that tolerate it.
    pub(crate) fn cordoned(&self) -> Option<Closed> {
        let spec = self.spec.as_ref()?;
        if spec.unschedulable {
            return Some(Closed::Unschedulable);
        }
        if !spec.ready {
            return Some(Closed::NotReady);
        }
        let taint = spec.taints.iter().find(|taint| taint.is_of_state() && taint.keeps_away());
        taint.map(|taint| Closed::Tainted(Arc::from(taint.to_string())))
    }

    /// Why it is closed to every pod.
    pub(crate) fn shut(&self) -> Option<Closed> {
        if self.needs_object && self.spec.is_none() {
            return Some(if self.deleted { Closed::Removed } else { Closed::NoObject });
        }
        match &self.agent {
            Some(AgentSide { session: None, .. }) => return Some(Closed::AgentAway),
            Some(AgentSide { inventory, .. }) => {
                if let ProbeState::DriverError(message) = &inventory.state {
                    return Some(Closed::DriverError(Arc::from(message.as_str())));
                }
            }
            None if self.spec.is_none() && self.deleted => return Some(Closed::Removed),
            // Known from what runs there; its agent has not been heard of since the start.
            None if self.spec.is_none() => return Some(Closed::AgentAway),
            None => {}
        }
        self.quarantine.as_ref().map(|quarantine| Closed::Quarantined(quarantine.why.clone()))
    }

    /// As it will be when its state is well again; cordoned stays cordoned.
    fn recover(&mut self) {
        if let Some(spec) = &mut self.spec {
            spec.ready = true;
            spec.taints.retain(|taint| !taint.is_of_state());
        }
    }

    /// As it would be if a person made it schedulable.
    fn uncordon(&mut self) {
        self.recover();
        if let Some(spec) = &mut self.spec {
            spec.unschedulable = false;
        }
    }

    /// What it has is not known: neither object nor agent was heard of yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.spec.is_none() && self.agent.is_none() && !self.deleted && !self.needs_object
    }

    /// What it has counts for the cluster.
    pub(crate) fn is_there(&self) -> bool {
        self.spec.is_some() || (self.agent.is_some() && !self.needs_object)
    }

    /// Position of a GPU.
    pub(crate) fn position(&self, gpu: GpuId) -> Option<usize> {
        self.agent.as_ref()?.inventory.gpus.iter().position(|known| known.id == gpu)
    }

    /// How many of these GPUs are healthy.
    pub(crate) fn healthy_of(&self, gpus: &[GpuId]) -> u64 {
        let known = self.agent.iter().flat_map(|agent| &agent.inventory.gpus);
        known.filter(|gpu| gpu.health.is_healthy() && gpus.contains(&gpu.id)).count() as u64
    }

    /// UUIDs of a mask.
    pub(crate) fn gpu_ids(&self, mask: u64) -> Vec<GpuId> {
        self.agent.as_ref().map_or_else(Vec::new, |agent| {
            bits(mask).filter_map(|at| agent.inventory.gpus.get(at)).map(|gpu| gpu.id).collect()
        })
    }
}

/// All nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    /// Numbers that no node has now.
    vacant: BTreeSet<NodeIndex>,
    by_name: BTreeMap<NodeName, NodeIndex>,
    classes: Classes,
    /// An API server says which nodes there are.
    #[serde(default)]
    need_objects: bool,
    pub(crate) resources: ResourceTable,
    /// Nodes of which something is held, by gang.
    #[serde(default)]
    held_nodes: BTreeMap<GangKey, BTreeSet<NodeIndex>>,
    /// Which nodes are alike; `None` until somebody asks, and when nodes come or go.
    #[serde(skip)]
    survey: Option<Survey>,
    /// Raised when what the cluster has in all changes.
    pub(crate) capacity_generation: u64,
    /// Raised when anything became free or came back.
    pub(crate) room_generation: u64,
}

/// What an allocation takes from its node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) lease: LeaseId,
    pub(crate) amounts: Amounts,
    pub(crate) gpus: Vec<GpuId>,
    /// Ports of the node.
    #[serde(default)]
    pub(crate) ports: Vec<HostPort>,
}

impl Cluster {
    /// No nodes yet. Where an API server says which there are, one without object is closed.
    pub(crate) fn new(need_objects: bool) -> Self {
        Self { need_objects, ..Self::default() }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        let numbered = self.nodes.iter().enumerate();
        let numbered = numbered.map(|(at, node)| (NodeIndex(u32::try_from(at).unwrap_or(u32::MAX)), node));
        numbered.filter(|(index, _)| !self.vacant.contains(index))
    }

    /// Entries of its tables, by name.
    pub(crate) fn kept(&self) -> Vec<(&'static str, usize)> {
        let mut kept = vec![("nodes", self.by_name.len()), ("node_numbers", self.nodes.len())];
        kept.extend(self.classes.kept());
        kept.push(("resource_names", self.resources.len()));
        kept
    }

    pub(crate) fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.0 as usize]
    }

    pub(crate) fn find(&self, name: &NodeName) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    fn ensure(&mut self, name: &NodeName) -> NodeIndex {
        if let Some(index) = self.find(name) {
            return index;
        }
        let index = self.vacant.pop_first().unwrap_or_else(|| {
            let index = NodeIndex(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
            self.nodes.push(Node::new(name.clone(), self.need_objects));
            index
        });
        self.nodes[index.0 as usize] = Node::new(name.clone(), self.need_objects);
        self.by_name.insert(name.clone(), index);
        self.survey = None;
        index
    }

    /// Forgets a node of which neither object nor connection is left; the caller knows that no lease is
    /// either. Its number is used again, so that nodes that come and go cost no memory.
    pub(crate) fn forget_if_gone(&mut self, index: NodeIndex) {
        let node = &self.nodes[index.0 as usize];
        let is_away = node.agent.as_ref().is_none_or(|agent| agent.session.is_none());
        if node.spec.is_some() || !is_away || self.vacant.contains(&index) {
            return;
        }
        let name = node.name.clone();
        let class = node.agent.as_ref().map(|agent| agent.class);
        for key in node.holds.keys() {
            if let Some(nodes) = self.held_nodes.get_mut(key) {
                nodes.remove(&index);
            }
        }
        self.change(index, |node| node.agent = None);
        if let Some(class) = class {
            self.classes.leave(class);
        }
        self.by_name.remove(&name);
        self.vacant.insert(index);
        self.survey = None;
        self.note_change();
    }

    /// A node object is there, or changed.
    pub(crate) fn apply_spec(&mut self, spec: NodeSpec) -> NodeIndex {
        let index = self.ensure(&spec.name);
        self.change(index, |node| {
            node.spec = Some(spec);
            node.deleted = false;
        });
        index
    }

    /// A node object is gone. A node whose agent speaks stays: open only where no API server says which there are.
    pub(crate) fn remove_spec(&mut self, name: &NodeName) {
        if let Some(index) = self.find(name) {
            self.change(index, |node| node.deleted = node.spec.take().is_some() || node.deleted);
        }
    }

    /// An agent told what its node has; holders are kept by UUID.
    pub(crate) fn apply_inventory(
        &mut self,
        name: &NodeName,
        session: u64,
        inventory: Inventory,
    ) -> NodeIndex {
        let index = self.ensure(name);
        let class = self.classes.enter(&inventory);
        let node = &self.nodes[index.0 as usize];
        let class_before = node.agent.as_ref().map(|agent| agent.class);
        let held: BTreeMap<GpuId, LeaseId> = node.agent.as_ref().map_or_else(BTreeMap::new, |agent| {
            let gpus = agent.inventory.gpus.iter();
            gpus.zip(&agent.holders).filter_map(|(gpu, holder)| Some((gpu.id, (*holder)?))).collect()
        });
        let holders = inventory.gpus.iter().map(|gpu| held.get(&gpu.id).copied()).collect();
        self.change(index, |node| {
            node.away_since = None;
            node.agent = Some(AgentSide { session: Some(session), inventory, class, holders });
        });
        if let Some(class) = class_before {
            self.classes.leave(class);
        }
        index
    }

    /// Some GPUs changed their health.
    pub(crate) fn apply_health(&mut self, index: NodeIndex, changed: &[(GpuId, GpuHealth)]) {
        self.change(index, |node| {
            let Some(agent) = &mut node.agent else { return };
            for (id, health) in changed {
                if let Some(gpu) = agent.inventory.gpus.iter_mut().find(|gpu| gpu.id == *id) {
                    gpu.health = health.clone();
                }
            }
        });
    }

    /// An agent knows no higher term than ours.
    pub(crate) fn note_obedience(&mut self, index: NodeIndex) {
        self.nodes[index.0 as usize].obeyed = true;
    }

    /// An agent's connection ended.
    pub(crate) fn disconnect(&mut self, index: NodeIndex, now: Time) {
        self.change(index, |node| {
            node.away_since = Some(now);
            if let Some(agent) = &mut node.agent {
                agent.session = None;
            }
        });
    }

    /// Takes resources of a node.
    pub(crate) fn take(&mut self, index: NodeIndex, taken: &Taken) {
        let node = &mut self.nodes[index.0 as usize];
        node.used.add(&taken.amounts, &taken.ports);
        node.others_gpus = node.others_gpus.saturating_add(taken.unnamed_gpus());
        self.set_holders(index, &taken.gpus, None, Some(taken.lease));
        self.refresh(index);
    }

    /// Gives resources back.
    pub(crate) fn give_back(&mut self, index: NodeIndex, taken: &Taken) {
        let node = &mut self.nodes[index.0 as usize];
        node.used.subtract(&taken.amounts, &taken.ports);
        node.others_gpus = node.others_gpus.saturating_sub(taken.unnamed_gpus());
        self.set_holders(index, &taken.gpus, Some(taken.lease), None);
        self.room_generation += 1;
        self.end_stand(index, taken);
        self.refresh(index);
    }

    /// Marks GPUs of a lease whose node was not known when the lease was.
    pub(crate) fn attach(&mut self, index: NodeIndex, taken: &Taken) {
        self.set_holders(index, &taken.gpus, None, Some(taken.lease));
        self.refresh(index);
    }

    fn set_holders(&mut self, index: NodeIndex, gpus: &[GpuId], from: Option<LeaseId>, to: Option<LeaseId>) {
        if let Some(agent) = &mut self.nodes[index.0 as usize].agent {
            for (gpu, holder) in agent.inventory.gpus.iter().zip(&mut agent.holders) {
                // A GPU that another lease holds already stays with it: the first holder is the one that runs.
                if gpus.contains(&gpu.id) && *holder == from {
                    *holder = to;
                }
            }
        }
    }

    /// Makes sure that a lease can be charged to a node that was not seen yet.
    pub(crate) fn ensure_node(&mut self, name: &NodeName) -> NodeIndex {
        self.ensure(name)
    }

    /// Brings free mask and index entry of one node up to date.
    fn refresh(&mut self, index: NodeIndex) {
        self.note_for_survey(index);
        let node = &mut self.nodes[index.0 as usize];
        node.free_mask = without_last(node.unused_mask(), node.others_gpus) & !node.held_mask();
        let class = node.agent.as_ref().map_or(ClassId::EMPTY, |agent| agent.class);
        let target = node.closed().is_none().then_some((class, node.free_mask));
        if node.indexed == target {
            return;
        }
        let before = std::mem::replace(&mut node.indexed, target);
        if let Some((class, free)) = before {
            self.classes.remove(index, class, free);
        }
        if let Some((class, free)) = target {
            self.classes.insert(index, class, free);
            if before.is_none() {
                self.room_generation += 1;
            }
        }
    }

    /// Brings capacity and labels of one node up to date.
    fn refresh_capacity(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let spec = node.spec.as_ref().map(|spec| self.resources.amounts(&spec.allocatable));
        let listed = self.resources.listed(&spec.unwrap_or_default(), node.agent.is_some());
        node.capacity = match &node.agent {
            Some(agent) => {
                let healthy = agent.inventory.gpus.iter().filter(|gpu| gpu.health.is_healthy());
                let mut capacity = Amounts::default();
                capacity.cpu_milli = agent.inventory.cpu_milli;
                capacity.memory_bytes = agent.inventory.memory_bytes;
                capacity.gpus = healthy.count() as u64;
                capacity.lower_to(&listed);
                // What the agent does not see is the Node's word.
                capacity.take_more(listed);
                capacity
            }
            None => listed,
        };
        node.most_pods = node.spec.as_ref().and_then(|spec| spec.allocatable.get("pods"));
        node.labels = node.spec.as_ref().map_or_else(BTreeMap::new, |spec| spec.labels.clone());
        node.labels.entry(Arc::from(HOSTNAME_LABEL)).or_insert_with(|| Arc::from(node.name.as_str()));
    }
}

/// A mask without its last `count` bits that are set.
fn without_last(mask: u64, count: u64) -> u64 {
    let mut left = mask;
    for _ in 0..count.min(64) {
        if left == 0 {
            break;
        }
        left ^= 1 << left.ilog2();
    }
    left
}
