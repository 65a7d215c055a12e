//! One node's agent.

use std::path::PathBuf;

use phalanx_agent::Credentials;
use phalanx_agent::embedded::spawn;
use phalanx_agent::{Agent, AgentOptions, AgentReport, LedgerPlace};
use phalanx_common::ids::NodeName;
use phalanx_common::topology::Inventory;
use phalanx_transport::endpoint::bare_client_endpoint;
use quinn::Endpoint;
use tokio::sync::mpsc;

use super::{HollowError, HollowOptions, inventory};

/// Agents that dial from one socket. One task reads each socket, so that a few are enough for thousands of agents, and
/// a socket each would be too many.
const AGENTS_OF_SOCKET: usize = 128;

/// Sockets that agents share.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    current: Option<Endpoint>,
    used: usize,
}

impl Sockets {
    /// A socket for one more agent.
    pub fn next(&mut self) -> Result<Endpoint, HollowError> {
        if let Some(endpoint) = &self.current
            && self.used < AGENTS_OF_SOCKET
        {
            self.used += 1;
            return Ok(endpoint.clone());
        }
        let made = bare_client_endpoint().map_err(|error| HollowError::Socket(error.to_string()))?.0;
        self.used = 1;
        self.current = Some(made.clone());
        Ok(made)
    }
}

/// An agent that runs.
#[derive(Debug)]
pub struct HollowAgent {
    node: NodeName,
    agent: Agent,
    inventories: mpsc::Sender<Inventory>,
}

impl HollowAgent {
    pub(crate) async fn start(
        options: &HollowOptions,
        node: NodeName,
        folder: PathBuf,
        credentials: Credentials,
        endpoint: Endpoint,
    ) -> Result<Self, HollowError> {
        let agent = AgentOptions {
            node: node.clone(),
            credentials,
            coordinators: options.coordinators.clone(),
            ledger: LedgerPlace::Directory(folder),
            endpoint: Some(endpoint),
        };
        let started = spawn(agent, inventory(&node, &options.shape)).await;
        let (agent, inventories) =
            started.map_err(|source| HollowError::Agent { node: node.clone(), source })?;
        Ok(Self { node, agent, inventories })
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    pub(crate) async fn report(&self) -> Option<AgentReport> {
        self.agent.report().await
    }

    pub(crate) async fn set_inventory(&self, inventory: Inventory) {
        // An agent that has ended reads no hardware.
        let _ = self.inventories.send(inventory).await;
    }

    pub(crate) async fn kill(self) {
        self.agent.kill().await;
    }

    pub(crate) async fn stop(self) {
        self.agent.stop().await;
    }
}
