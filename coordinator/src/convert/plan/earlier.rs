//! Plans as earlier versions of Phalanx stored them: an object for each gang, of the name of its PodGroup. They are read
//! and removed, and written no more.

use phalanx_common::ids::{GangName, LeaseId};
use phalanx_common::plan::GangPlan;
use serde_json::{Map, Value};

use super::{PLANS, check_term};
use crate::api::{ApiError, Kind, Mutation, Object, ObjectKey};

/// A lease is text: an API server keeps no whole number above that of 63 bits, it rounds it.
const LEASE: &str = "lease";
/// Only these objects have it.
const GANG: &str = "gang";

/// Key of a gang's plan in this form.
#[must_use]
pub fn key(gang: &GangName) -> ObjectKey {
    ObjectKey::new(Kind::GangPlan, &gang.namespace, &gang.name)
}

/// True for an object in this form, also for one that cannot be read.
#[must_use]
pub fn is_earlier(object: &Object) -> bool {
    let has = |field: &str| object.spec.get(field).is_some_and(|value| !value.is_null());
    has(GANG) || !has(PLANS)
}

fn pods_of(spec: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let pods = spec.get_mut("pods").and_then(Value::as_array_mut);
    pods.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Reads a plan in this form.
///
/// # Errors
/// What is wrong with it.
pub fn plan_of_object(object: &Object) -> Result<GangPlan, String> {
    let wrong = |error: String| format!("{}: spec: {error}; the plan is left out", object.key());
    let mut spec = object.spec.clone();
    for pod in pods_of(&mut spec) {
        // Two numbers in a store of a still earlier version: those were never an API server's.
        if let Some(Value::String(text)) = pod.get(LEASE) {
            let lease: LeaseId = text.parse().map_err(|error| wrong(format!("pods[].{LEASE}: {error}")))?;
            let lease = serde_json::to_value(lease).map_err(|error| wrong(error.to_string()))?;
            pod.insert(LEASE.to_owned(), lease);
        }
    }
    let plan: GangPlan = serde_json::from_value(spec).map_err(|error| wrong(error.to_string()))?;
    let named = GangName::new(&object.metadata.namespace, &object.metadata.name);
    if plan.gang != named {
        return Err(format!("{}: spec.gang: names {}; the plan is left out", object.key(), plan.gang));
    }
    Ok(plan)
}

/// The write that removes a plan in this form on behalf of a leader of this term.
///
/// # Errors
/// As `check`.
pub fn removal(stored: &Object, term: u64) -> Result<Mutation, ApiError> {
    check(stored, term)?;
    Ok(Mutation::Delete { key: stored.key(), preconditions: stored.preconditions() })
}

/// A plan that cannot be read belongs to nobody.
///
/// # Errors
/// `Conflict` where the stored one is of a later term.
pub fn check(stored: &Object, term: u64) -> Result<(), ApiError> {
    match plan_of_object(stored) {
        Ok(found) => check_term(&stored.key().to_string(), found.term, term),
        Err(_) => Ok(()),
    }
}
