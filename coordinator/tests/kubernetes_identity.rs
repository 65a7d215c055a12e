//! Who an agent is, by a real API server: tokens as pods get them, and the authority that all replicas share.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use phalanx_agent::Credentials;
use phalanx_agent::embedded::{self, Agent, AgentOptions, LedgerPlace};
use phalanx_common::ids::{ClusterId, NodeName};
use phalanx_coordinator::agents::authority::{KubernetesAuthority, Rotation};
use phalanx_coordinator::agents::{AgentInput, AgentServer, AgentServerParts, Outbox, TokenCheck};
use phalanx_coordinator::metrics::Metrics;
use phalanx_devcluster::{Servers, TokenOptions};
use phalanx_kubernetes::identity::{AuthorityStore, Reviewer, Speaker, TokenRefusal};
use serde_json::{Value, json};
use support::cluster::inventory;
use support::server::{TERM, eventually};
use support::{PATIENCE, log, warnings};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

/// A namespace of its own, with the agents' DaemonSet and an agent's pod on node `NAMESPACE-n1`.
struct Cluster {
    servers: &'static Servers,
    client: Client,
    namespace: String,
}

impl Cluster {
    async fn new() -> Self {
        log();
        let servers = Servers::shared().await.unwrap();
        let namespace = servers.namespace("identity").await.unwrap();
        let client = servers.admin_client().await.unwrap();
        let cluster = Self { servers, client, namespace };
        let labels = json!({"app.kubernetes.io/name": "phalanx-agent"});
        for account in ["phalanx-agent", "other"] {
            cluster
                .apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}))
                .await;
        }
        let template = json!({"metadata": {"labels": labels}, "spec": pod_spec("phalanx-agent", None)});
        cluster
            .apply(json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "phalanx-agent"},
                "spec": {"selector": {"matchLabels": labels}, "template": template},
            }))
            .await;
        for number in [1, 2] {
            cluster.make_node(number).await;
        }
        cluster.make_pod("agent-1", "phalanx-agent", 1, cluster.owner("DaemonSet").await).await;
        cluster
    }

    async fn apply(&self, object: Value) {
        let arguments = ["apply", "-n", &self.namespace, "-f", "-"];
        self.servers.kubectl_with_input(&arguments, &object.to_string()).await.unwrap();
    }

    async fn delete(&self, kind: &str, name: &str) {
        let arguments = ["delete", kind, name, "-n", &self.namespace, "--grace-period=0", "--force"];
        self.servers.kubectl(&arguments).await.unwrap();
    }

    fn node(&self, number: u32) -> String {
        format!("{}-n{number}", self.namespace)
    }

    async fn make_node(&self, number: u32) {
        self.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node(number)}}))
            .await;
    }

    async fn uid(&self, kind: &str, name: &str) -> String {
        let arguments = ["get", kind, name, "-n", &self.namespace, "-o", "jsonpath={.metadata.uid}"];
        self.servers.kubectl(&arguments).await.unwrap()
    }

    /// Our DaemonSet, or something else of its name.
    async fn owner(&self, kind: &str) -> Value {
        let uid = match kind {
            "DaemonSet" => self.uid("daemonset", "phalanx-agent").await,
            _ => "0f0f0f0f-0000-0000-0000-000000000000".to_owned(),
        };
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": "phalanx-agent", "uid": uid, "controller": true}])
    }

    async fn make_pod(&self, name: &str, account: &str, node: u32, owners: Value) {
        let spec = pod_spec(account, Some(self.node(node)));
        let metadata = json!({"name": name, "ownerReferences": owners});
        self.apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).await;
    }

    async fn token(&self, account: &str, audience: &str, pod: Option<&str>) -> String {
        let (audience, pod) = (audience.to_owned(), pod.map(str::to_owned));
        let options = TokenOptions { audience, pod, expires_in_s: Some(600) };
        self.servers.token(&self.namespace, account, &options).await.unwrap()
    }

    /// Of the agent of node 1.
    async fn good_token(&self) -> String {
        self.token("phalanx-agent", "phalanx", Some("agent-1")).await
    }

    fn reviewer(&self) -> Reviewer {
        Reviewer::new(self.client.clone(), &self.namespace)
    }

    async fn refusal(&self, token: &str) -> (TokenRefusal, String) {
        let refusal = self.reviewer().review(token).await.unwrap_err();
        let text = refusal.to_string();
        (refusal, text)
    }

    fn store(&self) -> AuthorityStore {
        AuthorityStore::new(self.client.clone(), &self.namespace)
    }

    async fn published(&self) -> String {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = maps.get("phalanx-ca").await.unwrap();
        map.data.unwrap_or_default().remove("ca.crt").unwrap_or_default()
    }
}

fn pod_spec(account: &str, node: Option<String>) -> Value {
    let containers = json!([{"name": "agent", "image": "none"}]);
    match node {
        Some(node) => json!({"serviceAccountName": account, "nodeName": node, "containers": containers}),
        None => json!({"serviceAccountName": account, "containers": containers}),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_nodes_agent_lets_it_speak_for_that_node_and_is_asked_about_once() {
    let cluster = Cluster::new().await;
    let token = cluster.good_token().await;
    let reviewer = cluster.reviewer();
    let speaker = reviewer.review(&token).await.unwrap();
    let left = speaker.expires.duration_since(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(601), "{left:?}");
    let expected = Speaker {
        node: cluster.node(1),
        node_uid: cluster.uid("node", &cluster.node(1)).await,
        pod: "agent-1".to_owned(),
        pod_uid: cluster.uid("pod", "agent-1").await,
        expires: speaker.expires,
    };
    assert_eq!(speaker, expected);
    // What is remembered is not asked again: the pod is gone meanwhile.
    cluster.delete("pod", "agent-1").await;
    assert_eq!(reviewer.review(&token).await, Ok(expected));
    let (refusal, text) = cluster.refusal(&token).await;
    assert!(matches!(refusal, TokenRefusal::NotAuthenticated(_) | TokenRefusal::PodGone(_)), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_others_are_refused_each_with_its_reason() {
    let cluster = Cluster::new().await;
    let token = cluster.token("phalanx-agent", "vault", Some("agent-1")).await;
    let (_, text) = cluster.refusal(&token).await;
    assert!(text.starts_with("token is for audience vault, not for phalanx"), "{text}");
    let token = cluster.token("phalanx-agent", "", Some("agent-1")).await;
    let (_, text) = cluster.refusal(&token).await;
    assert!(text.starts_with("token is for audience https://kubernetes.default.svc"), "{text}");

    let token = cluster.token("phalanx-agent", "phalanx", None).await;
    let (_, text) = cluster.refusal(&token).await;
    assert!(text.starts_with("token does not say authentication.kubernetes.io/pod-name"), "{text}");

    cluster.make_pod("stranger", "other", 1, json!([])).await;
    let token = cluster.token("other", "phalanx", Some("stranger")).await;
    let (_, text) = cluster.refusal(&token).await;
    let user = format!("system:serviceaccount:{}", cluster.namespace);
    assert_eq!(text, format!("token is of {user}:other, not of {user}:phalanx-agent"));

    // Whoever may make pods in the namespace, and not those of the DaemonSet.
    cluster.make_pod("alone", "phalanx-agent", 2, json!([])).await;
    let token = cluster.token("phalanx-agent", "phalanx", Some("alone")).await;
    let (_, text) = cluster.refusal(&token).await;
    assert_eq!(text, "pod alone is not owned by DaemonSet phalanx-agent: it has no owner");
    cluster.make_pod("replica", "phalanx-agent", 2, cluster.owner("ReplicaSet").await).await;
    let token = cluster.token("phalanx-agent", "phalanx", Some("replica")).await;
    let (_, text) = cluster.refusal(&token).await;
    assert!(text.contains("its owner is ReplicaSet phalanx-agent of UID 0f0f0f0f"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_ended_or_that_somebody_wrote_is_refused() {
    let cluster = Cluster::new().await;
    let token = cluster.good_token().await;
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let signature = parts[2].clone();
    let first = if signature.starts_with('A') { "B" } else { "A" };
    parts[2] = format!("{first}{}", &signature[1..]);
    let (refusal, text) = cluster.refusal(&parts.join(".")).await;
    assert!(matches!(refusal, TokenRefusal::NotAuthenticated(_)), "{text}");
    // {"aud":["phalanx"],"exp":1000000000}
    parts[1] = "eyJhdWQiOlsicGhhbGFueCJdLCJleHAiOjEwMDAwMDAwMDB9".to_owned();
    let (refusal, text) = cluster.refusal(&parts.join(".")).await;
    assert!(matches!(refusal, TokenRefusal::Expired(_)), "{text}");
    let (refusal, text) = cluster.refusal("nonsense").await;
    assert!(matches!(refusal, TokenRefusal::Malformed(_)), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_outlives_neither_its_node_nor_the_daemon_set() {
    let cluster = Cluster::new().await;
    let token = cluster.good_token().await;
    cluster.delete("node", &cluster.node(1)).await;
    let (refusal, text) = cluster.refusal(&token).await;
    assert!(matches!(refusal, TokenRefusal::NodeGone { .. }), "{text}");
    // The API server binds tokens to pods, not to nodes: a node of the same name would do for it.
    cluster.make_node(1).await;
    let (refusal, text) = cluster.refusal(&token).await;
    assert!(matches!(refusal, TokenRefusal::NodeReplaced { .. }), "{text}");
    let token = cluster.good_token().await;
    cluster.reviewer().review(&token).await.unwrap();
    cluster
        .servers
        .kubectl(&["delete", "daemonset", "phalanx-agent", "-n", &cluster.namespace, "--cascade=background"])
        .await
        .unwrap();
    let (refusal, text) = cluster.refusal(&token).await;
    assert!(matches!(refusal, TokenRefusal::NotOurs { .. }), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_does_not_answer_is_no_refusal() {
    let cluster = Cluster::new().await;
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let nowhere = Reviewer::new(Client::try_from(config).unwrap(), &cluster.namespace);
    let token = cluster.good_token().await;
    let refusal = nowhere.review(&token).await.unwrap_err();
    assert!(refusal.is_passing(), "{refusal}");
    assert!(cluster.reviewer().review(&token).await.is_ok());
}

/// A replica's server of agents, with the test in the place of its loop.
struct Replica {
    server: AgentServer,
    inputs: mpsc::Receiver<AgentInput>,
    metrics: std::sync::Arc<Metrics>,
    keeping: tokio::task::JoinHandle<()>,
    /// Who drops one ends the connection.
    outboxes: Vec<Outbox>,
    _term: watch::Sender<phalanx_common::ids::Term>,
}

const QUICK: Rotation = Rotation {
    authority_life: Duration::from_secs(24 * 3600),
    certificate_life: Duration::from_secs(3600),
    grace: Duration::from_secs(3),
    look: Duration::from_millis(200),
};

impl Replica {
    async fn start(cluster: &Cluster) -> Self {
        let mut authority = KubernetesAuthority::open(cluster.store(), QUICK).await.unwrap();
        let (endpoint, _) = authority.endpoint("127.0.0.1:0".parse().unwrap()).unwrap();
        let keeping = tokio::spawn(authority.keep(endpoint.clone()));
        let (driver, inputs) = mpsc::channel(64);
        let (pods, mut reports) = mpsc::channel(16);
        tokio::spawn(async move { while reports.recv().await.is_some() {} });
        let (term, told) = watch::channel(TERM);
        let metrics = std::sync::Arc::new(Metrics::default());
        let parts = AgentServerParts {
            cluster: ClusterId::from("c"),
            term: told,
            driver,
            pods,
            metrics: metrics.clone(),
        };
        let server = AgentServer::start_with(endpoint, parts, Some(TokenCheck::by(cluster.reviewer())));
        Self { server, inputs, metrics, keeping, outboxes: Vec::new(), _term: term }
    }

    async fn connected(&mut self) -> (u64, NodeName) {
        let next = tokio::time::timeout(PATIENCE, self.inputs.recv()).await.unwrap().unwrap();
        let AgentInput::Connected { session, hello, outbox } = next else { panic!("{next:?}") };
        self.outboxes.push(outbox);
        (session, hello.node)
    }
}

/// What kubelet mounts into an agent's pod.
struct Mounted(TempDir);

impl Mounted {
    async fn new(cluster: &Cluster) -> Self {
        let mounted = Self(tempfile::tempdir().unwrap());
        mounted.write("ca.crt", &cluster.published().await);
        mounted.write("token", &cluster.good_token().await);
        mounted
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file("unfinished"), text).unwrap();
        std::fs::rename(self.file("unfinished"), self.file(name)).unwrap();
    }

    async fn agent(&self, node: &str, replica: &Replica) -> Agent {
        let options = AgentOptions {
            node: NodeName::from(node),
            credentials: Credentials::Token {
                token_file: self.file("token"),
                authority_file: self.file("ca.crt"),
            },
            coordinators: vec![replica.server.address().unwrap().to_string()],
            ledger: LedgerPlace::Memory,
            endpoint: None,
        };
        embedded::spawn(options, inventory(1, 1)).await.unwrap().0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_let_in_by_its_pods_token_which_may_be_renewed_and_by_no_other() {
    let cluster = Cluster::new().await;
    let mut replica = Replica::start(&cluster).await;
    let mounted = Mounted::new(&cluster).await;
    let agent = mounted.agent(&cluster.node(1), &replica).await;
    let (session, node) = replica.connected().await;
    assert_eq!(node.as_str(), cluster.node(1));
    // A newer one of the same pod: the connection stays.
    mounted.write("token", &cluster.good_token().await);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(replica.inputs.try_recv().is_err(), "session {session} has ended");
    assert!(agent.report().await.unwrap().link_is_up);
    // One of another pod: it ends, and does not come back.
    cluster.make_pod("alone", "phalanx-agent", 1, json!([])).await;
    mounted.write("token", &cluster.token("phalanx-agent", "phalanx", Some("alone")).await);
    let gone = tokio::time::timeout(PATIENCE, replica.inputs.recv()).await.unwrap().unwrap();
    assert!(matches!(gone, AgentInput::Gone { session: ended, .. } if ended == session), "{gone:?}");
    let why = "its newer token is refused: pod alone is not owned by DaemonSet phalanx-agent";
    eventually("the reason", || warnings(why) > 0).await;
    let metrics = replica.metrics.clone();
    eventually("the refusal", || metrics.rejected("token-owner") > 0).await;
    agent.stop().await;

    // The agent of one node says that it is another's.
    mounted.write("token", &cluster.good_token().await);
    let liar = mounted.agent(&cluster.node(2), &replica).await;
    eventually("the refusal", || metrics.rejected("node-name") > 0).await;
    let why =
        format!("token of pod agent-1 on node {}, Hello names node {}", cluster.node(1), cluster.node(2));
    eventually("the reason", || warnings(&why) > 0).await;
    assert!(replica.inputs.try_recv().is_err());
    liar.stop().await;
    replica.keeping.abort();
    replica.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_come_together_have_one_authority() {
    let cluster = Cluster::new().await;
    let opened = (0..4).map(|_| KubernetesAuthority::open(cluster.store(), QUICK));
    let opened = futures::future::join_all(opened).await;
    let published = cluster.published().await;
    assert_eq!(published.matches("BEGIN CERTIFICATE").count(), 1);
    let stored = cluster.store().read().await.unwrap().unwrap();
    assert_eq!(stored.bundle(), published);
    let failed: Vec<String> =
        opened.into_iter().filter_map(|opened| Some(opened.err()?.to_string())).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_authority_takes_over_step_by_step_and_no_connection_ends() {
    let cluster = Cluster::new().await;
    let mut replica = Replica::start(&cluster).await;
    let mut other = Replica::start(&cluster).await;
    let mounted = Mounted::new(&cluster).await;
    let first = cluster.published().await;
    let agent = mounted.agent(&cluster.node(1), &replica).await;
    let (session, _) = replica.connected().await;

    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let wish = json!({"metadata": {"annotations": {"phalanx.dev/rotate": ""}}});
    secrets.patch("phalanx-ca", &PatchParams::default(), &Patch::Merge(&wish)).await.unwrap();
    // Both are published; agents that read the old one alone may still dial.
    let both = until_published(&cluster, |published| published != first).await;
    assert!(both.contains(first.trim()) && both.matches("BEGIN CERTIFICATE").count() == 2);
    let old = mounted.agent(&cluster.node(1), &other).await;
    other.connected().await;
    old.stop().await;
    // kubelet brings them; then the new one signs, and at last stands alone.
    mounted.write("ca.crt", &both);
    let last = until_published(&cluster, |published| !published.contains(first.trim())).await;
    assert_eq!(last.matches("BEGIN CERTIFICATE").count(), 1);
    mounted.write("ca.crt", &last);
    while other.inputs.try_recv().is_ok() {}
    let new = mounted.agent(&cluster.node(1), &other).await;
    other.connected().await;
    new.stop().await;
    // The first agent has been there all the time.
    assert!(replica.inputs.try_recv().is_err(), "session {session} has ended");
    assert!(agent.report().await.unwrap().link_is_up);
    let stored = cluster.store().read().await.unwrap().unwrap();
    assert!(!stored.rotate && stored.next.is_none() && stored.previous.is_none());
    agent.stop().await;
    for replica in [replica, other] {
        replica.keeping.abort();
        replica.server.stop().await;
    }
}

async fn until_published(cluster: &Cluster, holds: impl Fn(&str) -> bool) -> String {
    let search = async {
        loop {
            let published = cluster.published().await;
            if holds(&published) {
                return published;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, search).await.unwrap()
}
