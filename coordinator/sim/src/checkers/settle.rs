//! When the faults have stopped and nothing comes from outside any more, what is decided stays: nobody is evicted and
//! nothing is bound, however long it lasts.

use phalanx_common::ids::PodUid;
use phalanx_common::units::Millis;
use std::collections::BTreeSet;

use crate::facts::Facts;

/// So long after the last news something may still follow from it: retries, pauses of plans, holds, times that are kept.
const LASTS_MS: Millis = Millis(400_000);

/// The checker, with the pods that were bound.
#[derive(Debug, Default)]
pub struct Settle {
    bound: BTreeSet<PodUid>,
}

impl Settle {
    /// Looks at the facts.
    ///
    /// # Errors
    /// The pod that was evicted or bound.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        let is_settled = facts.is_calm && facts.now - facts.news_at > LASTS_MS;
        if let Some(evicted) = facts.evicted.first().filter(|_| is_settled) {
            return Err(format!(
                "pod {} was evicted, and the last news came {}",
                evicted.pod.name,
                ago(facts)
            ));
        }
        for (uid, pod) in facts.pods.iter().filter(|(_, pod)| pod.node.is_some()) {
            if self.bound.insert(uid.clone()) && is_settled {
                return Err(format!("pod {} was bound, and the last news came {}", pod.name, ago(facts)));
            }
        }
        Ok(())
    }
}

fn ago(facts: &Facts) -> String {
    format!("{} before", facts.now - facts.news_at)
}
