//! Phases of a gang: one enum with a payload per phase, one table of legal moves.
//!
//! Durable phases are rebuilt from API and ledgers after a crash; volatile ones are lost and the gang
//! is queued again. The commit point lies between Arming and Binding: the plan is durable and every
//! lease is armed before the first Binding is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{ActionId, LeaseId, PodUid};
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::cluster::NodeIndex;

/// How far the placement of a set of pods is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Agents were asked to promise.
    Reserving,
    /// All agents confirmed; the plan is being written.
    Committing,
    /// The plan is durable; agents write the leases to disk.
    Arming,
    /// Committed: pods are being bound, forward only.
    Binding,
}

/// Where the Binding of one pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BindState {
    /// Not sent.
    Waiting,
    /// Sent; its outcome will come.
    Sent(ActionId),
    /// Its outcome is not known: the pod is being read first.
    Reading(ActionId),
    /// An earlier leader may have sent one: a write that makes it fail comes first.
    Fencing(ActionId),
    /// Its outcome is not known, and not for the first time: the pod is read then.
    ReadAt(Time),
    /// To be tried again then.
    RetryAt(Time),
    /// Bound.
    Bound,
}

/// One pod of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) lease: LeaseId,
    pub(crate) bind: BindState,
    /// Writes to the pod in a row of which nobody knows what came of them.
    #[serde(default)]
    pub(crate) failures: u32,
}

impl Member {
    pub(crate) const fn new(lease: LeaseId, bind: BindState) -> Self {
        Self { lease, bind, failures: 0 }
    }

    /// True where a Binding may be on its way, or may have arrived.
    pub(crate) const fn may_be_bound(&self) -> bool {
        let is_open = matches!(self.bind, BindState::Sent(_) | BindState::Reading(_) | BindState::Fencing(_));
        self.failures > 0 || is_open
    }
}

/// Pods that are placed together: the gang's minimum, or pods that join it later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) step: Step,
    pub(crate) members: BTreeMap<PodUid, Member>,
    /// Leases not confirmed yet.
    pub(crate) unconfirmed: BTreeSet<LeaseId>,
    /// Leases not armed yet.
    pub(crate) unarmed: BTreeSet<LeaseId>,
    /// Pods whose Binding is to be sent.
    pub(crate) to_bind: BTreeSet<PodUid>,
    /// Pods not bound yet.
    pub(crate) unbound: BTreeSet<PodUid>,
    /// Nodes that refused a member of this round.
    pub(crate) excluded: BTreeSet<NodeIndex>,
    /// Until when the present step must be done.
    pub(crate) deadline: Time,
    /// Until when all must be bound, once committed.
    pub(crate) binding_deadline: Time,
    /// The plan's write, while it is on its way.
    pub(crate) plan_write: Option<ActionId>,
    /// A plan may stand in the API.
    pub(crate) plan_stored: bool,
    /// The plan could not be written, or made ours; it is tried again then.
    pub(crate) plan_retry_at: Option<Time>,
    /// Its writes in a row that failed.
    #[serde(default)]
    pub(crate) plan_failures: u32,
    /// It was found at a start, and passed a ceiling beside all that was found before: an earlier leader had given it up
    /// and could not remove its plan. It ends where nothing of it is bound.
    #[serde(default)]
    pub(crate) is_above_ceiling: bool,
    /// A pod left the round: before the commit point the round is planned anew.
    pub(crate) lost_member: bool,
    /// The last Binding that failed: pod and cause.
    pub(crate) refused: Option<Arc<str>>,
    /// That cause alone.
    #[serde(default)]
    pub(crate) refused_for: Option<Arc<str>>,
}

impl Round {
    /// A round without members.
    pub(crate) const fn new(step: Step, deadline: Time, binding_deadline: Time) -> Self {
        Self {
            step,
            members: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            unarmed: BTreeSet::new(),
            to_bind: BTreeSet::new(),
            unbound: BTreeSet::new(),
            excluded: BTreeSet::new(),
            deadline,
            binding_deadline,
            plan_write: None,
            plan_stored: false,
            plan_retry_at: None,
            plan_failures: 0,
            is_above_ceiling: false,
            lost_member: false,
            refused: None,
            refused_for: None,
        }
    }
}

/// Where a gang is in its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Volatile. Waits for quota, or can never fit as things are.
    Queued,
    /// Volatile. Quota is charged, its pods may be created; waits for room.
    Admitted,
    /// Volatile until the step is Binding, durable then. The minimum is being placed.
    Placing(Round),
    /// Durable. At least the minimum is bound; a round adds further pods.
    Running { round: Option<Round> },
    /// Durable. Fewer than the minimum are left; a round replaces what is missing.
    Degraded { cause: Arc<str>, round: Option<Round>, roll_back_at: Option<Time> },
    /// Durable. Bound pods are being deleted, since the gang could not be completed, or for others.
    /// Pods in `fencing` may be bound any moment: their leases are kept until a write to the pod has
    /// made any Binding on its way fail.
    Evicting {
        cause: Arc<str>,
        pods: BTreeSet<PodUid>,
        fencing: BTreeMap<PodUid, ActionId>,
        /// Pods that a fence found bound and started: whoever let them start had seen the gang whole. They go too, unless
        /// it is.
        #[serde(default)]
        found: BTreeSet<PodUid>,
        retry_at: Time,
        /// Tries since the last one that moved anything.
        #[serde(default)]
        tries: u32,
        /// A plan of the binding that is rolled back may stand in the API: it goes last.
        #[serde(default)]
        has_plan: bool,
    },
    /// Durable. All pods have ended.
    Finished,
}

/// A phase without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum PhaseKind {
    Queued,
    Admitted,
    Reserving,
    Committing,
    Arming,
    Binding,
    Running,
    Degraded,
    Evicting,
    Finished,
}

impl PhaseKind {
    /// All phases.
    #[cfg(any(test, feature = "counted-moves"))]
    pub(crate) const ALL: [Self; 10] = [
        Self::Queued,
        Self::Admitted,
        Self::Reserving,
        Self::Committing,
        Self::Arming,
        Self::Binding,
        Self::Running,
        Self::Degraded,
        Self::Evicting,
        Self::Finished,
    ];

    /// All moves that are legal.
    #[cfg(feature = "counted-moves")]
    pub(crate) fn legal_moves() -> impl Iterator<Item = (Self, Self)> {
        Self::ALL.into_iter().flat_map(|from| from.next().iter().map(move |to| (from, *to)))
    }

    /// Phases that may follow.
    const fn next(self) -> &'static [Self] {
        use PhaseKind::{
            Admitted, Arming, Binding, Committing, Degraded, Evicting, Finished, Queued, Reserving, Running,
        };
        match self {
            // Binding, Running and Degraded follow Queued only where a start finds them in API and ledgers, or another
            // coordinator left them; Running and Degraded follow Admitted where somebody else binds its pods.
            Queued => &[Admitted, Binding, Running, Degraded, Finished],
            Admitted => &[Queued, Reserving, Running, Degraded, Finished],
            Reserving => &[Admitted, Committing],
            Committing => &[Admitted, Arming],
            Arming => &[Admitted, Binding],
            // Admitted only before a Binding was sent, where pods of others have taken its place.
            Binding => &[Running, Degraded, Evicting, Admitted],
            Running => &[Degraded, Evicting, Finished, Queued],
            Degraded => &[Running, Evicting, Finished, Queued],
            Evicting => &[Queued, Running],
            Finished => &[Queued, Running, Degraded],
        }
    }

    /// True where a move is legal.
    pub(crate) fn may_become(self, next: Self) -> bool {
        self == next || self.next().contains(&next)
    }

    /// True where the phase survives a crash of the coordinator.
    #[cfg(test)]
    pub(crate) const fn is_durable(self) -> bool {
        match self {
            Self::Queued | Self::Admitted | Self::Reserving | Self::Committing | Self::Arming => false,
            Self::Binding | Self::Running | Self::Degraded | Self::Evicting | Self::Finished => true,
        }
    }

    /// Name for people.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Admitted => "admitted",
            Self::Reserving => "reserving",
            Self::Committing => "committing",
            Self::Arming => "arming",
            Self::Binding => "binding",
            Self::Running => "running",
            Self::Degraded => "degraded",
            Self::Evicting => "evicting",
            Self::Finished => "finished",
        }
    }
}

impl Phase {
    pub(crate) const fn kind(&self) -> PhaseKind {
        match self {
            Self::Queued => PhaseKind::Queued,
            Self::Admitted => PhaseKind::Admitted,
            Self::Placing(round) => match round.step {
                Step::Reserving => PhaseKind::Reserving,
                Step::Committing => PhaseKind::Committing,
                Step::Arming => PhaseKind::Arming,
                Step::Binding => PhaseKind::Binding,
            },
            Self::Running { .. } => PhaseKind::Running,
            Self::Degraded { .. } => PhaseKind::Degraded,
            Self::Evicting { .. } => PhaseKind::Evicting,
            Self::Finished => PhaseKind::Finished,
        }
    }

    /// A binding that was cut short, and when it is rolled back. Its plan stands until then.
    pub(crate) const fn cut_short(&self) -> Option<Time> {
        match self {
            Self::Degraded { roll_back_at, .. } => *roll_back_at,
            Self::Queued
            | Self::Admitted
            | Self::Placing(_)
            | Self::Running { .. }
            | Self::Evicting { .. }
            | Self::Finished => None,
        }
    }

    /// The round in progress.
    pub(crate) const fn round(&self) -> Option<&Round> {
        match self {
            Self::Placing(round) => Some(round),
            Self::Running { round } | Self::Degraded { round, .. } => round.as_ref(),
            Self::Queued | Self::Admitted | Self::Evicting { .. } | Self::Finished => None,
        }
    }

    /// The same once a round begins.
    pub(crate) fn with_round(&self, round: Round) -> Self {
        match self {
            Self::Running { .. } => Self::Running { round: Some(round) },
            Self::Degraded { cause, roll_back_at, .. } => {
                Self::Degraded { cause: cause.clone(), round: Some(round), roll_back_at: *roll_back_at }
            }
            Self::Queued | Self::Admitted | Self::Placing(_) | Self::Evicting { .. } | Self::Finished => {
                Self::Placing(round)
            }
        }
    }

    /// It runs, whole or not, and none of its pods is on its way to a node.
    pub(crate) const fn is_still(&self) -> bool {
        matches!(self, Self::Running { round: None } | Self::Degraded { round: None, .. })
    }

    /// The round in progress, to change.
    pub(crate) const fn round_mut(&mut self) -> Option<&mut Round> {
        match self {
            Self::Placing(round) => Some(round),
            Self::Running { round } | Self::Degraded { round, .. } => round.as_mut(),
            Self::Queued | Self::Admitted | Self::Evicting { .. } | Self::Finished => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PhaseKind::{self, *};

    #[test]
    fn nothing_is_bound_before_the_commit_point() {
        for from in PhaseKind::ALL {
            let is_recovery = from == Queued;
            let is_next_step = from == Arming;
            assert_eq!(from.may_become(Binding), is_recovery || is_next_step || from == Binding, "{from:?}");
        }
    }

    #[test]
    fn a_committed_gang_never_goes_back_to_reserving() {
        for from in PhaseKind::ALL.into_iter().filter(|kind| kind.is_durable()) {
            for to in [Reserving, Committing, Arming] {
                assert!(!from.may_become(to), "{from:?} -> {to:?}");
            }
        }
    }
}
