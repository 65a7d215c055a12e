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
    table.again(&first[0], Time(2 * MINUTE));
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
fn what_is_gone_is_forgotten() {
    let mut table = table();
    table.applied(&group("Inqueue", Some("[NoRoom] x"), 1), Time(0));
    table.applied(&pod("a", 2), Time(0));
    table.deleted(&pod("a", 2).key());
    table.deleted(&group("", None, 0).key());
    assert_eq!(due(&mut table, MINUTE), [""; 0]);
    assert!(table.groups.is_empty() && table.pods.is_empty() && table.pods_of.is_empty());
}
