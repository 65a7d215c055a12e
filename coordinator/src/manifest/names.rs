//! Names, labels and annotations: what Kubernetes allows in them, and what we read from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::units::Millis;
use phalanx_text::did_you_mean;

use super::policy;
use super::reader::{Cursor, Sink};
use super::tree::shorten;

/// Access mode of claims of which a single pod may make use at a time.
pub const ONE_POD: &str = "ReadWriteOncePod";
/// Name of the scheduler in `schedulerName`.
pub const SCHEDULER_PHALANX: &str = "phalanx";
/// Volcano's scheduler name, served too.
pub const SCHEDULER_VOLCANO: &str = "volcano";
/// Links a pod to its PodGroup.
pub const GROUP_NAME: &str = "scheduling.k8s.io/group-name";
/// Names a pod's queue where it has no PodGroup.
pub const QUEUE_NAME: &str = "scheduling.volcano.sh/queue-name";
/// The same as a label, in KubeRay's spelling.
pub const QUEUE_NAME_LABEL: &str = "volcano.sh/queue-name";
/// On the owner of pods without a PodGroup: fewest of them that may run together.
pub const GROUP_MIN_MEMBER: &str = "scheduling.volcano.sh/group-min-member";
/// Names a pod's task.
pub const TASK_SPEC: &str = "volcano.sh/task-spec";
/// Standalone mode: how long a pod runs.
pub const RUN_FOR: &str = "phalanx.dev/run-for";
/// Pods of one task may run on GPUs of several models.
pub const MIXED_GPU_MODELS: &str = "phalanx.dev/mixed-gpu-models";
/// Lease of a bound pod.
pub const LEASE_ID: &str = "phalanx.dev/lease-id";
/// Term under which a pod was bound, or fenced.
pub const TERM: &str = "phalanx.dev/term";
/// `exact`: the pod gets exactly the GPUs that are named; `count`: so many; `none`: it holds none.
pub const EXACTNESS: &str = "phalanx.dev/exactness";
/// GPUs of a bound pod, by UUID, with commas.
pub const GPU_UUIDS: &str = "phalanx.dev/gpu-uuids";
/// Queue of those that name none.
pub const DEFAULT_QUEUE: &str = "default";
/// Longest name of an object.
pub const MAX_NAME: usize = 253;
/// Longest label value, namespace and container name.
pub const MAX_LABEL: usize = 63;

/// UID of the PodGroup that a pod was bound for.
pub const POD_GROUP_UID: &str = "phalanx.dev/pod-group-uid";
/// When a pod will be evicted that asked to be told.
pub const EVICTION_AT: &str = "phalanx.dev/eviction-at";
/// What the coordinator leaves on a pod.
const WRITTEN_BY_US: [&str; 6] = [LEASE_ID, TERM, EXACTNESS, GPU_UUIDS, POD_GROUP_UID, EVICTION_AT];
const OURS: [&str; 8] =
    [RUN_FOR, MIXED_GPU_MODELS, LEASE_ID, TERM, EXACTNESS, GPU_UUIDS, POD_GROUP_UID, EVICTION_AT];

/// What is wrong with an object's name, if anything (RFC 1123 subdomain).
#[must_use]
pub fn name_problem(name: &str) -> Option<String> {
    if name.len() > MAX_NAME {
        return Some(format!("must be at most {MAX_NAME} characters, found {}", name.len()));
    }
    let valid = !name.is_empty() && name.split('.').all(is_label_text);
    (!valid).then(|| {
        format!(
            "must be lower case letters, digits, - and ., beginning and ending with a letter or digit, found {:?}",
            shorten(name)
        )
    })
}

/// What is wrong with a namespace, task or container name, if anything (RFC 1123 label).
#[must_use]
pub fn label_problem(name: &str) -> Option<String> {
    if name.len() > MAX_LABEL {
        return Some(format!("must be at most {MAX_LABEL} characters, found {}", name.len()));
    }
    (!is_label_text(name)).then(|| {
        format!(
            "must be lower case letters, digits and -, beginning and ending with a letter or digit, found {:?}",
            shorten(name)
        )
    })
}

fn is_label_text(text: &str) -> bool {
    let lower_or_digit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edge = |byte: Option<u8>| byte.is_some_and(lower_or_digit);
    edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(|byte| lower_or_digit(byte) || byte == b'-')
}

/// True for the part of a label or annotation key after the slash, and for label values.
fn is_qualified_text(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// What is wrong with an annotation's key, if anything.
#[must_use]
pub fn annotation_problem(key: &str) -> Option<String> {
    key_problem(key)
}

fn key_problem(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let valid = is_qualified_text(name) && prefix.is_none_or(|prefix| name_problem(prefix).is_none());
    (!valid).then(|| {
        "the key must be a name of at most 63 characters, with a domain and / before it or not".to_owned()
    })
}

/// Reads a name that refers to an object.
pub fn read_name(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    let text = cursor.text(sink)?;
    match name_problem(text) {
        None => Some(text.to_owned()),
        Some(problem) => {
            cursor.error(sink, problem);
            None
        }
    }
}

/// Reads a name that must be a label.
pub fn read_label_name(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    let text = cursor.text(sink)?;
    match label_problem(text) {
        None => Some(text.to_owned()),
        Some(problem) => {
            cursor.error(sink, problem);
            None
        }
    }
}

/// Reads labels.
pub fn read_labels(cursor: &Cursor<'_>, sink: &mut Sink) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (key, value) in cursor.entries(sink).into_iter().flatten() {
        let Some(text) = value.text(sink) else { continue };
        if let Some(problem) = key_problem(key) {
            value.error(sink, problem);
        } else if !text.is_empty() && !is_qualified_text(text) {
            let found = shorten(text);
            value.error(sink, format!("a label value must be at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit, found {found:?}"));
        } else {
            labels.insert(key.to_owned(), text.to_owned());
        }
    }
    labels
}

/// Reads labels of pods and of what makes them, and checks those whose meaning we know.
pub fn read_labels_of_gangs(cursor: &Cursor<'_>, sink: &mut Sink) -> BTreeMap<String, String> {
    let labels = read_labels(cursor, sink);
    for key in policy::AS_LABELS {
        if let Some(problem) = labels.get(key).and_then(|text| policy::problem(key, text)) {
            cursor.entry_or_self(key).error(sink, problem);
        }
    }
    labels
}

/// Reads annotations, and checks those whose meaning we know.
pub fn read_annotations(cursor: &Cursor<'_>, sink: &mut Sink) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    for (key, value) in cursor.entries(sink).into_iter().flatten() {
        let Some(text) = value.text(sink) else { continue };
        if let Some(problem) = key_problem(key) {
            value.error(sink, problem);
            continue;
        }
        let problem = match key {
            RUN_FOR => parse_run_for(text).err(),
            MIXED_GPU_MODELS => parse_switch(text).err(),
            GROUP_NAME | QUEUE_NAME | QUEUE_NAME_LABEL => name_problem(text),
            _ => policy::problem(key, text),
        };
        if WRITTEN_BY_US.contains(&key) {
            // Believed, they would bind a pod that nobody bound, or end a coordinator that nobody replaced.
            value.warn(sink, "is written by the coordinator alone, ignored");
            continue;
        }
        if let Some(problem) = problem {
            value.error(sink, problem);
        } else if key.starts_with("phalanx.dev/") && !OURS.contains(&key) && !policy::OF_GANGS.contains(&key)
        {
            let hint = did_you_mean(key, OURS.into_iter().chain(policy::OF_GANGS));
            value.warn(sink, format!("unknown annotation, ignored{hint}"));
        }
        annotations.insert(key.to_owned(), text.to_owned());
    }
    annotations
}

/// Reads a run time such as `30s`, `5m` or `1h30m`.
///
/// # Errors
/// Not a duration, or zero.
pub fn parse_run_for(text: &str) -> Result<Millis, String> {
    let allowed = || format!("must be a time such as 30s, 5m or 1h30m, found {:?}", shorten(text));
    let duration: Duration = humantime::parse_duration(text.trim()).map_err(|_| allowed())?;
    match u64::try_from(duration.as_millis()) {
        Ok(milliseconds) if milliseconds > 0 => Ok(Millis(milliseconds)),
        _ => Err(allowed()),
    }
}

/// Reads `"true"` or `"false"`.
///
/// # Errors
/// Anything else.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!("must be \"true\" or \"false\", found {:?}", shorten(other))),
    }
}

/// Text map with shared strings, as the core keeps it.
#[must_use]
pub fn shared_text(map: &BTreeMap<String, String>) -> BTreeMap<Arc<str>, Arc<str>> {
    map.iter().map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str()))).collect()
}
