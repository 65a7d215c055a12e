//! Ten thousand gangs in a hundred queues wait on five thousand full nodes: what a cycle costs in which nothing fits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_common::gang::{ContainerKind, ContainerRequest, GangSpec, PodPhase, PodRequest, PodSpec};
use phalanx_common::ids::{GangName, GpuId, NodeName, PodUid, QueueName, Term};
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel};
use phalanx_common::units::Time;
use phalanx_common::wire::Hello;
use phalanx_core::action::Action;
use phalanx_core::event::{Event, NodeSpec, OtherPod};
use phalanx_core::{Core, Settings};

struct Waiting {
    core: Core,
    actions: Vec<Action>,
}

fn resources(gpus: u64) -> Resources {
    Resources::new().with(ResourceName::known(NVIDIA_GPU), gpus).with(ResourceName::known(CPU), 4000 * gpus)
}

fn inventory(node: usize) -> Inventory {
    let gpu = |at: usize| Gpu {
        id: GpuId((node as u128) << 8 | at as u128),
        index: u32::try_from(at).unwrap(),
        model: "H100".to_owned(),
        memory_mib: None,
        pci_bus_id: format!("0000:{at:02x}:00.0"),
        numa: None,
        health: GpuHealth::Healthy,
    };
    let link = GpuLink { nvlinks: 12, pcie: PcieLevel::Pix };
    Inventory {
        gpus: (0..8).map(gpu).collect(),
        links: vec![vec![link; 8]; 8],
        ..Inventory::empty(192_000, 2 << 40)
    }
}

fn other(node: usize, name: String, gpus: u64) -> Event {
    Event::OtherPodApplied(Box::new(OtherPod {
        uid: PodUid::from(name),
        node: NodeName::from(format!("n{node}")),
        scheduler: "other".into(),
        request: resources(gpus),
        host_ports: Vec::new(),
        mounts: None,
    }))
}

impl Waiting {
    fn new(nodes: usize, queues: usize, gangs: usize) -> Self {
        let mut waiting = Self { core: Core::new(Settings::default()), actions: Vec::new() };
        waiting.apply(Event::Started { term: Term { counter: 1, incarnation: 1 } });
        for queue in 0..queues {
            let weight = u32::try_from(queue % 7 + 1).unwrap();
            waiting.apply(Event::QueueApplied(QueueSpec {
                weight,
                ..QueueSpec::new(format!("q{queue}").as_str().into())
            }));
        }
        waiting.apply(Event::Synced);
        for node in 0..nodes {
            let name = NodeName::from(format!("n{node}"));
            waiting.apply(Event::NodeApplied(NodeSpec {
                name: name.clone(),
                labels: BTreeMap::new(),
                allocatable: Resources::new(),
                unschedulable: false,
                taints: Vec::new(),
                ready: true,
            }));
            let hello = Hello {
                oldest_version: 1,
                newest_version: 2,
                node: name,
                cluster: None,
                highest_term: Term::default(),
                inventory: inventory(node),
                leases: Vec::new(),
            };
            waiting.apply(Event::AgentConnected { session: node as u64 + 1, hello: Box::new(hello) });
            waiting.apply(other(node, format!("other-{node}"), 7));
        }
        for gang in 0..gangs {
            let name = format!("g{gang}");
            waiting.apply(Event::GangApplied(GangSpec {
                name: GangName::new("bench", &name),
                uid: name.as_str().into(),
                created: Time(1),
                queue: QueueName::from(format!("q{}", gang % queues)),
                min_member: 1,
                min_task_member: BTreeMap::new(),
                min_resources: None,
                priority_class: None,
                mixed_gpu_models: false,
                policy: Default::default(),
                shown: None,
            }));
            let requests = resources([2, 4, 8][gang % 3]);
            let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
            waiting.apply(Event::PodApplied(Box::new(PodSpec {
                uid: PodUid::from(name.as_str()),
                name: GangName::new("bench", &name),
                gang: GangName::new("bench", &name),
                task: "worker".into(),
                request: PodRequest { containers: vec![container], overhead: Resources::new() },
                node_selector: BTreeMap::new(),
                group_uid: Default::default(),
                policy: Default::default(),
                constraints: Default::default(),
                claims: Vec::new(),
                blockers: Vec::new(),
                run_for: None,
                resource_version: 1,
                phase: PodPhase::Pending,
                binding: None,
                deleting: false,
                term: 0,
            })));
        }
        waiting
    }

    fn apply(&mut self, event: Event) {
        self.core.apply(event, Time(1000), &mut self.actions);
    }

    fn cycle(&mut self) -> Duration {
        self.actions.clear();
        let start = Instant::now();
        self.core.cycle(Time(1000), &mut self.actions);
        start.elapsed()
    }
}

#[test]
fn nothing_is_done_while_nothing_fits() {
    let many = std::env::var("PHALANX_MANY").is_ok();
    let (nodes, queues, gangs) = if many { (5_000, 100, 10_000) } else { (50, 10, 200) };
    let mut waiting = Waiting::new(nodes, queues, gangs);
    println!("first: {:?}", waiting.cycle());
    println!("second: {:?}", waiting.cycle());
    assert!(waiting.actions.is_empty(), "{:?}", waiting.actions);
    for round in 0..5 {
        // A node has a little more room, which helps nobody: all are tried again.
        waiting.apply(Event::PodDeleted(PodUid::from(format!("other-{round}"))));
        waiting.apply(other(round, format!("again-{round}"), 7));
        println!("all are tried again: {:?}", waiting.cycle());
        assert!(waiting.actions.is_empty(), "{:?}", waiting.actions);
    }
}
