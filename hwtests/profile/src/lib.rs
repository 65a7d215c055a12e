//! Node profiles: what a machine looks like, read from a file.
//!
//! A profile drives the stand-in NVML library and a generated sysfs tree, so that the agent's real
//! probe reads a machine that is not there. Two formats are told apart by their content:
//! `gpu-node-topology/1` (JSON, observed machines with all matrices written out) and `phalanx-node/1`
//! (TOML, compact: relations follow from the PCI paths). The rule that turns paths into relations
//! lives in the agent; a profile only states facts.

mod address;
mod error;
mod field;
mod read;
pub mod sysfs;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use phalanx_common::ids::GpuId;
use phalanx_common::topology::PcieLevel;

pub use address::{PciAddress, PciAddressError};
pub use error::ProfileError;

/// Largest profile file that is read, in bytes. The largest known one has 30 KiB.
pub const MAX_PROFILE_BYTES: u64 = 4 << 20;

/// Most NVLinks of one GPU that a profile may state (NVML_NVLINK_MAX_LINKS of current headers).
pub const MAX_LINKS_PER_GPU: u8 = 36;

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name of the machine type, e.g. `dgx-a100-40gb`.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// Where the facts come from: links.
    pub sources: Vec<String>,
    /// Driver version that the library reports.
    pub driver: String,
    /// CPUs and memory of the whole machine.
    pub host: Host,
    /// NUMA nodes with their CPUs.
    pub numa_nodes: Vec<NumaNode>,
    /// GPUs in NVML index order.
    pub gpus: Vec<ProfileGpu>,
    /// NVLinks.
    pub nvlink: NvLinks,
    /// RDMA NICs.
    pub nics: Vec<ProfileNic>,
    /// What the fabric call answers.
    pub fabric: Fabric,
    /// True where the GPUs know MIG.
    pub mig_capable: bool,
    /// Relations as somebody saw them on the machine; only in `gpu-node-topology/1`.
    pub expected: Expected,
}

/// CPUs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Logical CPUs.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Default for Host {
    fn default() -> Self {
        Self { cpus: 128, memory_bytes: 1 << 40 }
    }
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Number of the node.
    pub id: u32,
    /// CPU list as sysfs writes it, `0-47,96-143`; `None` = not known.
    pub cpus: Option<String>,
}

/// Where a PCI device sits and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Address of the device.
    pub address: PciAddress,
    /// Directories below `/sys/devices`, from the host bridge (`pci0000:15`) to the device itself.
    pub path: Vec<String>,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Subsystem vendor and device id, where known.
    pub subsystem: Option<(u16, u16)>,
    /// Class code, e.g. 0x030200.
    pub class: u32,
    /// NUMA node; `None` = the kernel does not know.
    pub numa: Option<u32>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileGpu {
    /// Product name as NVML gives it.
    pub model: String,
    /// Framebuffer size in MiB, where known.
    pub memory_mib: Option<u64>,
    /// PCI device.
    pub pci: PciDevice,
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// Module id, where known.
    pub module_id: Option<u32>,
}

impl ProfileGpu {
    /// UUID of this GPU on the node `seed`: the same inputs give the same UUID, and two nodes of one
    /// profile have different ones.
    #[must_use]
    pub fn uuid(&self, seed: &str) -> GpuId {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        // FNV-1a with 128 bits. The address stands on both sides so that its bits reach every digit.
        let address = self.pci.address.to_string();
        let bytes = address.bytes().chain([0]).chain(seed.bytes()).chain([0]).chain(address.bytes());
        let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
        let versioned = (hash & !(0xf << 76)) | (0x4 << 76);
        GpuId((versioned & !(0x3 << 62)) | (0x2 << 62))
    }
}

/// One RDMA NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileNic {
    /// Device name below `/sys/class/infiniband`.
    pub name: String,
    /// PCI device.
    pub pci: PciDevice,
    /// What `link_layer` of port 1 says.
    pub link_layer: String,
    /// Rate of port 1 in Gb/s, where known.
    pub rate_gbps: Option<u32>,
}

/// How the NVLinks of a machine are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinkLayout {
    /// No NVLink.
    None,
    /// GPU to GPU.
    Direct,
    /// All links end at NVSwitches.
    NvSwitch,
}

/// NVLinks of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvLinks {
    /// Layout.
    pub layout: NvLinkLayout,
    /// NVLink generation, 0 where there is none.
    pub generation: u32,
    /// Links that each GPU has, used or not.
    pub links_per_gpu: u8,
    /// `gpu_gpu_links[i][j]`: links that serve the pair, as `topo -m` prints them.
    pub gpu_gpu_links: Vec<Vec<u8>>,
    /// NVSwitches that the machine shows; empty where it hides them.
    pub switches: Vec<PciAddress>,
    /// `gpu_switch_links[gpu][switch]`; empty where the switches are hidden.
    pub gpu_switch_links: Vec<Vec<u8>>,
}

/// What is at the other end of one NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The link is down, or nothing is connected.
    Inactive,
    /// A GPU of this machine, by index.
    Gpu(usize),
    /// A visible NVSwitch, by position in `NvLinks::switches`.
    Switch(usize),
    /// An NVSwitch that has no PCI address here.
    HiddenSwitch,
}

/// What `nvmlDeviceGetGpuFabricInfo` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// NVML return code of the call.
    pub code: u32,
    /// Fabric state, nvmlGpuFabricState_t.
    pub state: u8,
    /// NVML code inside a successful answer.
    pub status: u32,
    /// Cluster UUID; all zero outside of an NVLink domain.
    pub cluster_uuid: [u8; 16],
    /// Clique id.
    pub clique_id: u32,
}

/// Relations as observed, in index order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// PCIe level of each pair of GPUs as `topo -mp` prints it; `None` on the diagonal.
    pub gpu_gpu: Option<Vec<Vec<Option<PcieLevel>>>>,
    /// `nic_gpu[nic][gpu]`.
    pub nic_gpu: Option<Vec<Vec<PcieLevel>>>,
}

fn line_of_bytes(before: &[u8]) -> usize {
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

impl Profile {
    /// Reads a profile file.
    ///
    /// # Errors
    /// Unreadable, larger than `MAX_PROFILE_BYTES`, or not a profile; the text names file, field and
    /// what is allowed.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let file = path.display().to_string();
        let read = |source| ProfileError::Read { file: file.clone(), source };
        let opened = File::open(path).map_err(read)?;
        let mut bytes = Vec::new();
        opened.take(MAX_PROFILE_BYTES + 1).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() as u64 > MAX_PROFILE_BYTES {
            return Err(ProfileError::TooLarge { file });
        }
        let text = String::from_utf8(bytes).map_err(|error| ProfileError::Syntax {
            file: format!("{file}:{}", line_of_bytes(&error.as_bytes()[..error.utf8_error().valid_up_to()])),
            format: "UTF-8",
            reason: "save the file as UTF-8 text".into(),
        })?;
        Self::parse(&text, &file)
    }

    /// Reads a profile from text; `file` is only named in errors.
    ///
    /// # Errors
    /// As `load`.
    pub fn parse(text: &str, file: &str) -> Result<Self, ProfileError> {
        if text.len() as u64 > MAX_PROFILE_BYTES {
            return Err(ProfileError::TooLarge { file: file.to_owned() });
        }
        read::parse(text, file)
    }

    /// What each NVLink of a GPU leads to, by link number. As long as `links_per_gpu`.
    #[must_use]
    pub fn link_ends(&self, gpu: usize) -> Vec<LinkEnd> {
        let nvlink = &self.nvlink;
        let row = nvlink.gpu_gpu_links.get(gpu).map_or(&[][..], Vec::as_slice);
        let repeat = |(end, count): (LinkEnd, &u8)| std::iter::repeat_n(end, usize::from(*count));
        let mut ends: Vec<LinkEnd> = match nvlink.layout {
            NvLinkLayout::None => Vec::new(),
            NvLinkLayout::Direct => row
                .iter()
                .enumerate()
                .map(|(peer, count)| (LinkEnd::Gpu(peer), count))
                .flat_map(repeat)
                .collect(),
            NvLinkLayout::NvSwitch => match nvlink.gpu_switch_links.get(gpu) {
                Some(counts) => {
                    let ends = counts.iter().enumerate().map(|(at, count)| (LinkEnd::Switch(at), count));
                    ends.flat_map(repeat).collect()
                }
                None => {
                    // A machine with one GPU has no pair to count: all its links are in use.
                    let active = if row.len() == 1 { Some(&nvlink.links_per_gpu) } else { row.iter().max() };
                    active.map(|count| (LinkEnd::HiddenSwitch, count)).into_iter().flat_map(repeat).collect()
                }
            },
        };
        ends.resize(usize::from(nvlink.links_per_gpu), LinkEnd::Inactive);
        ends
    }

    /// CPU list of a NUMA node, where known.
    #[must_use]
    pub fn cpus_of(&self, numa: Option<u32>) -> Option<&str> {
        let node = self.numa_nodes.iter().find(|node| Some(node.id) == numa)?;
        node.cpus.as_deref()
    }
}
