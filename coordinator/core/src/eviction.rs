//! Decides whether others are evicted for a gang: the one path of preemption and reclaim. Nothing is evicted before a
//! plan exists for the whole gang: queue, nodes, GPUs and every other resource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{NodeName, QueueName};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};

use crate::amounts::{Amounts, ResourceKey};
use crate::cluster::NodeIndex;
use crate::core::{Core, Timer};
use crate::event::NodeSpec;
use crate::evictable::{Evictable, Facts, Tally, Victims, never_evicts, queues_of};
use crate::fewer::Lowering;
use crate::gang::{Gang, GangKey};
use crate::givers::AboveShare;
use crate::pass::{ShapeKey, shape_key};
use crate::phase::Phase;
use crate::place::{Candidate, PodNeed};
use crate::predicates::{self, Obstacle};
use crate::protected::Kept;
use crate::queues::ROOT;
use crate::reason::{NoEviction, NoEvictionCause, Reason};
use crate::required::Required;
use crate::victims::{Guard, NoHelp, Room, Unit, make_room};
use crate::why::by_size;

/// Those named in a reason.
const NAMED: usize = 4;

/// After a start nobody is evicted before all agents that were there had the time to dial.
const HEARD_WITHIN: Millis = Millis::from_seconds(15);

/// What a queue of the gang lacks: queue, resource, and how much.
pub(crate) type Lack = (QueueName, ResourceKey, u64);

/// What was found out in this pass. Others go on to use it: what did not help one gang helps none like it.
#[derive(Clone, Default)]
pub(crate) struct EvictionMemory {
    evictable: Option<Arc<BTreeMap<QueueName, Vec<Evictable>>>>,
    /// Gangs that must not be evicted.
    pub(crate) kept: Option<Arc<BTreeMap<QueueName, Vec<Kept>>>>,
    pub(crate) above_share: AboveShare,
    /// What queues will have, and of how many plans.
    pub(crate) expected: Option<(usize, Arc<BTreeMap<QueueName, Amounts>>)>,
    /// Until when agents are waited for.
    heard_by: Option<Option<Time>>,
    /// Why nobody goes, and when that may change by itself.
    no_help: BTreeMap<MemoryKey, (Option<NoEviction>, Option<Time>)>,
    /// Gangs for which others may have to go, while nobody goes; `None` once they may.
    pub(crate) put_off: Option<BTreeSet<GangKey>>,
}

/// Queue, priority, whether it never evicts, and its shape.
type MemoryKey = (QueueName, i32, bool, ShapeKey);

/// What a look for room found.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) victims: Victims,
    pub(crate) tally: Tally,
    /// `None` where nobody may go, or may be asked to.
    pub(crate) room: Option<Result<Room, NoHelp>>,
    /// Why, where that says anything.
    cause: Option<NoEvictionCause>,
}

impl std::fmt::Debug for EvictionMemory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EvictionMemory")
    }
}

impl Core {
    /// A pass begins: what ran then counts for all of it.
    pub(crate) fn forget_evictable(&mut self) {
        self.eviction_memory = EvictionMemory::default();
    }

    pub(crate) fn all_evictable(&mut self) -> Arc<BTreeMap<QueueName, Vec<Evictable>>> {
        if let Some(known) = &self.eviction_memory.evictable {
            return known.clone();
        }
        let all = Arc::new(self.evictable());
        self.eviction_memory.evictable = Some(all.clone());
        all
    }

    /// Evicts others for a gang that did not fit, or whose quota lacks so much, where that helps. An error says why it
    /// does not, where anybody could go.
    pub(crate) fn evict_for(
        &mut self,
        key: GangKey,
        required: &Required,
        lacks: &[Lack],
        now: Time,
    ) -> Result<(), Option<Box<NoEviction>>> {
        if self.rooms.contains_key(&key) {
            return Ok(());
        }
        if self.put_off(key) {
            return Err(None);
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return Err(None) };
        if gang.evict_not_before > now {
            self.timers.insert((gang.evict_not_before, Timer::Gang(key)));
            return Err(None);
        }
        if let Some(at) = self.heard_by(now) {
            self.timers.insert((at, Timer::Gang(key)));
            return Err(None);
        }
        let memory_key = self.memory_key(key, required).filter(|_| lacks.is_empty());
        if let Some((why, next)) =
            memory_key.as_ref().and_then(|known| self.eviction_memory.no_help.get(known))
        {
            let (why, next) = (why.clone(), *next);
            self.timers.extend(next.map(|at| (at, Timer::Gang(key))));
            return Err(why.map(Box::new));
        }
        let look = self.look_for_room(key, &required.pods, lacks, now);
        let next = look.victims.next;
        let why = match look.room {
            Some(Ok(room)) => {
                self.begin_room(key, &look.victims.units, &room, now);
                return Ok(());
            }
            Some(Err(help)) => {
                let mut spared = look.victims.spared.clone();
                spared.truncate(NAMED);
                let missing = match &help {
                    NoHelp::Fit(missing) => by_size(missing, ResourceKey::Gpus),
                    NoHelp::Quota => Vec::new(),
                };
                let cause = self.no_help(required, &look.victims.units, &look.tally, &help);
                Some(NoEviction { cause, spared, lower_to: None, missing, short: None })
            }
            None => look.cause.map(NoEviction::of),
        };
        let why = self.with_protected(key, required, lacks, why);
        let why = why.map(|why| self.with_fewer_evicted_for(key, required, lacks, why));
        self.timers.extend(next.map(|at| (at, Timer::Gang(key))));
        if let Some(memory_key) = memory_key {
            self.eviction_memory.no_help.insert(memory_key, (why.clone(), next));
        }
        Err(why.map(Box::new))
    }

    /// What makes two gangs equal here: what did not help one helps none like it.
    fn memory_key(&self, key: GangKey, required: &Required) -> Option<MemoryKey> {
        let gang = self.gangs.gangs.get(&key)?;
        let priority = self.priority_of(&gang.spec).unwrap_or(0);
        let never = never_evicts(self, &gang.spec);
        let has_own_view = self.has_own_view(key, self.now);
        let shape = shape_key(&self.shape(key), required);
        (!has_own_view).then(|| (gang.spec.queue.clone(), priority, never, shape))
    }

    /// Looks for room for these pods of a gang. Changes nothing.
    pub(crate) fn look_for_room(
        &mut self,
        key: GangKey,
        pods: &[Candidate],
        lacks: &[Lack],
        now: Time,
    ) -> Look {
        let asked = sum_of(pods);
        let over_share = self.over_share(key, &asked);
        let reclaims = self.settings.reclaim && over_share.is_none();
        let Some(givers) = self.givers(key, &asked, reclaims) else { return Look::default() };
        let mut victims = self.victims_for(key, &givers);
        let tally = self.tally(&givers.own, &victims, &asked, lacks);
        if !victims.units.iter().any(|unit| tally.may_go(unit)) {
            victims.spared.extend(tally.guaranteed(&victims.units));
            victims.units.clear();
        }
        if victims.units.is_empty() && victims.spared.is_empty() {
            let Some(gang) = self.gangs.gangs.get(&key) else { return Look::default() };
            let cause = if lacks.is_empty() {
                over_share.filter(|_| self.others_could_give(gang))
            } else {
                self.more_urgent(gang, lacks)
            };
            return Look { victims, tally, room: None, cause };
        }
        let gang = self.gangs.gangs.get(&key);
        if gang.is_some_and(|gang| never_evicts(self, &gang.spec)) {
            return Look { victims, tally, room: None, cause: Some(NoEvictionCause::NonPreempting) };
        }
        let (base, shape) = (self.overlay_for(key, now), self.shape(key));
        let room = make_room(&self.cluster, &base, &victims.units, &tally, &shape, pods);
        Look { victims, tally, room: Some(room), cause: None }
    }

    /// Until when agents that have not dialled since the start are waited for.
    fn heard_by(&mut self, now: Time) -> Option<Time> {
        if let Some(known) = self.eviction_memory.heard_by {
            return known;
        }
        let until = self.started_at + HEARD_WITHIN;
        let is_silent = |node: &crate::cluster::Node| {
            let has_devices = |spec: &NodeSpec| {
                spec.allocatable.iter().any(|(name, amount)| amount > 0 && name.is_device())
            };
            node.agent.is_none() && node.spec.as_ref().is_some_and(has_devices)
        };
        let found = (now < until && self.cluster.nodes().any(|(_, node)| is_silent(node))).then_some(until);
        self.eviction_memory.heard_by = Some(found);
        found
    }

    /// Its queue, or one above it, would be above its share: it takes what is idle only.
    pub(crate) fn over_share(&mut self, key: GangKey, asked: &Amounts) -> Option<NoEvictionCause> {
        let queue = self.gangs.gangs.get(&key)?.spec.queue.clone();
        if planted::is(Bug::ReclaimAboveShare) {
            return None;
        }
        let expected = self.expected();
        for queue in self.chain(&queue) {
            let allocated = expected.get(&queue).unwrap_or_else(|| self.allocated_of(&queue)).clone();
            let share = self.deserved(&queue);
            for resource in asked.keys() {
                let used = allocated.get(resource).saturating_add(asked.get(resource));
                if let Some(deserved) = share.limit(resource).filter(|deserved| used > *deserved) {
                    let resource = Arc::from(self.cluster.resources.name(resource));
                    return Some(NoEvictionCause::OverShare { queue, resource, used, deserved });
                }
            }
        }
        None
    }

    fn tally(&mut self, own: &QueueName, victims: &Victims, asked: &Amounts, lacks: &[Lack]) -> Tally {
        let own_chain = self.chain(own);
        let asked: Vec<ResourceKey> = asked.keys().collect();
        let expected = self.expected();
        let mut facts = Facts { lacks: lacks.to_vec(), ..Facts::default() };
        for queue in queues_of(&victims.units) {
            let above = self.chain(&queue);
            let below_common: Vec<QueueName> =
                above.iter().take_while(|queue| !own_chain.contains(queue)).cloned().collect();
            for name in &above {
                if facts.allocated.contains_key(name) {
                    continue;
                }
                let has = expected.get(name).unwrap_or_else(|| self.allocated_of(name));
                facts.allocated.insert(name.clone(), has.clone());
                let share = self.deserved(name);
                let shares = asked.iter().filter_map(|key| Some((*key, share.limit(*key)?))).collect();
                facts.deserved.insert(name.clone(), shares);
                let guarantee = self.guarantee_of(name);
                let named = guarantee.keys().map(|key| (key, Arc::from(self.cluster.resources.name(key))));
                facts.names.extend(named);
                facts.guarantee.insert(name.clone(), guarantee);
            }
            facts.chains.insert(queue.clone(), below_common);
            let all = above.into_iter().chain([QueueName::from(ROOT)]);
            facts.above.insert(queue, all.collect());
        }
        let promised = self.promised_disruptions();
        let budgets = self.budgets.iter().map(|(name, budget)| {
            let left = budget.disruptions_allowed.saturating_sub(promised.get(name).copied().unwrap_or(0));
            (name.clone(), left)
        });
        Tally {
            own: Some(own.clone()),
            asked,
            lost: BTreeMap::new(),
            facts: Arc::new(facts),
            budgets_left: budgets.collect(),
        }
    }

    /// What the gang's queues lack of what it asks for.
    pub(crate) fn lacks(&self, key: GangKey, asked: &Amounts) -> Vec<Lack> {
        let Some(gang) = self.gangs.gangs.get(&key) else { return Vec::new() };
        let above = self.queues.up_from(&gang.spec.queue).filter(|(_, queue)| queue.has_limits());
        let lacks = above.flat_map(|(name, queue)| {
            let mut used = queue.allocated.clone();
            used.add(&queue.charged);
            used.subtract(&gang.charge);
            queue.lacks(&used, asked).into_iter().map(move |(key, short)| (name.clone(), key, short))
        });
        let mut lacks: Vec<Lack> = lacks.collect();
        lacks.extend(self.guarantee_lacks(gang, asked));
        lacks
    }

    /// What of the cluster is lacking because the rest is set aside for others: it is given back by whoever goes.
    fn guarantee_lacks(&self, gang: &Gang, asked: &Amounts) -> Vec<Lack> {
        if !self.queues.has_guarantees {
            return Vec::new();
        }
        let root = QueueName::from(ROOT);
        let kept = self.queues.guaranteed_to_others(&gang.spec.queue);
        let mut used = self.allocated_of(&root).clone();
        used.add(&self.promised_to_others(gang.key()));
        let short = |key: ResourceKey| {
            let sum = kept.get(key).saturating_add(used.get(key)).saturating_add(asked.get(key));
            let short = sum.saturating_sub(self.queues.capacity.get(key));
            (asked.get(key) > 0 && short > 0).then(|| (root.clone(), key, short))
        };
        kept.keys().filter_map(short).collect()
    }

    /// The gang's quota has no room. Others give it back where they may be evicted for the gang; one whose pods do not
    /// exist yet is admitted if they could be. Else it waits for the reason that was found.
    pub(crate) fn evict_for_quota(
        &mut self,
        key: GangKey,
        required: &Required,
        charge: &Amounts,
        mut reason: Reason,
        now: Time,
    ) -> Result<Vec<GangKey>, Reason> {
        let lacks = self.lacks(key, charge);
        if lacks.is_empty() || self.is_room_free(key) {
            // Others may have taken what its victims gave back.
            return Err(reason);
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return Err(reason) };
        if self.check_pods(gang, required).is_err() {
            if self.is_overdue(gang) || self.would_be_pushed_back(gang, &lacks) {
                return Err(reason);
            }
            if self.could_free_quota(key, charge, &lacks) {
                return Ok(Vec::new());
            }
            let short = self.short_for_admission(key, charge, &lacks, &reason);
            reason
                .set_eviction(short.map(|_| NoEviction { short, ..NoEviction::of(NoEvictionCause::Quota) }));
            return Err(reason);
        }
        match self.evict_for(key, required, &lacks, now) {
            Ok(()) => Ok(Vec::new()),
            Err(why) => {
                let is_of_quota = why.as_ref().is_some_and(|why| why.cause.is_of_quota());
                let short =
                    is_of_quota.then(|| self.short_with_evictions(key, required, &lacks, &reason, now));
                let short = short.flatten();
                reason.set_eviction(why.map(|why| NoEviction { short, ..*why }));
                Err(reason)
            }
        }
    }

    /// A gang that runs has too few pods: others are evicted for those that it lacks, not for any above its minimum. What
    /// it waits for then.
    pub(crate) fn evict_for_missing(&mut self, key: GangKey, mut reason: Reason, now: Time) -> Reason {
        let Some(gang) = self.gangs.gangs.get(&key) else { return reason };
        if !matches!(gang.phase, Phase::Degraded { round: None, roll_back_at: None, .. }) {
            return reason;
        }
        let tally = self.gangs.tally(&gang.spec.name);
        let missing = gang.minimum(self.now).saturating_sub(tally.live + tally.succeeded);
        let mut pods = self.candidates(gang);
        pods.truncate(missing as usize);
        if pods.is_empty() || pods.len() < missing as usize {
            return reason;
        }
        let lowering = Some(Lowering::beside(gang, tally.live + tally.succeeded));
        let required = Required { pods, minimum: missing, all: tally.all, lowering };
        match self.evict_for(key, &required, &[], now) {
            Ok(()) => self.making_room(key).unwrap_or(reason),
            Err(why) => {
                if let Reason::NoRoom(room) = &mut reason {
                    room.eviction = why;
                }
                reason
            }
        }
    }

    /// Tries those again for which somebody may be evicted now: what is more urgent than the least urgent that runs in
    /// its queue, and all of queues that may take back their share.
    pub(crate) fn wake_those_who_evict(&mut self) {
        if !self.settings.preempt && !self.settings.reclaim {
            return;
        }
        let mut lowest: BTreeMap<QueueName, i32> = BTreeMap::new();
        for gang in self.gangs.gangs.values() {
            if matches!(gang.phase, Phase::Running { .. } | Phase::Degraded { .. }) {
                let priority = self.priority_of(&gang.spec).unwrap_or(0);
                let known = lowest.entry(gang.spec.queue.clone()).or_insert(priority);
                *known = priority.min(*known);
            }
        }
        let names: Vec<QueueName> = self.queues.queues.keys().cloned().collect();
        for name in names {
            let reclaims = self.settings.reclaim && lowest.keys().any(|other| *other != name);
            let lowest = lowest.get(&name).filter(|_| self.settings.preempt);
            self.queues.ask_all(&name, |order| {
                !order.is_surplus && (reclaims || lowest.is_some_and(|lowest| *lowest < order.priority.0))
            });
        }
    }

    /// True where what may be evicted for the gang would give its quota the room that it lacks, though its pods do not
    /// exist yet.
    pub(crate) fn could_free_quota(&mut self, key: GangKey, asked: &Amounts, lacks: &[Lack]) -> bool {
        let found = self.victims_for_quota(key, asked, lacks);
        found.is_some_and(|(victims, tally)| all_gone(&victims.units, tally).has_quota())
    }

    /// What may be evicted for the gang; `None` where nothing ever is.
    pub(crate) fn victims_for_quota(
        &mut self,
        key: GangKey,
        asked: &Amounts,
        lacks: &[Lack],
    ) -> Option<(Victims, Tally)> {
        self.gangs.gangs.get(&key).filter(|gang| !never_evicts(self, &gang.spec))?;
        let reclaims = self.settings.reclaim && self.over_share(key, asked).is_none();
        let givers = self.givers(key, asked, reclaims)?;
        let victims = self.victims_for(key, &givers);
        let tally = self.tally(&givers.own, &victims, asked, lacks);
        Some((victims, tally))
    }

    fn no_help(&self, required: &Required, units: &[Unit], tally: &Tally, help: &NoHelp) -> NoEvictionCause {
        let missing = match help {
            _ if units.is_empty() => return NoEvictionCause::Protected,
            NoHelp::Quota => return NoEvictionCause::Quota,
            NoHelp::Fit(missing) => missing,
        };
        let fit = u32::try_from(required.pods.len().saturating_sub(missing.len())).unwrap_or(u32::MAX);
        let largest = required.pods.iter().max_by_key(|pod| pod.need.gpus);
        let Some(need) = largest.map(|pod| pod.need.clone()) else { return NoEvictionCause::Protected };
        let mut best = 0;
        let mut kept_from: Vec<(NodeName, Arc<str>)> = Vec::new();
        let mut given: BTreeMap<NodeIndex, (u32, u64)> = BTreeMap::new();
        for part in units.iter().filter(|unit| tally.may_go(unit)).flat_map(|unit| &unit.parts) {
            let (count, mask) = given.entry(part.node).or_default();
            (*count, *mask) = (*count + 1, *mask | part.mask);
        }
        for (index, node) in self.cluster.nodes().filter(|(_, node)| node.shut().is_none()) {
            let (count, mask) = given.get(&index).copied().unwrap_or_default();
            match why_not(node, &need) {
                Some(why) if count > 0 && kept_from.len() < NAMED => kept_from.push((node.name.clone(), why)),
                Some(_) => {}
                None => best = best.max(u64::from((node.free_mask | mask).count_ones())),
            }
        }
        let (asked, minimum) = (u64::from(need.gpus), required.minimum.max(1));
        NoEvictionCause::Fit { fit, minimum, best, asked, kept_from }
    }
}

/// Once all went that may and give quota back that is lacking.
pub(crate) fn all_gone(units: &[Unit], mut tally: Tally) -> Tally {
    let mut in_order: Vec<&Unit> = units.iter().collect();
    in_order.sort_by_key(|unit| unit.rank);
    for unit in in_order {
        if tally.frees_quota(unit) && tally.may_go(unit) {
            tally.gone(unit);
        }
    }
    tally
}

/// What keeps a pod from a node, whoever goes.
fn why_not(node: &crate::cluster::Node, need: &PodNeed) -> Option<Arc<str>> {
    let lasting = predicates::obstacles(node, need, &node.used).into_iter().find(Obstacle::is_lasting)?;
    Some(Arc::from(match lasting {
        Obstacle::Taint(taint) => format!("untolerated taint {}", taint.key),
        Obstacle::Labels => "does not match nodeSelector".to_owned(),
        Obstacle::Affinity => "does not match node affinity".to_owned(),
        _ => "does not reach a volume".to_owned(),
    }))
}

/// What all these pods ask for together.
pub(crate) fn sum_of(pods: &[Candidate]) -> Amounts {
    let mut asked = Amounts::default();
    pods.iter().for_each(|candidate| asked.add(&candidate.need.amounts.of_pod()));
    asked
}
