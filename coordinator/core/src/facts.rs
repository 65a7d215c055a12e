//! Records facts about queues, priority classes, gangs and pods.

use std::sync::Arc;

use phalanx_common::gang::{GangSpec, PodRequest, PodSpec};
use phalanx_common::ids::{GangName, PodUid, QueueName};
use phalanx_common::planted::{self, Bug};
use phalanx_common::queue::{PriorityClassSpec, QueuePolicySpec, QueueSpec};
use phalanx_common::wire::LeaseState;

use crate::amounts::Amounts;
use crate::claims::VolumeNeed;
use crate::core::Core;
use crate::gang::{Gang, GangKey, Pod};
use crate::phase::{BindState, Phase};
use crate::place::PodNeed;
use crate::turn::OrderKey;

impl Core {
    pub(crate) fn make_default_queue(&mut self) {
        let name = QueueName::from(self.settings.default_queue.as_str());
        self.apply_queue(QueueSpec::new(name));
    }

    pub(crate) fn apply_queue(&mut self, spec: QueueSpec) {
        let name = spec.name.clone();
        let queue = self.queues.ensure(&name);
        if queue.spec.as_ref() == Some(&spec) {
            // Most changes of a queue's object are our own statuses: no gang waits for those.
            return;
        }
        queue.set_spec(Some(spec), &mut self.cluster.resources);
        self.change_tree();
        self.touch_chain(&name);
    }

    pub(crate) fn delete_queue(&mut self, name: &QueueName) {
        if let Some(queue) = self.queues.queues.get_mut(name) {
            queue.set_spec(None, &mut self.cluster.resources);
            self.queues.forget_if_unused(name);
        }
        // The default queue exists without an object.
        if name.as_str() == self.settings.default_queue {
            self.make_default_queue();
        }
        self.change_tree();
    }

    /// Queues came, went or changed: what hangs below what is found anew, and all that are counted elsewhere now show it.
    fn change_tree(&mut self) {
        let before: Vec<_> =
            self.queues.queues.iter().map(|(name, queue)| (name.clone(), queue.up.clone())).collect();
        self.queues.rebuild();
        self.queues.capacity_seen = None;
        for (name, up) in before {
            let now = self.queues.get(&name).and_then(|queue| queue.up.clone());
            if now != up {
                let parents = up.into_iter().chain(now);
                let touched: Vec<QueueName> = parents.flat_map(|parent| self.queues.chain(&parent)).collect();
                self.touched_queues.extend(touched);
            }
        }
        self.reorder();
    }

    pub(crate) fn apply_queue_policy(&mut self, policy: QueuePolicySpec) {
        let name = policy.name.clone();
        if self.policies.get(&name) != Some(&policy) {
            self.touch_queue(&name);
            self.policies.insert(name, policy);
            self.forget_alike();
            self.wake_all();
        }
    }

    pub(crate) fn delete_queue_policy(&mut self, name: &QueueName) {
        if self.policies.remove(name).is_some() {
            self.forget_alike();
            self.wake_all();
        }
    }

    pub(crate) fn apply_priority_class(&mut self, class: PriorityClassSpec) {
        if self.priority_classes.get(&class.name) == Some(&class) {
            return;
        }
        self.priority_classes.insert(class.name.clone(), class);
        self.reorder();
    }

    pub(crate) fn delete_priority_class(&mut self, name: &Arc<str>) {
        self.priority_classes.remove(name);
        self.reorder();
    }

    /// Priority of a gang; `None` where it names a class that does not exist.
    pub(crate) fn priority_of(&self, gang: &GangSpec) -> Option<i32> {
        match &gang.priority_class {
            Some(class) => self.priority_classes.get(class).map(|class| class.value),
            None => Some(self.default_class().map_or(0, |class| class.value)),
        }
    }

    /// The class of gangs that name none: of several the one of the lowest value, as in Kubernetes.
    pub(crate) fn default_class(&self) -> Option<&PriorityClassSpec> {
        self.priority_classes.values().filter(|class| class.global_default).min_by_key(|class| class.value)
    }

    fn order_of(&self, spec: &GangSpec, key: GangKey) -> OrderKey {
        OrderKey::new(self.priority_of(spec).unwrap_or(0), spec.created, key)
    }

    /// Queues or priorities changed: every gang that waits may stand elsewhere, and is tried again.
    fn reorder(&mut self) {
        let keys: Vec<GangKey> = self.gangs.gangs.keys().copied().collect();
        for key in keys {
            let Some(gang) = self.gangs.gangs.get(&key) else { continue };
            let after = self.order_of(&gang.spec, key).in_phase(gang.phase.kind());
            self.move_order(key, after);
        }
        // A ceiling may have kept one from running at all, or may do so now.
        self.gangs.gangs.values_mut().for_each(|gang| gang.tried_with = None);
        self.forget_alike();
        self.wake_all();
    }

    pub(crate) fn apply_gang(&mut self, mut spec: GangSpec) {
        self.has_kept |= spec.policy.preemptable == Some(false);
        let known = self.gangs.key(&spec.name).and_then(|key| self.gangs.gangs.get(&key));
        if let Some(gang) = known {
            if gang.spec.uid == spec.uid || gang.spec.is_lone_pod() {
                // A lone pod has waited since it was made, and its PodGroup comes later: it keeps its place in the order.
                spec.created = spec.created.min(gang.spec.created);
            }
            if gang.spec == spec && !gang.deleted {
                return;
            }
            if gang.spec.uid == spec.uid || gang.deleted || gang.spec.is_lone_pod() {
                return self.change_gang(gang.key(), spec);
            }
            // Another object of the old name: its pods, if any are left, now belong to the new one.
            let name = spec.name.clone();
            self.delete_gang(&name);
            if let Some(key) = self.gangs.key(&name) {
                return self.change_gang(key, spec);
            }
        }
        let key = self.next_arrival();
        let (order, min_amounts) = (self.order_of(&spec, key), self.min_amounts(&spec));
        self.queues.ensure(&spec.queue).count(Phase::Queued.kind(), true);
        self.touched_queues.insert(spec.queue.clone());
        self.gangs.by_name.insert(spec.name.clone(), key);
        let gang = Gang::new(spec, order, min_amounts, self.now);
        let name = gang.spec.name.clone();
        self.gangs.gangs.insert(key, gang);
        self.join_group(key);
        self.touched.insert(key);
        // Pods may have been heard of before their PodGroup.
        for uid in self.gangs.pods_of.get(&name).cloned().unwrap_or_default() {
            self.note_binding(key, &uid);
        }
    }

    /// A gang's object changed; what is placed stays placed.
    fn change_gang(&mut self, key: GangKey, spec: GangSpec) {
        let order = self.order_of(&spec, key);
        let min_amounts = self.min_amounts(&spec);
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        gang.tried_with = None;
        // Of one that runs more may go than before: nothing protects it any more, it is less urgent, or needs fewer pods.
        self.eviction_news |= gang.phase.is_still();
        let before = gang.order;
        let mut left = None;
        if gang.spec.queue != spec.queue {
            let (from, to) = (gang.spec.queue.clone(), spec.queue.clone());
            let (charge, wants) = (gang.charge.clone(), gang.wants.clone());
            let kind = gang.phase.kind();
            let leased = self.leased_amounts(key);
            let nothing = Amounts::default();
            self.queues.release(&from, &leased);
            self.queues.charge(&from, &charge, &nothing);
            self.queues.want(&from, &wants, &nothing);
            self.quota_freed |= self.queues.is_limited(&from);
            self.queues.ensure(&from).count(kind, false);
            self.queues.allocate(&to, &leased);
            self.queues.charge(&to, &nothing, &charge);
            self.queues.want(&to, &nothing, &wants);
            self.queues.ensure(&to).count(kind, true);
            self.move_line(&from, &to, before, key);
            left = Some(from.clone());
            self.touched_queues.extend([from, to]);
        }
        self.leave_group(key);
        let Some(gang) = self.gangs.gangs.get_mut(&key) else { return };
        // The PodGroup that is made for a lone pod begins nothing anew.
        let is_new_object = gang.spec.uid != spec.uid && !gang.spec.is_lone_pod();
        gang.min_amounts = min_amounts;
        gang.spec = spec;
        gang.deleted = false;
        self.join_group(key);
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let kind = gang.phase.kind();
        self.move_order(key, order.in_phase(kind));
        self.note_giver(key);
        if let Some(queue) = left {
            self.queues.forget_if_unused(&queue);
        }
        if is_new_object {
            let finished = self.gangs.gangs.get_mut(&key).is_some_and(|gang| {
                (gang.written, gang.placing_since) = (None, None);
                matches!(gang.phase, Phase::Finished)
            });
            if finished {
                self.set_phase(key, Phase::Queued);
            }
        }
        self.touched.insert(key);
    }

    fn min_amounts(&mut self, spec: &GangSpec) -> Amounts {
        spec.min_resources
            .as_ref()
            .map_or_else(Amounts::default, |minimum| self.cluster.resources.amounts(minimum))
    }

    /// What the leases of a gang count for in its queue.
    pub(crate) fn leased_amounts(&self, key: GangKey) -> Amounts {
        let mut sum = Amounts::default();
        for lease in self.leases.leases.values().filter(|lease| lease.charged && lease.gang == Some(key)) {
            sum.add(&lease.taken.amounts.of_pod());
        }
        sum
    }

    pub(crate) fn delete_gang(&mut self, name: &GangName) {
        if let Some(key) = self.gangs.key(name)
            && let Some(gang) = self.gangs.gangs.get_mut(&key)
        {
            gang.deleted = true;
            self.touched.insert(key);
            self.touch_group(key);
        }
    }

    /// Needs of a pod; alike pods share one value.
    pub(crate) fn need_of(&mut self, pod: &PodSpec) -> Arc<PodNeed> {
        let volumes = self.claims.volumes_of(pod);
        if let Some((request, need)) = &self.last_need
            && *request == pod.request
            && need.selector == pod.node_selector
            && need.constraints == pod.constraints
            && need.volumes == volumes
        {
            return need.clone();
        }
        let need = Arc::new(self.new_need(&pod.request, pod, volumes));
        self.last_need = Some((pod.request.clone(), need.clone()));
        need
    }

    fn new_need(&mut self, request: &PodRequest, pod: &PodSpec, volumes: Vec<VolumeNeed>) -> PodNeed {
        let effective = request.effective();
        let amounts = self.cluster.resources.amounts(&effective);
        let devices = effective.iter().filter(|(name, _)| name.is_counted()).map(|(_, amount)| amount);
        PodNeed {
            gpus: u32::try_from(amounts.gpus).unwrap_or(u32::MAX),
            needs_agent: effective.iter().any(|(name, amount)| name.is_device() && amount > 0),
            devices: devices.fold(0, u64::saturating_add),
            selector: pod.node_selector.clone(),
            constraints: pod.constraints.clone(),
            volumes,
            amounts,
        }
    }

    pub(crate) fn apply_pod(&mut self, spec: PodSpec) {
        self.has_kept |= spec.policy.preemptable == Some(false);
        self.forget_other(&spec.uid);
        let need = self.need_of(&spec);
        let uid = spec.uid.clone();
        let gang = spec.gang.clone();
        let known = self.gangs.pods.get(&uid);
        // Nothing may protect it any more.
        let protects = |spec: &PodSpec| (spec.policy.preemptable, spec.policy.cooldown_ms);
        self.eviction_news |= known.is_some_and(|pod| protects(&pod.spec) != protects(&spec));
        let before = known.map(|pod| (pod.spec.gang.clone(), pod.lease));
        let mounted = known.filter(|pod| pod.spec.claims != spec.claims || ends(&pod.spec, &spec));
        let mounted = mounted.map(|pod| pod.spec.clone());
        let (awaits_claims, has_one_pod_claims) = self.link_claims(mounted.as_ref(), &spec);
        if let Some((old_gang, _)) = &before
            && *old_gang != gang
        {
            self.unlink(&uid, old_gang);
        }
        let lease = before.and_then(|(_, lease)| lease);
        self.gangs.pods_of.entry(gang.clone()).or_default().insert(uid.clone());
        self.gangs.pods.insert(uid.clone(), Pod { spec, need, lease, awaits_claims, has_one_pod_claims });
        self.note_holder(&uid);
        self.touch_claimant(&uid);
        if let Some(key) = self.gangs.key(&gang) {
            self.touched.insert(key);
            self.note_binding(key, &uid);
            self.release_if_ended(key, &uid);
        }
    }

    /// A pod that names no PodGroup. Where one of its gang's name exists, that one says what the gang is.
    pub(crate) fn apply_lone_pod(&mut self, gang: GangSpec, pod: PodSpec) {
        let known = self.gangs.key(&gang.name).and_then(|key| self.gangs.gangs.get(&key));
        if known.is_none_or(|known| known.spec.is_lone_pod() || known.is_made_up()) {
            self.apply_gang(gang);
        }
        self.apply_pod(pod);
    }

    /// A pod as it was when it was read, or `None` where it was gone. The answer may be late: what is known since may be
    /// newer, also that the pod is gone.
    pub(crate) fn apply_read(&mut self, uid: &PodUid, pod: Option<PodSpec>) {
        match pod.filter(|pod| pod.uid == *uid) {
            Some(pod) => {
                let known = self.gangs.pods.get(uid).map(|known| known.spec.resource_version);
                if known.is_some_and(|version| version <= pod.resource_version) {
                    self.apply_pod(pod);
                }
            }
            None => self.delete_pod(uid),
        }
    }

    /// The node gets the resources of a pod back that has ended or is being deleted.
    fn release_if_ended(&mut self, key: GangKey, uid: &PodUid) {
        let Some(pod) = self.gangs.pods.get(uid) else { return };
        let (Some(lease), true) = (pod.lease, self.pod_ended(&pod.spec)) else { return };
        self.end_lease(lease);
        // Bound or not: its lease goes, and a round must not wait for it.
        self.drop_member(key, uid);
    }

    /// A binding that the API shows ends the wait for the Binding's outcome.
    pub(crate) fn note_binding(&mut self, key: GangKey, uid: &PodUid) {
        let Some(pod) = self.gangs.pods.get(uid) else { return };
        let Some(binding) = pod.spec.binding.clone() else { return };
        match pod.lease {
            Some(lease)
                if binding.lease == Some(lease)
                    // One that names a lease of an agent is another leader's, though it is to the same node.
                    || binding.lease.is_none() && self.is_local_there(lease, &binding) =>
            {
                self.mark_bound(key, uid);
                let ended = self.pod_ended(&self.gangs.pods[uid].spec);
                let starts = planted::is(Bug::StartBeforeWhole);
                let wanted = if starts { LeaseState::Started } else { LeaseState::Bound };
                self.leases.want_at_least(lease, wanted);
                if ended {
                    self.end_lease(lease);
                }
            }
            Some(lease) => {
                // Bound by somebody else: our promise was for nothing, theirs is counted.
                self.drop_member(key, uid);
                self.end_lease(lease);
                self.set_pod_lease(uid, None);
                self.adopt(key, uid);
            }
            None if self.synced => self.adopt(key, uid),
            None => {}
        }
    }

    fn mark_bound(&mut self, key: GangKey, uid: &PodUid) {
        let round = self.gangs.gangs.get_mut(&key).and_then(|gang| gang.phase.round_mut());
        if let Some(round) = round
            && let Some(member) = round.members.get_mut(uid)
        {
            member.bind = BindState::Bound;
            round.unbound.remove(uid);
            round.to_bind.remove(uid);
        }
    }

    fn unlink(&mut self, uid: &PodUid, gang: &GangName) {
        if let Some(pods) = self.gangs.pods_of.get_mut(gang) {
            pods.remove(uid);
            if pods.is_empty() {
                self.gangs.pods_of.remove(gang);
            }
        }
        let Some(key) = self.gangs.key(gang) else { return };
        self.touched.insert(key);
        if let Some(gang) = self.gangs.gangs.get_mut(&key).filter(|gang| gang.spec.is_of_lone_pod(uid)) {
            // Nobody else says that it is gone: there is no object.
            gang.deleted = true;
        }
    }

    pub(crate) fn delete_pod(&mut self, uid: &PodUid) {
        self.forget_other(uid);
        self.strangers_fenced.retain(|_, pod| pod != uid);
        self.touch_claimant(uid);
        let Some(pod) = self.gangs.pods.remove(uid) else { return };
        self.unlink_claims(&pod.spec);
        let gang = pod.spec.gang.clone();
        if let Some(key) = self.gangs.key(&gang) {
            self.drop_member(key, uid);
        }
        if let Some(lease) = pod.lease.filter(|_| !planted::is(Bug::ForgetRelease)) {
            self.end_lease(lease);
        }
        self.unlink(uid, &gang);
    }

    /// Its node may have its resources back. Where kubelets stop pods, one that is bound and being deleted still runs:
    /// it takes as long as its grace period, and whatever it needs beyond that.
    pub(crate) const fn pod_ended(&self, pod: &PodSpec) -> bool {
        let may_run = self.settings.kubelet_stops_pods && pod.binding.is_some();
        pod.phase.is_terminal() || (pod.deleting && !may_run)
    }

    /// Takes a pod out of its gang's round; the round goes on without it once it is committed.
    pub(crate) fn drop_member(&mut self, key: GangKey, uid: &PodUid) {
        let round = self.gangs.gangs.get_mut(&key).and_then(|gang| gang.phase.round_mut());
        if let Some(round) = round
            && let Some(member) = round.members.remove(uid)
        {
            round.unconfirmed.remove(&member.lease);
            round.unarmed.remove(&member.lease);
            round.to_bind.remove(uid);
            round.unbound.remove(uid);
            round.lost_member = true;
            self.touched.insert(key);
        }
    }
}

/// A pod that had not ended has now.
const fn ends(before: &PodSpec, now: &PodSpec) -> bool {
    now.phase.is_terminal() && !before.phase.is_terminal()
}
