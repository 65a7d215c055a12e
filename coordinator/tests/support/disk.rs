//! A disk in memory that fails when it is told to, and shows what a crash of the machine leaves of it.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use phalanx_coordinator::api::embedded::{Confirmed, Fill, Medium, OpenError, builder};
use redb::{Database, StorageBackend};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written, once.
    WriteRefused,
    /// Half of it is written, once.
    WriteTorn,
    /// The sync fails once, and what was not synced before never comes to the disk by itself.
    SyncLost,
    /// No write succeeds from here on.
    Full,
    /// Nothing succeeds from here on.
    Dead,
}

/// Those that a process survives; it cannot see more of a dead disk than of a full one.
pub const FAULTS: [Fault; 4] = [Fault::WriteRefused, Fault::WriteTorn, Fault::SyncLost, Fault::Full];

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

fn make(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, data) => {
            let end = *at as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(data);
        }
        Change::Length(length) => bytes.resize(*length as usize, 0),
    }
}

/// One file: as it reads, and as a crash would leave it.
#[derive(Debug, Default)]
struct Image {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug, Default)]
struct Faults {
    calls: u64,
    at: Option<(u64, Fault)>,
    /// Full or dead by now.
    down: Option<Fault>,
}

#[derive(Debug, Default)]
struct State {
    faults: Mutex<Faults>,
    image: Mutex<Image>,
    confirmed: Mutex<Option<Confirmed>>,
    hanging: Mutex<Hanging>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Hanging {
    hangs: bool,
    waiting: u32,
}

/// The disk. Clones are one disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<State>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Full => io::Error::from(io::ErrorKind::StorageFull),
        fault => io::Error::other(format!("the disk failed: {fault:?}")),
    }
}

impl Disk {
    /// A disk with this file, and nothing that was ever confirmed.
    pub fn with(bytes: Vec<u8>, confirmed: Option<Confirmed>) -> Self {
        let disk = Self::default();
        *lock(&disk.0.image) = Image { durable: bytes.clone(), bytes, unsynced: Vec::new() };
        *lock(&disk.0.confirmed) = confirmed;
        disk
    }

    /// The call of this number from now, counted from 1, fails.
    pub fn fail(&self, call: u64, fault: Fault) {
        let mut faults = lock(&self.0.faults);
        faults.at = Some((faults.calls + call, fault));
    }

    /// The disk is well again.
    pub fn mend(&self) {
        let mut faults = lock(&self.0.faults);
        (faults.at, faults.down) = (None, None);
    }

    /// No call comes back from here on.
    pub fn hang(&self) {
        lock(&self.0.hanging).hangs = true;
    }

    /// All calls that hang come back, and all later ones.
    pub fn release(&self) {
        lock(&self.0.hanging).hangs = false;
        self.0.released.notify_all();
    }

    /// Calls that hang now.
    pub fn waiting(&self) -> u32 {
        lock(&self.0.hanging).waiting
    }

    fn wait(&self) {
        let mut hanging = lock(&self.0.hanging);
        hanging.waiting += 1;
        let mut hanging = self.0.released.wait_while(hanging, |hanging| hanging.hangs).unwrap();
        hanging.waiting -= 1;
    }

    /// Writes, syncs and changes of length so far.
    pub fn calls(&self) -> u64 {
        lock(&self.0.faults).calls
    }

    pub fn has_failed(&self) -> bool {
        let faults = lock(&self.0.faults);
        faults.down.is_some() || faults.at.is_none_or(|(at, _)| faults.calls >= at)
    }

    pub fn bytes(&self) -> Vec<u8> {
        lock(&self.0.image).bytes.clone()
    }

    pub fn confirmed(&self) -> Option<Confirmed> {
        lock(&self.0.confirmed).clone()
    }

    /// What a crash of the machine leaves: what was synced, and of the rest what `kept` says, change by change.
    /// A change that is cut keeps its first half.
    pub fn crashed(&self, mut kept: impl FnMut() -> Kept) -> Self {
        let image = lock(&self.0.image);
        let mut bytes = image.durable.clone();
        for change in &image.unsynced {
            match (kept(), change) {
                (Kept::Lost, _) => {}
                (Kept::Cut, Change::Write(at, data)) => {
                    make(&mut bytes, &Change::Write(*at, data[..data.len() / 2].to_vec()));
                }
                _ => make(&mut bytes, change),
            }
        }
        Self::with(bytes, self.confirmed())
    }

    fn call(&self) -> Result<(), Fault> {
        self.wait();
        let mut faults = lock(&self.0.faults);
        faults.calls += 1;
        if let Some(down) = faults.down {
            return Err(down);
        }
        match faults.at {
            Some((at, fault)) if faults.calls == at => {
                if matches!(fault, Fault::Full | Fault::Dead) {
                    faults.down = Some(fault);
                }
                Err(fault)
            }
            _ => Ok(()),
        }
    }

    fn sync(&self, image: &Mutex<Image>) -> io::Result<()> {
        let outcome = self.call();
        let mut image = lock(image);
        match outcome {
            Ok(()) | Err(Fault::Full | Fault::WriteRefused | Fault::WriteTorn) => {
                for change in std::mem::take(&mut image.unsynced) {
                    make(&mut image.durable, &change);
                }
                Ok(())
            }
            Err(fault) => {
                if fault == Fault::SyncLost {
                    image.unsynced.clear();
                }
                Err(error(fault))
            }
        }
    }

    fn change(&self, image: &Mutex<Image>, change: Change) -> io::Result<()> {
        let outcome = self.call();
        let mut image = lock(image);
        let (done, failed) = match (outcome, change) {
            (Ok(()) | Err(Fault::SyncLost), change) => (Some(change), None),
            (Err(fault @ Fault::WriteTorn), Change::Write(at, data)) => {
                (Some(Change::Write(at, data[..data.len() / 2].to_vec())), Some(fault))
            }
            (Err(fault), _) => (None, Some(fault)),
        };
        if let Some(change) = done {
            make(&mut image.bytes, &change);
            image.unsynced.push(change);
        }
        failed.map_or(Ok(()), |fault| Err(error(fault)))
    }
}

/// What becomes of a change that was not synced.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    Whole,
    Cut,
    Lost,
}

#[derive(Debug)]
struct Backend {
    disk: Disk,
    /// `None`: the disk's file.
    new: Option<Arc<Mutex<Image>>>,
}

impl Backend {
    fn image(&self) -> &Mutex<Image> {
        self.new.as_deref().unwrap_or(&self.disk.0.image)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(self.image()).bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(Fault::Dead) = lock(&self.disk.0.faults).down {
            return Err(error(Fault::Dead));
        }
        let image = lock(self.image());
        let end = offset as usize + out.len();
        let part = image.bytes.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.disk.change(self.image(), Change::Length(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync(self.image())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.change(self.image(), Change::Write(offset, data.to_vec()))
    }
}

impl Medium for Disk {
    fn file(&self) -> &Path {
        Path::new("/memory/objects.redb")
    }

    fn open(&mut self) -> Result<Option<Database>, OpenError> {
        if lock(&self.0.image).bytes.is_empty() {
            return Ok(None);
        }
        let backend = Backend { disk: self.clone(), new: None };
        let opened = builder().create_with_backend(backend);
        opened.map(Some).map_err(|error| OpenError::of(self.file(), error))
    }

    fn replace(&mut self, fill: Fill<'_>) -> Result<(), redb::Error> {
        let new = Arc::new(Mutex::new(Image::default()));
        let backend = Backend { disk: self.clone(), new: Some(new.clone()) };
        let database = builder().create_with_backend(backend)?;
        fill(&database)?;
        database.close()?;
        self.sync(&new)?;
        *lock(&self.0.image) = std::mem::take(&mut lock(&new));
        Ok(())
    }

    fn renew(&mut self) -> io::Result<()> {
        let bytes = self.bytes();
        self.change(&self.0.image, Change::Write(0, bytes))?;
        self.sync(&self.0.image)
    }

    fn is_in_place(&self) -> bool {
        true
    }

    fn confirmed(&self) -> io::Result<Option<Confirmed>> {
        Ok(lock(&self.0.confirmed).clone())
    }

    fn confirm(&mut self, confirmed: &Confirmed) {
        *lock(&self.0.confirmed) = Some(confirmed.clone());
    }

    fn witness(&self) -> PathBuf {
        PathBuf::from("/memory/objects.confirmed")
    }

    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(200)
    }
}

impl Disk {
    /// Somebody else writes over the file.
    pub fn overwrite(&self, bytes: Vec<u8>) {
        *lock(&self.0.image) = Image { durable: bytes.clone(), bytes, unsynced: Vec::new() };
    }
}
