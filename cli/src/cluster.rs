//! A small cluster of processes on this machine: one coordinator, some agents.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use phalanx_common::describe::describe;
use phalanx_profile::Profile;

use crate::client::{Client, Endpoints};
use crate::failure::Failure;
use crate::process::{self, Known, Process, Started};
use crate::signals::Stop;

/// How long coordinator and agents may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Most agents of one profile: each is a process.
const MAX_COUNT: u32 = 256;

/// A node profile and how many nodes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileCount {
    /// Profile file.
    pub file: PathBuf,
    /// Number of nodes.
    pub count: u32,
}

impl std::str::FromStr for ProfileCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (file, count) = match text.rsplit_once('=') {
            None => (text, 1),
            Some((file, count)) => {
                let number = count.parse().ok().filter(|count| (1..=MAX_COUNT).contains(count));
                let message = || format!("COUNT {count:?} is not a whole number from 1 to {MAX_COUNT}");
                (file, number.ok_or_else(message)?)
            }
        };
        if file.is_empty() {
            return Err("FILE is empty: expected FILE or FILE=COUNT".to_owned());
        }
        Ok(Self { file: PathBuf::from(file), count })
    }
}

/// One agent to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// Node name.
    pub name: String,
    /// Profile; `None` = the GPUs of this machine.
    pub profile: Option<PathBuf>,
}

/// Nodes for these profiles, named after their files: `l40s-4gpu-1`, `l40s-4gpu-2`. Without profiles
/// this machine is the one node.
///
/// # Errors
/// A profile is not there.
pub fn plan_nodes(profiles: &[ProfileCount]) -> Result<Vec<NodePlan>, Failure> {
    if profiles.is_empty() {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        return Ok(vec![NodePlan { name: node_name(name.trim()), profile: None }]);
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut nodes = Vec::new();
    for ProfileCount { file, count } in profiles {
        // Absolute, since an agent may run elsewhere.
        let path = fs::canonicalize(file)
            .map_err(|error| Failure::new(format!("--profile {}: {}", file.display(), plain(&error))))?;
        let stem = node_name(&path.file_stem().unwrap_or_default().to_string_lossy());
        for _ in 0..*count {
            let number = counts.entry(stem.clone()).or_default();
            *number += 1;
            nodes.push(NodePlan { name: format!("{stem}-{number}"), profile: Some(path.clone()) });
        }
    }
    Ok(nodes)
}

/// The path of a configuration file for programs that run elsewhere.
///
/// # Errors
/// It is not there.
pub fn config_file(named: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(file) = named else { return Ok(None) };
    let path = fs::canonicalize(file)
        .map_err(|error| Failure::new(format!("--config {}: {}", file.display(), plain(&error))))?;
    Ok(Some(path))
}

/// Reads the profiles, so that a wrong one is told before anything is started.
///
/// # Errors
/// The first that is none, with file, line, field and what is allowed.
pub fn check_profiles(profiles: &[ProfileCount]) -> Result<(), Failure> {
    profiles.iter().try_for_each(|profile| match Profile::load(&profile.file) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(format!("--profile {error}"))),
    })
}

/// The system's text without its number: `no such file or directory`.
#[must_use]
pub fn plain(error: &std::io::Error) -> String {
    let text = describe(error);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Makes a node name of any text: lowercase letters, digits and dashes.
fn node_name(text: &str) -> String {
    let mapped: String = text
        .to_lowercase()
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .take(50)
        .collect();
    let trimmed = mapped.trim_matches('-');
    if trimmed.is_empty() { "node".to_owned() } else { trimmed.to_owned() }
}

/// How to start a cluster.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Folder for state and logs.
    pub state_dir: PathBuf,
    /// Where the coordinator listens for agents.
    pub listen: SocketAddr,
    /// Where its admin API listens.
    pub admin: SocketAddr,
    /// Configuration of the coordinator.
    pub config: Option<PathBuf>,
    /// The agents.
    pub nodes: Vec<NodePlan>,
    /// The processes stay when this one ends.
    pub detached: bool,
    /// The folder was made for a demo.
    pub temporary: bool,
}

/// A running cluster. Dropping it stops it.
pub struct Cluster {
    /// Its admin API.
    pub client: Client,
    /// Where it listens.
    pub endpoints: Endpoints,
    state_dir: PathBuf,
    agents: Vec<Process>,
    coordinator: Vec<Process>,
    released: bool,
}

impl Cluster {
    /// Starts the coordinator and then the agents, and waits until all of them are connected.
    ///
    /// # Errors
    /// Something does not start; the text holds the end of its log.
    pub fn start(plan: &ClusterPlan, stop: &Stop) -> Result<Self, Failure> {
        let coordinator_program = process::sibling("phalanx-coordinator")?;
        let agent_program = process::sibling("phalanx-agent")?;
        let state_dir = prepare(&plan.state_dir)?;
        for node in &plan.nodes {
            issue(&coordinator_program, &state_dir, &node.name)?;
        }
        let start = |name: &str, program: &Path, arguments: &[String]| {
            let log = state_dir.join("logs").join(format!("{name}.log"));
            Process::start(name, program, arguments, log, plan.detached)
        };
        let folder = state_dir.display();
        let config = plan.config.as_ref().map(|file| ("--config", Some(file.display().to_string())));
        let options = [
            ("run", None),
            ("--state-dir", Some(folder.to_string())),
            ("--listen", Some(plan.listen.to_string())),
            ("--admin", Some(plan.admin.to_string())),
        ];
        let options: Vec<_> = options.into_iter().chain(config).collect();
        let coordinator = start("coordinator", &coordinator_program, &arguments(&options))?;
        let mut guard = StopOnDrop(vec![coordinator]);
        let (client, endpoints) = wait_for_coordinator(&state_dir, &mut guard.0[0], stop)?;
        let mut agents = StopOnDrop(Vec::new());
        for node in &plan.nodes {
            let own = agent_dir(&state_dir, &node.name);
            let profile = node.profile.as_ref().map(|path| ("--profile", Some(path.display().to_string())));
            let options = [
                ("run", None),
                ("--node", Some(node.name.clone())),
                ("--coordinator", Some(endpoints.quic.clone())),
                ("--state-dir", Some(own.display().to_string())),
                ("--pki-dir", Some(own.join("pki").display().to_string())),
            ];
            let options: Vec<_> = options.into_iter().chain(profile).collect();
            agents.0.push(start(&node.name, &agent_program, &arguments(&options))?);
        }
        let mut cluster = Self {
            client,
            endpoints,
            state_dir,
            agents: std::mem::take(&mut agents.0),
            coordinator: std::mem::take(&mut guard.0),
            released: false,
        };
        cluster.write_list(plan)?;
        cluster.wait_for_agents(&plan.nodes, stop)?;
        Ok(cluster)
    }

    fn write_list(&self, plan: &ClusterPlan) -> Result<(), Failure> {
        let processes = self.coordinator.iter().chain(&self.agents);
        let supervisor = if plan.detached { None } else { Known::find("phalanx up", std::process::id()) };
        Started {
            supervisor,
            processes: processes.filter_map(|process| Known::find(&process.name, process.id())).collect(),
            temporary: plan.temporary,
        }
        .write(&self.state_dir)
    }

    fn wait_for_agents(&mut self, nodes: &[NodePlan], stop: &Stop) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            self.check()?;
            let state = self.client.state()?;
            let ready = |name: &str| {
                state.nodes.iter().any(|node| node.name.as_str() == name && &*node.state == "ready")
            };
            let missing: Vec<&str> =
                nodes.iter().map(|node| node.name.as_str()).filter(|name| !ready(name)).collect();
            let Some(first) = missing.first() else { return Ok(()) };
            if stop.is_asked() {
                return Err(Failure::new("stopped by a signal"));
            }
            if start.elapsed() > START_LIMIT {
                let agent = self.agents.iter().find(|agent| agent.name == *first);
                let tail = agent.map_or_else(String::new, Process::tail);
                let limit = START_LIMIT.as_secs();
                return Err(Failure::new(format!(
                    "not ready after {limit} s: {}\n{tail}",
                    missing.join(", ")
                )));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Fails where a process has ended.
    ///
    /// # Errors
    /// One has; with the end of its log.
    pub fn check(&mut self) -> Result<(), Failure> {
        self.coordinator.iter_mut().chain(&mut self.agents).try_for_each(Process::check)
    }

    /// Ends of all logs.
    #[must_use]
    pub fn tails(&self) -> String {
        self.coordinator.iter().chain(&self.agents).map(Process::tail).collect()
    }

    /// Names and ids of the processes.
    pub fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.coordinator.iter().chain(&self.agents).map(|process| (process.name.as_str(), process.id()))
    }

    /// The folder of state and logs.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Leaves the processes running when this value goes.
    pub fn release(&mut self) {
        self.released = true;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.released {
            // Agents first: a coordinator that goes first would only make them log its absence.
            process::stop(&mut self.agents);
            process::stop(&mut self.coordinator);
            Started::remove(&self.state_dir);
        }
    }
}

/// Stops what was started before a later step failed.
struct StopOnDrop(Vec<Process>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        process::stop(&mut self.0);
    }
}

fn arguments(options: &[(&str, Option<String>)]) -> Vec<String> {
    options.iter().flat_map(|(flag, value)| [Some((*flag).to_owned()), value.clone()]).flatten().collect()
}

fn agent_dir(state_dir: &Path, node: &str) -> PathBuf {
    state_dir.join("agents").join(node)
}

/// Makes the folders; refuses where an earlier start still runs.
fn prepare(state_dir: &Path) -> Result<PathBuf, Failure> {
    if let Some(running) = Started::read(state_dir).and_then(|started| started.running().into_iter().next()) {
        return Err(Failure::new(format!(
            "{} (pid {}) runs from {} already: stop it with `phalanx down --state-dir {}`, or name another \
             --state-dir",
            running.name,
            running.pid,
            state_dir.display(),
            state_dir.display()
        )));
    }
    let failed = |error: std::io::Error| {
        Failure::new(format!("--state-dir {}: cannot make it: {}", state_dir.display(), plain(&error)))
    };
    fs::create_dir_all(state_dir.join("logs")).map_err(failed)?;
    fs::canonicalize(state_dir).map_err(failed)
}

/// Lets the coordinator's program issue the certificate of one agent.
fn issue(program: &Path, state_dir: &Path, node: &str) -> Result<(), Failure> {
    let pki_dir = agent_dir(state_dir, node).join("pki");
    fs::create_dir_all(&pki_dir)
        .map_err(|error| Failure::new(format!("cannot make {}: {}", pki_dir.display(), plain(&error))))?;
    let output = Command::new(program)
        .arg("issue-agent")
        .arg("--state-dir")
        .arg(state_dir)
        .args(["--node", node, "--out"])
        .arg(&pki_dir)
        .output()
        .map_err(|error| Failure::new(format!("cannot start {}: {}", program.display(), plain(&error))))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("no certificate for node {node}: {}", text.trim())))
}

fn wait_for_coordinator(
    state_dir: &Path,
    coordinator: &mut Process,
    stop: &Stop,
) -> Result<(Client, Endpoints), Failure> {
    let start = Instant::now();
    loop {
        coordinator.check()?;
        // The file may be an earlier run's.
        let own = Endpoints::read(state_dir).filter(|endpoints| endpoints.pid == coordinator.id());
        if let Some(endpoints) = own {
            let server = endpoints.admin.parse().map_err(|error: String| {
                Failure::new(format!("{}: admin: {error}", state_dir.join(Endpoints::FILE).display()))
            })?;
            let client = Client::new(server);
            if client.is_ready() {
                return Ok((client, endpoints));
            }
        }
        if stop.is_asked() {
            return Err(Failure::new("stopped by a signal"));
        }
        if start.elapsed() > START_LIMIT {
            let limit = START_LIMIT.as_secs();
            return Err(Failure::new(format!(
                "coordinator not ready after {limit} s\n{}",
                coordinator.tail()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_with_their_count() {
        let read = |text: &str| text.parse::<ProfileCount>();
        assert_eq!(read("a.toml").unwrap(), ProfileCount { file: "a.toml".into(), count: 1 });
        assert_eq!(read("a=b.toml=3").unwrap(), ProfileCount { file: "a=b.toml".into(), count: 3 });
        for bad in ["a.toml=0", "a.toml=-1", "a.toml=257", "a.toml=x", "a.toml="] {
            assert!(read(bad).unwrap_err().contains("is not a whole number from 1 to 256"), "{bad}");
        }
        assert!(read("=3").unwrap_err().contains("FILE is empty"));
    }

    #[test]
    fn nodes_are_named_after_their_profile() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("Big_Node.toml");
        fs::write(&file, "").unwrap();
        let count = |count| ProfileCount { file: file.clone(), count };
        let names: Vec<String> =
            plan_nodes(&[count(2), count(1)]).unwrap().into_iter().map(|node| node.name).collect();
        assert_eq!(names, ["big-node-1", "big-node-2", "big-node-3"]);
        let missing = ProfileCount { file: folder.path().join("no.toml"), count: 1 };
        let Err(Failure::Message(text)) = plan_nodes(&[missing]) else { panic!("no failure") };
        assert!(text.ends_with("no.toml: no such file or directory"), "{text}");
        assert_eq!(node_name("_x y_"), "x-y");
        assert_eq!(node_name(""), "node");
    }
}
