//! What comes from nowhere: crashes, pauses, partitions, sick disks and GPUs, clocks that differ. Every fault ends
//! when the faults stop at the latest.

use std::collections::BTreeSet;

use phalanx_common::ids::{GpuId, NodeName};
use phalanx_common::topology::GpuHealth;
use phalanx_common::units::Time;

use crate::coverage::{Fault, fault_name};
use crate::random::Random;
use crate::world::{Happening, World};

/// Longest time between two sides that hear nothing of each other until they give up.
const IDLE_MS: (u64, u64) = (10_000, 16_000);
/// So long a leader is silent before another one takes its place.
const TAKE_OVER_MS: (u64, u64) = (3_000, 10_000);
/// A process that has lost the leadership acts on for so long after it woke up.
const UNAWARE_MS: u64 = 20_000;

/// A process's time: it goes a little too fast or too slow, and was set a little wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessClock {
    /// When it was read from the system.
    start: Time,
    /// By how much it was wrong then.
    ahead_ms: u64,
    /// Milliseconds that it counts in a second.
    rate: u64,
}

impl ProcessClock {
    /// A clock that is right at `start`, but for this.
    pub(crate) const fn new(start: Time, ahead_ms: u64, rate: u64) -> Self {
        Self { start, ahead_ms, rate }
    }

    /// What it shows.
    pub(crate) fn told(&self, now: Time) -> Time {
        Time(self.start.0 + self.ahead_ms + (now - self.start).0 * self.rate / 1000)
    }

    /// How long it is until it shows this time.
    pub(crate) fn until(&self, now: Time, at: Time) -> u64 {
        (at - self.told(now)).0 * 1000 / self.rate
    }
}

/// Messages that do not get through, in one direction or both, until a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) until: Time,
    /// To the agent, and to the coordinator.
    pub(crate) sides: [bool; 2],
}

/// Something that happens to a node.
type AtNode = fn(&mut World, &NodeName);

/// Whom something that happens is for.
enum Target {
    Process(u64),
    Host(NodeName),
}

/// Milliseconds counted in a second by a clock that may be so many per mille wrong.
fn drawn_rate(random: &mut Random, most: u32) -> u64 {
    1000 - u64::from(most) + random.between(0, 2 * u64::from(most))
}

impl World {
    /// Counts a fault, for "was it ever reached".
    pub(crate) fn note(&mut self, fault: Fault) {
        self.log.count(fault_name(&fault));
    }

    /// A clock for a new process of a coordinator.
    pub(crate) fn draw_clock(&mut self) -> ProcessClock {
        let ahead = self.random.between(0, self.rates.clock_skew_ms);
        let rate = drawn_rate(&mut self.random, self.rates.clock_drift);
        if ahead > 0 || rate != 1000 {
            self.note(Fault::CoordinatorClockWrong);
        }
        ProcessClock::new(self.now, ahead, rate)
    }

    /// The rate of a machine's clock.
    pub(crate) fn draw_rate(&mut self) -> u64 {
        let rate = drawn_rate(&mut self.random, self.rates.clock_drift);
        if rate != 1000 {
            self.note(Fault::AgentClockWrong);
        }
        rate
    }

    /// So long a fault may last: none outlasts the time of faults.
    pub(crate) fn lasting(&mut self, first: u64, last: u64) -> Time {
        let until = self.now.0 + self.random.between(first, last);
        Time(until.min(self.faults_stop.0.max(self.now.0)))
    }

    /// The end of the pause of whoever something is for, where that one is paused.
    pub(crate) fn paused_until(&self, happening: &Happening) -> Option<Time> {
        let until = match self.target(happening)? {
            Target::Process(incarnation) => self.processes.get(&incarnation)?.paused_until,
            Target::Host(node) => self.hosts.get(&node)?.paused_until,
        };
        until.filter(|until| *until > self.now)
    }

    fn target(&self, happening: &Happening) -> Option<Target> {
        match happening {
            Happening::Pass { incarnation }
            | Happening::Feed { incarnation }
            | Happening::Look { incarnation }
            | Happening::Answer { incarnation, .. } => Some(Target::Process(*incarnation)),
            Happening::ToCoordinator { link, .. } | Happening::CoordinatorNotices { link } => {
                Some(Target::Process(self.links.get(link)?.incarnation))
            }
            // The first half of a call is on its way already; the second half is sent by the process.
            Happening::CallLands { flight } => {
                let flight = self.flights.get(flight)?;
                flight.second.is_some().then_some(Target::Process(flight.incarnation))
            }
            Happening::ToAgent { link, .. } | Happening::AgentNotices { link } => {
                Some(Target::Host(self.links.get(link)?.node.clone()))
            }
            Happening::Dial { node, .. }
            | Happening::Written { node, .. }
            | Happening::Tick { node, .. }
            | Happening::PodOver { node, .. }
            | Happening::PodTold { node, .. } => Some(Target::Host(node.clone())),
            Happening::User(_)
            | Happening::CoordinatorStarts
            | Happening::TakeOver { .. }
            | Happening::LearnsOfLoss { .. }
            | Happening::AgentStarts { .. }
            | Happening::DriverIsBack { .. }
            | Happening::GpuBack { .. }
            | Happening::FaultsStop
            | Happening::Tidy
            | Happening::Moment => None,
        }
    }

    /// Crashes, breaks and pauses that come from nowhere.
    pub(crate) fn disturb(&mut self) {
        if !self.faults {
            return;
        }
        let rates = self.rates;
        if self.random.per_mille(rates.coordinator_crash)
            && let Some(incarnation) = self.newest()
        {
            self.crash_coordinator(incarnation);
        }
        if self.random.per_mille(rates.coordinator_pause) {
            self.pause_coordinator();
        }
        if self.random.per_mille(rates.partition) {
            self.cut_network();
        }
        if self.random.per_mille(rates.api_away) {
            self.api_away_until = self.lasting(2_000, 25_000);
            self.log.line(self.now, format_args!("the API is AWAY until {}", self.api_away_until.0));
            self.note(Fault::ApiAway);
        }
        let of_node: [(u32, AtNode); 10] = [
            (rates.agent_crash, |world, node| world.crash_agent(node)),
            (rates.link_break, |world, node| {
                if let Some(link) = world.hosts.get(node).and_then(|host| host.link) {
                    world.note(Fault::LinkBreak);
                    world.break_link(link);
                }
            }),
            (rates.agent_pause, Self::pause_agent),
            (rates.clock_jump, Self::jump_clock),
            (rates.disk_slow, Self::slow_disk),
            (rates.disk_stuck, Self::stick_disk),
            (rates.gpu_lost, |world, node| world.spoil_gpu(node, GpuHealth::Lost, Fault::GpuLost)),
            (rates.foreign_process, |world, node| {
                let health = GpuHealth::Failed("process 4711 of nobody here uses it".to_owned());
                world.spoil_gpu(node, health, Fault::ForeignProcess);
            }),
            (rates.gpu_missing, Self::remove_gpu),
            (rates.fewer_processors, Self::remove_processors),
        ];
        for (rate, happen) in of_node {
            if self.random.per_mille(rate)
                && let Some(node) = self.some_node()
            {
                happen(self, &node);
            }
        }
    }

    fn some_node(&mut self) -> Option<NodeName> {
        let names: Vec<NodeName> = self.hosts.keys().cloned().collect();
        self.random.pick(&names).cloned()
    }

    /// The leader stops for a while, as by SIGSTOP: time passes, and everything arrives at once afterwards. Where it
    /// is long another one takes its place, of which it knows nothing when it wakes up.
    fn pause_coordinator(&mut self) {
        let Some(incarnation) = self.newest() else { return };
        let is_long = self.random.per_mille(self.rates.take_over);
        let until = if is_long { self.lasting(10_000, 45_000) } else { self.lasting(200, 9_000) };
        let take_over = self.random.between(TAKE_OVER_MS.0, TAKE_OVER_MS.1);
        let now = self.now;
        let Some(process) = self.alive(incarnation) else { return };
        if process.paused_until.is_some_and(|paused| paused > now) {
            return;
        }
        process.paused_until = Some(until);
        self.log.line(now, format_args!("coordinator {incarnation} is PAUSED until {}", until.0));
        self.note(Fault::CoordinatorPaused);
        if is_long {
            self.after(take_over, Happening::TakeOver { incarnation });
        }
        // Whoever is connected to it hears nothing any more, and some give it up.
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| link.incarnation == incarnation)
            .map(|(number, _)| *number)
            .collect();
        for link in links {
            let gives_up = self.random.between(IDLE_MS.0, IDLE_MS.1);
            if Time(now.0 + gives_up) < until && self.random.per_mille(500) {
                self.after(gives_up, Happening::AgentNotices { link });
            }
        }
    }

    /// A leader that was silent too long is replaced.
    pub(crate) fn take_over(&mut self, incarnation: u64) {
        let now = self.now;
        let is_newest = self.newest() == Some(incarnation);
        let Some(process) = self.processes.get_mut(&incarnation).filter(|_| is_newest) else { return };
        let Some(wakes) = process.paused_until.filter(|until| *until > now) else { return };
        process.is_deposed = true;
        self.log.line(now, format_args!("coordinator {incarnation} is replaced"));
        self.note(Fault::TwoCoordinators);
        let unaware = self.random.between(0, UNAWARE_MS);
        let delay = (wakes - now).0 + unaware;
        self.after(delay, Happening::LearnsOfLoss { incarnation });
        self.lead();
    }

    /// A process that was replaced notices it, and ends.
    pub(crate) fn learn_of_loss(&mut self, incarnation: u64) {
        let Some(process) = self.processes.get(&incarnation) else { return };
        if process.is_deposed {
            self.log.line(self.now, format_args!("coordinator {incarnation} has lost the lead and ends"));
            self.end_process(incarnation);
        } else if process.core.overtaken().is_some() {
            // It leads all the same: whoever starts it does so again.
            self.log.line(self.now, format_args!("coordinator {incarnation} gives way"));
            self.log.count("the leader gives way");
            self.restart_coordinator(incarnation);
        }
    }

    fn pause_agent(&mut self, node: &NodeName) {
        let until = self.lasting(200, 25_000);
        let now = self.now;
        let Some(host) = self.hosts.get_mut(node) else { return };
        if host.core.is_none() || host.paused_until.is_some_and(|paused| paused > now) {
            return;
        }
        host.paused_until = Some(until);
        let link = host.link;
        self.log.line(now, format_args!("{node} is PAUSED until {}", until.0));
        self.note(Fault::AgentPaused);
        let gives_up = self.random.between(IDLE_MS.0, IDLE_MS.1);
        if let Some(link) = link.filter(|_| now.0 + gives_up < until.0) {
            self.after(gives_up, Happening::CoordinatorNotices { link });
        }
    }

    /// The machine's clock jumps forward, as after a sleep of which nobody else knows.
    fn jump_clock(&mut self, node: &NodeName) {
        let jump = self.random.between(500, 90_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.jumped_ms += jump;
        self.log.line(self.now, format_args!("the clock of {node} jumps by {jump} ms"));
        self.note(Fault::ClockJump);
        self.apply_agent(node, phalanx_node_core::Event::Tick);
    }

    fn slow_disk(&mut self, node: &NodeName) {
        let until = self.lasting(5_000, 40_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.disk_slow_until = until;
        self.log.line(self.now, format_args!("the disk of {node} is slow until {}", until.0));
        self.note(Fault::DiskSlow);
    }

    fn stick_disk(&mut self, node: &NodeName) {
        let until = self.lasting(10_000, 150_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.disk_stuck_until = until;
        self.log.line(self.now, format_args!("the disk of {node} is stuck until {}", until.0));
        self.note(Fault::DiskStuck);
    }

    /// A GPU cannot be used for a while: it fell off the bus, or somebody else is on it.
    fn spoil_gpu(&mut self, node: &NodeName, health: GpuHealth, fault: Fault) {
        let drawn = self.random.bits();
        let until = self.lasting(500, 40_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        let count = host.inventory.gpus.len().max(1) as u64;
        let at = usize::try_from(drawn % count).unwrap_or(0);
        let Some(gpu) = host.inventory.gpus.get_mut(at).filter(|gpu| gpu.health.is_healthy()) else { return };
        self.log.line(self.now, format_args!("{node}: GPU {} is {health:?}", gpu.index));
        gpu.health = health;
        let id = gpu.id;
        self.note(fault);
        self.read_hardware(node);
        self.after((until - self.now).0, Happening::GpuBack { node: node.clone(), gpu: id });
    }

    /// A GPU is not even listed for a while, as after a reset of its slot.
    fn remove_gpu(&mut self, node: &NodeName) {
        let until = self.lasting(500, 40_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        if host.inventory.gpus.len() < 2 || host.inventory != host.whole {
            return;
        }
        let Some(gpu) = host.inventory.gpus.pop() else { return };
        host.inventory.links.pop();
        for row in &mut host.inventory.links {
            row.pop();
        }
        self.log.line(self.now, format_args!("{node}: GPU {} is not there", gpu.index));
        self.facts.missing_until.insert(gpu.id, until);
        self.note(Fault::GpuMissing);
        self.read_hardware(node);
        self.after((until - self.now).0, Happening::GpuBack { node: node.clone(), gpu: gpu.id });
    }

    /// The driver of a machine that boots tells of no GPU yet.
    pub(crate) fn delay_driver(&mut self, node: &NodeName) {
        let until = self.lasting(1_000, 60_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.driver_away_until = until;
        self.log.line(self.now, format_args!("{node}: the driver is not there until {}", until.0));
        self.note(Fault::DriverLate);
        self.after((until - self.now).0, Happening::DriverIsBack { node: node.clone() });
    }

    /// All but one processor are offline for a while.
    fn remove_processors(&mut self, node: &NodeName) {
        let until = self.lasting(500, 40_000);
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.inventory.cpu_milli = 1000;
        self.log.line(self.now, format_args!("{node} has one processor until {}", until.0));
        self.note(Fault::FewerProcessors);
        self.read_hardware(node);
        let processors = GpuId(0);
        self.after((until - self.now).0, Happening::GpuBack { node: node.clone(), gpu: processors });
    }

    /// A GPU is as it was, and so are the processors.
    pub(crate) fn gpu_back(&mut self, node: &NodeName, id: GpuId) {
        let Some(host) = self.hosts.get_mut(node) else { return };
        host.inventory.cpu_milli = host.whole.cpu_milli;
        if host.inventory.gpus.len() < host.whole.gpus.len() {
            let health: Vec<(GpuId, GpuHealth)> =
                host.inventory.gpus.iter().map(|gpu| (gpu.id, gpu.health.clone())).collect();
            host.inventory = host.whole.clone();
            for (gpu, health) in host.inventory.gpus.iter_mut().zip(health) {
                gpu.health = health.1;
            }
        }
        if let Some(gpu) = host.inventory.gpus.iter_mut().find(|gpu| gpu.id == id) {
            gpu.health = GpuHealth::Healthy;
            self.log.line(self.now, format_args!("{node}: GPU {} is back", gpu.index));
            self.note(Fault::GpuBack);
        }
        self.read_hardware(node);
    }

    /// One node, or several, cannot be reached, or cannot reach anybody, or both. Neither side notices at once.
    fn cut_network(&mut self) {
        let sides = match self.random.between(0, 3) {
            0 => [true, false],
            1 => [false, true],
            _ => [true, true],
        };
        self.note(if sides[0] && sides[1] { Fault::PartitionBothWays } else { Fault::PartitionOneWay });
        let until = self.lasting(1_000, 60_000);
        let mut nodes: BTreeSet<NodeName> = BTreeSet::new();
        let several = self.random.per_mille(400);
        for _ in 0..if several { self.hosts.len() } else { 1 } {
            nodes.extend(self.some_node());
        }
        if nodes.len() > 1 {
            self.note(Fault::PartitionOfSeveral);
        }
        for node in nodes {
            self.log.line(self.now, format_args!("{node} is cut off {sides:?} until {}", until.0));
            self.cuts.insert(node.clone(), Cut { until, sides });
            let Some(link) = self.hosts.get(&node).and_then(|host| host.link) else { continue };
            for side in 0..2 {
                let gives_up = self.random.between(IDLE_MS.0, IDLE_MS.1);
                if self.now.0 + gives_up >= until.0 {
                    continue;
                }
                let happening = if side == 0 {
                    Happening::AgentNotices { link }
                } else {
                    Happening::CoordinatorNotices { link }
                };
                self.after(gives_up, happening);
            }
        }
    }

    /// The cut that a message of this side meets now.
    pub(crate) fn cut_of(&self, node: &NodeName, side: usize) -> Option<Time> {
        let cut = self.cuts.get(node).filter(|cut| cut.until > self.now && cut.sides[side])?;
        Some(cut.until)
    }

    /// The coordinator that answers when an agent dials: as a rule the one that leads.
    pub(crate) fn who_answers(&mut self, node: &NodeName) -> Option<u64> {
        if self.cut_of(node, 0).is_some() || self.cut_of(node, 1).is_some() {
            return None;
        }
        let now = self.now;
        let awake = |until: Option<Time>| until.is_none_or(|until| until <= now);
        let answering: Vec<u64> = self
            .processes
            .values()
            .filter(|process| awake(process.paused_until))
            .map(|process| process.incarnation)
            .collect();
        match answering.as_slice() {
            [_, _, ..] if self.goes_wrong(500) => {
                self.note(Fault::DialsTheOldOne);
                self.random.pick(&answering).copied()
            }
            _ => answering.last().copied(),
        }
    }

    /// All that is wrong ends.
    pub(crate) fn end_faults(&mut self) {
        self.cuts.clear();
        let deposed: Vec<u64> = self
            .processes
            .values()
            .filter(|process| process.is_deposed)
            .map(|process| process.incarnation)
            .collect();
        for incarnation in deposed {
            self.learn_of_loss(incarnation);
        }
        let nodes: Vec<NodeName> = self.hosts.keys().cloned().collect();
        for node in nodes {
            if let Some(host) = self.hosts.get_mut(&node) {
                host.inventory = host.whole.clone();
                host.driver_away_until = Time(0);
            }
            self.read_hardware(&node);
        }
    }
}
