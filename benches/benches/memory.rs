//! Memory of a coordinator: its machine and loop with the inventories of 10,000 nodes, and what one idle connection
//! costs the server. The clients of the connections are another process, so that only the server's side counts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use phalanx_benches::{GPUS_PER_NODE, hello, node_name};
use phalanx_common::ids::{ClusterId, Term};
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_coordinator::agents::{AgentInput, AgentServer, AgentServerParts, Outbox};
use phalanx_coordinator::clock::Clock;
use phalanx_coordinator::driver::{Driver, Messages, Parts, Permit};
use phalanx_coordinator::metrics::Metrics;
use phalanx_coordinator::progress::Progress;
use phalanx_coordinator::recorder::{Recorder, RecordingLimits};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};
use phalanx_transport::endpoint::bare_client_endpoint;
use phalanx_transport::{
    COORDINATOR_NAME, CertificateAuthority, client_config, open_control, server_endpoint,
};
use tokio::sync::{mpsc, watch};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Set for the process that dials.
const DIAL: &str = "PHALANX_BENCH_DIAL";
/// A client keeps its connection alive this way.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Connections that are made first and not counted: they fill the allocator's gaps and the shared tables.
const WARM_UP: usize = 100;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Ok(order) = std::env::var(DIAL) {
        return runtime.block_on(dial(&order));
    }
    // `cargo test` and `cargo bench -- --test` only ask whether it runs.
    let is_trial = std::env::args().any(|argument| argument == "--test")
        || !std::env::args().any(|argument| argument == "--bench");
    let directory = std::env::temp_dir().join(format!("phalanx-memory-{}", std::process::id()));
    let outcome = runtime.block_on(async {
        machine(&directory, if is_trial { 10 } else { 10_000 }).await?;
        connections(&directory, if is_trial { 2 } else { 2000 }).await
    });
    std::fs::remove_dir_all(&directory)?;
    outcome
}

/// Memory that this process has now, in bytes.
fn resident_bytes() -> Result<usize, Failure> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = text.split(' ').nth(1).ok_or("statm has no second number")?.parse()?;
    Ok(pages * 4096)
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The machine and the loop around it, told of so many nodes.
async fn machine(directory: &Path, nodes: usize) -> Result<(), Failure> {
    let before = resident_bytes()?;
    let clock = Clock::start();
    let settings = Settings::default();
    let limits = RecordingLimits::default();
    let recorder = Recorder::start(&directory.join("recordings"), clock.now(), &settings, limits)?;
    let (writer, mut actions) = mpsc::channel(1024);
    tokio::spawn(async move { while actions.recv().await.is_some() {} });
    let mut driver = Driver::new(Parts {
        core: Core::new(settings),
        clock,
        recorder,
        writer,
        term: watch::channel(Term::default()).0,
        metrics: Arc::new(Metrics::default()),
        progress: Arc::new(Progress::default()),
        permit: Permit::always(),
        messages: Messages::default(),
    });
    let started = Event::Started { term: Term { counter: 1, incarnation: 1 } };
    let connected = (0..nodes)
        .map(|node| Event::AgentConnected { session: node as u64 + 1, hello: Box::new(hello(node)) });
    driver.begin(std::iter::once(started).chain(connected)).await;
    // The recorder's thread writes what waits for it, and then holds nothing of it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = resident_bytes()?;
    println!(
        "{nodes} nodes of {GPUS_PER_NODE} GPUs without connections: {:.1} MiB more than the empty process, {:.1} MiB \
         in all, {:.1} kB a node",
        mebibytes(after.saturating_sub(before)),
        mebibytes(after),
        after.saturating_sub(before) as f64 / 1000.0 / nodes as f64,
    );
    drop(driver);
    Ok(())
}

/// A server with so many idle agents.
async fn connections(directory: &Path, count: usize) -> Result<(), Failure> {
    let authority = CertificateAuthority::create()?;
    let keys = directory.join("pki");
    authority.save(&keys)?;
    let identity = authority.issue_coordinator(&[], &[])?;
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let (endpoint, _) = server_endpoint(listen, &identity, &authority.trust_anchor())?;
    let (driver, mut inputs) = mpsc::channel(4096);
    let (pods, mut reports) = mpsc::channel(1024);
    tokio::spawn(async move { while reports.recv().await.is_some() {} });
    let (_term, term) = watch::channel(Term { counter: 1, incarnation: 1 });
    let metrics = Arc::new(Metrics::default());
    let parts = AgentServerParts { cluster: ClusterId::from("bench"), term, driver, pods, metrics };
    let server = AgentServer::start(endpoint, parts);
    let address = server.address().ok_or("the server has no address")?;

    let mut outboxes = Vec::with_capacity(WARM_UP + count);
    let mut client = client(address, &keys, WARM_UP + count)?;
    while outboxes.len() < WARM_UP {
        take(&mut inputs, &mut outboxes).await?;
    }
    let before = resident_bytes()?;
    while outboxes.len() < WARM_UP + count {
        take(&mut inputs, &mut outboxes).await?;
    }
    // Heartbeats go on; what the handshakes needed is given back.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = resident_bytes()?;
    println!(
        "{count} idle connections: {:.1} MiB, {:.1} kB a connection (server's side)",
        mebibytes(after.saturating_sub(before)),
        after.saturating_sub(before) as f64 / 1000.0 / count as f64,
    );
    client.kill()?;
    client.wait()?;
    drop(outboxes);
    server.stop().await;
    Ok(())
}

/// Keeps the queue to an agent, as the loop does, and forgets what it told.
async fn take(inputs: &mut mpsc::Receiver<AgentInput>, outboxes: &mut Vec<Outbox>) -> Result<(), Failure> {
    match inputs.recv().await {
        Some(AgentInput::Connected { outbox, .. }) => outboxes.push(outbox),
        Some(AgentInput::Gone { node, .. }) => return Err(format!("{node} is gone").into()),
        Some(AgentInput::Said { .. }) => {}
        None => return Err("the server has ended".into()),
    }
    Ok(())
}

/// Starts this program again as the agents.
fn client(address: SocketAddr, keys: &Path, count: usize) -> Result<Child, Failure> {
    let order = format!("{address} {count} {}", keys.display());
    Ok(Command::new(std::env::current_exe()?).env(DIAL, order).stdout(Stdio::null()).spawn()?)
}

/// Dials so many times, and keeps all connections alive until the process is ended.
async fn dial(order: &str) -> Result<(), Failure> {
    let mut words = order.splitn(3, ' ');
    let mut word = || words.next().ok_or("an order has three words");
    let address: SocketAddr = word()?.parse()?;
    let count: usize = word()?.parse()?;
    let authority = CertificateAuthority::load(&PathBuf::from(word()?))?;
    let (endpoint, _) = bare_client_endpoint()?;
    let mut links = Vec::new();
    for node in 0..count {
        let identity = authority.issue_agent(&node_name(node))?;
        let config = client_config(&identity, &authority.trust_anchor())?;
        let connection = endpoint.connect_with(config, address, COORDINATOR_NAME)?.await?;
        let (mut reader, mut writer) = open_control(&connection).await?;
        writer.send(&FromAgent::Hello(hello(node))).await?;
        let welcome = reader.next::<ToAgent>().await?;
        if !matches!(welcome, Some(ToAgent::Welcome { .. })) {
            return Err(format!("not welcome: {welcome:?}").into());
        }
        links.push(tokio::spawn(async move {
            let _reader = reader;
            while writer.send(&FromAgent::Heartbeat).await.is_ok() {
                tokio::time::sleep(HEARTBEAT).await;
            }
        }));
    }
    for link in links {
        link.await?;
    }
    Ok(())
}
