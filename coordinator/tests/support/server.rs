//! The QUIC server by itself, with the test in the place of the loop; strangers and agents that dial it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_agent::Credentials;
use phalanx_agent::embedded::{self, Agent, AgentOptions, LedgerPlace};
use phalanx_common::ids::{ClusterId, NodeName, Term};
use phalanx_common::topology::Inventory;
use phalanx_common::wire::{FromAgent, Hello, ToAgent};
use phalanx_coordinator::agents::{AgentInput, AgentServer, AgentServerParts, PodReport, TokenCheck};
use phalanx_coordinator::metrics::Metrics;
use phalanx_transport::endpoint::server_endpoint_for;
use phalanx_transport::{
    COORDINATOR_NAME, CertificateAuthority, ControlReader, ControlWriter, PeerCertificate, client_config,
    open_control,
};
use quinn::{ClientConfig, Connection, Endpoint};
use tokio::sync::{mpsc, watch};

use super::PATIENCE;

/// Where strangers dial from, so that they are another source than the agents.
pub const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Messages of all agents that may wait for the test, as for the real loop.
pub const INPUTS: usize = 4096;

pub struct Server {
    pub server: AgentServer,
    pub address: SocketAddr,
    pub authority: CertificateAuthority,
    pub metrics: Arc<Metrics>,
    pub inputs: mpsc::Receiver<AgentInput>,
    /// The default one: it does not lead.
    pub term: watch::Sender<Term>,
}

pub const TERM: Term = Term { counter: 1, incarnation: 1 };

impl Server {
    pub fn start() -> Self {
        Self::start_as(TERM, &CertificateAuthority::create().unwrap(), None)
    }

    /// One of several of one authority, with this term; with a check of tokens for agents without a certificate.
    pub fn start_as(term: Term, authority: &CertificateAuthority, tokens: Option<TokenCheck>) -> Self {
        super::log();
        let (certificate, key) = (authority.certificate_pem(), authority.key_pem());
        let authority = CertificateAuthority::from_pem(certificate, &key).unwrap();
        let identity = authority.issue_kubernetes_coordinator(Duration::from_secs(3600)).unwrap();
        let anchor = authority.trust_anchor();
        let peers = if tokens.is_some() { PeerCertificate::Optional } else { PeerCertificate::Required };
        let listen = "127.0.0.1:0".parse().unwrap();
        let (endpoint, _) = server_endpoint_for(listen, &identity, &anchor, peers).unwrap();
        let (driver, inputs) = mpsc::channel(INPUTS);
        let (pods, mut reports) = mpsc::channel::<PodReport>(16);
        tokio::spawn(async move { while reports.recv().await.is_some() {} });
        let (term, told) = watch::channel(term);
        let metrics = Arc::new(Metrics::default());
        let cluster = ClusterId::from("load");
        let parts = AgentServerParts { cluster, term: told, driver, pods, metrics: Arc::clone(&metrics) };
        let server = AgentServer::start_with(endpoint, parts, tokens);
        let address = server.address().unwrap();
        Self { server, address, authority, metrics, inputs, term }
    }

    /// Settings of a node's agent.
    pub fn config(&self, node: &str) -> ClientConfig {
        let identity = self.authority.issue_agent(&NodeName::from(node)).unwrap();
        client_config(&identity, &self.authority.trust_anchor()).unwrap()
    }

    /// A whole agent.
    pub async fn agent(&self, node: &str, inventory: Inventory) -> Agent {
        let options = AgentOptions {
            node: NodeName::from(node),
            credentials: Credentials::Certificate {
                identity: self.authority.issue_agent(&NodeName::from(node)).unwrap(),
                authority: self.authority.trust_anchor(),
            },
            coordinators: vec![self.address.to_string()],
            ledger: LedgerPlace::Memory,
            endpoint: None,
        };
        embedded::spawn(options, inventory).await.unwrap().0
    }

    /// An agent that is let in, and does then what the test does with it.
    pub async fn peer(&self, node: &str) -> Peer {
        let endpoint = dialler(Ipv4Addr::LOCALHOST);
        let config = self.config(node);
        let connection =
            endpoint.connect_with(config, self.address, COORDINATOR_NAME).unwrap().await.unwrap();
        let (mut reader, mut writer) = open_control(&connection).await.unwrap();
        writer.send(&FromAgent::Hello(hello(node))).await.unwrap();
        let welcome = reader.next::<ToAgent>().await.unwrap();
        assert!(matches!(welcome, Some(ToAgent::Welcome { .. })), "{welcome:?}");
        writer.set_version(2);
        Peer { connection, reader, writer, _endpoint: endpoint }
    }

    pub async fn input(&mut self) -> AgentInput {
        tokio::time::timeout(PATIENCE, self.inputs.recv()).await.unwrap().unwrap()
    }
}

pub struct Peer {
    pub connection: Connection,
    pub reader: ControlReader,
    pub writer: ControlWriter,
    _endpoint: Endpoint,
}

pub fn hello(node: &str) -> Hello {
    Hello {
        oldest_version: 1,
        newest_version: 2,
        node: NodeName::from(node),
        cluster: None,
        highest_term: Term::default(),
        inventory: Inventory::empty(1000, 1 << 30),
        leases: Vec::new(),
    }
}

/// A socket to dial from.
pub fn dialler(from: Ipv4Addr) -> Endpoint {
    Endpoint::client(SocketAddr::from((from, 0))).unwrap()
}

/// Waits until something holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// First flights of so many connections, one or two packets each, that nobody will ever go on with.
pub async fn first_flights(config: &ClientConfig, connections: usize) -> Vec<Vec<u8>> {
    let sink = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = sink.local_addr().unwrap();
    let endpoint = dialler(Ipv4Addr::LOCALHOST);
    let mut flights = Vec::new();
    let mut packet = vec![0; 2048];
    for _ in 0..connections {
        let connecting = endpoint.connect_with(config.clone(), address, COORDINATOR_NAME).unwrap();
        let length = tokio::time::timeout(PATIENCE, sink.recv(&mut packet)).await.unwrap().unwrap();
        flights.push(packet[..length].to_vec());
        // Ends with a farewell of its own, which is left unread.
        drop(connecting);
    }
    flights
}
