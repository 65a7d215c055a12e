//! One job to its PodGroup and pods; one bare pod to its PodGroup.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::resources::Resources;
use phalanx_common::units::Time;
use serde_json::{Map, Value, json};

use super::status::{invalid_status, is_final, job_status};
use super::{TopOwner, Writes};
use crate::api::store::phase;
use crate::api::{Kind, Mutation, Object, Owner, Preconditions};
use crate::manifest::amounts::resources_to_json;
use crate::manifest::job::{JobFields, read_job};
use crate::manifest::names::{
    DEFAULT_QUEUE, GROUP_MIN_MEMBER, GROUP_NAME, MAX_LABEL, MIXED_GPU_MODELS, QUEUE_NAME, QUEUE_NAME_LABEL,
    RUN_FOR, SCHEDULER_VOLCANO, TASK_SPEC,
};
use crate::manifest::pod::read_pod;
use crate::manifest::policy::{AS_LABELS, RUN_ESTIMATE, is_inherited};
use crate::manifest::reader::{Cursor, Severity, Sink};
use crate::manifest::tree::Node;

/// Pods created for one job at a time: their changes call for the next ones.
const PODS_AT_A_TIME: usize = 128;

/// Annotations of a job that its pods get too.
const COPIED: [&str; 6] = [
    "volcano.sh/preemptable",
    "volcano.sh/cooldown-time",
    "volcano.sh/revocable-zone",
    "volcano.sh/jdb-min-available",
    "volcano.sh/jdb-max-unavailable",
    RUN_FOR,
];

/// Name of a job's PodGroup.
#[must_use]
pub fn pod_group_name(job: &Object) -> String {
    format!("{}-{}", job.metadata.name, job.metadata.uid)
}

/// How the names of PodGroups begin that are made for pods that have none.
pub(super) const MADE_GROUP: &str = "podgroup-";

/// Name of the PodGroup made for a pod that has none: Volcano's.
pub fn made_group_name(pod: &Object, top: Option<&TopOwner>) -> String {
    format!("{MADE_GROUP}{}", top.map_or(&pod.metadata.uid, |top| &top.object.uid))
}

fn owner(object: &Object) -> Option<Owner> {
    Some(Owner { kind: object.kind, name: object.metadata.name.clone(), uid: object.metadata.uid.clone() })
}

/// What a job is looked at with.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// The time.
    pub now: Time,
    /// Pods have volumes here: a job that wants some of its own must not run without them.
    pub has_volumes: bool,
}

/// Longest text of what is wrong with a job, in bytes.
const LONGEST_PROBLEM: usize = 2_000;

fn problem_of(sink: &Sink) -> String {
    let all = sink.kept_errors().iter().map(|wrong| format!("{}: {}", wrong.field, wrong.message));
    let mut text = all.collect::<Vec<_>>().join("; ");
    let mut end = text.len().min(LONGEST_PROBLEM);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Volumes of the job itself, which its pods would be without.
fn refuse_volumes(job: &Object, sink: &mut Sink) {
    let is_empty = job.spec.get("volumes").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if !is_empty {
        let text = "not supported, and its pods must not run without them: name the volumes in \
                    tasks[].template.spec.volumes, and mount them in its containers";
        sink.push(Severity::Error, 0, "spec.volumes", text);
    }
}

fn write_status(job: &Object, status: Value, writes: &mut Writes) {
    if status != job.status {
        writes.mutations.push(Mutation::UpdateStatus {
            key: job.key(),
            preconditions: Preconditions::uid(&job.metadata.uid),
            status,
        });
    }
}

/// Writes for one job.
pub fn job(
    job: &Object,
    group: Option<&Object>,
    pods: &[&Object],
    circumstances: Circumstances,
    writes: &mut Writes,
) {
    let now = circumstances.now;
    let tree = Node::from_json(&job.spec);
    let mut sink = Sink::new("");
    let fields = read_job(&Cursor::root(&tree, "spec"), &job.metadata.name, &mut sink);
    if circumstances.has_volumes {
        refuse_volumes(job, &mut sink);
    }
    if sink.errors() > 0 {
        if !is_final(&job.status) {
            write_status(job, invalid_status(&job.status, pods, &problem_of(&sink), now), writes);
        }
        writes.warnings.extend(sink.kept_errors().iter().map(|wrong| {
            format!("{}: {}: {}; the job is left as it is", job.key(), wrong.field, wrong.message)
        }));
        return;
    }
    let status = job_status(&job.status, &fields, pods, now);
    let ended = is_final(&status);
    write_status(job, status, writes);
    let wanted = pod_group(job, &fields);
    match group {
        None if ended => return,
        // Without its pods it would look like a gang that waits for them, and take quota for it.
        Some(group) if ended && pods.is_empty() => {
            writes.mutations.push(Mutation::Delete {
                key: group.key(),
                preconditions: Preconditions::uid(&group.metadata.uid),
            });
            return;
        }
        None => {
            writes.mutations.push(Mutation::Create(Box::new(wanted)));
            return;
        }
        Some(group) => {
            if let Some(spec) = brought_up_to_date(&group.spec, &wanted.spec) {
                let mut changed = group.clone();
                changed.spec = spec;
                writes.mutations.push(Mutation::Update(Box::new(changed)));
            }
        }
    }
    remove_surplus(&fields, job, pods, writes);
    if !ended && group.is_some_and(is_admitted) {
        create_missing(job, &fields, pods, writes);
    }
}

/// Pods are made from the moment the PodGroup is admitted, and not before.
fn is_admitted(group: &Object) -> bool {
    let phase = group.status.get("phase").and_then(Value::as_str);
    matches!(phase, Some("Inqueue" | "Running" | "Unknown" | "Completed"))
}

fn pod_name(job: &Object, task: &str, index: u32) -> String {
    format!("{}-{task}-{index}", job.metadata.name)
}

fn create_missing(job: &Object, fields: &JobFields, pods: &[&Object], writes: &mut Writes) {
    let existing: BTreeSet<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
    let mut left = PODS_AT_A_TIME;
    for (at, task) in fields.tasks.iter().enumerate() {
        for index in 0..task.replicas {
            let name = pod_name(job, &task.name, index);
            if existing.contains(name.as_str()) {
                continue;
            }
            if left == 0 {
                return;
            }
            left -= 1;
            writes.mutations.push(Mutation::Create(Box::new(job_pod(job, fields, at, index, &name))));
        }
    }
}

/// Pods above a task's replicas, and of tasks that are gone.
fn remove_surplus(fields: &JobFields, job: &Object, pods: &[&Object], writes: &mut Writes) {
    let mut wanted = BTreeSet::new();
    for task in &fields.tasks {
        wanted.extend((0..task.replicas).map(|index| pod_name(job, &task.name, index)));
    }
    for pod in pods {
        if !wanted.contains(&pod.metadata.name) && pod.metadata.deletion.is_none() {
            writes.mutations.push(Mutation::Delete {
                key: pod.key(),
                preconditions: Preconditions::uid(&pod.metadata.uid),
            });
        }
    }
}

/// The PodGroup of a job.
fn pod_group(job: &Object, fields: &JobFields) -> Object {
    let mut group = Object::new(Kind::PodGroup, &job.metadata.namespace, &pod_group_name(job));
    group.metadata.labels = job.metadata.labels.clone();
    group.metadata.annotations = job.metadata.annotations.clone();
    group.metadata.owner = owner(job);
    let mut spec = Map::new();
    spec.insert("minMember".to_owned(), json!(fields.min_available));
    spec.insert("minTaskMember".to_owned(), json!(task_minimums(fields)));
    spec.insert("queue".to_owned(), json!(fields.queue));
    if let Some(class) = &fields.priority_class {
        spec.insert("priorityClassName".to_owned(), json!(class));
    }
    spec.insert("minResources".to_owned(), resources_to_json(&min_resources(fields)));
    group.spec = Value::Object(spec);
    // Tasks that may mix GPU models say so on their template too; the gang has one answer.
    let mixed = fields
        .tasks
        .iter()
        .any(|task| task.annotations.get(MIXED_GPU_MODELS).is_some_and(|text| text == "true"));
    if mixed {
        group.metadata.annotations.insert(MIXED_GPU_MODELS.to_owned(), "true".to_owned());
    }
    if let Some(estimate) = &fields.running_estimate {
        group.metadata.annotations.insert(RUN_ESTIMATE.to_owned(), estimate.clone());
    }
    group
}

/// Fields of a PodGroup that follow its job.
const OF_THE_JOB: [&str; 5] = ["minMember", "minTaskMember", "queue", "priorityClassName", "minResources"];

/// The stored spec with what follows the job set anew; `None` where it is so already. Defaults that an API server has
/// filled in, and fields of others, stay.
fn brought_up_to_date(stored: &Value, wanted: &Value) -> Option<Value> {
    let mut spec = stored.as_object().cloned().unwrap_or_default();
    let mut changed = false;
    for field in OF_THE_JOB {
        let (before, after) = (spec.get(field), wanted.get(field));
        let is_empty = |value: Option<&Value>| match value {
            None | Some(Value::Null) => true,
            Some(Value::Object(entries)) => entries.is_empty(),
            Some(_) => false,
        };
        if before == after || is_empty(before) && is_empty(after) {
            continue;
        }
        changed = true;
        match after {
            Some(after) => spec.insert(field.to_owned(), after.clone()),
            None => spec.remove(field),
        };
    }
    changed.then_some(Value::Object(spec))
}

/// Minimums of the tasks. A task that states none needs all its replicas only where the job as a
/// whole needs all tasks' minimums; else the job's own minimum holds alone, as in Volcano.
fn task_minimums(fields: &JobFields) -> BTreeMap<&str, u32> {
    let of_task = |task: &crate::manifest::job::TaskFields| task.min_available.unwrap_or(task.replicas);
    let all: u64 = fields.tasks.iter().map(|task| u64::from(of_task(task))).sum();
    let strict = u64::from(fields.min_available) >= all;
    fields
        .tasks
        .iter()
        .filter(|task| strict || task.min_available.is_some())
        .map(|task| (task.name.as_str(), of_task(task)))
        .filter(|(_, minimum)| *minimum > 0)
        .collect()
}

/// What the fewest pods that may start ask for: each task's minimum first, then in order.
fn min_resources(fields: &JobFields) -> Resources {
    let minimums = task_minimums(fields);
    let mut sum = Resources::new();
    let mut left = fields.min_available;
    let mut counted = vec![0_u32; fields.tasks.len()];
    for round in 0..2 {
        for (at, task) in fields.tasks.iter().enumerate() {
            let minimum = minimums.get(task.name.as_str()).copied().unwrap_or(0);
            let most = if round == 0 { minimum } else { task.replicas - counted[at] };
            let take = most.min(left);
            add_times(&mut sum, &task.pod.request.effective(), take);
            counted[at] += take;
            left -= take;
        }
    }
    sum
}

fn add_times(sum: &mut Resources, each: &Resources, times: u32) {
    for (name, amount) in each.iter() {
        let added = amount.saturating_mul(u64::from(times));
        if added > 0 {
            let total = sum.amount(name.as_str()).saturating_add(added);
            // More than Kubernetes can write is as good as its largest number.
            sum.set(name.clone(), total.min(i64::MAX as u64));
        }
    }
}

/// One pod of a job.
fn job_pod(job: &Object, fields: &JobFields, task_at: usize, index: u32, name: &str) -> Object {
    let task = &fields.tasks[task_at];
    let mut pod = Object::new(Kind::Pod, &job.metadata.namespace, name);
    pod.metadata.owner = owner(job);
    let index = index.to_string();
    let job_name = job.metadata.name.as_str();
    let mut labels = task.labels.clone();
    for (key, value) in [
        ("volcano.sh/job-name", job_name),
        ("volcano.sh/job-namespace", &job.metadata.namespace),
        (TASK_SPEC, &task.name),
        ("volcano.sh/task-index", &index),
        (QUEUE_NAME_LABEL, &fields.queue),
    ] {
        if value.len() <= MAX_LABEL {
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
    pod.metadata.labels = labels;
    let mut annotations: BTreeMap<String, String> = COPIED
        .iter()
        .filter_map(|key| job.annotation(key).map(|value| ((*key).to_owned(), value.to_owned())))
        .collect();
    annotations.extend(task.annotations.clone());
    for (key, value) in [
        ("volcano.sh/task-index", index.as_str()),
        (TASK_SPEC, &task.name),
        (GROUP_NAME, &pod_group_name(job)),
        ("volcano.sh/job-name", job_name),
        (QUEUE_NAME_LABEL, &fields.queue),
        ("volcano.sh/job-version", "0"),
        ("volcano.sh/template-uid", &format!("{job_name}-{}", task.name)),
        ("volcano.sh/job-retry-count", "0"),
    ] {
        annotations.insert(key.to_owned(), value.to_owned());
    }
    pod.metadata.annotations = annotations;
    pod.spec = job.spec["tasks"][task_at]["template"]["spec"].clone();
    if let Value::Object(spec) = &mut pod.spec {
        let scheduler = fields.scheduler.as_deref().unwrap_or(SCHEDULER_VOLCANO);
        spec.entry("schedulerName").or_insert_with(|| json!(scheduler));
        if let Some(class) = &fields.priority_class {
            spec.entry("priorityClassName").or_insert_with(|| json!(class));
        }
    }
    pod
}

/// Writes for a bare pod.
pub fn bare_pod(pod: &Object, top: Option<&TopOwner>, group: Option<&Object>, writes: &mut Writes) {
    if pod.metadata.deletion.is_some() || phase(pod).is_terminal() {
        return;
    }
    let name = made_group_name(pod, top);
    if group.is_none() {
        let group = made_group(pod, top, &name, writes);
        writes.mutations.push(Mutation::Create(Box::new(group)));
    }
    if pod.annotation(GROUP_NAME) != Some(&name) {
        writes.mutations.push(Mutation::PatchAnnotations {
            key: pod.key(),
            preconditions: Preconditions::uid(&pod.metadata.uid),
            annotations: BTreeMap::from([(GROUP_NAME.to_owned(), Some(name))]),
        });
    }
}

fn made_group(pod: &Object, top: Option<&TopOwner>, name: &str, writes: &mut Writes) -> Object {
    let tree = Node::from_json(&pod.spec);
    // What is wrong with the pod becomes its blocker; its PodGroup is made all the same.
    let fields = read_pod(&Cursor::root(&tree, "spec"), &mut Sink::new(""));
    let mut group = Object::new(Kind::PodGroup, &pod.metadata.namespace, name);
    match top {
        Some(top) => {
            group.metadata.controller = Some(top.object.clone());
            group.metadata.annotations.extend(inherited(&top.annotations));
        }
        None => {
            group.metadata.owner = owner(pod);
            // As its pod was read before there was a PodGroup: that the object is made must change nothing.
            group.metadata.annotations.extend(inherited(&pod.metadata.annotations));
            let labels = inherited(&pod.metadata.labels).filter(|(key, _)| AS_LABELS.contains(&key.as_str()));
            group.metadata.labels.extend(labels);
        }
    }
    if let Some(mixed) = pod.annotation(MIXED_GPU_MODELS) {
        group.metadata.annotations.insert(MIXED_GPU_MODELS.to_owned(), mixed.to_owned());
    }
    let minimum = top.map_or(1, |top| minimum_of(pod, top, writes));
    let of_top = top.and_then(|top| top.annotations.get(QUEUE_NAME)).map(String::as_str);
    let of_top = of_top.filter(|queue| !queue.is_empty());
    let mut spec = Map::new();
    spec.insert("minMember".to_owned(), json!(minimum));
    spec.insert("queue".to_owned(), json!(named_queue(pod).or(of_top).unwrap_or(DEFAULT_QUEUE)));
    if let Some(class) = fields.priority_class {
        spec.insert("priorityClassName".to_owned(), json!(class));
    }
    let mut resources = Resources::new();
    add_times(&mut resources, &fields.request.effective(), minimum);
    spec.insert("minResources".to_owned(), resources_to_json(&resources));
    group.spec = Value::Object(spec);
    group
}

/// What a PodGroup gets of these texts.
fn inherited(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    let inherited = texts.iter().filter(|(key, _)| is_inherited(key));
    inherited.map(|(key, value)| (key.clone(), value.clone()))
}

fn named_queue(pod: &Object) -> Option<&str> {
    let label = pod.metadata.labels.get(QUEUE_NAME_LABEL).map(String::as_str);
    let named = [pod.annotation(QUEUE_NAME), pod.annotation(QUEUE_NAME_LABEL), label];
    named.into_iter().flatten().find(|queue| !queue.is_empty())
}

/// Queue of a pod that names no PodGroup.
pub fn queue_of_pod(pod: &Object) -> &str {
    named_queue(pod).unwrap_or(DEFAULT_QUEUE)
}

/// The fewest pods that run together, as the owner's annotation says.
fn minimum_of(pod: &Object, top: &TopOwner, writes: &mut Writes) -> u32 {
    let Some(text) = top.annotations.get(GROUP_MIN_MEMBER) else { return 1 };
    text.parse().ok().filter(|minimum| *minimum > 0).unwrap_or_else(|| {
        let (kind, name) = (&top.object.kind, &top.object.name);
        let namespace = &pod.metadata.namespace;
        writes.warnings.push(format!(
            "{kind} {namespace}/{name}: metadata.annotations[{GROUP_MIN_MEMBER}]: must be a whole number from 1 on, \
             found {text:?}; its pods are placed one by one"
        ));
        1
    })
}
