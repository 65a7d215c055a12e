//! PodGroup, PriorityClass and Node.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::constraints::Taint;
use phalanx_common::gang::SubGroupPolicy;
use phalanx_common::resources::Resources;

use super::amounts::read_resources;
use super::constraints::read_taints;
use super::names::{DEFAULT_QUEUE, read_name};
use super::reader::{Cursor, Sink};
use super::selector::requirements;

/// What we read of a PodGroup's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroupFields {
    /// Fewest pods that may run together.
    pub min_member: u32,
    /// The same of single tasks.
    pub min_task_member: BTreeMap<String, u32>,
    /// Resources that must be there before its pods exist.
    pub min_resources: Option<Resources>,
    /// Queue.
    pub queue: String,
    /// PriorityClass.
    pub priority_class: Option<String>,
    /// `preemptable`, which an annotation of that name goes before.
    pub preemptable: Option<bool>,
    /// Parts each of which is placed wholly or not at all.
    pub sub_groups: Vec<SubGroupPolicy>,
}

impl Default for PodGroupFields {
    fn default() -> Self {
        Self {
            min_member: 1,
            min_task_member: BTreeMap::new(),
            min_resources: None,
            queue: DEFAULT_QUEUE.to_owned(),
            priority_class: None,
            preemptable: None,
            sub_groups: Vec::new(),
        }
    }
}

/// What we read of a PriorityClass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityFields {
    /// Higher goes first.
    pub value: i32,
    /// Holds for those that name no class.
    pub global_default: bool,
    /// `preemptionPolicy: Never`: nothing is evicted for its gangs.
    pub never_preempts: bool,
}

/// What we read of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFields {
    /// What pods may use in all.
    pub allocatable: Resources,
    /// Takes no new pods.
    pub unschedulable: bool,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Its condition `Ready` is true, or it has none.
    pub ready: bool,
}

impl Default for NodeFields {
    fn default() -> Self {
        Self { allocatable: Resources::new(), unschedulable: false, taints: Vec::new(), ready: true }
    }
}

/// Reads a PodGroup's spec; it may be absent.
pub fn read_pod_group(cursor: Option<&Cursor<'_>>, sink: &mut Sink) -> PodGroupFields {
    let mut group = PodGroupFields::default();
    let Some(mut fields) = cursor.and_then(|at| at.fields(sink)) else { return group };
    if let Some(minimum) = fields.get("minMember").and_then(|at| at.count(sink)) {
        group.min_member = minimum;
    }
    if let Some(at) = fields.get("minTaskMember") {
        for (task, at) in at.entries(sink).into_iter().flatten() {
            if let Some(minimum) = at.count(sink) {
                group.min_task_member.insert(task.to_owned(), minimum);
            }
        }
    }
    group.min_resources = fields.get("minResources").map(|at| read_resources(&at, sink));
    if let Some(queue) = fields.get("queue").and_then(|at| read_queue_name(&at, sink)) {
        group.queue = queue;
    }
    group.priority_class = fields.get("priorityClassName").and_then(|at| read_priority_class(&at, sink));
    group.preemptable = fields.get("preemptable").and_then(|at| at.boolean(sink));
    if let Some(at) = fields.get("subGroupPolicy") {
        let policies = at.list(sink).into_iter().flatten().enumerate();
        group.sub_groups = policies.filter_map(|(place, at)| read_sub_groups(place, &at, sink)).collect();
    }
    fields.not_honoured(sink, &["networkTopology"]);
    fields.finish(sink);
    group
}

/// Reads one entry of `subGroupPolicy`. How close together its pods must be has no effect yet.
fn read_sub_groups(place: usize, cursor: &Cursor<'_>, sink: &mut Sink) -> Option<SubGroupPolicy> {
    let mut fields = cursor.fields(sink)?;
    let name = fields.get("name").and_then(|at| at.text(sink)).filter(|name| !name.is_empty());
    let number = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    let most = i64::from(i32::MAX);
    let size = fields.get("subGroupSize").and_then(|at| at.whole(sink, 1, most));
    let minimum = fields.get("minSubGroups").and_then(|at| at.whole(sink, 0, most));
    let mut policy = SubGroupPolicy {
        name: name.map_or_else(|| Arc::from(format!("{place}")), Arc::from),
        size: number(size).unwrap_or(1),
        minimum: number(minimum).unwrap_or(0),
        selector: Vec::new(),
        match_labels: Vec::new(),
    };
    if let Some(at) = fields.get("labelSelector") {
        match requirements(&at.node.to_json()) {
            Ok(selector) => policy.selector = selector,
            Err(problem) => at.error(sink, problem),
        }
    }
    if let Some(at) = fields.get("matchLabelKeys") {
        let keys = at.list(sink).into_iter().flatten();
        policy.match_labels = keys.filter_map(|at| at.text(sink)).map(Arc::from).collect();
    }
    fields.not_honoured(sink, &["networkTopology"]);
    fields.finish(sink);
    Some(policy)
}

/// A queue's name; empty text means none, as controllers write it.
pub fn read_queue_name(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    let text = cursor.text(sink)?;
    if text.is_empty() { None } else { read_name(cursor, sink) }
}

/// A PriorityClass's name; empty text means none.
pub fn read_priority_class(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    read_queue_name(cursor, sink)
}

/// Largest value of a PriorityClass that is not Kubernetes' own.
const MAX_PRIORITY: i64 = 1_000_000_000;

/// Reads a PriorityClass, whose fields stand beside `metadata`.
pub fn read_priority(cursor: &Cursor<'_>, sink: &mut Sink) -> PriorityFields {
    read_priority_up_to(MAX_PRIORITY, cursor, sink)
}

/// The same of one that is stored: Kubernetes' own classes have greater values.
pub fn read_stored_priority(cursor: &Cursor<'_>, sink: &mut Sink) -> PriorityFields {
    read_priority_up_to(i64::from(i32::MAX), cursor, sink)
}

fn read_priority_up_to(most: i64, cursor: &Cursor<'_>, sink: &mut Sink) -> PriorityFields {
    let mut priority = PriorityFields::default();
    let Some(mut fields) = cursor.fields(sink) else { return priority };
    fields.ignore(&["apiVersion", "kind", "metadata"]);
    if let Some(value) = fields
        .required(sink, "value", "a whole number up to 1000000000")
        .and_then(|at| at.whole(sink, i64::from(i32::MIN), most))
    {
        priority.value = i32::try_from(value).unwrap_or_default();
    }
    priority.global_default = fields.get("globalDefault").and_then(|at| at.boolean(sink)).unwrap_or_default();
    if let Some(at) = fields.get("description") {
        at.text(sink);
    }
    if let Some(at) = fields.get("preemptionPolicy") {
        priority.never_preempts = read_never_preempts(&at, sink);
    }
    fields.finish(sink);
    priority
}

/// Reads `preemptionPolicy`; true where nothing is evicted.
pub(super) fn read_never_preempts(cursor: &Cursor<'_>, sink: &mut Sink) -> bool {
    cursor.one_of(sink, &["PreemptLowerPriority", "Never"]) == Some("Never")
}

/// Reads a Node: `spec` and `status.allocatable` of a manifest.
pub fn read_node(spec: Option<&Cursor<'_>>, status: Option<&Cursor<'_>>, sink: &mut Sink) -> NodeFields {
    let mut node = NodeFields::default();
    if let Some(at) = spec.and_then(|spec| read_node_spec(&mut node, spec, sink)) {
        node.allocatable = read_resources(&at, sink);
    }
    if let Some(mut fields) = status.and_then(|at| at.fields(sink)) {
        let capacity = fields.get("capacity");
        if let Some(at) = fields.get("allocatable").or(capacity) {
            node.allocatable = read_resources(&at, sink);
        }
        if let Some(at) = fields.get("conditions") {
            node.ready &= is_ready(&at, sink);
        }
    }
    node
}

/// Reads a Node as it is stored. An amount that cannot be read is told to `amounts`, and the node has none of that: one
/// device plugin's slip must not cost the whole node.
pub fn read_stored_node(spec: &Cursor<'_>, amounts: &mut Sink, sink: &mut Sink) -> NodeFields {
    let mut node = NodeFields::default();
    if let Some(at) = read_node_spec(&mut node, spec, sink) {
        node.allocatable = read_resources(&at, amounts);
    }
    node
}

/// All but what pods may use; gives where that stands.
fn read_node_spec<'n>(node: &mut NodeFields, spec: &Cursor<'n>, sink: &mut Sink) -> Option<Cursor<'n>> {
    let mut fields = spec.fields(sink)?;
    let allocatable = fields.get("allocatable");
    node.unschedulable = fields.get("unschedulable").and_then(|at| at.boolean(sink)).unwrap_or_default();
    node.taints = fields.get("taints").map(|at| read_taints(&at, sink)).unwrap_or_default();
    node.ready = fields.get("ready").and_then(|at| at.boolean(sink)).unwrap_or(true);
    fields.ignore(&["podCIDR", "podCIDRs", "providerID", "configSource", "externalID"]);
    fields.finish(sink);
    allocatable
}

/// The condition `Ready` says True, or there is none.
fn is_ready(conditions: &Cursor<'_>, sink: &mut Sink) -> bool {
    for at in conditions.list(sink).into_iter().flatten() {
        let Some(mut fields) = at.fields(sink) else { continue };
        let kind = fields.get("type").and_then(|at| at.text(sink));
        let status = fields.get("status").and_then(|at| at.text(sink));
        if kind == Some("Ready") {
            return status == Some("True");
        }
    }
    true
}
