//! Builds the binaries of Kubernetes that the tests start, into a cache outside the tree.
//!
//! Each is built once with Go from the tool modules of `xtask/kubernetes`, whose text is compiled in: a program that
//! is installed elsewhere builds the same ones. The cache's folders are named by the version and a checksum of the
//! module, so that a change of it builds anew. Processes that ask at once build once: the others wait.

mod build;
mod catalogue;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use build::Cache;
pub use catalogue::{Tool, UnknownVersion, Version};

/// Where the ready binaries lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    version: Version,
    paths: BTreeMap<Tool, PathBuf>,
}

impl Binaries {
    /// The Kubernetes they are of.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// A tool's file.
    ///
    /// # Errors
    /// It was not asked for.
    pub fn path(&self, tool: Tool) -> Result<&Path, Error> {
        self.paths.get(&tool).map(PathBuf::as_path).ok_or(Error::NotAsked(tool))
    }

    /// Every tool that was asked for and its file.
    pub fn iter(&self) -> impl Iterator<Item = (Tool, &Path)> {
        self.paths.iter().map(|(tool, path)| (*tool, path.as_path()))
    }
}

/// The tools of a version from the user's cache; builds what is missing there, which takes minutes the first time.
///
/// # Errors
/// Go is missing or too old, or a build fails; see [`Error`].
pub fn ensure(version: Version, tools: &[Tool]) -> Result<Binaries, Error> {
    Cache::of_user()?.ensure(version, tools)
}

/// Why there is no binary. Every text says what to do.
#[derive(Debug)]
pub enum Error {
    /// No `go` on the PATH.
    NoGo {
        /// What was to be built.
        tool: Tool,
        /// Oldest Go that builds it.
        needed: String,
    },
    /// There is a Go, but an old one.
    OldGo {
        /// What was to be built.
        tool: Tool,
        /// Oldest Go that builds it.
        needed: String,
        /// What `go version` says.
        found: String,
    },
    /// The build failed; nothing of it stays.
    Build {
        /// What was to be built.
        tool: Tool,
        /// The module's folder, to try by hand.
        folder: PathBuf,
        /// How it ended.
        status: String,
        /// Last lines it wrote.
        tail: String,
    },
    /// The cache cannot be read or written.
    Cache {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no place for a cache.
    NoHome,
    /// A tool that the caller did not ask for.
    NotAsked(Tool),
}

// By hand: the crate that derives it would double the time until the first line of `cargo demo`, whose program
// builds this one.
impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGo { tool, needed } => write!(
                formatter,
                "{tool} is built from source and Go is missing: install Go {needed} or newer: {} (on Debian and \
                 Ubuntu `apt-get install -y golang-go` does where its `go version` says {needed} or newer)",
                get_go(needed)
            ),
            Self::OldGo { tool, needed, found } => write!(
                formatter,
                "{tool} needs Go {needed} or newer and {found} is installed: {}",
                get_go(needed)
            ),
            Self::Build { tool, folder, status, tail } => write!(
                formatter,
                "cannot build {tool} in {}: `go build` ended with {status}:\n{tail}",
                folder.display()
            ),
            Self::Cache { path, source } => write!(
                formatter,
                "cache of Kubernetes binaries: {}: {source} (PHALANX_KUBE_CACHE names another folder)",
                path.display()
            ),
            Self::NoHome => formatter.write_str(
                "neither PHALANX_KUBE_CACHE, XDG_CACHE_HOME nor HOME is set: set PHALANX_KUBE_CACHE to a folder",
            ),
            Self::NotAsked(tool) => write!(formatter, "{tool} was not among the tools that were asked for"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Cache { source, .. } => Some(source),
            Self::NoGo { .. }
            | Self::OldGo { .. }
            | Self::Build { .. }
            | Self::NoHome
            | Self::NotAsked(_) => None,
        }
    }
}

/// The command that gets it. The oldest that does is named, since it is known to be there.
fn get_go(needed: &str) -> String {
    let processor = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    format!(
        "`curl -L https://go.dev/dl/go{needed}.linux-{processor}.tar.gz | tar -C /usr/local -xz && export \
         PATH=/usr/local/go/bin:$PATH`"
    )
}
