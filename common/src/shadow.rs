//! What a coordinator in shadow mode reports: what it would have done, beside what another scheduler did.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::NodeName;
use crate::units::Time;

/// What came of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShadowOutcome {
    /// Decided here first, and the other scheduler chose the same node.
    SameNode,
    /// Decided here first, and the other scheduler chose another node.
    OtherNode,
    /// The other scheduler placed it before it was decided here.
    NotDecided,
    /// It was deleted, or has ended, before the other scheduler placed it.
    NotPlaced,
}

impl ShadowOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::SameNode, Self::OtherNode, Self::NotDecided, Self::NotPlaced];

    /// As metrics and people write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SameNode => "same-node",
            Self::OtherNode => "other-node",
            Self::NotDecided => "not-decided",
            Self::NotPlaced => "not-placed",
        }
    }
}

/// A place and when it was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowPlace {
    /// The node.
    pub node: NodeName,
    /// When.
    pub at: Time,
}

/// One pod: where it would go, and where it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowPod {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// What was decided here.
    pub decided: Option<ShadowPlace>,
    /// What the other scheduler did.
    pub placed: Option<ShadowPlace>,
    /// What came of it; `None` while the other scheduler has not placed it.
    pub outcome: Option<ShadowOutcome>,
}

/// A pod that would have been evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowEviction {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Why.
    pub cause: Arc<str>,
    /// When it was decided.
    pub at: Time,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// When it began.
    pub since: Time,
    /// Names of the schedulers whose pods are looked at.
    pub scheduler_names: Vec<String>,
    /// How many pods there were of each outcome.
    pub outcomes: Vec<(ShadowOutcome, u64)>,
    /// Pods that would have been evicted.
    pub evictions: u64,
    /// Pods with a decision that the other scheduler has not placed.
    pub waiting: u64,
    /// The first of these by age.
    pub waiting_pods: Vec<ShadowPod>,
    /// The last pods that had an outcome, newest first.
    pub recent: Vec<ShadowPod>,
    /// The last pods that would have been evicted, newest first.
    pub recent_evictions: Vec<ShadowEviction>,
}
