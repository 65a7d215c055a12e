//! The few calls that a ledger needs of its disk, so that tests can let each of them fail.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// A disk. Nothing here is durable before it is synced.
pub trait Disk: Debug + Send {
    /// Reads a file, at most `max` bytes of it.
    ///
    /// # Errors
    /// The system's answer.
    fn read(&mut self, path: &Path, max: u64) -> io::Result<Vec<u8>>;

    /// Makes a file that holds this, or replaces what it held.
    ///
    /// # Errors
    /// The system's answer; part of it may be written.
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes what the last `write` wrote outlive a crash of the machine.
    ///
    /// # Errors
    /// The system's answer; whether it is on the disk is not known.
    fn sync(&mut self) -> io::Result<()>;

    /// Gives a file another name; one that has that name is gone.
    ///
    /// # Errors
    /// The system's answer.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's answer.
    fn remove(&mut self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory outlive a crash of the machine.
    ///
    /// # Errors
    /// The system's answer.
    fn sync_directory(&mut self, directory: &Path) -> io::Result<()>;
}

/// The machine's own.
#[derive(Debug, Default)]
pub struct LocalDisk {
    /// Kept from `write` to `sync`: another handle would not be told of an error in between.
    written: Option<File>,
}

impl Disk for LocalDisk {
    fn read(&mut self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.written = None;
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        self.written = Some(file);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.written.take().map_or(Ok(()), |file| file.sync_all())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}
