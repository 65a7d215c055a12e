//! The program itself: as a process, with its files, up to its end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use phalanx_common::ids::NodeName;
use phalanx_common::wire::{FromAgent, LeaseState, ToAgent};
use support::{FakeCoordinator, NODE, TERM, lease, reserve};

const PROGRAM: &str = env!("CARGO_BIN_EXE_phalanx-agent");

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(directory: &Path, arguments: &[&str]) -> Process {
    let mut command = Command::new(PROGRAM);
    command
        .args(["run", "--node", NODE, "--state-dir"])
        .arg(directory)
        .args(["--nvml-library", "/nonexistent/libnvidia-ml.so.1"])
        .args(arguments)
        .env_remove("RUST_LOG")
        .stderr(Stdio::piped());
    Process(command.spawn().unwrap())
}

fn save_certificates(coordinator: &FakeCoordinator, directory: &Path) {
    let (identity, authority) = coordinator.certificate();
    identity.save(&directory.join("pki"), "agent").unwrap();
    authority.save(&directory.join("pki")).unwrap();
}

/// Ends the process by a signal and gives its exit code and log.
fn end(mut process: Process, signal: &str) -> (Option<i32>, String) {
    let sent = Command::new("kill").args([signal, &process.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let log = BufReader::new(process.0.stderr.take().unwrap());
    let log: Vec<String> = log.lines().map(Result::unwrap).collect();
    (process.0.wait().unwrap().code(), log.join("\n"))
}

#[tokio::test]
async fn a_node_without_driver_serves_and_its_leases_outlive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = FakeCoordinator::new();
    save_certificates(&coordinator, directory.path());
    let address = coordinator.address.to_string();
    let process = run(directory.path(), &["--coordinator", &address]);
    let mut session = coordinator.welcome().await;
    assert_eq!(session.hello.inventory.gpus.len(), 0);
    assert!(session.hello.inventory.cpu_milli > 0);
    session.say(reserve(1, &[], None)).await;
    assert_eq!(session.hear().await, FromAgent::Reserved { term: TERM, lease: lease(1) });
    session.say(ToAgent::Arm { term: TERM, lease: lease(1) }).await;
    let armed = FromAgent::LeaseIs { term: TERM, lease: lease(1), state: LeaseState::Armed };
    assert_eq!(session.hear().await, armed);
    end(process, "-KILL");

    let process = run(directory.path(), &["--coordinator", &address, "--log-format", "json"]);
    let session = coordinator.welcome().await;
    assert_eq!(session.hello.leases.len(), 1);
    let (code, log) = end(process, "-TERM");
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("the agent stops") && log.lines().all(|line| line.starts_with('{')), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn what_is_wrong_at_the_start_is_named_once_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    let fails = |arguments: &[&str]| {
        let mut process = run(directory.path(), arguments);
        let log = BufReader::new(process.0.stderr.take().unwrap());
        let log: Vec<String> = log.lines().map(Result::unwrap).collect();
        assert_eq!(process.0.wait().unwrap().code(), Some(1), "{log:?}");
        log.join("\n")
    };
    let log = fails(&["--coordinator", "localhost"]);
    assert_eq!(
        log,
        "error: --coordinator: must be HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:7410, found \"localhost\""
    );
    let log = fails(&["--coordinator", "localhost:1", "--probe-interval", "-1s"]);
    assert_eq!(log, "error: --probe-interval: must be a duration from 100ms to 1h such as 5s, found \"-1s\"");
    let log = fails(&["--coordinator", "localhost:1"]);
    assert!(log.contains("issue-agent --node node-1") && log.matches("No such file").count() == 1, "{log}");
    assert!(!log.contains("os error"), "{log}");

    let coordinator = phalanx_transport::CertificateAuthority::create().unwrap();
    let other = coordinator.issue_agent(&NodeName::from("node-2")).unwrap();
    other.save(&directory.path().join("pki"), "agent").unwrap();
    coordinator.trust_anchor().save(&directory.path().join("pki")).unwrap();
    let log = fails(&["--coordinator", "localhost:1"]);
    assert!(log.contains("is for node node-2, not for node-1"), "{log}");

    let own = coordinator.issue_agent(&NodeName::from(NODE)).unwrap();
    own.save(&directory.path().join("pki"), "agent").unwrap();
    std::fs::create_dir(directory.path().join("ledger")).unwrap();
    let log = fails(&["--coordinator", "localhost:1"]);
    assert!(
        log.contains("ledger: cannot be read: Is a directory; ") && log.contains("move the file away"),
        "{log}"
    );
}

#[test]
fn the_inventory_of_a_machine_without_driver_is_no_error() {
    let output = Command::new(PROGRAM)
        .args(["inventory", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("State   no NVML library"), "{text}");
}
