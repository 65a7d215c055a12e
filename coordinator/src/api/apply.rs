//! `apply`: create what is not there, change what differs, leave the rest alone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Api, ApiError, Kind, Mutation, Object};

/// Writes of others that may come in between before we give up.
pub(crate) const MOST_CONFLICTS: u32 = 8;

/// What `apply` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Applied {
    /// It was not there.
    Created,
    /// It was different.
    Configured,
    /// It was like this already.
    Unchanged,
}

impl Applied {
    /// Text for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Applies an object. Labels and annotations are merged over the stored ones, so that what the
/// coordinator wrote stays; the spec is replaced. Of the status only the state of a queue is anybody's to wish for.
///
/// # Errors
/// The API's; `Invalid` where a field changed that cannot change.
pub async fn apply_object(api: &impl Api, wanted: &Object) -> Result<(Arc<Object>, Applied), ApiError> {
    let mut conflicts = 0;
    loop {
        let outcome = apply_whole(api, wanted).await;
        match outcome {
            Err(error) if error.is_overtaken() && conflicts < MOST_CONFLICTS => {
                conflicts += 1;
            }
            other => return other,
        }
    }
}

async fn apply_whole(api: &impl Api, wanted: &Object) -> Result<(Arc<Object>, Applied), ApiError> {
    let (stored, applied) = apply_once(api, wanted).await?;
    let Some(status) = status_in_state(&stored, wanted) else { return Ok((stored, applied)) };
    let preconditions = stored.preconditions();
    let stored = api.mutate(Mutation::UpdateStatus { key: stored.key(), preconditions, status }).await?;
    Ok((stored, if applied == Applied::Created { applied } else { Applied::Configured }))
}

/// The status with the state that is wished for; `None` where it is in that state or none is. A queue that is closing
/// is closed as far as anybody can wish.
fn status_in_state(stored: &Object, wanted: &Object) -> Option<Value> {
    let wish = wanted.status.get("state")?.as_str()?;
    let is_open = |state: &str| state == "Open";
    let now = stored.status.get("state").and_then(Value::as_str).unwrap_or("Open");
    if is_open(now) == is_open(wish) {
        return None;
    }
    let mut status = stored.status.as_object().cloned().unwrap_or_default();
    status.insert("state".to_owned(), Value::from(wish));
    Some(Value::Object(status))
}

async fn apply_once(api: &impl Api, wanted: &Object) -> Result<(Arc<Object>, Applied), ApiError> {
    let create = || Mutation::Create(Box::new(wanted.clone()));
    if wanted.metadata.name.is_empty() {
        return Ok((api.mutate(create()).await?, Applied::Created));
    }
    let stored = match api.get(&wanted.key()).await {
        Err(ApiError::NotFound(_)) => return Ok((api.mutate(create()).await?, Applied::Created)),
        other => other?,
    };
    let Some(merged) = merge(&stored, wanted)? else { return Ok((stored, Applied::Unchanged)) };
    Ok((api.mutate(Mutation::Update(Box::new(merged))).await?, Applied::Configured))
}

/// The stored object with what is wanted; `None` where nothing differs.
///
/// # Errors
/// `Invalid` where a field differs that cannot change.
pub fn merge(stored: &Object, wanted: &Object) -> Result<Option<Object>, ApiError> {
    let mut merged = stored.clone();
    merged.metadata.labels.extend(wanted.metadata.labels.clone());
    merged.metadata.annotations.extend(wanted.metadata.annotations.clone());
    match stored.kind {
        Kind::Pod => {
            if without(&stored.spec, &["nodeName"]) != without(&wanted.spec, &["nodeName"]) {
                return Err(ApiError::Invalid(format!(
                    "spec: the spec of {} cannot be changed; delete the pod and apply it again",
                    stored.key()
                )));
            }
        }
        Kind::Job => {
            if frozen_part(&stored.spec) != frozen_part(&wanted.spec) {
                return Err(ApiError::Invalid(format!(
                    "spec: of {} only minAvailable, priorityClassName, tasks[].replicas and tasks[].minAvailable can be changed; delete the job and apply it again",
                    stored.key()
                )));
            }
            merged.spec = wanted.spec.clone();
        }
        Kind::Queue
        | Kind::QueuePolicy
        | Kind::PriorityClass
        | Kind::Node
        | Kind::PodGroup
        | Kind::GangPlan
        | Kind::PodDisruptionBudget
        | Kind::StorageClass
        | Kind::PersistentVolume
        | Kind::PersistentVolumeClaim => {
            merged.spec = wanted.spec.clone();
        }
    }
    Ok((merged != *stored).then_some(merged))
}

fn without(value: &Value, fields: &[&str]) -> Value {
    let mut copy = value.clone();
    if let Value::Object(map) = &mut copy {
        for field in fields {
            map.remove(*field);
        }
    }
    copy
}

/// A Job's spec without what may change while it exists.
fn frozen_part(spec: &Value) -> Value {
    let mut copy = without(spec, &["minAvailable", "priorityClassName"]);
    if let Some(tasks) = copy.get_mut("tasks").and_then(Value::as_array_mut) {
        for task in tasks {
            *task = without(task, &["replicas", "minAvailable"]);
        }
    }
    copy
}
