//! Nodes and requests for the tests.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod orders;
pub mod scenario;

use std::sync::Arc;

use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::ids::{GangName, GpuId, PodUid};
use phalanx_common::resources::{CPU, MEMORY, NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel};
use phalanx_common::units::Millis;
use phalanx_common::wire::{ContainerDevices, Exactness, LeaseRequest};

pub fn gpu(index: u128) -> GpuId {
    GpuId(index)
}

/// A node of so many GPUs.
pub fn inventory(gpus: usize, cpu_milli: u64, memory_bytes: u64) -> Inventory {
    let one = |index: usize| Gpu {
        id: gpu(index as u128),
        index: index as u32,
        model: "NVIDIA A100".to_owned(),
        memory_mib: Some(40_960),
        pci_bus_id: format!("0000:{index:02x}:00.0"),
        numa: Some(0),
        health: GpuHealth::Healthy,
    };
    Inventory {
        gpus: (0..gpus).map(one).collect(),
        links: vec![vec![GpuLink { nvlinks: 0, pcie: PcieLevel::Pix }; gpus]; gpus],
        ..Inventory::empty(cpu_milli, memory_bytes)
    }
}

pub struct Wish<'a> {
    pub pod: &'a str,
    /// GPUs it gets.
    pub gpus: &'a [u128],
    /// GPUs it asks for.
    pub asked: u64,
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub run_for: Option<Millis>,
}

/// A pod of one container.
pub fn request(wish: &Wish<'_>) -> LeaseRequest {
    let requests = Resources::new()
        .with(ResourceName::known(CPU), wish.cpu_milli)
        .with(ResourceName::known(MEMORY), wish.memory_bytes)
        .with(ResourceName::known(NVIDIA_GPU), wish.asked);
    let main: Arc<str> = Arc::from("main");
    let container = ContainerRequest { name: main.clone(), kind: ContainerKind::App, requests };
    let devices = ContainerDevices {
        container: main,
        gpus: wish.gpus.iter().copied().map(gpu).collect(),
        nics: Vec::new(),
    };
    LeaseRequest {
        pod: PodUid::from(wish.pod),
        pod_name: GangName::new("team", wish.pod),
        gang: GangName::new("team", "gang"),
        request: PodRequest { containers: vec![container], overhead: Resources::new() },
        devices: if wish.gpus.is_empty() { Vec::new() } else { vec![devices] },
        exactness: Exactness::Exact,
        run_for: wish.run_for,
    }
}
