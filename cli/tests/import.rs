//! `phalanx import` with the real program: what it prints of each file in `tests/import` stands beside it, word for word
//! (`PHALANX_UPDATE_IMPORT=1` writes these anew), and the coordinator's own reader takes what it writes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use phalanx_common::units::Millis;
use phalanx_coordinator::config::{Config, RunArguments};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

fn import(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.arg("import").args(words).current_dir(folder()).output().unwrap()
}

/// What a configuration makes of the coordinator.
fn configured(text: &str) -> Config {
    let arguments = RunArguments { state_dir: Some("/s".to_owned()), ..RunArguments::default() };
    arguments.resolve_bytes(text.as_bytes(), Path::new("F")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Imports a file into a new one and reads that as the coordinator does.
fn configuration(file: &str) -> Config {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("coordinator.toml");
    let done = import(&["--scheduler-conf", file, "--out", out.to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
    configured(&fs::read_to_string(out).unwrap())
}

#[test]
fn every_line_of_a_file_is_told_and_what_is_written_is_read_by_the_coordinator() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".txt"))
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let done = import(&["--scheduler-conf", &name]);
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        let printed = String::from_utf8(done.stdout).unwrap();
        let (_, configuration) = printed.split_once("(--out FILE writes it):\n\n").unwrap();
        configured(configuration);
        let path = folder().join(format!("{name}.txt"));
        if std::env::var_os("PHALANX_UPDATE_IMPORT").is_some_and(|value| value == "1") {
            fs::write(&path, &printed).unwrap();
        }
        assert_eq!(printed, fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
    }
}

#[test]
fn without_the_actions_nobody_is_evicted() {
    let settings = configuration("wish.conf").settings;
    assert_eq!((settings.preempt, settings.reclaim), (false, false));
    let settings = configuration("default.conf").settings;
    assert_eq!((settings.preempt, settings.reclaim), (false, false));
}

#[test]
fn actions_switches_and_waiting_time_become_keys() {
    let settings = configuration("configmap.yaml").settings;
    assert_eq!((settings.preempt, settings.reclaim), (true, true));
    assert_eq!(settings.hold_after_ms, Millis(3_720_000));
    // No plugin would allow victims.
    let settings = configuration("no-victims.conf").settings;
    assert_eq!((settings.preempt, settings.reclaim), (false, true));
}

#[test]
fn an_action_that_is_none_is_refused_and_switches_nothing_off() {
    let directory = tempfile::tempdir().unwrap();
    let (conf, out) = (directory.path().join("volcano.conf"), directory.path().join("coordinator.toml"));
    fs::write(&conf, "actions: \"enqueue, allocate, premept\"\ntiers:\n- plugins:\n  - name: gang\n")
        .unwrap();
    let done = import(&["--scheduler-conf", conf.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!((done.status.code(), out.exists()), (Some(1), false), "{done:?}");
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(
        told.contains("volcano.conf:1: actions: unknown action \"premept\"; did you mean preempt?"),
        "{told}"
    );
}

#[test]
fn the_report_is_data_too() {
    let done = import(&["--scheduler-conf", "wish.conf", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(value["settings"][0]["key"], "preempt");
    assert_eq!(value["settings"][0]["value"], "false");
    assert_eq!(value["written_to"], serde_json::Value::Null);
    let lines = value["lines"].as_array().unwrap();
    let find = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap();
    assert_eq!(find("enqueue")["becomes"], "always-on");
    assert_eq!(find("overcommit")["kind"], "plugin");
    assert_eq!(find("preempt absent")["line"], serde_json::Value::Null);
    configured(value["configuration"].as_str().unwrap());
}

#[test]
fn a_file_is_never_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("coordinator.toml");
    fs::write(&out, "mine").unwrap();
    let done = import(&["--scheduler-conf", "wish.conf", "--out", out.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(1));
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(told.contains("exists already: name a new file, or remove it first"), "{told}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
}
