//! A tiny coordinator: says Welcome and whatever the test wants.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use phalanx_agent::{AgentOptions, Credentials, LedgerPlace};
use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::ids::{ClusterId, GangName, GpuId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel};
use phalanx_common::units::Millis;
use phalanx_common::wire::{ContainerDevices, Exactness, FromAgent, Hello, LeaseRequest, ToAgent, VERSION};
use phalanx_transport::{
    CertificateAuthority, ControlReader, ControlWriter, Identity, TrustAnchor, accept_control,
    peer_node_name, server_endpoint,
};
use quinn::{Connection, Endpoint};

/// Long enough for any machine; nothing is measured with it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const NODE: &str = "node-1";
pub const TERM: Term = Term { counter: 1, incarnation: 42 };

pub struct FakeCoordinator {
    pub authority: CertificateAuthority,
    pub endpoint: Endpoint,
    pub address: SocketAddr,
    pub cluster: ClusterId,
    pub term: Term,
    pub version: u16,
}

/// One agent's connection.
pub struct Session {
    pub connection: Connection,
    pub reader: ControlReader,
    pub writer: ControlWriter,
    pub hello: Hello,
}

impl FakeCoordinator {
    pub fn new() -> Self {
        let authority = CertificateAuthority::create().unwrap();
        let identity = authority.issue_coordinator(&[], &[]).unwrap();
        let (endpoint, _) =
            server_endpoint("127.0.0.1:0".parse().unwrap(), &identity, &authority.trust_anchor()).unwrap();
        let address = endpoint.local_addr().unwrap();
        Self { authority, endpoint, address, cluster: ClusterId::from("c1"), term: TERM, version: VERSION }
    }

    pub fn options(&self, ledger: LedgerPlace) -> AgentOptions {
        let (identity, authority) = self.certificate();
        AgentOptions {
            credentials: Credentials::Certificate { identity, authority },
            node: NodeName::from(NODE),
            coordinators: vec![self.address.to_string()],
            ledger,
            endpoint: None,
        }
    }

    /// Of the node, and of the authority.
    pub fn certificate(&self) -> (Identity, TrustAnchor) {
        let identity = self.authority.issue_agent(&NodeName::from(NODE)).unwrap();
        (identity, self.authority.trust_anchor())
    }

    /// Accepts an agent up to its Hello.
    pub async fn accept(&self) -> Session {
        let accept = async {
            let connection = self.endpoint.accept().await.unwrap().await.unwrap();
            assert_eq!(peer_node_name(&connection), Ok(NodeName::from(NODE)));
            let (mut reader, writer) = accept_control(&connection).await.unwrap();
            let Some(FromAgent::Hello(hello)) = reader.next().await.unwrap() else {
                panic!("the first message is no Hello")
            };
            Session { connection, reader, writer, hello }
        };
        tokio::time::timeout(PATIENCE, accept).await.expect("no agent came")
    }

    /// Accepts an agent and says Welcome.
    pub async fn welcome(&self) -> Session {
        let mut session = self.accept().await;
        let (version, cluster, term) = (self.version, self.cluster.clone(), self.term);
        session.say(ToAgent::Welcome { version, cluster, term }).await;
        session.writer.set_version(version);
        session
    }
}

impl Session {
    pub async fn say(&mut self, message: ToAgent) {
        self.writer.send(&message).await.unwrap();
    }

    /// The next message that is no sign of life.
    pub async fn hear(&mut self) -> FromAgent {
        let hear = async {
            loop {
                match self.reader.next().await.unwrap() {
                    Some(FromAgent::Heartbeat) => {}
                    Some(message) => return message,
                    None => panic!("the agent ended the stream"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, hear).await.expect("the agent says nothing")
    }

    pub async fn hear_any(&mut self) -> FromAgent {
        tokio::time::timeout(PATIENCE, self.reader.next()).await.expect("nothing").unwrap().unwrap()
    }
}

pub fn lease(serial: u64) -> LeaseId {
    LeaseId { term: TERM.counter, serial }
}

pub fn inventory(gpus: usize) -> Inventory {
    let one = |index: usize| Gpu {
        id: GpuId(index as u128),
        index: index as u32,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_mib: Some(81_559),
        pci_bus_id: format!("0000:{index:02x}:00.0"),
        numa: Some(0),
        health: GpuHealth::Healthy,
    };
    Inventory {
        gpus: (0..gpus).map(one).collect(),
        links: vec![vec![GpuLink { nvlinks: 18, pcie: PcieLevel::Sys }; gpus]; gpus],
        ..Inventory::empty(64_000, 1 << 40)
    }
}

pub fn reserve(serial: u64, gpus: &[u128], run_for: Option<Millis>) -> ToAgent {
    let requests = Resources::new()
        .with(ResourceName::known(CPU), 1000)
        .with(ResourceName::known(NVIDIA_GPU), gpus.len() as u64);
    let main: Arc<str> = Arc::from("main");
    let name = format!("pod-{serial}");
    let request = LeaseRequest {
        pod: PodUid::from(name.as_str()),
        pod_name: GangName::new("team", &name),
        gang: GangName::new("team", "gang"),
        request: PodRequest {
            containers: vec![ContainerRequest { name: main.clone(), kind: ContainerKind::App, requests }],
            overhead: Resources::new(),
        },
        devices: vec![ContainerDevices {
            container: main,
            gpus: gpus.iter().copied().map(GpuId).collect(),
            nics: Vec::new(),
        }],
        exactness: Exactness::Exact,
        run_for,
    };
    let expires_in_ms = Millis(600_000);
    ToAgent::Reserve { term: TERM, lease: lease(serial), request: Box::new(request), expires_in_ms }
}
