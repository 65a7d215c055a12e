//! The files of one recording, on a disk that may be full.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_common::units::Time;
use phalanx_core::Core;

use super::RecordingLimits;
use super::record::{Header, LAST_NUMBER, Record, chain_of, path};

/// First wait before a recording that has ended for want of space begins again.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Longest such wait: each attempt costs a copy of the machine.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// What a small file counts: this part of a full one. A process that starts and crashes over and over makes many of
/// them, and the first of these is the one that somebody will want to see.
const SMALL: u64 = 8;

/// Where the files are made: a place of its own, so that tests can fill the disk.
pub trait Disk: Send {
    /// Makes a file, empty.
    ///
    /// # Errors
    /// The system's answer.
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Write + Send>>;

    /// How long to wait before the attempt after so many that failed.
    fn retry_after(&self, failures: u32) -> Duration {
        FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_RETRY)
    }
}

/// The real one.
#[derive(Debug)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(File::create(path)?))
    }
}

/// The files of one recording.
pub(super) struct Chain {
    directory: PathBuf,
    header: Header,
    /// What the files are called after: the start of the process, and above all that were there, so that age can be
    /// told by names also where the clock went back.
    number: u64,
    limits: RecordingLimits,
    disk: Box<dyn Disk>,
    file: BufWriter<Counted>,
    /// Bytes of the file when its snapshot was written: a large one must not make the next part due.
    opening_bytes: u64,
    /// Files that could not be removed, and of which that was said.
    stuck: BTreeSet<PathBuf>,
}

impl Chain {
    pub(super) fn open(
        directory: PathBuf,
        header: Header,
        limits: RecordingLimits,
        mut disk: Box<dyn Disk>,
    ) -> io::Result<Self> {
        let number = after(&recordings(&directory)?, header.start);
        let file = Counted::create(&mut *disk, &path(&directory, number, header.part))?;
        let stuck = BTreeSet::new();
        let mut chain = Self { directory, header, number, limits, disk, file, opening_bytes: 0, stuck };
        line(&mut chain.file, &Record::Header(chain.header.clone()))?;
        chain.file.flush()?;
        chain.drop_oldest();
        Ok(chain)
    }

    pub(super) fn path(&self) -> PathBuf {
        path(&self.directory, self.number, self.header.part)
    }

    pub(super) fn retry_after(&self, failures: u32) -> Duration {
        self.disk.retry_after(failures)
    }

    pub(super) fn write(&mut self, record: &Record) -> io::Result<()> {
        line(&mut self.file, record)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// The file has reached its size.
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.file.get_ref().bytes + self.file.buffer().len() as u64;
        bytes - self.opening_bytes >= self.limits.file_bytes
    }

    /// Goes on in a new file, which begins with the machine's state. Where that cannot be written, nothing is left
    /// of the new file.
    pub(super) fn begin_part(&mut self, at: Time, core: Box<Core>, continues: bool) -> io::Result<()> {
        let continues = self.file.flush().is_ok() && continues;
        let header = Header { part: self.header.part + 1, continues, ..self.header.clone() };
        let name = path(&self.directory, self.number, header.part);
        let begun = self.opening(&name, &header, at, core);
        match begun {
            Ok(file) => {
                self.opening_bytes = file.get_ref().bytes;
                self.header = header;
                self.file = file;
                self.drop_oldest();
                Ok(())
            }
            Err(error) => {
                // It may not have been made at all.
                let _ = fs::remove_file(name);
                Err(error)
            }
        }
    }

    fn opening(
        &mut self,
        name: &Path,
        header: &Header,
        at: Time,
        core: Box<Core>,
    ) -> io::Result<BufWriter<Counted>> {
        let mut file = Counted::create(&mut *self.disk, name)?;
        line(&mut file, &Record::Header(header.clone()))?;
        line(&mut file, &Record::Snapshot { at, core })?;
        file.flush()?;
        Ok(file)
    }

    /// Removes the oldest files for which there is no room beside the one being written, which counts as full.
    /// A file that cannot be removed is no fault of what is being recorded: it stays, and that is said once.
    fn drop_oldest(&mut self) {
        let present = self.path();
        let mut files = match recordings(&self.directory) {
            Ok(files) => files,
            Err(error) => {
                tracing::warn!(%error, directory = %self.directory.display(), "old recordings cannot be listed");
                return;
            }
        };
        files.retain(|file| file.path != present);
        files.sort_unstable_by_key(|file| (file.number == self.number, file.number, file.part));
        let full = self.limits.file_bytes;
        let mut room = full.saturating_mul(self.limits.files.saturating_sub(1));
        let kept = files.iter().rev().take_while(|file| {
            let left = room.checked_sub(file.bytes.clamp(full.div_ceil(SMALL), full));
            room = left.unwrap_or(0);
            left.is_some()
        });
        let surplus = files.len() - kept.count();
        for file in files.drain(..surplus) {
            if let Err(error) = fs::remove_file(&file.path)
                && self.stuck.insert(file.path.clone())
            {
                tracing::warn!(
                    %error,
                    file = %file.path.display(),
                    "an old recording cannot be removed and stays: remove it by hand"
                );
            }
        }
    }
}

/// A file that is called as recordings are.
struct Found {
    number: u64,
    part: u32,
    bytes: u64,
    path: PathBuf,
}

fn recordings(directory: &Path) -> io::Result<Vec<Found>> {
    let entries = fs::read_dir(directory)?.filter_map(Result::ok);
    let found = entries.filter_map(|entry| {
        let path = entry.path();
        let (number, part) = chain_of(&path)?;
        // One that is gone by now has no length, and is missed by nobody.
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        Some(Found { number, part, bytes, path })
    });
    Ok(found.collect())
}

/// Number of a chain that begins now: the time, or above all that are there where their clock was ahead. Names that
/// this program does not make leave no number above them.
fn after(files: &[Found], start: Time) -> u64 {
    let highest = files.iter().map(|file| file.number).filter(|number| *number < LAST_NUMBER).max();
    highest.map_or(start.0, |highest| start.0.max(highest + 1))
}

/// A record as a line. Written as it is made: a snapshot of a large cluster is not held in memory a second time.
fn line(file: &mut impl Write, record: &Record) -> io::Result<()> {
    serde_json::to_writer(&mut *file, record)?;
    file.write_all(b"\n")
}

/// A file that knows how long it is.
struct Counted {
    file: Box<dyn Write + Send>,
    bytes: u64,
}

impl Counted {
    fn create(disk: &mut dyn Disk, path: &Path) -> io::Result<BufWriter<Self>> {
        Ok(BufWriter::with_capacity(64 << 10, Self { file: disk.create(path)?, bytes: 0 }))
    }
}

impl Write for Counted {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
