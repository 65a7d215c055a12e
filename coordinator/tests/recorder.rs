//! Recordings: their files, their bounds, and their replay.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_common::ids::{ActionId, QueueName, Term};
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::Resources;
use phalanx_common::units::Time;
use phalanx_coordinator::recorder::{Record, Recorder, RecordingLimits, chain_of};
use phalanx_coordinator::replay::{Replay, ReplayError, replay};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

fn queue(name: &str) -> Event {
    Event::QueueApplied(QueueSpec {
        name: QueueName::from(name),
        priority: 0,
        capability: Resources::default(),
        open: true,
    })
}

fn started() -> Event {
    Event::Started { term: Term { counter: 1, incarnation: 2 } }
}

/// Records these events with a pass after each, done by a real core.
async fn record(directory: &Path, limits: RecordingLimits, events: Vec<Event>) -> PathBuf {
    let settings = Settings::default();
    let mut core = Core::new(settings.clone());
    let mut recorder = Recorder::start(directory, Time(1000), &settings, limits).unwrap();
    let file = recorder.file().to_owned();
    for (at, event) in (1000..).map(Time).zip(events) {
        recorder.record_patiently(Record::Event { at, event: event.clone() }).await;
        let mut actions = Vec::new();
        core.apply(event, at, &mut actions);
        core.cycle(at, &mut actions);
        recorder.record_patiently(Record::Cycle { at, actions }).await;
    }
    recorder.finish();
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

#[tokio::test]
async fn a_long_recording_goes_on_in_new_files_and_replays_over_all_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let limits = RecordingLimits { file_bytes: 2000, files: 1000 };
    let events: Vec<Event> = [started(), Event::Synced]
        .into_iter()
        .chain((0..200).map(|number| queue(&format!("queue-{number}"))))
        .collect();
    let file = record(directory.path(), limits, events).await;
    assert!(files(directory.path()).len() > 5);
    let replay = replayed(&file).unwrap();
    assert_eq!((replay.events, replay.cycles, replay.difference), (202, 202, None));
}

#[tokio::test]
async fn only_the_newest_files_are_kept_and_a_chain_without_its_first_file_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let limits = RecordingLimits { file_bytes: 2000, files: 3 };
    let events = (0..200).map(|number| queue(&format!("queue-{number}"))).collect();
    let first = record(directory.path(), limits, events).await;
    let kept = files(directory.path());
    assert_eq!(kept.len(), 3);
    assert!(!first.exists());
    let (start, part) = kept[0];
    let later = directory.path().join(format!("recording-{start:015}-{part:05}.jsonl"));
    let error = replayed(&later).unwrap_err();
    assert!(matches!(&error, ReplayError::NotFirst { first: named, .. } if *named == first), "{error}");
}

#[tokio::test]
async fn a_last_line_that_was_cut_off_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let events = vec![started(), queue("a"), Event::Synced];
    let file = record(directory.path(), RecordingLimits::default(), events).await;
    let text = fs::read(&file).unwrap();
    fs::write(&file, &text[..text.len() - 5]).unwrap();
    let replay = replayed(&file).unwrap();
    assert_eq!((replay.events, replay.cycles, replay.difference), (3, 2, None));
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
             \"settings\":{settings}}}}}\n"
        )
    };
    assert_eq!(
        error(&header(2)),
        "FILE: form 2 of the recording: this build reads form 1; use the version that wrote it"
    );
    assert!(error(&format!("{}nonsense\n", header(1))).starts_with("FILE:2: is no record of a recording: "));
    let twice = format!("{}{}", header(1), header(1));
    assert_eq!(error(&twice), "FILE:2: is no record of a recording: a second header");
    let missing = directory.path().join("nothing.jsonl");
    assert!(replayed(&missing).unwrap_err().to_string().contains("cannot be read: No such file"));
}
