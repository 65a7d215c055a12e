//! Replicas of the coordinator.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, PostParams};
use phalanx_common::ids::NodeName;
use rustix::process::Signal;
use serde_json::json;

use super::relay::Relay;
use super::{COORDINATOR_NAME, InstallationError, InstallationOptions, own_address};
use crate::error::Error;
use crate::hollow::{HollowError, NAMESPACE, NodeShape, POD_ADDRESS, node_object};
use crate::process::Server;
use crate::servers::Servers;
use crate::tokens::TokenOptions;

/// The node on which the replicas' pods are; nobody else's are placed there.
const HOME: &str = "control-plane";
/// Longer than anybody keeps a dev cluster.
const TOKEN_LIFE_S: i64 = 30 * 24 * 3600;
/// How long a replica may take to end when it is asked to.
const END_LIMIT: Duration = Duration::from_secs(15);

/// One replica: a process, and the pod that stands for it.
#[derive(Debug)]
pub struct Replica {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    folder: PathBuf,
    kubeconfig: PathBuf,
    listen: SocketAddr,
    admin: SocketAddr,
    relay: Option<Relay>,
    process: Option<Server>,
}

impl Replica {
    /// Name of its pod, and of it in the Lease.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where agents dial.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.relay.as_ref().map_or(self.listen, Relay::agents)
    }

    /// Its admin interface.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    /// How it reaches the API server.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Name and process id, while there is a process.
    #[must_use]
    pub fn process(&self) -> Option<(String, u32)> {
        self.process.as_ref().map(|process| (self.name.clone(), process.id()))
    }

    /// True while its process runs.
    pub fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// The exit code, where it has ended by itself.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.process.as_mut()?.ended()?.code()
    }

    pub(super) fn check(&mut self) -> Result<(), Error> {
        self.process.as_mut().map_or(Ok(()), Server::check)
    }

    /// Starts it, also again: at the same addresses, under the same name.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&mut self) -> Result<(), InstallationError> {
        let program = &self.program;
        self.process = None;
        let started =
            Server::start_in(&self.name, program, &self.arguments, &self.environment, &self.folder)?;
        self.process = Some(started);
        Ok(())
    }

    /// The environment of its next start, such as a kill point.
    pub fn set_environment(&mut self, name: &str, value: Option<&str>) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGSTOP, or SIGCONT.
    pub fn freeze(&self, frozen: bool) {
        if let Some(process) = &self.process {
            process.signal(if frozen { Signal::STOP } else { Signal::CONT });
        }
    }

    /// True while it stands still, after SIGSTOP.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let stat = |process: &Server| std::fs::read_to_string(format!("/proc/{}/stat", process.id())).ok();
        // The state follows the name, which stands in brackets.
        self.process.as_ref().and_then(stat).is_some_and(|stat| {
            stat.rsplit_once(')').is_some_and(|(_, after)| after.trim_start().starts_with('T'))
        })
    }

    /// Cuts it off from the API server and from all agents, or ends that. Its admin interface stays where it is. Only
    /// with [`InstallationOptions::can_be_cut_off`].
    pub fn cut_off(&self, is_cut: bool) {
        if let Some(relay) = &self.relay {
            relay.cut(is_cut);
        }
    }

    /// SIGTERM. It ends by itself.
    pub fn ask_to_end(&self) {
        if let Some(process) = &self.process {
            process.signal(Signal::TERM);
        }
    }

    /// SIGTERM, and the end: by itself, or after 15 s by force.
    pub async fn terminate(&mut self) {
        if let Some(process) = &mut self.process {
            process.signal(Signal::TERM);
            let began = Instant::now();
            while process.ended().is_none() && began.elapsed() < END_LIMIT {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        self.process = None;
    }
}

/// Makes the node of the replicas' pods.
pub(super) async fn create_home(client: &Client) -> Result<(), HollowError> {
    let shape = NodeShape { gpus: 0, ..NodeShape::default() };
    let mut node = node_object(&NodeName::from(HOME), &shape);
    node["spec"] =
        json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]});
    create(Api::<Node>::all(client.clone()), node, HOME).await
}

async fn create<K>(api: Api<K>, object: serde_json::Value, name: &str) -> Result<(), HollowError>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let parsed = serde_json::from_value(object)
        .map_err(|error| HollowError::api(name)(kube::Error::SerdeError(error)))?;
    match api.create(&PostParams::default(), &parsed).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(HollowError::api(name)(error)),
    }
}

/// Starts all replicas, each with a pod that stands for it.
pub(super) async fn start_all(
    servers: &Servers,
    client: &Client,
    options: &InstallationOptions,
) -> Result<Vec<Replica>, InstallationError> {
    let address = own_address();
    let token = TokenOptions { expires_in_s: Some(TOKEN_LIFE_S), ..TokenOptions::default() };
    let token = servers.token(NAMESPACE, COORDINATOR_NAME, &token).await?;
    let kubeconfig = servers.kubeconfig_with_token(COORDINATOR_NAME, &token)?;
    let mut replicas = Vec::new();
    for number in 0..options.replicas {
        let name = format!("{COORDINATOR_NAME}-{number}");
        create(Api::<Pod>::namespaced(client.clone(), NAMESPACE), pod(&name, address), &name).await?;
        let listen = free_udp()?;
        let relay = if options.can_be_cut_off { Some(start_relay(servers, listen).await?) } else { None };
        let kubeconfig = match &relay {
            Some(relay) => relayed(servers, &kubeconfig, relay, &name)?,
            None => kubeconfig.clone(),
        };
        let admin = free_tcp(address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))?;
        let mut arguments = vec![
            "run".to_owned(),
            "--kubernetes".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--state-dir={}", servers.folder().join(&name).display()),
            format!("--listen={listen}"),
            format!("--admin={admin}"),
        ];
        arguments.extend(options.coordinator_flags.iter().cloned());
        let mut environment =
            vec![("POD_NAME".to_owned(), name.clone()), ("POD_NAMESPACE".to_owned(), NAMESPACE.to_owned())];
        environment.extend(address.map(|address| ("POD_IP".to_owned(), address.to_string())));
        environment.extend(options.coordinator_environment.iter().cloned());
        let (program, folder) = (options.coordinator.clone(), servers.folder().to_owned());
        let mut replica = Replica {
            name,
            program,
            arguments,
            environment,
            folder,
            kubeconfig,
            listen,
            admin,
            relay,
            process: None,
        };
        replica.start()?;
        replicas.push(replica);
    }
    Ok(replicas)
}

async fn start_relay(servers: &Servers, replica: SocketAddr) -> Result<Relay, Error> {
    let name = || format!("the network of a replica at {}", servers.url());
    let address = servers.url().trim_start_matches("https://").parse();
    let address = address.map_err(|error| Error::Start { name: name(), source: io::Error::other(error) })?;
    Relay::start(replica, address).await.map_err(|source| Error::Start { name: name(), source })
}

/// A kubeconfig that takes the replica's own way.
fn relayed(servers: &Servers, kubeconfig: &Path, relay: &Relay, name: &str) -> Result<PathBuf, Error> {
    let text = std::fs::read_to_string(kubeconfig).map_err(Error::file(kubeconfig))?;
    let path = servers.folder().join(format!("{name}.kubeconfig"));
    let url = format!("https://{}", relay.api_server());
    std::fs::write(&path, text.replace(servers.url(), &url)).map_err(Error::file(&path))?;
    Ok(path)
}

fn pod(name: &str, address: Option<IpAddr>) -> serde_json::Value {
    let mut annotations = serde_json::Map::new();
    annotations.extend(address.map(|address| (POD_ADDRESS.to_owned(), address.to_string().into())));
    json!({
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": COORDINATOR_NAME},
            "annotations": annotations,
        },
        "spec": {
            "nodeName": HOME,
            "serviceAccountName": COORDINATOR_NAME,
            "hostNetwork": true,
            "containers": [{"name": "coordinator", "image": "hollow"}],
        },
    })
}

/// A port that is free now: a replica that is started again must be found where it was.
fn free_udp() -> Result<SocketAddr, Error> {
    let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.map_err(|source| Error::Start { name: "a UDP socket on 127.0.0.1".to_owned(), source })
}

fn free_tcp(address: IpAddr) -> Result<SocketAddr, Error> {
    let bound = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
    bound.map_err(|source| Error::Start { name: format!("a listener on {address}"), source })
}
