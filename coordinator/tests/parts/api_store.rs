//! The store behaves as Kubernetes does: preconditions, deletion stamps, owners, change log.
use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::PodUid;
use phalanx_common::units::Time;
use phalanx_coordinator::api::faults::{Call, Fault, FaultPlan, FaultRates, mutate_store};
use phalanx_coordinator::api::store::Store;
use phalanx_coordinator::api::{
    ApiError, Change, ChangeBody, Kind, Mutation, Object, ObjectKey, Owner, Preconditions,
};
use serde_json::{Value, json};

/// A store with UIDs that count up.
struct World {
    store: Store,
    serial: u64,
}

impl World {
    fn new() -> Self {
        Self { store: Store::new(1000), serial: 0 }
    }

    fn mutate(&mut self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        self.serial += 1;
        self.store.mutate(mutation, Time(self.serial * 10), &format!("uid-{}", self.serial))
    }

    fn create(&mut self, kind: Kind, name: &str, owner: Option<&Object>) -> Arc<Object> {
        let mut object = Object::new(kind, "a", name).with_spec(json!({ "x": 1 }));
        object.metadata.owner = owner.map(|owner| Owner {
            kind: owner.kind,
            name: owner.metadata.name.clone(),
            uid: owner.metadata.uid.clone(),
        });
        self.mutate(Mutation::Create(Box::new(object))).unwrap()
    }

    fn bind(&mut self, pod: &Object) -> Result<Arc<Object>, ApiError> {
        self.mutate(Mutation::Bind {
            key: pod.key(),
            preconditions: pod.preconditions(),
            node: "n1".to_owned(),
            annotations: BTreeMap::from([("lease".to_owned(), "1-1".to_owned())]),
        })
    }

    fn delete(&mut self, object: &Object) -> Result<Arc<Object>, ApiError> {
        let preconditions = Preconditions::uid(&object.metadata.uid);
        self.mutate(Mutation::Delete { key: object.key(), preconditions })
    }

    fn phase(&mut self, pod: &Object, phase: &str) -> Arc<Object> {
        self.mutate(Mutation::UpdateStatus {
            key: pod.key(),
            preconditions: Preconditions::uid(&pod.metadata.uid),
            status: json!({ "phase": phase }),
        })
        .unwrap()
    }

    fn exists(&self, object: &Object) -> bool {
        self.store.get(&object.key()).is_ok()
    }
}

fn names(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| match &change.body {
            ChangeBody::Applied(object) => format!("{} applied {}", change.resource_version, object.key()),
            ChangeBody::Deleted { key, .. } => format!("{} deleted {key}", change.resource_version),
        })
        .collect()
}

#[test]
fn create_gives_uid_version_and_fresh_status() {
    let mut world = World::new();
    let mut wanted = Object::new(Kind::Pod, "", "p");
    wanted.status = json!({ "phase": "Running" });
    wanted.metadata.uid = "chosen".to_owned();
    wanted.metadata.resource_version = 99;
    let pod = world.mutate(Mutation::Create(Box::new(wanted.clone()))).unwrap();
    assert_eq!(pod.metadata.uid, "uid-1");
    assert_eq!(pod.metadata.resource_version, 1);
    assert_eq!(pod.metadata.creation, Time(10));
    assert_eq!(pod.metadata.namespace, "default");
    assert_eq!(pod.status, json!({ "phase": "Pending" }));
    let error = world.mutate(Mutation::Create(Box::new(wanted))).unwrap_err();
    assert_eq!(error.to_string(), "Pod default/p exists already");
    assert_eq!(world.create(Kind::Queue, "q", None).metadata.namespace, "");
}

#[test]
fn a_generated_name_is_made_from_the_uid() {
    let mut world = World::new();
    let mut wanted = Object::new(Kind::Pod, "a", "");
    wanted.metadata.generate_name = "train-".to_owned();
    let pod =
        world.store.mutate(Mutation::Create(Box::new(wanted.clone())), Time(1), "ABC-12345678").unwrap();
    assert_eq!(pod.metadata.name, "train-45678");
    wanted.metadata.generate_name.clear();
    let error = world.mutate(Mutation::Create(Box::new(wanted))).unwrap_err();
    assert_eq!(error, ApiError::Invalid("metadata.name: missing".to_owned()));
}

#[test]
fn preconditions_are_uid_and_version() {
    let mut world = World::new();
    let queue = world.create(Kind::Queue, "q", None);
    let mut newer = Object::clone(&queue);
    newer.spec = json!({ "x": 2 });
    let newer = world.mutate(Mutation::Update(Box::new(newer))).unwrap();
    assert_eq!(newer.metadata.resource_version, 2);
    let mut stale = Object::clone(&queue);
    stale.spec = json!({ "x": 3 });
    let error = world.mutate(Mutation::Update(Box::new(stale.clone()))).unwrap_err();
    assert_eq!(error.to_string(), "conflict: Queue q is at resourceVersion 2, the write is for 1");
    // 0 asks for no version.
    stale.metadata.resource_version = 0;
    assert_eq!(world.mutate(Mutation::Update(Box::new(stale))).unwrap().spec, json!({ "x": 3 }));
    let error = world
        .mutate(Mutation::UpdateStatus {
            key: queue.key(),
            preconditions: Preconditions::uid("other"),
            status: Value::Null,
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "conflict: Queue q has UID uid-1, the write is for UID other");
    let missing = ObjectKey::new(Kind::Queue, "", "no");
    assert_eq!(world.store.get(&missing).unwrap_err().to_string(), "Queue no does not exist");
}

#[test]
fn an_update_keeps_what_is_not_its_to_change() {
    let mut world = World::new();
    let group = world.create(Kind::PodGroup, "g", None);
    let mut wanted = Object::new(Kind::PodGroup, "a", "g").with_spec(json!({ "minMember": 2 }));
    wanted.metadata.labels.insert("l".to_owned(), "1".to_owned());
    wanted.status = json!({ "phase": "Running" });
    let updated = world.mutate(Mutation::Update(Box::new(wanted))).unwrap();
    assert_eq!(updated.metadata.uid, group.metadata.uid);
    assert_eq!(updated.metadata.creation, group.metadata.creation);
    assert_eq!(updated.status, group.status);
    assert_eq!(updated.spec, json!({ "minMember": 2 }));
    let pod = world.create(Kind::Pod, "p", None);
    let mut changed = Object::clone(&pod);
    changed.spec = json!({ "x": 2 });
    let error = world.mutate(Mutation::Update(Box::new(changed))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec: the spec of Pod a/p cannot be changed; delete the pod and create it again"
    );
}

#[test]
fn a_write_without_effect_is_no_change() {
    let mut world = World::new();
    let queue = world.create(Kind::Queue, "q", None);
    let same = world.mutate(Mutation::Update(Box::new(Object::clone(&queue)))).unwrap();
    assert_eq!(same, queue);
    assert_eq!(world.store.revision(), 1);
}

#[test]
fn annotations_are_patched_one_by_one() {
    let mut world = World::new();
    let pod = world.create(Kind::Pod, "p", None);
    let patch = |pairs: [(&str, Option<&str>); 2]| Mutation::PatchAnnotations {
        key: pod.key(),
        preconditions: Preconditions::default(),
        annotations: pairs.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).into(),
    };
    world.mutate(patch([("a", Some("1")), ("b", Some("2"))])).unwrap();
    let pod = world.mutate(patch([("a", None), ("c", Some("3"))])).unwrap();
    assert_eq!(pod.annotation("a"), None);
    assert_eq!((pod.annotation("b"), pod.annotation("c")), (Some("2"), Some("3")));
}

#[test]
fn a_pod_is_bound_once_and_only_as_it_was_seen() {
    let mut world = World::new();
    let pod = world.create(Kind::Pod, "p", None);
    let fenced = world
        .mutate(Mutation::PatchAnnotations {
            key: pod.key(),
            preconditions: Preconditions::uid(&pod.metadata.uid),
            annotations: BTreeMap::from([("term".to_owned(), Some("2".to_owned()))]),
        })
        .unwrap();
    // The Binding of an older leader, late on its way.
    assert!(matches!(world.bind(&pod), Err(ApiError::Conflict(_))));
    let bound = world.bind(&fenced).unwrap();
    assert_eq!(bound.spec, json!({ "x": 1, "nodeName": "n1" }));
    assert_eq!(bound.annotation("lease"), Some("1-1"));
    let error = world.bind(&bound).unwrap_err();
    assert_eq!(error.to_string(), "conflict: Pod a/p is bound to node n1 already");
    let deleting = world.delete(&bound).unwrap();
    assert!(deleting.metadata.deletion.is_some());
    let group = world.create(Kind::PodGroup, "g", None);
    assert!(matches!(world.bind(&group), Err(ApiError::Invalid(_))));
}

#[test]
fn a_bound_pod_stays_until_it_is_finalized() {
    let mut world = World::new();
    let pod = world.create(Kind::Pod, "p", None);
    let error = world.mutate(Mutation::Finalize { uid: PodUid::from("uid-1") }).unwrap_err();
    assert_eq!(error.to_string(), "Pod a/p is not being deleted");
    let bound = world.bind(&pod).unwrap();
    let deleting = world.delete(&bound).unwrap();
    let stamp = deleting.metadata.deletion;
    assert!(stamp.is_some() && world.exists(&pod));
    // Deleting again changes nothing.
    let revision = world.store.revision();
    assert_eq!(world.delete(&bound).unwrap().metadata.deletion, stamp);
    assert_eq!(world.store.revision(), revision);
    world.mutate(Mutation::Finalize { uid: PodUid::from("uid-1") }).unwrap();
    assert!(!world.exists(&pod));
    let error = world.mutate(Mutation::Finalize { uid: PodUid::from("uid-1") }).unwrap_err();
    assert_eq!(error.to_string(), "an object of UID uid-1 does not exist");
}

#[test]
fn other_pods_vanish_at_once() {
    let mut world = World::new();
    let waiting = world.create(Kind::Pod, "waiting", None);
    world.delete(&waiting).unwrap();
    assert!(!world.exists(&waiting));
    let ended = world.create(Kind::Pod, "ended", None);
    let ended = world.bind(&ended).unwrap();
    let ended = world.phase(&ended, "Succeeded");
    world.delete(&ended).unwrap();
    assert!(!world.exists(&ended));
}

#[test]
fn what_is_owned_goes_with_its_owner() {
    let mut world = World::new();
    let job = world.create(Kind::Job, "j", None);
    let group = world.create(Kind::PodGroup, "j-1", Some(&job));
    let plan = world.create(Kind::GangPlan, "j-1", Some(&group));
    let running = world.create(Kind::Pod, "j-w-0", Some(&job));
    let running = world.bind(&running).unwrap();
    let waiting = world.create(Kind::Pod, "j-w-1", Some(&job));
    let stranger = world.create(Kind::Pod, "other", None);
    let before = world.store.revision();
    world.delete(&job).unwrap();
    for gone in [&job, &group, &plan, &waiting] {
        assert!(!world.exists(gone), "{}", gone.key());
    }
    assert!(world.exists(&stranger));
    assert!(world.store.get(&running.key()).unwrap().metadata.deletion.is_some());
    let changes = world.store.changes_since(before, 100).unwrap();
    assert_eq!(
        names(&changes),
        [
            "8 deleted Job a/j",
            "9 applied Pod a/j-w-0",
            "10 deleted PodGroup a/j-1",
            "11 deleted Pod a/j-w-1",
            "12 deleted GangPlan a/j-1",
        ]
    );
    // A new job of the old name owns nothing of the old one.
    let again = world.create(Kind::Job, "j", None);
    world.delete(&again).unwrap();
    assert!(world.exists(&running));
}

#[test]
fn what_a_pod_owns_stays_until_the_pod_is_gone() {
    let mut world = World::new();
    let pod = world.create(Kind::Pod, "p", None);
    let group = world.create(Kind::PodGroup, "podgroup-uid-1", Some(&pod));
    let bound = world.bind(&pod).unwrap();
    world.delete(&bound).unwrap();
    assert!(world.exists(&group));
    world.mutate(Mutation::Finalize { uid: PodUid::from(pod.metadata.uid.as_str()) }).unwrap();
    assert!(!world.exists(&group));
    let orphan = Object { metadata: group.metadata.clone(), ..Object::new(Kind::PodGroup, "a", "x") };
    let error = world.mutate(Mutation::Create(Box::new(orphan))).unwrap_err();
    assert!(matches!(error, ApiError::Conflict(_)), "{error}");
}

#[test]
fn the_change_log_is_bounded_and_says_when_it_has_a_gap() {
    let mut store = Store::new(3);
    for serial in 1..=5 {
        let object = Object::new(Kind::Queue, "", &format!("q{serial}"));
        store.mutate(Mutation::Create(Box::new(object)), Time(0), &format!("u{serial}")).unwrap();
    }
    assert_eq!(store.changes_since(1, 10), Err(ApiError::Gone { asked: 1 }));
    assert_eq!(store.changes_since(6, 10), Err(ApiError::Gone { asked: 6 }));
    assert_eq!(names(&store.changes_since(2, 2).unwrap()), ["3 applied Queue q3", "4 applied Queue q4"]);
    assert_eq!(store.changes_since(5, 10).unwrap(), []);
    store.forget_log();
    assert_eq!(store.changes_since(4, 10), Err(ApiError::Gone { asked: 4 }));
    assert_eq!(store.changes_since(5, 10).unwrap(), []);
}

#[test]
fn a_prepared_write_changes_nothing_until_it_is_committed() {
    let mut store = Store::default();
    let create = |name: &str| Mutation::Create(Box::new(Object::new(Kind::Queue, "", name)));
    let first = store.prepare(create("a"), Time(0), "u1").unwrap();
    let second = store.prepare(create("b"), Time(0), "u2").unwrap();
    assert_eq!(store.list(None), (Vec::new(), 0));
    store.commit(&first.changes).unwrap();
    let error = store.commit(&second.changes).unwrap_err();
    assert_eq!(error.to_string(), "a write was prepared for change 1 and the store is at 1");
    assert_eq!(store.list(None).0.len(), 1);
}

#[test]
fn lists_are_by_kind_and_by_name() {
    let mut world = World::new();
    for name in ["b", "a"] {
        world.create(Kind::Queue, name, None);
        world.create(Kind::Pod, name, None);
    }
    let (pods, revision) = world.store.list(Some(Kind::Pod));
    let pods: Vec<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
    assert_eq!((pods, revision), (vec!["a", "b"], 4));
    assert_eq!(world.store.list(None).0.len(), 4);
}

#[test]
fn faults_follow_a_script_and_then_a_seed() {
    let mut plan = FaultPlan::none();
    plan.push(Call::Write, Fault::TimedOutButDone);
    plan.push(Call::Watch, Fault::WatchGap);
    plan.push(Call::Write, Fault::TimedOutNotDone);
    let mut store = Store::default();
    let create = |name: &str| Mutation::Create(Box::new(Object::new(Kind::Queue, "", name)));
    for (name, there, outcome) in [
        ("done", true, Some(ApiError::Unknown)),
        ("not-done", false, Some(ApiError::Unknown)),
        ("fine", true, None),
    ] {
        let fault = plan.decide(Call::Write);
        let answer = mutate_store(&mut store, fault, create(name), Time(0), name);
        assert_eq!(answer.err(), outcome, "{name}");
        assert_eq!(store.get(&ObjectKey::new(Kind::Queue, "", name)).is_ok(), there, "{name}");
    }
    assert_eq!(plan.decide(Call::Watch), Some(Fault::WatchGap));
    assert_eq!(plan.decide(Call::Watch), None);

    let rates =
        FaultRates { conflict: 200, timed_out_but_done: 200, watch_gap: 500, ..FaultRates::default() };
    let draw = |seed: u64| {
        let mut plan = FaultPlan::seeded(seed, rates);
        (0..1000).map(|_| plan.decide(Call::Write)).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    for fault in [Fault::Conflict, Fault::TimedOutButDone] {
        let drawn = draw(7).iter().filter(|drawn| **drawn == Some(fault)).count();
        assert!((120..280).contains(&drawn), "{fault:?} {drawn}");
    }
    assert!(!draw(7).contains(&Some(Fault::WatchGap)));
    let mut plan = FaultPlan::seeded(7, rates);
    plan.stop();
    assert!((0..100).all(|_| plan.decide(Call::Write).is_none()));
}

#[test]
fn a_timed_out_write_that_is_refused_says_why() {
    let mut store = Store::default();
    let missing = Mutation::Finalize { uid: PodUid::from("x") };
    let answer = mutate_store(&mut store, Some(Fault::TimedOutButDone), missing, Time(0), "u");
    assert!(matches!(answer, Err(ApiError::NotFound(_))));
}
