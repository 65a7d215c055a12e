//! Tests of the mirror and of its log.

use std::time::Duration;

use serde_json::json;

use super::*;

fn mirror(log_length: usize) -> Mirror {
    Mirror::new(log_length, Trim::new(&["phalanx".to_owned()]))
}

fn object(kind: Kind, name: &str, uid: &str, version: u64) -> Object {
    let mut object = Object::new(kind, "space", name).with_spec(json!({ "schedulerName": "phalanx" }));
    object.metadata.uid = uid.to_owned();
    object.metadata.resource_version = version;
    object
}

fn texts(mirror: &Mirror, after: u64) -> Vec<String> {
    let text = |change: &Change| match &change.body {
        ChangeBody::Applied(object) => {
            format!(
                "{} +{} {}",
                change.resource_version, object.metadata.name, object.metadata.resource_version
            )
        }
        ChangeBody::Deleted { key, uid } => format!("{} -{} {uid}", change.resource_version, key.name),
    };
    mirror.changes_since(after, 100).unwrap().iter().map(text).collect()
}

#[test]
fn changes_of_all_kinds_have_one_order() {
    let mirror = mirror(100);
    mirror.apply(Kind::Pod, vec![object(Kind::Pod, "p", "u1", 9)], 1);
    mirror.apply(Kind::PodGroup, vec![object(Kind::PodGroup, "g", "u2", 3)], 1);
    mirror.apply(Kind::Pod, vec![object(Kind::Pod, "p", "u1", 10)], 1);
    mirror.delete(Kind::Pod, "space", "p");
    mirror.delete(Kind::Pod, "space", "p");
    assert_eq!(texts(&mirror, 0), ["1 +p 9", "2 +g 3", "3 +p 10", "4 -p u1"]);
    assert_eq!(texts(&mirror, 2), ["3 +p 10", "4 -p u1"]);
    assert_eq!(mirror.changes_since(0, 1).unwrap().len(), 1);
    assert_eq!(*mirror.subscribe().borrow(), 4);
    let (objects, revision) = mirror.list(None).unwrap();
    assert_eq!((objects.len(), revision), (1, 4));
    assert_eq!(mirror.changes_since(5, 1), Err(ApiError::Gone { asked: 5 }));
    assert_eq!(mirror.get(&objects[0].key()).unwrap(), *objects[0]);
    assert!(mirror.get(&ObjectKey::new(Kind::Pod, "space", "p")).is_err());
}

#[test]
fn a_new_object_of_an_old_name_is_told_after_the_old_one_is_gone() {
    let mirror = mirror(100);
    mirror.apply(Kind::Pod, vec![object(Kind::Pod, "p", "old", 9)], 1);
    mirror.apply(Kind::Pod, vec![object(Kind::Pod, "p", "new", 12)], 1);
    assert_eq!(texts(&mirror, 0), ["1 +p 9", "2 -p old", "3 +p 12"]);
}

#[test]
fn what_a_listing_does_not_show_is_gone_and_what_it_shows_again_is_no_news() {
    let mirror = mirror(100);
    let pod = |name: &str, version| object(Kind::Pod, name, name, version);
    mirror.apply(Kind::Pod, vec![pod("a", 1), pod("b", 2), pod("c", 3), pod("d", 4)], 1);
    mirror.apply(Kind::PodGroup, vec![object(Kind::PodGroup, "g", "u2", 3)], 1);
    assert_eq!(mirror.finish_listing(Kind::Pod, 1), 0);
    mirror.apply(Kind::Pod, vec![pod("a", 1), pod("b", 7)], 2);
    // One that cannot be read any more is still there.
    mirror.keep(Kind::Pod, "space/c", 2);
    assert_eq!(mirror.finish_listing(Kind::Pod, 2), 1);
    assert_eq!(texts(&mirror, 5), ["6 +b 7", "7 -d d"]);
}

#[test]
fn a_node_that_says_only_that_it_lives_is_no_news() {
    let mirror = mirror(100);
    for (kind, told) in [(Kind::Node, 1), (Kind::Pod, 2)] {
        let before = *mirror.subscribe().borrow();
        mirror.apply(kind, vec![object(kind, "n", "u", 1)], 1);
        mirror.apply(kind, vec![object(kind, "n", "u", 2)], 1);
        assert_eq!(*mirror.subscribe().borrow() - before, told, "{kind}");
        let (objects, _) = mirror.list(Some(kind)).unwrap();
        assert_eq!(objects[0].metadata.resource_version, 2);
    }
    let mut changed = object(Kind::Node, "n", "u", 3);
    changed.spec = json!({ "a": 2 });
    mirror.apply(Kind::Node, vec![changed], 1);
    assert_eq!(texts(&mirror, 3), ["4 +n 3"]);
    // Nor is a restart in a pod of others: nobody writes to that one.
    for version in 1..=3 {
        let mut other = object(Kind::Pod, "other", "o", version);
        other.spec = json!({ "schedulerName": "default-scheduler" });
        mirror.apply(Kind::Pod, vec![other], 1);
    }
    assert_eq!(texts(&mirror, 4), ["5 +other 1"]);
}

#[test]
fn whoever_is_behind_the_log_lists_again() {
    let mirror = mirror(3);
    for version in 1..=5 {
        mirror.apply(Kind::Pod, vec![object(Kind::Pod, "p", "u", version)], 1);
    }
    assert_eq!(mirror.changes_since(1, 10), Err(ApiError::Gone { asked: 1 }));
    assert_eq!(texts(&mirror, 2), ["3 +p 3", "4 +p 4", "5 +p 5"]);
}

#[test]
fn of_an_object_of_plans_the_log_keeps_the_newest_version_only() {
    let mirror = mirror(1_000);
    let plans = |uid: &str, version: u64| {
        let mut object = object(Kind::GangPlan, "plans-0", uid, version);
        object.spec = json!({ "plans": { "a/g": "x".repeat(10_000) }, "version": version });
        object
    };
    let held = |mirror: &Mirror| {
        let state = mirror.state();
        let mut kept: Vec<*const Packed> = state
            .log
            .iter()
            .filter(|entry| !entry.is_deleted)
            .map(|entry| Arc::as_ptr(&entry.packed))
            .collect();
        kept.dedup();
        (kept.len(), state.texts.size().1)
    };
    for version in 1..=400 {
        mirror.apply(Kind::GangPlan, vec![plans("u", version)], 1);
    }
    mirror.apply(Kind::Pod, vec![object(Kind::Pod, "p", "u1", 401)], 1);
    assert_eq!(held(&mirror), (2, r#"{"schedulerName":"phalanx"}"#.len()));
    // Whoever is behind is told of the newest, by each of its numbers; also of those that are kept as they were heard.
    for after in [0, 300, 398] {
        let changes = mirror.changes_since(after, 1).unwrap();
        let ChangeBody::Applied(object) = &changes[0].body else { panic!() };
        assert_eq!((changes[0].resource_version, object.spec["version"].as_u64()), (after + 1, Some(400)));
    }
    assert_eq!(texts(&mirror, 399), ["400 +plans-0 400", "401 +p 401"]);
    // Gone, it is empty for all before they hear of that; what comes after it is another one.
    mirror.delete(Kind::GangPlan, "space", "plans-0");
    let ChangeBody::Applied(object) = &mirror.changes_since(7, 1).unwrap()[0].body else { panic!() };
    assert_eq!((&object.spec, object.metadata.resource_version), (&json!({}), 400));
    assert_eq!(texts(&mirror, 399), ["400 +plans-0 400", "401 +p 401", "402 -plans-0 u"]);
    mirror.apply(Kind::GangPlan, vec![plans("v", 403)], 1);
    mirror.apply(Kind::GangPlan, vec![plans("w", 404)], 1);
    assert_eq!(
        texts(&mirror, 401),
        ["402 -plans-0 u", "403 +plans-0 403", "404 -plans-0 v", "405 +plans-0 404"]
    );
    assert!(mirror.state().planned.len() == 1);
}

#[test]
fn a_log_that_forgets_knows_its_plans_all_the_same() {
    let mirror = mirror(3);
    for version in 1..=10 {
        mirror.apply(Kind::GangPlan, vec![object(Kind::GangPlan, "plans-0", "u", 2 * version)], 1);
        mirror.apply(Kind::GangPlan, vec![object(Kind::GangPlan, "plans-1", "v", 2 * version + 1)], 1);
    }
    assert_eq!(texts(&mirror, 17), ["18 +plans-1 21", "19 +plans-0 20", "20 +plans-1 21"]);
    assert!(mirror.state().planned.values().all(|revisions| revisions.len() <= 3));
}

#[tokio::test]
async fn nothing_is_told_before_every_kind_that_is_needed_was_listed() {
    let mirror = mirror(3);
    for kind in Kind::ALL {
        let early = tokio::time::timeout(Duration::from_millis(1), mirror.ready(None)).await;
        assert!(early.is_err(), "before {kind}");
        mirror.not_served(kind);
        if is_required(kind) {
            let early = tokio::time::timeout(Duration::from_millis(1), mirror.ready(Some(kind))).await;
            assert!(early.is_err(), "{kind}");
            mirror.finish_listing(kind, 1);
        }
        mirror.ready(Some(kind)).await.unwrap();
    }
    mirror.ready(None).await.unwrap();
    assert_eq!(mirror.missing(), []);
    // A server that forgets a kind for a moment takes nothing away.
    mirror.not_served(Kind::Pod);
    mirror.ready(None).await.unwrap();
}
