//! Flags of `phalanx dev-cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cluster::ProfileCount;

/// `phalanx dev-cluster`.
#[derive(Debug, Args)]
pub struct DevCluster {
    /// What to do
    #[command(subcommand)]
    pub command: DevClusterCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum DevClusterCommand {
    /// Start it in the background; the first time, Kubernetes is built, which takes minutes and needs Go
    Up(DevClusterUp),
    /// End it and remove all of it
    Down(DevClusterDown),
    /// The process in the background
    #[command(hide = true)]
    Serve(DevClusterServe),
    /// Hollow nodes in a process of their own, for benches
    #[command(hide = true)]
    Hollow(HollowNodesOptions),
}

/// `phalanx dev-cluster up`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  phalanx dev-cluster up                         4 hollow nodes with 8 GPUs each
  phalanx dev-cluster up --profile deploy/profiles/hgx-h100.toml=3 --profile deploy/profiles/l40s-4gpu.toml
  phalanx dev-cluster up --hollow 200")]
pub struct DevClusterUp {
    /// Where data and logs are kept [default: $XDG_STATE_HOME/phalanx/dev-cluster or ~/.local/state/phalanx/dev-cluster]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Kubernetes version: 1.37 or 1.34 [default: 1.37]
    #[arg(long, value_name = "VERSION")]
    pub kubernetes: Option<String>,
    /// Configuration of the coordinator (docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Replicas of the coordinator
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=5))]
    pub replicas: u32,
    /// COUNT nodes with the machine of this profile, each with an agent's process (repeatable)
    #[arg(long = "profile", value_name = "FILE[=COUNT]")]
    pub profiles: Vec<ProfileCount>,
    /// Nodes with 8 GPUs whose agents share one process [default: 4 where there is no --profile]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub hollow: Option<u32>,
    /// Also run Kubernetes' own scheduler, for pods that name it or none
    #[arg(long)]
    pub kube_scheduler: bool,
}

/// `phalanx dev-cluster down`.
#[derive(Debug, Args)]
pub struct DevClusterDown {
    /// The folder that was given to `up` [default: as `up`]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// `phalanx dev-cluster serve`.
#[derive(Debug, Args)]
pub struct DevClusterServe {
    /// Folder that holds the plan
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
}

/// `phalanx dev-cluster hollow`.
#[derive(Debug, Args)]
pub struct HollowNodesOptions {
    /// Kubeconfig of an admin
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// Nodes are named PREFIX-00000 and so on
    #[arg(long, value_name = "NAME", default_value = "hollow")]
    pub prefix: String,
    /// Number of the first
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub first: usize,
    /// How many
    #[arg(long, value_name = "NUMBER")]
    pub count: usize,
    /// GPUs of each
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    pub gpus: u32,
    /// Address of a coordinator (repeatable); without any there are Node objects and no agents
    #[arg(long = "coordinator", value_name = "HOST:PORT")]
    pub coordinators: Vec<String>,
    /// Folder of the agents' ledgers
    #[arg(long, value_name = "DIR")]
    pub ledgers: PathBuf,
    /// Also do what kubelets do with the pods of these nodes
    #[arg(long)]
    pub kubelets: bool,
}
