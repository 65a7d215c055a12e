//! An installation with hollow nodes, and what is looked at: annotations, ledgers, the audit log, the leader's state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt};
use phalanx_common::wire::LeaseState;
use phalanx_core::view::StateView;
use phalanx_devcluster::hollow::{NAMESPACE, NodeShape};
use phalanx_devcluster::installation::{COORDINATOR_NAME, Installation, InstallationOptions};
use phalanx_devcluster::{Options, Servers};
use phalanx_kubernetes::election::TERM_ANNOTATION;
use serde_json::json;

use crate::support::{PATIENCE, get};

/// What arms a point at which a replica is killed, and one at which it is stopped.
pub const KILL: &str = "PHALANX_KILL_POINT";
pub const STOP: &str = "PHALANX_STOP_POINT";
/// Requests of the test in flight at once.
const AT_ONCE: usize = 16;
/// A pod is gone only when nobody holds it any more.
const FINALIZER: &str = "example.com/kept";

/// Times of the Lease, in seconds.
pub type LeaseTimes = [u64; 3];

pub struct Cluster {
    pub installation: Installation,
    pub nodes: usize,
}

/// Waits until this gives something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A kind of ours or of Volcano's.
fn kind(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), "default", &resource)
}

/// What a pod has, as its annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub node: String,
    pub gpus: BTreeSet<String>,
    pub term: String,
}

pub fn held(pod: &Pod) -> Option<Held> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let annotations = pod.annotations();
    let gpus = annotations.get("phalanx.dev/gpu-uuids")?.split(',').map(str::to_owned).collect();
    Some(Held { node, gpus, term: annotations["phalanx.dev/term"].clone() })
}

impl Cluster {
    /// Two replicas, one of which leads, and so many nodes of eight GPUs. `times` of the Lease. Logs and recordings
    /// stay in the folder `name` of `PHALANX_CHAOS_FOLDER`, where that is set.
    pub async fn start(name: &str, nodes: usize, times: LeaseTimes) -> Self {
        let folder = std::env::var_os("PHALANX_CHAOS_FOLDER").map(|folder| PathBuf::from(folder).join(name));
        let servers = Servers::start(Options { audit: true, folder, ..Options::default() }).await.unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_phalanx-coordinator"));
        let mut options = InstallationOptions::new(program, PathBuf::new());
        options.can_be_cut_off = true;
        options.hollow = nodes;
        options.shape = NodeShape { gpus: 8, ..NodeShape::default() };
        let [lease, renew, retry] = times;
        options.coordinator_flags = vec![
            format!("--lease-duration={lease}s"),
            format!("--renew-deadline={renew}s"),
            format!("--retry-period={retry}s"),
        ];
        let installation = Installation::start(servers, options).await.unwrap();
        let cluster = Self { installation, nodes };
        cluster.until_ready().await;
        cluster
    }

    fn client(&self) -> Client {
        self.installation.client().clone()
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "default")
    }

    /// Number of the leader, and the counter of its term; `None` while the Lease is nobody's.
    pub async fn leader(&self) -> Option<(usize, u64)> {
        let leases: Api<Lease> = Api::namespaced(self.client(), NAMESPACE);
        let lease = leases.get_opt(COORDINATOR_NAME).await.ok()??;
        let counter = lease.annotations().get(TERM_ANNOTATION)?.parse().ok()?;
        let holder = lease.spec?.holder_identity?;
        let number = self.installation.replicas().iter().position(|one| holder.starts_with(one.name()))?;
        Some((number, counter))
    }

    /// Waits until this replica leads; gives the counter of its term.
    pub async fn until_leads(&self, number: usize) -> u64 {
        until(&format!("replica {number} leads"), async || {
            self.leader().await.filter(|(leader, _)| *leader == number).map(|(_, counter)| counter)
        })
        .await
    }

    /// The leader's state.
    pub async fn state(&self) -> Option<StateView> {
        let (leader, _) = self.leader().await?;
        let answer = get(&self.installation.replicas()[leader].admin(), "/v1/state").await;
        (answer.status == 200).then(|| serde_json::from_str(&answer.text).unwrap())
    }

    /// Waits until the leader has all nodes, and each agent a link to whoever stands by.
    pub async fn until_ready(&self) {
        until("all nodes are ready", async || {
            let state = self.state().await?;
            let ready = state.nodes.iter().filter(|node| &*node.state == "ready").count();
            (ready == self.nodes).then_some(())
        })
        .await;
        until("each agent has a link to both", async || {
            let reports = self.installation.hollow()?.reports().await;
            let linked = |report: &Option<_>| {
                let report: &phalanx_agent::AgentReport = report.as_ref().expect("the agent runs");
                report.link_is_up && report.standbys == 1
            };
            reports.values().all(linked).then_some(())
        })
        .await;
    }

    /// Makes a PodGroup and its pods, all at once; gives the pods' UIDs.
    pub async fn gang(&self, name: &str, pods: usize, gpus: u32) -> BTreeSet<String> {
        self.gang_like(name, pods, gpus, json!({})).await
    }

    /// As `gang`, with this beside the pods' other metadata.
    pub async fn gang_like(
        &self,
        name: &str,
        pods: usize,
        gpus: u32,
        metadata: serde_json::Value,
    ) -> BTreeSet<String> {
        let group = json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": name}, "spec": {"minMember": pods}});
        let groups = kind(&self.client(), "scheduling.volcano.sh", "v1beta1", "PodGroup");
        groups.create(&PostParams::default(), &serde_json::from_value(group).unwrap()).await.unwrap();
        let api = self.pods();
        let made = (0..pods).map(|number| {
            let mut pod = json!({
                "metadata": {"name": format!("{name}-{number}"), "labels": {"gang": name},
                    "annotations": {"scheduling.k8s.io/group-name": name}},
                "spec": {"schedulerName": "phalanx", "containers": [{"name": "main", "image": "none",
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
            });
            for (key, value) in metadata.as_object().unwrap() {
                pod["metadata"][key] = value.clone();
            }
            let api = &api;
            async move {
                let pod = serde_json::from_value(pod).unwrap();
                api.create(&PostParams::default(), &pod).await.unwrap().uid().unwrap()
            }
        });
        let made: Vec<_> = made.collect();
        futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await
    }

    /// A pod of another scheduler, which that one binds at once to a node.
    pub async fn bind_by_hand(&self, name: &str, node: &str, gpus: u32) {
        let pod = json!({
            "metadata": {"name": name, "labels": {"gang": name}},
            "spec": {"schedulerName": "other-scheduler", "containers": [{"name": "main", "image": "none",
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        let binding: k8s_openapi::api::core::v1::Binding = serde_json::from_value(binding).unwrap();
        let _: k8s_openapi::apimachinery::pkg::apis::meta::v1::Status =
            self.pods().create_subresource("binding", name, &PostParams::default(), &binding).await.unwrap();
    }

    pub async fn pods_of(&self, gang: &str) -> Vec<Pod> {
        self.pods().list(&ListParams::default().labels(&format!("gang={gang}"))).await.unwrap().items
    }

    /// Waits until all pods of a gang run.
    pub async fn until_running(&self, gang: &str, count: usize) -> Vec<Pod> {
        let running = async || {
            let pods = self.pods_of(gang).await;
            let phases = pods.iter().filter_map(|pod| pod.status.as_ref()?.phase.as_deref());
            (phases.filter(|phase| *phase == "Running").count() == count).then_some(pods)
        };
        until(&format!("{gang} runs"), running).await
    }

    /// Whether an agent has a lease of this pod.
    pub async fn has_lease(&self, uid: &str) -> bool {
        let reports = self.installation.hollow().unwrap().reports().await;
        reports.into_values().flatten().any(|report| {
            report
                .leases
                .iter()
                .any(|lease| lease.request.pod.as_str() == uid && lease.state != LeaseState::Gone)
        })
    }

    /// Waits until annotations and ledgers say the same of these gangs, each GPU has one holder, nothing else is held,
    /// and all agents obey the term of the leader and no other.
    pub async fn until_settled(&self, gangs: &[&str]) {
        let began = Instant::now();
        while let Some(wrong) = self.unsettled(gangs).await {
            assert!(began.elapsed() < PATIENCE, "never settled: {wrong}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn unsettled(&self, gangs: &[&str]) -> Option<String> {
        let mut annotated = BTreeMap::new();
        let mut holders: BTreeMap<(String, String), String> = BTreeMap::new();
        for gang in gangs {
            for pod in self.pods_of(gang).await {
                let name = pod.name_any();
                let Some(Held { node, gpus, .. }) = held(&pod) else {
                    return Some(format!("{name} is not bound"));
                };
                for gpu in &gpus {
                    let before = holders.insert((node.clone(), gpu.clone()), name.clone());
                    assert_eq!(before, None, "{node} {gpu} is held by {name} too");
                }
                annotated.insert(pod.uid().unwrap(), (node, gpus));
            }
        }
        let Some((_, counter)) = self.leader().await else { return Some("nobody leads".to_owned()) };
        let (mut in_ledgers, mut terms) = (BTreeMap::new(), BTreeSet::new());
        for (node, report) in self.installation.hollow().unwrap().reports().await {
            let report = report.expect("the agent runs");
            terms.insert(report.highest_term);
            for lease in report.leases.into_iter().filter(|lease| lease.state != LeaseState::Gone) {
                let gpus: BTreeSet<String> = lease.request.gpus().iter().map(ToString::to_string).collect();
                let pod = lease.request.pod.as_str().to_owned();
                if in_ledgers.insert(pod.clone(), (node.as_str().to_owned(), gpus)).is_some() {
                    return Some(format!("{pod} has two leases"));
                }
            }
        }
        if terms.len() != 1 || terms.iter().any(|term| term.counter != counter) {
            return Some(format!("agents obey {terms:?}; the Lease says {counter}"));
        }
        (annotated != in_ledgers).then(|| format!("annotations {annotated:#?}\nledgers {in_ledgers:#?}"))
    }

    /// Each pod of these gangs was bound by one Binding. Whose sender died before it was answered has another code.
    pub fn assert_bound_once(&self, gangs: &[(&str, usize)]) {
        let mut bindings: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for request in self.installation.servers().audited().unwrap() {
            if request.subresource == "binding" {
                bindings.entry(request.name).or_default().push(request.code);
            }
        }
        for (gang, count) in gangs {
            for number in 0..*count {
                let pod = format!("{gang}-{number}");
                let codes = bindings.get(&pod).map(Vec::as_slice).unwrap_or_default();
                let done = codes.iter().filter(|code| **code == 201).count();
                assert!(done == 1 || done == 0 && !codes.is_empty(), "Bindings of {pod}: {codes:?}");
                if codes != [201] {
                    println!("{pod}: Bindings were answered with {codes:?}");
                }
            }
        }
    }

    /// No kubelet had to refuse a pod because its GPUs were taken.
    pub fn refused(&self) -> u64 {
        self.installation.kubelets().counters().refused.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Deletes gangs; waits until nothing is left of them: pods, leases, plans, and what the leader counts.
    pub async fn delete(&self, gangs: &[&str]) {
        let groups = kind(&self.client(), "scheduling.volcano.sh", "v1beta1", "PodGroup");
        for gang in gangs {
            let list = ListParams::default().labels(&format!("gang={gang}"));
            self.pods().delete_collection(&DeleteParams::default(), &list).await.unwrap();
            if groups.get_opt(gang).await.unwrap().is_some() {
                let _ = groups.delete(gang, &DeleteParams::default()).await.unwrap();
            }
        }
        self.until_settled(&[]).await;
        let plans = GroupVersionKind::gvk("phalanx.dev", "v1alpha1", "GangPlan");
        let plans: Api<DynamicObject> = Api::all_with(self.client(), &ApiResource::from_gvk(&plans));
        until("nothing is left", async || {
            let plans = plans.list(&ListParams::default()).await.unwrap().items;
            let state = self.state().await?;
            let holders = state.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.holder.is_some());
            let is_empty = plans.is_empty()
                && state.gangs.is_empty()
                && state.pods_without_gang.is_empty()
                && holders.count() == 0;
            is_empty.then_some(())
        })
        .await;
    }

    /// Takes a pod's finalizer away.
    pub async fn let_go(&self, pod: &str) {
        let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.pods().patch(pod, &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    /// Metadata of a pod that stays, also deleted, until it is let go.
    pub fn kept() -> serde_json::Value {
        json!({"finalizers": [FINALIZER]})
    }

    /// The next leader is armed with this, and leads now; whoever led stands by again. Gives its number, and the time
    /// from SIGTERM of the one before until it held the Lease.
    pub async fn hand_over(&mut self, variable: &str, point: Option<&str>) -> (usize, Duration) {
        let (old, _) = self.leader().await.unwrap();
        let new = 1 - old;
        let standby = self.installation.replica(new).unwrap();
        standby.terminate().await;
        standby.set_environment(KILL, None);
        standby.set_environment(STOP, None);
        standby.set_environment(variable, point);
        standby.start().unwrap();
        self.until_stands_by(new).await;
        self.until_ready().await;
        let began = Instant::now();
        self.installation.replicas()[old].ask_to_end();
        self.until_leads(new).await;
        let taken = began.elapsed();
        self.revive(old).await;
        self.until_ready().await;
        (new, taken)
    }

    async fn until_stands_by(&self, number: usize) {
        let admin = self.installation.replicas()[number].admin();
        until("the replica stands by", async || {
            // Nobody listens yet.
            tokio::net::TcpStream::connect(admin).await.ok()?;
            (get(&admin, "/readyz").await.status == 200).then_some(())
        })
        .await;
    }

    /// Starts a replica again that has ended or ends now, without any point.
    pub async fn revive(&mut self, number: usize) {
        let replica = self.installation.replica(number).unwrap();
        until("its end", async || (!replica.runs()).then_some(())).await;
        replica.set_environment(KILL, None);
        replica.set_environment(STOP, None);
        replica.start().unwrap();
        self.until_stands_by(number).await;
    }

    /// What a replica has logged.
    pub fn log(&self, number: usize) -> String {
        std::fs::read_to_string(self.installation.replicas()[number].log()).unwrap()
    }

    /// No replica has logged an ERROR.
    pub fn check_logs(&self) {
        for number in 0..self.installation.replicas().len() {
            let log = self.log(number);
            let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
            assert!(errors.is_empty(), "{errors:#?}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for number in 0..self.installation.replicas().len() {
                eprintln!("log of replica {number}:\n{}", self.log(number));
            }
        }
    }
}
