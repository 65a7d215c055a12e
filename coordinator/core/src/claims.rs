//! PersistentVolumeClaims, and the pods that mount them. A pod is no candidate before each of its claims has a volume;
//! from where that is reached is one more requirement on nodes. A claim of which a single pod may make use is taken from
//! the moment a pod has a place until that pod has ended.
//!
//! Nothing here waits: a claim that hangs holds nothing and delays nobody, and the event that ends its hanging tries the
//! gangs again whose pods mount it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::constraints::NodeTerm;
use phalanx_common::gang::{PodClaim, PodSpec};
use phalanx_common::ids::{GangName, LeaseId, PodUid};
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::core::Core;
use crate::event::{ClaimSpec, ClaimState, Mounts};
use crate::gang::{Gang, Pod};
use crate::phase::Step;
use crate::reason::{ClaimHeld, ClaimProblem};

/// Nodes from which the volume of a claim is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct VolumeNeed {
    pub(crate) claim: Arc<str>,
    /// Terms of which a node must meet one.
    pub(crate) terms: Arc<[NodeTerm]>,
}

/// A claim, and the pods that mount it, whichever was heard of first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Entry {
    /// `None` where it does not exist.
    spec: Option<ClaimSpec>,
    /// Pods of ours that have not ended.
    pods: BTreeSet<PodUid>,
    /// Those of them that have a place, or run.
    holders: BTreeSet<PodUid>,
    /// Pods of others on our nodes, with their names.
    others: BTreeMap<PodUid, Arc<str>>,
}

impl Entry {
    fn is_of_one_pod(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.one_pod)
    }

    fn is_bound(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| matches!(spec.state, ClaimState::Bound { .. }))
    }
}

/// All claims.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claims {
    #[serde(with = "crate::pairs")]
    entries: BTreeMap<GangName, Entry>,
    /// Told one after the other, many volumes are reached from the same nodes.
    #[serde(skip)]
    pub(crate) last: Option<Arc<[NodeTerm]>>,
}

impl Claims {
    /// Claims that are there, or that a pod mounts.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Claims that pods of ours mount.
    pub(crate) fn mounted(&self) -> usize {
        self.entries.values().filter(|entry| !entry.pods.is_empty()).count()
    }

    fn get(&self, namespace: &Arc<str>, claim: &PodClaim) -> Option<&Entry> {
        self.entries.get(&name_of(namespace, &claim.name))
    }

    fn change(&mut self, name: GangName, change: impl FnOnce(&mut Entry)) {
        let entry = self.entries.entry(name.clone()).or_default();
        change(entry);
        let is_mounted = !(entry.pods.is_empty() && entry.holders.is_empty() && entry.others.is_empty());
        if entry.spec.is_none() && !is_mounted {
            self.entries.remove(&name);
        }
    }

    /// The nodes from which the volumes of a pod are reached, where that is not all of them.
    pub(crate) fn volumes_of(&self, pod: &PodSpec) -> Vec<VolumeNeed> {
        let needs = pod.claims.iter().filter_map(|claim| {
            let ClaimState::Bound { reachable_from } =
                &self.get(&pod.name.namespace, claim)?.spec.as_ref()?.state
            else {
                return None;
            };
            Some(VolumeNeed { claim: claim.name.clone(), terms: reachable_from.clone()? })
        });
        needs.collect()
    }

    /// Whether a pod has to wait for a claim, and whether one of its claims is for one pod at a time.
    fn looked_up(&self, pod: &PodSpec) -> (bool, bool) {
        let (mut awaits, mut one_pod) = (false, false);
        for claim in &pod.claims {
            let entry = self.get(&pod.name.namespace, claim);
            awaits |= self.problem(pod, claim).is_some();
            one_pod |= entry.is_some_and(Entry::is_of_one_pod);
        }
        (awaits, one_pod)
    }

    /// Why a pod cannot make use of a claim of its, whoever else uses it.
    fn problem(&self, pod: &PodSpec, claim: &PodClaim) -> Option<ClaimProblem> {
        let Some(spec) = self.get(&pod.name.namespace, claim).and_then(|entry| entry.spec.as_ref()) else {
            return Some(ClaimProblem::Missing { own: claim.own });
        };
        let is_of_another = claim.own && spec.owner.as_ref() != Some(&pod.uid);
        match &spec.state {
            // Also that of an earlier pod of the name: it passes, and is nothing that a person must see to.
            ClaimState::Deleting => Some(ClaimProblem::Deleting { own: claim.own }),
            _ if is_of_another => Some(ClaimProblem::OfAnother { pod: pod.name.name.clone() }),
            ClaimState::Bound { .. } => None,
            ClaimState::Binding => Some(ClaimProblem::Binding { since: spec.created, seconds: None }),
            ClaimState::AwaitsPod { class } => Some(ClaimProblem::AwaitsPod { class: class.clone() }),
            ClaimState::Lost => Some(ClaimProblem::Lost),
            ClaimState::Unreadable { problem } => Some(ClaimProblem::Unreadable { problem: problem.clone() }),
        }
    }
}

fn names_of(pod: &PodSpec) -> Vec<GangName> {
    pod.claims.iter().map(|claim| name_of(&pod.name.namespace, &claim.name)).collect()
}

fn name_of(namespace: &Arc<str>, name: &Arc<str>) -> GangName {
    GangName { namespace: namespace.clone(), name: name.clone() }
}

/// Claims of one pod at a time that candidates of the same plan have taken, each with its pod.
type Taken<'a> = BTreeMap<&'a Arc<str>, &'a Arc<str>>;

impl Core {
    /// A claim is there, or changed.
    pub(crate) fn apply_claim(&mut self, mut claim: ClaimSpec, now: Time, actions: &mut Vec<Action>) {
        if let ClaimState::Bound { reachable_from: Some(terms) } = &mut claim.state {
            match &self.claims.last {
                Some(last) if last == terms => *terms = last.clone(),
                _ => self.claims.last = Some(terms.clone()),
            }
        }
        let name = claim.name.clone();
        let known = self.claims.entries.get(&name).and_then(|entry| entry.spec.as_ref());
        if known != Some(&claim) {
            self.claims.change(name.clone(), |entry| entry.spec = Some(claim));
            self.claim_changed(&name, now, actions);
        }
    }

    /// A claim is gone.
    pub(crate) fn delete_claim(&mut self, name: &GangName, now: Time, actions: &mut Vec<Action>) {
        self.claims.change(name.clone(), |entry| entry.spec = None);
        self.claim_changed(name, now, actions);
    }

    /// The pods that mount it are looked at anew, and their gangs tried again. A plan that was made with a volume that
    /// is there no more is given up while that costs nothing.
    fn claim_changed(&mut self, name: &GangName, now: Time, actions: &mut Vec<Action>) {
        let pods = self.claims.entries.get(name).map(|entry| entry.pods.clone()).unwrap_or_default();
        let mut hampered = BTreeSet::new();
        for uid in pods {
            let Some(spec) = self.gangs.pods.get(&uid).map(|pod| pod.spec.clone()) else { continue };
            let need = self.need_of(&spec);
            let (awaits, one_pod) = self.claims.looked_up(&spec);
            let key = self.gangs.key(&spec.gang);
            let Some(pod) = self.gangs.pods.get_mut(&uid) else { continue };
            pod.need = need;
            (pod.awaits_claims, pod.has_one_pod_claims) = (awaits, one_pod);
            hampered.extend(key.filter(|_| awaits && pod.lease.is_some() && pod.spec.binding.is_none()));
            self.touched.extend(key);
        }
        for key in hampered {
            let step = self.gangs.gangs.get(&key).and_then(|gang| gang.phase.round()).map(|round| round.step);
            if matches!(step, Some(Step::Reserving | Step::Committing | Step::Arming)) {
                self.drop_round(key, now, actions);
            }
        }
    }

    /// Notes which claims a pod mounts, before it is kept; `before` is what it was where it mounted others, or where it
    /// ends now. Gives whether it has to wait for a claim, and whether one of them is for one pod at a time.
    pub(crate) fn link_claims(&mut self, before: Option<&PodSpec>, pod: &PodSpec) -> (bool, bool) {
        if let Some(before) = before {
            self.unlink_claims(before);
        }
        if pod.claims.is_empty() || pod.phase.is_terminal() {
            return (false, false);
        }
        for name in names_of(pod) {
            self.claims.change(name, |entry| {
                entry.pods.insert(pod.uid.clone());
            });
        }
        self.claims.looked_up(pod)
    }

    /// Gives a pod a lease, or takes it away; gives the one it had.
    pub(crate) fn set_pod_lease(&mut self, uid: &PodUid, lease: Option<LeaseId>) -> Option<LeaseId> {
        let before = std::mem::replace(&mut self.gangs.pods.get_mut(uid)?.lease, lease);
        self.note_holder(uid);
        before
    }

    /// A pod has a place now, or has none: its claims are its own, or free for others.
    pub(crate) fn note_holder(&mut self, uid: &PodUid) {
        let Some(pod) = self.gangs.pods.get(uid).filter(|pod| !pod.spec.claims.is_empty()) else { return };
        let holds = self.holds(pod);
        for name in names_of(&pod.spec) {
            if holds {
                self.claims.change(name, |entry| {
                    entry.holders.insert(uid.clone());
                });
            } else {
                self.free_claim(name, uid);
            }
        }
    }

    fn holds(&self, pod: &Pod) -> bool {
        (pod.lease.is_some() || pod.spec.binding.is_some()) && !self.pod_ended(&pod.spec)
    }

    /// A pod has a claim no more; where it had it, others may.
    fn free_claim(&mut self, name: GangName, uid: &PodUid) {
        let mut is_freed = false;
        self.claims.change(name.clone(), |entry| is_freed = entry.holders.remove(uid));
        if is_freed {
            self.wake_users(&name);
        }
    }

    /// A pod has ended or is gone: it mounts nothing any more.
    pub(crate) fn unlink_claims(&mut self, pod: &PodSpec) {
        for name in names_of(pod) {
            self.claims.change(name.clone(), |entry| {
                entry.pods.remove(&pod.uid);
            });
            self.free_claim(name, &pod.uid);
        }
    }

    /// A claim of one pod at a time may be free now: the gangs of those that mount it are tried again.
    fn wake_users(&mut self, name: &GangName) {
        let Some(entry) = self.claims.entries.get(name).filter(|entry| entry.is_of_one_pod()) else { return };
        let pods = entry.pods.iter().filter_map(|uid| self.gangs.pods.get(uid));
        self.touched.extend(pods.filter_map(|pod| self.gangs.key(&pod.spec.gang)));
    }

    /// A pod of others mounts these claims now, and no others.
    pub(crate) fn link_mounts(&mut self, uid: &PodUid, mounts: &Mounts) {
        for claim in &mounts.claims {
            self.claims.change(name_of(&mounts.pod.namespace, claim), |entry| {
                entry.others.insert(uid.clone(), mounts.pod.name.clone());
            });
        }
    }

    /// A pod of others mounts them no more.
    pub(crate) fn unlink_mounts(&mut self, uid: &PodUid, mounts: &Mounts) {
        for claim in &mounts.claims {
            let name = name_of(&mounts.pod.namespace, claim);
            self.claims.change(name.clone(), |entry| drop(entry.others.remove(uid)));
            self.wake_users(&name);
        }
    }

    /// Of candidates in their order those that do not want a claim of one pod which another one has, or which one before
    /// them takes.
    pub(crate) fn take_turns(&self, candidates: &mut Vec<(&PodUid, &Pod)>) {
        if candidates.iter().any(|(_, pod)| pod.has_one_pod_claims) {
            let mut taken = Taken::new();
            candidates.retain(|(uid, pod)| self.claim_in_use(uid, pod, &mut taken).is_none());
        }
    }

    /// The claim of one pod at a time that a pod wants and another one has, and who has it. Where there is none the pod
    /// takes its claims.
    fn claim_in_use<'a>(
        &'a self,
        uid: &PodUid,
        pod: &'a Pod,
        taken: &mut Taken<'a>,
    ) -> Option<(&'a Arc<str>, ClaimProblem)> {
        if !pod.has_one_pod_claims {
            return None;
        }
        let of_one_pod = || {
            let entries =
                pod.spec.claims.iter().filter_map(|claim| {
                    Some((&claim.name, self.claims.get(&pod.spec.name.namespace, claim)?))
                });
            entries.filter(|(_, entry)| entry.is_of_one_pod())
        };
        for (name, entry) in of_one_pod() {
            if let Some(by) = taken.get(name) {
                return Some((name, ClaimProblem::UsedByOnePod { pod: (*by).clone(), is_planned: true }));
            }
            if let Some(by) = self.user_of(entry, uid) {
                return Some((name, ClaimProblem::UsedByOnePod { pod: by, is_planned: false }));
            }
        }
        taken.extend(of_one_pod().map(|(name, _)| (name, &pod.spec.name.name)));
        None
    }

    /// A pod other than this one that has a place, or runs, and mounts the claim.
    fn user_of(&self, entry: &Entry, but: &PodUid) -> Option<Arc<str>> {
        let ours = entry.holders.iter().find(|uid| *uid != but).and_then(|uid| self.gangs.pods.get(uid));
        let user = ours.map(|pod| pod.spec.name.name.clone());
        user.or_else(|| entry.others.iter().find(|(uid, _)| *uid != but).map(|(_, name)| name.clone()))
    }

    /// Why pods of a gang wait for claims, and how many pods that are. A cause that a person can do something about goes
    /// before one that passes by itself.
    pub(crate) fn held_by_claims(&self, gang: &Gang) -> Option<(u32, ClaimHeld)> {
        // Those that are blocked wait for that.
        let is_meant = |pod: &Pod| pod.is_unplaced() && !pod.is_blocked() && !pod.spec.claims.is_empty();
        let may_wait = |pod: &Pod| is_meant(pod) && (pod.awaits_claims || pod.has_one_pod_claims);
        if !self.gangs.pods_of(&gang.spec.name).any(|(_, pod)| may_wait(pod)) {
            return None;
        }
        let pods = self.in_order(gang, is_meant);
        let (mut taken, mut held) = (Taken::new(), 0_u32);
        let mut first: Option<(Arc<str>, ClaimProblem)> = None;
        let mut all: BTreeMap<&Arc<str>, bool> = BTreeMap::new();
        for (uid, pod) in pods {
            let namespace = &pod.spec.name.namespace;
            for claim in &pod.spec.claims {
                let is_bound = self.claims.get(namespace, claim).is_some_and(Entry::is_bound);
                all.insert(&claim.name, is_bound);
            }
            let problems = || {
                let claims = pod.spec.claims.iter();
                claims.filter_map(|claim| Some((&claim.name, self.claims.problem(&pod.spec, claim)?)))
            };
            let problem = problems().find(|(_, problem)| !problem.passes_by_itself());
            let problem = problem.or_else(|| problems().next());
            let Some((claim, problem)) = problem.or_else(|| self.claim_in_use(uid, pod, &mut taken)) else {
                continue;
            };
            held += 1;
            let is_first = first
                .as_ref()
                .is_none_or(|(_, known)| known.passes_by_itself() && !problem.passes_by_itself());
            if is_first {
                first = Some((claim.clone(), problem));
            }
        }
        let (claim, problem) = first?;
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let with_volume = count(all.values().filter(|is_bound| **is_bound).count());
        Some((held, ClaimHeld { claim, problem, with_volume, claims: count(all.len()) }))
    }

    /// Each claim knows the pods that mount it, and each pod how far its claims are.
    pub(crate) fn check_claims(&self) -> Result<(), String> {
        for (name, entry) in &self.claims.entries {
            let mounts = |uid: &PodUid| {
                let spec = &self.gangs.pods.get(uid)?.spec;
                let its = spec.claims.iter().any(|claim| name_of(&spec.name.namespace, &claim.name) == *name);
                (its && !spec.phase.is_terminal()).then_some(())
            };
            if let Some(uid) = entry.pods.iter().find(|uid| mounts(uid).is_none()) {
                return Err(format!("claim {name}: pod {uid} stands there and does not mount it"));
            }
            let holds = |uid: &PodUid| self.gangs.pods.get(uid).is_some_and(|pod| self.holds(pod));
            if let Some(uid) = entry.pods.iter().find(|uid| holds(uid) != entry.holders.contains(*uid)) {
                return Err(format!("claim {name}: whether pod {uid} has it is not what the pod is"));
            }
            if !entry.holders.is_subset(&entry.pods) {
                return Err(format!("claim {name}: a pod has it that does not mount it"));
            }
            if let Some(uid) = entry.others.keys().find(|uid| !self.others.pods.contains_key(*uid)) {
                return Err(format!("claim {name}: pod {uid} of others stands there and is gone"));
            }
        }
        let pods = self.gangs.pods.values().filter(|pod| !pod.spec.phase.is_terminal());
        for pod in pods.filter(|pod| !pod.spec.claims.is_empty()) {
            let stands = |claim: &PodClaim| {
                let entry = self.claims.get(&pod.spec.name.namespace, claim);
                entry.is_some_and(|entry| entry.pods.contains(&pod.spec.uid))
            };
            let known = (pod.awaits_claims, pod.has_one_pod_claims);
            if !pod.spec.claims.iter().all(stands) || known != self.claims.looked_up(&pod.spec) {
                return Err(format!("pod {}: {known:?} is not what its claims are", pod.spec.name));
            }
            if pod.need.volumes != self.claims.volumes_of(&pod.spec) {
                return Err(format!("pod {}: its volumes are not those of its claims", pod.spec.name));
            }
        }
        Ok(())
    }
}
