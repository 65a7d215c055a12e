//! A gang is bound whole or not at all, and none of its pods starts before its minimum is bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::gang::PodPhase;
use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::units::{Millis, Time};

use crate::facts::{Facts, Need, PodFact};

/// A pod that was deleted counts as bound, or as ended well, for so long: the coordinator learns of its deletion later,
/// and decides by what it knows.
const LAG_MS: Millis = Millis(8_000);
/// A minimum that was changed counts for so long: what was decided under it is still being done.
const MINIMUM_LAG_MS: Millis = Millis(60_000);

/// What is remembered of a gang.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// What it needs and needed, and when each was last in force.
    needs: BTreeMap<Need, Time>,
    /// Its minimum was bound since it last had no bound pod: what is missing now has ended or was deleted.
    was_whole: bool,
    /// When one of its pods was last bound.
    live_at: Time,
    /// When each of its pods was last seen bound, or ended well.
    bound: BTreeMap<PodUid, (Time, Arc<str>)>,
}

/// Bound pods of a gang now.
#[derive(Clone, Debug, Default)]
struct Count {
    live: u32,
    /// Those of them that the coordinator bound.
    ours: u32,
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
        for (uid, pod) in &facts.pods {
            let count = counts.entry(&pod.gang).or_default();
            count.live += u32::from(pod.is_live());
            count.ours += u32::from(pod.is_live() && !facts.by_hand.contains(uid));
        }
        for (name, group) in &facts.groups {
            let memory = self.gangs.entry(name.clone()).or_default();
            memory.needs.insert(group.need.clone(), facts.now);
            memory.needs.retain(|_, last| *last + MINIMUM_LAG_MS >= facts.now);
        }
        self.gangs.retain(|name, _| facts.groups.contains_key(name) || counts.contains_key(name));
        let counts_for = |pod: &PodFact| pod.is_live() || pod.phase == PodPhase::Succeeded;
        for (uid, pod) in facts.pods.iter().filter(|(_, pod)| counts_for(pod)) {
            if let Some(memory) = self.gangs.get_mut(&pod.gang) {
                memory.bound.insert(uid.clone(), (facts.now, Arc::clone(&pod.task)));
            }
        }
        for (name, memory) in &mut self.gangs {
            let count = counts.remove(name).unwrap_or_default();
            memory.look(facts, name, &count)?;
        }
        self.check_starts(facts)
    }

    /// None of its pods starts before the gang is whole.
    fn check_starts(&self, facts: &Facts) -> Result<(), String> {
        for uid in facts.started.iter().filter(|uid| !facts.by_hand.contains(*uid)) {
            let Some(pod) = facts.pods.get(uid) else { continue };
            let Some(memory) = self.gangs.get(&pod.gang) else { continue };
            if pod.is_live() && !memory.was_whole {
                return Err(format!(
                    "pod {} starts while {} pods of gang {} are bound; it needs {:?}",
                    pod.name,
                    memory.bound.len(),
                    pod.gang,
                    memory.needs.keys()
                ));
            }
        }
        Ok(())
    }
}

impl Memory {
    /// Looks at one gang. What somebody else bound counts as bound, and needs no plan.
    fn look(&mut self, facts: &Facts, name: &GangName, count: &Count) -> Result<(), String> {
        self.bound.retain(|_, (seen, _)| *seen + LAG_MS >= facts.now);
        let tasks = || self.bound.values().map(|(_, task)| &**task);
        let is_whole = self.needs.keys().any(|need| need.is_met(tasks()));
        if count.live > 0 {
            self.live_at = facts.now;
        }
        // Of the end of the last one the coordinator learns as late: what was to join it is bound meanwhile.
        let is_over = self.live_at + LAG_MS < facts.now;
        if is_whole {
            self.was_whole = true;
        } else if count.live == 0 {
            self.was_whole &= !is_over;
        } else if count.ours > 0
            && !self.was_whole
            && !facts.plans.contains_key(name)
            && facts.groups.contains_key(name)
        {
            return Err(format!(
                "{} pods of gang {name} are bound, it needs {:?}, and it has no plan",
                self.bound.len(),
                self.needs.keys()
            ));
        }
        Ok(())
    }
}
