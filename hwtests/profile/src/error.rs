//! What can be wrong with a profile.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::MAX_PROFILE_BYTES;

/// Why a profile cannot be used. Every text names the file and what to change.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: {source}; name a profile file, such as one of deploy/profiles")]
    Read {
        /// File as given.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The file is too large.
    #[error("{file}: a profile may have at most {MAX_PROFILE_BYTES} bytes")]
    TooLarge {
        /// File as given.
        file: String,
    },
    /// Neither JSON nor TOML. The file is given with its line.
    #[error("{file}: not valid {format}: {reason}")]
    Syntax {
        /// File as given.
        file: String,
        /// Format that was tried.
        format: &'static str,
        /// What the parser says, with line and column.
        reason: String,
    },
    /// A field has a value that is not allowed. The file is given with the line, where that is known.
    #[error("{file}: field {field}: {reason}")]
    Field {
        /// File as given.
        file: String,
        /// Path of the field, `gpus[3].pci_bus_id`.
        field: String,
        /// What is there and what is allowed.
        reason: String,
    },
    /// The sysfs tree cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// File or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The directory for the sysfs tree holds something else.
    #[error("{0} is not empty and was not made by this program: give an empty directory")]
    ForeignDirectory(PathBuf),
}
