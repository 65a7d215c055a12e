//! What is reported, when, and how often.

use serde_json::json;

use super::*;

const MINUTE: u64 = 60_000;

fn group(phase: &str, message: Option<&str>, version: u64) -> Object {
    let mut object = Object::new(Kind::PodGroup, "default", "gang");
    object.metadata.uid = "gang-uid".to_owned();
    object.metadata.resource_version = version;
    let condition = |message| json!({ "type": "Unschedulable", "status": "True", "message": message });
    object.status =
        json!({ "phase": phase, "conditions": message.map(condition).into_iter().collect::<Vec<_>>() });
    object
}

fn pod(name: &str, version: u64) -> Object {
    let mut object = Object::new(Kind::Pod, "default", name).with_spec(json!({ "schedulerName": "phalanx" }));
    object.metadata.uid = format!("{name}-uid");
    object.metadata.resource_version = version;
    object.metadata.annotations.insert(GROUP_NAME.to_owned(), "gang".to_owned());
    object.status = json!({ "phase": "Pending" });
    object
}

fn table() -> Table {
    Table::new(Reading::default())
}

/// Reasons of what is due, of pods with the condition's and of events with the event's.
fn due(table: &mut Table, now: u64) -> Vec<String> {
    let text = |report: &Report| match report {
        Report::Condition(report) => format!("{} {}", report.key.name, report.condition.reason),
        Report::Event(event) => format!("event {}", event.reason),
    };
    table.due(Time(now), 100).iter().map(text).collect()
}

#[test]
fn a_cause_is_reported_once_when_it_has_stood_for_a_moment() {
    let mut table = table();
    table.applied(&pod("a", 1), Time(1_000));
    table.applied(&group("Inqueue", Some("[NoRoom] no node has 8 free"), 2), Time(1_500));
    assert_eq!(due(&mut table, 3_000), [""; 0], "its gang may be about to start");
    assert_eq!(due(&mut table, 3_500), ["event Unschedulable", "a Unschedulable"]);
    assert_eq!(due(&mut table, 10 * MINUTE), [""; 0]);
    // The same once more, and a later version of the same.
    table.applied(&group("Inqueue", Some("[NoRoom] no node has 8 free"), 3), Time(11 * MINUTE));
    assert_eq!(due(&mut table, 20 * MINUTE), [""; 0]);
    assert_eq!(table.next(), None);
}

#[test]
fn a_gang_that_starts_at_once_is_not_written_about() {
    let mut table = table();
    table.applied(&group("Inqueue", Some("[TooFewPods] 0 of 1 pods exist"), 1), Time(1_000));
    table.applied(&pod("a", 2), Time(1_200));
    table.applied(&group("Inqueue", None, 3), Time(1_400));
    let mut bound = pod("a", 4);
    bound.spec["nodeName"] = json!("n1");
    table.applied(&bound, Time(1_500));
    let mut running = group("Running", None, 5);
    running.status["conditions"] = json!([{ "type": "Scheduled", "status": "True" }]);
    table.applied(&running, Time(1_600));
    assert_eq!(due(&mut table, MINUTE), ["event Scheduled"]);
    assert_eq!(due(&mut table, 60 * MINUTE), [""; 0]);
    assert!(table.pods.is_empty() && table.pods_of.is_empty());
}

#[test]
fn case_095_only_an_admitted_gang_that_a_node_would_help_is_unschedulable() {
    for (phase, message, reason) in [
        ("Inqueue", "[NoRoom] no node has 8 free", "Unschedulable"),
        ("Inqueue", "[LargerThanAnyNode] largest node has 1", "Unschedulable"),
        ("Inqueue", "[TooFewPods] 1 of 2 pods exist", "WaitingForGang"),
        ("Inqueue", "[PodBlocked] spec.volumes", "WaitingForGang"),
        ("Inqueue", "[Preempted/NoRoom] preempted by default/a; no node has 8 free", "Unschedulable"),
        ("Inqueue", "[Preempted/TooFewPods] preempted by default/a; 1 of 2 pods exist", "WaitingForGang"),
        ("Running", "[MorePodsWait] 2 more", "WaitingForGang"),
        ("Pending", "[QuotaUsed] queue q: capability 16, used or admitted 16", "WaitingForAdmission"),
        ("Pending", "[NoRoom] no node has 8 free", "WaitingForAdmission"),
        ("", "[NoSuchQueue] queue q does not exist", "WaitingForAdmission"),
    ] {
        let mut table = table();
        table.known(&group(phase, Some(message), 1), Time(1_000));
        table.applied(&pod("a", 2), Time(1_000));
        assert_eq!(due(&mut table, MINUTE), [format!("a {reason}")], "{phase} {message}");
    }
}

#[test]
fn a_text_whose_cause_is_the_same_is_refreshed_seldom() {
    let mut table = table();
    table.applied(&pod("a", 1), Time(0));
    let mut writes = 0;
    // An hour in which the text changes each second.
    for second in 0..3_600 {
        let text = format!("[NoRoom] 0 of {second} nodes");
        table.applied(&group("Inqueue", Some(&text), second + 1), Time(second * 1_000));
        writes += due(&mut table, second * 1_000).len();
    }
    // The event, the condition, and a refresh each ten minutes.
    assert_eq!(writes, 2 + 5);
}

#[test]
fn a_cause_that_comes_and_goes_makes_no_flood_of_events() {
    let mut table = table();
    let mut events = 0;
    for second in (0..3_600).step_by(3) {
        let text = if second % 2 == 0 { "[NoRoom] a" } else { "[NodesClosed] b" };
        table.applied(&group("Inqueue", Some(text), second + 1), Time(second * 1_000));
        events += due(&mut table, second * 1_000 + 2_500).len();
    }
    assert_eq!(events, 2 * 12);
}

#[test]
fn after_a_take_over_nothing_is_told_again() {
    let mut table = table();
    table.known(&group("Inqueue", Some("[NoRoom] no node has 8 free"), 1), Time(1_000));
    let mut told = pod("a", 2);
    told.status["conditions"] = json!([{ "type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "[NoRoom] no node has 8 free" }]);
    table.known(&told, Time(1_000));
    assert_eq!(due(&mut table, 60 * MINUTE), [""; 0]);
    table.applied(&group("Inqueue", Some("[NodesClosed] n1"), 3), Time(61 * MINUTE));
    assert_eq!(due(&mut table, 62 * MINUTE), ["event Unschedulable", "a Unschedulable"]);
}

#[test]
fn pods_that_are_not_ours_bound_gated_or_leaving_are_left_alone() {
    let mut table = table();
    table.known(&group("Inqueue", Some("[NoRoom] x"), 1), Time(0));
    let mut others = [pod("a", 2), pod("b", 3), pod("c", 4), pod("d", 5), pod("e", 6)];
    others[0].spec["schedulerName"] = json!("default-scheduler");
    others[1].spec["nodeName"] = json!("n1");
    others[2].spec["schedulingGates"] = json!([{ "name": "wait" }]);
    others[3].metadata.deletion = Some(Time(1));
    others[4].status["phase"] = json!("Running");
    others.iter().for_each(|pod| table.applied(pod, Time(0)));
    assert_eq!(due(&mut table, MINUTE), [""; 0]);
}

#[test]
fn a_write_that_failed_is_tried_again_and_a_batch_has_its_bound() {
    let mut table = table();
    table.known(&group("Inqueue", Some("[NoRoom] x"), 1), Time(0));
    (0..30).for_each(|number| table.applied(&pod(&format!("p{number}"), number + 2), Time(0)));
    let first = table.due(Time(MINUTE), 20);
    assert_eq!((first.len(), table.due(Time(MINUTE), 20).len()), (20, 10));
    table.again(first[0].clone(), Time(2 * MINUTE));
    assert_eq!(table.next(), Some(Time(2 * MINUTE)));
    assert_eq!(table.due(Time(2 * MINUTE), 20).len(), 1);
}

#[test]
fn evictions_wait_for_their_turn_and_the_oldest_is_left_out() {
    let mut table = table();
    for number in 0..=MOST_HAPPENINGS {
        table.happened(Happening {
            key: ObjectKey::new(Kind::Pod, "default", &format!("p{number}")),
            uid: "u".to_owned(),
            is_warning: true,
            reason: "Evict",
            action: "Evicting",
            note: "x".to_owned(),
        });
    }
    assert_eq!(table.next(), Some(Time(0)));
    let Report::Event(first) = table.due(Time(1), 1).remove(0) else { panic!() };
    assert_eq!(first.key.name, "p1");
}

#[test]
fn an_event_that_was_not_written_is_told_later() {
    let mut table = table();
    table.applied(&group("Inqueue", Some("[NoRoom] no node has 8 free"), 1), Time(0));
    let report = table.due(Time(MINUTE), 1).remove(0);
    assert_eq!(table.next(), None);
    table.again(report, Time(2 * MINUTE));
    assert_eq!((due(&mut table, 2 * MINUTE - 1).len(), table.next()), (0, Some(Time(2 * MINUTE))));
    assert_eq!(due(&mut table, 2 * MINUTE), ["event Unschedulable"]);
    assert_eq!(table.next(), None);
}

#[test]
fn of_a_gang_that_started_meanwhile_it_is_not_told_that_it_waits() {
    let mut table = table();
    table.applied(&group("Inqueue", Some("[NoRoom] no node has 8 free"), 1), Time(0));
    let report = table.due(Time(MINUTE), 1).remove(0);
    table.again(report, Time(2 * MINUTE));
    table.applied(&group("Running", None, 2), Time(MINUTE));
    assert_eq!(due(&mut table, 2 * MINUTE), [""; 0]);
}

#[test]
fn the_event_of_a_pod_whose_condition_was_not_written_comes_with_it_later() {
    let mut table = table();
    table.known(&group("Inqueue", Some("[NoRoom] x"), 1), Time(0));
    table.applied(&pod("a", 2), Time(0));
    let first = table.due(Time(MINUTE), 1).remove(0);
    table.again(first, Time(2 * MINUTE));
    assert_eq!(pod_events(&mut table, 2 * MINUTE).len(), 1);
}

/// Texts of the events that go with conditions that are due.
fn pod_events(table: &mut Table, now: u64) -> Vec<String> {
    let reports = table.due(Time(now), 100).into_iter();
    let conditions = reports.filter_map(|report| match report {
        Report::Condition(condition) => Some(condition),
        Report::Event(_) => None,
    });
    let events = conditions.filter_map(|condition| condition.event);
    events.map(|event| format!("{} {} {} {}", event.key, event.uid, event.reason, event.note)).collect()
}

#[test]
fn a_pod_that_waits_has_an_event_of_its_own_but_no_flood_of_them() {
    let mut table = table();
    table.applied(&group("Inqueue", Some("[NoRoom] a"), 1), Time(0));
    table.applied(&pod("a", 2), Time(0));
    assert_eq!(pod_events(&mut table, 2_000), ["Pod default/a a-uid FailedScheduling [NoRoom] a"]);
    let mut events = 0;
    for second in (3..3_600).step_by(3) {
        let text = if second % 2 == 0 { "[NoRoom] a" } else { "[NodesClosed] b" };
        table.applied(&group("Inqueue", Some(text), second + 1), Time(second * 1_000));
        events += pod_events(&mut table, second * 1_000 + 2_500).len();
    }
    assert_eq!(events, 11);
}

#[test]
fn a_pod_whose_group_is_missing_or_needs_no_more_pods_says_so() {
    let mut table = table();
    table.applied(&pod("a", 1), Time(0));
    let missing = "Pod default/a a-uid FailedScheduling [NoSuchPodGroup] PodGroup default/gang, which the pod names, \
                   does not exist: create it, or drop the annotation scheduling.k8s.io/group-name";
    assert_eq!(pod_events(&mut table, 2_000), [missing]);
    // A group that is made for its pod comes by itself.
    let mut lone = pod("b", 2);
    lone.metadata.annotations.insert(GROUP_NAME.to_owned(), "podgroup-b-uid".to_owned());
    table.applied(&lone, Time(3_000));
    assert_eq!(due(&mut table, MINUTE), [""; 0]);
    table.applied(&group("Running", None, 3), Time(10 * MINUTE));
    assert_eq!(pod_events(&mut table, 10 * MINUTE + 9_000), [""; 0], "they are bound in a moment");
    let events = pod_events(&mut table, 10 * MINUTE + 10_000);
    assert!(events.len() == 1 && events[0].contains("FailedScheduling [MorePodsWait] "), "{events:?}");
}

#[test]
fn a_job_is_told_what_its_group_waits_for_and_what_is_wrong_with_it() {
    let mut table = table();
    let mut group = group("Inqueue", Some("[NoRoom] a"), 1);
    group.metadata.owner =
        Some(crate::api::Owner { kind: Kind::Job, name: "j".to_owned(), uid: "j-uid".to_owned() });
    table.applied(&group, Time(0));
    let told = |table: &mut Table, now: u64| -> Vec<String> {
        let events = table.due(Time(now), 100).into_iter().filter_map(|report| match report {
            Report::Event(event) => Some(format!("{} {} {}", event.key, event.reason, event.note)),
            Report::Condition(_) => None,
        });
        events.collect()
    };
    assert_eq!(
        told(&mut table, 2_000),
        ["Job default/j Unschedulable [NoRoom] a", "PodGroup default/gang Unschedulable [NoRoom] a"]
    );
    let mut job = Object::new(Kind::Job, "default", "j").with_spec(json!({
        "maxRetry": 3,
        "plugins": { "svc": [] },
        "tasks": [{ "name": "w", "policies": [{ "event": "PodFailed", "action": "RestartJob" }],
            "template": { "spec": { "containers": [{ "name": "c" }] } } }],
    }));
    table.applied(&job, Time(3_000));
    let fields =
        "Job default/j NotHonoured accepted, and without effect: spec.tasks[0].policies, spec.plugins";
    assert_eq!(told(&mut table, 3_000), [fields]);
    job.status =
        json!({ "state": { "phase": "Pending", "reason": "InvalidJob", "message": "spec.tasks: wrong" } });
    table.applied(&job, Time(4_000));
    table.applied(&job, Time(5_000));
    assert_eq!(told(&mut table, 6_000), ["Job default/j InvalidJob spec.tasks: wrong"]);
    // What the API server fills in is nobody's wish; events of queues stand in a namespace all the same.
    let mut queue = Object::new(Kind::Queue, "", "q").with_spec(json!({ "weight": 1, "reclaimable": true }));
    table.applied(&queue, Time(7_000));
    assert_eq!(told(&mut table, 7_000), [""; 0]);
    queue.spec["type"] = json!("shared");
    table.applied(&queue, Time(8_000));
    let reports = table.due(Time(8_000), 100);
    let [Report::Event(event)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(event.note, "accepted, and without effect: spec.type");
    assert_eq!(event.event(Time(0), 1, "i")["metadata"]["namespace"], "default");
    queue.spec = json!({ "capability": { "gpu": 8, "cpu": 0, "mars-tech.com/gpu": 4 } });
    table.applied(&queue, Time(9_000));
    table.applied(&queue, Time(9_000));
    let doubts = "Queue q DoubtfulValue spec.capability.gpu: no node offers gpu; did you mean nvidia.com/gpu?; \
                  spec.capability.cpu: 0 means no limit, as in Volcano; leave cpu out to say so";
    let said = told(&mut table, 9_000);
    assert!(
        said.len() == 1
            && said[0].split("; ").all(|part| doubts.contains(part.trim_start_matches("Queue q "))),
        "{said:?}"
    );
    for key in [queue.key(), job.key()] {
        table.deleted(&key);
    }
    assert_eq!(format!("{:?}", table.notices), format!("{:?}", Notices::default()));
}

#[test]
fn a_lone_pod_that_has_waited_for_its_group_does_not_wait_again() {
    let mut table = table();
    let mut made = group("Inqueue", Some("[NoRoom] a"), 1);
    made.metadata.owner =
        Some(crate::api::Owner { kind: Kind::Pod, name: "a".to_owned(), uid: "a-uid".to_owned() });
    table.applied(&pod("a", 2), Time(0));
    table.applied(&made, Time(5_500));
    assert_eq!(due(&mut table, 5_500), ["event Unschedulable", "a Unschedulable"]);
}

#[test]
fn what_is_gone_is_forgotten() {
    let mut table = table();
    table.applied(&group("Inqueue", Some("[NoRoom] x"), 1), Time(0));
    table.applied(&pod("a", 2), Time(0));
    table.deleted(&pod("a", 2).key());
    table.deleted(&group("", None, 0).key());
    assert_eq!(due(&mut table, MINUTE), [""; 0]);
    assert!(table.groups.is_empty() && table.pods.is_empty() && table.pods_of.is_empty());
}
