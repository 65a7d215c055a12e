//! Statuses as Volcano and Kubernetes write them.

use std::sync::Arc;

use jiff::Timestamp;
use phalanx_common::gang::{PodPhase, ShownGang};
use phalanx_common::queue::{ShownQueue, closed_state};
use phalanx_common::resources::{ResourceName, Resources, parse_quantity};
use phalanx_common::units::Time;
use phalanx_core::action::{GangPhase, GangStatus, QueueStatus};
use phalanx_core::reason::Reason;
use serde_json::{Value, json};

use crate::manifest::amounts::resources_to_json;

/// Condition of a PodGroup that does not run.
const UNSCHEDULABLE: &str = "Unschedulable";

/// A point in time as Kubernetes writes it, `2026-11-29T12:00:00Z`.
#[must_use]
pub fn format_time(time: Time) -> String {
    i64::try_from(time.0)
        .ok()
        .and_then(|milliseconds| Timestamp::from_millisecond(milliseconds).ok())
        .unwrap_or(Timestamp::MAX)
        .to_string()
}

/// Reads a point in time.
#[must_use]
pub fn parse_time(text: &str) -> Option<Time> {
    let timestamp: Timestamp = text.parse().ok()?;
    u64::try_from(timestamp.as_millisecond()).ok().map(Time)
}

/// Volcano's name for a reason.
#[must_use]
pub const fn volcano_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::TooFewPods { task: Some(_), .. } => "NotEnoughPodsOfTask",
        Reason::TooFewPods { task: None, .. } => "NotEnoughTasks",
        _ => "NotEnoughResources",
    }
}

/// A PodGroup's status. A condition that stays as it was keeps its time.
#[must_use]
pub fn pod_group_status(previous: &Value, status: &GangStatus, now: Time) -> Value {
    let mut conditions = Vec::new();
    match &status.reason {
        Some(Reason::InProgress { .. }) => {}
        Some(reason) => {
            let message = match reason.fix() {
                fix if fix.is_empty() => format!("[{}] {reason}", reason.codes()),
                fix => format!("[{}] {reason}; {fix}", reason.codes()),
            };
            conditions.push(condition(previous, UNSCHEDULABLE, volcano_reason(reason), &message, now));
        }
        None => {}
    }
    if matches!(status.phase, GangPhase::Running | GangPhase::Completed) {
        let message = "all pods of the gang's minimum are bound";
        conditions.push(condition(previous, "Scheduled", "GangScheduled", message, now));
    }
    json!({
        "phase": status.phase.as_str(),
        "conditions": conditions,
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
    })
}

fn condition(previous: &Value, kind: &str, reason: &str, message: &str, now: Time) -> Value {
    let before = previous
        .get("conditions")
        .and_then(Value::as_array)
        .and_then(|conditions| conditions.iter().find(|condition| condition["type"] == kind));
    let since = before
        .filter(|before| before["status"] == "True" && before["reason"] == reason)
        .and_then(|before| before["lastTransitionTime"].as_str())
        .map_or_else(|| format_time(now), str::to_owned);
    json!({
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    })
}

/// A queue's status. What is not the core's to decide is kept: whether it is closed, and whatever others keep there. One
/// that is closed is Closing as long as it has gangs.
#[must_use]
pub fn queue_status(previous: &Value, status: &QueueStatus) -> Value {
    let mut new = previous.as_object().cloned().unwrap_or_default();
    let gangs = [status.pending, status.inqueue, status.running, status.completed].map(u64::from);
    let state = match new.get("state").and_then(Value::as_str) {
        Some(state) => right_state(state, gangs.iter().sum()).unwrap_or(state),
        None => "Open",
    };
    new.insert("state".to_owned(), json!(state));
    new.insert("allocated".to_owned(), resources_to_json(&status.allocated));
    if !status.reservation.is_empty() || new.contains_key("reservation") {
        // Nodes that somebody else has set aside stay.
        let mut reservation = new.get("reservation").and_then(Value::as_object).cloned().unwrap_or_default();
        reservation.insert("resource".to_owned(), resources_to_json(&status.reservation));
        new.insert("reservation".to_owned(), Value::Object(reservation));
    }
    let counts = [
        ("pending", status.pending),
        ("inqueue", status.inqueue),
        ("running", status.running),
        ("completed", status.completed),
        ("unknown", 0),
    ];
    new.extend(counts.map(|(name, count)| (name.to_owned(), json!(count))));
    Value::Object(new)
}

/// What the state of a queue that is closed is to say with so many gangs; `None` for one that is not closed.
fn right_state(state: &str, gangs: u64) -> Option<&'static str> {
    match state {
        "Closed" | "Closing" => Some(closed_state(gangs)),
        _ => None,
    }
}

/// What of a PodGroup's status the core compares with what it decided. Whatever cannot be read differs from all that
/// the core writes.
#[must_use]
pub fn shown_gang(status: &Value) -> ShownGang {
    let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let mut unschedulable = conditions.filter(|condition| condition["type"] == UNSCHEDULABLE);
    let code = unschedulable.find_map(|condition| {
        let message = condition["message"].as_str()?.strip_prefix('[')?;
        message.split_once(']').map(|(code, _)| Arc::from(code))
    });
    ShownGang {
        phase: Arc::from(status.get("phase").and_then(Value::as_str).unwrap_or_default()),
        reason: code,
        running: number(status, "running"),
        succeeded: number(status, "succeeded"),
        failed: number(status, "failed"),
    }
}

/// The same of a queue's status.
#[must_use]
pub fn shown_queue(status: &Value) -> ShownQueue {
    let mut shown = ShownQueue {
        allocated: shown_amounts(status.get("allocated")),
        reservation: shown_amounts(status.pointer("/reservation/resource")),
        pending: number(status, "pending"),
        inqueue: number(status, "inqueue"),
        running: number(status, "running"),
        completed: number(status, "completed"),
    };
    let gangs = [shown.pending, shown.inqueue, shown.running, shown.completed];
    let gangs = gangs.into_iter().fold(0_u64, u64::saturating_add);
    let state = status.get("state").and_then(Value::as_str).unwrap_or_default();
    if right_state(state, gangs).is_some_and(|right| right != state) {
        // Whoever closed it wrote only that: it is to be written as a whole.
        shown.pending = u64::MAX;
    }
    shown
}

fn shown_amounts(amounts: Option<&Value>) -> Resources {
    let mut shown = Resources::new();
    for (name, amount) in amounts.and_then(Value::as_object).into_iter().flatten() {
        let Ok(name) = ResourceName::parse(name) else { continue };
        let amount = amount.as_str().and_then(|text| parse_quantity(&name, text).ok());
        if let Some(amount) = amount.filter(|amount| *amount > 0) {
            shown.set(name, amount);
        }
    }
    shown
}

fn number(status: &Value, name: &str) -> u64 {
    status.get(name).and_then(Value::as_u64).unwrap_or(u64::MAX)
}

/// A pod's status. `startTime` is set once, when it first runs; `endTime` when it has ended.
#[must_use]
pub fn pod_status(previous: &Value, phase: PodPhase, now: Time) -> Value {
    let mut status = json!({ "phase": phase.as_str() });
    let kept = |name: &str| previous.get(name).filter(|value| value.is_string()).cloned();
    if phase != PodPhase::Pending {
        status["startTime"] = kept("startTime").unwrap_or_else(|| Value::String(format_time(now)));
    }
    if phase.is_terminal() {
        status["endTime"] = kept("endTime").unwrap_or_else(|| Value::String(format_time(now)));
    }
    status
}

/// When a pod ended.
#[must_use]
pub fn pod_end(status: &Value) -> Option<Time> {
    status.get("endTime").and_then(Value::as_str).and_then(parse_time)
}

/// When a pod began to run.
#[must_use]
pub fn pod_start(status: &Value) -> Option<Time> {
    status.get("startTime").and_then(Value::as_str).and_then(parse_time)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_common::ids::QueueName;

    use super::*;

    const NOW: Time = Time(1_764_437_478_123);

    #[test]
    fn a_gangs_status_is_read_back_as_it_was_written() {
        let waits = Some(Reason::NoSuchQueue { queue: QueueName::from("red") });
        let step = Some(Reason::InProgress { step: Arc::from("its plan is being written") });
        for phase in GangPhase::ALL {
            for (reason, code) in [(None, None), (waits.clone(), Some("NoSuchQueue")), (step.clone(), None)] {
                let status = GangStatus { phase, reason, running: 1, succeeded: 2, failed: 3 };
                let shown = shown_gang(&pod_group_status(&Value::Null, &status, NOW));
                assert_eq!((&*shown.phase, shown.reason.as_deref()), (phase.as_str(), code));
                assert_eq!([shown.running, shown.succeeded, shown.failed], [1, 2, 3]);
            }
        }
    }

    #[test]
    fn a_queues_status_is_read_back_as_it_was_written() {
        let mut allocated = Resources::new();
        for (name, amount) in [
            ("cpu", 1_500),
            ("memory", (3 << 30) + 1),
            ("nvidia.com/gpu", 8),
            ("example.com/fpga", 7_777_777),
        ] {
            allocated.set(ResourceName::parse(name).unwrap(), amount);
        }
        let mut reservation = Resources::new();
        reservation.set(ResourceName::parse("nvidia.com/gpu").unwrap(), 2);
        let status = QueueStatus {
            allocated,
            pending: 1,
            inqueue: 2,
            running: 3,
            completed: 4,
            reservation: reservation.clone(),
        };
        let before = json!({ "reservation": { "nodes": ["n1"], "resource": { "cpu": "9" } } });
        let written = queue_status(&before, &status);
        assert_eq!(written["reservation"], json!({ "nodes": ["n1"], "resource": { "nvidia.com/gpu": "2" } }));
        let shown = shown_queue(&written);
        assert_eq!((&shown.allocated, &shown.reservation), (&status.allocated, &reservation));
        let none = queue_status(&Value::Null, &QueueStatus::default());
        assert_eq!((none.get("reservation"), shown_queue(&none).reservation), (None, Resources::new()));
        let shown = shown_queue(&queue_status(&Value::Null, &status));
        assert_eq!(shown.allocated, status.allocated);
        assert_eq!([shown.pending, shown.inqueue, shown.running, shown.completed], [1, 2, 3, 4]);
    }

    #[test]
    fn a_closed_queue_is_closing_as_long_as_it_has_gangs() {
        let status = |running, completed| QueueStatus { running, completed, ..QueueStatus::default() };
        for (before, running, completed, after) in [
            ("Open", 1, 0, "Open"),
            ("Unknown", 1, 0, "Unknown"),
            ("Closed", 1, 0, "Closing"),
            ("Closing", 0, 1, "Closing"),
            ("Closing", 0, 0, "Closed"),
            ("Closed", 0, 0, "Closed"),
        ] {
            let written = queue_status(&json!({ "state": before, "theirs": 1 }), &status(running, completed));
            assert_eq!((&written["state"], &written["theirs"]), (&json!(after), &json!(1)), "{before}");
            // As it was written it is at rest; as somebody closed it, it differs from all that is written.
            assert_eq!(shown_queue(&written).pending, 0);
            let mut closed = written.clone();
            closed["state"] = json!(before);
            assert_eq!(shown_queue(&closed).pending, if before == after { 0 } else { u64::MAX }, "{before}");
        }
    }

    #[test]
    fn what_is_no_status_of_ours_differs_from_all_that_are() {
        for status in [Value::Null, json!({}), json!({"running": -1, "allocated": 7, "conditions": "x"})] {
            assert_eq!(shown_gang(&status).running, u64::MAX, "{status}");
            assert_eq!(shown_queue(&status).pending, u64::MAX, "{status}");
        }
    }
}
