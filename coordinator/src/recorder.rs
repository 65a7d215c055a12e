//! Writes every event and every cycle with its actions, so that what was decided can be decided again.
//!
//! A recording belongs to one process and is a chain of files `recording-START-PART.jsonl`. Only a chain whose
//! part 0 is still there can be replayed: the machine starts empty, and later parts hold only what came later.
//! A thread of its own writes; where it cannot keep up or the disk fails, the recording ends there, which
//! is said once, and the coordinator goes on.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use phalanx_common::units::Time;
use phalanx_core::Settings;
use phalanx_core::action::Action;
use phalanx_core::event::Event;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::mpsc;

/// Form of the files; raised when an old file cannot be read any more.
pub const FORMAT: u32 = 1;
/// Records between the driver and the thread. A cycle makes few; this is some seconds of a busy cluster.
const QUEUE_RECORDS: usize = 8192;

/// Bounds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// A file that has reached this many bytes is followed by a new one.
    pub file_bytes: u64,
    /// Files of all recordings that are kept; the oldest go first.
    pub files: u64,
}

impl Default for RecordingLimits {
    fn default() -> Self {
        Self { file_bytes: 64 << 20, files: 8 }
    }
}

/// First line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Form of the file.
    pub format: u32,
    /// Version of the coordinator that wrote it.
    pub version: String,
    /// When the process started: the name of the chain.
    pub start: Time,
    /// Number of the file within its chain, from 0.
    pub part: u32,
    /// The policy's numbers.
    pub settings: Settings,
}

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// First line.
    Header(Header),
    /// A fact was recorded.
    Event {
        /// When.
        at: Time,
        /// The fact.
        event: Event,
    },
    /// A scheduling pass was done.
    Cycle {
        /// When.
        at: Time,
        /// All actions since the pass before.
        actions: Vec<Action>,
    },
}

/// Why a recording cannot begin.
#[derive(Debug, Error)]
#[error("recording in {directory}: {cause}; make the directory writable, or choose another --state-dir")]
pub struct RecorderError {
    directory: PathBuf,
    cause: io::Error,
}

/// Takes the records.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<mpsc::Sender<Record>>,
    thread: Option<JoinHandle<()>>,
    file: PathBuf,
}

impl Recorder {
    /// Begins a recording in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// The directory or the first file cannot be made.
    pub fn start(
        directory: &Path,
        start: Time,
        settings: &Settings,
        limits: RecordingLimits,
    ) -> Result<Self, RecorderError> {
        let failed = |cause| RecorderError { directory: directory.to_owned(), cause };
        fs::create_dir_all(directory).map_err(failed)?;
        let header = Header {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            start,
            part: 0,
            settings: settings.clone(),
        };
        let mut chain = Chain::open(directory.to_owned(), header, limits).map_err(failed)?;
        let file = chain.path();
        let (queue, mut records) = mpsc::channel(QUEUE_RECORDS);
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || {
                while let Some(record) = records.blocking_recv() {
                    let written = chain
                        .write(&record)
                        .and_then(|()| if records.is_empty() { chain.file.flush() } else { Ok(()) });
                    if let Err(error) = written {
                        tracing::warn!(%error, file = %chain.path().display(), "the recording ends here");
                        return;
                    }
                }
            })
            .map_err(failed)?;
        Ok(Self { queue: Some(queue), thread: Some(thread), file })
    }

    /// The first file of the chain: what `replay` is given.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Takes a record, waiting for room: for the start, when thousands come at once and nobody waits.
    pub async fn record_patiently(&mut self, record: Record) {
        if let Some(queue) = &self.queue
            && queue.send(record).await.is_err()
        {
            self.queue = None;
        }
    }

    /// Takes a record, never waiting. False where the recording has ended.
    pub fn record(&mut self, record: impl FnOnce() -> Record) -> bool {
        let Some(queue) = &self.queue else {
            return false;
        };
        let full = match queue.try_reserve() {
            Ok(place) => {
                place.send(record());
                return true;
            }
            Err(error) => matches!(error, mpsc::error::TrySendError::Full(())),
        };
        if full {
            // A gap would make all that follows worthless.
            tracing::warn!(file = %self.file.display(), "the disk is too slow: the recording ends here");
        }
        self.queue = None;
        false
    }

    /// Writes what is left and ends. Blocks until it is written.
    pub fn finish(mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(file = %self.file.display(), "the recorder's thread has crashed");
        }
    }
}

/// The files of one recording.
struct Chain {
    directory: PathBuf,
    header: Header,
    limits: RecordingLimits,
    file: BufWriter<File>,
    bytes: u64,
}

impl Chain {
    fn open(directory: PathBuf, header: Header, limits: RecordingLimits) -> io::Result<Self> {
        let file = BufWriter::new(File::create_new(path(&directory, &header))?);
        let mut chain = Self { directory, header, limits, file, bytes: 0 };
        chain.line(&Record::Header(chain.header.clone()))?;
        chain.file.flush()?;
        chain.drop_oldest()?;
        Ok(chain)
    }

    fn path(&self) -> PathBuf {
        path(&self.directory, &self.header)
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        if self.bytes >= self.limits.file_bytes {
            self.file.flush()?;
            self.header.part += 1;
            self.file = BufWriter::new(File::create_new(self.path())?);
            self.bytes = 0;
            self.line(&Record::Header(self.header.clone()))?;
            self.drop_oldest()?;
        }
        self.line(record)
    }

    fn line(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.bytes += line.len() as u64;
        self.file.write_all(&line)
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

fn path(directory: &Path, header: &Header) -> PathBuf {
    directory.join(format!("recording-{:015}-{:05}.jsonl", header.start.0, header.part))
}

/// Start and part of a recording's file, from its name; `None` where it is none.
#[must_use]
pub fn chain_of(path: &Path) -> Option<(u64, u32)> {
    let name = path.file_name()?.to_str()?;
    let (start, part) = name.strip_prefix("recording-")?.strip_suffix(".jsonl")?.split_once('-')?;
    Some((start.parse().ok()?, part.parse().ok()?))
}

/// The file of another part of the same chain.
#[must_use]
pub fn sibling(path: &Path, header: &Header, part: u32) -> PathBuf {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    self::path(directory, &Header { part, ..header.clone() })
}
