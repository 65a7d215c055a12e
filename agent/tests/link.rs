//! Agents against a tiny coordinator over real QUIC on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::time::Duration;

use phalanx_agent::embedded::spawn;
use phalanx_agent::{AgentError, Credentials, LedgerPlace};
use phalanx_common::ids::{ClusterId, GpuId, PodUid, Term};
use phalanx_common::topology::GpuHealth;
use phalanx_common::units::Millis;
use phalanx_common::wire::{FromAgent, LeaseState, RefusalCause, ToAgent};
use phalanx_transport::endpoint::bare_client_endpoint;
use phalanx_transport::{CertificateAuthority, FrameError};
use support::{FakeCoordinator, PATIENCE, Session, TERM, inventory, lease, reserve};

fn lease_is(serial: u64, state: LeaseState) -> FromAgent {
    FromAgent::LeaseIs { term: TERM, lease: lease(serial), state }
}

async fn arm(session: &mut Session, serial: u64, gpus: &[u128], run_for: Option<Millis>) {
    session.say(reserve(serial, gpus, run_for)).await;
    assert_eq!(session.hear().await, FromAgent::Reserved { term: TERM, lease: lease(serial) });
    session.say(ToAgent::Arm { term: TERM, lease: lease(serial) }).await;
    assert_eq!(session.hear().await, lease_is(serial, LeaseState::Armed));
}

#[tokio::test]
async fn a_lease_lives_from_reserve_to_release() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = FakeCoordinator::new();
    let place = LedgerPlace::Directory(directory.path().to_owned());
    let (agent, _inventories) = spawn(coordinator.options(place), inventory(4)).await.unwrap();
    let mut session = coordinator.welcome().await;
    assert_eq!(session.hello.inventory, inventory(4));
    assert_eq!((session.hello.cluster.clone(), session.hello.leases.len()), (None, 0));

    let pod = PodUid::from("pod-1");
    arm(&mut session, 1, &[0, 1], Some(Millis(1))).await;
    let on_disk = fs::read_to_string(directory.path().join("ledger")).unwrap();
    assert!(on_disk.contains("Armed"), "{on_disk}");
    session.say(ToAgent::Bound { term: TERM, lease: lease(1) }).await;
    assert_eq!(session.hear().await, lease_is(1, LeaseState::Bound));
    session.say(ToAgent::GangBound { term: TERM, lease: lease(1) }).await;
    assert_eq!(session.hear().await, lease_is(1, LeaseState::Started));
    assert_eq!(session.hear().await, FromAgent::PodStarted { pod: pod.clone() });
    assert_eq!(session.hear().await, FromAgent::PodEnded { pod, succeeded: true });
    session.say(ToAgent::Release { term: TERM, lease: lease(1) }).await;
    assert_eq!(session.hear().await, lease_is(1, LeaseState::Gone));

    // A pod without an end of its own is stopped by the release.
    arm(&mut session, 2, &[0], None).await;
    session.say(ToAgent::GangBound { term: TERM, lease: lease(2) }).await;
    assert_eq!(session.hear().await, lease_is(2, LeaseState::Started));
    assert_eq!(session.hear().await, FromAgent::PodStarted { pod: PodUid::from("pod-2") });
    session.say(ToAgent::Release { term: TERM, lease: lease(2) }).await;
    let mut last = session.hear().await;
    if last == lease_is(2, LeaseState::Releasing) {
        last = session.hear().await;
    }
    assert_eq!(last, FromAgent::PodStopped { pod: PodUid::from("pod-2") });
    assert_eq!(session.hear().await, lease_is(2, LeaseState::Gone));
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_silent_gives_signs_of_life_and_says_goodbye() {
    let coordinator = FakeCoordinator::new();
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(1)).await.unwrap();
    let mut session = coordinator.welcome().await;
    assert_eq!(session.hear_any().await, FromAgent::Heartbeat);
    assert!(agent.report().await.unwrap().link_is_up);
    agent.stop().await;
    let end = session.connection.closed().await.to_string();
    assert!(end.contains("the agent stops"), "{end}");
}

#[tokio::test]
async fn armed_leases_outlive_a_crash_of_the_agent_and_reserved_ones_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = FakeCoordinator::new();
    let options = coordinator.options(LedgerPlace::Directory(directory.path().to_owned()));
    let (agent, _inventories) = spawn(options.clone(), inventory(4)).await.unwrap();
    let mut session = coordinator.welcome().await;
    arm(&mut session, 1, &[0], None).await;
    session.say(reserve(2, &[1], None)).await;
    assert_eq!(session.hear().await, FromAgent::Reserved { term: TERM, lease: lease(2) });
    agent.kill().await;

    let (agent, _inventories) = spawn(options, inventory(4)).await.unwrap();
    let mut session = coordinator.welcome().await;
    let states: Vec<_> = session.hello.leases.iter().map(|report| (report.lease, report.state)).collect();
    assert_eq!(states, [(lease(1), LeaseState::Armed)]);
    assert_eq!(session.hello.highest_term, TERM);
    assert_eq!(session.hello.cluster, Some(ClusterId::from("c1")));
    session.say(reserve(3, &[0], None)).await;
    let FromAgent::Refused { cause, leases, .. } = session.hear().await else { panic!("promised twice") };
    assert_eq!(cause, RefusalCause::Held(GpuId(0), lease(1)));
    assert_eq!(leases.len(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn a_link_that_breaks_comes_back_with_all_leases() {
    let coordinator = FakeCoordinator::new();
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(2)).await.unwrap();
    let mut session = coordinator.welcome().await;
    arm(&mut session, 1, &[0], None).await;
    session.say(ToAgent::GangBound { term: TERM, lease: lease(1) }).await;
    assert_eq!(session.hear().await, lease_is(1, LeaseState::Started));
    session.connection.close(quinn::VarInt::from_u32(0), b"test");

    let mut session = coordinator.welcome().await;
    assert_eq!(session.hello.leases.len(), 1);
    assert_eq!(session.hear().await, FromAgent::PodStarted { pod: PodUid::from("pod-1") });
    agent.stop().await;
}

#[tokio::test]
async fn a_disk_that_fails_takes_no_arm() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = FakeCoordinator::new();
    let place = LedgerPlace::Directory(directory.path().to_owned());
    let (agent, _inventories) = spawn(coordinator.options(place), inventory(2)).await.unwrap();
    let mut session = coordinator.welcome().await;
    arm(&mut session, 1, &[0], None).await;
    session.say(reserve(2, &[1], None)).await;
    assert_eq!(session.hear().await, FromAgent::Reserved { term: TERM, lease: lease(2) });
    // A directory where the file would be written: fails for every user, root included.
    fs::create_dir(directory.path().join("ledger.new")).unwrap();
    session.say(ToAgent::Arm { term: TERM, lease: lease(2) }).await;
    let FromAgent::Refused { cause: RefusalCause::Disk(text), .. } = session.hear().await else {
        panic!("armed without a disk")
    };
    assert!(text.contains("ledger.new"), "{text}");
    fs::remove_dir(directory.path().join("ledger.new")).unwrap();
    session.say(ToAgent::Arm { term: TERM, lease: lease(2) }).await;
    assert_eq!(session.hear().await, lease_is(2, LeaseState::Armed));
    agent.stop().await;
}

#[tokio::test]
async fn a_coordinator_of_version_one_is_served() {
    let mut coordinator = FakeCoordinator::new();
    coordinator.version = 1;
    let (agent, inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(2)).await.unwrap();
    let mut session = coordinator.welcome().await;
    arm(&mut session, 1, &[0], None).await;
    let mut changed = inventory(2);
    changed.gpus[1].health = GpuHealth::Lost;
    inventories.send(changed.clone()).await.unwrap();
    assert_eq!(session.hear().await, FromAgent::Inventory(changed));
    agent.stop().await;
}

#[tokio::test]
async fn only_differences_are_told() {
    let coordinator = FakeCoordinator::new();
    let (agent, inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(2)).await.unwrap();
    let mut session = coordinator.welcome().await;
    inventories.send(inventory(2)).await.unwrap();
    let mut changed = inventory(2);
    changed.gpus[1].health = GpuHealth::Lost;
    inventories.send(changed).await.unwrap();
    assert_eq!(session.hear().await, FromAgent::HealthChanged { gpus: vec![(GpuId(1), GpuHealth::Lost)] });
    inventories.send(inventory(3)).await.unwrap();
    assert_eq!(session.hear().await, FromAgent::Inventory(inventory(3)));
    agent.stop().await;
}

#[tokio::test]
async fn an_older_leader_is_not_obeyed() {
    let mut coordinator = FakeCoordinator::new();
    coordinator.term = Term { counter: 9, incarnation: 1 };
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(1)).await.unwrap();
    let mut session = coordinator.welcome().await;
    session.say(reserve(1, &[0], None)).await;
    let FromAgent::Refused { cause, .. } = session.hear().await else { panic!("an old leader was obeyed") };
    assert_eq!(cause, RefusalCause::StaleTerm(coordinator.term));
    agent.stop().await;
}

#[tokio::test]
async fn a_coordinator_of_another_authority_is_not_spoken_to() {
    let coordinator = FakeCoordinator::new();
    let mut options = coordinator.options(LedgerPlace::Memory);
    let stranger = CertificateAuthority::create().unwrap().trust_anchor();
    let Credentials::Certificate { authority, .. } = &mut options.credentials else { unreachable!() };
    *authority = stranger;
    let (agent, _inventories) = spawn(options, inventory(1)).await.unwrap();
    let error = coordinator.endpoint.accept().await.unwrap().await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert!(!agent.report().await.unwrap().link_is_up);
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_of_another_authority_is_never_up() {
    let coordinator = FakeCoordinator::new();
    let mut options = coordinator.options(LedgerPlace::Memory);
    let stranger = CertificateAuthority::create().unwrap().issue_agent(&options.node).unwrap();
    let Credentials::Certificate { identity, .. } = &mut options.credentials else { unreachable!() };
    *identity = stranger;
    let (agent, _inventories) = spawn(options, inventory(1)).await.unwrap();
    for _ in 0..2 {
        let error = coordinator.endpoint.accept().await.unwrap().await.unwrap_err().to_string();
        assert!(error.contains("certificate"), "{error}");
        assert!(!agent.report().await.unwrap().link_is_up);
    }
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_turned_away_does_not_count_as_up() {
    let coordinator = FakeCoordinator::new();
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(1)).await.unwrap();
    let mut session = coordinator.accept().await;
    session.say(ToAgent::Rejected { message: "node-1 is not wanted".to_owned() }).await;
    let end = session.connection.closed().await.to_string();
    assert!(end.contains("not wanted"), "{end}");
    assert!(!agent.report().await.unwrap().link_is_up);
    agent.stop().await;
}

#[tokio::test]
async fn a_version_nobody_speaks_ends_the_connection() {
    let coordinator = FakeCoordinator::new();
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(1)).await.unwrap();
    let mut session = coordinator.accept().await;
    let welcome = ToAgent::Welcome { version: 99, cluster: ClusterId::from("c1"), term: TERM };
    session.say(welcome).await;
    let end = session.connection.closed().await.to_string();
    assert!(end.contains("version 99"), "{end}");
    agent.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_message_end_the_connection() {
    let coordinator = FakeCoordinator::new();
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(1)).await.unwrap();
    let mut session = coordinator.welcome().await;
    // An agent's message is none that a coordinator may say.
    let refused =
        session.writer.send(&FromAgent::HealthChanged { gpus: vec![(GpuId(0), GpuHealth::Lost)] }).await;
    assert!(!matches!(refused, Err(FrameError::Codec(_))));
    session.connection.closed().await;
    coordinator.welcome().await;
    agent.stop().await;
}

#[tokio::test]
async fn many_agents_share_one_socket() {
    let coordinator = FakeCoordinator::new();
    let (endpoint, _) = bare_client_endpoint().unwrap();
    let mut agents = Vec::new();
    for _ in 0..4 {
        let mut options = coordinator.options(LedgerPlace::Memory);
        options.endpoint = Some(endpoint.clone());
        agents.push(spawn(options, inventory(1)).await.unwrap());
    }
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let mut session = coordinator.welcome().await;
        arm(&mut session, 1, &[0], None).await;
        sessions.push(session);
    }
    for (agent, _) in agents {
        agent.stop().await;
    }
}

#[tokio::test]
async fn an_agent_without_coordinator_does_not_start() {
    let coordinator = FakeCoordinator::new();
    let mut options = coordinator.options(LedgerPlace::Memory);
    options.coordinators.clear();
    let error = spawn(options, inventory(1)).await.unwrap_err();
    assert!(matches!(error, AgentError::NoCoordinator), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_does_not_listen_has_to_wait_and_misses_nothing() {
    const ASKED: u64 = 40_000;
    let coordinator = FakeCoordinator::new();
    let (agent, _inventories) = spawn(coordinator.options(LedgerPlace::Memory), inventory(1)).await.unwrap();
    let Session { connection, mut reader, mut writer, .. } = coordinator.welcome().await;
    let mut asking = tokio::spawn(async move {
        for serial in 1..=ASKED {
            writer.send(&reserve(serial, &[99], None)).await.unwrap();
        }
        writer
    });
    // Nothing is heard until all is said, or no more can be said.
    let all_said = tokio::time::timeout(Duration::from_secs(1), &mut asking).await;
    let mut answers = 0;
    while answers < ASKED {
        match tokio::time::timeout(PATIENCE, reader.next()).await.expect("nothing is heard").unwrap() {
            Some(FromAgent::Refused { .. }) => answers += 1,
            Some(FromAgent::Heartbeat) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(connection.close_reason(), None);
    if all_said.is_err() {
        asking.await.unwrap();
    }
    agent.stop().await;
}
