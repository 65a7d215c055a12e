//! What the bound pods of a queue ask for never passes the queue's ceiling. A ceiling that was lowered holds for what
//! is decided from then on: it stops nothing that runs, and a Binding on its way may still come.

use std::collections::BTreeMap;

use phalanx_common::resources::Resources;
use phalanx_common::units::{Millis, Time};

use crate::facts::Facts;

/// A ceiling counts for so long after it was changed: as long as a placement may take that was begun under it.
const GRACE_MS: Millis = Millis(150_000);

/// What is remembered of a queue.
#[derive(Debug, Default)]
struct Memory {
    /// Ceilings and when they were last in force; `None` = there was no queue, and no ceiling.
    ceilings: Vec<(Time, Option<Resources>)>,
    /// What was used above a ceiling that was lowered: it may shrink, and never grow.
    above: BTreeMap<String, u64>,
}

/// The checker.
#[derive(Debug, Default)]
pub struct Quota {
    queues: BTreeMap<String, Memory>,
}

impl Quota {
    /// Checks every queue.
    ///
    /// # Errors
    /// The queue, the resource and the amounts.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
        for (uid, pod) in &facts.pods {
            let holds = pod.is_live() || (facts.running.contains_key(uid) && !facts.ended.contains(uid));
            let is_ours = !facts.bound_by_hand.contains(&pod.gang);
            let Some(group) = facts.groups.get(&pod.gang).filter(|_| holds && is_ours) else { continue };
            used.entry(group.queue.as_str()).or_default().add(&pod.request);
        }
        for queue in facts.capability.keys().map(String::as_str).chain(used.keys().copied()) {
            if !self.queues.contains_key(queue) {
                self.queues.insert(queue.to_owned(), Memory::default());
            }
        }
        for (name, memory) in &mut self.queues {
            memory.look(facts.now, facts.capability.get(name.as_str()));
            let Some(used) = used.get(name.as_str()) else {
                memory.above.clear();
                continue;
            };
            memory.check(used).map_err(|text| format!("queue {name}: {text}"))?;
        }
        Ok(())
    }
}

impl Memory {
    fn look(&mut self, now: Time, ceiling: Option<&Resources>) {
        self.ceilings.retain(|(last, _)| *last + GRACE_MS >= now);
        match self.ceilings.iter_mut().find(|(_, known)| known.as_ref() == ceiling) {
            Some((last, _)) => *last = now,
            None => self.ceilings.push((now, ceiling.cloned())),
        }
    }

    fn check(&mut self, used: &Resources) -> Result<(), String> {
        for (resource, amount) in used.iter() {
            let resource = resource.as_str();
            // No ceiling, or one that does not name the resource, is no limit.
            let limits = self.ceilings.iter().map(|(_, ceiling)| {
                let named = ceiling.as_ref()?.iter().find(|(name, _)| name.as_str() == resource)?;
                Some(named.1)
            });
            let limits: Option<Vec<u64>> = limits.collect();
            let Some(limit) = limits.and_then(|limits| limits.into_iter().max()) else {
                self.above.insert(resource.to_owned(), amount);
                continue;
            };
            let allowed = self.above.get(resource).copied().unwrap_or(0).max(limit);
            if amount > allowed {
                return Err(format!("its bound pods ask for {amount} {resource}, its ceiling is {limit}"));
            }
            self.above.insert(resource.to_owned(), amount);
        }
        Ok(())
    }
}
