//! Groups of gangs that start together (`phalanx.dev/gang-group`): none is admitted before all exist, all are placed by
//! one plan, and their rounds begin in the same pass or not at all.
//!
//! Before the commit point the rounds of a group go step by step: none commits before all of them have armed leases,
//! and when one is dropped the others are. After it each rolls forward for itself; nobody starts while another one
//! of the group is being bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::GangName;
use phalanx_common::units::Time;

use crate::action::Action;
use crate::amounts::Amounts;
use crate::core::{Core, Timer};
use crate::gang::{Gang, GangKey};
use crate::phase::{Phase, PhaseKind, Round, Step};
use crate::place::{Candidate, GangShape, Overlay, Placed, place};
use crate::reason::{Reason, Together};
use crate::required::Required;
use crate::turn::OrderKey;

/// Why gangs of a group do not start, and in which phase they stay.
type Refusal = (Reason, PhaseKind);

/// A gang of a group that has not started.
struct Starter {
    key: GangKey,
    name: Arc<str>,
    order: OrderKey,
    required: Required,
    charge: Amounts,
}

fn group_name(gang: &Gang) -> Option<GangName> {
    let group = gang.spec.policy.group.as_ref()?;
    Some(GangName::new(&gang.spec.name.namespace, &group.name))
}

fn together(reason: Together) -> Reason {
    Reason::Together(Box::new(reason))
}

impl Core {
    /// A gang is one of its group from now on.
    pub(crate) fn join_group(&mut self, key: GangKey) {
        if let Some(name) = self.gangs.gangs.get(&key).and_then(group_name) {
            self.gangs.groups.entry(name).or_default().insert(key);
            self.touch_group(key);
        }
    }

    /// A gang is none of its group any more.
    pub(crate) fn leave_group(&mut self, key: GangKey) {
        self.touch_group(key);
        let Some(name) = self.gangs.gangs.get(&key).and_then(group_name) else { return };
        if let Some(gangs) = self.gangs.groups.get_mut(&name) {
            gangs.remove(&key);
            if gangs.is_empty() {
                self.gangs.groups.remove(&name);
            }
        }
    }

    /// Groups are those that their gangs name.
    pub(crate) fn check_groups(&self) -> Result<(), String> {
        let mut named: BTreeMap<GangName, BTreeSet<GangKey>> = BTreeMap::new();
        for (key, gang) in &self.gangs.gangs {
            if let Some(name) = group_name(gang) {
                named.entry(name).or_default().insert(*key);
            }
        }
        if named == self.gangs.groups {
            return Ok(());
        }
        Err(format!("groups of gangs: {:?} are kept, {named:?} are named", self.gangs.groups))
    }

    /// The other gangs of a gang's group.
    pub(crate) fn group_mates(&self, key: GangKey) -> Vec<GangKey> {
        let name = self.gangs.gangs.get(&key).and_then(group_name);
        let gangs = name.and_then(|name| self.gangs.groups.get(&name)).into_iter().flatten();
        gangs.copied().filter(|other| *other != key).collect()
    }

    /// The others of its group are looked at again.
    pub(crate) fn touch_group(&mut self, key: GangKey) {
        let mates = self.group_mates(key);
        self.touched.extend(mates);
    }

    /// A gang has moved on or back: those that wait for it look at it again. Admission moves nobody else.
    pub(crate) fn note_group_move(&mut self, key: GangKey, before: PhaseKind, after: PhaseKind) {
        let waits = |kind| matches!(kind, PhaseKind::Queued | PhaseKind::Admitted);
        if !waits(before) || !waits(after) {
            self.touch_group(key);
        }
    }

    /// True where two gangs are of one group: what one is charged before it starts is none of the other's hindrances.
    pub(crate) fn starts_with(&self, key: GangKey, other: GangKey) -> bool {
        let group = |key| self.gangs.gangs.get(&key).and_then(group_name);
        group(key).is_some_and(|name| group(other) == Some(name))
    }

    /// The place in the order of a gang's group, while it waits: that of its first gang that waits too. Were each taken by
    /// its own, a gang between two of a group would push one back and be pushed back by the other for ever.
    pub(crate) fn standing(&self, key: GangKey) -> Option<OrderKey> {
        let waits = |gang: &&Gang| matches!(gang.phase, Phase::Queued | Phase::Admitted) && !gang.deleted;
        let gang = self.gangs.gangs.get(&key)?;
        let gangs = self.gangs.groups.get(&group_name(gang)?)?.iter();
        gangs.filter_map(|key| self.gangs.gangs.get(key)).filter(waits).map(|gang| gang.order).min()
    }

    fn placing_round(&self, key: GangKey) -> Option<&Round> {
        match &self.gangs.gangs.get(&key)?.phase {
            Phase::Placing(round) => Some(round),
            _ => None,
        }
    }

    /// True where a gang's round has done its step before the commit point and others of its group have not: it goes on
    /// when they have.
    pub(crate) fn awaits_group(&self, key: GangKey) -> bool {
        let is_done = |round: &Round| match round.step {
            Step::Reserving => round.unconfirmed.is_empty(),
            Step::Arming => round.unarmed.is_empty(),
            Step::Committing | Step::Binding => false,
        };
        let Some(round) = self.placing_round(key) else { return false };
        if round.lost_member || round.members.is_empty() || !is_done(round) {
            return false;
        }
        let is_behind =
            |other: &Round| other.step < round.step || other.step == round.step && !is_done(other);
        let mut others = self.group_mates(key).into_iter().filter_map(|other| self.placing_round(other));
        others.any(is_behind)
    }

    /// True while another gang of its group is being bound: nothing of this one starts before.
    pub(crate) fn group_is_binding(&self, key: GangKey) -> bool {
        let mut others = self.group_mates(key).into_iter().filter_map(|other| self.placing_round(other));
        others.any(|round| round.step == Step::Binding)
    }

    /// The round of a gang was dropped before its commit point: so are those of its group.
    pub(crate) fn drop_group(&mut self, key: GangKey, retry_at: Time, actions: &mut Vec<Action>) {
        if !self.gangs.gangs.get(&key).is_some_and(|gang| matches!(gang.phase, Phase::Admitted)) {
            return;
        }
        for other in self.group_mates(key) {
            if self.placing_round(other).is_some_and(|round| round.step < Step::Binding) {
                self.drop_round(other, retry_at, actions);
            }
        }
    }

    /// Starts a gang of a group together with the others that have not started; `None` for a gang that starts for itself.
    pub(crate) fn start_group(&mut self, key: GangKey, now: Time) -> Option<Result<(), Refusal>> {
        let gang = self.gangs.gangs.get(&key)?;
        let group = gang.spec.policy.group.as_ref()?;
        let (name, has_run) = (group.name.clone(), gang.times.has_run);
        let all: Vec<(GangKey, &Gang)> = self
            .gangs
            .groups
            .get(&group_name(gang)?)?
            .iter()
            .filter_map(|key| Some((*key, self.gangs.gangs.get(key)?)))
            .filter(|(_, gang)| !gang.deleted)
            .collect();
        let size = all.iter().filter_map(|(_, gang)| Some(gang.spec.policy.group.as_ref()?.size)).max()?;
        let exist = u32::try_from(all.len()).unwrap_or(u32::MAX);
        if exist < size && !has_run {
            let reason = Together::GroupIncomplete { group: name, exist, size };
            return Some(Err((together(reason), PhaseKind::Queued)));
        }
        let waits = |gang: &Gang| matches!(gang.phase, Phase::Queued | Phase::Admitted);
        let between = all.iter().find(|(_, gang)| {
            use PhaseKind::{Arming, Committing, Evicting, Reserving};
            matches!(gang.phase.kind(), Reserving | Committing | Arming | Evicting)
        });
        let between = between.map(|(_, gang)| gang.spec.name.name.clone());
        let mut starters: Vec<(OrderKey, GangKey)> =
            all.iter().filter(|(_, gang)| waits(gang)).map(|(key, gang)| (gang.order, *key)).collect();
        if starters.len() < 2 && between.is_none() {
            return None;
        }
        starters.sort_unstable();
        let keys: Vec<GangKey> = starters.into_iter().map(|(_, key)| key).collect();
        let result = match between {
            Some(gang) => {
                let step = Arc::from("it is being placed, or its pods are being evicted");
                Err((self.group_held(&keys, Some(gang), Reason::InProgress { step }), PhaseKind::Queued))
            }
            None => self.start_together(&keys, now),
        };
        self.note_together(key, &keys, &result);
        Some(result)
    }

    /// The others of the group have the same answer, unless one has a reason of its own; they are not tried again in this
    /// pass.
    fn note_together(&mut self, key: GangKey, keys: &[GangKey], result: &Result<(), Refusal>) {
        for other in keys.iter().filter(|other| **other != key) {
            let Some(gang) = self.gangs.gangs.get(other) else { continue };
            let (queue, order) = (gang.spec.queue.clone(), gang.order);
            let is_queued = matches!(gang.phase, Phase::Queued);
            self.queues.try_no_more(&queue, &order);
            match result {
                Ok(()) => self.set_reason(*other, None),
                Err((reason, kind)) => {
                    self.set_reason(*other, Some(reason.clone()));
                    if *kind == PhaseKind::Queued && !is_queued {
                        self.set_phase(*other, Phase::Queued);
                    }
                }
            }
        }
    }

    fn names_of(&self, keys: &[GangKey]) -> Vec<Arc<str>> {
        let gangs = keys.iter().filter_map(|key| self.gangs.gangs.get(key));
        gangs.map(|gang| gang.spec.name.name.clone()).collect()
    }

    fn group_held(&self, keys: &[GangKey], gang: Option<Arc<str>>, cause: Reason) -> Reason {
        together(Together::GroupHeld { gangs: self.names_of(keys), gang, cause: Box::new(cause) })
    }

    /// Admits and places gangs, all or none.
    fn start_together(&mut self, keys: &[GangKey], now: Time) -> Result<(), Refusal> {
        let starters = self.starters(keys)?;
        let behind = self.check_group_quota(&starters)?;
        let lacking = self.check_group_pods(&starters)?;
        if let Some((gang, reason)) = self.group_above_all_nodes(&starters, lacking.is_some()) {
            // Where their pods alone are too much, they tell which nodes are missing.
            let placed = if lacking.is_some() { Ok(Vec::new()) } else { self.place_together(&starters) };
            let never = placed.err().filter(|(_, kind)| *kind == PhaseKind::Queued);
            return Err(never.unwrap_or((self.group_held(keys, gang, reason), PhaseKind::Queued)));
        }
        let placed = match lacking.or_else(|| self.not_yet(&starters, now)) {
            Some((name, reason)) => Err((self.group_held(keys, Some(name), reason), PhaseKind::Admitted)),
            None => self.place_together(&starters),
        };
        if !matches!(placed, Err((_, PhaseKind::Queued))) {
            self.push_back(&behind);
            for starter in &starters {
                if self.gangs.gangs.get(&starter.key).is_some_and(|gang| matches!(gang.phase, Phase::Queued))
                {
                    self.set_phase(starter.key, Phase::Admitted);
                }
            }
        }
        match placed {
            Ok(places) => {
                for (starter, places) in starters.iter().zip(places) {
                    self.begin_round(starter.key, &places, now);
                    self.set_waiting(starter.key, false);
                }
                Ok(())
            }
            Err((reason, PhaseKind::Queued)) => Err((reason, PhaseKind::Queued)),
            Err(refusal) => {
                for starter in &starters {
                    self.charge_admission(starter.key, starter.charge.clone());
                }
                Err(refusal)
            }
        }
    }

    /// What each needs; all must name the same queue, which is open, and classes that exist.
    fn starters(&self, keys: &[GangKey]) -> Result<Vec<Starter>, Refusal> {
        let mut starters = Vec::with_capacity(keys.len());
        let gangs: Vec<(GangKey, &Gang)> =
            keys.iter().filter_map(|key| Some((*key, self.gangs.gangs.get(key)?))).collect();
        for (key, gang) in &gangs {
            let name = gang.spec.name.name.clone();
            if let Some((_, first)) = gangs.first().filter(|(_, first)| first.spec.queue != gang.spec.queue) {
                let (gang, queue, other) = (name, gang.spec.queue.clone(), first.spec.queue.clone());
                let gangs = self.names_of(keys);
                return Err((
                    together(Together::GroupOfQueues { gangs, gang, queue, other }),
                    PhaseKind::Queued,
                ));
            }
            if let Err(reason) = self.check_admissible(gang) {
                return Err((self.group_held(keys, Some(name), reason), PhaseKind::Queued));
            }
            let required = self.required(gang);
            let charge = self.admission_charge(gang, &required);
            starters.push(Starter { key: *key, name, order: gang.order, required, charge });
        }
        Ok(starters)
    }

    /// Whether the queue has room for all of them at once. Those that would have to make room are returned.
    fn check_group_quota(&self, starters: &[Starter]) -> Result<Vec<GangKey>, Refusal> {
        let has_pods = |starter: &&Starter| {
            let gang = self.gangs.gangs.get(&starter.key);
            gang.is_some_and(|gang| self.check_pods(gang, &starter.required).is_ok())
        };
        // One whose pods do not come speaks for all: together they have no better right than it.
        let speaker = starters.iter().find(|starter| !has_pods(starter)).or(starters.first());
        let Some(speaker) = speaker else { return Ok(Vec::new()) };
        let mut asked = Amounts::default();
        for starter in starters {
            asked.add(&starter.charge);
        }
        for other in starters.iter().filter(|other| other.key != speaker.key) {
            // It counts as used already.
            if let Some(gang) = self.gangs.gangs.get(&other.key) {
                asked.subtract(&gang.charge);
            }
        }
        let required = Required { lowering: None, pods: speaker.required.pods.clone(), ..speaker.required };
        let order = starters.first().map_or(speaker.order, |first| first.order);
        self.check_quota(speaker.key, order, &required, &asked).map_err(|reason| {
            let keys: Vec<GangKey> = starters.iter().map(|starter| starter.key).collect();
            (self.group_held(&keys, None, reason), PhaseKind::Queued)
        })
    }

    /// The first gang whose pods are not all there yet. Pods that something of their own holds up cost no quota.
    fn check_group_pods(&mut self, starters: &[Starter]) -> Result<Option<(Arc<str>, Reason)>, Refusal> {
        let mut lacking = None;
        for starter in starters {
            let Some(gang) = self.gangs.gangs.get(&starter.key) else { continue };
            match self.check_pods(gang, &starter.required) {
                Ok(()) => {
                    if let Some(gang) = self.gangs.gangs.get_mut(&starter.key) {
                        gang.pods_missing_since = None;
                    }
                }
                Err(reason @ (Reason::PodBlocked { .. } | Reason::PodGated { .. } | Reason::Claim(_))) => {
                    let keys: Vec<GangKey> = starters.iter().map(|starter| starter.key).collect();
                    return Err((
                        self.group_held(&keys, Some(starter.name.clone()), reason),
                        PhaseKind::Queued,
                    ));
                }
                Err(reason) => {
                    self.note_pods_missing(starter.key);
                    let reason = self.with_those_that_exist(&starter.required, reason);
                    lacking = lacking.or(Some((starter.name.clone(), reason)));
                }
            }
        }
        Ok(lacking)
    }

    /// All nodes together have less than the gangs say that they need.
    fn group_above_all_nodes(
        &mut self,
        starters: &[Starter],
        pods_are_missing: bool,
    ) -> Option<(Option<Arc<str>>, Reason)> {
        if pods_are_missing {
            let mut sum = Amounts::default();
            starters.iter().for_each(|starter| sum.add(&starter.charge));
            return self.larger_than_all_nodes(&sum, true).map(|reason| (None, reason));
        }
        starters.iter().find_map(|starter| {
            let reason = self.needs_more_than_all_nodes(starter.key, &starter.required)?;
            Some((Some(starter.name.clone()), reason))
        })
    }

    /// A gang that was refused a moment ago, or too often.
    fn not_yet(&mut self, starters: &[Starter], now: Time) -> Option<(Arc<str>, Reason)> {
        let waits = starters.iter().filter_map(|starter| {
            let gang = self.gangs.gangs.get(&starter.key).filter(|gang| gang.not_before > now)?;
            Some((gang.refused.clone(), gang.not_before, starter))
        });
        // The one that was refused knows why.
        if let Some((refused, at, starter)) = waits.max_by_key(|(refused, at, _)| (refused.is_some(), *at)) {
            let cause = refused.map(|cause| format!(": {cause}")).unwrap_or_default();
            self.timers.insert((at, Timer::Gang(starter.key)));
            let step = Arc::from(format!("a short wait after a refused placement{cause}"));
            return Some((starter.name.clone(), Reason::InProgress { step }));
        }
        starters.iter().find_map(|starter| {
            let reason = self.check_attempts(starter.key, now).err()?;
            Some((starter.name.clone(), reason))
        })
    }

    /// What is set aside for others, and that the gangs together would take.
    fn group_kept_from(&self, starters: &[Starter], all: &Required) -> Option<(Reason, bool)> {
        let mut asked = Amounts::default();
        all.pods.iter().for_each(|pod| asked.add(&pod.need.amounts.of_pod()));
        let first = self.gangs.gangs.get(&starters.first()?.key)?;
        let (reason, never) = self.kept_from(first, &Amounts::default(), &asked)?;
        let keys: Vec<GangKey> = starters.iter().map(|starter| starter.key).collect();
        Some((self.group_held(&keys, None, reason), never))
    }

    /// One plan for all that the gangs need; tasks of the same name in two gangs are two tasks.
    fn place_together(&mut self, starters: &[Starter]) -> Result<Vec<Vec<Placed>>, Refusal> {
        let mixed =
            |starter: &Starter| self.gangs.gangs.get(&starter.key).map(|gang| gang.spec.mixed_gpu_models);
        let mixed_models = starters.iter().all(|starter| mixed(starter) == Some(true));
        let shape = GangShape { mixed_models, ..GangShape::default() };
        let pods_of = |starter: &Starter| -> Vec<Candidate> {
            let of_gang = |candidate: &Candidate| Candidate {
                task: Arc::from(format!("{}/{}", starter.name, candidate.task)),
                ..candidate.clone()
            };
            starter.required.pods.iter().map(of_gang).collect()
        };
        let all = Required::together(starters.iter().flat_map(pods_of).collect());
        if let Some((reason, never)) = self.group_kept_from(starters, &all) {
            return Err((reason, if never { PhaseKind::Queued } else { PhaseKind::Admitted }));
        }
        let shortfall = match place(&self.cluster, &mut Overlay::default(), &shape, &all.pods) {
            Ok(placed) => return Ok(split(starters, &placed)),
            Err(shortfall) => shortfall,
        };
        let mut overlay = Overlay::default();
        let fits = |starter: &&Starter| {
            let mut trial = overlay.clone();
            let fits = place(&self.cluster, &mut trial, &shape, &pods_of(starter)).is_ok();
            if fits {
                overlay = trial;
            }
            fits
        };
        let fit = u32::try_from(starters.iter().filter(fits).count()).unwrap_or(u32::MAX);
        let (cause, never) = self.diagnose(&shape, &all, &shortfall);
        let gangs = starters.iter().map(|starter| starter.name.clone()).collect();
        let reason = together(Together::GroupDoesNotFit { gangs, fit, cause: Box::new(cause) });
        Err((reason, if never { PhaseKind::Queued } else { PhaseKind::Admitted }))
    }
}

/// The places of each gang's pods.
fn split(starters: &[Starter], placed: &[Placed]) -> Vec<Vec<Placed>> {
    let of_gang = |starter: &Starter| {
        let pods: BTreeSet<_> = starter.required.pods.iter().map(|candidate| &candidate.pod).collect();
        placed.iter().filter(|place| pods.contains(&place.pod)).cloned().collect()
    };
    starters.iter().map(of_gang).collect()
}
