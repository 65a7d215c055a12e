//! Builds the binaries of Kubernetes that the tests start, into a cache outside the tree.
//!
//! Each is built once with Go from the tool modules of `xtask/kubernetes`, whose text is compiled in: a program that
//! is installed elsewhere builds the same ones. The cache's folders are named by the version and a checksum of the
//! module, so that a change of it builds anew. Processes that ask at once build once: the others wait.

mod build;
mod catalogue;

use std::collections::BTreeMap;
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
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No `go` on the PATH.
    #[error(
        "{tool} is built from source and Go is missing: install Go {needed} or newer (`curl -L \
         https://go.dev/dl/go{needed}.linux-amd64.tar.gz | tar -C /usr/local -xz && export \
         PATH=/usr/local/go/bin:$PATH`; on Debian 13 and newer `apt-get install -y golang-go` is enough where \
         `go version` then says {needed} or newer)"
    )]
    NoGo {
        /// What was to be built.
        tool: Tool,
        /// Oldest Go that builds it.
        needed: String,
    },
    /// There is a Go, but an old one.
    #[error(
        "{tool} needs Go {needed} or newer and {found} is installed: `curl -L \
         https://go.dev/dl/go{needed}.linux-amd64.tar.gz | tar -C /usr/local -xz && export \
         PATH=/usr/local/go/bin:$PATH`"
    )]
    OldGo {
        /// What was to be built.
        tool: Tool,
        /// Oldest Go that builds it.
        needed: String,
        /// What `go version` says.
        found: String,
    },
    /// The build failed; nothing of it stays.
    #[error("cannot build {tool} in {}: `go build` ended with {status}:\n{tail}", folder.display())]
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
    #[error("cache of Kubernetes binaries: {}: {source} (PHALANX_KUBE_CACHE names another folder)", path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no place for a cache.
    #[error("neither PHALANX_KUBE_CACHE, XDG_CACHE_HOME nor HOME is set: set PHALANX_KUBE_CACHE to a folder")]
    NoHome,
    /// A tool that the caller did not ask for.
    #[error("{0} was not among the tools that were asked for")]
    NotAsked(Tool),
}
