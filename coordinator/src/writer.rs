//! Executes what the core asks of the API, and tells what came of it.
//!
//! Writes of one pod, object of plans, gang or queue keep their order: one of them is under way at a time, and of plans all
//! that wait for one object go together. So many of pods are, and so many of plans, so that plans do not wait behind
//! Bindings; statuses give way to both. The term is tried
//! until it is raised, and holds up nothing. Every call has a time-out; one that gives no answer in time may have been done, and
//! the outcome says so.

use std::collections::BTreeMap;
mod plans;
mod pool;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_common::ids::{ActionId, GangName, NodeName, PodUid, Term};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::{Event, Outcome};
use phalanx_kubernetes::client::Pace;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use self::plans::{LastWrites, RefusalsSaid};
use self::pool::{GIVES_WAY, Pool, Subject};
use crate::api::{Api, ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use crate::clock::Clock;
use crate::convert::status::{format_time, pod_group_status, queue_status};
use crate::convert::{self, Reading, outcome_of};
use crate::kubernetes::events::Evicted;
use crate::metrics::{Metrics, command_name, outcome_name};

/// Actions between the loop and the workers.
const QUEUE_ACTIONS: usize = 1024;
/// Actions that wait behind those that are under way.
const WAITING_ACTIONS: usize = 4096;
/// A status that others write too is tried so often at once; then the core tries again a little later.
const STATUS_ATTEMPTS: u32 = 4;
/// Pause before the term is tried again: nothing may be asked of agents without it.
const TERM_RETRY: Duration = Duration::from_secs(1);

/// How much is written at once, and how long a call may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Writes to pods at once.
    pub pods: usize,
    /// Plans at once, and statuses.
    pub groups: usize,
    /// Longest wait for one call.
    pub time_out: Duration,
    /// When the next Binding may go.
    pub bindings: Pace,
    /// Told of pods that were evicted; what finds no room there is not told.
    pub evictions: Option<mpsc::Sender<Evicted>>,
}

impl Default for Limits {
    /// For the embedded store: enough that one slow write does not hold up the others.
    fn default() -> Self {
        Self {
            pods: 8,
            groups: 4,
            time_out: Duration::from_secs(10),
            bindings: Pace::default(),
            evictions: None,
        }
    }
}

impl Limits {
    /// For an API server. `time_out` is shorter than what lies between the moment when a leader stops and the moment
    /// when the next one may begin.
    #[must_use]
    pub fn kubernetes(time_out: Duration, bindings: Pace) -> Self {
        Self { pods: 32, groups: 8, time_out, bindings, evictions: None }
    }
}

/// What does a write.
#[derive(Debug)]
struct Worker<A> {
    api: A,
    incarnation: u64,
    outcomes: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    clock: Clock,
    limits: Limits,
    last_writes: LastWrites,
    refusals_said: RefusalsSaid,
}

/// The queue to the workers, and their end.
#[derive(Debug)]
pub struct Writer {
    /// Takes actions; full when the workers cannot keep up.
    pub queue: mpsc::Sender<Action>,
    /// Ends when the queue is dropped and everything in it is done.
    pub done: JoinHandle<()>,
}

/// Starts the workers, with limits for the embedded store. Outcomes go to `outcomes`; `incarnation` is this process's
/// part of a term.
pub fn start<A: Api>(
    api: A,
    incarnation: u64,
    outcomes: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Writer {
    start_with(Limits::default(), api, incarnation, outcomes, metrics, clock)
}

/// Starts the workers, with these limits.
pub fn start_with<A: Api>(
    limits: Limits,
    api: A,
    incarnation: u64,
    outcomes: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Writer {
    let (queue, actions) = mpsc::channel::<Action>(QUEUE_ACTIONS);
    let (last_writes, refusals_said) = (LastWrites::default(), RefusalsSaid::default());
    let worker = Worker { api, incarnation, outcomes, metrics, clock, limits, last_writes, refusals_said };
    let done = tokio::spawn(work(Arc::new(worker), actions));
    Writer { queue, done }
}

/// Does writes until the queue ends and all in it is done.
async fn work<A: Api>(worker: Arc<Worker<A>>, mut actions: mpsc::Receiver<Action>) {
    let mut pool = Pool::new(worker.limits.pods, worker.limits.groups);
    let mut running = JoinSet::new();
    let mut subjects = HashMap::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        tokio::select! {
            action = actions.recv(), if is_open && pool.waiting() < WAITING_ACTIONS => match action {
                Some(action) => match Subject::of(&action.command) {
                    Some(subject) => {
                        if let Some(action) = pool.push(subject, action, Instant::now()) {
                            worker.tell(Event::ActionDone { action, outcome: Outcome::Done }).await;
                        }
                    }
                    None => tracing::debug!("an action that is no write came to the writer"),
                },
                None => is_open = false,
            },
            Some(ended) = running.join_next_with_id() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => {
                        tracing::warn!("a write has crashed; its action has no outcome");
                        error.id()
                    }
                };
                if let Some(subject) = subjects.remove(&id) {
                    pool.ended(subject, Instant::now());
                }
            }
            () = tokio::time::sleep(GIVES_WAY), if pool.holds_back() => {}
        }
        worker.metrics.urgent_writes.store(pool.urgent(), Ordering::Relaxed);
        while let Some((subject, actions)) = pool.next(Instant::now()) {
            let (worker, about) = (Arc::clone(&worker), subject.clone());
            let task = running.spawn(async move { worker.execute(about, actions).await });
            subjects.insert(task.id(), subject);
        }
    }
}

impl<A: Api> Worker<A> {
    async fn execute(&self, subject: Subject, actions: Vec<Action>) {
        if let Subject::Plans(number) = subject {
            return self.change_plans(number, actions).await;
        }
        for Action { id, command } in actions {
            let name = command_name(&command);
            if let Some(event) = self.event(id, command).await {
                if let Event::ActionDone { outcome: Outcome::Refused(why), .. } = &event {
                    tracing::warn!(command = name, "the API refused a write: {why}");
                }
                self.conclude(name, event).await;
            }
        }
    }

    /// Counts what came of a command, and tells it.
    async fn conclude(&self, name: &'static str, event: Event) {
        let outcome = match &event {
            Event::ActionDone { outcome, .. } => outcome_name(outcome),
            _ => "Done",
        };
        self.metrics.write(name, outcome);
        self.tell(event).await;
    }

    async fn tell(&self, event: Event) {
        // The loop is gone when the process ends: then nobody needs the outcome.
        let _ = self.outcomes.send(event).await;
    }

    /// The event that tells what came of a command; `None` where there is none.
    async fn event(&self, action: ActionId, command: Command) -> Option<Event> {
        match command {
            Command::RaiseTerm { above } => Some(self.raise_term(above).await),
            Command::FenceWrite { pod, name, term } => Some(self.fence(action, &pod, &name, term).await),
            Command::ReadPod { pod, name } => Some(self.read_pod(action, &pod, &name).await),
            Command::Send { .. } | Command::RecordPromise { .. } | Command::Warn { .. } => {
                tracing::debug!("an action that is no write came to the writer");
                None
            }
            command => {
                if matches!(command, Command::Bind { .. }) {
                    // One's turn is no part of the time that the API has.
                    self.limits.bindings.turn().await;
                }
                let evicted = self.evicted_by(&command);
                let answer = tokio::time::timeout(self.limits.time_out, self.write(command)).await;
                // One of which nothing is heard was most likely done: nobody's pod goes without a word.
                if matches!(answer, Ok(Ok(())) | Err(_))
                    && let Some((evictions, evicted)) = evicted
                {
                    let _ = evictions.try_send(evicted);
                }
                Some(Self::done(action, &answer.unwrap_or(Err(ApiError::Unknown))))
            }
        }
    }

    /// What to tell of an eviction, and whom.
    fn evicted_by(&self, command: &Command) -> Option<(mpsc::Sender<Evicted>, Evicted)> {
        let Command::Evict { pod, name, cause } = command else { return None };
        let evicted = Evicted { pod: pod.clone(), name: name.clone(), cause: cause.to_string() };
        Some((self.limits.evictions.clone()?, evicted))
    }

    fn done(action: ActionId, answer: &Result<(), ApiError>) -> Event {
        Event::ActionDone { action, outcome: told(answer) }
    }

    async fn timed<T>(&self, call: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        tokio::time::timeout(self.limits.time_out, call).await.unwrap_or(Err(ApiError::Unknown))
    }

    async fn write(&self, command: Command) -> Result<(), ApiError> {
        match command {
            Command::Bind { pod, name, resource_version, binding, exactness, group_uid, term } => {
                let annotations =
                    convert::bind_annotations(&self.api.reading(), &binding, exactness, &group_uid, term);
                self.bind(&pod, &name, resource_version, &binding.node, annotations).await
            }
            Command::Evict { pod, name, cause } => {
                tracing::info!(pod = %name, %cause, "the pod is evicted");
                let preconditions = Preconditions::uid(pod.as_str());
                self.mutate(Mutation::Evict { key: pod_key(&name), preconditions }).await
            }
            Command::AnnounceEviction { pod, name, at, cause } => {
                tracing::info!(pod = %name, at = %format_time(at), %cause, "the pod is told that it will be evicted");
                let preconditions = Preconditions::uid(pod.as_str());
                let annotations = convert::announcement(at);
                self.mutate(Mutation::PatchAnnotations { key: pod_key(&name), preconditions, annotations })
                    .await
            }
            Command::SetGangStatus { gang, uid, status } => {
                let key = ObjectKey::new(Kind::PodGroup, &gang.namespace, &gang.name);
                let now = self.clock.now();
                self.update_status(key, Some(&*uid), |before| pod_group_status(before, &status, now)).await
            }
            Command::SetQueueStatus { queue, status } => {
                let key = ObjectKey::new(Kind::Queue, "", queue.as_str());
                self.update_status(key, None, |before| queue_status(before, &status)).await
            }
            Command::Send { .. }
            | Command::RaiseTerm { .. }
            | Command::WritePlan(_)
            | Command::DeletePlan { .. }
            | Command::FenceWrite { .. }
            | Command::ReadPod { .. }
            | Command::RecordPromise { .. }
            | Command::Warn { .. } => Ok(()),
        }
    }

    /// The object, or `None` where there is none. A glance is enough for a write with preconditions, until one of them
    /// has failed; that nothing is to be written must not rest on it.
    async fn look(&self, key: &ObjectKey, is_fresh: bool) -> Result<Option<Arc<Object>>, ApiError> {
        let answer = if is_fresh { self.api.get(key).await } else { self.api.glance(key).await };
        match answer {
            Err(ApiError::NotFound(_)) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Writes a status that is made from the stored one, of the object with this UID. Others write fields of their own
    /// there: what they wrote in between is read again, not undone.
    async fn update_status(
        &self,
        key: ObjectKey,
        uid: Option<&str>,
        status: impl Fn(&Value) -> Value,
    ) -> Result<(), ApiError> {
        let mut attempts_left = STATUS_ATTEMPTS;
        let mut is_fresh = false;
        loop {
            let seen = self.look(&key, is_fresh).await?;
            let seen = seen.map(|before| (status(&before.status), before));
            let is_meant = |before: &Object| uid.is_none_or(|uid| uid == before.metadata.uid);
            match seen {
                Some((wanted, before)) if wanted != before.status && is_meant(&before) => {
                    let preconditions = before.preconditions();
                    let write = Mutation::UpdateStatus { key: key.clone(), preconditions, status: wanted };
                    attempts_left -= 1;
                    match self.mutate(write).await {
                        Err(error) if error.is_overtaken() && attempts_left > 0 => {}
                        answer => return answer,
                    }
                }
                _ if !is_fresh => {}
                None => return Err(ApiError::NotFound(key.to_string())),
                Some((_, before)) if is_meant(&before) => return Ok(()),
                Some((_, before)) => {
                    let text =
                        format!("{key} has UID {} and is not the one that is meant", before.metadata.uid);
                    return Err(ApiError::OtherUid(text));
                }
            }
            is_fresh = true;
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
        node: &NodeName,
        annotations: BTreeMap<String, String>,
    ) -> Result<(), ApiError> {
        self.mutate(Mutation::Bind {
            key: pod_key(name),
            preconditions: Preconditions { uid: Some(pod.as_str().to_owned()), resource_version },
            node: node.as_str().to_owned(),
            annotations,
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
        pod_fenced(&self.api.reading(), action, pod, answer)
    }

    async fn read_pod(&self, action: ActionId, pod: &PodUid, name: &GangName) -> Event {
        let answer = self.timed(self.api.get(&pod_key(name))).await;
        pod_read(&self.api.reading(), action, pod, answer)
    }
}

fn pod_key(name: &GangName) -> ObjectKey {
    ObjectKey::new(Kind::Pod, &name.namespace, &name.name)
}

/// What the core hears of a pod that was read or fenced. An object of that name and another UID means that the pod is
/// gone; any other conflict says nothing of it.
#[must_use]
pub fn pod_read(
    reading: &Reading,
    action: ActionId,
    pod: &PodUid,
    answer: Result<Arc<Object>, ApiError>,
) -> Event {
    match answer {
        Ok(object) if object.metadata.uid == pod.as_str() => match convert::pod_of_object(reading, &object) {
            Some(pod) => Event::PodRead { action, pod: Some(pod) },
            None => {
                let text = format!("{} names no scheduler or gang of ours any more", object.key());
                Event::ActionDone { action, outcome: Outcome::Refused(text) }
            }
        },
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::OtherUid(_)) => Event::PodRead { action, pod: None },
        Err(error) => Event::ActionDone { action, outcome: told(&Err::<(), _>(error)) },
    }
}

/// What the core hears of a pod that was fenced. One that is none of ours any more was fenced all the same.
#[must_use]
pub fn pod_fenced(
    reading: &Reading,
    action: ActionId,
    pod: &PodUid,
    answer: Result<Arc<Object>, ApiError>,
) -> Event {
    match &answer {
        Ok(object)
            if object.metadata.uid == pod.as_str() && convert::pod_of_object(reading, object).is_none() =>
        {
            Event::ActionDone { action, outcome: Outcome::Done }
        }
        _ => pod_read(reading, action, pod, answer),
    }
}

/// The outcome for the core. That the disk fails was said by the store, once and not for each write.
fn told<T>(answer: &Result<T, ApiError>) -> Outcome {
    if let Err(ApiError::Storage(message)) = answer {
        tracing::debug!("a write failed: {message}");
    }
    outcome_of(answer)
}

#[cfg(test)]
mod tests {
    use phalanx_common::gang::PodBinding;
    use phalanx_common::ids::QueueName;
    use phalanx_common::plan::{GangPlan, PlanPurpose};
    use phalanx_common::units::Time;
    use phalanx_common::wire::Exactness;
    use phalanx_core::action::{GangPhase, GangStatus, QueueStatus};
    use serde_json::json;

    use super::*;
    use crate::api::embedded::EmbeddedApi;
    use crate::api::faults::{Call, Fault, FaultPlan, FaultyApi};

    struct Bench {
        _directory: tempfile::TempDir,
        api: FaultyApi<EmbeddedApi>,
        writer: Writer,
        outcomes: mpsc::Receiver<Event>,
        metrics: Arc<Metrics>,
        next: u64,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let store = EmbeddedApi::open(&directory.path().join("objects")).unwrap();
            let api = FaultyApi::new(store, FaultPlan::none());
            let metrics = Arc::new(Metrics::default());
            let (sender, outcomes) = mpsc::channel(1024);
            let writer = start(api.clone(), 7, sender, Arc::clone(&metrics), Clock::start());
            Self { _directory: directory, api, writer, outcomes, metrics, next: 1 }
        }

        async fn pod(&self, name: &str) -> Arc<Object> {
            let mut pod = Object::new(Kind::Pod, "default", name).with_spec(json!({
                "schedulerName": "phalanx",
                "containers": [{ "name": "main" }],
            }));
            pod.metadata.annotations.insert("scheduling.k8s.io/group-name".to_owned(), "gang".to_owned());
            self.api.mutate(Mutation::Create(Box::new(pod))).await.unwrap()
        }

        async fn stored(&self, name: &str) -> Arc<Object> {
            self.api.get(&ObjectKey::new(Kind::Pod, "default", name)).await.unwrap()
        }

        async fn queue(&mut self, command: Command) {
            let id = ActionId(self.next);
            self.next += 1;
            self.writer.queue.send(Action { id, command }).await.unwrap();
        }

        /// Outcomes of so many commands, in the order in which they were asked for.
        async fn outcomes_of(&mut self, count: usize) -> Vec<Outcome> {
            let first = self.next - count as u64;
            let mut outcomes = vec![Outcome::Unknown; count];
            for _ in 0..count {
                let Some(Event::ActionDone { action, outcome }) = self.outcomes.recv().await else {
                    panic!()
                };
                outcomes[usize::try_from(action.0 - first).unwrap()] = outcome;
            }
            outcomes
        }

        /// All plans that are stored.
        async fn plans(&self) -> Vec<GangPlan> {
            let (objects, _) = self.api.list(Some(Kind::GangPlan)).await.unwrap();
            let reading = Reading::default();
            let all = objects.iter().map(|object| convert::plans_of_object(&reading, object));
            all.flat_map(|plans| plans.found).collect()
        }

        async fn event(&mut self, command: Command) -> Event {
            self.queue(command).await;
            self.outcomes.recv().await.unwrap()
        }

        /// Outcome of a command, with its id checked.
        async fn outcome(&mut self, command: Command) -> Outcome {
            let expected = ActionId(self.next);
            match self.event(command).await {
                Event::ActionDone { action, outcome } if action == expected => outcome,
                other => panic!("{other:?}"),
            }
        }
    }

    fn name(name: &str) -> GangName {
        GangName::new("default", name)
    }

    fn uid(pod: &Object) -> PodUid {
        PodUid::from(pod.metadata.uid.as_str())
    }

    fn bind(pod: &Object) -> Command {
        Command::Bind {
            pod: uid(pod),
            name: name(&pod.metadata.name),
            resource_version: pod.metadata.resource_version,
            binding: PodBinding { node: "n1".into(), lease: None, gpus: Vec::new() },
            exactness: Exactness::Exact,
            group_uid: "g".into(),
            term: Term { counter: 3, incarnation: 7 },
        }
    }

    #[tokio::test]
    async fn a_binding_is_done_once_and_only_to_the_pod_it_was_made_for() {
        let mut bench = Bench::new();
        let pod = bench.pod("a").await;
        assert_eq!(bench.outcome(bind(&pod)).await, Outcome::Done);
        assert_eq!(bench.stored("a").await.spec["nodeName"], "n1");
        assert_eq!(bench.outcome(bind(&pod)).await, Outcome::Conflict);
        let mut other = Object::clone(&pod);
        other.metadata.name = "b".to_owned();
        assert_eq!(bench.outcome(bind(&other)).await, Outcome::NotFound);
        for (outcome, count) in [("Done", 1), ("Conflict", 1), ("NotFound", 1), ("Unknown", 0)] {
            assert_eq!(bench.metrics.writes("Bind", outcome), count, "{outcome}");
        }
    }

    fn plan(term: u64, deadline: u64) -> GangPlan {
        GangPlan {
            gang: name("gang"),
            gang_uid: Arc::from("u1"),
            term,
            binding_deadline: Time(deadline),
            purpose: PlanPurpose::Bind,
            victims: Vec::new(),
            pods: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_plan_of_a_later_leader_is_neither_replaced_nor_removed() {
        let mut bench = Bench::new();
        let of = |term, deadline| Command::WritePlan(Box::new(plan(term, deadline)));
        let removal = |term| Command::DeletePlan { gang: name("gang"), term };
        assert_eq!(bench.outcome(removal(5)).await, Outcome::NotFound);
        assert_eq!(bench.outcome(of(5, 1)).await, Outcome::Done);
        assert_eq!(bench.outcome(of(6, 1)).await, Outcome::Done);
        assert_eq!(bench.outcome(of(5, 2)).await, Outcome::Conflict);
        assert_eq!(bench.outcome(removal(5)).await, Outcome::Conflict);
        assert_eq!(bench.plans().await, [plan(6, 1)]);
        assert_eq!(bench.outcome(removal(7)).await, Outcome::Done);
        assert_eq!(bench.outcome(removal(7)).await, Outcome::NotFound);
        // A damaged one is nobody's.
        assert_eq!(bench.outcome(of(u64::MAX, 1)).await, Outcome::Done);
        assert_eq!(bench.outcome(of(7, 1)).await, Outcome::Done);
        assert_eq!(bench.outcome(of(u64::MAX, 1)).await, Outcome::Done);
        assert_eq!(bench.outcome(removal(7)).await, Outcome::Done);
        assert_eq!(bench.api.list(Some(Kind::GangPlan)).await.unwrap().0, []);
    }

    #[tokio::test]
    async fn plans_that_wait_are_one_write_and_each_has_its_outcome() {
        let mut bench = Bench::new();
        let of = |number: usize, term| {
            let gang = name(&format!("gang-{number}"));
            Command::WritePlan(Box::new(GangPlan { gang, ..plan(term, 1) }))
        };
        for number in 0..200 {
            bench.queue(of(number, 5)).await;
        }
        assert_eq!(bench.outcomes_of(200).await, vec![Outcome::Done; 200]);
        assert_eq!((bench.plans().await.len(), bench.metrics.writes("WritePlan", "Done")), (200, 200));
        let writes = bench.metrics.plan_objects.get();
        assert!((8..=80).contains(&writes), "{writes} writes for 200 plans");
        // What is refused of one is no matter of the others.
        let whole = |number: usize| {
            let gang = name(&format!("gang-{number}"));
            Command::DeletePlan { gang, term: if number == 7 { 4 } else { 5 } }
        };
        for number in 0..200 {
            bench.queue(whole(number)).await;
        }
        let outcomes = bench.outcomes_of(200).await;
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Conflict).count(), 1);
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Done).count(), 199);
        assert_eq!(bench.plans().await.len(), 1);
        let writes = bench.metrics.plan_objects.get() - writes;
        assert!((8..=80).contains(&writes), "{writes} writes for 199 removals");
    }

    #[tokio::test]
    async fn what_becomes_of_a_write_becomes_of_all_plans_in_it() {
        let mut bench = Bench::new();
        let gangs: Vec<GangName> = (0..).map(|number| name(&format!("gang-{number}"))).take(64).collect();
        for (fault, outcome, stored) in [
            (Fault::TimedOutNotDone, Outcome::Unknown, false),
            (Fault::TimedOutButDone, Outcome::Unknown, true),
            (Fault::StorageFailed, Outcome::Unknown, false),
        ] {
            bench.api.with_plan(|plan| (0..200).for_each(|_| plan.push(Call::Write, fault)));
            for gang in &gangs {
                bench
                    .queue(Command::WritePlan(Box::new(GangPlan { gang: gang.clone(), ..plan(5, 1) })))
                    .await;
            }
            let outcomes = bench.outcomes_of(gangs.len()).await;
            // A conflict that only looks like one is looked into, and what is there is done.
            assert!(
                outcomes.iter().all(|one| *one == outcome || *one == Outcome::Done),
                "{fault:?}: {outcomes:?}"
            );
            assert!(outcomes.contains(&outcome), "{fault:?}");
            assert_eq!(bench.plans().await.len() == gangs.len(), stored, "{fault:?}");
            bench.api.with_plan(FaultPlan::stop);
            // The second try finds what is there.
            for gang in &gangs {
                bench
                    .queue(Command::WritePlan(Box::new(GangPlan { gang: gang.clone(), ..plan(5, 1) })))
                    .await;
            }
            assert_eq!(bench.outcomes_of(gangs.len()).await, vec![Outcome::Done; gangs.len()]);
            assert_eq!(bench.plans().await.len(), gangs.len());
            for gang in &gangs {
                bench.queue(Command::DeletePlan { gang: gang.clone(), term: 5 }).await;
            }
            assert_eq!(bench.outcomes_of(gangs.len()).await, vec![Outcome::Done; gangs.len()]);
        }
    }

    /// So many gangs whose plans stand in one object.
    fn together(count: usize) -> Vec<GangName> {
        let names = (0..).map(|number| name(&format!("gang-{number}")));
        let number = convert::plan::number_of(&name("gang-0"));
        names.filter(|gang| convert::plan::number_of(gang) == number).take(count).collect()
    }

    fn changes(gangs: &[GangName]) -> Vec<Action> {
        let plans = gangs.iter().map(|gang| GangPlan { gang: gang.clone(), ..plan(5, 1) });
        let commands = plans.map(|plan| Command::WritePlan(Box::new(plan)));
        (1..).zip(commands).map(|(id, command)| Action { id: ActionId(id), command }).collect()
    }

    /// What a write of an object may be told, and how many there were.
    #[derive(Clone, Debug)]
    struct Picky {
        inner: EmbeddedApi,
        /// A plan of this gang is refused.
        refused: Option<GangName>,
        /// Whatever is written is overtaken.
        is_overtaken: bool,
        writes: Arc<std::sync::atomic::AtomicUsize>,
        /// Each call takes so long.
        delay: Duration,
    }

    impl Api for Picky {
        async fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
            tokio::time::sleep(self.delay).await;
            self.inner.get(key).await
        }

        async fn list(&self, kind: Option<Kind>) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
            self.inner.list(kind).await
        }

        async fn changes_since(
            &self,
            resource_version: u64,
            max: usize,
        ) -> Result<Vec<crate::api::Change>, ApiError> {
            self.inner.changes_since(resource_version, max).await
        }

        async fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.delay).await;
            let text = format!("{mutation:?}");
            if self.refused.as_ref().is_some_and(|gang| text.contains(&format!("\"{gang}\""))) {
                return Err(ApiError::Invalid("not this gang".to_owned()));
            }
            if self.is_overtaken {
                return Err(ApiError::Conflict("modified".to_owned()));
            }
            self.inner.mutate(mutation).await
        }

        fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
            self.inner.subscribe()
        }

        fn reading(&self) -> Reading {
            self.inner.reading()
        }

        fn cluster_id(&self) -> phalanx_common::ids::ClusterId {
            self.inner.cluster_id()
        }

        async fn raise_term(&self, above: u64) -> Result<u64, ApiError> {
            self.inner.raise_term(above).await
        }
    }

    /// What comes of plans that go together, and in how many writes.
    async fn picked(change: impl FnOnce(&mut Picky), gangs: &[GangName]) -> (Vec<Outcome>, usize) {
        let directory = tempfile::tempdir().unwrap();
        let inner = EmbeddedApi::open(&directory.path().join("objects")).unwrap();
        let mut api = Picky {
            inner,
            refused: None,
            is_overtaken: false,
            writes: Arc::default(),
            delay: Duration::ZERO,
        };
        change(&mut api);
        let (sender, mut outcomes) = mpsc::channel(1024);
        let limits = Limits { time_out: Duration::from_millis(500), ..Limits::default() };
        let worker = Worker {
            api: api.clone(),
            incarnation: 7,
            outcomes: sender,
            metrics: Arc::new(Metrics::default()),
            clock: Clock::start(),
            limits,
            last_writes: LastWrites::default(),
            refusals_said: RefusalsSaid::default(),
        };
        worker.change_plans(convert::plan::number_of(&gangs[0]), changes(gangs)).await;
        drop(worker);
        let mut found = Vec::new();
        while let Some(Event::ActionDone { outcome, .. }) = outcomes.recv().await {
            found.push(outcome);
        }
        (found, api.writes.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn one_plan_that_is_refused_is_found_in_few_writes_and_stops_no_other() {
        let gangs = together(64);
        for at in [0, 41, 63] {
            let (outcomes, writes) = picked(|api| api.refused = Some(gangs[at].clone()), &gangs).await;
            let refused = Outcome::Refused("not this gang".to_owned());
            let expected = (0..64).map(|other| if other == at { refused.clone() } else { Outcome::Done });
            assert_eq!(outcomes, expected.collect::<Vec<_>>(), "{at}");
            assert!(writes <= 13, "{writes} writes");
        }
        // Where everything is refused it is not tried for each.
        let (outcomes, writes) =
            picked(|api| api.refused = Some(gangs[0].clone()), &vec![gangs[0].clone(); 64]).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Refused(_))), "{outcomes:?}");
        assert!(writes <= 2 * 16 + 1, "{writes} writes");
    }

    #[tokio::test]
    async fn a_write_that_is_always_overtaken_may_be_tried_again_and_is_no_conflict_of_the_gang() {
        let gangs = together(3);
        let (outcomes, writes) = picked(|api| api.is_overtaken = true, &gangs).await;
        assert_eq!((outcomes, writes), (vec![Outcome::Unknown; 3], 9));
    }

    #[tokio::test]
    async fn each_call_of_a_batch_has_a_time_of_its_own() {
        let gangs = together(8);
        // Seven writes and as many looks: longer than a call may take.
        let slow = |api: &mut Picky| {
            api.refused = Some(gangs[5].clone());
            api.delay = Duration::from_millis(60);
        };
        let (outcomes, _) = picked(slow, &gangs).await;
        let done = outcomes.iter().filter(|outcome| **outcome == Outcome::Done).count();
        assert_eq!(done, 7, "{outcomes:?}");
    }

    #[tokio::test]
    async fn every_fault_has_its_outcome() {
        let mut bench = Bench::new();
        for (fault, bound) in [
            (Fault::Conflict, false),
            (Fault::Refused, false),
            (Fault::TimedOutNotDone, false),
            (Fault::StorageFailed, false),
            (Fault::TimedOutButDone, true),
        ] {
            let pod_name = format!("{fault:?}").to_ascii_lowercase();
            let pod = bench.pod(&pod_name).await;
            bench.api.with_plan(|plan| plan.push(Call::Write, fault));
            let outcome = bench.outcome(bind(&pod)).await;
            let expected = match fault {
                Fault::Conflict => Outcome::Conflict,
                Fault::Refused => {
                    Outcome::Refused(format!("Pod default/{pod_name}: refused by an admission rule"))
                }
                _ => Outcome::Unknown,
            };
            assert_eq!(outcome, expected);
            assert_eq!(bench.stored(&pod_name).await.spec.get("nodeName").is_some(), bound, "{fault:?}");
        }
    }

    #[tokio::test]
    async fn a_fence_write_changes_the_pod_so_that_a_late_binding_meets_a_conflict() {
        let mut bench = Bench::new();
        let pod = bench.pod("a").await;
        let term = Term { counter: 4, incarnation: 7 };
        let fence = |pod: &Object| Command::FenceWrite { pod: uid(pod), name: name("a"), term };
        let Event::PodRead { pod: Some(read), .. } = bench.event(fence(&pod)).await else { panic!() };
        assert!(read.resource_version > pod.metadata.resource_version);
        assert_eq!(bench.outcome(bind(&pod)).await, Outcome::Conflict);
        let mut other = Object::clone(&pod);
        other.metadata.uid = "another".to_owned();
        assert!(matches!(bench.event(fence(&other)).await, Event::PodRead { pod: None, .. }));
        // That somebody else changed it meanwhile says nothing of the pod: it is there.
        for (fault, outcome) in
            [(Fault::TimedOutNotDone, Outcome::Unknown), (Fault::Conflict, Outcome::Conflict)]
        {
            bench.api.with_plan(|plan| plan.push(Call::Write, fault));
            assert_eq!(bench.outcome(fence(&pod)).await, outcome);
        }
    }

    #[tokio::test]
    async fn a_fence_write_to_a_pod_that_is_none_of_ours_any_more_is_done() {
        let mut bench = Bench::new();
        let pod = bench.pod("a").await;
        let mutation = Mutation::PatchAnnotations {
            key: pod.key(),
            preconditions: Preconditions::uid(&pod.metadata.uid),
            annotations: std::collections::BTreeMap::from([(
                "scheduling.k8s.io/group-name".to_owned(),
                None,
            )]),
        };
        bench.api.mutate(mutation).await.unwrap();
        let before = bench.stored("a").await.metadata.resource_version;
        let term = Term { counter: 4, incarnation: 7 };
        let fence = Command::FenceWrite { pod: uid(&pod), name: name("a"), term };
        assert_eq!(bench.outcome(fence).await, Outcome::Done);
        assert!(bench.stored("a").await.metadata.resource_version > before);
        let read = Command::ReadPod { pod: uid(&pod), name: name("a") };
        assert!(matches!(bench.outcome(read).await, Outcome::Refused(_)), "that it is gone must not be said");
    }

    #[tokio::test]
    async fn reading_a_pod_tells_whether_that_very_pod_is_there() {
        let mut bench = Bench::new();
        let pod = bench.pod("a").await;
        let read = |pod: PodUid| Command::ReadPod { pod, name: name("a") };
        let Event::PodRead { pod: Some(spec), .. } = bench.event(read(uid(&pod))).await else { panic!() };
        assert_eq!(spec.gang, name("gang"));
        assert!(matches!(bench.event(read("old".into())).await, Event::PodRead { pod: None, .. }));
        bench.api.with_plan(|plan| plan.push(Call::Read, Fault::StorageFailed));
        assert_eq!(bench.outcome(read(uid(&pod))).await, Outcome::Unknown);
        let evict = Command::Evict { pod: uid(&pod), name: name("a"), cause: "test".into() };
        assert_eq!(bench.outcome(evict).await, Outcome::Done);
        assert!(matches!(bench.event(read(uid(&pod))).await, Event::PodRead { pod: None, .. }));
    }

    #[tokio::test]
    async fn the_term_is_raised_however_often_it_must_be_tried() {
        let mut bench = Bench::new();
        bench.api.with_plan(|plan| plan.push(Call::Write, Fault::TimedOutButDone));
        let Event::TermRaised { term } = bench.event(Command::RaiseTerm { above: 41 }).await else {
            panic!()
        };
        assert!(term.counter > 41 && term.incarnation == 7, "{term:?}");
    }

    #[tokio::test]
    async fn a_term_that_cannot_be_raised_holds_up_no_other_write() {
        let mut bench = Bench::new();
        // More than it is tried while this test runs.
        bench.api.with_plan(|plan| (0..100).for_each(|_| plan.push(Call::Write, Fault::TimedOutNotDone)));
        bench.queue(Command::RaiseTerm { above: 41 }).await;
        while bench.metrics.writes("RaiseTerm", "Unknown") == 0 {
            tokio::task::yield_now().await;
        }
        for number in 0..64 {
            let pod = format!("pod-{number}");
            let read = Command::ReadPod { pod: pod.as_str().into(), name: name(&pod) };
            assert!(matches!(bench.event(read).await, Event::PodRead { pod: None, .. }), "{pod}");
        }
        bench.api.with_plan(FaultPlan::stop);
        assert!(matches!(bench.outcomes.recv().await, Some(Event::TermRaised { .. })));
    }

    #[tokio::test]
    async fn statuses_go_to_the_gang_of_that_uid_only() {
        let mut bench = Bench::new();
        let group = Object::new(Kind::PodGroup, "default", "gang").with_spec(json!({ "minMember": 1 }));
        let group = bench.api.mutate(Mutation::Create(Box::new(group))).await.unwrap();
        let status = |uid: &str| Command::SetGangStatus {
            gang: name("gang"),
            uid: Arc::from(uid),
            status: Box::new(GangStatus {
                phase: GangPhase::Inqueue,
                reason: None,
                running: 0,
                succeeded: 0,
                failed: 0,
            }),
        };
        assert_eq!(bench.outcome(status("another")).await, Outcome::Conflict);
        assert_eq!(bench.outcome(status(&group.metadata.uid)).await, Outcome::Done);
        let stored = bench.api.get(&group.key()).await.unwrap();
        assert_eq!(stored.status["phase"], "Inqueue");
    }

    /// Adds one to a field that is another writer's, again and again.
    async fn count_up(api: FaultyApi<EmbeddedApi>, key: ObjectKey, times: u64) {
        for number in 1..=times {
            loop {
                let before = api.get(&key).await.unwrap();
                let mut status = if before.status.is_object() { before.status.clone() } else { json!({}) };
                status["notes"] = json!(number);
                let resource_version = before.metadata.resource_version;
                let preconditions = Preconditions { uid: None, resource_version };
                let write = Mutation::UpdateStatus { key: key.clone(), preconditions, status };
                match api.mutate(write).await {
                    Ok(_) => break,
                    Err(ApiError::Conflict(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn case_107_two_writers_of_a_queues_status_undo_nothing_of_each_other() {
        let mut bench = Bench::new();
        let queue = Object::new(Kind::Queue, "", "q").with_spec(json!({}));
        let key = bench.api.mutate(Mutation::Create(Box::new(queue))).await.unwrap().key();
        let other = tokio::spawn(count_up(bench.api.clone(), key.clone(), 150));
        let mut conflicts = 0;
        for running in 1..=100 {
            let status = QueueStatus { running, ..QueueStatus::default() };
            loop {
                let queue = QueueName::from("q");
                match bench.outcome(Command::SetQueueStatus { queue, status: status.clone() }).await {
                    Outcome::Done => break,
                    Outcome::Conflict => conflicts += 1,
                    outcome => panic!("{outcome:?}"),
                }
            }
            assert_eq!(bench.api.get(&key).await.unwrap().status["running"], running);
        }
        other.await.unwrap();
        let stored = bench.api.get(&key).await.unwrap();
        assert_eq!((&stored.status["notes"], &stored.status["running"]), (&json!(150), &json!(100)));
        assert!(conflicts < 100, "{conflicts} conflicts reached the core");
        // The same once more is no write.
        let status = QueueStatus { running: 100, ..QueueStatus::default() };
        let again = Command::SetQueueStatus { queue: QueueName::from("q"), status };
        assert_eq!(bench.outcome(again).await, Outcome::Done);
        let version = bench.api.get(&key).await.unwrap().metadata.resource_version;
        assert_eq!(version, stored.metadata.resource_version);
    }

    #[tokio::test]
    async fn a_pod_that_will_be_evicted_is_told_when() {
        let mut bench = Bench::new();
        let pod = bench.pod("a").await;
        let (at, cause) = (Time(1_764_437_598_000), Arc::from("it makes room"));
        let announce = Command::AnnounceEviction { pod: uid(&pod), name: name("a"), at, cause };
        assert_eq!(bench.outcome(announce.clone()).await, Outcome::Done);
        let told = bench.api.get(&pod.key()).await.unwrap();
        assert_eq!(told.annotation("phalanx.dev/eviction-at"), Some("2025-11-29T17:33:18Z"));
        // One that has its name and is another one is not.
        let Command::AnnounceEviction { name, at, cause, .. } = announce else { panic!() };
        let other = Command::AnnounceEviction { pod: "other".into(), name, at, cause };
        assert_eq!(bench.outcome(other).await, Outcome::Conflict);
    }

    #[tokio::test]
    async fn writes_of_one_pod_keep_their_order_and_all_are_done_at_the_end() {
        let mut bench = Bench::new();
        let mut pods = Vec::new();
        for number in 0..20 {
            pods.push(bench.pod(&format!("pod-{number}")).await);
        }
        for pod in &pods {
            bench.queue(bind(pod)).await;
            let name = name(&pod.metadata.name);
            bench.queue(Command::ReadPod { pod: uid(pod), name }).await;
            if bench.outcomes.len() > 8 {
                assert_in_order(bench.outcomes.recv().await.unwrap());
            }
        }
        let Bench { writer, mut outcomes, .. } = bench;
        drop(writer.queue);
        let draining = tokio::spawn(async move {
            while let Some(event) = outcomes.recv().await {
                assert_in_order(event);
            }
        });
        writer.done.await.unwrap();
        draining.await.unwrap();
    }

    /// What is read after the binding shows the binding.
    fn assert_in_order(event: Event) {
        match event {
            Event::ActionDone { outcome, .. } => assert_eq!(outcome, Outcome::Done),
            Event::PodRead { pod, .. } => assert!(pod.unwrap().binding.is_some()),
            other => panic!("{other:?}"),
        }
    }
}
