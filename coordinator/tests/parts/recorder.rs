//! Recordings: their files, their bounds, and their replay.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use phalanx_common::ids::{ActionId, QueueName, Term};
use phalanx_common::queue::QueueSpec;
use phalanx_common::units::Time;
use phalanx_coordinator::recorder::{Disk, FORMAT, Record, Recorder, RecordingLimits, chain_of};
use phalanx_coordinator::replay::{Replay, ReplayError, replay};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

fn queue(name: &str) -> Event {
    Event::QueueApplied(QueueSpec::new(QueueName::from(name)))
}

fn started() -> Event {
    Event::Started { term: Term { counter: 1, incarnation: 2 } }
}

/// A core and its recorder, as the driver has them.
struct Bench {
    core: Core,
    recorder: Recorder,
    now: u64,
}

impl Bench {
    fn new(recorder: Recorder) -> Self {
        Self { core: Core::new(Settings::default()), recorder, now: 1000 }
    }

    /// One fact, one pass, and a new part where one is due.
    async fn tell(&mut self, event: Event) {
        let at = Time(self.now);
        self.now += 1;
        self.recorder.record_patiently(Record::Event { at, event: event.clone() }).await;
        let mut actions = Vec::new();
        self.core.apply(event, at, &mut actions);
        self.core.cycle(at, &mut actions);
        self.recorder.record_patiently(Record::Cycle { at, actions }).await;
        if self.recorder.part_is_due() {
            self.recorder.begin_part(at, self.core.snapshot());
        }
    }

    /// Goes on until this part of its recording is there.
    async fn go_on_to(&mut self, directory: &Path, part: u32) {
        let (own, _) = chain_of(self.recorder.file()).unwrap();
        for number in 0.. {
            self.tell(queue(&format!("queue-{}", number % 40))).await;
            assert!(self.recorder.is_recording());
            tokio::task::yield_now().await;
            if files(directory).iter().any(|(chain, found)| *chain == own && *found >= part) {
                break;
            }
        }
    }
}

/// Records these events with a pass after each, done by a real core.
async fn record(directory: &Path, limits: RecordingLimits, events: Vec<Event>) -> PathBuf {
    let recorder = Recorder::start(directory, Time(1000), &Settings::default(), limits).unwrap();
    let file = recorder.file().to_owned();
    let mut bench = Bench::new(recorder);
    for event in events {
        bench.tell(event).await;
    }
    bench.recorder.finish();
    file
}

fn replayed(file: &Path) -> Result<Replay, ReplayError> {
    replay(file, &mut Vec::new())
}

fn files(directory: &Path) -> Vec<(u64, u32)> {
    let mut files: Vec<(u64, u32)> =
        fs::read_dir(directory).unwrap().map(|entry| chain_of(&entry.unwrap().path()).unwrap()).collect();
    files.sort_unstable();
    files
}

#[tokio::test]
async fn a_recording_replays_to_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let events = vec![started(), queue("a"), queue("b"), Event::Synced];
    let file = record(directory.path(), RecordingLimits::default(), events).await;
    let replay = replayed(&file).unwrap();
    assert_eq!((replay.events, replay.cycles, replay.difference), (4, 4, None));
}

#[test]
fn a_second_process_does_not_record_where_one_does_and_may_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let start =
        || Recorder::start(directory.path(), Time(1000), &Settings::default(), RecordingLimits::default());
    let first = start().unwrap();
    let error = start().unwrap_err().to_string();
    assert!(error.contains("a coordinator that runs already records there"), "{error}");
    assert!(error.contains("choose another --state-dir"), "{error}");
    assert_eq!(files(directory.path()).len(), 1, "it left the first one's files alone");
    first.finish();
    start().unwrap().finish();
}

#[tokio::test]
async fn a_recorded_action_that_is_not_made_is_the_first_difference() {
    let directory = tempfile::tempdir().unwrap();
    let file = record(directory.path(), RecordingLimits::default(), vec![started(), Event::Synced]).await;
    let foreign = Action { id: ActionId(77), command: Command::Warn { message: "never said".to_owned() } };
    let text = fs::read_to_string(&file).unwrap();
    let last = text.lines().last().unwrap();
    let Record::Cycle { at, mut actions } = serde_json::from_str(last).unwrap() else { panic!("{last}") };
    actions.push(foreign.clone());
    let changed = serde_json::to_string(&Record::Cycle { at, actions }).unwrap();
    fs::write(&file, text.replace(last, &changed)).unwrap();

    let replay = replayed(&file).unwrap();
    let difference = replay.difference.unwrap();
    assert_eq!((difference.path, difference.line), (file, text.lines().count()));
    assert_eq!((difference.recorded, difference.replayed), (Some(foreign), None));
}

/// A directory with a recording of some parts, and its first file.
async fn recording_of_parts(limits: RecordingLimits, parts: u32) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(directory.path(), Time(1000), &Settings::default(), limits).unwrap();
    let first = recorder.file().to_owned();
    let mut bench = Bench::new(recorder);
    bench.tell(started()).await;
    bench.tell(Event::Synced).await;
    bench.go_on_to(directory.path(), parts).await;
    bench.recorder.finish();
    (directory, first)
}

fn part_file(directory: &Path, part: u32) -> PathBuf {
    directory.join(format!("recording-{:015}-{part:05}.jsonl", 1000))
}

#[tokio::test]
async fn a_long_recording_goes_on_in_new_files_and_replays_from_each_of_them() {
    let (directory, first) = recording_of_parts(RecordingLimits { file_bytes: 2000, files: 1000 }, 5).await;
    let whole = replayed(&first).unwrap();
    assert_eq!((whole.difference.as_ref(), whole.notes.as_slice()), (None, [].as_slice()));
    let parts: Vec<u32> = files(directory.path()).into_iter().map(|(_, part)| part).collect();
    assert!(parts.len() > 5 && parts.iter().copied().eq(0..parts.len() as u32), "{parts:?}");
    // Each begins where the one before ended, and holds passes of its own.
    let mut cycles = whole.cycles + 1;
    for part in parts {
        let replay = replayed(&part_file(directory.path(), part)).unwrap();
        assert_eq!((replay.difference, replay.notes.len()), (None, 0), "part {part}");
        assert!(replay.cycles < cycles, "part {part} holds {} passes of {cycles}", replay.cycles);
        cycles = replay.cycles;
    }
}

#[tokio::test]
async fn only_the_newest_files_are_kept_and_they_replay_without_the_first() {
    let (directory, first) = recording_of_parts(RecordingLimits { file_bytes: 2000, files: 3 }, 8).await;
    let kept = files(directory.path());
    assert_eq!(kept.len(), 3);
    assert!(!first.exists());
    let replay = replayed(&part_file(directory.path(), kept[0].1)).unwrap();
    assert!(replay.cycles > 0);
    assert_eq!((replay.difference, replay.notes), (None, Vec::new()));
}

/// So many full files of an earlier process.
fn old_files(directory: &Path, start: u64, count: u32) -> Vec<PathBuf> {
    let path = |part| directory.join(format!("recording-{start:015}-{part:05}.jsonl"));
    let paths: Vec<PathBuf> = (0..count).map(path).collect();
    paths.iter().for_each(|path| fs::write(path, [b'x'; 2000]).unwrap());
    paths
}

#[tokio::test]
async fn a_clock_that_was_ahead_once_costs_only_old_recordings() {
    let directory = tempfile::tempdir().unwrap();
    old_files(directory.path(), 9_999_999_999_999, 8);
    let limits = RecordingLimits { file_bytes: 2000, files: 4 };
    let first = record(directory.path(), limits, vec![started(), Event::Synced]).await;
    let replay = replayed(&first).unwrap();
    assert_eq!((replay.events, replay.difference), (2, None));
    assert_eq!(files(directory.path()).len(), 4);
    // The next process is the newer one, although the clock stands still between the two.
    let second = record(directory.path(), limits, vec![started()]).await;
    assert!(second > first && first.exists(), "{second:?}");
    assert_eq!(replayed(&second).unwrap().events, 1);
    // Names of others, above all of ours, do not hurt either.
    fs::write(directory.path().join(format!("recording-{}-00000.jsonl", u64::MAX)), [b'x'; 2000]).unwrap();
    let recorder = Recorder::start(directory.path(), Time(1000), &Settings::default(), limits).unwrap();
    let (own, _) = chain_of(recorder.file()).unwrap();
    assert!(recorder.file() > second.as_path());
    let mut bench = Bench::new(recorder);
    bench.go_on_to(directory.path(), 5).await;
    bench.recorder.finish();
    let kept = files(directory.path());
    assert!(kept.len() == 4 && kept.iter().all(|(chain, _)| *chain == own), "{kept:?}");
}

#[tokio::test]
async fn an_old_recording_that_cannot_be_removed_stops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let stuck = directory.path().join("recording-000000000000001-00000.jsonl");
    fs::create_dir(&stuck).unwrap();
    let old = old_files(directory.path(), 2, 3);
    let limits = RecordingLimits { file_bytes: 2000, files: 2 };
    let recorder = Recorder::start(directory.path(), Time(1000), &Settings::default(), limits).unwrap();
    assert!(!old[0].exists() && !old[1].exists() && old[2].exists(), "{:?}", files(directory.path()));
    let mut bench = Bench::new(recorder);
    bench.go_on_to(directory.path(), 5).await;
    bench.recorder.finish();
    let left = files(directory.path());
    assert!(left.len() == 3 && left[0] == (1, 0) && left[2].1 > 2, "{left:?}");
}

#[tokio::test]
async fn many_short_lives_do_not_push_out_what_was_before_them() {
    let directory = tempfile::tempdir().unwrap();
    let limits = RecordingLimits { file_bytes: 200_000, files: 3 };
    let first = record(directory.path(), limits, vec![started(), queue("the one that crashed")]).await;
    for _ in 0..15 {
        record(directory.path(), limits, vec![started()]).await;
    }
    assert_eq!(replayed(&first).unwrap().events, 2);
    // All the same there is an end to it.
    for _ in 0..10 {
        record(directory.path(), limits, vec![started()]).await;
    }
    assert_eq!(files(directory.path()).len(), 1 + 2 * 8);
}

#[tokio::test]
async fn a_state_that_is_not_the_machines_is_a_difference() {
    let (directory, first) = recording_of_parts(RecordingLimits { file_bytes: 2000, files: 1000 }, 2).await;
    let second = part_file(directory.path(), 1);
    let text = fs::read_to_string(&second).unwrap();
    let changed = text.replacen("\"next_action\":", "\"next_action\":9", 1);
    assert_ne!(text, changed);
    fs::write(&second, changed).unwrap();
    let difference = replayed(&first).unwrap().difference.unwrap();
    assert_eq!((difference.path, difference.line), (second, 2));
    assert!(difference.state.unwrap().starts_with("core.next_action: recorded 9"));
}

/// Lengths to which a file is cut: around ends of lines, and some in between; a few of each, since each cut is a
/// replay.
fn cuts(text: &[u8]) -> Vec<usize> {
    let ends = (0..text.len()).filter(|at| text[*at] == b'\n');
    let near =
        ends.clone().step_by((ends.count() / 12).max(1)).flat_map(|end| end.saturating_sub(1)..end + 3);
    let between = (0..text.len()).step_by((text.len() / 40).max(1));
    let cuts: BTreeSet<usize> = near.chain(between).filter(|at| *at < text.len()).collect();
    cuts.into_iter().collect()
}

#[tokio::test]
async fn a_state_that_contradicts_itself_is_an_error_that_names_its_line() {
    let (directory, _) = recording_of_parts(RecordingLimits { file_bytes: 2000, files: 1000 }, 1).await;
    let second = part_file(directory.path(), 1);
    let text = fs::read_to_string(&second).unwrap();
    let changed = text.replacen("\"charged\":{\"cpu_milli\":0", "\"charged\":{\"cpu_milli\":5", 1);
    assert_ne!(text, changed);
    fs::write(&second, changed).unwrap();
    let error = replayed(&second).unwrap_err().to_string();
    assert!(error.contains("-00001.jsonl:2: "), "{error}");
}

#[tokio::test]
async fn a_recording_that_was_killed_at_any_byte_replays_up_to_the_cut() {
    let (directory, first) = recording_of_parts(RecordingLimits { file_bytes: 1500, files: 1000 }, 1).await;
    let all = replayed(&first).unwrap();
    let second = part_file(directory.path(), 1);
    for (_, part) in files(directory.path()).into_iter().filter(|(_, part)| *part > 1) {
        fs::remove_file(part_file(directory.path(), part)).unwrap();
    }
    let (text, later) = (fs::read(&first).unwrap(), fs::read(&second).unwrap());
    fs::remove_file(&second).unwrap();
    let header = text.iter().position(|byte| *byte == b'\n').unwrap();
    for length in cuts(&text).into_iter().filter(|length| *length > header) {
        fs::write(&first, &text[..length]).unwrap();
        let replay = replayed(&first).unwrap();
        let cut = text[length - 1] != b'\n';
        assert_eq!((replay.difference, replay.notes.len()), (None, usize::from(cut)), "{length} bytes");
    }
    fs::write(&first, &text[..header]).unwrap();
    assert!(replayed(&first).unwrap_err().to_string().ends_with("the first line must be the header"));
    // A new part was being written: what came before it is whole.
    fs::write(&first, &text).unwrap();
    let state_ends = later.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0;
    for length in cuts(&later) {
        fs::write(&second, &later[..length]).unwrap();
        let replay = replayed(&first).unwrap();
        let cut = length > 0 && later[length - 1] != b'\n';
        assert_eq!((replay.difference, replay.notes.len()), (None, usize::from(cut)), "{length} bytes");
        assert!(replay.cycles <= all.cycles);
        let alone = replayed(&second);
        assert_eq!(alone.is_ok(), length > state_ends, "{length} bytes");
    }
    let header = later.iter().position(|byte| *byte == b'\n').unwrap();
    fs::write(&second, &later[..header + 20]).unwrap();
    let text = replayed(&second).unwrap_err().to_string();
    assert!(text.contains("begin with an earlier part") && text.contains("-00000.jsonl"), "{text}");
}

/// A disk with room for so many bytes, for all files together.
#[derive(Clone, Default)]
struct SmallDisk {
    left: Arc<AtomicUsize>,
}

struct SmallFile {
    left: Arc<AtomicUsize>,
    file: fs::File,
}

impl Disk for SmallDisk {
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(SmallFile { left: Arc::clone(&self.left), file: fs::File::create(path)? }))
    }

    fn retry_after(&self, _: u32) -> Duration {
        Duration::ZERO
    }
}

impl Write for SmallFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let room = self.left.load(Ordering::Relaxed).min(buffer.len());
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left.fetch_sub(room, Ordering::Relaxed);
        self.file.write(&buffer[..room])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[tokio::test]
async fn on_a_full_disk_the_recording_ends_and_goes_on_in_a_new_part_when_there_is_space() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::default();
    disk.left.store(20_000, Ordering::Relaxed);
    let limits = RecordingLimits { file_bytes: 1 << 20, files: 8 };
    let recorder = Recorder::start_on(
        Box::new(disk.clone()),
        directory.path(),
        Time(1000),
        &Settings::default(),
        limits,
    );
    let mut bench = Bench::new(recorder.unwrap());
    let first = bench.recorder.file().to_owned();
    bench.tell(started()).await;
    bench.tell(Event::Synced).await;
    assert!(bench.recorder.is_recording());
    while bench.recorder.is_recording() {
        bench.tell(queue("a")).await;
        tokio::task::yield_now().await;
    }
    // Attempts on a disk that is still full leave nothing behind.
    for _ in 0..100 {
        bench.tell(queue("b")).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!bench.recorder.is_recording());
    disk.left.store(1 << 20, Ordering::Relaxed);
    while !bench.recorder.is_recording() {
        bench.tell(queue("c")).await;
        tokio::task::yield_now().await;
    }
    for number in 0..10 {
        bench.tell(queue(&format!("after-{number}"))).await;
    }
    bench.recorder.finish();
    assert_eq!(files(directory.path()), [(1000, 0), (1000, 1)]);
    let replay = replayed(&first).unwrap();
    assert_eq!(replay.difference, None);
    assert!(replay.notes.iter().any(|note| note.contains("was not all recorded")), "{:?}", replay.notes);
    let alone = replayed(&part_file(directory.path(), 1)).unwrap();
    assert!(alone.cycles >= 10 && alone.difference.is_none() && alone.notes.is_empty(), "{alone:?}");
}

#[tokio::test]
async fn a_last_line_that_was_cut_off_is_left_out_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let events = vec![started(), queue("a"), Event::Synced];
    let file = record(directory.path(), RecordingLimits::default(), events).await;
    let text = fs::read(&file).unwrap();
    fs::write(&file, &text[..text.len() - 5]).unwrap();
    let replay = replayed(&file).unwrap();
    assert_eq!((replay.events, replay.cycles, replay.difference), (3, 2, None));
    assert!(
        replay.notes.len() == 1 && replay.notes[0].contains(":7: the line was cut off"),
        "{:?}",
        replay.notes
    );
}

#[tokio::test]
async fn what_is_no_recording_is_named_by_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("recording-000000000001000-00000.jsonl");
    let error = |text: &str| {
        fs::write(&file, text).unwrap();
        replayed(&file).unwrap_err().to_string().replace(file.to_str().unwrap(), "FILE")
    };
    assert_eq!(error(""), "FILE:1: is no record of a recording: the first line must be the header");
    assert!(error("{}\n").starts_with("FILE:1: is no record of a recording: "));
    let settings = serde_json::to_string(&Settings::default()).unwrap();
    let header = |format: u32| {
        format!(
            "{{\"header\":{{\"format\":{format},\"version\":\"0.1.0\",\"start\":1000,\"part\":0,\
             \"continues\":false,\"settings\":{settings}}}}}\n"
        )
    };
    assert_eq!(
        error(&header(1)),
        format!(
            "FILE: form 1 of the recording: this build reads form {FORMAT}; use the version that wrote it"
        )
    );
    assert!(
        error(&format!("{}nonsense\n", header(FORMAT))).starts_with("FILE:2: is no record of a recording: ")
    );
    let state = serde_json::to_string(&Core::new(Settings::default())).unwrap();
    let early = format!("{}{{\"snapshot\":{{\"at\":1000,\"core\":{state}}}}}\n", header(FORMAT));
    let early = error(&early);
    assert!(early.ends_with("a state belongs to the begin of a part after part 0"), "{early}");
    let missing = directory.path().join("nothing.jsonl");
    assert!(replayed(&missing).unwrap_err().to_string().contains("cannot be read: No such file"));
}
