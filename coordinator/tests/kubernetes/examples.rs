//! What users bring, on a real API server: their manifests unchanged, pods of Deployments and pods on their own; and
//! the conditions that a node autoscaler looks at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use phalanx_coordinator::api::Kind;
use phalanx_coordinator::convert::{Reading, plans_of_object};
use phalanx_coordinator::kubernetes::normalize::{self, Trim};
use phalanx_devcluster::hollow::{HollowNodes, HollowOptions, Identity, KubeletOptions, Kubelets, NodeShape};
use phalanx_devcluster::installation::{Installation, InstallationOptions};
use phalanx_devcluster::{Options, Servers};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(90);

/// The folder of manifests that users bring, or `None` with a line that names the test.
fn shared(test: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
    let folder =
        std::env::var_os("PHALANX_SHARED").map_or_else(|| workspace.join("../shared"), PathBuf::from);
    let folder = if folder.is_relative() { workspace.join(folder) } else { folder };
    if folder.join("examples").is_dir() {
        return Some(folder.join("examples"));
    }
    let required = std::env::var_os("PHALANX_REQUIRE_SHARED").is_some_and(|value| value == "1");
    assert!(!required, "{} is missing", folder.display());
    println!("skipped {test}: PHALANX_SHARED not found");
    None
}

/// Phalanx with hollow nodes.
struct Cluster {
    installation: Installation,
    /// Nodes that came later, and their kubelets.
    later: Vec<(HollowNodes, Kubelets)>,
}

impl Cluster {
    async fn start(nodes: usize, gpus: u32) -> Self {
        Self::start_of(nodes, NodeShape { gpus, ..NodeShape::default() }).await
    }

    async fn start_of(nodes: usize, shape: NodeShape) -> Self {
        let servers = Servers::start(Options::default()).await.unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_phalanx-coordinator"));
        let mut options = InstallationOptions::new(program, PathBuf::new());
        options.replicas = 1;
        options.hollow = nodes;
        options.shape = shape;
        options.kubelets.node_prefix = "hollow-".to_owned();
        Self { installation: Installation::start(servers, options).await.unwrap(), later: Vec::new() }
    }

    /// A node more.
    async fn add_node(&mut self, prefix: &str, gpus: u32) {
        let client = self.installation.client().clone();
        let options = HollowOptions {
            prefix: prefix.to_owned(),
            first: 0,
            count: 1,
            shape: NodeShape { gpus, ..NodeShape::default() },
            coordinators: self.installation.coordinators(),
            ledgers: self.installation.servers().folder().join(format!("ledgers-{prefix}")),
            identity: Identity::Tokens,
        };
        let nodes = HollowNodes::start(client.clone(), options).await.unwrap();
        let options = KubeletOptions { node_prefix: format!("{prefix}-"), ..KubeletOptions::default() };
        self.later.push((nodes, Kubelets::start(client, options).await.unwrap()));
    }

    async fn kubectl(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        self.installation.servers().kubectl(&arguments).await.unwrap()
    }

    async fn apply(&self, manifest: &str) {
        self.installation.servers().kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
    }

    async fn apply_files(&self, folder: &Path, names: &[&str]) {
        for name in names {
            let file = folder.join(name);
            self.installation.servers().kubectl(&["apply", "-f", file.to_str().unwrap()]).await.unwrap();
        }
    }

    async fn object(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.kubectl(&format!("get {arguments} -o json")).await).unwrap()
    }

    /// Pods with this label.
    async fn pods(&self, namespace: &str, label: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.installation.client().clone(), namespace);
        pods.list(&ListParams::default().labels(label)).await.unwrap().items
    }

    async fn until_running(&self, namespace: &str, label: &str, count: usize) -> Vec<Pod> {
        until(&format!("{count} pods {label} run"), async || {
            let pods = self.pods(namespace, label).await;
            let all_run = pods.iter().all(|pod| phase(pod) == "Running");
            (all_run && pods.len() == count).then_some(pods)
        })
        .await
    }

    /// What `kubectl get` shows of one object, where its row has these cells behind its name.
    async fn until_row(&self, arguments: &str, cells: &[&str]) {
        until(&format!("{arguments} shows {cells:?}"), async || {
            let shown = self.kubectl(&format!("get {arguments} --no-headers")).await;
            let row: Vec<&str> = shown.split_whitespace().skip(1).collect();
            row.starts_with(cells).then_some(())
        })
        .await;
    }

    /// Leases in all ledgers, as names of pods.
    async fn leases(&self) -> BTreeSet<String> {
        let mut pods = BTreeSet::new();
        for report in self.installation.hollow().unwrap().reports().await.into_values() {
            let leases = report.expect("the agent runs").leases.into_iter();
            pods.extend(leases.map(|lease| lease.request.pod_name.to_string()));
        }
        pods
    }

    /// Nothing was given twice, nothing crashed, and nothing was logged as an error.
    fn check(&mut self) {
        self.installation.check().unwrap();
        let counters = self.installation.kubelets().counters();
        assert_eq!(counters.refused.load(std::sync::atomic::Ordering::Relaxed), 0);
        let log = std::fs::read_to_string(self.installation.replicas()[0].log()).unwrap();
        let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // What a person would look at.
        let servers = self.installation.servers();
        for arguments in [
            "get nodes,queue,vcjob,pg,pods -A -o wide",
            "get pg,pods -A -o jsonpath={range.items[*]}{.metadata.name}{.status.conditions}{\"\\n\"}{end}",
        ] {
            let mut kubectl = std::process::Command::new(servers.kubectl_program().unwrap());
            kubectl.env("KUBECONFIG", servers.kubeconfig()).args(arguments.split(' '));
            let shown = kubectl.output().unwrap();
            eprintln!("{}", String::from_utf8_lossy(&shown.stdout));
        }
        let log = std::fs::read_to_string(self.installation.replicas()[0].log()).unwrap();
        eprintln!("{log}");
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Reason and message of the condition `PodScheduled`, where it is false.
fn unscheduled(pod: &Pod) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    Some((scheduled.reason.clone()?, scheduled.message.clone().unwrap_or_default()))
}

/// What the API server has stored, in the order in which it was.
#[derive(Default)]
struct Stored {
    /// By gang: pods of its plan, and the version that first had them.
    planned: BTreeMap<String, BTreeMap<String, u64>>,
    /// By pod: the version that first had its node.
    bound: BTreeMap<String, u64>,
    /// Reasons of pods that were not scheduled.
    reasons: BTreeMap<String, BTreeSet<String>>,
}

impl Stored {
    fn note(&mut self, object: &DynamicObject) {
        let version: u64 = object.resource_version().unwrap().parse().unwrap();
        let name = object.name_any();
        if object.types.as_ref().is_some_and(|types| types.kind == "GangPlan") {
            let stored = normalize::object(Kind::GangPlan, json!(object), &Trim::new(&[])).unwrap();
            for plan in plans_of_object(&Reading::default(), &stored).found {
                let planned = self.planned.entry(plan.gang.name.to_string()).or_default();
                for pod in plan.pods {
                    planned.entry(pod.name.to_string()).or_insert(version);
                }
            }
            return;
        }
        if object.data["spec"]["nodeName"].is_string() {
            self.bound.entry(name.clone()).or_insert(version);
        }
        for condition in object.data["status"]["conditions"].as_array().into_iter().flatten() {
            if condition["type"] == "PodScheduled" && condition["status"] == "False" {
                let reason = condition["reason"].as_str().unwrap_or_default().to_owned();
                self.reasons.entry(name.clone()).or_default().insert(reason);
            }
        }
    }

    /// No pod of the gang was bound before the plan that names all of them was stored.
    fn assert_planned_before_bound(&self, gang: &str, pods: &BTreeSet<String>) {
        let plan = self.planned.get(gang).unwrap_or_else(|| panic!("{gang} has no plan"));
        let planned = plan.iter().filter(|(pod, _)| pods.contains(*pod));
        assert_eq!(planned.clone().count(), pods.len(), "{gang}: {plan:?}");
        let last_planned = planned.map(|(_, version)| *version).max().unwrap();
        let first_bound = pods.iter().map(|pod| self.bound[pod]).min().unwrap();
        assert!(last_planned < first_bound, "{gang}: planned {last_planned}, bound {first_bound}");
    }
}

/// Follows pods and plans from now on. The task ends with the value.
struct Follower {
    stored: Arc<Mutex<Stored>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Follower {
    async fn start(client: &Client) -> Self {
        let stored = Arc::new(Mutex::new(Stored::default()));
        let mut tasks = Vec::new();
        for (group, version, kind) in [("", "v1", "Pod"), ("phalanx.dev", "v1alpha1", "GangPlan")] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let list = api.list(&ListParams::default().limit(1)).await.unwrap();
            let version = list.metadata.resource_version.unwrap();
            tasks.push(tokio::spawn(follow(api, version, Arc::clone(&stored))));
        }
        Self { stored, tasks }
    }

    fn look<T>(&self, look: impl FnOnce(&Stored) -> T) -> T {
        look(&self.stored.lock().unwrap())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Goes on where it was when the API server closes the watch.
async fn follow(api: Api<DynamicObject>, mut version: String, stored: Arc<Mutex<Stored>>) {
    loop {
        let watched = api.watch(&WatchParams::default(), &version).await;
        let Ok(watched) = watched else { continue };
        let mut watched = std::pin::pin!(watched);
        while let Some(Ok(event)) = watched.next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                    version = object.resource_version().unwrap();
                    stored.lock().unwrap().note(&object);
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                // The next look says so again, and the test fails of what it has not seen.
                WatchEvent::Error(_) => break,
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn names(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

/// The job has so many pods that run, all names are Volcano's, and its gang was bound as a whole.
async fn job_runs(cluster: &Cluster, follower: &Follower, name: &str, tasks: &[(&str, u32, u32)]) {
    let count: u32 = tasks.iter().map(|(_, replicas, _)| replicas).sum();
    let pods = cluster.until_running("default", &format!("volcano.sh/job-name={name}"), count as usize).await;
    let job = cluster.object(&format!("vcjob/{name}")).await;
    let uid = job["metadata"]["uid"].as_str().unwrap();
    let gang = format!("{name}-{uid}");
    let mut expected = BTreeSet::new();
    for (task, replicas, gpus) in tasks {
        for index in 0..*replicas {
            let pod_name = format!("{name}-{task}-{index}");
            let pod = pods.iter().find(|pod| pod.name_any() == pod_name);
            let pod = pod.unwrap_or_else(|| panic!("{pod_name} is not one of {:?}", names(&pods)));
            let index = index.to_string();
            for (key, value) in [
                ("volcano.sh/job-name", name),
                ("volcano.sh/job-namespace", "default"),
                ("volcano.sh/task-spec", task),
                ("volcano.sh/task-index", &index),
                ("volcano.sh/queue-name", "default"),
            ] {
                assert_eq!(pod.labels().get(key).map(String::as_str), Some(value), "{pod_name}: label {key}");
            }
            for (key, value) in [
                ("scheduling.k8s.io/group-name", &*gang),
                ("volcano.sh/job-name", name),
                ("volcano.sh/task-spec", task),
                ("volcano.sh/task-index", &index),
                ("volcano.sh/queue-name", "default"),
                ("volcano.sh/job-version", "0"),
                ("volcano.sh/template-uid", &format!("{name}-{task}")),
            ] {
                let found = pod.annotations().get(key).map(String::as_str);
                assert_eq!(found, Some(value), "{pod_name}: annotation {key}");
            }
            let given = pod.annotations()["phalanx.dev/gpu-uuids"].split(',').collect::<BTreeSet<_>>();
            assert_eq!(given.len(), *gpus as usize, "{pod_name}");
            let owner = &pod.owner_references()[0];
            assert_eq!((&*owner.kind, &*owner.uid, owner.controller), ("Job", uid, Some(true)));
            assert_eq!(pod.spec.as_ref().unwrap().scheduler_name.as_deref(), Some("volcano"));
            expected.insert(pod_name);
        }
    }
    assert_eq!(names(&pods), expected);
    follower.look(|stored| stored.assert_planned_before_bound(&gang, &expected));

    let (text, minimum) = (count.to_string(), job["spec"]["minAvailable"].to_string());
    cluster.until_row(&format!("vcjob {name}"), &["Running", &minimum, &text]).await;
    cluster.until_row(&format!("pg {gang}"), &["Running", &minimum, &text]).await;
    let group = cluster.object(&format!("pg/{gang}")).await;
    assert_eq!(group["metadata"]["ownerReferences"][0]["uid"], uid);
    assert_eq!(group["status"]["running"], count);
    let conditions = group["status"]["conditions"].as_array().unwrap();
    let scheduled = conditions.iter().find(|one| one["type"] == "Scheduled" && one["status"] == "True");
    assert!(scheduled.is_some(), "{conditions:?}");
}

/// The pods that the controller of LeaderWorkerSets makes of manifest 13, with these devices.
fn leader_and_worker(devices: &str) -> String {
    let pod = |name: &str| {
        format!(
            "---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: a01
  labels: {{leaderworkerset.sigs.k8s.io/name: qwen2-72b-unified}}
  annotations:
    scheduling.volcano.sh/queue-name: tenanta
    scheduling.k8s.io/group-name: qwen2-72b-unified-pg
spec:
  schedulerName: volcano
  priorityClassName: p0-critical
  containers:
    - name: vllm
      image: example/vllm:placeholder
      resources: {{limits: {{{devices}}}}}
"
        )
    };
    pod("qwen2-72b-unified-0") + &pod("qwen2-72b-unified-0-1")
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_of_users_run_unchanged() {
    let Some(examples) = shared("manifests_of_users_run_unchanged") else { return };
    // Exactly enough for both jobs.
    let mut cluster = Cluster::start(5, 8).await;
    cluster.installation.servers().start_controller_manager(&["garbage-collector-controller"]).await.unwrap();
    let follower = Follower::start(cluster.installation.client()).await;
    cluster.apply_files(&examples, &["02-queue-production.yaml", "03-priority-high.yaml"]).await;
    cluster.apply_files(&examples, &["04-pytorch-4x8.yaml", "01-bert-ps-worker.yaml"]).await;
    job_runs(&cluster, &follower, "pytorch-distributed-train", &[("worker", 4, 8)]).await;
    job_runs(&cluster, &follower, "bert-distributed-training", &[("ps", 2, 1), ("worker", 6, 1)]).await;
    let classes = cluster.object("pod/pytorch-distributed-train-worker-0").await["spec"]["priority"].clone();
    assert_eq!(classes, 1000);
    assert_eq!(cluster.leases().await.len(), 12);

    columns(&cluster).await;

    // The tenants: a gang of which the PodGroup comes first.
    cluster.kubectl("create namespace a01").await;
    let tenants = ["10-tenant-queues.yaml", "11-priorities.yaml", "12-podgroup-multi-node-inference.yaml"];
    cluster.apply_files(&examples, &tenants).await;
    cluster.until_row("pg qwen2-72b-unified-pg -n a01", &["Inqueue", "2"]).await;
    // Devices that no agent confirms are not served in silence.
    let label = "leaderworkerset.sigs.k8s.io/name=qwen2-72b-unified";
    cluster.apply(&leader_and_worker("mars-tech.com/gpu: 8, rdma/hca_cpta: 1, rdma/hca_cptb: 1")).await;
    until("its pods say what is missing", async || {
        let pods = cluster.pods("a01", label).await;
        let said = pods.iter().filter_map(unscheduled);
        let about = said.filter(|(_, text)| text.contains("no node with an agent offers mars-tech.com/gpu"));
        (about.count() == 2).then_some(())
    })
    .await;
    cluster.kubectl("-n a01 delete pods --all").await;
    // No node is free: a gang of lower priority gives way as a whole, waits, and the autoscaler is told.
    cluster.apply(&leader_and_worker("nvidia.com/gpu: 8")).await;
    let pods = cluster.until_running("a01", label, 2).await;
    until("the pods of the job that gave way ask for nodes", async || {
        let pods = cluster.pods("default", "volcano.sh/job-name=pytorch-distributed-train").await;
        let asking = pods.iter().filter_map(unscheduled).filter(|(reason, _)| reason == "Unschedulable");
        (asking.count() == 4).then_some(())
    })
    .await;

    // Who deletes a job gets rid of its pods, and of what they held.
    cluster.kubectl("delete vcjob pytorch-distributed-train").await;
    until("its pods and its PodGroup are gone", async || {
        let pods = cluster.pods("default", "volcano.sh/job-name=pytorch-distributed-train").await;
        let groups = cluster.kubectl("get pg -o name").await;
        (pods.is_empty() && !groups.contains("pytorch")).then_some(())
    })
    .await;
    let nodes: BTreeSet<_> = pods.iter().map(|pod| pod.spec.as_ref().unwrap().node_name.clone()).collect();
    assert_eq!(nodes.len(), 2);
    assert_eq!(pods[0].spec.as_ref().unwrap().priority, Some(1_000_000));
    follower.look(|stored| stored.assert_planned_before_bound("qwen2-72b-unified-pg", &names(&pods)));
    cluster.until_row("pg qwen2-72b-unified-pg -n a01", &["Running", "2", "2"]).await;
    until("tenanta tells what it uses", async || {
        let allocated = cluster.object("queue/tenanta").await["status"]["allocated"].clone();
        (allocated["nvidia.com/gpu"] == "16").then_some(())
    })
    .await;
    assert_eq!(cluster.object("queue/tenantb").await["status"]["state"], "Open");
    until("leases of the job are gone", async || (cluster.leases().await.len() == 8 + 2).then_some(())).await;
    cluster.kubectl("delete vcjob bert-distributed-training").await;
    cluster.kubectl("-n a01 delete pods --all").await;
    until("all ledgers are empty", async || cluster.leases().await.is_empty().then_some(())).await;
    cluster.check();
}

/// What Kubeflow's operator makes of manifest 14: a PodGroup of the name of the PyTorchJob, a master and three workers.
fn pytorch_job() -> String {
    let mut manifest = "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: tenantb-heavy-training, namespace: b01}
spec: {minMember: 1, queue: tenantb}
"
    .to_owned();
    for (name, kind) in
        [("master-0", "master"), ("worker-0", "worker"), ("worker-1", "worker"), ("worker-2", "worker")]
    {
        manifest += &format!(
            "---
apiVersion: v1
kind: Pod
metadata:
  name: tenantb-heavy-training-{name}
  namespace: b01
  labels: {{training.kubeflow.org/job-name: tenantb-heavy-training, training.kubeflow.org/replica-type: {kind}}}
  annotations:
    scheduling.volcano.sh/queue-name: tenantb
    scheduling.k8s.io/group-name: tenantb-heavy-training
spec:
  schedulerName: volcano
  priorityClassName: p2-regular
  containers:
    - name: pytorch
      image: example/training-pytorch:placeholder
      command: [\"sleep\", \"3600\"]
      resources:
        limits: &resources
          mars-tech.com/gpu: 8
          rdma/hca_cpta: \"1\"
          rdma/hca_cptb: \"1\"
          memory: 96Gi
          cpu: 48
        requests: *resources
"
        );
    }
    manifest
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_of_a_platform_with_another_vendors_devices_run_unchanged() {
    let Some(examples) = shared("manifests_of_a_platform_with_another_vendors_devices_run_unchanged") else {
        return;
    };
    let devices = ["mars-tech.com/gpu", "rdma/hca_cpta", "rdma/hca_cptb"];
    let devices = devices.map(|name| (name.to_owned(), 8)).into();
    let mut cluster = Cluster::start_of(4, NodeShape { gpus: 0, devices, ..NodeShape::default() }).await;
    for namespace in ["a01", "b01"] {
        cluster.kubectl(&format!("create namespace {namespace}")).await;
    }
    cluster.apply_files(&examples, &["10-tenant-queues.yaml", "11-priorities.yaml"]).await;
    cluster.apply(&pytorch_job()).await;
    let label = "training.kubeflow.org/job-name=tenantb-heavy-training";
    let before = cluster.until_running("b01", label, 4).await;
    let nodes: BTreeSet<_> = before.iter().map(|pod| pod.spec.as_ref().unwrap().node_name.clone()).collect();
    assert_eq!(nodes.len(), 4);
    cluster.until_row("pg tenantb-heavy-training -n b01", &["Running", "1", "4"]).await;

    cluster.apply_files(&examples, &["12-podgroup-multi-node-inference.yaml"]).await;
    cluster.apply(&leader_and_worker("mars-tech.com/gpu: 8, rdma/hca_cpta: 1, rdma/hca_cptb: 1")).await;
    let serving = "leaderworkerset.sigs.k8s.io/name=qwen2-72b-unified";
    let pods = cluster.until_running("a01", serving, 2).await;
    cluster.until_row("pg qwen2-72b-unified-pg -n a01", &["Running", "2", "2"]).await;
    cluster.until_row("pg tenantb-heavy-training -n b01", &["Running", "1", "2"]).await;
    // Two workers went, and the master stays.
    let left = names(&cluster.until_running("b01", label, 2).await);
    assert!(left.contains("tenantb-heavy-training-master-0"), "{left:?}");
    for pod in &pods {
        assert_eq!(pod.spec.as_ref().unwrap().priority, Some(1_000_000));
        assert_eq!(pod.annotations()["phalanx.dev/exactness"], "count");
        assert!(pod.annotations().contains_key("phalanx.dev/lease-id"), "its agent has confirmed it");
    }
    until("both tenants tell what they use", async || {
        let mut used = Vec::new();
        for tenant in ["tenanta", "tenantb"] {
            let allocated = cluster.object(&format!("queue/{tenant}")).await["status"]["allocated"].clone();
            used.push((allocated["mars-tech.com/gpu"].clone(), allocated["rdma/hca_cptb"].clone()));
        }
        used.iter().all(|(gpus, hcas)| gpus == "16" && hcas == "2").then_some(())
    })
    .await;
    assert_eq!(cluster.leases().await.len(), 4);
    for namespace in ["a01", "b01"] {
        cluster.kubectl(&format!("-n {namespace} delete pods --all")).await;
    }
    until("all ledgers are empty", async || cluster.leases().await.is_empty().then_some(())).await;
    cluster.check();
}

/// What people look at, with the columns they know.
async fn columns(cluster: &Cluster) {
    let shown = cluster.kubectl("get pg,queue,vcjob,pods").await;
    let headers: Vec<Vec<&str>> = shown
        .lines()
        .filter(|line| line.starts_with("NAME"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        &["NAME", "STATUS", "MINMEMBER", "RUNNINGS", "AGE"][..],
        &["NAME", "PARENT", "STATE", "WEIGHT", "PENDING", "INQUEUE", "RUNNING", "AGE"],
        &["NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"],
        &["NAME", "READY", "STATUS", "RESTARTS", "AGE"],
    ];
    assert_eq!(headers, expected, "{shown}");
    let row = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name}:\n{shown}"));
        line.split_whitespace().skip(1).collect::<Vec<_>>()
    };
    assert_eq!(row("job.batch.volcano.sh/pytorch-distributed-train")[..3], ["Running", "4", "4"]);
    assert_eq!(row("podgroup.scheduling.volcano.sh/bert-distributed-training-")[..3], ["Running", "8", "8"]);
    assert_eq!(row("pod/bert-distributed-training-ps-1")[..2], ["1/1", "Running"]);
    assert_eq!(row("queue.scheduling.volcano.sh/production")[..5], ["Open", "2", "0", "0", "0"]);
    let queues = ["default", "Open", "1", "0", "0", "2"];
    cluster.until_row("queue default", &queues[1..]).await;
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: served, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: served}}
  template:
    metadata: {labels: {app: served}}
    spec:
      schedulerName: volcano
      containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: default, labels: {app: alone}}
spec:
  schedulerName: volcano
  containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
";

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_pod_group_run_and_get_one() {
    let mut cluster = Cluster::start(1, 4).await;
    let controllers = ["deployment-controller", "replicaset-controller", "garbage-collector-controller"];
    cluster.installation.servers().start_controller_manager(&controllers).await.unwrap();
    cluster.apply(DEPLOYMENT).await;
    let group_of = |pod: &Pod| pod.annotations().get("scheduling.k8s.io/group-name").cloned();

    let pods = cluster.until_running("default", "app=served", 3).await;
    let deployment = cluster.object("deployment/served").await["metadata"]["uid"].clone();
    let group = format!("podgroup-{}", deployment.as_str().unwrap());
    for pod in &pods {
        assert_eq!(group_of(pod).as_deref(), Some(&*group));
        assert_eq!(pod.owner_references()[0].kind, "ReplicaSet");
    }
    cluster.until_row(&format!("pg {group}"), &["Running", "1", "3"]).await;
    let object = cluster.object(&format!("pg/{group}")).await;
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], deployment);

    // It runs first, and what only tells of it comes later.
    let alone = cluster.until_running("default", "app=alone", 1).await.remove(0);
    let group = format!("podgroup-{}", alone.uid().unwrap());
    until("the lone pod's PodGroup tells that it runs", async || {
        let groups = cluster.kubectl("get pg --no-headers").await;
        let row = groups.lines().find(|line| line.starts_with(&group))?;
        (row.split_whitespace().skip(1).take(3).eq(["Running", "1", "1"])).then_some(())
    })
    .await;
    let alone = cluster.until_running("default", "app=alone", 1).await.remove(0);
    assert_eq!(group_of(&alone).as_deref(), Some(&*group));

    cluster.kubectl("delete deployment served").await;
    cluster.kubectl("delete pod alone").await;
    until("pods, PodGroups and leases are gone", async || {
        let groups = cluster.kubectl("get pg -o name").await;
        let pods = cluster.kubectl("get pods -o name").await;
        (groups.is_empty() && pods.is_empty() && cluster.leases().await.is_empty()).then_some(())
    })
    .await;
    cluster.check();
}

/// A queue with so many GPUs.
fn queue(gpus: u32) -> String {
    format!(
        "apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {{name: q}}
spec: {{capability: {{nvidia.com/gpu: {gpus}}}}}
"
    )
}

/// A PodGroup of one pod in the queue, and the pod.
fn gang(name: &str, gpus: u32) -> String {
    format!(
        "---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default}}
spec: {{minMember: 1, queue: q}}
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: default
  labels: {{gang: {name}}}
  annotations: {{scheduling.k8s.io/group-name: {name}}}
spec:
  schedulerName: volcano
  containers: [{{name: c, image: i, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]
"
    )
}

impl Cluster {
    /// Waits until the pod says why it is not scheduled.
    async fn until_says(&self, gang: &str, reason: &str, text: &str) {
        until(&format!("{gang} says {reason}: {text}"), async || {
            let said = unscheduled(self.pods("default", &format!("gang={gang}")).await.first()?)?;
            (said.0 == reason && said.1.contains(text)).then_some(())
        })
        .await;
    }

    async fn until_queue_uses(&self, gpus: &str) {
        until(&format!("queue q uses {gpus}"), async || {
            let allocated = self.object("queue/q").await["status"]["allocated"]["nvidia.com/gpu"].clone();
            (allocated == gpus).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_002_what_fits_no_node_is_not_admitted_on_a_real_api_server() {
    let mut cluster = Cluster::start(2, 1).await;
    let follower = Follower::start(cluster.installation.client()).await;
    cluster.apply(&(queue(2) + &gang("a", 2))).await;
    cluster.until_says("a", "WaitingForAdmission", "largest node has 1 GPU, pod asks 2").await;
    cluster.apply(&gang("b", 1)).await;
    cluster.until_running("default", "gang=b", 1).await;
    cluster.until_queue_uses("1").await;
    cluster.until_row("pg a", &["Pending", "1"]).await;
    let conditions = cluster.object("pg/a").await["status"]["conditions"].to_string();
    assert!(conditions.contains("largest node has 1 GPU, pod asks 2"), "{conditions}");
    let group = cluster.object("pg/b").await["status"].to_string();
    assert!(!group.contains("quota"), "{group}");

    // A node that has two, and b's share given back: the quota was the other thing that it needed.
    cluster.add_node("larger", 2).await;
    cluster.kubectl("delete pod b").await;
    let a = cluster.until_running("default", "gang=a", 1).await;
    assert_eq!(a[0].spec.as_ref().unwrap().node_name.as_deref(), Some("larger-00000"));
    follower.look(|stored| assert!(!stored.reasons.contains_key("b"), "{:?}", stored.reasons));
    cluster.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn case_095_an_autoscaler_sees_the_right_pods_on_a_real_api_server() {
    let mut cluster = Cluster::start(1, 8).await;
    let follower = Follower::start(cluster.installation.client()).await;
    cluster.apply(&(queue(16) + &gang("first", 8))).await;
    cluster.until_running("default", "gang=first", 1).await;
    cluster.apply(&gang("b", 8)).await;
    cluster.until_says("b", "Unschedulable", "nodes with 8 free GPUs").await;
    cluster.until_row("pg b", &["Inqueue", "1"]).await;
    cluster.apply(&gang("c", 8)).await;
    let quota = "queue q quota: capability nvidia.com/gpu 16, used or admitted 16, asked 8";
    cluster.until_says("c", "WaitingForAdmission", quota).await;

    cluster.add_node("more", 8).await;
    let b = cluster.until_running("default", "gang=b", 1).await;
    assert_eq!(b[0].spec.as_ref().unwrap().node_name.as_deref(), Some("more-00000"));
    cluster.until_queue_uses("16").await;
    cluster.until_says("c", "WaitingForAdmission", quota).await;
    cluster.until_row("pg c", &["Pending", "1"]).await;
    let expected = |reason: &str| BTreeSet::from([reason.to_owned()]);
    follower.look(|stored| {
        assert_eq!(stored.reasons["b"], expected("Unschedulable"));
        assert_eq!(stored.reasons["c"], expected("WaitingForAdmission"), "nodes would be added for nothing");
        assert!(!stored.bound.contains_key("c"));
    });
    cluster.check();
}
