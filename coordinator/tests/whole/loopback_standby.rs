//! Several coordinators at once over real QUIC, each with the test in the place of its loop: agents keep a connection to
//! all of them, the one that leads is obeyed, and the others are ready.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::cluster::inventory;
use crate::support::server::{Server, dialler, eventually, hello};
use crate::support::{PATIENCE, log};
use phalanx_agent::embedded::{self, Agent, AgentOptions, LedgerPlace};
use phalanx_agent::{AgentReport, Credentials};
use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::resources::{NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::Millis;
use phalanx_common::wire::{
    ContainerDevices, Exactness, FromAgent, Hello, LeaseRequest, LeaseState, RefusalCause, ToAgent,
};
use phalanx_coordinator::agents::{AgentInput, Outbox};
use phalanx_transport::{COORDINATOR_NAME, CertificateAuthority, ControlReader, ControlWriter, open_control};

const FIRST: Term = Term { counter: 1, incarnation: 11 };
const SECOND: Term = Term { counter: 2, incarnation: 22 };
const NOBODY: Term = Term { counter: 0, incarnation: 0 };
const LEASE: LeaseId = LeaseId { term: 1, serial: 1 };

async fn next(server: &mut Server) -> AgentInput {
    tokio::time::timeout(PATIENCE, server.inputs.recv()).await.unwrap().unwrap()
}

async fn connected(server: &mut Server) -> (u64, Box<Hello>, Outbox) {
    match next(server).await {
        AgentInput::Connected { session, hello, outbox } => (session, hello, outbox),
        other => panic!("{other:?}"),
    }
}

/// The next message that is about leases.
async fn said(server: &mut Server) -> FromAgent {
    loop {
        match next(server).await {
            AgentInput::Said { message, .. } if !matches!(*message, FromAgent::Inventory(_)) => {
                return *message;
            }
            AgentInput::Said { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn agent_of(servers: &[&Server], node: &str) -> Agent {
    let authority = &servers[0].authority;
    let options = AgentOptions {
        node: NodeName::from(node),
        credentials: Credentials::Certificate {
            identity: authority.issue_agent(&NodeName::from(node)).unwrap(),
            authority: authority.trust_anchor(),
        },
        coordinators: servers.iter().map(|server| server.address.to_string()).collect(),
        ledger: LedgerPlace::Memory,
        endpoint: None,
    };
    embedded::spawn(options, inventory(1, 4)).await.unwrap().0
}

async fn until_report(agent: &Agent, what: &str, holds: impl Fn(&AgentReport) -> bool) {
    for _ in 0..PATIENCE.as_millis() / 20 {
        if holds(&agent.report().await.unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never came: {what}: {:?}", agent.report().await);
}

fn reserve(term: Term, lease: LeaseId, gpu: u128) -> ToAgent {
    let container = ContainerRequest {
        name: "main".into(),
        kind: ContainerKind::App,
        requests: Resources::new().with(ResourceName::known(NVIDIA_GPU), 1),
    };
    let pod = format!("pod-{}-{}", lease.term, lease.serial);
    let request = LeaseRequest {
        pod: PodUid::from(pod.as_str()),
        pod_name: GangName::new("team", &pod),
        gang: GangName::new("team", "gang"),
        request: PodRequest { containers: vec![container], overhead: Resources::new() },
        devices: vec![ContainerDevices {
            container: "main".into(),
            gpus: vec![GpuId((1 << 64) + gpu + 1)],
            nics: Vec::new(),
        }],
        exactness: Exactness::Exact,
        run_for: None,
    };
    ToAgent::Reserve { term, lease, request: Box::new(request), expires_in_ms: Millis(600_000) }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_to_lead_hears_what_is_true_now_on_the_connection_that_stands_and_who_led_hears_that() {
    let authority = CertificateAuthority::create().unwrap();
    let mut first = Server::start_as(FIRST, &authority, None);
    let mut second = Server::start_as(NOBODY, &authority, None);
    let agent = agent_of(&[&first, &second], "n1").await;
    let (_, hello, outbox) = connected(&mut first).await;
    assert_eq!((hello.highest_term, hello.leases.len()), (NOBODY, 0));
    until_report(&agent, "both links", |report| report.link_is_up && report.standbys == 1).await;
    assert_eq!(second.metrics.standing_by.get(), 1);

    outbox.send(reserve(FIRST, LEASE, 0)).unwrap();
    assert_eq!(said(&mut first).await, FromAgent::Reserved { term: FIRST, lease: LEASE });
    outbox.send(ToAgent::Arm { term: FIRST, lease: LEASE }).unwrap();
    let armed = FromAgent::LeaseIs { term: FIRST, lease: LEASE, state: LeaseState::Armed };
    assert_eq!(said(&mut first).await, armed);
    assert!(second.inputs.try_recv().is_err(), "one that stands by was told of leases");

    second.term.send_replace(SECOND);
    let (session, hello, newer) = connected(&mut second).await;
    assert_eq!(session, 1, "the connection was not kept");
    assert_eq!(hello.highest_term, FIRST);
    assert_eq!(hello.inventory, inventory(1, 4));
    let leases: Vec<_> = hello.leases.iter().map(|report| (report.lease, report.state)).collect();
    assert_eq!(leases, [(LEASE, LeaseState::Armed)]);
    until_report(&agent, "the term", |report| report.highest_term == SECOND && report.standbys == 0).await;
    assert_eq!(second.metrics.standing_by.get(), 0);

    // The one that led does not know it yet.
    let stale = |message: FromAgent| match message {
        FromAgent::Refused { cause: RefusalCause::StaleTerm(term), lease, .. } => (term, lease),
        other => panic!("{other:?}"),
    };
    let later = LeaseId { term: 1, serial: 2 };
    outbox.send(reserve(FIRST, later, 1)).unwrap();
    assert_eq!(stale(said(&mut first).await), (SECOND, later));
    outbox.send(ToAgent::Release { term: FIRST, lease: LEASE }).unwrap();
    assert_eq!(stale(said(&mut first).await), (SECOND, LEASE));
    newer.send(ToAgent::Bound { term: SECOND, lease: LEASE }).unwrap();
    let bound = FromAgent::LeaseIs { term: SECOND, lease: LEASE, state: LeaseState::Bound };
    assert_eq!(said(&mut second).await, bound);

    // Its end is nothing to the other link.
    first.server.stop().await;
    newer.send(ToAgent::GangBound { term: SECOND, lease: LEASE }).unwrap();
    let started = FromAgent::LeaseIs { term: SECOND, lease: LEASE, state: LeaseState::Started };
    assert_eq!(said(&mut second).await, started);
    agent.stop().await;
    second.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_comes_while_another_leads_is_found_and_one_that_goes_is_not_missed() {
    let authority = CertificateAuthority::create().unwrap();
    let mut first = Server::start_as(FIRST, &authority, None);
    let second = Server::start_as(NOBODY, &authority, None);
    let agent = agent_of(&[&second, &first], "n1").await;
    let (session, _, _outbox) = connected(&mut first).await;
    eventually("the agent at the second", || second.metrics.standing_by.get() == 1).await;
    let metrics = second.metrics.clone();
    second.server.stop().await;
    eventually("its end", || metrics.standing_by.get() == 0).await;
    until_report(&agent, "one link", |report| report.link_is_up && report.standbys == 0).await;
    // The link that leads has stayed all the time.
    let told = first.inputs.try_recv();
    assert!(told.is_err(), "{told:?}");
    assert_eq!(session, 1);
    agent.stop().await;
    first.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_many_agents_are_taken_over() {
    const AGENTS: usize = 400;
    let authority = CertificateAuthority::create().unwrap();
    let mut server = Server::start_as(NOBODY, &authority, None);
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(agent_of(&[&server], &format!("n{number}")).await);
    }
    let metrics = server.metrics.clone();
    eventually("all agents", || metrics.standing_by.get() == AGENTS as i64).await;
    assert!(server.inputs.try_recv().is_err());
    server.term.send_replace(FIRST);
    let mut nodes = BTreeSet::new();
    let mut outboxes = Vec::new();
    while nodes.len() < AGENTS {
        let (_, hello, outbox) = connected(&mut server).await;
        assert!(nodes.insert(hello.node.clone()), "{} came twice", hello.node);
        outboxes.push(outbox);
    }
    eventually("the numbers", || metrics.agents.get() == AGENTS as i64).await;
    assert_eq!(metrics.standing_by.get(), 0);
    // One that comes now is welcomed at once.
    let late = agent_of(&[&server], "late").await;
    assert_eq!(connected(&mut server).await.1.node, NodeName::from("late"));
    late.stop().await;
    for agent in agents {
        agent.kill().await;
    }
    server.server.stop().await;
}

/// Dials a coordinator that does not lead and gives its answer to a Hello.
async fn greet(
    server: &Server,
    hello: Hello,
) -> (quinn::Connection, ToAgent, (quinn::Endpoint, ControlReader, ControlWriter)) {
    let endpoint = dialler(Ipv4Addr::LOCALHOST);
    let config = server.config("n1");
    let connection = endpoint.connect_with(config, server.address, COORDINATOR_NAME).unwrap().await.unwrap();
    let (mut reader, mut writer) = open_control(&connection).await.unwrap();
    writer.send(&FromAgent::Hello(hello)).await.unwrap();
    let answer = reader.next::<ToAgent>().await.unwrap().unwrap();
    (connection, answer, (endpoint, reader, writer))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_too_old_to_wait_is_told_so_and_one_that_says_nothing_more_is_dropped() {
    log();
    let authority = CertificateAuthority::create().unwrap();
    let mut server = Server::start_as(NOBODY, &authority, None);
    let (_, answer, _kept) = greet(&server, Hello { newest_version: 2, ..hello("n1") }).await;
    let ToAgent::Rejected { message } = answer else { panic!("{answer:?}") };
    assert!(message.contains("does not lead") && message.contains("message version 2"), "{message}");

    let (connection, answer, _kept) = greet(&server, Hello { newest_version: 3, ..hello("n1") }).await;
    assert!(matches!(answer, ToAgent::Standby { version: 3, term: NOBODY, .. }), "{answer:?}");
    let end = tokio::time::timeout(PATIENCE, connection.closed()).await.unwrap().to_string();
    assert!(end.contains("nothing was heard for 6 s"), "{end}");

    // Asked for a Hello, it says nothing: nobody else waits for it.
    let (connection, _, _kept) = greet(&server, Hello { newest_version: 3, ..hello("n1") }).await;
    server.term.send_replace(FIRST);
    let end = tokio::time::timeout(PATIENCE, connection.closed()).await.unwrap().to_string();
    assert!(end.contains("no Hello within 5 s after it was asked for"), "{end}");
    assert!(server.inputs.try_recv().is_err(), "the loop was told of it");
    server.server.stop().await;
}
