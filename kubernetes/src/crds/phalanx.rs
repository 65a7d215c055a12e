//! `phalanx.dev/v1alpha1`: GangPlan, which Phalanx writes for itself, and QueuePolicy, which completes a Queue.

#![allow(clippy::duplicated_attributes, reason = "two printer columns may have the same type")]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared::{duration, whole_object};

/// What was decided for gangs. Fields that this version does not know are kept, so that an older coordinator loses
/// nothing of what a newer one wrote.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "phalanx.dev",
    version = "v1alpha1",
    kind = "GangPlan",
    plural = "gangplans",
    namespaced,
    shortname = "gplan",
    status = "GangPlanStatus",
    derive = "PartialEq",
    doc = "The durable record of decisions for gangs whose pods are being bound. Phalanx writes it for whoever leads next; \
           nobody else should.",
    printcolumn(name = "GANGS", type_ = "integer", json_path = ".spec.gangs"),
    printcolumn(name = "TERM", type_ = "integer", json_path = ".spec.term"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct GangPlanSpec {
    /// How many gangs' plans are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gangs: Option<i64>,
    /// Highest counter of the terms under which they were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<i64>,
    /// The plans by NAMESPACE/PODGROUP: uid of the PodGroup, term, deadline for the binding in milliseconds since 1970,
    /// nodes, and a line of text for each pod. docs/kubernetes.md says how to read one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "whole_object")]
    pub plans: Option<Value>,
}

/// What is known of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct GangPlanStatus {
    /// Since when the gang has waited, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<i64>,
}

/// What a Queue has no field for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "phalanx.dev",
    version = "v1alpha1",
    kind = "QueuePolicy",
    plural = "queuepolicies",
    shortname = "qpol",
    status = "QueuePolicyStatus",
    derive = "PartialEq",
    doc = "What the Queue of the same name has no field for: who may use it, and times of its gangs.",
    printcolumn(name = "NAMESPACES", type_ = "string", json_path = ".spec.namespaces"),
    printcolumn(name = "MINIMUM-RUN", type_ = "string", json_path = ".spec.minimumRunTime"),
    printcolumn(name = "HOLD-AFTER", type_ = "string", json_path = ".spec.holdAfter"),
    printcolumn(name = "STARTUP", type_ = "string", json_path = ".spec.startupDeadline"),
    printcolumn(name = "DEFAULT-RUN", type_ = "string", json_path = ".spec.defaultRunTime", priority = 1),
    printcolumn(name = "MAXIMUM-RUN", type_ = "string", json_path = ".spec.maximumRunTime"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct QueuePolicySpec {
    /// Namespaces whose gangs may use the queue; all where it is not given, none where the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// For this long after its start a gang of the queue is not evicted for others, such as 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub minimum_run_time: Option<String>,
    /// After this long a waiting gang gets a hold, nodes that are kept for it, such as 5m; the coordinator's setting where
    /// it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub hold_after: Option<String>,
    /// A gang whose pods have not all started after this time gives its GPUs back, such as 20m; never where it is not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub startup_deadline: Option<String>,
    /// How long a gang is taken to run that says nothing of it, such as 4h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub default_run_time: Option<String>,
    /// A gang of the queue is stopped when it has run so long, such as 24h; never where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub maximum_run_time: Option<String>,
}

/// What is known of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct QueuePolicyStatus {
    /// The generation that was read last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
