//! Who is in a gang's way and does not go, whatever it asks for: told where nobody goes, so that people see what
//! protects them.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::QueueName;

use crate::amounts::{Amounts, ResourceKey};
use crate::core::Core;
use crate::evictable::{Tally, is_kept, is_of_the_system};
use crate::eviction::{Lack, sum_of};
use crate::gang::{Gang, GangKey};
use crate::givers::Shields;
use crate::queue::Queue;
use crate::queues::ROOT;
use crate::reason::{NoEviction, NoEvictionCause, Spared};
use crate::required::Required;
use crate::victims::Unit;

/// Named in one reason.
const NAMED: usize = 4;

/// A gang that says, or one of whose pods says, that it must not be evicted.
#[derive(Debug)]
pub(crate) struct Kept {
    key: GangKey,
    priority: i32,
    /// What its pods have.
    amounts: Amounts,
}

impl Kept {
    /// Its pods have any of what is asked for.
    fn has_any(&self, asked: &Amounts) -> bool {
        asked.keys().any(|key| self.amounts.get(key) > 0)
    }
}

/// A queue has more than its share of anything that is asked for.
fn is_above_share(queue: &Queue, has: &Amounts, asked: &Amounts) -> bool {
    let mut shares = asked.keys().filter_map(|key| Some((key, queue.share.limit(key)?)));
    shares.any(|(key, share)| has.get(key) > share)
}

impl Core {
    /// Whom of those that the gang could ask something protects for good, where they have any of what it asks for. Of other
    /// queues only while its own is not `over_share`, and of what it lacks of a quota only who has it.
    pub(crate) fn protected_from(
        &mut self,
        key: GangKey,
        asked: &Amounts,
        lacks: &[Lack],
        over_share: bool,
    ) -> Vec<Spared> {
        let kept = self.all_kept();
        let of_others = if over_share { Arc::default() } else { self.shielded(asked) };
        let Some(gang) = self.gangs.gangs.get(&key) else { return Vec::new() };
        let priority = self.priority_of(&gang.spec).unwrap_or(0);
        let own = &gang.spec.queue;
        let mut spared = Vec::new();
        let lowest = self.queues.get(own).and_then(|queue| queue.givers.first_key_value());
        let has_less_urgent = lowest.is_some_and(|(lowest, _)| *lowest < priority);
        if !self.settings.preempt && has_less_urgent {
            spared.push(Spared::SwitchedOff { setting: Arc::from("preempt") });
        } else if self.settings.preempt {
            let of_own = kept.get(own).into_iter().flatten();
            let less_urgent = of_own.filter(|kept| kept.has_any(asked) && kept.priority < priority);
            spared.extend(less_urgent.take(NAMED).filter_map(|kept| self.not_preemptable(kept.key)));
        }
        let gives_quota = |name: &QueueName| {
            lacks.is_empty()
                || lacks.iter().any(|(of, _, _)| of.as_str() == ROOT || self.queues.is_below(name, of))
        };
        let others = of_others.iter().filter(|(name, _)| name != own && gives_quota(name));
        for found in others.flat_map(|(_, found)| found) {
            if spared.len() >= NAMED {
                break;
            }
            if !spared.contains(found) {
                spared.push(found.clone());
            }
        }
        spared
    }

    /// Queues above their share of anything that is asked for, of which something protects gangs for good, and what does.
    fn shielded(&mut self, asked: &Amounts) -> Arc<Shields> {
        let keys: Vec<ResourceKey> = asked.keys().collect();
        if let Some(known) = self.above_share_memory().shielded.get(&keys) {
            return known.clone();
        }
        let (kept, expected) = (self.all_kept(), self.expected());
        let mut found = Shields::new();
        for (name, queue) in &self.queues.queues {
            let has = expected.get(name).unwrap_or(&queue.allocated);
            if !is_above_share(queue, has, asked) {
                continue;
            }
            let kept: Vec<&Kept> =
                kept.get(name).into_iter().flatten().filter(|kept| kept.has_any(asked)).collect();
            let spared: Vec<Spared> = match self.shield_of(name, queue, !kept.is_empty()) {
                Some(shield) => vec![shield],
                None => kept.iter().take(NAMED).filter_map(|kept| self.not_preemptable(kept.key)).collect(),
            };
            if !spared.is_empty() {
                found.push((name.clone(), spared));
            }
        }
        let found = Arc::new(found);
        self.above_share_memory().shielded.insert(keys, found.clone());
        found
    }

    /// Why evictions do not help, with whom something protects for good.
    pub(crate) fn with_protected(
        &mut self,
        key: GangKey,
        required: &Required,
        lacks: &[Lack],
        why: Option<NoEviction>,
    ) -> Option<NoEviction> {
        let asked = sum_of(&required.pods);
        let over_share = match why.as_ref().map(|why| &why.cause) {
            // Nobody is asked, or those who have what is lacking are more urgent.
            Some(
                NoEvictionCause::NonPreempting
                | NoEvictionCause::Quota
                | NoEvictionCause::AdmittedFirst { .. }
                | NoEvictionCause::AboveMinimum,
            ) => return why,
            Some(NoEvictionCause::OverShare { .. }) => true,
            Some(NoEvictionCause::Fit { .. } | NoEvictionCause::Protected) | None => {
                self.over_share(key, &asked).is_some()
            }
        };
        let more = self.protected_from(key, &asked, lacks, over_share);
        let mut why = why.or((!more.is_empty()).then(|| NoEviction::of(NoEvictionCause::Protected)))?;
        why.spared.extend(more);
        why.spared.truncate(NAMED);
        Some(why)
    }

    /// What keeps everything of a queue in which gangs run.
    fn shield_of(&self, name: &QueueName, queue: &Queue, has_kept: bool) -> Option<Spared> {
        let has_givers = !queue.givers.is_empty();
        if !self.is_reclaimable(name) && (has_givers || has_kept) {
            let says_no = |queue: &Queue| queue.spec.as_ref().is_some_and(|spec| !spec.reclaimable);
            let (queue, _) = self.queues.up_from(name).find(|(_, queue)| says_no(queue))?;
            return Some(Spared::NotReclaimable { queue: queue.clone() });
        }
        let is_off = !self.settings.reclaim && has_givers;
        is_off.then(|| Spared::SwitchedOff { setting: Arc::from("reclaim") })
    }

    fn not_preemptable(&self, key: GangKey) -> Option<Spared> {
        let gang = self.gangs.gangs.get(&key)?;
        Some(Spared::NotPreemptable { gang: gang.spec.name.clone() })
    }

    /// Gangs that run and say that they must not be evicted, by queue.
    fn all_kept(&mut self) -> Arc<BTreeMap<QueueName, Vec<Kept>>> {
        if let Some(known) = &self.eviction_memory.kept {
            return known.clone();
        }
        let mut all: BTreeMap<QueueName, Vec<Kept>> = BTreeMap::new();
        for (key, gang) in self.gangs.gangs.iter().filter(|_| self.has_kept) {
            if !gang.phase.is_still() || !self.is_kept_gang(gang) {
                continue;
            }
            let priority = self.priority_of(&gang.spec).unwrap_or(0);
            if !is_of_the_system(gang, priority) {
                let kept = Kept { key: *key, priority, amounts: self.live_amounts(gang) };
                all.entry(gang.spec.queue.clone()).or_default().push(kept);
            }
        }
        let all = Arc::new(all);
        self.eviction_memory.kept = Some(all.clone());
        all
    }

    fn is_kept_gang(&self, gang: &Gang) -> bool {
        let mut pods = self.gangs.pods_of(&gang.spec.name);
        is_kept(gang.spec.policy.preemptable)
            || pods.any(|(_, pod)| pod.is_live() && is_kept(pod.spec.policy.preemptable))
    }

    fn live_amounts(&self, gang: &Gang) -> Amounts {
        let mut amounts = Amounts::default();
        let pods = self.gangs.pods_of(&gang.spec.name).filter(|(_, pod)| pod.is_live());
        pods.for_each(|(_, pod)| amounts.add(&pod.need.amounts.of_pod()));
        amounts
    }
}

impl Tally {
    /// Queues that would have less than their guarantee, were they to lose one of these.
    pub(crate) fn guaranteed(&self, units: &[Unit]) -> Vec<Spared> {
        let mut spared: Vec<Spared> = Vec::new();
        for (queue, key, guarantee) in units.iter().filter_map(|unit| self.guarantee_against(unit)) {
            let resource = self.facts.names.get(&key).cloned().unwrap_or_default();
            let found = Spared::Guaranteed { queue, resource, guarantee };
            if !spared.contains(&found) && spared.len() < NAMED {
                spared.push(found);
            }
        }
        spared
    }

    /// The guarantee that keeps a unit of a queue above its share, where one does.
    fn guarantee_against(&self, unit: &Unit) -> Option<(QueueName, ResourceKey, u64)> {
        let chain = self.facts.chains.get(&unit.queue).filter(|_| Some(&unit.queue) != self.own.as_ref())?;
        let is_over = chain.iter().all(|queue| self.is_over(queue));
        chain.iter().filter(|_| is_over).find_map(|queue| {
            let (key, guarantee) = self.guarantee_broken(queue, unit)?;
            Some((queue.clone(), key, guarantee))
        })
    }
}
