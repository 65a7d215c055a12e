//! Many agents lose their connections at one moment and come back at once: all are let in again, nothing of
//! theirs is lost, and decisions for others go on meanwhile. `PHALANX_LOAD_AGENTS=1000` makes it a thousand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::cluster::{inventory, job};
use crate::support::server::eventually;
use crate::support::{PATIENCE, apply_ok, start, stop, until, until_phase, warnings};
use phalanx_agent::Credentials;
use phalanx_agent::embedded::{self, Agent, AgentOptions, LedgerPlace};
use phalanx_common::ids::NodeName;
use phalanx_common::wire::LeaseReport;
use phalanx_coordinator::coordinator::{Coordinator, issue_agent};
use phalanx_core::view::StateView;
use phalanx_transport::endpoint::bare_client_endpoint;
use quinn::Endpoint;
use tokio::net::UdpSocket;

const AGENTS: u128 = 100;
/// Agents that are started before they are waited for.
const STARTS: usize = 25;
/// Sockets that the agents share.
const SOCKETS: u128 = 8;
/// Pods of the gang that runs on them through it all.
const PODS: u32 = 40;

/// Passes packets on in both directions, one of these for each socket of agents.
struct Relay {
    address: SocketAddr,
    /// Nothing of the agents is passed on.
    is_cut: Arc<AtomicBool>,
}

impl Relay {
    async fn start(coordinator: SocketAddr) -> Self {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        back.connect(coordinator).await.unwrap();
        let address = front.local_addr().unwrap();
        let is_cut = Arc::new(AtomicBool::new(false));
        let (told, mut client) = tokio::sync::watch::channel(None);
        let (cut, from, to) = (Arc::clone(&is_cut), Arc::clone(&front), Arc::clone(&back));
        tokio::spawn(async move {
            let mut packet = vec![0; 65_536];
            while let Ok((length, sender)) = from.recv_from(&mut packet).await {
                told.send_if_modified(|known| known.replace(sender) != Some(sender));
                if !cut.load(Ordering::Acquire) {
                    let _ = to.send(&packet[..length]).await;
                }
            }
        });
        tokio::spawn(async move {
            let mut packet = vec![0; 65_536];
            let client = *client.wait_for(Option::is_some).await.unwrap();
            while let Ok(length) = back.recv(&mut packet).await {
                let _ = front.send_to(&packet[..length], client.unwrap()).await;
            }
        });
        Self { address, is_cut }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Release);
    }
}

async fn agent(state_dir: &Path, to: SocketAddr, socket: &Endpoint, number: u128, gpus: u32) -> Agent {
    let node = NodeName::from(format!("n{number}"));
    let (identity, authority) = issue_agent(state_dir, &node).unwrap();
    let options = AgentOptions {
        node,
        credentials: Credentials::Certificate { identity, authority },
        coordinators: vec![to.to_string()],
        ledger: LedgerPlace::Memory,
        endpoint: Some(socket.clone()),
    };
    embedded::spawn(options, inventory(number, gpus)).await.unwrap().0
}

/// Who holds each GPU.
fn holders(state: &StateView) -> BTreeMap<String, String> {
    let gpus = state.nodes.iter().flat_map(|node| &node.gpus);
    gpus.filter_map(|gpu| Some((gpu.id.to_string(), format!("{:?}", gpu.holder.as_ref()?)))).collect()
}

async fn ledgers(agents: &[Agent]) -> Vec<Vec<LeaseReport>> {
    let mut ledgers = Vec::new();
    for agent in agents {
        ledgers.push(agent.report().await.unwrap().leases);
    }
    ledgers
}

async fn all_connected(coordinator: &Coordinator, count: u128) {
    let connected = || coordinator.metrics.agents.get() as u128;
    // However slow the machine is: as long as more come in, it is waited.
    let (mut most, mut since) = (0, Instant::now());
    while connected() != count {
        if connected() > most {
            (most, since) = (connected(), Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "{most} of {count} are let in, and no more come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(coordinator, "all nodes ready", |state| {
        state.nodes.iter().filter(|node| &*node.state == "ready").count() as u128 == count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_all_come_back_at_once_lose_nothing_and_decisions_for_others_go_on() {
    let wanted = std::env::var("PHALANX_LOAD_AGENTS").ok();
    let count: u128 = wanted.map_or(AGENTS, |text| text.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let (mut relays, mut agents) = (Vec::new(), Vec::new());
    for socket in 0..SOCKETS {
        let relay = Relay::start(coordinator.quic).await;
        let (endpoint, _) = bare_client_endpoint().unwrap();
        for number in (1..=count).filter(|number| number % SOCKETS == socket) {
            agents.push(agent(directory.path(), relay.address, &endpoint, number, 1).await);
            if agents.len().is_multiple_of(STARTS) {
                let metrics = &coordinator.metrics;
                eventually("those are let in", || metrics.agents.get() as usize == agents.len()).await;
            }
        }
        relays.push(relay);
    }
    all_connected(&coordinator, count).await;
    apply_ok(&coordinator, &job("spread", "default", PODS, "nvidia.com/gpu: 1", "")).await;
    until_phase(&coordinator, "spread", "Running").await;
    let before =
        until(&coordinator, "all pods hold their GPU", |state| holders(state).len() == PODS as usize).await;
    let ledgers_before = ledgers(&agents).await;
    assert_eq!(ledgers_before.iter().flatten().count(), PODS as usize);
    // Two that are not cut off: only they have room for the second gang.
    let (endpoint, _) = bare_client_endpoint().unwrap();
    let mut others = Vec::new();
    for number in [count + 1, count + 2] {
        others.push(agent(directory.path(), coordinator.quic, &endpoint, number, 8).await);
    }
    all_connected(&coordinator, count + 2).await;

    // What the agents say is lost; the coordinator ends their connections, and hears of none of their new ones.
    relays.iter().for_each(|relay| relay.cut(true));
    let metrics = Arc::clone(&coordinator.metrics);
    eventually("all are gone", || metrics.agents.get() == 2).await;
    // Now they come at once, all but one socket of them: those go on dialling for nothing.
    relays[1..].iter().for_each(|relay| relay.cut(false));
    apply_ok(&coordinator, &job("meanwhile", "default", 2, "nvidia.com/gpu: 8", "")).await;
    until_phase(&coordinator, "meanwhile", "Running").await;
    assert!((metrics.agents.get() as u128) < count + 2, "not all can be back");
    relays[0].cut(false);
    all_connected(&coordinator, count + 2).await;

    let after =
        until(&coordinator, "all leases are confirmed", |state| holders(state).len() == PODS as usize + 16)
            .await;
    let (held_before, held_after) = (holders(&before), holders(&after));
    let same = held_before.iter().all(|(gpu, holder)| held_after.get(gpu) == Some(holder));
    assert!(same, "before {held_before:?}, after {held_after:?}");
    assert_eq!(ledgers(&agents).await, ledgers_before, "a lease is lost, or there is a new one");
    assert!(metrics.admitting.get() <= 256);
    println!(
        "{count} agents: {} asked to prove their address, {} shed, {} given up, {} warnings",
        metrics.retried.get(),
        metrics.rejected("busy"),
        metrics.rejected("stuck"),
        warnings(""),
    );
    for agent in agents.into_iter().chain(others) {
        agent.kill().await;
    }
    stop(coordinator).await;
}
