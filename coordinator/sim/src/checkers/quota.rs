//! What the bound pods of a queue ask for never passes the queue's ceiling.

use std::collections::BTreeMap;

use phalanx_common::resources::Resources;

use crate::facts::Facts;

/// Checks every queue.
///
/// # Errors
/// The queue, the resource and the amounts.
pub fn check(facts: &Facts) -> Result<(), String> {
    let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
    for (uid, pod) in &facts.pods {
        let holds = pod.is_live() || (facts.running.contains_key(uid) && !facts.ended.contains(uid));
        let Some(group) = facts.groups.get(&pod.gang).filter(|_| holds) else { continue };
        used.entry(group.queue.as_str()).or_default().add(&pod.request);
    }
    for (queue, used) in used {
        let Some(capability) = facts.capability.get(queue) else { continue };
        for (resource, limit) in capability.iter() {
            let amount = used.amount(resource.as_str());
            if amount > limit {
                return Err(format!(
                    "queue {queue}: its bound pods ask for {amount} {resource}, its ceiling is {limit}"
                ));
            }
        }
    }
    Ok(())
}
