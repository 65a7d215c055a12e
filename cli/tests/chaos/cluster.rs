//! One coordinator and some agents as processes of their own, each started, killed and stopped alone.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::look::Seen;
use crate::recordings::Bindings;
use crate::support::{Printed, assert_no_errors, phalanx, wait_for, workspace};

/// Environment variable that arms a kill point.
const KILL_POINT: &str = "PHALANX_KILL_POINT";

/// A process. It ends with this value, and with the test's process.
#[derive(Debug)]
pub struct Running {
    pub name: String,
    child: Child,
    reaped: bool,
}

impl Running {
    /// Starts a program of this name. `point`: where it kills itself.
    fn start(name: &str, program: &str, arguments: &[String], logs: &Path, point: Option<&str>) -> Self {
        let mut command = phalanx();
        let number = (0..).find(|number| !log(logs, name, *number).exists()).unwrap();
        let output = File::create(log(logs, name, number)).unwrap();
        command.args(["child", "--parent", &std::process::id().to_string(), "--"]);
        command.arg(crate::support::program(program)).args(arguments);
        command.env("NO_COLOR", "1").env_remove(KILL_POINT);
        if let Some(point) = point {
            command.env(KILL_POINT, point);
        }
        let errors = output.try_clone().unwrap();
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap();
        Self { name: name.to_owned(), child, reaped: false }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// How it has ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().unwrap();
        self.reaped |= status.is_some();
        status
    }

    /// True once its end was seen.
    pub const fn was_reaped(&self) -> bool {
        self.reaped
    }

    /// Waits until it ends by itself, and says with which exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        wait_for(&format!("the end of {}", self.name), || self.ended()).code()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        // An error means that it is gone.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.reaped = true;
    }

    /// Waits until it dies at its kill point.
    pub fn dies(&mut self, point: &str) {
        let what = format!("{} to die at {point}", self.name);
        let status = wait_for(&what, || self.ended());
        assert_eq!(status.signal(), Some(9), "{what}: {status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn log(logs: &Path, name: &str, number: u32) -> PathBuf {
    logs.join(format!("{name}-{number}.log"))
}

/// An agent: its folder outlives its process.
#[derive(Debug)]
pub struct Agent {
    pub node: String,
    pub state_dir: PathBuf,
    /// Addresses it dials.
    pub coordinators: Vec<SocketAddr>,
    pub process: Option<Running>,
}

/// A coordinator: its folder outlives its process.
#[derive(Debug)]
pub struct Coordinator {
    pub name: String,
    pub state_dir: PathBuf,
    pub listen: SocketAddr,
    /// Address of its admin API, `http://HOST:PORT`.
    pub server: String,
    pub process: Option<Running>,
}

impl Coordinator {
    /// One that has not been started.
    pub fn new(folder: &Path, name: &str) -> Self {
        let state_dir = folder.join(name);
        fs::create_dir_all(&state_dir).unwrap();
        Self { name: name.to_owned(), state_dir, listen: own_address(), server: String::new(), process: None }
    }

    /// Starts the process. Does not wait.
    pub fn spawn(&mut self, folder: &Path, point: Option<&str>) {
        let state_dir = self.state_dir.display().to_string();
        let listen = self.listen.to_string();
        let arguments = ["run", "--state-dir", &state_dir, "--listen", &listen, "--admin", "127.0.0.1:0"]
            .map(str::to_owned);
        let logs = folder.join("logs");
        // Its port may be somebody else's by now.
        self.server.clear();
        self.process = Some(Running::start(&self.name, "phalanx-coordinator", &arguments, &logs, point));
    }

    /// Waits until it answers.
    pub fn wait_until_ready(&mut self) {
        let process = self.process.as_mut().unwrap();
        let id = u64::from(process.id());
        let name = &self.name;
        let file = self.state_dir.join("endpoints.json");
        self.server = wait_for(&format!("{name} to listen"), || {
            let ended = process.ended();
            assert_eq!(ended, None, "{name} has ended early; see its log");
            let endpoints: Value = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            (endpoints["pid"] == id).then(|| endpoints["admin"].as_str().unwrap().to_owned())
        });
    }

    /// Runs the command line against it.
    pub fn run(&self, arguments: &[&str]) -> Printed {
        let mut command = phalanx();
        command.env("PHALANX_SERVER", &self.server).args(arguments).stdin(Stdio::null());
        command.output().unwrap().into()
    }

    /// Applies a text.
    pub fn apply(&self, text: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let printed = self.run(&["apply", "-f", file.path().to_str().unwrap()]);
        assert_eq!(printed.code, 0, "{printed:?}");
    }

    /// Applies a text; whether the coordinator lives long enough to answer does not matter.
    pub fn try_apply(&self, text: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let printed = self.run(&["apply", "-f", file.path().to_str().unwrap()]);
        assert!(printed.code == 0 || Self::was_gone(&printed), "{printed:?}");
    }

    /// True where a command failed because the coordinator was gone, or went meanwhile.
    pub fn was_gone(printed: &Printed) -> bool {
        ["cannot reach", "has ended the connection"].iter().any(|text| printed.err.contains(text))
    }

    /// Objects of a kind, as the store has them; `None` where it does not answer.
    pub fn objects(&self, kind: &str) -> Option<Vec<Value>> {
        let url = format!("{}/v1/objects/{kind}", self.server);
        let text = ureq::get(url).call().ok()?.body_mut().read_to_string().ok()?;
        let list: Value = serde_json::from_str(&text).unwrap();
        Some(list["items"].as_array().unwrap().clone())
    }

    /// Everything it has logged, over all its processes.
    pub fn log(&self, folder: &Path) -> String {
        let texts = (0..).map(|number| fs::read_to_string(log(&folder.join("logs"), &self.name, number)));
        texts.map_while(Result::ok).collect()
    }
}

/// An address that nobody else uses, also while its coordinator is dead. A free port would not do: another test, or an
/// agent, may be given it meanwhile. So each process of tests has a loopback address of its own, and takes ports that
/// the system gives to nobody who asks for any.
fn own_address() -> SocketAddr {
    static PORTS: AtomicU16 = AtomicU16::new(20_000);
    let [_, first, second, third] = std::process::id().to_be_bytes();
    // Process ids have 22 bits: with these two the address is neither that of the network nor 127.0.0.1.
    let address = Ipv4Addr::new(127, first | 0x40, second, third);
    SocketAddr::from((address, PORTS.fetch_add(1, Ordering::Relaxed)))
}

/// A cluster in a folder of its own.
#[derive(Debug)]
pub struct Cluster {
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
    pub coordinator: Coordinator,
    pub agents: Vec<Agent>,
}

impl Cluster {
    /// A cluster of which nothing runs yet: certificates only.
    pub fn new(nodes: usize) -> Self {
        let folder = tempfile::Builder::new().prefix("phalanx-chaos-").tempdir().unwrap();
        let path = folder.path().to_owned();
        fs::create_dir(path.join("logs")).unwrap();
        let coordinator = Coordinator::new(&path, "coordinator");
        let agents = (1..=nodes).map(|number| {
            let node = format!("node-{number}");
            let state_dir = path.join(&node);
            let pki = state_dir.join("pki");
            fs::create_dir_all(&pki).unwrap();
            // The first use also builds the programs.
            let _ = phalanx();
            let mut issue = Command::new(crate::support::program("phalanx-coordinator"));
            issue.arg("issue-agent").arg("--state-dir").arg(&coordinator.state_dir);
            issue.args(["--node", &node, "--out"]).arg(&pki);
            assert!(issue.status().unwrap().success());
            Agent { node, state_dir, coordinators: vec![coordinator.listen], process: None }
        });
        let agents = agents.collect();
        Self { folder: Some(folder), path, coordinator, agents }
    }

    /// The folder of everything.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the coordinator and all agents, and waits until every node is ready. `points`: kill points of the
    /// coordinator and of the agents by number.
    pub fn start(&mut self, coordinator: Option<&str>, agent: Option<(usize, &str)>) {
        self.coordinator.spawn(&self.path, coordinator);
        for number in 0..self.agents.len() {
            let point = agent.filter(|(victim, _)| *victim == number).map(|(_, point)| point);
            self.start_agent(number, point);
        }
        self.coordinator.wait_until_ready();
        self.wait_until_all_are_ready();
    }

    fn wait_until_all_are_ready(&self) {
        let names: Vec<String> = self.agents.iter().map(|agent| agent.node.clone()).collect();
        wait_for("all nodes", || {
            let nodes = self.coordinator.run(&["get", "nodes", "--json"]).json();
            let ready = |name: &String| {
                nodes
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|node| node["name"] == **name && node["state"] == "ready")
            };
            names.iter().all(ready).then_some(())
        });
    }

    /// Starts the coordinator again, as soon as it was killed. Does not wait.
    pub fn restart_coordinator(&mut self) {
        self.coordinator.spawn(&self.path, None);
    }

    /// The same with a kill point.
    pub fn restart_coordinator_with(&mut self, point: &str) {
        self.coordinator.spawn(&self.path, Some(point));
    }

    /// Starts the coordinator again with a kill point, and waits until every node is ready.
    pub fn start_coordinator_again(&mut self, point: &str) {
        self.restart_coordinator_with(point);
        self.coordinator.wait_until_ready();
        self.wait_until_all_are_ready();
    }

    /// Starts an agent's process. Does not wait.
    pub fn start_agent(&mut self, number: usize, point: Option<&str>) {
        let agent = &mut self.agents[number];
        let text = |path: &Path| path.display().to_string();
        let mut arguments = vec!["run".to_owned(), "--node".to_owned(), agent.node.clone()];
        for address in &agent.coordinators {
            arguments.extend(["--coordinator".to_owned(), address.to_string()]);
        }
        let profile = workspace().join("deploy/profiles/l40s-4gpu.toml");
        for (flag, value) in [
            ("--state-dir", text(&agent.state_dir)),
            ("--pki-dir", text(&agent.state_dir.join("pki"))),
            ("--profile", text(&profile)),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        let logs = self.path.join("logs");
        agent.process = Some(Running::start(&agent.node, "phalanx-agent", &arguments, &logs, point));
    }

    /// Feeds every recording of the coordinator into a fresh machine: the actions must be the same. Each process that
    /// got as far as to schedule left one.
    pub fn replay(&self, coordinator: &Coordinator) {
        let (mut recorded, mut actions) = (0, 0);
        let recordings = fs::read_dir(coordinator.state_dir.join("recordings")).unwrap();
        let paths = recordings.map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| path.to_str().unwrap().ends_with("-00000.jsonl")) {
            let mut command = Command::new(crate::support::program("phalanx-coordinator"));
            let output = command.arg("replay").arg(&path).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "replay of {}: {told}", path.display());
            let same = told.lines().find_map(|line| line.strip_prefix("the same: "));
            let same = same.unwrap_or_else(|| panic!("replay of {}: {told}", path.display()));
            let count = same.rsplit(", ").next().and_then(|text| text.strip_suffix(" actions"));
            actions += count.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("{told}"));
            recorded += 1;
        }
        let started = (0..)
            .take_while(|number| log(&self.path.join("logs"), &coordinator.name, *number).exists())
            .count();
        assert_eq!(recorded, started, "recordings of {}, one for each start", coordinator.name);
        assert!(actions > 0, "the recordings of {} hold no action at all", coordinator.name);
    }

    /// Ends the agents and the coordinator as a user would, and looks through their logs, and through the recordings
    /// beside what was seen: so many gangs were bound.
    pub fn finish(self, seen: &Seen, gangs: usize) {
        self.finish_after(&[], seen, gangs);
    }

    /// The same, after other coordinators of this cluster, which have ended.
    pub fn finish_after(mut self, others: &[Coordinator], seen: &Seen, gangs: usize) {
        for agent in &mut self.agents {
            if let Some(mut process) = agent.process.take() {
                process.signal(Signal::TERM);
                assert_eq!(process.exit_code(), Some(0), "{} after SIGTERM", process.name);
            }
        }
        if let Some(mut process) = self.coordinator.process.take() {
            process.signal(Signal::TERM);
            assert_eq!(process.exit_code(), Some(0), "{} after SIGTERM", process.name);
        }
        let coordinators = others.iter().chain([&self.coordinator]);
        coordinators.clone().for_each(|coordinator| self.replay(coordinator));
        let state_dirs: Vec<&Path> = coordinators.map(|coordinator| &*coordinator.state_dir).collect();
        Bindings::of(&state_dirs).check(seen, gangs);
        assert_no_errors(&self.path);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            agent.process = None;
        }
        self.coordinator.process = None;
        if std::thread::panicking()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("the folder of the failed cluster is kept: {}", folder.keep().display());
        }
    }
}
