//! A real API server with hollow nodes and real agents, and replicas of the coordinator as processes of their own:
//! what kills, stops and cuts them off is what would do it to a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use phalanx_agent::Credentials;
use phalanx_common::ids::NodeName;
use phalanx_common::wire::LeaseState;
use phalanx_coordinator::coordinator::Endpoints;
use phalanx_devcluster::hollow::{
    HollowNodes, HollowOptions, Identity, KubeletOptions, Kubelets, NAMESPACE, NodeShape,
};
use phalanx_devcluster::{Options, Servers};
use phalanx_kubernetes::election::{LEASE_NAME, TERM_ANNOTATION};
use phalanx_transport::CertificateAuthority;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{PATIENCE, get, log};

/// Times of the Lease in these tests, in seconds.
pub const LEASE_SECONDS: [u64; 3] = [5, 3, 1];

/// The whole of it.
pub struct KubernetesCluster {
    pub servers: Servers,
    pub client: Client,
    pub hollow: HollowNodes,
    kubelets: Kubelets,
    addresses: Vec<SocketAddr>,
    folder: TempDir,
}

impl KubernetesCluster {
    /// Servers, definitions and nodes; agents that know the addresses of so many replicas. No replica runs yet.
    pub async fn start(nodes: usize, gpus: u32, replicas: usize) -> Self {
        Self::start_of(nodes, NodeShape { gpus, ..NodeShape::default() }, replicas).await
    }

    /// The same with nodes of this shape.
    pub async fn start_of(nodes: usize, shape: NodeShape, replicas: usize) -> Self {
        log();
        let servers = Servers::start(Options::default()).await.unwrap();
        servers.apply_crds().await.unwrap();
        let client = servers.admin_client().await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::load_or_create(&folder.path().join("pki")).unwrap();
        let addresses = free_addresses(replicas);
        let credentials = move |node: &NodeName| Credentials::Certificate {
            identity: authority.issue_agent(node).unwrap(),
            authority: authority.trust_anchor(),
        };
        let options = HollowOptions {
            prefix: "hollow".to_owned(),
            first: 0,
            count: nodes,
            shape,
            coordinators: addresses.iter().map(ToString::to_string).collect(),
            ledgers: folder.path().join("ledgers"),
            identity: Identity::Given(Arc::new(credentials)),
        };
        let hollow = HollowNodes::start(client.clone(), options).await.unwrap();
        let kubelets = Kubelets::start(client.clone(), KubeletOptions::default()).await.unwrap();
        Self { servers, client, hollow, kubelets, addresses, folder }
    }

    /// Starts a replica. `kill_point`: where it kills itself.
    pub fn replica(&self, number: usize, kill_point: Option<&str>) -> Replica {
        self.replica_over(number, self.servers.kubeconfig(), kill_point, &[])
    }

    /// As `replica`, with this way to the API server and further flags.
    pub fn replica_over(
        &self,
        number: usize,
        kubeconfig: &Path,
        kill_point: Option<&str>,
        flags: &[&str],
    ) -> Replica {
        let state_dir = self.folder.path().join(format!("replica-{number}"));
        std::fs::create_dir_all(&state_dir).unwrap();
        let _ = std::fs::remove_file(state_dir.join("endpoints.json"));
        let log = state_dir.join("log");
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-coordinator"));
        command.args(["run", "--kubernetes", "--agent-identity", "certificate", "--admin", "127.0.0.1:0"]);
        command.arg("--kubeconfig").arg(kubeconfig);
        command.args(flags);
        command.arg("--pki-dir").arg(self.folder.path().join("pki"));
        command.arg("--state-dir").arg(&state_dir);
        command.args(["--listen", &self.addresses[number].to_string()]);
        command.args(["--identity", &format!("replica-{number}")]);
        let names = ["--lease-duration", "--renew-deadline", "--retry-period"];
        for (name, seconds) in names.into_iter().zip(LEASE_SECONDS) {
            command.args([name, &format!("{seconds}s")]);
        }
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        if let Some(point) = kill_point {
            command.env("PHALANX_KILL_POINT", point);
        }
        Replica { number, child: command.spawn().unwrap(), state_dir, log }
    }

    /// A way to the API server that can be cut, and a kubeconfig that takes it.
    pub async fn relay(&self) -> (Relay, PathBuf) {
        let url = self.servers.url();
        let relay = Relay::start(url.trim_start_matches("https://").parse().unwrap()).await;
        let text = std::fs::read_to_string(self.servers.kubeconfig()).unwrap();
        assert!(text.contains(url), "{text}");
        let path = self.folder.path().join("kubeconfig-of-the-relay");
        std::fs::write(&path, text.replace(url, &format!("https://{}", relay.address))).unwrap();
        (relay, path)
    }

    /// Waits until all agents obey the term of this counter, and gives its incarnation.
    pub async fn until_obeyed(&self, counter: u64) -> u64 {
        until(&format!("all agents obey term {counter}"), || async {
            let reports = self.hollow.reports().await;
            let terms: BTreeSet<_> =
                reports.into_values().map(|report| report.expect("the agent runs").highest_term).collect();
            let term = *terms.first()?;
            (terms.len() == 1 && term.counter == counter).then_some(term.incarnation)
        })
        .await
    }

    /// Waits until the core of this replica has all nodes.
    pub async fn until_ready(&self, replica: &Replica, nodes: usize) {
        let admin = replica.admin().await;
        until("all nodes ready", || async {
            let answer = get(&admin, "/v1/state").await;
            if answer.status != 200 {
                return None;
            }
            let state: phalanx_core::view::StateView = serde_json::from_str(&answer.text).unwrap();
            let ready = state.nodes.iter().filter(|node| &*node.state == "ready").count();
            (ready == nodes).then_some(())
        })
        .await;
    }

    /// Waits until one of them leads; gives the holder's name and its counter.
    pub async fn leader(&self) -> (String, u64) {
        until("a leader", || async { self.holder().await.filter(|(name, _)| !name.is_empty()) }).await
    }

    /// What the Lease says.
    pub async fn holder(&self) -> Option<(String, u64)> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get_opt(LEASE_NAME).await.ok()??;
        let term = lease.metadata.annotations.as_ref()?.get(TERM_ANNOTATION)?.parse().ok()?;
        Some((lease.spec?.holder_identity.unwrap_or_default(), term))
    }

    /// Makes a PodGroup and its pods, each with so many GPUs.
    pub async fn gang(&self, name: &str, pods: usize, gpus: u32) {
        self.gangs(&[name], pods, gpus).await;
    }

    /// The same for several, at one time.
    pub async fn gangs(&self, names: &[&str], pods: usize, gpus: u32) {
        let manifests: Vec<String> = names.iter().map(|name| Self::manifest(name, pods, gpus)).collect();
        self.servers.kubectl_with_input(&["apply", "-f", "-"], &manifests.join("---\n")).await.unwrap();
    }

    fn manifest(name: &str, pods: usize, gpus: u32) -> String {
        let group = format!(
            "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default}}
spec: {{minMember: {pods}}}
"
        );
        let pod = |number: usize| {
            format!(
                "---
apiVersion: v1
kind: Pod
metadata:
  name: {name}-{number}
  namespace: default
  labels: {{gang: {name}}}
  annotations: {{scheduling.k8s.io/group-name: {name}}}
spec:
  schedulerName: phalanx
  containers:
    - name: main
      image: none
      resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"
            )
        };
        std::iter::once(group).chain((0..pods).map(pod)).collect()
    }

    /// Pods of a gang.
    pub async fn pods(&self, gang: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        pods.list(&ListParams::default().labels(&format!("gang={gang}"))).await.unwrap().items
    }

    /// Waits until all pods of a gang are bound and run.
    pub async fn until_running(&self, gang: &str, count: usize) -> Vec<Pod> {
        until(&format!("{gang} runs"), || async {
            let pods = self.pods(gang).await;
            let running = pods.iter().filter(|pod| phase(pod) == "Running").count();
            (running == count).then_some(pods)
        })
        .await
    }

    /// Checks that annotations and ledgers say the same: each GPU has one holder, each pod of these gangs its own GPUs,
    /// and nothing else is held. Waits for what is still on its way.
    pub async fn until_settled(&self, gangs: &[&str]) {
        let began = Instant::now();
        loop {
            let wrong = self.unsettled(gangs).await;
            let Some(wrong) = wrong else { return };
            assert!(began.elapsed() < PATIENCE, "never settled: {wrong}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn unsettled(&self, gangs: &[&str]) -> Option<String> {
        let mut annotated: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
        let mut holders: BTreeMap<(String, String), String> = BTreeMap::new();
        for gang in gangs {
            for pod in self.pods(gang).await {
                let name = pod.name_any();
                let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
                    return Some(format!("{name} is not bound"));
                };
                // None is named of devices that are only counted.
                let gpus = pod.annotations().get("phalanx.dev/gpu-uuids").map(|text| text.split(','));
                let gpus: BTreeSet<String> = gpus.into_iter().flatten().map(str::to_owned).collect();
                for gpu in &gpus {
                    let before = holders.insert((node.clone(), gpu.clone()), name.clone());
                    assert_eq!(before, None, "{node} {gpu} is held by {name} too");
                }
                annotated.insert(pod.uid().unwrap(), (node, gpus));
            }
        }
        let mut in_ledgers = BTreeMap::new();
        for (node, report) in self.hollow.reports().await {
            let report = report.expect("the agent runs");
            for lease in report.leases.into_iter().filter(|lease| lease.state != LeaseState::Gone) {
                let gpus: BTreeSet<String> = lease
                    .request
                    .devices
                    .iter()
                    .flat_map(|container| container.gpus.iter().map(ToString::to_string))
                    .collect();
                let pod = lease.request.pod.as_str().to_owned();
                let before = in_ledgers.insert(pod.clone(), (node.as_str().to_owned(), gpus));
                if before.is_some() {
                    return Some(format!("{pod} has two leases"));
                }
            }
        }
        (annotated != in_ledgers).then(|| format!("annotations {annotated:#?}\nledgers {in_ledgers:#?}"))
    }

    /// Deletes a gang's pods and its PodGroup.
    pub async fn delete(&self, gang: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let list = ListParams::default().labels(&format!("gang={gang}"));
        pods.delete_collection(&DeleteParams::default(), &list).await.unwrap();
        let _ = self.servers.kubectl(&["delete", "podgroup", gang]).await.unwrap();
    }

    /// Pods that a kubelet would have failed because a GPU was given twice.
    pub fn refused(&self) -> u64 {
        self.kubelets.counters().refused.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Addresses that nobody has now: agents must know them before the replicas are there.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
}

/// Waits until this gives something.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Passes bytes on, until it is cut: then nothing comes through, and nobody is told.
pub struct Relay {
    address: SocketAddr,
    cut: tokio::sync::watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Relay {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, told) = tokio::sync::watch::channel(false);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let (near, far) = (near.into_split(), far.into_split());
                    tokio::spawn(pass_on(near.0, far.1, told.clone()));
                    pass_on(far.0, near.1, told).await;
                });
            }
        });
        Self { address, cut, task }
    }

    pub fn cut(&self, is_cut: bool) {
        self.cut.send_replace(is_cut);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut cut: tokio::sync::watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if cut.wait_for(|is_cut| !*is_cut).await.is_err() || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// A replica that runs. Dropping it kills it.
pub struct Replica {
    pub number: usize,
    child: Child,
    state_dir: PathBuf,
    log: PathBuf,
}

impl Replica {
    /// Where its admin interface answers.
    pub async fn admin(&self) -> SocketAddr {
        let admin = || async {
            let endpoints = Endpoints::read(&self.state_dir)?;
            endpoints.admin.strip_prefix("http://")?.parse().ok()
        };
        until("the replica's addresses", admin).await
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "{} does not end: {}", self.number, self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The log has no ERROR line.
    pub fn check(&self) {
        let log = self.log();
        let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of replica {}:\n{}", self.number, self.log());
        }
    }
}
