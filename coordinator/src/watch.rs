//! Follows the API: first everything, then every change. After a gap in the change log everything is listed
//! again, and what vanished meanwhile is told as deleted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use crate::api::{Api, ApiError, Change, ChangeBody, Kind, Listing, Object, ObjectKey};
use crate::metrics::Metrics;

/// Changes taken at once.
const BATCH_CHANGES: usize = 512;
/// Pause after a read that failed.
const RETRY: Duration = Duration::from_millis(200);

/// One reader of the change log.
pub struct Watcher<A> {
    api: A,
    told: Told,
    /// What of the first listing was not told yet.
    listing: Option<Listing>,
    revision: u64,
    newest: watch::Receiver<u64>,
    metrics: Arc<Metrics>,
}

impl<A> fmt::Debug for Watcher<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watcher").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl<A: Api> Watcher<A> {
    /// Lists everything, and stands behind it.
    ///
    /// # Errors
    /// The list could not be read.
    pub async fn start(api: A, metrics: Arc<Metrics>) -> Result<(Self, Vec<Arc<Object>>), ApiError> {
        let mut watcher = Self::begin(api, metrics).await?;
        let objects = std::iter::from_fn(|| watcher.listed()).collect();
        Ok((watcher, objects))
    }

    /// Stands behind a listing of everything, which `listed` gives object by object. It must be taken to its end
    /// before `next`.
    ///
    /// # Errors
    /// The list could not be read.
    pub async fn begin(api: A, metrics: Arc<Metrics>) -> Result<Self, ApiError> {
        // Subscribed before the list: a change in between wakes the reader.
        let newest = api.subscribe();
        let (listing, revision) = api.listing(None).await?;
        Ok(Self { api, told: Told::default(), listing: Some(listing), revision, newest, metrics })
    }

    /// The next object of the listing; `None` at its end.
    pub fn listed(&mut self) -> Option<Arc<Object>> {
        let Some(object) = self.listing.as_mut().and_then(Iterator::next) else {
            self.listing = None;
            return None;
        };
        self.told.insert(&object);
        Some(object)
    }

    /// Waits for changes and gives at least one, oldest first. Dropping the call loses nothing. Ends with `None`
    /// when the API is gone.
    pub async fn next(&mut self) -> Option<Vec<Change>> {
        loop {
            match self.api.changes_since(self.revision, BATCH_CHANGES).await {
                Ok(changes) if !changes.is_empty() => {
                    self.remember(&changes);
                    return Some(changes);
                }
                Ok(_) => self.wait().await?,
                Err(ApiError::Gone { asked }) => {
                    tracing::info!(asked, "the change log has a gap: everything is listed again");
                    match self.relist().await {
                        Ok(changes) if changes.is_empty() => {}
                        Ok(changes) => return Some(changes),
                        Err(error) => pause(&error).await,
                    }
                }
                Err(error) => pause(&error).await,
            }
        }
    }

    async fn wait(&mut self) -> Option<()> {
        let revision = self.revision;
        self.newest.wait_for(|newest| *newest > revision).await.ok().map(|_| ())
    }

    fn remember(&mut self, changes: &[Change]) {
        for change in changes {
            self.revision = self.revision.max(change.resource_version);
            match &change.body {
                ChangeBody::Applied(object) => self.told.insert(object),
                ChangeBody::Deleted { key, .. } => self.told.remove(key),
            }
        }
    }

    /// The difference between what was told and what is there.
    async fn relist(&mut self) -> Result<Vec<Change>, ApiError> {
        let (listing, revision) = self.api.listing(None).await?;
        self.metrics.relists.inc();
        let mut present = Told::default();
        let mut applied = Vec::new();
        for object in listing {
            present.insert(&object);
            if !self.told.has(&object) {
                let resource_version = object.metadata.resource_version;
                let body = ChangeBody::Applied(Arc::clone(&object));
                applied.push(Change { resource_version, kind: object.kind, body });
            }
        }
        let gone = self.told.gone_from(&present).into_iter().map(|(key, uid)| {
            let kind = key.kind;
            Change { resource_version: revision, kind, body: ChangeBody::Deleted { key, uid } }
        });
        let changes = gone.chain(applied).collect();
        self.told = present;
        self.revision = revision;
        Ok(changes)
    }
}

/// UID and version of every object told, in little room.
#[derive(Debug, Default)]
struct Told {
    /// By kind and `namespace/name`.
    objects: BTreeMap<Kind, BTreeMap<Box<str>, (Uid, u64)>>,
}

/// A UID as Kubernetes makes them takes half the room of its text.
#[derive(Debug, PartialEq, Eq)]
enum Uid {
    Number(Uuid),
    Text(Box<str>),
}

impl Uid {
    fn of(text: &str) -> Self {
        let number = Uuid::try_parse(text).ok().filter(|uuid| uuid.hyphenated().to_string() == text);
        number.map_or_else(|| Self::Text(Box::from(text)), Self::Number)
    }

    fn text(&self) -> String {
        match self {
            Self::Number(uuid) => uuid.hyphenated().to_string(),
            Self::Text(text) => text.to_string(),
        }
    }
}

fn place(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl Told {
    fn insert(&mut self, object: &Object) {
        let metadata = &object.metadata;
        let told = (Uid::of(&metadata.uid), metadata.resource_version);
        let objects = self.objects.entry(object.kind).or_default();
        objects.insert(place(&metadata.namespace, &metadata.name).into_boxed_str(), told);
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(objects) = self.objects.get_mut(&key.kind) {
            objects.remove(place(&key.namespace, &key.name).as_str());
        }
    }

    /// True where this very version was told.
    fn has(&self, object: &Object) -> bool {
        let metadata = &object.metadata;
        let place = place(&metadata.namespace, &metadata.name);
        let told = self.objects.get(&object.kind).and_then(|objects| objects.get(place.as_str()));
        told.is_some_and(|told| *told == (Uid::of(&metadata.uid), metadata.resource_version))
    }

    /// What is not there any more, or is another object of the same name now.
    fn gone_from(&self, present: &Self) -> Vec<(ObjectKey, String)> {
        let mut gone = Vec::new();
        for (kind, objects) in &self.objects {
            let still = present.objects.get(kind);
            for (place, (uid, _)) in objects {
                if still.and_then(|objects| objects.get(place)).is_none_or(|(new, _)| new != uid) {
                    let (namespace, name) = place.split_once('/').unwrap_or(("", place));
                    gone.push((ObjectKey::new(*kind, namespace, name), uid.text()));
                }
            }
        }
        gone
    }
}

async fn pause(error: &ApiError) {
    tracing::warn!(%error, "the API could not be read; trying again");
    tokio::time::sleep(RETRY).await;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::api::embedded::EmbeddedApi;
    use crate::api::faults::{Call, Fault, FaultPlan, FaultyApi};
    use crate::api::{Mutation, Preconditions};

    type Faulty = FaultyApi<EmbeddedApi>;

    async fn started(directory: &Path) -> (Faulty, Watcher<Faulty>) {
        let api = FaultyApi::new(EmbeddedApi::open(&directory.join("objects")).unwrap(), FaultPlan::none());
        create(&api, "a").await;
        create(&api, "b").await;
        let (watcher, listed) = Watcher::start(api.clone(), Arc::new(Metrics::default())).await.unwrap();
        assert_eq!(listed.iter().map(|object| object.metadata.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        (api, watcher)
    }

    async fn create(api: &Faulty, name: &str) {
        api.mutate(Mutation::Create(Box::new(Object::new(Kind::Queue, "", name)))).await.unwrap();
    }

    async fn delete(api: &Faulty, name: &str) {
        let key = ObjectKey::new(Kind::Queue, "", name);
        api.mutate(Mutation::Delete { key, preconditions: Preconditions::default() }).await.unwrap();
    }

    fn texts(changes: Option<Vec<Change>>) -> Vec<String> {
        let text = |change: &Change| match &change.body {
            ChangeBody::Applied(object) => format!("+{}", object.metadata.name),
            ChangeBody::Deleted { key, .. } => format!("-{}", key.name),
        };
        changes.unwrap().iter().map(text).collect()
    }

    #[tokio::test]
    async fn changes_come_in_order_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let (api, mut watcher) = started(directory.path()).await;
        create(&api, "c").await;
        delete(&api, "a").await;
        assert_eq!(texts(watcher.next().await), ["+c", "-a"]);
        let waiting = tokio::spawn(async move { texts(watcher.next().await) });
        create(&api, "d").await;
        assert_eq!(waiting.await.unwrap(), ["+d"]);
    }

    #[tokio::test]
    async fn after_a_gap_the_difference_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let (api, mut watcher) = started(directory.path()).await;
        create(&api, "c").await;
        delete(&api, "a").await;
        // The same name again is another object: the old one must be told as gone.
        delete(&api, "b").await;
        create(&api, "b").await;
        api.with_plan(|plan| plan.push(Call::Watch, Fault::WatchGap));
        assert_eq!(texts(watcher.next().await), ["-a", "-b", "+b", "+c"]);
        assert_eq!(watcher.metrics.relists.get(), 1);
        create(&api, "d").await;
        assert_eq!(texts(watcher.next().await), ["+d"]);
    }

    #[tokio::test]
    async fn a_gap_without_a_difference_tells_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (api, mut watcher) = started(directory.path()).await;
        api.with_plan(|plan| plan.push(Call::Watch, Fault::WatchGap));
        let early = tokio::time::timeout(Duration::from_millis(300), watcher.next()).await;
        assert!(early.is_err(), "{early:?}");
        assert_eq!(watcher.metrics.relists.get(), 1);
        create(&api, "c").await;
        assert_eq!(texts(watcher.next().await), ["+c"]);
    }

    #[tokio::test]
    async fn reads_that_fail_are_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let (api, mut watcher) = started(directory.path()).await;
        create(&api, "c").await;
        api.with_plan(|plan| {
            plan.push(Call::Watch, Fault::TimedOutNotDone);
            plan.push(Call::Watch, Fault::WatchGap);
            plan.push(Call::Read, Fault::StorageFailed);
        });
        assert_eq!(texts(watcher.next().await), ["+c"]);
    }
}
