//! The API server: the coordinator's own store, in virtual time, with the common set of faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::units::Time;
use phalanx_coordinator::api::faults::{Call, Fault, FaultPlan, mutate_store};
use phalanx_coordinator::api::store::Store;
use phalanx_coordinator::api::{ApiError, Change, ChangeBody, Mutation, Object, ObjectKey};

use crate::facts::Facts;

/// Changes a reader takes at once.
const BATCH_CHANGES: usize = 64;

/// The server.
#[derive(Debug)]
pub struct FakeApi {
    /// The objects.
    pub store: Store,
    /// Counter of the newest term.
    pub term: u64,
    /// Which calls fail.
    pub faults: FaultPlan,
    /// Gaps of the watch so far.
    pub watch_gaps: u64,
    uids: u64,
    /// Changes up to this one are in the facts.
    seen: u64,
}

impl FakeApi {
    /// An empty server.
    #[must_use]
    pub fn new(faults: FaultPlan) -> Self {
        Self { store: Store::default(), term: 0, faults, watch_gaps: 0, uids: 0, seen: 0 }
    }

    /// Does a write, as far as this fault lets it be done.
    ///
    /// # Errors
    /// The store's, or the fault's.
    pub fn write(
        &mut self,
        fault: Option<Fault>,
        mutation: Mutation,
        now: Time,
    ) -> Result<Arc<Object>, ApiError> {
        self.uids += 1;
        let uid = format!("u{}", self.uids);
        mutate_store(&mut self.store, fault, mutation, now, &uid)
    }

    /// Raises the term.
    pub fn raise_term(&mut self, above: u64) -> u64 {
        self.term = self.term.max(above) + 1;
        self.term
    }

    /// Brings the facts up to date; true where something changed.
    pub fn tell(&mut self, facts: &mut Facts) -> bool {
        let changes = self.store.changes_since(self.seen, usize::MAX).unwrap_or_default();
        self.seen = self.store.revision();
        changes.iter().for_each(|change| facts.change(change));
        !changes.is_empty()
    }
}

/// One reader of the change log.
#[derive(Debug)]
pub struct Follower {
    told: BTreeMap<ObjectKey, (String, u64)>,
    revision: u64,
}

impl Follower {
    /// Lists everything and stands behind it.
    #[must_use]
    pub fn start(store: &Store) -> (Self, Vec<Arc<Object>>) {
        let (objects, revision) = store.list(None);
        let told = objects.iter().map(|object| (object.key(), version(object))).collect();
        (Self { told, revision }, objects)
    }

    /// True where there is something to be read.
    #[must_use]
    pub const fn is_behind(&self, store: &Store) -> bool {
        self.revision < store.revision()
    }

    /// The next changes; after a gap in the log, the difference to a new list. Empty where the read failed.
    pub fn next(&mut self, api: &mut FakeApi) -> Vec<Change> {
        match api.faults.decide(Call::Watch) {
            Some(Fault::WatchGap) => {
                api.watch_gaps += 1;
                return self.relist(&api.store);
            }
            Some(_) => return Vec::new(),
            None => {}
        }
        let Ok(changes) = api.store.changes_since(self.revision, BATCH_CHANGES) else {
            return self.relist(&api.store);
        };
        for change in &changes {
            self.revision = change.resource_version;
            match &change.body {
                ChangeBody::Applied(object) => self.told.insert(object.key(), version(object)),
                ChangeBody::Deleted { key, .. } => self.told.remove(key),
            };
        }
        changes
    }

    fn relist(&mut self, store: &Store) -> Vec<Change> {
        let (objects, revision) = store.list(None);
        let present: BTreeMap<ObjectKey, (String, u64)> =
            objects.iter().map(|object| (object.key(), version(object))).collect();
        let gone = self
            .told
            .iter()
            .filter(|(key, (uid, _))| present.get(*key).is_none_or(|(new_uid, _)| new_uid != uid));
        let mut changes: Vec<Change> = gone
            .map(|(key, (uid, _))| Change {
                resource_version: revision,
                kind: key.kind,
                body: ChangeBody::Deleted { key: key.clone(), uid: uid.clone() },
            })
            .collect();
        let new = objects.into_iter().filter(|object| self.told.get(&object.key()) != Some(&version(object)));
        changes.extend(new.map(|object| Change {
            resource_version: object.metadata.resource_version,
            kind: object.kind,
            body: ChangeBody::Applied(object),
        }));
        self.told = present;
        self.revision = revision;
        changes
    }
}

fn version(object: &Object) -> (String, u64) {
    (object.metadata.uid.clone(), object.metadata.resource_version)
}
