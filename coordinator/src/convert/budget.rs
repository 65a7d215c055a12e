//! PodDisruptionBudgets, as Kubernetes shows them.

use std::sync::Arc;

use phalanx_common::constraints::{LabelOperator, LabelRequirement};
use phalanx_common::ids::GangName;
use phalanx_core::event::{DisruptionBudget, Event};
use serde_json::Value;

use super::Converted;
use crate::api::Object;

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

fn requirements(selector: &Value) -> Result<Vec<LabelRequirement>, String> {
    let mut requirements = Vec::new();
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    for (key, value) in labels {
        let value = text(value, "matchLabels")?;
        requirements.push(LabelRequirement {
            key: Arc::from(key.as_str()),
            operator: LabelOperator::In,
            values: vec![value],
        });
    }
    let rules = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    for rule in rules {
        let operator = text(rule.get("operator").unwrap_or(&Value::Null), "matchExpressions.operator")?;
        let known = LabelOperator::ALL.into_iter().find(|known| known.as_str() == &*operator);
        let known = known.filter(|known| !matches!(known, LabelOperator::Gt | LabelOperator::Lt));
        let operator = known.ok_or_else(|| {
            format!(
                "matchExpressions.operator: must be In, NotIn, Exists or DoesNotExist, found {operator:?}"
            )
        })?;
        let values = rule.get("values").and_then(Value::as_array).into_iter().flatten();
        requirements.push(LabelRequirement {
            key: text(rule.get("key").unwrap_or(&Value::Null), "matchExpressions.key")?,
            operator,
            values: values
                .map(|value| text(value, "matchExpressions.values"))
                .collect::<Result<Vec<_>, _>>()?,
        });
    }
    Ok(requirements)
}

fn text(value: &Value, field: &str) -> Result<Arc<str>, String> {
    value.as_str().map(Arc::from).ok_or_else(|| format!("{field}: must be a text, found {value}"))
}
