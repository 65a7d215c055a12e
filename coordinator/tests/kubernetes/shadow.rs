//! Shadow mode on a real API server, under rights that only let it look: pods wait, are decided, and are then bound by
//! hand, as another scheduler would do. What is reported is right, and the audit log of the API server shows that nothing
//! was ever asked but to look.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::PostParams;
use phalanx_common::shadow::{ShadowOutcome, ShadowPod, ShadowReport};
use phalanx_coordinator::coordinator::Endpoints;
use phalanx_devcluster::{Audited, Options, Servers};
use serde_json::json;

use crate::support::{PATIENCE, get, log};

const ACCOUNT: &str = "phalanx-shadow";
const USER: &str = "system:serviceaccount:phalanx-shadow:phalanx-shadow";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/shadow")
}

/// A coordinator in shadow mode, as a process.
struct Shadow {
    child: Child,
    state_dir: PathBuf,
    log: PathBuf,
}

impl Shadow {
    fn start(folder: &Path, kubeconfig: &Path) -> Self {
        let state_dir = folder.join("state");
        std::fs::create_dir_all(&state_dir).unwrap();
        let log = folder.join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-coordinator"));
        command.args(["run", "--kubernetes", "--shadow", "--scheduler-names", "volcano"]);
        command.args(["--admin", "127.0.0.1:0"]).arg("--kubeconfig").arg(kubeconfig);
        command.arg("--state-dir").arg(&state_dir);
        let file = std::fs::File::create(&log).unwrap();
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: command.spawn().unwrap(), state_dir, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    async fn admin(&self) -> SocketAddr {
        until("its addresses", || async {
            Endpoints::read(&self.state_dir)?.admin.strip_prefix("http://")?.parse().ok()
        })
        .await
    }

    async fn report(&self) -> ShadowReport {
        let answer = get(&self.admin().await, "/v1/shadow").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        serde_json::from_str(&answer.text).unwrap()
    }

    /// Waits until a pod has a decision that the other scheduler has not followed.
    async fn decision(&self, name: &str) -> ShadowPod {
        until(name, || async { self.report().await.waiting_pods.into_iter().find(|pod| &*pod.name == name) })
            .await
    }

    /// Waits until a pod has an outcome.
    async fn outcome(&self, name: &str) -> ShadowPod {
        until(name, || async { self.report().await.recent.into_iter().find(|pod| &*pod.name == name) }).await
    }

    fn stop(&mut self) -> i32 {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn node(name: &str) -> String {
    let offered = "{cpu: \"32\", memory: 128Gi, pods: \"110\", nvidia.com/gpu: \"8\"}";
    format!(
        "apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{nvidia.com/gpu.product: NVIDIA-L40S}}}}
status:
  capacity: {offered}
  allocatable: {offered}
  conditions: [{{type: Ready, status: \"True\"}}]
"
    )
}

fn group(name: &str, minimum: u32) -> String {
    format!(
        "apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}, namespace: default}}
spec: {{minMember: {minimum}, queue: default}}
"
    )
}

fn pod(group: &str, number: u32) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {group}-{number}
  namespace: default
  annotations: {{scheduling.k8s.io/group-name: {group}}}
spec:
  schedulerName: volcano
  containers:
    - name: main
      image: none
      resources: {{limits: {{nvidia.com/gpu: \"4\"}}}}
"
    )
}

async fn apply(servers: &Servers, manifests: &[String]) {
    servers.kubectl_with_input(&["apply", "-f", "-"], &manifests.join("---\n")).await.unwrap();
}

/// What another scheduler does.
async fn bind(servers: &Servers, pod: &str, node: &str) {
    let client = servers.admin_client().await.unwrap();
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, "default");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}
    });
    let _: serde_json::Value =
        pods.create_subresource("binding", pod, &PostParams::default(), &binding).await.unwrap();
}

async fn versions(servers: &Servers) -> String {
    let columns = "custom-columns=KIND:.kind,NAME:.metadata.name,VERSION:.metadata.resourceVersion";
    servers.kubectl(&["get", "podgroups,queues,nodes", "-A", "-o", columns]).await.unwrap()
}

async fn prepared() -> Servers {
    let servers = Servers::start(Options { audit: true, ..Options::default() }).await.unwrap();
    servers.apply_crds().await.unwrap();
    // Where only Volcano is installed.
    servers.kubectl(&["delete", "crd", "gangplans.phalanx.dev"]).await.unwrap();
    servers.kubectl(&["apply", "-k", deploy().to_str().unwrap()]).await.unwrap();
    let manifests = [node("n1"), node("n2"), node("n3"), group("train", 2), pod("train", 0), pod("train", 1)];
    let early = [group("early", 2), pod("early", 0), group("gone", 1), pod("gone", 0)];
    apply(&servers, &[&manifests[..], &early[..]].concat()).await;
    servers
}

#[tokio::test(flavor = "multi_thread")]
async fn it_decides_and_compares_and_never_writes() {
    log();
    let servers = prepared().await;
    let before = versions(&servers).await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = servers.kubeconfig_for_account(ACCOUNT, ACCOUNT).await.unwrap();
    let mut shadow = Shadow::start(folder.path(), &kubeconfig);
    let admin = shadow.admin().await;
    until("everything is read", || async { (get(&admin, "/readyz").await.status == 200).then_some(()) })
        .await;

    // Both pods of the gang are decided together, and nothing of that reaches them.
    let decided = [shadow.decision("train-0").await, shadow.decision("train-1").await];
    shadow.decision("gone-0").await;
    let unbound =
        servers.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]).await.unwrap();
    assert_eq!(unbound.trim(), "");
    assert_eq!(versions(&servers).await, before);

    // One goes where it was decided, one elsewhere, one is bound that lacks the rest of its gang, one is deleted.
    let chosen = decided.map(|pod| pod.decided.unwrap().node);
    bind(&servers, "train-0", chosen[0].as_str()).await;
    let elsewhere =
        ["n1", "n2", "n3"].into_iter().find(|node| !chosen.iter().any(|one| one.as_str() == *node));
    bind(&servers, "train-1", elsewhere.unwrap()).await;
    bind(&servers, "early-0", "n3").await;
    servers.kubectl(&["delete", "pod", "gone-0", "--grace-period=0", "--force"]).await.unwrap();
    for (name, outcome) in [
        ("train-0", ShadowOutcome::SameNode),
        ("train-1", ShadowOutcome::OtherNode),
        ("early-0", ShadowOutcome::NotDecided),
        ("gone-0", ShadowOutcome::NotPlaced),
    ] {
        let pod = shadow.outcome(name).await;
        assert_eq!(pod.outcome, Some(outcome), "{pod:?}");
    }
    let report = shadow.report().await;
    assert!(report.outcomes.iter().all(|(_, count)| *count == 1), "{report:?}");
    assert_eq!(
        (report.waiting, report.evictions, report.scheduler_names.as_slice()),
        (0, 0, &["volcano".to_owned()][..])
    );

    // What the other one has placed counts from then on, and what it has not placed is free again: of 24 GPUs these take
    // the last 12.
    apply(&servers, &[group("next", 3), pod("next", 0), pod("next", 1), pod("next", 2)]).await;
    let mut pods_on = BTreeMap::from([(chosen[0].as_str().to_owned(), 1)]);
    *pods_on.entry(elsewhere.unwrap().to_owned()).or_insert(0) += 1;
    *pods_on.entry("n3".to_owned()).or_insert(0) += 1;
    for number in 0..3 {
        let pod = shadow.decision(&format!("next-{number}")).await;
        *pods_on.entry(pod.decided.unwrap().node.as_str().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(pods_on.into_values().collect::<Vec<_>>(), [2, 2, 2]);
    let metrics = get(&admin, "/metrics").await.text;
    for line in [
        "phalanx_shadow_pods_total{outcome=\"same-node\"} 1",
        "phalanx_shadow_pods_total{outcome=\"other-node\"} 1",
        "phalanx_shadow_decided_total 6",
        "phalanx_shadow_waiting 3",
        "phalanx_shadow_evictions_total 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert_eq!(shadow.stop(), 0);
    nothing_was_written(&servers, &shadow.log()).await;
    replays(&shadow.state_dir);
}

/// The audit log: it only looked, nothing was refused to it, and it needed every right that it has.
async fn nothing_was_written(servers: &Servers, log: &str) {
    let errors: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let requests: Vec<Audited> =
        servers.audited().unwrap().into_iter().filter(|request| request.user == USER).collect();
    assert!(requests.len() > 10, "{requests:?}");
    let looks = ["get", "list", "watch"];
    let wrong: Vec<&Audited> = requests
        .iter()
        .filter(|request| !looks.contains(&request.verb.as_str()) || request.code == 403)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let roles: Api<ClusterRole> = Api::all(servers.admin_client().await.unwrap());
    let role = roles.get(ACCOUNT).await.unwrap();
    let used: BTreeSet<(String, String, String)> =
        requests.into_iter().map(|request| (request.group, request.resource, request.verb)).collect();
    for rule in role.rules.unwrap() {
        for (group, resource, verb) in rule.api_groups.iter().flatten().flat_map(|group| {
            let verbs = &rule.verbs;
            let resources = rule.resources.iter().flatten();
            resources.flat_map(move |resource| verbs.iter().map(move |verb| (group, resource, verb)))
        }) {
            assert!(looks.contains(&verb.as_str()), "{verb} {resource}: a right that changes something");
            let right = (group.clone(), resource.clone(), verb.clone());
            assert!(used.contains(&right), "not used: {right:?}");
        }
    }
    let written = servers.kubectl(&["get", "leases,configmaps,secrets", "-A", "-o", "name"]).await.unwrap();
    assert!(!written.contains("phalanx"), "{written}");
}

/// What was decided is recorded, and comes out the same when it is repeated.
fn replays(state_dir: &Path) {
    let recording = std::fs::read_dir(state_dir.join("recordings")).unwrap().next().unwrap().unwrap().path();
    let done = Command::new(env!("CARGO_BIN_EXE_phalanx-coordinator"))
        .arg("replay")
        .arg(recording)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stdout).contains("Bind"), "no Binding was decided");
}
