//! PersistentVolumeClaims, their volumes and StorageClasses as one fact for each claim, and the claims that pods name.
use phalanx_common::gang::PodClaim;
use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::units::Time;
use phalanx_coordinator::api::{Change, ChangeBody, Kind, Object, Owner};
use phalanx_coordinator::convert::claims::Claims;
use phalanx_coordinator::convert::{Reading, event_of_object, pod_of_object};
use phalanx_core::event::{ClaimSpec, ClaimState, Event};
use serde_json::{Value, json};

fn object(kind: Kind, name: &str, spec: Value, status: Value) -> Object {
    let namespace = if kind.is_cluster_scoped() { "" } else { "a" };
    let mut object = Object::new(kind, namespace, name).with_spec(spec);
    object.metadata.uid = format!("uid-{name}");
    object.metadata.creation = Time(5_000);
    object.status = status;
    object
}

fn claim(phase: &str, volume: Option<&str>, spec: Value) -> Object {
    let mut status = json!({ "phase": phase });
    if let Some(volume) = volume {
        status["volumeName"] = json!(volume);
    }
    object(Kind::PersistentVolumeClaim, "data", spec, status)
}

fn volume(zone: Option<&str>, claim_uid: &str) -> Object {
    let required = zone.map(|zone| {
        json!({ "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "zone", "operator": "In", "values": [zone] },
        ] }] })
    });
    let spec = required.map_or(json!({}), |required| json!({ "nodeAffinity": { "required": required } }));
    let status = json!({ "claimRef": { "namespace": "a", "name": "data", "uid": claim_uid } });
    object(Kind::PersistentVolume, "pv", spec, status)
}

fn class(mode: &str) -> Object {
    object(Kind::StorageClass, "local", json!({ "volumeBindingMode": mode }), Value::Null)
}

fn gone(of: &Object) -> Change {
    let body = ChangeBody::Deleted { key: of.key(), uid: of.metadata.uid.clone() };
    Change { resource_version: 9, kind: of.kind, body }
}

/// The one claim that is told.
fn told(events: Vec<Event>) -> ClaimSpec {
    let [Event::ClaimApplied(claim)] = events.as_slice() else { panic!("{events:?}") };
    (**claim).clone()
}

fn reached_from(claim: &ClaimSpec) -> Option<Vec<String>> {
    let ClaimState::Bound { reachable_from } = &claim.state else { panic!("{claim:?}") };
    reachable_from.as_ref().map(|terms| terms.iter().map(ToString::to_string).collect())
}

#[test]
fn a_claim_is_bound_once_it_and_its_volume_name_each_other_whichever_is_heard_of_first() {
    let mut claims = Claims::default();
    let waits = told(claims.applied(&claim("Pending", None, json!({ "storageClassName": "fast" }))));
    assert_eq!((waits.name, waits.created, waits.one_pod), (GangName::new("a", "data"), Time(5_000), false));
    assert_eq!(waits.state, ClaimState::Binding);
    // The claim is bound and its volume was not heard of yet, or is an older claim's of this name.
    let bound = claim("Bound", Some("pv"), json!({}));
    assert_eq!(told(claims.applied(&bound)).state, ClaimState::Binding);
    assert_eq!(told(claims.applied(&volume(None, "uid-of-another"))).state, ClaimState::Binding);
    assert_eq!(
        reached_from(&told(claims.applied(&volume(Some("z1"), "uid-data")))),
        Some(vec!["zone In [z1]".to_owned()])
    );
    // Nodes of a volume that are named later are told with its claim.
    assert_eq!(reached_from(&told(claims.applied(&volume(None, "uid-data")))), None);
    assert_eq!(told(claims.heard(&gone(&volume(None, "")))).state, ClaimState::Binding);
    assert_eq!(told(claims.applied(&claim("Lost", Some("pv"), json!({})))).state, ClaimState::Lost);
    assert_eq!(claims.heard(&gone(&bound)), [Event::ClaimDeleted(GangName::new("a", "data"))]);
    // A volume whose claim is not there says nothing to anybody; the claim finds it when it comes.
    assert_eq!(claims.applied(&volume(Some("z2"), "uid-data")), []);
    assert_eq!(reached_from(&told(claims.applied(&bound))), Some(vec!["zone In [z2]".to_owned()]));
    // A volume that goes over to another claim is told to both.
    let mut other = volume(None, "uid-other");
    other.status["claimRef"]["name"] = json!("other");
    assert_eq!(told(claims.applied(&other)).state, ClaimState::Binding);
}

#[test]
fn a_claim_of_a_class_that_waits_for_pods_says_so_until_it_names_a_volume() {
    let mut claims = Claims::default();
    assert_eq!(claims.applied(&class("WaitForFirstConsumer")), []);
    let awaits = ClaimState::AwaitsPod { class: "local".into() };
    let pending = |volume| claim("Pending", volume, json!({ "storageClassName": "local" }));
    assert_eq!(told(claims.applied(&pending(None))).state, awaits);
    assert_eq!(told(claims.applied(&pending(Some("pv")))).state, ClaimState::Binding);
    assert_eq!(told(claims.applied(&pending(None))).state, awaits);
    // The class is made anew with the other mode; and a class that is not there is no reason to wait for a pod.
    assert_eq!(told(claims.applied(&class("Immediate"))).state, ClaimState::Binding);
    assert_eq!(claims.applied(&class("Immediate")), []);
    assert_eq!(told(claims.applied(&class("WaitForFirstConsumer"))).state, awaits);
    assert_eq!(told(claims.heard(&gone(&class("")))).state, ClaimState::Binding);
    assert_eq!(claims.heard(&gone(&class(""))), []);
}

#[test]
fn who_may_use_a_claim_is_told_with_it() {
    let mut claims = Claims::default();
    let mut object = claim("Pending", None, json!({ "accessModes": ["ReadWriteOncePod"] }));
    object.metadata.owner = Some(Owner { kind: Kind::Pod, name: "p".to_owned(), uid: "u".to_owned() });
    let read = told(claims.applied(&object));
    assert_eq!((read.one_pod, read.owner), (true, Some(PodUid::from("u"))));
    object.metadata.deletion = Some(Time(1));
    assert_eq!(told(claims.applied(&object)).state, ClaimState::Deleting);
}

#[test]
fn a_volume_whose_nodes_cannot_be_read_makes_its_claim_unusable_and_not_reachable_from_everywhere() {
    let mut claims = Claims::default();
    let _ = claims.applied(&claim("Bound", Some("pv"), json!({})));
    for (required, problem) in [
        (
            json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "zone", "operator": "Near" }] }] }),
            "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].operator",
        ),
        (json!({ "nodeSelectorTerms": [] }), "must hold at least one term"),
        (json!("z1"), "spec.nodeAffinity.required"),
    ] {
        let mut wrong = volume(None, "uid-data");
        wrong.spec = json!({ "nodeAffinity": { "required": required } });
        let read = told(claims.applied(&wrong));
        let ClaimState::Unreadable { problem: found } = &read.state else { panic!("{read:?}") };
        assert!(found.starts_with("PersistentVolume pv: ") && found.contains(problem), "{found}");
    }
}

#[test]
fn pods_name_their_claims_on_kubernetes_and_wait_for_ever_elsewhere() {
    let pod = object(
        Kind::Pod,
        "p",
        json!({
            "schedulerName": "phalanx",
            "containers": [{ "name": "c" }],
            "volumes": [
                { "name": "one", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "scratch", "ephemeral": {} },
                { "name": "none", "emptyDir": {} },
            ],
        }),
        json!({ "phase": "Pending" }),
    );
    let read = pod_of_object(&Reading::default().on_kubernetes(), &pod).unwrap();
    let named = |name: &str, own| PodClaim { name: name.into(), own };
    assert_eq!((read.claims, read.blockers), (vec![named("data", false), named("p-scratch", true)], vec![]));

    let mut ours = pod.clone();
    ours.metadata.annotations.insert("scheduling.k8s.io/group-name".to_owned(), "g".to_owned());
    let read = pod_of_object(&Reading::default(), &ours).unwrap();
    let blockers: Vec<String> =
        read.blockers.iter().map(|blocker| format!("{}: {}", blocker.field, blocker.message)).collect();
    assert_eq!(
        blockers,
        [
            "spec.volumes[0].persistentVolumeClaim: volumes with persistentVolumeClaim are not served in standalone \
             mode: remove it",
            "spec.volumes[1].ephemeral: volumes with ephemeral are not served in standalone mode: remove it",
        ]
    );
    assert_eq!(read.claims, []);

    // Of a pod of others only claims that ours may name too.
    let mut other = pod;
    other.spec["schedulerName"] = json!("default-scheduler");
    other.spec["nodeName"] = json!("n1");
    let Some(Event::OtherPodApplied(other)) = event_of_object(&Reading::default(), &other).event else {
        panic!()
    };
    let mounts = other.mounts.unwrap();
    assert_eq!((mounts.pod, mounts.claims), (GangName::new("a", "p"), vec!["data".into()]));
}
