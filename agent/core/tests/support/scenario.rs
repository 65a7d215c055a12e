//! One machine, its disk and the text that drives it.
//!
//! Commands: `start gpus=N cpu=CORES memory=GIB`, `restart [reboot]`, `link up|down`,
//! `welcome [cluster=C] [term=T] [version=V]`, `reserve LEASE pod=P [gpus=0,1] [asked=N] [cpu=C] [memory=GIB]
//! [expires=MS] [run-for=MS] [device=NAME] [count]`, `arm|bound|gang-bound|release LEASE`, `disk ok|fail`,
//! `no-gpus`, `driver-error`, `gpus-back`, `reorder`,
//! `swap-board N`, `pod-ended P ok|failed`, `pod-stopped P`, `gpu N healthy|lost|failed`, `cpu CORES`, `wait MS`, `leases`,
//! `deadline`. All messages take `term=COUNTER/INCARNATION`; without it the term of the last Welcome.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use phalanx_common::ids::{ClusterId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::resources::ResourceName;
use phalanx_common::topology::{GpuHealth, Inventory};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{Exactness, FromAgent, RefusalCause, ToAgent, VERSION};
use phalanx_node_core::{Action, Core, Event, Ledger, LinkId, invariants};

const GIB: u64 = 1 << 30;

/// The world around one machine.
struct World {
    /// The inventory while the driver tells of no GPU.
    kept: Option<Inventory>,
    core: Option<Core>,
    inventory: Inventory,
    now: Time,
    term: Term,
    boot: u32,
    /// What the disk holds.
    disk: Option<Ledger>,
    /// Ledgers handed out for writing and not answered yet.
    writing: Vec<(u64, Ledger)>,
}

/// One command line, cut up.
struct Line<'a> {
    words: Vec<&'a str>,
    values: BTreeMap<&'a str, &'a str>,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Self {
        let (pairs, words): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.contains('='));
        Self { words, values: pairs.iter().filter_map(|pair| pair.split_once('=')).collect(), text }
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.values.get(name).map_or(default, |text| {
            text.parse().unwrap_or_else(|_| panic!("{name}={text} in {:?} is not a number", self.text))
        })
    }

    fn word(&self, at: usize) -> &'a str {
        self.words.get(at).unwrap_or_else(|| panic!("{:?} is too short", self.text))
    }

    fn lease(&self) -> LeaseId {
        self.word(1).parse().unwrap()
    }
}

fn term(text: &str) -> Term {
    let (counter, incarnation) = text.split_once('/').unwrap_or((text, "1"));
    Term { counter: counter.parse().unwrap(), incarnation: incarnation.parse().unwrap() }
}

fn show_term(term: Term) -> String {
    format!("{}/{}", term.counter, term.incarnation)
}

impl World {
    fn new() -> Self {
        Self {
            kept: None,
            core: None,
            inventory: super::inventory(0, 0, 0),
            now: Time(1_000),
            term: Term { counter: 1, incarnation: 1 },
            boot: 1,
            disk: None,
            writing: Vec::new(),
        }
    }

    fn run(&mut self, text: &str) -> String {
        let line = Line::parse(text);
        let mut actions = Vec::new();
        match line.word(0) {
            "start" => {
                self.inventory = super::inventory(
                    line.number("gpus", 0) as usize,
                    line.number("cpu", 64) * 1000,
                    line.number("memory", 256) * GIB,
                );
                self.begin(&mut actions);
            }
            "restart" => {
                if line.words.contains(&"reboot") {
                    self.boot += 1;
                    self.now = Time(500);
                }
                self.begin(&mut actions);
            }
            "leases" => return self.leases(),
            "deadline" => return self.deadline(),
            "wait" => {
                self.now = self.now + Millis(line.word(1).parse().unwrap());
                self.apply(Event::Tick, &mut actions);
            }
            "disk" => self.disk(line.word(1), &mut actions),
            _ => {
                let event = self.event(&line);
                self.apply(event, &mut actions);
            }
        }
        let mut output = String::new();
        for action in actions {
            writeln!(output, "{}", show(&action)).unwrap();
            if let Action::Persist { revision, ledger } = action {
                self.writing.push((revision, ledger));
            }
        }
        output
    }

    fn begin(&mut self, actions: &mut Vec<Action>) {
        self.writing.clear();
        let boot = format!("boot-{}", self.boot);
        self.core = Some(Core::new(NodeName::from("n1"), &boot, self.disk.clone(), self.now, actions));
        self.apply(Event::Inventory(self.inventory.clone()), actions);
    }

    fn apply(&mut self, event: Event, actions: &mut Vec<Action>) {
        let core = self.core.as_mut().expect("`start` comes first");
        core.apply(event, self.now, actions);
        invariants::check(core).unwrap();
    }

    fn disk(&mut self, outcome: &str, actions: &mut Vec<Action>) {
        let (revision, ledger) = self.writing.pop().expect("nothing is being written");
        self.writing.clear();
        if outcome == "ok" {
            self.disk = Some(ledger);
            self.apply(Event::Persisted { revision }, actions);
        } else {
            self.apply(Event::PersistFailed { revision, message: "no space left".to_owned() }, actions);
        }
    }

    fn event(&mut self, line: &Line<'_>) -> Event {
        let given = line.values.get("term").map(|text| term(text));
        let term = given.unwrap_or(self.term);
        let link = LinkId(line.number("on", 0));
        match line.word(0) {
            "link" if line.word(1) == "up" => Event::LinkUp(link),
            "link" => Event::LinkDown(link),
            "welcome" => {
                self.term = term;
                let cluster = ClusterId::from(*line.values.get("cluster").unwrap_or(&"c1"));
                let version = line.number("version", 2) as u16;
                Event::Message(link, ToAgent::Welcome { version, cluster, term })
            }
            "standby" => {
                let cluster = ClusterId::from(*line.values.get("cluster").unwrap_or(&"c1"));
                Event::Message(link, ToAgent::Standby { version: VERSION, cluster, term })
            }
            "say-hello" => Event::Message(link, ToAgent::SayHello),
            "rejected" => {
                Event::Message(link, ToAgent::Rejected { message: "not of this cluster".to_owned() })
            }
            "reserve" => Event::Message(link, reserve(line, term)),
            "arm" => Event::Message(link, ToAgent::Arm { term, lease: line.lease() }),
            "bound" => Event::Message(link, ToAgent::Bound { term, lease: line.lease() }),
            "gang-bound" => Event::Message(link, ToAgent::GangBound { term, lease: line.lease() }),
            "release" => Event::Message(link, ToAgent::Release { term, lease: line.lease() }),
            "pod-ended" => {
                Event::PodEnded { pod: PodUid::from(line.word(1)), succeeded: line.word(2) == "ok" }
            }
            "pod-stopped" => Event::PodStopped { pod: PodUid::from(line.word(1)) },
            "gpu" => {
                let health = match line.word(2) {
                    "healthy" => GpuHealth::Healthy,
                    "lost" => GpuHealth::Lost,
                    other => GpuHealth::Failed(other.to_owned()),
                };
                self.inventory.gpus[line.word(1).parse::<usize>().unwrap()].health = health;
                Event::Inventory(self.inventory.clone())
            }
            "no-gpus" => {
                let mut none = self.inventory.clone();
                std::mem::swap(&mut none, &mut self.inventory);
                (self.inventory.gpus, self.inventory.links) = (Vec::new(), Vec::new());
                self.kept = Some(none);
                Event::Inventory(self.inventory.clone())
            }
            "driver-error" => {
                let whole = self.inventory.clone();
                self.inventory = phalanx_node_core::inventory::unusable("not loaded".to_owned());
                self.kept = Some(whole);
                Event::Inventory(self.inventory.clone())
            }
            "gpus-back" => {
                self.inventory = self.kept.take().unwrap();
                Event::Inventory(self.inventory.clone())
            }
            "reorder" => {
                // Another order of the bus: the indexes change, the UUIDs do not.
                self.inventory.gpus.reverse();
                for (at, gpu) in self.inventory.gpus.iter_mut().enumerate() {
                    gpu.index = at as u32;
                }
                Event::Inventory(self.inventory.clone())
            }
            "swap-board" => {
                let board = &mut self.inventory.gpus[line.word(1).parse::<usize>().unwrap()];
                board.id = phalanx_common::ids::GpuId(board.id.0 + 100);
                Event::Inventory(self.inventory.clone())
            }
            "cpu" => {
                self.inventory.cpu_milli = line.word(1).parse::<u64>().unwrap() * 1000;
                Event::Inventory(self.inventory.clone())
            }
            "broken-reading" => {
                let mut broken = self.inventory.clone();
                broken.links.pop();
                Event::Inventory(broken)
            }
            other => panic!("unknown command {other:?}"),
        }
    }

    fn leases(&self) -> String {
        let mut output = String::new();
        let core = self.core.as_ref().unwrap();
        for (id, lease) in core.leases().iter() {
            let gpus = gpus(&lease.gpus);
            writeln!(
                output,
                "{id} {} {:?} gpus={gpus} told={:?}",
                lease.request.pod, lease.phase, lease.known
            )
            .unwrap();
        }
        if output.is_empty() { "none\n".to_owned() } else { output }
    }

    fn deadline(&self) -> String {
        match self.core.as_ref().unwrap().next_deadline() {
            Some((at, reason)) => format!("in {} ms: {reason:?}\n", (at - self.now).0),
            None => "none\n".to_owned(),
        }
    }
}

fn gpus(gpus: &[phalanx_common::ids::GpuId]) -> String {
    gpus.iter().map(|gpu| gpu.0.to_string()).collect::<Vec<_>>().join(",")
}

fn reserve(line: &Line<'_>, term: Term) -> ToAgent {
    let text = line.values.get("gpus").copied().unwrap_or_default();
    let gpus: Vec<u128> =
        text.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().unwrap()).collect();
    let mut request = super::request(&super::Wish {
        pod: line.values.get("pod").expect("pod="),
        gpus: &gpus,
        asked: line.number("asked", gpus.len() as u64),
        cpu_milli: line.number("cpu", 1) * 1000,
        memory_bytes: line.number("memory", 1) * GIB,
        run_for: line.values.get("run-for").map(|text| Millis(text.parse().unwrap())),
    });
    if let Some(device) = line.values.get("device") {
        let requests = &mut request.request.containers[0].requests;
        requests.set(ResourceName::parse(device).unwrap(), 1);
    }
    if let Some(container) = line.values.get("container") {
        request.devices[0].container = (*container).into();
    }
    if line.words.contains(&"count") {
        request.exactness = Exactness::Count;
    }
    let expires_in_ms = Millis(line.number("expires", 10_000));
    ToAgent::Reserve { term, lease: line.lease(), request: Box::new(request), expires_in_ms }
}

fn show(action: &Action) -> String {
    match action {
        Action::Send(LinkId(0), message) => format!("send {}", show_message(message)),
        Action::Send(LinkId(link), message) => format!("send on={link} {}", show_message(message)),
        Action::Persist { revision, ledger } => {
            let leases: Vec<String> =
                ledger.leases.iter().map(|lease| format!("{} {:?}", lease.lease, lease.state)).collect();
            let cluster = ledger.cluster.as_ref().map_or("none", ClusterId::as_str);
            let term = show_term(ledger.highest_term);
            format!("persist #{revision} cluster={cluster} term={term} [{}]", leases.join(", "))
        }
        Action::SetAside { old, new } => format!("set aside the ledger of {old} for {new}"),
        Action::StartPod { pod, lease, gpus: held, run_for, .. } => {
            let run_for = run_for.map_or("until stopped".to_owned(), |time| time.to_string());
            format!("start {pod} lease={lease} gpus={} run-for={run_for}", gpus(held))
        }
        Action::StopPod { pod } => format!("stop {pod}"),
        Action::Warn(warning) => format!("warn {warning}"),
    }
}

fn show_message(message: &FromAgent) -> String {
    let leases = |leases: &[phalanx_common::wire::LeaseReport]| {
        leases
            .iter()
            .map(|report| format!("{} {:?}", report.lease, report.state))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match message {
        FromAgent::Token(_) => "Token".to_owned(),
        FromAgent::Hello(hello) => format!(
            "Hello {} cluster={} term={} gpus={} [{}]",
            hello.node,
            hello.cluster.as_ref().map_or("none", ClusterId::as_str),
            show_term(hello.highest_term),
            hello.inventory.gpus.len(),
            leases(&hello.leases)
        ),
        FromAgent::Inventory(inventory) => {
            let healthy = inventory.gpus.iter().filter(|gpu| gpu.health.is_healthy()).count();
            let total = inventory.gpus.len();
            format!("Inventory {:?} healthy={healthy}/{total} cpu={}", inventory.state, inventory.cpu_milli)
        }
        FromAgent::Heartbeat => "Heartbeat".to_owned(),
        FromAgent::Reserved { term, lease } => format!("Reserved {lease} term={}", show_term(*term)),
        FromAgent::Refused { term, lease, cause, inventory, leases: held } => format!(
            "Refused {lease} term={} {} gpus={} [{}]",
            show_term(*term),
            show_cause(cause),
            inventory.gpus.len(),
            leases(held)
        ),
        FromAgent::LeaseIs { term, lease, state } => {
            format!("LeaseIs {lease} {state:?} term={}", show_term(*term))
        }
        FromAgent::PodStarted { pod } => format!("PodStarted {pod}"),
        FromAgent::PodEnded { pod, succeeded } => format!("PodEnded {pod} succeeded={succeeded}"),
        FromAgent::PodStopped { pod } => format!("PodStopped {pod}"),
        FromAgent::HealthChanged { gpus } => {
            let each: Vec<String> =
                gpus.iter().map(|(gpu, health)| format!("{} {health:?}", gpu.0)).collect();
            format!("HealthChanged {}", each.join(", "))
        }
    }
}

fn show_cause(cause: &RefusalCause) -> String {
    match cause {
        RefusalCause::StaleTerm(term) => format!("StaleTerm {}", show_term(*term)),
        RefusalCause::UnknownGpu(gpu) => format!("UnknownGpu {}", gpu.0),
        RefusalCause::Unhealthy(gpu, health) => format!("Unhealthy {} {health:?}", gpu.0),
        RefusalCause::Held(gpu, lease) => format!("Held {} by {lease}", gpu.0),
        RefusalCause::PodHasLease(lease) => format!("PodHasLease {lease}"),
        RefusalCause::Short(name, free, asked) => format!("Short {name} free={free} asked={asked}"),
        other => format!("{other:?}"),
    }
}

/// Runs a scenario and gives its text with what really happened.
pub fn replay(text: &str) -> String {
    let mut world = World::new();
    let mut output = String::new();
    for block in text.trim_end().split("\n\n") {
        let commands = block.lines().take_while(|line| *line != "----");
        let mut happened = String::new();
        let mut has_command = false;
        for line in commands {
            writeln!(output, "{line}").unwrap();
            if !line.starts_with('#') {
                has_command = true;
                happened.push_str(&world.run(line));
            }
        }
        if has_command {
            writeln!(output, "----").unwrap();
            output.push_str(&happened);
        }
        output.push('\n');
    }
    format!("{}\n", output.trim_end())
}
