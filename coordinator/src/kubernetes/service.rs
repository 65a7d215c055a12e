//! What controllers do for gangs in Kubernetes mode: PodGroup and pods of vcjobs, PodGroups of pods that name none, and
//! the queue of those that name none. Only the leader does it.
//!
//! Works from what the mirror shows, never from what it did itself: a write that failed is still wanted at the next
//! look, which comes the later the more often it failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use phalanx_common::units::{Millis, Time};
use serde_json::json;
use tokio::sync::mpsc;

use super::owners::OwnerLookup;
use crate::api::{Api, ApiError, Change, ChangeBody, ControllerRef, Kind, Mutation, Object, ObjectKey};
use crate::clock::Clock;
use crate::jobs::{Jobs, TopOwner};
use crate::watch::Watcher;

/// Writes at once.
const WRITES_AT_ONCE: usize = 16;
/// Owners looked up at once.
const LOOKUPS_AT_ONCE: usize = 8;
/// First wait after a write that failed; it doubles.
const FIRST_WAIT: Millis = Millis(1_000);
/// Longest wait: a quota that was raised is found so soon.
const LONGEST_WAIT: Millis = Millis(60_000);
/// Warnings remembered so that each is said once.
const MOST_WARNINGS: usize = 1_000;

/// What the service works with.
#[derive(Debug)]
pub struct ServiceParts<A: Api> {
    /// The API.
    pub api: A,
    /// Its changes, from the listing on.
    pub watcher: Watcher<A>,
    /// The listing.
    pub objects: Vec<Arc<Object>>,
    /// The time.
    pub clock: Clock,
    /// Finds what stands above pods.
    pub owners: OwnerLookup,
    /// Queue of gangs that name none: it is made where it is missing.
    pub default_queue: String,
}

/// Runs until the API ends. Whoever stops leading drops it.
pub async fn run<A: Api>(parts: ServiceParts<A>) {
    let ServiceParts { api, mut watcher, objects, clock, owners, default_queue } = parts;
    let (found, mut answers) = mpsc::channel(LOOKUPS_AT_ONCE);
    let mut service = Service::new(&api, &default_queue);
    for object in &objects {
        service.applied(object);
    }
    drop(objects);
    loop {
        let now = clock.now();
        let failed = write_all(&api, service.writes(now)).await;
        service.note(failed, clock.now());
        service.look_up(clock.now(), &owners, &found);
        let next = service.next().map(|time| clock.until(time));
        tokio::select! {
            changes = watcher.next() => match changes {
                Some(changes) => changes.into_iter().for_each(|change| service.change(&change)),
                None => return,
            },
            Some((controller, answer)) = answers.recv() => service.answered(&controller, answer, clock.now()),
            () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
        }
    }
}

/// Everything known, and what has to be tried again.
struct Service {
    jobs: Jobs,
    default_queue: ObjectKey,
    has_default_queue: bool,
    /// By object that asks for writes: how often they failed in a row, and when they are tried again.
    failures: BTreeMap<ObjectKey, (u32, Time)>,
    /// Controllers that are being looked up, or are not to be before a time.
    looked_up: BTreeMap<ControllerRef, Option<Time>>,
    warned: BTreeSet<String>,
}

/// A write and the object that asks for it.
type Wanted = (ObjectKey, Mutation);

impl Service {
    fn new<A: Api>(api: &A, default_queue: &str) -> Self {
        Self {
            jobs: Jobs::with(api.reading()),
            default_queue: ObjectKey::new(Kind::Queue, "", default_queue),
            has_default_queue: false,
            failures: BTreeMap::new(),
            looked_up: BTreeMap::new(),
            warned: BTreeSet::new(),
        }
    }

    fn applied(&mut self, object: &Arc<Object>) {
        self.has_default_queue |= object.key() == self.default_queue;
        self.jobs.applied(object);
    }

    fn change(&mut self, change: &Change) {
        match &change.body {
            ChangeBody::Applied(object) => self.has_default_queue |= object.key() == self.default_queue,
            // People may remove it; gangs that name no queue would wait for ever.
            ChangeBody::Deleted { key, .. } => self.has_default_queue &= *key != self.default_queue,
        }
        self.jobs.change(change);
    }

    fn writes(&mut self, now: Time) -> Vec<Wanted> {
        let due = self.failures.iter().filter(|(_, (_, due))| *due <= now);
        let mut settled: BTreeSet<ObjectKey> = due.map(|(key, _)| key.clone()).collect();
        settled.iter().for_each(|key| self.jobs.mark_again(key));
        let mut wanted = Vec::new();
        for (key, writes) in self.jobs.writes_by_object(now) {
            settled.remove(&key);
            for warning in writes.warnings {
                self.warn(warning);
            }
            // What changed meanwhile is no reason to ask again sooner for what was refused.
            if self.failures.get(&key).is_none_or(|(_, due)| *due <= now) {
                wanted.extend(writes.mutations.into_iter().map(|mutation| (key.clone(), mutation)));
            }
        }
        let queue_due = self.failures.get(&self.default_queue).is_none_or(|(_, due)| *due <= now);
        if !self.has_default_queue && queue_due {
            let queue = Object::new(Kind::Queue, "", &self.default_queue.name);
            let queue = queue.with_spec(json!({ "weight": 1, "reclaimable": true }));
            settled.remove(&self.default_queue);
            wanted.push((self.default_queue.clone(), Mutation::Create(Box::new(queue))));
        }
        // Nothing is wanted any more for those that were to be tried again and are left.
        self.failures.retain(|key, _| !settled.contains(key));
        wanted
    }

    /// Takes the outcome of all writes: what failed, by the object that asked for it.
    fn note(&mut self, outcomes: Vec<(ObjectKey, Option<String>)>, now: Time) {
        let mut failed: BTreeMap<ObjectKey, Option<String>> = BTreeMap::new();
        for (key, problem) in outcomes {
            self.has_default_queue |= key == self.default_queue && problem.is_none();
            let first = failed.entry(key).or_default();
            *first = first.take().or(problem);
        }
        for (key, problem) in failed {
            let Some(problem) = problem else {
                self.failures.remove(&key);
                continue;
            };
            if !problem.is_empty() {
                self.warn(problem);
            }
            let times = self.failures.get(&key).map_or(0, |(times, _)| *times);
            let wait = (FIRST_WAIT.0 << times.min(6)).min(LONGEST_WAIT.0);
            self.failures.insert(key, (times.saturating_add(1), now + Millis(wait)));
        }
    }

    fn warn(&mut self, warning: String) {
        if self.warned.len() >= MOST_WARNINGS {
            self.warned.clear();
        }
        if self.warned.insert(warning.clone()) {
            tracing::warn!("{warning}");
        }
    }

    fn look_up(&mut self, now: Time, owners: &OwnerLookup, found: &mpsc::Sender<(ControllerRef, Answer)>) {
        self.looked_up.retain(|_, again_at| again_at.is_none_or(|time| time > now));
        let in_flight = self.looked_up.values().filter(|again_at| again_at.is_none()).count();
        let unknown: Vec<_> = self
            .jobs
            .unknown_owners()
            .filter(|unknown| !self.looked_up.contains_key(&unknown.controller))
            .take(LOOKUPS_AT_ONCE.saturating_sub(in_flight))
            .cloned()
            .collect();
        for unknown in unknown {
            self.looked_up.insert(unknown.controller.clone(), None);
            let (owners, found) = (owners.clone(), found.clone());
            tokio::spawn(async move {
                let answer = owners.top(&unknown.namespace, &unknown.controller).await;
                // The service has ended: then nobody waits for it.
                let _ = found.send((unknown.controller, answer)).await;
            });
        }
    }

    fn answered(&mut self, controller: &ControllerRef, answer: Answer, now: Time) {
        match answer {
            Ok(top) => {
                self.looked_up.remove(controller);
                self.jobs.owner_found(controller, top);
            }
            Err(problem) => {
                self.warn(problem);
                self.looked_up.insert(controller.clone(), Some(now + Millis(5_000)));
            }
        }
    }

    /// When something is due next.
    fn next(&self) -> Option<Time> {
        let lookups = self.looked_up.values().flatten();
        let due = self.jobs.next_due();
        self.failures.values().map(|(_, due)| due).chain(lookups).chain(&due).min().copied()
    }
}

/// What came of a lookup.
type Answer = Result<TopOwner, String>;

/// Does the writes; for each the object that asked for it, and the problem where it has to be tried again.
async fn write_all<A: Api>(api: &A, wanted: Vec<Wanted>) -> Vec<(ObjectKey, Option<String>)> {
    let writes = wanted.into_iter().map(|(key, mutation)| async move {
        let (verb, target) = (mutation.verb(), mutation.target());
        let problem = match api.mutate(mutation).await {
            // Done already, or not needed any more: the mirror will show it.
            Ok(_) | Err(ApiError::NotFound(_) | ApiError::AlreadyExists(_)) => None,
            Err(error) if error.is_overtaken() => {
                tracing::debug!(verb, target, %error, "tried again");
                // Nothing for people: whoever reads again decides anew.
                Some(String::new())
            }
            Err(error) => {
                Some(format!("{verb} {target}, which {key} needs, failed and is tried again: {error}"))
            }
        };
        (key, problem)
    });
    stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).collect().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::embedded::EmbeddedApi;
    use crate::manifest::parse;

    const JOB: &str = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j, namespace: a}\nspec:\n  \
                       tasks: [{name: w, replicas: 1, template: {spec: {containers: [{name: c}]}}}]\n";

    fn service() -> (tempfile::TempDir, Service) {
        let directory = tempfile::tempdir().unwrap();
        let api = EmbeddedApi::open(&directory.path().join("objects")).unwrap();
        (directory, Service::new(&api, "default"))
    }

    fn told(wanted: &[Wanted]) -> Vec<String> {
        wanted.iter().map(|(_, mutation)| format!("{} {}", mutation.verb(), mutation.target())).collect()
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000)
    }

    #[test]
    fn the_default_queue_is_made_once_and_asked_for_again_where_that_failed() {
        let (_directory, mut service) = service();
        assert_eq!(told(&service.writes(at(0))), ["create Queue default"]);
        let queue = service.default_queue.clone();
        service.note(vec![(queue.clone(), Some("no answer".to_owned()))], at(0));
        assert_eq!(service.next(), Some(at(1)));
        assert!(service.writes(at(0)).is_empty());
        assert_eq!(told(&service.writes(at(1))), ["create Queue default"]);
        service.note(vec![(queue, None)], at(1));
        assert!(service.writes(at(2)).is_empty());
        assert_eq!(service.next(), None);
        // Whoever removes it gets it again.
        let body = ChangeBody::Deleted { key: service.default_queue.clone(), uid: "u".to_owned() };
        service.change(&Change { resource_version: 9, kind: Kind::Queue, body });
        assert_eq!(told(&service.writes(at(3))), ["create Queue default"]);
    }

    #[test]
    fn a_write_that_is_refused_is_tried_again_less_and_less_often_and_holds_up_no_other() {
        let (_directory, mut service) = service();
        service.has_default_queue = true;
        let mut job = parse(JOB, "j.yaml").objects.remove(0);
        job.metadata.uid = "u1".to_owned();
        service.applied(&Arc::new(job.clone()));
        let key = job.key();
        let refused = || vec![(key.clone(), Some("exceeded quota".to_owned()))];
        let mut now = at(10);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let writes = service.writes(now);
            assert!(
                told(&writes).iter().any(|write| write.starts_with("create PodGroup a/j-u1")),
                "{writes:?}"
            );
            service.note(refused(), now);
            let next = service.next().unwrap();
            waits.push((next - now).0 / 1_000);
            // A change of it before its time does not count.
            service.applied(&Arc::new(job.clone()));
            assert!(service.writes(now).is_empty());
            now = next;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(service.warned.len(), 1);
        // Another job is served meanwhile.
        let mut other = job.clone();
        (other.metadata.name, other.metadata.uid) = ("k".to_owned(), "u2".to_owned());
        service.note(refused(), now);
        service.applied(&Arc::new(other));
        assert!(told(&service.writes(now)).iter().all(|write| write.contains("a/k")));
        // One that is gone is forgotten.
        service.jobs.deleted(&key);
        now = now + Millis(60_000);
        assert!(service.writes(now).is_empty());
        assert_eq!((service.failures.len(), service.next()), (0, None));
    }
}
