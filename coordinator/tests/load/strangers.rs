//! Strangers before the door: garbage, halves of handshakes, no certificate, no Hello, and thousands at once. They are
//! shed within fixed bounds, are counted, fill no log, and keep no agent out.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::server::{ELSEWHERE, Server, dialler, eventually, first_flights, hello};
use crate::support::{PATIENCE, warnings};
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_coordinator::agents::AgentInput;
use phalanx_transport::COORDINATOR_NAME;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::UdpSocket;

/// Connections being let in at once, and of one source, as the gate has them.
const ADMISSIONS: i64 = 256;
const OF_A_SOURCE: i64 = 128;

/// A packet that looks like this or that and is nothing.
fn garbage(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let length = if number.is_multiple_of(2) { 1200 } else { 1 + (next() % 1400) as usize };
    let mut packet: Vec<u8> = (0..length).map(|_| next() as u8).collect();
    if number.is_multiple_of(2) {
        // The first packet of a connection in version 1, with ids of eight bytes and no token.
        let head = [0xc3, 0, 0, 0, 1, 8];
        packet[..6].copy_from_slice(&head);
        packet[14] = 8;
        packet[23] = 0;
        packet[24..26].copy_from_slice(&[0x44, 0x96]);
    }
    packet
}

/// An agent comes in while something is going on, and says so to the loop.
async fn assert_an_agent_gets_in(server: &mut Server, node: &str) {
    let peer = tokio::time::timeout(PATIENCE, server.peer(node)).await.unwrap();
    loop {
        if let AgentInput::Connected { hello, .. } = server.input().await
            && hello.node.as_str() == node
        {
            break;
        }
    }
    drop(peer);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_dropped_and_an_agent_gets_in_meanwhile() {
    let mut server = Server::start();
    let address = server.address;
    let flood = tokio::spawn(async move {
        let socket = UdpSocket::bind((ELSEWHERE, 0)).await.unwrap();
        for number in 0..20_000 {
            socket.send_to(&garbage(number), address).await.unwrap();
        }
    });
    assert_an_agent_gets_in(&mut server, "n1").await;
    flood.await.unwrap();
    let metrics = Arc::clone(&server.metrics);
    eventually("all are gone", || metrics.admitting.get() == 0 && metrics.waiting.get() == 0).await;
    assert!(metrics.rejected("handshake") + metrics.retried.get() > 0, "the garbage did not look like QUIC");
    assert_an_agent_gets_in(&mut server, "n2").await;
    server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_half_handshakes_stay_within_the_bounds_and_an_agent_gets_in_meanwhile() {
    let mut server = Server::start();
    let flights = first_flights(&server.config("stranger"), 10_000).await;
    let address = server.address;
    let flood = tokio::spawn(async move {
        let socket = UdpSocket::bind((ELSEWHERE, 0)).await.unwrap();
        for flight in flights {
            socket.send_to(&flight, address).await.unwrap();
        }
    });
    assert_an_agent_gets_in(&mut server, "n1").await;
    flood.await.unwrap();
    let metrics = Arc::clone(&server.metrics);
    // Who does not prove its address costs no place at all once a few are inside.
    assert!(metrics.admitting.get() <= OF_A_SOURCE, "{}", metrics.admitting.get());
    assert!(metrics.retried.get() > 0);
    assert_an_agent_gets_in(&mut server, "n2").await;
    server.server.stop().await;
}

async fn connect(endpoint: &Endpoint, config: &ClientConfig, server: &Server) -> Option<Connection> {
    let connecting = endpoint.connect_with(config.clone(), server.address, COORDINATOR_NAME).ok()?;
    connecting.await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_say_nothing_hold_only_the_places_of_their_source() {
    let mut server = Server::start();
    let (endpoint, config) = (dialler(ELSEWHERE), server.config("mute"));
    // Whole handshakes with a good certificate, and then silence: more of them than their source has places.
    let mut dials = tokio::task::JoinSet::new();
    for _ in 0..2 * OF_A_SOURCE {
        let connecting = endpoint.connect_with(config.clone(), server.address, COORDINATOR_NAME).unwrap();
        dials.spawn(async move { connecting.await.ok() });
    }
    let metrics = Arc::clone(&server.metrics);
    eventually("their places are full", || metrics.admitting.get() >= OF_A_SOURCE).await;
    assert_an_agent_gets_in(&mut server, "n1").await;
    assert!(metrics.admitting.get() <= ADMISSIONS);
    // Nobody of them gets through, and others wait: the oldest are given up.
    eventually("some are given up", || metrics.rejected("stuck") > 0).await;
    drop(dials);
    endpoint.close(0_u32.into(), b"");
    eventually("all are gone", || metrics.admitting.get() == 0 && metrics.waiting.get() == 0).await;
    assert_an_agent_gets_in(&mut server, "n2").await;
    server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_behind_the_address_of_silent_ones_gets_in_too() {
    let mut server = Server::start();
    let (endpoint, config) = (dialler(Ipv4Addr::LOCALHOST), server.config("mute"));
    let mut dials = tokio::task::JoinSet::new();
    for _ in 0..2 * OF_A_SOURCE {
        let connecting = endpoint.connect_with(config.clone(), server.address, COORDINATOR_NAME).unwrap();
        dials.spawn(async move { connecting.await.ok() });
    }
    let metrics = Arc::clone(&server.metrics);
    eventually("their places are full", || metrics.waiting.get() > 0).await;
    assert_an_agent_gets_in(&mut server, "n1").await;
    server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_nothing_is_said_of_those_who_were_being_let_in() {
    let server = Server::start();
    let (endpoint, config) = (dialler(ELSEWHERE), server.config("mute"));
    let connection = connect(&endpoint, &config, &server).await.unwrap();
    let metrics = Arc::clone(&server.metrics);
    eventually("it is being let in", || metrics.admitting.get() == 1).await;
    // Before the handshake is confirmed QUIC hides the words of an end (RFC 9000, section 10.2.3).
    eventually("the handshake is confirmed", || connection.stats().frame_rx.handshake_done > 0).await;
    server.server.stop().await;
    let told = connection.closed().await.to_string();
    assert!(told.contains("the coordinator stops"), "{told}");
    // Long enough for a line that must not come.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(warnings(&endpoint.local_addr().unwrap().to_string()), 0);
    assert_eq!(metrics.rejected("stuck"), 0);
}

/// Settings of a client that shows no certificate.
fn nameless(server: &Server) -> ClientConfig {
    let directory = tempfile::tempdir().unwrap();
    server.authority.trust_anchor().save(directory.path()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(directory.path().join("ca.pem")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![phalanx_common::wire::ALPN.to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_no_certificate_is_turned_away_and_fills_no_log() {
    let mut server = Server::start();
    let (endpoint, config) = (dialler(ELSEWHERE), nameless(&server));
    let before = warnings("was not let in");
    let strangers = 300;
    for _ in 0..strangers {
        // The client counts as connected before the server has looked at its certificate.
        let Some(connection) = connect(&endpoint, &config, &server).await else { continue };
        let end = tokio::time::timeout(PATIENCE, connection.closed()).await.unwrap().to_string();
        assert!(end.contains("certificate"), "{end}");
    }
    let metrics = Arc::clone(&server.metrics);
    eventually("all are counted", || metrics.rejected("handshake") >= strangers).await;
    assert_eq!(metrics.agents.get(), 0);
    let lines = warnings("was not let in") - before;
    assert!((1..200).contains(&lines), "{lines} lines for {strangers} strangers");
    assert_an_agent_gets_in(&mut server, "n1").await;
    server.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_is_too_large_ends_its_connection_alone() {
    let mut server = Server::start();
    let good = server.peer("n1").await;
    let endpoint = dialler(ELSEWHERE);
    let config = server.config("n2");
    let connection = connect(&endpoint, &config, &server).await.unwrap();
    let (mut send, receive) = connection.open_bi().await.unwrap();
    send.write_all(&phalanx_common::wire::codec::encode(&FromAgent::Hello(hello("n2")), 1).unwrap())
        .await
        .unwrap();
    let mut reader = phalanx_transport::FrameReader::new(receive);
    assert!(matches!(reader.next::<ToAgent>().await.unwrap(), Some(ToAgent::Welcome { .. })));
    // Two MiB are announced, and their first bytes sent: nothing is kept for them.
    send.write_all(&(2_u32 << 20).to_le_bytes()).await.unwrap();
    let end = tokio::time::timeout(PATIENCE, connection.closed()).await.unwrap().to_string();
    assert!(end.contains("frame of 2097152 bytes"), "{end}");
    assert!(good.connection.close_reason().is_none());
    assert_an_agent_gets_in(&mut server, "n3").await;
    server.server.stop().await;
}
