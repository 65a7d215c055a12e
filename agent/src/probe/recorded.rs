//! Inventories from a file or from memory instead of hardware.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use phalanx_common::topology::{Inventory, InventoryError};
use thiserror::Error;

use crate::probe::Probe;

/// Plays recorded inventories; the last one is repeated for ever.
pub struct RecordedProbe {
    last: Inventory,
    next: VecDeque<Inventory>,
}

/// Why a recording cannot be played.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: {source}")]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no inventory.
    #[error("{file}: not an inventory as JSON: {source}")]
    Syntax {
        /// The file.
        file: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The inventory contradicts itself.
    #[error("{file}: {source}")]
    Inventory {
        /// The file.
        file: PathBuf,
        /// What does not fit.
        source: InventoryError,
    },
}

impl RecordedProbe {
    /// Plays `first`, then `rest` one by one, the last one for ever.
    #[must_use]
    pub fn new(first: Inventory, rest: Vec<Inventory>) -> Self {
        let mut next = VecDeque::from(rest);
        next.push_front(first.clone());
        Self { last: first, next }
    }

    /// Reads one inventory from a JSON file.
    ///
    /// # Errors
    /// Unreadable, not JSON, or an inventory that contradicts itself.
    pub fn load(file: &Path) -> Result<Self, RecordingError> {
        let text = fs::read_to_string(file)
            .map_err(|source| RecordingError::Read { file: file.to_owned(), source })?;
        let inventory: Inventory = serde_json::from_str(&text)
            .map_err(|source| RecordingError::Syntax { file: file.to_owned(), source })?;
        inventory.check().map_err(|source| RecordingError::Inventory { file: file.to_owned(), source })?;
        Ok(Self::new(inventory, Vec::new()))
    }
}

impl Probe for RecordedProbe {
    fn read(&mut self) -> Inventory {
        if let Some(inventory) = self.next.pop_front() {
            self.last = inventory;
        }
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plays_in_order_and_repeats_the_last() {
        let (one, two) = (Inventory::empty(1000, 1), Inventory::empty(2000, 2));
        let mut probe = RecordedProbe::new(one.clone(), vec![two.clone()]);
        assert_eq!([probe.read(), probe.read(), probe.read()], [one, two.clone(), two]);
    }

    #[test]
    fn a_file_is_read_back_and_nonsense_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("inventory.json");
        let inventory = Inventory::empty(4000, 1 << 30);
        fs::write(&file, serde_json::to_string(&inventory).unwrap()).unwrap();
        assert_eq!(RecordedProbe::load(&file).unwrap().read(), inventory);
        fs::write(&file, "{}").unwrap();
        assert!(matches!(RecordedProbe::load(&file), Err(RecordingError::Syntax { .. })));
        assert!(matches!(
            RecordedProbe::load(&directory.path().join("none")),
            Err(RecordingError::Read { .. })
        ));
    }
}
