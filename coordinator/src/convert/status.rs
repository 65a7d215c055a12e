//! Statuses as Volcano and Kubernetes write them.

use jiff::Timestamp;
use phalanx_common::gang::PodPhase;
use phalanx_common::units::Time;
use phalanx_core::action::{GangPhase, GangStatus, QueueStatus};
use phalanx_core::reason::Reason;
use serde_json::{Value, json};

use crate::manifest::amounts::resources_to_json;

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
                fix if fix.is_empty() => format!("[{}] {reason}", reason.code()),
                fix => format!("[{}] {reason}; {fix}", reason.code()),
            };
            conditions.push(condition(previous, "Unschedulable", volcano_reason(reason), &message, now));
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

/// A queue's status. What is not the core's to decide is kept: its state, and whatever others keep there.
#[must_use]
pub fn queue_status(previous: &Value, status: &QueueStatus) -> Value {
    let mut new = previous.as_object().cloned().unwrap_or_default();
    if !new.get("state").is_some_and(Value::is_string) {
        new.insert("state".to_owned(), json!("Open"));
    }
    new.insert("allocated".to_owned(), resources_to_json(&status.allocated));
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

/// When a pod began to run.
#[must_use]
pub fn pod_start(status: &Value) -> Option<Time> {
    status.get("startTime").and_then(Value::as_str).and_then(parse_time)
}
