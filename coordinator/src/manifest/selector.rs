//! Selectors over the labels of pods.

use std::sync::Arc;

use phalanx_common::constraints::{LabelOperator, LabelRequirement};
use serde_json::Value;

use super::tree::shorten;

/// What a selector's `matchLabels` and `matchExpressions` ask, all of it.
///
/// # Errors
/// The field, and what is wrong with it.
pub fn requirements(selector: &Value) -> Result<Vec<LabelRequirement>, String> {
    if !selector.is_object() {
        return Err(format!(
            "must be an object with matchLabels or matchExpressions, found {}",
            shorten(&selector.to_string())
        ));
    }
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
    value
        .as_str()
        .map(Arc::from)
        .ok_or_else(|| format!("{field}: must be a text, found {}", shorten(&value.to_string())))
}
