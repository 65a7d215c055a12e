//! The files of one recording, on a disk that may be full.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_common::units::Time;
use phalanx_core::Core;

use super::RecordingLimits;
use super::record::{Header, Record, chain_of, path};

/// First wait before a recording that has ended for want of space begins again.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Longest such wait: each attempt costs a copy of the machine.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

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
    limits: RecordingLimits,
    disk: Box<dyn Disk>,
    file: BufWriter<Counted>,
    /// Bytes of the file when its snapshot was written: a large one must not make the next part due.
    opening_bytes: u64,
}

impl Chain {
    pub(super) fn open(
        directory: PathBuf,
        header: Header,
        limits: RecordingLimits,
        mut disk: Box<dyn Disk>,
    ) -> io::Result<Self> {
        let file = Counted::create(&mut *disk, &path(&directory, &header))?;
        let mut chain = Self { directory, header, limits, disk, file, opening_bytes: 0 };
        line(&mut chain.file, &Record::Header(chain.header.clone()))?;
        chain.file.flush()?;
        chain.drop_oldest()?;
        Ok(chain)
    }

    pub(super) fn path(&self) -> PathBuf {
        path(&self.directory, &self.header)
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
        let name = path(&self.directory, &header);
        let begun = self.opening(&name, &header, at, core);
        match begun {
            Ok(file) => {
                self.opening_bytes = file.get_ref().bytes;
                self.header = header;
                self.file = file;
                self.drop_oldest()
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

    /// Names sort by age. The file being written is the newest, so it stays.
    fn drop_oldest(&self) -> io::Result<()> {
        let mut names: Vec<PathBuf> = fs::read_dir(&self.directory)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| chain_of(path).is_some())
            .collect();
        names.sort_unstable();
        let surplus = names.len().saturating_sub(usize::try_from(self.limits.files).unwrap_or(usize::MAX));
        for name in &names[..surplus] {
            fs::remove_file(name)?;
        }
        Ok(())
    }
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
