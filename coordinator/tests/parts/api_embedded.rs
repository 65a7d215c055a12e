//! The embedded API: durable before it is answered, everything there after a restart, clear errors.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx_common::units::Time;
use phalanx_coordinator::api::apply::{Applied, apply_object};
use phalanx_coordinator::api::embedded::{EmbeddedApi, OpenError};
use phalanx_coordinator::api::faults::{Call, Fault, FaultPlan, FaultyApi};
use phalanx_coordinator::api::{
    Api, ApiError, ChangeBody, Kind, Mutation, Object, ObjectKey, Owner, Preconditions,
};
use serde_json::json;

fn open(file: &Path) -> EmbeddedApi {
    let serial = AtomicU64::new(0);
    let new_uid = move || format!("uid-{}-{}", std::process::id(), serial.fetch_add(1, Ordering::Relaxed));
    EmbeddedApi::open_with(file, Box::new(new_uid), Box::new(|| Time(1000))).unwrap()
}

fn queue(name: &str) -> Object {
    Object::new(Kind::Queue, "", name).with_spec(json!({ "priority": 1 }))
}

async fn create(api: &impl Api, object: Object) -> Arc<Object> {
    api.mutate(Mutation::Create(Box::new(object))).await.unwrap()
}

#[tokio::test]
async fn a_restart_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.redb");
    let (cluster, objects, revision, term) = {
        let api = EmbeddedApi::open(&file).unwrap();
        let job = create(&api, Object::new(Kind::Job, "a", "j")).await;
        let mut pod = Object::new(Kind::Pod, "a", "p").with_spec(json!({ "containers": [] }));
        pod.metadata.owner =
            Some(Owner { kind: Kind::Job, name: "j".to_owned(), uid: job.metadata.uid.clone() });
        let pod = create(&api, pod).await;
        api.mutate(Mutation::Bind {
            key: pod.key(),
            preconditions: pod.preconditions(),
            node: "n1".to_owned(),
            annotations: [("phalanx.dev/lease-id".to_owned(), "1-2".to_owned())].into(),
        })
        .await
        .unwrap();
        let gone = create(&api, queue("gone")).await;
        let preconditions = Preconditions::uid(&gone.metadata.uid);
        api.mutate(Mutation::Delete { key: gone.key(), preconditions }).await.unwrap();
        assert_eq!(api.raise_term(0).await, Ok(1));
        assert_eq!(api.raise_term(0).await, Ok(2));
        assert_eq!(api.raise_term(41).await, Ok(42));
        let (objects, revision) = api.list(None).await.unwrap();
        assert_eq!(objects.len(), 2);
        (api.cluster_id(), objects, revision, 42)
    };
    let api = EmbeddedApi::open(&file).unwrap();
    assert_eq!(api.cluster_id(), cluster);
    assert_eq!(api.list(None).await.unwrap(), (objects, revision));
    assert_eq!(revision, 5);
    assert_eq!(api.raise_term(0).await, Ok(term + 1));
    // Whoever watched from before has a gap; who stands at the newest change has none.
    assert_eq!(api.changes_since(2, 10).await, Err(ApiError::Gone { asked: 2 }));
    assert_eq!(api.changes_since(revision, 10).await, Ok(Vec::new()));
    // Owners are known again, and numbers go on.
    let job = ObjectKey::new(Kind::Job, "a", "j");
    api.mutate(Mutation::Delete { key: job, preconditions: Preconditions::default() }).await.unwrap();
    let pod = api.get(&ObjectKey::new(Kind::Pod, "a", "p")).await.unwrap();
    assert!(pod.metadata.deletion.is_some());
    assert_eq!(pod.metadata.resource_version, 7);
}

#[tokio::test]
async fn watchers_wake_and_read_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let api = open(&folder.path().join("objects.redb"));
    let mut newest = api.subscribe();
    assert_eq!(*newest.borrow_and_update(), 0);
    let writer = api.clone();
    let writing = tokio::spawn(async move { create(&writer, queue("q")).await });
    newest.changed().await.unwrap();
    assert_eq!(*newest.borrow_and_update(), 1);
    let changes = api.changes_since(0, 10).await.unwrap();
    let created = writing.await.unwrap();
    assert_eq!(changes[0].body, ChangeBody::Applied(created));
    // A write that is refused is no change.
    assert!(api.mutate(Mutation::Create(Box::new(queue("q")))).await.is_err());
    assert!(!newest.has_changed().unwrap());
}

#[tokio::test]
async fn writes_done_together_see_each_other_and_outlive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("objects");
    let api = open(&file);
    let create = |name: &str| Mutation::Create(Box::new(queue(name)));
    let status = |name: &str| Mutation::UpdateStatus {
        key: queue(name).key(),
        preconditions: Preconditions::default(),
        status: json!({ "state": "Closed" }),
    };
    let delete =
        |name: &str| Mutation::Delete { key: queue(name).key(), preconditions: Preconditions::default() };
    let mut writes: Vec<Mutation> = (0..20).map(|number| create(&format!("q{number}"))).collect();
    writes.extend([status("q3"), create("q4"), delete("q5"), delete("q5"), create("q5")]);
    let answers = api.mutate_all(writes).await;
    assert!(answers[..21].iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(answers[20].as_ref().unwrap().status["state"], "Closed");
    assert_eq!(answers[21], Err(ApiError::AlreadyExists("Queue q4".to_owned())));
    assert_eq!(answers[23], Err(ApiError::NotFound("Queue q5".to_owned())));
    assert!(answers[22].is_ok() && answers[24].is_ok(), "{answers:?}");
    let changes = api.changes_since(0, 100).await.unwrap();
    let numbers: Vec<u64> = changes.iter().map(|change| change.resource_version).collect();
    assert_eq!(numbers, (1..=23).collect::<Vec<_>>());
    let before = api.list(None).await.unwrap();
    drop(api);
    assert_eq!(open(&file).list(None).await.unwrap(), before);
}

#[tokio::test]
async fn many_writers_get_one_order() {
    let folder = tempfile::tempdir().unwrap();
    let api = open(&folder.path().join("objects.redb"));
    let writers: Vec<_> = (0..16)
        .map(|at| {
            let api = api.clone();
            tokio::spawn(
                async move { create(&api, queue(&format!("q{at}"))).await.metadata.resource_version },
            )
        })
        .collect();
    let mut versions = Vec::new();
    for writer in writers {
        versions.push(writer.await.unwrap());
    }
    versions.sort_unstable();
    assert_eq!(versions, (1..=16).collect::<Vec<u64>>());
}

#[test]
fn a_file_in_use_or_damaged_is_told_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.redb");
    let first = open(&file);
    let error = EmbeddedApi::open(&file).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(
        error
            .to_string()
            .ends_with("in use by another coordinator; stop that one, or give this one its own --state-dir")
    );
    drop(first);

    let foreign = folder.path().join("foreign.redb");
    std::fs::write(&foreign, "apiVersion: v1\n").unwrap();
    let text = EmbeddedApi::open(&foreign).unwrap_err().to_string();
    assert!(
        text.contains(
            "foreign.redb: damaged: it does not begin as a redb file; put a backup of the state directory"
        ),
        "{text}"
    );

    std::fs::write(&foreign, "re").unwrap();
    let text = EmbeddedApi::open(&foreign).unwrap_err().to_string();
    assert!(text.contains("damaged: it is cut off"), "{text}");

    // A new store appears whole, so that an empty file is none.
    std::fs::write(&foreign, "").unwrap();
    let text = EmbeddedApi::open(&foreign).unwrap_err().to_string();
    assert!(text.contains("damaged: it is empty"), "{text}");

    let nowhere = folder.path().join("no/such/folder/objects.redb");
    let error = EmbeddedApi::open(&nowhere).unwrap_err();
    assert!(matches!(error, OpenError::FileSystem { .. }), "{error}");
}

#[tokio::test]
async fn a_file_with_broken_pages_never_crashes_the_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.redb");
    {
        let api = open(&file);
        for at in 0..50 {
            create(&api, queue(&format!("q{at}"))).await;
        }
    }
    let whole = std::fs::read(&file).unwrap();
    // Every part of the file in turn: cut off there, or overwritten there.
    for part in 1..12 {
        let at = whole.len() * part / 12;
        for (what, bytes) in [
            ("cut", whole[..at].to_vec()),
            ("overwritten", {
                let mut bytes = whole.clone();
                let end = (at + 4096).min(bytes.len());
                bytes[at..end].fill(0x5a);
                bytes
            }),
        ] {
            let broken = folder.path().join(format!("{what}-{part}.redb"));
            std::fs::write(&broken, bytes).unwrap();
            match EmbeddedApi::open(&broken) {
                // Pages that hold nothing of ours, or that redb repaired from its other copy.
                Ok(api) => assert_eq!(api.list(None).await.unwrap().0.len(), 50, "{what} {part}"),
                Err(error) => assert!(error.to_string().contains("damaged: "), "{what} {part}: {error}"),
            }
        }
    }
}

#[tokio::test]
async fn faults_of_the_api_look_as_in_kubernetes() {
    let folder = tempfile::tempdir().unwrap();
    let inner = open(&folder.path().join("objects.redb"));
    let api = FaultyApi::new(inner.clone(), FaultPlan::none());
    let key = |name: &str| ObjectKey::new(Kind::Queue, "", name);
    let write = async |name: &str, fault: Fault| {
        api.with_plan(|plan| plan.push(Call::Write, fault));
        let answer = api.mutate(Mutation::Create(Box::new(queue(name)))).await;
        (answer.err(), inner.get(&key(name)).await.is_ok())
    };
    assert_eq!(write("a", Fault::TimedOutButDone).await, (Some(ApiError::Unknown), true));
    assert_eq!(write("b", Fault::TimedOutNotDone).await, (Some(ApiError::Unknown), false));
    assert!(matches!(write("c", Fault::Conflict).await, (Some(ApiError::Conflict(_)), false)));
    assert!(matches!(write("d", Fault::Refused).await, (Some(ApiError::Invalid(_)), false)));
    assert!(matches!(write("e", Fault::StorageFailed).await, (Some(ApiError::Storage(_)), false)));
    api.with_plan(|plan| plan.push(Call::Watch, Fault::WatchGap));
    assert_eq!(api.changes_since(1, 10).await, Err(ApiError::Gone { asked: 1 }));
    assert!(api.changes_since(0, 10).await.is_ok());
    api.with_plan(|plan| plan.push(Call::Write, Fault::TimedOutButDone));
    assert_eq!(api.raise_term(0).await, Err(ApiError::Unknown));
    assert_eq!(api.raise_term(0).await, Ok(2));
    assert_eq!(api.cluster_id(), inner.cluster_id());
}

#[tokio::test]
async fn apply_creates_configures_and_leaves_alone() {
    let folder = tempfile::tempdir().unwrap();
    let api = open(&folder.path().join("objects.redb"));
    let (stored, what) = apply_object(&api, &queue("q")).await.unwrap();
    assert_eq!(what, Applied::Created);
    api.mutate(Mutation::PatchAnnotations {
        key: stored.key(),
        preconditions: Preconditions::default(),
        annotations: [("ours".to_owned(), Some("1".to_owned()))].into(),
    })
    .await
    .unwrap();
    assert_eq!(apply_object(&api, &queue("q")).await.unwrap().1, Applied::Unchanged);
    let changed = queue("q").with_spec(json!({ "priority": 2 }));
    let (stored, what) = apply_object(&api, &changed).await.unwrap();
    assert_eq!((what, stored.annotation("ours")), (Applied::Configured, Some("1")));
    assert_eq!(stored.spec, json!({ "priority": 2 }));
}

#[tokio::test]
async fn apply_refuses_changes_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let api = open(&folder.path().join("objects.redb"));
    let pod = |image: &str| Object::new(Kind::Pod, "a", "p").with_spec(json!({ "image": image }));
    let (stored, _) = apply_object(&api, &pod("x")).await.unwrap();
    api.mutate(Mutation::Bind {
        key: stored.key(),
        preconditions: stored.preconditions(),
        node: "n1".to_owned(),
        annotations: Default::default(),
    })
    .await
    .unwrap();
    // The node is ours, not the manifest's.
    assert_eq!(apply_object(&api, &pod("x")).await.unwrap().1, Applied::Unchanged);
    let error = apply_object(&api, &pod("y")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec: the spec of Pod a/p cannot be changed; delete the pod and apply it again"
    );
    let job = |replicas: u32, image: &str| {
        Object::new(Kind::Job, "a", "j").with_spec(json!({
            "minAvailable": replicas,
            "tasks": [{ "name": "w", "replicas": replicas, "template": { "image": image } }],
        }))
    };
    apply_object(&api, &job(2, "x")).await.unwrap();
    assert_eq!(apply_object(&api, &job(3, "x")).await.unwrap().1, Applied::Configured);
    let error = apply_object(&api, &job(3, "y")).await.unwrap_err();
    assert!(error.to_string().contains("only minAvailable, priorityClassName, tasks[].replicas"), "{error}");
}

#[tokio::test]
async fn apply_goes_on_after_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let api = FaultyApi::new(open(&folder.path().join("objects.redb")), FaultPlan::none());
    apply_object(&api, &queue("q")).await.unwrap();
    api.with_plan(|plan| {
        plan.push(Call::Write, Fault::Conflict);
        plan.push(Call::Write, Fault::Conflict);
    });
    let changed = queue("q").with_spec(json!({ "priority": 2 }));
    assert_eq!(apply_object(&api, &changed).await.unwrap().1, Applied::Configured);
    api.with_plan(|plan| (0..20).for_each(|_| plan.push(Call::Write, Fault::Conflict)));
    let again = queue("q").with_spec(json!({ "priority": 3 }));
    assert!(matches!(apply_object(&api, &again).await, Err(ApiError::Conflict(_))));
}
