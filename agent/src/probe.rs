//! What this node has: NVML, sysfs and the host joined into one `Inventory`.
//!
//! A probe never fails: trouble is a state in the inventory. With a node profile the same code reads
//! the stand-in library and a generated sysfs tree, so that nothing is special about a machine that
//! is not there.

pub mod host;
mod join;
mod nvlink;
pub mod nvml;
pub mod recorded;
mod simulated;
pub mod sysfs;
pub mod thread;

use std::path::PathBuf;

use phalanx_common::topology::Inventory;
use phalanx_profile::ProfileError;
use thiserror::Error;

use crate::probe::host::HostFacts;
use crate::probe::nvml::NvmlProbe;
use crate::probe::sysfs::Sysfs;

pub use crate::probe::thread::{ProbeHandle, spawn};

/// Reads what a node has.
pub trait Probe {
    /// Reads everything anew. Blocks while the driver answers; never fails and never panics.
    fn read(&mut self) -> Inventory;
}

/// Where to read from.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// NVML library; `None` = the system's, or the stand-in when a profile is given.
    pub nvml_library: Option<PathBuf>,
    /// What stands for `/sys`. Not used with a profile.
    pub sysfs_root: PathBuf,
    /// Node profile to serve instead of this machine.
    pub profile: Option<PathBuf>,
    /// Name of the node; with a profile it makes the GPU UUIDs.
    pub node_name: String,
    /// Directory for what a profile needs on disk. Two nodes must not share it.
    pub state_directory: PathBuf,
}

impl ProbeOptions {
    /// This machine as it is.
    #[must_use]
    pub fn of_machine(node_name: &str) -> Self {
        Self {
            nvml_library: None,
            sysfs_root: PathBuf::from("/sys"),
            profile: None,
            node_name: node_name.to_owned(),
            state_directory: std::env::temp_dir(),
        }
    }

    /// A machine described by a profile.
    #[must_use]
    pub fn of_profile(
        profile: impl Into<PathBuf>,
        node_name: &str,
        state_directory: impl Into<PathBuf>,
    ) -> Self {
        Self {
            profile: Some(profile.into()),
            state_directory: state_directory.into(),
            ..Self::of_machine(node_name)
        }
    }
}

/// Why a probe cannot be made. Trouble with hardware and driver is no such error.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The profile is wrong, or its sysfs tree cannot be written.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The stand-in library is not there.
    #[error(
        "a node profile needs the stand-in library {}, found in none of: {searched}. Build it (cargo build -p mock-nvml), \
         or name it with --nvml-library or PHALANX_NVML_LIBRARY",
        simulated::LIBRARY_NAME
    )]
    NoStandIn {
        /// Files that were tried.
        searched: String,
    },
    /// The library is not the stand-in, or cannot be loaded.
    #[error("{library}: {reason}. A node profile needs the stand-in library {}", simulated::LIBRARY_NAME)]
    NotAStandIn {
        /// Library that was tried.
        library: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// File or directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// The real probe: NVML, sysfs and the host.
pub struct NodeProbe {
    nvml: NvmlProbe,
    sysfs: Sysfs,
    /// Set where a profile speaks for the host.
    host: Option<HostFacts>,
}

impl NodeProbe {
    /// Makes the probe. With a profile this prepares library and sysfs tree in the state directory.
    ///
    /// # Errors
    /// Only what a wrong option or profile can cause. A missing driver shows in the inventory.
    pub fn new(options: &ProbeOptions) -> Result<Self, ProbeError> {
        match &options.profile {
            None => Ok(Self {
                nvml: NvmlProbe::new(options.nvml_library.clone()),
                sysfs: Sysfs::new(&options.sysfs_root),
                host: None,
            }),
            Some(profile) => {
                let machine = simulated::prepare(options, profile)?;
                Ok(Self {
                    nvml: NvmlProbe::new(Some(machine.library)),
                    sysfs: Sysfs::new(&machine.sysfs_root),
                    host: Some(machine.host),
                })
            }
        }
    }
}

impl Probe for NodeProbe {
    fn read(&mut self) -> Inventory {
        let host = self.host.unwrap_or_else(HostFacts::of_machine);
        join::join(self.nvml.read(), &self.sysfs, host)
    }
}
