//! Hollow nodes: what kubelets do with pods, and agents that show who they are as in a cluster.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use phalanx_common::ids::NodeName;
use phalanx_devcluster::Servers;
use phalanx_devcluster::hollow::{
    HollowNodes, HollowOptions, Identity, KubeletOptions, Kubelets, NodeShape, create_nodes, node_name,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn pod(name: &str, gpus: u32, annotations: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "main", "image": "none",
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
            }],
        },
    }))
    .unwrap()
}

async fn bind(pods: &Api<Pod>, name: &str, node: &NodeName) {
    let binding: Binding = serde_json::from_value(json!({
        "metadata": {"name": name}, "target": {"kind": "Node", "name": node.as_str()},
    }))
    .unwrap();
    let _: Status = pods.create_subresource("binding", name, &PostParams::default(), &binding).await.unwrap();
}

fn phase(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default()
}

async fn becomes(pods: &Api<Pod>, name: &str, wanted: &str) -> Pod {
    let began = Instant::now();
    loop {
        let pod = pods.get(name).await.unwrap();
        if phase(&pod) == wanted {
            return pod;
        }
        assert!(began.elapsed() < PATIENCE, "{name} never became {wanted}: {:?}", pod.status);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn is_gone(pods: &Api<Pod>, name: &str) {
    let began = Instant::now();
    while pods.get_opt(name).await.unwrap().is_some() {
        assert!(began.elapsed() < PATIENCE, "{name} is never gone");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn pods_of_test(prefix: &str) -> (Client, Api<Pod>) {
    let servers = Servers::shared().await.unwrap();
    let client = servers.admin_client().await.unwrap();
    let namespace = servers.namespace(prefix).await.unwrap();
    (client.clone(), Api::namespaced(client, &namespace))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_pod_runs_ends_after_its_time_and_is_gone_once_deleted() {
    let (client, pods) = pods_of_test("kubelet").await;
    let node = node_name("runs", 0);
    create_nodes(&client, std::slice::from_ref(&node), &NodeShape::default()).await.unwrap();
    let object = Api::<Node>::all(client.clone()).get(node.as_str()).await.unwrap();
    let allocatable = object.status.unwrap().allocatable.unwrap();
    assert_eq!(allocatable["nvidia.com/gpu"].0, "8");
    assert_eq!(object.spec.unwrap_or_default().taints, None, "nobody would take the taint away");

    // One is bound before the kubelets come, and one after.
    let made = PostParams::default();
    pods.create(&made, &pod("early", 4, json!({}))).await.unwrap();
    bind(&pods, "early", &node).await;
    let options = KubeletOptions { node_prefix: "runs-".to_owned(), ..KubeletOptions::default() };
    let kubelets = Kubelets::start(client, options).await.unwrap();
    let early = becomes(&pods, "early", "Running").await;
    let status = early.status.as_ref().unwrap();
    let conditions = status.conditions.as_ref().unwrap();
    for kind in ["PodScheduled", "Ready"] {
        assert!(
            conditions.iter().any(|one| one.type_ == kind && one.status == "True"),
            "{kind}: {conditions:?}"
        );
    }
    assert!(status.container_statuses.as_ref().unwrap()[0].ready);

    pods.create(&made, &pod("short", 4, json!({"phalanx.dev/run-for": "200ms"}))).await.unwrap();
    pods.create(
        &made,
        &pod("fails", 4, json!({"phalanx.dev/run-for": "1ms", "phalanx.dev/hollow-exit-code": "3"})),
    )
    .await
    .unwrap();
    bind(&pods, "short", &node).await;
    becomes(&pods, "short", "Succeeded").await;
    bind(&pods, "fails", &node).await;
    becomes(&pods, "fails", "Failed").await;

    // A ninth GPU is not there: that is a fault of whoever bound it, and is seen.
    pods.create(&made, &pod("double", 5, json!({}))).await.unwrap();
    bind(&pods, "double", &node).await;
    let double = becomes(&pods, "double", "Failed").await.status.unwrap();
    assert_eq!(double.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert_eq!(kubelets.counters().refused.load(Ordering::Relaxed), 1);

    pods.delete("early", &DeleteParams::default()).await.unwrap();
    is_gone(&pods, "early").await;
    pods.create(&made, &pod("whole", 8, json!({}))).await.unwrap();
    bind(&pods, "whole", &node).await;
    becomes(&pods, "whole", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_have_the_token_of_their_own_pod() {
    let (client, _) = pods_of_test("agents").await;
    let folder = tempfile::tempdir().unwrap();
    let options = HollowOptions {
        prefix: "agents".to_owned(),
        first: 5,
        count: 3,
        shape: NodeShape::default(),
        // Nobody is there: they go on dialling.
        coordinators: vec!["127.0.0.1:9".to_owned()],
        ledgers: folder.path().to_owned(),
        identity: Identity::Tokens,
    };
    let mut hollow = HollowNodes::start(client.clone(), options).await.unwrap();
    let node = node_name("agents", 6);
    let token = std::fs::read_to_string(folder.path().join(node.as_str()).join("token")).unwrap();
    let spec = TokenReviewSpec { token, audiences: Some(vec!["phalanx".to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let status = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    assert_eq!(status.authenticated, Some(true), "{status:?}");
    let user = status.user.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:phalanx-system:phalanx-agent"));
    let extra = user.extra.unwrap();
    let said = |key: &str| extra[&format!("authentication.kubernetes.io/{key}")].clone();
    let object = Api::<Node>::all(client).get(node.as_str()).await.unwrap();
    assert_eq!(said("node-name"), [node.as_str()]);
    assert_eq!(said("node-uid"), [object.uid().unwrap()]);
    assert_eq!(said("pod-name"), ["phalanx-agent-agents-00006"]);

    assert_eq!((hollow.running().count(), hollow.connected().await), (3, 0));
    hollow.kill_agent(&node).await.unwrap();
    assert!(hollow.report(&node).await.is_err());
    // Its ledger is free again.
    hollow.start_agent(node.clone()).await.unwrap();
    let report = hollow.report(&node).await.unwrap().unwrap();
    assert!(!report.link_is_up && report.leases.is_empty(), "{report:?}");
    hollow.stop().await;
}
