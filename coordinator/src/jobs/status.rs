//! Status of a job, from its pods.

use std::collections::BTreeMap;

use phalanx_common::gang::PodPhase;
use phalanx_common::units::Time;
use serde_json::{Map, Value, json};

use crate::api::Object;
use crate::api::store::phase;
use crate::convert::status::format_time;
use crate::manifest::job::JobFields;
use crate::manifest::names::TASK_SPEC;

/// Pods by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    pending: u32,
    running: u32,
    succeeded: u32,
    failed: u32,
    terminating: u32,
}

impl Counts {
    fn add(&mut self, pod: &Object) {
        let phase = phase(pod);
        let counter = match phase {
            // A pod that has ended counts as ended, whether it is being removed or not.
            PodPhase::Pending | PodPhase::Running if pod.metadata.deletion.is_some() => &mut self.terminating,
            PodPhase::Pending => &mut self.pending,
            PodPhase::Running => &mut self.running,
            PodPhase::Succeeded => &mut self.succeeded,
            PodPhase::Failed => &mut self.failed,
        };
        *counter += 1;
    }

    fn by_name(self) -> [(&'static str, u32); 5] {
        [
            ("Pending", self.pending),
            ("Running", self.running),
            ("Succeeded", self.succeeded),
            ("Failed", self.failed),
            ("Terminating", self.terminating),
        ]
    }
}

/// True where the job has ended: nothing more is made for it.
pub fn is_final(status: &Value) -> bool {
    matches!(phase_of(status), Some("Completed" | "Failed"))
}

fn phase_of(status: &Value) -> Option<&str> {
    status.get("state")?.get("phase")?.as_str()
}

/// Reason of a job that cannot be read.
pub const INVALID: &str = "InvalidJob";

/// What is wrong with a job, where its status says so.
pub fn invalid_text(status: &Value) -> Option<&str> {
    let state = status.get("state").filter(|state| state["reason"] == INVALID)?;
    state["message"].as_str()
}

/// The status of a job that cannot be read. What was made of it before stays as it is.
pub fn invalid_status(previous: &Value, pods: &[&Object], problem: &str, now: Time) -> Value {
    let phase = phase_of(previous).unwrap_or("Pending");
    let before = &previous["state"]["lastTransitionTime"];
    let since = if before.is_string() { before.clone() } else { Value::String(format_time(now)) };
    let mut status = previous.as_object().cloned().unwrap_or_default();
    let state = json!({ "phase": phase, "reason": INVALID, "message": problem, "lastTransitionTime": since });
    status.insert("state".to_owned(), state);
    let mut counts = Counts::default();
    pods.iter().for_each(|pod| counts.add(pod));
    for (name, count) in counts.by_name() {
        status.insert(name.to_ascii_lowercase(), json!(count));
    }
    Value::Object(status)
}

/// The job's status as its pods are now.
pub fn job_status(previous: &Value, fields: &JobFields, pods: &[&Object], now: Time) -> Value {
    let mut counts = Counts::default();
    let mut tasks: BTreeMap<&str, Counts> = BTreeMap::new();
    for pod in pods {
        counts.add(pod);
        tasks.entry(pod.annotation(TASK_SPEC).unwrap_or_default()).or_default().add(pod);
    }
    let before = phase_of(previous).unwrap_or("Pending");
    let (phase, message) = next_phase(before, fields, counts, &tasks);
    let is_repaired = invalid_text(previous).is_some();
    let state = if phase == before && !is_repaired && previous["state"]["lastTransitionTime"].is_string() {
        previous["state"].clone()
    } else {
        let mut state = json!({ "phase": phase, "lastTransitionTime": format_time(now) });
        if let Some(message) = message {
            state["message"] = Value::String(message);
        }
        state
    };
    let mut status = json!({
        "state": state,
        "minAvailable": fields.min_available,
        "taskStatusCount": task_counts(&tasks),
    });
    for (name, count) in counts.by_name() {
        status[name.to_ascii_lowercase()] = json!(count);
    }
    status
}

fn task_counts(tasks: &BTreeMap<&str, Counts>) -> Value {
    let mut map = Map::new();
    for (task, counts) in tasks {
        let phases: Map<String, Value> = counts
            .by_name()
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.to_owned(), json!(count)))
            .collect();
        map.insert((*task).to_owned(), json!({ "phase": phases }));
    }
    Value::Object(map)
}

/// Volcano's rules for a job without policies.
fn next_phase(
    before: &str,
    fields: &JobFields,
    counts: Counts,
    tasks: &BTreeMap<&str, Counts>,
) -> (&'static str, Option<String>) {
    match before {
        "Completed" => return ("Completed", None),
        "Failed" => return ("Failed", None),
        _ => {}
    }
    let ended = u64::from(counts.succeeded) + u64::from(counts.failed);
    let replicas = fields.replicas();
    if replicas > 0 && ended >= replicas {
        let short = fields.tasks.iter().find(|task| {
            let succeeded = tasks.get(task.name.as_str()).map_or(0, |counts| counts.succeeded);
            task.min_available.is_some_and(|minimum| succeeded < minimum)
        });
        return match short {
            Some(task) => {
                ("Failed", Some(format!("fewer pods of task {} succeeded than its minAvailable", task.name)))
            }
            None if counts.succeeded < fields.min_available => {
                let text =
                    format!("{} pods succeeded, minAvailable is {}", counts.succeeded, fields.min_available);
                ("Failed", Some(text))
            }
            None => ("Completed", None),
        };
    }
    let started = u64::from(counts.running) + ended;
    let starts = started > 0 && started >= u64::from(fields.min_available);
    if before == "Running" || starts { ("Running", None) } else { ("Pending", None) }
}
