//! The program as users run it: start, signals, certificates, errors.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::cluster::{agent_of, held, job};
use crate::support::{PATIENCE, apply_ok, ask, gang_of, until, until_phase};
use phalanx_coordinator::coordinator::Endpoints;
use phalanx_coordinator::replay::replay;
use phalanx_transport::{Identity, TrustAnchor};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-coordinator"));
    command.env_remove("RUST_LOG");
    command
}

fn run_arguments(state_dir: &Path) -> Command {
    run_on(state_dir, "127.0.0.1:0")
}

fn run_on(state_dir: &Path, listen: &str) -> Command {
    let mut command = program();
    command.args(["run", "--listen", listen, "--admin", "127.0.0.1:0", "--state-dir"]).arg(state_dir);
    command
}

/// A coordinator that is killed where the test ends early.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(state_dir: &Path) -> Self {
        Self::start_on(state_dir, "127.0.0.1:0")
    }

    fn start_on(state_dir: &Path, listen: &str) -> Self {
        let child = run_on(state_dir, listen).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Self(child);
        let began = Instant::now();
        while Endpoints::read(state_dir).is_none_or(|endpoints| endpoints.pid != running.0.id()) {
            assert!(running.0.try_wait().unwrap().is_none(), "ended early: {}", running.log());
            assert!(began.elapsed() < PATIENCE, "never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end; gives the exit code.
    fn end(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "never ended");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has written, once it has ended.
    fn log(&mut self) -> String {
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn it_tells_where_it_listens_and_ends_in_order_on_both_signals() {
    let directory = tempfile::tempdir().unwrap();
    for (number, signal) in ["TERM", "INT"].iter().enumerate() {
        let mut running = Running::start(directory.path());
        let endpoints = Endpoints::read(directory.path()).unwrap();
        assert!(endpoints.admin.starts_with("http://127.0.0.1:"), "{endpoints:?}");
        assert!(!endpoints.admin.ends_with(":0") && !endpoints.quic.ends_with(":0"), "{endpoints:?}");
        running.signal(signal);
        assert_eq!(running.end(), Some(0));
        let log = running.log();
        assert!(
            !log.contains("ERROR") && log.contains(&format!("SIG{signal}: the coordinator stops")),
            "{log}"
        );
        assert!(Endpoints::read(directory.path()).is_none(), "the file stays behind");
        let recordings = fs::read_dir(directory.path().join("recordings")).unwrap().count();
        assert_eq!(recordings, number + 1);
    }
}

#[test]
fn a_second_coordinator_of_one_state_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = Running::start(directory.path());
    let output = run_arguments(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = error(&output);
    let expected = format!(
        "error: {}: in use by another coordinator; stop that one, or give this one its own --state-dir\n",
        directory.path().join("objects.redb").display()
    );
    assert_eq!(text, expected);
    assert_eq!(Endpoints::read(directory.path()).unwrap().pid, first.0.id());
}

#[test]
fn an_address_in_use_is_named_with_its_flag() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = program()
        .args(["run", "--listen", "127.0.0.1:0", "--admin", &address, "--state-dir"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        error(&output),
        format!(
            "error: --admin: {address}: Address already in use; is another program using it? port 0 \
             takes a free one\n"
        )
    );
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = program()
        .args(["run", "--admin", "127.0.0.1:0", "--listen", &address, "--state-dir"])
        .arg(directory.path())
        .output()
        .unwrap();
    let text = error(&output);
    assert_eq!(
        text,
        format!(
            "error: --listen: UDP socket on {address}: Address already in use; is another program using it? port 0 \
             takes a free one\n"
        )
    );
}

#[test]
fn a_damaged_store_and_a_wrong_state_directory_say_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("objects.redb"), "nonsense that is no database at all").unwrap();
    let output = run_arguments(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = error(&output);
    assert!(text.contains("objects.redb: damaged: ") && text.contains("move the file away"), "{text}");

    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let text = error(&run_arguments(&file).output().unwrap());
    let expected = format!("error: --state-dir: {}: ", file.display());
    assert!(text.starts_with(&expected) && text.contains("name a directory that can be written"), "{text}");
}

#[test]
fn wrong_values_end_with_one_line() {
    let output = program().args(["run", "--reservation", "soon"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        error(&output),
        "error: --reservation: must be a duration from 1s to 10m such as 10s, found \"soon\"\n"
    );
    for (flag, value, allowed) in [
        ("--refusal-budget", "-1", "a whole number from 1 to 1000"),
        ("--quarantine", "-5s", "a duration from 1s to 1h such as 30s"),
    ] {
        let output = program().args(["run", flag, value]).output().unwrap();
        assert_eq!(error(&output), format!("error: {flag}: must be {allowed}, found {value:?}\n"));
    }
    let output = program().args(["run", "--no-such-flag"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("unexpected argument '--no-such-flag'"));
}

#[test]
fn certificates_are_issued_before_and_after_the_first_start_by_one_authority() {
    let directory = tempfile::tempdir().unwrap();
    let issue = |node: &str, out: &Path| {
        let mut command = program();
        command
            .args(["issue-agent", "--state-dir"])
            .arg(directory.path())
            .args(["--node", node, "--out"])
            .arg(out);
        command.output().unwrap()
    };
    let before = directory.path().join("before");
    let output = issue("n1", &before);
    assert!(output.status.success(), "{}", error(&output));
    drop(Running::start(directory.path()));
    let after = directory.path().join("after");
    assert!(issue("n2", &after).status.success());
    for out in [&before, &after] {
        Identity::load(out, "agent").unwrap();
        TrustAnchor::load(out).unwrap();
    }
    assert_eq!(fs::read(before.join("ca.pem")).unwrap(), fs::read(after.join("ca.pem")).unwrap());

    let output = issue("Not_a_node", &after);
    assert_eq!(output.status.code(), Some(1));
    let text = error(&output);
    assert!(text.starts_with("error: --node: \"Not_a_node\": "), "{text}");
}

#[test]
fn replay_says_the_same_or_the_first_difference() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start(directory.path());
    running.signal("TERM");
    assert_eq!(running.end(), Some(0));
    let recording =
        fs::read_dir(directory.path().join("recordings")).unwrap().next().unwrap().unwrap().path();
    let output = program().arg("replay").arg(&recording).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    assert!(error(&output).starts_with("the same: "), "{}", error(&output));

    let text = fs::read_to_string(&recording).unwrap();
    let changed = text.replacen(
        "\"actions\":[",
        "\"actions\":[{\"id\":999,\"command\":{\"Warn\":{\"message\":\"x\"}}},",
        1,
    );
    fs::write(&recording, changed.replace("},]", "}]")).unwrap();
    let output = program().arg("replay").arg(&recording).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = error(&output);
    assert!(text.contains(": the actions differ\n  recorded: {\"id\":999,"), "{text}");
    let output = program().args(["replay", "/nowhere"]).output().unwrap();
    assert_eq!(error(&output), "error: /nowhere: cannot be read: No such file or directory\n");
}

/// Killed at any moment, with gangs at every step of their lives: all of them go on, and no GPU is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_coordinator_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let state_dir = directory.path();
    // Let go at once; the agents dial the same address all the time.
    let quic: SocketAddr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let admin = || -> SocketAddr {
        Endpoints::read(state_dir).unwrap().admin.strip_prefix("http://").unwrap().parse().unwrap()
    };
    let mut running = Running::start_on(state_dir, &quic.to_string());
    let agents = [agent_of(quic, state_dir, 1, 4).await, agent_of(quic, state_dir, 2, 4).await];
    let jobs: Vec<String> = (0..6).map(|number| format!("train-{number}")).collect();
    for name in &jobs {
        apply_ok(&admin(), &job(name, "default", 2, "nvidia.com/gpu: 2", "700ms")).await;
    }
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(150));
        running.signal("KILL");
        running.end();
        assert!(!running.log().contains("ERROR"));
        running = Running::start_on(state_dir, &quic.to_string());
    }
    for name in &jobs {
        until_phase(&admin(), name, "Completed").await;
    }
    until(&admin(), "all GPUs free", |state| held(state) == 0 && gang_of(state, "train-0").is_some()).await;
    assert_eq!(ask(&admin(), "GET", "/readyz", None).await.status, 200);
    running.signal("TERM");
    assert_eq!(running.end(), Some(0));
    let mut recordings: Vec<_> =
        fs::read_dir(state_dir.join("recordings")).unwrap().collect::<Result<_, _>>().unwrap();
    recordings.sort_by_key(fs::DirEntry::path);
    assert_eq!(recordings.len(), 5);
    for recording in recordings {
        let replay = replay(&recording.path(), &mut Vec::new()).unwrap();
        assert_eq!(replay.difference, None, "{}", recording.path().display());
    }
    for agent in agents {
        agent.stop().await;
    }
}
