//! Why pods wait for PersistentVolumeClaims.

use std::fmt;
use std::sync::Arc;

use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

/// Pods of a gang wait for claims: the first of them, and how many have their volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimHeld {
    /// The claim.
    pub claim: Arc<str>,
    /// What is the matter with it.
    pub problem: ClaimProblem,
    /// Claims of the pods that wait which have a volume.
    pub with_volume: u32,
    /// Claims of the pods that wait in all.
    pub claims: u32,
}

/// What is the matter with a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClaimProblem {
    /// It has no volume yet.
    Binding {
        /// When it was made.
        since: Time,
        /// How long ago that is; left out of what is written down, where it would soon be wrong.
        seconds: Option<u64>,
    },
    /// It does not exist.
    Missing {
        /// It is made for the pod, by Kubernetes.
        own: bool,
    },
    /// It should have been made for a pod, and a claim of that name was there before.
    OfAnother {
        /// The pod.
        pod: Arc<str>,
    },
    /// It gets its volume only once a scheduler has chosen a node, which is not served yet.
    AwaitsPod {
        /// Its StorageClass.
        class: Arc<str>,
    },
    /// Its volume is gone.
    Lost,
    /// It was deleted.
    Deleting {
        /// It is made for the pod, by Kubernetes.
        own: bool,
    },
    /// From where its volume is reached cannot be read.
    Unreadable {
        /// Field and problem.
        problem: Arc<str>,
    },
    /// Only one pod at a time may use it, and another one does.
    UsedByOnePod {
        /// That pod.
        pod: Arc<str>,
        /// It has no place yet either: it is of the same gang, and comes first.
        is_planned: bool,
    },
}

impl ClaimProblem {
    /// Short name, stable.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Binding { .. } => "ClaimBinding",
            Self::Missing { .. } => "ClaimMissing",
            Self::OfAnother { .. } => "ClaimOfAnother",
            Self::AwaitsPod { .. } => "ClaimAwaitsPod",
            Self::Lost => "ClaimLost",
            Self::Deleting { .. } => "ClaimDeleted",
            Self::Unreadable { .. } => "ClaimUnreadable",
            Self::UsedByOnePod { .. } => "ClaimInUse",
        }
    }

    /// Nobody need do anything, if all goes well.
    pub(crate) const fn passes_by_itself(&self) -> bool {
        matches!(self, Self::Binding { .. } | Self::Missing { own: true } | Self::Deleting { own: true })
    }
}

impl ClaimHeld {
    /// The nearest thing a person can do.
    pub(super) fn fix(&self) -> String {
        let claim = &self.claim;
        match &self.problem {
            ClaimProblem::Binding { .. } => format!(
                "wait for its volume, and where none comes see the events of the claim: kubectl describe pvc {claim}"
            ),
            ClaimProblem::Missing { own: false } => {
                format!("create PersistentVolumeClaim {claim}, or mount another one")
            }
            ClaimProblem::Missing { own: true } => {
                "wait for kube-controller-manager to make it, and where it does not see the events of the pod"
                    .to_owned()
            }
            ClaimProblem::OfAnother { pod } => format!(
                "delete or rename PersistentVolumeClaim {claim}, which does not belong to pod {pod}, or rename the \
                 pod's volume"
            ),
            ClaimProblem::AwaitsPod { .. } => {
                "use a StorageClass with volumeBindingMode: Immediate, or bind the claim first".to_owned()
            }
            ClaimProblem::Lost => {
                format!(
                    "delete PersistentVolumeClaim {claim} and create it anew: its volume and its data are gone"
                )
            }
            ClaimProblem::Deleting { own: false } => {
                format!("create PersistentVolumeClaim {claim} anew once it is gone")
            }
            ClaimProblem::Deleting { own: true } => {
                "wait until it is gone: kube-controller-manager then makes the pod's own".to_owned()
            }
            ClaimProblem::Unreadable { .. } => "correct the PersistentVolume".to_owned(),
            ClaimProblem::UsedByOnePod { is_planned: true, .. } => {
                "give each pod a claim of its own, or use one with accessModes: [ReadWriteMany]".to_owned()
            }
            ClaimProblem::UsedByOnePod { pod, is_planned: false } => {
                format!("wait until pod {pod} has ended, or use a claim with accessModes: [ReadWriteMany]")
            }
        }
    }
}

impl fmt::Display for ClaimHeld {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_of_use = matches!(self.problem, ClaimProblem::UsedByOnePod { .. });
        if self.claims > 1 && !is_of_use {
            let have = if self.with_volume == 1 { "has" } else { "have" };
            write!(formatter, "{} of {} claims {have} a volume: ", self.with_volume, self.claims)?;
        }
        let claim = &self.claim;
        match &self.problem {
            ClaimProblem::Binding { seconds: Some(seconds), .. } => {
                write!(formatter, "claim {claim}: binding, {seconds} s")
            }
            ClaimProblem::Binding { seconds: None, .. } => write!(formatter, "claim {claim}: binding"),
            ClaimProblem::Missing { own: false } => {
                write!(formatter, "claim {claim} does not exist: create it")
            }
            ClaimProblem::Missing { own: true } => {
                write!(formatter, "claim {claim} of an ephemeral volume was not made yet")
            }
            ClaimProblem::OfAnother { pod } => write!(
                formatter,
                "claim {claim} is that of an ephemeral volume of pod {pod}, and does not belong to the pod"
            ),
            ClaimProblem::AwaitsPod { class } => write!(
                formatter,
                "claim {claim} waits for its first pod to be scheduled (StorageClass {class}, volumeBindingMode: \
                 WaitForFirstConsumer), which is not served yet"
            ),
            ClaimProblem::Lost => write!(formatter, "claim {claim} has lost its volume"),
            ClaimProblem::Deleting { .. } => write!(formatter, "claim {claim} is being deleted"),
            ClaimProblem::Unreadable { problem } => {
                write!(formatter, "claim {claim}: from where its volume is reached cannot be read: {problem}")
            }
            ClaimProblem::UsedByOnePod { pod, .. } => {
                write!(formatter, "claim {claim}: used by one pod only (by pod {pod})")
            }
        }
    }
}
