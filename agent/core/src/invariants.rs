//! What is true of the machine between any two events.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::wire::LeaseState;

use crate::core::Core;
use crate::leases::Phase;

/// Checks all invariants.
///
/// # Errors
/// The first that does not hold, in words.
pub fn check(core: &Core) -> Result<(), String> {
    let mut holders = BTreeMap::new();
    let mut pods = BTreeSet::new();
    for (id, lease) in core.leases().iter() {
        for gpu in &lease.gpus {
            if let Some(other) = holders.insert(*gpu, *id) {
                return Err(format!("GPU {gpu} is held by {other} and {id}"));
            }
        }
        if !pods.insert(&lease.request.pod) {
            return Err(format!("pod {} has two leases, one is {id}", lease.request.pod));
        }
        let ending = matches!(lease.phase, Phase::Ending { .. });
        if core.tombstones.contains(*id) && !ending {
            return Err(format!("lease {id} lives and has a tombstone"));
        }
        if lease.known > lease.phase.state() {
            return Err(format!("lease {id} is told to be {:?} and is {:?}", lease.known, lease.phase));
        }
        let promised = (LeaseState::Armed..=LeaseState::Started).contains(&lease.phase.state());
        if promised && lease.changed_in > core.persisted && lease.known == lease.phase.state() {
            // Only an end that was noted after the start may still be on its way to disk.
            let noted = matches!(lease.phase, Phase::Started { ended: Some(_), .. });
            if !noted {
                return Err(format!("lease {id} is told to be {:?} before the disk holds it", lease.known));
            }
        }
        if lease.known == LeaseState::Gone {
            return Err(format!("lease {id} is told to be gone and is held"));
        }
        if lease.changed_in > core.revision + 1 {
            return Err(format!("lease {id} waits for a revision that will not come"));
        }
    }
    if core.persisted > core.revision {
        return Err(format!("revision {} is on disk before it was made", core.persisted));
    }
    match core.waiting.iter().find(|answer| answer.needs <= core.persisted) {
        Some(answer) => Err(format!("the answer for lease {} waits for nothing", answer.lease)),
        None => Ok(()),
    }
}
