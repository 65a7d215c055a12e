//! Queue, PodGroup, PriorityClass and Node.

use std::collections::BTreeMap;

use phalanx_common::constraints::Taint;
use phalanx_common::resources::{CPU, MEMORY, Resources, format_amount};

use super::amounts::read_resources;
use super::constraints::read_taints;
use super::names::{DEFAULT_QUEUE, read_name};
use super::reader::{Cursor, Fields, Sink};

/// What we read of a Queue's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueFields {
    /// Priority.
    pub priority: i32,
    /// Ceiling; `cpu: 0` and `memory: 0` are left out.
    pub capability: Resources,
}

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
}

impl Default for PodGroupFields {
    fn default() -> Self {
        Self {
            min_member: 1,
            min_task_member: BTreeMap::new(),
            min_resources: None,
            queue: DEFAULT_QUEUE.to_owned(),
            priority_class: None,
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

/// Reads a Queue's spec; it may be absent.
pub fn read_queue(cursor: Option<&Cursor<'_>>, sink: &mut Sink) -> QueueFields {
    let mut queue = QueueFields::default();
    let Some(mut fields) = cursor.and_then(|at| at.fields(sink)) else { return queue };
    if let Some(at) = fields.get("weight")
        && at.whole(sink, 1, 65535).is_some()
    {
        at.warn_not_honoured(sink);
    }
    if let Some(at) = fields.get("priority") {
        queue.priority =
            at.whole(sink, 0, i64::from(i32::MAX)).and_then(|value| i32::try_from(value).ok()).unwrap_or(0);
    }
    if let Some(at) = fields.get("capability") {
        for (name, amount) in read_resources(&at, sink).iter() {
            if amount == 0 && matches!(name.as_str(), CPU | MEMORY) {
                let message = format!("0 means no limit, as in Volcano; leave {name} out to say so");
                at.entry_or_self(name.as_str()).warn(sink, message);
            } else {
                queue.capability.set(name.clone(), amount);
            }
        }
    }
    read_shares(&mut fields, &queue.capability, sink);
    if let Some(at) = fields.get("reclaimable")
        && at.boolean(sink).is_some()
    {
        at.warn_not_honoured(sink);
    }
    if let Some(at) = fields.get("dequeueStrategy")
        && at.one_of(sink, &["traverse", "fifo"]).is_some()
    {
        at.warn_not_honoured(sink);
    }
    if let Some(at) = fields.get("parent")
        && read_name(&at, sink).is_some()
    {
        at.warn_not_honoured(sink);
    }
    fields.not_honoured(sink, &["affinity", "extendClusters", "type"]);
    fields.finish(sink);
    queue
}

/// `guarantee` and `deserved` have no effect yet; they are checked: guarantee ≤ deserved ≤ capability.
fn read_shares(fields: &mut Fields<'_>, capability: &Resources, sink: &mut Sink) {
    let mut deserved = Resources::new();
    if let Some(at) = fields.get("deserved") {
        deserved = read_resources(&at, sink);
        at_most(&at, &deserved, "capability", capability, sink);
        at.warn_not_honoured(sink);
    }
    let Some(at) = fields.get("guarantee") else { return };
    if let Some(mut guarantee) = at.fields(sink) {
        if let Some(at) = guarantee.get("resource") {
            let resources = read_resources(&at, sink);
            at_most(&at, &resources, "deserved", &deserved, sink);
            at_most(&at, &resources, "capability", capability, sink);
        }
        guarantee.finish(sink);
    }
    at.warn_not_honoured(sink);
}

/// A resource that the limit does not name has none.
fn at_most(at: &Cursor<'_>, resources: &Resources, limit_name: &str, limits: &Resources, sink: &mut Sink) {
    for (name, amount) in resources.iter() {
        if let Some(limit) = limits.get(name.as_str())
            && amount > limit
        {
            let text = |amount| format_amount(name.as_str(), amount);
            let message =
                format!("must be at most {limit_name}, which is {}, found {}", text(limit), text(amount));
            at.entry_or_self(name.as_str()).error(sink, message);
        }
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
    fields.not_honoured(sink, &["networkTopology", "subGroupPolicy"]);
    fields.finish(sink);
    group
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
    if let Some(at) = fields.get("preemptionPolicy")
        && at.one_of(sink, &["PreemptLowerPriority", "Never"]).is_some()
    {
        at.warn_not_honoured(sink);
    }
    fields.finish(sink);
    priority
}

/// Reads a Node: `spec` and `status.allocatable` of a manifest.
pub fn read_node(spec: Option<&Cursor<'_>>, status: Option<&Cursor<'_>>, sink: &mut Sink) -> NodeFields {
    let mut node = NodeFields::default();
    if let Some(mut fields) = spec.and_then(|at| at.fields(sink)) {
        node.unschedulable = fields.get("unschedulable").and_then(|at| at.boolean(sink)).unwrap_or_default();
        if let Some(at) = fields.get("allocatable") {
            node.allocatable = read_resources(&at, sink);
        }
        node.taints = fields.get("taints").map(|at| read_taints(&at, sink)).unwrap_or_default();
        node.ready = fields.get("ready").and_then(|at| at.boolean(sink)).unwrap_or(true);
        fields.ignore(&["podCIDR", "podCIDRs", "providerID", "configSource", "externalID"]);
        fields.finish(sink);
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
