//! A pod is bound once: to one node, by one lease, with the same GPUs until it is gone.

use std::collections::BTreeMap;

use phalanx_common::ids::{GpuId, LeaseId, NodeName, PodUid};

use crate::facts::{Facts, PodFact};

/// Where a pod was bound.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    node: NodeName,
    lease: Option<LeaseId>,
    gpus: Vec<GpuId>,
}

/// The checker, with the first Binding of every pod.
#[derive(Debug, Default)]
pub struct Binding {
    first: BTreeMap<PodUid, Bound>,
}

impl Binding {
    /// Looks at the facts.
    ///
    /// # Errors
    /// The pod and its two Bindings.
    pub fn check(&mut self, facts: &Facts) -> Result<(), String> {
        for (uid, pod) in &facts.pods {
            let now = bound(pod);
            match (self.first.get(uid), now) {
                (Some(first), Some(now)) if *first == now => {}
                (Some(first), now) => {
                    return Err(format!("pod {} was bound to {first:?} and is bound to {now:?}", pod.name));
                }
                (None, Some(now)) => {
                    self.first.insert(uid.clone(), now);
                }
                (None, None) => {}
            }
        }
        Ok(())
    }
}

fn bound(pod: &PodFact) -> Option<Bound> {
    let node = pod.node.clone()?;
    Some(Bound { node, lease: pod.lease, gpus: pod.gpus.clone() })
}
