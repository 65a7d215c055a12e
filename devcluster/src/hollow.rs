//! Nodes without machines, many in one process: a Node object each, a real agent each, and one task that does for all
//! of them what kubelets do with pods.
//!
//! The agents are real ones: their core, a ledger file each, QUIC to the coordinators. What is not real is the
//! hardware they report and the containers.

mod agents;
mod identity;
mod inventory;
mod kubelet;
mod nodes;
mod status;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use kube::Client;
use phalanx_agent::{AgentError, AgentReport};
use phalanx_common::ids::NodeName;
use phalanx_common::topology::Inventory;

pub use agents::HollowAgent;
pub use identity::{AGENT_NAME, Identity, NAMESPACE, TokenFiles, token_files};
pub use inventory::inventory;
pub use kubelet::{KubeletCounters, KubeletOptions, Kubelets, POD_ADDRESS};
pub use nodes::{NodeShape, create_nodes, node_name, node_object};

use agents::Sockets;

/// Requests in flight at once while nodes are made.
pub(crate) const AT_ONCE: usize = 32;

/// Why hollow nodes do not start.
#[derive(Debug, thiserror::Error)]
pub enum HollowError {
    /// The API server says no.
    #[error("{what}: {source}")]
    Api {
        /// What was asked.
        what: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// Token and ledger of an agent.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An agent does not start.
    #[error("agent of {node}: {source}")]
    Agent {
        /// Its node.
        node: NodeName,
        /// Why.
        source: AgentError,
    },
    /// There is no token for an agent.
    #[error("token of the agent of {node}: {source}")]
    Token {
        /// Its node.
        node: NodeName,
        /// What the API server said.
        source: Box<crate::Error>,
    },
    /// No UDP socket.
    #[error("socket of the agents: {0}")]
    Socket(String),
    /// There is no such hollow node.
    #[error("{0} is not one of these hollow nodes")]
    UnknownNode(NodeName),
}

impl HollowError {
    pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}

/// What hollow nodes are asked for.
#[derive(Clone, Debug)]
pub struct HollowOptions {
    /// Nodes are named `PREFIX-00000` and so on.
    pub prefix: String,
    /// Number of the first.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// What each of them is.
    pub shape: NodeShape,
    /// `HOST:PORT` of the coordinators; a name with several addresses is as many.
    pub coordinators: Vec<String>,
    /// Folder of the ledgers, one below for each node. On tmpfs where many share a disk that real nodes would not share.
    pub ledgers: PathBuf,
    /// How the agents show who they are.
    pub identity: Identity,
}

impl HollowOptions {
    /// Names of the nodes.
    pub fn names(&self) -> impl Iterator<Item = NodeName> + '_ {
        (self.first..self.first + self.count).map(|number| node_name(&self.prefix, number))
    }
}

/// Hollow nodes that run. Dropping them ends the agents without farewell; the Node objects stay.
pub struct HollowNodes {
    client: Client,
    options: HollowOptions,
    sockets: Sockets,
    agents: BTreeMap<NodeName, HollowAgent>,
    /// Where agents have tokens.
    prepared: Option<identity::Prepared>,
}

impl std::fmt::Debug for HollowNodes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<&NodeName> = self.running().collect();
        formatter.debug_struct("HollowNodes").field("running", &nodes).finish_non_exhaustive()
    }
}

impl HollowNodes {
    /// Makes the Node objects that are not there, and starts an agent for each.
    ///
    /// # Errors
    /// The API server refuses something, or an agent does not start.
    pub async fn start(client: Client, options: HollowOptions) -> Result<Self, HollowError> {
        let names: Vec<NodeName> = options.names().collect();
        create_nodes(&client, &names, &options.shape).await?;
        Self::start_on(client, options).await
    }

    /// The same where all Node objects are there already.
    pub(crate) async fn start_on(client: Client, options: HollowOptions) -> Result<Self, HollowError> {
        let names: Vec<NodeName> = options.names().collect();
        let prepared = identity::prepare(&client, &options.identity, &options.ledgers).await?;
        let mut hollow =
            Self { client, options, sockets: Sockets::default(), agents: BTreeMap::new(), prepared };
        hollow.start_agents(names).await?;
        Ok(hollow)
    }

    async fn start_agents(&mut self, names: Vec<NodeName>) -> Result<(), HollowError> {
        let work = names.into_iter().map(|name| {
            let endpoint = self.sockets.next();
            let (client, options) = (&self.client, &self.options);
            let daemon_set = self.prepared.as_ref().map_or("", identity::Prepared::daemon_set);
            async move {
                let folder = options.ledgers.join(name.as_str());
                let credentials = identity::credentials(client, options, daemon_set, &name, &folder).await?;
                HollowAgent::start(options, name, folder, credentials, endpoint?).await
            }
        });
        let work: Vec<_> = work.collect();
        let started: Vec<_> = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect().await;
        for agent in started {
            let agent = agent?;
            self.agents.insert(agent.node().clone(), agent);
        }
        Ok(())
    }

    /// Names of the nodes whose agents run.
    pub fn running(&self) -> impl Iterator<Item = &NodeName> {
        self.agents.keys()
    }

    fn agent(&self, node: &NodeName) -> Result<&HollowAgent, HollowError> {
        self.agents.get(node).ok_or_else(|| HollowError::UnknownNode(node.clone()))
    }

    /// State of an agent: its link, and every lease in its ledger. `None` where the agent has ended by itself.
    ///
    /// # Errors
    /// There is no agent of this node.
    pub async fn report(&self, node: &NodeName) -> Result<Option<AgentReport>, HollowError> {
        Ok(self.agent(node)?.report().await)
    }

    /// States of all agents.
    pub async fn reports(&self) -> BTreeMap<NodeName, Option<AgentReport>> {
        let mut reports = BTreeMap::new();
        for (node, agent) in &self.agents {
            reports.insert(node.clone(), agent.report().await);
        }
        reports
    }

    /// How many agents have a coordinator that has said Welcome.
    pub async fn connected(&self) -> usize {
        let mut count = 0;
        for agent in self.agents.values() {
            count += usize::from(agent.report().await.is_some_and(|report| report.link_is_up));
        }
        count
    }

    /// Changes what a node's agent reads from its hardware.
    ///
    /// # Errors
    /// There is no agent of this node.
    pub async fn set_inventory(&self, node: &NodeName, inventory: Inventory) -> Result<(), HollowError> {
        self.agent(node)?.set_inventory(inventory).await;
        Ok(())
    }

    /// Ends an agent as a crash would; its ledger stays.
    ///
    /// # Errors
    /// There is no agent of this node.
    pub async fn kill_agent(&mut self, node: &NodeName) -> Result<(), HollowError> {
        let agent = self.agents.remove(node).ok_or_else(|| HollowError::UnknownNode(node.clone()))?;
        agent.kill().await;
        Ok(())
    }

    /// Starts the agent of a node again, with the ledger that it left.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_agent(&mut self, node: NodeName) -> Result<(), HollowError> {
        self.start_agents(vec![node]).await
    }

    /// Ends all agents; they say goodbye.
    pub async fn stop(mut self) {
        let agents = std::mem::take(&mut self.agents);
        futures::stream::iter(agents.into_values()).for_each_concurrent(AT_ONCE, HollowAgent::stop).await;
    }
}

/// What gives an agent its certificate.
pub type CredentialsOf = Arc<dyn Fn(&NodeName) -> phalanx_agent::credentials::Credentials + Send + Sync>;

/// Lets this process open as many files as it may: a ledger's lock for each agent, and sockets.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, the first file that cannot be opened says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
