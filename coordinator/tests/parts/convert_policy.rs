//! What queues, gangs and pods say of shares, evictions and run times: each field as it is read, and what becomes of one
//! that is wrong. A file with a wrong value is refused with field and fix; of a stored object the rest is taken.
use std::collections::BTreeMap;

use phalanx_common::constraints::LabelOperator;
use phalanx_common::gang::{FewerAfter, GangGroup, GangPolicy, GangSpec, Grace, PodPolicy, PodSpec};
use phalanx_common::queue::{Dequeue, QueuePolicySpec, QueueSpec};
use phalanx_common::units::{Millis, Time};
use phalanx_coordinator::api::{Kind, Object};
use phalanx_coordinator::convert::{Reading, event_of_object};
use phalanx_coordinator::jobs::reconcile;
use phalanx_coordinator::manifest::parse;
use phalanx_core::event::Event;
use serde_json::{Value, json};

fn converted(object: &Object) -> (Event, Vec<String>) {
    let converted = event_of_object(&Reading::default(), object);
    (converted.event.unwrap(), converted.warnings)
}

fn queue(object: &Object) -> (QueueSpec, Vec<String>) {
    match converted(object) {
        (Event::QueueApplied(spec), warnings) => (spec, warnings),
        (other, _) => panic!("{other:?}"),
    }
}

fn queue_policy(spec: Value) -> (QueuePolicySpec, Vec<String>) {
    match converted(&Object::new(Kind::QueuePolicy, "", "q").with_spec(spec)) {
        (Event::QueuePolicyApplied(spec), warnings) => (*spec, warnings),
        (other, _) => panic!("{other:?}"),
    }
}

fn gang(object: &Object) -> (GangSpec, Vec<String>) {
    match converted(object) {
        (Event::GangApplied(spec), warnings) => (spec, warnings),
        (other, _) => panic!("{other:?}"),
    }
}

fn pod(object: &Object) -> (PodSpec, Vec<String>) {
    match converted(object) {
        (Event::PodApplied(spec), warnings) => (*spec, warnings),
        (other, _) => panic!("{other:?}"),
    }
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn group_with(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> Object {
    let mut group = Object::new(Kind::PodGroup, "team", "g").with_spec(json!({ "minMember": 2 }));
    group.metadata.annotations = texts(annotations);
    group.metadata.labels = texts(labels);
    group
}

fn pod_with(annotations: &[(&str, &str)], labels: &[(&str, &str)], spec: &Value) -> Object {
    let mut pod = Object::new(Kind::Pod, "team", "p").with_spec(json!({
        "schedulerName": "phalanx",
        "containers": [{ "name": "c" }],
    }));
    pod.spec.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod.metadata.annotations = texts(annotations);
    pod.metadata.annotations.insert("scheduling.k8s.io/group-name".to_owned(), "g".to_owned());
    pod.metadata.labels = texts(labels);
    pod.metadata.creation = Time(5_000);
    pod
}

/// Errors of a text, as people see them.
fn refused(text: &str) -> Vec<String> {
    let parsed = parse(text, "f");
    assert!(parsed.objects.is_empty(), "{text} was taken");
    parsed.diagnostics.iter().map(ToString::to_string).collect()
}

fn document(kind: &str, version: &str, metadata: &str, spec: &str) -> String {
    format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x{metadata}}}\nspec: {spec}\n")
}

fn queue_text(spec: &str) -> String {
    document("Queue", "scheduling.volcano.sh/v1beta1", "", spec)
}

fn policy_text(spec: &str) -> String {
    document("QueuePolicy", "phalanx.dev/v1alpha1", "", spec)
}

#[test]
fn every_field_of_a_queue_is_read() {
    let text = "{parent: above, weight: 3, priority: 2, reclaimable: false, dequeueStrategy: fifo,
        capability: {cpu: 0, nvidia.com/gpu: 8, mars-tech.com/gpu: 16, rdma/hca_cpta: 4},
        deserved: {nvidia.com/gpu: 6, pods: 20}, guarantee: {resource: {nvidia.com/gpu: 2, ephemeral-storage: 1Gi}}}";
    let parsed = parse(&queue_text(text), "f");
    let warnings: Vec<String> = parsed.diagnostics.iter().map(ToString::to_string).collect();
    let no_limit =
        "f:5: warning: spec.capability.cpu: 0 means no limit, as in Volcano; leave cpu out to say so";
    assert_eq!(warnings, [no_limit]);
    let (spec, warnings) = queue(&parsed.objects[0]);
    assert_eq!(warnings, [""; 0]);
    let amounts = |resources: &phalanx_common::resources::Resources| {
        resources.iter().map(|(name, amount)| (name.to_string(), amount)).collect::<Vec<_>>()
    };
    let owned = |pairs: &[(&str, u64)]| {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect::<Vec<_>>()
    };
    let capability = [("mars-tech.com/gpu", 16), ("nvidia.com/gpu", 8), ("rdma/hca_cpta", 4)];
    assert_eq!(amounts(&spec.capability), owned(&capability));
    assert_eq!(amounts(&spec.deserved), owned(&[("nvidia.com/gpu", 6), ("pods", 20)]));
    assert_eq!(amounts(&spec.guarantee), owned(&[("ephemeral-storage", 1 << 30), ("nvidia.com/gpu", 2)]));
    assert_eq!(spec.parent.unwrap().as_str(), "above");
    assert_eq!((spec.weight, spec.priority, spec.reclaimable, spec.dequeue), (3, 2, false, Dequeue::Fifo));
    // The defaults, whichever way they are written.
    for spec in [Value::Null, json!({ "parent": "root", "weight": null }), json!({ "parent": "" })] {
        let (read, _) = queue(&Object::new(Kind::Queue, "", "x").with_spec(spec));
        assert_eq!(QueueSpec { shown: None, ..read }, QueueSpec::new("x".into()));
    }
}

#[test]
fn a_file_with_a_wrong_queue_is_refused_with_field_and_fix() {
    for (spec, problem) in [
        ("{weight: 0}", "spec.weight: must be between 1 and 65535, found 0"),
        ("{weight: -1}", "spec.weight: must be between 1 and 65535, found -1"),
        ("{weight: 65536}", "spec.weight: must be between 1 and 65535, found 65536"),
        ("{priority: -1}", "spec.priority: must be between 0 and 2147483647, found -1"),
        ("{dequeueStrategy: lifo}", "spec.dequeueStrategy: must be fifo or traverse, found \"lifo\""),
        ("{reclaimable: maybe}", "spec.reclaimable: must be true or false, found \"maybe\""),
        ("{parent: x}", "spec.parent: queue x cannot be above itself: name another queue, or leave it out"),
        ("{parent: [a]}", "spec.parent: must be text, found a list"),
        (
            "{capability: {nvidia.com/gpu: 8}, deserved: {nvidia.com/gpu: 9}}",
            "spec.deserved[nvidia.com/gpu]: must be at most capability, which is 8, found 9",
        ),
        (
            "{deserved: {memory: 1Gi}, guarantee: {resource: {memory: 2Gi}}}",
            "spec.guarantee.resource.memory: must be at most deserved, which is 1Gi, found 2Gi",
        ),
        (
            "{capability: {rdma/hca_cpta: 1}, guarantee: {resource: {rdma/hca_cpta: 2}}}",
            "spec.guarantee.resource[rdma/hca_cpta]: must be at most capability, which is 1, found 2",
        ),
    ] {
        let said = refused(&queue_text(spec));
        assert!(said.iter().any(|line| line.contains(&format!("error: {problem}"))), "{spec}: {said:?}");
    }
    // A slip of the hand is told and taken: whatever the name is, somebody may offer it.
    for list in ["capability", "deserved"] {
        let parsed = parse(&queue_text(&format!("{{{list}: {{gpu: 8}}}}")), "f");
        assert_eq!(parsed.objects.len(), 1);
        let said = parsed.diagnostics[0].to_string();
        assert!(said.contains("warning") && said.contains("did you mean nvidia.com/gpu?"), "{said}");
    }
}

#[test]
fn of_a_stored_queue_what_only_ranks_has_its_default() {
    let spec = json!({
        "weight": 0, "priority": -3, "reclaimable": "no", "dequeueStrategy": "lifo", "capability": { "cpu": 4 },
    });
    let (spec, warnings) = queue(&Object::new(Kind::Queue, "", "x").with_spec(spec));
    assert_eq!((spec.weight, spec.priority, spec.reclaimable, spec.dequeue), (1, 0, true, Dequeue::Traverse));
    assert_eq!(spec.capability.get("cpu"), Some(4_000));
    assert_eq!(
        warnings,
        [
            "Queue x: spec.weight: must be between 1 and 65535, found 0; 1 is taken",
            "Queue x: spec.priority: must be between 0 and 2147483647, found -3; 0 is taken",
            "Queue x: spec.reclaimable: must be true or false, found \"no\": write true or false without quotes; true is taken",
            "Queue x: spec.dequeueStrategy: must be fifo or traverse, found \"lifo\"; traverse is taken",
        ]
    );
    // Shares that contradict each other are read: the core sets such a queue aside and says why.
    let spec = json!({ "capability": { "cpu": 1 }, "deserved": { "cpu": 2 }, "parent": "x" });
    let (spec, warnings) = queue(&Object::new(Kind::Queue, "", "x").with_spec(spec));
    assert_eq!((spec.deserved.get("cpu"), warnings), (Some(2_000), Vec::new()));
}

/// No limit may be taken for none: the core knows that it is there, and sets it aside.
#[test]
fn a_stored_queue_that_cannot_be_read_is_there_with_what_is_wrong() {
    for (spec, field, message) in [
        (
            json!({ "capability": { "nvidia.com/gpu": -1 } }),
            "capability[nvidia.com/gpu]",
            "\"-1\" is not zero or more: a quantity must not be negative",
        ),
        (
            json!({ "capability": { "nvidia.com/gpu": "0.5" } }),
            "capability[nvidia.com/gpu]",
            "a whole number",
        ),
        (json!({ "capability": { "cpu": "1e400" } }), "capability.cpu", "at most 9223372036854775807"),
        (
            json!({ "capability": { "cpu": [1] } }),
            "capability.cpu",
            "must be a quantity such as 2, 500m or 16Gi",
        ),
        (json!({ "capability": { "a b": 1 } }), "capability.a b", "a resource name such as cpu"),
        (json!({ "deserved": { "memory": "16GB" } }), "deserved.memory", "did you mean 16G?"),
        (json!({ "deserved": 3 }), "deserved", "must be a mapping, found 3"),
        (json!({ "guarantee": { "resource": { "cpu": "x" } } }), "guarantee.resource.cpu", "such as 2, 500m"),
        (json!({ "guarantee": [] }), "guarantee", "must be a mapping"),
        (json!({ "parent": ["a"] }), "parent", "must be text, found a list"),
        (json!({ "parent": "No_Name" }), "parent", "found \"No_Name\""),
        (json!("text"), "spec", "must be a mapping"),
    ] {
        let (read, warnings) = queue(&Object::new(Kind::Queue, "", "x").with_spec(spec.clone()));
        let unreadable = read.unreadable.unwrap_or_else(|| panic!("{spec} was taken"));
        assert_eq!((&*unreadable.field, warnings.len()), (field, 0), "{spec}: {warnings:?}");
        assert!(unreadable.message.contains(message), "{spec}: {}", unreadable.message);
    }
    // What else is wrong with it is told beside it, and what can be read is.
    let spec = json!({
        "parent": "above", "weight": 0, "capability": { "cpu": "x", "memory": "1Gi" }, "deserved": { "cpu": "y" },
    });
    let (read, warnings) = queue(&Object::new(Kind::Queue, "", "x").with_spec(spec));
    assert_eq!(read.parent.as_ref().map(|parent| parent.as_str()), Some("above"));
    assert_eq!(read.capability.get("memory"), Some(1 << 30));
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].ends_with("found 0; 1 is taken"), "{}", warnings[0]);
    assert!(
        warnings[1].starts_with("Queue x: spec.deserved.cpu: ")
            && warnings[1].ends_with("; the queue is set aside"),
        "{}",
        warnings[1]
    );
}

#[test]
fn every_field_of_a_queue_policy_is_read() {
    let spec =
        "{namespaces: [team-a, team-b, team-a], minimumRunTime: 90s, holdAfter: 5m, startupDeadline: 20m,
        defaultRunTime: 4h, maximumRunTime: 1h30m}";
    let parsed = parse(&policy_text(spec), "f");
    assert_eq!(parsed.diagnostics, []);
    let (spec, warnings) = queue_policy(parsed.objects[0].spec.clone());
    let expected = QueuePolicySpec {
        namespaces: Some(vec!["team-a".into(), "team-b".into()]),
        minimum_run_ms: Millis(90_000),
        hold_after_ms: Some(Millis(300_000)),
        startup_deadline_ms: Some(Millis(1_200_000)),
        default_run_ms: Some(Millis(14_400_000)),
        maximum_run_ms: Some(Millis(5_400_000)),
        ..QueuePolicySpec::new("q".into())
    };
    assert_eq!((spec, warnings), (expected, Vec::new()));
    assert_eq!(queue_policy(Value::Null), (QueuePolicySpec::new("q".into()), Vec::new()));
}

#[test]
fn a_wrong_queue_policy_is_refused_and_of_a_stored_one_the_rest_is_taken() {
    let time = "must be a time such as 90s, 5m or 1h30m, at most ten years, found";
    let above = "must be a time above 0 such as 90s, 5m or 1h30m, at most ten years, found";
    for (spec, problem) in [
        ("{minimumRunTime: 5 minutes}", format!("spec.minimumRunTime: {time} \"5 minutes\"")),
        ("{holdAfter: 300}", format!("spec.holdAfter: {time} \"300\"")),
        ("{holdAfter: -5m}", format!("spec.holdAfter: {time} \"-5m\"")),
        ("{startupDeadline: 0s}", format!("spec.startupDeadline: {above} \"0s\"")),
        ("{maximumRunTime: 20y}", format!("spec.maximumRunTime: {above} \"20y\"")),
        ("{namespaces: team}", "spec.namespaces: must be a list, found \"team\"".to_owned()),
        ("{namespaces: [Team]}", "spec.namespaces[0]: must be lower case letters, digits and -".to_owned()),
        (
            "{holdTime: 5m}",
            "spec.holdTime: unknown field: must be one of namespaces, minimumRunTime, holdAfter, startupDeadline, \
             defaultRunTime, maximumRunTime, such as holdAfter: 5m"
                .to_owned(),
        ),
        ("{maximumRuntime: 5m}", "; did you mean maximumRunTime?".to_owned()),
    ] {
        let said = refused(&policy_text(spec));
        assert!(said.iter().any(|line| line.contains(&problem)), "{spec}: {said:?}");
    }
    let (spec, warnings) = queue_policy(json!({ "holdAfter": "soon", "maximumRunTime": "1h" }));
    assert_eq!((spec.hold_after_ms, spec.maximum_run_ms), (None, Some(Millis(3_600_000))));
    assert_eq!(
        warnings,
        [format!("QueuePolicy q: spec.holdAfter: {time} \"soon\"; hold-after of the coordinator is taken")]
    );
    // Namespaces that cannot be read open the queue to nobody.
    let (spec, warnings) = queue_policy(json!({ "namespaces": "team" }));
    assert_eq!((spec.namespaces, warnings.len()), (Some(Vec::new()), 1));
    let (spec, warnings) = queue_policy(json!("text"));
    assert_eq!(spec.namespaces, Some(Vec::new()));
    assert!(warnings[0].ends_with("; nobody may use the queue"), "{warnings:?}");
}

#[test]
fn what_a_gang_says_of_evictions_and_its_run_time_is_read() {
    let (spec, warnings) = gang(&group_with(
        &[
            ("volcano.sh/preemptable", "false"),
            ("volcano.sh/cooldown-time", "600s"),
            ("phalanx.dev/checkpoint-grace", "120"),
            ("phalanx.dev/degraded-grace", "never"),
            ("phalanx.dev/gang-group", "train/2"),
            ("phalanx.dev/fewer-after", "4/10m"),
            ("phalanx.dev/run-estimate", "1h30m"),
            ("kueue.x-k8s.io/max-exec-time-seconds", "60"),
        ],
        &[("volcano.sh/preemptable", "true")],
    ));
    let expected = GangPolicy {
        preemptable: Some(false),
        cooldown_ms: Millis(600_000),
        checkpoint_grace_ms: Millis(120_000),
        run_estimate_ms: Some(Millis(5_400_000)),
        degraded_grace: Some(Grace::Never),
        group: Some(GangGroup { name: "train".into(), size: 2 }),
        fewer_after: Some(FewerAfter { minimum: 4, after_ms: Millis(600_000) }),
        sub_groups: Vec::new(),
    };
    assert_eq!((spec.policy, warnings), (expected, Vec::new()));
    // Labels where there is no annotation, and the field where there is neither.
    let labels = [
        ("volcano.sh/preemptable", "true"),
        ("volcano.sh/cooldown-time", "10m"),
        ("kueue.x-k8s.io/max-exec-time-seconds", "60"),
    ];
    let mut group = group_with(&[], &labels);
    group.spec["preemptable"] = json!(false);
    let (spec, _) = gang(&group);
    let policy = (spec.policy.preemptable, spec.policy.cooldown_ms, spec.policy.run_estimate_ms);
    assert_eq!(policy, (Some(true), Millis(600_000), Some(Millis(60_000))));
    group.metadata.labels.clear();
    assert_eq!(gang(&group).0.policy.preemptable, Some(false));
    assert_eq!(gang(&group_with(&[], &[])).0.policy, GangPolicy::default());
}

#[test]
fn a_wrong_annotation_is_told_with_an_example_and_takes_no_gang_with_it() {
    for (key, text, example) in [
        ("volcano.sh/preemptable", "no", "must be \"true\" or \"false\""),
        ("volcano.sh/cooldown-time", "600", "must be a time such as 90s, 5m or 1h30m"),
        ("phalanx.dev/checkpoint-grace", "soon", "must be seconds such as 120, or a time such as 90s"),
        ("phalanx.dev/degraded-grace", "no", "must be never, seconds such as 300, or a time such as 5m"),
        ("phalanx.dev/gang-group", "train", "must be NAME/SIZE such as train/2"),
        ("phalanx.dev/fewer-after", "4", "must be MIN/DURATION such as 4/10m"),
        ("phalanx.dev/run-estimate", "0", "must be a time above 0 such as 90s"),
        (
            "kueue.x-k8s.io/max-exec-time-seconds",
            "1h",
            "must be a whole number of seconds above 0 such as 3600",
        ),
    ] {
        let (spec, warnings) = gang(&group_with(&[(key, text)], &[]));
        assert_eq!((spec.policy, warnings.len()), (GangPolicy::default(), 1), "{key}");
        let begin = format!("PodGroup team/g: metadata.annotations[{key}]: {example}");
        assert!(
            warnings[0].starts_with(&begin) && warnings[0].contains(&format!("found {text:?}; ")),
            "{}",
            warnings[0]
        );
        let metadata = format!(", annotations: {{{key}: \"{text}\"}}");
        let text = document("PodGroup", "scheduling.volcano.sh/v1beta1", &metadata, "{minMember: 1}");
        let said = refused(&text);
        assert!(said[0].contains(&format!("error: metadata.annotations[{key}]: {example}")), "{said:?}");
    }
    let (_, warnings) = gang(&group_with(&[], &[("volcano.sh/cooldown-time", "x")]));
    assert!(warnings[0].starts_with("PodGroup team/g: metadata.labels[volcano.sh/cooldown-time]: "));
    // Labels are read as annotations are; a node may be asked for with whatever label it has.
    let labelled = |label: &str| {
        let metadata = format!(", labels: {{{label}}}");
        document("PodGroup", "scheduling.volcano.sh/v1beta1", &metadata, "{minMember: 1}")
    };
    let said = refused(&labelled("volcano.sh/cooldown-time: x"));
    assert!(said[0].contains("error: metadata.labels[volcano.sh/cooldown-time]: must be a time"), "{said:?}");
    let selector = json!({ "nodeSelector": { "volcano.sh/preemptable": "sometimes" } });
    assert_eq!(pod(&pod_with(&[], &[], &selector)).0.blockers, []);
    // A pod says it too, once: not with each of its changes.
    let mut object = pod_with(&[("volcano.sh/preemptable", "no")], &[], &json!({}));
    let (spec, warnings) = pod(&object);
    assert_eq!((spec.blockers.len(), spec.policy.preemptable, warnings.len()), (0, None, 1));
    object.spec["nodeName"] = json!("n1");
    assert_eq!(pod(&object).1, [""; 0]);
}

#[test]
fn sub_groups_are_read_and_their_topology_is_told_to_be_without_effect() {
    let spec = "{minMember: 4, subGroupPolicy: [
        {name: stage, subGroupSize: 2, minSubGroups: 1, matchLabelKeys: [stage],
         labelSelector: {matchLabels: {role: worker}, matchExpressions: [{key: spare, operator: DoesNotExist}]}},
        {networkTopology: {mode: hard, highestTierAllowed: 1}}]}";
    let text = document("PodGroup", "scheduling.volcano.sh/v1beta1", "", spec);
    let parsed = parse(&text, "f");
    let said: Vec<String> = parsed.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["f:7: warning: spec.subGroupPolicy[1].networkTopology: accepted, not honoured yet"]);
    let (spec, warnings) = gang(&parsed.objects[0]);
    assert_eq!(warnings, [""; 0]);
    let [first, second] = &spec.policy.sub_groups[..] else { panic!("{:?}", spec.policy) };
    assert_eq!((&*first.name, first.size, first.minimum), ("stage", 2, 1));
    assert_eq!(first.match_labels, ["stage".into()]);
    let rules: Vec<_> =
        first.selector.iter().map(|rule| (&*rule.key, rule.operator, rule.values.len())).collect();
    assert_eq!(rules, [("role", LabelOperator::In, 1), ("spare", LabelOperator::DoesNotExist, 0)]);
    assert_eq!((&*second.name, second.size, second.minimum, second.selector.len()), ("1", 1, 0, 0));
    for (policy, problem) in [
        ("{subGroupSize: 0}", "spec.subGroupPolicy[0].subGroupSize: must be between 1 and"),
        ("{minSubGroups: -1}", "spec.subGroupPolicy[0].minSubGroups: must be between 0 and"),
        (
            "{labelSelector: role=worker}",
            "spec.subGroupPolicy[0].labelSelector: must be an object with matchLabels",
        ),
        (
            "{labelSelector: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}}",
            "matchExpressions.operator: must be In, NotIn, Exists or DoesNotExist",
        ),
    ] {
        let spec = format!("{{subGroupPolicy: [{policy}]}}");
        let said = refused(&document("PodGroup", "scheduling.volcano.sh/v1beta1", "", &spec));
        assert!(said.iter().any(|line| line.contains(problem)), "{policy}: {said:?}");
    }
}

#[test]
fn what_matters_of_a_pod_is_read() {
    let spec = json!({
        "preemptionPolicy": "Never", "activeDeadlineSeconds": 3_600, "terminationGracePeriodSeconds": 90,
    });
    let annotations = [("volcano.sh/cooldown-time", "10m")];
    let labels = [("app", "llm"), ("volcano.sh/preemptable", "false")];
    let mut object = pod_with(&annotations, &labels, &spec);
    object.status = json!({ "startTime": "1970-01-01T00:00:20Z" });
    let (read, warnings) = pod(&object);
    let expected = PodPolicy {
        labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        never_preempts: true,
        preemptable: Some(false),
        cooldown_ms: Millis(600_000),
        created: Time(5_000),
        started: Some(Time(20_000)),
        grace_ms: Millis(90_000),
        ends_by: None,
        deadline_ms: Some(Millis(3_600_000)),
        leads: false,
    };
    assert_eq!((read.policy, warnings), (expected, Vec::new()));
    // A kubelet that has not taken it yet, and a deletion with another grace.
    object.status = json!({ "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:50Z" },
        { "type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:30Z" },
    ] });
    object.metadata.deletion = Some(Time(70_000));
    object.metadata.deletion_grace = Some(Millis(5_000));
    let (read, _) = pod(&object);
    let policy = (read.policy.started, read.policy.grace_ms, read.policy.ends_by);
    assert_eq!(policy, (Some(Time(30_000)), Millis(5_000), Some(Time(70_000))));
    object.status["conditions"][1]["status"] = json!("False");
    assert_eq!(pod(&object).0.policy.started, None);
    let (read, _) = pod(&pod_with(&[], &[], &json!({})));
    assert_eq!(read.policy, PodPolicy { created: Time(5_000), ..PodPolicy::default() });
}

#[test]
fn the_pod_that_leads_its_gang_is_known_by_what_operators_write() {
    for (annotations, labels, leads) in [
        (&[("volcano.sh/task-spec", "master")][..], &[][..], true),
        (&[("volcano.sh/task-spec", "launcher")], &[], true),
        (&[("volcano.sh/task-spec", "Chief")], &[], true),
        (&[("volcano.sh/task-spec", "driver")], &[], true),
        (&[("volcano.sh/task-spec", "worker")], &[], false),
        (&[("volcano.sh/task-spec", "headless")], &[], false),
        (&[], &[("volcano.sh/task-spec", "leader")], true),
        (&[], &[("training.kubeflow.org/replica-type", "master")], true),
        (&[], &[("training.kubeflow.org/replica-type", "worker")], false),
        (&[], &[("training.kubeflow.org/job-role", "master")], true),
        (&[], &[("ray.io/node-type", "head")], true),
        (&[], &[("ray.io/node-type", "worker")], false),
        (&[], &[("leaderworkerset.sigs.k8s.io/worker-index", "0")], true),
        (&[], &[("leaderworkerset.sigs.k8s.io/worker-index", "10")], false),
        (&[], &[("spark-role", "driver")], true),
        (&[], &[], false),
    ] {
        let (read, _) = pod(&pod_with(annotations, labels, &json!({})));
        assert_eq!(read.policy.leads, leads, "{annotations:?} {labels:?}");
    }
}

#[test]
fn a_priority_class_that_never_preempts_says_so() {
    for (policy, preempts) in [(None, true), (Some("PreemptLowerPriority"), true), (Some("Never"), false)] {
        let spec = json!({ "value": 5, "preemptionPolicy": policy });
        match converted(&Object::new(Kind::PriorityClass, "", "p").with_spec(spec)) {
            (Event::PriorityClassApplied(class), warnings) => {
                assert_eq!((class.preempts, warnings.len()), (preempts, 0), "{policy:?}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_jobs_estimate_and_its_annotations_reach_its_pod_group() {
    let job = |spec: &str| {
        let metadata = ", annotations: {volcano.sh/preemptable: \"false\", phalanx.dev/checkpoint-grace: 2m}";
        let tasks = "tasks: [{name: w, template: {spec: {containers: [{name: c}]}}}]";
        document("Job", "batch.volcano.sh/v1alpha1", metadata, &format!("{{{spec}, {tasks}}}"))
    };
    let parsed = parse(&job("runningEstimate: 1h30m"), "f");
    assert_eq!(parsed.diagnostics, []);
    let mut object = parsed.objects[0].clone();
    object.metadata.uid = "u".to_owned();
    let writes = reconcile(&[std::sync::Arc::new(object)], Time(0));
    let group = writes.mutations.iter().find_map(|mutation| match mutation {
        phalanx_coordinator::api::Mutation::Create(group) if group.kind == Kind::PodGroup => Some(group),
        _ => None,
    });
    let (spec, warnings) = gang(group.unwrap());
    assert_eq!(warnings, [""; 0]);
    let policy = (spec.policy.run_estimate_ms, spec.policy.preemptable, spec.policy.checkpoint_grace_ms);
    assert_eq!(policy, (Some(Millis(5_400_000)), Some(false), Millis(120_000)));
    let said = refused(&job("runningEstimate: long"));
    assert!(said[0].contains("error: spec.runningEstimate: must be a time above 0 such as 90s"), "{said:?}");
}

/// A pod that names no PodGroup is a gang of one before it has one: it says the same then and later.
#[test]
fn a_lone_pods_gang_says_what_its_pod_group_will_say() {
    let reading = Reading::default().on_kubernetes();
    let annotations = [
        ("volcano.sh/preemptable", "false"),
        ("phalanx.dev/run-estimate", "2h"),
        ("phalanx.dev/degraded-grace", "60"),
        ("example.com/other", "x"),
    ];
    let labels =
        [("kueue.x-k8s.io/max-exec-time-seconds", "60"), ("volcano.sh/cooldown-time", "5m"), ("app", "a")];
    let mut object = pod_with(&annotations, &labels, &json!({}));
    object.metadata.annotations.remove("scheduling.k8s.io/group-name");
    object.metadata.uid = "u".to_owned();
    let Some(Event::LonePodApplied { gang: before, .. }) = event_of_object(&reading, &object).event else {
        panic!("no lone pod")
    };
    assert_eq!((before.policy.preemptable, before.policy.cooldown_ms), (Some(false), Millis(300_000)));
    let writes = reconcile(&[std::sync::Arc::new(object)], Time(100_000));
    let group = writes.mutations.iter().find_map(|mutation| match mutation {
        phalanx_coordinator::api::Mutation::Create(group) => Some(group),
        _ => None,
    });
    let group = group.unwrap();
    assert_eq!(gang(group).0.policy, before.policy);
    assert!(!group.metadata.annotations.contains_key("example.com/other"));
    assert!(!group.metadata.labels.contains_key("app"));
}
