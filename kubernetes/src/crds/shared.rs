//! What several kinds share: amounts of resources, defaults, and parts whose form is not ours to say.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The queue of what names none.
pub const DEFAULT_QUEUE: &str = "default";

/// An amount of a resource as people write it: a whole number or a Kubernetes quantity (`8`, `"500m"`, `64Gi`); never less
/// than nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// A number without quotes.
    Whole(i64),
    /// A quantity as text.
    Text(String),
}

/// Amounts by the resource's name.
pub type Amounts = BTreeMap<String, Amount>;

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,4})?$",
        })
    }
}

/// An object whose fields are kept as they are: Kubernetes' own types, which are checked when a pod is made of them.
pub(crate) fn kept_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// The same, of which the API server notes as a whole who wrote it last, and not field by field: such a note is as large as
/// a small field.
pub(crate) fn whole_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic",
    })
}

/// The name of a queue above another one; none is written as nothing, too.
pub(crate) fn parent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 253,
        "pattern": r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "nullable": true,
    })
}

/// A duration as Go and Volcano write it: `90s`, `1h30m`, `500ms`.
pub(crate) fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "pattern": r"^0$|^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$",
        "nullable": true,
    })
}

pub(crate) fn default_queue() -> String {
    DEFAULT_QUEUE.to_owned()
}

pub(crate) const fn one() -> i32 {
    1
}

pub(crate) const fn three() -> i32 {
    3
}

pub(crate) const fn yes() -> bool {
    true
}

/// How close together the pods of a gang must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkTopology {
    /// hard: the gang waits until it fits below the tier; soft: it is preferred.
    #[serde(default)]
    pub mode: NetworkTopologyMode,
    /// Highest tier of HyperNodes that the gang may cross; not together with highestTierName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_tier_allowed: Option<i64>,
    /// The same by the tier's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_tier_name: Option<String>,
}

/// hard: the gang waits until it fits below the tier; soft: that is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NetworkTopologyMode {
    /// Required.
    #[default]
    Hard,
    /// Preferred.
    Soft,
}
