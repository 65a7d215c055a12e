//! `phalanx-agent inventory` as a person runs it.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

/// A profile of this tree.
fn own_profile(name: &str) -> String {
    format!("{}/../deploy/profiles/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_phalanx-agent")).arg("inventory").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn inventory_of_a_profile_as_json_and_as_text() {
    let profile = own_profile("hgx-h100.toml");
    let output = run(&["--json", "--profile", &profile]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["state"], "ready");
    assert_eq!(json["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(json["links"][0][1], serde_json::json!({"nvlinks": 18, "pcie": "NODE"}));
    let shown = run(&["--profile", &profile]);
    assert!(text(&shown.stdout).contains("NV18"), "{}", text(&shown.stdout));
    assert_eq!(text(&shown.stderr), "");
}

#[test]
fn a_machine_without_a_driver_is_no_error() {
    let output = run(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("no NVML library"), "{}", text(&output.stdout));
}

#[test]
fn a_wrong_profile_ends_with_code_1_and_a_reason() {
    let output = run(&["--profile", "/nonexistent/profile.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent/profile.toml"), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));
}
