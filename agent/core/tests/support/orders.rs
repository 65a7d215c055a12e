//! One machine whose messages come in any order, and what must hold then.

use std::collections::BTreeSet;

use phalanx_common::ids::{ClusterId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, LeaseState, ToAgent};
use phalanx_node_core::{Action, Core, DurableState, Event, Ledger, LinkId, invariants};

const LINK: LinkId = LinkId(0);

const LEASES: [LeaseId; 3] = [
    LeaseId { term: 1, serial: 1 },
    // Another lease of the same leader for one of its GPUs.
    LeaseId { term: 1, serial: 2 },
    // A lease of the next leader for the same pod.
    LeaseId { term: 2, serial: 1 },
];

fn term(counter: u64) -> Term {
    Term { counter, incarnation: 77 + counter }
}

/// Something that may happen at any moment.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Kind of message, lease, counter of its term.
    Deliver(u8, usize, u64),
    /// The write ends well.
    DiskOk,
    /// The write fails; the bytes may have reached the disk.
    DiskFail { written: bool },
    /// The process dies; a write under way may have reached the disk.
    Crash { written: bool, reboot: bool },
    /// The connection breaks and comes back; the leader then has this counter.
    Reconnect(u64),
    /// A pod that runs ends by itself.
    PodEnds,
    /// A pod that is being stopped is gone.
    PodGone,
    /// Time passes.
    Wait(u64),
}

/// One machine, its disk and its pods.
pub struct World {
    pub core: Core,
    now: Time,
    boot: u32,
    disk: Option<Ledger>,
    writing: Vec<(u64, Ledger)>,
    running: BTreeSet<PodUid>,
    stopping: BTreeSet<PodUid>,
}

impl World {
    pub fn new() -> Self {
        let mut world = Self {
            core: Core::new(NodeName::from("n1"), "boot", None, Time(0), &mut Vec::new()),
            now: Time(0),
            boot: 0,
            disk: None,
            writing: Vec::new(),
            running: BTreeSet::new(),
            stopping: BTreeSet::new(),
        };
        world.begin();
        world.connect(1);
        world
    }

    fn begin(&mut self) {
        let mut actions = Vec::new();
        let boot = format!("boot-{}", self.boot);
        self.core = Core::new(NodeName::from("n1"), &boot, self.disk.clone(), self.now, &mut actions);
        self.writing.clear();
        self.running.clear();
        self.stopping.clear();
        self.obey(actions);
        self.apply(Event::Inventory(super::inventory(3, 8000, 1 << 30)));
    }

    fn connect(&mut self, counter: u64) {
        self.apply(Event::LinkDown(LINK));
        self.apply(Event::LinkUp(LINK));
        let welcome = ToAgent::Welcome { version: 2, cluster: ClusterId::from("c"), term: term(counter) };
        self.apply(Event::Message(LINK, welcome));
    }

    fn apply(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.core.apply(event, self.now, &mut actions);
        self.obey(actions);
        invariants::check(&self.core).unwrap();
    }

    /// What the disk holds of a lease.
    fn on_disk(&self, lease: LeaseId) -> Option<DurableState> {
        let ledger = self.disk.as_ref()?;
        ledger.leases.iter().find(|stored| stored.lease == lease).map(|stored| stored.state)
    }

    /// Does what the machine asks for, and checks that it says nothing before the disk holds it.
    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Persist { revision, ledger } => self.writing.push((revision, ledger)),
                Action::StartPod { pod, lease, .. } => {
                    let started = matches!(self.on_disk(lease), Some(DurableState::Started { .. }));
                    assert!(started, "{pod} starts before the disk holds it");
                    assert!(self.running.insert(pod.clone()), "{pod} starts twice");
                }
                Action::StopPod { pod } => {
                    self.stopping.insert(pod);
                }
                Action::Send(_, FromAgent::LeaseIs { lease, state, .. }) => self.check_said(lease, state),
                Action::Send(_, FromAgent::Hello(hello)) => {
                    hello.leases.iter().for_each(|report| self.check_said(report.lease, report.state));
                }
                Action::Send(_, FromAgent::Refused { leases, .. }) => {
                    leases.iter().for_each(|report| self.check_said(report.lease, report.state));
                }
                Action::Send(_, FromAgent::Reserved { term, .. }) => {
                    let known = self.disk.as_ref().map(|ledger| ledger.highest_term);
                    assert!(known >= Some(term), "answered under {term} while the disk holds {known:?}");
                }
                Action::SetAside { .. } => panic!("there is one cluster only"),
                Action::Send(..) | Action::Warn(_) => {}
            }
        }
    }

    fn check_said(&self, lease: LeaseId, state: LeaseState) {
        let stored = self.on_disk(lease);
        let holds = match state {
            LeaseState::Reserved | LeaseState::Releasing => true,
            LeaseState::Armed | LeaseState::Bound => stored.is_some(),
            LeaseState::Started => {
                matches!(stored, Some(DurableState::Started { .. } | DurableState::Releasing))
            }
            LeaseState::Gone => stored.is_none(),
        };
        assert!(holds, "{lease} is said to be {state:?}, the disk holds {stored:?}");
    }

    pub fn step(&mut self, step: Step) {
        match step {
            Step::Deliver(kind, lease, counter) => {
                self.apply(Event::Message(LINK, message(kind, lease, counter)))
            }
            Step::DiskOk => {
                if let Some((revision, ledger)) = self.writing.pop() {
                    self.writing.clear();
                    self.disk = Some(ledger);
                    self.apply(Event::Persisted { revision });
                }
            }
            Step::DiskFail { written } => {
                if !self.writing.is_empty() {
                    let (revision, ledger) = self.writing.remove(0);
                    if written {
                        self.disk = Some(ledger);
                    }
                    self.apply(Event::PersistFailed { revision, message: "disk".to_owned() });
                }
            }
            Step::Crash { written, reboot } => {
                if let (true, Some((_, ledger))) = (written, self.writing.first()) {
                    self.disk = Some(ledger.clone());
                }
                if reboot {
                    self.boot += 1;
                    self.now = Time(0);
                }
                let counter = self.core.highest_term().counter;
                self.begin();
                self.connect(counter.max(1));
            }
            Step::Reconnect(counter) => self.connect(counter),
            Step::PodEnds => {
                let ended = self.running.iter().find(|pod| !self.stopping.contains(*pod)).cloned();
                if let Some(pod) = ended {
                    self.running.remove(&pod);
                    self.apply(Event::PodEnded { pod, succeeded: true });
                }
            }
            Step::PodGone => {
                if let Some(pod) = self.stopping.pop_first() {
                    self.running.remove(&pod);
                    self.apply(Event::PodStopped { pod });
                }
            }
            Step::Wait(milliseconds) => {
                self.now = self.now + Millis(milliseconds);
                self.apply(Event::Tick);
            }
        }
    }

    /// Each GPU is free or has one holder, and the pods that run are those of started leases.
    pub fn check_holders(&self) {
        for pod in &self.running {
            let id = self.core.leases().of_pod(pod);
            assert!(id.is_some(), "{pod} runs without a lease");
        }
    }

    /// Faults stop: the disk works, pods stop when told to, and a third leader releases what it reads in Hello.
    pub fn settle(&mut self) {
        self.step(Step::Wait(3_600_000));
        self.drain();
        self.connect(3);
        let held: Vec<LeaseId> = self.core.leases().iter().map(|(id, _)| *id).collect();
        for lease in held {
            self.apply(Event::Message(LINK, ToAgent::Release { term: term(3), lease }));
            self.drain();
        }
        assert_eq!(self.core.leases().iter().count(), 0, "a lease is left");
        assert_eq!(self.running.len(), 0, "a pod is left");
        assert!(self.disk.as_ref().is_none_or(|ledger| ledger.leases.is_empty()), "the disk holds a lease");
    }

    fn drain(&mut self) {
        for _ in 0..4 {
            self.step(Step::DiskOk);
            self.step(Step::PodGone);
            self.step(Step::Wait(1_000));
        }
    }
}

fn message(kind: u8, which: usize, counter: u64) -> ToAgent {
    let (term, lease) = (term(counter), LEASES[which]);
    // The first two share GPU 1, the first and the last are of one pod.
    let (pod, gpus): (&str, &[u128]) = [("a", [0, 1].as_slice()), ("b", &[1, 2]), ("a", &[0, 1])][which];
    let wish = super::Wish {
        pod,
        gpus,
        asked: gpus.len() as u64,
        cpu_milli: 1000,
        memory_bytes: 1 << 20,
        run_for: None,
    };
    match kind {
        0 => ToAgent::Reserve {
            term,
            lease,
            request: Box::new(super::request(&wish)),
            expires_in_ms: Millis(2_000),
        },
        1 => ToAgent::Arm { term, lease },
        2 => ToAgent::Bound { term, lease },
        3 => ToAgent::GangBound { term, lease },
        _ => ToAgent::Release { term, lease },
    }
}

/// Plays every sequence of five of these, with a disk that is quick: five messages of one lease, a crash, a new
/// leader, and the end of the reservation.
pub fn every_short_order() {
    let alphabet = [
        Step::Deliver(0, 0, 1),
        Step::Deliver(1, 0, 1),
        Step::Deliver(2, 0, 1),
        Step::Deliver(3, 0, 1),
        Step::Deliver(4, 0, 1),
        Step::Crash { written: false, reboot: false },
        Step::Reconnect(2),
        Step::Wait(2_000),
    ];
    let length = 5_u32;
    let mut held = 0;
    for number in 0..alphabet.len().pow(length) {
        let mut world = World::new();
        world.step(Step::DiskOk);
        let mut rest = number;
        for _ in 0..length {
            world.step(alphabet[rest % alphabet.len()]);
            world.step(Step::DiskOk);
            world.check_holders();
            rest /= alphabet.len();
        }
        held += usize::from(world.core.leases().iter().count() == 1);
        world.settle();
    }
    // The test would prove nothing if no order left a lease behind.
    assert!(held > 1_000, "{held} orders end with a holder");
}
