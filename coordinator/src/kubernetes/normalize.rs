//! JSON of an API server to the objects the coordinator reads, cut down to what it uses, and back to JSON for what
//! it creates. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use phalanx_common::units::{Millis, Time};
use serde_json::{Map, Value, json};

use crate::api::{ControllerRef, Kind, Metadata, Object, Owner};
use crate::convert::status::parse_time;
use crate::manifest::policy::MAX_EXEC_TIME;

mod pod;
mod storage;

/// What is kept of pods depends on whose they are.
#[derive(Clone, Debug)]
pub struct Trim {
    scheduler_names: Arc<[String]>,
}

impl Trim {
    /// Pods that name one of these schedulers are ours.
    #[must_use]
    pub fn new(scheduler_names: &[String]) -> Self {
        Self { scheduler_names: Arc::from(scheduler_names) }
    }

    /// True for a pod that names one of our schedulers.
    #[must_use]
    pub fn is_ours(&self, pod: &Object) -> bool {
        self.names(&pod.spec)
    }

    fn names(&self, spec: &Value) -> bool {
        let scheduler = spec.get("schedulerName").and_then(Value::as_str);
        scheduler.is_some_and(|name| self.scheduler_names.iter().any(|ours| ours == name))
    }
}

/// An object that cannot be told from others, so that nothing can be made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Kind.
    pub kind: Kind,
    /// `namespace/name` as far as it could be read.
    pub name: String,
    /// Its version as it stands there; empty where it has none.
    pub version: String,
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, field, problem, .. } = self;
        write!(formatter, "{kind} {name}: {field}: {problem}; this version of the object is left out")
    }
}

/// Reads an object.
///
/// # Errors
/// Its metadata cannot be read. Whatever else is wrong is found where it is used.
pub fn object(kind: Kind, json: Value, trim: &Trim) -> Result<Object, Malformed> {
    let Value::Object(mut top) = json else {
        return Err(Reading::new(kind).wrong("", "must be an object"));
    };
    let mut reading = Reading::new(kind);
    let metadata = match top.remove("metadata") {
        Some(Value::Object(metadata)) => reading.metadata(metadata)?,
        _ => return Err(reading.wrong("metadata", "must be an object")),
    };
    let mut object = Object { kind, metadata, spec: Value::Null, status: Value::Null };
    let spec = top.remove("spec").unwrap_or(Value::Null);
    let status = top.remove("status").unwrap_or(Value::Null);
    match kind {
        Kind::Pod => pod::cut(&mut object, spec, &status, trim),
        Kind::Node => object.spec = node_spec(&spec, &status),
        Kind::PriorityClass => {
            for field in ["apiVersion", "kind", "description"] {
                top.remove(field);
            }
            object.spec = Value::Object(top);
        }
        Kind::PodDisruptionBudget => {
            object.spec = spec;
            object.status = picked(
                &status,
                &[
                    "disruptionsAllowed",
                    "currentHealthy",
                    "desiredHealthy",
                    "expectedPods",
                    "observedGeneration",
                ],
            );
        }
        Kind::StorageClass => storage::cut_class(&mut object, &Value::Object(top)),
        Kind::PersistentVolume => storage::cut_volume(&mut object, &spec),
        Kind::PersistentVolumeClaim => storage::cut_claim(&mut object, &spec, &status),
        // Its status is nobody's here, and a change of it no news.
        Kind::QueuePolicy => object.spec = spec,
        Kind::Queue | Kind::PodGroup | Kind::Job | Kind::GangPlan => {
            object.spec = spec;
            object.status = status;
        }
    }
    keep_annotations(kind, &mut object.metadata.annotations);
    Ok(object)
}

/// Where an object stands, for one that is gone: namespace and name.
#[must_use]
pub fn place(json: &Value) -> Option<(&str, &str)> {
    let metadata = json.get("metadata")?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some((namespace, metadata.get("name")?.as_str()?))
}

/// A name as warnings write it.
#[must_use]
pub fn name_of(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Version of an object, or of a list.
#[must_use]
pub fn version(json: &Value) -> Option<&str> {
    json.get("metadata")?.get("resourceVersion")?.as_str()
}

/// An object as an API server takes it for a create. Its status and its version are not written.
#[must_use]
pub fn to_json(object: &Object) -> Value {
    let from = &object.metadata;
    let mut metadata = Map::new();
    let mut text = |name: &str, text: &str| {
        if !text.is_empty() {
            metadata.insert(name.to_owned(), json!(text));
        }
    };
    text("name", &from.name);
    text("generateName", &from.generate_name);
    text("namespace", &from.namespace);
    for (name, texts) in [("labels", &from.labels), ("annotations", &from.annotations)] {
        if !texts.is_empty() {
            metadata.insert(name.to_owned(), json!(texts));
        }
    }
    let owner = from
        .owner
        .as_ref()
        .map(|owner| reference(owner.kind.api_version(), owner.kind.as_str(), &owner.name, &owner.uid));
    let controller =
        from.controller.as_ref().map(|by| reference(&by.api_version, &by.kind, &by.name, &by.uid));
    if let Some(owner) = owner.or(controller) {
        metadata.insert("ownerReferences".to_owned(), json!([owner]));
    }
    let mut json = json!({
        "apiVersion": object.kind.api_version(),
        "kind": object.kind.as_str(),
        "metadata": metadata,
    });
    match (&mut json, &object.spec, object.kind) {
        (Value::Object(top), Value::Object(spec), Kind::PriorityClass) => top.extend(spec.clone()),
        (_, Value::Null, _) => {}
        (Value::Object(top), spec, _) => drop(top.insert("spec".to_owned(), spec.clone())),
        _ => {}
    }
    json
}

fn reference(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// A Node's spec as manifests write it: what pods may use and what keeps them away, in one place.
fn node_spec(spec: &Value, status: &Value) -> Value {
    let mut node = match picked(spec, &["taints", "unschedulable"]) {
        Value::Object(node) => node,
        _ => Map::new(),
    };
    if let Some(allocatable) = status.get("allocatable") {
        node.insert("allocatable".to_owned(), allocatable.clone());
    }
    let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    if let Some(ready) = ready.next() {
        node.insert("ready".to_owned(), Value::Bool(ready["status"] == "True"));
    }
    Value::Object(node)
}

/// Those fields of an object that are there.
fn picked(from: &Value, names: &[&str]) -> Value {
    let mut kept = Map::new();
    for name in names {
        if let Some(value) = from.get(*name).filter(|value| !value.is_null()) {
            kept.insert((*name).to_owned(), value.clone());
        }
    }
    Value::Object(kept)
}

/// What `kubectl apply` remembers is as large as the object. Of nodes only what is our own is read.
fn keep_annotations(kind: Kind, annotations: &mut BTreeMap<String, String>) {
    /// Of so many bytes all are kept, so that the writer finds where those of a Binding do not fit any more.
    const MOST_TRIMMED_BYTES: usize = 192 * 1024;
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MOST_TRIMMED_BYTES {
        return;
    }
    annotations.retain(|name, _| match kind {
        Kind::Pod => is_read(name) || name == MAX_EXEC_TIME,
        Kind::Node => is_read(name),
        _ => name != LAST_APPLIED,
    });
}

/// Annotations of these groups have a meaning here.
fn is_read(name: &str) -> bool {
    let group = name.split_once('/').map_or("", |(group, _)| group);
    group == "phalanx.dev"
        || group == "scheduling.k8s.io"
        || group == "volcano.sh"
        || group.ends_with(".volcano.sh")
}

/// The object that is being read, for what is said of it.
struct Reading {
    kind: Kind,
    namespace: String,
    name: String,
    version: String,
}

impl Reading {
    fn new(kind: Kind) -> Self {
        Self { kind, namespace: String::new(), name: String::new(), version: String::new() }
    }

    fn wrong(&self, field: &str, problem: impl Into<String>) -> Malformed {
        Malformed {
            kind: self.kind,
            name: name_of(&self.namespace, &self.name),
            version: self.version.clone(),
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    fn metadata(&mut self, mut from: Map<String, Value>) -> Result<Metadata, Malformed> {
        let mut text = |name: &str| match from.remove(name) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        if !self.kind.is_cluster_scoped() {
            self.namespace = text("namespace");
        }
        self.name = text("name");
        self.version = text("resourceVersion");
        let uid = text("uid");
        let creation = text("creationTimestamp");
        let deletion = text("deletionTimestamp");
        for (field, value) in [("metadata.name", &self.name), ("metadata.uid", &uid)] {
            if value.is_empty() {
                return Err(self.wrong(field, "must be a text that is not empty"));
            }
        }
        if self.namespace.is_empty() && !self.kind.is_cluster_scoped() {
            return Err(self.wrong("metadata.namespace", "must be a text that is not empty"));
        }
        let resource_version = self.version.parse().map_err(|_| {
            self.wrong("metadata.resourceVersion", format!("must be a number, found {:?}", self.version))
        })?;
        let (owner, controller) = owners(from.get("ownerReferences"));
        Ok(Metadata {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            generate_name: String::new(),
            uid,
            resource_version,
            creation: self.time("metadata.creationTimestamp", &creation)?.unwrap_or_default(),
            deletion: self.time("metadata.deletionTimestamp", &deletion)?,
            deletion_grace: from
                .get("deletionGracePeriodSeconds")
                .and_then(Value::as_u64)
                .map(Millis::from_seconds),
            labels: self.texts("labels", from.remove("labels"))?,
            annotations: self.texts("annotations", from.remove("annotations"))?,
            owner,
            controller,
        })
    }

    fn time(&self, field: &str, text: &str) -> Result<Option<Time>, Malformed> {
        if text.is_empty() {
            return Ok(None);
        }
        let time = parse_time(text);
        time.map(Some).ok_or_else(|| self.wrong(field, format!("must be a time of RFC 3339, found {text:?}")))
    }

    fn texts(&self, field: &str, from: Option<Value>) -> Result<BTreeMap<String, String>, Malformed> {
        let entries = match from {
            None | Some(Value::Null) => return Ok(BTreeMap::new()),
            Some(Value::Object(entries)) => entries,
            Some(other) => {
                return Err(
                    self.wrong(&format!("metadata.{field}"), format!("must be an object, found {other}"))
                );
            }
        };
        let text =
            |(name, value): (String, Value)| match value {
                Value::String(text) => Ok((name, text)),
                other => Err(self
                    .wrong(&format!("metadata.{field}[{name}]"), format!("must be a text, found {other}"))),
            };
        entries.into_iter().map(text).collect()
    }
}

/// What an object belongs to: the reference that is the controller, else the first one of a kind that is served.
fn owners(references: Option<&Value>) -> (Option<Owner>, Option<ControllerRef>) {
    let references = references.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |reference: &Value, name: &str| reference[name].as_str().unwrap_or_default().to_owned();
    let served = |reference: &Value| {
        let is_kind =
            |kind: &Kind| reference["kind"] == kind.as_str() && reference["apiVersion"] == kind.api_version();
        let kind = Kind::ALL.into_iter().find(is_kind)?;
        Some(Owner { kind, name: text(reference, "name"), uid: text(reference, "uid") })
    };
    let controller = references.iter().find(|reference| reference["controller"] == true);
    match controller {
        Some(reference) => match served(reference) {
            Some(owner) => (Some(owner), None),
            None => {
                let by = ControllerRef {
                    api_version: text(reference, "apiVersion"),
                    kind: text(reference, "kind"),
                    name: text(reference, "name"),
                    uid: text(reference, "uid"),
                };
                (references.iter().find_map(served), Some(by))
            }
        },
        None => (references.iter().find_map(served), None),
    }
}

#[cfg(test)]
#[path = "normalize/tests.rs"]
mod tests;
