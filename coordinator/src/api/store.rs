//! The object store: in memory, synchronous, without clock and randomness. The embedded API keeps it
//! beside a file, the simulation uses it in virtual time.
//!
//! Write-ahead: `prepare` computes the changes of a write without touching anything, the caller makes
//! them durable, `commit` applies them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use phalanx_common::gang::PodPhase;
use phalanx_common::units::{Millis, Time};
use serde_json::{Value, json};

use super::{ApiError, Change, ChangeBody, Kind, Mutation, Object, ObjectKey, Preconditions};

/// Changes kept for those who watch.
pub const DEFAULT_LOG_LENGTH: usize = 8_192;

/// A write that is computed and not applied yet.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The object as it is after the write; before it, where the write removes it.
    pub object: Arc<Object>,
    /// What changes, in order. Empty where the write changes nothing.
    pub changes: Vec<Change>,
}

/// All objects, and the log of their changes.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    key_of_uid: BTreeMap<String, ObjectKey>,
    owned: BTreeMap<String, BTreeSet<ObjectKey>>,
    revision: u64,
    log: VecDeque<Change>,
    log_length: usize,
    /// Changes up to this number are not in the log.
    forgotten: u64,
    /// Creation time of the youngest PodGroup.
    youngest_group: Time,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(DEFAULT_LOG_LENGTH)
    }
}

impl Store {
    /// An empty store that keeps this many changes.
    #[must_use]
    pub fn new(log_length: usize) -> Self {
        Self::restore(Vec::new(), 0, log_length)
    }

    /// A store with these objects, as read back after a restart. The log starts empty, so whoever
    /// watched from an older number has a gap.
    #[must_use]
    pub fn restore(objects: Vec<Object>, revision: u64, log_length: usize) -> Self {
        let newest = objects.iter().map(|object| object.metadata.resource_version).max().unwrap_or(0);
        let revision = revision.max(newest);
        let mut store = Self {
            objects: BTreeMap::new(),
            key_of_uid: BTreeMap::new(),
            owned: BTreeMap::new(),
            revision,
            log: VecDeque::new(),
            log_length: log_length.max(1),
            forgotten: revision,
            youngest_group: Time(0),
        };
        for object in objects {
            store.insert(Arc::new(object));
        }
        store
    }

    /// The same objects without a log: to compute several writes ahead of their commit.
    #[must_use]
    pub fn ahead(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            key_of_uid: self.key_of_uid.clone(),
            owned: self.owned.clone(),
            revision: self.revision,
            log: VecDeque::new(),
            log_length: 1,
            forgotten: self.revision,
            youngest_group: self.youngest_group,
        }
    }

    /// Number of the newest change.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// One object.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        self.objects.get(key).cloned().ok_or_else(|| ApiError::NotFound(key.to_string()))
    }

    /// All objects of a kind (`None` = of all), by key, and the number of the newest change.
    #[must_use]
    pub fn list(&self, kind: Option<Kind>) -> (Vec<Arc<Object>>, u64) {
        let wanted = |object: &&Arc<Object>| kind.is_none_or(|kind| object.kind == kind);
        (self.objects.values().filter(wanted).cloned().collect(), self.revision)
    }

    /// Changes after `resource_version`, oldest first, at most `max`.
    ///
    /// # Errors
    /// `Gone` where the log does not reach back that far, or never was at that number.
    pub fn changes_since(&self, resource_version: u64, max: usize) -> Result<Vec<Change>, ApiError> {
        if resource_version < self.forgotten || resource_version > self.revision {
            return Err(ApiError::Gone { asked: resource_version });
        }
        let first = self.log.partition_point(|change| change.resource_version <= resource_version);
        Ok(self.log.iter().skip(first).take(max).cloned().collect())
    }

    /// How much is kept, by name. Without objects all of it is zero, but for the log, whose length is fixed.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("objects", self.objects.len()),
            ("uids", self.key_of_uid.len()),
            ("owners", self.owned.len()),
            ("log", self.log.len()),
        ]
    }

    /// Forgets the log: whoever watches has a gap.
    pub fn forget_log(&mut self) {
        self.log.clear();
        self.forgotten = self.revision;
    }

    /// Computes what a write would change. `new_uid` is used where it creates an object.
    ///
    /// # Errors
    /// The write is refused; nothing is changed.
    pub fn prepare(&self, mutation: Mutation, now: Time, new_uid: &str) -> Result<Prepared, ApiError> {
        match mutation {
            Mutation::Create(object) => self.create(*object, now, new_uid),
            Mutation::Update(object) => self.update(*object),
            Mutation::UpdateStatus { key, preconditions, status } => {
                let mut object = self.checked(&key, &preconditions)?;
                object.status = status;
                Ok(self.applied(object))
            }
            Mutation::PatchAnnotations { key, preconditions, annotations } => {
                let mut object = self.checked(&key, &preconditions)?;
                for (name, value) in annotations {
                    match value {
                        Some(value) => object.metadata.annotations.insert(name, value),
                        None => object.metadata.annotations.remove(&name),
                    };
                }
                Ok(self.applied(object))
            }
            Mutation::Bind { key, preconditions, node, annotations } => {
                let object = self.checked(&key, &preconditions)?;
                self.bind(object, &node, annotations)
            }
            Mutation::Delete { key, preconditions } | Mutation::Evict { key, preconditions } => {
                let object = self.checked(&key, &preconditions)?;
                Ok(self.delete(object, now))
            }
            Mutation::Finalize { uid } => self.finalize(uid.as_str(), now),
        }
    }

    /// Applies the changes of prepared writes.
    ///
    /// # Errors
    /// Another write was applied since they were prepared; nothing is changed.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), ApiError> {
        let Some(first) = changes.first() else { return Ok(()) };
        if first.resource_version != self.revision + 1 {
            return Err(ApiError::Storage(format!(
                "a write was prepared for change {} and the store is at {}",
                first.resource_version, self.revision
            )));
        }
        for change in changes {
            match &change.body {
                ChangeBody::Applied(object) => self.insert(Arc::clone(object)),
                ChangeBody::Deleted { key, .. } => self.remove(key),
            }
            self.revision = change.resource_version;
            if self.log.len() == self.log_length
                && let Some(oldest) = self.log.pop_front()
            {
                self.forgotten = oldest.resource_version;
            }
            self.log.push_back(change.clone());
        }
        Ok(())
    }

    /// `prepare` and `commit` in one, for a store without a file.
    ///
    /// # Errors
    /// As `prepare`.
    pub fn mutate(&mut self, mutation: Mutation, now: Time, new_uid: &str) -> Result<Arc<Object>, ApiError> {
        let prepared = self.prepare(mutation, now, new_uid)?;
        self.commit(&prepared.changes)?;
        Ok(prepared.object)
    }

    fn insert(&mut self, object: Arc<Object>) {
        let key = object.key();
        self.remove(&key);
        self.key_of_uid.insert(object.metadata.uid.clone(), key.clone());
        if object.kind == Kind::PodGroup {
            self.youngest_group = self.youngest_group.max(object.metadata.creation);
        }
        if let Some(owner) = &object.metadata.owner {
            self.owned.entry(owner.uid.clone()).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
    }

    fn remove(&mut self, key: &ObjectKey) {
        let Some(object) = self.objects.remove(key) else { return };
        self.key_of_uid.remove(&object.metadata.uid);
        if let Some(owner) = &object.metadata.owner
            && let Some(keys) = self.owned.get_mut(&owner.uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.owned.remove(&owner.uid);
            }
        }
    }

    fn checked(&self, key: &ObjectKey, preconditions: &Preconditions) -> Result<Object, ApiError> {
        let object = self.get(key)?;
        check(&object, preconditions)?;
        Ok(Object::clone(&object))
    }

    fn create(&self, mut object: Object, now: Time, new_uid: &str) -> Result<Prepared, ApiError> {
        if object.kind.is_cluster_scoped() {
            object.metadata.namespace.clear();
        } else if object.metadata.namespace.is_empty() {
            object.metadata.namespace = "default".to_owned();
        }
        if object.metadata.name.is_empty() {
            if object.metadata.generate_name.is_empty() {
                return Err(ApiError::Invalid("metadata.name: missing".to_owned()));
            }
            object.metadata.name = format!("{}{}", object.metadata.generate_name, name_suffix(new_uid));
        }
        let key = object.key();
        if self.objects.contains_key(&key) {
            return Err(ApiError::AlreadyExists(key.to_string()));
        }
        if self.key_of_uid.contains_key(new_uid) || new_uid.is_empty() {
            return Err(ApiError::Storage(format!("UID {new_uid:?} is not fresh")));
        }
        if let Some(owner) = &object.metadata.owner
            && !self.key_of_uid.contains_key(&owner.uid)
        {
            return Err(ApiError::Conflict(format!(
                "the owner of {key}, {} {} of UID {}, does not exist",
                owner.kind, owner.name, owner.uid
            )));
        }
        object.metadata.uid = new_uid.to_owned();
        // Gangs are served by age, also after a restart, when the order of arrival is lost: no two are of one moment.
        object.metadata.creation = match object.kind {
            Kind::PodGroup => now.max(self.youngest_group + Millis(1)),
            _ => now,
        };
        object.metadata.deletion = None;
        object.status = fresh_status(object.kind);
        Ok(self.applied(object))
    }

    fn update(&self, new: Object) -> Result<Prepared, ApiError> {
        let key = new.key();
        let preconditions = Preconditions {
            uid: (!new.metadata.uid.is_empty()).then(|| new.metadata.uid.clone()),
            resource_version: new.metadata.resource_version,
        };
        let mut object = self.checked(&key, &preconditions)?;
        if object.kind == Kind::Pod && object.spec != new.spec {
            return Err(ApiError::Invalid(format!(
                "spec: the spec of {key} cannot be changed; delete the pod and create it again"
            )));
        }
        object.spec = new.spec;
        object.metadata.labels = new.metadata.labels;
        object.metadata.annotations = new.metadata.annotations;
        Ok(self.applied(object))
    }

    fn bind(
        &self,
        mut pod: Object,
        node: &str,
        annotations: BTreeMap<String, String>,
    ) -> Result<Prepared, ApiError> {
        let key = pod.key();
        if pod.kind != Kind::Pod {
            return Err(ApiError::Invalid(format!("{key} cannot be bound: only a Pod can")));
        }
        if let Some(bound) = node_name(&pod) {
            return Err(ApiError::Conflict(format!("{key} is bound to node {bound} already")));
        }
        if pod.metadata.deletion.is_some() {
            return Err(ApiError::Conflict(format!("{key} is being deleted")));
        }
        if phase(&pod).is_terminal() {
            return Err(ApiError::Conflict(format!("{key} has ended")));
        }
        match &mut pod.spec {
            Value::Object(fields) => {
                fields.insert("nodeName".to_owned(), Value::String(node.to_owned()));
            }
            spec => *spec = json!({ "nodeName": node }),
        }
        pod.metadata.annotations.extend(annotations);
        Ok(self.applied(pod))
    }

    fn finalize(&self, uid: &str, now: Time) -> Result<Prepared, ApiError> {
        let object = self
            .key_of_uid
            .get(uid)
            .and_then(|key| self.objects.get(key))
            .ok_or_else(|| ApiError::NotFound(format!("an object of UID {uid}")))?;
        if object.metadata.deletion.is_none() {
            return Err(ApiError::Invalid(format!("{} is not being deleted", object.key())));
        }
        let mut changes = Vec::new();
        self.remove_with_owned(object, now, &mut changes);
        Ok(Prepared { object: Arc::clone(object), changes })
    }

    fn delete(&self, object: Object, now: Time) -> Prepared {
        if lingers(&object) {
            return self.stamped(object, now);
        }
        let mut changes = Vec::new();
        let object = Arc::new(object);
        self.remove_with_owned(&object, now, &mut changes);
        Prepared { object, changes }
    }

    /// The object with a deletion stamp; one that has a stamp keeps it.
    fn stamped(&self, mut object: Object, now: Time) -> Prepared {
        object.metadata.deletion.get_or_insert(now);
        self.applied(object)
    }

    /// Removes an object and what it owns; pods that run get a stamp. Works on a list instead of
    /// calling itself, so that a long chain of owners costs no stack.
    fn remove_with_owned(&self, object: &Arc<Object>, now: Time, changes: &mut Vec<Change>) {
        let mut waiting = VecDeque::from([Arc::clone(object)]);
        let mut seen = BTreeSet::from([object.metadata.uid.clone()]);
        while let Some(gone) = waiting.pop_front() {
            let resource_version = self.revision + 1 + changes.len() as u64;
            let body = ChangeBody::Deleted { key: gone.key(), uid: gone.metadata.uid.clone() };
            changes.push(Change { resource_version, kind: gone.kind, body });
            for key in self.owned.get(&gone.metadata.uid).into_iter().flatten() {
                let Some(owned) = self.objects.get(key) else { continue };
                if !seen.insert(owned.metadata.uid.clone()) {
                    continue;
                }
                if !lingers(owned) {
                    waiting.push_back(Arc::clone(owned));
                } else if owned.metadata.deletion.is_none() {
                    let mut stamped = Object::clone(owned);
                    stamped.metadata.deletion = Some(now);
                    stamped.metadata.resource_version = self.revision + 1 + changes.len() as u64;
                    changes.push(applied_change(Arc::new(stamped)));
                }
            }
        }
    }

    /// One change, or none where nothing differs: a write without effect wakes nobody.
    fn applied(&self, mut object: Object) -> Prepared {
        if let Some(old) = self.objects.get(&object.key())
            && **old == object
        {
            return Prepared { object: Arc::clone(old), changes: Vec::new() };
        }
        object.metadata.resource_version = self.revision + 1;
        let object = Arc::new(object);
        Prepared { object: Arc::clone(&object), changes: vec![applied_change(object)] }
    }
}

fn applied_change(object: Arc<Object>) -> Change {
    Change {
        resource_version: object.metadata.resource_version,
        kind: object.kind,
        body: ChangeBody::Applied(object),
    }
}

/// As Kubernetes does: a pod that a kubelet may be running stays until that has stopped it.
fn lingers(object: &Object) -> bool {
    object.kind == Kind::Pod && node_name(object).is_some() && !phase(object).is_terminal()
}

/// `spec.nodeName` of a pod.
#[must_use]
pub fn node_name(pod: &Object) -> Option<&str> {
    pod.spec.get("nodeName").and_then(Value::as_str).filter(|name| !name.is_empty())
}

/// `status.phase` of a pod; Pending where there is none.
#[must_use]
pub fn phase(pod: &Object) -> PodPhase {
    match pod.status.get("phase").and_then(Value::as_str) {
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Pending,
    }
}

fn fresh_status(kind: Kind) -> Value {
    match kind {
        Kind::Pod | Kind::PodGroup => json!({ "phase": "Pending" }),
        Kind::Queue => json!({ "state": "Open" }),
        Kind::Job => json!({ "state": { "phase": "Pending" } }),
        Kind::QueuePolicy
        | Kind::PriorityClass
        | Kind::Node
        | Kind::GangPlan
        | Kind::PodDisruptionBudget
        | Kind::StorageClass
        | Kind::PersistentVolume
        | Kind::PersistentVolumeClaim => Value::Null,
    }
}

fn check(object: &Object, preconditions: &Preconditions) -> Result<(), ApiError> {
    let key = object.key();
    if let Some(uid) = &preconditions.uid
        && *uid != object.metadata.uid
    {
        return Err(ApiError::OtherUid(format!(
            "{key} has UID {}, the write is for UID {uid}",
            object.metadata.uid
        )));
    }
    let wanted = preconditions.resource_version;
    if wanted != 0 && wanted != object.metadata.resource_version {
        return Err(ApiError::Conflict(format!(
            "{key} is at resourceVersion {}, the write is for {wanted}",
            object.metadata.resource_version
        )));
    }
    Ok(())
}

/// Five characters for `generateName`, made from the new UID.
fn name_suffix(uid: &str) -> String {
    let characters: Vec<char> = uid
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|character| character.to_ascii_lowercase())
        .collect();
    characters[characters.len().saturating_sub(5)..].iter().collect()
}
