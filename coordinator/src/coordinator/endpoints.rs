//! The file that says where this coordinator listens, for the command line and for agents on the same machine.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

const FILE: &str = "endpoints.json";

/// Where a coordinator listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// Admin interface, `http://ADDRESS:PORT`.
    pub admin: String,
    /// Where agents dial, `ADDRESS:PORT`.
    pub quic: String,
    /// The process.
    pub pid: u32,
    #[serde(skip)]
    file: PathBuf,
}

/// The file could not be written.
#[derive(Debug, Error)]
#[error("{file}: {cause}; the state directory must be writable and its disk have space")]
pub struct EndpointsError {
    file: PathBuf,
    cause: std::io::Error,
}

impl Endpoints {
    /// Writes the file in one step: nobody reads half of it.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn write(
        state_dir: &Path,
        admin: SocketAddr,
        quic: SocketAddr,
    ) -> Result<Self, EndpointsError> {
        let file = state_dir.join(FILE);
        let endpoints = Self {
            admin: format!("http://{admin}"),
            quic: quic.to_string(),
            pid: std::process::id(),
            file: file.clone(),
        };
        let temporary = state_dir.join(format!("{FILE}.{}", endpoints.pid));
        let write = || {
            let mut text = serde_json::to_vec(&endpoints)?;
            text.push(b'\n');
            fs::File::create(&temporary)?.write_all(&text)?;
            fs::rename(&temporary, &file)
        };
        write().map_err(|cause| {
            // One for each start that failed would fill the directory.
            let _ = fs::remove_file(&temporary);
            EndpointsError { file: file.clone(), cause }
        })?;
        Ok(endpoints)
    }

    /// Reads the file of a state directory.
    #[must_use]
    pub fn read(state_dir: &Path) -> Option<Self> {
        let text = fs::read(state_dir.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Removes the file, where it is still ours.
    pub(crate) fn remove(&self) {
        let ours = self.file.parent().and_then(Self::read).is_some_and(|stored| stored.pid == self.pid);
        if ours && let Err(error) = fs::remove_file(&self.file) {
            tracing::warn!(file = %self.file.display(), %error, "the file could not be removed");
        }
    }
}
