//! Follows the API: first everything, then every change. After a gap in the change log everything is listed
//! again, and what vanished meanwhile is told as deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::api::{Api, ApiError, Change, ChangeBody, Object, ObjectKey};
use crate::metrics::Metrics;

/// Changes taken at once.
const BATCH_CHANGES: usize = 512;
/// Pause after a read that failed.
const RETRY: Duration = Duration::from_millis(200);

/// One reader of the change log.
#[derive(Debug)]
pub struct Watcher<A> {
    api: A,
    /// UID and resourceVersion of every object told.
    told: BTreeMap<ObjectKey, (String, u64)>,
    revision: u64,
    newest: watch::Receiver<u64>,
    metrics: Arc<Metrics>,
}

impl<A: Api> Watcher<A> {
    /// Lists everything, and stands behind it.
    ///
    /// # Errors
    /// The list could not be read.
    pub async fn start(api: A, metrics: Arc<Metrics>) -> Result<(Self, Vec<Arc<Object>>), ApiError> {
        // Subscribed before the list: a change in between wakes the reader.
        let newest = api.subscribe();
        let (objects, revision) = api.list(None).await?;
        let told = objects.iter().map(|object| (object.key(), version(object))).collect();
        Ok((Self { api, told, revision, newest, metrics }, objects))
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
                ChangeBody::Applied(object) => self.told.insert(object.key(), version(object)),
                ChangeBody::Deleted { key, .. } => self.told.remove(key),
            };
        }
    }

    /// The difference between what was told and what is there.
    async fn relist(&mut self) -> Result<Vec<Change>, ApiError> {
        let (objects, revision) = self.api.list(None).await?;
        self.metrics.relists.inc();
        let present: BTreeMap<ObjectKey, (String, u64)> =
            objects.iter().map(|object| (object.key(), version(object))).collect();
        let mut changes = Vec::new();
        for (key, (uid, _)) in &self.told {
            if present.get(key).is_none_or(|(new_uid, _)| new_uid != uid) {
                let body = ChangeBody::Deleted { key: key.clone(), uid: uid.clone() };
                changes.push(Change { resource_version: revision, kind: key.kind, body });
            }
        }
        for object in objects {
            if self.told.get(&object.key()) != Some(&version(&object)) {
                let resource_version = object.metadata.resource_version;
                changes.push(Change {
                    resource_version,
                    kind: object.kind,
                    body: ChangeBody::Applied(object),
                });
            }
        }
        self.told = present;
        self.revision = revision;
        Ok(changes)
    }
}

fn version(object: &Object) -> (String, u64) {
    (object.metadata.uid.clone(), object.metadata.resource_version)
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
    use crate::api::{Kind, Mutation, Preconditions};

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
