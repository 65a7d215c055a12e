//! Whether a gang is whole, and whether it ever was: what is bound of a gang may start only then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::{GangSpec, PodPhase};
use phalanx_common::ids::PodUid;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;

use crate::core::{Core, Timer};
use crate::gang::{Gang, GangKey, Pod};
use crate::phase::{Phase, PhaseKind};

/// Why nothing of a gang starts whose PodGroup went while nobody led.
pub(crate) const GROUP_GONE: &str =
    "its PodGroup is gone, none of its pods has started, and nothing shows that all it needs were ever bound";

impl Gang {
    /// True where it was made up for bound pods whose PodGroup is gone: its minimum is not known.
    pub(crate) fn is_made_up(&self) -> bool {
        self.spec.uid.is_empty()
    }

    /// It was whole with fewer pods than it needs now.
    pub(crate) fn is_minimum_raised(&self) -> bool {
        self.whole_minimum > 0 && self.spec.min_member > self.whole_minimum
    }

    /// It was whole with all the pods that it had: what comes beyond may be the first that is seen of a larger minimum.
    pub(crate) const fn was_all_needed(&self) -> bool {
        self.whole_minimum > 0 && self.whole_pods <= self.whole_minimum
    }

    /// Keeps in mind whether the gang was whole since it last began anew.
    pub(crate) fn note_phase(&mut self, after: PhaseKind, now: Time) {
        self.times.note_phase(after, now);
        match after {
            PhaseKind::Running => {
                self.was_whole = true;
                (self.preempted, self.gave_up) = (None, None);
                self.running_since.get_or_insert(now);
            }
            PhaseKind::Queued | PhaseKind::Admitted | PhaseKind::Reserving | PhaseKind::Finished => {
                if self.running_since.take().is_some() {
                    self.waiting_since = now;
                    (self.hold_not_before, self.hold_failures) = (Time(0), 0);
                }
                self.was_whole = false;
            }
            PhaseKind::Committing
            | PhaseKind::Arming
            | PhaseKind::Binding
            | PhaseKind::Degraded
            | PhaseKind::Evicting => {}
        }
    }
}

impl Pod {
    /// Bound by a coordinator. Somebody else's Binding names no lease and leaves no term.
    pub(crate) fn is_bound_by_us(&self) -> bool {
        self.spec.binding.as_ref().is_some_and(|binding| binding.lease.is_some() || self.spec.term > 0)
    }
}

/// A controller makes more pods, or tells a larger minimum, first; the other is heard of so soon after, or never.
const GROWTH_PATIENCE_MS: Millis = Millis::from_seconds(10);

impl Core {
    /// Keeps in mind what the gang was when it became whole.
    pub(crate) fn note_size(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        gang.whole_minimum = gang.spec.min_member.max(1);
        let all = self.gangs.pods_of.get(&gang.spec.name).map_or(0, BTreeSet::len);
        gang.whole_pods = u32::try_from(all).unwrap_or(u32::MAX);
    }

    /// Until when a pod above the minimum waits for what its PodGroup says of it.
    pub(crate) fn patience_with(&self, gang: &Gang, pod: &PodUid) -> Option<Time> {
        let is_above = gang.was_all_needed() && matches!(gang.phase, Phase::Running { .. });
        let pod = self.gangs.pods.get(pod).filter(|_| is_above)?;
        Some(pod.spec.policy.created + GROWTH_PATIENCE_MS).filter(|until| *until > self.now)
    }

    /// True where at least the gang's minimum is bound or has ended well. Of a gang that was made up nobody knows the
    /// minimum: only a start shows that it had it.
    pub(crate) fn is_satisfied(&self, key: GangKey) -> bool {
        self.has_minimum(key, &[])
    }

    /// True for the gang of a lone pod: a plan is made for a PodGroup, and there is none. One pod is all that it ever needs,
    /// so that no half of it can be left that a later leader had to bring to its end.
    pub(crate) fn needs_no_plan(&self, key: GangKey) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        gang.spec.is_lone_pod() && matches!(gang.phase, Phase::Placing(_))
    }

    /// True where the gang would have its minimum with these pods bound as well.
    pub(crate) fn has_minimum(&self, key: GangKey, more: &[PodUid]) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        if gang.is_made_up() && !gang.was_whole {
            return false;
        }
        self.meets_minimum(gang, |uid, pod| pod.is_live() || pod.ended_well() || more.contains(uid))
    }

    /// True where the pods that count are the gang's minimum.
    pub(crate) fn meets_minimum(&self, gang: &Gang, counts: impl Fn(&PodUid, &Pod) -> bool) -> bool {
        let mut total = 0;
        let mut tasks: BTreeMap<&Arc<str>, u32> = BTreeMap::new();
        for (_, pod) in self.gangs.pods_of(&gang.spec.name).filter(|(uid, pod)| counts(uid, pod)) {
            total += 1;
            *tasks.entry(&pod.spec.task).or_default() += 1;
        }
        let minima = task_minima(gang, self.now);
        total >= gang.minimum(self.now)
            && minima.iter().all(|(task, minimum)| tasks.get(task).copied().unwrap_or(0) >= *minimum)
            && self.has_parts(gang, counts)
    }

    /// A gang with pods that a coordinator bound, and no plan, was wholly bound once, since then its plan was removed:
    /// whoever was lost since, the rest may run. Where the PodGroup is gone the plan went with it, and only a start
    /// proves it, as where it was made anew meanwhile: only pods that were bound for the present one say anything of it.
    pub(crate) fn find_whole(&mut self, key: GangKey, has_plan: bool) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let was_whole =
            self.has_started_pods(key) || (!has_plan && !gang.is_made_up() && self.has_live_of_its_own(gang));
        if let Some(gang) = self.gangs.gangs.get_mut(&key).filter(|_| was_whole) {
            gang.was_whole = true;
        }
    }

    /// True where a live pod was bound for this very PodGroup.
    fn has_live_of_its_own(&self, gang: &Gang) -> bool {
        let mut pods = self.gangs.pods_of(&gang.spec.name);
        // One that was bound before it had a PodGroup was all of its gang.
        let is_own = |pod: &Pod| {
            pod.spec.group_uid == gang.spec.uid || pod.spec.group_uid == GangSpec::lone_pod_uid(&pod.spec.uid)
        };
        pods.any(|(_, pod)| pod.is_live() && is_own(pod))
    }

    pub(crate) fn has_live_of_ours(&self, gang: &Gang) -> bool {
        self.gangs.pods_of(&gang.spec.name).any(|(_, pod)| pod.is_live() && pod.is_bound_by_us())
    }

    /// True where a pod of the gang got through the start gate. Pods without a lease pass none: they show something only
    /// where no other has one. One that has ended, or is being deleted, may be of an earlier life of the gang; where the
    /// PodGroup is gone there is none but that one.
    fn has_started_pods(&self, key: GangKey) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        let has_lease = |pod: &Pod| pod.spec.binding.as_ref().is_some_and(|binding| binding.lease.is_some());
        let counts = |pod: &&Pod| pod.is_live() || gang.is_made_up();
        let pods = || self.gangs.pods_of(&gang.spec.name).map(|(_, pod)| pod).filter(counts);
        let is_gated = pods().any(has_lease);
        let mut bound = pods().filter(|pod| if is_gated { has_lease(pod) } else { pod.is_bound_by_us() });
        bound.any(|pod| self.is_let_start(pod))
    }

    /// True where a bound pod has started, or its agent lets it.
    pub(crate) fn is_let_start(&self, pod: &Pod) -> bool {
        let lease = pod.lease.and_then(|id| self.leases.leases.get(&id));
        let is_open = lease.is_some_and(|lease| !lease.local && lease.known == Some(LeaseState::Started));
        is_open || pod.spec.phase != PodPhase::Pending
    }

    /// An agent says that a pod of a gang was let start: whoever did it had seen the gang whole.
    pub(crate) fn note_start(&mut self, key: GangKey) {
        if let Some(gang) = self.gangs.gangs.get_mut(&key).filter(|gang| !gang.was_whole) {
            gang.was_whole = true;
            self.touched.insert(key);
        }
    }

    /// A gang with bound pods and no round: it runs, or is degraded. What a coordinator bound of one that never was
    /// whole must not hold its place for ever.
    pub(crate) fn settle_found(&mut self, key: GangKey, now: Time) {
        self.set_waiting(key, false);
        if self.has_started_pods(key)
            && let Some(gang) = self.gangs.gangs.get_mut(&key)
        {
            gang.was_whole = true;
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let holds = self.has_live_of_ours(gang) && !gang.was_whole;
        let made_up = gang.is_made_up();
        let phase = if self.is_satisfied(key) {
            self.open_start_gate(key);
            Phase::Running { round: None }
        } else {
            let cause = if made_up { GROUP_GONE } else { "fewer pods than its minimum are bound" };
            let roll_back_at = holds.then(|| now + self.settings.binding_deadline_ms);
            if let Some(at) = roll_back_at {
                self.timers.insert((at, Timer::Gang(key)));
            }
            Phase::Degraded { cause: Arc::from(cause), round: None, roll_back_at }
        };
        self.set_phase(key, phase);
        self.touched.insert(key);
    }

    /// True where nothing is taken back of a gang yet, though it is due: an agent that is away may know that its pods run.
    pub(crate) fn waits_for_word(&mut self, key: GangKey, now: Time) -> bool {
        let until = now + self.settings.binding_deadline_ms;
        let Some(gang) = self.gangs.gangs.get(&key).filter(|gang| gang.is_made_up()) else { return false };
        let is_away = |pod: &Pod| {
            let lease = pod.lease.and_then(|id| self.leases.leases.get(&id)).filter(|lease| !lease.local);
            let agent = lease.map(|lease| self.cluster.node(lease.node).agent.as_ref());
            agent.is_some_and(|agent| agent.is_none_or(|agent| agent.session.is_none()))
        };
        if !self.gangs.pods_of(&gang.spec.name).any(|(_, pod)| pod.is_live() && is_away(pod)) {
            return false;
        }
        if let Some(Phase::Degraded { roll_back_at, .. }) =
            self.gangs.gangs.get_mut(&key).map(|gang| &mut gang.phase)
        {
            *roll_back_at = Some(until);
        }
        self.timers.insert((until, Timer::Gang(key)));
        true
    }
}

/// Minima of single tasks. As in Volcano they only count where minMember covers their sum. A gang that has waited and
/// starts with fewer pods needs one of each task that has a minimum, where those are not too many.
pub(crate) fn task_minima(gang: &Gang, now: Time) -> BTreeMap<&Arc<str>, u32> {
    let spec = &gang.spec;
    let most = if gang.has_waited(now) { 1 } else { u32::MAX };
    let minima = spec.min_task_member.iter().map(|(task, minimum)| (task, (*minimum).min(most)));
    let minima: BTreeMap<&Arc<str>, u32> = minima.collect();
    let sum: u64 = minima.values().map(|minimum| u64::from(*minimum)).sum();
    // Not the lower bound of one: a gang whose minMember is 0 leaves its tasks' minima without effect.
    let all = if gang.has_waited(now) { gang.minimum(now) } else { spec.min_member };
    if u64::from(all) < sum { BTreeMap::new() } else { minima }
}
