//! What makes gangs of other objects: a vcjob becomes a PodGroup and its pods, a pod without a
//! PodGroup gets one of its own. Pure: changes go in, writes come out.
//!
//! Writes are safe to repeat: names follow from the job, so one that was done already is refused as
//! AlreadyExists. Whoever runs them takes AlreadyExists, Conflict and NotFound as no news, and calls
//! `mark_all` after an answer that may be wrong (`Unknown`, `Storage`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::units::{Millis, Time};

use crate::api::store::node_name;
use crate::api::{Change, ChangeBody, ControllerRef, Kind, Mutation, Object, ObjectKey};
use crate::convert::Reading;
use crate::manifest::names::GROUP_NAME;

mod expand;
mod owners;
pub(crate) mod status;

use self::owners::Owners;
pub use self::owners::{TopOwner, UnknownOwner};
pub use expand::pod_group_name;
pub(crate) use expand::{made_group_name, queue_of_pod};

/// Age at which a pod that waits gets a PodGroup, which says why it waits.
const LONE_WAITING: Millis = Millis(5_000);
/// Age at which one that is bound gets one.
const LONE_BOUND: Millis = Millis(15_000);
/// PodGroups made for lone pods in one look, and the pause before the next.
const LONE_AT_A_TIME: usize = 8;
const LONE_PAUSE: Millis = Millis(200);

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
    owners: Owners,
    /// Lone pods whose PodGroup is not made yet, by when it is.
    later: BTreeSet<(Time, ObjectKey)>,
    /// The same by pod.
    later_at: BTreeMap<ObjectKey, Time>,
    /// The next PodGroups for lone pods are made then at the earliest.
    lone_pause: Time,
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
        let is_of_use = match object.kind {
            Kind::Job | Kind::PodGroup => true,
            Kind::Pod => self.reading.is_ours(object) || job_of_pod(object).is_some(),
            _ => false,
        };
        if !is_of_use {
            return;
        }
        let key = object.key();
        // A new object of an old name: what the old one belonged to must look again.
        if self.objects.get(&key).is_some_and(|old| old.metadata.uid != object.metadata.uid) {
            self.deleted(&key);
        }
        if let Some(old) =
            self.objects.get(&key).filter(|old| old.metadata.controller != object.metadata.controller)
            && let (Kind::Pod, Some(controller)) = (key.kind, &old.metadata.controller)
        {
            // It was orphaned, or adopted.
            self.owners.forget(&key, controller);
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
        if let (Kind::Pod, Some(controller)) = (key.kind, &object.metadata.controller) {
            self.owners.forget(key, controller);
            self.mark_group_of(&object);
        }
        if let Some(job) = job_of_pod(&object)
            && let Some(pods) = self.pods_of_job.get_mut(job)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.pods_of_job.remove(job);
            }
        }
        self.keep_later(key, None);
        self.mark(&object);
    }

    /// How much is kept, by name: zero without jobs, PodGroups and pods.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("objects", self.objects.len()),
            ("pods_of_jobs", self.pods_of_job.len()),
            ("owners_of_pods", self.owners.kept()),
            ("lone_pods", self.later.len()),
            ("to_look_at", self.dirty.len()),
        ]
    }

    /// All is looked at again.
    pub fn mark_all(&mut self) {
        for object in self.objects.values().cloned().collect::<Vec<_>>() {
            self.mark(&object);
        }
    }

    /// Looks at one object again though nothing changed: a write for it failed.
    pub fn mark_again(&mut self, key: &ObjectKey) {
        if let Some(object) = self.objects.get(key).cloned() {
            self.mark(&object);
        }
    }

    /// Controllers of pods that are to be looked up; see `owner_found`.
    pub fn unknown_owners(&self) -> impl Iterator<Item = &UnknownOwner> {
        self.owners.unknown()
    }

    /// What stands above a controller that pods name.
    pub fn owner_found(&mut self, controller: &ControllerRef, top: TopOwner) {
        self.dirty.extend(self.owners.found(controller, top));
    }

    /// What is to be written for all that changed since the last call.
    pub fn writes(&mut self, now: Time) -> Writes {
        let mut all = Writes::default();
        for (_, writes) in self.writes_by_object(now) {
            all.mutations.extend(writes.mutations);
            all.warnings.extend(writes.warnings);
        }
        all
    }

    /// The same, apart for each object that asks for it, in the order in which they arrived.
    pub fn writes_by_object(&mut self, now: Time) -> Vec<(ObjectKey, Writes)> {
        let mut lone_left = if self.lone_pause <= now { LONE_AT_A_TIME } else { 0 };
        for _ in 0..lone_left {
            let Some((_, key)) = self.later.first().filter(|(due, _)| *due <= now).cloned() else { break };
            self.keep_later(&key, None);
            self.dirty.insert(key);
        }
        let dirty = std::mem::take(&mut self.dirty).into_iter();
        let mut dirty: Vec<(ObjectKey, Arc<Object>)> =
            dirty.filter_map(|key| Some((key.clone(), Arc::clone(self.objects.get(&key)?)))).collect();
        // As they arrived: of two jobs of one moment the first gets the first PodGroup, whatever their names are. PodGroups
        // last: whether they have pods is known when all pods were looked at.
        dirty.sort_by_key(|(key, object)| {
            (key.kind == Kind::PodGroup, object.metadata.creation, object.metadata.resource_version)
        });
        let mut wanted = Vec::new();
        for (key, object) in dirty {
            let mut writes = Writes::default();
            match key.kind {
                Kind::Job => self.job_writes(&object, now, &mut writes),
                Kind::Pod => self.pod_writes(&key, &object, now, &mut lone_left, &mut writes),
                Kind::PodGroup => self.group_writes(&object, &mut writes),
                _ => {}
            }
            if writes != Writes::default() {
                wanted.push((key, writes));
            }
        }
        wanted
    }

    fn job_writes(&self, job: &Object, now: Time, writes: &mut Writes) {
        let pods = self.pods_of_job.get(&job.metadata.uid).into_iter().flatten();
        let pods: Vec<&Object> = pods.filter_map(|key| self.objects.get(key).map(|pod| &**pod)).collect();
        let group = ObjectKey::new(Kind::PodGroup, &job.metadata.namespace, &pod_group_name(job));
        let group = self.objects.get(&group).map(|group| &**group);
        let has_volumes = self.reading.has_volumes();
        expand::job(job, group, &pods, expand::Circumstances { now, has_volumes }, writes);
    }

    /// When something is to be written although nothing changes.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.later.first().map(|(due, _)| (*due).max(self.lone_pause))
    }

    /// A lone pod is looked at then, or not by itself.
    fn keep_later(&mut self, pod: &ObjectKey, due: Option<Time>) {
        let before = match due {
            Some(due) => self.later_at.insert(pod.clone(), due),
            None => self.later_at.remove(pod),
        };
        if let Some(before) = before {
            self.later.remove(&(before, pod.clone()));
        }
        self.later.extend(due.map(|due| (due, pod.clone())));
    }

    /// True where the PodGroup of a lone pod is to be made now, which is noted; else it is looked at again. It is placed
    /// without one, and an object for each would cost more than the placement.
    fn is_time_for_group(&mut self, key: &ObjectKey, pod: &Object, now: Time, lone_left: &mut usize) -> bool {
        let wait = if node_name(pod).is_some() { LONE_BOUND } else { LONE_WAITING };
        let due = pod.metadata.creation + wait;
        if now < due || *lone_left == 0 {
            self.keep_later(key, Some(due));
            return false;
        }
        self.keep_later(key, None);
        *lone_left -= 1;
        self.lone_pause = now + LONE_PAUSE;
        true
    }

    fn pod_writes(
        &mut self,
        key: &ObjectKey,
        pod: &Object,
        now: Time,
        lone_left: &mut usize,
        writes: &mut Writes,
    ) {
        if !is_bare(&self.reading, pod) {
            return;
        }
        let top = match &pod.metadata.controller {
            Some(controller) => match self.owners.of_pod(key, controller) {
                Some(top) => Some(top.clone()),
                None => return,
            },
            None => None,
        };
        let group = expand::made_group_name(pod, top.as_ref());
        let group = ObjectKey::new(Kind::PodGroup, &key.namespace, &group);
        let group = self.objects.get(&group).cloned();
        let mut wanted = Writes::default();
        expand::bare_pod(pod, top.as_ref(), group.as_deref(), &mut wanted);
        let is_lone = self.reading.has_lone_pods() && top.is_none();
        if wanted.mutations.is_empty() {
            self.keep_later(key, None);
        } else if !is_lone || self.is_time_for_group(key, pod, now, lone_left) {
            *writes = wanted;
        }
    }

    /// A PodGroup that was made for an owner goes with its last pod: alone it would wait for pods and take quota.
    fn group_writes(&self, group: &Object, writes: &mut Writes) {
        let Some(owner) = group.metadata.controller.as_ref().filter(|owner| is_made_for(group, owner)) else {
            return;
        };
        let has_pods = self.owners.has_pods_of(&group.metadata.namespace, &owner.uid)
            || self.pods_naming(group).next().is_some();
        if !has_pods {
            writes
                .mutations
                .push(Mutation::Delete { key: group.key(), preconditions: group.preconditions() });
        }
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
            (Kind::PodGroup, _) => self.mark_around(object),
            _ => {}
        }
    }

    /// A PodGroup that was made for the owner of pods came or went: whether it has pods, and they have it, is looked at.
    fn mark_around(&mut self, group: &Object) {
        if !group.metadata.controller.as_ref().is_some_and(|owner| is_made_for(group, owner)) {
            return;
        }
        self.dirty.insert(group.key());
        let pods: Vec<ObjectKey> = self.pods_naming(group).cloned().collect();
        self.dirty.extend(pods);
    }

    /// Pods that name this PodGroup.
    fn pods_naming<'s>(&'s self, group: &'s Object) -> impl Iterator<Item = &'s ObjectKey> {
        let metadata = &group.metadata;
        let pods = self.objects.range(ObjectKey::new(Kind::Pod, &metadata.namespace, "")..);
        let pods = pods.take_while(|(key, _)| key.kind == Kind::Pod && key.namespace == metadata.namespace);
        pods.filter(|(_, pod)| pod.annotation(GROUP_NAME) == Some(metadata.name.as_str())).map(|(key, _)| key)
    }

    fn mark_group_of(&mut self, pod: &Object) {
        if let Some(group) = pod.annotation(GROUP_NAME) {
            self.dirty.insert(ObjectKey::new(Kind::PodGroup, &pod.metadata.namespace, group));
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
    let is_made = |group: &str| match &pod.metadata.controller {
        Some(_) => group.starts_with(expand::MADE_GROUP),
        None => group == expand::made_group_name(pod, None),
    };
    reading.is_ours(pod) && named_group(pod).is_none_or(is_made)
}

/// The PodGroup that a pod names; as in Volcano an empty name is none.
pub(crate) fn named_group(pod: &Object) -> Option<&str> {
    pod.annotation(GROUP_NAME).filter(|name| !name.is_empty())
}

/// True for a PodGroup that was made for the pods of its controller.
fn is_made_for(group: &Object, controller: &ControllerRef) -> bool {
    group.metadata.name.strip_prefix(expand::MADE_GROUP) == Some(controller.uid.as_str())
}
