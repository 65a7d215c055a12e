//! Tests of what is kept of objects.

use phalanx_common::units::Millis;

use super::*;

fn trim() -> Trim {
    Trim::new(&["phalanx".to_owned(), "volcano".to_owned()])
}

fn read(kind: Kind, json: Value) -> Object {
    object(kind, json, &trim()).unwrap()
}

fn metadata(namespace: &str, name: &str) -> Value {
    json!({
        "namespace": namespace,
        "name": name,
        "uid": format!("uid-{name}"),
        "resourceVersion": "42",
        "creationTimestamp": "2026-11-29T12:00:00Z",
        "generation": 3,
        "labels": { "app": "x" },
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "scheduling.k8s.io/group-name": "g",
            "scheduling.volcano.sh/queue-name": "q",
            "volcano.sh/task-spec": "worker",
            "phalanx.dev/term": "1.2",
            "example.com/notvolcano.sh": "x",
        },
    })
}

fn full_pod(scheduler: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata("space", "p"),
        "spec": {
            "schedulerName": scheduler,
            "nodeName": "n1",
            "nodeSelector": { "a": "b" },
            "priority": 7,
            "serviceAccountName": "default",
            "initContainers": [{ "name": "first", "image": "i", "restartPolicy": "Always", "resources": {} }],
            "containers": [{
                "name": "main",
                "image": "i",
                "env": [{ "name": "A", "value": "B" }],
                "resources": { "requests": { "cpu": "1" }, "limits": { "nvidia.com/gpu": "8" } },
                "ports": [{ "containerPort": 80 }, { "containerPort": 81, "hostPort": 81, "protocol": "TCP" }],
                "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
            }],
            "volumes": [
                { "name": "v", "persistentVolumeClaim": { "claimName": "c", "readOnly": true } },
                { "name": "kube-api-access", "projected": { "sources": [] } },
            ],
            "tolerations": [{ "key": "k", "operator": "Exists" }],
        },
        "status": {
            "phase": "Failed",
            "qosClass": "Burstable",
            "reason": "Evicted",
            "conditions": [
                { "type": "PodScheduled", "status": "True", "lastProbeTime": null },
                { "type": "Initialized", "status": "True" },
            ],
            "containerStatuses": [
                { "name": "main", "state": { "terminated": { "finishedAt": "2026-11-29T12:05:00Z" } } },
                { "name": "more", "state": { "terminated": { "finishedAt": "2026-11-29T12:04:00Z" } } },
            ],
        },
    })
}

/// What matters of a pod when it is to make room: of a field nothing is left out, and of others nothing is kept.
#[test]
fn of_our_pods_what_evictions_look_at_is_kept() {
    let mut full = full_pod("phalanx");
    full["metadata"]["deletionTimestamp"] = json!("2026-11-29T12:06:00Z");
    full["metadata"]["deletionGracePeriodSeconds"] = json!(45);
    full["metadata"]["annotations"]["kueue.x-k8s.io/max-exec-time-seconds"] = json!("60");
    full["metadata"]["annotations"]["kueue.x-k8s.io/other"] = json!("x");
    full["metadata"]["labels"] = json!({ "ray.io/node-type": "head" });
    full["spec"]["activeDeadlineSeconds"] = json!(3_600);
    full["spec"]["terminationGracePeriodSeconds"] = json!(90);
    full["spec"]["preemptionPolicy"] = json!("Never");
    full["status"]["startTime"] = json!("2026-11-29T12:01:00Z");
    full["status"]["conditions"][0]["lastTransitionTime"] = json!("2026-11-29T12:00:30Z");
    let pod = read(Kind::Pod, full.clone());
    assert_eq!(pod.metadata.deletion_grace, Some(Millis(45_000)));
    assert_eq!(pod.annotation("kueue.x-k8s.io/max-exec-time-seconds"), Some("60"));
    assert_eq!(pod.annotation("kueue.x-k8s.io/other"), None);
    assert_eq!(pod.metadata.labels.len(), 1);
    for field in ["activeDeadlineSeconds", "terminationGracePeriodSeconds", "preemptionPolicy"] {
        assert_eq!(pod.spec[field], full["spec"][field], "{field}");
    }
    assert_eq!(pod.status["startTime"], "2026-11-29T12:01:00Z");
    assert_eq!(pod.status["conditions"][0]["lastTransitionTime"], "2026-11-29T12:00:30Z");
    let other = read(Kind::Pod, full_pod("default-scheduler"));
    assert_eq!((other.metadata.labels.len(), other.status), (0, json!({ "phase": "Failed" })));
}

#[test]
fn of_our_pods_everything_that_decides_their_place_is_kept() {
    let pod = read(Kind::Pod, full_pod("volcano"));
    let annotations: Vec<&str> = pod.metadata.annotations.keys().map(String::as_str).collect();
    assert_eq!(
        annotations,
        [
            "phalanx.dev/term",
            "scheduling.k8s.io/group-name",
            "scheduling.volcano.sh/queue-name",
            "volcano.sh/task-spec"
        ]
    );
    assert_eq!(pod.metadata.labels["app"], "x");
    assert_eq!((pod.metadata.resource_version, pod.metadata.creation), (42, Time(1_795_953_600_000)));
    assert_eq!(
        pod.spec,
        json!({
            "schedulerName": "volcano",
            "nodeName": "n1",
            "nodeSelector": { "a": "b" },
            "priority": 7,
            "initContainers": [{ "name": "first", "restartPolicy": "Always" }],
            "containers": [{
                "name": "main",
                "resources": { "requests": { "cpu": "1" }, "limits": { "nvidia.com/gpu": "8" } },
                "ports": [{ "containerPort": 81, "hostPort": 81, "protocol": "TCP" }],
            }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }],
            "tolerations": [{ "key": "k", "operator": "Exists" }],
        })
    );
    assert_eq!(
        pod.status,
        json!({
            "phase": "Failed",
            "reason": "Evicted",
            "conditions": [{ "type": "PodScheduled", "status": "True" }],
            "endTime": "2026-11-29T12:05:00Z",
        })
    );
}

#[test]
fn of_pods_of_others_only_what_they_use_is_kept() {
    let pod = read(Kind::Pod, full_pod("default-scheduler"));
    assert!(pod.metadata.labels.is_empty() && pod.metadata.annotations.is_empty());
    assert_eq!(pod.spec.get("nodeSelector"), None);
    assert_eq!(pod.spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "8");
    assert_eq!(pod.spec["containers"][0]["ports"][0]["hostPort"], 81);
    assert_eq!(
        (&pod.spec["nodeName"], &pod.spec["schedulerName"]),
        (&json!("n1"), &json!("default-scheduler"))
    );
    assert_eq!(pod.spec["volumes"], json!([{ "persistentVolumeClaim": { "claimName": "c" } }]));
    assert_eq!(pod.status, json!({ "phase": "Failed" }));
    // A pod that names no scheduler is nobody's of ours.
    let mut nobodys = full_pod("");
    nobodys["spec"]["schedulerName"] = Value::Null;
    assert!(read(Kind::Pod, nobodys).metadata.labels.is_empty());
}

#[test]
fn a_pod_of_the_wrong_shape_goes_through_to_where_it_is_told() {
    let mut pod = full_pod("phalanx");
    pod["spec"]["containers"] = json!([7, { "name": "a", "resources": "x", "ports": 3 }]);
    pod["spec"]["initContainers"] = json!("none");
    let pod = read(Kind::Pod, pod);
    assert_eq!(pod.spec["containers"], json!([7, { "name": "a", "resources": "x" }]));
    assert_eq!(pod.spec["initContainers"], "none");
}

#[test]
fn a_nodes_facts_stand_in_its_spec() {
    let node = |conditions: Value| {
        json!({
            "metadata": metadata("", "n"),
            "spec": {
                "podCIDR": "10.0.0.0/24",
                "unschedulable": true,
                "taints": [{ "key": "a", "effect": "NoSchedule" }],
            },
            "status": {
                "allocatable": { "cpu": "8", "nvidia.com/gpu": "8" },
                "capacity": { "cpu": "9" },
                "images": [{ "names": ["x"] }],
                "conditions": conditions,
            },
        })
    };
    let mut wanted = json!({
        "allocatable": { "cpu": "8", "nvidia.com/gpu": "8" },
        "unschedulable": true,
        "taints": [{ "key": "a", "effect": "NoSchedule" }],
    });
    let read = |conditions| read(Kind::Node, node(conditions));
    assert_eq!(read(json!([])).spec, wanted);
    for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
        wanted["ready"] = json!(ready);
        let conditions =
            json!([{ "type": "DiskPressure", "status": "True" }, { "type": "Ready", "status": status }]);
        let node = read(conditions);
        assert_eq!((&node.spec, &node.status), (&wanted, &Value::Null));
        assert_eq!(node.metadata.annotations.len(), 4);
    }
}

#[test]
fn objects_without_a_spec_keep_their_fields_in_one() {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": metadata("", "high"),
        "value": 1000,
        "description": "x",
        "preemptionPolicy": "Never",
    });
    assert_eq!(read(Kind::PriorityClass, class).spec, json!({ "value": 1000, "preemptionPolicy": "Never" }));
    let budget = json!({
        "metadata": metadata("space", "b"),
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "a": "b" } } },
        "status": { "disruptionsAllowed": 1, "currentHealthy": 3, "conditions": [{}] },
    });
    let budget = read(Kind::PodDisruptionBudget, budget);
    assert_eq!(budget.spec["minAvailable"], 2);
    assert_eq!(budget.status, json!({ "disruptionsAllowed": 1, "currentHealthy": 3 }));
}

#[test]
fn of_claims_volumes_and_classes_only_what_decides_about_pods_is_kept() {
    let mut claim = json!({
        "metadata": metadata("space", "data"),
        "spec": {
            "accessModes": ["ReadWriteMany", "ReadWriteOncePod"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "volumeName": "pv-1",
        },
        "status": { "phase": "Bound", "accessModes": ["ReadWriteOncePod"], "capacity": { "storage": "1Gi" } },
    });
    claim["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true }]);
    let read_claim = read(Kind::PersistentVolumeClaim, claim.clone());
    assert_eq!(read_claim.spec, json!({ "storageClassName": "fast", "accessModes": ["ReadWriteOncePod"] }));
    assert_eq!(read_claim.status, json!({ "phase": "Bound", "volumeName": "pv-1" }));
    let kept = &read_claim.metadata;
    assert!(kept.labels.is_empty() && kept.annotations.is_empty() && kept.controller.is_none());
    assert_eq!(kept.owner.as_ref().map(|owner| (owner.kind, owner.uid.as_str())), Some((Kind::Pod, "u")));
    // What differs from claim to claim is no part of the spec.
    claim["spec"]["volumeName"] = json!("pv-2");
    assert_eq!(read(Kind::PersistentVolumeClaim, claim).spec, read_claim.spec);

    let required =
        json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }] });
    let volume = json!({
        "metadata": metadata("", "pv-1"),
        "spec": {
            "capacity": { "storage": "1Gi" },
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": "space", "name": "data", "uid": "u", "resourceVersion": "3" },
            "csi": { "driver": "d", "volumeHandle": "v" },
            "nodeAffinity": { "required": required },
        },
        "status": { "phase": "Bound" },
    });
    let volume = read(Kind::PersistentVolume, volume);
    assert_eq!(volume.spec, json!({ "nodeAffinity": { "required": required } }));
    assert_eq!(volume.status, json!({ "claimRef": { "namespace": "space", "name": "data", "uid": "u" } }));
    assert!(volume.metadata.labels.is_empty() && volume.metadata.annotations.is_empty());

    let class = json!({
        "metadata": metadata("", "fast"), "provisioner": "d", "parameters": { "type": "ssd" },
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    let class = read(Kind::StorageClass, class);
    assert_eq!(class.spec, json!({ "volumeBindingMode": "WaitForFirstConsumer" }));
}

#[test]
fn owners_are_told_by_their_kind() {
    let reference = |version: &str, kind: &str, controller: bool| json!({ "apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": controller });
    let read = |references: Value| {
        let mut pod = full_pod("phalanx");
        pod["metadata"]["ownerReferences"] = references;
        let pod = read(Kind::Pod, pod);
        (pod.metadata.owner.map(|owner| owner.kind), pod.metadata.controller.map(|by| by.kind))
    };
    let job = reference("batch.volcano.sh/v1alpha1", "Job", true);
    assert_eq!(read(json!([job])), (Some(Kind::Job), None));
    // The same name of another group is another kind.
    assert_eq!(read(json!([reference("batch/v1", "Job", true)])), (None, Some("Job".to_owned())));
    let group = reference("scheduling.volcano.sh/v1beta1", "PodGroup", false);
    let set = reference("apps/v1", "ReplicaSet", true);
    assert_eq!(read(json!([group, set])), (Some(Kind::PodGroup), Some("ReplicaSet".to_owned())));
    assert_eq!(read(json!([])), (None, None));
    assert_eq!(read(json!("none")), (None, None));
}

#[test]
fn metadata_that_cannot_be_read_names_object_field_and_value() {
    let cases = [
        ("/metadata/name", json!(null), "PodGroup space/: metadata.name: must be a text that is not empty"),
        ("/metadata/uid", json!(7), "PodGroup space/g: metadata.uid: must be a text that is not empty"),
        (
            "/metadata/namespace",
            json!(""),
            "PodGroup g: metadata.namespace: must be a text that is not empty",
        ),
        (
            "/metadata/resourceVersion",
            json!("a1"),
            "PodGroup space/g: metadata.resourceVersion: must be a number, found \"a1\"",
        ),
        (
            "/metadata/creationTimestamp",
            json!("noon"),
            "PodGroup space/g: metadata.creationTimestamp: must be a time of RFC 3339, found \"noon\"",
        ),
        ("/metadata/labels", json!([1]), "PodGroup space/g: metadata.labels: must be an object, found [1]"),
        ("/metadata/labels/app", json!(1), "PodGroup space/g: metadata.labels[app]: must be a text, found 1"),
        ("/metadata", json!("x"), "PodGroup : metadata: must be an object"),
    ];
    for (at, value, wanted) in cases {
        let mut group = json!({ "metadata": metadata("space", "g"), "spec": {} });
        *group.pointer_mut(at).unwrap() = value;
        let malformed = object(Kind::PodGroup, group, &trim()).unwrap_err();
        assert_eq!(malformed.to_string(), format!("{wanted}; this version of the object is left out"));
    }
    // What stands in the spec is for its reader to judge.
    let group = json!({ "metadata": metadata("space", "g"), "spec": { "minMember": "four" } });
    assert_eq!(read(Kind::PodGroup, group).spec, json!({ "minMember": "four" }));
    assert!(object(Kind::Node, json!(["x"]), &trim()).is_err());
}

#[test]
fn what_is_written_is_read_back() {
    let mut pod = Object::new(Kind::Pod, "space", "p").with_spec(json!({ "schedulerName": "phalanx" }));
    pod.metadata.labels.insert("a".to_owned(), "b".to_owned());
    pod.metadata.annotations.insert("phalanx.dev/term".to_owned(), "1.2".to_owned());
    pod.metadata.owner = Some(Owner { kind: Kind::Job, name: "j".to_owned(), uid: "u".to_owned() });
    let mut json = to_json(&pod);
    assert_eq!((&json["apiVersion"], &json["kind"]), (&json!("v1"), &json!("Pod")));
    assert_eq!(json["metadata"]["ownerReferences"][0]["apiVersion"], "batch.volcano.sh/v1alpha1");
    assert_eq!(json.get("status"), None);
    json["metadata"]["uid"] = json!("uid");
    json["metadata"]["resourceVersion"] = json!("9");
    let back = read(Kind::Pod, json);
    assert_eq!((&back.metadata.owner, &back.metadata.labels), (&pod.metadata.owner, &pod.metadata.labels));
    assert_eq!((&back.metadata.annotations, &back.spec), (&pod.metadata.annotations, &pod.spec));

    let mut group = Object::new(Kind::PodGroup, "space", "");
    group.metadata.generate_name = "g-".to_owned();
    group.metadata.controller = Some(ControllerRef {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: "r".to_owned(),
        uid: "u".to_owned(),
    });
    let json = to_json(&group);
    assert_eq!(json["metadata"]["generateName"], "g-");
    assert_eq!(json["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
    let class = Object::new(Kind::PriorityClass, "", "high").with_spec(json!({ "value": 5 }));
    assert_eq!(to_json(&class)["value"], 5);
}
