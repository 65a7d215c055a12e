//! Writes every event and every cycle with its actions, so that what was decided can be decided again.
//!
//! A recording belongs to one process and is a chain of files `recording-START-PART.jsonl`. Part 0 begins with a
//! machine that knows nothing, each later part with the whole machine as it was then: replay can begin with any of
//! them. A thread of its own writes. Where it cannot keep up or the disk fails, that is said once, the coordinator
//! goes on, and the recording does too, in a new part, as soon as it can.

mod chain;
mod record;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_common::units::Time;
use phalanx_core::{Core, Settings};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use self::chain::Chain;
pub use self::chain::{Disk, FileSystem};
pub use self::record::{FORMAT, Header, Record, chain_of, sibling};

/// Records between the driver and the thread. A cycle makes few; this is some seconds of a busy cluster.
const QUEUE_RECORDS: usize = 8192;
/// After its first record the thread lets others gather for so long: to be woken for each takes more than to write it.
const GATHER: Duration = Duration::from_millis(4);
/// A thread that could not keep up gets so long before a new part is begun.
const BREATH: Duration = Duration::from_secs(1);

/// Bounds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// A file that has reached this many bytes is followed by a new one; the state at its begin does not count.
    pub file_bytes: u64,
    /// Files of all recordings that are kept; the oldest go first.
    pub files: u64,
}

impl Default for RecordingLimits {
    fn default() -> Self {
        Self { file_bytes: 64 << 20, files: 8 }
    }
}

/// Why a recording cannot begin.
#[derive(Debug, Error)]
#[error("recording in {directory}: {cause}; make the directory writable, or choose another --state-dir")]
pub struct RecorderError {
    directory: PathBuf,
    cause: io::Error,
}

/// To the thread.
enum Job {
    /// Write it.
    Record(Box<Record>),
    /// Begin a new part, which goes on where the one before ended, or does not.
    Part { at: Time, core: Box<Core>, continues: bool },
}

/// What the thread tells.
#[derive(Debug, Default)]
struct Told {
    /// A new part is due.
    wants_part: AtomicBool,
    /// What comes is not written, because the disk failed.
    is_broken: AtomicBool,
}

/// Takes the records.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<mpsc::Sender<Job>>,
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
    file: PathBuf,
    /// Since when records are left out, because the thread could not keep up.
    gap: Option<Instant>,
    /// Held as long as this process may write to the folder.
    _lock: Option<File>,
}

impl Recorder {
    /// Begins a recording in a directory, which is made if it is not there, and which is this process's alone: another one
    /// would count our files among its own and remove them.
    ///
    /// # Errors
    /// The directory or the first file cannot be made, or another process records there.
    pub fn start(
        directory: &Path,
        start: Time,
        settings: &Settings,
        limits: RecordingLimits,
    ) -> Result<Self, RecorderError> {
        let lock =
            lock(directory).map_err(|cause| RecorderError { directory: directory.to_owned(), cause })?;
        let recorder = Self::start_on(Box::new(FileSystem), directory, start, settings, limits)?;
        Ok(Self { _lock: Some(lock), ..recorder })
    }

    /// As `start`, on a disk that may be none.
    ///
    /// # Errors
    /// The directory or the first file cannot be made.
    pub fn start_on(
        disk: Box<dyn Disk>,
        directory: &Path,
        start: Time,
        settings: &Settings,
        limits: RecordingLimits,
    ) -> Result<Self, RecorderError> {
        let failed = |cause| RecorderError { directory: directory.to_owned(), cause };
        fs::create_dir_all(directory).map_err(failed)?;
        let header = Header::first(start, settings);
        let chain = Chain::open(directory.to_owned(), header, limits, disk).map_err(failed)?;
        let file = chain.path();
        let (queue, jobs) = mpsc::channel(QUEUE_RECORDS);
        let told = Arc::new(Told::default());
        let thread = Thread { chain, told: Arc::clone(&told), has_asked: false, failures: 0, retry_at: None };
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || thread.run(jobs))
            .map_err(failed)?;
        Ok(Self { queue: Some(queue), told, thread: Some(thread), file, gap: None, _lock: None })
    }

    /// The first file of the chain.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// True while what is recorded is also written.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.queue.is_some() && self.gap.is_none() && !self.told.is_broken.load(Ordering::Acquire)
    }

    /// Takes a record, waiting for room: for the start, when thousands come at once and nobody waits.
    pub async fn record_patiently(&mut self, record: Record) {
        if self.gap.is_none()
            && let Some(queue) = &self.queue
            && queue.send(Job::Record(Box::new(record))).await.is_err()
        {
            self.queue = None;
        }
    }

    /// Takes a record, never waiting. Where there is no room, this and all that follow are left out until the next
    /// part: a gap within a part would make all that follows worthless.
    pub fn record(&mut self, record: impl FnOnce() -> Record) {
        let Some(queue) = self.queue.as_ref().filter(|_| self.gap.is_none()) else { return };
        let error = match queue.try_reserve() {
            Ok(place) => return place.send(Job::Record(Box::new(record()))),
            Err(error) => error,
        };
        match error {
            mpsc::error::TrySendError::Full(()) => {
                tracing::warn!(
                    file = %self.file.display(),
                    "the disk is too slow for the recording: it ends, and goes on when the disk has caught up"
                );
                self.gap = Some(Instant::now());
            }
            mpsc::error::TrySendError::Closed(()) => self.queue = None,
        }
    }

    /// True where `begin_part` should be called: the file has reached its size, or what made the recording end
    /// may be over.
    #[must_use]
    pub fn part_is_due(&self) -> bool {
        let Some(queue) = &self.queue else { return false };
        let has_caught_up = queue.capacity() == queue.max_capacity();
        match self.gap {
            Some(since) => has_caught_up && since.elapsed() >= BREATH,
            None => self.told.wants_part.load(Ordering::Acquire),
        }
    }

    /// Begins a new part with a machine's state (see `Core::snapshot`), between two records.
    pub fn begin_part(&mut self, at: Time, core: Core) {
        let Some(place) = self.queue.as_ref().and_then(|queue| queue.try_reserve().ok()) else { return };
        self.told.wants_part.store(false, Ordering::Release);
        place.send(Job::Part { at, core: Box::new(core), continues: self.gap.is_none() });
        self.gap = None;
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

/// Makes a directory and takes it for this process, until what is returned is closed. The directory itself is locked: a file
/// for it would be taken for a recording.
fn lock(directory: &Path) -> io::Result<File> {
    fs::create_dir_all(directory)?;
    let file = File::open(directory)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "a coordinator that runs already records there"))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The thread that writes.
struct Thread {
    chain: Chain,
    told: Arc<Told>,
    /// A new part was asked for, and is not here yet.
    has_asked: bool,
    /// Writes that failed since the last that did not.
    failures: u32,
    /// When a new part may be tried after a failure.
    retry_at: Option<Instant>,
}

impl Thread {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            let job = match jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    let Some(job) = jobs.blocking_recv() else { break };
                    std::thread::sleep(GATHER);
                    job
                }
            };
            match job {
                Job::Part { at, core, continues } => self.begin_part(at, core, continues),
                Job::Record(record) if self.failures == 0 => match self.chain.write(&record) {
                    Ok(()) if self.chain.is_full() => self.ask_for_part(),
                    Ok(()) => {}
                    Err(error) => self.failed(&error),
                },
                Job::Record(_) => {
                    if self.retry_at.is_some_and(|at| at <= Instant::now()) {
                        self.ask_for_part();
                    }
                }
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.failures == 0
            && let Err(error) = self.chain.flush()
        {
            self.failed(&error);
        }
    }

    /// Once: what is recorded until the part comes must not ask for another one.
    fn ask_for_part(&mut self) {
        if !std::mem::replace(&mut self.has_asked, true) {
            self.told.wants_part.store(true, Ordering::Release);
        }
    }

    fn begin_part(&mut self, at: Time, core: Box<Core>, continues: bool) {
        self.has_asked = false;
        match self.chain.begin_part(at, core, continues && self.failures == 0) {
            Ok(()) => {
                if self.failures > 0 {
                    tracing::info!(file = %self.chain.path().display(), "the recording goes on");
                }
                self.failures = 0;
                self.retry_at = None;
                self.told.is_broken.store(false, Ordering::Release);
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &io::Error) {
        if self.failures == 0 {
            tracing::warn!(
                %error,
                file = %self.chain.path().display(),
                "the recording ends here; it goes on in a new file when the disk takes one"
            );
        }
        self.failures += 1;
        self.retry_at = Some(Instant::now() + self.chain.retry_after(self.failures));
        self.told.is_broken.store(true, Ordering::Release);
    }
}
