//! Objects to the core's events, and the core's values back to objects. Pure: no API, no clock.
//!
//! A stored object that cannot be read gives a warning and no event; or, where it is a pod, an event with blockers: it alone
//! waits, and says why; or, where it is a queue, one that says so: it is set aside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use phalanx_common::gang::{Blocker, GangSpec, PodBinding, PodSpec};
use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::planted::{self, Bug};
use phalanx_common::queue::PriorityClassSpec;
use phalanx_common::units::Time;
use phalanx_common::wire::Exactness;
use phalanx_core::event::{Event, NodeSpec, Outcome};

use crate::api::store::{node_name, phase};
use crate::api::{ApiError, Change, ChangeBody, Kind, Object, ObjectKey};
use crate::jobs::named_group;
use crate::manifest::group::{read_pod_group, read_stored_node, read_stored_priority};
use crate::manifest::names::{
    EVICTION_AT, EXACTNESS, GPU_UUIDS, LEASE_ID, POD_GROUP_UID, RUN_FOR, TASK_SPEC, TERM, parse_run_for,
    shared_text,
};
use crate::manifest::pod::read_pod;
use crate::manifest::reader::{Cursor, Sink};
use crate::manifest::tree::Node;

mod budget;
pub mod claims;
mod lone;
mod other;
pub mod plan;
mod policy;
mod queue;
mod reading;
pub mod status;

pub use plan::{Plans, PlansTold, plans_of_object};
pub use reading::{OWN_NAMESPACE, Reading};

/// Task of pods that name none.
pub const DEFAULT_TASK: &str = "default";

/// What became of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// The fact for the core; `None` where it has no use for the object.
    pub event: Option<Event>,
    /// What could not be read, with object, field and value.
    pub warnings: Vec<String>,
}

impl Converted {
    fn event(event: Event) -> Self {
        Self { event: Some(event), warnings: Vec::new() }
    }
}

/// The fact that a change is.
#[must_use]
pub fn event_of_change(reading: &Reading, change: &Change) -> Converted {
    match &change.body {
        ChangeBody::Applied(object) => event_of_object(reading, object),
        ChangeBody::Deleted { key, uid } => {
            Converted { event: event_of_deletion(key, uid), warnings: Vec::new() }
        }
    }
}

/// The fact that an object is there. Jobs give none: they are expanded by `crate::jobs`; neither do objects of plans, which
/// are many facts: `PlansTold` gives those.
#[must_use]
pub fn event_of_object(reading: &Reading, object: &Object) -> Converted {
    match object.kind {
        Kind::Queue => queue::queue(object),
        Kind::QueuePolicy => queue::policy(object),
        Kind::PriorityClass => read_whole(object, |spec, sink| {
            let priority = read_stored_priority(spec, sink);
            Event::PriorityClassApplied(PriorityClassSpec {
                name: Arc::from(object.metadata.name.as_str()),
                value: priority.value,
                global_default: priority.global_default,
                preempts: !priority.never_preempts,
            })
        }),
        Kind::Node => node(object),
        Kind::PodGroup => {
            let mut warnings = Vec::new();
            let mut converted =
                read_whole(object, |spec, sink| Event::GangApplied(gang(object, spec, sink, &mut warnings)));
            converted.warnings.append(&mut warnings);
            converted
        }
        Kind::Pod => pod_event(reading, object),
        Kind::PodDisruptionBudget => budget::budget(object),
        Kind::Job | Kind::GangPlan => Converted::default(),
        // Claims are told with what they are joined with: see `claims::Claims`.
        Kind::StorageClass | Kind::PersistentVolume | Kind::PersistentVolumeClaim => Converted::default(),
    }
}

/// What a job says of its gang and cannot be read. Its PodGroup gets it and says the same, which is not where people
/// wrote it.
#[must_use]
pub fn warnings_of_job(job: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    drop(policy::of_object(job, &mut warnings));
    policy::mixed_gpu_models(job, &mut warnings);
    warnings
}

/// The fact that an object is gone.
#[must_use]
pub fn event_of_deletion(key: &ObjectKey, uid: &str) -> Option<Event> {
    let name = key.name.as_str();
    match key.kind {
        Kind::Queue => Some(Event::QueueDeleted(QueueName::from(name))),
        Kind::QueuePolicy => Some(Event::QueuePolicyDeleted(QueueName::from(name))),
        Kind::PriorityClass => Some(Event::PriorityClassDeleted(Arc::from(name))),
        Kind::Node => Some(Event::NodeDeleted(NodeName::from(name))),
        Kind::PodGroup => Some(Event::GangDeleted(GangName::new(&key.namespace, name))),
        Kind::Pod => Some(Event::PodDeleted(PodUid::from(uid))),
        Kind::PodDisruptionBudget => Some(Event::BudgetDeleted(GangName::new(&key.namespace, name))),
        Kind::Job
        | Kind::GangPlan
        | Kind::StorageClass
        | Kind::PersistentVolume
        | Kind::PersistentVolumeClaim => None,
    }
}

/// True unless the queue was closed.
#[must_use]
pub fn queue_is_open(queue: &Object) -> bool {
    !matches!(queue.status.get("state").and_then(|state| state.as_str()), Some("Closed" | "Closing"))
}

/// Reads an object that has no use when part of it is wrong.
fn read_whole(object: &Object, read: impl FnOnce(&Cursor<'_>, &mut Sink) -> Event) -> Converted {
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let event = read(&Cursor::root(&tree, "spec"), &mut sink);
    if sink.errors() == 0 {
        return Converted::event(event);
    }
    Converted { event: None, warnings: problems(&object.key(), &sink) }
}

/// A node, with those amounts that can be read.
fn node(object: &Object) -> Converted {
    let mut amounts = Sink::new("");
    let mut converted = read_whole(object, |spec, sink| {
        let node = read_stored_node(spec, &mut amounts, sink);
        Event::NodeApplied(NodeSpec {
            name: NodeName::from(object.metadata.name.as_str()),
            labels: shared_text(&object.metadata.labels),
            allocatable: node.allocatable,
            unschedulable: node.unschedulable,
            taints: node.taints,
            ready: node.ready,
        })
    });
    if converted.event.is_some() {
        let key = object.key();
        let warnings = errors(&amounts).map(|(field, message)| {
            // Where people find it, whatever place it has in what is stored here.
            let field = field.replacen("spec.", "status.", 1);
            format!("{key}: {field}: {message}; the node counts as having none")
        });
        converted.warnings.extend(warnings);
    }
    converted
}

/// The spec as a tree; one that is not there is an empty mapping.
fn tree_of_spec(object: &Object) -> Node {
    if object.spec.is_null() {
        Node::from_json(&serde_json::Value::Object(serde_json::Map::new()))
    } else {
        Node::from_json(&object.spec)
    }
}

fn errors(sink: &Sink) -> impl Iterator<Item = (&str, &str)> {
    sink.kept_errors().iter().map(|wrong| (wrong.field.as_str(), wrong.message.as_str()))
}

fn problems(key: &ObjectKey, sink: &Sink) -> Vec<String> {
    errors(sink)
        .map(|(field, message)| format!("{key}: {field}: {message}; the object is left out"))
        .collect()
}

fn gang(object: &Object, spec: &Cursor<'_>, sink: &mut Sink, warnings: &mut Vec<String>) -> GangSpec {
    let group = read_pod_group(Some(spec), sink);
    let shared = |text: String| Arc::<str>::from(text);
    let policy = policy::of_gang(object, &group, warnings);
    GangSpec {
        name: GangName::new(&object.metadata.namespace, &object.metadata.name),
        uid: Arc::from(object.metadata.uid.as_str()),
        created: object.metadata.creation,
        queue: QueueName::from(group.queue),
        min_member: group.min_member,
        min_task_member: group
            .min_task_member
            .into_iter()
            .map(|(task, count)| (shared(task), count))
            .collect(),
        min_resources: group.min_resources,
        priority_class: group.priority_class.map(shared),
        mixed_gpu_models: policy::mixed_gpu_models(object, warnings),
        policy,
        shown: Some(status::shown_gang(&object.status)),
    }
}

fn pod_event(reading: &Reading, object: &Object) -> Converted {
    let own_group = lone::gang_name(reading, object);
    let named = named_group(object).filter(|_| reading.is_ours(object));
    let Some(group) = named.or(own_group.as_deref()) else {
        return Converted { event: other::other_pod(object), warnings: Vec::new() };
    };
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let pod = read_pod(&Cursor::root(&tree, "spec"), &mut sink);
    let metadata = &object.metadata;
    let task = object.annotation(TASK_SPEC).or_else(|| metadata.labels.get(TASK_SPEC).map(String::as_str));
    let task = task.unwrap_or(DEFAULT_TASK);
    let (mut binding, mut warnings) = binding_of_pod(object);
    let mut term = object.annotation(TERM).map_or(0, term_counter);
    if reading.is_in_shadow() {
        // A term above ours would say that another one leads here, and our stand-ins know none of these leases.
        term = 0;
        binding = binding.map(|binding| PodBinding { lease: None, gpus: Vec::new(), ..binding });
    }
    let policy = policy::of_pod(object, &pod, task, &mut warnings);
    let mut blockers = pod.blockers;
    let claims = if reading.has_volumes() {
        claims::claims_of(pod.claims, &object.metadata.name)
    } else {
        blockers.extend(pod.volume_blockers);
        Vec::new()
    };
    let blocker =
        |field: &str, message: &str| Blocker { field: Arc::from(field), message: Arc::from(message) };
    // Which schedulers' pods are ours is configured; manifests know only two names.
    let wrong = errors(&sink).filter(|(field, _)| *field != "spec.schedulerName");
    blockers.extend(wrong.map(|(field, message)| blocker(field, message)));
    let run_for = match object.annotation(RUN_FOR).map(parse_run_for).transpose() {
        Ok(run_for) => run_for,
        Err(problem) => {
            blockers.push(blocker(&format!("metadata.annotations[{RUN_FOR}]"), &problem));
            None
        }
    };
    let spec = PodSpec {
        uid: PodUid::from(metadata.uid.as_str()),
        name: GangName::new(&metadata.namespace, &metadata.name),
        gang: GangName::new(&metadata.namespace, group),
        task: Arc::from(task),
        request: pod.request,
        node_selector: shared_text(&pod.node_selector),
        constraints: pod.constraints,
        claims,
        blockers,
        run_for,
        resource_version: metadata.resource_version,
        phase: phase(object),
        binding,
        deleting: metadata.deletion.is_some(),
        term,
        group_uid: Arc::from(object.annotation(POD_GROUP_UID).unwrap_or_default()),
        policy,
    };
    let event = match named {
        Some(_) => Event::PodApplied(Box::new(spec)),
        None => {
            let gang = lone::gang_of(object, &spec, pod.priority_class.as_deref(), &mut warnings);
            Event::LonePodApplied { gang: Box::new(gang), pod: Box::new(spec) }
        }
    };
    Converted { event: Some(event), warnings }
}

/// A pod as the core knows it; `None` where it is not ours, or has no PodGroup yet.
#[must_use]
pub fn pod_of_object(reading: &Reading, object: &Object) -> Option<Box<PodSpec>> {
    match pod_event(reading, object).event {
        Some(Event::PodApplied(pod) | Event::LonePodApplied { pod, .. }) => Some(pod),
        _ => None,
    }
}

/// Annotations that go with a Binding, of a pod of the PodGroup with this UID.
#[must_use]
pub fn bind_annotations(
    reading: &Reading,
    binding: &PodBinding,
    exactness: Exactness,
    group_uid: &str,
    term: Term,
) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([(TERM.to_owned(), term_text(term))]);
    if !group_uid.is_empty() {
        annotations.insert(POD_GROUP_UID.to_owned(), group_uid.to_owned());
    }
    if let Some(lease) = binding.lease {
        annotations.insert(LEASE_ID.to_owned(), lease.to_string());
    }
    let exactness = match exactness {
        Exactness::Count => "count",
        Exactness::Exact if binding.gpus.is_empty() => "none",
        Exactness::Exact => reading.exactness(),
    };
    annotations.insert(EXACTNESS.to_owned(), exactness.to_owned());
    if !binding.gpus.is_empty() {
        let mut uuids = String::new();
        for (at, gpu) in binding.gpus.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            let _ = write!(uuids, "{separator}{gpu}");
        }
        annotations.insert(GPU_UUIDS.to_owned(), uuids);
    }
    annotations
}

/// Annotation of a fence write: the pod changes, so that a Binding of an older leader that is still on
/// its way meets a conflict.
#[must_use]
pub fn fence_annotations(term: Term) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(TERM.to_owned(), Some(term_text(term)))])
}

/// Annotation of a pod that will be evicted then, so that what runs in it can write a checkpoint.
#[must_use]
pub fn announcement(at: Time) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(EVICTION_AT.to_owned(), Some(status::format_time(at)))])
}

/// The counter of a term; one that cannot be read is nobody's.
fn term_counter(text: &str) -> u64 {
    text.split_once('.').and_then(|(counter, _)| counter.parse().ok()).unwrap_or(0)
}

fn term_text(term: Term) -> String {
    format!("{}.{:016x}", term.counter, term.incarnation)
}

/// Where a pod is bound, and what of its annotations could not be read. A lease is believed only
/// where all of it is in order.
#[must_use]
pub fn binding_of_pod(pod: &Object) -> (Option<PodBinding>, Vec<String>) {
    let Some(node) = node_name(pod) else { return (None, Vec::new()) };
    let mut binding = PodBinding { node: NodeName::from(node), lease: None, gpus: Vec::new() };
    match lease_of_pod(pod) {
        Ok((lease, gpus)) => {
            binding.lease = lease;
            binding.gpus = gpus;
            (Some(binding), Vec::new())
        }
        Err(problem) => {
            let warning = format!("{}: {problem}; the pod is taken as bound without a lease", pod.key());
            (Some(binding), vec![warning])
        }
    }
}

fn lease_of_pod(pod: &Object) -> Result<(Option<LeaseId>, Vec<GpuId>), String> {
    let problem = |name: &str, text: String| format!("metadata.annotations[{name}]: {text}");
    let lease = pod
        .annotation(LEASE_ID)
        .map(str::parse::<LeaseId>)
        .transpose()
        .map_err(|error| problem(LEASE_ID, error.to_string()))?;
    let mut gpus = Vec::new();
    let mut seen = BTreeSet::new();
    for text in pod.annotation(GPU_UUIDS).into_iter().flat_map(|text| text.split(',')) {
        let gpu: GpuId = text.trim().parse().map_err(|error| problem(GPU_UUIDS, format!("{error}")))?;
        if !seen.insert(gpu) {
            return Err(problem(GPU_UUIDS, format!("{gpu} is listed twice")));
        }
        gpus.push(gpu);
    }
    if lease.is_none() && !gpus.is_empty() {
        return Err(problem(GPU_UUIDS, format!("GPUs without {LEASE_ID}")));
    }
    Ok((lease, gpus))
}

/// What the core is told of a write.
#[must_use]
pub fn outcome_of<T>(result: &Result<T, ApiError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Done,
        Err(ApiError::NotFound(_)) => Outcome::NotFound,
        Err(ApiError::AlreadyExists(_) | ApiError::Conflict(_) | ApiError::OtherUid(_)) => Outcome::Conflict,
        Err(ApiError::Unknown) if planted::is(Bug::TimeoutIsDone) => Outcome::Done,
        Err(ApiError::Invalid(text)) => Outcome::Refused(text.clone()),
        // A store that fails may have written before it failed.
        Err(ApiError::Unknown | ApiError::Storage(_) | ApiError::Gone { .. }) => Outcome::Unknown,
    }
}
