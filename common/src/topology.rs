//! What a node really is: GPUs, the links between them, NICs, CPUs and memory.
//!
//! Levels and their order follow `nvidia-smi topo -m` and nvmlGpuTopologyLevel_t (nvml.h).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::GpuId;

/// Most GPUs a node may report. A free set is a `u64` mask, one bit per GPU in index order.
pub const MAX_GPUS_PER_NODE: usize = 64;

/// Most NICs a node may report: clouds expose dozens of virtual functions.
pub const MAX_NICS_PER_NODE: usize = 256;

/// How far two PCI devices are from each other. Smaller is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PcieLevel {
    /// At most one PCIe switch between them.
    Pix,
    /// Several PCIe switches, without the host bridge.
    Pxb,
    /// Through one host bridge.
    Phb,
    /// Through several host bridges of one NUMA node.
    Node,
    /// Across NUMA nodes, or nothing is known.
    Sys,
}

impl PcieLevel {
    /// Text as `nvidia-smi topo -m` prints it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

impl fmt::Display for PcieLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for PcieLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "PIX" => Ok(Self::Pix),
            "PXB" => Ok(Self::Pxb),
            "PHB" => Ok(Self::Phb),
            "NODE" => Ok(Self::Node),
            "SYS" => Ok(Self::Sys),
            other => Err(format!("PCIe level {other:?} is not one of PIX, PXB, PHB, NODE, SYS")),
        }
    }
}

/// What two GPUs of one node have between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GpuLink {
    /// NVLinks that carry traffic between the two, directly or through NVSwitches; 0 = none.
    pub nvlinks: u8,
    /// PCIe distance; used where there is no NVLink.
    pub pcie: PcieLevel,
}

/// The link class of a set of GPUs: of its worst pair. Better classes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkClass {
    /// A single GPU, or none.
    Single,
    /// NVLink between every pair.
    NvLink,
    /// PCIe; the level of the farthest pair.
    Pcie(PcieLevel),
}

impl fmt::Display for LinkClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => formatter.write_str("single"),
            Self::NvLink => formatter.write_str("NVLink"),
            Self::Pcie(level) => formatter.write_str(level.as_str()),
        }
    }
}

/// State of one GPU as the agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuHealth {
    /// May be given out.
    Healthy,
    /// Fell off the bus (NVML_ERROR_GPU_IS_LOST, Xid 79).
    Lost,
    /// Present and not usable; the text names the NVML call and its answer.
    Failed(String),
}

impl GpuHealth {
    /// True where the GPU may be given out.
    #[must_use]
    pub const fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// UUID.
    pub id: GpuId,
    /// NVML index at the last reading; for people, never a key.
    pub index: u32,
    /// Product name as NVML gives it.
    pub model: String,
    /// Framebuffer size in MiB, where known.
    pub memory_mib: Option<u64>,
    /// PCI address in sysfs spelling, `0000:1b:00.0`.
    pub pci_bus_id: String,
    /// NUMA node of the PCI device; `None` = not known (sysfs says -1).
    pub numa: Option<u32>,
    /// Health.
    pub health: GpuHealth,
}

/// One RDMA-capable NIC (a device in `/sys/class/infiniband`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Device name, `mlx5_0`.
    pub name: String,
    /// PCI address in sysfs spelling.
    pub pci_bus_id: String,
    /// NUMA node; `None` = not known.
    pub numa: Option<u32>,
    /// `InfiniBand`, `Ethernet` or what the kernel says.
    pub link_layer: String,
    /// Rate of port 1 in Gb/s, where the port says one.
    pub rate_gbps: Option<u32>,
    /// True where port 1 is ACTIVE.
    pub active: bool,
    /// Distance to each GPU, in the order of `Inventory::gpus`.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, MAX_GPUS_PER_NODE>")]
    pub relation_to_gpus: Vec<PcieLevel>,
}

/// Whether the GPUs of a node could be read at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeState {
    /// Everything that is there was read.
    Ready,
    /// The node has no NVML library: a node without NVIDIA GPUs, or without a driver.
    NoLibrary(String),
    /// The driver answers with an error; the text names call, code and fix
    /// (e.g. library and kernel module of different versions, code 18).
    DriverError(String),
}

/// Everything a node has. GPUs stand in a stable order (by PCI address); matrices follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Whether the GPUs could be read.
    pub state: ProbeState,
    /// Driver version, empty where none.
    pub driver: String,
    /// CPU capacity in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory capacity in bytes.
    pub memory_bytes: u64,
    /// The GPUs.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, MAX_GPUS_PER_NODE>")]
    pub gpus: Vec<Gpu>,
    /// `links[i][j]` between GPU i and j; the diagonal is `nvlinks: 0, pcie: Pix`.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, MAX_GPUS_PER_NODE>")]
    pub links: Vec<Vec<GpuLink>>,
    /// The NICs, by name.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, MAX_NICS_PER_NODE>")]
    pub nics: Vec<Nic>,
}

/// Why an inventory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// More GPUs than `MAX_GPUS_PER_NODE`.
    #[error("{0} GPUs on one node: at most {MAX_GPUS_PER_NODE} are served")]
    TooManyGpus(usize),
    /// More NICs than `MAX_NICS_PER_NODE`.
    #[error("{0} NICs on one node: at most {MAX_NICS_PER_NODE} are served")]
    TooManyNics(usize),
    /// A matrix does not match the number of GPUs.
    #[error("{what} has {found} entries where the node has {gpus} GPUs")]
    Shape {
        /// Which matrix or row.
        what: &'static str,
        /// Entries found.
        found: usize,
        /// GPUs of the node.
        gpus: usize,
    },
    /// A UUID stands twice.
    #[error("GPU {0} is listed twice")]
    DuplicateGpu(GpuId),
}

impl Inventory {
    /// A node without GPUs and NICs, with this much CPU and memory.
    #[must_use]
    pub fn empty(cpu_milli: u64, memory_bytes: u64) -> Self {
        Self {
            state: ProbeState::Ready,
            driver: String::new(),
            cpu_milli,
            memory_bytes,
            gpus: Vec::new(),
            links: Vec::new(),
            nics: Vec::new(),
        }
    }

    /// Checks sizes and shapes: an inventory comes from the network and from device data.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self) -> Result<(), InventoryError> {
        let gpus = self.gpus.len();
        if gpus > MAX_GPUS_PER_NODE {
            return Err(InventoryError::TooManyGpus(gpus));
        }
        if self.nics.len() > MAX_NICS_PER_NODE {
            return Err(InventoryError::TooManyNics(self.nics.len()));
        }
        let shape = |what, found| {
            if found == gpus { Ok(()) } else { Err(InventoryError::Shape { what, found, gpus }) }
        };
        shape("links", self.links.len())?;
        for row in &self.links {
            shape("a row of links", row.len())?;
        }
        for nic in &self.nics {
            shape("relation_to_gpus of a NIC", nic.relation_to_gpus.len())?;
        }
        let mut ids: Vec<GpuId> = self.gpus.iter().map(|gpu| gpu.id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(InventoryError::DuplicateGpu(pair[0])),
            None => Ok(()),
        }
    }

    /// Link class of a set of GPUs, given as positions in `gpus`.
    #[must_use]
    pub fn link_class(&self, positions: &[usize]) -> LinkClass {
        let mut worst = LinkClass::Single;
        for (at, &first) in positions.iter().enumerate() {
            for &second in &positions[at + 1..] {
                let link = self.links[first][second];
                let class = if link.nvlinks > 0 { LinkClass::NvLink } else { LinkClass::Pcie(link.pcie) };
                worst = worst.max(class);
            }
        }
        worst
    }
}
