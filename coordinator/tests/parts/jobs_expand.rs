//! What vcjobs and bare pods become, step by step over a real store.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_common::units::Time;
use phalanx_coordinator::api::store::Store;
use phalanx_coordinator::api::{ApiError, ControllerRef, Kind, Mutation, Object, ObjectKey, Preconditions};
use phalanx_coordinator::convert::Reading;
use phalanx_coordinator::jobs::{Jobs, TopOwner, reconcile};
use phalanx_coordinator::manifest::parse;
use serde_json::{Value, json};

fn shared_manifest(test: &str, name: &str) -> Option<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
    let folder =
        std::env::var_os("PHALANX_SHARED").map_or_else(|| workspace.join("../shared"), PathBuf::from);
    let folder = if folder.is_relative() { workspace.join(folder) } else { folder };
    let file = folder.join("examples").join(name);
    if file.is_file() {
        return Some(std::fs::read_to_string(file).unwrap());
    }
    assert!(
        std::env::var_os("PHALANX_REQUIRE_SHARED").is_none_or(|value| value != "1"),
        "{} is missing",
        file.display()
    );
    println!("skipped {test}: PHALANX_SHARED not found");
    None
}

/// A store whose changes are followed, as the driver does it.
struct World {
    store: Store,
    jobs: Jobs,
    seen: u64,
    serial: u64,
    warnings: Vec<String>,
}

impl World {
    fn new(manifest: &str) -> Self {
        let mut world =
            Self { store: Store::new(10_000), jobs: Jobs::new(), seen: 0, serial: 0, warnings: Vec::new() };
        let parsed = parse(manifest, "f.yaml");
        assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
        for object in parsed.objects {
            world.mutate(Mutation::Create(Box::new(object))).unwrap();
        }
        world.settle();
        world
    }

    fn mutate(&mut self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        self.serial += 1;
        self.store.mutate(mutation, Time(self.serial), &format!("u{}", self.serial))
    }

    /// Follows changes and does the writes until nothing is left to do; returns their verbs.
    fn settle(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..1000 {
            for change in self.store.changes_since(self.seen, usize::MAX).unwrap() {
                self.seen = change.resource_version;
                self.jobs.change(&change);
            }
            let writes = self.jobs.writes(Time(self.serial));
            self.warnings.extend(writes.warnings);
            if writes.mutations.is_empty() {
                return done;
            }
            for mutation in writes.mutations {
                done.push(format!("{} {}", mutation.verb(), mutation.target()));
                self.mutate(mutation).unwrap();
            }
        }
        panic!("the writes never end: {done:?}");
    }

    fn objects(&self, kind: Kind) -> Vec<Arc<Object>> {
        self.store.list(Some(kind)).0
    }

    fn names(&self, kind: Kind) -> Vec<String> {
        self.objects(kind).iter().map(|object| object.metadata.name.clone()).collect()
    }

    fn only(&self, kind: Kind) -> Arc<Object> {
        let objects = self.objects(kind);
        assert_eq!(objects.len(), 1, "{kind}");
        Arc::clone(&objects[0])
    }

    fn pod(&self, name: &str) -> Arc<Object> {
        self.objects(Kind::Pod).into_iter().find(|pod| pod.metadata.name == name).unwrap()
    }

    fn status(&mut self, object: &Object, status: Value) {
        let preconditions = Preconditions::uid(&object.metadata.uid);
        self.mutate(Mutation::UpdateStatus { key: object.key(), preconditions, status }).unwrap();
        self.settle();
    }

    /// What the core does when quota is there.
    fn admit(&mut self) {
        for group in self.objects(Kind::PodGroup) {
            self.status(&group, json!({ "phase": "Inqueue" }));
        }
    }

    fn phase(&mut self, name: &str, phase: &str) {
        let pod = self.pod(name);
        self.status(&pod, json!({ "phase": phase }));
    }

    fn delete(&mut self, key: ObjectKey) {
        self.mutate(Mutation::Delete { key, preconditions: Preconditions::default() }).unwrap();
        self.settle();
    }

    fn job_phase(&self) -> String {
        self.only(Kind::Job).status["state"]["phase"].as_str().unwrap().to_owned()
    }
}

fn simple(spec: &str) -> String {
    format!(
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: j, namespace: a}}\nspec: {spec}\n"
    )
}

const TEMPLATE: &str = "template: {spec: {containers: [{name: c, resources: {limits: {cpu: 1}}}]}}";

#[test]
fn manifest_01_becomes_a_group_and_eight_pods() {
    let Some(text) = shared_manifest("manifest_01_becomes_a_group_and_eight_pods", "01-bert-ps-worker.yaml")
    else {
        return;
    };
    let mut world = World::new(&text);
    let job = world.only(Kind::Job);
    let group = world.only(Kind::PodGroup);
    assert_eq!(group.metadata.name, format!("bert-distributed-training-{}", job.metadata.uid));
    assert_eq!(
        group.spec,
        json!({
            "minMember": 8,
            "minTaskMember": { "ps": 2, "worker": 6 },
            "queue": "default",
            "minResources": { "nvidia.com/gpu": "8" },
        })
    );
    assert_eq!(
        group.metadata.owner.as_ref().map(|owner| owner.uid.as_str()),
        Some(job.metadata.uid.as_str())
    );
    assert_eq!(job.status["state"]["phase"], "Pending");
    // No pod before the group is admitted.
    assert_eq!(world.names(Kind::Pod), Vec::<String>::new());
    world.admit();
    assert_eq!(
        world.names(Kind::Pod),
        [
            "bert-distributed-training-ps-0",
            "bert-distributed-training-ps-1",
            "bert-distributed-training-worker-0",
            "bert-distributed-training-worker-1",
            "bert-distributed-training-worker-2",
            "bert-distributed-training-worker-3",
            "bert-distributed-training-worker-4",
            "bert-distributed-training-worker-5",
        ]
    );
    let pod = world.pod("bert-distributed-training-worker-5");
    let expected = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(
        pod.metadata.labels,
        expected(&[
            ("volcano.sh/job-name", "bert-distributed-training"),
            ("volcano.sh/job-namespace", "default"),
            ("volcano.sh/queue-name", "default"),
            ("volcano.sh/task-index", "5"),
            ("volcano.sh/task-spec", "worker"),
        ])
    );
    assert_eq!(
        pod.metadata.annotations,
        expected(&[
            ("scheduling.k8s.io/group-name", &group.metadata.name),
            ("volcano.sh/job-name", "bert-distributed-training"),
            ("volcano.sh/job-retry-count", "0"),
            ("volcano.sh/job-version", "0"),
            ("volcano.sh/queue-name", "default"),
            ("volcano.sh/task-index", "5"),
            ("volcano.sh/task-spec", "worker"),
            ("volcano.sh/template-uid", "bert-distributed-training-worker"),
        ])
    );
    assert_eq!(pod.spec["schedulerName"], "volcano");
    assert_eq!(pod.spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], 1);
    assert_eq!(world.warnings, Vec::<String>::new());
}

#[test]
fn manifest_04_becomes_a_group_of_four_whole_nodes() {
    let Some(text) =
        shared_manifest("manifest_04_becomes_a_group_of_four_whole_nodes", "04-pytorch-4x8.yaml")
    else {
        return;
    };
    let mut world = World::new(&text);
    assert_eq!(
        world.only(Kind::PodGroup).spec,
        json!({
            "minMember": 4,
            "minTaskMember": { "worker": 4 },
            "queue": "default",
            "priorityClassName": "high-priority",
            "minResources": { "cpu": "128", "memory": "1Ti", "nvidia.com/gpu": "32" },
        })
    );
    world.admit();
    let pods = world.objects(Kind::Pod);
    assert_eq!(pods.len(), 4);
    assert_eq!(pods[0].spec["priorityClassName"], "high-priority");
}

#[test]
fn a_job_runs_to_its_end() {
    let mut world =
        World::new(&simple(&format!("{{minAvailable: 2, tasks: [{{name: w, replicas: 3, {TEMPLATE}}}]}}")));
    world.admit();
    let status = world.only(Kind::Job).status.clone();
    assert_eq!(
        (&status["pending"], &status["running"], &status["minAvailable"]),
        (&json!(3), &json!(0), &json!(2))
    );
    world.phase("j-w-0", "Running");
    assert_eq!(world.job_phase(), "Pending");
    world.phase("j-w-1", "Running");
    assert_eq!(world.job_phase(), "Running");
    world.phase("j-w-0", "Succeeded");
    world.phase("j-w-1", "Succeeded");
    assert_eq!(world.job_phase(), "Running");
    world.phase("j-w-2", "Failed");
    assert_eq!(world.job_phase(), "Completed");
    let status = world.only(Kind::Job).status.clone();
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(2), &json!(1)));
    assert_eq!(status["taskStatusCount"], json!({ "w": { "phase": { "Succeeded": 2, "Failed": 1 } } }));
    // Pods of a job that has ended are not made again.
    world.delete(ObjectKey::new(Kind::Pod, "a", "j-w-0"));
    assert_eq!(world.names(Kind::Pod), ["j-w-1", "j-w-2"]);
    assert_eq!(world.job_phase(), "Completed");
}

#[test]
fn a_job_with_too_few_successes_has_failed() {
    let mut world =
        World::new(&simple(&format!("{{minAvailable: 2, tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]}}")));
    world.admit();
    world.phase("j-w-0", "Succeeded");
    world.phase("j-w-1", "Failed");
    assert_eq!(world.job_phase(), "Failed");
    assert_eq!(world.only(Kind::Job).status["state"]["message"], "1 pods succeeded, minAvailable is 2");
    let mut world = World::new(&simple(&format!(
        "{{minAvailable: 1, tasks: [{{name: a, replicas: 1, minAvailable: 1, {TEMPLATE}}}, {{name: b, replicas: 1, minAvailable: 0, {TEMPLATE}}}]}}"
    )));
    world.admit();
    world.phase("j-b-0", "Succeeded");
    world.phase("j-a-0", "Failed");
    assert_eq!(world.job_phase(), "Failed");
}

#[test]
fn an_evicted_pod_is_made_again_and_one_that_ended_is_not() {
    let mut world = World::new(&simple(&format!("{{tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]}}")));
    world.admit();
    let evicted = world.pod("j-w-0");
    let bind = Mutation::Bind {
        key: evicted.key(),
        preconditions: evicted.preconditions(),
        node: "n1".to_owned(),
        annotations: BTreeMap::new(),
    };
    world.mutate(bind).unwrap();
    world.delete(evicted.key());
    // While it is being stopped its name is taken.
    assert_eq!(world.pod("j-w-0").metadata.uid, evicted.metadata.uid);
    assert_eq!(world.only(Kind::Job).status["terminating"], 1);
    world.mutate(Mutation::Finalize { uid: evicted.metadata.uid.as_str().into() }).unwrap();
    assert_eq!(world.settle().last().map(String::as_str), Some("update-status Job a/j"));
    let again = world.pod("j-w-0");
    assert_ne!(again.metadata.uid, evicted.metadata.uid);
    assert!(again.spec.get("nodeName").is_none());
    world.phase("j-w-1", "Succeeded");
    let before = world.pod("j-w-1");
    world.jobs.mark_all();
    assert_eq!(world.settle(), Vec::<String>::new());
    assert_eq!(world.pod("j-w-1"), before);
}

#[test]
fn a_job_that_is_scaled_changes_its_group_and_pods() {
    let spec = |replicas: u32| {
        let text = simple(&format!("{{tasks: [{{name: w, replicas: {replicas}, {TEMPLATE}}}]}}"));
        parse(&text, "f.yaml").objects.remove(0)
    };
    let mut world = World::new(&simple(&format!("{{tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]}}")));
    world.admit();
    world.mutate(Mutation::Update(Box::new(spec(3)))).unwrap();
    world.settle();
    assert_eq!(world.names(Kind::Pod), ["j-w-0", "j-w-1", "j-w-2"]);
    let group = world.only(Kind::PodGroup);
    assert_eq!((&group.spec["minMember"], &group.spec["minResources"]), (&json!(3), &json!({ "cpu": "3" })));
    // Status and identity of the group stay.
    assert_eq!(group.status, json!({ "phase": "Inqueue" }));
    world.mutate(Mutation::Update(Box::new(spec(1)))).unwrap();
    world.settle();
    assert_eq!(world.names(Kind::Pod), ["j-w-0"]);
    world.mutate(Mutation::Update(Box::new(spec(0)))).unwrap();
    world.settle();
    assert_eq!(world.names(Kind::Pod), Vec::<String>::new());
    assert_eq!(world.only(Kind::PodGroup).spec["minMember"], 0);
}

#[test]
fn deleting_a_job_takes_everything_with_it() {
    let mut world = World::new(&simple(&format!("{{tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]}}")));
    world.admit();
    world.delete(ObjectKey::new(Kind::Job, "a", "j"));
    assert_eq!(world.store.list(None).0, []);
}

#[test]
fn a_new_job_of_an_old_name_waits_for_the_old_pods_to_go() {
    let text = simple(&format!("{{tasks: [{{name: w, replicas: 1, {TEMPLATE}}}]}}"));
    let mut world = World::new(&text);
    world.admit();
    let old = world.pod("j-w-0");
    let bind = Mutation::Bind {
        key: old.key(),
        preconditions: old.preconditions(),
        node: "n1".to_owned(),
        annotations: BTreeMap::new(),
    };
    world.mutate(bind).unwrap();
    world.delete(ObjectKey::new(Kind::Job, "a", "j"));
    let again = parse(&text, "f.yaml").objects.remove(0);
    world.mutate(Mutation::Create(Box::new(again))).unwrap();
    world.settle();
    // The name of its pod is taken: the write is refused, and that is all.
    let group = world.only(Kind::PodGroup);
    let preconditions = Preconditions::uid(&group.metadata.uid);
    let status = json!({ "phase": "Inqueue" });
    world.mutate(Mutation::UpdateStatus { key: group.key(), preconditions, status }).unwrap();
    for change in world.store.changes_since(world.seen, usize::MAX).unwrap() {
        world.seen = change.resource_version;
        world.jobs.change(&change);
    }
    for mutation in world.jobs.writes(Time(0)).mutations {
        assert!(matches!(world.mutate(mutation), Err(ApiError::AlreadyExists(_))));
    }
    world.mutate(Mutation::Finalize { uid: old.metadata.uid.as_str().into() }).unwrap();
    world.settle();
    assert_ne!(world.pod("j-w-0").metadata.uid, old.metadata.uid);
}

#[test]
fn minimums_of_tasks_are_as_in_volcano() {
    let group = |spec: &str| World::new(&simple(spec)).only(Kind::PodGroup).spec.clone();
    // The job needs fewer than all: tasks that state no minimum have none.
    let spec = group(&format!(
        "{{minAvailable: 3, tasks: [{{name: a, replicas: 4, {TEMPLATE}}}, {{name: b, replicas: 2, {TEMPLATE}}}]}}"
    ));
    assert_eq!(
        (&spec["minMember"], &spec["minTaskMember"], &spec["minResources"]),
        (&json!(3), &json!({}), &json!({ "cpu": "3" }))
    );
    // The job's minimum is raised to the sum of its tasks': never b without its pod.
    let spec = group(&format!(
        "{{minAvailable: 4, tasks: [{{name: a, replicas: 5, minAvailable: 4, {TEMPLATE}}}, {{name: b, replicas: 3, minAvailable: 1, {TEMPLATE}}}]}}"
    ));
    assert_eq!((&spec["minMember"], &spec["minTaskMember"]), (&json!(5), &json!({ "a": 4, "b": 1 })));
    assert_eq!(spec["minResources"], json!({ "cpu": "5" }));
    // No minimum at all: every pod.
    let spec = group(&format!("{{tasks: [{{replicas: 2, {TEMPLATE}}}, {{name: b, {TEMPLATE}}}]}}"));
    assert_eq!((&spec["minMember"], &spec["minTaskMember"]), (&json!(3), &json!({ "b": 1, "default0": 2 })));
}

#[test]
fn annotations_of_the_job_reach_group_and_pods() {
    let text = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j, namespace: a, labels: {team: x}, annotations: {phalanx.dev/run-for: 5s, volcano.sh/preemptable: \"false\", other: y}}\nspec: {schedulerName: phalanx, queue: q, tasks: [{name: w, template: {metadata: {labels: {app: t}, annotations: {phalanx.dev/mixed-gpu-models: \"true\"}}, spec: {containers: [{name: c}]}}}, {name: v, template: {metadata: {annotations: {phalanx.dev/run-for: 9s}}, spec: {priorityClassName: own, containers: [{name: c}]}}}]}\n";
    let mut world = World::new(text);
    let group = world.only(Kind::PodGroup);
    assert_eq!(group.metadata.labels.get("team").map(String::as_str), Some("x"));
    assert_eq!(
        (group.annotation("other"), group.annotation("phalanx.dev/mixed-gpu-models")),
        (Some("y"), Some("true"))
    );
    assert_eq!(group.spec["queue"], "q");
    world.admit();
    let (first, second) = (world.pod("j-w-0"), world.pod("j-v-0"));
    assert_eq!(
        (first.annotation("phalanx.dev/run-for"), second.annotation("phalanx.dev/run-for")),
        (Some("5s"), Some("9s"))
    );
    assert_eq!(
        (first.annotation("volcano.sh/preemptable"), first.annotation("other")),
        (Some("false"), None)
    );
    assert_eq!(first.metadata.labels.get("app").map(String::as_str), Some("t"));
    assert_eq!(
        (&first.spec["schedulerName"], &second.spec["priorityClassName"]),
        (&json!("phalanx"), &json!("own"))
    );
}

#[test]
fn a_large_job_is_made_in_steps() {
    let text = simple(&format!("{{tasks: [{{name: w, replicas: 300, {TEMPLATE}}}]}}"));
    let mut world = World::new(&text);
    let group = world.only(Kind::PodGroup);
    let preconditions = Preconditions::uid(&group.metadata.uid);
    let status = json!({ "phase": "Inqueue" });
    world.mutate(Mutation::UpdateStatus { key: group.key(), preconditions, status }).unwrap();
    let objects = world.store.list(None).0;
    let creates = reconcile(&objects, Time(0)).mutations;
    assert_eq!(creates.len(), 128);
    world.settle();
    assert_eq!(world.objects(Kind::Pod).len(), 300);
}

#[test]
fn a_bare_pod_gets_a_group_of_its_own() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a, annotations: {scheduling.volcano.sh/queue-name: q, phalanx.dev/mixed-gpu-models: \"true\"}}\nspec: {schedulerName: phalanx, priorityClassName: c, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 16, memory: 1G}}}]}\n";
    let mut world = World::new(pod);
    let pod = world.only(Kind::Pod);
    let group = world.only(Kind::PodGroup);
    let name = format!("podgroup-{}", pod.metadata.uid);
    assert_eq!(
        (group.metadata.name.as_str(), pod.annotation("scheduling.k8s.io/group-name")),
        (name.as_str(), Some(name.as_str()))
    );
    assert_eq!(
        group.spec,
        json!({
            "minMember": 1,
            "queue": "q",
            "priorityClassName": "c",
            "minResources": { "memory": "1000000000", "nvidia.com/gpu": "16" },
        })
    );
    assert_eq!(group.annotation("phalanx.dev/mixed-gpu-models"), Some("true"));
    // A group that someone deleted is made again; one of a pod that ended is not.
    world.delete(group.key());
    assert_ne!(world.only(Kind::PodGroup).metadata.uid, group.metadata.uid);
    world.phase("p", "Succeeded");
    world.delete(world.only(Kind::PodGroup).key());
    assert_eq!(world.names(Kind::PodGroup), Vec::<String>::new());
    world.delete(pod.key());
    assert_eq!(world.store.list(None).0, []);
}

#[test]
fn pods_of_others_get_no_group() {
    for text in [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {scheduling.k8s.io/group-name: g}}\nspec: {schedulerName: phalanx, containers: [{name: c}]}\n",
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q}\n",
    ] {
        assert_eq!(World::new(text).names(Kind::PodGroup), Vec::<String>::new());
    }
    let mut foreign = Object::new(Kind::Pod, "a", "p").with_spec(json!({ "containers": [] }));
    foreign.metadata.uid = "u".to_owned();
    assert_eq!(reconcile(&[Arc::new(foreign)], Time(0)).mutations, []);
}

#[test]
fn queues_of_bare_pods_are_read_from_labels_too() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {volcano.sh/queue-name: q}}\nspec: {schedulerName: phalanx, containers: [{name: c}]}\n";
    assert_eq!(World::new(text).only(Kind::PodGroup).spec["queue"], "q");
    let none = text.replace(", labels: {volcano.sh/queue-name: q}", "");
    assert_eq!(World::new(&none).only(Kind::PodGroup).spec["queue"], "default");
}

#[test]
fn a_stored_job_that_is_wrong_is_left_alone_and_the_others_go_on() {
    let mut broken =
        Object::new(Kind::Job, "a", "broken").with_spec(json!({ "minAvailable": -1, "tasks": 5 }));
    broken.metadata.uid = "u1".to_owned();
    let mut fine =
        parse(&simple(&format!("{{tasks: [{{name: w, {TEMPLATE}}}]}}")), "f.yaml").objects.remove(0);
    fine.metadata.uid = "u2".to_owned();
    let writes = reconcile(&[Arc::new(broken), Arc::new(fine)], Time(0));
    assert!(
        writes.warnings.iter().all(|warning| warning.starts_with("Job a/broken: spec.")),
        "{:?}",
        writes.warnings
    );
    assert!(!writes.warnings.is_empty());
    let targets: Vec<String> = writes.mutations.iter().map(Mutation::target).collect();
    assert_eq!(targets, ["Job a/broken", "Job a/j", "PodGroup a/j-u2"]);
}

#[test]
fn a_job_that_is_wrong_says_so_in_its_status_and_goes_on_when_it_is_repaired() {
    let mut job = parse(&simple(&format!("{{tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]}}")), "f.yaml")
        .objects
        .remove(0);
    job.metadata.uid = "u1".to_owned();
    let fine = job.spec.clone();
    let status_of = |job: &Object, reading: Reading| {
        let mut jobs = Jobs::with(reading);
        jobs.applied(&Arc::new(job.clone()));
        let writes = jobs.writes(Time(5_000)).mutations;
        let status = writes.iter().find_map(|write| match write {
            Mutation::UpdateStatus { status, .. } => Some(status.clone()),
            _ => None,
        });
        (status, writes.len())
    };
    job.spec["minAvailable"] = json!(5);
    let (status, writes) = status_of(&job, Reading::default());
    job.status = status.unwrap();
    assert_eq!(writes, 1);
    assert_eq!(job.status["state"]["phase"], "Pending");
    assert_eq!(job.status["state"]["reason"], "InvalidJob");
    let text = job.status["state"]["message"].as_str().unwrap();
    assert!(text.starts_with("spec.minAvailable: ") && text.contains("5 > replicas 2"), "{text}");
    assert_eq!(status_of(&job, Reading::default()), (None, 0), "said once");
    // Repaired: nothing of it is left, and its PodGroup is made.
    job.spec = fine.clone();
    let (status, writes) = status_of(&job, Reading::default());
    assert_eq!(writes, 2);
    assert_eq!(status.as_ref().unwrap()["state"].get("reason"), None);
    assert_eq!(status.unwrap()["state"].get("message"), None);
    // A bad edit of one that runs: the phase stays.
    job.status = json!({ "state": { "phase": "Running", "lastTransitionTime": "2026-01-01T00:00:00Z" } });
    job.spec["minAvailable"] = json!(5);
    let state = status_of(&job, Reading::default()).0.unwrap()["state"].clone();
    assert_eq!((&state["phase"], &state["reason"]), (&json!("Running"), &json!("InvalidJob")));
    // Where pods have volumes none runs without those of its job.
    job.spec = fine;
    job.spec["volumes"] = json!([{ "mountPath": "/data", "volumeClaimName": "c" }]);
    job.status = json!({});
    assert_eq!(status_of(&job, Reading::default()).1, 2);
    let (status, writes) = status_of(&job, Reading::default().on_kubernetes());
    assert_eq!(writes, 1);
    let text = status.unwrap()["state"]["message"].clone();
    assert!(text.as_str().unwrap().starts_with("spec.volumes: not supported"), "{text}");
}

#[test]
fn amounts_that_no_one_has_are_counted_without_overflow() {
    let template = "template: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 9223372036854775807}}}]}}";
    let group = World::new(&simple(&format!("{{tasks: [{{name: w, replicas: 4, {template}}}]}}")))
        .only(Kind::PodGroup);
    assert_eq!(group.spec["minResources"], json!({ "nvidia.com/gpu": "9223372036854775807" }));
}

#[test]
fn jobs_of_one_moment_keep_the_order_in_which_they_were_applied() {
    let job = |name: &str| {
        format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  schedulerName: phalanx\n  \
             tasks:\n    - name: worker\n      replicas: 1\n      template:\n        spec:\n          containers:\n            \
             - {{name: main, image: none}}\n---\n"
        )
    };
    let names = ["zebra", "ant", "mouse", "bee"];
    let parsed = parse(&names.map(job).concat(), "f.yaml");
    assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
    let mut store = Store::new(10_000);
    let mut jobs = Jobs::new();
    for (at, object) in parsed.objects.into_iter().enumerate() {
        store.mutate(Mutation::Create(Box::new(object)), Time(7), &format!("u{at}")).unwrap();
    }
    for change in store.changes_since(0, usize::MAX).unwrap() {
        jobs.change(&change);
    }
    for (at, mutation) in jobs.writes(Time(7)).mutations.into_iter().enumerate() {
        store.mutate(mutation, Time(7), &format!("w{at}")).unwrap();
    }
    // As they are read back after a restart: by key, with nothing but their creation time.
    let (mut groups, _) = store.list(Some(Kind::PodGroup));
    groups.sort_by_key(|group| group.metadata.creation);
    let owners: Vec<String> =
        groups.iter().filter_map(|group| Some(group.metadata.owner.as_ref()?.name.clone())).collect();
    assert_eq!(owners, names);
}

fn controller(kind: &str, uid: &str) -> ControllerRef {
    let (api_version, name) = ("apps/v1".to_owned(), format!("name-of-{uid}"));
    ControllerRef { api_version, kind: kind.to_owned(), name, uid: uid.to_owned() }
}

fn replica(name: &str, replica_set: &str) -> Mutation {
    let spec = json!({
        "schedulerName": "phalanx",
        "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": 2 } } }],
    });
    let mut pod = Object::new(Kind::Pod, "a", name).with_spec(spec);
    pod.metadata.controller = Some(controller("ReplicaSet", replica_set));
    Mutation::Create(Box::new(pod))
}

fn deployment(annotations: &[(&str, &str)]) -> TopOwner {
    let pairs = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    TopOwner { object: controller("Deployment", "d1"), annotations: pairs.collect() }
}

#[test]
fn pods_of_one_owner_share_the_group_that_is_made_for_it() {
    let mut world = World { jobs: Jobs::new(), ..World::new("") };
    world.mutate(replica("p1", "rs1")).unwrap();
    assert_eq!(world.settle(), Vec::<String>::new(), "who stands above is not known yet");
    let unknown: Vec<_> = world.jobs.unknown_owners().cloned().collect();
    assert_eq!((unknown.len(), &*unknown[0].namespace), (1, "a"));
    let top = deployment(&[
        ("scheduling.volcano.sh/group-min-member", "3"),
        ("scheduling.volcano.sh/queue-name", "team"),
        ("volcano.sh/network-topology-mode", "hard"),
    ]);
    world.jobs.owner_found(&unknown[0].controller, top.clone());
    assert_eq!(world.settle(), ["create PodGroup a/podgroup-d1", "patch Pod a/p1"]);
    let group = world.only(Kind::PodGroup);
    let minimum = json!({ "minMember": 3, "queue": "team", "minResources": { "nvidia.com/gpu": "6" } });
    assert_eq!((&group.spec, &group.metadata.controller), (&minimum, &Some(top.object.clone())));
    assert_eq!(group.annotation("volcano.sh/network-topology-mode"), Some("hard"));
    // A second ReplicaSet of the same Deployment, as a rollout makes it.
    world.mutate(replica("p2", "rs2")).unwrap();
    world.settle();
    world.jobs.owner_found(&controller("ReplicaSet", "rs2"), top);
    assert_eq!(world.settle(), ["patch Pod a/p2"]);
    assert_eq!(world.jobs.unknown_owners().count(), 0);
    // The group goes with the last pod, and comes back with the next one.
    world.delete(ObjectKey::new(Kind::Pod, "a", "p1"));
    assert_eq!(world.names(Kind::PodGroup), ["podgroup-d1"]);
    world.delete(ObjectKey::new(Kind::Pod, "a", "p2"));
    assert_eq!(world.names(Kind::PodGroup), Vec::<String>::new());
    assert_eq!(world.jobs.kept().iter().map(|(_, count)| count).sum::<usize>(), 0);
    world.mutate(replica("p3", "rs2")).unwrap();
    world.settle();
    world.jobs.owner_found(&controller("ReplicaSet", "rs2"), deployment(&[]));
    world.settle();
    assert_eq!(world.only(Kind::PodGroup).spec["minMember"], 1);
    // One that somebody deletes is made again while its pods are there.
    world.delete(ObjectKey::new(Kind::PodGroup, "a", "podgroup-d1"));
    assert_eq!(world.names(Kind::PodGroup), ["podgroup-d1"]);
}

#[test]
fn what_looked_after_an_orphan_is_forgotten() {
    let mut jobs = Jobs::new();
    let Mutation::Create(mut pod) = replica("p", "r1") else { panic!("a pod is made") };
    pod.metadata.uid = "u".to_owned();
    jobs.applied(&Arc::new((*pod).clone()));
    jobs.writes(Time(0));
    let owners = |jobs: &Jobs| jobs.kept().into_iter().find(|(name, _)| *name == "owners_of_pods").unwrap().1;
    assert_eq!((owners(&jobs), jobs.unknown_owners().count()), (1, 1));
    pod.metadata.controller = None;
    jobs.applied(&Arc::new((*pod).clone()));
    jobs.deleted(&pod.key());
    assert_eq!((owners(&jobs), jobs.unknown_owners().count()), (0, 0));
}

#[test]
fn a_new_leader_removes_no_group_whose_pods_it_does_not_know_yet() {
    let mut world = World { jobs: Jobs::new(), ..World::new("") };
    let mut group = Object::new(Kind::PodGroup, "a", "podgroup-d1").with_spec(json!({ "minMember": 1 }));
    group.metadata.controller = Some(controller("Deployment", "d1"));
    world.mutate(Mutation::Create(Box::new(group))).unwrap();
    world.mutate(replica("p1", "rs1")).unwrap();
    assert_eq!(world.settle(), Vec::<String>::new());
    world.jobs.owner_found(&controller("ReplicaSet", "rs1"), deployment(&[]));
    assert_eq!(world.settle(), ["patch Pod a/p1"]);
}

#[test]
fn a_minimum_that_is_no_number_is_told_and_counts_for_one() {
    let mut world = World { jobs: Jobs::new(), ..World::new("") };
    world.mutate(replica("p1", "rs1")).unwrap();
    world.settle();
    let top = deployment(&[("scheduling.volcano.sh/group-min-member", "many")]);
    world.jobs.owner_found(&controller("ReplicaSet", "rs1"), top);
    world.settle();
    assert_eq!(world.only(Kind::PodGroup).spec["minMember"], 1);
    let told = "Deployment a/name-of-d1: metadata.annotations[scheduling.volcano.sh/group-min-member]: must be a whole \
                number from 1 on, found \"many\"; its pods are placed one by one";
    assert_eq!(world.warnings, [told]);
}

#[test]
fn defaults_that_the_api_server_fills_into_a_group_are_no_change() {
    let mut world = World::new(&simple(&format!("{{tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]}}")));
    let mut group = Object::clone(&world.only(Kind::PodGroup));
    group.spec["networkTopology"] = json!({ "mode": "hard" });
    group.spec["subGroupPolicy"] = json!([]);
    world.mutate(Mutation::Update(Box::new(group))).unwrap();
    assert_eq!(world.settle(), Vec::<String>::new());
}

/// Pods that nothing looks after, as many as numbers; in Kubernetes such pods are placed without a PodGroup.
fn lone_pods(jobs: &mut Jobs, numbers: std::ops::Range<u32>) -> Vec<Object> {
    let made: Vec<Object> = numbers
        .map(|number| {
            let mut pod = Object::new(Kind::Pod, "a", &format!("p{number}"))
                .with_spec(json!({ "schedulerName": "phalanx", "containers": [{ "name": "c" }] }));
            pod.metadata.uid = format!("u{number}");
            pod
        })
        .collect();
    made.iter().for_each(|pod| jobs.applied(&Arc::new(pod.clone())));
    made
}

fn lone_left(jobs: &Jobs) -> usize {
    jobs.kept().into_iter().find(|(name, _)| *name == "lone_pods").unwrap().1
}

#[test]
fn lone_pods_get_their_groups_later_and_a_few_at_a_time() {
    let mut jobs = Jobs::with(Reading::default().on_kubernetes());
    let pods = lone_pods(&mut jobs, 0..20);
    assert_eq!(jobs.writes(Time(0)).mutations, []);
    assert_eq!((jobs.next_due(), lone_left(&jobs)), (Some(Time(5_000)), 20));
    // However often it changes, it stands there once; what is gone, or has ended, asks for nothing.
    for version in 1..5 {
        let mut pod = pods[0].clone();
        pod.metadata.resource_version = version;
        jobs.applied(&Arc::new(pod));
        assert_eq!(jobs.writes(Time(4_900 + version)).mutations, []);
    }
    assert_eq!(lone_left(&jobs), 20);
    jobs.deleted(&pods[19].key());
    assert_eq!(lone_left(&jobs), 19);
    let mut ended = pods[18].clone();
    ended.status = json!({ "phase": "Succeeded" });
    jobs.applied(&Arc::new(ended));
    // One that is bound has more time.
    let mut bound = pods[17].clone();
    bound.spec["nodeName"] = json!("n");
    jobs.applied(&Arc::new(bound));

    let made =
        |writes: Vec<Mutation>| writes.iter().filter(|write| matches!(write, Mutation::Create(_))).count();
    assert_eq!(made(jobs.writes(Time(5_000)).mutations), 8);
    assert_eq!(jobs.next_due(), Some(Time(5_200)));
    assert_eq!(made(jobs.writes(Time(5_100)).mutations), 0);
    assert_eq!(made(jobs.writes(Time(5_200)).mutations), 8);
    assert_eq!(made(jobs.writes(Time(5_400)).mutations), 1);
    assert_eq!((jobs.next_due(), lone_left(&jobs)), (Some(Time(15_000)), 1));
    assert_eq!(made(jobs.writes(Time(15_000)).mutations), 1);
    assert_eq!((jobs.next_due(), lone_left(&jobs)), (None, 0));
}

#[test]
fn lone_pods_that_have_their_groups_hold_up_no_other() {
    let mut jobs = Jobs::with(Reading::default().on_kubernetes());
    for mut pod in lone_pods(&mut jobs, 0..50) {
        let name = format!("podgroup-{}", pod.metadata.uid);
        let mut group = Object::new(Kind::PodGroup, "a", &name);
        group.metadata.uid = format!("group-of-{}", pod.metadata.uid);
        jobs.applied(&Arc::new(group));
        pod.metadata.annotations.insert("scheduling.k8s.io/group-name".to_owned(), name);
        jobs.applied(&Arc::new(pod));
    }
    lone_pods(&mut jobs, 90..91);
    let writes: Vec<String> = jobs.writes(Time(60_000)).mutations.iter().map(Mutation::target).collect();
    assert_eq!(writes, ["PodGroup a/podgroup-u90", "Pod a/p90"]);
    assert_eq!((jobs.next_due(), lone_left(&jobs)), (None, 0));
}

#[test]
fn empty_names_of_group_and_queue_are_none() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {volcano.sh/queue-name: q}}\nspec: {schedulerName: phalanx, containers: [{name: c}]}\n";
    let mut pod = parse(pod, "f.yaml").objects.remove(0);
    pod.metadata.uid = "u".to_owned();
    for name in ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"]
    {
        pod.metadata.annotations.insert(name.to_owned(), String::new());
    }
    let writes = reconcile(&[Arc::new(pod)], Time(0)).mutations;
    let Mutation::Create(group) = &writes[0] else { panic!("{writes:?}") };
    assert_eq!((group.metadata.name.as_str(), &group.spec["queue"]), ("podgroup-u", &json!("q")));
}
