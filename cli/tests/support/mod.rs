//! Builds the programs once, runs the command line, and keeps a cluster of processes for a test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Longest wait for something that must happen; far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The folder of data outside the tree. `None` where a test is skipped for its absence.
pub fn shared(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("PHALANX_SHARED").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| workspace().join("../shared"));
    if folder.join("examples").is_dir() {
        return Some(folder);
    }
    let required = std::env::var_os("PHALANX_REQUIRE_SHARED").is_some_and(|value| value == "1");
    assert!(!required, "{test}: PHALANX_SHARED not found at {}", folder.display());
    println!("skipped {test}: PHALANX_SHARED not found");
    None
}

/// The command line, with coordinator, agent and the NVML stand-in built beside it.
pub fn phalanx() -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args([
            "build",
            "--quiet",
            "-p",
            "phalanx-coordinator",
            "-p",
            "phalanx-agent",
            "-p",
            "mock-nvml",
        ]);
        build.arg("--target-dir").arg(target_dir());
        // What cargo tells a test of its own package looks like a change to ring's build script.
        let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told)) {
            build.env_remove(name);
        }
        assert!(build.current_dir(workspace()).status().unwrap().success(), "the programs do not build");
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    // Nothing of the machine's own setting may reach the test.
    command.env_remove("PHALANX_SERVER").env_remove("KUBECONFIG").env_remove("RUST_LOG");
    command.env("HOME", "/nonexistent");
    command.env_remove("XDG_STATE_HOME").current_dir(workspace());
    command
}

/// A program beside the command line; built with the first use of that.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_phalanx")).with_file_name(name)
}

fn target_dir() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_phalanx")).ancestors().nth(2);
    folder.unwrap().to_owned()
}

/// What a finished program printed.
#[derive(Debug)]
pub struct Printed {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl From<Output> for Printed {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Printed {
    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs the command line without a server.
pub fn run(arguments: &[&str]) -> Printed {
    phalanx().args(arguments).stdin(Stdio::null()).output().unwrap().into()
}

/// True while a process of this id runs.
pub fn runs(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    !state.is_empty() && !state.starts_with('Z')
}

/// Looks until `done` gives something.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `phalanx up` in a temporary folder with free ports.
pub struct Cluster {
    /// Its folder.
    pub state_dir: tempfile::TempDir,
    /// Address of its admin API.
    pub server: String,
    /// Process ids of coordinator and agents.
    pub children: Vec<u64>,
    up: Child,
}

impl Cluster {
    /// Starts one with these profiles of `deploy/profiles`.
    pub fn start(profiles: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), profiles)
    }

    /// The same in a folder that may have been used before.
    pub fn start_in(state_dir: tempfile::TempDir, profiles: &[&str]) -> Self {
        let mut command = phalanx();
        command.args(["up", "--json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state-dir"]);
        command.arg(state_dir.path());
        for profile in profiles {
            command.arg("--profile").arg(format!("deploy/profiles/{profile}"));
        }
        let errors = std::fs::File::create(state_dir.path().join("errors")).unwrap();
        let mut up = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut text = String::new();
        for line in BufReader::new(up.stdout.take().unwrap()).lines().map_while(Result::ok) {
            text.push_str(&line);
            if line == "}" {
                break;
            }
        }
        let told: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
        let children =
            told["processes"].as_array().unwrap().iter().map(|child| child["pid"].as_u64().unwrap());
        Self {
            server: told["admin"].as_str().unwrap().to_owned(),
            children: children.collect(),
            state_dir,
            up,
        }
    }

    /// Runs the command line against it.
    pub fn run(&self, arguments: &[&str]) -> Printed {
        let mut command = phalanx();
        command.env("PHALANX_SERVER", &self.server).args(arguments).stdin(Stdio::null());
        command.output().unwrap().into()
    }

    /// The same with a text on standard input.
    pub fn run_with_input(&self, arguments: &[&str], text: &str) -> Printed {
        let file = self.state_dir.path().join("input");
        std::fs::write(&file, text).unwrap();
        let mut command = phalanx();
        command.env("PHALANX_SERVER", &self.server).args(arguments);
        command.stdin(std::fs::File::open(file).unwrap()).output().unwrap().into()
    }

    /// Runs it and expects success.
    pub fn ok(&self, arguments: &[&str]) -> Printed {
        let printed = self.run(arguments);
        assert_eq!(printed.code, 0, "{arguments:?}: {printed:?}");
        printed
    }

    /// The gang of this name as `get gangs --json` shows it.
    pub fn gang(&self, namespace: &str, prefix: &str) -> Option<Value> {
        let gangs = self.ok(&["get", "gangs", "-n", namespace, "--json"]).json();
        let named = |gang: &&Value| gang["name"]["name"].as_str().unwrap().starts_with(prefix);
        gangs.as_array().unwrap().iter().find(named).cloned()
    }

    /// Waits until the gang has this phase.
    pub fn wait_for_phase(&self, namespace: &str, prefix: &str, phase: &str) -> Value {
        wait_for(&format!("{namespace}/{prefix} {phase}"), || {
            self.gang(namespace, prefix).filter(|gang| gang["phase"] == phase)
        })
    }

    /// Ends `up` with this signal and waits; gives the folder back.
    pub fn end(mut self, signal: Signal) -> (tempfile::TempDir, Vec<u64>, Option<i32>) {
        let code = self.signal(signal);
        let state_dir = std::mem::replace(&mut self.state_dir, tempfile::tempdir().unwrap());
        (state_dir, self.children.clone(), code)
    }

    /// Waits until `up` ends by itself; gives its exit code and what it said.
    pub fn wait(mut self) -> (Vec<u64>, Option<i32>, String) {
        let code = wait_for("the end of up", || self.up.try_wait().unwrap()).code();
        let errors = std::fs::read_to_string(self.state_dir.path().join("errors")).unwrap();
        // Only a failure is told as JSON when JSON is asked for.
        let errors: Value = serde_json::from_str(&errors).unwrap();
        (self.children.clone(), code, format!("error: {}", errors["error"].as_str().unwrap()))
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        if let Some(pid) = Pid::from_raw(self.up.id() as i32)
            && matches!(self.up.try_wait(), Ok(None))
        {
            rustix::process::kill_process(pid, signal).unwrap();
        }
        self.up.wait().unwrap().code()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        if !std::thread::panicking() {
            assert_no_errors(self.state_dir.path());
        }
    }
}

/// An ERROR line in a log is a failure.
pub fn assert_no_errors(state_dir: &Path) {
    let Ok(logs) = std::fs::read_dir(state_dir.join("logs")) else { return };
    for log in logs.map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&log).unwrap();
        let errors: Vec<&str> =
            text.lines().filter(|line| line.contains("ERROR") || line.contains("panicked")).collect();
        assert!(errors.is_empty(), "{}:\n{}", log.display(), errors.join("\n"));
    }
}
