//! A gang is bound whole or not at all, and none of its pods starts before its minimum is bound.

use std::collections::BTreeMap;

use phalanx_common::gang::PodPhase;
use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::units::{Millis, Time};

use crate::facts::Facts;

/// A pod that was deleted counts as bound for so long: the coordinator learns of its deletion later, and decides
/// by what it knows.
const LAG_MS: Millis = Millis(8_000);
/// A minimum that was changed counts for so long: what was decided under it is still being done.
const MINIMUM_LAG_MS: Millis = Millis(60_000);

/// What is remembered of a gang.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// The lowest minimum that counts now.
    min_member: u32,
    /// Minima and when they were last in force.
    minima: BTreeMap<u32, Time>,
    /// Its minimum was bound since it last had no bound pod: what is missing now has ended or was deleted.
    was_whole: bool,
    /// When each of its pods was last seen bound.
    bound: BTreeMap<PodUid, Time>,
}

/// Bound pods of a gang now.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    live: u32,
    succeeded: u32,
}

/// The checker.
#[derive(Debug, Default)]
pub struct AllOrNothing {
    gangs: BTreeMap<GangName, Memory>,
}

impl AllOrNothing {
    /// Looks at the facts.
    ///
    /// # Errors
    /// The gang and its numbers.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        let mut counts: BTreeMap<&GangName, Count> = BTreeMap::new();
        for pod in facts.pods.values() {
            let count = counts.entry(&pod.gang).or_default();
            count.live += u32::from(pod.is_live());
            count.succeeded += u32::from(pod.phase == PodPhase::Succeeded);
        }
        for (name, group) in &facts.groups {
            let memory = self.gangs.entry(name.clone()).or_default();
            memory.minima.insert(group.min_member, facts.now);
            memory.minima.retain(|_, last| *last + MINIMUM_LAG_MS >= facts.now);
            memory.min_member = memory.minima.keys().next().copied().unwrap_or(group.min_member);
        }
        self.gangs.retain(|name, _| !facts.bound_by_hand.contains(name));
        self.gangs.retain(|name, _| facts.groups.contains_key(name) || counts.contains_key(name));
        for (uid, pod) in facts.pods.iter().filter(|(_, pod)| pod.is_live()) {
            if let Some(memory) = self.gangs.get_mut(&pod.gang) {
                memory.bound.insert(uid.clone(), facts.now);
            }
        }
        for (name, memory) in &mut self.gangs {
            let count = counts.get(name).copied().unwrap_or_default();
            let succeeded =
                |uid: &PodUid| facts.pods.get(uid).is_some_and(|pod| pod.phase == PodPhase::Succeeded);
            memory.bound.retain(|uid, seen| *seen + LAG_MS >= facts.now && !succeeded(uid));
            let bound = u32::try_from(memory.bound.len()).unwrap_or(u32::MAX) + count.succeeded;
            if count.live == 0 && bound < memory.min_member {
                memory.was_whole = false;
            } else if bound >= memory.min_member {
                memory.was_whole = true;
            } else if count.live > 0
                && !memory.was_whole
                && !facts.plans.contains(name)
                && facts.groups.contains_key(name)
            {
                return Err(format!(
                    "{bound} pods of gang {name} are bound, its minimum is {}, and it has no plan",
                    memory.min_member
                ));
            }
        }
        for uid in &facts.started {
            let Some(pod) = facts.pods.get(uid) else { continue };
            let Some(memory) = self.gangs.get(&pod.gang) else { continue };
            if pod.is_live() && !memory.was_whole {
                let count = counts.get(&pod.gang).copied().unwrap_or_default();
                return Err(format!(
                    "pod {} starts while {} pods of gang {} are bound; its minimum is {}",
                    pod.name, count.live, pod.gang, memory.min_member
                ));
            }
        }
        Ok(())
    }
}
