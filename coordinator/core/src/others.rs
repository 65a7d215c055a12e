//! Pods on our nodes that are none of ours: those of another scheduler, of DaemonSets, or bound by hand without a
//! PodGroup. What they use counts as used, whoever runs; none of them is ever a victim.
//!
//! Which GPUs such a pod has nobody tells: of a node's free GPUs the last are taken for its. Where one comes to a node
//! on which a place was promised to a pod that is not bound yet, the promise goes: kubelet admits who is there first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::constraints::HostPort;
use phalanx_common::gang::PodPhase;
use phalanx_common::ids::{GangName, LeaseId, PodUid};
use phalanx_common::units::Time;
use phalanx_common::wire::LeaseState;
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::amounts::{Amounts, ResourceKey};
use crate::cluster::{InUse, NodeIndex};
use crate::core::{Core, Pending, Timer};
use crate::event::{DisruptionBudget, Mounts, OtherPod};
use crate::gang::{GangKey, Pod};
use crate::phase::{BindState, Member, Phase, Step};
use crate::place::{Overlay, place};
use crate::reason::OtherHolder;

/// What a pod of others uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) amounts: Amounts,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) scheduler: Arc<str>,
}

/// One pod of others. Alike ones share what they use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Other {
    pub(crate) node: NodeIndex,
    pub(crate) usage: Arc<Usage>,
    /// The claims that it mounts, where it mounts some.
    #[serde(default)]
    pub(crate) mounts: Option<Box<Mounts>>,
}

/// All pods of others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Others {
    pub(crate) pods: BTreeMap<PodUid, Other>,
    pub(crate) by_node: BTreeMap<NodeIndex, BTreeSet<PodUid>>,
    /// Nodes to which one came since the last cycle.
    pub(crate) crowded: BTreeSet<NodeIndex>,
    /// Told one after the other, most are alike: a DaemonSet's.
    #[serde(skip)]
    pub(crate) last: Option<Arc<Usage>>,
}

impl Others {
    /// What those on a node use.
    pub(crate) fn on(&self, node: NodeIndex) -> impl Iterator<Item = &Usage> {
        let uids = self.by_node.get(&node).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|other| &*other.usage)
    }
}

impl Core {
    /// Such a pod is there, or changed.
    pub(crate) fn apply_other(&mut self, mut pod: OtherPod) {
        match self.gangs.pods.get(&pod.uid).map(|known| known.spec.binding.is_some()) {
            // It was ours when it was bound, and its lease counts what it uses.
            Some(true) => return,
            Some(false) => self.delete_pod(&pod.uid),
            None => {}
        }
        let node = self.cluster.ensure_node(&pod.node);
        let uid = pod.uid.clone();
        let mounts = pod.mounts.take();
        let usage = self.usage_of(pod);
        let is_known = |known: &Other| known.node == node && known.usage == usage && known.mounts == mounts;
        if self.others.pods.get(&uid).is_some_and(is_known) {
            return;
        }
        // The old use goes last: the node must not be forgotten in between.
        self.cluster.occupy(node, &usage.amounts, &usage.ports);
        let known = self.others.pods.insert(uid.clone(), Other { node, usage, mounts: mounts.clone() });
        if let Some(known) = known {
            self.leave(&uid, &known, Some(node));
        }
        if let Some(mounts) = mounts {
            self.link_mounts(&uid, &mounts);
        }
        self.others.by_node.entry(node).or_default().insert(uid);
        self.others.crowded.insert(node);
    }

    fn usage_of(&mut self, pod: OtherPod) -> Arc<Usage> {
        let amounts = self.cluster.resources.amounts(&pod.request);
        let usage = Usage { amounts, ports: pod.host_ports, scheduler: pod.scheduler };
        if let Some(last) = self.others.last.as_ref().filter(|last| ***last == usage) {
            return last.clone();
        }
        let usage = Arc::new(usage);
        self.others.last = Some(usage.clone());
        usage
    }

    /// Such a pod has ended, is gone, or is one of ours now.
    pub(crate) fn forget_other(&mut self, uid: &PodUid) {
        if let Some(known) = self.others.pods.remove(uid) {
            self.leave(uid, &known, None);
        }
    }

    /// A pod uses no more what it used. `now_on` is its node where it is still on one.
    fn leave(&mut self, uid: &PodUid, known: &Other, now_on: Option<NodeIndex>) {
        self.cluster.vacate(known.node, &known.usage.amounts, &known.usage.ports);
        if let Some(mounts) = &known.mounts {
            self.unlink_mounts(uid, mounts);
        }
        if now_on == Some(known.node) {
            return;
        }
        if let Some(pods) = self.others.by_node.get_mut(&known.node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.others.by_node.remove(&known.node);
            }
        }
        self.forget_node(known.node);
    }

    /// What was promised to pods that are not bound yet, and does not fit beside pods of others that came since, is
    /// promised elsewhere. The newest promise goes first.
    pub(crate) fn yield_to_others(&mut self, now: Time, actions: &mut Vec<Action>) {
        while let Some(node) = self.others.crowded.pop_first() {
            let ids: Vec<LeaseId> = self.leases.by_node.get(&node).into_iter().flatten().copied().collect();
            for id in ids.into_iter().rev() {
                if self.is_crowded_out(id) {
                    self.yield_place(id, now, actions);
                }
            }
        }
    }

    /// True where a lease's node has not what it asks for beside pods of others and the leases that stay. What is on its
    /// way out counts no more: it frees what it has by itself.
    pub(crate) fn is_crowded_out(&self, id: LeaseId) -> bool {
        let Some(lease) = self.leases.leases.get(&id).filter(|lease| lease.wanted != LeaseState::Gone) else {
            return false;
        };
        // What is only counted may be listed no more: a device plugin starts anew. After our own start it is not listed
        // before the agent has dialled, which says nothing.
        let has_agent = self.cluster.node(lease.node).agent.is_some();
        let is_counted =
            has_agent && self.gangs.pods.get(lease.pod()).is_some_and(|pod| pod.need.devices > 0);
        if !is_counted && !self.others.by_node.contains_key(&lease.node) {
            return false;
        }
        let node = self.cluster.node(lease.node);
        let mut used = InUse::default();
        for usage in self.others.on(lease.node) {
            used.add(&usage.amounts, &usage.ports);
        }
        let others_gpus = used.amounts.gpus;
        let mut gpus_held = 0;
        let ids = self.leases.by_node.get(&lease.node).into_iter().flatten();
        let staying = ids.filter_map(|id| self.leases.leases.get(id));
        for other in staying.filter(|other| other.wanted != LeaseState::Gone) {
            gpus_held += node.healthy_of(&other.taken.gpus).max(other.taken.unnamed_gpus());
            if other.taken.lease != id {
                used.add(&other.taken.amounts, &other.taken.ports);
            }
        }
        let gpus_short =
            !lease.taken.gpus.is_empty() && others_gpus.saturating_add(gpus_held) > node.capacity.gpus;
        let ports_taken =
            lease.taken.ports.iter().any(|port| used.ports.iter().any(|taken| taken.conflicts_with(port)));
        gpus_short
            || ports_taken
            || node.most_pods.is_some_and(|most| used.pods >= most)
            || lease.taken.amounts.short_beside_gpus(&used.amounts, &node.capacity).is_some()
    }

    /// Gives a promise up whose pod is not bound and not being bound.
    fn yield_place(&mut self, id: LeaseId, now: Time, actions: &mut Vec<Action>) {
        let Some(lease) = self.leases.leases.get(&id) else { return };
        let (Some(key), uid) = (lease.gang, lease.pod().clone()) else { return };
        if self.gangs.pods.get(&uid).is_none_or(|pod| pod.spec.binding.is_some()) {
            return;
        }
        let Some(round) = self.round_mut(key) else { return };
        if round.members.get(&uid).is_none_or(|member| member.lease != id) {
            return;
        }
        match round.step {
            Step::Reserving => {
                self.end_lease(id);
                self.replace_member(key, &uid, now, actions);
            }
            Step::Committing | Step::Arming => self.drop_round(key, now, actions),
            // Looked at before its Binding is sent.
            Step::Binding => {
                self.touched.insert(key);
            }
        }
    }

    /// Looks for pods whose place was taken by pods of others after it was confirmed, before a Binding is sent. Where
    /// nothing of the gang is bound yet the round is dropped, and true is returned; else each such pod is placed anew,
    /// or waits for its place until the binding deadline.
    pub(crate) fn yield_before_binding(
        &mut self,
        key: GangKey,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(round) = self.gangs.gangs.get(&key).and_then(|gang| gang.phase.round()) else {
            return false;
        };
        if round.is_above_ceiling {
            return self.yield_quota(key, now, actions);
        }
        let leases =
            round.to_bind.iter().filter_map(|uid| Some((uid.clone(), round.members.get(uid)?.lease)));
        let crowded: Vec<(PodUid, LeaseId)> = leases.filter(|(_, id)| self.is_crowded_out(*id)).collect();
        if crowded.is_empty() {
            return false;
        }
        if self.is_nothing_bound(key) {
            self.drop_round(key, now, actions);
            return true;
        }
        for (uid, id) in crowded {
            self.move_member(key, &uid, id, now, actions);
        }
        false
    }

    /// A plan that was found and passes a ceiling ends, once all fences say that nothing of it is bound; nothing of it is
    /// bound before that. Where something is, it is rolled forward: false.
    fn yield_quota(&mut self, key: GangKey, now: Time, actions: &mut Vec<Action>) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        let is_begun = |pod: &Pod| pod.spec.binding.is_some() || pod.spec.phase == PodPhase::Succeeded;
        let is_begun = self.gangs.pods_of(&gang.spec.name).any(|(_, pod)| is_begun(pod));
        if is_begun {
            if let Some(round) = self.round_mut(key) {
                round.is_above_ceiling = false;
            }
            return false;
        }
        if self.is_nothing_bound(key) {
            self.drop_round(key, now, actions);
            return true;
        }
        // Of those that were read it is known that they are not bound, and not that nothing reaches them any more.
        let Some(round) = self.round_mut(key) else { return false };
        let read: Vec<PodUid> = std::mem::take(&mut round.to_bind).into_iter().collect();
        for uid in read {
            let name = self.gangs.pods.get(&uid).map(|pod| pod.spec.name.clone());
            let member = self.gangs.gangs.get(&key).and_then(|gang| gang.phase.round()?.members.get(&uid));
            let is_open = member.is_some_and(Member::may_be_bound);
            if let Some(name) = name.filter(|_| is_open) {
                let action = self.emit_fence(&uid, &name, Pending::Pod(key, uid.clone()), actions);
                self.set_bind(key, &uid, BindState::Fencing(action));
            } else if let Some(round) = self.round_mut(key) {
                round.to_bind.insert(uid);
            }
        }
        true
    }

    /// No pod of the gang is bound, and no Binding is on its way.
    fn is_nothing_bound(&self, key: GangKey) -> bool {
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        let Phase::Placing(round) = &gang.phase else { return false };
        let may_be_bound = round.members.values().any(|member| {
            member.may_be_bound() || matches!(member.bind, BindState::Bound | BindState::ReadAt(_))
        });
        let mut pods = self.gangs.pods_of(&gang.spec.name);
        !may_be_bound && !pods.any(|(_, pod)| pod.is_live() || pod.spec.phase == PodPhase::Succeeded)
    }

    /// A pod of a gang that is half bound goes to another node. The plan that names its new lease is written before its
    /// Binding is sent.
    fn move_member(&mut self, key: GangKey, uid: &PodUid, id: LeaseId, now: Time, actions: &mut Vec<Action>) {
        let Some((node, name)) =
            self.leases.leases.get(&id).map(|lease| (lease.node, lease.request.pod_name.clone()))
        else {
            return;
        };
        let shape = self.shape(key);
        let mut overlay = Overlay::excluding(BTreeSet::from([node]));
        let candidate = self.candidate(uid);
        let placed = candidate
            .and_then(|candidate| place(&self.cluster, &mut overlay, &shape, &[candidate]).ok()?.pop());
        let Some(placed) = placed else {
            let retry = now + self.settings.resend_ms;
            if let Some(round) = self.round_mut(key) {
                round.to_bind.remove(uid);
            }
            self.set_bind(key, uid, BindState::RetryAt(retry));
            self.timers.insert((retry, Timer::Gang(key)));
            let cause = if self.others.by_node.contains_key(&node) {
                "was taken by a pod of another scheduler"
            } else {
                "is gone, for the Node lists fewer devices"
            };
            let node = &self.cluster.node(node).name;
            let text =
                format!("pod {name} is not bound: its place on node {node} {cause}, and there is no other");
            self.note_bind_failure(key, &format!("its place {cause}"), text, actions);
            return;
        };
        self.set_pod_lease(uid, None);
        self.end_lease(id);
        let Some(mut round) = self.gangs.gangs.get(&key).and_then(|gang| gang.phase.round()).cloned() else {
            return;
        };
        round.members.remove(uid);
        round.unconfirmed.remove(&id);
        round.unarmed.remove(&id);
        self.add_member(key, &mut round, &placed);
        round.to_bind.insert(uid.clone());
        let lease = round.members.get(uid).map(|member: &Member| member.lease);
        if let Some(slot) = self.round_mut(key) {
            *slot = round;
        }
        if let Some(lease) = lease {
            self.leases.want(lease, LeaseState::Armed);
        }
        self.adopt_plan(key, actions);
    }

    /// Who of others holds a resource on a node, by scheduler.
    pub(crate) fn other_holders(&self, node: NodeIndex, key: ResourceKey) -> Vec<OtherHolder> {
        let mut held: BTreeMap<&Arc<str>, (u32, u64)> = BTreeMap::new();
        for usage in self.others.on(node) {
            let holds = usage.amounts.of_pod().get(key);
            if holds > 0 {
                let (pods, amount) = held.entry(&usage.scheduler).or_default();
                (*pods, *amount) = (*pods + 1, amount.saturating_add(holds));
            }
        }
        let holder = |(scheduler, (pods, amount)): (&Arc<str>, (u32, u64))| OtherHolder {
            node: self.cluster.node(node).name.clone(),
            scheduler: scheduler.clone(),
            pods,
            amount,
        };
        held.into_iter().map(holder).collect()
    }

    /// A PodDisruptionBudget is there, or changed: evictions are bounded by it.
    pub(crate) fn apply_budget(&mut self, budget: DisruptionBudget) {
        self.eviction_news = true;
        self.budgets.insert(budget.name.clone(), budget);
    }

    /// A PodDisruptionBudget is gone.
    pub(crate) fn delete_budget(&mut self, name: &GangName) {
        self.budgets.remove(name);
        self.eviction_news = true;
    }
}
