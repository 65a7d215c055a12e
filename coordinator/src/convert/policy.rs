//! What a gang or a pod says of evictions and of its run time. A value that cannot be read is told and left out: it is
//! never a reason not to run.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use phalanx_common::gang::{GangPolicy, PodPolicy};
use phalanx_common::units::{Millis, Time};
use serde_json::Value;

use super::status::{parse_time as parse_point, pod_start};
use crate::api::Object;
use crate::manifest::group::PodGroupFields;
use crate::manifest::names::{MIXED_GPU_MODELS, TASK_SPEC, parse_switch};
use crate::manifest::pod::PodFields;
use crate::manifest::policy::{
    CHECKPOINT_GRACE, COOLDOWN, DEGRADED_GRACE, FEWER_AFTER, GANG_GROUP, MAX_EXEC_TIME, PREEMPTABLE,
    RUN_ESTIMATE, instead, parse_duration, parse_fewer, parse_grace, parse_group, parse_run_time,
    parse_seconds, parse_time,
};

/// Names of tasks that lead their gang: without them the rest is worth nothing.
const LEADERS: [&str; 6] = ["master", "launcher", "chief", "head", "leader", "driver"];
/// Labels by which operators say the same.
const LEADER_LABELS: [(&str, &[&str]); 5] = [
    ("training.kubeflow.org/replica-type", &LEADERS),
    ("training.kubeflow.org/job-role", &["master"]),
    ("ray.io/node-type", &["head"]),
    ("leaderworkerset.sigs.k8s.io/worker-index", &["0"]),
    ("spark-role", &["driver"]),
];
/// Keys that most labels of pods have: one text for the pods of a whole cluster.
static KNOWN_KEYS: LazyLock<BTreeMap<&'static str, Arc<str>>> = LazyLock::new(|| {
    let keys = [
        "app",
        "app.kubernetes.io/component",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/name",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-completion-index",
        "batch.kubernetes.io/job-name",
        "controller-revision-hash",
        "controller-uid",
        "job-name",
        "pod-template-hash",
        "ray.io/cluster",
        "ray.io/group",
        "ray.io/node-type",
        "training.kubeflow.org/job-name",
        "training.kubeflow.org/job-role",
        "training.kubeflow.org/operator-name",
        "training.kubeflow.org/replica-index",
        "training.kubeflow.org/replica-type",
        "volcano.sh/job-name",
        "volcano.sh/job-namespace",
        "volcano.sh/queue-name",
        "volcano.sh/task-index",
        TASK_SPEC,
    ];
    keys.into_iter().map(|key| (key, Arc::from(key))).collect()
});

/// Reads texts of one object, and tells of those that are wrong.
struct Said<'a> {
    object: &'a Object,
    warnings: &'a mut Vec<String>,
}

impl Said<'_> {
    /// An annotation's value.
    fn annotation<T>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.object.annotation(key)?;
        self.value("annotations", key, text, parse)
    }

    /// The value of an annotation, or, where there is none, of the label of that name.
    fn either<T>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        if self.object.metadata.annotations.contains_key(key) {
            return self.annotation(key, parse);
        }
        let text = self.object.metadata.labels.get(key)?;
        self.value("labels", key, text, parse)
    }

    fn value<T>(
        &mut self,
        place: &str,
        key: &str,
        text: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(text) {
            Ok(value) => Some(value),
            Err(problem) => {
                let object = self.object.key();
                let instead = instead(key);
                self.warnings.push(format!("{object}: metadata.{place}[{key}]: {problem}; {instead}"));
                None
            }
        }
    }
}

/// What a PodGroup allows others, and how long it runs.
pub(super) fn of_gang(object: &Object, group: &PodGroupFields, warnings: &mut Vec<String>) -> GangPolicy {
    let mut policy = of_object(object, warnings);
    policy.preemptable = policy.preemptable.or(group.preemptable);
    policy.sub_groups = group.sub_groups.clone();
    policy
}

/// The same of an object that has nothing but annotations and labels for it.
pub(super) fn of_object(object: &Object, warnings: &mut Vec<String>) -> GangPolicy {
    let mut said = Said { object, warnings };
    // Most gangs say nothing.
    if object.metadata.annotations.is_empty() && object.metadata.labels.is_empty() {
        return GangPolicy::default();
    }
    let estimate = said.annotation(RUN_ESTIMATE, parse_run_time);
    GangPolicy {
        preemptable: said.either(PREEMPTABLE, parse_switch),
        cooldown_ms: said.either(COOLDOWN, parse_duration).unwrap_or_default(),
        checkpoint_grace_ms: said.annotation(CHECKPOINT_GRACE, parse_time).unwrap_or_default(),
        run_estimate_ms: estimate.or_else(|| said.either(MAX_EXEC_TIME, parse_seconds)),
        degraded_grace: said.annotation(DEGRADED_GRACE, parse_grace),
        group: said.annotation(GANG_GROUP, parse_group),
        fewer_after: said.annotation(FEWER_AFTER, parse_fewer),
        sub_groups: Vec::new(),
    }
}

/// Whether pods of one task may run on GPUs of several models.
pub(super) fn mixed_gpu_models(object: &Object, warnings: &mut Vec<String>) -> bool {
    Said { object, warnings }.annotation(MIXED_GPU_MODELS, parse_switch).unwrap_or(false)
}

/// What matters of a pod when it is to make room, or others for it.
pub(super) fn of_pod(
    object: &Object,
    fields: &PodFields,
    task: &str,
    warnings: &mut Vec<String>,
) -> PodPolicy {
    let metadata = &object.metadata;
    let mut unread = Vec::new();
    let mut said = Said { object, warnings: &mut unread };
    let policy = PodPolicy {
        labels: shared_labels(&metadata.labels),
        never_preempts: fields.never_preempts,
        preemptable: said.either(PREEMPTABLE, parse_switch),
        cooldown_ms: said.either(COOLDOWN, parse_duration).unwrap_or_default(),
        created: metadata.creation,
        started: started(&object.status),
        grace_ms: grace(object, fields),
        ends_by: metadata.deletion,
        deadline_ms: fields.deadline,
        leads: leads(task, &metadata.labels),
    };
    // Each change of a pod comes by here: of one that is bound it has been said.
    if fields.node.is_none() {
        warnings.append(&mut unread);
    }
    policy
}

/// How long it has to end: what its deletion says, else what its spec says.
fn grace(object: &Object, fields: &PodFields) -> Millis {
    let deletion = object.metadata.deletion.and(object.metadata.deletion_grace);
    deletion.or(fields.grace).unwrap_or(PodPolicy::default().grace_ms)
}

/// When its kubelet took it, else when it was bound.
fn started(status: &Value) -> Option<Time> {
    let conditions = || status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let is_bound = |condition: &&Value| condition["type"] == "PodScheduled" && condition["status"] == "True";
    let bound = || conditions().find(is_bound)?.get("lastTransitionTime")?.as_str().and_then(parse_point);
    pod_start(status).or_else(bound)
}

fn leads(task: &str, labels: &BTreeMap<String, String>) -> bool {
    let is_one_of = |names: &[&str], text: &str| names.iter().any(|name| name.eq_ignore_ascii_case(text));
    is_one_of(&LEADERS, task)
        || LEADER_LABELS
            .iter()
            .any(|(key, values)| labels.get(*key).is_some_and(|value| is_one_of(values, value)))
}

fn shared_labels(labels: &BTreeMap<String, String>) -> BTreeMap<Arc<str>, Arc<str>> {
    let shared = |key: &str| KNOWN_KEYS.get(key).map_or_else(|| Arc::from(key), Arc::clone);
    labels.iter().map(|(key, value)| (shared(key), Arc::from(value.as_str()))).collect()
}
