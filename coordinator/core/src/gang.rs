//! Gangs and pods as the core keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::{GangSpec, PodPhase, PodSpec};
use phalanx_common::ids::{GangName, LeaseId, NodeName, PodUid, QueueName};
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::action::GangStatus;
use crate::amounts::Amounts;
use crate::graces::GangTimes;
use crate::phase::Phase;
use crate::place::PodNeed;
use crate::reason::Reason;
use crate::turn::OrderKey;

/// Number of a gang: order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct GangKey(pub(crate) u64);

/// One gang.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Gang {
    pub(crate) spec: GangSpec,
    /// Its PodGroup is gone; kept until its pods are.
    pub(crate) deleted: bool,
    pub(crate) order: OrderKey,
    pub(crate) phase: Phase,
    /// Its minimum was bound together since it last began anew: what is missing now was lost, or ended.
    #[serde(default)]
    pub(crate) was_whole: bool,
    /// What its graces and deadlines are counted from.
    #[serde(default)]
    pub(crate) times: GangTimes,
    /// Its minimum, and how many pods it had, when it was whole last; zero where that is not known.
    #[serde(default)]
    pub(crate) whole_minimum: u32,
    #[serde(default)]
    pub(crate) whole_pods: u32,
    pub(crate) reason: Option<Reason>,
    /// `spec.minResources` as numbers.
    pub(crate) min_amounts: Amounts,
    /// What is charged to its queue while it is admitted and has no place.
    pub(crate) charge: Amounts,
    /// What it asks for beside what its pods have, as its queue counts it.
    #[serde(default)]
    pub(crate) wants: Amounts,
    /// Leases it has, those on their way out included.
    pub(crate) leases: u32,
    /// Placements that failed after they were begun, since when.
    pub(crate) failures: (Time, u32),
    /// Since when it was first admitted without all the pods it needs; `None` where they are there.
    pub(crate) pods_missing_since: Option<Time>,
    /// Rounds that were dropped since the last one that was committed.
    pub(crate) drops_in_row: u32,
    /// What an agent refused last, and which; `None` once a round was committed.
    pub(crate) refused: Option<Arc<str>>,
    /// Not to be tried before.
    pub(crate) not_before: Time,
    /// Nobody is evicted for it before.
    #[serde(default)]
    pub(crate) evict_not_before: Time,
    /// `capacity_generation` of the cluster when it was last tried: whether it can ever run is known for that.
    #[serde(default)]
    pub(crate) tried_with: Option<u64>,
    /// Nothing is looked for that could be held for it before, and how often nothing was found in a row.
    #[serde(default)]
    pub(crate) hold_not_before: Time,
    #[serde(default)]
    pub(crate) hold_failures: u32,
    /// Starts that were promised with holds which are over, each with when it was: what came of them is still to be told.
    #[serde(default)]
    pub(crate) promises: Vec<(Time, Time)>,
    /// `capacity_generation` of the cluster at the last look: with other nodes it is looked at again at once.
    #[serde(default)]
    pub(crate) hold_looked_with: u64,
    /// Queue and priority as which it is counted among those that may be evicted.
    #[serde(default)]
    pub(crate) counted_as: Option<(QueueName, i32)>,
    /// Plans for it in a row that evicted others and were dropped.
    #[serde(default)]
    pub(crate) evict_failures: u32,
    /// Where a plan for it waited for a pod that did not end, and what is said of that; until it runs.
    #[serde(default)]
    pub(crate) gave_up: Option<(NodeName, Arc<str>)>,
    /// Since when it waits: for its start, or to start anew.
    #[serde(default)]
    pub(crate) waiting_since: Time,
    /// Since when it has run as a whole.
    #[serde(default)]
    pub(crate) running_since: Option<Time>,
    /// The gang that has its place, and since when; until it runs again.
    #[serde(default)]
    pub(crate) preempted: Option<(GangName, Time)>,
    /// It was shown as completed when it was first heard of.
    #[serde(default)]
    pub(crate) had_ended: bool,
    /// It was shown as ended for its maximum run time when it was first heard of.
    #[serde(default)]
    pub(crate) shown_ran_out: bool,
    /// The status written last.
    pub(crate) written: Option<GangStatus>,
    /// The API shows another one: then it is written again.
    pub(crate) stray_due: Option<Time>,
    /// Since when it is being placed, as far as its status goes.
    #[serde(default)]
    pub(crate) placing_since: Option<Time>,
    /// Since when it has a part of the pods or claims that it needs, as far as its status goes.
    #[serde(default)]
    pub(crate) partial_since: Option<Time>,
    /// When its status last said how much of them it has.
    #[serde(default)]
    pub(crate) partial_told: Time,
}

impl Gang {
    /// One whose PodGroup was just heard of.
    pub(crate) fn new(spec: GangSpec, order: OrderKey, min_amounts: Amounts, now: Time) -> Self {
        Self {
            min_amounts,
            waiting_since: spec.created.min(now),
            spec,
            deleted: false,
            order,
            phase: Phase::Queued,
            was_whole: false,
            times: GangTimes::default(),
            whole_minimum: 0,
            whole_pods: 0,
            reason: None,
            charge: Amounts::default(),
            wants: Amounts::default(),
            leases: 0,
            failures: (Time(0), 0),
            pods_missing_since: None,
            drops_in_row: 0,
            refused: None,
            not_before: Time(0),
            evict_not_before: Time(0),
            tried_with: None,
            counted_as: None,
            hold_not_before: Time(0),
            promises: Vec::new(),
            hold_failures: 0,
            hold_looked_with: 0,
            evict_failures: 0,
            gave_up: None,
            running_since: None,
            preempted: None,
            had_ended: false,
            shown_ran_out: false,
            written: None,
            stray_due: None,
            placing_since: None,
            partial_since: None,
            partial_told: Time(0),
        }
    }

    pub(crate) fn key(&self) -> GangKey {
        self.order.arrival
    }
}

/// One pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) spec: PodSpec,
    pub(crate) need: Arc<PodNeed>,
    /// Lease that holds its place.
    pub(crate) lease: Option<LeaseId>,
    /// A claim that it mounts has no volume that it could use.
    #[serde(default)]
    pub(crate) awaits_claims: bool,
    /// It mounts claims of which a single pod may make use.
    #[serde(default)]
    pub(crate) has_one_pod_claims: bool,
}

impl Pod {
    /// Waits for a place.
    pub(crate) fn is_unplaced(&self) -> bool {
        self.lease.is_none()
            && self.spec.binding.is_none()
            && !self.spec.phase.is_terminal()
            && !self.spec.deleting
    }

    /// Waits for a place, and nothing of its own keeps it from having one.
    pub(crate) fn may_be_placed(&self) -> bool {
        self.is_unplaced() && !self.is_blocked() && !self.awaits_claims
    }

    /// A field of its own keeps it from having a place.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.spec.blockers.is_empty() || !self.spec.constraints.gates.is_empty()
    }

    /// Ended well, and not because it was told to go.
    pub(crate) fn ended_well(&self) -> bool {
        self.spec.phase == PodPhase::Succeeded && !self.spec.deleting
    }

    /// Bound, not ended, not being deleted.
    pub(crate) fn is_live(&self) -> bool {
        self.spec.binding.is_some() && !self.spec.phase.is_terminal() && !self.spec.deleting
    }
}

/// All gangs and pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Gangs {
    pub(crate) gangs: BTreeMap<GangKey, Gang>,
    #[serde(with = "crate::pairs")]
    pub(crate) by_name: BTreeMap<GangName, GangKey>,
    pub(crate) pods: BTreeMap<PodUid, Pod>,
    /// Pods by gang, whether the gang is known yet or not.
    #[serde(with = "crate::pairs")]
    pub(crate) pods_of: BTreeMap<GangName, BTreeSet<PodUid>>,
    /// Gangs that start together, by namespace and name of the group.
    #[serde(default, with = "crate::pairs")]
    pub(crate) groups: BTreeMap<GangName, BTreeSet<GangKey>>,
    /// Moves of gangs by the two phases: for tests, which must have seen each.
    #[cfg(feature = "counted-moves")]
    #[serde(skip)]
    pub(crate) moves: BTreeMap<(crate::phase::PhaseKind, crate::phase::PhaseKind), u64>,
    /// What else a test must have seen.
    #[cfg(feature = "counted-moves")]
    #[serde(skip)]
    pub(crate) reached: BTreeMap<&'static str, u64>,
}

/// Pods of a gang by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) all: u32,
    pub(crate) live: u32,
    pub(crate) running: u32,
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    /// Ended, well or badly or because it was told to go.
    pub(crate) ended: u32,
    pub(crate) unplaced: u32,
}

impl Gangs {
    pub(crate) fn key(&self, name: &GangName) -> Option<GangKey> {
        self.by_name.get(name).copied()
    }

    /// Pods of a gang.
    pub(crate) fn pods_of(&self, name: &GangName) -> impl Iterator<Item = (&PodUid, &Pod)> {
        let uids = self.pods_of.get(name).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get_key_value(uid))
    }

    pub(crate) fn tally(&self, name: &GangName) -> Tally {
        let mut tally = Tally::default();
        for (_, pod) in self.pods_of(name) {
            tally.all += 1;
            tally.live += u32::from(pod.is_live());
            tally.unplaced += u32::from(pod.is_unplaced());
            tally.ended += u32::from(pod.spec.phase.is_terminal());
            match pod.spec.phase {
                PodPhase::Running => tally.running += u32::from(!pod.spec.deleting),
                PodPhase::Succeeded => tally.succeeded += u32::from(pod.ended_well()),
                PodPhase::Failed => tally.failed += 1,
                PodPhase::Pending => {}
            }
        }
        tally
    }
}

/// Sorts names as people count: `worker-2` before `worker-10`.
pub(crate) fn natural(name: &str) -> (&str, u64, &str) {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = name.split_at(digits);
    (stem, number.parse().unwrap_or(0), name)
}
