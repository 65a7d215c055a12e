//! A pod, cut down: of ours all that decides where it may go, of others only what they use.

use serde_json::{Map, Value, json};

use super::{Trim, picked};
use crate::api::Object;

/// What is read of a pod that names one of our schedulers.
const SPEC: [&str; 18] = [
    "activeDeadlineSeconds",
    "affinity",
    "hostNetwork",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "resourceClaims",
    "resources",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "restartPolicy",
];
/// What is read of others.
const FOREIGN_SPEC: [&str; 5] = ["nodeName", "overhead", "priority", "resources", "schedulerName"];
/// Conditions that are read.
const CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "DisruptionTarget"];
/// Sources of volumes that say where a pod may go.
const PLACED_VOLUMES: [&str; 2] = ["persistentVolumeClaim", "ephemeral"];

/// Puts what is read of a pod into the object.
pub(super) fn cut(object: &mut Object, mut spec: Value, status: &Value, trim: &Trim) {
    let is_ours = trim.names(&spec);
    let mut kept = match picked(&spec, if is_ours { &SPEC } else { &FOREIGN_SPEC }) {
        Value::Object(kept) => kept,
        _ => Map::new(),
    };
    for name in ["initContainers", "containers"] {
        // What is no list goes through as it is: whoever reads it says so.
        match spec.get_mut(name).map(Value::take) {
            Some(Value::Array(containers)) => {
                let containers = containers.into_iter().map(container).collect();
                kept.insert(name.to_owned(), Value::Array(containers));
            }
            Some(Value::Null) | None => {}
            Some(other) => drop(kept.insert(name.to_owned(), other)),
        }
    }
    if is_ours {
        let placed: Vec<Value> = volumes_of(&spec).filter_map(placed_volume).collect();
        if !placed.is_empty() {
            kept.insert("volumes".to_owned(), Value::Array(placed));
        }
        object.status = own_status(status);
    } else {
        let claimed: Vec<Value> = volumes_of(&spec).filter_map(shared_claim).collect();
        if !claimed.is_empty() {
            kept.insert("volumes".to_owned(), Value::Array(claimed));
        }
        object.metadata.labels.clear();
        object.metadata.annotations.clear();
        object.metadata.controller = None;
        object.status = picked(status, &["phase"]);
    }
    object.spec = Value::Object(kept);
}

/// A container with what it asks for, and its ports on the host.
fn container(from: Value) -> Value {
    let mut kept = match picked(&from, &["name", "resources", "restartPolicy"]) {
        Value::Object(kept) if from.is_object() => kept,
        _ => return from,
    };
    if kept.get("resources").is_some_and(|resources| resources.as_object().is_some_and(Map::is_empty)) {
        kept.remove("resources");
    }
    let ports = from.get("ports").and_then(Value::as_array).into_iter().flatten();
    let on_host: Vec<Value> = ports
        .filter(|port| port.get("hostPort").is_some_and(|port| *port != 0))
        .map(|port| picked(port, &["containerPort", "hostPort", "hostIP", "protocol"]))
        .collect();
    if !on_host.is_empty() {
        kept.insert("ports".to_owned(), Value::Array(on_host));
    }
    Value::Object(kept)
}

fn volumes_of(spec: &Value) -> impl Iterator<Item = &Value> {
    spec.get("volumes").and_then(Value::as_array).into_iter().flatten()
}

/// A claim that pods of ours may mount too. That of an ephemeral volume is the pod's own.
fn shared_claim(from: &Value) -> Option<Value> {
    let claim = from.get("persistentVolumeClaim").filter(|claim| !claim.is_null())?;
    Some(json!({ "persistentVolumeClaim": picked(claim, &["claimName"]) }))
}

/// A volume that says where the pod may go, without its details.
fn placed_volume(from: &Value) -> Option<Value> {
    let source =
        PLACED_VOLUMES.into_iter().find(|source| from.get(*source).is_some_and(|at| !at.is_null()))?;
    let claim = picked(&from[source], &["claimName"]);
    Some(json!({ "name": from["name"], source: claim }))
}

fn own_status(status: &Value) -> Value {
    let kept = picked(status, &["phase", "reason", "message", "startTime", "nominatedNodeName"]);
    let Value::Object(mut kept) = kept else { return kept };
    let conditions: Vec<Value> = status
        .get("conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|condition| condition["type"].as_str().is_some_and(|kind| CONDITIONS.contains(&kind)))
        .map(|condition| picked(condition, &["type", "status", "reason", "message", "lastTransitionTime"]))
        .collect();
    if !conditions.is_empty() {
        kept.insert("conditions".to_owned(), Value::Array(conditions));
    }
    if let Some(end) = end_of_containers(status) {
        kept.insert("endTime".to_owned(), Value::String(end.to_owned()));
    }
    Value::Object(kept)
}

/// When the last container ended; `None` while one runs. Kubernetes writes all times in one form, so that the later
/// one is the greater text.
fn end_of_containers(status: &Value) -> Option<&str> {
    let containers = status.get("containerStatuses").and_then(Value::as_array)?;
    let ends = containers.iter().map(|container| container.pointer("/state/terminated/finishedAt")?.as_str());
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}
