//! `phalanx-node/1`: the compact TOML format of the profiles in this tree.
//!
//! One line per device, defaults in `[gpu]` and `[nic]`; relations follow from the PCI paths, so no
//! matrix is written. Unknown members are refused.

use super::{
    device_name, gpu_fields, host, link_layer, memory_mib, nic_fields, numa, numa_nodes, pci_class, pci_ids,
    pci_path, sources,
};
use crate::error::ProfileError;
use crate::field::Field;
use crate::{
    Expected, Fabric, MAX_LINKS_PER_GPU, NvLinkLayout, NvLinks, PciDevice, Profile, ProfileGpu, ProfileNic,
};

const GPU_CLASS: u32 = 0x03_0200;
const NIC_CLASS: u32 = 0x02_0700;

const NOT_SUPPORTED: u32 = 3;

pub(super) fn read(root: &Field<'_>) -> Result<Profile, ProfileError> {
    root.only(&[
        "schema", "name", "title", "sources", "driver", "host", "numa", "gpu", "gpus", "nvlink", "nic",
        "nics", "fabric", "mig",
    ])?;
    root.get("host")?.only(&["cpus", "memory"])?;
    let gpus = gpus(root)?;
    let mig = root.get("mig")?;
    Ok(Profile {
        name: device_name(&root.get("name")?)?,
        title: root.get("title")?.optional_text()?.unwrap_or_default().to_owned(),
        sources: sources(&root.get("sources")?, None)?,
        driver: root.get("driver")?.optional_text()?.unwrap_or(super::DEFAULT_DRIVER).to_owned(),
        host: host(root)?,
        numa_nodes: numa_nodes(&root.get("numa")?)?,
        nvlink: nvlink(&root.get("nvlink")?, gpus.len())?,
        nics: nics(root)?,
        gpus,
        fabric: fabric(&root.get("fabric")?)?,
        mig_capable: mig.is_present() && mig.flag()?,
        expected: Expected::default(),
    })
}

/// A member of the device, or else of the defaults for all devices of this kind.
fn member<'file>(
    own: &Field<'file>,
    defaults: &Field<'file>,
    name: &str,
) -> Result<Field<'file>, ProfileError> {
    let (field, default) = (own.get(name)?, defaults.get(name)?);
    Ok(if field.is_present() || !default.is_present() { field } else { default })
}

const GPU_MEMBERS: [&str; 8] =
    ["path", "numa", "model", "memory_mib", "pci", "subsystem", "class", "module_id"];

fn gpus(root: &Field<'_>) -> Result<Vec<ProfileGpu>, ProfileError> {
    let defaults = root.get("gpu")?;
    defaults.only(&GPU_MEMBERS[2..7])?;
    let mut gpus = Vec::new();
    for (at, own) in gpu_fields(root)?.iter().enumerate() {
        own.only(&GPU_MEMBERS)?;
        let subsystem = member(own, &defaults, "subsystem")?;
        gpus.push(ProfileGpu {
            model: member(own, &defaults, "model")?.name()?.to_owned(),
            memory_mib: memory_mib(&member(own, &defaults, "memory_mib")?)?,
            pci: PciDevice {
                subsystem: if subsystem.is_present() { Some(pci_ids(&subsystem)?) } else { None },
                ..device(own, &defaults, GPU_CLASS)?
            },
            minor: at as u32,
            module_id: own.get("module_id")?.optional_number(0, 255)?.map(|id| id as u32),
        });
    }
    Ok(gpus)
}

const NIC_MEMBERS: [&str; 7] = ["name", "path", "numa", "pci", "class", "link_layer", "rate_gbps"];

fn nics(root: &Field<'_>) -> Result<Vec<ProfileNic>, ProfileError> {
    let defaults = root.get("nic")?;
    defaults.only(&NIC_MEMBERS[3..])?;
    let mut nics = Vec::new();
    for own in nic_fields(root)? {
        own.only(&NIC_MEMBERS)?;
        nics.push(ProfileNic {
            name: device_name(&own.get("name")?)?,
            pci: device(&own, &defaults, NIC_CLASS)?,
            link_layer: link_layer(&member(&own, &defaults, "link_layer")?)?,
            rate_gbps: member(&own, &defaults, "rate_gbps")?
                .optional_number(1, 100_000)?
                .map(|rate| rate as u32),
        });
    }
    Ok(nics)
}

fn device(own: &Field<'_>, defaults: &Field<'_>, class: u32) -> Result<PciDevice, ProfileError> {
    let (path, address) = pci_path(&own.get("path")?)?;
    let (vendor, device) = pci_ids(&member(own, defaults, "pci")?)?;
    let class = pci_class(&member(own, defaults, "class")?, class)?;
    Ok(PciDevice { address, path, vendor, device, subsystem: None, class, numa: numa(&own.get("numa")?)? })
}

fn nvlink(field: &Field<'_>, gpus: usize) -> Result<NvLinks, ProfileError> {
    field.only(&["layout", "generation", "links_per_gpu", "pairs", "switches"])?;
    let mut nvlink = NvLinks {
        layout: NvLinkLayout::None,
        generation: 0,
        links_per_gpu: 0,
        gpu_gpu_links: vec![vec![0; gpus]; gpus],
        switches: Vec::new(),
        gpu_switch_links: Vec::new(),
    };
    if !field.is_present() {
        return Ok(nvlink);
    }
    if gpus == 0 {
        return Err(field.error("the profile has no GPUs: remove it, or name the GPUs in gpus"));
    }
    nvlink.layout = field
        .get("layout")?
        .word(&[("direct", NvLinkLayout::Direct), ("nvswitch", NvLinkLayout::NvSwitch)])?;
    nvlink.generation = field.get("generation")?.number(1, 99)? as u32;
    nvlink.links_per_gpu = field.get("links_per_gpu")?.number(1, MAX_LINKS_PER_GPU.into())? as u8;
    if nvlink.layout == NvLinkLayout::Direct {
        direct_links(&field.get("pairs")?, &mut nvlink, gpus)?;
    } else {
        for (at, row) in nvlink.gpu_gpu_links.iter_mut().enumerate() {
            row.fill(nvlink.links_per_gpu);
            row[at] = 0;
        }
        switches(&field.get("switches")?, &mut nvlink, gpus)?;
    }
    Ok(nvlink)
}

/// `pairs = [[first, second, links], ...]`
fn direct_links(pairs: &Field<'_>, nvlink: &mut NvLinks, gpus: usize) -> Result<(), ProfileError> {
    let most_index = (gpus as u64).saturating_sub(1);
    for pair in pairs.items(gpus * gpus)? {
        let cells = pair.items(3)?;
        let [first, second, links] = &cells[..] else {
            return Err(pair.expected("three numbers: first GPU, second GPU, links between them"));
        };
        let (first, second) = (first.number(0, most_index)? as usize, second.number(0, most_index)? as usize);
        let links = links.number(1, nvlink.links_per_gpu.into())? as u8;
        if first == second {
            return Err(pair.error("a GPU has no link to itself: expected two different GPUs"));
        }
        nvlink.gpu_gpu_links[first][second] = links;
        nvlink.gpu_gpu_links[second][first] = links;
    }
    let total = |row: &Vec<u8>| row.iter().map(|count| u32::from(*count)).sum::<u32>();
    match nvlink.gpu_gpu_links.iter().position(|row| total(row) > u32::from(nvlink.links_per_gpu)) {
        Some(gpu) => {
            Err(pairs.error(format!("GPU {gpu} has more links than links_per_gpu, {}", nvlink.links_per_gpu)))
        }
        None => Ok(()),
    }
}

/// `switches = [{ address, links, gpus? }, ...]`: `links` links from each of `gpus` (default: all).
fn switches(field: &Field<'_>, nvlink: &mut NvLinks, gpus: usize) -> Result<(), ProfileError> {
    let switches = field.items(64)?;
    if switches.is_empty() {
        return Ok(());
    }
    let mut table = vec![vec![0; switches.len()]; gpus];
    for (at, switch) in switches.iter().enumerate() {
        switch.only(&["address", "links", "gpus"])?;
        nvlink.switches.push(switch.get("address")?.parsed()?);
        let links = switch.get("links")?.number(1, nvlink.links_per_gpu.into())? as u8;
        let some = switch.get("gpus")?;
        let members: Vec<usize> = if some.is_present() {
            let numbers = some.items(gpus)?;
            let index = |field: &Field<'_>| Ok(field.number(0, (gpus as u64).saturating_sub(1))? as usize);
            numbers.iter().map(index).collect::<Result<_, ProfileError>>()?
        } else {
            (0..gpus).collect()
        };
        for gpu in members {
            table[gpu][at] = links;
        }
    }
    let total = |row: &Vec<u8>| row.iter().map(|count| u32::from(*count)).sum::<u32>();
    if let Some(gpu) = table.iter().position(|row| total(row) != u32::from(nvlink.links_per_gpu)) {
        let found = total(&table[gpu]);
        return Err(field.error(format!(
            "GPU {gpu} has {found} links to switches, links_per_gpu says {}",
            nvlink.links_per_gpu
        )));
    }
    nvlink.gpu_switch_links = table;
    Ok(())
}

fn fabric(field: &Field<'_>) -> Result<Fabric, ProfileError> {
    field.only(&["state", "cluster_uuid", "clique_id"])?;
    let mut fabric = Fabric { code: NOT_SUPPORTED, state: 0, status: 0, cluster_uuid: [0; 16], clique_id: 0 };
    if !field.is_present() {
        return Ok(fabric);
    }
    fabric.code = 0;
    fabric.state = field.get("state")?.word(&[
        ("not supported", 0),
        ("not started", 1),
        ("in progress", 2),
        ("completed", 3),
    ])?;
    let uuid = field.get("cluster_uuid")?;
    if let Some(text) = uuid.optional_text()? {
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        let value = if digits.len() == 32 { u128::from_str_radix(&digits, 16).ok() } else { None };
        fabric.cluster_uuid =
            value.ok_or_else(|| uuid.expected("32 hex digits, dashes allowed"))?.to_be_bytes();
    }
    fabric.clique_id = field.get("clique_id")?.optional_number(0, u32::MAX.into())?.unwrap_or(0) as u32;
    Ok(fabric)
}
