//! The ledger on disk: one file, replaced as a whole, with a checksum.
//!
//! The first line names format, checksum and length of the rest, which is JSON: people can read it. An agent whose
//! file cannot be read does not start: without it the node would look as if nobody held its GPUs, and pods
//! that still run there may hold them. Only a person can say that none does, by moving the file away. A file of
//! another cluster is kept under another name.

mod disk;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use phalanx_common::ids::ClusterId;
use phalanx_node_core::Ledger;
use thiserror::Error;

pub use self::disk::{Disk, LocalDisk};

const FILE: &str = "ledger";
const NEW_FILE: &str = "ledger.new";
/// A copy that is not whole yet.
const ASIDE_FILE: &str = "ledger.aside.new";
const LOCK_FILE: &str = "ledger.lock";
const MAGIC: &str = "phalanx-ledger";
/// Format of the file that this build reads and writes.
const FORMAT: u32 = 1;
/// Larger than any ledger can be.
const MAX_BYTES: u64 = 64 << 20;
/// Kept files of one kind are numbered up to here; the last one is then replaced.
const MAX_KEPT: u32 = 100;

/// What a person may do about a ledger that is lost.
const STEP: &str = "see that no pod of Phalanx runs on this node any more, then move the file away: the agent starts \
                    without leases, and takes those that still count anew from the coordinator's plans";

/// Why an agent cannot use its state directory, or could not write its ledger.
#[derive(Debug, Error)]
pub enum LedgerFileError {
    /// The directory or a file in it cannot be used.
    #[error(
        "state directory: {path}: {source}; it must be writable by this user, or choose another one with --state-dir"
    )]
    Directory {
        /// What could not be used.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another agent uses the directory.
    #[error("state directory {0} is in use by another agent; each agent needs its own --state-dir")]
    InUse(PathBuf),
    /// The ledger cannot be read: it is a directory, say, or another user's.
    #[error(
        "{path}: cannot be read: {source}; the agent does not start as if this node held nothing: make the file \
         readable by this user, or {STEP}"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The ledger is not what was written.
    #[error("{path}: damaged: {what}; the agent does not start as if this node held nothing: {STEP}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written by another build.
    #[error(
        "{path}: has format {found}, and this agent reads format {FORMAT}: start the agent that wrote it, or {STEP}"
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The ledger cannot be written.
    #[error(
        "{path}: cannot be written: {source}; free space or mend the disk: it is tried again every second, no restart \
         is needed"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The ledger cannot be turned into text.
    #[error("ledger cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// What was found when the state directory was opened.
#[derive(Debug)]
pub struct Opened {
    /// The place to write to.
    pub file: LedgerFile,
    /// What the file held; `None` where there is none, as on a new node.
    pub ledger: Option<Ledger>,
}

/// The ledger file of one agent. Nobody else can open it meanwhile.
#[derive(Debug)]
pub struct LedgerFile {
    directory: PathBuf,
    disk: Box<dyn Disk>,
    /// Cluster of the ledger that the file holds.
    cluster: Option<ClusterId>,
    _lock: File,
}

impl LedgerFile {
    /// Opens the state directory, which is made if it is not there, and reads the ledger.
    ///
    /// # Errors
    /// The directory cannot be used, another agent uses it, or the ledger cannot be read or is not what was written.
    pub fn open(directory: &Path) -> Result<Opened, LedgerFileError> {
        Self::open_on(directory, Box::new(LocalDisk::default()))
    }

    /// The same, on this disk.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_on(directory: &Path, disk: Box<dyn Disk>) -> Result<Opened, LedgerFileError> {
        let lock = lock(directory)?;
        let mut file = Self { directory: directory.to_owned(), disk, cluster: None, _lock: lock };
        let path = file.path(FILE);
        let bytes = match file.disk.read(&path, MAX_BYTES + 1) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Opened { file, ledger: None });
            }
            Err(source) => return Err(LedgerFileError::Unreadable { path, source }),
        };
        match parse(&bytes) {
            Ok(ledger) => {
                // It may be there by a write that did not come to its end: what is told from now on must stay true.
                file.disk
                    .sync_directory(directory)
                    .map_err(|source| LedgerFileError::Directory { path: directory.to_owned(), source })?;
                file.cluster.clone_from(&ledger.cluster);
                Ok(Opened { file, ledger: Some(ledger) })
            }
            Err(Damage::Format(found)) => Err(LedgerFileError::OtherFormat { path, found }),
            Err(Damage::Broken(what)) => Err(LedgerFileError::Damaged { path, what }),
        }
    }

    /// Replaces the ledger as a whole. After a success it survives a crash of the machine. A ledger of another
    /// cluster that is in the way is kept under another name.
    ///
    /// # Errors
    /// The old ledger is still there, or the new one is, never half of one.
    pub fn write(&mut self, ledger: &Ledger) -> Result<(), LedgerFileError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LedgerFileError::Write { path, source }
        };
        let (path, new_path) = (self.path(FILE), self.path(NEW_FILE));
        let bytes = format(ledger)?;
        if let (Some(old), Some(new)) = (&self.cluster, &ledger.cluster)
            && old != new
        {
            self.keep_aside("other-cluster").map_err(failed(&path))?;
        }
        self.disk.write(&new_path, &bytes).map_err(failed(&new_path))?;
        self.disk.sync().map_err(failed(&new_path))?;
        self.disk.rename(&new_path, &path).map_err(failed(&path))?;
        self.cluster.clone_from(&ledger.cluster);
        self.disk.sync_directory(&self.directory).map_err(failed(&self.directory))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Copies the present file to `ledger.WHY-N`. A copy: until the new ledger is there the old one stays. Under that
    /// name it is whole or not there: on a disk that is full this is tried again every second.
    fn keep_aside(&mut self, why: &str) -> io::Result<()> {
        let bytes = self.disk.read(&self.path(FILE), MAX_BYTES)?;
        let (path, is_kept) = self.place_aside(why, &bytes);
        if !is_kept {
            let new = self.path(ASIDE_FILE);
            let kept = self.disk.write(&new, &bytes).and_then(|()| self.disk.sync());
            if let Err(error) = kept.and_then(|()| self.disk.rename(&new, &path)) {
                // It would only take space that may be what is missing.
                let _ = self.disk.remove(&new);
                return Err(error);
            }
        }
        self.disk.sync_directory(&self.directory)
    }

    /// Where a copy of this goes, and whether it is there already: a write that is tried again finds the one that it
    /// made before.
    fn place_aside(&mut self, why: &str, bytes: &[u8]) -> (PathBuf, bool) {
        let name = |number: u32| self.directory.join(format!("{FILE}.{why}-{number}"));
        for path in (1..MAX_KEPT).map(name) {
            match self.disk.read(&path, bytes.len() as u64 + 1) {
                Ok(kept) if kept == bytes => return (path, true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return (path, false),
                Ok(_) | Err(_) => {}
            }
        }
        (name(MAX_KEPT), false)
    }
}

fn lock(directory: &Path) -> Result<File, LedgerFileError> {
    let path = directory.join(LOCK_FILE);
    fs::create_dir_all(directory)
        .map_err(|source| LedgerFileError::Directory { path: directory.to_owned(), source })?;
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(|source| LedgerFileError::Directory { path: path.clone(), source })?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(LedgerFileError::InUse(directory.to_owned())),
        Err(TryLockError::Error(source)) => Err(LedgerFileError::Directory { path, source }),
    }
}

enum Damage {
    /// Not damaged: another build's.
    Format(u32),
    /// What is wrong.
    Broken(String),
}

fn format(ledger: &Ledger) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec_pretty(ledger)?;
    let checksum = crc32fast::hash(&body);
    let mut bytes = format!("{MAGIC} {FORMAT} crc32={checksum:08x} bytes={}\n", body.len()).into_bytes();
    bytes.extend(body);
    bytes.push(b'\n');
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Ledger, Damage> {
    let broken = |what: &str| Damage::Broken(what.to_owned());
    if bytes.len() as u64 > MAX_BYTES {
        return Err(broken("it is larger than any ledger"));
    }
    if bytes.is_empty() {
        return Err(broken("it is empty"));
    }
    let line_end =
        bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| broken("it has no first line"))?;
    let (line, rest) = bytes.split_at(line_end);
    let line = std::str::from_utf8(line).map_err(|_| broken("its first line is not text"))?;
    let mut words = line.split(' ');
    if words.next() != Some(MAGIC) {
        return Err(broken("its first line does not name a ledger"));
    }
    let found: u32 = words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| broken("its format is not a number"))?;
    if found != FORMAT {
        return Err(Damage::Format(found));
    }
    let checksum = words.next().and_then(|word| u32::from_str_radix(word.strip_prefix("crc32=")?, 16).ok());
    let length = words.next().and_then(|word| word.strip_prefix("bytes=")?.parse::<usize>().ok());
    let (Some(checksum), Some(length)) = (checksum, length) else {
        return Err(broken("its first line has no checksum and length"));
    };
    let body = rest[1..].strip_suffix(b"\n").unwrap_or(&rest[1..]);
    if body.len() != length {
        return Err(Damage::Broken(format!("it holds {} of {length} bytes", body.len())));
    }
    if crc32fast::hash(body) != checksum {
        return Err(broken("its checksum does not match"));
    }
    serde_json::from_slice(body).map_err(|error| Damage::Broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_common::gang::PodRequest;
    use phalanx_common::ids::{GangName, GpuId, LeaseId, PodUid, Term};
    use phalanx_common::units::{Millis, Time};
    use phalanx_common::wire::{ContainerDevices, Exactness, LeaseRequest};
    use phalanx_node_core::{DurableLease, DurableState};

    use super::*;

    fn ledger(cluster: &str) -> Ledger {
        let devices = ContainerDevices {
            container: Arc::from("main"),
            gpus: vec![GpuId(u128::MAX), GpuId(1)],
            nics: Vec::new(),
        };
        let request = LeaseRequest {
            pod: PodUid::from("uid"),
            pod_name: GangName::new("team", "pod"),
            gang: GangName::new("team", "gang"),
            request: PodRequest::default(),
            devices: vec![devices],
            exactness: Exactness::Exact,
            run_for: Some(Millis(5)),
        };
        let state = DurableState::Started { at: Time(7), ended: Some(true) };
        Ledger {
            cluster: Some(ClusterId::from(cluster)),
            highest_term: Term { counter: 3, incarnation: u64::MAX },
            boot_id: Arc::from("boot"),
            leases: vec![DurableLease {
                lease: LeaseId { term: 3, serial: 1 },
                state,
                request,
                unverified: true,
            }],
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = LedgerFile::open(&directory.path().join("deep/er")).unwrap();
        assert!(opened.ledger.is_none());
        opened.file.write(&ledger("c1")).unwrap();
        drop(opened);
        let opened = LedgerFile::open(&directory.path().join("deep/er")).unwrap();
        assert_eq!(opened.ledger, Some(ledger("c1")));
    }

    #[test]
    fn every_kind_of_damage_stops_the_agent_and_touches_nothing() {
        let good = super::format(&ledger("c1")).unwrap();
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 1;
        let other_json = b"{}";
        let checksum = crc32fast::hash(other_json);
        let wrong = format!("{MAGIC} 1 crc32={checksum:08x} bytes=2\n{{}}\n").into_bytes();
        let damages: [(Vec<u8>, &str); 8] = [
            (Vec::new(), "it is empty"),
            (b"hello\n".to_vec(), "its first line does not name a ledger"),
            (b"phalanx-ledger x\n".to_vec(), "its format is not a number"),
            (b"phalanx-ledger 1\n".to_vec(), "its first line has no checksum and length"),
            (vec![0xff; 100], "it has no first line"),
            (good[..good.len() - 20].to_vec(), "bytes"),
            (flipped, "its checksum does not match"),
            (wrong, "missing field"),
        ];
        let directory = tempfile::tempdir().unwrap();
        for (bytes, expected) in damages {
            fs::write(directory.path().join(FILE), &bytes).unwrap();
            let error = LedgerFile::open(directory.path()).unwrap_err();
            assert!(matches!(error, LedgerFileError::Damaged { .. }), "{error:?}");
            let text = error.to_string();
            let path = directory.path().join(FILE);
            assert!(text.starts_with(&format!("{}: damaged: ", path.display())), "{text}");
            assert!(text.contains(expected) && text.contains("then move the file away"), "{text}");
            assert_eq!(fs::read(path).unwrap(), bytes);
            assert_eq!(names(directory.path()), ["ledger", "ledger.lock"]);
        }
    }

    #[test]
    fn a_half_written_file_is_no_ledger() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = LedgerFile::open(directory.path()).unwrap();
        opened.file.write(&ledger("c1")).unwrap();
        drop(opened);
        fs::write(directory.path().join(NEW_FILE), "half").unwrap();
        assert_eq!(LedgerFile::open(directory.path()).unwrap().ledger, Some(ledger("c1")));
    }

    #[test]
    fn a_ledger_of_another_cluster_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = LedgerFile::open(directory.path()).unwrap();
        opened.file.write(&ledger("c1")).unwrap();
        opened.file.write(&ledger("c2")).unwrap();
        assert_eq!(names(directory.path()), ["ledger", "ledger.lock", "ledger.other-cluster-1"]);
    }

    #[test]
    fn another_format_stops_the_agent_and_touches_nothing() {
        let directory = tempfile::tempdir().unwrap();
        for format in [0, 2] {
            let text = format!("phalanx-ledger {format} something\nelse");
            fs::write(directory.path().join(FILE), text).unwrap();
            let error = LedgerFile::open(directory.path()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("has format {format}, and this agent reads format 1")),
                "{error}"
            );
        }
        assert_eq!(names(directory.path()), ["ledger", "ledger.lock"]);
    }

    #[test]
    fn two_agents_do_not_share_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = LedgerFile::open(directory.path()).unwrap();
        let error = LedgerFile::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("--state-dir"), "{error}");
        drop(first);
        LedgerFile::open(directory.path()).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = LedgerFile::open(&file).unwrap_err().to_string();
        assert!(error.contains("file") && error.contains("--state-dir"), "{error}");
    }
}
