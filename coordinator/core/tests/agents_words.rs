//! What an agent says, however much of it and whatever it is, leaves nothing behind that grows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::ids::{GangName, LeaseId, NodeName, PodUid, Term};
use phalanx_common::resources::{CPU, ResourceName, Resources};
use phalanx_common::topology::Inventory;
use phalanx_common::units::Time;
use phalanx_common::wire::{Exactness, FromAgent, Hello, LeaseReport, LeaseRequest, LeaseState, ToAgent};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

const TERM: Term = Term { counter: 3, incarnation: 3 };

fn core() -> Core {
    let mut core = Core::new(Settings::default());
    for event in [Event::Started { term: TERM }, Event::Synced] {
        core.apply(event, Time(0), &mut Vec::new());
    }
    core
}

/// A lease of an earlier term, whose pod asks for something that nobody has heard of.
fn stranger(number: u64) -> LeaseReport {
    let odd = ResourceName::parse(&format!("example.com/odd-{number}")).unwrap();
    let requests = Resources::new().with(ResourceName::known(CPU), 1_000).with(odd, 1);
    let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
    let request = LeaseRequest {
        pod: PodUid::from(format!("pod-{number}").as_str()),
        pod_name: GangName::new("default", &format!("pod-{number}")),
        gang: GangName::new("default", "gang"),
        request: PodRequest { containers: vec![container], overhead: Resources::new() },
        devices: Vec::new(),
        exactness: Exactness::Exact,
        run_for: None,
    };
    LeaseReport { lease: LeaseId { term: 1, serial: number }, state: LeaseState::Reserved, request }
}

fn apply(core: &mut Core, event: Event, now: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    core.apply(event, Time(now), &mut actions);
    core.cycle(Time(now), &mut actions);
    actions
}

#[test]
fn leases_of_strangers_name_what_they_like() {
    let mut core = core();
    let node = NodeName::from("n1");
    for session in 1..=200 {
        let hello = Hello {
            oldest_version: 1,
            newest_version: 2,
            node: node.clone(),
            cluster: None,
            highest_term: Term::default(),
            inventory: Inventory::empty(64_000, 1 << 40),
            leases: (0..10).map(|at| stranger(session * 100 + at)).collect(),
        };
        let mut actions =
            apply(&mut core, Event::AgentConnected { session, hello: Box::new(hello) }, session);
        let view = core.view();
        assert_eq!(view.nodes[0].free.get(CPU), Some(54_000), "they count while they are there");
        for action in std::mem::take(&mut actions) {
            let Command::Send { message, .. } = action.command else { continue };
            let ToAgent::Release { term, lease } = *message else { panic!("{message:?}") };
            let message = Box::new(FromAgent::LeaseIs { term, lease, state: LeaseState::Gone });
            apply(&mut core, Event::AgentSaid { node: node.clone(), session, message }, session);
        }
        let kept: BTreeMap<_, _> = core.kept_of_cluster().into_iter().chain(core.kept()).collect();
        assert_eq!((kept["leases"], kept["resource_names"]), (0, 0), "{kept:?}");
    }
}
