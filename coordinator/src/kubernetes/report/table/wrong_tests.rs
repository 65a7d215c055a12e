//! What is wrong with queues, policies and what gangs say: told at the object, once, and again when it is wrong in another
//! way.

use serde_json::json;

use super::*;

fn object(kind: Kind, name: &str, spec: Value) -> Object {
    let namespace = if kind.is_cluster_scoped() { "" } else { "team" };
    let mut object = Object::new(kind, namespace, name).with_spec(spec);
    object.metadata.uid = format!("{name}-uid");
    object
}

fn queue(name: &str, spec: Value) -> Object {
    object(Kind::Queue, name, spec)
}

/// Looks so often that whatever is due is told, and gives what was told.
fn told(table: &mut Table, until: u64) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..100 {
        let now = table.next().map_or(until, |time| time.0.min(until));
        for report in table.due(Time(now), 100) {
            let Report::Event(event) = report else { panic!("{report:?}") };
            assert!(event.is_warning);
            all.push(format!("{} {} {}", event.key, event.reason, event.note));
        }
        if table.next().is_none_or(|time| time.0 > until) {
            return all;
        }
    }
    panic!("it looks again and again: {all:?}")
}

const WAIT: &str =
    "the queue is set aside: its gangs, and those of queues below it, wait until that is corrected";

#[test]
fn a_queue_that_is_set_aside_says_so_once_and_again_when_it_is_wrong_in_another_way() {
    let mut table = Table::new(Reading::default());
    // A child may come before its parent: nothing is told of what does not stand.
    table.applied(&queue("child", json!({ "parent": "top" })), Time(1_000));
    assert_eq!(told(&mut table, 1_500), [""; 0]);
    table.applied(&queue("top", json!({})), Time(1_600));
    assert_eq!(told(&mut table, 60_000), [""; 0]);
    // Another object changes.
    table.deleted(&queue("top", json!({})).key());
    let missing = format!("Queue child QueueSetAside spec.parent: queue top does not exist; {WAIT}");
    assert_eq!(told(&mut table, 70_000), [missing.as_str()]);
    // Its status changes often.
    let mut child = queue("child", json!({ "parent": "top" }));
    child.status = json!({ "pending": 3 });
    table.applied(&child, Time(80_000));
    assert_eq!(told(&mut table, 90_000), [""; 0]);
    assert_eq!(table.next(), None);
    // Wrong in another way, right, and wrong as before.
    let negative = json!({ "capability": { "nvidia.com/gpu": -1 } });
    table.applied(&queue("child", negative), Time(100_000));
    let unreadable = format!(
        "Queue child QueueSetAside spec.capability[nvidia.com/gpu]: \"-1\" is not zero or more: a quantity must not be \
         negative; {WAIT}"
    );
    assert_eq!(told(&mut table, 110_000), [unreadable]);
    table.applied(&queue("child", json!({})), Time(120_000));
    assert_eq!(told(&mut table, 130_000), [""; 0]);
    table.applied(&child, Time(140_000));
    assert_eq!(told(&mut table, 150_000), [missing]);
    table.deleted(&child.key());
    assert_eq!(told(&mut table, 160_000), [""; 0]);
    assert!(table.queues.is_empty());
}

#[test]
fn each_way_to_be_set_aside_is_told_and_queues_below_are_told_why() {
    let mut table = Table::new(Reading::default());
    for (name, spec) in [
        ("circle-a", json!({ "parent": "circle-b" })),
        ("circle-b", json!({ "parent": "circle-a" })),
        ("upside-down", json!({ "deserved": { "cpu": 2 }, "guarantee": { "resource": { "cpu": 3 } } })),
        ("above", json!({ "deserved": { "gpu/x": 2 }, "capability": { "gpu/x": 1 } })),
        ("list", json!({ "parent": ["a"] })),
        ("below", json!({ "parent": "list" })),
        ("good", json!({ "capability": { "nvidia.com/gpu": 1 } })),
    ] {
        // Those that were there before too: who led then may have known nothing of it.
        table.known(&queue(name, spec), Time(0));
    }
    let rule = "(guarantee <= deserved <= capability)";
    let mut expected = vec![
        format!("above QueueSetAside spec.deserved: gpu/x is 2, above capability 1 {rule}; {WAIT}"),
        "below QueueSetAside Queue list above it is set aside: spec.parent: must be text, found a list; gangs of this queue \
         wait until that is corrected"
            .to_owned(),
        format!("circle-a QueueSetAside spec.parent: is circle-b, which is below it: circle-b > circle-a; {WAIT}"),
        format!("circle-b QueueSetAside spec.parent: is circle-a, which is below it: circle-a > circle-b; {WAIT}"),
        format!("list QueueSetAside spec.parent: must be text, found a list; {WAIT}"),
        format!("upside-down QueueSetAside spec.guarantee: cpu is 3, above deserved 2 {rule}; {WAIT}"),
    ];
    expected.iter_mut().for_each(|text| *text = format!("Queue {text}"));
    assert_eq!(told(&mut table, 10_000), expected);
    for level in 1..=6 {
        let parent = if level == 1 { "root".to_owned() } else { format!("l{}", level - 1) };
        table.applied(&queue(&format!("l{level}"), json!({ "parent": parent })), Time(20_000));
    }
    let deep = format!(
        "Queue l6 QueueSetAside spec.parent: is l5, which puts it 6 levels below root; at most 5 are allowed; {WAIT}"
    );
    assert_eq!(told(&mut table, 30_000), [deep]);
}

#[test]
fn values_that_are_not_taken_are_told_with_what_is_taken_instead() {
    let mut table = Table::new(Reading::default().on_kubernetes());
    let time = "must be a time such as 90s, 5m or 1h30m, at most ten years";
    let above = "must be a time above 0 such as 90s, 5m or 1h30m, at most ten years";
    let spec = json!({ "namespaces": ["Team_A", "b"], "maximumRunTime": "0s", "defaultRunTime": "100000h", "holdAfter": "x" });
    let mut policy = object(Kind::QueuePolicy, "q", spec);
    table.applied(&policy, Time(0));
    let said = told(&mut table, 0);
    let parts = [
        "QueuePolicy q InvalidValue ",
        "spec.namespaces[0]: must be lower case letters, digits and -",
        "found \"Team_A\"; it is left out",
        &format!("spec.maximumRunTime: {above}, found \"0s\"; no gang is stopped"),
        &format!("spec.defaultRunTime: {above}, found \"100000h\"; no run time is taken"),
        &format!("spec.holdAfter: {time}, found \"x\"; hold-after of the coordinator is taken"),
    ];
    assert!(said.len() == 1 && parts.iter().all(|part| said[0].contains(part)), "{said:?}");
    table.applied(&policy, Time(1));
    assert_eq!(told(&mut table, 1), [""; 0]);
    // What is left of it was told; another value was not.
    policy.spec = json!({ "maximumRunTime": "0s" });
    table.applied(&policy, Time(2));
    assert_eq!(told(&mut table, 2), [""; 0]);
    policy.spec = json!({ "maximumRunTime": "0" });
    table.applied(&policy, Time(2));
    assert_eq!(told(&mut table, 2).len(), 1);
    policy.spec = json!({ "maximumRunTime": "1h" });
    table.applied(&policy, Time(3));
    // Of a queue what only ranks has its default.
    table.applied(&queue("q", json!({ "weight": 0 })), Time(4));
    let weight = "Queue q InvalidValue spec.weight: must be between 1 and 65535, found 0; 1 is taken";
    assert_eq!(told(&mut table, 10_000), [weight]);
}

#[test]
fn what_gangs_say_and_nobody_can_read_is_told_where_it_is_written() {
    let mut table = Table::new(Reading::default().on_kubernetes());
    for (key, text, example, instead) in [
        ("volcano.sh/cooldown-time", "abc", "a time such as 90s", "no cooldown is taken"),
        (
            "phalanx.dev/checkpoint-grace",
            "x",
            "seconds such as 120",
            "its pods are not told before they are evicted",
        ),
        (
            "phalanx.dev/degraded-grace",
            "x",
            "seconds such as 300",
            "degraded-grace of the coordinator is taken",
        ),
        ("phalanx.dev/gang-group", "x", "train/2", "it starts by itself"),
        ("phalanx.dev/fewer-after", "4", "4/10m", "it waits for its whole minimum"),
        (
            "phalanx.dev/run-estimate",
            "x",
            "a time above 0 such as 90s",
            "defaultRunTime of its queue is taken",
        ),
        (
            "volcano.sh/preemptable",
            "maybe",
            "\"true\" or \"false\"",
            "it may be evicted for others, unless its PodGroup says otherwise",
        ),
        ("kueue.x-k8s.io/max-exec-time-seconds", "x", "such as 3600", "defaultRunTime of its queue is taken"),
        ("phalanx.dev/mixed-gpu-models", "yes", "\"true\" or \"false\"", "false is taken"),
    ] {
        let job = json!({ "tasks": [{ "name": "w", "template": { "spec": { "containers": [{ "name": "c" }] } } }] });
        let pod = json!({ "schedulerName": "phalanx", "containers": [{ "name": "c" }] });
        for (kind, spec) in [(Kind::PodGroup, json!({})), (Kind::Job, job), (Kind::Pod, pod)] {
            let mut object = object(kind, "o", spec);
            object.metadata.annotations.insert(key.to_owned(), text.to_owned());
            table.applied(&object, Time(20_000));
            table.applied(&object, Time(20_000));
            let said = told(&mut table, 20_000);
            let begin = format!("{kind} team/o InvalidValue metadata.annotations[{key}]: must be ");
            let end = format!("found {text:?}; {instead}");
            assert!(
                said.len() == 1
                    && said[0].starts_with(&begin)
                    && said[0].contains(example)
                    && said[0].ends_with(&end),
                "{said:?}, not {begin}…{example}…{end}"
            );
            table.deleted(&object.key());
        }
    }
}

#[test]
fn a_pod_of_a_group_is_told_what_is_read_of_it_alone() {
    let mut table = Table::new(Reading::default().on_kubernetes());
    let mut member =
        object(Kind::Pod, "p", json!({ "schedulerName": "phalanx", "containers": [{ "name": "c" }] }));
    member.metadata.annotations.insert(GROUP_NAME.to_owned(), "g".to_owned());
    member.metadata.annotations.insert("phalanx.dev/gang-group".to_owned(), "x".to_owned());
    member.metadata.labels.insert("volcano.sh/cooldown-time".to_owned(), "x".to_owned());
    table.applied(&member, Time(30_000));
    let reports = table.due(Time(30_000), 100);
    let [Report::Event(event)] = &reports[..] else { panic!("{reports:?}") };
    assert!(event.note.starts_with("metadata.labels[volcano.sh/cooldown-time]: "), "{}", event.note);
    // One of another scheduler says nothing here.
    member.metadata.name = "stranger".to_owned();
    member.spec["schedulerName"] = json!("default-scheduler");
    table.applied(&member, Time(40_000));
    assert!(table.due(Time(30_000), 100).is_empty());
    // A PodGroup that cannot be read is not there for its pods.
    table.applied(&object(Kind::PodGroup, "g", json!({ "minResources": { "cpu": -1 } })), Time(50_000));
    let reports = table.due(Time(50_000), 100);
    let unread = |report: &Report| match report {
        Report::Event(event) => {
            event.reason == "InvalidValue" && event.note.contains("spec.minResources.cpu: \"-1\"")
        }
        Report::Condition(_) => false,
    };
    assert!(reports.iter().any(unread), "{reports:?}");
}
