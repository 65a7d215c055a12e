//! What is read back equals the profile: link counts, PCIe levels, NIC relations, NUMA.

use std::collections::BTreeSet;
use std::fs;

use phalanx_common::topology::{GpuLink, LinkClass, PcieLevel};
use phalanx_profile::Profile;

use crate::support::{Machine, differences, observed_profiles, own_profile};

/// Observed profile, and the file in this tree that states the same machine.
const MACHINES: [(&str, &str); 3] = [
    ("dgx-a100-40gb.json", "dgx-a100-40gb.toml"),
    ("hgx-h100-cx7-pix.json", "hgx-h100.toml"),
    ("l40s-4gpu.json", "l40s-4gpu.toml"),
];

/// Observed machines whose topology does not follow from their PCI tree: NICs only, since the driver
/// answers for the GPUs. Each with the reason.
const NOT_FROM_THE_TREE: [(&str, &str); 3] = [
    ("b300-8gpu-vm", "one NUMA node, yet SYS between everything"),
    ("gb200-nvl72-node", "NODE across sockets"),
    ("rtx4090-8gpu", "SYS between root complexes of one socket"),
];

#[test]
fn three_observed_machines_are_read_as_they_are() {
    let Some(directory) = observed_profiles("three_observed_machines_are_read_as_they_are") else { return };
    for (observed, _) in MACHINES {
        let file = directory.join(observed);
        let profile = Profile::load(&file).unwrap();
        let inventory = Machine::new(&file, "node-1").read();
        assert_eq!(differences(&profile, "node-1", &inventory), Vec::<String>::new(), "{observed}");
    }
}

#[test]
fn the_profiles_of_this_tree_say_the_same_as_the_observed_ones() {
    let Some(directory) = observed_profiles("the_profiles_of_this_tree_say_the_same_as_the_observed_ones")
    else {
        return;
    };
    for (observed, own) in MACHINES {
        let own = own_profile(own);
        let mut profile = Profile::load(&directory.join(observed)).unwrap();
        // Host facts are not part of the observation.
        profile.host = Profile::load(&own).unwrap().host;
        let inventory = Machine::new(&own, "node-1").read();
        assert_eq!(differences(&profile, "node-1", &inventory), Vec::<String>::new(), "{}", own.display());
    }
}

#[test]
fn every_observed_machine_is_read_as_far_as_its_tree_says() {
    let Some(directory) = observed_profiles("every_observed_machine_is_read_as_far_as_its_tree_says") else {
        return;
    };
    let mut equal = 0;
    let mut different = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        // The table of MIG placements lies in the same directory.
        if file.extension().is_none_or(|extension| extension != "json") || name == "mig_placements" {
            continue;
        }
        let profile = Profile::load(&file).unwrap();
        let inventory = Machine::new(&file, "node-1").read();
        let found = differences(&profile, "node-1", &inventory);
        if found.is_empty() {
            equal += 1;
            continue;
        }
        let only_nics =
            found.iter().all(|difference| difference.starts_with("NIC ") && difference.contains(" to GPU "));
        assert!(only_nics, "{name}: {found:#?}");
        different.insert(name);
    }
    println!("{equal} observed machines read back equal; NIC relations differ on {different:?}");
    let known: BTreeSet<String> = NOT_FROM_THE_TREE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(different.is_subset(&known), "{different:?}");
    assert!(equal >= 33, "{equal}");
}

#[test]
fn a_dgx_a100_has_twelve_links_through_its_switches() {
    let inventory = Machine::new(&own_profile("dgx-a100-40gb.toml"), "dgx-1").read();
    assert_eq!(inventory.gpus.len(), 8);
    assert_eq!(inventory.links[0][7], GpuLink { nvlinks: 12, pcie: PcieLevel::Sys });
    assert_eq!(inventory.links[0][1], GpuLink { nvlinks: 12, pcie: PcieLevel::Pxb });
    assert_eq!(inventory.link_class(&[0, 1, 2, 3, 4, 5, 6, 7]), LinkClass::NvLink);
    let numa: Vec<Option<u32>> = inventory.gpus.iter().map(|gpu| gpu.numa).collect();
    assert_eq!(numa, [3, 3, 1, 1, 7, 7, 5, 5].map(Some));
    assert_eq!((inventory.cpu_milli, inventory.memory_bytes), (256_000, 1 << 40));
    assert_eq!(inventory.nics.len(), 12);
    let names: Vec<&str> = inventory.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names[9..], ["mlx5_9", "mlx5_10", "mlx5_11"]);
}

#[test]
fn an_hgx_h100_has_hidden_switches_and_a_nic_for_each_gpu() {
    let inventory = Machine::new(&own_profile("hgx-h100.toml"), "hgx-1").read();
    assert_eq!(inventory.links[0][7].nvlinks, 18);
    for (gpu, nic) in inventory.nics.iter().enumerate() {
        let nearest = nic.relation_to_gpus.iter().position(|level| *level == PcieLevel::Pix);
        assert_eq!((nearest, nic.rate_gbps, nic.active), (Some(gpu), Some(400), true), "{}", nic.name);
    }
}

#[test]
fn l40s_have_no_nvlink_and_are_near_by_socket() {
    let inventory = Machine::new(&own_profile("l40s-4gpu.toml"), "l40s-1").read();
    assert_eq!(inventory.link_class(&[0, 1]), LinkClass::Pcie(PcieLevel::Node));
    assert_eq!(inventory.link_class(&[0, 1, 2, 3]), LinkClass::Pcie(PcieLevel::Sys));
}

#[test]
fn nodes_of_one_profile_differ_in_their_uuids_only() {
    let file = own_profile("hgx-h100.toml");
    let mut first = Machine::new(&file, "hgx-1");
    let mut second = Machine::new(&file, "hgx-2");
    let (one, other) = (first.read(), second.read());
    let ids: BTreeSet<_> = one.gpus.iter().chain(&other.gpus).map(|gpu| gpu.id).collect();
    assert_eq!(ids.len(), 16);
    assert_eq!((one.links, one.nics), (other.links, other.nics));
    assert_eq!(Machine::new(&file, "hgx-1").read().gpus, first.read().gpus, "the same after a restart");
}
