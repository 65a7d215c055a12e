//! Gangs of many queues that wait on full nodes: what a cycle costs in which nothing fits.

use std::time::{Duration, Instant};

use phalanx_common::gang::GangSpec;
use phalanx_common::ids::{PodUid, QueueName, Term};
use phalanx_common::queue::QueueSpec;
use phalanx_common::units::Time;
use phalanx_core::action::Action;
use phalanx_core::event::{Event, OtherPod};
use phalanx_core::{Core, Settings};

use crate::{gang, hello, node_name, pod, pod_request};

/// A cluster whose nodes have one GPU left each, and gangs that ask for two, four or eight.
pub struct Waiting {
    core: Core,
    actions: Vec<Action>,
    rounds: usize,
}

impl Waiting {
    /// So many gangs wait, in so many queues of different weights.
    #[must_use]
    pub fn new(nodes: usize, queues: usize, gangs: usize) -> Self {
        let mut waiting = Self { core: Core::new(Settings::default()), actions: Vec::new(), rounds: 0 };
        waiting.apply(Event::Started { term: Term { counter: 1, incarnation: 1 } });
        for queue in 0..queues {
            let weight = queue as u32 % 7 + 1;
            waiting.apply(Event::QueueApplied(QueueSpec { weight, ..QueueSpec::new(queue_name(queue)) }));
        }
        waiting.apply(Event::Synced);
        for node in 0..nodes {
            waiting.apply(Event::AgentConnected { session: node as u64 + 1, hello: Box::new(hello(node)) });
            waiting.apply(other(node, 0));
        }
        for number in 0..gangs {
            let name = format!("g{number}");
            let spec = GangSpec { queue: queue_name(number % queues), ..gang(&name) };
            waiting.apply(Event::GangApplied(spec));
            waiting.apply(Event::PodApplied(Box::new(pod(&name, [2, 4, 8][number % 3], None))));
        }
        waiting.cycle();
        waiting
    }

    fn apply(&mut self, event: Event) {
        self.core.apply(event, Time(1000), &mut self.actions);
    }

    /// Time of a cycle; what it asks for is dropped.
    pub fn cycle(&mut self) -> Duration {
        self.actions.clear();
        let start = Instant::now();
        self.core.cycle(Time(1000), &mut self.actions);
        start.elapsed()
    }

    /// Time of a cycle after something on one node changed that helps nobody: all gangs are tried again.
    pub fn try_all(&mut self) -> Duration {
        self.rounds += 1;
        self.apply(Event::PodDeleted(other_uid(0, self.rounds - 1)));
        self.apply(other(0, self.rounds));
        self.cycle()
    }
}

fn queue_name(queue: usize) -> QueueName {
    QueueName::from(format!("q{queue:03}").as_str())
}

fn other_uid(node: usize, round: usize) -> PodUid {
    PodUid::from(format!("other-{node}-{round}"))
}

/// A pod of another scheduler that has seven GPUs of a node.
fn other(node: usize, round: usize) -> Event {
    Event::OtherPodApplied(Box::new(OtherPod {
        uid: other_uid(node, round),
        node: node_name(node),
        scheduler: "other".into(),
        request: pod_request(7).effective(),
        host_ports: Vec::new(),
        mounts: None,
    }))
}
