//! Reconnect: a coordinator ends and starts again at the same address, and 1,000 agents, each with leases in its
//! ledger, come back at once. Real coordinator, real agent cores, mutual TLS, loopback, one process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use phalanx_agent::Credentials;
use phalanx_agent::embedded::{Agent, AgentOptions, LedgerPlace, spawn};
use phalanx_benches::{inventory, node_name};
use phalanx_coordinator::config::{Config, LogFormat};
use phalanx_coordinator::coordinator::{Coordinator, StartError, issue_agent};
use phalanx_coordinator::recorder::RecordingLimits;
use phalanx_core::Settings;
use phalanx_transport::endpoint::bare_client_endpoint;
use quinn::Endpoint;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 5;
/// Sockets that all agents share.
const SOCKETS: usize = 8;
/// Agents that are started at once.
const DIALS: usize = 100;

fn main() -> Result<(), Failure> {
    // `cargo test` and `cargo bench -- --test` only ask whether it runs.
    let is_trial = std::env::args().any(|argument| argument == "--test")
        || !std::env::args().any(|argument| argument == "--bench");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let directory = std::env::temp_dir().join(format!("phalanx-reconnect-{}", std::process::id()));
    let (agents, rounds) = if is_trial { (4, 1) } else { (1000, ROUNDS) };
    let outcome = runtime.block_on(reconnect(&directory, agents, rounds));
    std::fs::remove_dir_all(&directory)?;
    outcome
}

fn config(directory: &Path, listen: SocketAddr) -> Config {
    Config {
        state_dir: directory.to_owned(),
        listen,
        admin: SocketAddr::from(([127, 0, 0, 1], 0)),
        log_format: LogFormat::Text,
        settings: Settings::default(),
        recording: RecordingLimits::default(),
        kubernetes: None,
    }
}

async fn start(
    directory: &Path,
    address: SocketAddr,
    sockets: &[Endpoint],
    node: usize,
) -> Result<Agent, Failure> {
    let (identity, authority) = issue_agent(directory, &node_name(node))?;
    let options = AgentOptions {
        node: node_name(node),
        credentials: Credentials::Certificate { identity, authority },
        coordinators: vec![address.to_string()],
        ledger: LedgerPlace::Memory,
        endpoint: Some(sockets[node % sockets.len()].clone()),
    };
    let (agent, inventories) = spawn(options, inventory(node)).await?;
    // The node goes on having what it has.
    std::mem::forget(inventories);
    Ok(agent)
}

/// Waits until the core has been told of so many agents.
async fn all_told(coordinator: &Coordinator, agents: usize) -> Result<(), Failure> {
    loop {
        let text = coordinator.metrics.text(None)?;
        let line =
            text.lines().find_map(|line| line.strip_prefix("phalanx_events_total{kind=\"AgentConnected\"} "));
        let told: usize = line.map_or(Ok(0), str::parse)?;
        if told >= agents && usize::try_from(coordinator.metrics.agents.get())? >= agents {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The old one's socket is closed by a task of its own, a moment after it has stopped.
async fn restart(directory: &Path, address: SocketAddr) -> Result<Coordinator, Failure> {
    loop {
        match Coordinator::start(&config(directory, address)).await {
            Err(StartError::Listen(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            started => return Ok(started?),
        }
    }
}

async fn reconnect(directory: &Path, count: usize, rounds: usize) -> Result<(), Failure> {
    let mut coordinator =
        Coordinator::start(&config(directory, SocketAddr::from(([127, 0, 0, 1], 0)))).await?;
    let address = coordinator.quic;
    let sockets: Vec<Endpoint> = (0..SOCKETS)
        .map(|_| bare_client_endpoint().map(|(endpoint, _)| endpoint))
        .collect::<Result<_, _>>()?;
    let mut agents = Vec::new();
    for node in 0..count {
        agents.push(start(directory, address, &sockets, node).await?);
        if node % DIALS == DIALS - 1 {
            all_told(&coordinator, node + 1).await?;
        }
    }
    all_told(&coordinator, count).await?;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let cut = Instant::now();
        if !coordinator.stop().await {
            return Err("the coordinator did not end well".into());
        }
        let down = cut.elapsed();
        coordinator = restart(directory, address).await?;
        all_told(&coordinator, count).await?;
        println!(
            "{count} agents: all back {:.2} s after all were cut; the coordinator was away for {:.2} s of that",
            cut.elapsed().as_secs_f64(),
            down.as_secs_f64()
        );
        took.push(cut.elapsed());
    }
    took.sort_unstable();
    println!("reconnect of {count} agents: median {:.2} s", took[took.len() / 2].as_secs_f64());
    for agent in agents {
        agent.kill().await;
    }
    coordinator.stop().await;
    Ok(())
}
