//! What pods show that wait: the condition `PodScheduled=False`, and the event that goes with it.

use phalanx_common::units::Time;
use serde_json::{Value, json};

use super::super::events::Happening;
use crate::api::{ObjectKey, Preconditions};
use crate::convert::status::format_time;
use crate::manifest::names::GROUP_NAME;

/// Codes of reasons that more nodes do not help: a node autoscaler must not take them for a wish. What a gang that is
/// not admitted waits for is never such a wish.
pub(super) const NOT_FOR_NODES: [&str; 25] = [
    "NoSuchQueue",
    "QueueClosed",
    "NoSuchPriorityClass",
    "AboveCapability",
    "QuotaUsed",
    "AncestorQuotaUsed",
    "QueueSetAside",
    "TooFewPods",
    "PodBlocked",
    "PodGated",
    "ClaimBinding",
    "ClaimMissing",
    "ClaimOfAnother",
    "ClaimAwaitsPod",
    "ClaimLost",
    "ClaimDeleted",
    "ClaimUnreadable",
    "ClaimInUse",
    "MorePodsWait",
    "GroupIncomplete",
    "GroupHeld",
    "GroupOfQueues",
    "TooFewParts",
    "Degraded",
    "InProgress",
];

/// The condition `PodScheduled=False` of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// `Unschedulable` where a node more would help; else what it waits for.
    pub reason: String,
    /// The PodGroup's text.
    pub message: String,
}

/// What pods show that a gang needs no more.
pub(super) const MORE_WAIT: &str = "[MorePodsWait] the minimum of the pod's gang runs; the pod is above it and waits until there is \
                         room for it: phalanx why with its name says what is missing";

impl Shown {
    pub(super) fn waiting(message: &str) -> Self {
        Self { reason: "WaitingForGang".to_owned(), message: message.to_owned() }
    }

    /// What pods show that name a PodGroup that is not there.
    pub(super) fn without_group(group: &ObjectKey) -> Self {
        Self::waiting(&format!(
            "[NoSuchPodGroup] {group}, which the pod names, does not exist: create it, or drop the annotation {GROUP_NAME}"
        ))
    }

    /// The condition to store.
    #[must_use]
    pub fn json(&self, now: Time) -> Value {
        json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": format_time(Time(now.0 - now.0 % 1000)),
        })
    }

    /// The event that goes with it, as users know it.
    pub(super) fn event(&self, pod: &ObjectKey, preconditions: &Preconditions) -> Happening {
        Happening {
            key: pod.clone(),
            uid: preconditions.uid.clone().unwrap_or_default(),
            is_warning: true,
            reason: "FailedScheduling",
            action: "Scheduling",
            note: self.message.clone(),
        }
    }

    /// Reason and code: what must change before it is written anew.
    pub(super) fn cause(&self) -> (&str, &str) {
        (&self.reason, code_of(&self.message))
    }
}

/// The `[Code]`, or `[Code/Code]`, that a text begins with.
pub(super) fn code_of(message: &str) -> &str {
    let text = message.strip_prefix('[').unwrap_or_default();
    text.split_once(']').map_or("", |(code, _)| code)
}
