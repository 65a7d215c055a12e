//! The scheduling pass: gangs that may have a chance are tried in order. One that does not fit never
//! stops the ones behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::PodUid;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;

use crate::action::Action;
use crate::amounts::Amounts;
use crate::class::ModelId;
use crate::core::{Core, Timer};
use crate::gang::{Gang, GangKey, OrderKey, natural};
use crate::life::task_minima;
use crate::phase::{Phase, PhaseKind};
use crate::place::{Candidate, GangShape, Overlay, PodNeed, Shortfall, place};
use crate::reason::Reason;

/// What makes two gangs equal for placing: a shape that did not fit once does not fit again in the
/// same pass, in which room only shrinks.
type ShapeKey = (bool, Vec<(Arc<str>, Arc<PodNeed>)>, BTreeMap<Arc<str>, ModelId>);

/// Shapes that failed in this pass, and why; true where they can never fit.
type Failed = BTreeMap<ShapeKey, (Reason, bool)>;

/// What of a gang must be placed together.
pub(crate) struct Required {
    pub(crate) pods: Vec<Candidate>,
    pub(crate) minimum: u32,
}

impl Core {
    /// Tries the gangs that may have a chance now.
    pub(crate) fn pass(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.cluster.room_generation != self.room_seen {
            self.wake_all();
        }
        let mut failed = Failed::new();
        while let Some(order) = self.to_try.pop_first() {
            let Some(key) = self.waiting.get(&order).copied() else { continue };
            let Some(gang) = self.gangs.gangs.get(&key) else { continue };
            match gang.phase.kind() {
                PhaseKind::Queued | PhaseKind::Admitted => self.try_start(key, &mut failed, now),
                PhaseKind::Running | PhaseKind::Degraded => self.try_grow(key, &mut failed, now),
                PhaseKind::Reserving
                | PhaseKind::Committing
                | PhaseKind::Arming
                | PhaseKind::Binding
                | PhaseKind::Evicting
                | PhaseKind::Finished => {}
            }
            self.write_gang_status(key, actions);
        }
        self.room_seen = self.cluster.room_generation;
    }

    fn try_start(&mut self, key: GangKey, failed: &mut Failed, now: Time) {
        match self.start(key, failed, now) {
            Ok(()) => self.set_reason(key, None),
            Err((reason, PhaseKind::Admitted)) => self.set_reason(key, Some(reason)),
            Err((reason, _)) => {
                self.set_reason(key, Some(reason));
                if self.gangs.gangs.get(&key).is_some_and(|gang| !matches!(gang.phase, Phase::Queued)) {
                    self.set_phase(key, Phase::Queued);
                }
            }
        }
    }

    fn set_reason(&mut self, key: GangKey, reason: Option<Reason>) {
        if let Some(gang) = self.gangs.gangs.get_mut(&key) {
            gang.reason = reason;
        }
    }

    /// Admits and places a gang. An error says why not, and in which phase the gang stays.
    fn start(&mut self, key: GangKey, failed: &mut Failed, now: Time) -> Result<(), (Reason, PhaseKind)> {
        let queued = |reason| (reason, PhaseKind::Queued);
        let admitted = |reason| (reason, PhaseKind::Admitted);
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        self.check_admissible(gang).map_err(queued)?;
        let required = self.required(gang);
        let charge = Self::admission_charge(gang, &required);
        let order = gang.order;
        self.check_quota(key, order, &charge).map_err(queued)?;
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        if matches!(gang.phase, Phase::Queued) {
            self.set_phase(key, Phase::Admitted);
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        match self.check_pods(gang, &required) {
            Err(reason @ Reason::PodBlocked { .. }) => return Err(queued(reason)),
            // Its pods are being created: the charge stands already, so that they find their quota.
            Err(reason) => {
                self.charge_admission(key, charge);
                return Err(admitted(reason));
            }
            Ok(()) => {}
        }
        match self.place_minimum(key, &required, failed, now) {
            Ok(()) => Ok(()),
            // What can never fit is charged nothing.
            Err((reason, true)) => Err(queued(reason)),
            Err((reason, false)) => {
                self.charge_admission(key, charge);
                Err(admitted(reason))
            }
        }
    }

    /// Places an admitted gang's minimum; an error says why not, and whether it can never fit.
    fn place_minimum(
        &mut self,
        key: GangKey,
        required: &Required,
        failed: &mut Failed,
        now: Time,
    ) -> Result<(), (Reason, bool)> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        if gang.not_before > now {
            let at = gang.not_before;
            self.timers.insert((at, Timer::Gang(key)));
            return Err((
                Reason::InProgress { step: Arc::from("a short wait after a refused placement") },
                false,
            ));
        }
        let shape = self.shape(key);
        let shape_key = shape_key(&shape, &required.pods);
        if let Some((reason, never)) = failed.get(&shape_key) {
            return Err((reason.clone(), *never));
        }
        match place(&self.cluster, &mut Overlay::default(), &shape, &required.pods) {
            Ok(placed) => {
                self.count_attempt(key, now).map_err(|reason| (reason, false))?;
                self.begin_round(key, &placed, now);
                Ok(())
            }
            Err(shortfall) => {
                let (reason, never) = self.diagnose(&shape, required, &shortfall);
                failed.insert(shape_key, (reason.clone(), never));
                Err((reason, never))
            }
        }
    }

    /// Bounds how often a gang is tried: a placement that only looks healthy must not win for ever.
    fn count_attempt(&mut self, key: GangKey, now: Time) -> Result<(), Reason> {
        const WINDOW: Millis = Millis::from_seconds(60);
        let limit = self.settings.attempts_per_minute;
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return Ok(()) };
        if now - gang.attempts.0 >= WINDOW {
            gang.attempts = (now, 0);
        }
        if gang.attempts.1 >= limit {
            gang.not_before = gang.attempts.0 + WINDOW;
            self.timers.insert((gang.not_before, Timer::Gang(key)));
            return Err(Reason::InProgress { step: Arc::from("placement failed too often in this minute") });
        }
        gang.attempts.1 += 1;
        Ok(())
    }

    /// Places pods above the minimum, and replaces lost ones, each for itself, with what is idle.
    fn try_grow(&mut self, key: GangKey, failed: &mut Failed, now: Time) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        if gang.phase.round().is_some() || gang.deleted {
            return;
        }
        if gang.not_before > now {
            self.timers.insert((gang.not_before, Timer::Gang(key)));
            return;
        }
        let shape = self.shape(key);
        let mut used = self.used_in_queue(gang);
        let mut overlay = Overlay::default();
        let mut all = Vec::new();
        let candidates = self.candidates(gang);
        let Some(queue) = self.queues.get(&gang.spec.queue) else { return };
        for candidate in candidates {
            let shape_key = shape_key(&shape, std::slice::from_ref(&candidate));
            if queue.over(&used, &candidate.need.amounts).is_some() || failed.contains_key(&shape_key) {
                continue;
            }
            match place(&self.cluster, &mut overlay, &shape, std::slice::from_ref(&candidate)) {
                Ok(placed) => {
                    used.add(&candidate.need.amounts);
                    all.extend(placed);
                }
                Err(_) => {
                    let reason = Reason::InProgress { step: Arc::from("more pods wait for idle GPUs") };
                    failed.insert(shape_key, (reason, false));
                }
            }
        }
        if !all.is_empty() && self.count_attempt(key, now).is_ok() {
            self.begin_round(key, &all, now);
        }
    }

    /// Queue and priority class are there, and the queue is open.
    fn check_admissible(&self, gang: &Gang) -> Result<(), Reason> {
        let queue = gang.spec.queue.clone();
        match self.queues.get(&queue).and_then(|queue| queue.spec.as_ref()) {
            None => return Err(Reason::NoSuchQueue { queue }),
            Some(spec) if !spec.open && matches!(gang.phase, Phase::Queued) => {
                return Err(Reason::QueueClosed { queue });
            }
            Some(_) => {}
        }
        match (&gang.spec.priority_class, self.priority_of(&gang.spec)) {
            (Some(class), None) => Err(Reason::NoSuchPriorityClass { class: class.clone() }),
            _ => Ok(()),
        }
    }

    /// What of the queue's ceiling is used by others.
    fn used_in_queue(&self, gang: &Gang) -> Amounts {
        let mut used = Amounts::default();
        if let Some(queue) = self.queues.get(&gang.spec.queue) {
            used.add(&queue.allocated);
            used.add(&queue.charged);
            used.subtract(&gang.charge);
        }
        used
    }

    fn check_quota(&mut self, key: GangKey, order: OrderKey, charge: &Amounts) -> Result<(), Reason> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Ok(()) };
        let used = self.used_in_queue(gang);
        let name = gang.spec.queue.clone();
        let Some(queue) = self.queues.get(&name) else { return Ok(()) };
        if let Some(over) = queue.over(&Amounts::default(), charge) {
            let (resource, limit, asked) = (over.resource, over.limit, over.asked);
            return Err(Reason::AboveCapability { queue: name, resource, limit, asked });
        }
        let Some(over) = queue.over(&used, charge) else { return Ok(()) };
        // Gangs behind this one that were admitted and have no place yet make room for it.
        let mut left = used;
        let mut behind = Vec::new();
        for (other, other_key) in queue.admitted.iter().rev() {
            if *other <= order || queue.over(&left, charge).is_none() {
                break;
            }
            if let Some(other) = self.gangs.gangs.get(other_key).filter(|_| *other_key != key) {
                left.subtract(&other.charge);
                behind.push(*other_key);
            }
        }
        if queue.over(&left, charge).is_some() {
            let (resource, limit, used, asked) = (over.resource, over.limit, over.used, over.asked);
            return Err(Reason::QuotaUsed { queue: name, resource, limit, used, asked });
        }
        for other in behind {
            self.set_phase(other, Phase::Queued);
            self.touched.insert(other);
        }
        Ok(())
    }

    /// What an admitted gang is charged before it has a place: its minimum.
    fn admission_charge(gang: &Gang, required: &Required) -> Amounts {
        let mut charge = Amounts::default();
        for candidate in &required.pods {
            charge.add(&candidate.need.amounts);
        }
        charge.raise_to(&gang.min_amounts);
        charge
    }

    fn check_pods(&self, gang: &Gang, required: &Required) -> Result<(), Reason> {
        let exist = u32::try_from(required.pods.len()).unwrap_or(u32::MAX);
        if exist >= required.minimum && exist > 0 {
            return Ok(());
        }
        let blocked = self
            .gangs
            .pods_of(&gang.spec.name)
            .find(|(_, pod)| pod.is_unplaced() && !pod.spec.blockers.is_empty());
        if let Some((_, pod)) = blocked {
            let blocker = &pod.spec.blockers[0];
            let (pod, field) = (pod.spec.name.name.clone(), blocker.field.clone());
            return Err(Reason::PodBlocked { pod, field, message: blocker.message.clone() });
        }
        let minima = task_minima(&gang.spec);
        let short = minima.into_iter().find_map(|(task, minimum)| {
            let have = required.pods.iter().filter(|candidate| candidate.task == *task).count();
            let have = u32::try_from(have).unwrap_or(u32::MAX);
            (have < minimum).then(|| (task.clone(), have, minimum))
        });
        Err(match short {
            Some((task, exist, minimum)) => Reason::TooFewPods { exist, minimum, task: Some(task) },
            None => Reason::TooFewPods { exist, minimum: required.minimum, task: None },
        })
    }

    /// Pods that may be placed, in order of task and number.
    pub(crate) fn candidates(&self, gang: &Gang) -> Vec<Candidate> {
        let pods = self.gangs.pods_of(&gang.spec.name);
        let mut pods: Vec<_> =
            pods.filter(|(_, pod)| pod.is_unplaced() && pod.spec.blockers.is_empty()).collect();
        if pods.len() > 1 {
            pods.sort_by(|(_, left), (_, right)| {
                let key = |pod: &crate::gang::Pod| (pod.spec.task.clone(), pod.spec.name.name.clone());
                let ((left_task, left), (right_task, right)) = (key(left), key(right));
                (left_task, natural(&left)).cmp(&(right_task, natural(&right)))
            });
        }
        let candidate = |(uid, pod): (&PodUid, &crate::gang::Pod)| Candidate {
            pod: uid.clone(),
            task: pod.spec.task.clone(),
            need: pod.need.clone(),
        };
        pods.into_iter().map(candidate).collect()
    }

    pub(crate) fn candidate(&self, uid: &PodUid) -> Option<Candidate> {
        let pod = self.gangs.pods.get(uid)?;
        Some(Candidate { pod: uid.clone(), task: pod.spec.task.clone(), need: pod.need.clone() })
    }

    /// The pods that must be placed together: each task's minimum, filled up to minMember.
    pub(crate) fn required(&self, gang: &Gang) -> Required {
        let candidates = self.candidates(gang);
        let ended = self
            .gangs
            .pods_of(&gang.spec.name)
            .filter(|(_, pod)| pod.spec.phase == phalanx_common::gang::PodPhase::Succeeded);
        let ended = u32::try_from(ended.count()).unwrap_or(0);
        let minimum = gang.spec.min_member.max(1).saturating_sub(ended);
        let wanted = usize::try_from(minimum).unwrap_or(usize::MAX);
        if candidates.len() <= wanted {
            return Required { pods: candidates, minimum };
        }
        let mut left = task_minima(&gang.spec);
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match left.get_mut(&candidate.task) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    first.push(candidate);
                }
                _ => rest.push(candidate),
            }
        }
        let more = wanted.saturating_sub(first.len());
        first.extend(rest.into_iter().take(more));
        Required { pods: first, minimum }
    }

    /// How a gang wants its pods placed, with the models that its tasks run on already.
    pub(crate) fn shape(&self, key: GangKey) -> GangShape {
        let Some(gang) = self.gangs.gangs.get(&key) else { return GangShape::default() };
        let mut shape = GangShape { mixed_models: gang.spec.mixed_gpu_models, ..GangShape::default() };
        let has_placed = gang.phase.kind() != PhaseKind::Queued && gang.phase.kind() != PhaseKind::Admitted;
        if shape.mixed_models || !has_placed {
            return shape;
        }
        for (_, pod) in self.gangs.pods_of(&gang.spec.name) {
            let lease = pod.lease.and_then(|id| self.leases.leases.get(&id));
            let model = lease.and_then(|lease| self.cluster.model_of(lease.node, *lease.taken.gpus.first()?));
            if let Some(model) = model {
                shape.pinned.entry(pod.spec.task.clone()).or_insert(model);
            }
        }
        shape
    }

    /// Why a gang did not fit; true where it can never fit as nodes are now.
    fn diagnose(&mut self, shape: &GangShape, required: &Required, shortfall: &Shortfall) -> (Reason, bool) {
        let generation = self.cluster.capacity_generation;
        if self.emptied.as_ref().is_none_or(|(known, _)| *known != generation) {
            self.emptied = Some((generation, self.cluster.emptied()));
        }
        let mut leaving: BTreeMap<_, Amounts> = BTreeMap::new();
        for (index, _) in self.cluster.nodes().filter(|(_, node)| node.closed().is_some()) {
            let ids = self.leases.by_node.get(&index).into_iter().flatten();
            for lease in ids.filter_map(|id| self.leases.leases.get(id)) {
                if lease.wanted == LeaseState::Gone {
                    leaving.entry(index).or_default().add(&lease.taken.amounts);
                }
            }
        }
        let Some((_, empty)) = &self.emptied else {
            return (Reason::InProgress { step: Arc::from("") }, false);
        };
        crate::why::diagnose(&self.cluster, empty, shape, required, shortfall, &leaving)
    }
}

fn shape_key(shape: &GangShape, pods: &[Candidate]) -> ShapeKey {
    let pods = pods.iter().map(|candidate| (candidate.task.clone(), candidate.need.clone()));
    (shape.mixed_models, pods.collect(), shape.pinned.clone())
}
