//! Nothing is kept of finished work: 100,000 one-pod gangs come and go through both real machines in fake time, and
//! afterwards the machines are as small as they were after the first thousand.
//!
//! A debug build takes a tenth of everything, `cargo test --release -p phalanx-sim --test case_107` or
//! `PHALANX_WHOLE_CASES=1` the whole.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use phalanx_common::gang::{
    ContainerKind, ContainerRequest, GangSpec, PodBinding, PodPhase, PodRequest, PodSpec,
};
use phalanx_common::ids::{ActionId, ClusterId, GangName, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, LeaseState, ToAgent, VERSION};
use phalanx_core::action::{Action, Command, QueueStatus};
use phalanx_core::event::{Event, Outcome};
use phalanx_core::{Core, Settings};
use phalanx_node_core as node;
use phalanx_node_core::LinkId;
use phalanx_node_core::tombstones::MAX_TOMBSTONES;

use support::inventory;

/// Counts the bytes in use, by whose code asked for them: an agent's tombstones must not hide what the coordinator
/// keeps. Each piece carries its owner before it.
struct Counting;

/// Whose code runs.
static OWNER: AtomicUsize = AtomicUsize::new(COORDINATOR);
/// Bytes in use, by owner.
static IN_USE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
const LINK: LinkId = LinkId(0);
const COORDINATOR: usize = 0;
const AGENTS: usize = 1;

/// The same piece with room for its owner, and how much room that is.
fn with_owner(layout: Layout) -> (Layout, usize) {
    let room = layout.align().max(size_of::<usize>());
    let larger = Layout::from_size_align(layout.size() + room, room);
    (larger.unwrap_or(layout), room)
}

// SAFETY: pieces are the system's, larger by the room for the owner, which stands before what the caller gets.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (larger, room) = with_owner(layout);
        let owner = OWNER.load(Ordering::Relaxed);
        IN_USE[owner].fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the size is above zero, and the owner fits into the room.
        unsafe {
            let piece = System.alloc(larger);
            if piece.is_null() {
                return piece;
            }
            piece.cast::<usize>().write(owner);
            piece.add(room)
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let (larger, room) = with_owner(layout);
        // SAFETY: `alloc` gave the pointer for the same layout.
        unsafe {
            let piece = pointer.sub(room);
            let owner = piece.cast::<usize>().read();
            IN_USE[owner].fetch_sub(layout.size(), Ordering::Relaxed);
            System.dealloc(piece, larger);
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn in_use(owner: usize) -> usize {
    IN_USE[owner].load(Ordering::Relaxed)
}

const GPUS_PER_NODE: usize = 8;
const LIFE_MS: u64 = 60_000;
const QUEUE: &str = "churn";
/// The longest deadline of a gang: after it nothing may be left of one that is gone.
const LAST_DEADLINE_MS: u64 = 130_000;

/// What is due.
enum Due {
    /// A user makes a gang of one pod.
    Submit(u64),
    /// A user deletes the pod, and then its gang.
    Delete(u64),
    /// The coordinator hears something.
    Tell(Event),
    /// An agent hears something.
    Agent(usize, node::Event),
    /// The second writer of the queue's status writes.
    OtherWriter,
    /// The coordinator's write of the queue's status arrives: what it had read, and what it writes.
    QueueWrite { action: ActionId, read: u64, status: QueueStatus },
    /// A deadline of the coordinator.
    Cycle,
}

/// The queue's status as it is stored: each of the two writers has fields of its own.
#[derive(Default)]
struct StoredQueue {
    version: u64,
    /// The coordinator's fields.
    status: QueueStatus,
    /// The other writer's field.
    notes: u64,
    conflicts: u64,
    writes: u64,
}

struct World {
    now: Time,
    due: BTreeMap<(Time, u64), Due>,
    serial: u64,
    core: Core,
    agents: Vec<node::Core>,
    names: BTreeMap<NodeName, usize>,
    pods: BTreeMap<PodUid, PodSpec>,
    pod_of_lease: BTreeMap<LeaseId, PodUid>,
    plans: BTreeSet<GangName>,
    queue: StoredQueue,
    finished: u64,
    deleted_early: u64,
    random: u64,
    /// When so many gangs are through, the resident memory is noted.
    note_at: u64,
    resident_noted_kib: usize,
    /// Most entries of each kind at any time.
    most: BTreeMap<&'static str, usize>,
}

fn gang_name(number: u64) -> GangName {
    GangName::new("churn", &format!("gang-{number}"))
}

fn pod_uid(number: u64) -> PodUid {
    PodUid::from(format!("pod-{number}"))
}

impl World {
    fn new(nodes: usize) -> Self {
        let mut world = Self {
            now: Time(1_000),
            due: BTreeMap::new(),
            serial: 0,
            core: Core::new(Settings::default()),
            agents: Vec::new(),
            names: BTreeMap::new(),
            pods: BTreeMap::new(),
            pod_of_lease: BTreeMap::new(),
            plans: BTreeSet::new(),
            queue: StoredQueue::default(),
            finished: 0,
            deleted_early: 0,
            note_at: 0,
            resident_noted_kib: 0,
            random: 0x2545_f491_4f6c_dd1d,
            most: BTreeMap::new(),
        };
        let term = Term { counter: 1, incarnation: 1 };
        let spec = QueueSpec::new(QueueName::from(QUEUE));
        for event in [Event::Started { term }, Event::QueueApplied(spec), Event::Synced] {
            world.after(0, Due::Tell(event));
        }
        for number in 0..nodes {
            let name = NodeName::from(format!("node-{number:05}"));
            world.names.insert(name.clone(), number);
            let mut actions = Vec::new();
            world.agents.push(node::Core::new(name, "boot", None, Time(0), &mut actions));
            assert!(actions.is_empty());
            let cluster = ClusterId::from("churn");
            let welcome = ToAgent::Welcome { version: VERSION, cluster, term };
            world.after(1, Due::Agent(number, node::Event::Inventory(inventory(number))));
            world.after(1, Due::Agent(number, node::Event::LinkUp(LINK)));
            world.after(2, Due::Agent(number, node::Event::Message(LINK, welcome)));
        }
        world.after(500, Due::OtherWriter);
        world
    }

    fn after(&mut self, delay_ms: u64, due: Due) {
        self.serial += 1;
        self.due.insert((self.now + Millis(delay_ms), self.serial), due);
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Everything that is due until then; one pass for what comes in one millisecond.
    fn run_until(&mut self, end: Time) {
        let mut actions = Vec::new();
        while let Some(at) = self.due.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= end) {
            self.now = at;
            let mut told = false;
            while self.due.first_key_value().is_some_and(|((due, _), _)| *due <= at) {
                let Some((_, due)) = self.due.pop_first() else { break };
                told |= self.happen(due, &mut actions);
            }
            if told || self.core.next_deadline().is_some_and(|(due, _)| due <= at) {
                self.core.cycle(at, &mut actions);
                for (name, count) in self.core.kept() {
                    let most = self.most.entry(name).or_default();
                    *most = count.max(*most);
                }
                if let Some((due, _)) = self.core.next_deadline() {
                    self.after((due - at).0.max(1), Due::Cycle);
                }
            }
            for action in std::mem::take(&mut actions) {
                self.act(action);
            }
        }
        self.now = end;
    }

    /// True where the core was told something.
    fn happen(&mut self, due: Due, actions: &mut Vec<Action>) -> bool {
        match due {
            Due::Tell(event) => {
                self.core.apply(event, self.now, actions);
                return true;
            }
            Due::Submit(number) => self.submit(number),
            Due::Delete(number) => self.delete(number),
            Due::Agent(number, event) => self.agent(number, event),
            Due::OtherWriter => {
                self.queue.version += 1;
                self.queue.notes += 1;
                self.after(2, Due::OtherWriter);
            }
            Due::QueueWrite { action, read, status } => {
                let is_stale = read != self.queue.version;
                let outcome = if is_stale { Outcome::Conflict } else { Outcome::Done };
                self.queue.conflicts += u64::from(is_stale);
                self.queue.writes += 1;
                if !is_stale {
                    self.queue.version += 1;
                    self.queue.status = status;
                }
                self.after(0, Due::Tell(Event::ActionDone { action, outcome }));
            }
            Due::Cycle => {}
        }
        false
    }

    fn submit(&mut self, number: u64) {
        let name = gang_name(number);
        let gang = GangSpec {
            name: name.clone(),
            uid: Arc::from(format!("group-{number}")),
            created: self.now,
            queue: QueueName::from(QUEUE),
            min_member: 1,
            min_task_member: BTreeMap::new(),
            min_resources: None,
            priority_class: None,
            mixed_gpu_models: false,
            policy: Default::default(),
            shown: None,
        };
        let requests =
            Resources::new().with(ResourceName::known(NVIDIA_GPU), 1).with(ResourceName::known(CPU), 4000);
        let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
        let pod = PodSpec {
            uid: pod_uid(number),
            name: name.clone(),
            gang: name,
            task: "worker".into(),
            request: PodRequest { containers: vec![container], overhead: Resources::new() },
            node_selector: BTreeMap::new(),
            group_uid: Default::default(),
            policy: Default::default(),
            constraints: Default::default(),
            claims: Vec::new(),
            blockers: Vec::new(),
            run_for: Some(Millis(LIFE_MS)),
            resource_version: 1,
            phase: PodPhase::Pending,
            binding: None,
            deleting: false,
            term: 0,
        };
        self.after(0, Due::Tell(Event::GangApplied(gang)));
        self.store(pod);
        if self.random(100) == 0 {
            self.deleted_early += 1;
            let delay = self.random(1000);
            self.after(delay, Due::Delete(number));
        }
    }

    fn store(&mut self, pod: PodSpec) {
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.after(1, Due::Tell(Event::PodApplied(Box::new(pod))));
    }

    fn change(&mut self, uid: &PodUid, change: impl FnOnce(&mut PodSpec)) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        change(&mut pod);
        pod.resource_version += 1;
        self.store(pod);
    }

    /// A bound pod goes when its agent says so, another one at once.
    fn delete(&mut self, number: u64) {
        let uid = pod_uid(number);
        match self.pods.get(&uid) {
            Some(pod) if pod.binding.is_some() && !pod.phase.is_terminal() => {
                self.change(&uid, |pod| pod.deleting = true);
            }
            Some(_) => self.remove(&uid),
            None => {}
        }
        self.after(1, Due::Tell(Event::GangDeleted(gang_name(number))));
    }

    fn remove(&mut self, uid: &PodUid) {
        if self.pods.remove(uid).is_some() {
            self.after(1, Due::Tell(Event::PodDeleted(uid.clone())));
            self.finished += 1;
            if self.finished == self.note_at {
                self.resident_noted_kib = resident_kib();
            }
        }
    }

    fn agent(&mut self, number: usize, event: node::Event) {
        let mut actions = Vec::new();
        OWNER.store(AGENTS, Ordering::Relaxed);
        self.agents[number].apply(event, self.now, &mut actions);
        OWNER.store(COORDINATOR, Ordering::Relaxed);
        for action in actions {
            match action {
                node::Action::Send(_, message) => self.hear_agent(number, message),
                node::Action::Persist { revision, .. } => {
                    self.after(1, Due::Agent(number, node::Event::Persisted { revision }));
                }
                node::Action::StartPod { pod, run_for, .. } => {
                    let ended = node::Event::PodEnded { pod, succeeded: true };
                    self.after(run_for.map_or(LIFE_MS, |time| time.0), Due::Agent(number, ended));
                }
                node::Action::StopPod { pod } => {
                    self.after(5, Due::Agent(number, node::Event::PodStopped { pod }));
                }
                node::Action::SetAside { .. } | node::Action::Warn(_) => panic!("{action:?}"),
            }
        }
    }

    fn hear_agent(&mut self, number: usize, message: FromAgent) {
        let node = NodeName::from(format!("node-{number:05}"));
        let session = number as u64 + 1;
        match &message {
            FromAgent::Hello(hello) => {
                let hello = Box::new(hello.clone());
                return self.after(1, Due::Tell(Event::AgentConnected { session, hello }));
            }
            FromAgent::PodStarted { pod } => {
                let pod = pod.clone();
                self.change(&pod, |pod| pod.phase = pod.phase.max(PodPhase::Running));
            }
            FromAgent::PodEnded { pod, .. } => {
                let uid = pod.clone();
                self.change(&uid, |pod| pod.phase = PodPhase::Succeeded);
                // Whoever made it takes it back a little later.
                let number = uid.as_str().strip_prefix("pod-").unwrap().parse().unwrap();
                self.after(20, Due::Delete(number));
            }
            FromAgent::PodStopped { pod } => {
                let uid = pod.clone();
                self.remove(&uid);
            }
            FromAgent::LeaseIs { lease, state: LeaseState::Gone, .. } => {
                // A pod that never ran is gone with its lease.
                let uid = self.pod_of_lease.remove(lease);
                if let Some(uid) = uid
                    && self.pods.get(&uid).is_some_and(|pod| pod.deleting)
                {
                    self.remove(&uid);
                }
            }
            _ => {}
        }
        self.after(1, Due::Tell(Event::AgentSaid { node, session, message: Box::new(message) }));
    }

    fn act(&mut self, action: Action) {
        let done = |outcome| Due::Tell(Event::ActionDone { action: action.id, outcome });
        match action.command {
            Command::Send { node, message, .. } => {
                let number = self.names[&node];
                self.after(1, Due::Agent(number, node::Event::Message(LINK, *message)));
            }
            Command::WritePlan(plan) => {
                self.plans.insert(plan.gang.clone());
                self.after(1, done(Outcome::Done));
            }
            Command::DeletePlan { gang, .. } => {
                self.plans.remove(&gang);
                self.after(1, done(Outcome::Done));
            }
            Command::Bind { pod, binding, .. } => {
                let is_there = self.pods.contains_key(&pod);
                self.after(1, done(if is_there { Outcome::Done } else { Outcome::NotFound }));
                self.bind(&pod, binding);
            }
            Command::SetQueueStatus { status, queue } if queue.as_str() == QUEUE => {
                let read = self.queue.version;
                let delay = self.random(4);
                self.after(delay, Due::QueueWrite { action: action.id, read, status });
            }
            Command::SetGangStatus { .. } | Command::SetQueueStatus { .. } => {
                self.after(1, done(Outcome::Done));
            }
            Command::RecordPromise { .. } => {}
            Command::Evict { .. }
            | Command::FenceWrite { .. }
            | Command::ReadPod { .. }
            | Command::RaiseTerm { .. }
            | Command::AnnounceEviction { .. }
            | Command::Warn { .. } => panic!("nothing fails here: {:?}", action.command),
        }
    }

    fn bind(&mut self, pod: &PodUid, binding: PodBinding) {
        self.pod_of_lease.extend(binding.lease.map(|lease| (lease, pod.clone())));
        self.change(pod, |pod| pod.binding = Some(binding));
    }

    /// Submits gangs at an even rate, lets all end, and waits until the last deadline has passed.
    fn churn(&mut self, numbers: std::ops::Range<u64>, at_a_time: u64) {
        let begin = self.now;
        for (at, number) in numbers.clone().enumerate() {
            self.after(at as u64 * LIFE_MS / at_a_time, Due::Submit(number));
        }
        let work_ms = (numbers.end - numbers.start) * LIFE_MS / at_a_time;
        let end = begin + Millis(work_ms + LIFE_MS + LAST_DEADLINE_MS);
        self.run_until(end);
        assert_eq!(self.finished, numbers.end, "all gangs are through");
    }

    fn check_nothing_is_kept(&self) {
        for (name, count) in self.core.kept() {
            assert_eq!(count, 0, "{name} of the coordinator");
        }
        for agent in &self.agents {
            for (name, count) in agent.kept() {
                let most = if name == "tombstones" { MAX_TOMBSTONES } else { 0 };
                assert!(count <= most, "{count} {name} of an agent");
            }
        }
        assert!(self.pods.is_empty() && self.plans.is_empty() && self.pod_of_lease.is_empty());
    }
}

fn resident_kib() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4
}

/// What follows the cluster, without the choices that are remembered: those are bounded, and as many as there were
/// different needs.
fn of_cluster(world: &World) -> Vec<(&'static str, usize)> {
    world.core.kept_of_cluster().into_iter().filter(|(name, _)| *name != "gpu_sets").collect()
}

#[test]
fn case_107_memory_does_not_grow_with_finished_gangs() {
    let is_whole = !cfg!(debug_assertions) || std::env::var_os("PHALANX_WHOLE_CASES").is_some();
    let scale = if is_whole { 1 } else { 10 };
    let (gangs, at_a_time, first) = (100_000 / scale, 20_000 / scale, 1_000 / scale);
    // A little more than needed: GPUs are held some milliseconds longer than pods run.
    let nodes = usize::try_from(at_a_time).unwrap() / GPUS_PER_NODE * 41 / 40;
    let mut world = World::new(nodes);
    world.churn(0..first, at_a_time);
    world.check_nothing_is_kept();
    let before_of_cluster = of_cluster(&world);
    let before = in_use(COORDINATOR);
    world.note_at = 2 * first;
    world.churn(first..gangs, at_a_time);
    world.check_nothing_is_kept();
    let after = in_use(COORDINATOR);
    let (resident, resident_early) = (resident_kib(), world.resident_noted_kib);
    println!("{gangs} gangs, {at_a_time} at a time, {nodes} nodes");
    println!("coordinator: {before} bytes in use after {first} gangs, {after} at the end");
    println!("agents: {} bytes in use at the end", in_use(AGENTS));
    println!(
        "resident: {resident_early} KiB when {first} of the large wave were through, {resident} KiB at the end"
    );
    println!("most at a time: {:?}", world.most);
    println!(
        "queue status: {} writes, {} of them conflicts; {} pods deleted in their first second",
        world.queue.writes, world.queue.conflicts, world.deleted_early
    );
    // The test must have been one: as many at a time as it says, conflicts, deletions.
    assert!(world.most["leases"] as u64 >= at_a_time * 98 / 100, "{:?}", world.most);
    assert!(world.queue.conflicts > 100, "{}", world.queue.conflicts);
    assert!(world.deleted_early > gangs / 200);
    assert!(after <= before + before / 10, "{before} bytes in use after {first} gangs, {after} at the end");
    assert!(resident <= resident_early + resident_early / 10, "{resident_early} KiB, then {resident} KiB");
    // Some hundred bytes for each lease that an agent must not let come back, and what a node needs anyway.
    let tombstones: usize = world.agents.iter().map(|agent| agent.kept()[2].1).sum();
    assert!(in_use(AGENTS) <= tombstones * 128 + nodes * 32_768, "{tombstones} tombstones");
    assert_eq!(of_cluster(&world), before_of_cluster);
    // Both writers got through, and neither wrote over the other.
    assert_eq!(world.queue.status, QueueStatus::default());
    assert!(world.queue.notes > 1000);
}
