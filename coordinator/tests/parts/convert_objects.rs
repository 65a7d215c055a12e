//! Objects to events and back.
use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::constraints::{Taint, TaintEffect};
use phalanx_common::gang::{ContainerKind, PodBinding, PodPhase};
use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid, QueueName, Term};
use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::Exactness;
use phalanx_coordinator::api::{ApiError, Change, ChangeBody, ControllerRef, Kind, Mutation, Object};
use phalanx_coordinator::convert::plan::{PlanChange, decide, plan_key};
use phalanx_coordinator::convert::status::{
    format_time, parse_time, pod_group_status, pod_start, pod_status, queue_status,
};
use phalanx_coordinator::convert::{
    PlansTold, Reading, bind_annotations, binding_of_pod, event_of_change, event_of_object,
    fence_annotations, outcome_of, plans_of_object, pod_of_object,
};
use phalanx_coordinator::manifest::parse;
use phalanx_core::action::{GangPhase, GangStatus, QueueStatus};
use phalanx_core::event::{Event, Outcome};
use phalanx_core::reason::Reason;
use serde_json::{Value, json};

/// Objects of a manifest, as the store would hold them.
fn stored(text: &str) -> Vec<Object> {
    let parsed = parse(text, "f.yaml");
    assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
    let mut objects = parsed.objects;
    for (at, object) in objects.iter_mut().enumerate() {
        object.metadata.uid = format!("uid-{at}");
        object.metadata.resource_version = 7;
        object.metadata.creation = Time(5000);
    }
    objects
}

fn event(object: &Object) -> Event {
    let converted = event_of_object(&Reading::default(), object);
    assert_eq!(converted.warnings, Vec::<String>::new());
    converted.event.unwrap()
}

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: p
  namespace: a
  annotations: {scheduling.k8s.io/group-name: g, volcano.sh/task-spec: worker, phalanx.dev/run-for: 1m30s}
spec:
  schedulerName: volcano
  nodeSelector: {zone: a}
  overhead: {cpu: 250m}
  initContainers:
  - {name: setup, resources: {requests: {cpu: 4}}}
  - {name: proxy, restartPolicy: Always, resources: {requests: {cpu: 500m}}}
  containers:
  - {name: main, resources: {limits: {nvidia.com/gpu: 2, cpu: 2}, requests: {cpu: 1}}}
  - {name: side}
"#;

#[test]
fn queues_classes_nodes_and_groups_become_events() {
    let objects = stored(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q}\nspec: {priority: 3, capability: {cpu: 0, memory: 1Gi, nvidia.com/gpu: 0}}\n---\n\
         apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: c}\nvalue: -7\nglobalDefault: true\n---\n\
         apiVersion: v1\nkind: Node\nmetadata: {name: n, labels: {zone: a}}\nstatus: {allocatable: {cpu: 1500m}}\n---\n\
         apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g, namespace: a, annotations: {phalanx.dev/mixed-gpu-models: \"true\"}}\nspec: {minMember: 4, minTaskMember: {ps: 1}, queue: q, priorityClassName: c, minResources: {nvidia.com/gpu: 8}}\n",
    );
    let Event::QueueApplied(queue) = event(&objects[0]) else { panic!() };
    assert_eq!((queue.name, queue.priority, queue.open), (QueueName::from("q"), 3, true));
    // A zero of cpu means no limit and is left out; a zero of a device forbids it.
    assert_eq!(queue.capability.get(CPU), None);
    assert_eq!(queue.capability.get("memory"), Some(1 << 30));
    assert_eq!(queue.capability.get(NVIDIA_GPU), Some(0));
    let Event::PriorityClassApplied(class) = event(&objects[1]) else { panic!() };
    assert_eq!((&*class.name, class.value, class.global_default), ("c", -7, true));
    let Event::NodeApplied(node) = event(&objects[2]) else { panic!() };
    assert_eq!(node.allocatable.get(CPU), Some(1500));
    assert_eq!(node.labels.get("zone").map(|text| &**text), Some("a"));
    let Event::GangApplied(gang) = event(&objects[3]) else { panic!() };
    assert_eq!((gang.name, gang.min_member, gang.mixed_gpu_models), (GangName::new("a", "g"), 4, true));
    assert_eq!((gang.created, &*gang.uid), (Time(5000), "uid-3"));
    assert_eq!(gang.min_task_member.get("ps"), Some(&1));
    assert_eq!(gang.min_resources.map(|minimum| minimum.gpus()), Some(8));
    assert_eq!(gang.priority_class.as_deref(), Some("c"));
}

#[test]
fn a_queue_without_spec_is_open_without_limit_and_a_closed_one_is_closed() {
    let mut queue = Object::new(Kind::Queue, "", "q");
    let Event::QueueApplied(read) = event(&queue) else { panic!() };
    assert!(read.open && read.capability.is_empty());
    for (state, open) in [("Open", true), ("Closing", false), ("Closed", false), ("Unknown", true)] {
        queue.status = json!({ "state": state });
        let Event::QueueApplied(read) = event(&queue) else { panic!() };
        assert_eq!(read.open, open, "{state}");
    }
}

#[test]
fn a_pod_becomes_what_the_core_needs() {
    let mut pod = stored(POD).remove(0);
    let Event::PodApplied(read) = event(&pod) else { panic!() };
    assert_eq!(
        (read.name, read.gang, &*read.task),
        (GangName::new("a", "p"), GangName::new("a", "g"), "worker")
    );
    assert_eq!((read.resource_version, read.uid), (7, PodUid::from("uid-0")));
    assert_eq!(read.run_for, Some(Millis(90_000)));
    assert_eq!(read.node_selector.get("zone").map(|text| &**text), Some("a"));
    assert_eq!((read.phase, read.binding, read.deleting), (PodPhase::Pending, None, false));
    assert_eq!(read.blockers, []);
    let kinds: Vec<_> = read.request.containers.iter().map(|each| (&*each.name, each.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("setup", ContainerKind::Init),
            ("proxy", ContainerKind::Sidecar),
            ("main", ContainerKind::App),
            ("side", ContainerKind::App)
        ]
    );
    // Init peak 4 against 1 + 0.5; the request of cpu is its own, the device's comes from the limit.
    let effective = read.request.effective();
    assert_eq!((effective.amount(CPU), effective.gpus()), (4250, 2));

    pod.metadata.deletion = Some(Time(1));
    pod.status = json!({ "phase": "Running" });
    let Event::PodApplied(read) = event(&pod) else { panic!() };
    assert!(read.deleting);
    assert_eq!(read.phase, PodPhase::Running);
}

#[test]
fn pods_that_are_not_ours_or_have_no_gang_give_no_event() {
    let mut pod = stored(POD).remove(0);
    pod.metadata.annotations.remove("scheduling.k8s.io/group-name");
    assert_eq!(event_of_object(&Reading::default(), &pod).event, None);
    assert_eq!(pod_of_object(&Reading::default(), &pod), None);
    let mut pod = stored(POD).remove(0);
    pod.spec["schedulerName"] = json!("default-scheduler");
    assert_eq!(event_of_object(&Reading::default(), &pod).event, None);
    pod.spec.as_object_mut().unwrap().remove("schedulerName");
    assert_eq!(event_of_object(&Reading::default(), &pod).event, None);
    for kind in [Kind::Job, Kind::GangPlan] {
        assert_eq!(event_of_object(&Reading::default(), &Object::new(kind, "a", "x")).event, None);
    }
}

#[test]
fn constraints_that_are_not_served_keep_the_pod_waiting_with_their_name() {
    let mut pod = stored(POD).remove(0);
    for (field, value, path) in [
        (
            "affinity",
            json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [1] } }),
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        ),
        ("affinity", json!("malformed"), "spec.affinity"),
        ("affinity", json!({ "nodeAffinity": 5 }), "spec.affinity.nodeAffinity"),
        ("topologySpreadConstraints", json!([{ "maxSkew": 1 }]), "spec.topologySpreadConstraints[0]"),
        ("topologySpreadConstraints", json!(3), "spec.topologySpreadConstraints"),
        ("volumes", json!([{ "name": "v", "ephemeral": {} }]), "spec.volumes[0].ephemeral"),
        ("schedulingGates", json!(1), "spec.schedulingGates"),
        ("tolerations", json!([{ "key": 5 }]), "spec.tolerations[0].key"),
        ("resourceClaims", json!([{ "name": "g" }]), "spec.resourceClaims"),
        ("nodeSelector", json!({ "zone": 5 }), "spec.nodeSelector.zone"),
        (
            "containers",
            json!([{ "name": "c", "resources": { "limits": { "cpu": "NaN" } } }]),
            "spec.containers[0].resources.limits.cpu",
        ),
        (
            "containers",
            json!([{ "name": "c", "ports": [{ "hostPort": "http" }] }]),
            "spec.containers[0].ports[0].hostPort",
        ),
        ("containers", Value::Null, "spec.containers"),
    ] {
        let before = pod.spec.clone();
        pod.spec[field] = value;
        let Event::PodApplied(read) = event(&pod) else { panic!() };
        let fields: Vec<&str> = read.blockers.iter().map(|blocker| &*blocker.field).collect();
        assert_eq!(fields, [path]);
        assert!(!read.blockers[0].message.is_empty());
        pod.spec = before;
    }
    for soft in [
        json!({ "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1 }] } }),
        json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [] } }),
        json!({}),
    ] {
        pod.spec["affinity"] = soft;
        let Event::PodApplied(read) = event(&pod) else { panic!() };
        assert_eq!(read.blockers, []);
    }
    pod.metadata.annotations.insert("phalanx.dev/run-for".to_owned(), "soon".to_owned());
    let Event::PodApplied(read) = event(&pod) else { panic!() };
    assert_eq!(&*read.blockers[0].field, "metadata.annotations[phalanx.dev/run-for]");
    pod.spec = json!({ "schedulerName": "phalanx" });
    assert!(matches!(event(&pod), Event::PodApplied(_)));
}

/// A pod as an API server gives it: with what admission added, and with fields that nobody here knows.
#[test]
fn constraints_of_a_pod_are_read_and_unknown_fields_do_no_harm() {
    let mut pod = stored(POD).remove(0);
    pod.spec = json!({
        "schedulerName": "phalanx",
        "hostNetwork": true,
        "someNewField": { "deep": [1] },
        "schedulingGates": [{ "name": "example.com/quota" }],
        "tolerations": [
            { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            { "key": "gpu", "value": "only", "effect": "NoSchedule" },
            { "key": "level", "operator": "Gt", "value": "5" }
        ],
        "affinity": {
            "podAffinity": null,
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                    { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a", "b"] }] },
                    { "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": ["n9"] }] }
                ] },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    { "weight": 7, "preference": { "matchExpressions": [{ "key": "ssd", "operator": "Exists" }] } },
                    { "weight": 9, "preference": {} }
                ]
            }
        },
        "initContainers": [
            { "name": "setup", "ports": [{ "containerPort": 1 }] },
            { "name": "proxy", "restartPolicy": "Always", "ports": [{ "containerPort": 2, "protocol": "UDP" }] }
        ],
        "containers": [
            { "name": "main", "newField": 1, "ports": [{ "containerPort": 3, "hostPort": 3, "hostIP": "10.0.0.1", "newField": 1 }] }
        ]
    });
    let Event::PodApplied(read) = event(&pod) else { panic!() };
    assert_eq!(read.blockers, []);
    let constraints = &read.constraints;
    assert_eq!(constraints.gates, ["example.com/quota".into()]);
    let taint = |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
    for (taint, tolerates) in [
        (taint("gpu", "only", TaintEffect::NoSchedule), true),
        (taint("gpu", "only", TaintEffect::NoExecute), false),
        (taint("gpu", "", TaintEffect::NoSchedule), false),
        (taint("level", "6", TaintEffect::NoExecute), true),
        (taint("level", "5", TaintEffect::NoExecute), false),
        (taint("node.kubernetes.io/not-ready", "", TaintEffect::NoExecute), true),
        (taint("node.kubernetes.io/not-ready", "", TaintEffect::NoSchedule), false),
    ] {
        assert_eq!(constraints.tolerates(&taint), tolerates, "{taint}");
    }
    let labels = |zone: &str| BTreeMap::from([("zone".into(), zone.into())]);
    assert!(constraints.affinity_is_met_by("n9", &labels("b")));
    assert!(constraints.affinity_is_met_by("n1", &labels("c")));
    assert!(!constraints.affinity_is_met_by("n9", &labels("c")));
    let preferred: Vec<u8> = constraints.preferred.iter().map(|preferred| preferred.weight).collect();
    assert_eq!(preferred, [7], "a term without requirements prefers nothing");
    let ports: Vec<String> = constraints.host_ports.iter().map(ToString::to_string).collect();
    assert_eq!(ports, ["UDP 0.0.0.0:2", "TCP 10.0.0.1:3"], "not those of an init container that ends");
}

#[test]
fn a_nodes_taints_and_its_readiness_are_read() {
    let node = |ready: &str| {
        stored(&format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: n}}\nspec: {{taints: [{{key: gpu, value: only, effect: NoSchedule, timeAdded: x}}]}}\n\
             status: {{allocatable: {{cpu: 1, pods: 3}}, conditions: [{{type: DiskPressure, status: \"True\"}}{ready}]}}\n"
        ))
        .remove(0)
    };
    for (ready, expected) in [
        ("", true),
        (", {type: Ready, status: \"True\"}", true),
        (", {type: Ready, status: \"False\"}", false),
        (", {type: Ready, status: Unknown}", false),
    ] {
        let Event::NodeApplied(read) = event(&node(ready)) else { panic!() };
        assert_eq!(read.ready, expected, "{ready}");
        assert_eq!(read.taints.iter().map(ToString::to_string).collect::<Vec<_>>(), ["gpu=only:NoSchedule"]);
        assert_eq!(read.allocatable.get("pods"), Some(3));
    }
}

#[test]
fn case_116_a_stored_object_that_is_wrong_is_left_out_with_a_warning() {
    let wrong = [
        (
            Kind::PodGroup,
            json!({ "minMember": -1 }),
            "PodGroup a/x: spec.minMember: must be between 0 and 2147483647, found -1; the object is left out",
        ),
        (
            Kind::PodGroup,
            json!([1]),
            "PodGroup a/x: spec: must be a mapping, found a list; the object is left out",
        ),
        (
            Kind::PriorityClass,
            json!({ "value": 2147483648_i64 }),
            "PriorityClass x: spec.value: must be between -2147483648 and 2147483647, found 2147483648; the object is left out",
        ),
        (
            Kind::Node,
            json!({ "allocatable": { "rdma/hca": -1 }, "ready": 3 }),
            "Node x: spec.ready: must be true or false, found 3; the object is left out",
        ),
    ];
    for (kind, spec, warning) in wrong {
        let converted = event_of_object(&Reading::default(), &Object::new(kind, "a", "x").with_spec(spec));
        assert_eq!((converted.event, converted.warnings), (None, vec![warning.to_owned()]));
    }
}

#[test]
fn a_bad_amount_of_a_node_is_a_warning_and_costs_only_itself() {
    let amounts = json!({
        "cpu": "64",
        "mars-tech.com/gpu": "8",
        "nvidia.com/gpu": 0.5,
        "rdma/hca_cpta": "-1",
        "rdma/hca_cptb": "lots",
        "vendor.com/nic": {},
        "vendor.com/": "2",
    });
    let object = Object::new(Kind::Node, "", "x").with_spec(json!({ "allocatable": amounts }));
    let converted = event_of_object(&Reading::default(), &object);
    let Some(Event::NodeApplied(node)) = converted.event else { panic!() };
    let read: Vec<_> = node.allocatable.iter().map(|(name, amount)| (name.as_str(), amount)).collect();
    assert_eq!(read, [("cpu", 64_000), ("mars-tech.com/gpu", 8)]);
    let warned = [
        "[nvidia.com/gpu]: \"0.5\" is not a whole number: devices cannot be split",
        "[rdma/hca_cpta]: \"-1\" is not zero or more: a quantity must not be negative",
        "[rdma/hca_cptb]: \"lots\" is not a quantity such as 2, 500m, 1.5, 16Gi or 1e3",
        "[vendor.com/]: \"vendor.com/\" is not a resource name such as cpu, memory or nvidia.com/gpu",
        "[vendor.com/nic]: must be a quantity such as 2, 500m or 16Gi, found a mapping",
    ];
    let warned =
        warned.map(|text| format!("Node x: status.allocatable{text}; the node counts as having none"));
    assert_eq!(converted.warnings, warned);
}

#[test]
fn deletions_become_events() {
    let deleted = |kind: Kind| {
        let key = Object::new(kind, "a", "x").key();
        event_of_change(
            &Reading::default(),
            &Change { resource_version: 1, kind, body: ChangeBody::Deleted { key, uid: "u".to_owned() } },
        )
        .event
    };
    assert_eq!(deleted(Kind::Queue), Some(Event::QueueDeleted(QueueName::from("x"))));
    assert_eq!(deleted(Kind::PriorityClass), Some(Event::PriorityClassDeleted(Arc::from("x"))));
    assert_eq!(deleted(Kind::Node), Some(Event::NodeDeleted(NodeName::from("x"))));
    assert_eq!(deleted(Kind::PodGroup), Some(Event::GangDeleted(GangName::new("a", "x"))));
    assert_eq!(deleted(Kind::Pod), Some(Event::PodDeleted(PodUid::from("u"))));
    assert_eq!((deleted(Kind::Job), deleted(Kind::GangPlan)), (None, None));
    let budget = Event::BudgetDeleted(GangName::new("a", "x"));
    assert_eq!(deleted(Kind::PodDisruptionBudget), Some(budget));
    let applied = Change {
        resource_version: 1,
        kind: Kind::Queue,
        body: ChangeBody::Applied(Arc::new(Object::new(Kind::Queue, "", "q"))),
    };
    assert!(matches!(event_of_change(&Reading::default(), &applied).event, Some(Event::QueueApplied(_))));
}

fn gpu(number: u128) -> GpuId {
    GpuId(number)
}

#[test]
fn a_binding_survives_the_way_through_annotations() {
    let term = Term { counter: 3, incarnation: 0xfeed_0000_0000_0001 };
    let id = Some(LeaseId { term: 3, serial: 9 });
    for (lease, gpus, promised, exactness) in [
        (id, vec![gpu(1), gpu(u128::MAX)], Exactness::Exact, "exact"),
        (id, vec![], Exactness::Exact, "none"),
        (id, vec![], Exactness::Count, "count"),
        (None, vec![], Exactness::Exact, "none"),
    ] {
        let binding = PodBinding { node: NodeName::from("n1"), lease, gpus };
        let mut pod = stored(POD).remove(0);
        pod.spec["nodeName"] = json!("n1");
        pod.metadata.annotations.extend(bind_annotations(
            &Reading::default(),
            &binding,
            promised,
            "uid-of-group",
            term,
        ));
        assert_eq!(pod.annotation("phalanx.dev/pod-group-uid"), Some("uid-of-group"));
        assert_eq!(pod.annotation("phalanx.dev/term"), Some("3.feed000000000001"));
        assert_eq!(pod.annotation("phalanx.dev/exactness"), Some(exactness));
        assert_eq!(binding_of_pod(&pod), (Some(binding.clone()), Vec::new()));
        let Event::PodApplied(read) = event(&pod) else { panic!() };
        assert_eq!(read.binding, Some(binding));
        assert_eq!(&*read.group_uid, "uid-of-group");
    }
    assert_eq!(
        fence_annotations(term).into_iter().collect::<Vec<_>>(),
        [("phalanx.dev/term".to_owned(), Some("3.feed000000000001".to_owned()))]
    );
}

#[test]
fn a_lease_is_believed_only_where_all_of_it_is_in_order() {
    let uuid = gpu(1).to_string();
    let twice = format!("{uuid},{uuid}");
    for (lease, gpus, problem) in [
        (Some("nonsense"), Some(uuid.as_str()), "phalanx.dev/lease-id"),
        (Some("1-2"), Some("GPU-1"), "phalanx.dev/gpu-uuids"),
        (Some("1-2"), Some(""), "phalanx.dev/gpu-uuids"),
        (Some("1-2"), Some(twice.as_str()), "is listed twice"),
        (None, Some(uuid.as_str()), "GPUs without phalanx.dev/lease-id"),
    ] {
        let mut pod = stored(POD).remove(0);
        pod.spec["nodeName"] = json!("n1");
        for (key, value) in [("phalanx.dev/lease-id", lease), ("phalanx.dev/gpu-uuids", gpus)] {
            if let Some(value) = value {
                pod.metadata.annotations.insert(key.to_owned(), value.to_owned());
            }
        }
        let (binding, warnings) = binding_of_pod(&pod);
        let binding = binding.unwrap();
        assert_eq!((binding.lease, binding.gpus), (None, Vec::new()));
        assert!(warnings[0].contains(problem), "{warnings:?}");
        assert!(warnings[0].starts_with("Pod a/p: "), "{warnings:?}");
    }
    // Annotations without a node bind nothing.
    let mut pod = stored(POD).remove(0);
    pod.metadata.annotations.insert("phalanx.dev/lease-id".to_owned(), "1-2".to_owned());
    assert_eq!(binding_of_pod(&pod), (None, Vec::new()));
}

#[test]
fn a_plan_survives_the_way_through_an_object() {
    let plan = GangPlan {
        gang: GangName::new("a", "g"),
        gang_uid: Arc::from("uid-g"),
        term: 4,
        binding_deadline: Time(123_456),
        purpose: PlanPurpose::Bind,
        victims: Vec::new(),
        pods: vec![
            PlannedPod {
                pod: PodUid::from("u1"),
                name: Arc::from("p-0"),
                node: NodeName::from("n1"),
                lease: Some(LeaseId { term: 4, serial: 1 }),
                gpus: vec![gpu(7), gpu(u128::MAX)],
            },
            PlannedPod {
                pod: PodUid::from("u2"),
                name: Arc::from("p-1"),
                node: NodeName::from("n2"),
                lease: None,
                gpus: vec![],
            },
        ],
    };
    let reading = Reading::default();
    let key = plan_key(&reading, &plan.gang);
    let stored = |plan: &GangPlan| {
        let change = PlanChange::Write(Box::new(plan.clone()));
        let Some(Mutation::Create(object)) = decide(&key, None, &[change]).mutation else { panic!() };
        let text = serde_json::to_string(&object).unwrap();
        serde_json::from_str::<Object>(&text).unwrap()
    };
    let object = stored(&plan);
    assert_eq!((object.key(), object.metadata.owner.clone()), (key.clone(), None));
    assert_eq!(plans_of_object(&reading, &object).found, std::slice::from_ref(&plan));
    // As people see it.
    assert_eq!(
        object.spec["plans"]["a/g"],
        json!({
            "uid": "uid-g",
            "term": 4,
            "deadline": 123_456,
            "nodes": ["n1", "n2"],
            "names": "p-",
            "leases": "4-",
            "pods": ["*0 0 *1 =u1 AAAAAAAAAAAAAAAAAAAABw,_____________________w", "*1 1 - =u2 -"],
        })
    );
    // An API server keeps no number above that of 63 bits: half of all leases would be others' after the way.
    let mut large = plan.clone();
    large.pods[0].lease = Some(LeaseId { term: 4, serial: u64::MAX - 6 });
    assert_eq!(plans_of_object(&reading, &stored(&large)).found, [large]);
    // As an event it comes by the way that plans take.
    let converted = event_of_object(&reading, &object);
    assert_eq!((converted.event, converted.warnings), (None, Vec::new()));
    let told = PlansTold::default().object(&reading, &object);
    assert_eq!(told, (vec![Event::PlanFound(plan)], Vec::new()));
}

fn quota_used() -> Reason {
    Reason::QuotaUsed {
        queue: QueueName::from("q"),
        resource: Arc::from(NVIDIA_GPU),
        limit: 16,
        used: 12,
        asked: 8,
        eviction: None,
    }
}

fn gang_status(phase: GangPhase, reason: Option<Reason>) -> GangStatus {
    GangStatus { phase, reason, running: 1, succeeded: 2, failed: 3 }
}

#[test]
fn pod_groups_get_volcanos_phases_conditions_and_reasons() {
    let waiting =
        pod_group_status(&Value::Null, &gang_status(GangPhase::Inqueue, Some(quota_used())), Time(1_000));
    assert_eq!(waiting["phase"], "Inqueue");
    assert_eq!(
        (&waiting["running"], &waiting["succeeded"], &waiting["failed"]),
        (&json!(1), &json!(2), &json!(3))
    );
    let condition = &waiting["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Unschedulable"), &json!("True"), &json!("NotEnoughResources"))
    );
    assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:01Z");
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("[QuotaUsed] ") && message.contains(&quota_used().fix()), "{message}");

    // The same condition later keeps its time; another one has its own.
    let later = pod_group_status(&waiting, &gang_status(GangPhase::Inqueue, Some(quota_used())), Time(9_000));
    assert_eq!(later, waiting);
    let few = |task: Option<Arc<str>>| Reason::TooFewPods { exist: 1, minimum: 4, task, lower_to: None };
    for (task, reason) in [(None, "NotEnoughTasks"), (Some(Arc::from("ps")), "NotEnoughPodsOfTask")] {
        let status = gang_status(GangPhase::Inqueue, Some(few(task)));
        let status = pod_group_status(&waiting, &status, Time(9_000));
        assert_eq!(status["conditions"][0]["reason"], reason);
        assert_eq!(status["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:09Z");
    }
    let running = pod_group_status(&later, &gang_status(GangPhase::Running, None), Time(9_000));
    assert_eq!(running["phase"], "Running");
    assert_eq!(running["conditions"].as_array().unwrap().len(), 1);
    assert_eq!(running["conditions"][0]["type"], "Scheduled");
    let step = Reason::InProgress { step: Arc::from("confirm") };
    let placing = pod_group_status(&later, &gang_status(GangPhase::Inqueue, Some(step)), Time(9_000));
    assert_eq!(placing["conditions"], json!([]));
}

#[test]
fn queues_get_their_counts_and_keep_their_state() {
    let status = QueueStatus {
        allocated: Resources::new()
            .with(ResourceName::known(CPU), 1500)
            .with(ResourceName::known("memory"), (3 << 30) + 1)
            .with(ResourceName::known(NVIDIA_GPU), 8),
        pending: 1,
        inqueue: 2,
        running: 3,
        completed: 4,
        ..QueueStatus::default()
    };
    let written = queue_status(&json!({ "state": "Closing", "pending": 9 }), &status);
    assert_eq!(written["state"], "Closing");
    // Amounts are exact, also where a person would round them.
    assert_eq!(
        written["allocated"],
        json!({ "cpu": "1500m", "memory": "3221225473", "nvidia.com/gpu": "8" })
    );
    assert_eq!(
        (&written["pending"], &written["inqueue"], &written["running"], &written["completed"]),
        (&json!(1), &json!(2), &json!(3), &json!(4))
    );
    assert_eq!(queue_status(&Value::Null, &status)["state"], "Open");
}

#[test]
fn pods_keep_their_start_time() {
    let running = pod_status(&json!({ "phase": "Pending" }), PodPhase::Running, Time(1_500));
    assert_eq!(running, json!({ "phase": "Running", "startTime": "1970-01-01T00:00:01.5Z" }));
    assert_eq!(pod_start(&running), Some(Time(1_500)));
    let ended = pod_status(&running, PodPhase::Succeeded, Time(4_000));
    assert_eq!(pod_start(&ended), Some(Time(1_500)));
    assert_eq!(ended["endTime"], "1970-01-01T00:00:04Z");
    assert_eq!(pod_start(&Value::Null), None);
    assert_eq!(pod_start(&json!({ "startTime": "yesterday" })), None);
    for milliseconds in [0, 1, 1_700_000_000_123] {
        assert_eq!(parse_time(&format_time(Time(milliseconds))), Some(Time(milliseconds)));
    }
    assert!(!format_time(Time(u64::MAX)).is_empty());
}

#[test]
fn outcomes_say_what_is_known() {
    let told = |error: ApiError| outcome_of(&Err::<(), _>(error));
    assert_eq!(outcome_of(&Ok(())), Outcome::Done);
    assert_eq!(told(ApiError::NotFound("x".to_owned())), Outcome::NotFound);
    assert_eq!(told(ApiError::Conflict("x".to_owned())), Outcome::Conflict);
    assert_eq!(told(ApiError::AlreadyExists("x".to_owned())), Outcome::Conflict);
    assert_eq!(told(ApiError::Invalid("why".to_owned())), Outcome::Refused("why".to_owned()));
    assert_eq!(told(ApiError::Unknown), Outcome::Unknown);
    assert_eq!(told(ApiError::Storage("disk".to_owned())), Outcome::Unknown);
}

#[test]
fn pods_of_others_tell_what_they_use_of_their_node() {
    let mut pod = Object::new(Kind::Pod, "kube-system", "agent-1").with_spec(json!({
        "schedulerName": "default-scheduler",
        "nodeName": "n1",
        "initContainers": [
            { "name": "side", "restartPolicy": "Always", "resources": { "requests": { "cpu": "500m" } } },
            { "name": "init", "resources": { "requests": { "cpu": "4" } } },
        ],
        "containers": [{
            "name": "main",
            "resources": { "limits": { "nvidia.com/gpu": 2, "memory": "1Gi" }, "requests": { "cpu": 1 } },
            "ports": [{ "containerPort": 80, "hostPort": 8080 }],
        }],
        "overhead": { "memory": "64Mi" },
    }));
    pod.metadata.uid = "u-1".to_owned();
    pod.status = json!({ "phase": "Running" });
    let Event::OtherPodApplied(other) = event(&pod) else { panic!() };
    assert_eq!(
        (other.uid.as_str(), other.node.as_str(), &*other.scheduler),
        ("u-1", "n1", "default-scheduler")
    );
    assert_eq!(other.request.to_string(), "cpu 4500m, memory 1088Mi, nvidia.com/gpu 2");
    assert_eq!(other.host_ports.iter().map(ToString::to_string).collect::<Vec<_>>(), ["TCP 0.0.0.0:8080"]);
    // What else is wrong with it is nothing of ours; a pod that names no scheduler has Kubernetes' own.
    pod.spec["tolerations"] = json!([{ "operator": "Sometimes" }]);
    pod.spec.as_object_mut().unwrap().remove("schedulerName");
    let Event::OtherPodApplied(other) = event(&pod) else { panic!() };
    assert_eq!((&*other.scheduler, other.request.gpus()), ("default-scheduler", 2));
    // Requests of the whole pod are its peak.
    pod.spec["resources"] = json!({ "requests": { "cpu": "6" } });
    let Event::OtherPodApplied(other) = event(&pod) else { panic!() };
    assert_eq!(other.request.amount("cpu"), 6000);
    // One of ours without a PodGroup that somebody else has bound counts too.
    pod.spec["schedulerName"] = json!("phalanx");
    let Event::OtherPodApplied(other) = event(&pod) else { panic!() };
    assert_eq!(&*other.scheduler, "phalanx");
    // It has ended, or has no node yet.
    pod.status = json!({ "phase": "Succeeded" });
    assert_eq!(event(&pod), Event::PodDeleted(PodUid::from("u-1")));
    pod.spec.as_object_mut().unwrap().remove("nodeName");
    assert_eq!(event_of_object(&Reading::default(), &pod).event, None);
}

#[test]
fn whose_pods_are_ours_is_told_by_their_schedulers_name() {
    let mut pod = stored(POD).remove(0);
    pod.spec["schedulerName"] = json!("gang-scheduler");
    assert_eq!(event_of_object(&Reading::default(), &pod).event, None);
    let reading = Reading::new(["phalanx", "gang-scheduler"]);
    let Some(Event::PodApplied(read)) = event_of_object(&reading, &pod).event else { panic!() };
    assert!(
        read.blockers.iter().all(|blocker| &*blocker.field != "spec.schedulerName"),
        "{:?}",
        read.blockers
    );
    pod.spec["schedulerName"] = json!("volcano");
    assert_eq!(event_of_object(&reading, &pod).event, None);
}

#[test]
fn disruption_budgets_are_told_as_kubernetes_shows_them() {
    let mut object = Object::new(Kind::PodDisruptionBudget, "team", "web").with_spec(json!({
        "minAvailable": 2,
        "selector": {
            "matchLabels": { "app": "web" },
            "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["batch"] }],
        },
    }));
    object.status = json!({ "disruptionsAllowed": 1, "currentHealthy": 3 });
    let Event::BudgetApplied(budget) = event(&object) else { panic!() };
    assert_eq!((budget.name.to_string().as_str(), budget.disruptions_allowed), ("team/web", 1));
    let rules: Vec<String> = budget.selector.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(rules, ["app In [web]", "tier NotIn [batch]"]);
    object.spec = json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "Near" }] } });
    let converted = event_of_object(&Reading::default(), &object);
    assert_eq!(converted.event, None);
    assert_eq!(
        converted.warnings,
        [
            "PodDisruptionBudget team/web: spec.selector: matchExpressions.operator: must be In, NotIn, Exists or \
          DoesNotExist, found \"Near\"; the object is left out"
        ]
    );
    object.spec = json!({});
    let Event::BudgetApplied(budget) = event(&object) else { panic!() };
    assert_eq!(budget.selector, None, "no selector, no pod");
}

#[test]
fn a_pod_that_names_no_group_and_has_no_owner_is_a_gang_of_one_where_it_is_read_so() {
    let reading = Reading::default().on_kubernetes();
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a, labels: {volcano.sh/queue-name: q}}\nspec: {schedulerName: phalanx, priorityClassName: high, containers: [{name: c}]}\n";
    let mut object = stored(text).remove(0);
    for empty in [false, true] {
        if empty {
            let names = ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/queue-name"];
            object.metadata.annotations.extend(names.map(|name| (name.to_owned(), String::new())));
        }
        let Some(Event::LonePodApplied { gang, pod }) = event_of_object(&reading, &object).event else {
            panic!("{object:?}")
        };
        assert_eq!((&gang.name, &pod.gang), (&GangName::new("a", "podgroup-uid-0"), &gang.name));
        assert!(gang.is_lone_pod() && gang.is_of_lone_pod(&pod.uid) && gang.min_member == 1);
        assert_eq!((gang.queue.as_str(), gang.priority_class.as_deref()), ("q", Some("high")));
        assert_eq!((gang.created, pod_of_object(&reading, &object)), (Time(5000), Some(pod)));
    }
    // One that names its PodGroup, made since, is a pod of that.
    let named = ("scheduling.k8s.io/group-name".to_owned(), "podgroup-uid-0".to_owned());
    object.metadata.annotations.extend([named]);
    assert!(matches!(event_of_object(&reading, &object).event, Some(Event::PodApplied(_))));
    // One that something looks after belongs to a gang with others, and waits for its PodGroup.
    object.metadata.annotations.clear();
    object.metadata.controller = Some(ControllerRef {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: "r".to_owned(),
        uid: "r".to_owned(),
    });
    assert_eq!(event_of_object(&reading, &object).event, None);
}
