//! Commands and flags.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::client::ServerUrl;
use crate::cluster::ProfileCount;
use crate::dev_cluster::arguments::DevCluster;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  phalanx demo                                   see it work: 1 coordinator, 5 agents, 36 GPUs
  phalanx up --profile deploy/profiles/l40s-4gpu.toml=2
  phalanx apply -f deploy/examples
  phalanx get gangs -A
  phalanx why team-a/training                    why does it wait, and what would help

The server is the one of --server; else the cluster of --kubeconfig or --context; else the server of PHALANX_SERVER;
else the one that `phalanx up` started; else the cluster that kubectl would ask (KUBECONFIG, ~/.kube/config).
`kubectl phalanx` passes over the one that `phalanx up` started.
Exit code: 0 done, 1 refused or failed, 2 wrong usage.";

/// Places gangs of GPU pods: all of a gang or nothing, on exact GPUs.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Arguments {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Admin address of the coordinator, http://HOST:PORT [env: PHALANX_SERVER]
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<ServerUrl>,
    /// Ask the coordinator of the cluster of this kubeconfig [env: KUBECONFIG]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "server")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "server")]
    pub context: Option<String>,
    /// Namespace in which Phalanx is installed on the cluster [default: phalanx-system]
    #[arg(long, global = true, value_name = "NAME", value_parser = name)]
    pub phalanx_namespace: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show gangs being placed, on a small cluster of processes on this machine
    Demo(Demo),
    /// Run a coordinator and agents on this machine until Ctrl-C, or until one of them ends by itself
    Up(Up),
    /// Stop what `up` or `demo --keep` started
    Down(Down),
    /// A real Kubernetes API server with Phalanx on it, on this machine, to try it with kubectl
    DevCluster(DevCluster),
    /// Create or change objects from YAML files
    Apply(Apply),
    /// List queues, gangs, nodes or pods, or what shadow mode has compared
    Get(Get),
    /// Tell why a gang waits and what would help, or where it runs
    #[command(alias = "explain")]
    Why(Why),
    /// Delete objects
    Delete(Delete),
    /// Tell what a configuration of Volcano's scheduler becomes here, and write ours
    Import(Import),
    /// Run a program that ends when this process's parent does
    #[command(hide = true)]
    Child(Child),
}

/// `phalanx demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Leave everything running at the end
    #[arg(long)]
    pub keep: bool,
    /// Folder that holds deploy/profiles and deploy/examples
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
}

/// `phalanx up`.
#[derive(Debug, Args)]
#[command(after_help = "\
When one of the processes ends by itself, all are stopped, and its name and the end of its log are printed.

Examples:
  phalanx up                                     the GPUs of this machine
  phalanx up --profile deploy/profiles/hgx-h100.toml=3 --profile deploy/profiles/l40s-4gpu.toml")]
pub struct Up {
    /// Where state and logs are kept [default: $XDG_STATE_HOME/phalanx or ~/.local/state/phalanx]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Run COUNT agents that show the node of this profile instead of this machine's GPUs (repeatable)
    #[arg(long = "profile", value_name = "FILE[=COUNT]")]
    pub profiles: Vec<ProfileCount>,
    /// Configuration of the coordinator (docs/configuration.md); flags given here win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where agents connect to; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7410", value_parser = address)]
    pub listen: SocketAddr,
    /// Admin API; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7411", value_parser = loopback)]
    pub admin: SocketAddr,
}

/// `phalanx down`.
#[derive(Debug, Args)]
pub struct Down {
    /// The state folder that was given to `up`, or that `demo --keep` named [default: as `up`]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// `phalanx apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  phalanx apply -f job.yaml
  phalanx apply -f queues.yaml -f jobs/
  kubectl get podgroup,queue -A -o yaml | phalanx apply -f -")]
pub struct Apply {
    /// File, folder (its .yaml, .yml and .json files) or - for standard input (repeatable)
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    /// Queues and what their placed pods use
    #[value(alias = "queue", alias = "q")]
    Queues,
    /// Who may use queues, and times of their gangs
    #[value(name = "queuepolicies", alias = "queuepolicy", alias = "qpol")]
    QueuePolicies,
    /// Gangs and why they wait
    #[value(alias = "gang", alias = "podgroups", alias = "podgroup", alias = "pg")]
    Gangs,
    /// Nodes and their GPUs
    #[value(alias = "node", alias = "no")]
    Nodes,
    /// Pods, where they are and which GPUs they hold
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// In shadow mode: what would have been done, beside what another scheduler did
    Shadow,
}

/// `phalanx get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  phalanx get gangs -A
  phalanx get gangs training -n team-a
  phalanx get pods -n team-a --wide              with whole GPU UUIDs
  phalanx get nodes --json")]
pub struct Get {
    /// What to list
    #[arg(value_name = "WHAT")]
    pub what: Listed,
    /// Only these
    #[arg(value_name = "NAME", value_parser = name, conflicts_with = "all_namespaces")]
    pub names: Vec<String>,
    /// Namespace of gangs and pods [default: default; on a cluster the context's]
    #[arg(short = 'n', long, value_parser = name)]
    pub namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Whole GPU UUIDs and PodGroup names
    #[arg(short = 'w', long)]
    pub wide: bool,
}

/// `phalanx why`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  phalanx why training                           in namespace default
  phalanx why training -n team-a
  phalanx why team-a/training")]
pub struct Why {
    /// A gang, or a job or pod that belongs to one; without namespace: default, on a cluster the context's
    #[arg(value_name = "NAMESPACE/NAME")]
    pub name: ObjectName,
    /// Namespace of a name that is written without one
    #[arg(short = 'n', long, value_parser = name)]
    pub namespace: Option<String>,
}

impl Why {
    /// The name with its namespace.
    ///
    /// # Errors
    /// Two namespaces are named.
    pub fn object(&self) -> Result<ObjectName, Failure> {
        match (&self.name.namespace, &self.namespace) {
            (Some(written), Some(named)) if written != named => Err(Failure::new(format!(
                "{written}/{} names namespace {written}, and -n {named}: leave one of them out",
                self.name.name
            ))),
            (None, Some(_)) => {
                Ok(ObjectName { namespace: self.namespace.clone(), name: self.name.name.clone() })
            }
            _ => Ok(self.name.clone()),
        }
    }
}

/// `phalanx delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  phalanx delete job team-a/training             with its pods
  phalanx delete queue team-a
  phalanx delete -f deploy/examples")]
pub struct Delete {
    /// queue, queuepolicy, gang (podgroup), job, pod, priorityclass or node
    #[arg(value_name = "KIND", requires = "name", required_unless_present = "files")]
    pub kind: Option<KindName>,
    /// Without namespace: default
    #[arg(value_name = "NAMESPACE/NAME")]
    pub name: Option<ObjectName>,
    /// Delete what this file or folder names; - for standard input (repeatable)
    #[arg(short = 'f', long = "filename", value_name = "FILE", conflicts_with = "kind")]
    pub files: Vec<PathBuf>,
}

/// `phalanx import`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no server: it reads one file, and writes one where --out says so.

Examples:
  phalanx import --scheduler-conf volcano-scheduler.conf
  kubectl -n volcano-system get configmap volcano-scheduler-configmap -o yaml | phalanx import --scheduler-conf -
  phalanx import --scheduler-conf volcano-scheduler.conf --out coordinator.toml")]
pub struct Import {
    /// The configuration of Volcano's scheduler, or the ConfigMap that holds it; - for standard input
    #[arg(long, value_name = "FILE")]
    pub scheduler_conf: PathBuf,
    /// Write our configuration to this new file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `phalanx child`.
#[derive(Debug, Args)]
pub struct Child {
    /// Process id of the parent; where it is gone already, nothing is started
    #[arg(long)]
    pub parent: u32,
    /// Program and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port such as 127.0.0.1:7410 or [::1]:0".to_owned())
}

/// `up` starts the admin interface for this machine only.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = address(text)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("expected a loopback address such as 127.0.0.1:7411, because the interface asks for no password"
        .to_owned())
}

/// A name with its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Namespace; `None` where none was written.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectName {
    /// The namespace, `default` where none was written.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

impl std::str::FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, rest)) => Ok(Self { namespace: Some(name(namespace)?), name: name(rest)? }),
            None => Ok(Self { namespace: None, name: name(text)? }),
        }
    }
}

/// Checks a name as Kubernetes does.
fn name(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    let good = text.len() <= 253
        && bytes.iter().copied().all(inner)
        && edge(bytes.first().copied())
        && edge(bytes.last().copied());
    if good {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a name: 1 to 253 lowercase letters, digits, '-' and '.', a letter or digit first and last"
        ))
    }
}

/// A kind as users write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindName {
    /// As the API spells it.
    pub kind: &'static str,
    /// False where objects of the kind have no namespace.
    pub namespaced: bool,
}

impl std::str::FromStr for KindName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_lowercase();
        let bare = lower.split('.').next().unwrap_or("");
        let (kind, namespaced) = match bare {
            "queue" | "queues" | "q" => ("Queue", false),
            "gang" | "gangs" | "podgroup" | "podgroups" | "pg" => ("PodGroup", true),
            "job" | "jobs" | "vcjob" | "vj" => ("Job", true),
            "pod" | "pods" | "po" => ("Pod", true),
            "queuepolicy" | "queuepolicies" | "qpol" => ("QueuePolicy", false),
            "priorityclass" | "priorityclasses" | "pc" => ("PriorityClass", false),
            "node" | "nodes" | "no" => ("Node", false),
            _ => {
                return Err(format!(
                    "kind {text:?} is not one of queue, queuepolicy, gang (podgroup), job, pod, priorityclass, node"
                ));
            }
        };
        Ok(Self { kind, namespaced })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn names_are_checked() {
        let parsed: ObjectName = "team-a/train".parse().unwrap();
        assert_eq!((parsed.namespace(), parsed.name.as_str()), ("team-a", "train"));
        assert_eq!("train".parse::<ObjectName>().unwrap().namespace(), "default");
        for bad in ["", "/", "a/", "/b", "a/b/c", "A", "-a", "a b", "a?x=1", "../a", "a/..", &"x".repeat(254)]
        {
            assert!(bad.parse::<ObjectName>().unwrap_err().contains("is not a name"), "{bad}");
        }
    }

    #[test]
    fn why_takes_a_namespace_as_get_does() {
        let asked = |words: &[&str]| {
            let parsed = Arguments::try_parse_from([&["phalanx", "why"], words].concat()).unwrap();
            let Command::Why(why) = parsed.command else { panic!("another command") };
            why.object()
        };
        let train = || Some("train".parse::<ObjectName>().unwrap());
        assert_eq!(asked(&["train"]).ok(), train());
        let named = Some("team-a/train".parse::<ObjectName>().unwrap());
        assert_eq!(asked(&["train", "-n", "team-a"]).ok(), named);
        assert_eq!(asked(&["team-a/train"]).ok(), named);
        assert_eq!(asked(&["team-a/train", "-n", "team-a"]).ok(), named);
        let Err(Failure::Message(text)) = asked(&["team-a/train", "-n", "b"]) else { panic!("no refusal") };
        assert!(text.contains("-n b"), "{text}");
    }

    #[test]
    fn kinds_are_read_as_kubectl_does() {
        assert_eq!("pg".parse::<KindName>().unwrap().kind, "PodGroup");
        assert_eq!("Queues.scheduling.volcano.sh".parse::<KindName>().unwrap().kind, "Queue");
        assert_eq!("qpol".parse::<KindName>().unwrap(), KindName { kind: "QueuePolicy", namespaced: false });
        assert!("deployment".parse::<KindName>().unwrap_err().contains("\"deployment\" is not one of"));
    }
}
