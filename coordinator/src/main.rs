//! The program `phalanx-coordinator`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use phalanx_common::describe::describe;
use phalanx_common::ids::NodeName;
use phalanx_coordinator::config::{Config, KubernetesConfig, RunArguments, default_state_dir};
use phalanx_coordinator::coordinator::{Coordinator, issue_agent};
use phalanx_coordinator::kubernetes::run::{End, Replica};
use phalanx_coordinator::replay::{self, ReplayArguments, ReplayError};
use phalanx_coordinator::shadow::Shadow;
use phalanx_process::{LogFormat, outlive_file_limits, start_log};
use tokio::signal::unix::{SignalKind, signal};

/// Decides queues, gangs and placement, and asks the agents of the nodes for the exact GPUs.
#[derive(Parser)]
#[command(name = "phalanx-coordinator", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the coordinator until SIGTERM or SIGINT
    Run(Box<RunArguments>),
    /// Issue a certificate for the agent of a node; writes ca.pem, agent.pem and agent.key
    IssueAgent {
        /// State directory of the coordinator, whose authority signs [default: as for run]
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
        /// The node
        #[arg(long, value_name = "NAME")]
        node: String,
        /// Directory for the three files
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Feed a recording into a fresh core, print its actions, and say where they differ from the recorded ones
    Replay(ReplayArguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run(&arguments),
        Command::IssueAgent { state_dir, node, out } => issue(state_dir, &node, &out),
        Command::Replay(arguments) => replay_file(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        // Where even this cannot be written the exit code remains.
        let _ = writeln!(io::stderr(), "error: {}", describe(error.as_ref()));
        ExitCode::FAILURE
    })
}

fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let config = arguments.resolve()?;
    start_log(config.log_format, "info");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("tokio runtime")?;
    let Some(kubernetes) = &config.kubernetes else {
        let clean = runtime.block_on(run_until_signal(&config))?;
        return Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    if kubernetes.shadow {
        let clean = runtime.block_on(run_shadow(&config, kubernetes))?;
        return Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let end = runtime.block_on(run_replica(&config, kubernetes))?;
    // At once: whatever a thread of it still does would be done by one that leads no more.
    std::process::exit(end.exit_code().into())
}

/// Ends at a signal. Asked for before the start: a signal during it must not kill half-way.
fn stopped() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: the coordinator stops"),
            _ = interrupt.recv() => tracing::info!("SIGINT: the coordinator stops"),
        }
    })
}

async fn run_shadow(config: &Config, kubernetes: &KubernetesConfig) -> Result<bool> {
    let stop = stopped()?;
    let _too_large = outlive_file_limits().context("SIGXFSZ")?;
    tokio::pin!(stop);
    let shadow = tokio::select! {
        shadow = Shadow::start(config, kubernetes) => shadow?,
        () = &mut stop => return Ok(true),
    };
    Ok(shadow.run(stop).await)
}

async fn run_replica(config: &Config, kubernetes: &KubernetesConfig) -> Result<End> {
    let stop = stopped()?;
    let _too_large = outlive_file_limits().context("SIGXFSZ")?;
    tokio::pin!(stop);
    let replica = tokio::select! {
        replica = Replica::start(config, kubernetes) => replica?,
        // An API server that does not answer is waited for; whoever stops it meanwhile need not wait.
        () = &mut stop => return Ok(End::Stopped),
    };
    Ok(replica.run(stop).await)
}

async fn run_until_signal(config: &Config) -> Result<bool> {
    // Before the start: a signal during it must not kill half-way.
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let _too_large = outlive_file_limits().context("SIGXFSZ")?;
    let mut coordinator = Coordinator::start(config).await?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: the coordinator stops"),
        _ = interrupt.recv() => tracing::info!("SIGINT: the coordinator stops"),
        () = coordinator.failed() => {}
    }
    Ok(coordinator.stop().await)
}

fn issue(state_dir: Option<PathBuf>, node: &str, out: &Path) -> Result<ExitCode> {
    let Some(state_dir) = state_dir.or_else(default_state_dir) else {
        bail!("--state-dir: is not given, and neither XDG_STATE_HOME nor HOME is set; name a directory");
    };
    phalanx_transport::pki::check_node_name(node).with_context(|| format!("--node: {node:?}"))?;
    // Whoever makes a new authority is told here: the next coordinator finds one.
    start_log(LogFormat::Text, "info");
    let (identity, authority) = issue_agent(&state_dir, &NodeName::from(node))?;
    let written = || format!("--out: {}", out.display());
    identity.save(out, "agent").with_context(written)?;
    authority.save(out).with_context(written)?;
    Ok(ExitCode::SUCCESS)
}

fn replay_file(arguments: &ReplayArguments) -> Result<ExitCode> {
    let mut output = BufWriter::new(io::stdout().lock());
    let same = match replay::run(arguments, &mut output, &mut io::stderr()) {
        // Whoever reads the output has seen enough, as `head` does.
        Err(ReplayError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(ExitCode::SUCCESS);
        }
        same => same?,
    };
    output.flush()?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
