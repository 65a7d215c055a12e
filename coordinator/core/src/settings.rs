//! The policy's numbers, with the project's defaults.

use phalanx_common::units::Millis;
use serde::{Deserialize, Serialize};

/// What an operator may set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// An agent's promise ends after this unless it is armed.
    pub reservation_ms: Millis,
    /// A plan that is not wholly confirmed by then is dropped. Below `reservation_ms`.
    pub confirm_timeout_ms: Millis,
    /// A committed gang that is not wholly bound by then is rolled back.
    pub binding_deadline_ms: Millis,
    /// An unanswered message to an agent is sent again after this.
    pub resend_ms: Millis,
    /// Refusals in a row after which a node is closed.
    pub refusal_budget: u32,
    /// How long a node stays closed for refusals.
    pub quarantine_ms: Millis,
    /// An admitted gang whose pods are not all there after this gives its quota to gangs that wait for it.
    #[serde(default = "pods_timeout_ms")]
    pub pods_timeout_ms: Millis,
    /// Placements of a gang that may fail per minute, after they were begun, before it has to wait.
    pub attempts_per_minute: u32,
    /// Gangs may take the place of less urgent ones of their queue.
    #[serde(default)]
    pub preempt: bool,
    /// Queues may take back what others have above their share.
    #[serde(default)]
    pub reclaim: bool,
    /// A gang that waited so long for room gets a hold.
    #[serde(default = "hold_after_ms")]
    pub hold_after_ms: Millis,
    /// A victim that is not gone so long after its grace period is given up.
    #[serde(default = "victim_timeout_ms")]
    pub victim_timeout_ms: Millis,
    /// A gang that is below its minimum for so long gives back what it has; `None` = never.
    #[serde(default)]
    pub degraded_grace_ms: Option<Millis>,
    /// Queue for gangs that name none; it exists without an object.
    pub default_queue: String,
    /// Kubelets stop the pods that are deleted: such a pod holds what it has until its object is gone or its phase
    /// says that it has ended. Without, the agent's word that it stopped the pod is waited for.
    #[serde(default)]
    pub kubelet_stops_pods: bool,
}

/// Operators make the pods of a gang within seconds of its admission.
const fn pods_timeout_ms() -> Millis {
    Millis::from_seconds(120)
}

const fn hold_after_ms() -> Millis {
    Millis::from_seconds(300)
}

const fn victim_timeout_ms() -> Millis {
    Millis::from_seconds(60)
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            reservation_ms: Millis::from_seconds(10),
            confirm_timeout_ms: Millis::from_seconds(5),
            binding_deadline_ms: Millis::from_seconds(120),
            resend_ms: Millis::from_seconds(1),
            refusal_budget: 3,
            quarantine_ms: Millis::from_seconds(30),
            pods_timeout_ms: pods_timeout_ms(),
            attempts_per_minute: 30,
            preempt: true,
            reclaim: true,
            hold_after_ms: hold_after_ms(),
            victim_timeout_ms: victim_timeout_ms(),
            degraded_grace_ms: Some(Millis::from_seconds(300)),
            default_queue: "default".to_owned(),
            kubelet_stops_pods: false,
        }
    }
}
