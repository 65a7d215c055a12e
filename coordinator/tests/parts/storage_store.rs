//! The store on a disk that fails at every possible call, and on a file with every kind of damage: what was
//! confirmed is there afterwards, or the coordinator refuses to start. Nothing else is ever served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::disk::{Disk, FAULTS, Fault, Kept};
use phalanx_common::units::Time;
use phalanx_coordinator::api::embedded::{EmbeddedApi, OpenError};
use phalanx_coordinator::api::{Api, ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use serde_json::json;

fn open(disk: &Disk) -> Result<EmbeddedApi, OpenError> {
    let mut serial = 0;
    let seed = disk.calls();
    let new_uid = move || {
        serial += 1;
        format!("uid-{seed}-{serial}")
    };
    EmbeddedApi::open_on(Box::new(disk.clone()), Box::new(new_uid), Box::new(|| Time(1000)))
}

fn queue(name: &str) -> Object {
    Object::new(Kind::Queue, "", name).with_spec(json!({ "priority": 1, "padding": "x".repeat(300) }))
}

fn create(name: &str) -> Mutation {
    Mutation::Create(Box::new(queue(name)))
}

fn key(name: &str) -> ObjectKey {
    queue(name).key()
}

/// Objects by name, as a comparable text.
type Objects = BTreeMap<ObjectKey, Arc<Object>>;

async fn objects(api: &EmbeddedApi) -> Objects {
    let (objects, _) = api.list(None).await.unwrap();
    objects.into_iter().map(|object| (object.key(), object)).collect()
}

/// What was confirmed so far.
#[derive(Default)]
struct Confirmed {
    objects: Objects,
    term: u64,
    /// Objects whose write failed: it may be there or not, as it was before or after.
    open: Vec<ObjectKey>,
}

impl Confirmed {
    fn heard(&mut self, key: ObjectKey, deletes: bool, answer: Result<Arc<Object>, ApiError>) {
        match answer {
            Ok(_) if deletes => {
                self.objects.remove(&key);
            }
            Ok(object) => {
                self.objects.insert(key, object);
            }
            Err(ApiError::Storage(text)) => {
                assert!(text.contains("objects.redb: cannot be written: "), "{text}");
                self.open.push(key);
            }
            // What comes after a write that failed.
            Err(ApiError::NotFound(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Writes of every sort.
async fn work(api: &EmbeddedApi, confirmed: &mut Confirmed) {
    // Enough for pages to be split, so that a write moves what others wrote.
    for name in ["a", "b", "c", "p", "m", "r", "d", "q", "k", "s", "e"] {
        confirmed.heard(key(name), false, api.mutate(create(name)).await);
    }
    if let Ok(term) = api.raise_term(0).await {
        confirmed.term = term;
    }
    let status = |name: &str, state: &str| Mutation::UpdateStatus {
        key: key(name),
        preconditions: Preconditions::default(),
        status: json!({ "state": state, "padding": "y".repeat(5000) }),
    };
    for state in ["Open", "Closed"] {
        confirmed.heard(key("a"), false, api.mutate(status("a", state)).await);
    }
    let delete = Mutation::Delete { key: key("b"), preconditions: Preconditions::default() };
    confirmed.heard(key("b"), true, api.mutate(delete).await);
    let names: Vec<String> = (0..12).map(|number| format!("many-{number}")).collect();
    let answers = api.mutate_all(names.iter().map(|name| create(name)).collect()).await;
    for (name, answer) in names.iter().zip(answers) {
        confirmed.heard(key(name), false, answer);
    }
    if let Ok(term) = api.raise_term(0).await {
        assert!(term > confirmed.term);
        confirmed.term = term;
    }
}

/// All that was confirmed is there, and nothing else but what may be there.
async fn check(api: &EmbeddedApi, confirmed: &Confirmed, context: &str) {
    let found = objects(api).await;
    for key in found.keys().chain(confirmed.objects.keys()) {
        let may_differ = confirmed.open.contains(key);
        assert!(may_differ || found.get(key) == confirmed.objects.get(key), "{context}: {key}");
    }
    let term = api.raise_term(0).await.unwrap();
    assert!(term > confirmed.term, "{context}: the term went back to {term}");
}

async fn filled() -> (Disk, Confirmed) {
    let disk = Disk::default();
    let api = open(&disk).unwrap();
    let mut confirmed = Confirmed::default();
    work(&api, &mut confirmed).await;
    assert_eq!((confirmed.objects.len(), confirmed.open.len(), confirmed.term), (22, 0, 2));
    drop(api);
    (disk, confirmed)
}

#[tokio::test]
async fn a_fault_at_any_call_loses_nothing_that_was_confirmed_and_heals_without_a_restart() {
    let (whole, _) = filled().await;
    for fault in FAULTS {
        for call in 1..=whole.calls() {
            let context = format!("{fault:?} at call {call}");
            let disk = Disk::default();
            disk.fail(call, fault);
            let Ok(api) = open(&disk) else {
                // Founding failed: once the disk is well the store is new or whole.
                disk.mend();
                open(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
                continue;
            };
            let mut confirmed = Confirmed::default();
            work(&api, &mut confirmed).await;
            let unknown = std::mem::take(&mut confirmed.open);
            // Readers see what was confirmed, all the time.
            assert_eq!(objects(&api).await, confirmed.objects, "{context}");
            disk.mend();
            let late = api.mutate(create("late")).await.unwrap_or_else(|error| panic!("{context}: {error}"));
            confirmed.objects.insert(late.key(), late);
            assert_eq!(objects(&api).await, confirmed.objects, "{context}");
            // What failed and was told so is settled by the next write: it was not done.
            let crashed = disk.crashed(|| Kept::Lost);
            drop(api);
            let api = open(&crashed).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(objects(&api).await, confirmed.objects, "{context} {unknown:?}");
            check(&api, &confirmed, &context).await;
        }
    }
}

#[tokio::test]
async fn a_crash_at_any_call_leaves_all_that_was_confirmed_whatever_else_reached_the_disk() {
    let (whole, _) = filled().await;
    let mut random = 1_u64;
    let mut draw = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for call in 1..=whole.calls() {
        let disk = Disk::default();
        disk.fail(call, Fault::Dead);
        let mut confirmed = Confirmed::default();
        if let Ok(api) = open(&disk) {
            work(&api, &mut confirmed).await;
        }
        for variant in 0..6 {
            let context = format!("crash at call {call}, variant {variant}");
            let crashed = disk.crashed(|| match variant {
                0 => Kept::Lost,
                1 => Kept::Whole,
                _ => [Kept::Whole, Kept::Cut, Kept::Lost][(draw() % 3) as usize],
            });
            let api = open(&crashed).unwrap_or_else(|error| panic!("{context}: {error}"));
            check(&api, &confirmed, &context).await;
        }
    }
}

/// What came of opening a damaged file: all of it, or a refusal with the way out.
async fn all_or_refused(bytes: Vec<u8>, whole: &Disk, confirmed: &Confirmed, context: &str) -> bool {
    let disk = Disk::with(bytes, whole.confirmed());
    match open(&disk) {
        Ok(api) => {
            assert_eq!(objects(&api).await, confirmed.objects, "{context}");
            assert_eq!(api.raise_term(0).await, Ok(confirmed.term + 1), "{context}");
            true
        }
        Err(error) => {
            let text = error.to_string();
            let told = ["damaged: ", "older than what this coordinator has confirmed", "written in format"];
            assert!(told.iter().any(|told| text.contains(told)), "{context}: {text}");
            assert!(text.contains("/memory/objects.redb: "), "{context}: {text}");
            false
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_is_harmless_or_found() {
    let (closed, confirmed) = filled().await;
    check_flips(&closed, &confirmed, 61).await;
    // And a file that was never closed: its other slot holds the write before the last one.
    let open_disk = Disk::default();
    let api = open(&open_disk).unwrap();
    let mut confirmed = Confirmed::default();
    work(&api, &mut confirmed).await;
    let late = api.mutate(create("late")).await.unwrap();
    confirmed.objects.insert(late.key(), late);
    check_flips(&open_disk.crashed(|| Kept::Lost), &confirmed, 151).await;
}

async fn check_flips(whole: &Disk, confirmed: &Confirmed, step: usize) {
    let bytes = whole.bytes();
    // The header bit by bit where it holds something, and a sample of the rest.
    let bits = |at: usize| if bytes[at] == 0 { 7..8 } else { 0..8 };
    let header = (0..320_usize).flat_map(|at| bits(at).map(move |bit| (at, bit)));
    let used: Vec<usize> = (320..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let rest = used.iter().step_by(step).map(|at| (*at, at % 8));
    let mut refused = 0;
    for (at, bit) in header.chain(rest) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << bit;
        let context = format!("bit {bit} of byte {at}");
        refused += u32::from(!all_or_refused(flipped, whole, confirmed, &context).await);
    }
    assert!(refused > 100, "only {refused} flips were found: the test flips where nothing is");
}

#[tokio::test]
async fn a_file_cut_at_any_length_is_found() {
    let (whole, confirmed) = filled().await;
    let bytes = whole.bytes();
    let step = bytes.len() / 150;
    for length in (1..600).step_by(7).chain((600..bytes.len()).step_by(step)) {
        let context = format!("cut to {length} of {}", bytes.len());
        assert!(!all_or_refused(bytes[..length].to_vec(), &whole, &confirmed, &context).await, "{context}");
    }
}

#[tokio::test]
async fn an_older_file_is_refused_until_somebody_accepts_the_loss() {
    let disk = Disk::default();
    let api = open(&disk).unwrap();
    api.mutate(create("kept")).await.unwrap();
    drop(api);
    let old = disk.bytes();
    let api = open(&disk).unwrap();
    api.mutate(create("lost")).await.unwrap();
    drop(api);
    let text = open(&Disk::with(old.clone(), disk.confirmed())).unwrap_err().to_string();
    assert!(text.contains("older than what this coordinator has confirmed (it ends at write 2, "), "{text}");
    assert!(text.contains("remove /memory/objects.confirmed to go on without"), "{text}");
    let api = open(&Disk::with(old, None)).unwrap();
    assert_eq!(objects(&api).await.into_keys().collect::<Vec<_>>(), [key("kept")]);
}

#[test]
fn a_store_of_another_format_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("objects.redb");
    let meta = redb::TableDefinition::<&str, &str>::new("meta");
    for format in ["1", "3"] {
        let database = redb::Database::create(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(meta).unwrap().insert("format", format).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let text = EmbeddedApi::open(&file).unwrap_err().to_string();
        assert_eq!(
            text,
            format!(
                "{}: written in format {format:?}, and this version reads format 2; use the version that wrote it, or \
                 move the file away",
                file.display()
            )
        );
        assert!(file.exists());
    }
}

#[tokio::test]
async fn a_file_that_is_moved_away_while_it_is_used_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("objects.redb");
    let api = EmbeddedApi::open(&file).unwrap();
    api.mutate(create("first")).await.unwrap();
    std::fs::rename(&file, directory.path().join("away")).unwrap();
    api.mutate(create("second")).await.unwrap();
    let (cluster, before) = (api.cluster_id(), objects(&api).await);
    drop(api);
    let api = EmbeddedApi::open(&file).unwrap();
    assert_eq!((api.cluster_id(), objects(&api).await.len()), (cluster, 2));
    assert_eq!(objects(&api).await, before);
}

#[tokio::test]
async fn a_full_disk_refuses_every_write_until_there_is_space() {
    let (disk, confirmed) = filled().await;
    let api = open(&disk).unwrap();
    disk.fail(1, Fault::Full);
    for _ in 0..3 {
        let error = api.mutate(create("late")).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "/memory/objects.redb: cannot be written: no storage space; nothing changes until it can: free space or \
             mend the disk of the state directory and try again, no restart is needed"
        );
        assert!(api.raise_term(0).await.is_err());
        assert_eq!(objects(&api).await, confirmed.objects);
        assert_eq!(*api.trouble().borrow(), Some(error));
    }
    disk.mend();
    api.mutate(create("late")).await.unwrap();
    assert_eq!(*api.trouble().borrow(), None);
    assert_eq!(api.raise_term(0).await, Ok(confirmed.term + 1));
}

#[tokio::test]
async fn a_file_that_breaks_while_it_is_used_is_written_anew_from_memory() {
    let (disk, mut confirmed) = filled().await;
    let api = open(&disk).unwrap();
    let mut broken = disk.bytes();
    let middle = broken.len() / 2;
    broken[..middle].fill(0x5a);
    // The next write fails, and what is found then is beyond repair.
    disk.fail(1, Fault::WriteRefused);
    assert!(api.mutate(create("late")).await.is_err());
    disk.overwrite(broken);
    let late = api.mutate(create("late")).await.unwrap();
    confirmed.objects.insert(late.key(), late);
    drop(api);
    let api = open(&disk).unwrap();
    assert_eq!(objects(&api).await, confirmed.objects);
    check(&api, &confirmed, "written anew").await;
}

/// A test that fails must not wait for the disk for ever.
struct Released(Disk);

impl Drop for Released {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[tokio::test]
async fn on_a_disk_that_hangs_one_write_is_begun_and_those_who_gave_up_leave_nothing_behind() {
    let disk = Disk::default();
    let api = open(&disk).unwrap();
    let _released = Released(disk.clone());
    disk.hang();
    let begun = tokio::spawn({
        let api = api.clone();
        async move { api.mutate(create("begun")).await }
    });
    while disk.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    for number in 0..100 {
        let write = api.mutate(create(&format!("given-up-{number}")));
        tokio::time::timeout(Duration::from_millis(1), write).await.unwrap_err();
        tokio::time::timeout(Duration::from_millis(1), api.raise_term(number)).await.unwrap_err();
    }
    // Whoever waits is told, and knows that nothing was begun.
    let patient = tokio::time::timeout(Duration::from_secs(20), api.mutate(create("patient"))).await;
    let Err(ApiError::Storage(text)) = patient.unwrap() else { panic!() };
    assert!(text.contains("objects.redb: ") && text.contains("nothing of this one was begun"), "{text}");
    assert_eq!(*api.trouble().borrow(), Some(text));
    // Reading does not need the disk.
    assert_eq!(objects(&api).await.len(), 0);
    assert_eq!(disk.waiting(), 1);
    disk.release();
    begun.await.unwrap().unwrap();
    assert_eq!(api.raise_term(0).await.unwrap(), 1);
    api.mutate(create("after")).await.unwrap();
    assert_eq!(*api.trouble().borrow(), None);
    let names: Vec<ObjectKey> = objects(&api).await.into_keys().collect();
    assert_eq!(names, [key("after"), key("begun")]);
}
