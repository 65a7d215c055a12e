//! What users and node autoscalers are told of pods that wait, and of gangs: pod conditions and events.
//!
//! Written when the cause changes, and after it has stood for a moment: a gang whose pods are just being made is not
//! written about, and no Binding meets a pod that was changed under it. The texts are the PodGroup's own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use phalanx_common::units::{Millis, Time};
use phalanx_kubernetes::client::Pace;
use tokio::sync::mpsc;

use self::table::{Condition, Report, Table};
use super::KubernetesApi;
use super::events::{Evicted, Happening};
use crate::api::{Api, ApiError, Change, ChangeBody, Object};
use crate::clock::Clock;
use crate::convert::outcome_of;
use crate::metrics::{CREATE_EVENT, Metrics, SET_POD_CONDITION, outcome_name};
use crate::watch::Watcher;

pub mod notice;
pub mod table;

/// Writes at once: few, because Bindings go first.
const WRITES_AT_ONCE: usize = 4;
/// Writes a second.
const WRITES_PER_SECOND: u32 = 50;
/// Reports between two looks at what has changed.
const BATCH_REPORTS: usize = 50;
/// Reports that are sent although others wait.
const OVERDUE_REPORTS: usize = 10;
/// Wait after a write that was not done.
const RETRY: Millis = Millis(30_000);
/// Wait of a report that gave way.
const AFTER_GIVING_WAY: Millis = Millis(500);
/// Pause while writes of the core wait.
const GIVE_WAY: Duration = Duration::from_millis(200);
/// However much is written all the time, some reports are sent so often.
const GIVE_WAY_AT_MOST: Duration = Duration::from_secs(5);

/// What the reports are made of.
#[derive(Debug)]
pub struct ReportParts {
    /// The API.
    pub api: KubernetesApi,
    /// Its changes, from the listing on.
    pub watcher: Watcher<KubernetesApi>,
    /// The listing.
    pub objects: Vec<Arc<Object>>,
    /// The time.
    pub clock: Clock,
    /// Counts the writes; says whether others wait.
    pub metrics: Arc<Metrics>,
    /// Pods that the writer has evicted.
    pub evictions: mpsc::Receiver<Evicted>,
    /// Name of this process, for the events.
    pub instance: String,
}

/// Runs until the API ends. Whoever stops leading drops it.
pub async fn run(parts: ReportParts) {
    let ReportParts { api, mut watcher, objects, clock, metrics, mut evictions, instance } = parts;
    let mut table = Table::new(api.reading());
    for object in &objects {
        table.known(object, clock.now());
    }
    drop(objects);
    let pace = Pace::per_second(WRITES_PER_SECOND);
    let mut sender = Sender { api, clock, metrics, instance, pace, number: 0, sent_last: Instant::now() };
    loop {
        let turn = Turn::of(sender.is_busy(), sender.sent_last.elapsed());
        let reports = table.due(clock.now(), turn.most());
        if !reports.is_empty() {
            for (report, wait) in sender.send_all(reports, turn).await {
                table.again(report, clock.now() + wait);
            }
        }
        let pause = if sender.is_busy() { GIVE_WAY } else { Duration::ZERO };
        let next = table.next().map(|time| clock.until(time).max(pause));
        tokio::select! {
            changes = watcher.next() => match changes {
                Some(changes) => changes.iter().for_each(|change| take(&mut table, change, clock.now())),
                None => return,
            },
            Some(evicted) = evictions.recv() => table.happened(Happening::evicted(&evicted)),
            () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
        }
    }
}

fn take(table: &mut Table, change: &Change, now: Time) {
    match &change.body {
        ChangeBody::Applied(object) => table.applied(object, now),
        ChangeBody::Deleted { key, .. } => table.deleted(key),
    }
}

/// Whether reports may be sent beside the writes of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nobody else writes.
    Free,
    /// Bindings and plans wait or are under way.
    GivesWay,
    /// They do, and have for so long that some reports go all the same.
    Overdue,
}

impl Turn {
    fn of(is_busy: bool, waited: Duration) -> Self {
        match is_busy {
            false => Self::Free,
            true if waited < GIVE_WAY_AT_MOST => Self::GivesWay,
            true => Self::Overdue,
        }
    }

    /// Reports that are sent now.
    const fn most(self) -> usize {
        match self {
            Self::Free => BATCH_REPORTS,
            Self::GivesWay => 0,
            Self::Overdue => OVERDUE_REPORTS,
        }
    }
}

struct Sender {
    api: KubernetesApi,
    clock: Clock,
    metrics: Arc<Metrics>,
    instance: String,
    pace: Pace,
    number: u64,
    sent_last: Instant,
}

impl Sender {
    /// True while Bindings and plans wait or are under way.
    fn is_busy(&self) -> bool {
        self.metrics.backlog.get() > 0 || self.metrics.urgent_writes.load(Ordering::Relaxed) > 0
    }

    /// Sends them, and gives those that were not done and are wanted still, with how long to wait. What becomes urgent
    /// meanwhile goes before the rest, unless they are overdue: a condition would change a pod under its Binding.
    async fn send_all(&mut self, reports: Vec<Report>, turn: Turn) -> Vec<(Report, Millis)> {
        self.sent_last = Instant::now();
        let first = self.number;
        self.number += reports.len() as u64;
        let this = &*self;
        let sent = stream::iter(reports.into_iter().zip(first..)).map(|(report, number)| async move {
            this.pace.turn().await;
            if turn == Turn::Free && this.is_busy() {
                return Some((report, AFTER_GIVING_WAY));
            }
            let answer = this.send(&report, number).await;
            let (name, is_event) = match report {
                Report::Condition(_) => (SET_POD_CONDITION, false),
                Report::Event(_) => (CREATE_EVENT, true),
            };
            this.metrics.write(name, outcome_name(&outcome_of(&answer)));
            let error = answer.err()?;
            tracing::debug!(%error, "a report was not written");
            // A pod that has changed is looked at again when the change is heard. What is refused of an event does not
            // change by itself.
            let is_over = error.is_overtaken() || is_event && matches!(error, ApiError::Invalid(_));
            (!is_over).then_some((report, RETRY))
        });
        sent.buffer_unordered(WRITES_AT_ONCE).filter_map(|report| async { report }).collect().await
    }

    async fn send(&self, report: &Report, number: u64) -> Result<(), ApiError> {
        let now = self.clock.now();
        match report {
            Report::Condition(Condition { key, preconditions, condition, event, .. }) => {
                self.api.writes().set_pod_condition(key, preconditions, &condition.json(now)).await?;
                if let Some(happening) = event {
                    self.pace.turn().await;
                    let event = happening.event(now, number, &self.instance);
                    let answer = self.api.writes().create_event(&happening.key, &event).await;
                    self.metrics.write(CREATE_EVENT, outcome_name(&outcome_of(&answer)));
                    if let Err(error) = answer {
                        tracing::debug!(%error, "an event was not written");
                    }
                }
                Ok(())
            }
            Report::Event(happening) => {
                if happening.reason == notice::NOT_HONOURED {
                    tracing::warn!("{}: {}", happening.key, happening.note);
                }
                let event = happening.event(now, number, &self.instance);
                self.api.writes().create_event(&happening.key, &event).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_give_way_to_other_writes_but_not_for_ever() {
        assert_eq!(Turn::of(false, Duration::ZERO).most(), BATCH_REPORTS);
        assert_eq!(Turn::of(true, GIVE_WAY).most(), 0);
        assert_eq!(Turn::of(true, GIVE_WAY_AT_MOST).most(), OVERDUE_REPORTS);
    }
}
