//! Joins NVML, sysfs and host facts into one inventory.

use phalanx_common::topology::{Gpu, GpuLink, Inventory, Nic, PcieLevel};

use crate::probe::host::HostFacts;
use crate::probe::nvlink::LinkCounts;
use crate::probe::nvml::{GpuReading, NvmlReading};
use crate::probe::sysfs::{NicReading, PciPlace, Sysfs, common_parts, relation};

pub(super) fn join(nvml: NvmlReading, sysfs: &Sysfs, host: HostFacts) -> Inventory {
    let places: Vec<Option<PciPlace>> = nvml.gpus.iter().map(|gpu| sysfs.place(gpu.address)).collect();
    let links = links(&nvml, &places);
    let nics = sysfs.nics().into_iter().map(|nic| to_nic(nic, &places)).collect();
    let gpus = nvml.gpus.into_iter().zip(&places).map(|(gpu, place)| to_gpu(gpu, place.as_ref())).collect();
    Inventory {
        state: nvml.state,
        driver: nvml.driver,
        cpu_milli: host.cpu_milli,
        memory_bytes: host.memory_bytes,
        gpus,
        links,
        nics,
    }
}

fn links(nvml: &NvmlReading, places: &[Option<PciPlace>]) -> Vec<Vec<GpuLink>> {
    let link = |first: usize, second: usize| {
        if first == second {
            return GpuLink { nvlinks: 0, pcie: PcieLevel::Pix };
        }
        let (one, other) = (&nvml.gpus[first], &nvml.gpus[second]);
        let nvlinks = LinkCounts::between((&one.links, one.address), (&other.links, other.address));
        let pair = (one.id.min(other.id), one.id.max(other.id));
        let driver = nvml.levels.get(&pair).copied();
        GpuLink { nvlinks, pcie: level(places[first].as_ref(), places[second].as_ref(), driver) }
    };
    let gpus = nvml.gpus.len();
    (0..gpus).map(|first| (0..gpus).map(|second| link(first, second)).collect()).collect()
}

/// The tree decides where two GPUs meet below one host bridge. Above it the tree only knows NUMA
/// nodes, and boards differ in what that means: the driver's answer is nearer to the truth.
fn level(first: Option<&PciPlace>, second: Option<&PciPlace>, driver: Option<PcieLevel>) -> PcieLevel {
    match (first, second) {
        (Some(first), Some(second)) if common_parts(first, second) > 0 => relation(first, second),
        (Some(first), Some(second)) => driver.unwrap_or_else(|| relation(first, second)),
        _ => driver.unwrap_or(PcieLevel::Sys),
    }
}

fn to_gpu(gpu: GpuReading, place: Option<&PciPlace>) -> Gpu {
    Gpu {
        id: gpu.id,
        index: gpu.index,
        model: gpu.model,
        memory_mib: gpu.memory_mib,
        pci_bus_id: gpu.address.to_string(),
        numa: place.and_then(|place| place.numa),
        health: gpu.health,
    }
}

fn to_nic(nic: NicReading, gpus: &[Option<PciPlace>]) -> Nic {
    let distance =
        |gpu: &Option<PciPlace>| gpu.as_ref().map_or(PcieLevel::Sys, |place| relation(&nic.place, place));
    Nic {
        relation_to_gpus: gpus.iter().map(distance).collect(),
        name: nic.name,
        pci_bus_id: nic.address.to_string(),
        numa: nic.place.numa,
        link_layer: nic.link_layer,
        rate_gbps: nic.rate_gbps,
        active: nic.active,
    }
}
