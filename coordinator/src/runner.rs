//! What controllers and kubelets do in a cluster, for standalone mode: pods of jobs are made, pods start and end,
//! and pods that were deleted go when nothing of them runs.
//!
//! Works from what the API shows and what agents reported, never from what it did itself: a write that failed is
//! simply still wanted at the next look.

mod pods;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::units::Time;
use tokio::sync::mpsc;

pub use self::pods::{PodLedger, Wanted};
use crate::agents::PodReport;
use crate::api::{Api, ApiError, Change, ChangeBody, Kind, Mutation, Object, ObjectKey};
use crate::clock::Clock;
use crate::jobs::Jobs;
use crate::watch::Watcher;

/// Reports that wait; the agents' readers wait for room.
pub const REPORTS: usize = 1024;
/// Reports taken before the next look.
const BATCH_REPORTS: usize = 256;
/// Writes that are done together.
const BATCH_WRITES: usize = 256;
/// A write that failed is tried again after this, where nothing else happens before.
const RETRY: Duration = Duration::from_secs(1);

/// Warnings remembered so that each is said once.
const MOST_WARNINGS: usize = 1000;

/// Objects as last seen, by key.
pub type Objects = BTreeMap<ObjectKey, Arc<Object>>;

/// Runs until the API or the process ends.
pub async fn run<A: Api>(
    api: A,
    mut watcher: Watcher<A>,
    objects: Vec<Arc<Object>>,
    mut reports: mpsc::Receiver<PodReport>,
    clock: Clock,
) {
    let mut seen = Seen { jobs: Jobs::with(api.reading()), ..Seen::default() };
    for object in objects {
        seen.jobs.applied(&object);
        seen.objects.insert(object.key(), object);
    }
    let mut warned = BTreeSet::new();
    loop {
        let wanted = seen.look(clock.now(), &mut warned);
        let failed = write(&api, wanted.writes).await;
        if failed {
            seen.jobs.mark_all();
        }
        let wait =
            [wanted.next.map(|time| clock.until(time)), failed.then_some(RETRY)].into_iter().flatten().min();
        tokio::select! {
            changes = watcher.next() => match changes {
                Some(changes) => changes.into_iter().for_each(|change| seen.change(change)),
                None => return,
            },
            report = reports.recv() => {
                let Some(report) = report else { return };
                seen.ledger.report(report);
                for _ in 1..BATCH_REPORTS {
                    let Ok(report) = reports.try_recv() else { break };
                    seen.ledger.report(report);
                }
            }
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
}

/// Everything known.
#[derive(Debug, Default)]
struct Seen {
    objects: Objects,
    ledger: PodLedger,
    jobs: Jobs,
}

impl Seen {
    /// Everything that is to be written now, and when to look again. Says what it cannot read, once.
    fn look(&mut self, now: Time, warned: &mut BTreeSet<String>) -> Wanted {
        let mut wanted = self.ledger.look(&self.objects, now);
        let writes = self.jobs.writes(now);
        wanted.writes.extend(writes.mutations);
        for warning in writes.warnings {
            if warned.len() < MOST_WARNINGS && warned.insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        wanted
    }

    fn change(&mut self, change: Change) {
        self.jobs.change(&change);
        match change.body {
            ChangeBody::Applied(object) => {
                self.objects.insert(object.key(), object);
            }
            ChangeBody::Deleted { key, uid } => {
                self.objects.remove(&key);
                if key.kind == Kind::Pod {
                    self.ledger.forget(&uid);
                }
            }
        }
    }
}

/// Does the writes; true where one has to be tried again.
async fn write<A: Api>(api: &A, mut writes: Vec<Mutation>) -> bool {
    let mut failed = false;
    while !writes.is_empty() {
        let rest = writes.split_off(writes.len().min(BATCH_WRITES));
        let told: Vec<(&str, String)> =
            writes.iter().map(|mutation| (mutation.verb(), mutation.target())).collect();
        let answers = api.mutate_all(std::mem::replace(&mut writes, rest)).await;
        for ((verb, target), answer) in told.into_iter().zip(answers) {
            if let Err(error) = answer {
                failed |= must_try_again(verb, &target, &error);
            }
        }
    }
    failed
}

fn must_try_again(verb: &str, target: &str, error: &ApiError) -> bool {
    match error {
        ApiError::NotFound(_) | ApiError::AlreadyExists(_) => {
            tracing::debug!(verb, target, %error, "done already, or not needed any more");
            false
        }
        // What it met comes by the watch; where that is late, or there is no object yet to be told of, the next look
        // is not. That the disk fails was said by the store, once and not for each write.
        ApiError::Conflict(_) | ApiError::OtherUid(_) | ApiError::Storage(_) => {
            tracing::debug!(verb, target, %error, "tried again");
            true
        }
        error => {
            tracing::warn!(verb, target, %error, "a write for standalone mode failed; it is tried again");
            true
        }
    }
}
