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
mod set_aside;
pub mod shown;
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
            this.send(report, number).await
        });
        sent.buffer_unordered(WRITES_AT_ONCE).filter_map(|report| async { report }).collect().await
    }

    /// Sends one; what of it was not done and is wanted still, with how long to wait.
    async fn send(&self, report: Report, number: u64) -> Option<(Report, Millis)> {
        let happening = match report {
            Report::Event(happening) => happening,
            Report::Condition(condition) => {
                let written = self.write_condition(&condition).await;
                let event = match written {
                    Ok(()) => condition.event?,
                    // The pod has changed, and what it is now is heard in a moment.
                    Err(error) if error.is_overtaken() => {
                        return Some((Report::Condition(condition), AFTER_GIVING_WAY));
                    }
                    Err(_) => return Some((Report::Condition(condition), RETRY)),
                };
                self.pace.turn().await;
                event
            }
        };
        if happening.reason == notice::NOT_HONOURED {
            tracing::warn!("{}: {}", happening.key, happening.note);
        }
        let event = happening.event(self.clock.now(), number, &self.instance);
        let answer = self.api.writes().create_event(&happening.key, &event).await;
        let error = self.note(CREATE_EVENT, answer).err()?;
        // What is refused of an event does not change by itself.
        let is_over = error.is_overtaken() || matches!(error, ApiError::Invalid(_));
        (!is_over).then_some((Report::Event(happening), RETRY))
    }

    async fn write_condition(&self, condition: &Condition) -> Result<(), ApiError> {
        let Condition { key, preconditions, condition, .. } = condition;
        let json = condition.json(self.clock.now());
        self.note(SET_POD_CONDITION, self.api.writes().set_pod_condition(key, preconditions, &json).await)
    }

    /// Counts what came of a write.
    fn note(&self, name: &'static str, answer: Result<(), ApiError>) -> Result<(), ApiError> {
        self.metrics.write(name, outcome_name(&outcome_of(&answer)));
        answer.inspect_err(|error| tracing::debug!(%error, "a report was not written"))
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
