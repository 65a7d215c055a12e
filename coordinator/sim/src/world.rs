//! The world: virtual time, everything that is due, and the order in which it happens.

use std::collections::BTreeMap;

use phalanx_common::ids::{GpuId, NodeName, PodUid};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_coordinator::api::faults::{Call, Fault as ApiFault, FaultPlan};
use phalanx_core::Settings;
use phalanx_core::event::Event;

use crate::agent::Host;
use crate::checkers::heal::healed_within;
use crate::checkers::liveness::is_done;
use crate::checkers::{Checkers, End};
use crate::coordinator::{Flight, Lane, Process};
use crate::coverage::api_fault_name;
use crate::facts::Facts;
use crate::fake_api::FakeApi;
use crate::faults::Cut;
use crate::log::Log;
use crate::network::Link;
use crate::options::{Options, Rates};
use crate::random::Random;
use crate::recording::Recordings;
use crate::workload::{Step, Workload};

/// After the faults stop: pods that would run for ever are deleted at this distance.
const LAST_DELETIONS_MS: Millis = Millis(5_000);
/// The same where it is looked at whether all settles before.
const SETTLES_MS: Millis = Millis(900_000);
/// Slack for deadlines, retries and quarantines beyond the work itself.
const SLACK_MS: u64 = 400_000;
/// At the end nothing may happen for so long.
const QUIET_MS: u64 = 60_000;
/// Time for the last statuses before the quiet begins.
const CALM_MS: u64 = 30_000;
/// More steps than any sane run takes: a loop without progress in time.
const MOST_STEPS: u64 = 60_000;

/// Something that is due.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A user does something.
    User(Step),
    /// The coordinator starts.
    CoordinatorStarts,
    /// The coordinator's core does a pass: facts came in, or a deadline is here.
    Pass { incarnation: u64 },
    /// The coordinator reads changes for its core.
    Feed { incarnation: u64 },
    /// The coordinator's stand-in for the kubelet looks at pods and jobs.
    Look { incarnation: u64 },
    /// A call of the coordinator reaches the API.
    CallLands { flight: u64 },
    /// The answer to a call is there.
    Answer { incarnation: u64, lane: Lane, event: Option<Box<Event>> },
    /// An agent starts.
    AgentStarts { node: NodeName },
    /// An agent tries to connect.
    Dial { node: NodeName, life: u64 },
    /// A ledger was written, or not.
    Written { node: NodeName, life: u64, revision: u64 },
    /// A deadline of the agent's core.
    Tick { node: NodeName, life: u64 },
    /// A pod's time is over, or it has stopped.
    PodOver { node: NodeName, run: u64, stopped: bool },
    /// The agent hears of it.
    PodTold { node: NodeName, life: u64, pod: PodUid, stopped: bool },
    /// A message arrives.
    ToAgent { link: u64, message: Box<ToAgent> },
    /// A message arrives.
    ToCoordinator { link: u64, message: Box<FromAgent> },
    /// The agent notices that a connection is gone.
    AgentNotices { link: u64 },
    /// The coordinator notices that a connection is gone.
    CoordinatorNotices { link: u64 },
    /// Another coordinator takes the place of one that is silent.
    TakeOver { incarnation: u64 },
    /// A coordinator that was replaced notices it.
    LearnsOfLoss { incarnation: u64 },
    /// The driver of a machine tells of its GPUs again.
    DriverIsBack { node: NodeName },
    /// A GPU is as it was.
    GpuBack { node: NodeName, gpu: GpuId },
    /// From now on nothing goes wrong.
    FaultsStop,
    /// The users take back what they left incomplete.
    Tidy,
    /// Nothing but a moment at which the end is looked at.
    Moment,
}

/// A run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The checker, or `coordinator-core` and `agent-core` for the machines' own invariants.
    pub checker: &'static str,
    /// When, in milliseconds of virtual time.
    pub at_ms: u64,
    /// What is wrong.
    pub message: String,
}

/// How a run ended.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
    /// Hash of the log.
    pub log_hash: u64,
    /// The log, where it was kept.
    pub lines: Vec<String>,
    /// What was reached, and how often.
    pub counts: BTreeMap<String, u64>,
    /// Steps done.
    pub steps: u64,
    /// Actions and writes that coordinators came to while faults happen.
    pub actions: u64,
    /// What the coordinators did, one after the other, as `phalanx-coordinator replay` reads it; where it was asked for.
    pub recording: Vec<u8>,
}

/// Everything.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rates: Rates,
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    pub(crate) log: Log,
    pub(crate) recordings: Recordings,
    pub(crate) facts: Facts,
    pub(crate) api: FakeApi,
    /// The coordinator's processes, by incarnation: the last one leads, others do not know yet that they do not.
    pub(crate) processes: BTreeMap<u64, Process>,
    /// Actions and writes that coordinators came to while faults happen, and before which of them one crashes.
    pub(crate) actions_done: u64,
    pub(crate) crash_at_action: Option<u64>,
    pub(crate) hosts: BTreeMap<NodeName, Host>,
    pub(crate) links: BTreeMap<u64, Link>,
    pub(crate) flights: BTreeMap<u64, Flight>,
    /// The newest coordinator that fenced a pod, and was told that the pod is not bound.
    pub(crate) fenced: BTreeMap<PodUid, u64>,
    pub(crate) failure: Option<Failure>,
    pub(crate) faults: bool,
    /// Leases or runs changed since the checkers looked.
    pub(crate) is_changed: bool,
    /// Calls that reached the API and wrote something.
    pub(crate) writes: u64,
    due: BTreeMap<(Time, u64), Happening>,
    serial: u64,
    checkers: Checkers,
    last: Vec<Step>,
    /// When those are done.
    pub(crate) last_at: Time,
    leftovers: Vec<Step>,
    /// Steps of users that are still due.
    pub(crate) users_left: usize,
    /// When users last took something back.
    pub(crate) tidied_at: Time,
    pub(crate) work_ms: u64,
    pub(crate) faults_stop: Time,
    /// Nodes that cannot be reached, or cannot reach anybody.
    pub(crate) cuts: BTreeMap<NodeName, Cut>,
    pub(crate) api_away_until: Time,
}

/// Runs a seed to its end.
#[must_use]
pub fn run(options: Options) -> Report {
    #[cfg(feature = "planted-bugs")]
    let _planted = options.bug.map(phalanx_common::planted::plant);
    let mut world = World::new(options);
    let steps = world.run();
    world.count_moves();
    if world.api.watch_gaps > 0 {
        world.log.count_more(api_fault_name(&ApiFault::WatchGap), world.api.watch_gaps);
    }
    Report {
        seed: options.seed,
        failure: world.failure,
        log_hash: world.log.hash(),
        lines: world.log.lines().to_vec(),
        counts: world.log.counts,
        steps,
        actions: world.actions_done,
        recording: world.recordings.text(),
    }
}

/// The policy's numbers of a run: short times, so that all of them pass.
fn settings(random: &mut Random) -> Settings {
    let binding_deadline_ms = Millis::from_seconds(random.pick(&[12, 30, 120]).copied().unwrap_or(120));
    Settings {
        binding_deadline_ms,
        preempt: random.per_mille(850),
        reclaim: random.per_mille(850),
        hold_after_ms: Millis::from_seconds(random.pick(&[2, 5, 10, 20, 300]).copied().unwrap_or(5)),
        victim_timeout_ms: Millis::from_seconds(random.between(3, 15)),
        ..Settings::default()
    }
}

impl World {
    fn new(options: Options) -> Self {
        let mut random = Random::new(options.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
        let drawn = Rates::drawn(&mut random);
        let rates = options.rates.unwrap_or(drawn);
        let faults_stop = Time(random.between(40, 90) * 1000);
        let workload = Workload::drawn(&mut random, faults_stop.0);
        let chosen = options.rates.is_none() && random.per_mille(120);
        let crash_at_action = if chosen { Some(random.between(1, 400)) } else { options.crash_at_action };
        let settings = settings(&mut random);
        let binding_deadline_ms = settings.binding_deadline_ms;
        // In some runs what runs for ever goes on for a while, and everything settles around it.
        let last_after = if random.per_mille(200) { SETTLES_MS } else { LAST_DELETIONS_MS };
        // Two clocks, each of them set wrong, and fast or slow for all of a run.
        let clock_slack_ms = 2 * (rates.clock_skew_ms + u64::from(rates.clock_drift) * 400);
        let degraded_grace_ms = settings.degraded_grace_ms.unwrap_or(Millis(u64::MAX));
        let mut world = Self {
            now: Time(0),
            rates,
            settings,
            api: FakeApi::new(FaultPlan::seeded(random.bits(), rates.api)),
            random,
            log: Log::new(options.trace),
            recordings: Recordings::new(options.record),
            facts: Facts { binding_deadline_ms, degraded_grace_ms, clock_slack_ms, ..Facts::default() },
            processes: BTreeMap::new(),
            actions_done: 0,
            crash_at_action,
            hosts: BTreeMap::new(),
            links: BTreeMap::new(),
            flights: BTreeMap::new(),
            fenced: BTreeMap::new(),
            failure: None,
            faults: true,
            is_changed: true,
            writes: 0,
            due: BTreeMap::new(),
            serial: 0,
            checkers: Checkers::default(),
            users_left: workload.steps.len() + workload.last.len() + workload.leftovers.len(),
            last: workload.last,
            last_at: faults_stop + last_after,
            leftovers: workload.leftovers,
            tidied_at: Time(0),
            work_ms: workload.work_ms,
            faults_stop,
            cuts: BTreeMap::new(),
            api_away_until: Time(0),
        };
        for object in workload.first {
            world.user(Step::Create(Box::new(object)));
        }
        for machine in workload.machines {
            let name = machine.name.clone();
            let rate = world.draw_rate();
            world.hosts.insert(name.clone(), Host::new(machine, rate));
            let delay = world.random.between(0, 2000);
            world.after(delay, Happening::AgentStarts { node: name });
        }
        world.after(10, Happening::CoordinatorStarts);
        world.after(faults_stop.0, Happening::FaultsStop);
        for (at, step) in workload.steps {
            world.after(at.0, Happening::User(step));
        }
        world
    }

    /// Makes something happen after so many milliseconds.
    pub(crate) fn after(&mut self, delay_ms: u64, happening: Happening) {
        self.serial += 1;
        self.due.insert((Time(self.now.0 + delay_ms), self.serial), happening);
    }

    /// A number of its own: of a connection, a flight, a run.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// True in so many of 1000 cases, while faults happen at all.
    pub(crate) fn goes_wrong(&mut self, rate: u32) -> bool {
        self.faults && self.random.per_mille(rate)
    }

    /// Something is wrong: the run ends.
    pub(crate) fn fail(&mut self, checker: &'static str, message: String) {
        if self.failure.is_none() {
            self.failure = Some(Failure { checker, at_ms: self.now.0, message });
        }
    }

    fn run(&mut self) -> u64 {
        let mut steps = 0;
        let mut quiet_from: Option<(Time, u64)> = None;
        while self.failure.is_none() {
            let Some(((at, _), happening)) = self.due.pop_first() else { break };
            self.now = at;
            steps += 1;
            if let Some(until) = self.paused_until(&happening) {
                self.after((until - at).0, happening);
                continue;
            }
            self.step(happening);
            self.check();
            if steps > MOST_STEPS {
                self.fail("liveness", format!("{MOST_STEPS} steps and no end"));
            }
            if self.faults || self.failure.is_some() {
                continue;
            }
            let deadline = Time(self.last_at.0 + self.work_ms + SLACK_MS);
            let is_over = self.now >= deadline || (self.users_left == 0 && is_done(&self.facts));
            if self.tidied_at == self.now {
                quiet_from = None;
            }
            match quiet_from {
                None if is_over => {
                    // Whoever is away comes back first.
                    let calm = CALM_MS + self.rates.away_ms;
                    quiet_from = Some((Time(self.now.0 + calm), 0));
                    self.after(calm, Happening::Moment);
                    self.after(calm + QUIET_MS, Happening::Moment);
                }
                Some((from, _)) if self.now >= from && !is_over => quiet_from = None,
                Some((from, _)) if self.now >= from + Millis(QUIET_MS) => break,
                Some((from, 0)) if self.now >= from => quiet_from = Some((from, self.writes.max(1))),
                None | Some(_) => {}
            }
        }
        if self.failure.is_none() {
            let writes_before = quiet_from.map_or(0, |(_, writes)| writes);
            self.check_end(self.writes.saturating_sub(writes_before));
        }
        steps
    }

    fn step(&mut self, happening: Happening) {
        match happening {
            Happening::User(step) => {
                self.users_left = self.users_left.saturating_sub(1);
                self.user(step);
            }
            Happening::CoordinatorStarts => self.start_coordinator(),
            Happening::Pass { incarnation } => self.pass(incarnation),
            Happening::Feed { incarnation } => self.feed(incarnation),
            Happening::Look { incarnation } => self.look(incarnation),
            Happening::CallLands { flight } => self.call_lands(flight),
            Happening::Answer { incarnation, lane, event } => {
                self.answer(incarnation, &lane, event.map(|event| *event));
            }
            Happening::AgentStarts { node } => self.start_agent(&node),
            Happening::Dial { node, life } => self.dial(&node, life),
            Happening::Written { node, life, revision } => self.written(&node, life, revision),
            Happening::Tick { node, life } => self.tick(&node, life),
            Happening::PodOver { node, run, stopped } => self.pod_over(&node, run, stopped),
            Happening::PodTold { node, life, pod, stopped } => self.pod_told(&node, life, pod, stopped),
            Happening::ToAgent { link, message } => self.reach_agent(link, *message),
            Happening::ToCoordinator { link, message } => self.reach_coordinator(link, *message),
            Happening::AgentNotices { link } => self.agent_notices(link),
            Happening::CoordinatorNotices { link } => self.coordinator_notices(link),
            Happening::TakeOver { incarnation } => self.take_over(incarnation),
            Happening::LearnsOfLoss { incarnation } => self.learn_of_loss(incarnation),
            Happening::DriverIsBack { node } => self.read_hardware(&node),
            Happening::GpuBack { node, gpu } => self.gpu_back(&node, gpu),
            Happening::FaultsStop => self.stop_faults(),
            Happening::Tidy => self.tidy(),
            Happening::Moment => {}
        }
        self.disturb();
    }

    /// Nothing goes wrong any more. Connections of the bad time end, as streams do that lost something.
    fn stop_faults(&mut self) {
        self.faults = false;
        self.facts.is_calm = true;
        self.api.faults.stop();
        self.log.line(self.now, format_args!("faults stop"));
        let links: Vec<u64> = self.hosts.values().filter_map(|host| host.link).collect();
        for link in links {
            self.break_link(link);
        }
        self.end_faults();
        let first = (self.last_at - self.now).0;
        for (at, step) in std::mem::take(&mut self.last).into_iter().enumerate() {
            self.after(first + at as u64, Happening::User(step));
        }
        // Whatever must become of these without their users has become of them by then.
        let healed = first + healed_within(self.settings.binding_deadline_ms).0;
        for (at, step) in std::mem::take(&mut self.leftovers).into_iter().enumerate() {
            self.after(healed + at as u64, Happening::User(step));
        }
        self.after(LAST_DELETIONS_MS.0 * 2, Happening::Tidy);
    }

    /// What becomes of a call of a coordinator.
    pub(crate) fn api_fault(&mut self, call: Call) -> Option<ApiFault> {
        let is_away = self.api_away_until > self.now;
        let fault = if !is_away {
            self.api.faults.decide(call)
        } else if call == Call::Write && self.random.per_mille(300) {
            Some(ApiFault::TimedOutButDone)
        } else {
            Some(ApiFault::TimedOutNotDone)
        };
        if let Some(fault) = &fault {
            self.log.count(api_fault_name(fault));
        }
        fault
    }

    /// After a write: whoever follows the API is woken.
    pub(crate) fn api_changed(&mut self) {
        // What they note with its time must not be of the last look.
        self.facts.now = self.now;
        if self.api.tell(&mut self.facts) {
            self.is_changed = true;
            self.writes += 1;
            self.wake_readers();
        }
    }

    fn check(&mut self) {
        if !self.is_changed || self.failure.is_some() {
            return;
        }
        self.is_changed = false;
        self.facts.now = self.now;
        self.refresh_leases();
        if let Err((checker, message)) = self.checkers.step(&self.facts) {
            self.fail(checker, message);
        }
        self.facts.started.clear();
        self.facts.evicted.clear();
        self.facts.rooms.gone.clear();
        self.facts.rooms.whole.clear();
    }

    fn check_end(&mut self, late_writes: u64) {
        let Some((_, process)) = self.processes.last_key_value() else {
            self.fail("liveness", "the coordinator did not come back".to_owned());
            return;
        };
        let view = process.core.view();
        let end = End { facts: &self.facts, view: &view, late_writes };
        if let Err((checker, message)) = Checkers::end(&end) {
            for gang in &view.gangs {
                let reason = gang.reason.as_ref().map_or("", |reason| reason.text.as_str());
                let (name, queue, phase) = (&gang.name, &gang.queue, &gang.phase);
                let text = format_args!("at the end: gang {name} of queue {queue}: {phase} {reason}");
                self.log.line(self.now, text);
            }
            for (name, group) in &self.facts.groups {
                let pods = self.facts.pods.values().filter(|pod| pod.gang == *name).count();
                let text = format_args!(
                    "at the end: the API has gang {name}, it needs {:?}, and has {pods} pods",
                    group.need
                );
                self.log.line(self.now, text);
            }
            for queue in &view.queues {
                let text = format_args!("at the end: queue {} charged {:?}", queue.name, queue.charged);
                self.log.line(self.now, text);
            }
            self.fail(checker, message);
        }
    }
}
