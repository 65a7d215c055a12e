//! The process in the background, which owns everything: servers, replicas, agents and hollow nodes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_common::ids::NodeName;
use phalanx_devcluster::hollow::raise_file_limit;
use phalanx_devcluster::installation::{AgentPlan, Installation, InstallationError, InstallationOptions};
use phalanx_devcluster::{Error, Options, Servers};
use phalanx_process::LogFormat;
use phalanx_profile::Profile;

use super::state::{Plan, Ready, State};
use crate::client::Client;
use crate::failure::Failure;
use crate::process::sibling;
use crate::signals::Stop;

/// Controllers of a usual cluster. Not the one of DaemonSets: the agents' pods are made here, since nobody would start
/// their containers.
const CONTROLLERS: [&str; 9] = [
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "job-controller",
    "disruption-controller",
];
/// How long agents may take to be connected: longer for thousands.
const AGENTS_LIMIT: Duration = Duration::from_secs(60);
const AGENT_LIMIT: Duration = Duration::from_millis(50);
/// Pause before what has ended is started again, and before a signal is seen.
const REVIVE_PAUSE: Duration = Duration::from_millis(300);

/// Runs it until a signal comes or a part ends by itself.
///
/// # Errors
/// Something does not start, or has ended.
pub(super) fn run(folder: &Path) -> Result<(), Failure> {
    phalanx_process::start_log(LogFormat::Text, "warn");
    raise_file_limit();
    let folder =
        folder.canonicalize().map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    let state = State::new(folder);
    let plan = state.plan()?;
    let stop = Stop::listen()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("tokio runtime: {error}")))?;
    let mut installation = runtime.block_on(start(&state, &plan))?;
    let nodes = plan.nodes.len() + plan.hollow as usize;
    wait_for_agents(&runtime, &mut installation, nodes, &stop)?;
    state.write_ready(&ready(&plan, &installation)?)?;
    while !stop.is_asked() {
        // A replica that loses its Lease ends and begins anew; so does what somebody kills to see what happens.
        for end in installation.revive().map_err(failure)? {
            eprintln!("started again: {end}");
        }
        std::thread::sleep(REVIVE_PAUSE);
    }
    runtime.block_on(installation.stop());
    Ok(())
}

async fn start(state: &State, plan: &Plan) -> Result<Installation, Failure> {
    let options = Options {
        version: Some(plan.version()?),
        folder: Some(state.folder().to_owned()),
        // So that `kubectl get nodes` shows who is not ready, and pods of users get their tokens.
        service_account_admission: true,
        ..Options::default()
    };
    let servers = Servers::start(options).await.map_err(server_failure)?;
    servers.start_controller_manager(&CONTROLLERS).await.map_err(server_failure)?;
    if plan.kube_scheduler {
        servers.start_scheduler().await.map_err(server_failure)?;
    }
    let agent = |node: &super::state::PlannedNode| AgentPlan {
        node: NodeName::from(node.name.as_str()),
        profile: node.profile.clone(),
    };
    let programs = (sibling("phalanx-coordinator")?, sibling("phalanx-agent")?);
    let mut options = InstallationOptions::new(programs.0, programs.1);
    if let Some(file) = &plan.config {
        options.coordinator_flags.push(format!("--config={}", file.display()));
    }
    let options = InstallationOptions {
        replicas: plan.replicas as usize,
        agents: plan.nodes.iter().map(agent).collect(),
        hollow: plan.hollow as usize,
        ..options
    };
    Installation::start(servers, options).await.map_err(failure)
}

/// Until the leader counts every node as ready.
fn wait_for_agents(
    runtime: &tokio::runtime::Runtime,
    installation: &mut Installation,
    nodes: usize,
    stop: &Stop,
) -> Result<(), Failure> {
    let limit = AGENTS_LIMIT + AGENT_LIMIT * u32::try_from(nodes).unwrap_or(u32::MAX);
    let began = Instant::now();
    loop {
        installation.check().map_err(failure)?;
        let leader = runtime.block_on(installation.wait_for_leader()).map_err(failure)?;
        let admin = format!("http://{}", installation.replicas()[leader].admin());
        let state = Client::new(admin.parse().map_err(Failure::new)?).state();
        let ready = state.map(|state| state.nodes.iter().filter(|node| &*node.state == "ready").count());
        if ready.as_ref().is_ok_and(|ready| *ready >= nodes) {
            return Ok(());
        }
        if stop.is_asked() {
            return Err(Failure::new("stopped by a signal"));
        }
        if began.elapsed() > limit {
            return Err(Failure::new(format!(
                "after {} s {} of {nodes} nodes are ready; see {}",
                limit.as_secs(),
                ready.map_or_else(|error| error.to_string(), |ready| ready.to_string()),
                installation.replicas()[leader].log().display()
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn ready(plan: &Plan, installation: &Installation) -> Result<Ready, Failure> {
    let servers = installation.servers();
    let mut gpus = plan.hollow * 8;
    for node in &plan.nodes {
        let profile = Profile::load(&node.profile).map_err(|error| Failure::new(error.to_string()))?;
        gpus += u32::try_from(profile.gpus.len()).unwrap_or(u32::MAX);
    }
    let examples = Servers::deploy("examples");
    Ok(Ready {
        kubernetes: servers.version().release().to_owned(),
        url: servers.url().to_owned(),
        kubeconfig: servers.kubeconfig().to_owned(),
        kubectl: servers.kubectl_program().map_or_else(|_| PathBuf::from("kubectl"), Path::to_owned),
        replicas: plan.replicas,
        nodes: u32::try_from(plan.nodes.len()).unwrap_or(u32::MAX) + plan.hollow,
        gpus,
        examples: examples.canonicalize().unwrap_or(examples),
        processes: installation.processes(),
    })
}

fn failure(error: InstallationError) -> Failure {
    Failure::new(error.to_string())
}

fn server_failure(error: Error) -> Failure {
    Failure::new(error.to_string())
}
