//! Reserve fan-out: from handing one Reserve per agent to the QUIC server until the last agent has
//! confirmed. Real server, real agents with their real cores, mutual TLS, loopback, one process.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_agent::Credentials;
use phalanx_agent::embedded::{AgentOptions, LedgerPlace, spawn};
use phalanx_benches::{gpu_id, inventory, node_name, pod_request};
use phalanx_common::ids::{ClusterId, GangName, LeaseId, PodUid, Term};
use phalanx_common::units::Millis;
use phalanx_common::wire::{ContainerDevices, Exactness, FromAgent, LeaseRequest, LeaseState, ToAgent};
use phalanx_coordinator::agents::{AgentInput, AgentServer, AgentServerParts, Outbox};
use phalanx_coordinator::metrics::Metrics;
use phalanx_transport::{CertificateAuthority, server_endpoint};
use tokio::sync::{mpsc, watch};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Rounds measured, after as many thrown away as warm the paths.
const ROUNDS: u64 = 200;
const WARM_UP: u64 = 20;
/// Agents whose handshakes are in flight at once.
const DIALS: usize = 50;

fn main() -> Result<(), Failure> {
    // `cargo test` and `cargo bench -- --test` only ask whether it runs.
    let is_trial = std::env::args().any(|argument| argument == "--test")
        || !std::env::args().any(|argument| argument == "--bench");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for agents in if is_trial { vec![4] } else { vec![64, 512] } {
        runtime.block_on(fan_out(agents, if is_trial { 2 } else { ROUNDS }))?;
    }
    Ok(())
}

async fn fan_out(agents: usize, rounds: u64) -> Result<(), Failure> {
    let authority = CertificateAuthority::create()?;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let identity = authority.issue_coordinator(&[], &[loopback])?;
    let (endpoint, buffers) =
        server_endpoint(SocketAddr::new(loopback, 0), &identity, &authority.trust_anchor())?;
    let (driver, mut inputs) = mpsc::channel(16_384);
    let (pods, mut reports) = mpsc::channel(16_384);
    tokio::spawn(async move { while reports.recv().await.is_some() {} });
    let term = Term { counter: 1, incarnation: 1 };
    let (_term, term_watch) = watch::channel(term);
    let parts = AgentServerParts {
        cluster: ClusterId::from("bench"),
        term: term_watch,
        driver,
        pods,
        metrics: Arc::new(Metrics::default()),
    };
    let server = AgentServer::start(endpoint, parts);
    let address = server.address().ok_or("the server has no address")?;

    let mut running = Vec::new();
    let mut outboxes: BTreeMap<usize, Outbox> = BTreeMap::new();
    for node in 0..agents {
        let options = AgentOptions {
            node: node_name(node),
            credentials: Credentials::Certificate {
                identity: authority.issue_agent(&node_name(node))?,
                authority: authority.trust_anchor(),
            },
            coordinators: vec![address.to_string()],
            ledger: LedgerPlace::Memory,
            endpoint: None,
        };
        running.push(spawn(options, inventory(node)).await?);
        if node % DIALS == DIALS - 1 || node + 1 == agents {
            while outboxes.len() <= node {
                if let Some(AgentInput::Connected { hello, outbox, .. }) = inputs.recv().await {
                    let number = hello.node.as_str().rsplit('-').next().unwrap_or_default().parse()?;
                    outboxes.insert(number, outbox);
                }
            }
        }
    }

    let mut took = Vec::new();
    for round in 0..WARM_UP.min(rounds) + rounds {
        let messages: Vec<ToAgent> = (0..agents).map(|node| reserve(node, round, term)).collect();
        let start = Instant::now();
        for (node, message) in messages.into_iter().enumerate() {
            outboxes[&node].send(message).map_err(|error| format!("{error:?}"))?;
        }
        wait_for(&mut inputs, agents, |message| matches!(message, FromAgent::Reserved { .. })).await?;
        took.push(start.elapsed());
        for node in 0..agents {
            let release = ToAgent::Release { term, lease: lease(node, round) };
            outboxes[&node].send(release).map_err(|error| format!("{error:?}"))?;
        }
        wait_for(&mut inputs, agents, |message| {
            matches!(message, FromAgent::LeaseIs { state: LeaseState::Gone, .. })
        })
        .await?;
    }
    took.drain(..usize::try_from(WARM_UP.min(rounds))?);
    took.sort_unstable();
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
    println!(
        "reserve fan-out to {agents} agents: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms over {rounds} rounds; \
         socket buffers: asked {} bytes, receive {}, send {}",
        milliseconds(at(50)),
        milliseconds(at(90)),
        milliseconds(at(99)),
        buffers.asked,
        buffers.receive,
        buffers.send,
    );
    for (agent, _) in running {
        agent.kill().await;
    }
    server.stop().await;
    Ok(())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

async fn wait_for(
    inputs: &mut mpsc::Receiver<AgentInput>,
    answers: usize,
    expected: impl Fn(&FromAgent) -> bool,
) -> Result<(), Failure> {
    let mut count = 0;
    while count < answers {
        match inputs.recv().await {
            Some(AgentInput::Said { message, .. }) if expected(&message) => count += 1,
            Some(AgentInput::Said { message, .. }) if matches!(*message, FromAgent::Refused { .. }) => {
                return Err(format!("refused: {message:?}").into());
            }
            Some(AgentInput::Gone { node, .. }) => return Err(format!("{node} is gone").into()),
            Some(_) => {}
            None => return Err("the server has ended".into()),
        }
    }
    Ok(())
}

fn lease(node: usize, round: u64) -> LeaseId {
    LeaseId { term: 1, serial: round * 1_000_000 + node as u64 + 1 }
}

fn reserve(node: usize, round: u64, term: Term) -> ToAgent {
    let name = format!("gang-{round}-{node}");
    let request = LeaseRequest {
        pod: PodUid::from(name.as_str()),
        pod_name: GangName::new("bench", &name),
        gang: GangName::new("bench", "gang"),
        request: pod_request(8),
        devices: vec![ContainerDevices {
            container: "main".into(),
            gpus: (0..phalanx_benches::GPUS_PER_NODE).map(|at| gpu_id(node, at)).collect(),
            nics: Vec::new(),
        }],
        exactness: Exactness::Exact,
        run_for: None,
    };
    ToAgent::Reserve {
        term,
        lease: lease(node, round),
        request: Box::new(request),
        expires_in_ms: Millis::from_seconds(60),
    }
}
