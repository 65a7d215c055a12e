//! Executes what the core asks of the API, and tells what came of it.
//!
//! Writes of one pod, gang or queue keep their order: they go to the same one of a few workers. Every call has a
//! time-out; one that gives no answer in time may have been done, and the outcome says so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::gang::PodBinding;
use phalanx_common::ids::{ActionId, GangName, PodUid, Term};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::{Event, Outcome};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::api::apply::apply_object;
use crate::api::{Api, ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use crate::clock::Clock;
use crate::convert::status::{pod_group_status, queue_status};
use crate::convert::{self, outcome_of};
use crate::metrics::{Metrics, command_name, outcome_name};

/// Actions between the loop and the workers.
const QUEUE_ACTIONS: usize = 1024;
/// Workers: enough that one slow write does not hold up the others.
const WORKERS: usize = 8;
/// Actions that wait for one worker.
const WORKER_ACTIONS: usize = 256;
/// Longest wait for one call.
const TIME_OUT: Duration = Duration::from_secs(10);
/// Pause before the term is tried again: nothing may be asked of agents without it.
const TERM_RETRY: Duration = Duration::from_secs(1);

/// Makes one worker's view of the API.
#[derive(Clone, Debug)]
struct Worker<A> {
    api: A,
    incarnation: u64,
    outcomes: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    clock: Clock,
    time_out: Duration,
}

/// The queue to the workers, and their end.
#[derive(Debug)]
pub struct Writer {
    /// Takes actions; full when the workers cannot keep up.
    pub queue: mpsc::Sender<Action>,
    /// Ends when the queue is dropped and everything in it is done.
    pub done: JoinHandle<()>,
}

/// Starts the workers. Outcomes go to `outcomes`; `incarnation` is this process's part of a term.
pub fn start<A: Api>(
    api: A,
    incarnation: u64,
    outcomes: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Writer {
    let (queue, mut actions) = mpsc::channel::<Action>(QUEUE_ACTIONS);
    let worker = Worker { api, incarnation, outcomes, metrics, clock, time_out: TIME_OUT };
    let done = tokio::spawn(async move {
        let mut lanes = Vec::with_capacity(WORKERS);
        let mut ends = Vec::with_capacity(WORKERS);
        for _ in 0..WORKERS {
            let (lane, mut work) = mpsc::channel::<Action>(WORKER_ACTIONS);
            let worker = worker.clone();
            lanes.push(lane);
            ends.push(tokio::spawn(async move {
                while let Some(action) = work.recv().await {
                    worker.execute(action).await;
                }
            }));
        }
        drop(worker);
        while let Some(action) = actions.recv().await {
            let lane = lane_of(&action.command, lanes.len());
            if lanes[lane].send(action).await.is_err() {
                break;
            }
        }
        drop(lanes);
        for end in ends {
            if end.await.is_err() {
                tracing::warn!("a worker of the writer has crashed; its actions have no outcome");
            }
        }
    });
    Writer { queue, done }
}

/// Same thing, same worker.
fn lane_of(command: &Command, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    match command {
        Command::WritePlan(plan) => plan.gang.hash(&mut hasher),
        Command::DeletePlan { gang } | Command::SetGangStatus { gang, .. } => gang.hash(&mut hasher),
        Command::SetQueueStatus { queue, .. } => queue.hash(&mut hasher),
        Command::Bind { pod, .. }
        | Command::FenceWrite { pod, .. }
        | Command::ReadPod { pod, .. }
        | Command::Evict { pod, .. } => pod.hash(&mut hasher),
        Command::RaiseTerm { .. } | Command::Send { .. } | Command::Warn { .. } => {}
    }
    (hasher.finish() % lanes as u64) as usize
}

impl<A: Api> Worker<A> {
    async fn execute(&self, action: Action) {
        let Action { id, command } = action;
        let name = command_name(&command);
        let event = match self.event(id, command).await {
            Some(event) => event,
            None => return,
        };
        let outcome = match &event {
            Event::ActionDone { outcome, .. } => outcome_name(outcome),
            _ => "Done",
        };
        self.metrics.write(name, outcome);
        if let Event::ActionDone { outcome: Outcome::Refused(why), .. } = &event {
            tracing::warn!(command = name, "the API refused a write: {why}");
        }
        // The loop is gone when the process ends: then nobody needs the outcome.
        let _ = self.outcomes.send(event).await;
    }

    /// The event that tells what came of a command; `None` where there is none.
    async fn event(&self, action: ActionId, command: Command) -> Option<Event> {
        match command {
            Command::RaiseTerm { above } => Some(self.raise_term(above).await),
            Command::FenceWrite { pod, name, term } => Some(self.fence(action, &pod, &name, term).await),
            Command::ReadPod { pod, name } => Some(self.read_pod(action, &pod, &name).await),
            Command::Send { .. } | Command::Warn { .. } => {
                tracing::debug!("an action that is no write came to the writer");
                None
            }
            command => {
                let answer = self.timed(self.write(command)).await;
                Some(Event::ActionDone { action, outcome: told(&answer) })
            }
        }
    }

    async fn timed<T>(&self, call: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        tokio::time::timeout(self.time_out, call).await.unwrap_or(Err(ApiError::Unknown))
    }

    async fn write(&self, command: Command) -> Result<(), ApiError> {
        match command {
            Command::WritePlan(plan) => {
                apply_object(&self.api, &convert::plan_object(&plan)?).await.map(drop)
            }
            Command::DeletePlan { gang } => {
                let key = ObjectKey::new(Kind::GangPlan, &gang.namespace, &gang.name);
                self.mutate(Mutation::Delete { key, preconditions: Preconditions::default() }).await
            }
            Command::Bind { pod, name, resource_version, binding, term } => {
                self.bind(&pod, &name, resource_version, &binding, term).await
            }
            Command::Evict { pod, name, cause } => {
                tracing::info!(pod = %name, %cause, "the pod is evicted");
                let key = pod_key(&name);
                self.mutate(Mutation::Delete { key, preconditions: Preconditions::uid(pod.as_str()) }).await
            }
            Command::SetGangStatus { gang, uid, status } => {
                let key = ObjectKey::new(Kind::PodGroup, &gang.namespace, &gang.name);
                let before = self.api.get(&key).await?;
                let status = pod_group_status(&before.status, &status, self.clock.now());
                self.mutate(Mutation::UpdateStatus { key, preconditions: Preconditions::uid(&uid), status })
                    .await
            }
            Command::SetQueueStatus { queue, status } => {
                let key = ObjectKey::new(Kind::Queue, "", queue.as_str());
                let status = queue_status(&self.api.get(&key).await?.status, &status);
                self.mutate(Mutation::UpdateStatus { key, preconditions: Preconditions::default(), status })
                    .await
            }
            Command::Send { .. }
            | Command::RaiseTerm { .. }
            | Command::FenceWrite { .. }
            | Command::ReadPod { .. }
            | Command::Warn { .. } => Ok(()),
        }
    }

    async fn mutate(&self, mutation: Mutation) -> Result<(), ApiError> {
        self.api.mutate(mutation).await.map(drop)
    }

    async fn bind(
        &self,
        pod: &PodUid,
        name: &GangName,
        resource_version: u64,
        binding: &PodBinding,
        term: Term,
    ) -> Result<(), ApiError> {
        self.mutate(Mutation::Bind {
            key: pod_key(name),
            preconditions: Preconditions { uid: Some(pod.as_str().to_owned()), resource_version },
            node: binding.node.as_str().to_owned(),
            annotations: convert::bind_annotations(binding, term),
        })
        .await
    }

    /// Raises the term; tries until it is done, because nothing may be asked of agents without it.
    async fn raise_term(&self, above: u64) -> Event {
        loop {
            match self.timed(self.api.raise_term(above)).await {
                Ok(counter) => {
                    return Event::TermRaised { term: Term { counter, incarnation: self.incarnation } };
                }
                Err(error) => {
                    tracing::warn!(%error, "the term could not be raised; trying again");
                    self.metrics.write("RaiseTerm", "Unknown");
                    tokio::time::sleep(TERM_RETRY).await;
                }
            }
        }
    }

    async fn fence(&self, action: ActionId, pod: &PodUid, name: &GangName, term: Term) -> Event {
        let annotations = convert::fence_annotations(term);
        let preconditions = Preconditions::uid(pod.as_str());
        let patch = Mutation::PatchAnnotations { key: pod_key(name), preconditions, annotations };
        let answer = self.timed(self.api.mutate(patch)).await;
        pod_read(action, pod, answer)
    }

    async fn read_pod(&self, action: ActionId, pod: &PodUid, name: &GangName) -> Event {
        let answer = self.timed(self.api.get(&pod_key(name))).await;
        pod_read(action, pod, answer)
    }
}

fn pod_key(name: &GangName) -> ObjectKey {
    ObjectKey::new(Kind::Pod, &name.namespace, &name.name)
}

/// The pod as it is now. An object of that name and another UID means that the pod is gone.
fn pod_read(action: ActionId, pod: &PodUid, answer: Result<Arc<Object>, ApiError>) -> Event {
    match answer {
        Ok(object) if object.metadata.uid == pod.as_str() => match convert::pod_of_object(&object) {
            Some(pod) => Event::PodRead { action, pod: Some(pod) },
            None => {
                let text = format!("{} names no scheduler or gang of ours any more", object.key());
                Event::ActionDone { action, outcome: Outcome::Refused(text) }
            }
        },
        // The only precondition of a fence write is the UID.
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Event::PodRead { action, pod: None },
        Err(error) => Event::ActionDone { action, outcome: told(&Err::<(), _>(error)) },
    }
}

/// The outcome for the core. What a disk says must also be heard by people.
fn told<T>(answer: &Result<T, ApiError>) -> Outcome {
    if let Err(ApiError::Storage(message)) = answer {
        tracing::warn!("a write failed: {message}");
    }
    outcome_of(answer)
}
