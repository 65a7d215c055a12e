//! What the pods of a queue ask for never passes the queue's ceiling. A ceiling that was lowered holds for what is
//! decided from then on: it stops nothing that has its place.

use std::collections::BTreeMap;

use phalanx_common::resources::Resources;
use phalanx_common::units::{Millis, Time};

use crate::facts::Facts;

/// A ceiling counts for so long after it was changed: until then a coordinator may not have heard of it.
const LAG_MS: Millis = Millis(15_000);

/// A ceiling of a queue and when it was in force.
#[derive(Clone, Debug)]
struct Ceiling {
    from: Time,
    until: Time,
    /// `None` = there was no queue: a gang that runs may grow without a limit then.
    most: Option<Resources>,
}

/// The checker, with the ceilings that each queue ever had.
#[derive(Debug, Default)]
pub struct Quota {
    queues: BTreeMap<String, Vec<Ceiling>>,
}

impl Quota {
    /// Checks every queue.
    ///
    /// # Errors
    /// The queue, the resource and the amounts.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        for queue in facts.capability.keys() {
            self.queues.entry(queue.clone()).or_default();
        }
        for (queue, ceilings) in &mut self.queues {
            let most = facts.capability.get(queue);
            if ceilings.last().is_some_and(|last| last.most.as_ref() == most) {
                continue;
            }
            if let Some(last) = ceilings.last_mut() {
                last.until = facts.now;
            }
            ceilings.push(Ceiling { from: facts.now, until: Time(u64::MAX), most: most.cloned() });
        }
        // What each queue's pods ask for, by when their places were decided.
        let mut used: BTreeMap<&str, BTreeMap<Time, Resources>> = BTreeMap::new();
        for (uid, pod) in &facts.pods {
            let holds = pod.is_live() || (facts.running.contains_key(uid) && !facts.ended.contains(uid));
            let Some(group) = facts.groups.get(&pod.gang).filter(|_| holds) else { continue };
            let Some(at) = pod.lease.and_then(|lease| facts.decided.get(&lease)) else { continue };
            used.entry(group.queue.as_str()).or_default().entry(*at).or_default().add(&pod.request);
        }
        for (queue, decisions) in used {
            let Some(ceilings) = self.queues.get(queue) else { continue };
            check_decisions(ceilings, &decisions).map_err(|text| format!("queue {queue}: {text}"))?;
        }
        Ok(())
    }
}

/// Whoever was given a place had room for it beside those that had theirs before.
fn check_decisions(ceilings: &[Ceiling], decisions: &BTreeMap<Time, Resources>) -> Result<(), String> {
    let mut sum = Resources::default();
    for (at, request) in decisions {
        sum.add(request);
        // Who asks for nothing of what there is too much of takes nothing from anybody.
        let is_asked =
            |resource: &str| request.iter().any(|(name, asked)| name.as_str() == resource && asked > 0);
        for (resource, amount) in sum.iter().filter(|(resource, _)| is_asked(resource.as_str())) {
            if let Some(limit) = limit(ceilings, *at, resource.as_str()).filter(|limit| amount > *limit) {
                return Err(format!(
                    "its bound pods ask for {amount} {resource}, its ceiling was {limit} when the last of them was \
                     placed at {} ms",
                    at.0
                ));
            }
        }
    }
    Ok(())
}

/// The highest ceiling that may have been known at a time; `None` where a resource may have had none.
fn limit(ceilings: &[Ceiling], at: Time, resource: &str) -> Option<u64> {
    let known = ceilings.iter().filter(|ceiling| ceiling.from <= at && at - ceiling.until <= LAG_MS);
    let limits: Option<Vec<u64>> = known
        .map(|ceiling| {
            ceiling.most.as_ref()?.iter().find(|(name, _)| name.as_str() == resource).map(|(_, most)| most)
        })
        .collect();
    limits.and_then(|limits| limits.into_iter().max())
}
