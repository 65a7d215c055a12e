//! The agent's shell in the simulation: its disk, its pods, its crashes. The core inside is the real one.

use std::collections::BTreeMap;

use phalanx_common::ids::{GpuId, LeaseId, NodeName, PodUid};
use phalanx_common::planted::{self, Bug};
use phalanx_common::topology::{Inventory, ProbeState};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_node_core::{Action, Core, Event, Ledger, LinkId, invariants};

use crate::coverage::{Fault, action_name, from_agent_name, refusal_name};
use crate::facts::{LeaseFact, RunFact};
use crate::network::{from_agent, positions};
use crate::workload::Machine;
use crate::world::{Happening, World};

/// A pod that runs, by the number of its run.
#[derive(Debug)]
struct Run {
    pod: PodUid,
    number: u64,
}

/// A machine with an agent, whether its process lives or not.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) core: Option<Core>,
    /// Number of the process.
    pub(crate) life: u64,
    pub(crate) link: Option<u64>,
    name: NodeName,
    /// What it has now, and what it has when nothing is wrong.
    pub(crate) inventory: Inventory,
    pub(crate) whole: Inventory,
    boot: u64,
    boot_at: Time,
    /// Milliseconds that its clock counts in a second, and by how much it jumped since the boot.
    rate: u64,
    pub(crate) jumped_ms: u64,
    /// Nothing of it runs until then; what is due for it waits.
    pub(crate) paused_until: Option<Time>,
    /// Its driver tells of no GPU until then.
    pub(crate) driver_away_until: Time,
    pub(crate) disk_slow_until: Time,
    pub(crate) disk_stuck_until: Time,
    /// What survives a crash of the machine.
    disk: Option<Ledger>,
    /// The file cannot be read: its agent does not start before somebody moves it away.
    ledger_is_broken: bool,
    /// A newer ledger in the place of the old one of which the machine may still forget everything.
    unsynced: Option<Ledger>,
    /// Being written, and what waits behind it.
    writing: Option<(u64, Ledger)>,
    waiting: Option<(u64, Ledger)>,
    runs: Vec<Run>,
    tick: Option<Time>,
}

impl Host {
    /// A machine that was just switched on.
    pub(crate) fn new(machine: Machine, rate: u64) -> Self {
        Self {
            core: None,
            life: 0,
            link: None,
            name: machine.name,
            whole: machine.inventory.clone(),
            inventory: machine.inventory,
            boot: 1,
            boot_at: Time(0),
            rate,
            jumped_ms: 0,
            paused_until: None,
            driver_away_until: Time(0),
            disk_slow_until: Time(0),
            disk_stuck_until: Time(0),
            disk: None,
            ledger_is_broken: false,
            unsynced: None,
            writing: None,
            waiting: None,
            runs: Vec::new(),
            tick: None,
        }
    }

    /// CLOCK_BOOTTIME: it begins anew at each boot.
    fn clock(&self, now: Time) -> Time {
        Time((now - self.boot_at).0 * self.rate / 1000 + self.jumped_ms)
    }

    /// What its agent reads of it.
    fn seen(&self, now: Time) -> Inventory {
        if self.driver_away_until <= now {
            return self.inventory.clone();
        }
        let (cpu_milli, memory_bytes) = (self.inventory.cpu_milli, self.inventory.memory_bytes);
        // Two ways in which drivers are not there yet.
        let state = if self.boot.is_multiple_of(2) {
            ProbeState::DriverError("the driver does not answer yet".to_owned())
        } else {
            ProbeState::Ready
        };
        Inventory { state, ..Inventory::empty(cpu_milli, memory_bytes) }
    }

    /// When its clock will show this time.
    fn when(&self, at: Time) -> Time {
        Time(self.boot_at.0 + (at - Time(self.jumped_ms)).0 * 1000 / self.rate)
    }
}

impl World {
    /// The agent's process starts, with what its disk holds.
    pub(crate) fn start_agent(&mut self, node: &NodeName) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(node) else { return };
        if host.core.is_some() {
            return;
        }
        if std::mem::take(&mut host.ledger_is_broken) {
            let back = self.lasting(2_000, 60_000);
            self.log.line(now, format_args!("{node} does not start: its ledger cannot be read"));
            self.after((back - now).0, Happening::AgentStarts { node: node.clone() });
            return;
        }
        host.life += 1;
        let life = host.life;
        host.link = None;
        host.tick = None;
        host.paused_until = None;
        // Opening the ledger makes sure that what is read stays.
        if let Some(ledger) = host.unsynced.take() {
            host.disk = Some(ledger);
        }
        let boot = format!("boot-{}", host.boot);
        let mut actions = Vec::new();
        let clock = host.clock(now);
        host.core = Some(Core::new(host.name.clone(), &boot, host.disk.clone(), clock, &mut actions));
        let inventory = host.seen(now);
        let leases = host.disk.as_ref().map_or(0, |ledger| ledger.leases.len());
        self.log.line(now, format_args!("{node} starts, {boot}, {leases} leases on disk"));
        self.carry_out(node, actions);
        self.apply_agent(node, Event::Inventory(inventory));
        self.after(1, Happening::Dial { node: node.clone(), life });
    }

    /// The agent's process ends in the middle of whatever it does, and with it its pods.
    pub(crate) fn crash_agent(&mut self, node: &NodeName) {
        let reached = self.random.between(0, 3);
        let is_forgotten = self.random.per_mille(500);
        let reboots = self.random.per_mille(333);
        let away = self.random.between(100, self.rates.away_ms);
        let Some(host) = self.hosts.get_mut(node) else { return };
        if host.core.take().is_none() {
            return;
        }
        // Not begun, in its place but not synced, or wholly done and not told.
        match host.writing.take() {
            Some((_, ledger)) if reached == 0 => host.unsynced = Some(ledger),
            Some((_, ledger)) if reached == 1 => {
                host.disk = Some(ledger);
                host.unsynced = None;
            }
            _ => {}
        }
        host.waiting = None;
        host.life += 1;
        let mut is_lost = false;
        if reboots {
            host.boot += 1;
            host.boot_at = self.now;
            host.jumped_ms = 0;
            match host.unsynced.take() {
                Some(_) if is_forgotten => is_lost = true,
                Some(ledger) => host.disk = Some(ledger),
                None => {}
            }
        }
        let link = host.link.take();
        for run in std::mem::take(&mut host.runs) {
            self.facts.running.remove(&run.pod);
        }
        self.is_changed = true;
        self.log.line(self.now, format_args!("{node} CRASHES{}", if reboots { " and reboots" } else { "" }));
        if let Some(link) = link {
            self.break_link(link);
        }
        if reboots && self.goes_wrong(self.rates.driver_late) {
            self.delay_driver(node);
        }
        if is_lost {
            self.note(Fault::LedgerWriteForgotten);
        }
        if self.goes_wrong(self.rates.ledger_torn) {
            self.tear_ledger(node);
        }
        self.note(if reboots { Fault::AgentReboot } else { Fault::AgentCrash });
        self.after(away, Happening::AgentStarts { node: node.clone() });
    }

    /// One event for the agent's core, and what follows from it.
    pub(crate) fn apply_agent(&mut self, node: &NodeName, event: Event) {
        let Some(host) = self.hosts.get_mut(node) else { return };
        let clock = host.clock(self.now);
        let Some(core) = &mut host.core else { return };
        let mut actions = Vec::new();
        core.apply(event, clock, &mut actions);
        if let Err(error) = invariants::check(core) {
            self.fail("agent-core", format!("{node}: {error}"));
            return;
        }
        self.is_changed = true;
        self.carry_out(node, actions);
        self.set_tick(node);
    }

    fn set_tick(&mut self, node: &NodeName) {
        let Some(host) = self.hosts.get_mut(node) else { return };
        let Some((at, _)) = host.core.as_ref().and_then(Core::next_deadline) else { return };
        let at = host.when(at).max(self.now);
        // A tick that is due earlier looks again.
        let at = at.max(Time(self.now.0 + 1));
        if host.tick.is_some_and(|tick| tick <= at && tick > self.now) {
            return;
        }
        host.tick = Some(at);
        let (delay, life) = ((at - self.now).0, host.life);
        self.after(delay, Happening::Tick { node: node.clone(), life });
    }

    pub(crate) fn tick(&mut self, node: &NodeName, life: u64) {
        let now = self.now;
        let is_due = |host: &&mut Host| host.life == life && host.tick.is_some_and(|at| at <= now);
        let Some(host) = self.hosts.get_mut(node).filter(is_due) else { return };
        host.tick = None;
        self.apply_agent(node, Event::Tick);
    }

    /// What the core wants is done, in order; a crash may come between any two.
    fn carry_out(&mut self, node: &NodeName, actions: Vec<Action>) {
        for action in actions {
            if self.goes_wrong(self.rates.agent_crash / 3) {
                self.crash_agent(node);
                return;
            }
            if self.hosts.get(node).is_none_or(|host| host.core.is_none()) {
                return;
            }
            self.log.count(action_name(&action));
            match action {
                Action::Send(link, message) => self.agent_says(node, link, message),
                Action::Persist { revision, ledger } => self.persist(node, revision, ledger),
                Action::SetAside { old, new } => {
                    self.fail("agent-core", format!("{node}: moved from cluster {old} to {new}"));
                }
                Action::StartPod { pod, name, lease, gpus, run_for } => {
                    self.log.line(
                        self.now,
                        format_args!("{node} runs {} by {lease} {:?}", name.name, positions(&gpus)),
                    );
                    self.start_pod(node, pod, lease, gpus, run_for);
                }
                Action::StopPod { pod } => self.stop_pod(node, pod),
                Action::Warn(warning) => {
                    self.log.count("agent warns");
                    self.log.line(self.now, format_args!("{node} warns: {warning}"));
                }
            }
        }
    }

    fn agent_says(&mut self, node: &NodeName, LinkId(link): LinkId, message: FromAgent) {
        if self.hosts.get(node).is_none_or(|host| host.link != Some(link)) {
            return;
        }
        self.log.line(self.now, format_args!("{node} -> {}", from_agent(&message)));
        self.log.count(from_agent_name(&message));
        if let FromAgent::Refused { cause, .. } = &message {
            self.log.count(refusal_name(cause));
        }
        self.send_to_coordinator(link, message);
    }

    /// A message of the coordinator for the core.
    pub(crate) fn tell_agent(&mut self, node: &NodeName, link: u64, message: ToAgent) {
        self.apply_agent(node, Event::Message(LinkId(link), message));
    }

    /// One ledger is written at a time; a newer one replaces one that waits.
    fn persist(&mut self, node: &NodeName, revision: u64, ledger: Ledger) {
        let Some(host) = self.hosts.get_mut(node) else { return };
        if host.writing.is_some() {
            host.waiting = Some((revision, ledger));
        } else {
            self.begin_write(node, revision, ledger);
        }
        if planted::is(Bug::AckBeforePersist) {
            self.apply_agent(node, Event::Persisted { revision });
        }
    }

    /// A write has ended. One that failed may have reached the disk all the same.
    pub(crate) fn written(&mut self, node: &NodeName, life: u64, revision: u64) {
        let fails = self.goes_wrong(self.rates.disk);
        let reached = !fails || self.random.per_mille(500);
        let Some(host) = self.hosts.get_mut(node).filter(|host| host.life == life) else { return };
        let Some((number, ledger)) = host.writing.take() else { return };
        if number != revision {
            host.writing = Some((number, ledger));
            return;
        }
        // The last step of a write is to make the new name of the file stay: without it the file is read by the next
        // process, and not after a crash of the machine.
        match (fails, reached) {
            (false, _) => {
                host.disk = Some(ledger);
                host.unsynced = None;
            }
            (true, true) => host.unsynced = Some(ledger),
            (true, false) => {}
        }
        let next = host.waiting.take();
        if let Some((revision, ledger)) = next {
            self.begin_write(node, revision, ledger);
        }
        let event = if fails {
            self.note(Fault::LedgerNotWritten);
            Event::PersistFailed { revision, message: "no space left".to_owned() }
        } else {
            Event::Persisted { revision }
        };
        self.apply_agent(node, event);
    }

    fn begin_write(&mut self, node: &NodeName, revision: u64, ledger: Ledger) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.writing = Some((revision, ledger));
        let life = host.life;
        let delay = if host.disk_stuck_until > now {
            (host.disk_stuck_until - now).0
        } else if host.disk_slow_until > now {
            self.random.between(500, 8_000)
        } else {
            self.random.between(1, if self.faults { 40 } else { 3 })
        };
        self.after(delay, Happening::Written { node: node.clone(), life, revision });
    }

    /// A pod that runs already goes on.
    fn start_pod(
        &mut self,
        node: &NodeName,
        pod: PodUid,
        lease: LeaseId,
        mut gpus: Vec<GpuId>,
        run_for: Option<Millis>,
    ) {
        if self.facts.running.contains_key(&pod)
            && self.hosts.get(node).is_some_and(|host| host.runs.iter().any(|run| run.pod == pod))
        {
            return;
        }
        let number = self.next_number();
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.runs.push(Run { pod: pod.clone(), number });
        gpus.sort_unstable();
        if let Some(other) =
            self.facts.running.insert(pod.clone(), RunFact { node: node.clone(), lease, gpus })
        {
            self.fail("ownership", format!("pod {pod} starts on {node} and runs on {}", other.node));
        }
        self.facts.started.push(pod);
        self.is_changed = true;
        self.log.count("pod starts");
        if let Some(run_for) = run_for {
            let happening = Happening::PodOver { node: node.clone(), run: number, stopped: false };
            self.after(run_for.0.max(1), happening);
        }
    }

    /// Stopping takes its time: until then the pod runs.
    fn stop_pod(&mut self, node: &NodeName, pod: PodUid) {
        self.log.count("pod stopped");
        let delay = if self.goes_wrong(self.rates.slow_end) {
            self.note(Fault::SlowEnd);
            self.random.between(2_000, 25_000)
        } else {
            self.random.between(1, if self.faults { 2_000 } else { 20 })
        };
        let Some(host) = self.hosts.get_mut(node) else { return };
        let life = host.life;
        match host.runs.iter().find(|run| run.pod == pod).map(|run| run.number) {
            Some(run) => self.after(delay, Happening::PodOver { node: node.clone(), run, stopped: true }),
            None => self.after(1, Happening::PodTold { node: node.clone(), life, pod, stopped: true }),
        }
    }

    pub(crate) fn pod_over(&mut self, node: &NodeName, number: u64, stopped: bool) {
        let Some(host) = self.hosts.get_mut(node) else { return };
        let Some(at) = host.runs.iter().position(|run| run.number == number) else { return };
        let run = host.runs.remove(at);
        let life = host.life;
        self.facts.running.remove(&run.pod);
        if !stopped {
            self.facts.ended.insert(run.pod.clone());
            self.facts.news_at = self.now;
        }
        self.is_changed = true;
        self.log.line(
            self.now,
            format_args!("{node}: pod {} {}", run.pod, if stopped { "was stopped" } else { "has ended" }),
        );
        let delay = self.random.between(1, 5);
        self.after(delay, Happening::PodTold { node: node.clone(), life, pod: run.pod, stopped });
    }

    pub(crate) fn pod_told(&mut self, node: &NodeName, life: u64, pod: PodUid, stopped: bool) {
        if self.hosts.get(node).is_none_or(|host| host.life != life) {
            return;
        }
        let event = if stopped {
            Event::PodStopped { pod }
        } else {
            let succeeded = !self.goes_wrong(self.rates.pods_fail);
            Event::PodEnded { pod, succeeded }
        };
        self.apply_agent(node, event);
    }

    /// The ledger cannot be read when the agent starts again. Its shell refuses to start until somebody has moved the
    /// file away, and then begins without one.
    fn tear_ledger(&mut self, node: &NodeName) {
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.disk = None;
        host.unsynced = None;
        host.ledger_is_broken = true;
        self.log.line(self.now, format_args!("the ledger of {node} cannot be read any more"));
        self.note(Fault::LedgerUnreadable);
    }

    pub(crate) fn read_hardware(&mut self, node: &NodeName) {
        let Some(host) = self.hosts.get(node).filter(|host| host.core.is_some()) else { return };
        let inventory = host.seen(self.now);
        self.apply_agent(node, Event::Inventory(inventory));
    }

    /// Brings the agents' leases in the facts up to date.
    pub(crate) fn refresh_leases(&mut self) {
        let mut all = BTreeMap::new();
        for (name, host) in &self.hosts {
            let stored = host.disk.iter().flat_map(|ledger| &ledger.leases);
            let on_disk = stored.map(|stored| stored.lease).collect();
            self.facts.on_disk.insert(name.clone(), on_disk);
            let Some(core) = &host.core else { continue };
            let leases = core.leases().iter().map(|(id, lease)| LeaseFact {
                lease: *id,
                pod: lease.request.pod.clone(),
                gpus: lease.gpus.clone(),
                state: lease.phase.state(),
            });
            all.insert(name.clone(), leases.collect());
        }
        self.facts.leases = all;
    }
}
