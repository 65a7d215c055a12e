//! What the simulated coordinators did can be done again: their recordings replay to the same actions.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use phalanx_coordinator::replay::{Replay, replay};
use phalanx_sim::{Options, run};

fn recorded(seed: u64, file: &Path) -> Vec<u8> {
    let report = run(Options { record: true, ..Options::seed(seed) });
    std::fs::write(file, &report.recording).unwrap();
    report.recording
}

fn replayed(file: &Path) -> Replay {
    replay(file, &mut std::io::sink()).unwrap()
}

#[test]
fn the_chaos_of_twenty_seeds_replays_to_the_same_actions() {
    let directory = tempfile::tempdir().unwrap();
    let (mut processes, mut parts, mut actions) = (0, 0, 0);
    for seed in 0..20 {
        let file = directory.path().join(format!("seed-{seed}.jsonl"));
        let text = recorded(seed, &file);
        let lines = || text.split(|byte| *byte == b'\n');
        let replay = replayed(&file);
        assert_eq!(replay.difference, None, "phalanx-sim --seed {seed} --record FILE");
        assert!(replay.notes.iter().all(|note| note.ends_with("another process begins")), "{replay:?}");
        processes += 1 + replay.notes.len();
        parts += lines().filter(|line| line.starts_with(b"{\"snapshot\"")).count();
        actions += replay.actions;
    }
    // What was replayed must be worth it.
    assert!(processes > 40, "{processes} processes");
    assert!(parts > 20, "{parts} parts");
    assert!(actions > 5_000, "{actions} actions");
}

#[test]
fn a_recording_of_a_run_is_the_same_each_time_and_does_not_change_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("seed.jsonl");
    assert_eq!(recorded(3, &file), recorded(3, &file));
    let plain = run(Options::seed(3));
    assert!(plain.recording.is_empty());
    assert_eq!(plain.steps, run(Options { record: true, ..Options::seed(3) }).steps);
}

#[test]
fn a_fact_that_is_missing_shows() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("seed.jsonl");
    let text = String::from_utf8(recorded(1, &file)).unwrap();
    // One pod may be deleted before it decides anything: of the first ten at least one matters.
    let facts: Vec<usize> =
        (0..).zip(text.lines()).filter(|(_, line)| line.contains("PodApplied")).map(|(at, _)| at).collect();
    let shows = |left_out: &usize| {
        let rest = text.lines().enumerate().filter(|(at, _)| at != left_out);
        let rest: String = rest.map(|(_, line)| format!("{line}\n")).collect();
        std::fs::write(&file, rest).unwrap();
        replayed(&file).difference.is_some()
    };
    assert!(facts.iter().take(10).any(shows));
}
