//! Gangs of many queues that wait on full nodes: what a cycle costs in which nothing fits.

use std::time::{Duration, Instant};

use phalanx_common::gang::{GangSpec, PodBinding};
use phalanx_common::ids::{LeaseId, PodUid, QueueName, Term};
use phalanx_common::queue::QueueSpec;
use phalanx_common::units::Time;
use phalanx_core::action::Action;
use phalanx_core::event::{Event, OtherPod};
use phalanx_core::{Core, Settings};

use crate::{GPUS_PER_NODE, gang, gpu_id, hello, node_name, pod, pod_request};

/// GPUs of a node that are in use: one is left, and nobody asks for one.
const USED: usize = GPUS_PER_NODE - 1;

/// Later than the wait after which places are held for a gang.
const LATE: Time = Time(3_600_000);

/// Who uses the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Pods of another scheduler: nobody can be evicted, and no end is known.
    Others,
    /// A gang of one pod a node, of the same queues and of the same priority as those that wait.
    Gangs,
}

/// A cluster whose nodes have one GPU left each, and gangs that ask for more.
pub struct Waiting {
    core: Core,
    actions: Vec<Action>,
    rounds: usize,
    now: Time,
}

impl Waiting {
    /// So many gangs wait in so many queues, each of which has its share. They are of so many sizes: of 1 to `sizes / 3 + 1` pods
    /// of 2, 4 or 8 GPUs.
    #[must_use]
    pub fn new(nodes: usize, queues: usize, gangs: usize, users: Users, sizes: usize) -> Self {
        let core = Core::new(Settings::default());
        let mut waiting = Self { core, actions: Vec::new(), rounds: 0, now: Time(1000) };
        waiting.apply(Event::Started { term: Term { counter: 1, incarnation: 1 } });
        for queue in 0..queues {
            waiting.apply(Event::QueueApplied(QueueSpec::new(queue_name(queue))));
        }
        for node in (0..nodes).filter(|_| users == Users::Gangs) {
            waiting.run(node, node % queues);
        }
        waiting.apply(Event::Synced);
        for node in 0..nodes {
            waiting.apply(Event::AgentConnected { session: node as u64 + 1, hello: Box::new(hello(node)) });
            if users == Users::Others || node == 0 {
                waiting.apply(other(node, 0, if users == Users::Others { USED as u64 } else { 0 }));
            }
        }
        for number in 0..gangs {
            let name = format!("g{number}");
            let size = number % sizes;
            let min_member = size as u32 / 3 + 1;
            let spec = GangSpec { queue: queue_name(number % queues), min_member, ..gang(&name) };
            waiting.apply(Event::GangApplied(spec));
            for at in 0..min_member {
                let mut pod = pod(&format!("{name}-{at}"), [2, 4, 8][size % 3], None);
                pod.gang = gang(&name).name;
                waiting.apply(Event::PodApplied(Box::new(pod)));
            }
        }
        waiting.cycle();
        waiting.cycle();
        waiting
    }

    /// A gang that was found running on all of a node but one GPU.
    fn run(&mut self, node: usize, queue: usize) {
        let name = format!("running-{node}");
        let binding = PodBinding {
            node: node_name(node),
            lease: Some(LeaseId { term: 0, serial: node as u64 + 1 }),
            gpus: (0..USED).map(|at| gpu_id(node, at)).collect(),
        };
        self.apply(Event::GangApplied(GangSpec { queue: queue_name(queue), ..gang(&name) }));
        self.apply(Event::PodApplied(Box::new(pod(&name, USED as u64, Some(binding)))));
    }

    fn apply(&mut self, event: Event) {
        self.core.apply(event, self.now, &mut self.actions);
    }

    /// All have waited so long that places are held for them; the cycle in which that is done is not measured.
    pub fn grow_old(&mut self) {
        self.now = LATE;
        self.cycle();
        self.try_all();
    }

    /// Time of a cycle; what it asks for is dropped.
    pub fn cycle(&mut self) -> Duration {
        self.actions.clear();
        let start = Instant::now();
        self.core.cycle(self.now, &mut self.actions);
        start.elapsed()
    }

    /// Time of a cycle after something on one node changed that helps nobody: all who wait may have a chance.
    pub fn try_all(&mut self) -> Duration {
        self.rounds += 1;
        let round = self.rounds;
        let gpus = if self.core.totals().gpus_held == 0 { USED as u64 } else { 0 };
        self.apply(Event::PodDeleted(other_uid(0, round - 1)));
        self.apply(other(0, round, gpus));
        self.cycle()
    }
}

fn queue_name(queue: usize) -> QueueName {
    QueueName::from(format!("q{queue:03}").as_str())
}

fn other_uid(node: usize, round: usize) -> PodUid {
    PodUid::from(format!("other-{node}-{round}"))
}

/// A pod of another scheduler on a node.
fn other(node: usize, round: usize, gpus: u64) -> Event {
    Event::OtherPodApplied(Box::new(OtherPod {
        uid: other_uid(node, round),
        node: node_name(node),
        scheduler: "other".into(),
        request: pod_request(gpus).effective(),
        host_ports: Vec::new(),
        mounts: None,
    }))
}
