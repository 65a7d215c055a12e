//! The writer against a real API server, with a proxy in between that answers wrongly, late or not at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod kube_proxy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use phalanx_common::gang::PodBinding;
use phalanx_common::ids::{ActionId, GangName, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
use phalanx_common::units::Time;
use phalanx_common::wire::Exactness;
use phalanx_coordinator::api::{Api, ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use phalanx_coordinator::clock::Clock;
use phalanx_coordinator::convert::plan::{number_of, plan_key};
use phalanx_coordinator::convert::plans_of_object;
use phalanx_coordinator::kubernetes::normalize::Trim;
use phalanx_coordinator::kubernetes::write::{WriteParts, Writes};
use phalanx_coordinator::kubernetes::{KubernetesApi, Options};
use phalanx_coordinator::metrics::Metrics;
use phalanx_coordinator::writer::{Limits, Writer, start_with};
use phalanx_core::action::{Action, Command, GangPhase, GangStatus, QueueStatus};
use phalanx_core::event::{Event, Outcome};
use phalanx_core::reason::Reason;
use phalanx_devcluster::Servers;
use phalanx_kubernetes::client::{Clients, Pace, Target};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::kube_proxy::{Proxy, Spoil};

/// Longest wait for one answer: short, so that a test that waits for it does not wait long.
const TIME_OUT: Duration = Duration::from_millis(1500);
const TERM: Term = Term { counter: 3, incarnation: 7 };

struct Bench {
    namespace: String,
    client: Client,
    proxy: Proxy,
    api: KubernetesApi,
    writer: Writer,
    outcomes: mpsc::Receiver<Event>,
    metrics: Arc<Metrics>,
    leads: Arc<AtomicBool>,
    next: u64,
}

impl Bench {
    async fn new() -> Self {
        Self::start(true, Pace::default()).await
    }

    /// Writes go straight to the API server.
    async fn without_proxy() -> Self {
        Self::start(false, Pace::default()).await
    }

    async fn start(through_proxy: bool, bindings: Pace) -> Self {
        let servers = Servers::shared().await.unwrap();
        servers.apply_crds().await.unwrap();
        let namespace = servers.namespace("write").await.unwrap();
        let proxy = Proxy::start(servers).await;
        let target = Target { kubeconfig: Some(servers.kubeconfig().to_owned()), context: None };
        let straight = Clients::new(&target.load().await.unwrap(), "phalanx-coordinator/test").unwrap();
        let client = servers.admin_client().await.unwrap();
        let options = Options {
            scheduler_names: vec!["phalanx".to_owned()],
            namespace: namespace.clone(),
            ..Options::default()
        };
        let leads = Arc::new(AtomicBool::new(true));
        let may_write = Arc::clone(&leads);
        let writes = Writes::new(WriteParts {
            client: if through_proxy { proxy.client() } else { straight.write },
            trim: Trim::new(&options.scheduler_names),
            may_write: Arc::new(move || may_write.load(Ordering::Relaxed)),
            time_out: TIME_OUT,
        });
        let api = KubernetesApi::start(client.clone(), writes, &options).await.unwrap();
        let metrics = Arc::new(Metrics::default());
        let (sender, outcomes) = mpsc::channel(1024);
        let limits = Limits::kubernetes(TIME_OUT * 2, bindings);
        let writer = start_with(limits, api.clone(), 7, sender, Arc::clone(&metrics), Clock::start());
        Self { namespace, client, proxy, api, writer, outcomes, metrics, leads, next: 0 }
    }

    fn name(&self, name: &str) -> GangName {
        GangName::new(&self.namespace, name)
    }

    fn key(&self, kind: Kind, name: &str) -> ObjectKey {
        ObjectKey::new(kind, &self.namespace, name)
    }

    fn pods(&self) -> kube::Api<Pod> {
        kube::Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A new pod of the gang `gang`, as the API server shows it.
    async fn pod(&self, name: &str) -> Pod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": { "scheduling.k8s.io/group-name": "gang", "theirs": "x" } },
            "spec": {
                "schedulerName": "phalanx",
                "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "none" }],
            },
        }))
        .unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    async fn stored(&self, name: &str) -> Pod {
        self.pods().get(name).await.unwrap()
    }

    async fn node_of(&self, name: &str) -> Option<String> {
        self.stored(name).await.spec.unwrap().node_name
    }

    fn bind(&self, pod: &Pod) -> Command {
        Command::Bind {
            pod: uid(pod),
            name: self.name(&pod.name_any()),
            resource_version: pod.resource_version().unwrap().parse().unwrap(),
            binding: PodBinding { node: "n1".into(), lease: None, gpus: Vec::new() },
            exactness: Exactness::Exact,
            group_uid: "group".into(),
            term: TERM,
        }
    }

    fn read(&self, pod: &Pod) -> Command {
        Command::ReadPod { pod: uid(pod), name: self.name(&pod.name_any()) }
    }

    fn evict(&self, pod: &Pod) -> Command {
        Command::Evict { pod: uid(pod), name: self.name(&pod.name_any()), cause: "test".into() }
    }

    async fn queue(&mut self, command: Command) -> ActionId {
        self.next += 1;
        let id = ActionId(self.next);
        self.writer.queue.send(Action { id, command }).await.unwrap();
        id
    }

    async fn event(&mut self, command: Command) -> Event {
        self.queue(command).await;
        self.outcomes.recv().await.unwrap()
    }

    async fn outcome(&mut self, command: Command) -> Outcome {
        match self.event(command).await {
            Event::ActionDone { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// What a read says: `None` where the pod is gone, else whether it is bound.
    async fn is_bound(&mut self, pod: &Pod) -> Option<bool> {
        match self.event(self.read(pod)).await {
            Event::PodRead { pod, .. } => pod.map(|pod| pod.binding.is_some()),
            other => panic!("{other:?}"),
        }
    }

    async fn create(&self, kind: Kind, name: &str, spec: Value) -> Arc<Object> {
        let object = Object::new(kind, &self.namespace, name).with_spec(spec);
        self.api.mutate(Mutation::Create(Box::new(object))).await.unwrap()
    }

    /// Waits until the mirror shows this object as it is now.
    async fn seen(&self, key: &ObjectKey) {
        let version = self.api.get(key).await.unwrap().metadata.resource_version;
        loop {
            match self.api.glance(key).await {
                Ok(seen) if seen.metadata.resource_version >= version => return,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

fn uid(pod: &Pod) -> PodUid {
    PodUid::from(pod.uid().unwrap().as_str())
}

#[tokio::test]
async fn a_binding_is_one_write_with_its_annotations_and_only_to_the_pod_it_was_made_for() {
    let mut bench = Bench::new().await;
    let pod = bench.pod("a").await;
    let mut other = pod.clone();
    other.metadata.uid = Some("another".to_owned());
    assert_eq!(bench.outcome(bench.bind(&other)).await, Outcome::Conflict);
    let patch = json!({ "metadata": { "annotations": { "touched": "x" } } });
    bench.pods().patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Conflict, "its resourceVersion is an old one");
    assert_eq!(bench.node_of("a").await, None);
    let pod = bench.stored("a").await;
    let before = bench.proxy.all_writes().len();
    assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Done);
    assert_eq!(bench.proxy.all_writes().len(), before + 1);
    let bound = bench.stored("a").await;
    let annotations = bound.annotations();
    assert_eq!(annotations["phalanx.dev/term"], "3.0000000000000007");
    assert_eq!((&*annotations["phalanx.dev/exactness"], &*annotations["theirs"]), ("none", "x"));
    assert_eq!(bound.spec.as_ref().unwrap().node_name.as_deref(), Some("n1"));
    assert_eq!(bench.outcome(bench.bind(&bound)).await, Outcome::Conflict, "it is bound");
    other.metadata.name = Some("missing".to_owned());
    assert_eq!(bench.outcome(bench.bind(&other)).await, Outcome::NotFound);
    for (outcome, count) in [("Done", 1), ("Conflict", 3), ("NotFound", 1)] {
        assert_eq!(bench.metrics.writes("Bind", outcome), count, "{outcome}");
    }
}

#[tokio::test]
async fn a_pod_that_came_back_under_the_same_name_is_not_evicted() {
    let mut bench = Bench::new().await;
    let old = bench.pod("a").await;
    bench.pods().delete("a", &DeleteParams::default()).await.unwrap();
    let new = bench.pod("a").await;
    assert_eq!(bench.outcome(bench.evict(&old)).await, Outcome::Conflict);
    assert_eq!(bench.is_bound(&old).await, None, "the old one is gone");
    assert_eq!(bench.stored("a").await.uid(), new.uid());
    let Event::PodRead { pod: None, .. } =
        bench.event(Command::FenceWrite { pod: uid(&old), name: bench.name("a"), term: TERM }).await
    else {
        panic!("a fence of the old one must not be taken for one of the new one")
    };
    assert!(!bench.stored("a").await.annotations().contains_key("phalanx.dev/term"));
    assert_eq!(bench.outcome(bench.evict(&new)).await, Outcome::Done);
    assert!(
        bench.pods().get_opt("a").await.unwrap().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    );
    assert_eq!(bench.proxy.count(&Method::DELETE, "/pods/"), 0, "evictions respect disruption budgets");
}

#[tokio::test]
async fn a_fence_write_makes_a_late_binding_meet_a_conflict() {
    let mut bench = Bench::new().await;
    let pod = bench.pod("a").await;
    let fence = Command::FenceWrite { pod: uid(&pod), name: bench.name("a"), term: TERM };
    let Event::PodRead { pod: Some(read), .. } = bench.event(fence).await else { panic!() };
    assert_eq!(read.term, 3);
    assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Conflict);
    assert_eq!(bench.node_of("a").await, None);
}

#[tokio::test]
async fn an_api_server_that_is_busy_is_asked_again_after_the_pause_it_names_and_not_for_ever() {
    let mut bench = Bench::new().await;
    let (a, b) = (bench.pod("a").await, bench.pod("b").await);
    bench.proxy.spoil(1, Method::POST, "/pods/a/binding", Spoil::Busy(1));
    let began = std::time::Instant::now();
    assert_eq!(bench.outcome(bench.bind(&a)).await, Outcome::Done);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(bench.proxy.count(&Method::POST, "/pods/a/binding"), 2);
    bench.proxy.spoil(9, Method::POST, "/pods/b/binding", Spoil::Busy(60));
    assert_eq!(bench.outcome(bench.bind(&b)).await, Outcome::Unknown);
    assert_eq!(bench.proxy.count(&Method::POST, "/pods/b/binding"), 1);
    assert_eq!(bench.is_bound(&b).await, Some(false));
}

#[tokio::test]
async fn after_an_answer_that_says_nothing_the_pod_is_read_and_says_it() {
    let mut bench = Bench::new().await;
    for (spoil, is_done) in [
        (Spoil::Answer(500, "etcdserver: leader changed"), false),
        (Spoil::Answer(503, "apiserver is shutting down"), false),
        (Spoil::Late(TIME_OUT * 2), true),
        (Spoil::Cut, true),
        (Spoil::Swallow, false),
    ] {
        let name = format!("{spoil:?}").chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        let name = name.to_ascii_lowercase();
        let pod = bench.pod(&name).await;
        let path = format!("/pods/{name}/binding");
        bench.proxy.spoil(1, Method::POST, &path, spoil.clone());
        assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Unknown, "{spoil:?}");
        assert_eq!(bench.is_bound(&pod).await, Some(is_done), "{spoil:?}");
        assert_eq!(
            bench.proxy.count(&Method::POST, &path),
            1,
            "{spoil:?}: nothing is repeated behind our back"
        );
    }
    assert_eq!(bench.metrics.writes("Bind", "Unknown"), 5);
}

#[tokio::test]
async fn a_conflict_that_the_api_server_invents_is_told_as_one() {
    let mut bench = Bench::new().await;
    let pod = bench.pod("a").await;
    let text = "Operation cannot be fulfilled on pods \"a\": the object has been modified";
    bench.proxy.spoil(1, Method::POST, "/binding", Spoil::Answer(409, text));
    assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Conflict);
    assert_eq!(bench.is_bound(&pod).await, Some(false));
    assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Done);
}

#[tokio::test]
async fn a_pod_that_is_refused_for_ever_holds_up_no_other() {
    let mut bench = Bench::new().await;
    let refused = bench.pod("refused").await;
    bench.proxy.spoil(
        u32::MAX,
        Method::POST,
        "/pods/refused/binding",
        Spoil::Answer(403, "no bindings on Sundays"),
    );
    for number in 0..40 {
        let pod = bench.pod(&format!("pod-{number}")).await;
        let (refused, good) = (bench.bind(&refused), bench.bind(&pod));
        bench.queue(refused).await;
        bench.queue(good).await;
    }
    let mut counts = BTreeMap::new();
    for _ in 0..80 {
        let Event::ActionDone { outcome, .. } = bench.outcomes.recv().await.unwrap() else { panic!() };
        *counts.entry(format!("{outcome:?}")).or_insert(0) += 1;
    }
    let text = format!("Refused(\"Pod {}/refused: no bindings on Sundays (403)\")", bench.namespace);
    assert_eq!(counts, BTreeMap::from([("Done".to_owned(), 40), (text, 40)]));
}

#[tokio::test]
async fn annotations_that_would_spoil_the_pod_are_not_sent() {
    let bench = Bench::new().await;
    let pod = bench.pod("a").await;
    let bind = |name: &str, value: String| Mutation::Bind {
        key: bench.key(Kind::Pod, "a"),
        preconditions: Preconditions::uid(&pod.uid().unwrap()),
        node: "n1".to_owned(),
        annotations: BTreeMap::from([(name.to_owned(), value)]),
    };
    for bad in [bind("no good", "x".to_owned()), bind("phalanx.dev/x", "x".repeat(300 << 10))] {
        assert!(matches!(bench.api.mutate(bad).await, Err(ApiError::Invalid(_))));
    }
    // What the pod has already counts.
    let patch = json!({ "metadata": { "annotations": { "theirs": "x".repeat((256 << 10) - 200) } } });
    bench.pods().patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    bench.seen(&bench.key(Kind::Pod, "a")).await;
    let full = bench.api.mutate(bind("phalanx.dev/x", "x".repeat(200))).await;
    assert!(matches!(&full, Err(ApiError::Invalid(text)) if text.contains("262144")), "{full:?}");
    assert_eq!(bench.proxy.all_writes(), []);
}

#[tokio::test]
async fn who_does_not_lead_writes_nothing() {
    let mut bench = Bench::new().await;
    let pod = bench.pod("a").await;
    bench.create(Kind::PodGroup, "gang", json!({ "minMember": 1 })).await;
    let before = bench.proxy.all_writes();
    bench.leads.store(false, Ordering::Relaxed);
    let fence = Command::FenceWrite { pod: uid(&pod), name: bench.name("a"), term: TERM };
    let plan = bench.written("gang", 1);
    for command in [bench.bind(&pod), bench.evict(&pod), fence, plan] {
        assert_eq!(bench.outcome(command).await, Outcome::Unknown);
    }
    assert_eq!(bench.is_bound(&pod).await, Some(false), "reading is not forbidden");
    assert_eq!(bench.proxy.all_writes(), before);
    bench.leads.store(true, Ordering::Relaxed);
    assert_eq!(bench.outcome(bench.bind(&pod)).await, Outcome::Done);
}

fn plan(bench: &Bench, gang: &str, uid: &str, term: u64) -> GangPlan {
    GangPlan {
        gang: bench.name(gang),
        gang_uid: Arc::from(uid),
        term,
        binding_deadline: Time(1_000),
        purpose: PlanPurpose::Bind,
        victims: Vec::new(),
        pods: vec![PlannedPod {
            pod: PodUid::from("pod"),
            name: Arc::from("pod"),
            node: NodeName::from("node"),
            // The API server keeps no such number: in JSON it is a float there.
            lease: Some(LeaseId { term, serial: u64::MAX - 1 }),
            gpus: Vec::new(),
        }],
    }
}

impl Bench {
    /// Plans in the object that holds this gang's, from the API server.
    async fn plans_beside(&self, gang: &str) -> Vec<GangPlan> {
        let reading = self.api.reading();
        let Ok(object) = self.api.get(&plan_key(&reading, &self.name(gang))).await else { return Vec::new() };
        let plans = plans_of_object(&reading, &object);
        assert_eq!(plans.warnings, Vec::<String>::new());
        plans.found
    }

    /// Names of so many gangs whose plans are in one object.
    fn together(&self, count: usize) -> Vec<String> {
        let number = |gang: &String| number_of(&self.name(gang));
        let names = (0..).map(|number| format!("gang-{number}"));
        names.filter(|name| number(name) == number(&"gang-0".to_owned())).take(count).collect()
    }

    /// Asks for all of it at once, and gives what came of each, in this order.
    async fn all(&mut self, commands: impl IntoIterator<Item = Command>) -> Vec<Outcome> {
        let first = self.next + 1;
        for command in commands {
            self.queue(command).await;
        }
        let mut outcomes = BTreeMap::new();
        for _ in first..=self.next {
            let Event::ActionDone { action, outcome } = self.outcomes.recv().await.unwrap() else { panic!() };
            outcomes.insert(action, outcome);
        }
        outcomes.into_values().collect()
    }

    fn written(&self, gang: &str, term: u64) -> Command {
        Command::WritePlan(Box::new(plan(self, gang, "uid", term)))
    }

    fn removed(&self, gang: &str, term: u64) -> Command {
        Command::DeletePlan { gang: self.name(gang), term }
    }
}

#[tokio::test]
async fn plans_are_made_adopted_and_removed_by_compare_and_swap() {
    let mut bench = Bench::new().await;
    let key = plan_key(&bench.api.reading(), &bench.name("gang"));
    // Its answer was lost; the second try finds it.
    bench.proxy.spoil(1, Method::POST, "/gangplans", Spoil::Cut);
    assert_eq!(bench.outcome(bench.written("gang", 5)).await, Outcome::Unknown);
    assert_eq!(bench.outcome(bench.written("gang", 5)).await, Outcome::Done);
    assert_eq!(bench.plans_beside("gang").await, [plan(&bench, "gang", "uid", 5)]);
    assert_eq!(bench.outcome(bench.written("gang", 6)).await, Outcome::Done);
    assert_eq!(
        bench.outcome(bench.written("gang", 5)).await,
        Outcome::Conflict,
        "a later leader's plan stays"
    );
    assert_eq!(bench.outcome(bench.removed("gang", 5)).await, Outcome::Conflict);
    assert_eq!(bench.outcome(bench.removed("gang", 6)).await, Outcome::Done);
    assert_eq!(bench.outcome(bench.removed("gang", 6)).await, Outcome::NotFound);
    // Removed right after it was written: what was seen a moment ago must not say that there is nothing to remove.
    assert_eq!(bench.outcome(bench.written("gang", 6)).await, Outcome::Done);
    assert_eq!(bench.outcome(bench.removed("gang", 6)).await, Outcome::Done);
    assert!(matches!(bench.api.get(&key).await, Err(ApiError::NotFound(_))));
}

#[tokio::test]
async fn plans_that_wait_are_one_write_without_a_look_before_it() {
    let mut bench = Bench::new().await;
    let gangs = bench.together(24);
    // The first goes at once; the others gather while it is under way.
    bench.proxy.spoil(1, Method::POST, "/gangplans", Spoil::Late(Duration::from_millis(300)));
    let writes: Vec<Command> = gangs.iter().map(|gang| bench.written(gang, 5)).collect();
    assert_eq!(bench.all(writes).await, vec![Outcome::Done; 24]);
    assert_eq!(bench.plans_beside(&gangs[0]).await.len(), 24);
    let all = bench.proxy.all_writes();
    let methods: Vec<&Method> = all.iter().map(|(method, _)| method).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH], "{all:?}");
    // What is watched lags behind: the writer knows what it has written. One look is the test's.
    assert_eq!(bench.proxy.count(&Method::GET, "/gangplans/"), 1);
    let removals: Vec<Command> = gangs[..20].iter().map(|gang| bench.removed(gang, 5)).collect();
    assert_eq!(bench.all(removals).await, vec![Outcome::Done; 20]);
    let rest: Vec<Command> = gangs[20..].iter().map(|gang| bench.removed(gang, 5)).collect();
    assert_eq!(bench.all(rest).await, vec![Outcome::Done; 4]);
    assert_eq!(bench.plans_beside(&gangs[0]).await, []);
    assert!(bench.proxy.all_writes().len() <= 6, "{:?}", bench.proxy.all_writes());
    // The object is gone, and the mirror may not know yet.
    let before = bench.proxy.count(&Method::GET, "/gangplans/");
    assert_eq!(bench.outcome(bench.written(&gangs[0], 5)).await, Outcome::Done);
    assert_eq!(bench.proxy.count(&Method::GET, "/gangplans/"), before);
}

#[tokio::test]
async fn two_hundred_gangs_that_are_committed_at_one_time_take_few_writes() {
    let mut bench = Bench::new().await;
    let gangs: Vec<String> = (0..200).map(|number| format!("gang-{number}")).collect();
    let writes: Vec<Command> = gangs.iter().map(|gang| bench.written(gang, 5)).collect();
    assert_eq!(bench.all(writes).await, vec![Outcome::Done; 200]);
    let planned = bench.proxy.all_writes().len();
    let removals: Vec<Command> = gangs.iter().map(|gang| bench.removed(gang, 5)).collect();
    assert_eq!(bench.all(removals).await, vec![Outcome::Done; 200]);
    let removed = bench.proxy.all_writes().len() - planned;
    println!("200 plans in {planned} writes, 200 removals in {removed}");
    assert!(planned <= 60 && removed <= 60, "{planned} writes of plans, {removed} for their removal");
}

#[tokio::test]
async fn whatever_becomes_of_a_write_of_several_plans_a_second_try_leads_to_all_of_them() {
    let mut bench = Bench::new().await;
    let gangs = bench.together(9);
    for (number, (method, spoil, outcome)) in [
        (Method::PATCH, Spoil::Cut, Outcome::Unknown),
        (Method::PATCH, Spoil::Late(TIME_OUT * 3), Outcome::Unknown),
        (Method::PATCH, Spoil::Swallow, Outcome::Unknown),
        (Method::PATCH, Spoil::Answer(500, "etcdserver: leader changed"), Outcome::Unknown),
        (Method::PATCH, Spoil::Answer(409, "the object has been modified"), Outcome::Done),
        (Method::PATCH, Spoil::Busy(1), Outcome::Done),
        // All at once it is refused; by halves they are taken.
        (Method::PATCH, Spoil::Answer(422, "not now"), Outcome::Done),
    ]
    .into_iter()
    .enumerate()
    {
        let term = 5 + number as u64;
        let writes = |bench: &Bench| gangs.iter().map(|gang| bench.written(gang, term)).collect::<Vec<_>>();
        assert_eq!(bench.outcome(bench.written("gang-0", term)).await, Outcome::Done);
        bench.proxy.spoil(1, method, "/gangplans", spoil.clone());
        // One is under way while the others gather, so that they are one write.
        let outcomes = bench.all(writes(&bench)).await;
        assert!(
            outcomes.iter().all(|one| *one == outcome || *one == Outcome::Done),
            "{spoil:?}: {outcomes:?}"
        );
        assert_eq!(outcomes.contains(&Outcome::Unknown), outcome == Outcome::Unknown, "{spoil:?}");
        assert_eq!(bench.all(writes(&bench)).await, vec![Outcome::Done; 9], "{spoil:?}");
        let mut stored = bench.plans_beside("gang-0").await;
        stored.sort_by_key(|plan| plan.gang.clone());
        let mut expected: Vec<GangPlan> = gangs.iter().map(|gang| plan(&bench, gang, "uid", term)).collect();
        expected.sort_by_key(|plan| plan.gang.clone());
        assert_eq!(stored, expected, "{spoil:?}");
    }
    // The same for the removal of all.
    for spoil in [Spoil::Cut, Spoil::Swallow, Spoil::Answer(409, "modified")] {
        let removals = |bench: &Bench| gangs.iter().map(|gang| bench.removed(gang, 20)).collect::<Vec<_>>();
        let writes: Vec<Command> = gangs.iter().map(|gang| bench.written(gang, 20)).collect();
        assert_eq!(bench.all(writes).await, vec![Outcome::Done; 9]);
        bench.proxy.spoil(1, Method::DELETE, "/gangplans", spoil.clone());
        bench.all(removals(&bench)).await;
        let again = bench.all(removals(&bench)).await;
        assert!(
            again.iter().all(|one| matches!(one, Outcome::Done | Outcome::NotFound)),
            "{spoil:?}: {again:?}"
        );
        assert_eq!(bench.plans_beside("gang-0").await, [], "{spoil:?}");
    }
}

#[tokio::test]
async fn two_leaders_write_one_object_and_lose_nothing_of_each_other() {
    let mut bench = Bench::new().await;
    let gangs = bench.together(6);
    let [first, second] = [&gangs[..3], &gangs[3..]];
    // Another one writes between what this one saw and its write: a writer of its own, which knows nothing of the first.
    let (sender, mut outcomes) = mpsc::channel(64);
    let limits = Limits::kubernetes(TIME_OUT * 2, Pace::default());
    let metrics = Arc::new(Metrics::default());
    let other = start_with(limits, bench.api.clone(), 8, sender, metrics, Clock::start());
    for round in 0..10 {
        for (id, gang) in (0..).zip(second) {
            let action = Action { id: ActionId(id), command: bench.written(gang, 7 + round) };
            other.queue.send(action).await.unwrap();
        }
        let late: Vec<Command> = gangs.iter().map(|gang| bench.written(gang, 6)).collect();
        let outcomes_here = bench.all(late).await;
        assert_eq!(outcomes_here[..3], [Outcome::Done, Outcome::Done, Outcome::Done]);
        for _ in second {
            let Some(Event::ActionDone { outcome, .. }) = outcomes.recv().await else { panic!() };
            assert_eq!(outcome, Outcome::Done, "the later one is not held up");
        }
        let stored: BTreeMap<String, u64> = bench
            .plans_beside("gang-0")
            .await
            .into_iter()
            .map(|plan| (plan.gang.name.to_string(), plan.term))
            .collect();
        let expected = first.iter().map(|gang| (gang.clone(), 6));
        let expected = expected.chain(second.iter().map(|gang| (gang.clone(), 7 + round)));
        assert_eq!(stored, expected.collect(), "round {round}");
    }
}

fn gang_status(phase: GangPhase, running: u32) -> GangStatus {
    let reason =
        (phase == GangPhase::Pending).then(|| Reason::NoSuchQueue { queue: QueueName::from("none") });
    GangStatus { phase, reason, running, succeeded: 0, failed: 0 }
}

#[tokio::test]
async fn statuses_keep_what_others_wrote_and_reach_only_the_object_of_that_uid() {
    let mut bench = Bench::new().await;
    let spec = json!({ "minMember": 1, "queue": "q" });
    let group = bench.create(Kind::PodGroup, "gang", spec.clone()).await;
    let queue =
        Object::new(Kind::Queue, "", &format!("{}-q", bench.namespace)).with_spec(json!({ "weight": 1 }));
    let queue = bench.api.mutate(Mutation::Create(Box::new(queue))).await.unwrap();
    let set = |bench: &Bench, uid: &str, phase| Command::SetGangStatus {
        gang: bench.name("gang"),
        uid: Arc::from(uid),
        status: Box::new(gang_status(phase, 0)),
    };
    assert_eq!(bench.outcome(set(&bench, "another", GangPhase::Inqueue)).await, Outcome::Conflict);
    // One after the other, faster than the mirror follows: the last one must stand.
    for phase in [GangPhase::Pending, GangPhase::Inqueue, GangPhase::Pending, GangPhase::Inqueue] {
        assert_eq!(bench.outcome(set(&bench, &group.metadata.uid, phase)).await, Outcome::Done);
        let stored = bench.api.get(&group.key()).await.unwrap();
        assert_eq!(stored.status["phase"], phase.as_str());
        assert_eq!(stored.spec, group.spec, "a PodGroup's status is written on the object itself");
    }
    // The same once more is no write.
    bench.seen(&group.key()).await;
    let before = bench.proxy.all_writes().len();
    assert_eq!(bench.outcome(set(&bench, &group.metadata.uid, GangPhase::Inqueue)).await, Outcome::Done);
    assert_eq!(bench.proxy.all_writes().len(), before);
    let status = QueueStatus { running: 2, ..QueueStatus::default() };
    let of_queue = Command::SetQueueStatus { queue: QueueName::from(queue.metadata.name.as_str()), status };
    assert_eq!(bench.outcome(of_queue).await, Outcome::Done);
    let stored = bench.api.get(&queue.key()).await.unwrap();
    assert_eq!((&stored.status["running"], &stored.status["state"]), (&json!(2), &json!("Open")));
}

#[tokio::test]
async fn an_update_changes_what_differs_and_wipes_nothing_that_we_do_not_know() {
    let bench = Bench::new().await;
    bench.create(Kind::PodGroup, "gang", json!({ "minMember": 1, "queue": "q" })).await;
    let key = bench.key(Kind::PodGroup, "gang");
    let seen = bench.api.get(&key).await.unwrap();
    // kubectl's own annotation is not kept in memory.
    let patch = json!({ "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}" } } });
    let groups: kube::Api<kube::core::DynamicObject> = kube::Api::namespaced_with(
        bench.client.clone(),
        &bench.namespace,
        &kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
            "scheduling.volcano.sh",
            "v1beta1",
            "PodGroup",
        )),
    );
    groups.patch("gang", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let mut wanted = Object::clone(&seen);
    wanted.spec["minMember"] = json!(3);
    let stale = bench.api.mutate(Mutation::Update(Box::new(wanted.clone()))).await;
    assert!(matches!(stale, Err(ApiError::Conflict(_))), "{stale:?}");
    wanted.metadata.resource_version = bench.api.get(&key).await.unwrap().metadata.resource_version;
    let updated = bench.api.mutate(Mutation::Update(Box::new(wanted))).await.unwrap();
    assert_eq!((&updated.spec["minMember"], &updated.spec["queue"]), (&json!(3), &json!("q")));
    let stored = groups.get("gang").await.unwrap();
    assert!(stored.annotations().contains_key("kubectl.kubernetes.io/last-applied-configuration"));
    let mut other = Object::clone(&updated);
    other.metadata.uid = "another".to_owned();
    other.spec["minMember"] = json!(4);
    assert!(matches!(bench.api.mutate(Mutation::Update(Box::new(other))).await, Err(ApiError::OtherUid(_))));
    let twice = Object::new(Kind::PodGroup, &bench.namespace, "gang").with_spec(json!({ "minMember": 1 }));
    let twice = bench.api.mutate(Mutation::Create(Box::new(twice))).await;
    assert!(matches!(twice, Err(ApiError::AlreadyExists(_))), "{twice:?}");
    let nowhere =
        Object::new(Kind::PodGroup, "no-such-namespace", "gang").with_spec(json!({ "minMember": 1 }));
    assert!(matches!(bench.api.mutate(Mutation::Create(Box::new(nowhere))).await, Err(ApiError::Invalid(_))));
}

#[tokio::test]
async fn thirty_two_bindings_are_under_way_at_once_and_not_more() {
    let mut bench = Bench::new().await;
    bench.proxy.spoil(u32::MAX, Method::POST, "/binding", Spoil::Late(Duration::from_millis(300)));
    let mut pods = Vec::new();
    for number in 0..80 {
        pods.push(bench.pod(&format!("pod-{number}")).await);
    }
    for pod in &pods {
        let bind = bench.bind(pod);
        bench.queue(bind).await;
    }
    for _ in &pods {
        let Event::ActionDone { outcome, .. } = bench.outcomes.recv().await.unwrap() else { panic!() };
        assert_eq!(outcome, Outcome::Done);
    }
    assert_eq!(bench.proxy.most_at_once(), 32);
}

#[tokio::test]
async fn bindings_go_at_their_own_pace_and_hold_up_no_plan() {
    let mut bench = Bench::start(true, Pace::per_second(10)).await;
    let group = bench.create(Kind::PodGroup, "gang", json!({ "minMember": 1 })).await;
    let mut pods = Vec::new();
    for number in 0..41 {
        pods.push(bench.pod(&format!("pod-{number}")).await);
    }
    let began = std::time::Instant::now();
    for pod in &pods {
        let bind = bench.bind(pod);
        bench.queue(bind).await;
    }
    let plan = Command::WritePlan(Box::new(plan(&bench, "gang", &group.metadata.uid, 1)));
    let plan = bench.queue(plan).await;
    let mut before_the_plan = None;
    for count in 0..=pods.len() {
        let Event::ActionDone { action, outcome } = bench.outcomes.recv().await.unwrap() else { panic!() };
        assert_eq!(outcome, Outcome::Done);
        if action == plan {
            before_the_plan = Some(count);
        }
    }
    assert!(before_the_plan.unwrap() < 20, "{before_the_plan:?}");
    // Forty of them wait a tenth of a second each, but for one that may go ahead.
    assert!(began.elapsed() >= Duration::from_millis(3_850), "{:?}", began.elapsed());
}

/// How many a second, and that all were done.
async fn bare_rate(bench: &Bench, pods: &[Pod]) -> f64 {
    let api = bench.pods();
    let began = std::time::Instant::now();
    let posted = futures::stream::iter(pods).map(|pod| {
        let api = &api;
        async move {
            let binding: k8s_openapi::api::core::v1::Binding = serde_json::from_value(json!({
                "metadata": {
                    "name": pod.name_any(), "namespace": pod.namespace(), "uid": pod.uid(),
                    "resourceVersion": pod.resource_version(),
                    "annotations": { "phalanx.dev/term": "3.0000000000000007", "phalanx.dev/exactness": "none" },
                },
                "target": { "kind": "Node", "name": "n1" },
            }))
            .unwrap();
            let (name, parameters) = (pod.name_any(), PostParams::default());
            let _: Value = api.create_subresource("binding", &name, &parameters, &binding).await.unwrap();
        }
    });
    posted.buffer_unordered(32).collect::<Vec<()>>().await;
    pods.len() as f64 / began.elapsed().as_secs_f64()
}

async fn writer_rate(bench: &mut Bench, pods: &[Pod]) -> f64 {
    let queue = bench.writer.queue.clone();
    let actions: Vec<Action> =
        (1..).zip(pods).map(|(id, pod)| Action { id: ActionId(id), command: bench.bind(pod) }).collect();
    let began = std::time::Instant::now();
    let sending = tokio::spawn(async move {
        for action in actions {
            queue.send(action).await.unwrap();
        }
    });
    for _ in 0..pods.len() {
        let Event::ActionDone { outcome, .. } = bench.outcomes.recv().await.unwrap() else { panic!() };
        assert_eq!(outcome, Outcome::Done);
    }
    let rate = pods.len() as f64 / began.elapsed().as_secs_f64();
    sending.await.unwrap();
    rate
}

/// Time of the processor that this process has used.
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: cargo test --release -p phalanx-coordinator --test kubernetes_write -- --ignored --nocapture"]
async fn the_writer_binds_as_fast_as_a_bare_loop() {
    const PODS: usize = 1_600;
    const ROUNDS: usize = 5;
    let mut bench = Bench::without_proxy().await;
    let mut ratios = Vec::new();
    for round in 0..2 * ROUNDS {
        let names: Vec<String> = (0..PODS).map(|number| format!("pod-{round}-{number}")).collect();
        let made = futures::stream::iter(&names).map(|name| bench.pod(name)).buffer_unordered(16);
        let pods: Vec<Pod> = made.collect().await;
        // The mirror has all of them, and nothing else is under way.
        let seen = futures::stream::iter(&names).map(|name| bench.key(Kind::Pod, name));
        seen.for_each_concurrent(16, async |key| bench.seen(&key).await).await;
        let cpu = processor_ms();
        let rate = if round % 2 == 0 {
            bare_rate(&bench, &pods).await
        } else {
            writer_rate(&mut bench, &pods).await
        };
        let side = if round % 2 == 0 { "bare loop" } else { "writer   " };
        let cpu = (processor_ms() - cpu) * 1000 / PODS as u64;
        println!("{side} {rate:.0} Bindings a second, {cpu} us of the processor for each");
        ratios.push(rate);
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let of = |side: usize| median(ratios.iter().copied().skip(side).step_by(2).collect());
    println!("medians: bare loop {:.0}, writer {:.0}, ratio {:.3}", of(0), of(1), of(1) / of(0));
}
