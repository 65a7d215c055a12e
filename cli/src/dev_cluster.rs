//! `phalanx dev-cluster`: a real Kubernetes API server with Phalanx on it, on this machine, to try it with kubectl.
//!
//! `up` starts one process in the background that owns everything else: whatever ends it ends all. `down` asks it to
//! end, and removes its folder.

pub mod arguments;
mod hollow;
mod serve;
mod state;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_devcluster::{Tool, Version, ensure};

use crate::client::default_state_dir;
use crate::cluster::{check_profiles, config_file, plan_nodes};
use crate::failure::{Failure, Format, print_json, print_text};
use crate::process::Known;
use crate::signals::Stop;

use arguments::{DevCluster, DevClusterCommand, DevClusterDown, DevClusterUp};
use state::{Plan, PlannedNode, Ready, State};

/// How long everything may take to be ready once the programs are built.
const START_LIMIT: Duration = Duration::from_secs(300);
/// The same for each hollow node: its Node, its pod, its token and the look at that.
const NODE_LIMIT: Duration = Duration::from_millis(100);
/// How long the process in the background may take to end in order.
const END_LIMIT: Duration = Duration::from_secs(60);
/// Lines of its log that are shown when it fails.
const TAIL_LINES: usize = 10;
/// Letters of such a line that are shown.
const TAIL_LETTERS: usize = 2_000;

/// Runs one of the commands.
///
/// # Errors
/// Something does not start or end, or was not started.
pub fn run(options: &DevCluster, format: Format) -> Result<(), Failure> {
    match &options.command {
        DevClusterCommand::Up(options) => up(options, format),
        DevClusterCommand::Down(options) => down(options, format),
        DevClusterCommand::Serve(options) => serve::run(&options.state_dir),
        DevClusterCommand::Hollow(options) => hollow::run(options),
    }
}

fn folder(named: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    named.map_or_else(|| Ok(default_state_dir()?.join("dev-cluster")), |folder| Ok(folder.clone()))
}

fn up(options: &DevClusterUp, format: Format) -> Result<(), Failure> {
    let state = State::new(folder(options.state_dir.as_ref())?);
    if let Some(running) = state.running() {
        let ready = state.ready().map_or_else(String::new, |ready| {
            format!("; export KUBECONFIG={} reaches it", ready.kubeconfig.display())
        });
        return Err(Failure::new(format!(
            "a dev cluster runs already from {} (pid {}){ready}, and `phalanx dev-cluster down` ends it",
            state.folder().display(),
            running.pid
        )));
    }
    let plan = plan(options)?;
    // Here and not in the background: it may take minutes, and says what it does.
    ensure(plan.version()?, &Tool::SERVERS).map_err(|error| Failure::new(error.to_string()))?;
    state.begin(&plan)?;
    let limit = START_LIMIT + NODE_LIMIT * plan.hollow;
    let started = Instant::now();
    let stop = Stop::listen()?;
    let mut child = background(&state)?;
    let known = Known::find("phalanx dev-cluster", child.id());
    state.write_supervisor(known.as_ref())?;
    let ready = loop {
        if let Some(ready) = state.ready() {
            break ready;
        }
        let ended = child.try_wait().ok().flatten();
        let why = if let Some(status) = ended {
            format!("the dev cluster has ended ({status})")
        } else if stop.is_asked() {
            "stopped by a signal".to_owned()
        } else if started.elapsed() > limit {
            format!("the dev cluster is not ready after {} s", limit.as_secs())
        } else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let tail = tail(&state.log());
        end(&state)?;
        return Err(Failure::new(with_tail(&why, &tail)));
    };
    announce(&state, &ready, started.elapsed(), options.state_dir.as_deref(), format)
}

fn plan(options: &DevClusterUp) -> Result<Plan, Failure> {
    let version = options.kubernetes.as_deref().map_or_else(Version::of_environment, str::parse);
    let version = version.map_err(|error| Failure::new(error.to_string()))?;
    check_profiles(&options.profiles)?;
    let mut nodes = Vec::new();
    if !options.profiles.is_empty() {
        for node in plan_nodes(&options.profiles)? {
            nodes.push(PlannedNode { name: node.name, profile: node.profile.unwrap_or_default() });
        }
    }
    // Without any node there is nothing to try.
    let hollow = options.hollow.unwrap_or(if nodes.is_empty() { 4 } else { 0 });
    Ok(Plan {
        kubernetes: version.name().to_owned(),
        replicas: options.replicas,
        nodes,
        hollow,
        kube_scheduler: options.kube_scheduler,
        config: config_file(options.config.as_deref())?,
    })
}

fn background(state: &State) -> Result<std::process::Child, Failure> {
    use std::os::unix::process::CommandExt;
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find the running program: {error}")))?;
    let log = state.log();
    let failed = |error: std::io::Error| Failure::new(format!("cannot write {}: {error}", log.display()));
    let output = std::fs::File::create(&log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    Command::new(own)
        .args(["dev-cluster", "serve", "--state-dir"])
        .arg(state.folder())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // It stays when the terminal closes.
        .process_group(0)
        .spawn()
        .map_err(|error| Failure::new(format!("cannot start the dev cluster: {error}")))
}

fn with_tail(why: &str, tail: &str) -> String {
    if tail.is_empty() {
        return format!("{why}; nothing of it runs any more, and its log is empty");
    }
    format!("{why}; end of its log:\n{tail}")
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    let short = |line: &str| line.chars().take(TAIL_LETTERS).collect::<String>();
    last.iter().map(|line| format!("  {}\n", short(line))).collect()
}

fn announce(
    state: &State,
    ready: &Ready,
    took: Duration,
    named: Option<&Path>,
    format: Format,
) -> Result<(), Failure> {
    if format == Format::Json {
        return print_json(ready);
    }
    let replicas = if ready.replicas == 1 { "1 replica" } else { &format!("{} replicas", ready.replicas) };
    print_text(&format!(
        "Kubernetes {} with Phalanx: {replicas} of the coordinator, {}; ready in {:.0} s",
        ready.kubernetes,
        nodes_text(ready),
        took.as_secs_f64()
    ));
    print_text(&format!("logs  {}", state.folder().display()));
    print_text("\nTry it:");
    print_text(&format!("  export KUBECONFIG={}", ready.kubeconfig.display()));
    if !has_kubectl() {
        print_text(&format!("  alias kubectl={}", ready.kubectl.display()));
    }
    print_text("  kubectl get nodes");
    print_text("  kubectl create namespace language; kubectl create namespace vision");
    let file = |name: &str| ready.examples.join(name).display().to_string();
    print_text(&format!("  kubectl apply -f {} -f {}", file("queues.yaml"), file("training.yaml")));
    print_text("  kubectl get queue,vcjob,pg,pods -A");
    let program = own_program();
    print_text(&format!("  {program} why language/llm-second"));
    let named = named.map_or_else(String::new, |folder| format!(" --state-dir {}", folder.display()));
    print_text(&format!("\n`{program} dev-cluster down{named}` ends it and removes all of it."));
    Ok(())
}

/// As `kubectl get nodes` and `why` count them: the control plane has a Node, and no agent.
fn nodes_text(ready: &Ready) -> String {
    let count = |number: u32, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!(
        "{} (one of them the control plane), {}",
        count(ready.nodes.saturating_add(1), "node"),
        count(ready.gpus, "GPU")
    )
}

fn has_kubectl() -> bool {
    in_path("kubectl").is_some()
}

/// The program that this name calls in a shell.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// How the user calls this program: by its name where that is found, else by where it lies.
fn own_program() -> String {
    let own = std::env::current_exe().and_then(|own| own.canonicalize()).ok();
    called(in_path("phalanx").is_some(), own.as_deref())
}

fn called(is_in_path: bool, own: Option<&Path>) -> String {
    match own {
        Some(own) if !is_in_path => own.with_file_name("phalanx").display().to_string(),
        _ => "phalanx".to_owned(),
    }
}

/// Ends what runs and removes the folder; gives what ran.
fn end(state: &State) -> Result<Option<Known>, Failure> {
    let running = state.running();
    if let Some(supervisor) = &running {
        supervisor.end(END_LIMIT);
        if supervisor.runs() {
            return Err(Failure::new(format!("{} (pid {}) does not end", supervisor.name, supervisor.pid)));
        }
    }
    Ok(running)
}

fn down(options: &DevClusterDown, format: Format) -> Result<(), Failure> {
    let state = State::new(folder(options.state_dir.as_ref())?);
    if !state.exists() {
        return Err(Failure::new(format!(
            "no dev cluster was started from {}: `phalanx dev-cluster up` starts one, and --state-dir names another \
             folder",
            state.folder().display()
        )));
    }
    let ran = end(&state)?;
    state.remove()?;
    if format == Format::Json {
        return print_json(&serde_json::json!({ "stopped": ran }));
    }
    match ran {
        Some(known) => {
            print_text(&format!("stopped the dev cluster (pid {}); nothing of it is left", known.pid))
        }
        None => print_text("the dev cluster had ended already; its folder is removed"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_can_be_typed() {
        assert_eq!(called(true, Some(Path::new("/t/debug/phalanx"))), "phalanx");
        assert_eq!(called(false, Some(Path::new("/t/debug/kubectl-phalanx"))), "/t/debug/phalanx");
        assert_eq!(called(false, None), "phalanx");
    }

    #[test]
    fn an_empty_log_is_not_shown() {
        assert!(!with_tail("stopped by a signal", "").contains("end of its log"));
        assert!(with_tail("ended", "  why\n").ends_with("end of its log:\n  why\n"));
    }
}
