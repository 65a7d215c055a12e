//! Machines from profiles, and what must be equal between a profile and its inventory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use phalanx_agent::probe::{NodeProbe, Probe, ProbeOptions};
use phalanx_common::topology::{Inventory, ProbeState};
use phalanx_profile::Profile;
use tempfile::TempDir;

/// The workspace's directory.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The observed profiles, or `None` where this machine does not have them: the test is then skipped
/// by name, unless `PHALANX_REQUIRE_SHARED=1`.
pub fn observed_profiles(test: &str) -> Option<PathBuf> {
    let shared = env::var_os("PHALANX_SHARED").map_or_else(|| workspace().join("../shared"), PathBuf::from);
    let directory = shared.join("data/nodes");
    if directory.is_dir() {
        return Some(directory);
    }
    let required = env::var("PHALANX_REQUIRE_SHARED").is_ok_and(|value| value == "1");
    assert!(!required, "PHALANX_REQUIRE_SHARED=1, but {} is not there", directory.display());
    println!("skipped {test}: PHALANX_SHARED not found");
    None
}

/// A machine from a profile.
pub struct Machine {
    pub probe: NodeProbe,
    /// File that the stand-in library reads its faults from.
    pub faults: PathBuf,
    /// This machine's copy of the stand-in library.
    pub library: PathBuf,
    _directory: TempDir,
}

impl Machine {
    pub fn new(profile: &Path, node: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let probe = NodeProbe::new(&ProbeOptions::of_profile(profile, node, directory.path())).unwrap();
        let simulated = directory.path().join("simulated");
        Self {
            probe,
            faults: simulated.join("faults"),
            library: simulated.join("libmock_nvml.so"),
            _directory: directory,
        }
    }

    pub fn read(&mut self) -> Inventory {
        let inventory = self.probe.read();
        inventory.check().unwrap();
        inventory
    }

    pub fn set_faults(&self, text: &str) {
        fs::write(&self.faults, text).unwrap();
    }
}

/// A profile of this tree.
pub fn own_profile(name: &str) -> PathBuf {
    workspace().join("deploy/profiles").join(name)
}

/// What differs between a profile and the inventory read from it, one line each.
pub fn differences(profile: &Profile, node: &str, inventory: &Inventory) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: String, expected: String, read: String| {
        if expected != read {
            found.push(format!("{what}: profile {expected}, read {read}"));
        }
    };
    compare("state".into(), format!("{:?}", ProbeState::Ready), format!("{:?}", inventory.state));
    compare(
        "cpu_milli".into(),
        (u64::from(profile.host.cpus) * 1000).to_string(),
        inventory.cpu_milli.to_string(),
    );
    compare("memory".into(), profile.host.memory_bytes.to_string(), inventory.memory_bytes.to_string());
    compare("GPUs".into(), profile.gpus.len().to_string(), inventory.gpus.len().to_string());
    compare("NICs".into(), profile.nics.len().to_string(), inventory.nics.len().to_string());
    let position = |address: String| inventory.gpus.iter().position(|gpu| gpu.pci_bus_id == address);
    let at: Vec<Option<usize>> =
        profile.gpus.iter().map(|gpu| position(gpu.pci.address.to_string())).collect();
    for (index, gpu) in profile.gpus.iter().enumerate() {
        let Some(read) = at[index].map(|position| &inventory.gpus[position]) else {
            compare(format!("GPU {index}"), gpu.pci.address.to_string(), "nothing".into());
            continue;
        };
        let facts = |id: String, model: &str, memory: Option<u64>, numa: Option<u32>, index: u32| {
            format!("{id} {model} {memory:?} {numa:?} {index}")
        };
        compare(
            format!("GPU {index}"),
            facts(gpu.uuid(node).to_string(), &gpu.model, gpu.memory_mib, gpu.pci.numa, index as u32),
            facts(read.id.to_string(), &read.model, read.memory_mib, read.numa, read.index),
        );
        assert!(read.health.is_healthy());
    }
    for (first, row) in profile.nvlink.gpu_gpu_links.iter().enumerate() {
        for (second, links) in row.iter().enumerate().filter(|(second, _)| *second != first) {
            let (Some(one), Some(other)) = (at[first], at[second]) else { continue };
            let read = inventory.links[one][other];
            compare(format!("NVLinks {first}-{second}"), links.to_string(), read.nvlinks.to_string());
            if let Some(level) = profile.expected.gpu_gpu.as_ref().and_then(|matrix| matrix[first][second]) {
                compare(format!("PCIe {first}-{second}"), level.to_string(), read.pcie.to_string());
            }
        }
    }
    for (index, nic) in profile.nics.iter().enumerate() {
        let Some(read) = inventory.nics.iter().find(|read| read.name == nic.name) else {
            compare(format!("NIC {index}"), nic.name.clone(), "nothing".into());
            continue;
        };
        let facts = |address: &str, numa: Option<u32>, layer: &str, rate: Option<u32>, active: bool| {
            format!("{address} {numa:?} {layer} {rate:?} {active}")
        };
        compare(
            format!("NIC {}", nic.name),
            facts(&nic.pci.address.to_string(), nic.pci.numa, &nic.link_layer, nic.rate_gbps, true),
            facts(&read.pci_bus_id, read.numa, &read.link_layer, read.rate_gbps, read.active),
        );
        for (gpu, level) in
            profile.expected.nic_gpu.iter().flat_map(|matrix| matrix[index].iter().enumerate())
        {
            let Some(position) = at[gpu] else { continue };
            compare(
                format!("NIC {} to GPU {gpu}", nic.name),
                level.to_string(),
                read.relation_to_gpus[position].to_string(),
            );
        }
    }
    found
}
