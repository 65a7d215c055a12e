//! Agents that do not read, that say too much, and that all come back at once: the others' rounds go on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::support::PATIENCE;
use crate::support::cluster::inventory;
use crate::support::server::{INPUTS, Server, TERM, eventually};
use phalanx_agent::embedded::Agent;
use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::ids::{GangName, GpuId, LeaseId, PodUid};
use phalanx_common::resources::{NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::Millis;
use phalanx_common::wire::{ContainerDevices, Exactness, FromAgent, LeaseRequest, LeaseState, ToAgent};
use phalanx_coordinator::agents::{AgentInput, Outbox};

const GOOD: u128 = 4;
const ROUNDS: u64 = 20;
/// Messages of one connection that may wait for the loop.
const UNREAD: usize = 128;

fn reserve(node: u128, round: u64) -> ToAgent {
    let requests = Resources::new().with(ResourceName::known(NVIDIA_GPU), 1);
    let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
    let name = format!("pod-{node}-{round}");
    let request = LeaseRequest {
        pod: PodUid::from(name.as_str()),
        pod_name: GangName::new("load", &name),
        gang: GangName::new("load", "gang"),
        request: PodRequest { containers: vec![container], overhead: Resources::new() },
        devices: vec![ContainerDevices {
            container: "main".into(),
            gpus: vec![GpuId((node << 64) + 1)],
            nics: Vec::new(),
        }],
        exactness: Exactness::Exact,
        run_for: None,
    };
    ToAgent::Reserve {
        term: TERM,
        lease: lease(node, round),
        request: Box::new(request),
        expires_in_ms: Millis(60_000),
    }
}

fn lease(node: u128, round: u64) -> LeaseId {
    LeaseId { term: 1, serial: round * 1000 + node as u64 + 1 }
}

/// Outboxes of the good agents, by node; whoever else comes in is told to `other`.
async fn good_agents(server: &mut Server) -> (Vec<Agent>, BTreeMap<u128, Outbox>) {
    let mut agents = Vec::new();
    for node in 1..=GOOD {
        agents.push(server.agent(&format!("n{node}"), inventory(node, 1)).await);
    }
    let mut outboxes = BTreeMap::new();
    while (outboxes.len() as u128) < GOOD {
        if let AgentInput::Connected { hello, outbox, .. } = server.input().await {
            let node = hello.node.as_str().trim_start_matches('n').parse().unwrap();
            outboxes.insert(node, outbox);
        }
    }
    (agents, outboxes)
}

/// One message to every good agent, and the answers of all; gives how many messages of others came between.
async fn round(
    server: &mut Server,
    outboxes: &BTreeMap<u128, Outbox>,
    message: impl Fn(u128) -> ToAgent,
    answer: impl Fn(&FromAgent) -> bool,
) -> usize {
    let mut missing: BTreeSet<String> = outboxes.keys().map(|node| format!("n{node}")).collect();
    for (node, outbox) in outboxes {
        outbox.send(message(*node)).unwrap();
    }
    let mut others = 0;
    while !missing.is_empty() {
        match server.input().await {
            AgentInput::Said { node, message, .. } if answer(&message) && missing.remove(node.as_str()) => {}
            AgentInput::Gone { node, .. } => assert!(!missing.contains(node.as_str()), "{node} is gone"),
            _ => others += 1,
        }
    }
    others
}

/// Reserve and release, once for each number. A lease that was released is never promised again.
async fn rounds(server: &mut Server, outboxes: &BTreeMap<u128, Outbox>, numbers: Range<u64>) -> usize {
    let mut others = 0;
    for number in numbers {
        let reserved = |message: &FromAgent| matches!(message, FromAgent::Reserved { .. });
        others += round(server, outboxes, |node| reserve(node, number), reserved).await;
        let gone =
            |message: &FromAgent| matches!(message, FromAgent::LeaseIs { state: LeaseState::Gone, .. });
        let release = |node| ToAgent::Release { term: TERM, lease: lease(node, number) };
        others += round(server, outboxes, release, gone).await;
    }
    others
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_read_holds_up_no_round_of_the_others() {
    let mut server = Server::start();
    let (agents, outboxes) = good_agents(&mut server).await;
    let deaf = server.peer("deaf").await;
    let AgentInput::Connected { outbox, .. } = server.input().await else { panic!("not connected") };
    // All windows are full with these, and much more waits behind them.
    let large = ToAgent::Rejected { message: "x".repeat(64 << 10) };
    for _ in 0..64 {
        outbox.send(large.clone()).unwrap();
    }
    assert_eq!(rounds(&mut server, &outboxes, 0..ROUNDS).await, 0, "nobody else said anything");
    // It is cut off in the end, and the others go on.
    tokio::time::timeout(PATIENCE, deaf.connection.closed()).await.unwrap();
    rounds(&mut server, &outboxes, ROUNDS..ROUNDS + 2).await;
    assert_eq!(server.metrics.slow_agents.get(), 1);
    for agent in agents {
        agent.stop().await;
    }
    server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_floods_is_read_slowly_and_holds_up_no_round_of_the_others() {
    let mut server = Server::start();
    let (agents, outboxes) = good_agents(&mut server).await;
    let mut flooding = server.peer("flood").await;
    assert!(matches!(server.input().await, AgentInput::Connected { .. }));
    let flood = tokio::spawn(async move {
        // As many and as large messages as it can send, until it is stopped.
        let message = FromAgent::Inventory(inventory(9, 8));
        while flooding.writer.send(&message).await.is_ok() {}
    });
    // While the loop takes nothing, the flood has its own few places and not more.
    eventually("it uses its places", || server.inputs.len() >= UNREAD).await;
    for _ in 0..50 {
        assert!(server.inputs.len() <= UNREAD, "{} of {INPUTS}", server.inputs.len());
        tokio::task::yield_now().await;
    }
    let others = rounds(&mut server, &outboxes, 0..ROUNDS).await;
    assert!(others >= UNREAD, "the flood was not heard at all");
    // It has used its budget up, and is read as slowly as that refills.
    let metrics = std::sync::Arc::clone(&server.metrics);
    let draining = tokio::spawn(async move {
        while server.inputs.recv().await.is_some() {}
        server
    });
    eventually("it is read slowly", || metrics.throttled.get() > 0).await;
    assert_eq!(metrics.agents.get() as u128, GOOD + 1, "nobody was cut off");
    flood.abort();
    draining.abort();
    for agent in agents {
        agent.kill().await;
    }
}
