//! 20 gangs of 500 pods come at once to an API server that takes 1,000 writes a second and answers after 20 ms: all are
//! bound in the time that its limit allows and a fifth more, never half a second without a Binding, and 8,000 pods that
//! run already change nothing of it.
//!
//! Both real machines and the real writer, in virtual time. What the core does takes no time there: so what it costs is
//! counted in the bytes that it asks for, which are about as many each time, and how long it took by the clock is only printed.
//! A debug build takes a tenth of everything, `cargo test --release -p phalanx-sim --test case_105` or
//! `PHALANX_WHOLE_CASES=1` the whole.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use phalanx_common::gang::PodPhase;
use phalanx_common::ids::{ClusterId, NodeName, Term};
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, ToAgent, VERSION};
use phalanx_coordinator::api::store::Store;
use phalanx_coordinator::api::{Api, ApiError, Change, Kind, Mutation, Object, ObjectKey, Preconditions};
use phalanx_coordinator::clock::Clock;
use phalanx_coordinator::convert::status::pod_status;
use phalanx_coordinator::convert::{PlansTold, Reading, event_of_change};
use phalanx_coordinator::metrics::Metrics;
use phalanx_coordinator::watch::Watcher;
use phalanx_coordinator::writer::{self, Limits};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::view::GangView;
use phalanx_core::{Core, Settings};
use phalanx_kubernetes::client::Pace;
use phalanx_node_core as node;
use phalanx_node_core::LinkId;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use support::inventory;

const GANGS: usize = 20;
const NAMESPACE: &str = "team";
const LINK: LinkId = LinkId(0);
/// The API server takes a write so often, and answers after so long.
const BETWEEN_WRITES: Duration = Duration::from_millis(1);
const ANSWER: Duration = Duration::from_millis(20);
/// One way between coordinator and agents, and until a change is heard.
const WAY: Duration = Duration::from_millis(1);
/// Longest wait of the writer for an answer.
const TIME_OUT: Duration = Duration::from_secs(5);
/// A ledger is on its disk.
const DISK: Duration = Duration::from_millis(2);
/// As in the driver: passes lie so far apart, so many facts are taken before one, and so many actions wait for the writer
/// before no more facts are taken.
const BETWEEN_PASSES: Duration = Duration::from_millis(1);
const BATCH_FACTS: usize = 1024;
const BACKLOG_ACTIONS: usize = 4096;

/// Counts what the core asks for while it works.
struct Counting;

thread_local! {
    /// A world has one thread.
    static IN_CORE: Cell<bool> = const { Cell::new(false) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: pieces are the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IN_CORE.get() {
            BYTES.set(BYTES.get() + layout.size() as u64);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `alloc` gave the pointer for the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Items on their way, each with the time of its arrival.
type Way<T> = mpsc::UnboundedSender<(Instant, T)>;

async fn carry<T>(mut items: mpsc::UnboundedReceiver<(Instant, T)>, mut give: impl FnMut(T)) {
    while let Some((at, item)) = items.recv().await {
        sleep_until(at).await;
        give(item);
    }
}

/// What the API server has done.
#[derive(Default)]
struct Done {
    /// Writes of the coordinator by what they do.
    writes: BTreeMap<String, u64>,
    /// When each Binding was done.
    bindings: Vec<Instant>,
    /// Names of pods by UID, as kubelets know them.
    pods: BTreeMap<String, String>,
    uids: u64,
    term: u64,
}

/// The API server: it takes writes one after the other, at its pace.
#[derive(Clone)]
struct Server {
    store: Arc<Mutex<Store>>,
    newest: watch::Sender<u64>,
    /// When it takes the next write.
    next: Arc<Mutex<Instant>>,
    done: Arc<Mutex<Done>>,
    began: Instant,
}

impl Server {
    fn new() -> Self {
        Self {
            store: Arc::new(Mutex::new(Store::new(1 << 20))),
            newest: watch::Sender::new(0),
            next: Arc::new(Mutex::new(Instant::now())),
            done: Arc::default(),
            began: Instant::now(),
        }
    }

    fn now(&self) -> Time {
        Time(1_000 + u64::try_from(self.began.elapsed().as_millis()).unwrap())
    }

    /// A write of somebody whom the limit does not concern.
    fn write(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        let uid = {
            let mut done = lock(&self.done);
            done.uids += 1;
            format!("u{}", done.uids)
        };
        let mut store = lock(&self.store);
        let answer = store.mutate(mutation, self.now(), &uid);
        self.newest.send_replace(store.revision());
        answer
    }

    /// Counts a write of the coordinator.
    fn note(&self, what: String, is_bound: bool, is_done: bool) {
        let mut done = lock(&self.done);
        if is_bound {
            done.bindings.push(Instant::now());
        }
        let what = if is_done { what } else { format!("{what}, failed") };
        *done.writes.entry(what).or_default() += 1;
    }

    fn create(&self, object: Object) {
        self.write(Mutation::Create(Box::new(object))).unwrap();
    }

    /// The kubelet tells that a pod runs.
    fn runs(&self, uid: &str) {
        let key = ObjectKey::new(Kind::Pod, NAMESPACE, &lock(&self.done).pods[uid]);
        let Ok(pod) = lock(&self.store).get(&key) else { panic!("{key}") };
        let status = pod_status(&pod.status, PodPhase::Running, self.now());
        let preconditions = Preconditions::default();
        self.write(Mutation::UpdateStatus { key, preconditions, status }).unwrap();
    }
}

impl Api for Server {
    async fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        sleep(ANSWER).await;
        lock(&self.store).get(key)
    }

    async fn glance(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        lock(&self.store).get(key)
    }

    async fn list(&self, kind: Option<Kind>) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
        Ok(lock(&self.store).list(kind))
    }

    async fn changes_since(&self, resource_version: u64, max: usize) -> Result<Vec<Change>, ApiError> {
        lock(&self.store).changes_since(resource_version, max)
    }

    async fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        sleep(ANSWER / 2).await;
        let turn = {
            let mut next = lock(&self.next);
            let turn = (*next).max(Instant::now());
            *next = turn + BETWEEN_WRITES;
            turn
        };
        sleep_until(turn).await;
        let kind = mutation.key().map_or_else(String::new, |key| key.kind.to_string());
        let what = format!("{} {kind}", mutation.verb());
        let is_binding = matches!(mutation, Mutation::Bind { .. });
        let answer = self.write(mutation);
        self.note(what, is_binding && answer.is_ok(), answer.is_ok());
        sleep(ANSWER / 2).await;
        answer
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn cluster_id(&self) -> ClusterId {
        ClusterId::from("case-105")
    }

    async fn raise_term(&self, above: u64) -> Result<u64, ApiError> {
        let mut done = lock(&self.done);
        done.term = done.term.max(above) + 1;
        Ok(done.term)
    }
}

/// All agents, each with the kubelet of its node.
struct Agents {
    cores: Vec<node::Core>,
    server: Server,
    facts: Way<Event>,
    disks: Way<(usize, node::Event)>,
}

impl Agents {
    fn name(number: usize) -> NodeName {
        NodeName::from(format!("node-{number:05}"))
    }

    fn number(node: &NodeName) -> usize {
        node.as_str().strip_prefix("node-").unwrap().parse().unwrap()
    }

    fn hear(&mut self, number: usize, event: node::Event) {
        let mut actions = Vec::new();
        self.cores[number].apply(event, self.server.now(), &mut actions);
        for action in actions {
            match action {
                node::Action::Send(_, message) => self.say(number, message),
                node::Action::Persist { revision, .. } => {
                    let written = (number, node::Event::Persisted { revision });
                    let _ = self.disks.send((Instant::now() + DISK, written));
                }
                node::Action::StartPod { .. } => {}
                node::Action::StopPod { .. } | node::Action::SetAside { .. } | node::Action::Warn(_) => {
                    panic!("{action:?}")
                }
            }
        }
    }

    fn say(&self, number: usize, message: FromAgent) {
        let session = number as u64 + 1;
        let event = match message {
            FromAgent::Hello(hello) => Event::AgentConnected { session, hello: Box::new(hello) },
            message => {
                if let FromAgent::PodStarted { pod } = &message {
                    self.server.runs(pod.as_str());
                }
                Event::AgentSaid { node: Self::name(number), session, message: Box::new(message) }
            }
        };
        let _ = self.facts.send((Instant::now() + WAY, event));
    }
}

/// What the core has cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    facts: u64,
    passes: u64,
    bytes: u64,
    time: Duration,
    longest_pass: Duration,
}

/// The driver's loop, with agents that are reached without connections.
struct Loop {
    core: Arc<Mutex<Core>>,
    server: Server,
    writer: mpsc::Sender<Action>,
    agents: Way<(usize, node::Event)>,
    backlog: VecDeque<Action>,
    actions: Vec<Action>,
    cost: Arc<Mutex<Cost>>,
}

impl Loop {
    async fn run(mut self, mut facts: mpsc::UnboundedReceiver<Event>, mut outcomes: mpsc::Receiver<Event>) {
        loop {
            let deadline = lock(&self.core).next_deadline().map(|(at, _)| (at - self.server.now()).0.max(1));
            let is_open = self.backlog.len() < BACKLOG_ACTIONS;
            let first = tokio::select! {
                biased;
                Some(event) = outcomes.recv() => Some(Some(event)),
                Some(event) = facts.recv(), if is_open => Some(Some(event)),
                Ok(_) = self.writer.reserve(), if !self.backlog.is_empty() => None,
                () = sleep(Duration::from_millis(deadline.unwrap_or_default())), if deadline.is_some() => Some(None),
            };
            let Some(first) = first else {
                self.flush();
                continue;
            };
            // What comes in the same moment gets one pass.
            sleep(BETWEEN_PASSES).await;
            let mut next = first;
            let mut taken = 0;
            while let Some(event) = next {
                self.work(|this, now| lock(&this.core).apply(event, now, &mut this.actions));
                taken += 1;
                next = (taken < BATCH_FACTS)
                    .then(|| outcomes.try_recv().or_else(|_| facts.try_recv()).ok())
                    .flatten();
            }
            let took = self.work(|this, now| lock(&this.core).cycle(now, &mut this.actions));
            {
                let mut cost = lock(&self.cost);
                cost.facts += taken as u64;
                cost.passes += 1;
                cost.longest_pass = cost.longest_pass.max(took);
            }
            for action in std::mem::take(&mut self.actions) {
                self.dispatch(action);
            }
            self.flush();
        }
    }

    fn work(&mut self, work: impl FnOnce(&mut Self, Time)) -> Duration {
        let now = self.server.now();
        let before = BYTES.get();
        IN_CORE.set(true);
        let began = std::time::Instant::now();
        work(self, now);
        let took = began.elapsed();
        IN_CORE.set(false);
        let mut cost = lock(&self.cost);
        cost.bytes += BYTES.get() - before;
        cost.time += took;
        took
    }

    fn dispatch(&mut self, action: Action) {
        match action.command {
            Command::Send { node, message, .. } => {
                let item = (Agents::number(&node), node::Event::Message(LINK, *message));
                let _ = self.agents.send((Instant::now() + WAY, item));
            }
            Command::RecordPromise { .. } => {}
            Command::Warn { message } => panic!("{message}"),
            command => self.backlog.push_back(Action { id: action.id, command }),
        }
    }

    fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let Ok(place) = self.writer.try_reserve() else { break };
            place.send(self.backlog.pop_front().unwrap());
        }
    }
}

/// How large everything is.
#[derive(Clone, Copy, Debug)]
struct Size {
    nodes: usize,
    pods_per_gang: usize,
    /// Pods that run already: as many on each node.
    running: usize,
}

/// What came of it.
#[derive(Debug)]
#[allow(dead_code, reason = "some are only printed")]
struct Outcome {
    first: Duration,
    bound: Duration,
    /// Longest time without a Binding, that before the first one included.
    gap: Duration,
    running: Duration,
    writes: BTreeMap<String, u64>,
    cost: Cost,
}

struct World {
    core: Arc<Mutex<Core>>,
    server: Server,
    cost: Arc<Mutex<Cost>>,
}

impl World {
    fn start(size: Size, limits: Limits) -> Self {
        let server = Server::new();
        let (facts, facts_on_way) = mpsc::unbounded_channel();
        let (told, facts_in) = mpsc::unbounded_channel();
        let (to_agents, to_agents_on_way) = mpsc::unbounded_channel();
        let (disks, disks_on_way) = mpsc::unbounded_channel();
        let cost = Arc::<Mutex<Cost>>::default();
        let cores = (0..size.nodes)
            .map(|number| node::Core::new(Agents::name(number), "boot", None, Time(0), &mut Vec::new()))
            .collect();
        let agents = Agents { cores, server: server.clone(), facts: facts.clone(), disks };
        let agents = Arc::new(Mutex::new(agents));
        let other = Arc::clone(&agents);
        tokio::spawn(carry(facts_on_way, move |event| drop(told.send(event))));
        tokio::spawn(carry(to_agents_on_way, move |(number, event)| lock(&agents).hear(number, event)));
        tokio::spawn(carry(disks_on_way, move |(number, event)| lock(&other).hear(number, event)));
        let term = Term { counter: 1, incarnation: 1 };
        for event in [Event::Started { term }, Event::Synced] {
            facts.send((Instant::now(), event)).unwrap();
        }
        for number in 0..size.nodes {
            let welcome = ToAgent::Welcome { version: VERSION, cluster: server.cluster_id(), term };
            let events = [
                node::Event::Inventory(inventory(number)),
                node::Event::LinkUp(LINK),
                node::Event::Message(LINK, welcome),
            ];
            for event in events {
                to_agents.send((Instant::now() + WAY, (number, event))).unwrap();
            }
        }
        let (outcomes, outcomes_in) = mpsc::channel(1024);
        let metrics = Arc::new(Metrics::default());
        let writer =
            writer::start_with(limits, server.clone(), 1, outcomes, Arc::clone(&metrics), Clock::start());
        let core = Arc::new(Mutex::new(Core::new(Settings::default())));
        let this = Loop {
            core: Arc::clone(&core),
            server: server.clone(),
            writer: writer.queue,
            agents: to_agents,
            backlog: VecDeque::new(),
            actions: Vec::new(),
            cost: Arc::clone(&cost),
        };
        tokio::spawn(this.run(facts_in, outcomes_in));
        tokio::spawn(follow(server.clone(), metrics, facts));
        Self { core, server, cost }
    }

    /// A gang of pods that all must start together.
    fn submit(&self, name: &str, pods: usize, limits: &serde_json::Value) {
        let spec = json!({ "minMember": pods, "queue": "default" });
        self.server.create(Object::new(Kind::PodGroup, NAMESPACE, name).with_spec(spec));
        for number in 0..pods {
            let container = json!({ "name": "main", "image": "job", "resources": { "limits": limits } });
            let spec = json!({ "schedulerName": "phalanx", "containers": [container] });
            let mut pod = Object::new(Kind::Pod, NAMESPACE, &format!("{name}-{number}")).with_spec(spec);
            let group = ("scheduling.k8s.io/group-name".to_owned(), name.to_owned());
            pod.metadata.annotations.extend([group]);
            let name = pod.metadata.name.clone();
            let made = self.server.write(Mutation::Create(Box::new(pod))).unwrap();
            lock(&self.server.done).pods.insert(made.metadata.uid.clone(), name);
        }
    }

    /// Pods that are bound, and those that run.
    fn count(&self) -> (usize, usize) {
        let pods = lock(&self.server.store).list(Some(Kind::Pod)).0;
        let bound = pods.iter().filter(|pod| pod.spec.get("nodeName").is_some()).count();
        let runs = |pod: &&Arc<Object>| pod.status.get("phase").is_some_and(|phase| phase == "Running");
        (bound, pods.iter().filter(runs).count())
    }

    /// What gangs wait for.
    fn reasons(&self) -> Vec<String> {
        let waits = |gang: GangView| Some(format!("{} {}: {}", gang.name, gang.phase, gang.reason?.text));
        lock(&self.core).view().gangs.into_iter().filter_map(waits).collect()
    }

    async fn wait_for(&self, running: usize) {
        let began = Instant::now();
        while self.count().1 < running {
            sleep(Duration::from_millis(100)).await;
            let is_late = began.elapsed() > Duration::from_secs(120);
            assert!(!is_late, "{:?} are bound and run; {:#?}", self.count(), self.reasons());
        }
    }
}

/// Tells the core what changes in the API.
async fn follow(server: Server, metrics: Arc<Metrics>, facts: Way<Event>) {
    let (mut watcher, objects) = Watcher::start(server.clone(), metrics).await.unwrap();
    assert!(objects.is_empty());
    let (reading, mut plans) = (Reading::default(), PlansTold::default());
    while let Some(changes) = watcher.next().await {
        for change in &changes {
            let found = plans.change(&reading, change).0;
            for event in event_of_change(&reading, change).event.into_iter().chain(found) {
                let _ = facts.send((Instant::now() + WAY, event));
            }
        }
    }
}

async fn play(size: Size, limits: Limits) -> Outcome {
    let world = World::start(size, limits);
    sleep(Duration::from_secs(5)).await;
    // No room for a ninth of them on a node, and for eight pods with a GPU beside eight.
    let beside = json!({ "cpu": "1", "memory": "250Gi" });
    for number in 0..size.running / 8 {
        world.submit(&format!("before-{number}"), 8, &beside);
    }
    world.wait_for(size.running).await;
    // All that follows from it is done.
    sleep(Duration::from_secs(60)).await;
    {
        let mut done = lock(&world.server.done);
        done.bindings.clear();
        done.writes.clear();
    }
    *lock(&world.cost) = Cost::default();
    let began = Instant::now();
    let limits = json!({ "cpu": "4", "memory": "1Gi", "nvidia.com/gpu": 1 });
    for number in 0..GANGS {
        world.submit(&format!("gang-{number}"), size.pods_per_gang, &limits);
    }
    world.wait_for(size.running + GANGS * size.pods_per_gang).await;
    let running = began.elapsed();
    let mut bindings = lock(&world.server.done).bindings.clone();
    bindings.sort_unstable();
    assert_eq!(bindings.len(), GANGS * size.pods_per_gang);
    let starts = std::iter::once(&began).chain(&bindings);
    let gap = starts.zip(&bindings).map(|(before, after)| *after - *before).max().unwrap();
    let writes = std::mem::take(&mut lock(&world.server.done).writes);
    let cost = *lock(&world.cost);
    let at = |binding: Option<&Instant>| *binding.unwrap() - began;
    Outcome { first: at(bindings.first()), bound: at(bindings.last()), gap, running, writes, cost }
}

/// Plays it on a clock that moves when all have nothing to do.
fn outcome(size: Size, limits: Limits) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.unwrap().block_on(play(size, limits));
    println!("{size:?}:\n    {outcome:?}");
    outcome
}

const WHOLE: Size = Size { nodes: 1250, pods_per_gang: 500, running: 0 };
const SMALL: Size = Size { nodes: 125, pods_per_gang: 50, running: 0 };

fn size() -> Size {
    let is_whole = !cfg!(debug_assertions) || std::env::var_os("PHALANX_WHOLE_CASES").is_some();
    if is_whole { WHOLE } else { SMALL }
}

/// All are bound in time, and never is there a long pause.
fn is_fast(outcome: &Outcome, pods: usize) {
    let allowed = BETWEEN_WRITES * u32::try_from(pods).unwrap() * 12 / 10;
    assert!(outcome.bound <= allowed, "{:?} of {allowed:?}", outcome.bound);
    assert!(outcome.gap <= Duration::from_millis(500), "{:?} without a Binding", outcome.gap);
}

#[test]
fn case_105_ten_thousand_pods_are_bound_as_fast_as_the_api_takes_them() {
    let limits = || Limits::kubernetes(TIME_OUT, Pace::default());
    let size = size();
    let pods = GANGS * size.pods_per_gang;
    let alone = outcome(size, limits());
    let beside = outcome(Size { running: pods * 8 / 10, ..size }, limits());
    is_fast(&alone, pods);
    is_fast(&beside, pods);
    assert!(beside.bound <= alone.bound * 105 / 100, "{:?}, then {:?}", alone.bound, beside.bound);
    let (before, after) = (alone.cost.bytes, beside.cost.bytes);
    assert!(after <= before * 105 / 100, "the core asks for {before} bytes, then for {after}");
}

/// Where the coordinator keeps to the limit itself, it uses all of it.
#[test]
fn a_pace_of_its_own_costs_nothing() {
    let outcome = outcome(SMALL, Limits::kubernetes(TIME_OUT, Pace::per_second(1_000)));
    is_fast(&outcome, GANGS * SMALL.pods_per_gang);
}

/// The goal is one that can be missed: with as few writes at once as the embedded store needs, it is.
#[test]
fn eight_writes_at_once_are_too_few() {
    let outcome = outcome(SMALL, Limits::default());
    assert!(outcome.bound > Duration::from_millis(2_400), "{:?}", outcome.bound);
}
