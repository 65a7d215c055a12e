//! `phalanx-agent inventory` as a person runs it.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::support::{own_profile, workspace};

/// The agent's program, built by cargo if it is not fresh: this package's tests do not build it.
fn agent() -> Command {
    let mut program: PathBuf = env::current_exe().unwrap();
    program.pop();
    if program.ends_with("deps") {
        program.pop();
    }
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(workspace()).args(["build", "--quiet", "--offline", "-p", "phalanx-agent", "--bin", "phalanx-agent"]);
    if program.ends_with("release") {
        build.arg("--release");
    }
    build.env("CARGO_TARGET_DIR", program.parent().unwrap());
    assert!(build.status().unwrap().success());
    Command::new(program.join("phalanx-agent"))
}

fn run(arguments: &[&str]) -> Output {
    agent().arg("inventory").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn inventory_of_a_profile_as_json_and_as_text() {
    let profile = own_profile("hgx-h100.toml");
    let profile = profile.to_str().unwrap();
    let output = run(&["--json", "--profile", profile]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["state"], "ready");
    assert_eq!(json["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(json["links"][0][1], serde_json::json!({"nvlinks": 18, "pcie": "NODE"}));
    let shown = run(&["--profile", profile]);
    assert!(text(&shown.stdout).contains("NV18"), "{}", text(&shown.stdout));
    assert_eq!(text(&shown.stderr), "");
}

#[test]
fn a_wrong_profile_ends_with_code_1_and_a_reason() {
    let output = run(&["--profile", "/nonexistent/profile.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent/profile.toml"), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));
}
