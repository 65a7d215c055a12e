//! Agents in this process, and jobs for them.

use std::net::SocketAddr;
use std::path::Path;

use phalanx_agent::Credentials;
use phalanx_agent::embedded::{self, Agent, AgentOptions, LedgerPlace};
use phalanx_common::ids::{GpuId, NodeName};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel};
use phalanx_coordinator::coordinator::{Coordinator, issue_agent};
use phalanx_core::view::StateView;

use super::until;

/// A node with NVLink between all its GPUs.
pub fn inventory(node: u128, gpus: u32) -> Inventory {
    let gpu = |index: u32| Gpu {
        id: GpuId((node << 64) + u128::from(index) + 1),
        index,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_mib: Some(81_559),
        pci_bus_id: format!("0000:{:02x}:00.0", 0x10 + index),
        numa: Some(0),
        health: GpuHealth::Healthy,
    };
    let link = |one: u32, other: u32| GpuLink {
        nvlinks: if one == other { 0 } else { 18 },
        pcie: if one == other { PcieLevel::Pix } else { PcieLevel::Node },
    };
    Inventory {
        gpus: (0..gpus).map(gpu).collect(),
        links: (0..gpus).map(|one| (0..gpus).map(|other| link(one, other)).collect()).collect(),
        driver: "580.95.05".to_owned(),
        ..Inventory::empty(64_000, 256 << 30)
    }
}

/// An agent of node `n{number}` that keeps its ledger in the state directory.
pub async fn agent(coordinator: &Coordinator, state_dir: &Path, number: u128, gpus: u32) -> Agent {
    agent_of(coordinator.quic, state_dir, number, gpus).await
}

/// The same, for a coordinator elsewhere.
pub async fn agent_of(quic: SocketAddr, state_dir: &Path, number: u128, gpus: u32) -> Agent {
    let name = format!("n{number}");
    let node = NodeName::from(name.as_str());
    let (identity, authority) = issue_agent(state_dir, &node).unwrap();
    let options = AgentOptions {
        node,
        credentials: Credentials::Certificate { identity, authority },
        coordinators: vec![quic.to_string()],
        ledger: LedgerPlace::Directory(state_dir.join("agents").join(name)),
        endpoint: None,
    };
    embedded::spawn(options, inventory(number, gpus)).await.unwrap().0
}

pub async fn agents(coordinator: &Coordinator, state_dir: &Path, count: u128, gpus: u32) -> Vec<Agent> {
    let mut agents = Vec::new();
    for number in 1..=count {
        agents.push(agent(coordinator, state_dir, number, gpus).await);
    }
    until(coordinator, "all nodes ready", |state| {
        state.nodes.iter().filter(|node| &*node.state == "ready").count() as u128 == count
    })
    .await;
    agents
}

pub fn job(name: &str, queue: &str, pods: u32, requests: &str, run_for: &str) -> String {
    let annotation = match run_for {
        "" => String::new(),
        run_for => format!("annotations: {{phalanx.dev/run-for: {run_for}}}"),
    };
    format!(
        "apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: {name}}}
spec:
  schedulerName: phalanx
  queue: {queue}
  minAvailable: {pods}
  tasks:
    - name: worker
      replicas: {pods}
      template:
        metadata: {{{annotation}}}
        spec:
          containers:
            - name: main
              image: none
              resources: {{requests: {{{requests}}}, limits: {{{requests}}}}}
"
    )
}

pub fn held(state: &StateView) -> usize {
    state.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.holder.is_some()).count()
}
