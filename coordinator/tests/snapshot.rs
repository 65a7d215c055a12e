//! What a part of a recording begins with: how large it is, how long the loop stands still for it, and that it goes on
//! as the machine did. `PHALANX_WHOLE_CASES=1 cargo test --release -p phalanx-coordinator --test snapshot --
//! --nocapture` measures 10,000 nodes.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use phalanx_common::constraints::{LabelOperator, LabelRequirement, NAME_FIELD, NodeTerm};
use phalanx_common::gang::{
    ContainerKind, ContainerRequest, GangSpec, PodBinding, PodClaim, PodPhase, PodRequest, PodSpec,
};
use phalanx_common::ids::{GangName, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::Time;
use phalanx_common::wire::{Hello, ToAgent, VERSION};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::{ClaimSpec, ClaimState, Event};
use phalanx_core::{Core, Settings};
use support::cluster::inventory;

fn node(number: u128) -> NodeName {
    NodeName::from(format!("node-{number:05}"))
}

fn gang(name: &str) -> Event {
    Event::GangApplied(GangSpec {
        name: GangName::new("default", name),
        uid: Arc::from(name),
        created: Time(1),
        queue: QueueName::from("default"),
        min_member: 1,
        min_task_member: BTreeMap::new(),
        min_resources: None,
        priority_class: None,
        mixed_gpu_models: false,
        policy: Default::default(),
        shown: None,
    })
}

/// A claim whose volume, where it has one, is reached from one node only.
fn claim(name: &str, from: Option<NodeName>) -> Event {
    let bound = |node: NodeName| {
        let values = vec![node.as_str().into()];
        let there = LabelRequirement { key: NAME_FIELD.into(), operator: LabelOperator::In, values };
        let term = NodeTerm { labels: Vec::new(), fields: vec![there] };
        ClaimState::Bound { reachable_from: Some(Arc::from(vec![term])) }
    };
    Event::ClaimApplied(Box::new(ClaimSpec {
        name: GangName::new("default", name),
        created: Time(1),
        one_pod: true,
        owner: None,
        state: from.map_or(ClaimState::Binding, bound),
    }))
}

/// A pod that mounts a claim of its own name.
fn pod_with_claim(name: &str) -> Event {
    let Event::PodApplied(mut spec) = pod(name, 1, None) else { unreachable!() };
    spec.claims = vec![PodClaim { name: name.into(), own: false }];
    Event::PodApplied(spec)
}

fn pod(name: &str, gpus: u64, binding: Option<PodBinding>) -> Event {
    let requests =
        Resources::new().with(ResourceName::known(NVIDIA_GPU), gpus).with(ResourceName::known(CPU), 4000);
    let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
    Event::PodApplied(Box::new(PodSpec {
        uid: PodUid::from(name),
        name: GangName::new("default", name),
        gang: GangName::new("default", name),
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
        phase: if binding.is_some() { PodPhase::Running } else { PodPhase::Pending },
        binding,
        deleting: false,
        term: 0,
    }))
}

/// So many nodes of eight GPUs, each with a pod of four.
fn cluster(nodes: u128) -> Core {
    let mut core = Core::new(Settings::default());
    let mut actions = Vec::new();
    let now = Time(1000);
    let mut events = vec![Event::Started { term: Term { counter: 2, incarnation: 1 } }];
    for (name, from) in [("there", Some(node(3))), ("hangs", None)] {
        events.extend([claim(name, from), gang(name), pod_with_claim(name)]);
    }
    for number in 0..nodes {
        let gpus = inventory(number, 8).gpus.iter().take(4).map(|gpu| gpu.id).collect();
        let lease = Some(LeaseId { term: 1, serial: number as u64 + 1 });
        let name = format!("running-{number}");
        events.extend([gang(&name), pod(&name, 4, Some(PodBinding { node: node(number), lease, gpus }))]);
    }
    events.push(Event::Synced);
    for number in 0..nodes {
        let hello = Hello {
            oldest_version: 1,
            newest_version: VERSION,
            node: node(number),
            cluster: None,
            highest_term: Term::default(),
            inventory: inventory(number, 8),
            leases: Vec::new(),
        };
        events.push(Event::AgentConnected { session: number as u64 + 1, hello: Box::new(hello) });
    }
    events.into_iter().for_each(|event| core.apply(event, now, &mut actions));
    core.cycle(now, &mut actions);
    core
}

/// The nodes whose agents are asked for a place for a pod.
fn asked_for(pod: &str, actions: &[Action]) -> Vec<NodeName> {
    let asked = actions.iter().filter_map(|action| match &action.command {
        Command::Send { node, message, .. } => match &**message {
            ToAgent::Reserve { request, .. } if request.pod.as_str() == pod => Some(node.clone()),
            _ => None,
        },
        _ => None,
    });
    asked.collect()
}

#[test]
fn a_machine_that_was_written_and_read_back_goes_on_as_it_did() {
    let is_whole = std::env::var_os("PHALANX_WHOLE_CASES").is_some();
    let nodes = if is_whole { 10_000 } else { 100 };
    let mut core = cluster(nodes);
    let began = Instant::now();
    let snapshot = core.snapshot();
    let stood_still = began.elapsed();
    let text = serde_json::to_vec(&snapshot).unwrap();
    println!(
        "{nodes} nodes: the loop stands still for {stood_still:?}; {} bytes, {} a node, written in {:?} elsewhere",
        text.len(),
        text.len() / usize::try_from(nodes).unwrap(),
        began.elapsed() - stood_still
    );
    assert!(text.len() < 12_000 * usize::try_from(nodes).unwrap(), "{} bytes", text.len());
    let mut read: Core = serde_json::from_slice(&text).unwrap();
    let mut texts = vec![Vec::new(), Vec::new()];
    for (core, actions) in [&mut core, &mut read].into_iter().zip(&mut texts) {
        for (at, gpus) in (2000..).map(Time).zip([1, 8, 4, 16, 2]) {
            let name = format!("new-{gpus}");
            core.apply(gang(&name), at, actions);
            core.apply(pod(&name, gpus, None), at, actions);
            core.cycle(at, actions);
        }
        assert_eq!(asked_for("hangs", actions), []);
        core.apply(claim("hangs", Some(node(50))), Time(3000), actions);
        core.cycle(Time(3000), actions);
        assert_eq!(asked_for("hangs", actions), [node(50)]);
    }
    assert!(texts[0].len() > 10);
    assert_eq!(texts[0], texts[1]);
    // What is remembered only to be quick is the one thing that is not written.
    assert_eq!(
        serde_json::to_value(core.snapshot()).unwrap(),
        serde_json::to_value(read.snapshot()).unwrap()
    );
}
