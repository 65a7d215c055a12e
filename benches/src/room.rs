//! An urgent gang on full nodes: what the plan of its evictions costs.

use std::time::{Duration, Instant};

use phalanx_common::gang::{GangSpec, PodBinding};
use phalanx_common::ids::{GangName, LeaseId, PodUid, Term};
use phalanx_common::queue::PriorityClassSpec;
use phalanx_common::units::Time;
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

use crate::{GPUS_PER_NODE, gang, gpu_id, hello, node_name, pod};

/// Nodes on which less urgent gangs run: of one pod of eight GPUs, or of eight pods of one, in turn.
pub struct Full {
    core: Core,
    actions: Vec<Action>,
    now: Time,
    leases: u64,
    rounds: u64,
}

impl Full {
    /// So many nodes, all of them full.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let core = Core::new(Settings::default());
        let mut full = Self { core, actions: Vec::new(), now: Time(1000), leases: 0, rounds: 0 };
        full.apply(Event::Started { term: Term { counter: 1, incarnation: 1 } });
        full.apply(Event::PriorityClassApplied(PriorityClassSpec {
            name: "urgent".into(),
            value: 100,
            global_default: false,
            preempts: true,
        }));
        for node in 0..nodes {
            let pods = if node % 2 == 0 { 1 } else { GPUS_PER_NODE };
            full.run(node, pods);
        }
        full.apply(Event::Synced);
        for node in 0..nodes {
            full.apply(Event::AgentConnected { session: node as u64 + 1, hello: Box::new(hello(node)) });
        }
        full.core.cycle(full.now, &mut full.actions);
        full
    }

    fn run(&mut self, node: usize, pods: usize) {
        let name = format!("running-{node}");
        self.apply(Event::GangApplied(GangSpec { min_member: pods as u32, ..gang(&name) }));
        let size = GPUS_PER_NODE / pods;
        for at in 0..pods {
            self.leases += 1;
            let binding = PodBinding {
                node: node_name(node),
                lease: Some(LeaseId { term: 0, serial: self.leases }),
                gpus: (at * size..(at + 1) * size).map(|gpu| gpu_id(node, gpu)).collect(),
            };
            let mut pod = pod(&format!("{name}-{at}"), size as u64, Some(binding));
            pod.gang = gang(&name).name;
            self.apply(Event::PodApplied(Box::new(pod)));
        }
    }

    fn apply(&mut self, event: Event) {
        self.core.apply(event, self.now, &mut self.actions);
    }

    /// Time from the events of an urgent gang of so many pods of eight GPUs to the plan of its evictions. The gang is
    /// removed again, unmeasured, before anybody goes.
    pub fn plan(&mut self, pods: u32) -> Duration {
        self.rounds += 1;
        let name = format!("urgent-{}", self.rounds);
        let spec = GangSpec { min_member: pods, priority_class: Some("urgent".into()), ..gang(&name) };
        let group = spec.name.clone();
        let of_gang = (0..pods).map(|at| {
            let mut pod = pod(&format!("{name}-{at}"), GPUS_PER_NODE as u64, None);
            pod.gang = group.clone();
            Event::PodApplied(Box::new(pod))
        });
        let events: Vec<Event> = std::iter::once(Event::GangApplied(spec)).chain(of_gang).collect();
        self.actions.clear();
        let start = Instant::now();
        for event in events {
            self.core.apply(event, self.now, &mut self.actions);
        }
        self.core.cycle(self.now, &mut self.actions);
        let took = start.elapsed();
        let is_plan = |action: &Action| match &action.command {
            Command::WritePlan(plan) => plan.victims.len() >= pods as usize,
            _ => false,
        };
        if !self.actions.iter().any(is_plan) {
            std::process::abort();
        }
        self.remove(&name, pods);
        took
    }

    fn remove(&mut self, name: &str, pods: u32) {
        for at in 0..pods {
            self.apply(Event::PodDeleted(PodUid::from(format!("{name}-{at}"))));
        }
        self.apply(Event::GangDeleted(GangName::new("bench", name)));
        self.core.cycle(self.now, &mut self.actions);
        // Others may be evicted for the next one at once.
        self.now = Time(self.now.0 + 3_600_000);
        self.core.cycle(self.now, &mut self.actions);
    }
}
