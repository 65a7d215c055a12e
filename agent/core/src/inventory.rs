//! From readings of the hardware to reports: only differences are told.

use phalanx_common::topology::{GpuHealth, Inventory, ProbeState};
use phalanx_common::wire::FromAgent;

/// Version of the wire that brought reports of health alone.
const HEALTH_SINCE: u16 = 2;

/// What to tell a peer that knows `told`, when `now` is true: nothing, health alone, or everything.
#[must_use]
pub fn difference(told: &Inventory, now: &Inventory, version: u16) -> Option<FromAgent> {
    if told == now {
        return None;
    }
    if version < HEALTH_SINCE || !same_but_health(told, now) {
        return Some(FromAgent::Inventory(now.clone()));
    }
    let changed = |(before, after): (&phalanx_common::topology::Gpu, &phalanx_common::topology::Gpu)| {
        (before.health != after.health).then(|| (after.id, after.health.clone()))
    };
    Some(FromAgent::HealthChanged { gpus: told.gpus.iter().zip(&now.gpus).filter_map(changed).collect() })
}

fn same_but_health(told: &Inventory, now: &Inventory) -> bool {
    let with_health_of_now = |inventory: &Inventory| {
        let mut copy = inventory.clone();
        for (gpu, current) in copy.gpus.iter_mut().zip(&now.gpus) {
            gpu.health = current.health.clone();
        }
        copy
    };
    told.gpus.len() == now.gpus.len() && with_health_of_now(told) == *now
}

/// A node of which nothing can be used, and why.
#[must_use]
pub fn unusable(reason: String) -> Inventory {
    Inventory { state: ProbeState::DriverError(reason), ..Inventory::empty(0, 0) }
}

/// Health of a GPU where the node has it.
#[must_use]
pub fn health(inventory: &Inventory, gpu: phalanx_common::ids::GpuId) -> Option<&GpuHealth> {
    inventory.gpus.iter().find(|known| known.id == gpu).map(|known| &known.health)
}
