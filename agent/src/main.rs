//! The program `phalanx-agent`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use phalanx_agent::config::{Config, CredentialFiles, RunArguments};
use phalanx_agent::inventory_report::run_inventory;
use phalanx_agent::probe::{self, NodeProbe, ProbeOptions};
use phalanx_agent::{AgentOptions, Credentials, LedgerPlace, start};
use phalanx_common::describe::describe;
use phalanx_process::{LogFormat, outlive_file_limits, start_log};
use phalanx_transport::{Identity, TrustAnchor};
use tokio::signal::unix::{SignalKind, signal};

/// Guards the GPUs of one node: tells the coordinator what the node has, and promises its GPUs one by one.
#[derive(Parser)]
#[command(name = "phalanx-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the agent until SIGTERM or SIGINT
    Run(Box<RunArguments>),
    /// Show what the node has: GPUs, links, NICs, free fragments
    Inventory {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Show the machine of this node profile instead of this machine
        #[arg(long, value_name = "FILE")]
        profile: Option<PathBuf>,
        /// NVML library [default: the system's libnvidia-ml.so.1]
        #[arg(long, value_name = "FILE")]
        nvml_library: Option<PathBuf>,
        /// What stands for /sys
        #[arg(long, value_name = "DIR", default_value = "/sys")]
        sysfs_root: PathBuf,
        /// Name of the node; with a profile it makes the GPUs' UUIDs
        #[arg(long, value_name = "NAME", default_value = "node")]
        node: String,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run(&arguments),
        Command::Inventory { json, profile, nvml_library, sysfs_root, node } => {
            let options =
                ProbeOptions { nvml_library, sysfs_root, profile, ..ProbeOptions::of_machine(&node) };
            inventory(options, json)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where even this cannot be written the exit code remains.
            let _ = writeln!(io::stderr(), "error: {}", describe(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn inventory(options: ProbeOptions, json: bool) -> Result<()> {
    start_log(LogFormat::Text, "warn");
    let report = run_inventory(options, json)?;
    match io::stdout().lock().write_all(report.as_bytes()) {
        // Whoever reads the output has seen enough, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

fn run(arguments: &RunArguments) -> Result<()> {
    let config = arguments.resolve()?;
    start_log(config.log_format, "info");
    // Two threads: the loop must not wait for a packet that is being encrypted.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("tokio runtime")?;
    runtime.block_on(run_until_signal(config))
}

async fn run_until_signal(config: Config) -> Result<()> {
    // Before the start: a signal during it must not kill half-way.
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let _too_large = outlive_file_limits().context("SIGXFSZ")?;
    let options = options(&config)?;
    let probe = NodeProbe::new(&config.probe)?;
    let (probe_handle, inventories) = probe::spawn(probe, config.probe_interval).context("probe thread")?;
    tracing::info!(
        node = %config.node,
        coordinators = ?config.coordinators,
        state_dir = %config.state_directory.display(),
        "agent starts"
    );
    let mut agent = start(options, inventories).await?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: the agent stops"),
        _ = interrupt.recv() => tracing::info!("SIGINT: the agent stops"),
        () = agent.ended() => anyhow::bail!("the agent's loop has ended by itself"),
    }
    agent.stop().await;
    drop(probe_handle);
    Ok(())
}

fn certificate(config: &Config, directory: &Path) -> Result<Credentials> {
    let help = || {
        format!(
            "--pki-dir: {} needs ca.pem, agent.pem and agent.key, as `phalanx-coordinator issue-agent --node {} --out DIR` \
             writes them",
            directory.display(),
            config.node
        )
    };
    let identity = Identity::load(directory, "agent").with_context(help)?;
    let authority = TrustAnchor::load(directory).with_context(help)?;
    identity.check_issuer(&authority, directory, "agent").with_context(help)?;
    let named = identity.node_name().with_context(help)?;
    ensure!(
        named == config.node,
        "--node: the certificate in {} is for node {named}, not for {}; an agent speaks only for its own node",
        directory.display(),
        config.node
    );
    Ok(Credentials::Certificate { identity, authority })
}

fn options(config: &Config) -> Result<AgentOptions> {
    let credentials = match &config.credentials {
        CredentialFiles::Directory(directory) => certificate(config, directory)?,
        CredentialFiles::Token { token_file, authority_file } => {
            Credentials::Token { token_file: token_file.clone(), authority_file: authority_file.clone() }
        }
    };
    Ok(AgentOptions {
        node: config.node.clone(),
        credentials,
        coordinators: config.coordinators.clone(),
        ledger: LedgerPlace::Directory(config.state_directory.clone()),
        endpoint: None,
    })
}
