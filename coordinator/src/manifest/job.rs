//! A vcjob's spec.

use std::collections::BTreeMap;

use super::group::{read_priority_class, read_queue_name};
use super::names::{DEFAULT_QUEUE, MAX_LABEL, read_annotations, read_label_name, read_labels_of_gangs};
use super::pod::{PodFields, read_pod, read_scheduler};
use super::policy::parse_run_time;
use super::reader::{Cursor, Fields, Sink};

/// Most pods of one job.
pub const MAX_PODS_PER_JOB: u64 = 10_000;

/// What we read of a Job's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFields {
    /// Fewest pods that may run together.
    pub min_available: u32,
    /// Queue.
    pub queue: String,
    /// PriorityClass.
    pub priority_class: Option<String>,
    /// Scheduler, where it names one.
    pub scheduler: Option<String>,
    /// How long it runs, where it says so, as it was written.
    pub running_estimate: Option<String>,
    /// Tasks, in the order written.
    pub tasks: Vec<TaskFields>,
}

/// One task of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFields {
    /// Name.
    pub name: String,
    /// Pods wanted.
    pub replicas: u32,
    /// Fewest pods of this task that may run, where it says so.
    pub min_available: Option<u32>,
    /// Labels of the template.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the template.
    pub annotations: BTreeMap<String, String>,
    /// The template's spec.
    pub pod: PodFields,
}

impl JobFields {
    /// Pods wanted in all.
    #[must_use]
    pub fn replicas(&self) -> u64 {
        self.tasks.iter().map(|task| u64::from(task.replicas)).sum()
    }
}

/// Reads a Job's spec. `name` is the job's, for the length of the names made from it.
pub fn read_job(cursor: &Cursor<'_>, name: &str, sink: &mut Sink) -> JobFields {
    let mut job = JobFields { queue: DEFAULT_QUEUE.to_owned(), ..JobFields::default() };
    let Some(mut fields) = cursor.fields(sink) else { return job };
    let minimum_at = fields.get("minAvailable");
    if let Some(queue) = fields.get("queue").and_then(|at| read_queue_name(&at, sink)) {
        job.queue = queue;
    }
    job.priority_class = fields.get("priorityClassName").and_then(|at| read_priority_class(&at, sink));
    job.scheduler = fields.get("schedulerName").and_then(|at| read_scheduler(&at, sink));
    match fields.required(sink, "tasks", "a list of at least one task") {
        Some(tasks) if tasks.is_empty() => tasks.error(sink, "must hold at least one task"),
        Some(tasks) => {
            read_tasks(&tasks, name, &mut job, sink);
            read_minimum(&tasks, minimum_at.as_ref(), &mut job, sink);
        }
        None => {}
    }
    check_numbers(&mut fields, sink);
    job.running_estimate = fields.get("runningEstimate").and_then(|at| read_estimate(&at, sink));
    fields.not_honoured(sink, &["policies", "plugins", "volumes", "networkTopology"]);
    fields.finish(sink);
    job
}

/// Numbers that have no effect yet are checked all the same.
fn check_numbers(fields: &mut Fields<'_>, sink: &mut Sink) {
    for name in ["maxRetry", "ttlSecondsAfterFinished", "minSuccess"] {
        if let Some(at) = fields.get(name)
            && at.count(sink).is_some()
        {
            at.warn_not_honoured(sink);
        }
    }
}

/// A text that is a time.
fn read_estimate(at: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    let text = at.text(sink)?;
    match parse_run_time(text) {
        Ok(_) => Some(text.to_owned()),
        Err(problem) => {
            at.error(sink, problem);
            None
        }
    }
}

fn read_minimum(tasks: &Cursor<'_>, at: Option<&Cursor<'_>>, job: &mut JobFields, sink: &mut Sink) {
    let replicas = job.replicas();
    let of_tasks = |task: &TaskFields| u64::from(task.min_available.unwrap_or(task.replicas));
    let all_minimums: u64 = job.tasks.iter().map(of_tasks).sum();
    let stated_minimums: u64 = job.tasks.iter().filter_map(|task| task.min_available).map(u64::from).sum();
    job.min_available = u32::try_from(all_minimums).unwrap_or(u32::MAX);
    if replicas > MAX_PODS_PER_JOB {
        let message =
            format!("the replicas of all tasks must be at most {MAX_PODS_PER_JOB}, found {replicas}");
        tasks.error(sink, message);
        return;
    }
    let Some(at) = at else { return };
    let Some(minimum) = at.count(sink) else { return };
    job.min_available = minimum;
    if job.tasks.is_empty() {
        return;
    }
    if u64::from(minimum) > replicas {
        at.error(
            sink,
            format!("must be at most the sum of all replicas: minAvailable {minimum} > replicas {replicas}"),
        );
    } else if u64::from(minimum) < stated_minimums {
        at.warn(
            sink,
            format!(
                "below the sum of the tasks' minAvailable: {stated_minimums} is used instead of {minimum}"
            ),
        );
        job.min_available = u32::try_from(stated_minimums).unwrap_or(u32::MAX);
    }
}

fn read_tasks(cursor: &Cursor<'_>, job_name: &str, job: &mut JobFields, sink: &mut Sink) {
    for (at, task_cursor) in cursor.list(sink).into_iter().flatten().enumerate() {
        let Some(task) = read_task(&task_cursor, at, sink) else { continue };
        let longest = format!("{job_name}-{}-{}", task.name, task.replicas.saturating_sub(1));
        // A job's name that is too long by itself has its own message.
        if longest.len() > MAX_LABEL && job_name.len() <= MAX_LABEL {
            task_cursor.error(
                sink,
                format!(
                    "the names of its pods, {longest:.40}..., have {} characters and must have at most {MAX_LABEL}: shorten the job's name or the task's",
                    longest.len()
                ),
            );
        }
        if job.tasks.iter().any(|other| other.name == task.name) {
            task_cursor.error(sink, format!("two tasks are named {:?}: rename one", task.name));
            continue;
        }
        job.tasks.push(task);
    }
}

fn read_task(cursor: &Cursor<'_>, at: usize, sink: &mut Sink) -> Option<TaskFields> {
    let mut fields = cursor.fields(sink)?;
    let name = fields.get("name").and_then(|at| read_label_name(&at, sink));
    let mut task = TaskFields {
        name: name.unwrap_or_else(|| format!("default{at}")),
        replicas: 1,
        ..TaskFields::default()
    };
    if let Some(replicas) = fields.get("replicas").and_then(|at| at.count(sink)) {
        task.replicas = replicas;
    }
    if let Some(at) = fields.get("minAvailable") {
        task.min_available = at.count(sink);
        if let Some(minimum) = task.min_available
            && minimum > task.replicas
        {
            at.error(
                sink,
                format!(
                    "must be at most the task's replicas: minAvailable {minimum} > replicas {}",
                    task.replicas
                ),
            );
        }
    }
    if let Some(template) = fields.required(sink, "template", "a pod template") {
        read_template(&template, &mut task, sink);
    }
    fields.not_honoured(sink, &["policies", "topologyPolicy", "maxRetry", "dependsOn", "partitionPolicy"]);
    fields.finish(sink);
    Some(task)
}

fn read_template(cursor: &Cursor<'_>, task: &mut TaskFields, sink: &mut Sink) {
    let Some(mut fields) = cursor.fields(sink) else { return };
    if let Some(mut metadata) = fields.get("metadata").and_then(|at| at.fields(sink)) {
        task.labels = metadata.get("labels").map(|at| read_labels_of_gangs(&at, sink)).unwrap_or_default();
        task.annotations =
            metadata.get("annotations").map(|at| read_annotations(&at, sink)).unwrap_or_default();
        metadata.ignore(&["name", "namespace", "generateName", "creationTimestamp"]);
        metadata.finish(sink);
    }
    if let Some(spec) = fields.required(sink, "spec", "a pod's spec") {
        task.pod = read_pod(&spec, sink);
        if task.pod.node.is_some() {
            sink.push(super::Severity::Error, spec.line, &spec.below("nodeName"), super::NODE_NAME_IS_OURS);
        }
    }
    fields.finish(sink);
}
