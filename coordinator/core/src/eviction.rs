//! Decides whether others are evicted for a gang: the one path of preemption and reclaim. Nothing is evicted before a
//! plan exists for the whole gang: queue, nodes, GPUs and every other resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::{NodeName, QueueName};
use phalanx_common::units::{Millis, Time};

use crate::amounts::{Amounts, ResourceKey};
use crate::core::{Core, Timer};
use crate::evictable::{Evictable, Facts, Tally, Victims, never_evicts, queues_of};
use crate::gang::{Gang, GangKey};
use crate::place::PodNeed;
use crate::predicates::{self, Obstacle};
use crate::reason::{NoEviction, NoEvictionCause, Reason};
use crate::required::Required;
use crate::victims::{Guard, NoHelp, Unit, make_room};

/// Those named in a reason.
const NAMED: usize = 4;

/// After a start nobody is evicted before all agents that were there had the time to dial.
const HEARD_WITHIN: Millis = Millis::from_seconds(15);

/// What a queue of the gang lacks: queue, resource, and how much.
pub(crate) type Lack = (QueueName, ResourceKey, u64);

/// What was found out in this pass. Others go on to use it: what did not help one gang helps none like it.
#[derive(Clone, Default)]
pub(crate) struct EvictionMemory {
    evictable: Option<Arc<Vec<Evictable>>>,
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

    fn all_evictable(&mut self) -> Arc<Vec<Evictable>> {
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
    ) -> Result<(), Option<NoEviction>> {
        if self.rooms.contains_key(&key) {
            return Ok(());
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
        let all = self.all_evictable();
        let asked = asked(required);
        let over_share = self.over_share(key, &asked);
        let Some(gang) = self.gangs.gangs.get(&key) else { return Err(None) };
        let mut victims = self.victims_for(gang, &all, self.settings.reclaim && over_share.is_none());
        let queue = gang.spec.queue.clone();
        let tally = self.tally(&queue, &victims, &asked, lacks);
        if !victims.units.iter().any(|unit| tally.may_go(unit)) {
            victims.units.clear();
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return Err(None) };
        let no = |cause, spared| Err(Some(NoEviction { cause, spared }));
        if victims.units.is_empty() && victims.spared.is_empty() {
            if !lacks.is_empty() && self.settings.preempt {
                return no(NoEvictionCause::Quota, Vec::new());
            }
            let borrowed = over_share.filter(|_| self.others_could_give(gang, &all));
            return borrowed.map_or(Err(None), |cause| no(cause, Vec::new()));
        }
        if never_evicts(self, &gang.spec) {
            return no(NoEvictionCause::NonPreempting, Vec::new());
        }
        if let Some(at) = victims.next {
            self.timers.insert((at, Timer::Gang(key)));
        }
        let base = self.overlay_for(key, now);
        let shape = self.shape(key);
        match make_room(&self.cluster, &base, &victims.units, &tally, &shape, &required.pods) {
            Ok(room) => {
                self.begin_room(key, &victims.units, &room, now);
                Ok(())
            }
            Err(help) => {
                let mut spared = victims.spared.clone();
                spared.truncate(NAMED);
                no(self.no_help(required, &victims.units, &tally, help), spared)
            }
        }
    }

    /// Until when agents that have not dialled since the start are waited for.
    fn heard_by(&self, now: Time) -> Option<Time> {
        let until = self.started_at + HEARD_WITHIN;
        let is_silent = |node: &crate::cluster::Node| {
            node.agent.is_none() && node.spec.as_ref().is_some_and(|spec| spec.allocatable.gpus() > 0)
        };
        (now < until && self.cluster.nodes().any(|(_, node)| is_silent(node))).then_some(until)
    }

    /// Its queue, or one above it, would be above its share: it takes what is idle only.
    pub(crate) fn over_share(&mut self, key: GangKey, asked: &Amounts) -> Option<NoEvictionCause> {
        let queue = self.gangs.gangs.get(&key)?.spec.queue.clone();
        for queue in self.chain(&queue) {
            let allocated = self.allocated_of(&queue).clone();
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

    /// Gangs of other queues run that could go if the gang's queue were under its share.
    fn others_could_give(&self, gang: &Gang, all: &[Evictable]) -> bool {
        let is_other =
            |other: &Evictable| other.queue != gang.spec.queue && self.is_reclaimable(&other.queue);
        self.settings.reclaim && all.iter().any(is_other)
    }

    fn tally(&mut self, own: &QueueName, victims: &Victims, asked: &Amounts, lacks: &[Lack]) -> Tally {
        let own_chain = self.chain(own);
        let asked: Vec<ResourceKey> = asked.keys().collect();
        let mut facts = Facts { lacks: lacks.to_vec(), ..Facts::default() };
        for queue in queues_of(&victims.units) {
            let above = self.chain(&queue);
            let below_common: Vec<QueueName> =
                above.iter().take_while(|queue| !own_chain.contains(queue)).cloned().collect();
            for name in &above {
                if facts.allocated.contains_key(name) {
                    continue;
                }
                facts.allocated.insert(name.clone(), self.allocated_of(name).clone());
                let share = self.deserved(name);
                let shares = asked.iter().filter_map(|key| Some((*key, share.limit(*key)?))).collect();
                facts.deserved.insert(name.clone(), shares);
                let guarantee = self.guarantee_of(name).clone();
                facts.guarantee.insert(name.clone(), guarantee);
            }
            facts.chains.insert(queue.clone(), below_common);
            facts.above.insert(queue, above);
        }
        let budgets = self.budgets.iter().map(|(name, budget)| (name.clone(), budget.disruptions_allowed));
        Tally {
            own: own.clone(),
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
        lacks.collect()
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
        if lacks.is_empty() {
            return Err(reason);
        }
        let Some(gang) = self.gangs.gangs.get(&key) else { return Err(reason) };
        if self.check_pods(gang, required).is_err() {
            let may = !self.is_overdue(gang) && self.could_free_quota(key, charge, &lacks);
            return if may { Ok(Vec::new()) } else { Err(reason) };
        }
        match self.evict_for(key, required, &lacks, now) {
            Ok(()) => Ok(Vec::new()),
            Err(why) => {
                if let Reason::QuotaUsed { eviction, .. } = &mut reason {
                    *eviction = why.map(Box::new);
                }
                Err(reason)
            }
        }
    }

    /// True where what may be evicted for the gang would give its quota the room that it lacks, though its pods do not
    /// exist yet.
    pub(crate) fn could_free_quota(&mut self, key: GangKey, asked: &Amounts, lacks: &[Lack]) -> bool {
        let all = self.all_evictable();
        let over_share = self.over_share(key, asked).is_some();
        let Some(gang) = self.gangs.gangs.get(&key) else { return false };
        if never_evicts(self, &gang.spec) {
            return false;
        }
        let queue = gang.spec.queue.clone();
        let mut victims = self.victims_for(gang, &all, self.settings.reclaim && !over_share);
        victims.units.sort_by_key(|unit| unit.rank);
        let mut tally = self.tally(&queue, &victims, asked, lacks);
        for unit in &victims.units {
            if tally.frees_quota(unit) && tally.may_go(unit) {
                tally.gone(unit);
            }
        }
        tally.has_quota()
    }

    fn no_help(
        &self,
        required: &Required,
        units: &[Unit],
        tally: &Tally,
        help: NoHelp,
    ) -> NoEvictionCause {
        let fit = match help {
            NoHelp::Quota => return NoEvictionCause::Quota,
            NoHelp::Fit(_) if units.is_empty() => return NoEvictionCause::Protected,
            NoHelp::Fit(fit) => fit,
        };
        let largest = required.pods.iter().max_by_key(|pod| pod.need.gpus);
        let Some(need) = largest.map(|pod| pod.need.clone()) else { return NoEvictionCause::Protected };
        let mut best = 0;
        let mut kept_from: Vec<(NodeName, Arc<str>)> = Vec::new();
        for (index, node) in self.cluster.nodes().filter(|(_, node)| node.shut().is_none()) {
            let may_go = units.iter().filter(|unit| tally.may_go(unit));
            let on_node = may_go.flat_map(|unit| &unit.parts).filter(|part| part.node == index);
            let (count, mask) = on_node.fold((0, 0), |(count, mask), part| (count + 1, mask | part.mask));
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
pub(crate) fn asked(required: &Required) -> Amounts {
    let mut asked = Amounts::default();
    required.pods.iter().for_each(|candidate| asked.add(&candidate.need.amounts));
    asked
}
