//! Phalanx on servers: replicas of the coordinator as processes, each under the rights of its ServiceAccount; agents of
//! node profiles as processes; hollow nodes; and the stand-in for kubelets. What a dev cluster, tests and benches start.

mod agents;
mod relay;
mod replicas;

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use phalanx_common::ids::NodeName;

use crate::error::Error;
use crate::hollow::{
    HollowError, HollowNodes, HollowOptions, Identity, KubeletOptions, Kubelets, NAMESPACE, NodeShape,
    create_nodes,
};
use crate::servers::Servers;

pub use agents::AgentPlan;
use agents::ProfileAgent;
pub use replicas::Replica;

/// Name of the coordinators' Lease and ServiceAccount.
pub const COORDINATOR_NAME: &str = "phalanx-coordinator";
/// How long a replica may take to lead, on a busy machine.
const LEADER_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// Manifests of `deploy/phalanx` that are applied: all but what the controllers of a cluster would start.
const MANIFESTS: [&str; 5] = ["namespace", "serviceaccounts", "rbac", "rbac-users", "services"];

/// What is started.
#[derive(Clone, Debug)]
pub struct InstallationOptions {
    /// The program `phalanx-coordinator`.
    pub coordinator: PathBuf,
    /// Replicas of it.
    pub replicas: usize,
    /// Flags of it beside those that say where everything is.
    pub coordinator_flags: Vec<String>,
    /// Variables in its environment.
    pub coordinator_environment: Vec<(String, String)>,
    /// Each replica has a network of its own, for [`Replica::cut_off`].
    pub can_be_cut_off: bool,
    /// The program `phalanx-agent`; needed where there are nodes with a profile.
    pub agent: PathBuf,
    /// Nodes with a profile.
    pub agents: Vec<AgentPlan>,
    /// How many hollow nodes.
    pub hollow: usize,
    /// What each hollow node is.
    pub shape: NodeShape,
    /// Where hollow agents keep their ledgers; `None` = in the servers' folder.
    pub ledgers: Option<PathBuf>,
    /// How kubelets behave.
    pub kubelets: KubeletOptions,
}

impl InstallationOptions {
    /// Two replicas and no nodes. The programs are named by their files.
    #[must_use]
    pub fn new(coordinator: PathBuf, agent: PathBuf) -> Self {
        Self {
            coordinator,
            replicas: 2,
            coordinator_flags: [
                "--scheduler-names=phalanx,volcano",
                "--lease-duration=5s",
                "--renew-deadline=3s",
                "--retry-period=1s",
            ]
            .map(str::to_owned)
            .to_vec(),
            coordinator_environment: Vec::new(),
            can_be_cut_off: false,
            agent,
            agents: Vec::new(),
            hollow: 0,
            shape: NodeShape::default(),
            ledgers: None,
            kubelets: KubeletOptions::default(),
        }
    }
}

/// Why an installation does not start.
#[derive(Debug, thiserror::Error)]
pub enum InstallationError {
    /// A server or process.
    #[error(transparent)]
    Servers(#[from] Error),
    /// Nodes or their agents.
    #[error(transparent)]
    Hollow(#[from] HollowError),
    /// A node profile.
    #[error("--profile {0}")]
    Profile(#[from] phalanx_profile::ProfileError),
    /// Nobody leads in time.
    #[error("no replica leads after {} s; see the logs {}", LEADER_LIMIT.as_secs(), logs.display())]
    NoLeader {
        /// Where the logs are.
        logs: PathBuf,
    },
    /// There is no such replica.
    #[error("there is no replica {0}")]
    UnknownReplica(usize),
}

/// An installation that runs. Dropping it ends all of it, the servers last.
pub struct Installation {
    // In this order they end.
    hollow: Option<HollowNodes>,
    agents: Vec<ProfileAgent>,
    replicas: Vec<Replica>,
    kubelets: Kubelets,
    client: Client,
    options: InstallationOptions,
    servers: Servers,
}

impl std::fmt::Debug for Installation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Installation").field("replicas", &self.replicas).finish_non_exhaustive()
    }
}

impl Installation {
    /// Applies the project's manifests, starts everything, and waits until a replica leads. Agents may still be on
    /// their way to it.
    ///
    /// # Errors
    /// The first part that does not start.
    pub async fn start(servers: Servers, options: InstallationOptions) -> Result<Self, InstallationError> {
        servers.apply_crds().await?;
        let manifests = MANIFESTS.map(|name| Servers::deploy(&format!("phalanx/{name}.yaml")));
        let mut arguments = vec!["apply".to_owned(), "--server-side".to_owned()];
        for file in &manifests {
            arguments.extend(["-f".to_owned(), file.to_string_lossy().into_owned()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        servers.kubectl(&arguments).await?;

        let client = servers.admin_client().await?;
        replicas::create_home(&client).await?;
        for plan in &options.agents {
            agents::create_node(&client, plan).await?;
        }
        let hollow_options = hollow_options(&servers, &options);
        let names: Vec<NodeName> = hollow_options.names().collect();
        create_nodes(&client, &names, &options.shape).await?;
        // They look at the nodes once.
        let kubelets = Kubelets::start(client.clone(), options.kubelets.clone()).await?;
        let replicas = replicas::start_all(&servers, &client, &options).await?;
        let mut installation =
            Self { hollow: None, agents: Vec::new(), replicas, kubelets, client, options, servers };
        installation.wait_for_leader().await?;
        installation.start_agents(hollow_options).await?;
        Ok(installation)
    }

    async fn start_agents(&mut self, mut hollow: HollowOptions) -> Result<(), InstallationError> {
        let coordinators = self.coordinators();
        for plan in self.options.agents.clone() {
            let program = self.options.agent.clone();
            let agent = ProfileAgent::new(&self.servers, &self.client, &program, plan, &coordinators);
            self.agents.push(agent.await?);
        }
        if self.options.hollow > 0 {
            hollow.coordinators = coordinators;
            self.hollow = Some(HollowNodes::start_on(self.client.clone(), hollow).await?);
        }
        Ok(())
    }

    /// `HOST:PORT` of all replicas, for agents.
    #[must_use]
    pub fn coordinators(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.listen().to_string()).collect()
    }

    /// The servers below it.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The admin's client; it belongs to the runtime that started the installation.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The hollow nodes, where there are some.
    #[must_use]
    pub fn hollow(&self) -> Option<&HollowNodes> {
        self.hollow.as_ref()
    }

    /// The same, to kill and start agents.
    pub fn hollow_mut(&mut self) -> Option<&mut HollowNodes> {
        self.hollow.as_mut()
    }

    /// What kubelets have done.
    #[must_use]
    pub fn kubelets(&self) -> &Kubelets {
        &self.kubelets
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// One of them, to kill, freeze, end and start it.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn replica(&mut self, number: usize) -> Result<&mut Replica, InstallationError> {
        self.replicas.get_mut(number).ok_or(InstallationError::UnknownReplica(number))
    }

    /// Number of the replica that holds the Lease, as the Lease says.
    pub async fn leader(&self) -> Option<usize> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get_opt(COORDINATOR_NAME).await.ok()??;
        let holder = lease.spec?.holder_identity?;
        // The holder may carry more than the name.
        self.replicas.iter().position(|replica| holder.starts_with(replica.name()))
    }

    /// Waits until a replica that runs holds the Lease; gives its number.
    ///
    /// # Errors
    /// A server has ended, or nobody leads in time.
    pub async fn wait_for_leader(&mut self) -> Result<usize, InstallationError> {
        let began = Instant::now();
        loop {
            self.servers.check()?;
            if let Some(leader) = self.leader().await
                && self.replicas.get_mut(leader).is_some_and(Replica::runs)
            {
                return Ok(leader);
            }
            if self.replicas.iter_mut().all(|replica| !replica.runs()) {
                self.check()?;
            }
            if began.elapsed() > LEADER_LIMIT {
                return Err(InstallationError::NoLeader { logs: self.servers.folder().to_owned() });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Fails where a server, a replica or an agent has ended by itself.
    ///
    /// # Errors
    /// One has, with the end of its log.
    pub fn check(&mut self) -> Result<(), InstallationError> {
        self.servers.check()?;
        for replica in &mut self.replicas {
            replica.check()?;
        }
        for agent in &mut self.agents {
            agent.check()?;
        }
        Ok(())
    }

    /// Starts replicas and agents that have ended by themselves again, as their kubelet would; gives what each said at
    /// its end. One that was killed or ended through this value stays so.
    ///
    /// # Errors
    /// A server has ended, or a program cannot be started.
    pub fn revive(&mut self) -> Result<Vec<String>, InstallationError> {
        self.servers.check()?;
        let mut ends = Vec::new();
        for replica in &mut self.replicas {
            if let Err(end) = replica.check() {
                ends.push(end.to_string());
                replica.start()?;
            }
        }
        for agent in &mut self.agents {
            if let Err(end) = agent.check() {
                ends.push(end.to_string());
                agent.start()?;
            }
        }
        Ok(ends)
    }

    /// Names and process ids of all that runs.
    #[must_use]
    pub fn processes(&self) -> Vec<(String, u32)> {
        let mut all = self.servers.processes();
        all.extend(self.replicas.iter().filter_map(Replica::process));
        all.extend(self.agents.iter().map(ProfileAgent::process));
        all
    }

    /// Ends everything in order: agents say goodbye, the leader gives its Lease back.
    pub async fn stop(mut self) {
        if let Some(hollow) = self.hollow.take() {
            hollow.stop().await;
        }
        self.agents.clear();
        for replica in &mut self.replicas {
            replica.terminate().await;
        }
    }
}

fn hollow_options(servers: &Servers, options: &InstallationOptions) -> HollowOptions {
    HollowOptions {
        prefix: "hollow".to_owned(),
        first: 0,
        count: options.hollow,
        shape: options.shape.clone(),
        coordinators: Vec::new(),
        ledgers: options.ledgers.clone().unwrap_or_else(|| servers.folder().join("ledgers")),
        identity: Identity::Tokens,
    }
}

/// This machine's own address, which the API server's service proxy needs: it refuses loopback ones. `None` where there
/// is no other. Nothing is sent: a UDP socket only looks up the way.
pub(crate) fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}
