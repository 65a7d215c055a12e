//! What the benches share: a cluster of a given size in the real core, and one decision in it.

pub mod room;
pub mod waiting;

use std::time::{Duration, Instant};

use phalanx_common::gang::{
    ContainerKind, ContainerRequest, GangSpec, PodBinding, PodPhase, PodRequest, PodSpec,
};
use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::resources::{CPU, MEMORY, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel, ProbeState};
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, Hello, LeaseState, ToAgent};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

/// GPUs of every node.
pub const GPUS_PER_NODE: usize = 8;

/// Inventory of a node with eight GPUs behind NVSwitches.
#[must_use]
pub fn inventory(node: usize) -> Inventory {
    let link = |first: usize, second: usize| GpuLink {
        nvlinks: if first == second { 0 } else { 18 },
        pcie: if first == second {
            PcieLevel::Pix
        } else if first / 4 == second / 4 {
            PcieLevel::Node
        } else {
            PcieLevel::Sys
        },
    };
    let gpu = |at: usize| Gpu {
        id: gpu_id(node, at),
        index: at as u32,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_mib: Some(81_559),
        pci_bus_id: format!("0000:{at:02x}:00.0"),
        numa: Some((at / 4) as u32),
        health: GpuHealth::Healthy,
    };
    let all = 0..GPUS_PER_NODE;
    Inventory {
        state: ProbeState::Ready,
        driver: "580.82.07".to_owned(),
        cpu_milli: 192_000,
        memory_bytes: 2 << 40,
        gpus: all.clone().map(gpu).collect(),
        links: all.clone().map(|first| all.clone().map(|second| link(first, second)).collect()).collect(),
        nics: Vec::new(),
    }
}

/// UUID of a GPU.
#[must_use]
pub fn gpu_id(node: usize, at: usize) -> GpuId {
    GpuId((node as u128) << 8 | at as u128)
}

/// Name of a node.
#[must_use]
pub fn node_name(node: usize) -> NodeName {
    NodeName::from(format!("node-{node:05}"))
}

/// What a pod of so many GPUs asks for.
#[must_use]
pub fn pod_request(gpus: u64) -> PodRequest {
    let requests = Resources::new()
        .with(ResourceName::known(NVIDIA_GPU), gpus)
        .with(ResourceName::known(CPU), 4000 * gpus)
        .with(ResourceName::known(MEMORY), (32 << 30) * gpus);
    let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
    PodRequest { containers: vec![container], overhead: Resources::new() }
}

/// What the agent of a node says first: it holds nothing.
#[must_use]
pub fn hello(node: usize) -> Hello {
    Hello {
        oldest_version: 1,
        newest_version: 2,
        node: node_name(node),
        cluster: None,
        highest_term: Term::default(),
        inventory: inventory(node),
        leases: Vec::new(),
    }
}

fn pod(name: &str, gpus: u64, binding: Option<PodBinding>) -> PodSpec {
    PodSpec {
        uid: PodUid::from(name),
        name: GangName::new("bench", name),
        gang: GangName::new("bench", name),
        task: "worker".into(),
        request: pod_request(gpus),
        node_selector: Default::default(),
        group_uid: Default::default(),
        policy: Default::default(),
        constraints: Default::default(),
        claims: Vec::new(),
        blockers: Vec::new(),
        run_for: None,
        resource_version: 1,
        phase: if binding.is_some() { PodPhase::Running } else { PodPhase::Pending },
        binding,
        deleting: false,
        term: 0,
    }
}

fn gang(name: &str) -> GangSpec {
    GangSpec {
        name: GangName::new("bench", name),
        uid: name.into(),
        created: Time(1),
        queue: QueueName::from("default"),
        min_member: 1,
        min_task_member: Default::default(),
        min_resources: None,
        priority_class: None,
        mixed_gpu_models: false,
        policy: Default::default(),
        shown: None,
    }
}

/// A cluster in the real core, with a third of its nodes half used by running pods.
pub struct Cluster {
    core: Core,
    actions: Vec<Action>,
    now: Time,
    next_pod: u64,
}

impl Cluster {
    /// `nodes` nodes of eight GPUs; every third runs a pod of four.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let mut cluster =
            Self { core: Core::new(Settings::default()), actions: Vec::new(), now: Time(1000), next_pod: 0 };
        cluster.apply(Event::Started { term: Term { counter: 1, incarnation: 1 } });
        for node in (0..nodes).step_by(3) {
            let name = format!("running-{node}");
            let binding = PodBinding {
                node: node_name(node),
                lease: Some(LeaseId { term: 0, serial: node as u64 + 1 }),
                gpus: (0..GPUS_PER_NODE / 2).map(|at| gpu_id(node, at)).collect(),
            };
            cluster.apply(Event::GangApplied(gang(&name)));
            cluster.apply(Event::PodApplied(Box::new(pod(&name, 4, Some(binding)))));
        }
        cluster.apply(Event::Synced);
        for node in 0..nodes {
            cluster.apply(Event::AgentConnected { session: node as u64 + 1, hello: Box::new(hello(node)) });
        }
        cluster.core.cycle(cluster.now, &mut cluster.actions);
        cluster
    }

    fn apply(&mut self, event: Event) {
        self.core.apply(event, self.now, &mut self.actions);
    }

    /// Time from the events of a new one-pod gang to its Reserve action; the gang is removed again,
    /// unmeasured.
    pub fn decide(&mut self, gpus: u64) -> Duration {
        self.next_pod += 1;
        let name = format!("new-{}", self.next_pod);
        let (gang, pod) = (gang(&name), Box::new(pod(&name, gpus, None)));
        self.actions.clear();
        let start = Instant::now();
        self.core.apply(Event::GangApplied(gang), self.now, &mut self.actions);
        self.core.apply(Event::PodApplied(pod), self.now, &mut self.actions);
        self.core.cycle(self.now, &mut self.actions);
        let took = start.elapsed();
        self.remove(&name);
        took
    }

    fn remove(&mut self, name: &str) {
        let reserve = self.actions.iter().find_map(|action| match &action.command {
            Command::Send { node, session, message } => match **message {
                ToAgent::Reserve { term, lease, .. } => Some((node.clone(), *session, term, lease)),
                _ => None,
            },
            _ => None,
        });
        let Some((node, session, term, lease)) = reserve else { std::process::abort() };
        self.apply(Event::PodDeleted(PodUid::from(name)));
        self.apply(Event::GangDeleted(GangName::new("bench", name)));
        self.core.cycle(self.now, &mut self.actions);
        let gone = Box::new(FromAgent::LeaseIs { term, lease, state: LeaseState::Gone });
        self.apply(Event::AgentSaid { node, session, message: gone });
        self.core.cycle(self.now, &mut self.actions);
    }
}

/// A row per node, as a scheduler without indexes keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    free_mask: u64,
    cpu_milli: u64,
    memory_bytes: u64,
}

/// The same cluster as rows.
#[must_use]
pub fn rows(nodes: usize) -> Vec<Row> {
    let row = |node: usize| Row {
        free_mask: if node.is_multiple_of(3) { 0xf0 } else { 0xff },
        cpu_milli: 192_000,
        memory_bytes: 2 << 40,
    };
    (0..nodes).map(row).collect()
}

/// The tightest row with room: one look at every row and nothing else.
#[must_use]
pub fn scan(rows: &[Row], gpus: u32) -> Option<usize> {
    let cpu_milli = 4000 * u64::from(gpus);
    let memory_bytes = (32_u64 << 30) * u64::from(gpus);
    let suits = |row: &Row| {
        row.free_mask.count_ones() >= gpus && row.cpu_milli >= cpu_milli && row.memory_bytes >= memory_bytes
    };
    let rows = rows.iter().enumerate().filter(|(_, row)| suits(row));
    rows.min_by_key(|(_, row)| row.free_mask.count_ones()).map(|(at, _)| at)
}
