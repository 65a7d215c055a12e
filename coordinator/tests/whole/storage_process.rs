//! The program on broken files and on a disk that is full, read-only or forbidden: one line that names the file and
//! the way out and an exit code, or it stays up, confirms nothing that is not written, and goes on by itself.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, apply_ok, ask};
use phalanx_coordinator::coordinator::Endpoints;

fn run(state_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-coordinator"));
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state-dir"]);
    command.arg(state_dir).env_remove("RUST_LOG").stderr(Stdio::piped());
    command
}

/// A process that does not outlive its test.
struct Running {
    child: Child,
    /// Its state directory as this process sees it.
    seen: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(mut command: Command, seen: impl FnOnce(u32) -> PathBuf) -> Self {
        let child = command.spawn().unwrap();
        let seen = seen(child.id());
        let mut running = Self { child, seen };
        let began = Instant::now();
        while Endpoints::read(&running.seen).is_none_or(|endpoints| endpoints.pid != running.child.id()) {
            assert!(running.child.try_wait().unwrap().is_none(), "ended early: {}", running.log());
            assert!(began.elapsed() < PATIENCE, "never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    fn admin(&self) -> std::net::SocketAddr {
        let admin = Endpoints::read(&self.seen).unwrap().admin;
        admin.strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// Ends it in order.
    fn stop(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        let code = self.child.wait().unwrap().code();
        (code, self.log())
    }

    fn log(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut text).unwrap();
        }
        text
    }
}

/// The one line with which it refuses to start.
fn refusal(state_dir: &Path) -> String {
    let output = run(state_dir).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {text:?}"));
    assert!(!line.contains('\n'), "more than one line: {text}");
    line.strip_prefix("error: ").unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn queue(name: &str) -> String {
    format!(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {{name: {name}}}\nspec: {{weight: 1}}\n"
    )
}

/// A state directory of a coordinator that ran and was stopped.
async fn used() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start(run(directory.path()), |_| directory.path().to_owned());
    apply_ok(&running.admin(), &queue("research")).await;
    let (code, log) = running.stop();
    assert_eq!(code, Some(0), "{log}");
    directory
}

/// Turns a bit of the first place where this text stands.
fn flip(path: &Path, text: &str) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|part| part == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A user who owns nothing.
const NOBODY: u32 = 65_534;

const BACKUP: &str = "; put a backup of the state directory in its place, or move the file away and start again: what \
                      it held is then lost, objects are applied anew from their manifests, and pods that run are \
                      stopped";
const NEW_AUTHORITY: &str = "; put a backup of the directory in its place, or move it away and start again: a new \
                             authority is made then, and every agent needs new files from `issue-agent`";
const DISK: &str =
    "; the state directory must be on a disk that works, has space and can be written by this user";

#[tokio::test]
async fn every_broken_file_is_named_with_the_way_out_and_nothing_is_started() {
    let good = used().await;
    let state_dir = good.path();
    let objects = state_dir.join("objects.redb");
    let name = objects.display().to_string();
    let whole = fs::read(&objects).unwrap();

    fs::write(&objects, "").unwrap();
    assert_eq!(refusal(state_dir), format!("{name}: damaged: it is empty{BACKUP}"));
    fs::write(&objects, &whole[..3]).unwrap();
    assert_eq!(refusal(state_dir), format!("{name}: damaged: it is cut off{BACKUP}"));
    fs::write(&objects, "apiVersion: v1\n").unwrap();
    assert_eq!(refusal(state_dir), format!("{name}: damaged: it does not begin as a redb file{BACKUP}"));
    fs::write(&objects, &whole[..whole.len() / 2]).unwrap();
    let text = refusal(state_dir);
    assert!(text.starts_with(&format!("{name}: damaged: ")) && text.ends_with(BACKUP), "{text}");

    fs::write(&objects, &whole).unwrap();
    flip(&objects, "\"name\":\"research\"");
    let text = refusal(state_dir);
    assert!(text.starts_with(&format!("{name}: damaged: ")) && text.ends_with(BACKUP), "{text}");
    assert!(text.contains("the object \"Queue research\" is not what was written"), "{text}");

    fs::remove_file(&objects).unwrap();
    fs::create_dir(&objects).unwrap();
    assert_eq!(refusal(state_dir), format!("{name}: Is a directory{DISK}"));
    fs::remove_dir(&objects).unwrap();
    fs::write(&objects, &whole).unwrap();

    let lock = state_dir.join("objects.lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    assert_eq!(refusal(state_dir), format!("{}: Is a directory{DISK}", lock.display()));
    fs::remove_dir(&lock).unwrap();

    // It would keep no note from here on, and so find no older store.
    let witness = state_dir.join("objects.confirmed");
    fs::rename(&witness, state_dir.join("note")).unwrap();
    fs::create_dir(&witness).unwrap();
    assert_eq!(refusal(state_dir), format!("{}: Is a directory{DISK}", witness.display()));
    fs::remove_dir(&witness).unwrap();
    fs::rename(state_dir.join("note"), &witness).unwrap();

    let pki = state_dir.join("pki");
    let certificates = format!("certificates in {}: ", pki.display());
    let authority = fs::read_to_string(pki.join("ca.pem")).unwrap();
    let changed = authority.replacen("\nMI", "\nMJ", 1);
    for (file, content) in [("ca.pem", ""), ("ca.pem", &changed), ("ca.key", ""), ("ca.key", &authority)] {
        let path = pki.join(file);
        let before = fs::read(&path).unwrap();
        fs::write(&path, content).unwrap();
        let text = refusal(state_dir);
        let expected = format!("{certificates}{}: ", path.display());
        assert!(text.starts_with(&expected) && text.ends_with(NEW_AUTHORITY), "{text}");
        fs::write(&path, before).unwrap();
    }
    let key = fs::read(pki.join("ca.key")).unwrap();
    fs::remove_file(pki.join("ca.key")).unwrap();
    let expected =
        format!("{certificates}{}: No such file or directory{NEW_AUTHORITY}", pki.join("ca.key").display());
    assert_eq!(refusal(state_dir), expected);
    fs::write(pki.join("ca.key"), key).unwrap();

    fs::rename(state_dir.join("recordings"), state_dir.join("kept")).unwrap();
    fs::write(state_dir.join("recordings"), "").unwrap();
    let text = refusal(state_dir);
    assert!(text.contains(&state_dir.join("recordings").display().to_string()), "{text}");
    fs::remove_file(state_dir.join("recordings")).unwrap();

    fs::create_dir(state_dir.join("endpoints.json")).unwrap();
    let output = run(state_dir).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("error: ") && text.contains("endpoints.json: Is a directory"), "{text}");
    fs::remove_dir(state_dir.join("endpoints.json")).unwrap();

    // Nothing of this harmed what was there.
    let running = Running::start(run(state_dir), |_| state_dir.to_owned());
    let answer = ask(&running.admin(), "GET", "/v1/objects/queue", None).await;
    assert!(answer.text.contains("research"), "{}", answer.text);
    assert_eq!(running.stop().0, Some(0));
}

#[tokio::test]
async fn an_older_store_is_refused_and_the_step_that_accepts_the_loss_is_named() {
    let good = used().await;
    let state_dir = good.path();
    let old = fs::read(state_dir.join("objects.redb")).unwrap();
    let running = Running::start(run(state_dir), |_| state_dir.to_owned());
    apply_ok(&running.admin(), &queue("later")).await;
    assert_eq!(running.stop().0, Some(0));
    fs::write(state_dir.join("objects.redb"), old).unwrap();
    let text = refusal(state_dir);
    let witness = state_dir.join("objects.confirmed");
    assert!(text.contains("objects.redb: older than what this coordinator has confirmed"), "{text}");
    assert!(text.contains(&format!("remove {} to go on", witness.display())), "{text}");
    fs::remove_file(&witness).unwrap();
    let lines = warnings(state_dir);
    assert!(lines.len() == 1 && lines[0].contains("objects.confirmed: it is missing: "), "{lines:?}");
    assert_eq!(warnings(state_dir), [""; 0], "it was made anew");
}

/// Starts and ends it in order; gives the lines of its log that warn.
fn warnings(state_dir: &Path) -> Vec<String> {
    let (code, log) = Running::start(run(state_dir), |_| state_dir.to_owned()).stop();
    assert!(code == Some(0) && !log.contains("ERROR"), "{log}");
    log.lines().filter(|line| line.contains(" WARN ")).map(str::to_owned).collect()
}

/// To begin anew is a way out that errors name, and can be a slip: what is gone is said once.
#[tokio::test]
async fn a_store_or_an_authority_that_is_gone_is_begun_anew_and_said() {
    let good = used().await;
    let state_dir = good.path();
    assert_eq!(warnings(state_dir), [""; 0]);
    let note = fs::read_to_string(state_dir.join("objects.confirmed")).unwrap();
    let (_, rest) = note.split_once(" write=").unwrap();
    let count: u64 = rest.split_once(' ').unwrap().0.parse().unwrap();
    assert!(count > 3);

    fs::remove_file(state_dir.join("objects.redb")).unwrap();
    let lines = warnings(state_dir);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let expected = format!("objects.redb: missing: all {count} confirmed writes of cluster ");
    assert!(lines[0].contains(&expected) && lines[0].contains("stop the pods that run"), "{lines:?}");
    assert_eq!(warnings(state_dir), [""; 0]);

    fs::remove_file(state_dir.join("objects.redb")).unwrap();
    fs::write(state_dir.join("objects.confirmed"), "nonsense").unwrap();
    let lines = warnings(state_dir);
    assert!(
        lines.len() == 1 && lines[0].contains("an unknown number of confirmed writes is gone"),
        "{lines:?}"
    );

    fs::remove_dir_all(state_dir.join("pki")).unwrap();
    let lines = warnings(state_dir);
    assert!(lines.len() == 1 && lines[0].contains("the certificates of all agents are void"), "{lines:?}");
    assert!(lines[0].contains("/pki: missing") && lines[0].contains("issue-agent`"), "{lines:?}");
    assert_eq!(warnings(state_dir), [""; 0]);

    // The same where the next to need an authority is not the coordinator.
    let issue = |state_dir: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-coordinator"));
        command.args(["issue-agent", "--node", "gpu-1", "--out"]).arg(state_dir.join("gpu-1"));
        let output = command.arg("--state-dir").arg(state_dir).env_remove("RUST_LOG").output().unwrap();
        assert!(output.status.success());
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    fs::remove_dir_all(state_dir.join("pki")).unwrap();
    let text = issue(state_dir);
    assert!(text.contains("the certificates of all agents are void"), "{text}");
    assert_eq!(issue(state_dir), "");
    assert_eq!(issue(tempfile::tempdir().unwrap().path()), "", "nothing is gone where nothing was");
    // Nothing at all is the first start.
    assert_eq!(warnings(tempfile::tempdir().unwrap().path()), [""; 0]);
}

/// It only knows what is lost; alone it is no reason not to start, and it is made anew.
#[tokio::test]
async fn a_damaged_note_of_the_last_write_is_said_and_made_anew() {
    let good = used().await;
    let witness = good.path().join("objects.confirmed");
    let whole = fs::read(&witness).unwrap();
    let other = used().await;
    let foreign = fs::read(other.path().join("objects.confirmed")).unwrap();
    for (content, why) in [
        (&b""[..], "it is empty"),
        (b"nonsense", "it is not what was written"),
        (&whole[..whole.len() / 2], "it is not what was written"),
        (&[0xff; 1 << 16], "it is not what was written"),
        (&foreign, "it is of another cluster ("),
    ] {
        fs::write(&witness, content).unwrap();
        let lines = warnings(good.path());
        let expected = format!("objects.confirmed: {why}");
        assert!(lines.len() == 1 && lines[0].contains(&expected), "{lines:?}");
        assert_eq!(warnings(good.path()), [""; 0]);
        let after = fs::read(&witness).unwrap();
        assert_eq!((after.len(), &after[..20]), (whole.len(), &whole[..20]));
    }
}

/// Applies until it is refused for want of the disk; gives the error.
async fn refused(admin: &std::net::SocketAddr) -> String {
    let began = Instant::now();
    for number in 0.. {
        let manifest = queue(&format!("filler-{number}")) + &format!("  # {}\n", "x".repeat(1000));
        let answer = ask(admin, "POST", "/v1/apply?file=test.yaml", Some(manifest)).await;
        if !answer.text.contains("\"ok\":true") {
            return answer.text;
        }
        assert!(began.elapsed() < PATIENCE, "the disk never was full");
    }
    unreachable!()
}

async fn queues(admin: &std::net::SocketAddr) -> usize {
    let answer = ask(admin, "GET", "/v1/objects/queue", None).await;
    answer.json()["items"].as_array().unwrap_or_else(|| panic!("{}", answer.text)).len()
}

async fn storage_failed(admin: &std::net::SocketAddr) -> String {
    let text = ask(admin, "GET", "/metrics", None).await.text;
    let line = text.lines().find_map(|line| line.strip_prefix("phalanx_storage_failed "));
    line.unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// One line when it begins, and one when it is over.
fn is_told(log: &str) {
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    let begun = lines(" WARN ") == 1 && lines("objects.redb: cannot be written: ") == 1;
    assert!(begun && lines("objects.redb: can be written again") == 1, "{log}");
}

/// What holds for every sort of full disk.
async fn is_refused_and_heals(running: &Running, heal: impl FnOnce()) {
    let admin = running.admin();
    let text = refused(&admin).await;
    assert!(text.contains("objects.redb: cannot be written: "), "{text}");
    assert!(text.contains("no restart is needed"), "{text}");
    let before = queues(&admin).await;
    // Refused again and again, and none of them appears.
    for _ in 0..5 {
        refused(&admin).await;
    }
    assert_eq!(queues(&admin).await, before);
    // Ready all the same: whoever takes it out of service takes the agents' coordinator away.
    let ready = ask(&admin, "GET", "/readyz", None).await;
    assert_eq!(ready.status, 200);
    assert!(
        ready.text.starts_with("ready, but ") && ready.text.contains("cannot be written: "),
        "{}",
        ready.text
    );
    assert_eq!(storage_failed(&admin).await, "1");
    heal();
    // Seen without a write.
    let began = Instant::now();
    while storage_failed(&admin).await != "0" {
        assert!(began.elapsed() < PATIENCE, "never seen to be well");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ask(&admin, "GET", "/readyz", None).await.text, "ready\n");
    let began = Instant::now();
    loop {
        let answer = ask(&admin, "POST", "/v1/apply?file=test.yaml", Some(queue("after"))).await;
        if answer.text.contains("\"ok\":true") {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "never healed: {}", answer.text);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(queues(&admin).await, before + 1);
}

#[tokio::test]
async fn a_file_that_may_grow_no_more_refuses_writes_and_goes_on_when_it_may() {
    let good = used().await;
    let state_dir = good.path().to_owned();
    let length = fs::metadata(state_dir.join("objects.redb")).unwrap().len();
    let running = Running::start(run(&state_dir), |_| state_dir.clone());
    let limit = |text: &str| {
        let id = running.child.id().to_string();
        Command::new("prlimit").args(["--pid", &id, &format!("--fsize={text}")]).status()
    };
    if !limit(&format!("{length}:unlimited")).is_ok_and(|status| status.success()) {
        println!("skipped a_file_that_may_grow_no_more: prlimit is not there");
        return;
    }
    is_refused_and_heals(&running, || assert!(limit("unlimited").unwrap().success())).await;
    let (code, log) = running.stop();
    assert!(code == Some(0) && !log.contains("ERROR"), "{log}");
    is_told(&log);
    let running = Running::start(run(&state_dir), |_| state_dir.clone());
    assert!(queues(&running.admin()).await > 2);
}

/// The program in a mount namespace of its own, on a small disk; `None` where this user may not.
fn on_small_disk(name: &str, mount: &str, kib: u32) -> Option<(tempfile::TempDir, Command)> {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display().to_string();
    let allowed = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "-o", "size=64k", "none", &place])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("skipped {name}: this user may not mount");
        return None;
    }
    let program = run(directory.path());
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs -o size={kib}k none \"$0\" && {mount} exec \"$@\"");
    command.args(["-m", "sh", "-c", &script, &place]).arg(program.get_program()).args(program.get_args());
    command.env_remove("RUST_LOG").stderr(Stdio::piped());
    Some((directory, command))
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_goes_on_when_there_is_space() {
    let name = "a_full_disk_refuses_writes_and_goes_on_when_there_is_space";
    let Some((directory, command)) = on_small_disk(name, "", 8 << 10) else { return };
    let place = directory.path().strip_prefix("/").unwrap().to_owned();
    let running = Running::start(command, |id| Path::new(&format!("/proc/{id}/root")).join(&place));
    let filler = running.seen.join("filler");
    let mut file = File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    drop(file);
    is_refused_and_heals(&running, || fs::remove_file(&filler).unwrap()).await;
    let (code, log) = running.stop();
    assert!(code == Some(0) && !log.contains("ERROR"), "{log}");
    is_told(&log);
}

#[test]
fn a_start_on_a_full_or_read_only_disk_is_refused_by_name() {
    let name = "a_start_on_a_full_or_read_only_disk_is_refused_by_name";
    for (mount, cause) in [
        ("dd if=/dev/zero of=\"$0/filler\" bs=4096 count=1000 2>/dev/null;", "No space left on device"),
        ("mount -o remount,ro \"$0\" &&", "Read-only file system"),
    ] {
        let Some((directory, mut command)) = on_small_disk(name, mount, 64) else { return };
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let place = directory.path().display().to_string();
        let expected = format!("error: {place}/objects");
        assert!(text.starts_with(&expected) && text.contains(&format!(": {cause}{DISK}")), "{text}");
    }
}

#[test]
fn a_directory_that_this_user_may_not_write_is_named() {
    let name = "a_directory_that_this_user_may_not_write_is_named";
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o555)).unwrap();
    let mut command = run(directory.path());
    if File::create(directory.path().join("probe")).is_ok() {
        // Root may write everywhere; somebody else may not, where the program may be read at all.
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped {name}: another user may not run the program");
            return;
        }
        output => output.unwrap(),
    };
    let text = String::from_utf8(output.stderr).unwrap();
    let lock = directory.path().join("objects.lock");
    let expected = format!("error: {}: Permission denied{DISK}\n", lock.display());
    assert_eq!((output.status.code(), text), (Some(1), expected));
}

/// Whatever cannot be logged is lost, and nothing else.
#[tokio::test]
async fn a_log_that_cannot_be_written_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = run(directory.path());
    command.env("RUST_LOG", "debug").stderr(File::options().write(true).open("/dev/full").unwrap());
    let running = Running::start(command, |_| directory.path().to_owned());
    for number in 0..5 {
        apply_ok(&running.admin(), &queue(&format!("queue-{number}"))).await;
    }
    assert_eq!(running.stop().0, Some(0));
    // And where it cannot even say why it does not start, the exit code does.
    fs::write(directory.path().join("objects.redb"), "").unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(run(directory.path()).stderr(full).status().unwrap().code(), Some(1));
}
