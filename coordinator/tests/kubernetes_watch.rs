//! What is read from a real API server: objects of every kind, malformed ones, and the same state whatever happens to
//! the connections meanwhile.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "support/kubernetes_cuts.rs"]
mod cuts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuts::Cuts;
use kube::Client;
use kube::api::{Api as KubeApi, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use phalanx_coordinator::api::{Api, Change, ChangeBody, Kind, Object, ObjectKey};
use phalanx_coordinator::convert::{self, Reading};
use phalanx_coordinator::kubernetes::mirror::Heard;
use phalanx_coordinator::kubernetes::normalize::Trim;
use phalanx_coordinator::kubernetes::write::{WriteParts, Writes};
use phalanx_coordinator::kubernetes::{KubernetesApi, Options};
use phalanx_coordinator::metrics::Metrics;
use phalanx_coordinator::watch::Watcher;
use phalanx_devcluster::{Options as ServerOptions, Servers};
use phalanx_kubernetes::client::{Clients, Target, always};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};

const PATIENCE: Duration = Duration::from_secs(60);

/// One server with our definitions for most tests.
async fn shared() -> &'static Servers {
    static READY: OnceCell<()> = OnceCell::const_new();
    let servers = Servers::shared().await.unwrap();
    READY
        .get_or_init(|| async {
            servers.apply_crds().await.unwrap();
        })
        .await;
    servers
}

async fn client(servers: &Servers) -> Client {
    let target = Target { kubeconfig: Some(servers.kubeconfig().to_owned()), context: None };
    Clients::new(&target.load().await.unwrap(), "phalanx-test").unwrap().watch
}

async fn started(client: Client) -> KubernetesApi {
    started_with(client, Options::default()).await
}

async fn started_with(client: Client, options: Options) -> KubernetesApi {
    let writes = Writes::new(WriteParts {
        client: client.clone(),
        trim: Trim::new(&options.scheduler_names),
        may_write: always(),
        time_out: Duration::from_secs(5),
    });
    KubernetesApi::start(client, writes, &options).await.unwrap()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A user of the API server, who writes what he likes.
#[derive(Clone)]
struct User(Client);

impl User {
    fn api(&self, kind: Kind, namespace: &str) -> KubeApi<DynamicObject> {
        let (group, version) = kind.api_version().split_once('/').unwrap_or(("", kind.api_version()));
        let gvk = GroupVersionKind::gvk(group, version, kind.as_str());
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural());
        if kind.is_cluster_scoped() {
            KubeApi::all_with(self.0.clone(), &resource)
        } else {
            KubeApi::namespaced_with(self.0.clone(), namespace, &resource)
        }
    }

    async fn create(&self, kind: Kind, namespace: &str, name: &str, rest: Value) {
        let mut json = json!({
            "apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": { "name": name },
        });
        json.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let object: DynamicObject = serde_json::from_value(json).unwrap();
        let made = self.api(kind, namespace).create(&PostParams::default(), &object).await;
        made.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    async fn patch(&self, kind: Kind, namespace: &str, name: &str, patch: Value) {
        let done =
            self.api(kind, namespace).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        done.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    async fn patch_status(&self, kind: Kind, namespace: &str, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let done = self.api(kind, namespace).patch_status(name, &PatchParams::default(), &patch).await;
        done.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    async fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        let parameters = DeleteParams::default().grace_period(0);
        self.api(kind, namespace).delete(name, &parameters).await.unwrap();
    }
}

/// What is created of each kind.
fn example(kind: Kind) -> Value {
    match kind {
        Kind::Queue => json!({ "spec": { "capability": { "nvidia.com/gpu": "8" } } }),
        Kind::QueuePolicy => json!({ "spec": { "namespaces": ["team"], "holdAfter": "5m" } }),
        Kind::PriorityClass => json!({ "value": 1000, "description": "x" }),
        Kind::Node => json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } }),
        Kind::PodGroup => json!({ "spec": { "minMember": 2 } }),
        Kind::Job => json!({ "spec": { "minAvailable": 1, "tasks": [{
            "name": "t", "replicas": 1,
            "template": { "spec": { "containers": [{ "name": "c", "image": "i" }] } },
        }] } }),
        Kind::Pod => json!({ "spec": {
            "schedulerName": "phalanx",
            "containers": [{
                "name": "c", "image": "i", "env": [{ "name": "A", "value": "B" }],
                "resources": { "limits": { "nvidia.com/gpu": "1" } },
            }],
        } }),
        Kind::GangPlan => json!({ "spec": { "term": 3, "gang": { "namespace": "n", "name": "g" } } }),
        Kind::PodDisruptionBudget => {
            json!({ "spec": { "minAvailable": 1, "selector": { "matchLabels": { "a": "b" } } } })
        }
        Kind::StorageClass => json!({
            "provisioner": "example.com/none", "volumeBindingMode": "WaitForFirstConsumer", "parameters": { "a": "b" },
        }),
        Kind::PersistentVolume => json!({ "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "local": { "path": "/data" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "zone", "operator": "In", "values": ["z1"] },
            ] }] } },
        } }),
        Kind::PersistentVolumeClaim => json!({ "spec": {
            "accessModes": ["ReadWriteOncePod"], "resources": { "requests": { "storage": "1Gi" } },
        } }),
    }
}

/// One thing that a user does. They come in the order in which they are done.
#[derive(Clone, Debug)]
enum Step {
    Create(Kind, &'static str, Value),
    Label(Kind, &'static str),
    Allocatable(&'static str, u32),
    Delete(Kind, &'static str),
}

/// All kinds: created, changed, deleted, and some created again under the old name.
fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for kind in Kind::ALL {
        steps.push(Step::Create(kind, "a", example(kind)));
        steps.push(Step::Create(kind, "b", example(kind)));
    }
    for kind in Kind::ALL {
        steps.push(Step::Label(kind, "a"));
        steps.push(Step::Delete(kind, "b"));
    }
    steps.push(Step::Allocatable("a", 8));
    for kind in [Kind::Pod, Kind::PodGroup, Kind::Node] {
        steps.push(Step::Delete(kind, "a"));
        steps.push(Step::Create(kind, "a", example(kind)));
    }
    steps.push(Step::Create(Kind::Pod, "c", example(Kind::Pod)));
    steps.push(Step::Delete(Kind::Queue, "a"));
    steps
}

async fn walk(user: &User, namespace: &str, step: &Step) {
    // Objects without a namespace carry its name in theirs.
    let name = |kind: &Kind, name: &str| {
        if kind.is_cluster_scoped() { format!("{name}-{namespace}") } else { name.to_owned() }
    };
    match step {
        Step::Create(kind, of, rest) => user.create(*kind, namespace, &name(kind, of), rest.clone()).await,
        Step::Label(kind, of) => {
            user.patch(*kind, namespace, &name(kind, of), json!({ "metadata": { "labels": { "x": "y" } } }))
                .await;
        }
        Step::Allocatable(of, gpus) => {
            let status = json!({ "allocatable": { "nvidia.com/gpu": gpus.to_string() } });
            user.patch_status(Kind::Node, "", &name(&Kind::Node, of), status).await;
        }
        Step::Delete(kind, of) => user.delete(*kind, namespace, &name(kind, of)).await,
    }
}

/// What an object is, for comparison. The version of a kind that is not told for its version alone is left out.
fn told(object: &Object) -> Value {
    let metadata = &object.metadata;
    let mut version = metadata.resource_version;
    let is_told_for_its_version =
        matches!(object.kind, Kind::Queue | Kind::PodGroup | Kind::Job | Kind::GangPlan | Kind::Pod);
    if !is_told_for_its_version {
        version = 0;
    }
    json!([metadata.uid, version, metadata.labels, metadata.deletion, object.spec, object.status])
}

type View = BTreeMap<ObjectKey, Value>;

/// What belongs to one test: others go on beside it on the same server.
fn of(view: &View, namespace: &str) -> View {
    let is_of = |key: &ObjectKey| key.namespace == namespace || key.name.ends_with(namespace);
    view.iter().filter(|(key, _)| is_of(key)).map(|(key, told)| (key.clone(), told.clone())).collect()
}

fn view_of(objects: &[Arc<Object>]) -> View {
    objects.iter().map(|object| (object.key(), told(object))).collect()
}

/// Whoever reads as the driver does: everything, and then every change. A deletion must be of the object that is there,
/// and no object may take the place of one that was not deleted.
struct Reader {
    view: Arc<Mutex<View>>,
    task: tokio::task::JoinHandle<()>,
}

impl Reader {
    async fn start(api: &KubernetesApi) -> Self {
        let (mut watcher, objects) = Watcher::start(api.clone(), Arc::new(Metrics::default())).await.unwrap();
        let view = Arc::new(Mutex::new(view_of(&objects)));
        let shared = Arc::clone(&view);
        let task = tokio::spawn(async move {
            while let Some(changes) = watcher.next().await {
                let mut view = shared.lock().await;
                changes.iter().for_each(|change| Self::take(&mut view, change));
            }
        });
        Self { view, task }
    }

    fn take(view: &mut View, change: &Change) {
        match &change.body {
            ChangeBody::Applied(object) => {
                let before = view.insert(object.key(), told(object));
                let uid = json!(object.metadata.uid);
                assert!(
                    before.is_none_or(|before| before[0] == uid),
                    "{}: another UID, not deleted",
                    object.key()
                );
            }
            ChangeBody::Deleted { key, uid } => {
                let before = view.remove(key);
                assert_eq!(before.expect("a deletion of what is not there")[0], json!(uid), "{key}");
            }
        }
    }

    /// Waits until the view of a test's namespace is the one that is read now.
    async fn reaches(&self, client: &Client, namespace: &str, what: &str) {
        let began = Instant::now();
        let wanted = of(&fresh_view(client).await, namespace);
        assert!(!wanted.is_empty(), "{what}: nothing is there");
        loop {
            let view = of(&*self.view.lock().await, namespace);
            if view == wanted {
                return;
            }
            assert!(!self.task.is_finished(), "the reader has ended: {what}");
            if began.elapsed() > PATIENCE {
                let differs: Vec<_> = wanted
                    .iter()
                    .filter(|(key, told)| view.get(*key) != Some(told))
                    .map(|(key, told)| format!("{key}: {told} and not {:?}", view.get(key)))
                    .chain(
                        view.keys()
                            .filter(|key| !wanted.contains_key(key))
                            .map(|key| format!("{key} is not there")),
                    )
                    .collect();
                panic!("{what}: {differs:#?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Everything, from a mirror of its own that has read it just now.
async fn fresh_view(client: &Client) -> View {
    let api = started(client.clone()).await;
    view_of(&api.list(None).await.unwrap().0)
}

/// Events of the whole walk where nothing is cut.
async fn events_of_a_walk(servers: &Servers, user: &User) -> u64 {
    let cuts = Cuts::new(client(servers).await);
    let api = started(cuts.client()).await;
    let reader = Reader::start(&api).await;
    let before = cuts.lines();
    let namespace = servers.namespace("uncut").await.unwrap();
    for step in steps() {
        walk(user, &namespace, &step).await;
    }
    reader.reaches(&client(servers).await, &namespace, "without a cut").await;
    cuts.lines() - before
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_every_kind_are_read_cut_down_to_what_is_used() {
    let servers = shared().await;
    let user = User(client(servers).await);
    let api = started(client(servers).await).await;
    let reader = Reader::start(&api).await;
    let namespace = servers.namespace("kinds").await.unwrap();
    for kind in Kind::ALL {
        let name = if kind.is_cluster_scoped() { namespace.as_str() } else { "a" };
        user.create(kind, &namespace, name, example(kind)).await;
        let key = ObjectKey::new(kind, &namespace, name);
        until(&format!("{key}"), || api.mirror().get(&key).is_ok()).await;
        let object = api.mirror().get(&key).unwrap();
        assert!(object.metadata.resource_version > 0 && object.metadata.creation.0 > 0, "{object:?}");
        assert_eq!(uuid_length(&object), 36, "{object:?}");
        match kind {
            Kind::Pod => {
                let container = &object.spec["containers"][0];
                assert_eq!(
                    (container.get("env"), &container["resources"]["requests"]["nvidia.com/gpu"]),
                    (None, &json!("1"))
                );
            }
            Kind::PriorityClass => assert_eq!(object.spec["value"], 1000),
            Kind::Node => assert_eq!(object.spec["taints"][0]["key"], "a"),
            Kind::Job => {
                let template = &object.spec["tasks"][0]["template"]["spec"];
                assert_eq!(template["containers"][0]["image"], "i");
            }
            Kind::GangPlan => assert_eq!(object.spec["term"], 3),
            Kind::StorageClass => {
                assert_eq!(object.spec, json!({ "volumeBindingMode": "WaitForFirstConsumer" }));
            }
            Kind::PersistentVolume => {
                assert!(object.spec["nodeAffinity"]["required"].is_object(), "{object:?}");
                assert_eq!(
                    (object.spec.as_object().map(|spec| spec.len()), &object.status),
                    (Some(1), &json!({}))
                );
            }
            Kind::PersistentVolumeClaim => {
                assert_eq!(object.spec, json!({ "accessModes": ["ReadWriteOncePod"] }));
                assert_eq!(object.status, json!({ "phase": "Pending" }));
            }
            Kind::Queue | Kind::QueuePolicy | Kind::PodGroup | Kind::PodDisruptionBudget => {
                assert!(object.spec.as_object().is_some_and(|spec| !spec.is_empty()), "{object:?}");
            }
        }
    }
    let uid = servers
        .kubectl(&["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"])
        .await
        .unwrap();
    assert_eq!(api.cluster_id().as_str(), uid);
    // Nothing that stands on a fresh API server is taken for malformed.
    let reading = Reading::default();
    for object in api.list(None).await.unwrap().0 {
        // Plans of this test are no real ones.
        if object.kind != Kind::GangPlan {
            let converted = convert::event_of_object(&reading, &object);
            assert_eq!(converted.warnings, Vec::<String>::new(), "{}", object.key());
        }
    }
    reader.reaches(&client(servers).await, &namespace, "all kinds").await;
}

fn uuid_length(object: &Object) -> usize {
    object.metadata.uid.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_at_any_event_lead_to_the_same_state() {
    let servers = shared().await;
    let direct = client(servers).await;
    let user = User(direct.clone());
    let events = events_of_a_walk(servers, &user).await;
    let steps = steps();
    assert!(usize::try_from(events).unwrap() >= steps.len(), "{events} events of {} steps", steps.len());
    for at in 1..=events {
        let namespace = servers.namespace("cut").await.unwrap();
        let cuts = Cuts::new(direct.clone());
        let api = started(cuts.client()).await;
        let reader = Reader::start(&api).await;
        // Every second time the connections come back only when everything is over: all of the rest happens in the gap.
        let stays_cut = at % 2 == 0;
        cuts.cut_after(at, stays_cut);
        for step in &steps {
            walk(&user, &namespace, step).await;
        }
        if stays_cut {
            cuts.heal();
        }
        let what = format!("cut at event {at}");
        reader.reaches(&direct, &namespace, &what).await;
        assert!(cuts.were_cut() || at > steps.len() as u64, "{what}: nothing was cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_version_that_is_too_old_lists_again_and_tells_what_has_gone() {
    let servers = shared().await;
    let direct = client(servers).await;
    let user = User(direct.clone());
    let namespace = servers.namespace("old").await.unwrap();
    let cuts = Cuts::new(direct.clone());
    for name in ["a", "b"] {
        user.create(Kind::PodGroup, &namespace, name, example(Kind::PodGroup)).await;
    }
    let api = started(cuts.client()).await;
    let reader = Reader::start(&api).await;
    let lists = || api.watches().counts(Kind::PodGroup).unwrap().lists.load(Ordering::Relaxed);
    assert_eq!(lists(), 1);
    cuts.cut_now();
    user.delete(Kind::PodGroup, &namespace, "a").await;
    user.delete(Kind::PodGroup, &namespace, "b").await;
    user.create(Kind::PodGroup, &namespace, "b", example(Kind::PodGroup)).await;
    user.create(Kind::PodGroup, &namespace, "c", example(Kind::PodGroup)).await;
    cuts.watch_from_the_first_version();
    cuts.heal();
    until("it is listed again", || lists() == 2).await;
    reader.reaches(&direct, &namespace, "after the gap").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_crashes_and_comes_back_is_followed_on() {
    let servers = Servers::start(ServerOptions::default()).await.unwrap();
    servers.apply_crds().await.unwrap();
    let direct = client(&servers).await;
    let user = User(direct.clone());
    let api = started(direct.clone()).await;
    let reader = Reader::start(&api).await;
    let namespace = servers.namespace("crash").await.unwrap();
    user.create(Kind::PodGroup, &namespace, "before", example(Kind::PodGroup)).await;
    let key = ObjectKey::new(Kind::PodGroup, &namespace, "before");
    until("it is heard", || api.mirror().get(&key).is_ok()).await;
    servers.kill_api_server();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(api.mirror().get(&key).is_ok(), "what was heard stays while nobody answers");
    servers.start_api_server().await.unwrap();
    user.delete(Kind::PodGroup, &namespace, "before").await;
    user.create(Kind::PodGroup, &namespace, "after", example(Kind::PodGroup)).await;
    reader.reaches(&direct, &namespace, "after the crash").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_the_definitions_and_goes_on_when_they_come() {
    let servers = Servers::start(ServerOptions::default()).await.unwrap();
    let api = started(client(&servers).await).await;
    let ours = [Kind::Queue, Kind::PodGroup, Kind::GangPlan];
    until("ours are missing", || {
        ours.iter().chain(&[Kind::Job]).all(|kind| api.mirror().heard(*kind) == Heard::NotServed)
            && api.mirror().missing() == ours
    })
    .await;
    let early = tokio::time::timeout(Duration::from_millis(100), api.list(None)).await;
    assert!(early.is_err(), "{early:?}");
    servers.apply_crds().await.unwrap();
    let (objects, _) = tokio::time::timeout(PATIENCE, api.list(None)).await.unwrap().unwrap();
    assert!(objects.iter().any(|object| object.kind == Kind::PriorityClass));
    until("Jobs are read too", || api.mirror().heard(Kind::Job) == Heard::Listed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_objects_are_warnings_and_all_others_go_on() {
    let servers = Servers::start(ServerOptions::default()).await.unwrap();
    servers.apply_crds().await.unwrap();
    let direct = client(&servers).await;
    let user = User(direct.clone());
    // A definition that lets everything through, as others' may.
    let open = json!([{ "op": "replace", "path": "/spec/versions/0/schema", "value": {
        "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    } }])
    .to_string();
    let name = "podgroups.scheduling.volcano.sh";
    servers.kubectl(&["patch", "crd", name, "--type=json", "-p", &open]).await.unwrap();
    let namespace = servers.namespace("malformed").await.unwrap();
    let api = started(direct.clone()).await;
    let reader = Reader::start(&api).await;
    let bad = [
        ("four", json!({ "spec": { "minMember": "four" } })),
        ("list", json!({ "spec": ["x"] })),
        ("number", json!({ "spec": 7 })),
        ("resources", json!({ "spec": { "minResources": { "cpu": { "a": 1 } } } })),
    ];
    for (at, (name, rest)) in bad.iter().enumerate() {
        // A definition takes a moment until it holds.
        let began = Instant::now();
        loop {
            let mut json = json!({
                "apiVersion": Kind::PodGroup.api_version(), "kind": "PodGroup", "metadata": { "name": name },
            });
            json.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            let object: DynamicObject = serde_json::from_value(json).unwrap();
            match user.api(Kind::PodGroup, &namespace).create(&PostParams::default(), &object).await {
                Ok(_) => break,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{name}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        user.create(Kind::PodGroup, &namespace, &format!("good-{at}"), example(Kind::PodGroup)).await;
    }
    // Deeper than parsers go, where a definition keeps what it does not know: here in a pod's template.
    let deep = format!("{}1{}", "{\"a\":".repeat(500), "}".repeat(500));
    let body = format!(
        r#"{{"apiVersion":"{}","kind":"Job","metadata":{{"name":"deep"}},"spec":{{"minAvailable":3,"tasks":[{{"name":"t",
        "replicas":3,"template":{{"spec":{{"containers":[{{"name":"c","image":"i"}}],"theirs":{deep}}}}}}}]}}}}"#,
        Kind::Job.api_version(),
    );
    let path = format!("/apis/{}/namespaces/{namespace}/jobs", Kind::Job.api_version());
    let request = http::Request::post(path).header("content-type", "application/json");
    direct.request_text(request.body(body.into_bytes()).unwrap()).await.unwrap();
    user.create(Kind::Job, &namespace, "beside", example(Kind::Job)).await;
    reader.reaches(&direct, &namespace, "with malformed objects").await;
    let deep = ObjectKey::new(Kind::Job, &namespace, "deep");
    for job in [api.mirror().get(&deep).unwrap(), Object::clone(&*api.get(&deep).await.unwrap())] {
        let theirs = job.spec.pointer("/tasks/0/template/spec/theirs/a/a/a");
        assert!(job.spec["minAvailable"] == 3 && theirs.is_some(), "{job:?}");
    }
    assert_eq!(api.watches().counts(Kind::Job).unwrap().lists.load(Ordering::Relaxed), 1);
    let reading = Reading::default();
    let converted = |name: &str| {
        let object = api.mirror().get(&ObjectKey::new(Kind::PodGroup, &namespace, name)).unwrap();
        convert::event_of_object(&reading, &object)
    };
    for (at, (name, _)) in bad.iter().enumerate() {
        let warnings = converted(name).warnings.join("\n");
        assert!(warnings.contains(&format!("PodGroup {namespace}/{name}: spec")), "{name}: {warnings:?}");
        let good = converted(&format!("good-{at}"));
        assert!(good.event.is_some() && good.warnings.is_empty(), "{good:?}");
    }
    assert!(converted("four").warnings[0].contains("spec.minMember"), "{:?}", converted("four"));
    let counts = api.watches().counts(Kind::PodGroup).unwrap();
    assert_eq!(counts.lists.load(Ordering::Relaxed), 1, "nothing made the kind be listed again");
}

/// Whoever is further behind than the log is long lists again, and misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_far_behind_misses_nothing() {
    let servers = shared().await;
    let direct = client(servers).await;
    let user = User(direct.clone());
    let namespace = servers.namespace("behind").await.unwrap();
    let api = started_with(direct.clone(), Options { log_length: 4, ..Options::default() }).await;
    let metrics = Arc::new(Metrics::default());
    let (mut watcher, objects) = Watcher::start(api.clone(), Arc::clone(&metrics)).await.unwrap();
    let mut view = view_of(&objects);
    for step in steps() {
        walk(&user, &namespace, &step).await;
    }
    let wanted = of(&fresh_view(&direct).await, &namespace);
    until("all is heard", || of(&view_of(&api.mirror().list(None).unwrap().0), &namespace) == wanted).await;
    let began = Instant::now();
    while of(&view, &namespace) != wanted {
        assert!(began.elapsed() < PATIENCE);
        let changes = tokio::time::timeout(PATIENCE, watcher.next()).await.unwrap().unwrap();
        changes.iter().for_each(|change| Reader::take(&mut view, change));
    }
    assert!(metrics.relists.get() >= 1);
}
