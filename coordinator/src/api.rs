//! The API as Kubernetes behaves, in small: objects with UID, resourceVersion and deletion stamp,
//! writes with preconditions, and a change log that may have a gap.
//!
//! Every write is one `Mutation`. So the durable store, the faults and the simulation have one door.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use phalanx_common::ids::{ClusterId, PodUid};
use phalanx_common::units::{Millis, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

use crate::convert::Reading;

pub mod apply;
pub mod embedded;
pub mod faults;
mod kind;
pub mod store;

pub use self::kind::Kind;

/// Name of an object. `Display` writes `Kind namespace/name`, or `Kind name` where it is cluster-scoped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Kind.
    pub kind: Kind,
    /// Namespace; empty where the kind is cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// Key of an object; the namespace is dropped where the kind is cluster-scoped.
    #[must_use]
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.is_cluster_scoped() { "" } else { namespace };
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(formatter, "{} {}", self.kind, self.name)
        } else {
            write!(formatter, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// The object this one belongs to: it goes when the owner goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Kind.
    pub kind: Kind,
    /// Name, in the same namespace.
    pub name: String,
    /// UID: a new object of the old name owns nothing of the old one.
    pub uid: String,
}

/// The object that made this one, of any kind: a Deployment's ReplicaSet, a batch/v1 Job, a RayCluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ControllerRef {
    /// `group/version`, or `v1`.
    pub api_version: String,
    /// Kind as manifests write it.
    pub kind: String,
    /// Name, in the same namespace or cluster-scoped.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Namespace; empty where the kind is cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Where `name` is empty at creation: the name is made from this and a suffix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// UID, given at creation.
    pub uid: String,
    /// Number of the last change of this object, from one counter for all objects.
    pub resource_version: u64,
    /// When it was created.
    pub creation: Time,
    /// When its deletion was asked for; it stays until it is finalized.
    pub deletion: Option<Time>,
    /// Time that its deletion gives it to end, where the deletion says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace: Option<Millis>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// What it belongs to, where that is of a kind that is served.
    pub owner: Option<Owner>,
    /// What it belongs to, where that is of another kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerRef>,
}

/// An object. `spec` and `status` have the form of the manifest; a PriorityClass's top-level fields
/// stand in `spec`, and so does a Node's `allocatable`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Kind.
    pub kind: Kind,
    /// Names, labels, versions.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: Value,
    /// What is.
    pub status: Value,
}

impl Object {
    /// An object to be created, without spec and status.
    #[must_use]
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        let key = ObjectKey::new(kind, namespace, name);
        let metadata = Metadata { namespace: key.namespace, name: key.name, ..Metadata::default() };
        Self { kind, metadata, spec: Value::Null, status: Value::Null }
    }

    /// Builder: the spec.
    #[must_use]
    pub fn with_spec(mut self, spec: Value) -> Self {
        self.spec = spec;
        self
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.kind, &self.metadata.namespace, &self.metadata.name)
    }

    /// An annotation's text.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.get(name).map(String::as_str)
    }

    /// Preconditions that say: exactly this state of this object.
    #[must_use]
    pub fn preconditions(&self) -> Preconditions {
        Preconditions {
            uid: Some(self.metadata.uid.clone()),
            resource_version: self.metadata.resource_version,
        }
    }
}

/// What must still be true for a write to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preconditions {
    /// The object's UID; `None` = any.
    pub uid: Option<String>,
    /// The object's resourceVersion; 0 = any.
    pub resource_version: u64,
}

impl Preconditions {
    /// Only the UID must be this one.
    #[must_use]
    pub fn uid(uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), resource_version: 0 }
    }
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mutation {
    /// Creates an object. UID, creation time and resourceVersion are given by the store; the status
    /// starts fresh.
    Create(Box<Object>),
    /// Replaces spec, labels and annotations. The object's own UID and resourceVersion are the
    /// preconditions, where they are given. A Pod's spec cannot be changed.
    Update(Box<Object>),
    /// Replaces the status. On a real API server a field of its top level that it does not name stays as it is.
    UpdateStatus {
        /// The object.
        key: ObjectKey,
        /// What must be true.
        preconditions: Preconditions,
        /// The new status.
        status: Value,
    },
    /// Sets annotations (`Some`) and removes them (`None`); the others stay.
    PatchAnnotations {
        /// The object.
        key: ObjectKey,
        /// What must be true.
        preconditions: Preconditions,
        /// The annotations.
        annotations: BTreeMap<String, Option<String>>,
    },
    /// Binds a pod: sets `spec.nodeName` and annotations. A pod that has a node, or a deletion stamp, is
    /// a conflict.
    Bind {
        /// The pod.
        key: ObjectKey,
        /// UID and resourceVersion.
        preconditions: Preconditions,
        /// The node.
        node: String,
        /// Annotations of the Binding.
        annotations: BTreeMap<String, String>,
    },
    /// Deletes an object and, when it is gone, what it owns. A pod that has a node and has not ended gets a deletion stamp
    /// and stays until it is finalized.
    Delete {
        /// The object.
        key: ObjectKey,
        /// What must be true.
        preconditions: Preconditions,
    },
    /// Asks for the end of a pod, as `Delete`; where Kubernetes stops pods, disruption budgets have their say.
    Evict {
        /// The pod.
        key: ObjectKey,
        /// What must be true.
        preconditions: Preconditions,
    },
    /// Removes a pod that has a deletion stamp: its containers have stopped.
    Finalize {
        /// The pod.
        uid: PodUid,
    },
}

impl Mutation {
    /// Short name, for logs and metrics.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Update(_) => "update",
            Self::UpdateStatus { .. } => "update-status",
            Self::PatchAnnotations { .. } => "patch",
            Self::Bind { .. } => "bind",
            Self::Delete { .. } => "delete",
            Self::Evict { .. } => "evict",
            Self::Finalize { .. } => "finalize",
        }
    }

    /// What it is about; `None` where it names a UID only.
    #[must_use]
    pub fn key(&self) -> Option<ObjectKey> {
        match self {
            Self::Create(object) | Self::Update(object) => Some(object.key()),
            Self::UpdateStatus { key, .. }
            | Self::PatchAnnotations { key, .. }
            | Self::Bind { key, .. }
            | Self::Evict { key, .. }
            | Self::Delete { key, .. } => Some(key.clone()),
            Self::Finalize { .. } => None,
        }
    }

    /// The same for logs and faults: kind and name, or the UID.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Finalize { uid } => format!("Pod of UID {uid}"),
            _ => self.key().map(|key| key.to_string()).unwrap_or_default(),
        }
    }
}

/// What happened to an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeBody {
    /// It is there, or is different now.
    Applied(Arc<Object>),
    /// It is gone.
    Deleted {
        /// Its key.
        key: ObjectKey,
        /// Its UID.
        uid: String,
    },
}

/// One entry of the change log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Number of the change, from one counter for all objects.
    pub resource_version: u64,
    /// Kind of the object.
    pub kind: Kind,
    /// What happened.
    pub body: ChangeBody,
}

/// Why a call was not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ApiError {
    /// There is no such object.
    #[error("{0} does not exist")]
    NotFound(String),
    /// There is one of that name.
    #[error("{0} exists already")]
    AlreadyExists(String),
    /// A precondition does not hold: the object was changed in between, or is in use.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The object of that name has another UID than the write is for: the one that was meant is gone.
    #[error("conflict: {0}")]
    OtherUid(String),
    /// Refused for good; the text says why.
    #[error("{0}")]
    Invalid(String),
    /// The change log does not reach back that far (or never had that number): list again.
    #[error("the change log starts after resourceVersion {asked}: list again")]
    Gone {
        /// The number asked for.
        asked: u64,
    },
    /// No answer in time: the write may have been done.
    #[error("no answer in time; it may have been done")]
    Unknown,
    /// The store could not be read or written.
    #[error("{0}")]
    Storage(String),
}

impl ApiError {
    /// Somebody else was faster: whoever reads again may decide anew.
    #[must_use]
    pub const fn is_overtaken(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::OtherUid(_) | Self::AlreadyExists(_) | Self::NotFound(_))
    }
}

/// Objects one after another, each made when it is asked for: all of a large cluster at once take much room.
pub type Listing = Box<dyn Iterator<Item = Arc<Object>> + Send>;

/// The API. Clones of an implementation share one store.
pub trait Api: Clone + Send + Sync + 'static {
    /// One object.
    fn get(&self, key: &ObjectKey) -> impl Future<Output = Result<Arc<Object>, ApiError>> + Send;

    /// The same as it was a moment ago, where that is had for less. For whoever writes with preconditions.
    fn glance(&self, key: &ObjectKey) -> impl Future<Output = Result<Arc<Object>, ApiError>> + Send {
        self.get(key)
    }

    /// All objects of a kind (`None` = of all kinds) by key, and the number of the newest change they contain.
    fn list(
        &self,
        kind: Option<Kind>,
    ) -> impl Future<Output = Result<(Vec<Arc<Object>>, u64), ApiError>> + Send;

    /// The same as `list`, object by object.
    fn listing(&self, kind: Option<Kind>) -> impl Future<Output = Result<(Listing, u64), ApiError>> + Send {
        async move {
            let (objects, revision) = self.list(kind).await?;
            Ok((Box::new(objects.into_iter()) as Listing, revision))
        }
    }

    /// Changes after `resource_version`, oldest first, at most `max`.
    fn changes_since(
        &self,
        resource_version: u64,
        max: usize,
    ) -> impl Future<Output = Result<Vec<Change>, ApiError>> + Send;

    /// Does a write. The answer is the object as it is after it (before it, for one that is gone now).
    fn mutate(&self, mutation: Mutation) -> impl Future<Output = Result<Arc<Object>, ApiError>> + Send;

    /// Does a write to an object that is known as it was after the last write: that may be newer than what `glance` gives.
    fn mutate_known(
        &self,
        known: Arc<Object>,
        mutation: Mutation,
    ) -> impl Future<Output = Result<Arc<Object>, ApiError>> + Send {
        drop(known);
        self.mutate(mutation)
    }

    /// Does writes in their order; each has its own answer. They may become durable together, which is much faster.
    fn mutate_all(
        &self,
        mutations: Vec<Mutation>,
    ) -> impl Future<Output = Vec<Result<Arc<Object>, ApiError>>> + Send {
        async move {
            let mut answers = Vec::with_capacity(mutations.len());
            for mutation in mutations {
                answers.push(self.mutate(mutation).await);
            }
            answers
        }
    }

    /// Number of the newest change; it wakes when there is a newer one.
    fn subscribe(&self) -> watch::Receiver<u64>;

    /// Identity of the cluster, drawn when the store was made.
    fn cluster_id(&self) -> ClusterId;

    /// How its objects are read: whose pods are ours.
    fn reading(&self) -> Reading {
        Reading::default()
    }

    /// Raises the term's counter above its stored value and above `above`, and returns it.
    fn raise_term(&self, above: u64) -> impl Future<Output = Result<u64, ApiError>> + Send;
}
