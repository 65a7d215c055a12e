//! The two doors: `apply` and `cycle`. Dispatch only; the parts own their state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{ActionId, GangName, LeaseId, PodUid, QueueName, Term};
use phalanx_common::plan::GangPlan;
use phalanx_common::queue::{PriorityClassSpec, QueuePolicySpec};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseReport;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Command};
use crate::amounts::Amounts;
use crate::backfill::{Hold, HoldMemory};
use crate::claims::Claims;
use crate::cluster::{Cluster, NodeIndex};
use crate::event::{DisruptionBudget, Event};
use crate::eviction::EvictionMemory;
use crate::foreign::ForeignPlan;
use crate::gang::{GangKey, Gangs};
use crate::lease::Leases;
use crate::making_room::RoomPlan;
use crate::others::Others;
use crate::place::PodNeed;
use crate::queue::Queues;
use crate::settings::Settings;

/// Bound of the rounds within one cycle; what is left is done in the next one.
const CYCLE_ROUNDS: u32 = 8;

/// What an action in flight was for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pending {
    /// A gang's plan.
    Plan(GangKey),
    /// A Binding, or a read or fence of a pod.
    Pod(GangKey, PodUid),
    /// Status of a gang: forgotten when it failed, so that it is written again.
    GangStatus(GangKey),
    /// Status of a queue.
    QueueStatus(QueueName),
    /// A plan that evicts others for a gang.
    RoomPlan(GangKey),
    /// Removal of a gang's plan: tried again when it failed.
    PlanRemoval(GangName),
    /// Fence of a pod of an earlier leader's plan.
    Foreign(GangKey, PodUid),
    /// Fence of the pod of a lease that nobody here knows.
    Stranger(LeaseId),
}

/// What a deadline is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Timer {
    /// An unanswered message.
    Resend(LeaseId),
    /// A step of a round, a rollback, a retry of a gang.
    Gang(GangKey),
    /// The pods of an admitted gang are not all there yet: its quota may go to others from now on.
    PodsMissing(GangKey),
    /// End of a node's quarantine.
    Quarantine(NodeIndex),
    /// A queue's status that could not be written, or was written just before.
    QueueStatus(QueueName),
    /// A plan that could not be removed.
    PlanRemoval(GangName),
    /// The pod of a lease that nobody here knows, which could not be fenced.
    Stranger(LeaseId),
    /// The rest of a pass that did more than one cycle may.
    Rest,
}

impl Timer {
    const fn reason(&self) -> &'static str {
        match self {
            Self::Resend(_) => "an agent has not answered",
            Self::Gang(_) => "a gang's step is due",
            Self::PodsMissing(_) => "an admitted gang still has too few pods",
            Self::Quarantine(_) => "a node's quarantine ends",
            Self::QueueStatus(_) | Self::PlanRemoval(_) | Self::Stranger(_) => "a write is tried again",
            Self::Rest => "a pass is not finished",
        }
    }
}

/// The deciding machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Core {
    pub(crate) settings: Settings,
    pub(crate) term: Term,
    pub(crate) synced: bool,
    pub(crate) queues: Queues,
    /// QueuePolicies, by the queue's name.
    #[serde(default)]
    pub(crate) policies: BTreeMap<QueueName, QueuePolicySpec>,
    pub(crate) priority_classes: BTreeMap<Arc<str>, PriorityClassSpec>,
    pub(crate) cluster: Cluster,
    pub(crate) gangs: Gangs,
    pub(crate) leases: Leases,
    /// Pods of others on our nodes.
    #[serde(default)]
    pub(crate) others: Others,
    /// PodDisruptionBudgets, by namespace and name.
    #[serde(default, with = "crate::pairs")]
    pub(crate) budgets: BTreeMap<GangName, DisruptionBudget>,
    /// PersistentVolumeClaims, and who mounts them.
    #[serde(default)]
    pub(crate) claims: Claims,
    pub(crate) pending: BTreeMap<ActionId, Pending>,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    /// Gangs whose facts changed.
    pub(crate) touched: BTreeSet<GangKey>,
    pub(crate) touched_queues: BTreeSet<QueueName>,
    /// Plans of earlier leaders that were seen since.
    pub(crate) foreign: BTreeMap<GangKey, ForeignPlan>,
    /// Pods of leases that nobody here knows, while a write to them is on its way and they are not known to be gone.
    #[serde(default, with = "crate::pairs")]
    pub(crate) strangers_fenced: BTreeMap<LeaseId, PodUid>,
    /// Plans that evict others, by the gang that they are made for.
    #[serde(default)]
    pub(crate) rooms: BTreeMap<GangKey, RoomPlan>,
    /// What is held for gangs that have waited long.
    #[serde(default)]
    pub(crate) holds: BTreeMap<GangKey, Hold>,
    /// Pods that go, and for whom.
    #[serde(default)]
    pub(crate) victims: BTreeMap<PodUid, GangKey>,
    /// A gang or pod once said that it must not be evicted: mostly none does, and nobody is looked through for it.
    #[serde(default = "unknown_has_kept")]
    pub(crate) has_kept: bool,
    /// Somebody may be evicted now who could not be before.
    #[serde(default)]
    pub(crate) eviction_news: bool,
    /// When everything stored was known.
    #[serde(default)]
    pub(crate) started_at: Time,
    /// Found out in this pass.
    #[serde(skip)]
    pub(crate) eviction_memory: EvictionMemory,
    #[serde(skip)]
    pub(crate) hold_memory: HoldMemory,
    /// Plans read at start.
    pub(crate) plans_found: Vec<GangPlan>,
    /// What agents told before everything stored was known.
    pub(crate) reports: BTreeMap<NodeIndex, Vec<LeaseReport>>,
    /// Quota was given back since the last pass, though no room may have been.
    #[serde(default)]
    pub(crate) quota_freed: bool,
    /// `room_generation` of the cluster at the last pass.
    pub(crate) room_seen: u64,
    /// The cluster without use, for "could it ever run", and its generation.
    /// Made anew where it is missing.
    #[serde(skip)]
    pub(crate) emptied: Option<(u64, Cluster)>,
    /// What all nodes have together, and of which generation. Made anew where it is missing.
    #[serde(skip)]
    pub(crate) capacity: Option<(u64, Option<Amounts>)>,
    /// Same needs share one value: most pods of a gang are alike.
    #[serde(skip)]
    pub(crate) last_need: Option<(phalanx_common::gang::PodRequest, Arc<PodNeed>)>,
    /// Counter that the term was asked to go above.
    pub(crate) raising_above: Option<u64>,
    /// Fences that wait for the term that was asked for.
    #[serde(default)]
    pub(crate) fences_held: BTreeMap<ActionId, (PodUid, GangName)>,
    /// Time of the last event or cycle.
    pub(crate) now: Time,
    /// Term of the coordinator that took over from this one.
    pub(crate) overtaken: Option<Term>,
    next_action: u64,
    next_arrival: u64,
}

/// A state that was written before this was counted may hold some.
const fn unknown_has_kept() -> bool {
    true
}

impl Core {
    /// A machine that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let needs_node_objects = settings.kubelet_stops_pods;
        let mut core = Self {
            settings,
            term: Term::default(),
            synced: false,
            queues: Queues::default(),
            policies: BTreeMap::new(),
            priority_classes: BTreeMap::new(),
            cluster: Cluster::new(needs_node_objects),
            gangs: Gangs::default(),
            leases: Leases::default(),
            others: Others::default(),
            budgets: BTreeMap::new(),
            claims: Claims::default(),
            pending: BTreeMap::new(),
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            touched_queues: BTreeSet::new(),
            foreign: BTreeMap::new(),
            strangers_fenced: BTreeMap::new(),
            rooms: BTreeMap::new(),
            holds: BTreeMap::new(),
            victims: BTreeMap::new(),
            eviction_news: false,
            started_at: Time(0),
            has_kept: false,
            eviction_memory: EvictionMemory::default(),
            hold_memory: HoldMemory::default(),
            plans_found: Vec::new(),
            reports: BTreeMap::new(),
            quota_freed: false,
            room_seen: 0,
            emptied: None,
            capacity: None,
            last_need: None,
            raising_above: None,
            fences_held: BTreeMap::new(),
            now: Time(0),
            overtaken: None,
            next_action: 0,
            next_arrival: 0,
        };
        core.make_default_queue();
        core
    }

    /// A copy that goes on exactly as this one does, also after it was written and read back. What is only
    /// remembered to be quick is forgotten in both.
    pub fn snapshot(&mut self) -> Self {
        self.emptied = None;
        self.capacity = None;
        self.last_need = None;
        self.others.last = None;
        self.claims.last = None;
        self.queues.forget_shares();
        self.forget_alike();
        self.forget_evictable();
        self.forget_holds();
        self.clone()
    }

    /// Records a fact.
    pub fn apply(&mut self, event: Event, now: Time, actions: &mut Vec<Action>) {
        if self.overtaken.is_some() {
            return;
        }
        self.now = now;
        match event {
            Event::Started { term } | Event::TermRaised { term } => self.set_term(term, actions),
            Event::QueueApplied(queue) => self.queue_applied(queue, now),
            Event::QueueDeleted(name) => self.delete_queue(&name),
            Event::QueuePolicyApplied(policy) => self.apply_queue_policy(*policy),
            Event::QueuePolicyDeleted(name) => self.delete_queue_policy(&name),
            Event::PriorityClassApplied(class) => self.apply_priority_class(class),
            Event::PriorityClassDeleted(name) => self.delete_priority_class(&name),
            Event::NodeApplied(node) => self.apply_node(node),
            Event::NodeDeleted(name) => self.delete_node(&name),
            Event::GangApplied(gang) => self.gang_applied(gang, now),
            Event::GangDeleted(name) => self.delete_gang(&name),
            Event::PodApplied(pod) => {
                // What a later leader did counts for nothing here: this machine does nothing any more.
                if self.heed_pod(&pod, actions) {
                    self.apply_pod(*pod);
                }
            }
            Event::LonePodApplied { gang, pod } => {
                if self.heed_pod(&pod, actions) {
                    self.apply_lone_pod(*gang, *pod);
                }
            }
            Event::PodDeleted(uid) => self.delete_pod(&uid),
            Event::PlanFound(plan) if self.synced => self.plan_seen(plan, actions),
            Event::PlanFound(plan) => self.plans_found.push(plan),
            Event::Synced => self.recover(actions),
            Event::AgentConnected { session, hello } => self.agent_connected(session, *hello, actions),
            Event::AgentGone { node, session } => self.agent_gone(&node, session, now, actions),
            Event::AgentSaid { node, session, message } => {
                self.agent_said(&node, session, *message, now, actions);
            }
            Event::ActionDone { action, outcome } => self.action_done(action, &outcome, now, actions),
            Event::PodRead { action, pod } => {
                if pod.as_ref().is_none_or(|pod| self.heed_pod(pod, actions)) {
                    self.pod_read(action, pod.map(|pod| *pod));
                }
            }
            Event::OtherPodApplied(pod) => self.apply_other(*pod),
            Event::BudgetApplied(budget) => self.apply_budget(*budget),
            Event::BudgetDeleted(name) => self.delete_budget(&name),
            Event::ClaimApplied(claim) => self.apply_claim(*claim, now, actions),
            Event::ClaimDeleted(name) => self.delete_claim(&name, now, actions),
        }
    }

    /// Does one scheduling pass: reacts to the facts, places what fits, and asks for what follows.
    pub fn cycle(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.synced || self.overtaken.is_some() {
            return;
        }
        self.now = now;
        self.fire_timers(now, actions);
        self.yield_to_others(now, actions);
        // Twice at most in practice: a lease of the coordinator's own ledger that ends in a pass frees room at once.
        for _ in 0..CYCLE_ROUNDS {
            self.progress_touched(now, actions);
            if self.remove_over() {
                self.progress_touched(now, actions);
            }
            self.pass(now, actions);
            self.progress_touched(now, actions);
            self.drive_leases(now, actions);
            if self.is_settled() {
                break;
            }
        }
        if !self.is_settled() {
            self.timers.insert((now + Millis(1), Timer::Rest));
        }
        self.tell_problems(actions);
        self.write_queue_status(actions);
    }

    fn is_settled(&self) -> bool {
        let is_quiet = self.touched.is_empty()
            && self.queues.to_try.is_empty()
            && !self.quota_freed
            && !self.eviction_news
            && self.queues.are_shares_fresh
            && !self.queues.shares_moved;
        is_quiet && self.room_seen == self.cluster.room_generation
    }

    /// When `cycle` must be called at the latest, and for what.
    #[must_use]
    pub fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let first = self.timers.first().filter(|_| self.overtaken.is_none());
        first.map(|(time, timer)| (*time, timer.reason()))
    }

    /// The term this machine leads under.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    pub(crate) fn next_arrival(&mut self) -> GangKey {
        self.next_arrival += 1;
        GangKey(self.next_arrival)
    }

    /// Asks for a command.
    pub(crate) fn emit(&mut self, command: Command, actions: &mut Vec<Action>) -> ActionId {
        let id = self.next_action();
        actions.push(Action { id, command });
        id
    }

    const fn next_action(&mut self) -> ActionId {
        self.next_action += 1;
        ActionId(self.next_action)
    }

    /// Asks for a command whose outcome matters.
    pub(crate) fn emit_pending(
        &mut self,
        command: Command,
        what: Pending,
        actions: &mut Vec<Action>,
    ) -> ActionId {
        let id = self.emit(command, actions);
        self.pending.insert(id, what);
        id
    }

    /// Asks for a write to a pod that makes every Binding on its way fail. It bears our term: while a higher one is
    /// asked for it waits for that, since the present one is no later than what others have written.
    pub(crate) fn emit_fence(
        &mut self,
        pod: &PodUid,
        name: &GangName,
        what: Pending,
        actions: &mut Vec<Action>,
    ) -> ActionId {
        if self.raising_above.is_none() {
            return self.emit_pending(self.fence(pod, name), what, actions);
        }
        let id = self.next_action();
        self.pending.insert(id, what);
        self.fences_held.insert(id, (pod.clone(), name.clone()));
        id
    }

    fn fire_timers(&mut self, now: Time, actions: &mut Vec<Action>) {
        while self.timers.first().is_some_and(|(time, _)| *time <= now) {
            let Some((_, timer)) = self.timers.pop_first() else { return };
            match timer {
                Timer::Resend(lease) => {
                    self.leases.touched.insert(lease);
                }
                Timer::Gang(gang) => {
                    self.touched.insert(gang);
                }
                Timer::PodsMissing(gang) => {
                    let gang = self.gangs.gangs.get(&gang);
                    if gang.is_some_and(|gang| self.is_overdue(gang)) {
                        self.wake_all();
                    }
                }
                Timer::Quarantine(node) => {
                    let quarantine = self.cluster.node(node).quarantine.as_ref();
                    if quarantine.is_some_and(|quarantine| quarantine.until <= now) {
                        self.cluster.end_quarantine(node);
                    }
                }
                Timer::QueueStatus(queue) => {
                    self.touched_queues.insert(queue);
                }
                Timer::PlanRemoval(gang) => self.retry_removal(&gang, actions),
                Timer::Stranger(lease) => self.fence_stranger(lease, actions),
                Timer::Rest => {}
            }
        }
    }

    /// Works off the gangs whose facts changed, and those that change because of it.
    fn progress_touched(&mut self, now: Time, actions: &mut Vec<Action>) {
        while let Some(key) = self.touched.pop_first() {
            self.progress(key, now, actions);
            self.note_wants(key);
            self.write_gang_status(key, actions);
        }
    }

    /// A gang known to the core, by name.
    pub(crate) fn gang_key(&self, name: &GangName) -> Option<GangKey> {
        self.gangs.key(name)
    }
}
