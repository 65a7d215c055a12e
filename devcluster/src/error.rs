//! Why servers do not start or do not do what they are asked.

use std::io;
use std::path::PathBuf;

use phalanx_kube_binaries as binaries;

/// Every text says what failed and shows what the program said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not there and cannot be built.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// `PHALANX_KUBERNETES` names a version that is not supported.
    #[error(transparent)]
    Version(#[from] binaries::UnknownVersion),
    /// A file or folder of the servers.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot start {name}: {source}")]
    Start {
        /// The program.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server ended or was not ready in time.
    #[error("{name} {what}\n{tail}")]
    NotReady {
        /// The server.
        name: String,
        /// What it did instead.
        what: String,
        /// The end of its log.
        tail: String,
    },
    /// A certificate or key cannot be made.
    #[error("certificate of the API server: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The API server answered otherwise than asked.
    #[error("{what}: {source}")]
    Api {
        /// What was asked.
        what: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The kubeconfig cannot be used.
    #[error("kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A user who is not among those of the options.
    #[error("user {0:?} is not one of the servers' users: name it in Options::users")]
    UnknownUser(String),
    /// kubectl failed.
    #[error("kubectl {arguments} ended with {status}:\n{output}")]
    Kubectl {
        /// What it was asked.
        arguments: String,
        /// How it ended.
        status: String,
        /// What it wrote on stderr and stdout.
        output: String,
    },
    /// A task of ours ended early.
    #[error("{0}")]
    Task(String),
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}
