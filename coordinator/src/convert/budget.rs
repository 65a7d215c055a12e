//! PodDisruptionBudgets, as Kubernetes shows them.

use phalanx_common::ids::GangName;
use phalanx_core::event::{DisruptionBudget, Event};
use serde_json::Value;

use super::Converted;
use crate::api::Object;
use crate::manifest::selector::requirements;

/// Reads `spec.selector` and `status.disruptionsAllowed`. A selector that cannot be read gives a warning and no fact.
pub(super) fn budget(object: &Object) -> Converted {
    let selector = object.spec.get("selector").filter(|selector| !selector.is_null());
    let selector = match selector.map(requirements).transpose() {
        Ok(selector) => selector,
        Err(problem) => {
            let warning = format!("{}: spec.selector: {problem}; the object is left out", object.key());
            return Converted { event: None, warnings: vec![warning] };
        }
    };
    let allowed = object.status.get("disruptionsAllowed").and_then(Value::as_u64).unwrap_or(0);
    Converted::event(Event::BudgetApplied(Box::new(DisruptionBudget {
        name: GangName::new(&object.metadata.namespace, &object.metadata.name),
        selector,
        disruptions_allowed: u32::try_from(allowed).unwrap_or(u32::MAX),
    })))
}
