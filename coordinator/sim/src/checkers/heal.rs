//! When the faults have stopped, nothing that is half done stays so for longer than its bound.

use std::collections::BTreeMap;

use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;

use crate::facts::Facts;

/// Connections come back, messages are sent again, clocks are a little wrong: time for all of this.
const SLACK_MS: Millis = Millis(30_000);

/// A victim is told before, has its grace, and is given up after its time: then there is another plan.
const ROOM_MS: Millis = Millis(200_000);

/// The checker: what is half done, since when, and how long it may be so.
#[derive(Debug, Default)]
pub struct Heal {
    since: BTreeMap<String, Time>,
}

impl Heal {
    /// Looks at the facts.
    ///
    /// # Errors
    /// What waits too long, and how long it may.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        if !facts.is_calm {
            return Ok(());
        }
        let half_done = half_done(facts);
        self.since.retain(|what, _| half_done.contains_key(what));
        for (what, bound) in half_done {
            let since = *self.since.entry(what.clone()).or_insert(facts.now);
            if facts.now - since > bound {
                return Err(format!("{what} for {}, it may be so for {bound}", facts.now - since));
            }
        }
        Ok(())
    }
}

/// Nothing that was begun is half done for longer than this.
#[must_use]
pub fn healed_within(binding_deadline_ms: Millis) -> Millis {
    Millis(binding_deadline_ms.0 + SLACK_MS.0)
}

/// All that is half done, and how long it may be so.
fn half_done(facts: &Facts) -> BTreeMap<String, Millis> {
    let mut all = BTreeMap::new();
    let committed = healed_within(facts.binding_deadline_ms);
    for gang in facts.plans.keys() {
        all.insert(format!("the plan of gang {gang} stands"), committed);
    }
    for gang in facts.rooms.stored.keys() {
        all.insert(format!("the plan that makes room for gang {gang} stands"), ROOM_MS);
    }
    for pod in facts.pods.values().filter(|pod| pod.deleting) {
        all.insert(format!("pod {} is being deleted", pod.name), SLACK_MS);
    }
    for (uid, pod) in &facts.pods {
        let is_committed = !facts.plans.contains_key(&pod.gang) && pod.lease.is_some();
        if pod.is_live() && is_committed && !facts.running.contains_key(uid) {
            // Where the PodGroup is gone nobody knows whether it was ever whole: it is given the time of a binding.
            let bound = if facts.groups.contains_key(&pod.gang) { SLACK_MS } else { committed };
            all.insert(format!("pod {} is bound and does not run", pod.name), bound);
        }
    }
    for (node, leases) in &facts.leases {
        for lease in leases {
            let what = |text: &str| format!("lease {} of node {node} {text}", lease.lease);
            let pod = facts.pods.get(&lease.pod);
            if lease.state == LeaseState::Reserved {
                all.insert(what("is reserved"), SLACK_MS);
            } else if pod.is_none_or(|pod| pod.phase.is_terminal()) {
                all.insert(what("is held for a pod that is over"), SLACK_MS);
            } else if pod.is_some_and(|pod| pod.node.is_none()) {
                all.insert(what("is armed for a pod that is not bound"), committed);
            }
        }
    }
    all
}
