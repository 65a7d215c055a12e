//! Holds for gangs that have waited long, so that a stream of small ones does not starve a big one: one feasible set of
//! GPUs is kept free for it as it empties. Where it is known when what runs there ends, the gang has an expected start,
//! and what ends before that may use the room meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{GpuId, LeaseId, PodUid, QueueName};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Command};
use crate::amounts::Amounts;
use crate::cluster::{InUse, Lifted, NodeHold, NodeIndex, Taken};
use crate::core::{Core, Timer};
use crate::eviction::sum_of;
use crate::gang::{Gang, GangKey};
use crate::lease::Lease;
use crate::pass::{ShapeKey, shape_key};
use crate::phase::{Phase, PhaseKind};
use crate::place::{Overlay, Placed};
use crate::reason::{HoldCause, Reason};
use crate::required::Required;
use crate::victims::{Guard, Rank, Room, Unit, make_room};

mod share;

/// After a look that found nothing to hold for a gang: how long until the next, and how often that doubles at most.
const LOOK_AGAIN_AFTER: Millis = Millis::from_seconds(10);
const MOST_DOUBLINGS: u32 = 5;

/// What is held for a gang that has waited long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hold {
    /// When it is expected to start, where that is known.
    pub(crate) start: Option<Time>,
    /// When that was promised.
    since: Time,
    after: Millis,
}

/// What was found out in this pass.
#[derive(Clone, Default)]
pub(crate) struct HoldMemory {
    /// All that uses the nodes, by when it ends.
    endings: Option<Arc<Vec<Unit>>>,
    /// Shapes that would find no place though everything ended.
    in_vain: BTreeSet<ShapeKey>,
}

impl std::fmt::Debug for HoldMemory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("HoldMemory")
    }
}

/// Everything ends some time.
#[derive(Clone)]
struct Ending;

impl Guard for Ending {
    fn may_go(&self, _: &Unit) -> bool {
        true
    }
    fn gone(&mut self, _: &Unit) {}
    fn has_quota(&self) -> bool {
        true
    }
    fn frees_quota(&self, _: &Unit) -> bool {
        false
    }
}

impl Core {
    /// A gang does not fit and nobody goes for it: it gets a hold once it has waited long enough, one in each queue.
    pub(crate) fn consider_hold(&mut self, key: GangKey, required: &Required, now: Time) {
        if self.is_put_off(key) {
            return;
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let after = self.hold_after(gang);
        let due = gang.waiting_since + after;
        if now < due {
            self.timers.insert((due, Timer::Gang(key)));
            return;
        }
        if self.holds.contains_key(&key) {
            if self.is_hold_of_use(key) && self.is_hold_within_share(key, &sum_of(&required.pods)) {
                return;
            }
            self.release_hold(key);
            // Others wait for what was held.
            self.quota_freed = true;
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if gang.hold_not_before > now && gang.hold_looked_with == self.cluster.capacity_generation {
            self.timers.insert((gang.hold_not_before, Timer::Gang(key)));
            return;
        }
        let (queue, order) = (gang.spec.queue.clone(), gang.order);
        let of_queue =
            |other: &&GangKey| self.gangs.gangs.get(other).is_some_and(|other| other.spec.queue == queue);
        if let Some(other) = self.holds.keys().find(of_queue).copied() {
            let is_before = self.gangs.gangs.get(&other).is_some_and(|other| !order.precedes(&other.order));
            if is_before {
                return;
            }
            self.release_hold(other);
            self.touched.insert(other);
        }
        let Some((units, room)) = self.look_for_hold(key, required, now) else {
            self.pause_looking(key, now);
            return;
        };
        let ends: Option<Vec<i64>> = room
            .units
            .iter()
            .map(|at| Some(units[*at].rank.priority).filter(|end| *end != i64::MAX))
            .collect();
        let latest = ends.map(|ends| ends.into_iter().max());
        let start = latest.map(|end| end.and_then(|end| u64::try_from(end).ok()).map_or(now, Time));
        let leaving: BTreeSet<LeaseId> =
            room.units.iter().flat_map(|at| &units[*at].pods).map(|(_, lease)| *lease).collect();
        let places = room.placed.iter().map(|place| {
            let gpus = self.cluster.node(place.node).gpu_ids(place.mask);
            (place.node, place.pod.clone(), gpus)
        });
        let places: Vec<_> = places.collect();
        self.hold_places(key, places, &leaving);
        self.note_reached(if start.is_some() { "hold: made, with a start" } else { "hold: made, without" });
        self.holds.insert(key, Hold { start, since: now, after });
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            (gang.hold_not_before, gang.hold_failures) = (Time(0), 0);
        }
        if let Some(start) = start {
            self.timers.insert((start, Timer::Gang(key)));
        }
    }

    /// Places that a gang could have once what runs there has ended, and what that is.
    fn look_for_hold(
        &mut self,
        key: GangKey,
        required: &Required,
        now: Time,
    ) -> Option<(Arc<Vec<Unit>>, Room)> {
        let asked = sum_of(&required.pods);
        let queue = self.gangs.gangs.get(&key)?.spec.queue.clone();
        let can_have = |core: &mut Self, queue: &QueueName| {
            let share = core.deserved(queue);
            asked.keys().all(|key| share.limit(key).is_none_or(|share| asked.get(key) <= share))
        };
        if !self.chain(&queue).iter().all(|queue| can_have(self, queue)) {
            return None;
        }
        let shape = self.shape(key);
        let alike = shape_key(&shape, required);
        let has_own_view = self.has_own_view(key, now);
        if !has_own_view && self.hold_memory.in_vain.contains(&alike) {
            return None;
        }
        let mut units = self.endings(key, now);
        if self.cluster.has_holds() {
            self.heed_holds(key, Arc::make_mut(&mut units).as_mut_slice());
        }
        let base = self.overlay_for(key, now);
        let Ok(room) = make_room(&self.cluster, &base, &units, &Ending, &shape, &required.pods) else {
            if !has_own_view {
                self.hold_memory.in_vain.insert(alike);
            }
            return None;
        };
        let ending: Vec<_> =
            room.units.iter().map(|at| (units[*at].queue.clone(), units[*at].amounts.clone())).collect();
        self.is_within_share(key, &asked, &ending).then_some((units, room))
    }

    /// Nothing can be held for a gang: that is looked at again later and later, since it is much work and seldom changes.
    fn pause_looking(&mut self, key: GangKey, now: Time) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let pause = LOOK_AGAIN_AFTER.doubled(gang.hold_failures.min(MOST_DOUBLINGS));
        gang.hold_failures = gang.hold_failures.saturating_add(1);
        (gang.hold_not_before, gang.hold_looked_with) = (now + pause, self.cluster.capacity_generation);
        self.timers.insert((gang.hold_not_before, Timer::Gang(key)));
    }

    /// Something else uses the nodes, and a share of its queue: it ends some time too, and counts in what comes.
    pub(crate) fn forget_uses(&mut self) {
        self.hold_memory.endings = None;
        self.eviction_memory.expected = None;
    }

    /// A pass begins: what could be held before says nothing now.
    pub(crate) fn forget_holds(&mut self) {
        self.hold_memory = HoldMemory::default();
    }

    /// How long a gang waits before something is held for it.
    pub(crate) fn hold_after(&self, gang: &Gang) -> Millis {
        let policy = self.policies.get(&gang.spec.queue);
        policy.and_then(|policy| policy.hold_after_ms).unwrap_or(self.settings.hold_after_ms)
    }

    /// Keeps these places free for a gang, as the leases that leave them go.
    pub(crate) fn hold_places(
        &mut self,
        key: GangKey,
        places: Vec<(NodeIndex, PodUid, Vec<GpuId>)>,
        leaving: &BTreeSet<LeaseId>,
    ) {
        self.cluster.unhold(key);
        let mut by_node: BTreeMap<NodeIndex, (Vec<GpuId>, InUse)> = BTreeMap::new();
        for (node, pod, more) in places {
            let Some(pod) = self.gangs.pods.get(&pod) else { continue };
            let (gpus, whole) = by_node.entry(node).or_default();
            gpus.extend(more);
            whole.add(&pod.need.amounts, &pod.need.constraints.host_ports);
        }
        for (node, (gpus, whole)) in by_node {
            let leases = leaving.iter().filter_map(|id| self.leases.leases.get(id));
            let stands: Vec<Taken> =
                leases.filter(|lease| lease.node == node).map(|lease| lease.taken.clone()).collect();
            self.cluster.hold(node, key, NodeHold::new(gpus, whole), stands.iter());
        }
    }

    /// Its nodes are open and its GPUs well.
    fn is_hold_of_use(&self, key: GangKey) -> bool {
        let is_well = |index: NodeIndex| {
            let node = self.cluster.node(index);
            let gpus = node.holds.get(&key).map(|hold| &hold.gpus);
            node.closed().is_none() && gpus.is_some_and(|gpus| node.healthy_of(gpus) == gpus.len() as u64)
        };
        let mut nodes = self.cluster.held_for(key).peekable();
        nodes.peek().is_some() && nodes.all(is_well)
    }

    /// All that uses the nodes, each for itself, by when it ends.
    fn endings(&mut self, key: GangKey, now: Time) -> Arc<Vec<Unit>> {
        let has_leases = self.gangs.gangs.get(&key).is_some_and(|gang| gang.leases > 0);
        if let Some(known) = self.hold_memory.endings.as_ref().filter(|_| !has_leases) {
            return known.clone();
        }
        let all = Arc::new(self.endings_of_others(key, now));
        if !has_leases {
            self.hold_memory.endings = Some(all.clone());
        }
        all
    }

    fn endings_of_others(&self, key: GangKey, now: Time) -> Vec<Unit> {
        let leases = self.leases.leases.values().filter(|lease| lease.gang.is_some_and(|gang| gang != key));
        let unit = |lease: &Lease| {
            let gang = lease.gang?;
            let end =
                self.known_end(lease, now).and_then(|end| i64::try_from(end.0).ok()).unwrap_or(i64::MAX);
            let last = (std::cmp::Reverse(gang), std::cmp::Reverse(0));
            let rank = Rank {
                class: 0,
                queue_priority: 0,
                priority: end,
                gpus: lease.taken.amounts.gpus,
                age: 0,
                last,
            };
            Some(Unit {
                rank,
                gang,
                pods: vec![(lease.pod().clone(), lease.taken.lease)],
                parts: vec![self.part_of(lease)],
                queue: self.gangs.gangs.get(&gang)?.spec.queue.clone(),
                amounts: if lease.charged { lease.taken.amounts.of_pod() } else { Amounts::default() },
                budgets: Vec::new(),
                after: Vec::new(),
            })
        };
        leases.filter_map(unit).collect()
    }

    /// When a pod ends at the latest, where that is known.
    fn known_end(&self, lease: &Lease, now: Time) -> Option<Time> {
        let pod = self.gangs.pods.get(lease.pod())?;
        let policy = &pod.spec.policy;
        if pod.spec.deleting || lease.wanted == LeaseState::Gone {
            return Some(policy.ends_by.unwrap_or(now + policy.grace_ms).max(now));
        }
        let gang = self.gangs.gangs.get(&lease.gang?)?;
        let started = policy.started.or(gang.running_since)?;
        let lengths = [policy.deadline_ms, pod.spec.run_for, self.run_length(gang)];
        let end = started + lengths.into_iter().flatten().min()?;
        (end > now).then_some(end)
    }

    /// How long a gang runs at most, as far as it, or its queue, says.
    pub(crate) fn run_length(&self, gang: &Gang) -> Option<Millis> {
        let policy = self.policies.get(&gang.spec.queue);
        let most = policy.and_then(|policy| policy.maximum_run_ms);
        let estimate =
            gang.spec.policy.run_estimate_ms.or_else(|| policy.and_then(|policy| policy.default_run_ms));
        most.into_iter().chain(estimate).min()
    }

    /// How long a gang that waits will run, where all of its pods say it, or it does.
    pub(crate) fn length_of(&self, gang: &Gang) -> Option<Millis> {
        let of_gang = self.run_length(gang);
        let pods = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.is_unplaced());
        let of_pods =
            pods.map(|(_, pod)| pod.spec.policy.deadline_ms.into_iter().chain(pod.spec.run_for).min());
        let longest = of_pods.collect::<Option<Vec<Millis>>>().and_then(|lengths| lengths.into_iter().max());
        of_gang.into_iter().chain(longest).min()
    }

    /// Holds of others that a gang need not heed: it ends before their gang is expected, or it is more urgent in the
    /// same queue.
    fn lifted_for(&self, key: GangKey, now: Time) -> BTreeSet<GangKey> {
        let Some(gang) = self.gangs.gangs.get(&key).filter(|_| !self.holds.is_empty()) else {
            return BTreeSet::new();
        };
        let length = self.length_of(gang);
        let priority = self.priority_of(&gang.spec);
        let lifts = self.holds.iter().filter(|(other, hold)| {
            let ends_before = length
                .zip(hold.start)
                .is_some_and(|(length, start)| now + length <= start || planted::is(Bug::LateBackfill));
            ends_before || self.outranks(priority, gang, **other) || planted::is(Bug::IgnoreHolds)
        });
        lifts.map(|(other, _)| *other).filter(|other| *other != key).collect()
    }

    /// Holds that a gang need not heed, its own included.
    pub(crate) fn sees_past(&self, key: GangKey, now: Time) -> BTreeSet<GangKey> {
        let mut lifted = self.lifted_for(key, now);
        lifted.insert(key);
        lifted
    }

    /// Pods take places that are held for others: counted for tests, and told where they may not.
    #[cfg(feature = "counted-moves")]
    pub(crate) fn note_backfill(&mut self, key: GangKey, placed: &[Placed]) {
        let holders = placed.iter().flat_map(|place| self.cluster.holders_of(place.node, place.mask));
        let holders: BTreeSet<GangKey> = holders.filter(|other| *other != key).collect();
        if holders.is_empty() {
            return;
        }
        let may = holders.is_subset(&self.lifted_for(key, self.now));
        self.note_reached(if may { "hold: used by others meanwhile" } else { "hold: NOT HEEDED" });
    }

    /// Counts nothing: there is no test.
    #[cfg(not(feature = "counted-moves"))]
    #[allow(clippy::unused_self)]
    pub(crate) const fn note_backfill(&self, _key: GangKey, _placed: &[Placed]) {}

    fn outranks(&self, priority: Option<i32>, gang: &Gang, other: GangKey) -> bool {
        let other = self.gangs.gangs.get(&other);
        other.is_some_and(|other| {
            other.spec.queue == gang.spec.queue && self.priority_of(&other.spec) < priority
        })
    }

    /// What a gang may use beside what is free for everybody: what is held for itself, and for those it need not heed.
    pub(crate) fn overlay_for(&self, key: GangKey, now: Time) -> Overlay {
        let mut overlay = Overlay::default();
        let lifted = self.sees_past(key, now);
        let nodes: BTreeSet<NodeIndex> = lifted.iter().flat_map(|key| self.cluster.held_for(*key)).collect();
        for index in nodes {
            let (free, used) = self.cluster.node(index).lifted(|other| lifted.contains(&other));
            overlay.set(index, free, used);
        }
        overlay
    }

    /// As `overlay_for`, for all of the cluster, until it is put back.
    pub(crate) fn lift_holds(&mut self, key: GangKey, now: Time) -> Lifted {
        if !self.has_own_view(key, now) {
            return Lifted::default();
        }
        self.cluster.lift(self.sees_past(key, now).into_iter())
    }

    /// True where it sees other room than everybody.
    pub(crate) fn has_own_view(&self, key: GangKey, now: Time) -> bool {
        self.rooms.contains_key(&key)
            || self.holds.contains_key(&key)
            || !self.lifted_for(key, now).is_empty()
    }

    /// A gang takes these places: holds of less urgent ones that it takes them from are given up, to be made anew.
    pub(crate) fn take_from_holds(&mut self, key: GangKey, nodes: &BTreeSet<NodeIndex>) {
        let Some(gang) = self.gangs.gangs.get(&key).filter(|_| !self.holds.is_empty()) else { return };
        let priority = self.priority_of(&gang.spec);
        let outranked: Vec<GangKey> =
            self.holds.keys().copied().filter(|other| self.outranks(priority, gang, *other)).collect();
        for other in outranked {
            if self.cluster.held_for(other).any(|node| nodes.contains(&node)) {
                self.release_hold(other);
                self.touched.insert(other);
            }
        }
    }

    /// Goes on with the hold of a gang: it is given up once the gang runs, or waits for something else than room.
    pub(crate) fn progress_hold(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) {
        // Of a hold that was given up for somebody else, or was of no use any more.
        self.tell_promise(key, None, actions);
        if !self.holds.contains_key(&key) {
            return;
        }
        let gang = self.gangs.gangs.get(&key).filter(|gang| !gang.deleted);
        let kind = gang.map(|gang| gang.phase.kind());
        let waits = matches!(
            kind,
            Some(
                PhaseKind::Admitted
                    | PhaseKind::Reserving
                    | PhaseKind::Committing
                    | PhaseKind::Arming
                    | PhaseKind::Binding
            )
        );
        if waits || planted::is(Bug::KeepHolds) {
            return;
        }
        self.note_reached("hold: over");
        self.release_hold(key);
        let has_started = matches!(kind, Some(PhaseKind::Running | PhaseKind::Degraded));
        self.tell_promise(key, has_started.then_some(now), actions);
    }

    /// Tells what came of a start that was promised, once the hold that it came with is over.
    fn tell_promise(&mut self, key: GangKey, started: Option<Time>, actions: &mut Vec<Action>) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        let (promises, name) = (std::mem::take(&mut gang.promises), gang.spec.name.clone());
        for (made, expected) in promises {
            self.emit(Command::RecordPromise { gang: name.clone(), made, expected, started }, actions);
        }
    }

    pub(crate) fn release_hold(&mut self, key: GangKey) {
        let Some(hold) = self.holds.remove(&key) else { return };
        if let Some(gang) = self.gangs.gangs.get_mut(&key)
            && let Some(start) = hold.start
        {
            gang.promises.push((hold.since, start));
            self.touched.insert(key);
        }
        if !self.rooms.contains_key(&key) {
            self.cluster.unhold(key);
        }
    }

    /// Why something is held for a gang.
    pub(crate) fn hold_cause(&self, key: GangKey) -> Option<HoldCause> {
        if self.rooms.contains_key(&key) {
            return Some(HoldCause::MakingRoom);
        }
        let hold = self.holds.get(&key)?;
        let start = hold.start.filter(|start| *start > self.now);
        Some(HoldCause::Waited { seconds: hold.after.0 / 1000, start })
    }

    /// When a gang that waits is expected to start, where that is known and has not passed.
    pub(crate) fn expected_start(&self, key: GangKey) -> Option<Time> {
        let gang = self.gangs.gangs.get(&key)?;
        if !matches!(gang.phase, Phase::Queued | Phase::Admitted) {
            return None;
        }
        let expected = match self.making_room(key) {
            Some(Reason::MakingRoom(room)) => room.until,
            _ => self.holds.get(&key).and_then(|hold| hold.start),
        };
        expected.filter(|at| *at > self.now)
    }
}
