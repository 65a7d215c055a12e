//! The agent as a process on broken files and on a disk that takes no more: it refuses to start with one line that
//! names the file and the way out, or it stays up, arms nothing, and goes on by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use phalanx_common::wire::{FromAgent, LeaseState, RefusalCause, ToAgent};
use support::{FakeCoordinator, NODE, Session, TERM, lease, reserve};

/// A user who owns nothing.
const NOBODY: u32 = 65_534;
const STEP: &str = "see that no pod of Phalanx runs on this node any more, then move the file away: the agent starts \
                    without leases, and takes those that still count anew from the coordinator's plans";

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Ends it in order; gives exit code and log.
    fn stop(mut self) -> (Option<i32>, String) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut log = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (self.0.wait().unwrap().code(), log)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn run(directory: &Path, pki: &Path, coordinator: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-agent"));
    command.args(["run", "--node", NODE, "--coordinator", coordinator, "--state-dir"]).arg(directory);
    command.arg("--pki-dir").arg(pki);
    command.args(["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    command.env_remove("RUST_LOG").stderr(Stdio::piped());
    command
}

/// A node: its state directory, its certificates, and who it dials.
struct Node {
    directory: tempfile::TempDir,
    pki: tempfile::TempDir,
    coordinator: FakeCoordinator,
}

impl Node {
    fn new() -> Self {
        let (directory, pki) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let coordinator = FakeCoordinator::new();
        let (identity, authority) = coordinator.certificate();
        identity.save(pki.path(), "agent").unwrap();
        authority.save(pki.path()).unwrap();
        Self { directory, pki, coordinator }
    }

    fn command(&self) -> Command {
        run(self.directory.path(), self.pki.path(), &self.coordinator.address.to_string())
    }

    fn start(&self) -> Process {
        Process(self.command().spawn().unwrap())
    }

    fn ledger(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }

    /// The error with which it refuses to start: the last line, after its greeting.
    fn refusal(&self) -> String {
        refusal(&mut self.command())
    }
}

fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("ERROR") && !text.contains("panicked"), "{text}");
    assert_eq!(text.matches("error: ").count(), 1, "{text}");
    text.trim_end()
        .lines()
        .last()
        .unwrap()
        .strip_prefix("error: ")
        .unwrap_or_else(|| panic!("{text}"))
        .to_owned()
}

/// Reserves and arms a lease without GPUs.
async fn arm(session: &mut Session, serial: u64) -> FromAgent {
    session.say(reserve(serial, &[], None)).await;
    assert_eq!(session.hear().await, FromAgent::Reserved { term: TERM, lease: lease(serial) });
    session.say(ToAgent::Arm { term: TERM, lease: lease(serial) }).await;
    session.hear().await
}

fn armed(serial: u64) -> FromAgent {
    FromAgent::LeaseIs { term: TERM, lease: lease(serial), state: LeaseState::Armed }
}

#[tokio::test]
async fn a_broken_ledger_stops_the_agent_by_name_and_moving_it_away_is_the_step_to_go_on() {
    let node = Node::new();
    let process = node.start();
    let mut session = node.coordinator.welcome().await;
    assert_eq!(arm(&mut session, 1).await, armed(1));
    process.kill();
    let (path, name) = (node.ledger(), node.ledger().display().to_string());
    let whole = fs::read(&path).unwrap();
    let damaged = |cause: &str| {
        format!("{name}: damaged: {cause}; the agent does not start as if this node held nothing: {STEP}")
    };

    fs::write(&path, "").unwrap();
    assert_eq!(node.refusal(), damaged("it is empty"));
    let body = whole.iter().position(|byte| *byte == b'\n').unwrap();
    fs::write(&path, &whole[..whole.len() - 21]).unwrap();
    let length = whole.len() - body - 2;
    assert_eq!(node.refusal(), damaged(&format!("it holds {} of {length} bytes", length - 20)));
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    fs::write(&path, flipped).unwrap();
    assert_eq!(node.refusal(), damaged("its checksum does not match"));
    fs::write(&path, "phalanx-ledger 9 of a later version\n").unwrap();
    assert_eq!(
        node.refusal(),
        format!(
            "{name}: has format 9, and this agent reads format 1: start the agent that wrote it, or {STEP}"
        )
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(
        node.refusal(),
        format!(
            "{name}: cannot be read: Is a directory; the agent does not start as if this node held nothing: make the \
             file readable by this user, or {STEP}"
        )
    );
    fs::remove_dir(&path).unwrap();

    // Nothing was touched: with the whole file it goes on, and without it it holds nothing.
    fs::write(&path, whole).unwrap();
    let process = node.start();
    assert_eq!(node.coordinator.welcome().await.hello.leases.len(), 1);
    process.kill();
    fs::rename(&path, node.directory.path().join("ledger.away")).unwrap();
    let process = node.start();
    assert_eq!(node.coordinator.welcome().await.hello.leases.len(), 0);
    let (code, log) = process.stop();
    assert!(code == Some(0) && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn broken_certificates_are_named() {
    let node = Node::new();
    for (file, cause) in [
        ("agent.pem", "the certificate is not valid PEM"),
        ("agent.key", "the private key is not valid PEM"),
        ("ca.pem", "the authority's certificate is not valid PEM"),
    ] {
        let path = node.pki.path().join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let text = node.refusal();
        assert!(text.contains(&format!("{}: {cause}", path.display())), "{text}");
        assert!(text.contains("issue-agent --node node-1"), "{text}");
        fs::write(&path, whole).unwrap();
    }
    // Of another authority: every coordinator would turn it away.
    let stranger = FakeCoordinator::new();
    stranger.certificate().1.save(node.pki.path()).unwrap();
    let text = node.refusal();
    assert!(text.contains("agent.pem: ca.pem is not of the authority that signed it"), "{text}");
}

#[tokio::test]
async fn a_directory_that_this_user_may_not_write_is_named() {
    let name = "a_directory_that_this_user_may_not_write_is_named";
    let node = Node::new();
    fs::set_permissions(node.directory.path(), Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(node.pki.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(node.pki.path().join("agent.key"), Permissions::from_mode(0o644)).unwrap();
    let mut command = node.command();
    if File::create(node.directory.path().join("probe")).is_ok() {
        // Root may write everywhere; somebody else may not, where the program may be read at all.
        command.uid(NOBODY).gid(NOBODY);
    }
    if command.output().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        println!("skipped {name}: another user may not run the program");
        return;
    }
    assert_eq!(
        refusal(&mut command),
        format!(
            "state directory: {}: Permission denied; it must be writable by this user, or choose another one with \
             --state-dir",
            node.directory.path().join("ledger.lock").display()
        )
    );
}

/// The ledger cannot grow, as on a full disk: nothing is armed, what was armed stays, and once it can grow the next
/// Arm is obeyed.
#[tokio::test]
async fn a_ledger_that_cannot_grow_arms_nothing_until_it_can() {
    let name = "a_ledger_that_cannot_grow_arms_nothing_until_it_can";
    let node = Node::new();
    let process = node.start();
    let mut session = node.coordinator.welcome().await;
    assert_eq!(arm(&mut session, 1).await, armed(1));
    let length = fs::metadata(node.ledger()).unwrap().len();
    let limit = |text: &str| {
        let id = process.0.id().to_string();
        Command::new("prlimit").args(["--pid", &id, &format!("--fsize={text}")]).status()
    };
    if !limit(&format!("{length}:unlimited")).is_ok_and(|status| status.success()) {
        println!("skipped {name}: prlimit is not there");
        return;
    }
    for _ in 0..2 {
        session.say(reserve(2, &[], None)).await;
        assert_eq!(session.hear().await, FromAgent::Reserved { term: TERM, lease: lease(2) });
        session.say(ToAgent::Arm { term: TERM, lease: lease(2) }).await;
        let FromAgent::Refused { cause: RefusalCause::Disk(text), leases, .. } = session.hear().await else {
            panic!("armed without a disk")
        };
        let new = node.directory.path().join("ledger.new");
        assert_eq!(
            &*text,
            format!(
                "{}: cannot be written: File too large; free space or mend the disk: it is tried again every second, \
                 no restart is needed",
                new.display()
            )
        );
        let states: Vec<LeaseState> = leases.iter().map(|report| report.state).collect();
        assert_eq!(states, [LeaseState::Armed, LeaseState::Reserved]);
    }
    assert!(limit("unlimited").unwrap().success());
    session.say(ToAgent::Arm { term: TERM, lease: lease(2) }).await;
    assert_eq!(session.hear().await, armed(2));
    process.kill();
    let process = node.start();
    assert_eq!(node.coordinator.welcome().await.hello.leases.len(), 2);
    let (code, log) = process.stop();
    assert!(code == Some(0) && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_full_or_read_only_disk_is_named_at_the_start_and_survived_later() {
    let name = "a_full_or_read_only_disk_is_named_at_the_start_and_survived_later";
    let node = Node::new();
    let place = node.directory.path().display().to_string();
    let small = |mount: &str| {
        let program = node.command();
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o size=64k none \"$0\" && {mount} exec \"$@\"");
        command.args(["-m", "sh", "-c", &script, &place]).arg(program.get_program());
        command.args(program.get_args()).env_remove("RUST_LOG").stderr(Stdio::piped());
        command
    };
    let allowed = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "-o", "size=64k", "none", &place])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("skipped {name}: this user may not mount");
        return;
    }
    let text = refusal(&mut small("mount -o remount,ro \"$0\" &&"));
    let lock = node.directory.path().join("ledger.lock");
    assert!(
        text.starts_with(&format!("state directory: {}: Read-only file system; ", lock.display())),
        "{text}"
    );

    let process = Process(small("").spawn().unwrap());
    let mut session = node.coordinator.welcome().await;
    assert_eq!(arm(&mut session, 1).await, armed(1));
    let seen = format!("/proc/{}/root{place}", process.0.id());
    let filler = Path::new(&seen).join("filler");
    let mut file = File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    drop(file);
    let FromAgent::Refused { cause: RefusalCause::Disk(text), .. } = arm(&mut session, 2).await else {
        panic!("armed on a full disk")
    };
    assert!(text.contains("ledger.new: cannot be written: No space left on device; "), "{text}");
    fs::remove_file(&filler).unwrap();
    session.say(ToAgent::Arm { term: TERM, lease: lease(2) }).await;
    assert_eq!(session.hear().await, armed(2));
    let (code, log) = process.stop();
    assert!(code == Some(0) && !log.contains("ERROR"), "{log}");
}

/// Whatever cannot be logged is lost, and nothing else.
#[tokio::test]
async fn a_log_that_cannot_be_written_ends_nothing() {
    let node = Node::new();
    let mut command = node.command();
    command.env("RUST_LOG", "debug").stderr(File::options().write(true).open("/dev/full").unwrap());
    let process = Process(command.spawn().unwrap());
    let mut session = node.coordinator.welcome().await;
    assert_eq!(arm(&mut session, 1).await, armed(1));
    assert_eq!(process.stop().0, Some(0));
}
