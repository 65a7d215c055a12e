//! What can be seen from outside: the objects in the API, the leases at the agents, the pods that really run.
//! The checkers see this and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::gang::{GangSpec, PodPhase};
use phalanx_common::ids::{GangName, GpuId, LeaseId, NodeName, PodUid};
use phalanx_common::plan::{GangPlan, PlanPurpose};
use phalanx_common::resources::Resources;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;
use phalanx_coordinator::api::store::node_name;
use phalanx_coordinator::api::{Change, ChangeBody, Kind, Object, ObjectKey};
use phalanx_coordinator::convert::{self, Reading};
use phalanx_core::event::Event;
use serde_json::Value;

use crate::rooms::{Rooms, Sayings};

/// The pods that a gang must have to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// In all.
    pub min_member: u32,
    /// Of single tasks.
    pub tasks: BTreeMap<Arc<str>, u32>,
}

impl Need {
    fn of(gang: &GangSpec) -> Self {
        let sum: u64 = gang.min_task_member.values().map(|minimum| u64::from(*minimum)).sum();
        // As Volcano has it: where they ask for more than the gang does they do not count.
        let counts = sum <= u64::from(gang.min_member);
        let tasks = if counts { gang.min_task_member.clone() } else { BTreeMap::new() };
        Self { min_member: gang.min_member.max(1), tasks }
    }

    /// True where pods of these tasks are enough.
    pub fn is_met<'t>(&self, tasks: impl IntoIterator<Item = &'t str>) -> bool {
        let mut all = 0;
        let mut left: BTreeMap<&str, u32> = self.tasks.iter().map(|(task, of)| (&**task, *of)).collect();
        for task in tasks {
            all += 1;
            if let Some(left) = left.get_mut(task) {
                *left = left.saturating_sub(1);
            }
        }
        all >= self.min_member && left.values().all(|left| *left == 0)
    }
}

/// A pod that the coordinator deleted, as it was before.
#[derive(Clone, Debug)]
pub struct Evicted {
    /// The pod.
    pub uid: PodUid,
    /// As it was.
    pub pod: PodFact,
    /// The coordinator that did it leads. What an earlier one still does nobody can stop.
    pub by_leader: bool,
}

/// A PodGroup.
#[derive(Clone, Debug)]
pub struct GroupFact {
    /// UID.
    pub uid: String,
    /// Fewest pods that may run.
    pub need: Need,
    /// Its queue.
    pub queue: String,
    /// UID of the Job that made it: its pods are made too.
    pub job: Option<String>,
    /// Its status.
    pub status: Value,
}

/// A pod as the API shows it.
#[derive(Clone, Debug)]
pub struct PodFact {
    /// Namespace and name.
    pub name: GangName,
    /// Its gang.
    pub gang: GangName,
    /// Its task.
    pub task: Arc<str>,
    /// Node it is bound to.
    pub node: Option<NodeName>,
    /// Lease of its Binding.
    pub lease: Option<LeaseId>,
    /// GPUs of its Binding, sorted.
    pub gpus: Vec<GpuId>,
    /// Phase.
    pub phase: PodPhase,
    /// It has a deletion stamp.
    pub deleting: bool,
    /// What it asks for, at its peak.
    pub request: Resources,
}

impl PodFact {
    /// Bound, not ended, not being deleted.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.node.is_some() && !self.phase.is_terminal() && !self.deleting
    }
}

/// A pod that really runs.
#[derive(Clone, Debug)]
pub struct RunFact {
    /// Where.
    pub node: NodeName,
    /// The lease that let it start.
    pub lease: LeaseId,
    /// GPUs it uses, sorted.
    pub gpus: Vec<GpuId>,
}

/// A lease as its agent has it.
#[derive(Clone, Debug)]
pub struct LeaseFact {
    /// The lease.
    pub lease: LeaseId,
    /// For this pod.
    pub pod: PodUid,
    /// Its GPUs.
    pub gpus: Vec<GpuId>,
    /// How far it is.
    pub state: LeaseState,
}

/// All that can be seen.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Virtual time.
    pub now: Time,
    /// PodGroups.
    pub groups: BTreeMap<GangName, GroupFact>,
    /// Pods with a gang.
    pub pods: BTreeMap<PodUid, PodFact>,
    /// Jobs by UID; true where one has ended.
    pub jobs: BTreeMap<String, bool>,
    /// Pods by UID that have no gang yet.
    pub loose: BTreeSet<PodUid>,
    /// Gangs whose pods are being bound by a plan, with its binding deadline by the clock of the coordinator that wrote it.
    pub plans: BTreeMap<GangName, Time>,
    /// The pods that they name.
    pub plan_pods: BTreeMap<GangName, BTreeSet<PodUid>>,
    /// The gangs of each object of plans.
    pub planned: BTreeMap<ObjectKey, BTreeSet<GangName>>,
    /// When a lease was asked for the first time: then its pod was given its place.
    pub decided: BTreeMap<LeaseId, Time>,
    /// Ceilings of queues.
    pub capability: BTreeMap<String, Resources>,
    /// Statuses of queues.
    pub queue_status: BTreeMap<String, Value>,
    /// Pods that really run.
    pub running: BTreeMap<PodUid, RunFact>,
    /// Leases in the agents' memory.
    pub leases: BTreeMap<NodeName, Vec<LeaseFact>>,
    /// Leases on the agents' disks.
    pub on_disk: BTreeMap<NodeName, BTreeSet<LeaseId>>,
    /// Pods that have once ended by themselves.
    pub ended: BTreeSet<PodUid>,
    /// Objects that users made and nobody deleted, with their UIDs.
    pub created: BTreeMap<ObjectKey, String>,
    /// Pods that coordinators deleted since the last look.
    pub evicted: Vec<Evicted>,
    /// GPUs that were not there for a while, and until when.
    pub missing_until: BTreeMap<GpuId, Time>,
    /// UIDs of objects that were deleted by users, or evicted by the coordinator.
    pub may_go: BTreeSet<String>,
    /// Objects of users that went all the same.
    pub lost: Vec<ObjectKey>,
    /// Pods that somebody else bound: that they are bound and start is not the coordinator's doing.
    pub by_hand: BTreeSet<PodUid>,
    /// Their gangs: one that can never be placed may be whole by them.
    pub bound_by_hand: BTreeSet<GangName>,
    /// The faults have stopped.
    pub is_calm: bool,
    /// When something came from outside last: a user did something, a pod ended by itself.
    pub news_at: Time,
    /// A placement is done or rolled back within this time.
    pub binding_deadline_ms: Millis,
    /// A gang that is below its minimum for so long gives back what it has.
    pub degraded_grace_ms: Millis,
    /// Pods that started since the last look.
    pub started: Vec<PodUid>,
    /// Plans that make room.
    pub rooms: Rooms,
    /// What all say of evictions.
    pub manners: Sayings,
    /// Clocks of coordinators differ by so much at most, and from the true time.
    pub clock_slack_ms: u64,
}

impl Facts {
    /// Takes over a change of the API.
    pub fn change(&mut self, change: &Change) {
        match &change.body {
            ChangeBody::Applied(object) => self.applied(object),
            ChangeBody::Deleted { key, uid } => {
                if self.created.get(key) == Some(uid) {
                    self.created.remove(key);
                    if !self.may_go.contains(uid) {
                        self.lost.push(key.clone());
                    }
                }
                let name = GangName::new(&key.namespace, &key.name);
                match key.kind {
                    Kind::PodGroup => drop(self.groups.remove(&name)),
                    Kind::Pod => {
                        self.loose.remove(&PodUid::from(uid.as_str()));
                        if let Some(pod) = self.pods.remove(&PodUid::from(uid.as_str())) {
                            self.note_bound(&pod.gang);
                        }
                        self.manners.pods.remove(&PodUid::from(uid.as_str()));
                    }
                    Kind::Job => drop(self.jobs.remove(uid)),
                    Kind::GangPlan => self.plans_applied(key, Vec::new()),
                    Kind::Queue => {
                        self.capability.remove(&key.name);
                        self.queue_status.remove(&key.name);
                    }
                    Kind::Node
                    | Kind::QueuePolicy
                    | Kind::PriorityClass
                    | Kind::PodDisruptionBudget
                    | Kind::StorageClass
                    | Kind::PersistentVolume
                    | Kind::PersistentVolumeClaim => {}
                }
            }
        }
    }

    fn applied(&mut self, object: &Object) {
        let phase = object.status.get("state").and_then(|state| state.get("phase"));
        let is_ended = matches!(phase.and_then(Value::as_str), Some("Completed" | "Failed"));
        if object.kind == Kind::Job {
            self.jobs.insert(object.metadata.uid.clone(), is_ended);
        }
        if object.kind == Kind::Pod {
            self.loose.insert(PodUid::from(object.metadata.uid.as_str()));
        }
        if object.kind == Kind::GangPlan {
            let plans = convert::plans_of_object(&Reading::default(), object);
            assert_eq!(plans.warnings, Vec::<String>::new());
            self.plans_applied(&object.key(), plans.found);
            return;
        }
        match convert::event_of_object(&Reading::default(), object).event {
            Some(Event::QueueApplied(queue)) => {
                self.capability.insert(queue.name.as_str().to_owned(), queue.capability);
                self.queue_status.insert(queue.name.as_str().to_owned(), object.status.clone());
            }
            Some(Event::GangApplied(gang)) => {
                let owner = object.metadata.owner.as_ref().filter(|owner| owner.kind == Kind::Job);
                self.manners.gangs.insert(gang.name.clone(), gang.policy.clone());
                if gang.priority_class.as_deref() == Some("polite") {
                    self.manners.never.insert(gang.name.clone());
                }
                let group = GroupFact {
                    uid: object.metadata.uid.clone(),
                    need: Need::of(&gang),
                    queue: gang.queue.as_str().to_owned(),
                    job: owner.map(|owner| owner.uid.clone()),
                    status: object.status.clone(),
                };
                self.groups.insert(gang.name.clone(), group);
                // It may need less than before.
                self.note_bound(&gang.name);
            }
            Some(Event::PodApplied(pod)) => self.pod_applied(object, *pod),
            Some(Event::QueuePolicyApplied(policy)) => {
                self.manners.minimum_run.insert(policy.name.clone(), policy.minimum_run_ms);
            }
            Some(Event::BudgetApplied(budget)) => self.manners.budget = Some(budget.disruptions_allowed),
            _ => {}
        }
    }

    /// These are the plans of an object now.
    fn plans_applied(&mut self, key: &ObjectKey, plans: Vec<GangPlan>) {
        let rooms: BTreeSet<GangName> = plans
            .iter()
            .filter(|plan| plan.purpose == PlanPurpose::MakeRoom)
            .map(|plan| plan.gang.clone())
            .collect();
        for gang in self.planned.remove(key).unwrap_or_default() {
            self.plans.remove(&gang);
            self.plan_pods.remove(&gang);
            if !rooms.contains(&gang) {
                self.rooms.removed(&gang);
            }
        }
        for plan in plans {
            self.planned.entry(key.clone()).or_default().insert(plan.gang.clone());
            match plan.purpose {
                PlanPurpose::Bind => {
                    let pods = plan.pods.into_iter().map(|planned| planned.pod).collect();
                    self.plan_pods.insert(plan.gang.clone(), pods);
                    self.plans.insert(plan.gang, plan.binding_deadline);
                }
                PlanPurpose::MakeRoom => {
                    let gang_of = |uid: &PodUid| self.pods.get(uid).map(|pod| pod.gang.clone());
                    self.rooms.applied(plan, gang_of, self.now);
                }
            }
        }
    }

    /// Keeps in mind since when something of a gang is bound, and since when all that it needs.
    fn note_bound(&mut self, gang: &GangName) {
        // One whose minimum has ended well goes on with what is left of it.
        let counts =
            |pod: &&PodFact| pod.gang == *gang && (pod.is_live() || pod.phase == PodPhase::Succeeded);
        let tasks: Vec<&str> = self.pods.values().filter(counts).map(|pod| &*pod.task).collect();
        if tasks.is_empty() {
            self.manners.bound_since.remove(gang);
            self.manners.whole_since.remove(gang);
            return;
        }
        self.manners.bound_since.entry(gang.clone()).or_insert(self.now);
        if self.groups.get(gang).is_some_and(|group| group.need.is_met(tasks.iter().copied())) {
            self.manners.whole_since.entry(gang.clone()).or_insert(self.now);
        }
    }

    fn pod_applied(&mut self, object: &Object, pod: phalanx_common::gang::PodSpec) {
        self.loose.remove(&pod.uid);
        let mut gpus = pod.binding.as_ref().map_or_else(Vec::new, |binding| binding.gpus.clone());
        gpus.sort_unstable();
        let lease = pod.binding.as_ref().and_then(|binding| binding.lease);
        let before = self.pods.get(&pod.uid).map(|pod| pod.phase);
        // Nothing but the API says that a pod without a lease has started.
        let is_running = |phase: Option<PodPhase>| phase == Some(PodPhase::Running);
        if lease.is_none() && is_running(Some(pod.phase)) && !is_running(before) {
            self.started.push(pod.uid.clone());
        }
        let fact = PodFact {
            name: pod.name,
            gang: pod.gang,
            task: pod.task,
            node: node_name(object).map(NodeName::from),
            lease,
            gpus,
            phase: pod.phase,
            deleting: pod.deleting,
            request: pod.request.effective(),
        };
        self.manners.pods.insert(pod.uid.clone(), pod.policy);
        let gang = fact.gang.clone();
        self.pods.insert(pod.uid, fact);
        self.note_bound(&gang);
    }
}
