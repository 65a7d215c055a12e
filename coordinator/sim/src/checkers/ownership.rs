//! A GPU has one owner: among the pods that run, among the leases of its agent, among the bound pods in the
//! API. And a pod runs on the GPUs that the API names for it, by a lease that outlives a crash.

use std::collections::BTreeMap;

use phalanx_common::ids::{GpuId, NodeName};
use phalanx_common::wire::LeaseState;

use crate::facts::Facts;

/// Checks ownership.
///
/// # Errors
/// The GPU or pod, and the two that claim it.
pub fn check(facts: &Facts) -> Result<(), String> {
    check_running(facts)?;
    check_leases(facts)?;
    check_bindings(facts)
}

/// The first GPU that is named twice.
fn twice<T: std::fmt::Display>(what: &str, claims: impl Iterator<Item = (GpuId, T)>) -> Result<(), String> {
    let mut owners: BTreeMap<GpuId, T> = BTreeMap::new();
    for (gpu, owner) in claims {
        if let Some(other) = owners.get(&gpu) {
            return Err(format!("{gpu} has two {what}: {other} and {owner}"));
        }
        owners.insert(gpu, owner);
    }
    Ok(())
}

fn check_running(facts: &Facts) -> Result<(), String> {
    let running = facts.running.iter().flat_map(|(pod, run)| run.gpus.iter().map(move |gpu| (*gpu, pod)));
    twice("running pods", running)?;
    for (uid, run) in &facts.running {
        if facts.on_disk.get(&run.node).is_none_or(|leases| !leases.contains(&run.lease)) {
            return Err(format!(
                "pod {uid} runs by lease {}, which the disk of {} does not hold",
                run.lease, run.node
            ));
        }
        let Some(pod) = facts.pods.get(uid) else {
            // One that had ended runs once more after a crash that came before its end was on disk.
            if facts.ended.contains(uid) {
                continue;
            }
            return Err(format!("pod {uid} runs on {}, and the API has no such pod", run.node));
        };
        if pod.node.as_ref() != Some(&run.node) {
            let bound = pod.node.as_ref().map_or("no node", NodeName::as_str);
            return Err(format!("pod {} runs on {} and is bound to {bound}", pod.name, run.node));
        }
        if pod.gpus != run.gpus || pod.lease != Some(run.lease) {
            return Err(format!(
                "pod {} runs by lease {} on {:?}; its Binding names lease {:?} and {:?}",
                pod.name, run.lease, run.gpus, pod.lease, pod.gpus
            ));
        }
    }
    Ok(())
}

fn check_leases(facts: &Facts) -> Result<(), String> {
    let leases = facts.leases.values().flatten().filter(|lease| lease.state >= LeaseState::Armed);
    twice("leases", leases.flat_map(|lease| lease.gpus.iter().map(|gpu| (*gpu, lease.lease))))
}

fn check_bindings(facts: &Facts) -> Result<(), String> {
    let live = facts.pods.values().filter(|pod| pod.is_live());
    twice("bound pods", live.flat_map(|pod| pod.gpus.iter().map(|gpu| (*gpu, &pod.name))))
}
