//! `phalanx-agent inventory`: what the node has, for people and as JSON.

mod fragments;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use comfy_table::{CellAlignment, Table, presets};
use phalanx_common::topology::{GpuHealth, GpuLink, Inventory, MAX_GPUS_PER_NODE, Nic, ProbeState};
use serde_json::{Value, json};
use thiserror::Error;

use crate::probe::{NodeProbe, Probe, ProbeError, ProbeOptions};

pub use fragments::{Fragment, best_fragments};

/// Why there is no report. A node without driver or GPUs is no error.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The options or the profile are wrong.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No room for what a profile needs on disk.
    #[error("cannot make a temporary directory {path}: {source}")]
    Temporary {
        /// Directory that was tried.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The report cannot be written as JSON.
    #[error("cannot write the inventory as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Reads the node once and describes it, as text or as JSON. With a profile, `state_directory` is the
/// parent of a directory that exists during the call.
///
/// # Errors
/// A wrong option or profile.
pub fn run_inventory(options: ProbeOptions, json: bool) -> Result<String, ReportError> {
    let mut options = options;
    let scratch =
        options.profile.is_some().then(|| Scratch::new(options.state_directory.clone())).transpose()?;
    if let Some(scratch) = &scratch {
        options.state_directory.clone_from(&scratch.path);
    }
    let inventory = NodeProbe::new(&options)?.read();
    if json {
        Ok(serde_json::to_string_pretty(&to_json(&inventory))? + "\n")
    } else {
        Ok(to_text(&inventory))
    }
}

/// A directory that goes when the value does.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(parent: PathBuf) -> Result<Self, ReportError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("phalanx-inventory-{}-{number}", std::process::id()));
        let error = |source| ReportError::Temporary { path: path.clone(), source };
        fs::create_dir_all(&parent).map_err(error)?;
        fs::create_dir(&path).map_err(error)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "temporary directory stays behind");
        }
    }
}

/// `NV12`, or the PCIe level.
fn link_text(link: GpuLink) -> String {
    if link.nvlinks > 0 { format!("NV{}", link.nvlinks) } else { link.pcie.to_string() }
}

fn health_text(health: &GpuHealth) -> String {
    match health {
        GpuHealth::Healthy => "healthy".into(),
        GpuHealth::Lost => "lost".into(),
        GpuHealth::Failed(reason) => format!("failed: {reason}"),
    }
}

fn numa_text(numa: Option<u32>) -> String {
    numa.map_or_else(|| "?".into(), |node| node.to_string())
}

fn state_text(state: &ProbeState) -> (&'static str, Option<&str>) {
    match state {
        ProbeState::Ready => ("ready", None),
        ProbeState::NoLibrary(reason) => ("no NVML library", Some(reason)),
        ProbeState::DriverError(reason) => ("driver error", Some(reason)),
    }
}

/// The inventory as JSON. Rows and columns of `links`, and `relation_to_gpus`, follow the order of `gpus`.
#[must_use]
pub fn to_json(inventory: &Inventory) -> Value {
    let (state, reason) = state_text(&inventory.state);
    let gpus = inventory.gpus.iter().map(|gpu| {
        json!({
            "uuid": gpu.id.to_string(),
            "index": gpu.index,
            "model": gpu.model,
            "memory_mib": gpu.memory_mib,
            "pci_bus_id": gpu.pci_bus_id,
            "numa": gpu.numa,
            "health": health_text(&gpu.health),
        })
    });
    let links = inventory.links.iter().enumerate().map(|(first, row)| {
        let cells = row.iter().enumerate().map(|(second, link)| {
            if first == second {
                json!("X")
            } else {
                json!({"nvlinks": link.nvlinks, "pcie": link.pcie.as_str()})
            }
        });
        Value::Array(cells.collect())
    });
    let nics = inventory.nics.iter().map(|nic| {
        json!({
            "name": nic.name,
            "pci_bus_id": nic.pci_bus_id,
            "numa": nic.numa,
            "link_layer": nic.link_layer,
            "rate_gbps": nic.rate_gbps,
            "active": nic.active,
            "relation_to_gpus": nic.relation_to_gpus.iter().map(|level| level.as_str()).collect::<Vec<_>>(),
        })
    });
    let fragments = best_fragments(inventory).into_iter().map(|fragment| {
        let uuids = fragment.gpus.iter().map(|at| inventory.gpus[*at].id.to_string());
        json!({
            "size": fragment.gpus.len(),
            "gpus": uuids.collect::<Vec<_>>(),
            "link_class": fragment.class.to_string(),
            "nvlinks": fragment.nvlinks,
        })
    });
    json!({
        "state": state,
        "reason": reason,
        "driver": inventory.driver,
        "cpu_milli": inventory.cpu_milli,
        "memory_bytes": inventory.memory_bytes,
        "gpus": gpus.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "nics": nics.collect::<Vec<_>>(),
        "free_fragments": fragments.collect::<Vec<_>>(),
    })
}

/// The inventory for people.
#[must_use]
pub fn to_text(inventory: &Inventory) -> String {
    let (state, reason) = state_text(&inventory.state);
    let mut text = format!("State   {state}\n");
    if let Some(reason) = reason {
        text += &format!("Reason  {reason}\n");
    }
    if !inventory.driver.is_empty() {
        text += &format!("Driver  {}\n", inventory.driver);
    }
    text += &format!("CPUs    {}\n", decimal(inventory.cpu_milli, 1000));
    text += &format!("Memory  {} GiB\n", decimal(inventory.memory_bytes, 1 << 30));
    if inventory.gpus.is_empty() {
        text += "GPUs    none\n";
    } else {
        text += &format!("\nGPUs\n{}\n\nLinks\n{}\n", gpu_table(inventory), link_table(inventory));
    }
    if !inventory.nics.is_empty() {
        text += &format!("\nRDMA NICs\n{}\n", nic_table(&inventory.nics));
    }
    let fragments = best_fragments(inventory);
    if !fragments.is_empty() {
        text += &format!(
            "\nFree fragments: the best-connected healthy GPUs of each size\n{}\n",
            fragment_table(&fragments)
        );
    }
    // Tables pad their last column.
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A quotient with one decimal where it is not whole.
fn decimal(amount: u64, unit: u64) -> String {
    let tenths = amount as u128 * 10 / u128::from(unit);
    if tenths.is_multiple_of(10) {
        (tenths / 10).to_string()
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}

fn table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn gpu_table(inventory: &Inventory) -> Table {
    let mut table =
        table(["GPU", "Index", "Model", "UUID", "MiB", "PCI", "NUMA", "Health"].map(str::to_owned).into());
    for (at, gpu) in inventory.gpus.iter().enumerate() {
        table.add_row([
            at.to_string(),
            gpu.index.to_string(),
            gpu.model.clone(),
            gpu.id.to_string(),
            gpu.memory_mib.map_or_else(|| "?".into(), |mib| mib.to_string()),
            gpu.pci_bus_id.clone(),
            numa_text(gpu.numa),
            health_text(&gpu.health),
        ]);
    }
    table
}

/// The matrix of `nvidia-smi topo -m`, with the NICs as further columns.
fn link_table(inventory: &Inventory) -> Table {
    let gpu_names = (0..inventory.gpus.len().min(MAX_GPUS_PER_NODE)).map(|at| format!("GPU{at}"));
    let nic_names = inventory.nics.iter().map(|nic| nic.name.clone());
    let mut table = table([String::new()].into_iter().chain(gpu_names).chain(nic_names).collect());
    for (first, row) in inventory.links.iter().enumerate() {
        let gpus = row
            .iter()
            .enumerate()
            .map(|(second, link)| if first == second { "X".into() } else { link_text(*link) });
        let nics = inventory.nics.iter().map(|nic| nic.relation_to_gpus[first].to_string());
        table.add_row([format!("GPU{first}")].into_iter().chain(gpus).chain(nics).collect::<Vec<_>>());
    }
    table
}

fn nic_table(nics: &[Nic]) -> Table {
    let mut table = table(["NIC", "PCI", "NUMA", "Link layer", "Gb/s", "Port 1"].map(str::to_owned).into());
    for nic in nics {
        table.add_row([
            nic.name.clone(),
            nic.pci_bus_id.clone(),
            numa_text(nic.numa),
            nic.link_layer.clone(),
            nic.rate_gbps.map_or_else(|| "?".into(), |rate| rate.to_string()),
            if nic.active { "active".into() } else { "down".into() },
        ]);
    }
    table
}

fn fragment_table(fragments: &[Fragment]) -> Table {
    let mut table = table(["Size", "GPUs", "Connected by"].map(str::to_owned).into());
    for fragment in fragments {
        let gpus: Vec<String> = fragment.gpus.iter().map(usize::to_string).collect();
        let class =
            if fragment.nvlinks > 0 { format!("NV{}", fragment.nvlinks) } else { fragment.class.to_string() };
        table.add_row([fragment.gpus.len().to_string(), gpus.join(" "), class]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::GpuId;
    use phalanx_common::topology::{Gpu, PcieLevel};

    use super::*;

    /// Two pairs with four NVLinks each, the pairs on two sockets; one NIC at the first pair.
    pub(super) fn pairs() -> Inventory {
        let gpu = |at: u32| Gpu {
            id: GpuId(u128::from(at) + 1),
            index: at,
            model: "Test".into(),
            memory_mib: Some(1024),
            pci_bus_id: format!("0000:0{at}:00.0"),
            numa: (at < 2).then_some(0),
            health: GpuHealth::Healthy,
        };
        let link = |first: u32, second: u32| match (first == second, first / 2 == second / 2) {
            (true, _) => GpuLink { nvlinks: 0, pcie: PcieLevel::Pix },
            (_, true) => GpuLink { nvlinks: 4, pcie: PcieLevel::Phb },
            _ => GpuLink { nvlinks: 0, pcie: PcieLevel::Sys },
        };
        let mut inventory = Inventory::empty(8500, 3 << 29);
        inventory.gpus = (0..4).map(gpu).collect();
        inventory.links = (0..4).map(|first| (0..4).map(|second| link(first, second)).collect()).collect();
        inventory.nics.push(Nic {
            name: "mlx5_0".into(),
            pci_bus_id: "0000:09:00.0".into(),
            numa: Some(0),
            link_layer: "InfiniBand".into(),
            rate_gbps: Some(400),
            active: true,
            relation_to_gpus: vec![PcieLevel::Pix, PcieLevel::Pxb, PcieLevel::Sys, PcieLevel::Sys],
        });
        inventory
    }

    #[test]
    fn text_shows_what_topo_shows() {
        let text = to_text(&pairs());
        let row = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(name))
                .unwrap_or_else(|| panic!("{name} in\n{text}"));
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("GPU1"), ["GPU1", "NV4", "X", "SYS", "SYS", "PXB"]);
        assert_eq!(row("CPUs"), ["CPUs", "8.5"]);
        assert_eq!(row("Memory"), ["Memory", "1.5", "GiB"]);
        assert!(text.contains("GPU-00000000-0000-0000-0000-000000000003"), "{text}");
    }

    #[test]
    fn json_shows_uuids_as_text_and_the_reason_of_a_state() {
        let mut inventory = pairs();
        inventory.state = ProbeState::DriverError("why".into());
        let json = to_json(&inventory);
        assert_eq!(json["gpus"][2]["uuid"], "GPU-00000000-0000-0000-0000-000000000003");
        assert_eq!(json["links"][0][1], json!({"nvlinks": 4, "pcie": "PHB"}));
        assert_eq!((json["state"].as_str(), json["reason"].as_str()), (Some("driver error"), Some("why")));
    }

    #[test]
    fn a_wrong_profile_is_an_error_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let options = ProbeOptions::of_profile("/nonexistent/profile.json", "node", directory.path());
        let error = run_inventory(options, false).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/profile.json"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
