//! One task that does for all nodes what kubelets do with pods: bound ones run, end after the time their annotation
//! gives them, and are gone once they were deleted. A pod whose devices are not free is failed, as a kubelet does it, so
//! that a test sees a double booking.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{HollowError, status};

/// Annotation of a pod with how long it runs, such as `30s`.
const RUN_FOR: &str = "phalanx.dev/run-for";
/// Annotation of a pod with the exit code of its containers at their end; 0 where there is none.
const EXIT_CODE: &str = "phalanx.dev/hollow-exit-code";
/// Annotation of a pod with the address that its status shall have.
pub const POD_ADDRESS: &str = "phalanx.dev/hollow-pod-ip";
/// How often a write is tried that the API server does not take for the moment.
const ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// How kubelets behave.
#[derive(Clone, Debug)]
pub struct KubeletOptions {
    /// Only pods of nodes whose name begins so.
    pub node_prefix: String,
    /// From the binding to Running.
    pub start_delay: Duration,
    /// From the deletion until the pod is gone.
    pub stop_delay: Duration,
    /// Writes in flight at once.
    pub writes_at_once: usize,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            node_prefix: String::new(),
            start_delay: Duration::ZERO,
            stop_delay: Duration::ZERO,
            writes_at_once: 32,
        }
    }
}

/// What kubelets have done.
#[derive(Debug, Default)]
pub struct KubeletCounters {
    /// Pods that were marked Running.
    pub started: AtomicU64,
    /// Pods that were marked Succeeded or Failed at the end of their time.
    pub ended: AtomicU64,
    /// Pods that were failed because their devices were not free: a double booking.
    pub refused: AtomicU64,
    /// Deletions that were finished.
    pub deleted: AtomicU64,
    /// Writes that were given up.
    pub failed_writes: AtomicU64,
}

/// The task. Dropping it ends it; pods stay as they are.
#[derive(Debug)]
pub struct Kubelets {
    task: JoinHandle<()>,
    counters: Arc<KubeletCounters>,
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubelets {
    /// Begins with all pods that are bound already.
    ///
    /// # Errors
    /// The API server does not list its nodes.
    pub async fn start(client: Client, options: KubeletOptions) -> Result<Self, HollowError> {
        let nodes: Api<Node> = Api::all(client.clone());
        let list = nodes.list(&ListParams::default()).await.map_err(HollowError::api("list of nodes"))?;
        let devices = list.items.iter().map(|node| (node.name_any(), devices_of_node(node))).collect();
        let counters = Arc::new(KubeletCounters::default());
        let shared = Arc::new(Shared {
            writes: Semaphore::new(options.writes_at_once.max(1)),
            client,
            options,
            counters: Arc::clone(&counters),
            pods: Mutex::new(Pods { devices, ..Pods::default() }),
        });
        Ok(Self { task: tokio::spawn(watch(shared)), counters })
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &KubeletCounters {
        &self.counters
    }
}

#[derive(Debug, Default)]
struct Pods {
    /// What is being done with a pod, by UID.
    stages: HashMap<String, Stage>,
    /// Devices of nodes.
    devices: HashMap<String, Devices>,
    /// Devices that pods hold on a node, by the pod's UID.
    held: HashMap<String, HashMap<String, Devices>>,
}

/// GPUs and devices of other kinds, by resource name.
type Devices = BTreeMap<String, u64>;

/// What a pod was refused for.
#[derive(Debug)]
struct Short {
    resource: String,
    asked: u64,
    free: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Runs,
    Deleting,
}

struct Shared {
    client: Client,
    options: KubeletOptions,
    counters: Arc<KubeletCounters>,
    writes: Semaphore,
    pods: Mutex<Pods>,
}

async fn watch(shared: Arc<Shared>) {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let config = watcher::Config::default().fields("spec.nodeName!=");
    // It lists again after a gap, and waits a little after an error.
    let mut events = kube::runtime::WatchStreamExt::default_backoff(watcher::watcher(pods, config)).boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => shared.seen(pod),
            Ok(Event::Delete(pod)) => shared.gone(&pod),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::debug!("watch of pods: {error}"),
        }
    }
}

impl Shared {
    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(self: &Arc<Self>, pod: Pod) {
        let (Some(uid), Some(node)) = (pod.uid(), node_of(&pod)) else { return };
        if !node.starts_with(&self.options.node_prefix) {
            return;
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let mut pods = self.pods();
        let stage = pods.stages.get(&uid).copied();
        if pod.metadata.deletion_timestamp.is_some() {
            if stage != Some(Stage::Deleting) {
                pods.stages.insert(uid, Stage::Deleting);
                tokio::spawn(Arc::clone(self).finish_deletion(pod));
            }
            return;
        }
        match (phase, stage) {
            ("Succeeded" | "Failed", _) => pods.release(&uid, &node),
            ("Running", None) => {
                // It ran before we came.
                pods.hold(&uid, &node, devices_of_pod(&pod));
                pods.stages.insert(uid, Stage::Runs);
                tokio::spawn(Arc::clone(self).run(pod));
            }
            ("Pending", None) => {
                pods.stages.insert(uid.clone(), Stage::Starting);
                let asked = devices_of_pod(&pod);
                let short = pods.short(&node, &asked);
                if short.is_none() {
                    pods.hold(&uid, &node, asked);
                }
                tokio::spawn(Arc::clone(self).start_pod(pod, short));
            }
            _ => {}
        }
    }

    fn gone(&self, pod: &Pod) {
        if let (Some(uid), Some(node)) = (pod.uid(), node_of(pod)) {
            let mut pods = self.pods();
            pods.release(&uid, &node);
            pods.stages.remove(&uid);
        }
    }

    /// `short` is what was not free on the node.
    async fn start_pod(self: Arc<Self>, pod: Pod, short: Option<Short>) {
        if let Some(Short { resource, asked, free }) = short {
            tracing::warn!(
                pod = pod.name_any(),
                resource,
                asked,
                free,
                "its devices are not free on the node"
            );
            if self.write(&pod, &status::refused(&pod, &resource, asked, free)).await {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        tokio::time::sleep(self.options.start_delay).await;
        let address = pod.annotations().get(POD_ADDRESS).map(String::as_str);
        if self.write(&pod, &status::running(&pod, address)).await {
            self.counters.started.fetch_add(1, Ordering::Relaxed);
            self.run(pod).await;
        }
    }

    /// Until its time is over, where it has one.
    async fn run(self: Arc<Self>, pod: Pod) {
        let Some(time) = pod.annotations().get(RUN_FOR) else { return };
        let Ok(time) = humantime::parse_duration(time.trim()) else { return };
        let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        let passed = since.map_or(0, |start| jiff::Timestamp::now().as_second() - start.0.as_second());
        tokio::time::sleep(time.saturating_sub(Duration::from_secs(u64::try_from(passed).unwrap_or(0))))
            .await;
        let exit_code = pod.annotations().get(EXIT_CODE).and_then(|code| code.parse().ok()).unwrap_or(0);
        let stage = pod.uid().and_then(|uid| self.pods().stages.get(&uid).copied());
        let goes_on = matches!(stage, Some(Stage::Starting | Stage::Runs));
        if goes_on && self.write(&pod, &status::ended(&pod, exit_code)).await {
            self.counters.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn finish_deletion(self: Arc<Self>, pod: Pod) {
        tokio::time::sleep(self.options.stop_delay).await;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..Default::default()
        };
        let name = pod.name_any();
        let done = self
            .attempt("delete", &name, || async { api.delete(&name, &parameters).await.map(|_| ()) })
            .await;
        if done {
            self.counters.deleted.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn write(&self, pod: &Pod, patch: &Value) -> bool {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let (name, parameters) = (pod.name_any(), PatchParams::default());
        let patch = Patch::Strategic(patch);
        let write = || async { api.patch_status(&name, &parameters, &patch).await.map(|_| ()) };
        self.attempt("status", &name, write).await
    }

    /// Writes, again where the API server does not take it for the moment. False where it is not to be: the pod is
    /// gone, or another one has its name.
    async fn attempt<F, W>(&self, what: &str, name: &str, mut write: W) -> bool
    where
        F: Future<Output = Result<(), kube::Error>>,
        W: FnMut() -> F,
    {
        let Ok(_permit) = self.writes.acquire().await else { return false };
        let mut pause = FIRST_PAUSE;
        for _ in 0..ATTEMPTS {
            match write().await {
                Ok(()) => return true,
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => return false,
                Err(error) => tracing::debug!("{what} of pod {name}: {error}"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.counters.failed_writes.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("{what} of pod {name} was given up");
        false
    }
}

impl Pods {
    /// The first kind of devices of which a node that is known has not enough that no pod holds.
    fn short(&self, node: &str, asked: &Devices) -> Option<Short> {
        let all = self.devices.get(node)?;
        let amount = |devices: &Devices, resource: &str| devices.get(resource).copied().unwrap_or(0);
        asked.iter().find_map(|(resource, asked)| {
            let held: u64 = self
                .held
                .get(node)
                .into_iter()
                .flat_map(HashMap::values)
                .map(|held| amount(held, resource))
                .sum();
            let free = amount(all, resource).saturating_sub(held);
            (*asked > free).then(|| Short { resource: resource.clone(), asked: *asked, free })
        })
    }

    fn hold(&mut self, uid: &str, node: &str, devices: Devices) {
        if !devices.is_empty() {
            self.held.entry(node.to_owned()).or_default().insert(uid.to_owned(), devices);
        }
    }

    fn release(&mut self, uid: &str, node: &str) {
        if let Some(pods) = self.held.get_mut(node) {
            pods.remove(uid);
        }
    }
}

fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone().filter(|node| !node.is_empty())
}

/// Whole numbers of what has a domain in its name.
fn devices_among(resources: &BTreeMap<String, Quantity>) -> Devices {
    let devices = resources.iter().filter(|(name, _)| name.contains('/'));
    devices.filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse().ok()?))).collect()
}

fn devices_of_node(node: &Node) -> Devices {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.map(devices_among).unwrap_or_default()
}

/// What the containers of a pod ask for; init containers use the same ones. Request and limit of a device are equal.
fn devices_of_pod(pod: &Pod) -> Devices {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut devices = Devices::new();
    for resources in containers.filter_map(|container| container.resources.as_ref()) {
        let limits = resources.limits.as_ref().or(resources.requests.as_ref());
        for (name, asked) in limits.map(devices_among).unwrap_or_default() {
            *devices.entry(name).or_default() += asked;
        }
    }
    devices.retain(|_, asked| *asked > 0);
    devices
}
