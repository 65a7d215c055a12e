//! Where the store's file lies: on a disk, or, in tests, on one that fails.

use std::fmt::Debug;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{Builder, Database, DatabaseError, StorageError};
use thiserror::Error;

/// Why the store's file could not be opened. Every text says the way out.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{file}: in use by another coordinator; stop that one, or give this one its own --state-dir")]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// It cannot be read as a store.
    #[error(
        "{file}: damaged: {cause}; put a backup of the state directory in its place, or move the file away and start \
         again: what it held is then lost, objects are applied anew from their manifests, and pods that run are stopped"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// It was good once: what was confirmed later is missing.
    #[error(
        "{file}: older than what this coordinator has confirmed (it ends at write {found}, {witness} knows of write \
         {confirmed}); put the newest backup of both files in their place, or remove {witness} to go on without the \
         writes that are missing"
    )]
    Behind {
        /// The file.
        file: PathBuf,
        /// The file that knows better.
        witness: PathBuf,
        /// Last write in the file.
        found: u64,
        /// Last write that was confirmed.
        confirmed: u64,
    },
    /// Another version of Phalanx wrote it.
    #[error(
        "{file}: written in format {found:?}, and this version reads format {reads}; use the version that wrote it, or \
         move the file away"
    )]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// The format found.
        found: String,
        /// The format this version reads.
        reads: &'static str,
    },
    /// The file system refused.
    #[error(
        "{file}: {cause}; the state directory must be on a disk that works, has space and can be written by this user"
    )]
    FileSystem {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        cause: String,
    },
}

impl OpenError {
    /// What redb's error means for the file.
    #[must_use]
    pub fn of(file: &Path, error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
                Self::InUse { file: file.to_owned() }
            }
            DatabaseError::Storage(StorageError::Io(error)) if !is_damage(&error) => {
                Self::system(file, &error)
            }
            DatabaseError::UpgradeRequired(version) => {
                Self::damaged(file, format!("redb format {version} is not supported"))
            }
            other => Self::damaged(file, other),
        }
    }

    pub(super) fn system(file: &Path, error: &io::Error) -> Self {
        let cause = phalanx_common::describe::describe(error);
        Self::FileSystem { file: file.to_owned(), cause }
    }

    pub(super) fn damaged(file: &Path, cause: impl ToString) -> Self {
        Self::Damaged { file: file.to_owned(), cause: cause.to_string() }
    }
}

pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// The last write that was confirmed, kept beside the file: a file that ends before it has lost something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// Cluster of the store.
    pub cluster: String,
    /// The write.
    pub sequence: u64,
}

/// Fills a new file.
pub type Fill<'a> = &'a mut dyn FnMut(&Database) -> Result<(), redb::Error>;

/// Where a store's file lies.
pub trait Medium: Debug + Send {
    /// Its name, for errors.
    fn file(&self) -> &Path;

    /// Opens the file and checks every page of it; `None` where there is none.
    ///
    /// # Errors
    /// Damaged, in use, or the system refused.
    fn open(&mut self) -> Result<Option<Database>, OpenError>;

    /// Makes a new file in one step: before it is whole, the old one (or none) stands there.
    ///
    /// # Errors
    /// The new file could not be made.
    fn replace(&mut self, fill: Fill<'_>) -> Result<(), redb::Error>;

    /// Writes again what the file reads as: after a failed sync the system may take for written what is not.
    ///
    /// # Errors
    /// The file cannot be written.
    fn renew(&mut self) -> io::Result<()>;

    /// False where the file was moved away or replaced while it was open.
    fn is_in_place(&self) -> bool;

    /// The last write known to be confirmed; `None` where nothing was noted.
    ///
    /// # Errors
    /// What stands there is not what was noted (`InvalidData`), or cannot be read.
    fn confirmed(&self) -> io::Result<Option<Confirmed>>;

    /// Notes that a write was confirmed.
    fn confirm(&mut self, confirmed: &Confirmed);

    /// Where that is noted, for errors.
    fn witness(&self) -> PathBuf;

    /// Tries whether something can be written beside the file.
    ///
    /// # Errors
    /// It cannot.
    fn room(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Pause before a file that could not be opened anew is tried again: to check it reads all of it.
    fn rest(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// How long a write waits for those before it. Less than those wait who ask for it: then they are told that
    /// nothing was begun, and need not wonder.
    fn patience(&self) -> Duration {
        Duration::from_secs(8)
    }
}

/// A builder that checks every page on open.
#[must_use]
pub fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_check_integrity_on_open(true);
    builder
}

/// A file on a disk, with a lock and a witness beside it.
#[derive(Debug)]
pub struct DiskFile {
    file: PathBuf,
    inode: Option<(u64, u64)>,
    witness: Option<File>,
    _lock: File,
}

impl DiskFile {
    /// Takes the file, which need not exist, for this process alone.
    ///
    /// # Errors
    /// Another process has it, or the directory cannot be written.
    pub fn take(file: &Path) -> Result<Self, OpenError> {
        let path = file.with_extension("lock");
        let failed = |error: io::Error| OpenError::system(&path, &error);
        let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { file: file.to_owned(), inode: None, witness: None, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { file: file.to_owned() }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// A file that is whole from the start: redb would take an empty one for new.
    fn looks_whole(&self) -> Result<bool, OpenError> {
        let refused = |error: io::Error| OpenError::system(&self.file, &error);
        let mut opened = match File::open(&self.file) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(refused(error)),
        };
        let mut magic = [0_u8; 4];
        match opened.read_exact(&mut magic) {
            Ok(()) if magic == *b"redb" => Ok(true),
            Ok(()) => Err(OpenError::damaged(&self.file, "it does not begin as a redb file")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let length = opened.metadata().map_err(refused)?.len();
                let cause = if length == 0 { "it is empty" } else { "it is cut off" };
                Err(OpenError::damaged(&self.file, cause))
            }
            Err(error) => Err(refused(error)),
        }
    }
}

impl Medium for DiskFile {
    fn file(&self) -> &Path {
        &self.file
    }

    fn open(&mut self) -> Result<Option<Database>, OpenError> {
        if !self.looks_whole()? {
            return Ok(None);
        }
        let database = builder().open(&self.file).map_err(|error| OpenError::of(&self.file, error))?;
        let metadata = fs::metadata(&self.file).map_err(|error| OpenError::system(&self.file, &error))?;
        self.inode = Some((metadata.dev(), metadata.ino()));
        Ok(Some(database))
    }

    fn replace(&mut self, fill: Fill<'_>) -> Result<(), redb::Error> {
        let new = self.file.with_extension("redb.new");
        // What a crash left; nobody else can be writing it, because the lock is ours.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let made = Database::create(&new).map_err(redb::Error::from).and_then(|database| {
            fill(&database)?;
            database.close().map_err(redb::Error::from)
        });
        let put = made.and_then(|()| {
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &self.file)?;
            Ok(sync_directory(&self.file)?)
        });
        if put.is_err() {
            // It would only take space that may be what is missing.
            let _ = fs::remove_file(&new);
        }
        put
    }

    fn renew(&mut self) -> io::Result<()> {
        const PART: usize = 1 << 16;
        let file = match File::options().read(true).write(true).open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        let mut part = vec![0; PART];
        let mut at = 0;
        while at < length {
            let bytes = file.read_at(&mut part, at)?;
            if bytes == 0 {
                break;
            }
            // Holes stay holes: to fill them would take space.
            if part[..bytes].iter().any(|byte| *byte != 0) {
                file.write_all_at(&part[..bytes], at)?;
            }
            at += bytes as u64;
        }
        file.sync_all()
    }

    fn is_in_place(&self) -> bool {
        let found = fs::metadata(&self.file).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        self.inode.is_none() || found == self.inode
    }

    fn confirmed(&self) -> io::Result<Option<Confirmed>> {
        let mut text = Vec::new();
        match File::open(self.witness()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?.take(WITNESS_BYTES).read_to_end(&mut text)?,
        };
        let why = if text.is_empty() { "it is empty" } else { "it is not what was written" };
        let noted = str::from_utf8(&text).ok().and_then(noted);
        noted.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    fn room(&mut self) -> io::Result<()> {
        let path = self.file.with_extension("room");
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&vec![0x5a; ROOM_BYTES])?;
            file.sync_all()
        });
        // Also where only a part of it could be written.
        let removed = fs::remove_file(&path);
        written.and(removed)
    }

    /// Written in place and not synced: the system brings it to the disk in its own time. It may lag behind the
    /// file and is never ahead of it, so all it can do is to find fewer losses after a crash of the machine.
    fn confirm(&mut self, confirmed: &Confirmed) {
        let body = format!("{WITNESS}{} write={:020}", confirmed.cluster, confirmed.sequence);
        let line = format!("{body} crc32={:08x}\n", crc32fast::hash(body.as_bytes()));
        if self.witness.is_none() {
            let path = self.witness();
            // What an earlier cluster left may be longer.
            let cut = |file: File| file.set_len(line.len() as u64).map(|()| file);
            let opened = File::options().create(true).truncate(false).write(true).open(&path);
            self.witness = opened.and_then(cut).ok();
        }
        let written = self.witness.as_ref().map(|witness| witness.write_all_at(line.as_bytes(), 0));
        if !matches!(written, Some(Ok(()))) {
            tracing::debug!(file = %self.witness().display(), "the last confirmed write could not be noted");
            self.witness = None;
        }
    }

    fn witness(&self) -> PathBuf {
        self.file.with_extension("confirmed")
    }
}

const WITNESS: &str = "phalanx-objects 1 cluster=";
/// No note is longer.
const WITNESS_BYTES: u64 = 4096;
/// A disk with less room than this counts as full: a small write may succeed, the next one does not.
const ROOM_BYTES: usize = 1 << 18;

/// What a witness says.
fn noted(text: &str) -> Option<Confirmed> {
    let line = text.strip_suffix('\n')?;
    let (body, checksum) = line.rsplit_once(" crc32=")?;
    if format!("{:08x}", crc32fast::hash(body.as_bytes())) != checksum {
        return None;
    }
    let (cluster, sequence) = body.strip_prefix(WITNESS)?.split_once(" write=")?;
    Some(Confirmed { cluster: cluster.to_owned(), sequence: sequence.parse().ok()? })
}

/// Makes the name of a file outlive a crash of the machine.
pub(super) fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
