//! What makes gangs of other objects: a vcjob becomes a PodGroup and its pods, a pod without a
//! PodGroup gets one of its own. Pure: changes go in, writes come out.
//!
//! Writes are safe to repeat: names follow from the job, so one that was done already is refused as
//! AlreadyExists. Whoever runs them takes AlreadyExists, Conflict and NotFound as no news, and calls
//! `mark_all` after an answer that may be wrong (`Unknown`, `Storage`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::units::Time;

use crate::api::{Change, ChangeBody, Kind, Mutation, Object, ObjectKey};
use crate::convert::Reading;
use crate::manifest::names::GROUP_NAME;

mod expand;
mod status;

pub use expand::pod_group_name;

/// What is to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writes {
    /// The writes, in order.
    pub mutations: Vec<Mutation>,
    /// Objects that cannot be read, with field and value.
    pub warnings: Vec<String>,
}

/// Jobs, PodGroups and pods, and which of them changed since the last look.
#[derive(Debug, Default)]
pub struct Jobs {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    pods_of_job: BTreeMap<String, BTreeSet<ObjectKey>>,
    dirty: BTreeSet<ObjectKey>,
    reading: Reading,
}

impl Jobs {
    /// Knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Knows nothing yet, and whose pods are ours.
    #[must_use]
    pub fn with(reading: Reading) -> Self {
        Self { reading, ..Self::default() }
    }

    /// Takes a change.
    pub fn change(&mut self, change: &Change) {
        match &change.body {
            ChangeBody::Applied(object) => self.applied(object),
            ChangeBody::Deleted { key, .. } => self.deleted(key),
        }
    }

    /// An object is there, or changed.
    pub fn applied(&mut self, object: &Arc<Object>) {
        if !matches!(object.kind, Kind::Job | Kind::PodGroup | Kind::Pod) {
            return;
        }
        let key = object.key();
        // A new object of an old name: what the old one belonged to must look again.
        if self.objects.get(&key).is_some_and(|old| old.metadata.uid != object.metadata.uid) {
            self.deleted(&key);
        }
        self.mark(object);
        if let Some(job) = job_of_pod(object) {
            self.pods_of_job.entry(job.to_owned()).or_default().insert(key.clone());
        }
        self.objects.insert(key, Arc::clone(object));
    }

    /// An object is gone.
    pub fn deleted(&mut self, key: &ObjectKey) {
        let Some(object) = self.objects.remove(key) else { return };
        if let Some(job) = job_of_pod(&object)
            && let Some(pods) = self.pods_of_job.get_mut(job)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.pods_of_job.remove(job);
            }
        }
        self.mark(&object);
    }

    /// How much is kept, by name: zero without jobs, PodGroups and pods.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("objects", self.objects.len()),
            ("pods_of_jobs", self.pods_of_job.len()),
            ("to_look_at", self.dirty.len()),
        ]
    }

    /// All is looked at again.
    pub fn mark_all(&mut self) {
        for object in self.objects.values().cloned().collect::<Vec<_>>() {
            self.mark(&object);
        }
    }

    /// What is to be written for all that changed since the last call.
    pub fn writes(&mut self, now: Time) -> Writes {
        let mut writes = Writes::default();
        let dirty = std::mem::take(&mut self.dirty).into_iter();
        let mut dirty: Vec<(ObjectKey, &Arc<Object>)> =
            dirty.filter_map(|key| Some((key.clone(), self.objects.get(&key)?))).collect();
        // As they arrived: of two jobs of one moment the first gets the first PodGroup, whatever their names are.
        dirty.sort_by_key(|(_, object)| (object.metadata.creation, object.metadata.resource_version));
        for (key, object) in dirty {
            match key.kind {
                Kind::Job => {
                    let pods = self.pods_of_job.get(&object.metadata.uid);
                    let pods: Vec<&Object> = pods
                        .into_iter()
                        .flatten()
                        .filter_map(|key| self.objects.get(key).map(|pod| &**pod))
                        .collect();
                    let group = ObjectKey::new(Kind::PodGroup, &key.namespace, &pod_group_name(object));
                    let group = self.objects.get(&group).map(|group| &**group);
                    expand::job(object, group, &pods, now, &mut writes);
                }
                Kind::Pod => {
                    let group =
                        ObjectKey::new(Kind::PodGroup, &key.namespace, &expand::own_group_name(object));
                    let group = self.objects.get(&group).map(|group| &**group);
                    expand::bare_pod(&self.reading, object, group, &mut writes);
                }
                _ => {}
            }
        }
        writes
    }

    /// Marks what must look again because this object changed.
    fn mark(&mut self, object: &Object) {
        let namespace = &object.metadata.namespace;
        match (object.kind, &object.metadata.owner) {
            (Kind::Job, _) => {
                self.dirty.insert(object.key());
            }
            (Kind::Pod | Kind::PodGroup, Some(owner)) if owner.kind == Kind::Job => {
                self.dirty.insert(ObjectKey::new(Kind::Job, namespace, &owner.name));
            }
            (Kind::PodGroup, Some(owner)) if owner.kind == Kind::Pod => {
                self.dirty.insert(ObjectKey::new(Kind::Pod, namespace, &owner.name));
            }
            (Kind::Pod, _) if is_bare(&self.reading, object) => {
                self.dirty.insert(object.key());
            }
            _ => {}
        }
    }
}

/// All writes that a set of objects asks for: for a look at everything, and for tests.
#[must_use]
pub fn reconcile(objects: &[Arc<Object>], now: Time) -> Writes {
    let mut jobs = Jobs::new();
    for object in objects {
        jobs.applied(object);
    }
    jobs.writes(now)
}

/// UID of the job a pod belongs to.
fn job_of_pod(object: &Object) -> Option<&str> {
    let owner = object.metadata.owner.as_ref()?;
    (object.kind == Kind::Pod && owner.kind == Kind::Job).then_some(owner.uid.as_str())
}

/// True for a pod of ours that has no PodGroup, or only the one that was made for it.
pub(crate) fn is_bare(reading: &Reading, pod: &Object) -> bool {
    let group = pod.annotation(GROUP_NAME);
    reading.is_ours(pod) && group.is_none_or(|group| group == expand::own_group_name(pod))
}
