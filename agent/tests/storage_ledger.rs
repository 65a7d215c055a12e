//! The agent's ledger under every kind of damage and on a disk that fails or ends at every call: it is the ledger
//! that was written, or the one before, or the agent does not start. Never another one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use phalanx_agent::ledger_file::{Disk, LedgerFile, LedgerFileError, LocalDisk};
use phalanx_common::ids::{ClusterId, Term};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::ToAgent;
use phalanx_node_core::{DurableLease, DurableState, Ledger};
use support::{TERM, lease, reserve};

/// A ledger of two leases; the number tells one from another.
fn ledger(number: u64) -> Ledger {
    let stored = |serial: u64, gpus: &[u128], state: DurableState| {
        let ToAgent::Reserve { request, .. } = reserve(serial, gpus, Some(Millis(number))) else { panic!() };
        DurableLease { lease: lease(serial), state, request: *request, unverified: false }
    };
    Ledger {
        cluster: Some(ClusterId::from("c1")),
        highest_term: Term { counter: number, ..TERM },
        boot_id: Arc::from("boot"),
        leases: vec![
            stored(1, &[0, 1], DurableState::Armed),
            stored(2, &[2], DurableState::Started { at: Time(number), ended: None }),
        ],
    }
}

fn written(directory: &Path, ledger: &Ledger) -> Vec<u8> {
    let mut opened = LedgerFile::open(directory).unwrap();
    opened.file.write(ledger).unwrap();
    fs::read(directory.join("ledger")).unwrap()
}

/// The ledger that this file holds, or what is wrong with it.
fn read(directory: &Path, bytes: &[u8]) -> Result<Option<Ledger>, String> {
    let disk = Shared::default();
    disk.lock().now.insert(directory.join("ledger"), bytes.to_vec());
    let opened = LedgerFile::open_on(directory, Box::new(disk));
    opened.map(|opened| opened.ledger).map_err(|error| error.to_string())
}

#[test]
fn a_ledger_cut_at_any_length_is_the_same_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = written(directory.path(), &ledger(1));
    for length in 0..bytes.len() {
        match read(directory.path(), &bytes[..length]) {
            // Without its last line end it is still whole.
            Ok(found) => assert_eq!((length, found), (bytes.len() - 1, Some(ledger(1)))),
            Err(text) => assert!(text.contains("/ledger: damaged: "), "{length}: {text}"),
        }
    }
}

#[test]
fn a_ledger_with_any_bit_flipped_is_the_same_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = written(directory.path(), &ledger(1));
    let mut refused = 0;
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match read(directory.path(), &flipped) {
            Ok(found) => assert_eq!(found, Some(ledger(1)), "bit {bit}"),
            Err(text) => {
                refused += 1;
                assert!(text.contains("/ledger: ") && text.contains("move the file away"), "{bit}: {text}");
            }
        }
    }
    // Only the case of a digit of the checksum may differ without harm.
    assert!(refused >= bytes.len() * 8 - 8, "{refused} of {} flips were found", bytes.len() * 8);
}

#[test]
fn what_cannot_be_a_ledger_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    fs::create_dir(&path).unwrap();
    let error = LedgerFile::open(directory.path()).unwrap_err();
    assert!(matches!(error, LedgerFileError::Unreadable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("{}: cannot be read: Is a directory", path.display())), "{text}");
    fs::remove_dir(&path).unwrap();
    fs::create_dir(directory.path().join("ledger.lock.away")).unwrap();
    fs::remove_file(directory.path().join("ledger.lock")).unwrap();
    fs::create_dir(directory.path().join("ledger.lock")).unwrap();
    let text = LedgerFile::open(directory.path()).unwrap_err().to_string();
    assert!(text.contains("ledger.lock: Is a directory") && text.contains("--state-dir"), "{text}");
}

/// What a call does to the names and contents of a directory.
#[derive(Clone, Debug)]
enum Change {
    Content(PathBuf, Vec<u8>),
    Name(PathBuf, PathBuf),
    Gone(PathBuf),
}

/// A disk in memory: what is not synced may or may not outlive a crash.
#[derive(Debug, Default)]
struct Model {
    /// As programs see it.
    now: BTreeMap<PathBuf, Vec<u8>>,
    /// What a crash leaves for sure.
    durable: BTreeMap<PathBuf, Vec<u8>>,
    contents: Vec<Change>,
    names: Vec<Change>,
    calls: usize,
    fails_at: Option<usize>,
    /// Once failed, everything fails: the machine is down.
    is_crash: bool,
}

fn make(files: &mut BTreeMap<PathBuf, Vec<u8>>, change: &Change) {
    match change {
        Change::Content(path, bytes) => {
            files.insert(path.clone(), bytes.clone());
        }
        Change::Name(from, to) => {
            if let Some(bytes) = files.remove(from) {
                files.insert(to.clone(), bytes);
            }
        }
        Change::Gone(path) => {
            files.remove(path);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Model>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }

    /// Counts a call; an error where it is the one that fails.
    fn call(&self) -> io::Result<MutexGuard<'_, Model>> {
        let mut model = self.lock();
        model.calls += 1;
        match model.fails_at {
            Some(at) if model.calls == at || (model.is_crash && model.calls > at) => {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(model),
        }
    }

    /// All that a crash may leave: each change that was not synced is there, not there, or there by half.
    fn crashes(&self) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
        let model = self.lock();
        let open: Vec<&Change> = model.contents.iter().chain(&model.names).collect();
        let mut results = vec![model.durable.clone()];
        for change in open {
            for mut files in results.clone() {
                if let Change::Content(path, bytes) = change {
                    files.insert(path.clone(), bytes[..bytes.len() / 2].to_vec());
                    results.push(files.clone());
                }
                make(&mut files, change);
                results.push(files);
            }
        }
        // A name may be on the disk before the content is.
        for change in &model.names {
            let mut files = model.durable.clone();
            if let Change::Name(from, _) = change {
                files.entry(from.clone()).or_default();
            }
            make(&mut files, change);
            results.push(files);
        }
        results
    }
}

impl Disk for Shared {
    fn read(&mut self, path: &Path, _max: u64) -> io::Result<Vec<u8>> {
        self.lock().now.get(path).cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let half = Change::Content(path.to_owned(), bytes[..bytes.len() / 2].to_vec());
        match self.call() {
            Ok(mut model) => {
                let whole = Change::Content(path.to_owned(), bytes.to_vec());
                make(&mut model.now, &whole);
                model.contents.push(whole);
                Ok(())
            }
            Err(error) => {
                // A full disk takes what fits.
                let mut model = self.lock();
                make(&mut model.now, &half);
                model.contents.push(half);
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut model = self.call()?;
        for change in std::mem::take(&mut model.contents) {
            make(&mut model.durable, &change);
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        let change = Change::Name(from.to_owned(), to.to_owned());
        make(&mut model.now, &change);
        model.names.push(change);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        let change = Change::Gone(path.to_owned());
        make(&mut model.now, &change);
        model.names.push(change);
        Ok(())
    }

    fn sync_directory(&mut self, _directory: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        for change in std::mem::take(&mut model.names) {
            make(&mut model.durable, &change);
        }
        Ok(())
    }
}

/// The ledger on a real directory that holds these files.
fn on_disk(files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<Option<Ledger>, LedgerFileError> {
    let directory = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        fs::write(directory.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    LedgerFile::open(directory.path()).map(|opened| opened.ledger)
}

#[test]
fn what_was_read_at_the_start_outlives_a_crash_of_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Shared::default();
    let mut file = LedgerFile::open_on(directory.path(), Box::new(disk.clone())).unwrap().file;
    file.write(&ledger(1)).unwrap();
    // The last call fails: the new file is in its place, and a crash of the machine may take it back.
    disk.lock().fails_at = Some(8);
    assert!(file.write(&ledger(2)).is_err());
    drop(file);
    let opened = LedgerFile::open_on(directory.path(), Box::new(disk.clone())).unwrap();
    assert_eq!(opened.ledger, Some(ledger(2)));
    for files in disk.crashes() {
        assert_eq!(on_disk(&files).unwrap(), Some(ledger(2)));
    }
}

#[test]
fn a_crash_between_any_two_calls_leaves_the_old_or_the_new_ledger() {
    for call in 1..=4 {
        let directory = tempfile::tempdir().unwrap();
        let disk = Shared::default();
        let mut file = LedgerFile::open_on(directory.path(), Box::new(disk.clone())).unwrap().file;
        file.write(&ledger(1)).unwrap();
        assert_eq!(disk.lock().calls, 4, "a write makes other calls than this test knows");
        let fails_at = Some(4 + call);
        (disk.lock().fails_at, disk.lock().is_crash) = (fails_at, true);
        assert!(file.write(&ledger(2)).is_err(), "{call}");
        for files in disk.crashes() {
            let found = on_disk(&files).unwrap_or_else(|error| panic!("crash at call {call}: {error}"));
            let found = found.unwrap_or_else(|| panic!("crash at call {call}: no ledger"));
            assert!(found == ledger(1) || found == ledger(2), "crash at call {call}: {found:?}");
        }
    }
    // And after a success it is the new one, whatever is lost.
    let directory = tempfile::tempdir().unwrap();
    let disk = Shared::default();
    let mut file = LedgerFile::open_on(directory.path(), Box::new(disk.clone())).unwrap().file;
    for number in 1..=3 {
        file.write(&ledger(number)).unwrap();
        for files in disk.crashes() {
            assert_eq!(on_disk(&files).unwrap(), Some(ledger(number)));
        }
    }
}

/// The copies of ledgers of other clusters among these files.
fn copies(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<&Vec<u8>> {
    let is_copy =
        |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("ledger.other-cluster-");
    files.iter().filter(|(path, _)| is_copy(path)).map(|(_, bytes)| bytes).collect()
}

/// A directory whose ledger is that of `ledger(1)`, its disk, and the one that it shall become.
fn moving() -> (tempfile::TempDir, Shared, LedgerFile, Ledger) {
    let directory = tempfile::tempdir().unwrap();
    let disk = Shared::default();
    let mut file = LedgerFile::open_on(directory.path(), Box::new(disk.clone())).unwrap().file;
    file.write(&ledger(1)).unwrap();
    disk.lock().calls = 0;
    let other = Ledger { cluster: Some(ClusterId::from("c2")), ..ledger(2) };
    (directory, disk, file, other)
}

#[test]
fn a_crash_while_the_node_changes_its_cluster_leaves_the_old_or_the_new_ledger() {
    for call in 1..=8 {
        let (directory, disk, mut file, other) = moving();
        let old = disk.lock().now[&directory.path().join("ledger")].clone();
        (disk.lock().fails_at, disk.lock().is_crash) = (Some(call), true);
        assert!(file.write(&other).is_err(), "{call}");
        for files in disk.crashes() {
            let found = on_disk(&files).unwrap_or_else(|error| panic!("crash at call {call}: {error}"));
            assert!(found == Some(ledger(1)) || found.as_ref() == Some(&other), "{call}: {found:?}");
            assert!(found == Some(ledger(1)) || copies(&files) == [&old], "{call}: the old one is lost");
        }
    }
    let (_directory, disk, mut file, other) = moving();
    file.write(&other).unwrap();
    assert_eq!(disk.lock().calls, 8, "a change makes other calls than this test knows");
}

#[test]
fn a_change_of_cluster_that_is_tried_again_and_again_leaves_one_whole_copy() {
    for call in 1..=8 {
        let (directory, disk, mut file, other) = moving();
        let old = disk.lock().now[&directory.path().join("ledger")].clone();
        for attempt in 1..=150 {
            (disk.lock().calls, disk.lock().fails_at) = (0, Some(call));
            let outcome = file.write(&other);
            assert!(attempt > 1 || outcome.is_err(), "{call}");
            let now = disk.lock().now.clone();
            assert!(
                copies(&now).len() <= 1 && copies(&now).iter().all(|copy| **copy == old),
                "{call}: {attempt}"
            );
            assert!(!now.contains_key(&directory.path().join("ledger.aside.new")), "{call}: {attempt}");
        }
        disk.lock().fails_at = None;
        file.write(&other).unwrap();
        let now = disk.lock().now.clone();
        assert_eq!((on_disk(&now).unwrap(), copies(&now)), (Some(other), vec![&old]), "{call}");
    }
}

#[test]
fn a_call_that_fails_is_an_error_with_the_file_and_the_next_write_heals() {
    for call in 1..=4 {
        let directory = tempfile::tempdir().unwrap();
        let disk = Shared::default();
        let mut file = LedgerFile::open_on(directory.path(), Box::new(disk.clone())).unwrap().file;
        file.write(&ledger(1)).unwrap();
        disk.lock().fails_at = Some(4 + call);
        let text = file.write(&ledger(2)).unwrap_err().to_string();
        assert!(text.contains(directory.path().to_str().unwrap()), "{text}");
        assert!(text.contains("cannot be written: no storage space; free space or mend the disk"), "{text}");
        let seen = on_disk(&disk.lock().now.clone()).unwrap();
        assert!(seen == Some(ledger(1)) || seen == Some(ledger(2)), "{call}: {seen:?}");
        file.write(&ledger(3)).unwrap();
        for files in disk.crashes() {
            assert_eq!(on_disk(&files).unwrap(), Some(ledger(3)), "{call}");
        }
    }
}

#[test]
fn the_local_disk_syncs_what_it_wrote_and_reads_no_more_than_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut disk = LocalDisk::default();
    disk.write(&path, b"12345").unwrap();
    disk.sync().unwrap();
    assert_eq!(disk.read(&path, 3).unwrap(), b"123");
    disk.rename(&path, &directory.path().join("other")).unwrap();
    disk.sync_directory(directory.path()).unwrap();
    assert_eq!(disk.read(&path, 3).unwrap_err().kind(), io::ErrorKind::NotFound);
}
