//! Broken manifests, profiles, configuration files and flags, given to the real programs. What each of them says is
//! committed word for word in `tests/broken/*.txt`; `PHALANX_UPDATE_BROKEN=1` writes these files anew.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Cluster, Printed, phalanx, workspace};

/// A job that runs all the while: nothing of it may be lost.
const SURVIVOR: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: survivor}
spec:
  schedulerName: phalanx
  tasks:
    - name: worker
      replicas: 2
      template: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}}
";

/// More lines than these are not all kept.
const MANY: usize = 20;

/// Runs a command to its end, for at most a minute.
fn output(command: &mut Command, words: &[&str]) -> Printed {
    let files = tempfile::tempdir().unwrap();
    let [out, err] = ["out", "err"].map(|name| files.path().join(name));
    command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{words:?} does not end: it was to be refused");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let [out, err] = [out, err].map(|file| fs::read_to_string(file).unwrap());
    Printed { code: status.code().unwrap_or(-1), out, err }
}

fn folder() -> PathBuf {
    workspace().join("cli/tests/broken")
}

/// The inputs of a folder, by name.
fn inputs(kind: &str) -> Vec<String> {
    let entries = fs::read_dir(folder().join(kind)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| format!("{kind}/{}", entry.unwrap().file_name().to_str().unwrap())).collect();
    names.sort();
    names
}

/// What all runs of one table printed, in the form of its file.
struct Table {
    name: &'static str,
    /// Texts that differ from run to run, and what stands for them.
    replaced: Vec<(String, &'static str)>,
    text: String,
    runs: usize,
}

impl Table {
    fn new(name: &'static str, replaced: &[(String, &'static str)]) -> Self {
        Self { name, replaced: replaced.to_vec(), text: String::new(), runs: 0 }
    }

    /// Runs a command line in the folder of the inputs. It must fail, and say why.
    fn run(&mut self, words: &[&str]) -> Printed {
        self.run_with(words, Stdio::null(), "")
    }

    fn run_with(&mut self, words: &[&str], input: Stdio, after: &str) -> Printed {
        // Builds the programs with its first use, and removes what the machine has set.
        let mut command = phalanx();
        if words[0] != "phalanx" {
            command = Command::new(support::program(words[0]));
            command.env_remove("RUST_LOG").env_remove("XDG_STATE_HOME").env("HOME", "/nonexistent");
        }
        let command = command.args(&words[1..]).current_dir(folder()).stdin(input);
        let printed = output(command, words);
        assert_ne!(printed.code, 0, "{words:?}: {printed:?}");
        assert!(!printed.err.trim().is_empty(), "{words:?} fails and says nothing: {printed:?}");
        assert!(!printed.err.contains("panicked"), "{words:?}: {printed:?}");
        self.runs += 1;
        let line = format!("$ {}{after}\nexit {}\n", words.join(" "), printed.code);
        self.text += &self.plain(&line);
        for line in printed.out.lines() {
            let _ = writeln!(self.text, "out: {}", self.plain(line));
        }
        let lines: Vec<&str> = printed.err.lines().filter(|line| !line.trim().is_empty()).collect();
        for (at, line) in lines.iter().enumerate() {
            // Of very many the first and the last are enough.
            match lines.len() {
                more if more > MANY && at == 2 => self.text += &format!("({} more lines)\n", more - 3),
                more if more > MANY && at > 2 && at + 1 < more => {}
                _ => self.text += &format!("{}\n", self.plain(line)),
            }
        }
        self.text.push('\n');
        printed
    }

    fn plain(&self, text: &str) -> String {
        self.replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Compares with the file, or writes it.
    fn finish(self, least: usize) {
        assert!(self.runs >= least, "{}: {} runs, {least} expected at least", self.name, self.runs);
        let path = folder().join(self.name);
        if std::env::var_os("PHALANX_UPDATE_BROKEN").is_some_and(|value| value == "1") {
            fs::write(&path, &self.text).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        let differs = self.text.split("\n\n").zip(expected.split("\n\n")).find(|(now, then)| now != then);
        if let Some((now, then)) = differs {
            panic!("{}: expected\n{then}\n\nfound\n{now}", path.display());
        }
        assert_eq!(self.text, expected, "{}: cases were added or removed", path.display());
    }
}

/// Pods, leases and GPUs of the survivor, and all queues.
fn kept(cluster: &Cluster) -> (Vec<Value>, Vec<String>) {
    let gang = cluster.gang("default", "survivor").unwrap();
    assert_eq!(gang["phase"], "running");
    let pods = gang["pods"].as_array().unwrap().iter();
    let pods = pods.map(|pod| serde_json::json!([pod["uid"], pod["lease"], pod["gpus"]])).collect();
    let queues = cluster.ok(&["get", "queues", "--json"]).json();
    let names = queues.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap().to_owned());
    (pods, names.collect())
}

#[test]
fn broken_manifests_are_named_and_the_other_objects_are_applied() {
    let cluster = Cluster::start(&["l40s-4gpu.toml"]);
    assert_eq!(cluster.run_with_input(&["apply", "-f", "-"], SURVIVOR).code, 0);
    cluster.wait_for_phase("default", "survivor", "running");
    let (pods, _) = kept(&cluster);
    let made = tempfile::tempdir().unwrap();
    let made_path = made.path().display().to_string();
    let replaced = [(cluster.server.clone(), "SERVER"), (made_path.clone(), "MADE")];
    let mut table = Table::new("manifests.txt", &replaced);
    let server = cluster.server.as_str();
    for input in inputs("manifests") {
        let printed = table.run(&["phalanx", "--server", server, "apply", "-f", &input]);
        let stem = Path::new(&input).file_stem().unwrap().to_str().unwrap();
        let beside = fs::read(folder().join(&input)).unwrap();
        if String::from_utf8_lossy(&beside).contains(&format!("name: beside-{stem}\n")) {
            let applied = format!("Queue beside-{stem} created");
            assert!(printed.out.lines().any(|line| line == applied), "{input}: {printed:?}");
        }
        for line in printed.err.lines() {
            assert!(line.starts_with(&format!("{input}:")) || line.contains(&input), "{input}: {line}");
        }
    }
    made_manifests(made.path());
    for name in
        ["huge.yaml", "deep.yaml", "long-name.yaml", "many-errors.yaml", "no-manifests", "missing.yaml"]
    {
        table.run(&["phalanx", "--server", server, "apply", "-f", &format!("{made_path}/{name}")]);
    }
    // A file that cannot be read does not stop the next one.
    let last = format!("{made_path}/good.yaml");
    let printed = table.run(&[
        "phalanx",
        "--server",
        server,
        "apply",
        "-f",
        "missing.yaml",
        "-f",
        "manifests/binary.yaml",
        "-f",
        &last,
    ]);
    assert_eq!(printed.out, "Queue good created\n");
    let input = fs::File::open(folder().join("manifests/name-upper-case.yaml")).unwrap();
    table.run_with(
        &["phalanx", "--server", server, "apply", "-f", "-"],
        input.into(),
        " < manifests/name-upper-case.yaml",
    );
    table.run(&["phalanx", "--server", server, "delete", "-f", "missing.yaml", "-f", &last]);
    table.run(&["phalanx", "--server", server, "delete", "queue", "missing"]);
    table.run(&["phalanx", "--server", server, "why", "missing"]);
    table.finish(70);

    let (pods_after, queues) = kept(&cluster);
    assert_eq!(pods, pods_after, "the job that ran all the while lost something");
    let wrong = ["Broken", "also-broken", "TeamA", "egg", "hen", "ouroboros", "upside-down", "good"];
    assert!(queues.iter().all(|queue| !wrong.contains(&queue.as_str())), "{queues:?}");
    let beside = queues.iter().filter(|queue| queue.starts_with("beside-")).count();
    assert!(beside >= 60, "{beside} of the objects beside broken ones are there");
}

/// Manifests that are too large or too long for the tree.
fn made_manifests(folder: &Path) {
    let queue = |name: &str| {
        format!("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata:\n  name: {name}\n")
    };
    fs::write(folder.join("good.yaml"), queue("good")).unwrap();
    fs::write(folder.join("huge.yaml"), format!("{}# {}\n", queue("huge"), "x".repeat(10 << 20))).unwrap();
    fs::write(folder.join("deep.yaml"), format!("{}---\n{}\n", queue("beside-deep"), "[".repeat(100_000)))
        .unwrap();
    fs::write(folder.join("long-name.yaml"), queue(&"a".repeat(3 << 20))).unwrap();
    let mut many = queue("many-errors") + "  labels:\n";
    for number in 0..1200 {
        let _ = writeln!(many, "    a{number}: {number}");
    }
    fs::write(folder.join("many-errors.yaml"), many).unwrap();
    fs::create_dir(folder.join("no-manifests")).unwrap();
    fs::write(folder.join("no-manifests/notes.md"), "nothing").unwrap();
}

#[test]
fn broken_profiles_are_named_with_line_field_and_what_is_allowed() {
    let state = tempfile::tempdir().unwrap();
    let state_path = state.path().display().to_string();
    let mut table = Table::new("profiles.txt", &[(state_path.clone(), "STATE")]);
    for input in inputs("profiles") {
        let printed = table.run(&["phalanx-agent", "inventory", "--profile", &input]);
        assert_eq!((printed.err.lines().count(), printed.out.as_str()), (1, ""), "{printed:?}");
        assert!(printed.err.starts_with(&format!("error: {input}:")), "{printed:?}");
    }
    let up = ["phalanx", "up", "--state-dir", &state_path, "--profile"];
    for profile in ["profiles/numa-negative.toml", "profiles", "missing.toml", "profiles/empty.toml=2"] {
        table.run(&[&up[..], &[profile]].concat());
    }
    table.run(&["phalanx-agent", "inventory", "--profile", "profiles"]);
    table.run(&["phalanx-agent", "inventory", "--profile", "missing.toml"]);
    table.finish(35);
    assert_eq!(
        fs::read_dir(state.path()).unwrap().count(),
        0,
        "something was begun before the profile was read"
    );
}

#[test]
fn broken_configuration_files_are_named_with_line_and_key() {
    let state = tempfile::tempdir().unwrap();
    let state_path = state.path().display().to_string();
    let mut table = Table::new("config.txt", &[(state_path.clone(), "STATE")]);
    for input in inputs("config") {
        let agent = input.starts_with("config/agent-");
        let program = if agent { "phalanx-agent" } else { "phalanx-coordinator" };
        let printed = table.run(&[program, "run", "--state-dir", &state_path, "--config", &input]);
        for line in printed.err.lines().filter(|line| !line.contains("--coordinator: is not given")) {
            assert!(line.starts_with(&format!("error: {input}:")), "{input}: {printed:?}");
        }
    }
    for program in ["phalanx-coordinator", "phalanx-agent"] {
        for file in ["missing.toml", "config"] {
            table.run(&[program, "run", "--state-dir", &state_path, "--config", file]);
        }
    }
    // Checked also where a flag wins.
    let listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let run = [
        "phalanx-coordinator",
        "run",
        "--state-dir",
        &state_path,
        "--config",
        "config/listen-without-port.toml",
    ];
    table.run(&[&run[..], &listen].concat());
    table.finish(30);
}

#[test]
fn broken_scheduler_configurations_are_named_with_line_and_field() {
    let mut table = Table::new("import.txt", &[]);
    for input in inputs("import") {
        let printed = table.run(&["phalanx", "import", "--scheduler-conf", &input]);
        assert_eq!(printed.out, "", "{printed:?}");
        assert!(
            printed.err.lines().all(|line| line.starts_with("error: ") && line.contains(&input)),
            "{printed:?}"
        );
    }
    for file in ["missing.conf", "import"] {
        table.run(&["phalanx", "import", "--scheduler-conf", file]);
    }
    table.run(&["phalanx", "import"]);
    table.finish(20);
}

#[test]
fn wrong_flags_are_named_with_what_is_allowed() {
    let state = tempfile::tempdir().unwrap();
    let state_path = state.path().display().to_string();
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let taken = [tcp.local_addr().unwrap().to_string(), udp.local_addr().unwrap().to_string()];
    let file = state.path().join("file");
    fs::write(&file, "").unwrap();
    let file = file.display().to_string();
    let replaced = [(state_path.clone(), "STATE"), (taken[0].clone(), "TAKEN"), (taken[1].clone(), "TAKEN")];
    let mut table = Table::new("flags.txt", &replaced);
    let lines = fs::read_to_string(folder().join("flags.list")).unwrap();
    for line in lines.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let words: Vec<String> = line
            .split(' ')
            .map(|word| match word {
                "STATE" => state_path.clone(),
                "FILE" => file.clone(),
                "TAKEN_TCP" => taken[0].clone(),
                "TAKEN_UDP" => taken[1].clone(),
                "EMPTY" => String::new(),
                word => word.to_owned(),
            })
            .collect();
        table.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    table.finish(50);
}
