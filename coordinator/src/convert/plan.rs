//! Plans as objects, and the writes that keep them: what a later leader has written stays, whoever is late.

use phalanx_common::ids::{GangName, LeaseId};
use phalanx_common::plan::GangPlan;
use phalanx_core::is_believable;
use serde_json::{Map, Value};

use crate::api::apply::merge;
use crate::api::{ApiError, Kind, Mutation, Object, ObjectKey, Owner};

/// Key of a gang's plan.
#[must_use]
pub fn plan_key(gang: &GangName) -> ObjectKey {
    ObjectKey::new(Kind::GangPlan, &gang.namespace, &gang.name)
}

/// The object a plan is stored as; it goes when its PodGroup goes.
///
/// # Errors
/// The plan cannot be written as JSON.
pub fn plan_object(plan: &GangPlan) -> Result<Object, ApiError> {
    let mut object = Object::new(Kind::GangPlan, &plan.gang.namespace, &plan.gang.name);
    object.metadata.owner = Some(Owner {
        kind: Kind::PodGroup,
        name: plan.gang.name.to_string(),
        uid: plan.gang_uid.to_string(),
    });
    let invalid = |error| ApiError::Invalid(format!("{}: cannot be written: {error}", object.key()));
    let mut spec = serde_json::to_value(plan).map_err(invalid)?;
    for (stored, pod) in pods_of(&mut spec).zip(&plan.pods) {
        if let Some(lease) = pod.lease {
            stored.insert(LEASE.to_owned(), Value::String(lease.to_string()));
        }
    }
    object.spec = spec;
    Ok(object)
}

/// A lease is stored as text: an API server keeps no whole number above that of 63 bits, it rounds it.
const LEASE: &str = "lease";

fn pods_of(spec: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let pods = spec.get_mut("pods").and_then(Value::as_array_mut);
    pods.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Reads a stored plan.
///
/// # Errors
/// What is wrong with it.
pub fn plan_of_object(object: &Object) -> Result<GangPlan, String> {
    let wrong = |error: String| format!("{}: spec: {error}; the plan is left out", object.key());
    let mut spec = object.spec.clone();
    for pod in pods_of(&mut spec) {
        // Two numbers in a store of an earlier version: those were never an API server's.
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

/// The write that brings a plan into the place of the stored one; `None` where that is the same already. It
/// carries UID and resourceVersion of the stored one as preconditions.
///
/// # Errors
/// `Conflict` where the stored one is of a later term; `Invalid` where the plan cannot be written.
pub fn plan_write(stored: Option<&Object>, plan: &GangPlan) -> Result<Option<Mutation>, ApiError> {
    let wanted = plan_object(plan)?;
    let Some(stored) = stored else { return Ok(Some(Mutation::Create(Box::new(wanted)))) };
    check_term(stored, plan.term)?;
    Ok(merge(stored, &wanted)?.map(|merged| Mutation::Update(Box::new(merged))))
}

/// The write that removes a stored plan on behalf of a leader of this term.
///
/// # Errors
/// `Conflict` where the stored one is of a later term.
pub fn plan_removal(stored: &Object, term: u64) -> Result<Mutation, ApiError> {
    check_term(stored, term)?;
    Ok(Mutation::Delete { key: stored.key(), preconditions: stored.preconditions() })
}

/// A plan that cannot be read, or of a term that nobody can have reached, belongs to nobody.
fn check_term(stored: &Object, term: u64) -> Result<(), ApiError> {
    match plan_of_object(stored) {
        Ok(found) if found.term > term && is_believable(found.term, term) => {
            Err(ApiError::Conflict(format!(
                "{} was written under term {}, and this write is of term {term}",
                stored.key(),
                found.term
            )))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
