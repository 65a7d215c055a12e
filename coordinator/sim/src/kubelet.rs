//! What stands for controllers and kubelets: the coordinator's own parts for standalone mode, in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;

use phalanx_common::units::Time;
use phalanx_coordinator::agents::PodReport;
use phalanx_coordinator::api::faults::Call;
use phalanx_coordinator::api::store::Store;
use phalanx_coordinator::api::{ApiError, ChangeBody, Kind, Mutation, Object};
use phalanx_coordinator::jobs::Jobs;
use phalanx_coordinator::runner::{Objects, PodLedger};

use crate::fake_api::Follower;
use crate::world::{Happening, World};

/// A write that failed is tried again after this.
const RETRY_MS: u64 = 1_000;

/// What it knows.
#[derive(Debug)]
pub(crate) struct Kubelet {
    follower: Follower,
    objects: Objects,
    ledger: PodLedger,
    jobs: Jobs,
    reports: VecDeque<PodReport>,
    look_at: Option<Time>,
}

impl Kubelet {
    /// Lists everything.
    pub(crate) fn start(store: &Store) -> Self {
        let (follower, listed) = Follower::start(store);
        let mut jobs = Jobs::new();
        let mut objects = Objects::new();
        for object in listed {
            jobs.applied(&object);
            objects.insert(object.key(), object);
        }
        Self {
            follower,
            objects,
            ledger: PodLedger::default(),
            jobs,
            reports: VecDeque::new(),
            look_at: None,
        }
    }
}

impl World {
    /// A report of an agent waits for the next look.
    pub(crate) fn report(&mut self, incarnation: u64, report: PodReport) {
        let delay = self.random.between(1, 20);
        let Some(process) = self.alive(incarnation) else { return };
        process.kubelet.reports.push_back(report);
        self.plan_look(incarnation, delay);
    }

    /// Looks in so many milliseconds at the latest.
    pub(crate) fn plan_look(&mut self, incarnation: u64, delay_ms: u64) {
        let at = Time(self.now.0 + delay_ms);
        let Some(process) = self.alive(incarnation) else { return };
        if process.kubelet.look_at.is_some_and(|look| look <= at) {
            return;
        }
        process.kubelet.look_at = Some(at);
        self.after(delay_ms, Happening::Look { incarnation });
    }

    /// Takes changes and reports, and does what pods and jobs need.
    pub(crate) fn look(&mut self, incarnation: u64) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&incarnation) else { return };
        let clock = process.clock;
        let kubelet = &mut process.kubelet;
        if kubelet.look_at.is_none_or(|at| at > now) {
            return;
        }
        let now = clock.told(now);
        kubelet.look_at = None;
        for change in kubelet.follower.next(&mut self.api) {
            kubelet.jobs.change(&change);
            match change.body {
                ChangeBody::Applied(object) => {
                    kubelet.objects.insert(object.key(), object);
                }
                ChangeBody::Deleted { key, uid } => {
                    kubelet.objects.remove(&key);
                    if key.kind == Kind::Pod {
                        kubelet.ledger.forget(&uid);
                    }
                }
            }
        }
        for report in std::mem::take(&mut kubelet.reports) {
            kubelet.ledger.report(report);
        }
        let wanted = kubelet.ledger.look(&kubelet.objects, now);
        let mut writes = wanted.writes;
        writes.extend(kubelet.jobs.writes(now).mutations);
        let is_behind = kubelet.follower.is_behind(&self.api.store);
        let failed = self.write_all(incarnation, writes);
        let Some(process) = self.alive(incarnation) else { return };
        if failed {
            process.kubelet.jobs.mark_all();
        }
        let next = wanted.next.map(|at: Time| clock.until(self.now, at).max(1));
        let waits = [next, failed.then_some(RETRY_MS), is_behind.then_some(20)];
        if let Some(wait) = waits.into_iter().flatten().min() {
            self.plan_look(incarnation, wait);
        }
    }

    /// Does the writes; true where one must be tried again. A crash may come between any two.
    fn write_all(&mut self, incarnation: u64, writes: Vec<Mutation>) -> bool {
        let mut failed = false;
        for mutation in writes {
            self.before_action(incarnation);
            if !self.processes.contains_key(&incarnation) {
                return true;
            }
            let fault = self.api_fault(Call::Write);
            let text = format!("{} {}", mutation.verb(), mutation.target());
            let creates = matches!(mutation, Mutation::Create(_));
            let answer: Result<Arc<Object>, ApiError> = self.api.write(fault, mutation, self.now);
            self.log.line(self.now, format_args!("kubelet: {text}: {}", short(&answer)));
            self.log.count(&format!("kubelet {}", text.split(' ').next().unwrap_or_default()));
            self.api_changed();
            failed |= match answer {
                Err(ApiError::Conflict(_) | ApiError::OtherUid(_)) => creates,
                Ok(_) | Err(ApiError::NotFound(_) | ApiError::AlreadyExists(_)) => false,
                Err(_) => true,
            };
        }
        failed
    }
}

/// An answer in a few words.
pub(crate) fn short<T>(answer: &Result<T, ApiError>) -> String {
    match answer {
        Ok(_) => "done".to_owned(),
        Err(error) => error.to_string(),
    }
}
