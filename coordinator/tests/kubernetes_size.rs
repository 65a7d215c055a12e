//! What a large cluster costs to read: time of the first listing, bytes of each object.
//!
//! `PHALANX_SIZE_NODES=10000 cargo test --release -p phalanx-coordinator --test kubernetes_size -- --nocapture` prints
//! the figures of a cluster of that size; without it a small one is read and its bytes per object are held to a limit.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use phalanx_coordinator::api::{Api, Kind};
use phalanx_coordinator::convert::claims::Claims;
use phalanx_coordinator::kubernetes::normalize::Trim;
use phalanx_coordinator::kubernetes::write::{WriteParts, Writes};
use phalanx_coordinator::kubernetes::{KubernetesApi, Options};
use phalanx_coordinator::metrics::Metrics;
use phalanx_coordinator::watch::Watcher;
use phalanx_core::event::{ClaimState, Event};
use phalanx_kubernetes::client::always;
use serde_json::{Value, json};

/// Pods of DaemonSets on each node, and of ours.
const FOREIGN_PODS: usize = 5;
const OWN_PODS: usize = 1;
/// Kinds of which there is one object for each node, beside the node: a claim and its volume.
const STORAGE: usize = 2;
/// Most bytes of the mirror for one object, all kinds together, with the specs they share.
const MOST_BYTES: usize = 450;

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

fn managed_fields() -> Value {
    let fields: serde_json::Map<String, Value> =
        (0..40).map(|at| (format!("f:field-{at}"), json!({ ".": {}, "f:value": {} }))).collect();
    json!([{ "manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields }])
}

fn uid(kind: u64, at: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{at:012x}")
}

fn node(at: usize) -> Value {
    let labels: serde_json::Map<String, Value> = (0..20)
        .map(|label| (format!("feature.node.kubernetes.io/label-{label}"), json!("true")))
        .chain([("kubernetes.io/hostname".to_owned(), json!(format!("node-{at}")))])
        .collect();
    json!({
        "metadata": {
            "name": format!("node-{at}"), "uid": uid(1, at), "resourceVersion": (at + 1).to_string(),
            "creationTimestamp": "2026-11-29T12:00:00Z", "labels": labels, "managedFields": managed_fields(),
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
        "spec": { "podCIDR": "10.0.0.0/24", "providerID": format!("x://{at}") },
        "status": {
            "capacity": { "cpu": "128", "memory": "2113546224Ki", "nvidia.com/gpu": "8", "pods": "110" },
            "allocatable": {
                "cpu": "127500m", "memory": format!("{}Ki", 2_113_000_000 + at), "nvidia.com/gpu": "8",
                "pods": "110", "ephemeral-storage": "3000000000000", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
            },
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-29T12:00:00Z" }],
            "images": (0..50).map(|image| json!({ "names": [format!("registry.example/{image}@sha256:{at:064}")] })).collect::<Vec<_>>(),
        },
    })
}

fn pod(at: usize, node: usize, foreign: Option<usize>) -> Value {
    let (name, scheduler) = match foreign {
        Some(set) => (format!("daemon-{set}-{at:05}"), "default-scheduler"),
        None => (format!("training-job-worker-{at}"), "phalanx"),
    };
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": uid(9, 1), "controller": true }]);
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(|kind| json!({ "type": kind, "status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z" }));
    json!({
        "metadata": {
            "name": name, "namespace": "kube-system", "uid": uid(2, at), "resourceVersion": (at + 1).to_string(),
            "creationTimestamp": "2026-11-29T12:00:00Z", "managedFields": managed_fields(), "ownerReferences": owner,
            "labels": { "app": name, "controller-revision-hash": "5d8f7c9b6b", "pod-template-generation": "1" },
            "annotations": {
                "scheduling.k8s.io/group-name": "training-job", "phalanx.dev/term": "12.0123456789abcdef",
                "phalanx.dev/lease-id": uid(3, at), "prometheus.io/scrape": "true",
            },
        },
        "spec": {
            "schedulerName": scheduler, "nodeName": format!("node-{node}"), "serviceAccountName": "default",
            "containers": [{
                "name": "main", "image": "registry.example/image:v1",
                "env": (0..10).map(|at| json!({ "name": format!("NAME_{at}"), "value": "some value" })).collect::<Vec<_>>(),
                "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "128Mi" } },
                "volumeMounts": [{ "name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
            }],
            "tolerations": [{ "operator": "Exists", "effect": "NoExecute", "key": "node.kubernetes.io/not-ready" }],
            "volumes": [{ "name": "kube-api-access", "projected": { "sources": [{ "serviceAccountToken": {} }] } }],
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [{ "name": "main", "state": { "running": { "startedAt": "2026-11-29T12:00:00Z" } } }],
            "startTime": "2026-11-29T12:00:00Z",
        },
    })
}

/// What a claim and its volume have in common.
fn storage_metadata(name: &str, kind: u64, at: usize) -> Value {
    json!({
        "name": format!("{name}-{at}"), "uid": uid(kind, at), "resourceVersion": (at + 1).to_string(),
        "creationTimestamp": "2026-11-29T12:00:00Z", "managedFields": managed_fields(),
        "finalizers": ["kubernetes.io/protection"], "labels": { "app": "training-job" },
        "annotations": {
            "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.kubernetes.io/storage-provisioner": "csi.example.com",
        },
    })
}

fn claim(at: usize) -> Value {
    let mut metadata = storage_metadata("data-training-job-worker", 4, at);
    metadata["namespace"] = json!("kube-system");
    json!({
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "100Gi" } },
            "storageClassName": "fast", "volumeMode": "Filesystem", "volumeName": format!("pvc-{}", uid(4, at)),
        },
        "status": { "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "100Gi" } },
    })
}

fn volume(at: usize) -> Value {
    let mut metadata = storage_metadata("pvc", 5, at);
    metadata["name"] = json!(format!("pvc-{}", uid(4, at)));
    let zone = json!({ "key": "topology.kubernetes.io/zone", "operator": "In", "values": [format!("zone-{}", at % 3)] });
    json!({
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "100Gi" },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "kube-system",
                "name": format!("data-training-job-worker-{at}"), "uid": uid(4, at), "resourceVersion": "7",
            },
            "csi": { "driver": "csi.example.com", "fsType": "ext4", "volumeHandle": uid(6, at) },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [zone] }] } },
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast", "volumeMode": "Filesystem",
        },
        "status": { "phase": "Bound", "lastPhaseTransitionTime": "2026-11-29T12:00:00Z" },
    })
}

fn object(kind: Kind, at: usize) -> Value {
    let pods = FOREIGN_PODS + OWN_PODS;
    match kind {
        Kind::Node => node(at),
        Kind::PersistentVolume => volume(at),
        Kind::PersistentVolumeClaim => claim(at),
        _ => pod(at, at / pods, Some(at % pods).filter(|set| *set < FOREIGN_PODS)),
    }
}

/// A server that has these objects and makes each page when it is asked for.
fn client(nodes: usize) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        Ok::<_, Infallible>(answer(request.uri(), nodes))
    });
    Client::new(service, "default")
}

fn answer(uri: &http::Uri, nodes: usize) -> Answer {
    const PAGE: usize = 500;
    let query = uri.query().unwrap_or_default();
    if query.contains("watch=true") {
        return Response::new(StreamBody::new(stream::pending()).boxed_unsync());
    }
    let text = if uri.path().ends_with("/kube-system") {
        json!({ "metadata": { "uid": uid(0, 0) } }).to_string()
    } else {
        let (kind, count) = match uri.path() {
            "/api/v1/nodes" => (Kind::Node, nodes),
            "/api/v1/persistentvolumes" => (Kind::PersistentVolume, nodes),
            "/api/v1/persistentvolumeclaims" => (Kind::PersistentVolumeClaim, nodes),
            "/api/v1/pods" => (Kind::Pod, nodes * (FOREIGN_PODS + OWN_PODS)),
            _ => (Kind::Queue, 0),
        };
        let from: usize =
            query.split('&').find_map(|part| part.strip_prefix("continue=")?.parse().ok()).unwrap_or(0);
        let to = count.min(from + PAGE);
        let next = if to < count { to.to_string() } else { String::new() };
        let metadata = json!({ "resourceVersion": "1000000", "continue": next });
        // One by one: trees of a whole page would be most of what is measured.
        let items: Vec<String> = (from..to).map(|at| object(kind, at).to_string()).collect();
        format!(r#"{{"metadata":{metadata},"items":[{}]}}"#, items.join(","))
    };
    let frame = Ok(Frame::data(Bytes::from(text)));
    Response::new(StreamBody::new(stream::iter([frame])).boxed_unsync())
}

/// Bytes of this process in memory, now and at most.
fn memory_mib() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| -> usize {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (kib("VmRSS:") / 1024, kib("VmHWM:") / 1024)
}

fn is_bound(event: &Event) -> bool {
    matches!(event, Event::ClaimApplied(claim) if matches!(claim.state, ClaimState::Bound { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_cluster_is_kept_in_few_bytes() {
    let nodes = std::env::var("PHALANX_SIZE_NODES").map_or(500, |text| text.parse().unwrap());
    let objects = nodes * (1 + STORAGE + FOREIGN_PODS + OWN_PODS);
    let before = memory_mib();
    let client = client(nodes);
    let options = Options::default();
    let writes = Writes::new(WriteParts {
        client: client.clone(),
        trim: Trim::new(&options.scheduler_names),
        may_write: always(),
        time_out: Duration::from_secs(5),
    });
    let began = Instant::now();
    let api = KubernetesApi::start(client, writes, &options).await.unwrap();
    api.mirror().ready(None).await.unwrap();
    let listed = began.elapsed();
    let (own, shared) = api.mirror().bytes();
    println!(
        "{nodes} nodes, {objects} objects: read in {listed:.1?}; {} bytes an object of its own, {shared} bytes of specs; MiB now, most: {before:?} -> {:?}",
        own / objects,
        memory_mib(),
    );
    assert_eq!(api.mirror().counts().values().sum::<usize>(), objects);
    assert!((own + shared) / objects <= MOST_BYTES, "{own} and {shared} bytes of {objects} objects");

    let began = Instant::now();
    let mut watcher = Watcher::begin(api.clone(), Arc::new(Metrics::default())).await.unwrap();
    let (mut claims, mut bound) = (Claims::default(), 0);
    let told = std::iter::from_fn(|| watcher.listed()).map(|object| {
        let events = claims.applied(&object);
        bound += events.iter().filter(|event| is_bound(event)).count();
        assert!(events.len() <= 1, "each claim is told once: {events:?}");
    });
    let told = told.count();
    println!("told to a reader in {:.1?}; MiB now, most: {:?}", began.elapsed(), memory_mib());
    assert_eq!((told, bound), (objects, nodes));
    drop(watcher);
    assert_eq!(api.list(Some(Kind::Node)).await.unwrap().0.len(), nodes);
}
