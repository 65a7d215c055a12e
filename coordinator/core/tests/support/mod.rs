//! A small world for text scenarios: agents that promise, an API that obeys, and a clock that is set.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod changes;
mod claims;
mod constrained;
pub mod play;
mod policy;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use phalanx_common::gang::{Blocker, GangSpec, PodBinding, PodPhase, PodSpec, ShownGang};
use phalanx_common::ids::{ActionId, GangName, GpuId, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
use phalanx_common::queue::{PriorityClassSpec, QueuePolicySpec, QueueSpec, ShownQueue};
use phalanx_common::resources::{ResourceName, Resources, parse_quantity};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel, ProbeState};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{
    ContainerDevices, Exactness, FromAgent, Hello, LEASE_BYTES, LeaseReport, LeaseRequest, LeaseState,
    RefusalCause, ToAgent,
};
use phalanx_core::action::{Action, Command, GangStatus};
use phalanx_core::event::{ClaimSpec, Event, NodeSpec, OtherPod, Outcome};
use phalanx_core::reason::Reason;
use phalanx_core::{Core, Settings, invariants, is_believable};

/// Cycles after each settle in which nothing may be asked for.
const CYCLES_AT_REST: u32 = 50;

/// How long nothing is done where no time is known at which something is due.
const A_LONG_TIME: Millis = Millis::from_seconds(3600);

/// One fake agent.
#[derive(Clone, Default)]
struct Agent {
    inventory: Option<Inventory>,
    session: u64,
    leases: BTreeMap<LeaseId, LeaseReport>,
    connected: bool,
    silent: bool,
    /// Refuses so many Reserves.
    refuse: u32,
    /// Why.
    cause: Option<RefusalCause>,
    /// Lets no pod start: its device plugin does not answer.
    stalls: bool,
    /// Refuses everything while it has so many leases.
    most_leases: Option<usize>,
    /// Its ledger cannot be written: nothing is armed.
    disk_full: bool,
    /// Another coordinator's term that it has met.
    led_by: Option<Term>,
}

/// The world.
#[derive(Clone)]
pub struct World {
    core: Core,
    term: u64,
    now: Time,
    queue: VecDeque<Action>,
    agents: BTreeMap<NodeName, Agent>,
    queues: BTreeMap<QueueName, QueueSpec>,
    policies: BTreeMap<QueueName, QueuePolicySpec>,
    classes: BTreeMap<Arc<str>, PriorityClassSpec>,
    nodes: BTreeMap<NodeName, NodeSpec>,
    gangs: BTreeMap<GangName, GangSpec>,
    pods: BTreeMap<PodUid, PodSpec>,
    /// Pods that name no PodGroup, and their gangs.
    lone: BTreeMap<PodUid, GangSpec>,
    /// Pods of others, by UID.
    others: BTreeMap<PodUid, OtherPod>,
    /// PersistentVolumeClaims.
    claims: BTreeMap<GangName, ClaimSpec>,
    settings: Settings,
    plans: BTreeMap<GangName, GangPlan>,
    statuses: BTreeMap<GangName, GangStatus>,
    /// Outcomes that the next Bindings get, before the API obeys again.
    bind_faults: VecDeque<String>,
    /// Writes and reads of plans and pods get no answer, and are not done: the store fails.
    store_fails: bool,
    /// What comes of each fence, where it is not done as asked.
    fences: Option<Outcome>,
    /// Answers to reads of pods, kept back until they are let go.
    late_reads: Option<Vec<Event>>,
    /// Bindings that a coordinator which is dead had sent.
    late_bindings: BTreeMap<GangName, (PodUid, u64, PodBinding)>,
    /// Actions are kept back, one `step` at a time.
    manual: bool,
    next_session: u64,
    next_version: u64,
    next_uid: u64,
    pub evictions: u32,
    /// Bindings that took effect, by gang.
    bindings: BTreeMap<GangName, u32>,
    /// What happens to pods that are told to go.
    endings: policy::Endings,
    /// Policies of queues and disruption budgets, as they are stored.
    rules: BTreeMap<(&'static str, String), Event>,
    /// What somebody who checks asked for.
    watch: watch::Watch,
    /// Invariants are checked after every event; that takes long where there is much.
    pub checks: bool,
    /// What is only remembered to be quick is forgotten before each pass.
    pub forgets: bool,
    out: String,
}

fn name(text: &str) -> GangName {
    GangName::new("default", text)
}

/// `tmin=a:4,b:1`.
fn minima<'w>(words: &'w Words<'_>) -> impl Iterator<Item = (Arc<str>, u32)> + use<'w> {
    let texts = words.options.get("tmin").into_iter().flat_map(|text| text.split(','));
    let pairs = texts.filter_map(|text| text.split_once(':'));
    pairs.map(|(task, count)| (task.into(), count.parse().unwrap()))
}

fn min_resources(words: &Words<'_>) -> Option<Resources> {
    words.options.get("need-gpu").map(|gpus| {
        let (name, amount) = resource("gpu", gpus);
        Resources::new().with(name, amount)
    })
}

fn gpu_id(node: &str, at: usize) -> GpuId {
    let base = node.bytes().fold(7_u128, |sum, byte| sum * 257 + u128::from(byte)) << 8;
    GpuId(base | at as u128)
}

impl World {
    pub fn new() -> Self {
        let mut world = Self {
            core: Core::new(Settings::default()),
            term: 0,
            now: Time(0),
            queue: VecDeque::new(),
            agents: BTreeMap::new(),
            queues: BTreeMap::new(),
            policies: BTreeMap::new(),
            classes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gangs: BTreeMap::new(),
            pods: BTreeMap::new(),
            lone: BTreeMap::new(),
            others: BTreeMap::new(),
            claims: BTreeMap::new(),
            settings: Settings::default(),
            plans: BTreeMap::new(),
            statuses: BTreeMap::new(),
            bind_faults: VecDeque::new(),
            store_fails: false,
            fences: None,
            late_reads: None,
            late_bindings: BTreeMap::new(),
            manual: false,
            next_session: 0,
            next_version: 0,
            next_uid: 0,
            evictions: 0,
            bindings: BTreeMap::new(),
            endings: policy::Endings::default(),
            rules: BTreeMap::new(),
            watch: watch::Watch::default(),
            checks: true,
            forgets: false,
            out: String::new(),
        };
        world.start();
        world
    }

    fn start(&mut self) {
        self.term += 1;
        self.core = Core::new(self.settings.clone());
        for action in std::mem::take(&mut self.queue) {
            if let Command::Bind { pod, name, resource_version, binding, .. } = action.command {
                self.late_bindings.insert(name, (pod, resource_version, binding));
            }
        }
        self.apply(Event::Started { term: Term { counter: self.term, incarnation: self.term } });
        for event in self.stored() {
            self.apply(event);
        }
        self.apply(Event::Synced);
        let connected = self.agents.iter().filter(|(_, agent)| agent.connected);
        let names: Vec<NodeName> = connected.map(|(name, _)| name.clone()).collect();
        for node in names {
            self.connect(&node);
        }
        self.cycle();
    }

    fn stored(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.queues.values().cloned().map(Event::QueueApplied).collect();
        let policies = self.policies.values().cloned();
        events.extend(policies.map(|policy| Event::QueuePolicyApplied(Box::new(policy))));
        events.extend(self.classes.values().cloned().map(Event::PriorityClassApplied));
        events.extend(self.rules.values().cloned());
        events.extend(self.nodes.values().cloned().map(Event::NodeApplied));
        let with_status = |gang: &GangSpec| {
            let status = self.statuses.get(&gang.name).map(shown);
            GangSpec { shown: status.or(gang.shown.clone()), ..gang.clone() }
        };
        let mut gangs: Vec<GangSpec> = self.gangs.values().map(with_status).collect();
        gangs.sort_by_key(|gang| (gang.created, gang.uid.clone()));
        events.extend(gangs.into_iter().map(Event::GangApplied));
        events.extend(self.pods.values().map(|pod| self.pod_event(pod)));
        events.extend(self.others.values().cloned().map(|pod| Event::OtherPodApplied(Box::new(pod))));
        events.extend(self.claims.values().cloned().map(|claim| Event::ClaimApplied(Box::new(claim))));
        events.extend(self.plans.values().cloned().map(Event::PlanFound));
        events
    }

    fn apply(&mut self, event: Event) {
        let mut actions = Vec::new();
        let text = if self.checks { format!("{event:?}") } else { String::new() };
        self.core.apply(event, self.now, &mut actions);
        self.queue.extend(actions);
        self.check(&text);
    }

    fn cycle(&mut self) {
        let mut actions = Vec::new();
        if self.forgets {
            drop(self.core.snapshot());
        }
        self.core.cycle(self.now, &mut actions);
        self.note_actions(&actions);
        self.queue.extend(actions);
        self.check("a cycle");
        self.check_owners();
    }

    fn check(&self, after: &str) {
        if !self.checks {
            return;
        }
        if let Err(error) = invariants::check(&self.core) {
            panic!("after {after}: {error}");
        }
    }

    /// No GPU has two holders at its agent.
    fn check_owners(&self) {
        for (node, agent) in &self.agents {
            let mut seen = BTreeSet::new();
            for report in agent.leases.values() {
                for gpu in report.request.gpus() {
                    assert!(seen.insert(gpu), "{node}: {gpu} has two holders");
                }
            }
        }
    }

    fn connect(&mut self, node: &NodeName) {
        self.next_session += 1;
        let session = self.next_session;
        let Some(agent) = self.agents.get_mut(node) else { return };
        let Some(inventory) = agent.inventory.clone() else { return };
        agent.session = session;
        agent.connected = true;
        let hello = Hello {
            oldest_version: 1,
            newest_version: 2,
            node: node.clone(),
            cluster: None,
            highest_term: agent.led_by.unwrap_or_default(),
            inventory,
            leases: agent.leases.values().cloned().collect(),
        };
        self.apply(Event::AgentConnected { session, hello: Box::new(hello) });
    }

    /// Runs until nothing is left to do at this time; prints what was asked for.
    fn settle(&mut self, print: bool) {
        self.cycle();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..100_000 {
            let Some(action) = self.queue.pop_front() else { break };
            let line = self.describe(&action);
            if print {
                writeln!(self.out, "{line}").unwrap();
            }
            *counts.entry(line.split(' ').next().unwrap_or("").to_owned()).or_default() += 1;
            self.perform(action);
            self.cycle();
        }
        assert!(self.queue.is_empty(), "never settles");
        self.check_rest();
    }

    /// After a settle the next cycles do nothing: neither at the same time, nor later as long as nothing is due.
    fn check_rest(&mut self) {
        let mut actions = Vec::new();
        for _ in 0..CYCLES_AT_REST {
            if self.forgets {
                drop(self.core.snapshot());
            }
            self.core.cycle(self.now, &mut actions);
            assert!(actions.is_empty(), "not settled: {actions:?}");
        }
        // Nothing was asked for, so that agents are as they were and invariants are looked at once.
        self.check("cycles at rest");
        let due = self.core.next_deadline().map_or(self.now + A_LONG_TIME, |(at, _)| at).0;
        let quiet_ms = due.saturating_sub(self.now.0 + 1);
        let mut later = self.core.clone();
        for step in 1..=CYCLES_AT_REST {
            let at = self.now.0 + quiet_ms * u64::from(step) / u64::from(CYCLES_AT_REST);
            later.cycle(Time(at), &mut actions);
            assert!(actions.is_empty(), "nothing is due before {due} ms, and at {at} ms: {actions:?}");
        }
    }

    fn describe(&self, action: &Action) -> String {
        let pod_of = |id: &LeaseId| -> String {
            let agents = self.agents.values().flat_map(|agent| agent.leases.get(id));
            agents.map(|report| report.request.pod_name.name.to_string()).next().unwrap_or_else(|| "?".into())
        };
        match &action.command {
            Command::Send { node, message, .. } => match &**message {
                ToAgent::Reserve { request, .. } => {
                    let gpus: Vec<String> =
                        request.gpus().iter().map(|gpu| format!("g{}", gpu.0 & 0xff)).collect();
                    format!("reserve {} {node} {}", request.pod_name.name, gpus.join(","))
                }
                ToAgent::Arm { lease, .. } => format!("arm {} {node}", pod_of(lease)),
                ToAgent::Bound { lease, .. } => format!("bound {} {node}", pod_of(lease)),
                ToAgent::GangBound { lease, .. } => format!("gang-bound {} {node}", pod_of(lease)),
                ToAgent::Release { lease, .. } => format!("release {} {node}", pod_of(lease)),
                other => format!("{other:?}"),
            },
            Command::WritePlan(plan) if plan.purpose == PlanPurpose::MakeRoom => {
                let victims: Vec<&str> = plan.victims.iter().map(|victim| &*victim.name.name).collect();
                format!("write-plan {} evicts {}", plan.gang.name, victims.join(","))
            }
            Command::WritePlan(plan) => format!("write-plan {} of {} pods", plan.gang.name, plan.pods.len()),
            Command::AnnounceEviction { name, at, cause, .. } => {
                format!("announce eviction of {} at {}: {cause}", name.name, at.0 / 1000)
            }
            Command::RecordPromise { gang, expected, started, .. } => {
                let started = started.map_or("no".to_owned(), |at| (at.0 / 1000).to_string());
                format!("promised {}: expected {}, started {started}", gang.name, expected.0 / 1000)
            }
            Command::DeletePlan { gang, .. } => format!("delete-plan {}", gang.name),
            Command::Bind { name, binding, .. } => format!("bind {} {}", name.name, binding.node),
            Command::FenceWrite { name, .. } => format!("fence {}", name.name),
            Command::ReadPod { name, .. } => format!("read {}", name.name),
            Command::Evict { name, cause, .. } => format!("evict {}: {cause}", name.name),
            Command::SetGangStatus { gang, status, .. } => {
                let reason = status.reason.as_ref().map(|reason| match reason {
                    Reason::TooFewPods { exist, minimum, .. } => {
                        format!(" TooFewPods {exist}/{minimum} at {} s", self.now.0 / 1000)
                    }
                    _ => format!(" {}", reason.codes()),
                });
                format!(
                    "status {} {} running={} succeeded={}{}",
                    gang.name,
                    status.phase.as_str(),
                    status.running,
                    status.succeeded,
                    reason.unwrap_or_default()
                )
            }
            Command::SetQueueStatus { queue, status } => {
                format!(
                    "queue-status {queue} gpus={} pending={} inqueue={} running={} completed={}",
                    status.allocated.gpus(),
                    status.pending,
                    status.inqueue,
                    status.running,
                    status.completed
                )
            }
            Command::RaiseTerm { above } => format!("raise-term above {above}"),
            Command::Warn { message } => format!("warn {message}"),
        }
    }

    fn perform(&mut self, action: Action) {
        let id = action.id;
        let done = |outcome| Event::ActionDone { action: id, outcome };
        let is_write = matches!(
            action.command,
            Command::WritePlan(_)
                | Command::DeletePlan { .. }
                | Command::Bind { .. }
                | Command::FenceWrite { .. }
                | Command::ReadPod { .. }
                | Command::Evict { .. }
        );
        if self.store_fails && is_write {
            return self.apply(done(Outcome::Unknown));
        }
        match action.command {
            Command::Send { node, session, message } => self.deliver(&node, session, *message),
            Command::RaiseTerm { above } => {
                self.term = above + 1;
                let term = Term { counter: self.term, incarnation: self.term };
                self.apply(Event::TermRaised { term });
            }
            Command::WritePlan(plan) => {
                let later = self.plans.get(&plan.gang).is_some_and(|stored| is_later(stored, plan.term));
                if !later {
                    self.plans.insert(plan.gang.clone(), *plan);
                }
                self.apply(done(if later { Outcome::Conflict } else { Outcome::Done }));
            }
            Command::DeletePlan { gang, term } => {
                let later = self.plans.get(&gang).is_some_and(|stored| is_later(stored, term));
                if !later {
                    self.plans.remove(&gang);
                }
                self.apply(done(if later { Outcome::Conflict } else { Outcome::Done }));
            }
            Command::Bind { pod, resource_version, binding, term, group_uid, .. } => {
                if let Some(stored) = self.pods.get_mut(&pod).filter(|stored| stored.binding.is_none()) {
                    stored.group_uid = group_uid;
                }
                self.bind(id, &pod, resource_version, binding, term)
            }
            Command::FenceWrite { pod, term, .. } => {
                if let Some(outcome) = self.fences.clone().filter(|outcome| *outcome != Outcome::Done) {
                    return self.apply(done(outcome));
                }
                self.touch(&pod);
                if let Some(pod) = self.pods.get_mut(&pod) {
                    pod.term = term.counter;
                }
                match self.fences {
                    Some(_) => self.apply(done(Outcome::Done)),
                    None => self.answer_read(id, &pod),
                }
            }
            Command::ReadPod { pod, .. } => self.answer_read(id, &pod),
            Command::Evict { pod, .. } => {
                self.evictions += 1;
                self.delete_pod(&pod);
                self.apply(done(Outcome::Done));
            }
            Command::SetGangStatus { gang, status, .. } => {
                self.apply(done(Outcome::Done));
                if let Some(mut spec) = self.gangs.get(&gang).cloned() {
                    spec.shown = Some(shown(&status));
                    self.apply(Event::GangApplied(spec));
                }
                self.statuses.insert(gang, *status);
            }
            Command::SetQueueStatus { .. } => self.apply(done(Outcome::Done)),
            Command::Warn { .. } | Command::RecordPromise { .. } | Command::AnnounceEviction { .. } => {}
        }
    }

    /// The pod as it is now; told now or later.
    fn answer_read(&mut self, action: ActionId, pod: &PodUid) {
        let event = Event::PodRead { action, pod: self.pods.get(pod).cloned().map(Box::new) };
        match &mut self.late_reads {
            Some(late) => late.push(event),
            None => self.apply(event),
        }
    }

    fn touch(&mut self, pod: &PodUid) {
        self.next_version += 1;
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.resource_version = self.next_version;
        }
    }

    fn bind(&mut self, id: ActionId, pod: &PodUid, version: u64, binding: PodBinding, term: Term) {
        let fault = self.bind_faults.pop_front().unwrap_or_default();
        let Some(stored) = self.pods.get(pod) else {
            return self.apply(Event::ActionDone { action: id, outcome: Outcome::NotFound });
        };
        let fits = stored.resource_version == version && stored.binding.is_none() && !stored.deleting;
        if let (Some(agent), Some(_)) = (self.agents.get(&binding.node), binding.lease) {
            let known =
                |gpu: &GpuId| agent.inventory.iter().flat_map(|all| &all.gpus).any(|known| known.id == *gpu);
            assert!(binding.gpus.iter().all(known), "the Binding names a GPU that {} has not", binding.node);
        }
        let outcome = match fault.as_str() {
            "refused" => Outcome::Refused("quota webhook said no".into()),
            "lost" => Outcome::Unknown,
            "conflict" => Outcome::Conflict,
            _ if !fits => Outcome::Conflict,
            "unknown" => Outcome::Unknown,
            _ => Outcome::Done,
        };
        let takes_effect = fits && !matches!(fault.as_str(), "refused" | "lost" | "conflict");
        if takes_effect {
            self.touch(pod);
            let local = binding.lease.is_none();
            if let Some(stored) = self.pods.get_mut(pod) {
                stored.binding = Some(binding);
                stored.term = term.counter;
                *self.bindings.entry(stored.gang.clone()).or_default() += 1;
                if local {
                    stored.phase = PodPhase::Running;
                }
            }
        }
        if fault == "ended" {
            // The pod has run and ended before anybody hears of the Binding.
            if let Some(stored) = self.pods.get_mut(pod) {
                stored.phase = PodPhase::Succeeded;
            }
            self.touch(pod);
            self.apply_stored(pod);
        }
        self.apply(Event::ActionDone { action: id, outcome });
        if takes_effect {
            self.apply_stored(pod);
        }
    }

    fn apply_stored(&mut self, pod: &PodUid) {
        if let Some(pod) = self.pods.get(pod) {
            self.apply(self.pod_event(pod));
        }
    }

    fn pod_event(&self, pod: &PodSpec) -> Event {
        let pod = Box::new(pod.clone());
        match self.lone.get(&pod.uid) {
            Some(gang) => Event::LonePodApplied { gang: Box::new(gang.clone()), pod },
            None => Event::PodApplied(pod),
        }
    }

    /// The agent's side; its pods start as soon as they may.
    fn deliver(&mut self, node: &NodeName, session: u64, message: ToAgent) {
        let Some(agent) = self.agents.get_mut(node) else { return };
        if !agent.connected || agent.session != session || agent.silent {
            return;
        }
        let mut started = None;
        let asked = match &message {
            ToAgent::Reserve { term, .. } | ToAgent::Arm { term, .. } => *term,
            ToAgent::Bound { term, .. } | ToAgent::GangBound { term, .. } => *term,
            ToAgent::Release { term, .. } => *term,
            ToAgent::Welcome { .. }
            | ToAgent::Rejected { .. }
            | ToAgent::Standby { .. }
            | ToAgent::SayHello => panic!("{message:?}"),
        };
        let stale = agent.led_by.filter(|known| known.counter >= asked.counter);
        if stale.is_none() {
            agent.led_by = None;
        }
        let reply = match message {
            ToAgent::Reserve { term, lease, .. } if stale.is_some() => FromAgent::Refused {
                term,
                lease,
                cause: RefusalCause::StaleTerm(stale.unwrap()),
                inventory: Box::new(agent.inventory.clone().unwrap()),
                leases: agent.leases.values().cloned().collect(),
            },
            _ if stale.is_some() => return,
            ToAgent::Reserve { term, lease, request, .. } => {
                let is_full = agent.most_leases.is_some_and(|most| agent.leases.len() >= most);
                let gpus = &agent.inventory.as_ref().unwrap().gpus;
                let unknown =
                    request.gpus().into_iter().find(|gpu| gpus.iter().all(|known| known.id != *gpu));
                // A lease that its coordinator took for gone, since it was on its way when the agent refused another.
                let others = agent.leases.values().filter(|report| report.lease != lease);
                let held = others
                    .flat_map(|report| report.request.gpus().into_iter().map(|gpu| (gpu, report.lease)))
                    .find(|(gpu, _)| request.gpus().contains(gpu));
                if agent.refuse > 0 || is_full || unknown.is_some() || held.is_some() {
                    agent.refuse = agent.refuse.saturating_sub(1);
                    let full = || RefusalCause::Short(LEASE_BYTES.into(), 100, 240);
                    let other = agent.cause.clone().unwrap_or(RefusalCause::Short("cpu".into(), 0, 1));
                    let cause = if is_full { full() } else { other };
                    let cause = held.map_or(cause, |(gpu, lease)| RefusalCause::Held(gpu, lease));
                    let cause = unknown.map_or(cause, RefusalCause::UnknownGpu);
                    let inventory = Box::new(agent.inventory.clone().unwrap());
                    FromAgent::Refused {
                        term,
                        lease,
                        cause,
                        inventory,
                        leases: agent.leases.values().cloned().collect(),
                    }
                } else {
                    let report = LeaseReport { lease, state: LeaseState::Reserved, request: *request };
                    agent.leases.entry(lease).or_insert(report);
                    FromAgent::Reserved { term, lease }
                }
            }
            ToAgent::Arm { term, lease } if agent.disk_full => {
                let leases: Vec<LeaseReport> = agent.leases.values().cloned().collect();
                let mut reserved = leases.iter().filter(|report| report.state == LeaseState::Reserved);
                if reserved.next().is_some_and(|first| first.lease == lease) {
                    let inventory = Box::new(agent.inventory.clone().unwrap());
                    FromAgent::Refused { term, lease, cause: cause("Disk", node.as_str()), inventory, leases }
                } else {
                    // One refusal stands for all that were asked for at a time.
                    FromAgent::LeaseIs { term, lease, state: LeaseState::Reserved }
                }
            }
            ToAgent::Arm { term, lease }
            | ToAgent::Bound { term, lease }
            | ToAgent::GangBound { term, lease } => {
                let state = match message {
                    ToAgent::Arm { .. } => LeaseState::Armed,
                    ToAgent::Bound { .. } => LeaseState::Bound,
                    _ => LeaseState::Started,
                };
                if agent.stalls && state == LeaseState::Started {
                    return;
                }
                match agent.leases.get_mut(&lease) {
                    Some(report) => {
                        report.state = state;
                        if state == LeaseState::Started {
                            started = Some(report.request.pod.clone());
                        }
                        FromAgent::LeaseIs { term, lease, state }
                    }
                    None => FromAgent::LeaseIs { term, lease, state: LeaseState::Gone },
                }
            }
            ToAgent::Release { term, lease } => {
                let bound_by =
                    |pod: &&PodSpec| pod.binding.as_ref().is_some_and(|binding| binding.lease == Some(lease));
                let pod = agent.leases.remove(&lease).map(|report| report.request.pod);
                let pod = pod.or_else(|| self.pods.values().find(bound_by).map(|pod| pod.uid.clone()));
                // Where kubelets stop pods, they go when those say so.
                let pod = pod.filter(|_| !self.settings.kubelet_stops_pods);
                if let Some(pod) = pod.filter(|pod| self.pods.get(pod).is_some_and(|pod| pod.deleting)) {
                    self.remove_pod(&pod);
                }
                FromAgent::LeaseIs { term, lease, state: LeaseState::Gone }
            }
            other => panic!("{other:?}"),
        };
        self.apply(Event::AgentSaid { node: node.clone(), session, message: Box::new(reply) });
        if let Some(pod) = started
            && let Some(stored) = self.pods.get_mut(&pod)
        {
            stored.phase = PodPhase::Running;
            stored.policy.started.get_or_insert(self.now);
            self.touch(&pod);
            self.apply_stored(&pod);
        }
    }

    fn delete_pod(&mut self, pod: &PodUid) {
        let Some(stored) = self.pods.get_mut(pod) else { return };
        if stored.binding.is_some() && !stored.phase.is_terminal() {
            stored.deleting = true;
            stored.policy.ends_by = Some(self.now + stored.policy.grace_ms);
            self.touch(pod);
            self.apply_stored(pod);
            self.plan_ending(pod);
        } else {
            self.remove_pod(pod);
        }
    }
}

/// A stored plan is a later leader's.
fn is_later(stored: &GangPlan, term: u64) -> bool {
    stored.term > term && is_believable(stored.term, term)
}

/// A status as the API shows it.
fn shown(status: &GangStatus) -> ShownGang {
    let told = status.reason.as_ref().filter(|reason| reason.code() != "InProgress");
    ShownGang {
        phase: status.phase.as_str().into(),
        reason: told.map(|reason| reason.codes().into()),
        running: status.running.into(),
        succeeded: status.succeeded.into(),
        failed: status.failed.into(),
    }
}

/// `key=value` options of a command.
struct Words<'a> {
    plain: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn parse(line: &'a str) -> Self {
        let (options, plain) = line.split_whitespace().partition::<Vec<_>, _>(|word| word.contains('='));
        Self { plain, options: options.into_iter().filter_map(|word| word.split_once('=')).collect() }
    }

    fn number(&self, key: &str, default: u64) -> u64 {
        self.options.get(key).map_or(default, |text| text.parse().unwrap())
    }
}

/// Every cause that an agent may give, by its kind. GPUs are those of a board that was swapped.
#[allow(dead_code, reason = "one of the tests that share this file asks")]
pub const CAUSES: [&str; 9] = [
    "Released",
    "UnknownLease",
    "UnknownGpu",
    "Unhealthy",
    "Held",
    "PodHasLease",
    "Short",
    "Malformed",
    "Disk",
];

pub fn cause(kind: &str, node: &str) -> RefusalCause {
    let (gpu, lease) = (gpu_id(node, 2), LeaseId { term: 0, serial: 9 });
    match kind {
        "Released" => RefusalCause::Released,
        "UnknownLease" => RefusalCause::UnknownLease,
        "UnknownGpu" => RefusalCause::UnknownGpu(gpu),
        "Unhealthy" => RefusalCause::Unhealthy(gpu, GpuHealth::Lost),
        "Held" => RefusalCause::Held(gpu, lease),
        "PodHasLease" => RefusalCause::PodHasLease(lease),
        "Short" => RefusalCause::Short("cpu".into(), 0, 1),
        "Malformed" => {
            RefusalCause::Malformed("the pod needs 2 GPUs at its peak, its containers get 1".into())
        }
        "Disk" => RefusalCause::Disk("No space left on device".into()),
        other => panic!("unknown cause {other}"),
    }
}

fn resource(key: &str, value: &str) -> (ResourceName, u64) {
    let name = ResourceName::parse(if key == "gpu" { "nvidia.com/gpu" } else { key }).unwrap();
    let amount = parse_quantity(&name, value).unwrap();
    (name, amount)
}

impl World {
    /// Runs one command and returns what it prints.
    pub fn run(&mut self, line: &str) -> String {
        self.out.clear();
        let words = Words::parse(line);
        match words.plain[0] {
            "node" => self.make_node(&words),
            "plain-node" => self.make_plain_node(&words),
            "delete-node" => {
                let node = NodeName::from(words.plain[1]);
                self.nodes.remove(&node);
                self.apply(Event::NodeDeleted(node));
            }
            "queue" => self.make_queue(&words),
            "class" => {
                let class = PriorityClassSpec {
                    name: words.plain[1].into(),
                    value: words.plain[2].parse().unwrap(),
                    global_default: words.options.contains_key("default"),
                    preempts: words.options.get("never") != Some(&"yes"),
                };
                self.classes.insert(class.name.clone(), class.clone());
                self.apply(Event::PriorityClassApplied(class));
            }
            "queue-policy" => {
                let policy = policy::queue_policy(&words);
                self.policies.insert(policy.name.clone(), policy.clone());
                self.apply(Event::QueuePolicyApplied(Box::new(policy)));
            }
            "delete-queue" => {
                let queue = QueueName::from(words.plain[1]);
                self.queues.remove(&queue);
                self.apply(Event::QueueDeleted(queue));
            }
            "gang" => {
                self.endings.note_gang(&words);
                self.make_gang(&words);
            }
            "budget" => {
                let event = policy::budget(&words);
                self.rules.insert(("budget", words.plain[1].to_owned()), event.clone());
                self.apply(event);
            }
            "setting" => {
                policy::set(&mut self.settings, words.plain[1], words.plain[2]);
                self.start();
            }
            "lone" => self.make_lone(&words),
            "group-of" => self.make_group_of(&words),
            "settle" => self.settle(true),
            "settle-quietly" => self.settle(false),
            "step" => self.step(),
            "asked-at" => self.core.asked_at(Time(words.plain[1].parse::<u64>().unwrap() * 1000)),
            "t" => self.advance(words.plain[1].parse().unwrap()),
            "quiet-t" => {
                self.advance(words.plain[1].parse().unwrap());
                self.out.clear();
            }
            "pod" => {
                let (gang, pod) = (words.plain[1], words.plain[2]);
                let task = words.options.get("task").copied().unwrap_or("worker");
                self.make_pod(gang, pod, task, words.plain[3].trim_end_matches('G'), &words);
            }
            "end" => self.end(&words.plain[1..]),
            "delete" => self.delete_gang(words.plain[1]),
            "delete-group" => {
                let gang = name(words.plain[1]);
                self.gangs.remove(&gang);
                self.statuses.remove(&gang);
                self.apply(Event::GangDeleted(gang));
            }
            "make-group" => {
                // A PodGroup alone: its pods are there already, or come later.
                let words = Words { plain: vec!["gang", words.plain[1]], options: words.options };
                self.make_gang(&words);
            }
            "raise-min" => {
                // A user changes minMember.
                let mut spec = self.gangs[&name(words.plain[1])].clone();
                spec.min_member = words.plain[2].parse().unwrap();
                self.gangs.insert(spec.name.clone(), spec.clone());
                self.apply(Event::GangApplied(spec));
            }
            "preemptable" | "reclass" => {
                // A user changes what decides who may be evicted.
                let mut spec = self.gangs[&name(words.plain[1])].clone();
                match words.plain[0] {
                    "preemptable" => spec.policy.preemptable = Some(words.plain[2] == "yes"),
                    _ => spec.priority_class = Some(words.plain[2].into()),
                }
                self.gangs.insert(spec.name.clone(), spec.clone());
                self.apply(Event::GangApplied(spec));
            }
            "regroup" => {
                // A user has the pod name a PodGroup of his.
                let uid = self.uid(words.plain[1]);
                self.lone.remove(&uid);
                self.touch(&uid);
                self.pods.get_mut(&uid).unwrap().gang = name(words.plain[2]);
                self.apply_stored(&uid);
            }
            "lone-queue" => {
                // A user changes the queue of a pod that names no PodGroup.
                let uid = self.uid(words.plain[1]);
                self.touch(&uid);
                self.lone.get_mut(&uid).unwrap().queue = words.plain[2].into();
                self.apply_stored(&uid);
            }
            "ungate" => {
                // Whoever set a pod's scheduling gates removes them.
                let uid = self.uid(words.plain[1]);
                self.touch(&uid);
                let stored = self.pods.get_mut(&uid).unwrap();
                Arc::make_mut(&mut stored.constraints).gates.clear();
                self.apply_stored(&uid);
            }
            "delete-pod" => {
                let uid = self.uid(words.plain[1]);
                self.delete_pod(&uid);
            }
            "other" => self.make_other(&words),
            "other-gone" => {
                let uid = PodUid::from(words.plain[1]);
                self.others.remove(&uid).expect("a pod of others");
                self.apply(Event::PodDeleted(uid));
            }
            "claim" => self.make_claim(&words),
            "claim-gone" => {
                let claim = name(words.plain[1]);
                self.claims.remove(&claim).expect("a claim");
                self.apply(Event::ClaimDeleted(claim));
            }
            "kubelets-stop-pods" => {
                self.settings.kubelet_stops_pods = true;
                self.start();
            }
            "gone" => {
                // The object of a pod that was deleted is gone: nothing of it runs any more.
                let uid = self.uid(words.plain[1]);
                assert!(self.pods.remove(&uid).unwrap().deleting, "it was not deleted");
                self.apply(Event::PodDeleted(uid));
            }
            "agent" => self.change_agent(&words),
            "restart" => {
                self.now = self.now + Millis::from_seconds(words.number("after", 0));
                self.start();
            }
            "late-bind" => self.late_bind(&name(words.plain[1])),
            "late-plan" => {
                // A leader of an earlier term, dead or not, writes a plan that nobody was asked to confirm.
                let gang = self.gangs.get(&name(words.plain[1])).unwrap();
                let plan = GangPlan {
                    gang: gang.name.clone(),
                    gang_uid: gang.uid.clone(),
                    term: words.number("term", 1),
                    binding_deadline: self.now + Millis::from_seconds(60),
                    purpose: PlanPurpose::Bind,
                    victims: Vec::new(),
                    pods: words.plain[2..].iter().map(|place| self.planned(place)).collect(),
                };
                if self.plans.get(&plan.gang).is_none_or(|stored| stored.term <= plan.term) {
                    self.plans.insert(plan.gang.clone(), plan.clone());
                    self.apply(Event::PlanFound(plan));
                }
            }
            "old-arm" => {
                // Its lease, as an agent has it that obeys the earlier leader.
                let planned = self.planned(words.plain[1]);
                let (lease, pod) = (planned.lease.unwrap(), self.pods[&planned.pod].clone());
                let request = LeaseRequest {
                    pod: planned.pod,
                    pod_name: pod.name,
                    gang: pod.gang,
                    request: pod.request,
                    devices: vec![ContainerDevices {
                        container: "main".into(),
                        gpus: planned.gpus,
                        nics: Vec::new(),
                    }],
                    exactness: Exactness::Exact,
                    run_for: None,
                };
                let is_started = words.plain.contains(&"started");
                let state = if is_started { LeaseState::Started } else { LeaseState::Armed };
                let report = LeaseReport { lease, state, request };
                self.agents.get_mut(&planned.node).unwrap().leases.insert(lease, report);
            }
            "old-bind" => {
                // The earlier leader binds a pod: with the resourceVersion that it knows, fenced or not.
                let planned = self.planned(words.plain[1]);
                let version = self.pods[&planned.pod].resource_version;
                let binding = PodBinding { node: planned.node, lease: planned.lease, gpus: planned.gpus };
                let name = name(&planned.name);
                self.late_bindings.insert(name.clone(), (planned.pod, version, binding));
                if !words.plain.contains(&"later") {
                    self.late_bind(&name);
                }
            }
            "bind-by-hand" => {
                // Neither lease nor term: somebody who is no coordinator.
                let uid = self.uid(words.plain[1]);
                self.touch(&uid);
                let node = words.plain[2].into();
                let stored = self.pods.get_mut(&uid).unwrap();
                stored.binding = Some(PodBinding { node, lease: None, gpus: Vec::new() });
                stored.phase = PodPhase::Running;
                self.apply_stored(&uid);
            }
            "pod-term" => {
                // A leader writes its term onto a pod.
                let uid = self.uid(words.plain[1]);
                self.touch(&uid);
                self.pods.get_mut(&uid).unwrap().term = words.plain[2].parse().unwrap();
                self.apply_stored(&uid);
            }
            "status-is" => {
                // Somebody else writes the status of a PodGroup.
                let mut spec = self.gangs.get(&name(words.plain[1])).unwrap().clone();
                spec.shown = Some(ShownGang {
                    phase: words.plain[2].into(),
                    reason: words.options.get("reason").map(|code| Arc::from(*code)),
                    running: words.number("running", 0),
                    succeeded: words.number("succeeded", 0),
                    failed: words.number("failed", 0),
                });
                self.apply(Event::GangApplied(spec));
            }
            "queue-status-is" => {
                // Somebody else writes the status of a queue.
                let mut spec = self.queues.get(&QueueName::from(words.plain[1])).unwrap().clone();
                let (gpus, amount) = resource("gpu", words.options.get("gpus").copied().unwrap_or("0"));
                let mut allocated = Resources::new();
                if amount > 0 {
                    allocated.set(gpus, amount);
                }
                spec.shown = Some(ShownQueue {
                    allocated,
                    reservation: Resources::new(),
                    pending: words.number("pending", 0),
                    inqueue: words.number("inqueue", 0),
                    running: words.number("running", 0),
                    completed: words.number("completed", 0),
                });
                self.apply(Event::QueueApplied(spec));
            }
            "plans" => {
                let line = |plan: &GangPlan| format!("{} of term {}\n", plan.gang.name, plan.term);
                self.out = self.plans.values().map(line).collect();
            }
            "bind-faults" => {
                self.bind_faults = words.plain[1..].iter().map(|word| (*word).to_owned()).collect()
            }
            "reads-are-late" => self.late_reads = Some(Vec::new()),
            "reads-arrive" => {
                for event in self.late_reads.take().unwrap() {
                    self.apply(event);
                }
            }
            "fences" => {
                self.fences = match words.plain[1] {
                    "work" => None,
                    "refused" => Some(Outcome::Refused("a webhook said no".into())),
                    "unknown" => Some(Outcome::Unknown),
                    // The write was done, and what it shows is no pod of ours any more.
                    "of-no-gang" => Some(Outcome::Done),
                    other => panic!("unknown outcome {other}"),
                };
            }
            "terms" => {
                let line = |pod: &PodSpec| format!("{} {}\n", pod.name.name, pod.term);
                self.out = self.pods.values().map(line).collect();
            }
            "store-fails" => self.store_fails = true,
            "store-works" => self.store_fails = false,
            "state" => self.print_state(),
            "nodes" => self.print_nodes(),
            "used" => self.print_used(),
            "why" => {
                let explanation = self.core.explain(&name(words.plain[1])).expect("known gang");
                self.out = explanation.lines.join("\n") + "\n";
            }
            "evictions" => self.out = format!("{}\n", self.evictions),
            other => assert!(self.policy_command(&words), "unknown command {other}"),
        }
        std::mem::take(&mut self.out)
    }

    /// Why a gang waits.
    #[allow(dead_code, reason = "one of the tests that share this file asks")]
    pub fn reason(&self, gang: &str) -> Option<Reason> {
        self.core.explain(&name(gang))?.gang.reason.map(|view| view.reason)
    }

    /// Phase of a gang.
    #[allow(dead_code, reason = "one of the tests that share this file asks")]
    pub fn phase(&self, gang: &str) -> String {
        self.core
            .explain(&name(gang))
            .map(|explanation| explanation.gang.phase.to_string())
            .unwrap_or_default()
    }

    /// What an earlier leader planned for a pod, `POD@NODE:GPU`.
    fn planned(&self, place: &str) -> PlannedPod {
        let (pod, place) = place.split_once('@').unwrap();
        let (node, gpu) = place.split_once(':').unwrap();
        let gpu = gpu.parse().unwrap();
        PlannedPod {
            pod: self.uid(pod),
            name: pod.into(),
            node: node.into(),
            lease: Some(LeaseId { term: 1, serial: 900 + gpu as u64 }),
            gpus: vec![gpu_id(node, gpu)],
        }
    }

    /// A Binding of a dead coordinator reaches the API at last.
    fn late_bind(&mut self, pod: &GangName) {
        let (uid, version, binding) = self.late_bindings.remove(pod).unwrap();
        let stored = self.pods.get(&uid);
        let fits =
            stored.is_some_and(|stored| stored.resource_version == version && stored.binding.is_none());
        if fits {
            self.touch(&uid);
            self.pods.get_mut(&uid).unwrap().binding = Some(binding);
            self.apply_stored(&uid);
        }
        let what = if fits { "binds its pod" } else { "meets a conflict" };
        writeln!(self.out, "the late Binding of {} {what}", pod.name).unwrap();
    }

    /// Performs the first action that waits, and prints it.
    /// Performs the next action, and the statuses that stand before it: when those are written moves no gang.
    fn step(&mut self) {
        self.manual = true;
        self.cycle();
        while let Some(action) = self.queue.pop_front() {
            let line = self.describe(&action);
            writeln!(self.out, "{line}").unwrap();
            let is_status =
                matches!(action.command, Command::SetGangStatus { .. } | Command::SetQueueStatus { .. });
            self.perform(action);
            self.cycle();
            if !is_status {
                break;
            }
        }
    }

    fn advance(&mut self, seconds: u64) {
        let target = Time(seconds * 1000);
        loop {
            let ending = self.endings.next().filter(|at| *at <= target);
            let deadline = self.core.next_deadline().map(|(at, _)| at).filter(|at| *at <= target);
            let Some(at) = ending.into_iter().chain(deadline).min() else { break };
            self.now = self.now.max(at);
            self.end_due();
            self.settle(true);
        }
        self.now = target;
        self.settle(true);
    }

    fn make_node(&mut self, words: &Words<'_>) {
        let node = words.plain[1];
        let count: usize = words.plain[2].trim_end_matches('G').parse().unwrap();
        let nvlinks = u8::try_from(words.number("nvlinks", 12)).unwrap();
        let model = words.options.get("model").copied().unwrap_or("H100");
        let link = |first: usize, second: usize| {
            let pcie = match (first == second, first / 2 == second / 2, first / 4 == second / 4) {
                (true, _, _) => PcieLevel::Pix,
                (_, true, _) => PcieLevel::Pxb,
                (_, _, true) => PcieLevel::Node,
                _ => PcieLevel::Sys,
            };
            GpuLink { nvlinks: if first == second { 0 } else { nvlinks }, pcie }
        };
        let inventory = Inventory {
            state: ProbeState::Ready,
            driver: "580.82".into(),
            cpu_milli: words.number("cpu", 1000) * 1000,
            memory_bytes: words.number("memory-gib", 10_000) << 30,
            gpus: (0..count)
                .map(|at| Gpu {
                    id: gpu_id(node, at),
                    index: u32::try_from(at).unwrap(),
                    model: model.into(),
                    memory_mib: Some(81_559),
                    pci_bus_id: format!("0000:{at:02x}:00.0"),
                    numa: Some(u32::try_from(at / 4).unwrap()),
                    health: GpuHealth::Healthy,
                })
                .collect(),
            links: (0..count).map(|first| (0..count).map(|second| link(first, second)).collect()).collect(),
            nics: Vec::new(),
        };
        let node = NodeName::from(node);
        self.agents.insert(node.clone(), Agent { inventory: Some(inventory), ..Agent::default() });
        if self.settings.kubelet_stops_pods && words.options.get("object") != Some(&"no") {
            // Its kubelet has registered.
            self.make_plain_node(&Words {
                plain: vec!["plain-node", words.plain[1]],
                options: BTreeMap::new(),
            });
        }
        self.connect(&node);
    }

    fn make_plain_node(&mut self, words: &Words<'_>) {
        let node = words.plain[1];
        let mut spec = NodeSpec {
            name: node.into(),
            labels: BTreeMap::new(),
            allocatable: Resources::new(),
            unschedulable: false,
            taints: Vec::new(),
            ready: true,
        };
        for (key, value) in &words.options {
            if let Some(label) = key.strip_prefix("label-") {
                spec.labels.insert(Arc::from(label), Arc::from(*value));
            } else if !constrained::of_node(&mut spec, key, value) {
                let (name, amount) = resource(key, value);
                spec.allocatable.set(name, amount);
            }
        }
        self.nodes.insert(spec.name.clone(), spec.clone());
        self.apply(Event::NodeApplied(spec));
    }

    /// A pod that is none of ours, on a node: `other NODE POD gpu=4 cpu=2`.
    fn make_other(&mut self, words: &Words<'_>) {
        let mut request = Resources::new();
        for (key, value) in
            words.options.iter().filter(|(key, _)| !matches!(**key, "scheduler" | "ports" | "claims"))
        {
            let (name, amount) = resource(key, value);
            request.set(name, amount);
        }
        let pod = OtherPod {
            uid: PodUid::from(words.plain[2]),
            node: words.plain[1].into(),
            scheduler: words.options.get("scheduler").copied().unwrap_or("default-scheduler").into(),
            request,
            host_ports: constrained::constraints(words).host_ports,
            mounts: claims::mounts(words),
        };
        self.others.insert(pod.uid.clone(), pod.clone());
        self.apply(Event::OtherPodApplied(Box::new(pod)));
    }

    fn make_queue(&mut self, words: &Words<'_>) {
        let spec = policy::queue(words);
        self.queues.insert(spec.name.clone(), spec.clone());
        self.apply(Event::QueueApplied(spec));
    }

    fn make_gang(&mut self, words: &Words<'_>) {
        let gang = words.plain[1];
        let tasks: Vec<(&str, u32, &str)> = words.plain[2..]
            .iter()
            .map(|word| {
                let (task, shape) = word.split_once(':').unwrap_or(("worker", word));
                let (count, gpus) = shape.split_once('x').unwrap();
                (task, count.parse().unwrap(), gpus.trim_end_matches('G'))
            })
            .collect();
        let total: u32 = tasks.iter().map(|(_, count, _)| count).sum();
        let priority_class = words.options.get("prio").map(|value| {
            let class = PriorityClassSpec {
                name: format!("p{value}").into(),
                value: value.parse().unwrap(),
                global_default: false,
                preempts: true,
            };
            self.classes.insert(class.name.clone(), class.clone());
            self.apply(Event::PriorityClassApplied(class.clone()));
            class.name
        });
        self.next_uid += 1;
        let spec = GangSpec {
            name: name(gang),
            uid: format!("uid-{gang}-{}", self.next_uid).into(),
            created: self.now,
            queue: words.options.get("q").copied().unwrap_or("default").into(),
            min_member: u32::try_from(words.number("min", u64::from(total))).unwrap(),
            min_task_member: minima(words).collect(),
            min_resources: min_resources(words),
            priority_class: words.options.get("class").map(|class| Arc::from(*class)).or(priority_class),
            mixed_gpu_models: words.options.get("mixed") == Some(&"yes"),
            policy: policy::of_gang(words),
            shown: None,
        };
        self.statuses.remove(&spec.name);
        self.gangs.insert(spec.name.clone(), spec.clone());
        self.apply(Event::GangApplied(spec));
        for (task, count, gpus) in tasks {
            for index in 0..count {
                let pod = if task == "worker" {
                    format!("{gang}-{index}")
                } else {
                    format!("{gang}-{task}-{index}")
                };
                self.make_pod(gang, &pod, task, gpus, words);
            }
        }
    }

    /// A pod that names no PodGroup: `lone POD 1G`. Its gang is called `podgroup-POD`.
    fn make_lone(&mut self, words: &Words<'_>) {
        let (pod, gpus) = (words.plain[1], words.plain[2].trim_end_matches('G'));
        let (uid, gang) = (PodUid::from(format!("{pod}-{}", self.next_uid + 1)), format!("podgroup-{pod}"));
        let group = GangSpec {
            name: name(&gang),
            uid: GangSpec::lone_pod_uid(&uid),
            created: self.now,
            queue: words.options.get("q").copied().unwrap_or("default").into(),
            min_member: 1,
            min_task_member: BTreeMap::new(),
            min_resources: None,
            priority_class: None,
            mixed_gpu_models: false,
            policy: Default::default(),
            shown: None,
        };
        self.lone.insert(uid, group);
        self.make_pod(&gang, pod, "worker", gpus, words);
    }

    /// Its PodGroup, `group-of POD min=1 named=no`: made now, and named by the pod unless that is left out.
    fn make_group_of(&mut self, words: &Words<'_>) {
        let uid = self.uid(words.plain[1]);
        let gang = self.pods[&uid].gang.clone();
        let made = || {
            let group_uid = format!("uid-{}", gang.name).into();
            GangSpec { uid: group_uid, created: self.now, ..self.lone[&uid].clone() }
        };
        let mut group = self.gangs.get(&gang).cloned().unwrap_or_else(made);
        group.min_member = u32::try_from(words.number("min", 1)).unwrap();
        self.gangs.insert(gang, group.clone());
        self.apply(Event::GangApplied(group));
        if words.options.get("named") != Some(&"no") {
            self.lone.remove(&uid);
            self.touch(&uid);
            self.apply_stored(&uid);
        }
    }

    fn make_pod(&mut self, gang: &str, pod: &str, task: &str, gpus: &str, words: &Words<'_>) {
        self.next_version += 1;
        self.next_uid += 1;
        let mut requests = Resources::new();
        for (key, value) in [("gpu", Some(gpus)), ("cpu", words.options.get("cpu").copied())] {
            if let Some(value) = value.filter(|value| *value != "0") {
                let (name, amount) = resource(key, value);
                requests.set(name, amount);
            }
        }
        // `example.com/dpu=1` of every pod, `ps:example.com/dpu=1` of those of one task.
        let is_resource = |key: &str| key.contains('/') || matches!(key, "memory" | "ephemeral-storage");
        for (key, value) in words.options.iter().filter(|(key, _)| is_resource(key)) {
            let (of, key) = key.split_once(':').unwrap_or((task, key));
            if of == task {
                let (name, amount) = resource(key, value);
                requests.set(name, amount);
            }
        }
        let selector = words.options.get("selector").and_then(|text| text.split_once(':'));
        let blocker = words.options.get("blocker").and_then(|text| text.split_once(':'));
        let spec = PodSpec {
            uid: format!("{pod}-{}", self.next_uid).into(),
            name: name(pod),
            gang: name(gang),
            task: task.into(),
            request: constrained::request(words, requests),
            node_selector: selector
                .into_iter()
                .map(|(key, value)| (Arc::from(key), Arc::from(value)))
                .collect(),
            group_uid: Default::default(),
            policy: policy::of_pod(words, task, self.now),
            constraints: Arc::new(constrained::constraints(words)),
            claims: claims::of_pod(words, pod),
            blockers: blocker
                .into_iter()
                .map(|(field, message)| Blocker {
                    field: field.into(),
                    message: message.replace('_', " ").into(),
                })
                .collect(),
            run_for: None,
            resource_version: self.next_version,
            phase: PodPhase::Pending,
            binding: None,
            deleting: false,
            term: 0,
        };
        let event = self.pod_event(&spec);
        self.pods.insert(spec.uid.clone(), spec);
        self.apply(event);
    }

    fn uid(&self, pod: &str) -> PodUid {
        let found = self.pods.values().find(|known| &*known.name.name == pod);
        found.unwrap_or_else(|| panic!("no pod {pod}")).uid.clone()
    }

    fn end(&mut self, gangs: &[&str]) {
        for gang in gangs {
            let uids: Vec<PodUid> = self
                .pods
                .values()
                .filter(|pod| (pod.gang == name(gang) || pod.name == name(gang)) && pod.binding.is_some())
                .map(|pod| pod.uid.clone())
                .collect();
            assert!(!uids.is_empty(), "nothing of {gang} runs");
            for uid in uids {
                self.touch(&uid);
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.phase = PodPhase::Succeeded;
                }
                self.apply_stored(&uid);
            }
        }
    }

    fn delete_gang(&mut self, gang: &str) {
        self.gangs.remove(&name(gang));
        self.statuses.remove(&name(gang));
        self.apply(Event::GangDeleted(name(gang)));
        let of_gang = self.pods.values().filter(|pod| pod.gang == name(gang));
        let uids: Vec<PodUid> = of_gang.map(|pod| pod.uid.clone()).collect();
        for uid in uids {
            self.delete_pod(&uid);
        }
    }

    fn change_agent(&mut self, words: &Words<'_>) {
        let node = NodeName::from(words.plain[1]);
        match words.plain[2] {
            "silent" => self.agents.get_mut(&node).unwrap().silent = true,
            "led-by" => {
                let (counter, incarnation) = words.plain[3].split_once('.').unwrap();
                let (counter, incarnation) = (counter.parse().unwrap(), incarnation.parse().unwrap());
                self.agents.get_mut(&node).unwrap().led_by = Some(Term { counter, incarnation });
            }
            "answers" => self.agents.get_mut(&node).unwrap().silent = false,
            "disk-full" | "disk-well" => {
                self.agents.get_mut(&node).unwrap().disk_full = words.plain[2] == "disk-full";
            }
            "refuses" => {
                let agent = self.agents.get_mut(&node).unwrap();
                agent.refuse = words.plain[3].parse().unwrap();
                agent.cause = words.options.get("cause").map(|text| cause(text, words.plain[1]));
            }
            "finds-gpus" => {
                // All of its GPUs are well again, by a message that says so.
                let agent = self.agents.get_mut(&node).unwrap();
                let gpus = &mut agent.inventory.as_mut().unwrap().gpus;
                gpus.iter_mut().for_each(|gpu| gpu.health = GpuHealth::Healthy);
                let gpus = gpus.iter().map(|gpu| (gpu.id, GpuHealth::Healthy)).collect();
                let (session, message) = (agent.session, Box::new(FromAgent::HealthChanged { gpus }));
                self.apply(Event::AgentSaid { node, session, message });
            }
            "stalls" => self.agents.get_mut(&node).unwrap().stalls = true,
            "goes-on" => self.agents.get_mut(&node).unwrap().stalls = false,
            "most-leases" => {
                self.agents.get_mut(&node).unwrap().most_leases = Some(words.plain[3].parse().unwrap());
            }
            "gone" => {
                let agent = self.agents.get_mut(&node).unwrap();
                agent.connected = false;
                let session = agent.session;
                self.apply(Event::AgentGone { node, session });
            }
            "back" => self.connect(&node),
            "loses-leases" => self.agents.get_mut(&node).unwrap().leases.clear(),
            "forgets" => {
                // A restart of the agent: what was only promised is lost.
                let agent = self.agents.get_mut(&node).unwrap();
                agent.leases.retain(|_, report| report.state != LeaseState::Reserved);
                self.connect(&node);
            }
            "blind" | "sees" => {
                // The driver goes away, or comes back: the inventory loses its GPUs, or has them again.
                let agent = self.agents.get_mut(&node).unwrap();
                let mut inventory = agent.inventory.clone().unwrap();
                if words.plain[2] == "blind" {
                    (inventory.gpus, inventory.links) = (Vec::new(), Vec::new());
                    inventory.state = ProbeState::NoLibrary("libnvidia-ml.so.1 cannot be loaded".into());
                }
                let (session, message) = (agent.session, Box::new(FromAgent::Inventory(inventory)));
                self.apply(Event::AgentSaid { node, session, message });
            }
            "reboots" => {
                // The indexes come in the reverse order; the UUIDs stay what they were.
                let agent = self.agents.get_mut(&node).unwrap();
                agent.inventory.as_mut().unwrap().gpus.reverse();
                for (at, gpu) in agent.inventory.as_mut().unwrap().gpus.iter_mut().enumerate() {
                    gpu.index = u32::try_from(at).unwrap();
                }
                agent.leases.retain(|_, report| report.state != LeaseState::Reserved);
                self.connect(&node);
            }
            "swaps-board" => {
                // After the boot the agent finds that a lease names a UUID that is gone, and drops it.
                let old = gpu_id(words.plain[1], words.plain[3].parse().unwrap());
                let agent = self.agents.get_mut(&node).unwrap();
                let gpus = &mut agent.inventory.as_mut().unwrap().gpus;
                gpus.iter_mut().find(|gpu| gpu.id == old).unwrap().id = GpuId(old.0 | 0x80);
                agent.leases.retain(|_, report| !report.request.gpus().contains(&old));
                self.connect(&node);
            }
            "loses-gpu" => {
                let at: usize = words.plain[3].parse().unwrap();
                let agent = self.agents.get_mut(&node).unwrap();
                let gpu = &mut agent.inventory.as_mut().unwrap().gpus[at];
                gpu.health = GpuHealth::Lost;
                let (session, id) = (agent.session, gpu.id);
                let message = Box::new(FromAgent::HealthChanged { gpus: vec![(id, GpuHealth::Lost)] });
                self.apply(Event::AgentSaid { node, session, message });
            }
            other => panic!("unknown change {other}"),
        }
    }

    fn print_state(&mut self) {
        for gang in self.core.view().gangs {
            let pods: Vec<String> = gang
                .pods
                .iter()
                .map(|pod| {
                    let gpus: Vec<String> = pod.gpus.iter().map(|gpu| (gpu.0 & 0xff).to_string()).collect();
                    let node = pod.node.as_ref().map_or("-", NodeName::as_str);
                    let class = pod.link_class.map_or(String::new(), |class| format!(" {class}"));
                    format!("{}@{node}[{}]{class}", pod.name, gpus.join(","))
                })
                .collect();
            writeln!(self.out, "{} {}: {}", gang.name.name, gang.phase, pods.join(" ")).unwrap();
            if let Some(reason) = gang.reason {
                writeln!(self.out, "  reason: {}", reason.text).unwrap();
                if !reason.fix.is_empty() {
                    writeln!(self.out, "  fix: {}", reason.fix).unwrap();
                }
            }
        }
    }

    fn print_nodes(&mut self) {
        for node in self.core.view().nodes {
            writeln!(self.out, "{} {} free: {}", node.name, node.state, node.free).unwrap();
        }
    }

    fn print_used(&mut self) {
        let view = self.core.view();
        let held =
            |node: &phalanx_core::view::NodeView| node.gpus.iter().filter(|gpu| gpu.holder.is_some()).count();
        let used: usize = view.nodes.iter().map(held).sum();
        let all: usize = view.nodes.iter().map(|node| node.gpus.len()).sum();
        let whole = view.nodes.iter().filter(|node| held(node) == 0).count();
        let running = |big: bool| {
            view.gangs.iter().filter(|gang| &*gang.phase == "running" && (gang.pods.len() > 1) == big).count()
        };
        let finished = view.gangs.iter().filter(|gang| &*gang.phase == "finished").count();
        let waiting = view.gangs.iter().filter(|gang| matches!(&*gang.phase, "queued" | "admitted")).count();
        writeln!(
            self.out,
            "{used}/{all} used, {whole} whole nodes idle, {} gangs and {} singles running, {waiting} waiting, {finished} finished",
            running(true),
            running(false)
        )
        .unwrap();
    }
}
