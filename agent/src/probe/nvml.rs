//! GPUs through NVML: the wrapper's calls where they are right, raw calls for NVLink (see `nvlink`).
//!
//! The library stays open between readings and is opened anew after an error of the whole driver.
//! A GPU that was seen once is never dropped: it is reported as lost or failed under the identity it
//! had, because a GPU that falls off the bus no longer says who it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;
use phalanx_common::ids::GpuId;
use phalanx_common::topology::{GpuHealth, MAX_GPUS_PER_NODE, PcieLevel, ProbeState};
use phalanx_profile::PciAddress;

use crate::probe::nvlink::{self, LinkCounts};

const SYSTEM_LIBRARY: &str = "libnvidia-ml.so.1";

const GPU_IS_LOST: u32 = 15;

/// One GPU as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuReading {
    pub(crate) id: GpuId,
    pub(crate) index: u32,
    pub(crate) model: String,
    pub(crate) memory_mib: Option<u64>,
    pub(crate) address: PciAddress,
    pub(crate) health: GpuHealth,
    pub(crate) links: LinkCounts,
}

/// Everything that NVML says.
pub(crate) struct NvmlReading {
    pub(crate) state: ProbeState,
    pub(crate) driver: String,
    /// By PCI address.
    pub(crate) gpus: Vec<GpuReading>,
    /// The driver's own view of the distance of two GPUs, smaller id first.
    pub(crate) levels: BTreeMap<(GpuId, GpuId), PcieLevel>,
}

/// Reads GPUs through NVML.
pub struct NvmlProbe {
    library: PathBuf,
    session: Option<Session>,
    /// GPUs seen so far, as they were when they last answered.
    known: BTreeMap<GpuId, GpuReading>,
    unidentified: usize,
}

struct Session {
    nvml: Nvml,
    driver: String,
    levels: BTreeMap<(GpuId, GpuId), Option<PcieLevel>>,
}

/// A GPU that does not answer.
struct Silent {
    index: u32,
    health: GpuHealth,
}

impl NvmlProbe {
    /// Uses the library at this path, or the system's.
    #[must_use]
    pub fn new(library: Option<PathBuf>) -> Self {
        let library = library.unwrap_or_else(|| PathBuf::from(SYSTEM_LIBRARY));
        Self { library, session: None, known: BTreeMap::new(), unidentified: 0 }
    }

    /// Reads everything anew.
    pub(crate) fn read(&mut self) -> NvmlReading {
        match self.try_read() {
            Ok(reading) => reading,
            Err(state) => {
                self.session = None;
                let text = match &state {
                    ProbeState::Ready => String::new(),
                    ProbeState::NoLibrary(text) | ProbeState::DriverError(text) => text.clone(),
                };
                let gpus = self.known.values().map(|gpu| silent_gpu(gpu, GpuHealth::Failed(text.clone())));
                NvmlReading {
                    state,
                    driver: String::new(),
                    gpus: sorted(gpus.collect()),
                    levels: BTreeMap::new(),
                }
            }
        }
    }

    fn try_read(&mut self) -> Result<NvmlReading, ProbeState> {
        let session = match self.session.take() {
            Some(session) => session,
            None => open(&self.library)?,
        };
        let session = self.session.insert(session);
        let count =
            session.nvml.device_count().map_err(|error| driver_error("nvmlDeviceGetCount_v2", error))?;
        let mut answered = Vec::new();
        let mut silent = Vec::new();
        for index in 0..count {
            match read_gpu(&session.nvml, index) {
                Ok(gpu) => answered.push(gpu),
                Err(health) => silent.push(Silent { index, health }),
            }
        }
        if answered.is_empty()
            && self.known.is_empty()
            && let Some(first) = silent.first()
        {
            let reason = match &first.health {
                GpuHealth::Failed(text) => text.as_str(),
                GpuHealth::Lost | GpuHealth::Healthy => "fell off the bus (code 15)",
            };
            let text = format!(
                "{count} GPUs are counted and none can be read; GPU 0: {reason}. Fix: see dmesg for NVRM messages"
            );
            return Err(ProbeState::DriverError(text));
        }
        session.read_levels(&answered);
        let levels =
            session.levels.iter().filter_map(|(pair, level)| level.map(|level| (*pair, level))).collect();
        let driver = session.driver.clone();
        Ok(NvmlReading { state: ProbeState::Ready, driver, gpus: self.complete(answered, silent), levels })
    }

    /// Adds the GPUs that no longer answer, and remembers those that do.
    fn complete(&mut self, answered: Vec<GpuReading>, mut silent: Vec<Silent>) -> Vec<GpuReading> {
        let present: BTreeSet<GpuId> = answered.iter().map(|gpu| gpu.id).collect();
        let mut gpus = answered.clone();
        for (_, gpu) in self.known.iter().filter(|(id, _)| !present.contains(id)) {
            // Indices can shift, so a silent index is taken for the GPU that had it, else for any.
            let at = silent
                .iter()
                .position(|silent| silent.index == gpu.index)
                .or((!silent.is_empty()).then_some(0));
            let health = at.map_or(GpuHealth::Lost, |at| silent.remove(at).health);
            gpus.push(silent_gpu(gpu, health));
        }
        if silent.len() != self.unidentified {
            self.unidentified = silent.len();
            let indices: Vec<u32> = silent.iter().map(|silent| silent.index).collect();
            tracing::warn!(
                ?indices,
                "GPUs that never answered are left out: without an answer they have no UUID"
            );
        }
        self.known.extend(answered.into_iter().map(|gpu| (gpu.id, gpu)));
        let mut gpus = sorted(gpus);
        if gpus.len() > MAX_GPUS_PER_NODE {
            tracing::warn!(found = gpus.len(), used = MAX_GPUS_PER_NODE, "more GPUs than are served");
            gpus.truncate(MAX_GPUS_PER_NODE);
        }
        self.known.retain(|id, _| gpus.iter().any(|gpu| gpu.id == *id));
        gpus
    }
}

impl Session {
    /// Asks for the distance of each pair once: it cannot change while the driver is loaded.
    fn read_levels(&mut self, gpus: &[GpuReading]) {
        for first in gpus {
            for second in gpus.iter().filter(|second| first.id < second.id) {
                if self.levels.contains_key(&(first.id, second.id)) {
                    continue;
                }
                let level = level_of(&self.nvml, first.index, second.index);
                self.levels.insert((first.id, second.id), level);
            }
        }
    }
}

fn level_of(nvml: &Nvml, first: u32, second: u32) -> Option<PcieLevel> {
    let (first, second) = (nvml.device_by_index(first).ok()?, nvml.device_by_index(second).ok()?);
    Some(match first.topology_common_ancestor(second).ok()? {
        TopologyLevel::Internal | TopologyLevel::Single => PcieLevel::Pix,
        TopologyLevel::Multiple => PcieLevel::Pxb,
        TopologyLevel::HostBridge => PcieLevel::Phb,
        TopologyLevel::Node => PcieLevel::Node,
        TopologyLevel::System => PcieLevel::Sys,
    })
}

fn sorted(mut gpus: Vec<GpuReading>) -> Vec<GpuReading> {
    gpus.sort_by_key(|gpu| (gpu.address, gpu.id));
    gpus
}

fn silent_gpu(gpu: &GpuReading, health: GpuHealth) -> GpuReading {
    GpuReading { health, links: LinkCounts::default(), ..gpu.clone() }
}

fn open(library: &Path) -> Result<Session, ProbeState> {
    let path: &OsStr = library.as_os_str();
    let nvml = Nvml::builder().lib_path(path).init().map_err(|error| init_error(path, error))?;
    if nvml.lib().nvmlShutdown.is_err() {
        // Dropping the wrapper would call it and panic.
        std::mem::forget(nvml);
        let text = format!(
            "{} has no nvmlShutdown: it is no NVML library. Fix: name the driver's {SYSTEM_LIBRARY}",
            path.display()
        );
        return Err(ProbeState::DriverError(text));
    }
    let driver = nvml.sys_driver_version().unwrap_or_default();
    Ok(Session { nvml, driver, levels: BTreeMap::new() })
}

/// Why the library cannot be used, with the fix where one is known.
fn init_error(library: &OsStr, error: NvmlError) -> ProbeState {
    let library = library.display();
    match error {
        NvmlError::LibloadingError(reason) => ProbeState::NoLibrary(format!(
            "{library} cannot be loaded ({reason}). Fix: install the NVIDIA driver, or name its library with --nvml-library"
        )),
        NvmlError::LibraryNotFound => ProbeState::NoLibrary(format!(
            "{library} needs another library that is not there (code 12). Fix: install the whole NVIDIA driver"
        )),
        NvmlError::FailedToLoadSymbol(reason) => ProbeState::DriverError(format!(
            "{library} is no NVML library ({reason}). Fix: name the driver's {SYSTEM_LIBRARY} with --nvml-library"
        )),
        other => driver_error("nvmlInit_v2", other),
    }
}

fn driver_error(call: &str, error: NvmlError) -> ProbeState {
    let fix = match &error {
        NvmlError::LibRmVersionMismatch => {
            "reboot or reload the nvidia kernel module, so that library and module have one version"
        }
        NvmlError::DriverNotLoaded => {
            "load the nvidia kernel module (modprobe nvidia), and give the container the device nodes"
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => {
            "give the agent access to /dev/nvidia* (container device cgroup)"
        }
        NvmlError::NotSupported => "use a driver that supports these GPUs",
        NvmlError::Unknown => {
            "restart the agent's container; where `systemctl daemon-reload` took its devices away, use cgroup v2 or CDI"
        }
        _ => "see dmesg for NVRM messages",
    };
    ProbeState::DriverError(format!("{}. Fix: {fix}", failed(call, error)))
}

/// `call: text (code)`.
fn failed(call: &str, error: NvmlError) -> String {
    let text = error.to_string();
    format!("{call}: {text} (code {})", u32::from(error))
}

/// What an error means for one GPU.
fn health_of(call: &str, error: NvmlError) -> GpuHealth {
    match error {
        NvmlError::GpuLost => GpuHealth::Lost,
        other => GpuHealth::Failed(failed(call, other)),
    }
}

fn read_gpu(nvml: &Nvml, index: u32) -> Result<GpuReading, GpuHealth> {
    let device =
        nvml.device_by_index(index).map_err(|error| health_of("nvmlDeviceGetHandleByIndex_v2", error))?;
    let uuid = device.uuid().map_err(|error| health_of("nvmlDeviceGetUUID", error))?;
    let id: GpuId = uuid.parse().map_err(|error| GpuHealth::Failed(format!("nvmlDeviceGetUUID: {error}")))?;
    let pci = device.pci_info().map_err(|error| health_of("nvmlDeviceGetPciInfo_v3", error))?;
    let address: PciAddress =
        pci.bus_id.parse().map_err(|error| GpuHealth::Failed(format!("nvmlDeviceGetPciInfo_v3: {error}")))?;
    let mut gpu = GpuReading {
        id,
        index,
        model: optional("nvmlDeviceGetName", device.name())?.unwrap_or_default(),
        memory_mib: optional("nvmlDeviceGetMemoryInfo_v2", device.memory_info())?
            .map(|memory| memory.total >> 20),
        address,
        health: GpuHealth::Healthy,
        links: LinkCounts::default(),
    };
    gpu.links = read_links(nvml, &device)?;
    Ok(gpu)
}

/// A value that a healthy GPU need not have (memory size on some boards); losing the GPU still counts.
fn optional<T>(call: &str, answer: Result<T, NvmlError>) -> Result<Option<T>, GpuHealth> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::GpuLost) => Err(GpuHealth::Lost),
        Err(error) => {
            tracing::debug!(call, %error, "not answered");
            Ok(None)
        }
    }
}

fn read_links(nvml: &Nvml, device: &Device<'_>) -> Result<LinkCounts, GpuHealth> {
    nvlink::read(nvml, device).map_err(|code| {
        if code == GPU_IS_LOST {
            GpuHealth::Lost
        } else {
            GpuHealth::Failed(format!("NVLink state: code {code}"))
        }
    })
}
