//! An object in few bytes. A tree of JSON values takes ten times the room of its text, and a large cluster has
//! tens of thousands of pods that only occupy their nodes: they are kept as text, and equal specs are kept once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use phalanx_common::units::{Millis, Time};
use serde_json::Value;

use crate::api::{ApiError, ControllerRef, Kind, Metadata, Object, ObjectKey, Owner};

/// Fewest texts for which it is worth to look for those that nobody uses any more.
const SWEEP_FROM: usize = 1024;
/// Field of a pod's spec that differs where all else is equal.
const NODE_NAME: &str = "nodeName";

/// Everything of an object that is not its place, its UID or its spec.
type Head = (
    Time,
    Option<Time>,
    Option<Millis>,
    BTreeMap<String, String>,
    BTreeMap<String, String>,
    Option<Owner>,
    Option<ControllerRef>,
    Option<Value>,
    Value,
);

/// An object without its kind, namespace and name.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) uid: Box<str>,
    pub(super) resource_version: u64,
    head: Box<[u8]>,
    spec: Arc<[u8]>,
}

impl Packed {
    /// Bytes of all but the spec.
    pub(super) fn head_bytes(&self) -> usize {
        self.head.len()
    }

    /// Packs an object, which stays as it is.
    pub(super) fn pack(object: &mut Object, texts: &mut Texts) -> Result<Self, ApiError> {
        let node = object.spec.as_object_mut().and_then(|spec| spec.remove(NODE_NAME));
        let packed = Self::pack_parts(object, node.as_ref(), texts);
        if let (Some(node), Some(spec)) = (node, object.spec.as_object_mut()) {
            spec.insert(NODE_NAME.to_owned(), node);
        }
        packed
    }

    fn pack_parts(object: &Object, node: Option<&Value>, texts: &mut Texts) -> Result<Self, ApiError> {
        let metadata = &object.metadata;
        let head = (
            metadata.creation,
            metadata.deletion,
            metadata.deletion_grace,
            &metadata.labels,
            &metadata.annotations,
            &metadata.owner,
            &metadata.controller,
            node,
            &object.status,
        );
        let head = serde_json::to_vec(&head).map_err(|error| unreadable(&error))?;
        let spec = serde_json::to_vec(&object.spec).map_err(|error| unreadable(&error))?;
        Ok(Self {
            uid: Box::from(object.metadata.uid.as_str()),
            resource_version: object.metadata.resource_version,
            head: head.into_boxed_slice(),
            spec: if is_shared(object.kind) { texts.share(&spec) } else { Arc::from(spec) },
        })
    }

    /// The object with nothing in its spec.
    pub(super) fn emptied(&self) -> Self {
        let (uid, resource_version) = (self.uid.clone(), self.resource_version);
        Self { uid, resource_version, head: self.head.clone(), spec: Arc::from(*b"{}") }
    }

    /// The object again.
    pub(super) fn unpack(&self, kind: Kind, place: &str) -> Result<Object, ApiError> {
        let head: Head = serde_json::from_slice(&self.head).map_err(|error| unreadable(&error))?;
        let (creation, deletion, deletion_grace, labels, annotations, owner, controller, node, status) = head;
        let mut spec: Value = serde_json::from_slice(&self.spec).map_err(|error| unreadable(&error))?;
        if let (Some(node), Some(spec)) = (node, spec.as_object_mut()) {
            spec.insert(NODE_NAME.to_owned(), node);
        }
        let key = key_of(kind, place);
        let metadata = Metadata {
            namespace: key.namespace,
            name: key.name,
            generate_name: String::new(),
            uid: self.uid.to_string(),
            resource_version: self.resource_version,
            creation,
            deletion,
            deletion_grace,
            labels,
            annotations,
            owner,
            controller,
        };
        Ok(Object { kind, metadata, spec, status })
    }

    /// True where nothing but the version differs.
    pub(super) fn is_same_but_version(&self, other: &Self) -> bool {
        self.uid == other.uid && self.head == other.head && self.spec == other.spec
    }

    /// Bytes that are the own ones of this object of a kind.
    pub(super) fn own_bytes(&self, kind: Kind) -> usize {
        let spec = if is_shared(kind) { 0 } else { self.spec.len() };
        size_of::<Self>() + self.uid.len() + self.head.len() + spec
    }
}

/// True where specs of several objects may be equal. No two objects of plans are, nor two versions of one, and each is
/// large.
fn is_shared(kind: Kind) -> bool {
    kind != Kind::GangPlan
}

fn unreadable(error: &serde_json::Error) -> ApiError {
    ApiError::Storage(format!("an object of the mirror cannot be read: {error}"))
}

/// Where an object stands within its kind: `namespace/name`, or `/name`.
pub(super) fn place_of(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The key again.
pub(super) fn key_of(kind: Kind, place: &str) -> ObjectKey {
    let (namespace, name) = place.split_once('/').unwrap_or(("", place));
    ObjectKey::new(kind, namespace, name)
}

/// Texts that are kept once however often they are used.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: HashSet<Arc<[u8]>>,
    sweep_at: usize,
}

impl Texts {
    fn share(&mut self, text: &[u8]) -> Arc<[u8]> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.texts.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = self.texts.len() * 2;
        }
        let text: Arc<[u8]> = Arc::from(text);
        self.texts.insert(Arc::clone(&text));
        text
    }

    /// Number and bytes of the texts.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.texts.len(), self.texts.iter().map(|text| text.len()).sum())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str) -> Object {
        let mut pod = Object::new(Kind::Pod, "space", name)
            .with_spec(json!({ "containers": [{ "name": "main" }], "nodeName": node }));
        pod.metadata.uid = format!("uid-{name}");
        pod.metadata.resource_version = 7;
        pod.metadata.creation = Time(1_000);
        pod.metadata.labels.insert("app".to_owned(), name.to_owned());
        pod.metadata.controller = Some(ControllerRef {
            api_version: "apps/v1".to_owned(),
            kind: "DaemonSet".to_owned(),
            name: "d".to_owned(),
            uid: "u".to_owned(),
        });
        pod.status = json!({ "phase": "Running" });
        pod
    }

    #[test]
    fn an_object_comes_back_as_it_was() {
        let mut texts = Texts::default();
        let packed = Packed::pack(&mut pod("a", "n1"), &mut texts).unwrap();
        assert_eq!(packed.unpack(Kind::Pod, &place_of("space", "a")).unwrap(), pod("a", "n1"));
        let queue = Object::new(Kind::Queue, "", "q");
        let packed = Packed::pack(&mut queue.clone(), &mut texts).unwrap();
        assert_eq!(packed.unpack(Kind::Queue, &place_of("", "q")).unwrap(), queue);
    }

    #[test]
    fn what_is_planned_is_kept_no_longer_than_its_object() {
        let mut texts = Texts::default();
        let mut plans = Object::new(Kind::GangPlan, "space", "plans-0").with_spec(json!({ "plans": {} }));
        let packed = Packed::pack(&mut plans, &mut texts).unwrap();
        assert_eq!(texts.size(), (0, 0));
        assert_eq!(packed.own_bytes(Kind::GangPlan), packed.own_bytes(Kind::PodGroup) + 12);
        assert_eq!(packed.unpack(Kind::GangPlan, &place_of("space", "plans-0")).unwrap(), plans);
    }

    #[test]
    fn specs_that_differ_in_their_node_only_are_kept_once_and_forgotten_with_the_last_user() {
        let mut texts = Texts::default();
        let pods: Vec<Packed> =
            (0..10).map(|at| Packed::pack(&mut pod("a", &format!("n{at}")), &mut texts).unwrap()).collect();
        assert_eq!(texts.size().0, 1);
        drop(pods);
        for at in 0..=SWEEP_FROM {
            drop(texts.share(format!("{at}").as_bytes()));
        }
        assert!(texts.size().0 < SWEEP_FROM, "{}", texts.size().0);
    }
}
