//! `gpu-node-topology/1`: machines as observed, JSON, with all matrices written out.
//!
//! Members that say nothing about the machine (provenance, notes) are not read.

use phalanx_common::topology::PcieLevel;

use super::{
    device_name, gpu_fields, host, link_layer, memory_mib, nic_fields, numa, numa_nodes, pci_class, pci_ids,
    pci_path, sources,
};
use crate::error::ProfileError;
use crate::field::Field;
use crate::{
    Expected, Fabric, MAX_LINKS_PER_GPU, NvLinkLayout, NvLinks, PciAddress, PciDevice, Profile, ProfileGpu,
    ProfileNic,
};

const GPU_CLASS: u32 = 0x03_0200;
const NIC_CLASS: u32 = 0x02_0700;

pub(super) fn read(root: &Field<'_>) -> Result<Profile, ProfileError> {
    let paths = root.get("pcie")?.get("paths")?;
    let mut gpus = Vec::new();
    for (at, field) in gpu_fields(root)?.iter().enumerate() {
        gpus.push(gpu(field, &paths.get(&format!("gpu{at}"))?, at)?);
    }
    let mut nics = Vec::new();
    let mut nic_gpu = Vec::new();
    for (at, field) in nic_fields(root)?.iter().enumerate() {
        nics.push(nic(field, &paths.get(&format!("nic{at}"))?)?);
        nic_gpu.push(relations(&field.get("relation_to_gpus")?, gpus.len())?);
    }
    let name = device_name(&root.get("name")?)?;
    let fabric = fabric(&root.get("fabric")?, &name)?;
    let mig = root.get("mig")?.get("capable")?;
    Ok(Profile {
        title: root.get("title")?.optional_text()?.unwrap_or_default().to_owned(),
        sources: sources(&root.get("sources")?, Some("ref"))?,
        driver: root.get("driver")?.optional_text()?.unwrap_or(super::DEFAULT_DRIVER).to_owned(),
        host: host(root)?,
        numa_nodes: numa_nodes(&root.get("cpu")?.get("numa_nodes")?)?,
        nvlink: nvlink(&root.get("nvlink")?, gpus.len())?,
        fabric,
        mig_capable: mig.is_present() && mig.flag()?,
        expected: Expected {
            gpu_gpu: gpu_gpu(&root.get("pcie")?.get("gpu_gpu")?, gpus.len())?,
            nic_gpu: Some(nic_gpu),
        },
        name,
        gpus,
        nics,
    })
}

fn gpu(field: &Field<'_>, path: &Field<'_>, at: usize) -> Result<ProfileGpu, ProfileError> {
    let index = field.get("index")?;
    if index.number(0, u64::from(u32::MAX))? != at as u64 {
        return Err(index.error(format!("expected {at}: GPUs stand in index order")));
    }
    let ids = pci_ids(&field.get("pci_device")?)?;
    let subsystem = field.get("pci_subsystem")?;
    let mut pci =
        device(&field.get("pci_bus_id")?, path, ids, pci_class(&field.get("pci_class")?, GPU_CLASS)?)?;
    pci.subsystem = if subsystem.is_present() { Some(pci_ids(&subsystem)?) } else { None };
    pci.numa = numa(&field.get("numa")?)?;
    Ok(ProfileGpu {
        model: field.get("model")?.name()?.to_owned(),
        memory_mib: memory_mib(&field.get("memory_mib")?)?,
        pci,
        minor: field.get("minor")?.optional_number(0, 255)?.unwrap_or(at as u64) as u32,
        module_id: field.get("module_id")?.optional_number(0, 255)?.map(|id| id as u32),
    })
}

fn nic(field: &Field<'_>, path: &Field<'_>) -> Result<ProfileNic, ProfileError> {
    let mut pci = device(&field.get("pci_bus_id")?, path, pci_ids(&field.get("pci_device")?)?, NIC_CLASS)?;
    pci.numa = numa(&field.get("numa")?)?;
    let layer = field.get("link_layer")?;
    Ok(ProfileNic {
        name: device_name(&field.get("name")?)?,
        pci,
        link_layer: if layer.is_present() { link_layer(&layer)? } else { "Unknown".to_owned() },
        rate_gbps: field.get("rate_gbps")?.optional_number(1, 100_000)?.map(|rate| rate as u32),
    })
}

/// A device whose address is stated twice: on its own and as the end of its path.
fn device(
    address: &Field<'_>,
    path: &Field<'_>,
    ids: (u16, u16),
    class: u32,
) -> Result<PciDevice, ProfileError> {
    let stated: PciAddress = address.parsed()?;
    let (parts, at_end) = pci_path(path)?;
    if stated != at_end {
        return Err(path.error(format!("ends at {at_end}, but the device's pci_bus_id is {stated}")));
    }
    Ok(PciDevice {
        address: stated,
        path: parts,
        vendor: ids.0,
        device: ids.1,
        subsystem: None,
        class,
        numa: None,
    })
}

/// A list with one entry per GPU.
fn row<'file>(field: &Field<'file>, gpus: usize) -> Result<Vec<Field<'file>>, ProfileError> {
    let entries = field.items(usize::MAX)?;
    if entries.len() == gpus {
        Ok(entries)
    } else {
        Err(field.error(format!("has {} entries: expected {gpus}, one per GPU", entries.len())))
    }
}

fn relations(field: &Field<'_>, gpus: usize) -> Result<Vec<PcieLevel>, ProfileError> {
    row(field, gpus)?.iter().map(Field::parsed).collect()
}

fn gpu_gpu(field: &Field<'_>, gpus: usize) -> Result<Option<Vec<Vec<Option<PcieLevel>>>>, ProfileError> {
    if !field.is_present() {
        return Ok(None);
    }
    let mut matrix = Vec::new();
    for (first, row_field) in row(field, gpus)?.iter().enumerate() {
        let mut levels = Vec::new();
        for (second, cell) in row(row_field, gpus)?.iter().enumerate() {
            match (first == second, cell.text()?) {
                (true, "X") => levels.push(None),
                (true, _) => return Err(cell.expected("X: the diagonal of the matrix")),
                (false, _) => levels.push(Some(cell.parsed()?)),
            }
        }
        matrix.push(levels);
    }
    Ok(Some(matrix))
}

fn nvlink(field: &Field<'_>, gpus: usize) -> Result<NvLinks, ProfileError> {
    let layout_field = field.get("layout")?;
    let layout = if layout_field.is_present() {
        layout_field.word(&[
            ("none", NvLinkLayout::None),
            ("direct", NvLinkLayout::Direct),
            ("nvswitch", NvLinkLayout::NvSwitch),
        ])?
    } else {
        NvLinkLayout::None
    };
    let links_per_gpu =
        field.get("links_per_gpu")?.optional_number(0, MAX_LINKS_PER_GPU.into())?.unwrap_or(0) as u8;
    let generation = field.get("generation")?.optional_text()?.unwrap_or("NVLink0");
    let generation =
        generation.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
    let links_field = field.get("gpu_gpu_links")?;
    let gpu_gpu_links = if links_field.is_present() {
        link_matrix(&links_field, layout, links_per_gpu, gpus)?
    } else {
        vec![vec![0; gpus]; gpus]
    };
    let mut switches = Vec::new();
    for switch in field.get("switches")?.items(64)? {
        switches.push(switch.get("pci_bus_id")?.parsed()?);
    }
    let switch_links = field.get("gpu_switch_links")?;
    let mut gpu_switch_links = Vec::new();
    if switch_links.is_present() {
        for cells in row(&switch_links, gpus)? {
            let counts = row_of_links(&cells, switches.len(), links_per_gpu)?;
            if counts.iter().map(|count| u32::from(*count)).sum::<u32>() > u32::from(links_per_gpu) {
                return Err(cells.error(format!("has more links than links_per_gpu, {links_per_gpu}")));
            }
            gpu_switch_links.push(counts);
        }
    }
    Ok(NvLinks { layout, generation, links_per_gpu, gpu_gpu_links, switches, gpu_switch_links })
}

fn row_of_links(field: &Field<'_>, columns: usize, links_per_gpu: u8) -> Result<Vec<u8>, ProfileError> {
    let cells = field.items(usize::MAX)?;
    if cells.len() != columns {
        return Err(field.error(format!("has {} entries: expected {columns}", cells.len())));
    }
    cells.iter().map(|cell| Ok(cell.number(0, links_per_gpu.into())? as u8)).collect()
}

/// Checks what a machine cannot be: links to itself, one-sided links, more links than a GPU has.
fn link_matrix(
    field: &Field<'_>,
    layout: NvLinkLayout,
    links_per_gpu: u8,
    gpus: usize,
) -> Result<Vec<Vec<u8>>, ProfileError> {
    let rows = row(field, gpus)?;
    let matrix: Vec<Vec<u8>> = rows
        .iter()
        .map(|cells| row_of_links(cells, gpus, links_per_gpu))
        .collect::<Result<_, ProfileError>>()?;
    for (at, counts) in matrix.iter().enumerate() {
        let total: u32 = counts.iter().map(|count| u32::from(*count)).sum();
        if counts[at] != 0 {
            return Err(rows[at].error("a GPU has no link to itself: expected 0 on the diagonal"));
        }
        if layout == NvLinkLayout::Direct && total > u32::from(links_per_gpu) {
            return Err(rows[at].error(format!("{total} links in use: links_per_gpu allows {links_per_gpu}")));
        }
        if layout == NvLinkLayout::None && total > 0 {
            return Err(rows[at].error("has links although layout is none"));
        }
        if let Some(other) = (0..gpus).find(|other| matrix[*other][at] != counts[*other]) {
            return Err(rows[at].error(format!(
                "differs from row {other}: links join two GPUs, so the matrix is symmetric"
            )));
        }
    }
    Ok(matrix)
}

/// What the fabric call answers. Texts that only describe a value are read as "some value".
fn fabric(field: &Field<'_>, name: &str) -> Result<Fabric, ProfileError> {
    let code = |field: Field<'_>, default: u32| -> Result<u32, ProfileError> {
        let Some(text) = field.optional_text()? else { return Ok(default) };
        match text.split_whitespace().next() {
            Some("NVML_SUCCESS") => Ok(0),
            Some("NVML_ERROR_NOT_SUPPORTED") => Ok(3),
            Some("NVML_ERROR_UNKNOWN") => Ok(999),
            _ => Err(field.expected("NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED or NVML_ERROR_UNKNOWN")),
        }
    };
    let state_field = field.get("state")?;
    let state = if state_field.is_present() {
        state_field.word(&[("Not Supported", 0), ("Not Started", 1), ("In Progress", 2), ("Completed", 3)])?
    } else {
        0
    };
    let cluster_uuid = match field.get("cluster_uuid")?.optional_text()? {
        None => [0; 16],
        Some(text) => {
            let digits: String = text.chars().filter(|letter| *letter != '-').collect();
            let exact = if digits.len() == 32 { u128::from_str_radix(&digits, 16).ok() } else { None };
            exact
                .unwrap_or_else(|| {
                    name.bytes()
                        .fold(1, |hash: u128, byte| hash.wrapping_mul(0x1_0000_01b3) ^ u128::from(byte))
                })
                .to_be_bytes()
        }
    };
    Ok(Fabric {
        code: code(field.get("get_gpu_fabric_info")?, 3)?,
        state,
        status: code(field.get("status")?, 0)?,
        cluster_uuid,
        clique_id: field.get("clique_id")?.optional_number(0, u32::MAX.into())?.unwrap_or(0) as u32,
    })
}
