//! Who is let in, over real QUIC: peers built from the transport alone, so that they can misbehave.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, start, stop, until};
use phalanx_common::ids::{ClusterId, GpuId, NodeName, Term};
use phalanx_common::topology::{Gpu, GpuHealth, Inventory};
use phalanx_common::wire::{FromAgent, Hello, ToAgent};
use phalanx_coordinator::coordinator::{Coordinator, issue_agent};
use phalanx_transport::{
    COORDINATOR_NAME, CertificateAuthority, ControlReader, ControlWriter, Identity, TrustAnchor,
    client_endpoint, open_control,
};
use quinn::{Connection, Endpoint};

struct Peer {
    // The endpoint ends its connections when it is dropped.
    _endpoint: Endpoint,
    connection: Connection,
    reader: ControlReader,
    writer: ControlWriter,
}

impl Peer {
    async fn next(&mut self) -> Option<ToAgent> {
        tokio::time::timeout(PATIENCE, self.reader.next()).await.unwrap().unwrap_or(None)
    }
}

fn hello(node: &str) -> Hello {
    Hello {
        oldest_version: 1,
        newest_version: 2,
        node: NodeName::from(node),
        cluster: None,
        highest_term: Term::default(),
        inventory: Inventory::empty(8000, 1 << 30),
        leases: Vec::new(),
    }
}

async fn dial(coordinator: &Coordinator, identity: &Identity, anchor: &TrustAnchor) -> Peer {
    let (endpoint, _) = client_endpoint(identity, anchor).unwrap();
    let connection = endpoint.connect(coordinator.quic, COORDINATOR_NAME).unwrap().await.unwrap();
    let (reader, writer) = open_control(&connection).await.unwrap();
    Peer { _endpoint: endpoint, connection, reader, writer }
}

/// Dials with a good certificate of `node` and sends this as the first message.
async fn send_first(
    coordinator: &Coordinator,
    state_dir: &std::path::Path,
    node: &str,
    message: FromAgent,
) -> (Peer, Option<ToAgent>) {
    let (identity, anchor) = issue_agent(state_dir, &NodeName::from(node)).unwrap();
    let mut peer = dial(coordinator, &identity, &anchor).await;
    peer.writer.send(&message).await.unwrap();
    let answer = peer.next().await;
    (peer, answer)
}

fn rejection(answer: Option<ToAgent>) -> String {
    match answer {
        Some(ToAgent::Rejected { message }) => message,
        other => panic!("not rejected: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_hello_is_welcomed_and_the_node_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (peer, answer) =
        send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(hello("n1"))).await;
    let Some(ToAgent::Welcome { version, term, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!((version, term.counter), (2, 1));
    assert_ne!(term.incarnation, 0);
    until(&coordinator, "the node", |state| state.nodes.iter().any(|node| node.name.as_str() == "n1")).await;
    assert_eq!(coordinator.metrics.agents.get(), 1);
    peer.connection.close(0_u32.into(), b"");
    let began = Instant::now();
    while coordinator.metrics.agents.get() != 0 {
        assert!(began.elapsed() < PATIENCE, "the end was not seen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_agent_is_served_in_its_version_and_a_foreign_cluster_is_no_obstacle() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let mut old = hello("n1");
    old.newest_version = 1;
    old.cluster = Some(ClusterId::from("another"));
    old.highest_term = Term { counter: 99, incarnation: 1 };
    let (_peer, answer) = send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(old)).await;
    let Some(ToAgent::Welcome { version, cluster, term }) = answer else { panic!("{answer:?}") };
    // The other cluster's term says nothing here.
    assert_eq!((version, term.counter), (1, 1));
    assert_ne!(cluster, ClusterId::from("another"));
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cannot_speak_for_another_node() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (_peer, answer) =
        send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(hello("n2"))).await;
    assert_eq!(
        rejection(answer),
        "Hello names node n2, and the certificate is for node n1: start the agent with --node n1, or issue a \
         certificate with `phalanx-coordinator issue-agent --node n2`"
    );
    assert_eq!(coordinator.metrics.rejected("node-name"), 1);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_without_a_common_one_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let mut new = hello("n1");
    (new.oldest_version, new.newest_version) = (7, 9);
    let (_peer, answer) = send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(new)).await;
    assert_eq!(
        rejection(answer),
        "the agent speaks message versions 7 to 9, this coordinator 1 to 3: upgrade the older of the two"
    );
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_of_the_wrong_shape_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let mut wrong = hello("n1");
    wrong.inventory.gpus.push(Gpu {
        id: GpuId(1),
        index: 0,
        model: "model".to_owned(),
        memory_mib: None,
        pci_bus_id: "0000:01:00.0".to_owned(),
        numa: None,
        health: GpuHealth::Healthy,
    });
    let (_peer, answer) = send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(wrong)).await;
    assert_eq!(
        rejection(answer),
        "the inventory of node n1 cannot be used: links has 0 entries where the node has 1 GPUs"
    );
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_must_be_hello_and_bytes_must_be_a_message() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (_peer, answer) = send_first(&coordinator, directory.path(), "n1", FromAgent::Heartbeat).await;
    assert_eq!(rejection(answer), "the first message of a connection must be Hello");

    let (identity, anchor) = issue_agent(directory.path(), &NodeName::from("n1")).unwrap();
    let (endpoint, _) = client_endpoint(&identity, &anchor).unwrap();
    let connection = endpoint.connect(coordinator.quic, COORDINATOR_NAME).unwrap().await.unwrap();
    let (mut send, receive) = connection.open_bi().await.unwrap();
    send.write_all(&[255; 64]).await.unwrap();
    let answer = ControlReader::new(receive).next::<ToAgent>().await.unwrap();
    let text = rejection(answer);
    assert!(text.starts_with("the first message cannot be read: frame of 4294967295 bytes"), "{text}");
    assert_eq!(coordinator.metrics.rejected("frame"), 1);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_not_let_in() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (_, anchor) = issue_agent(directory.path(), &NodeName::from("n1")).unwrap();
    let foreign = CertificateAuthority::create().unwrap().issue_agent(&NodeName::from("n1")).unwrap();
    let (endpoint, _) = client_endpoint(&foreign, &anchor).unwrap();
    // The client is connected before the server has looked at its certificate.
    let connection = endpoint.connect(coordinator.quic, COORDINATOR_NAME).unwrap().await.unwrap();
    let end = tokio::time::timeout(PATIENCE, connection.closed()).await.unwrap().to_string();
    assert!(end.contains("certificate"), "{end}");
    assert_eq!(coordinator.metrics.agents.get(), 0);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_dropped_before_and_after_the_hello() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (identity, anchor) = issue_agent(directory.path(), &NodeName::from("n1")).unwrap();
    let mute = dial(&coordinator, &identity, &anchor).await;
    let (late, answer) =
        send_first(&coordinator, directory.path(), "n2", FromAgent::Hello(hello("n2"))).await;
    assert!(matches!(answer, Some(ToAgent::Welcome { .. })), "{answer:?}");
    tokio::time::timeout(PATIENCE, mute.connection.closed()).await.unwrap();
    let end = tokio::time::timeout(PATIENCE, late.connection.closed()).await.unwrap().to_string();
    assert!(end.contains("nothing was heard for 6 s"), "{end}");
    assert_eq!(coordinator.metrics.rejected("silent"), 1);
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_of_a_node_replaces_the_older() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (old, _) = send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(hello("n1"))).await;
    until(&coordinator, "the node", |state| state.nodes.len() == 1).await;
    let (new, answer) = send_first(&coordinator, directory.path(), "n1", FromAgent::Hello(hello("n1"))).await;
    assert!(matches!(answer, Some(ToAgent::Welcome { .. })), "{answer:?}");
    let end = tokio::time::timeout(PATIENCE, old.connection.closed()).await.unwrap().to_string();
    assert!(end.contains("the node has a newer connection"), "{end}");
    assert!(new.connection.close_reason().is_none());
    until(&coordinator, "the node stays", |state| state.nodes.len() == 1).await;
    stop(coordinator).await;
}
