//! Topology classes and GPU models of the nodes that are there. They are made from what agents say: what no node has
//! any more is forgotten and its number used again, so that whatever an agent says, no more is kept than one class
//! and its models for each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::GpuId;
use phalanx_common::topology::Inventory;
use serde::{Deserialize, Serialize};

use super::{Cluster, NodeIndex};
use crate::class::{Class, ClassKey, ModelId};

/// Number of a topology class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ClassId(u32);

impl ClassId {
    /// Nodes without GPUs.
    pub(super) const EMPTY: Self = Self(0);
}

/// Nodes of one class by free mask, grouped by the number of free GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClassIndex {
    pub(crate) by_count: Vec<BTreeMap<u64, BTreeSet<NodeIndex>>>,
    /// Nodes whose agents say that they are of this class, open or not.
    members: u32,
}

impl ClassIndex {
    fn new(gpus: u32) -> Self {
        Self { by_count: vec![BTreeMap::new(); gpus as usize + 1], members: 0 }
    }
}

/// One GPU model.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Model {
    name: Arc<str>,
    /// Free GPUs of open nodes.
    free: u64,
    /// Classes that have such GPUs.
    classes: u32,
}

/// All classes and models.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Classes {
    #[serde(with = "crate::pairs")]
    ids: BTreeMap<ClassKey, ClassId>,
    classes: Vec<Class>,
    index: Vec<ClassIndex>,
    /// Numbers that no class has now.
    vacant: BTreeSet<ClassId>,
    model_ids: BTreeMap<Arc<str>, ModelId>,
    models: Vec<Model>,
    /// Numbers that no model has now.
    vacant_models: BTreeSet<ModelId>,
}

impl Default for Classes {
    /// With the class of nodes without GPUs, which stays.
    fn default() -> Self {
        let mut classes = Self {
            ids: BTreeMap::new(),
            classes: Vec::new(),
            index: Vec::new(),
            vacant: BTreeSet::new(),
            model_ids: BTreeMap::new(),
            models: Vec::new(),
            vacant_models: BTreeSet::new(),
        };
        classes.enter(&Inventory::empty(0, 0));
        classes
    }
}

impl Classes {
    /// Entries of the tables, by name: numbers that wait to be used again are entries too.
    pub(super) fn kept(&self) -> [(&'static str, usize); 3] {
        [
            ("topology_classes", self.classes.len()),
            ("gpu_sets", self.classes.iter().map(Class::kept).sum()),
            ("gpu_models", self.models.len()),
        ]
    }

    /// Class of a node with this inventory, which is one of its members from now on.
    pub(super) fn enter(&mut self, inventory: &Inventory) -> ClassId {
        let key = ClassKey::of(inventory);
        let id = match self.ids.get(&key) {
            Some(id) => *id,
            None => self.make(key, inventory),
        };
        self.index[id.0 as usize].members += 1;
        id
    }

    fn make(&mut self, key: ClassKey, inventory: &Inventory) -> ClassId {
        let mut masks: BTreeMap<ModelId, u64> = BTreeMap::new();
        for (at, name) in key.models().iter().enumerate() {
            *masks.entry(self.model(name)).or_default() |= 1 << at;
        }
        for model in masks.keys() {
            self.models[model.0 as usize].classes += 1;
        }
        let class = Class::new(inventory, masks.into_iter().collect());
        let index = ClassIndex::new(class.gpus);
        let id = if let Some(id) = self.vacant.pop_first() {
            self.classes[id.0 as usize] = class;
            self.index[id.0 as usize] = index;
            id
        } else {
            self.classes.push(class);
            self.index.push(index);
            ClassId(u32::try_from(self.classes.len() - 1).unwrap_or(u32::MAX))
        };
        self.ids.insert(key, id);
        id
    }

    fn model(&mut self, name: &Arc<str>) -> ModelId {
        if let Some(model) = self.model_ids.get(name) {
            return *model;
        }
        let model = Model { name: name.clone(), free: 0, classes: 0 };
        let id = if let Some(id) = self.vacant_models.pop_first() {
            self.models[id.0 as usize] = model;
            id
        } else {
            self.models.push(model);
            ModelId(u32::try_from(self.models.len() - 1).unwrap_or(u32::MAX))
        };
        self.model_ids.insert(name.clone(), id);
        id
    }

    /// A node that stands in no index any more is of this class no more. The last one takes the class with it.
    pub(super) fn leave(&mut self, id: ClassId) {
        let index = &mut self.index[id.0 as usize];
        index.members = index.members.saturating_sub(1);
        if index.members > 0 || id == ClassId::EMPTY {
            return;
        }
        let none = Class::new(&Inventory::empty(0, 0), Vec::new());
        *index = ClassIndex::new(0);
        let class = std::mem::replace(&mut self.classes[id.0 as usize], none);
        self.ids.retain(|_, known| *known != id);
        self.vacant.insert(id);
        for (model_id, _) in class.models {
            let model = &mut self.models[model_id.0 as usize];
            model.classes -= 1;
            if model.classes == 0 {
                self.model_ids.remove(&model.name);
                *model = Model { name: Arc::from(""), free: 0, classes: 0 };
                self.vacant_models.insert(model_id);
            }
        }
    }

    /// A node is open, with these GPUs free.
    pub(super) fn insert(&mut self, node: NodeIndex, class: ClassId, free: u64) {
        self.count_models(class, free, true);
        let group = &mut self.index[class.0 as usize].by_count[free.count_ones() as usize];
        group.entry(free).or_default().insert(node);
    }

    /// It is not any more.
    pub(super) fn remove(&mut self, node: NodeIndex, class: ClassId, free: u64) {
        self.count_models(class, free, false);
        let group = &mut self.index[class.0 as usize].by_count[free.count_ones() as usize];
        if let Some(nodes) = group.get_mut(&free) {
            nodes.remove(&node);
            if nodes.is_empty() {
                group.remove(&free);
            }
        }
    }

    fn count_models(&mut self, class: ClassId, mask: u64, add: bool) {
        for (model, model_mask) in &self.classes[class.0 as usize].models {
            let count = u64::from((mask & model_mask).count_ones());
            let free = &mut self.models[model.0 as usize].free;
            *free = if add { *free + count } else { free.saturating_sub(count) };
        }
    }
}

impl Cluster {
    pub(crate) fn class(&self, id: ClassId) -> &Class {
        &self.classes.classes[id.0 as usize]
    }

    /// All classes; a number that none has now stands for one without GPUs and nodes.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (&Class, &ClassIndex)> {
        self.classes.classes.iter().zip(&self.classes.index)
    }

    /// Models by number of free GPUs, the scarcest first.
    pub(crate) fn models_scarcest_first(&self) -> Vec<ModelId> {
        let table = &self.classes.models;
        let mut models: Vec<ModelId> = self.classes.model_ids.values().copied().collect();
        models.sort_by_key(|model| (table[model.0 as usize].free, &table[model.0 as usize].name));
        models
    }

    pub(crate) fn model_of(&self, index: NodeIndex, gpu: GpuId) -> Option<ModelId> {
        let agent = self.node(index).agent.as_ref()?;
        let known = agent.inventory.gpus.iter().find(|known| known.id == gpu)?;
        self.classes.model_ids.get(known.model.as_str()).copied()
    }
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::NodeName;
    use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, PcieLevel};
    use phalanx_common::units::Time;

    use super::*;

    fn inventory(node: u32, model: String, nvlinks: u8) -> Inventory {
        let gpu = |at: u32| Gpu {
            id: GpuId(u128::from(node * 8 + at)),
            index: at,
            model: model.clone(),
            memory_mib: None,
            pci_bus_id: String::new(),
            numa: None,
            health: GpuHealth::Healthy,
        };
        let link = GpuLink { nvlinks, pcie: PcieLevel::Pix };
        Inventory {
            gpus: (0..4).map(gpu).collect(),
            links: vec![vec![link; 4]; 4],
            ..Inventory::empty(64_000, 1 << 40)
        }
    }

    fn kept(cluster: &Cluster) -> BTreeMap<&'static str, usize> {
        cluster.classes.kept().into_iter().collect()
    }

    #[test]
    fn what_no_node_has_any_more_is_forgotten_whatever_agents_say() {
        let mut cluster = Cluster::default();
        let name = |node: u32| NodeName::from(format!("n{node}"));
        for node in 0..3 {
            cluster.apply_inventory(&name(node), 1, inventory(node, "H100".to_owned(), 12));
        }
        for round in 0..2_000_u32 {
            let nvlinks = u8::try_from(round % 251).unwrap_or(0);
            cluster.apply_inventory(&name(2), 1, inventory(2, format!("model {round}"), nvlinks));
            // It is a class like any other meanwhile.
            assert_eq!(cluster.classes().filter(|(class, _)| class.gpus == 4).count(), 2);
            let model = cluster.model_of(NodeIndex(2), GpuId(16));
            let models = cluster.models_scarcest_first();
            assert!(models.len() == 2 && model == models.first().copied(), "{models:?} {model:?}");
            assert!(cluster.class(ClassId(1)).best(0b1111, 2).is_some());
        }
        let most = kept(&cluster);
        assert!(
            most["topology_classes"] <= 4 && most["gpu_models"] <= 3 && most["gpu_sets"] <= 1,
            "{most:?}"
        );
        // The class that two nodes had all the time is whole: both stand in it.
        let shared = cluster.classes().find(|(class, index)| class.gpus == 4 && index.members == 2);
        let free: usize =
            shared.iter().flat_map(|(_, index)| index.by_count[4].values()).map(BTreeSet::len).sum();
        assert_eq!(free, 2);
        for node in 0..3 {
            let Some(index) = cluster.find(&name(node)) else { continue };
            cluster.disconnect(index, Time(1));
            cluster.forget_if_gone(index);
        }
        assert_eq!((cluster.classes.ids.len(), cluster.classes.model_ids.len()), (1, 0));
        assert!(cluster.classes.models.iter().all(|model| model.free == 0 && model.classes == 0));
        assert_eq!(kept(&cluster)["gpu_sets"], 0);
    }
}
