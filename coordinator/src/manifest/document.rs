//! One document: its kind, its metadata, and the reader for its spec.

use std::collections::BTreeMap;

use phalanx_text::closest;
use serde_json::{Map, Value, json};

use super::amounts::resources_to_json;
use super::circles::in_circles;
use super::group::{read_node, read_pod_group, read_priority};
use super::job::read_job;
use super::names::{
    MAX_LABEL, name_problem, read_annotations, read_label_name, read_labels, read_labels_of_gangs, read_name,
};
use super::pod::read_pod;
use super::queue::{check_shares, read_queue, read_queue_policy, read_queue_state};
use super::reader::{Cursor, Fields, Severity, Sink};
use super::tree::{Node, Tree, parse_documents, shorten};
use super::{MAX_MANIFEST_BYTES, NODE_NAME_IS_OURS, Parsed};
use crate::api::{Kind, Metadata, Object, ObjectKey};

const SERVED: &str =
    "Queue, QueuePolicy, PodGroup, Job (batch.volcano.sh/v1alpha1), Pod, PriorityClass, Node";

/// Reads a manifest. `file` is the name that diagnostics carry.
#[must_use]
pub fn parse(text: &str, file: &str) -> Parsed {
    let mut sink = Sink::new(file);
    if text.len() > MAX_MANIFEST_BYTES {
        let message =
            format!("the file has {} bytes; at most {MAX_MANIFEST_BYTES} are read: split it", text.len());
        sink.push(Severity::Error, 1, "", message);
        return Parsed { diagnostics: sink.finish(), ..Parsed::default() };
    }
    let (documents, errors) = parse_documents(text);
    for error in errors {
        sink.push(Severity::Error, error.line, "", error.message);
    }
    let mut reader = Reader { sink, objects: Vec::new(), starts: Vec::new(), lines: BTreeMap::new() };
    for document in &documents {
        reader.read_document(document, "", 0);
    }
    reader.refuse_circles();
    Parsed { objects: reader.objects, lines: reader.starts, diagnostics: reader.sink.finish() }
}

struct Reader {
    sink: Sink,
    objects: Vec<Object>,
    starts: Vec<usize>,
    lines: BTreeMap<ObjectKey, usize>,
}

impl Reader {
    fn read_document(&mut self, document: &Node, path: &str, depth: usize) {
        if document.value == Tree::Null {
            return;
        }
        let errors = self.sink.errors();
        let cursor = Cursor::root(document, path);
        let Some(mut fields) = cursor.fields(&mut self.sink) else { return };
        let kind = fields.required(&mut self.sink, "kind", &format!("one of {SERVED}"));
        let Some(kind) = kind.and_then(|at| at.text(&mut self.sink).map(|text| (at.clone(), text))) else {
            return;
        };
        let known = Kind::STANDALONE.into_iter().find(|known| known.as_str() == kind.1);
        let wanted = known.map_or("the kind's group and version", Kind::api_version);
        let version = fields.required(&mut self.sink, "apiVersion", wanted);
        let Some(version) = version.and_then(|at| at.text(&mut self.sink).map(|text| (at.clone(), text)))
        else {
            return;
        };
        if kind.1.ends_with("List") && version.1 == "v1" {
            self.read_list(&mut fields, depth);
            return;
        }
        let Some(kind) = self.served_kind(&kind, &version, document.line) else { return };
        let object = self.read_object(kind, &cursor, fields);
        if let Some(object) = object
            && self.sink.errors() == errors
        {
            self.add(object, &cursor);
        }
    }

    fn read_list(&mut self, fields: &mut Fields<'_>, depth: usize) {
        let Some(items) = fields.get("items") else { return };
        if depth > 0 {
            items
                .error(&mut self.sink, "a List within a List is not read: move its items into the outer one");
            return;
        }
        for item in items.list(&mut self.sink).into_iter().flatten() {
            self.read_document(item.node, &item.path, depth + 1);
        }
    }

    /// The kind, where it is served; else one error that says what to do instead.
    fn served_kind(
        &mut self,
        kind: &(Cursor<'_>, &str),
        version: &(Cursor<'_>, &str),
        line: usize,
    ) -> Option<Kind> {
        let (kind_at, kind) = kind;
        let (version_at, version) = version;
        if (*kind, *version) == ("HyperNode", "topology.volcano.sh/v1alpha1") {
            self.sink.push(Severity::Warning, line, "", "HyperNode: accepted, not honoured yet");
            return None;
        }
        let served = Kind::STANDALONE.into_iter().find(|served| served.as_str() == *kind);
        match served {
            Some(Kind::GangPlan) => {
                self.sink.push(
                    Severity::Error,
                    line,
                    "",
                    "GangPlan is written by the coordinator only: remove it",
                );
                None
            }
            Some(served) if served.api_version() == *version => Some(served),
            Some(served) => {
                let mut message =
                    format!("must be {} for kind {kind}, found {:?}", served.api_version(), shorten(version));
                if *version == "batch/v1" {
                    message.push_str("; a batch/v1 Job needs a Kubernetes cluster");
                }
                version_at.error(&mut self.sink, message);
                None
            }
            None => {
                let names =
                    Kind::STANDALONE.into_iter().filter(|kind| *kind != Kind::GangPlan).map(Kind::as_str);
                let message = if let Some(near) = closest(kind, names) {
                    format!("{} is not a kind that is served; did you mean {near}?", shorten(kind))
                } else if is_operator_kind(version) {
                    format!(
                        "{} ({}) needs its operator and a Kubernetes cluster; standalone mode serves {SERVED}",
                        shorten(kind),
                        shorten(version)
                    )
                } else {
                    format!(
                        "{} ({}) is not served: standalone mode serves {SERVED}",
                        shorten(kind),
                        shorten(version)
                    )
                };
                kind_at.error(&mut self.sink, message);
                None
            }
        }
    }

    fn read_object(&mut self, kind: Kind, cursor: &Cursor<'_>, mut fields: Fields<'_>) -> Option<Object> {
        let sink = &mut self.sink;
        let metadata_at = fields.required(sink, "metadata", "a mapping with a name")?;
        let metadata = read_metadata(&metadata_at, kind, sink)?;
        let spec = if kind == Kind::PriorityClass { None } else { fields.get("spec") };
        let status = fields.get("status");
        if kind != Kind::PriorityClass {
            fields.finish(sink);
        }
        let mut json = spec.as_ref().map_or_else(|| Value::Object(Map::new()), |spec| spec.node.to_json());
        let mut wanted_status = Value::Null;
        match kind {
            Kind::Queue => {
                let state = status.as_ref().and_then(|at| read_queue_state(at, sink));
                wanted_status = state.map_or(Value::Null, |state| json!({ "state": state }));
                let queue = read_queue(spec.as_ref(), sink);
                if let Some(spec) = &spec {
                    check_shares(spec, &metadata.name, &queue, sink);
                }
            }
            Kind::QueuePolicy => {
                read_queue_policy(spec.as_ref(), sink);
            }
            Kind::PodGroup => {
                read_pod_group(spec.as_ref(), sink);
            }
            Kind::PriorityClass => {
                read_priority(cursor, sink);
                json = priority_spec(cursor.node);
            }
            Kind::Node => {
                let node = read_node(spec.as_ref(), status.as_ref(), sink);
                if let Value::Object(map) = &mut json {
                    map.insert("allocatable".to_owned(), resources_to_json(&node.allocatable));
                    map.insert("ready".to_owned(), Value::Bool(node.ready));
                }
            }
            Kind::Job => match spec {
                Some(spec) => {
                    read_job(&spec, &metadata.name, sink);
                }
                None => cursor.error(sink, "spec: missing: must be a job's spec"),
            },
            Kind::Pod => match spec {
                Some(spec) => read_own_pod(&spec, sink),
                None => cursor.error(sink, "spec: missing: must be a pod's spec"),
            },
            Kind::GangPlan
            | Kind::PodDisruptionBudget
            | Kind::StorageClass
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim => return None,
        }
        Some(Object { kind, metadata, spec: json, status: wanted_status })
    }

    /// Queues whose parents lead back to themselves. Those of this file only: others may come later.
    fn refuse_circles(&mut self) {
        let parents: BTreeMap<&str, &str> = self
            .objects
            .iter()
            .filter(|object| object.kind == Kind::Queue)
            .filter_map(|queue| Some((&*queue.metadata.name, queue.spec.get("parent")?.as_str()?)))
            .collect();
        let circles = in_circles(parents.keys().copied(), |name| parents.get(name).copied());
        if circles.is_empty() {
            return;
        }
        let is_wrong =
            |object: &Object| object.kind == Kind::Queue && circles.contains(object.metadata.name.as_str());
        let wrong: Vec<bool> = self.objects.iter().map(is_wrong).collect();
        for (object, line) in self.objects.iter().zip(&self.starts).filter(|(object, _)| is_wrong(object)) {
            let name = &object.metadata.name;
            let message = format!("the parents of queue {name} lead back to it: name another parent");
            self.sink.push(Severity::Error, *line, "spec.parent", message);
        }
        // All at once: taking them out one by one would move the rest of a long file each time.
        let mut of_objects = wrong.iter();
        self.objects.retain(|_| of_objects.next() == Some(&false));
        let mut of_starts = wrong.iter();
        self.starts.retain(|_| of_starts.next() == Some(&false));
    }

    fn add(&mut self, object: Object, cursor: &Cursor<'_>) {
        if !object.metadata.name.is_empty() {
            let key = object.key();
            if let Some(first) = self.lines.get(&key) {
                let message =
                    format!("{key} is in this file twice, first at line {first}: remove one of them");
                cursor.error(&mut self.sink, message);
                return;
            }
            self.lines.insert(key, cursor.line);
        }
        self.objects.push(object);
        self.starts.push(cursor.line);
    }
}

/// Groups that Kubernetes itself does not serve belong to an operator.
fn is_operator_kind(version: &str) -> bool {
    version.split_once('/').is_some_and(|(group, _)| group.contains('.') && !group.ends_with(".k8s.io"))
        || version.starts_with("leaderworkerset.x-k8s.io/")
        || version.starts_with("jobset.x-k8s.io/")
}

fn read_own_pod(spec: &Cursor<'_>, sink: &mut Sink) {
    let errors = sink.errors();
    let pod = read_pod(spec, sink);
    if pod.node.is_some() {
        sink.push(Severity::Error, spec.line, &spec.below("nodeName"), NODE_NAME_IS_OURS);
    }
    if pod.scheduler.is_none() && sink.errors() == errors {
        let path = spec.below("schedulerName");
        sink.push(
            Severity::Error,
            spec.line,
            &path,
            "missing: the pod would not be ours; set it to phalanx (or volcano)",
        );
    }
}

fn priority_spec(node: &Node) -> Value {
    let mut spec = node.to_json();
    if let Value::Object(map) = &mut spec {
        for field in ["apiVersion", "kind", "metadata"] {
            map.remove(field);
        }
    }
    spec
}

fn read_metadata(cursor: &Cursor<'_>, kind: Kind, sink: &mut Sink) -> Option<Metadata> {
    let mut fields = cursor.fields(sink)?;
    let mut metadata = Metadata::default();
    let name = fields.get("name");
    let generate_name = fields.get("generateName");
    match (&name, &generate_name) {
        (Some(at), _) => metadata.name = read_name(at, sink).unwrap_or_default(),
        (None, Some(at)) if matches!(kind, Kind::Job | Kind::Pod) => {
            metadata.generate_name = read_generate_name(at, sink).unwrap_or_default();
        }
        (None, Some(at)) => at.error(sink, format!("is read for Job and Pod only: give the {kind} a name")),
        (None, None) => {
            sink.push(
                Severity::Error,
                cursor.line,
                &cursor.below("name"),
                "missing: must be the object's name",
            );
        }
    }
    if let Some(at) = &name {
        check_name_for_kind(at, &metadata.name, kind, sink);
    }
    metadata.namespace = match fields.get("namespace") {
        Some(at) if kind.is_cluster_scoped() => {
            at.warn(sink, format!("ignored: a {kind} has no namespace"));
            String::new()
        }
        Some(at) => read_label_name(&at, sink).unwrap_or_default(),
        None if kind.is_cluster_scoped() => String::new(),
        None => "default".to_owned(),
    };
    let read_labels = match kind {
        Kind::Pod | Kind::PodGroup | Kind::Job => read_labels_of_gangs,
        _ => read_labels,
    };
    metadata.labels = fields.get("labels").map(|at| read_labels(&at, sink)).unwrap_or_default();
    metadata.annotations =
        fields.get("annotations").map(|at| read_annotations(&at, sink)).unwrap_or_default();
    fields.not_honoured(sink, &["ownerReferences", "finalizers"]);
    fields.ignore(&[
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    ]);
    fields.finish(sink);
    Some(metadata)
}

fn check_name_for_kind(at: &Cursor<'_>, name: &str, kind: Kind, sink: &mut Sink) {
    if kind == Kind::Job && name.len() > MAX_LABEL {
        at.error(sink, format!("must be at most {MAX_LABEL} characters for a Job, because its pods carry it as a label, found {}", name.len()));
    }
    if kind == Kind::PriorityClass && name.starts_with("system-") {
        at.error(sink, "must not begin with system-, which Kubernetes keeps for itself");
    }
}

/// A prefix may end with `-`, and five characters are added.
fn read_generate_name(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    let text = cursor.text(sink)?;
    match name_problem(&format!("{text}00000")) {
        None if !text.is_empty() => Some(text.to_owned()),
        None => {
            cursor.error(sink, "must not be empty");
            None
        }
        Some(problem) => {
            cursor.error(sink, problem);
            None
        }
    }
}
