//! Configuration: a TOML file, overridden by flags. All values that are wrong are named with where they stand, what
//! was found and what is allowed.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use phalanx_common::ids::NodeName;
pub use phalanx_process::LogFormat;
use phalanx_text::{Problem, Problems, Values};
use phalanx_transport::pki::check_node_name;

use crate::probe::ProbeOptions;

/// Names the node where no flag does: in Kubernetes the pod's `spec.nodeName`.
const NODE_VARIABLE: &str = "PHALANX_NODE";
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

/// An agent's configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Node it guards.
    pub node: NodeName,
    /// `HOST:PORT` of the coordinators; at least one.
    pub coordinators: Vec<String>,
    /// Directory of the ledger, and of what a node profile needs.
    pub state_directory: PathBuf,
    /// Where it is written who the agent is, and whom it trusts.
    pub credentials: CredentialFiles,
    /// Where the hardware is read.
    pub probe: ProbeOptions,
    /// Time between two readings.
    pub probe_interval: Duration,
    /// Form of the log.
    pub log_format: LogFormat,
}

/// Files that say who the agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialFiles {
    /// Directory of `ca.pem`, `agent.pem` and `agent.key`.
    Directory(PathBuf),
    /// In Kubernetes.
    Token {
        /// The pod's token for the audience `phalanx`.
        token_file: PathBuf,
        /// Certificates of the coordinators' authority.
        authority_file: PathBuf,
    },
}

/// The flags of `run`. Each is also a key of the configuration file, without the dashes in front.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArguments {
    /// TOML file with the same keys as these flags; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Node that this agent guards [default: $PHALANX_NODE, else the machine's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address of a coordinator; may be repeated, and a name with several addresses is as many coordinators. In the file
    /// a list
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Vec<String>,
    /// Directory of the ledger, one per agent [default: $XDG_STATE_HOME/phalanx-agent, else ~/.local/state/phalanx-agent]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<String>,
    /// Directory of ca.pem, agent.pem and agent.key [default: pki in the state directory]
    #[arg(long, value_name = "DIR")]
    pub pki_dir: Option<String>,
    /// In Kubernetes, in place of --pki-dir: file of the pod's token with the audience phalanx
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<String>,
    /// In Kubernetes: file of the certificates of the coordinators' authority, from the ConfigMap phalanx-ca
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// Serve the machine of this node profile instead of this machine
    #[arg(long, value_name = "FILE")]
    pub profile: Option<String>,
    /// NVML library [default: the system's libnvidia-ml.so.1]
    #[arg(long, value_name = "FILE")]
    pub nvml_library: Option<String>,
    /// What stands for /sys [default: /sys]
    #[arg(long, value_name = "DIR")]
    pub sysfs_root: Option<String>,
    /// Time between two readings of the hardware, 100ms to 1h [default: 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub probe_interval: Option<String>,
    /// Form of the log: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

/// All keys, in the order of the flags.
const KEYS: [&str; 11] = [
    "node",
    "coordinator",
    "state-dir",
    "pki-dir",
    "token-file",
    "ca-file",
    "profile",
    "nvml-library",
    "sysfs-root",
    "probe-interval",
    "log-format",
];

impl RunArguments {
    fn flags(&self) -> [(&'static str, Vec<String>); 11] {
        let one = |text: &Option<String>| text.iter().cloned().collect();
        [
            ("node", one(&self.node)),
            ("coordinator", self.coordinator.clone()),
            ("state-dir", one(&self.state_dir)),
            ("pki-dir", one(&self.pki_dir)),
            ("token-file", one(&self.token_file)),
            ("ca-file", one(&self.ca_file)),
            ("profile", one(&self.profile)),
            ("nvml-library", one(&self.nvml_library)),
            ("sysfs-root", one(&self.sysfs_root)),
            ("probe-interval", one(&self.probe_interval)),
            ("log-format", one(&self.log_format)),
        ]
    }

    /// Reads the file, lays the flags over it and checks everything.
    ///
    /// # Errors
    /// All that is wrong, each with its place and what is allowed.
    pub fn resolve(&self) -> Result<Config, Problems> {
        let mut values = Values::new(&KEYS, &["coordinator"]);
        if let Some(path) = &self.config {
            values.read_file(path)?;
        }
        self.resolve_over(values)
    }

    /// As `resolve`, with the file's bytes instead of a file.
    ///
    /// # Errors
    /// As `resolve`.
    pub fn resolve_bytes(&self, bytes: &[u8], file: &Path) -> Result<Config, Problems> {
        let mut values = Values::new(&KEYS, &["coordinator"]);
        values.read_bytes(bytes, file)?;
        self.resolve_over(values)
    }

    fn resolve_over(&self, mut values: Values) -> Result<Config, Problems> {
        for (key, texts) in self.flags() {
            values.set_flag(key, texts);
        }
        // Wrong values first, missing ones last: they are told in this order.
        let probe_interval =
            values.duration("probe-interval", DEFAULT_INTERVAL, SHORTEST_INTERVAL, LONGEST_INTERVAL);
        let log_format = values.read("log-format", "text or json", |written| match written.text() {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        });
        let [profile, nvml_library, sysfs_root, state_directory] =
            ["profile", "nvml-library", "sysfs-root", "state-dir"].map(|key| values.path(key, "a path"));
        let node = node(&mut values);
        let coordinators = coordinators(&mut values);
        let state_directory = state_directory.or_else(default_state_directory).unwrap_or_default();
        if values.written("state-dir").is_none() && state_directory.as_os_str().is_empty() {
            let fix = "neither XDG_STATE_HOME nor HOME is set: name a directory".to_owned();
            values.problem(Problem::Missing { flag: "state-dir", fix });
        }
        let credentials = credential_files(&mut values, &state_directory);
        values.finish()?;
        Ok(Config {
            coordinators,
            credentials,
            probe: ProbeOptions {
                nvml_library,
                sysfs_root: sysfs_root.unwrap_or_else(|| PathBuf::from("/sys")),
                profile,
                node_name: node.to_string(),
                state_directory: state_directory.join("probe"),
            },
            node,
            state_directory,
            probe_interval,
            log_format: log_format.unwrap_or_default(),
        })
    }
}

fn credential_files(values: &mut Values, state_directory: &Path) -> CredentialFiles {
    let [directory, token_file, authority_file] =
        ["pki-dir", "token-file", "ca-file"].map(|key| values.path(key, "a path"));
    let missing = |flag, other| Problem::Missing {
        flag,
        fix: format!("--{other} needs it: an agent with a token has both, one with a certificate neither"),
    };
    match (token_file, authority_file) {
        (Some(token_file), Some(authority_file)) => {
            return CredentialFiles::Token { token_file, authority_file };
        }
        (Some(_), None) if values.written("ca-file").is_none() => {
            values.problem(missing("ca-file", "token-file"));
        }
        (None, Some(_)) if values.written("token-file").is_none() => {
            values.problem(missing("token-file", "ca-file"));
        }
        _ => {}
    }
    CredentialFiles::Directory(directory.unwrap_or_else(|| state_directory.join("pki")))
}

fn node(values: &mut Values) -> NodeName {
    let expected = "a node name: 1 to 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit";
    let named = values.read("node", expected, |written| {
        check_node_name(written.text()).is_ok().then(|| NodeName::from(written.text()))
    });
    if named.is_none() && values.written("node").is_none() {
        let given = env::var(NODE_VARIABLE).ok().filter(|name| !name.is_empty());
        let name = given.unwrap_or_else(|| sysinfo::System::host_name().unwrap_or_default().to_lowercase());
        match check_node_name(&name) {
            Ok(()) => return NodeName::from(name),
            Err(error) => values.problem(Problem::Missing {
                flag: "node",
                fix: format!(
                    "neither ${NODE_VARIABLE} nor the machine's own name does ({error}): name the node"
                ),
            }),
        }
    }
    named.unwrap_or_else(|| NodeName::from(""))
}

fn coordinators(values: &mut Values) -> Vec<String> {
    let expected = "HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:7410";
    let good = |text: &str| {
        text.rsplit_once(':').is_some_and(|(host, port)| {
            let named =
                !host.is_empty() && !host.contains(|letter: char| letter == '/' || letter.is_whitespace());
            named && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
    };
    let coordinators = values.list("coordinator", expected, good);
    if coordinators.is_empty() {
        let fix = "name the coordinator's address, such as 127.0.0.1:7410".to_owned();
        values.problem(Problem::Missing { flag: "coordinator", fix });
    }
    coordinators
}

fn default_state_directory() -> Option<PathBuf> {
    let directory = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    directory("XDG_STATE_HOME")
        .or_else(|| directory("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("phalanx-agent"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn good() -> RunArguments {
        RunArguments {
            node: Some("node-1".to_owned()),
            coordinator: vec!["127.0.0.1:7410".to_owned()],
            state_dir: Some("/tmp/state".to_owned()),
            ..RunArguments::default()
        }
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn flags_alone_are_enough() {
        let config = good().resolve().unwrap();
        assert_eq!(config.node.as_str(), "node-1");
        assert_eq!(config.credentials, CredentialFiles::Directory("/tmp/state/pki".into()));
        assert_eq!(config.probe.sysfs_root, Path::new("/sys"));
        assert_eq!((config.probe_interval, config.log_format), (DEFAULT_INTERVAL, LogFormat::Text));
    }

    #[test]
    fn each_wrong_flag_is_named_with_what_is_allowed() {
        let coordinator =
            |text: &str| RunArguments { coordinator: vec![text.to_owned()], ..RunArguments { ..good() } };
        let port =
            "--coordinator: must be HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:7410, found ";
        let interval = "--probe-interval: must be a duration from 100ms to 1h such as 5s, found ";
        for (arguments, expected) in [
            (RunArguments { node: some("Node"), ..good() }, "--node: must be a node name: 1 to 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit, found \"Node\"".to_owned()),
            (RunArguments { coordinator: Vec::new(), ..good() }, "--coordinator: is not given; name the coordinator's address, such as 127.0.0.1:7410".to_owned()),
            (coordinator("host"), format!("{port}\"host\"")),
            (coordinator("host:0"), format!("{port}\"host:0\"")),
            (coordinator(":7410"), format!("{port}\":7410\"")),
            (coordinator("host:65536"), format!("{port}\"host:65536\"")),
            (RunArguments { probe_interval: some("5"), ..good() }, format!("{interval}\"5\"")),
            (RunArguments { probe_interval: some("1ms"), ..good() }, format!("{interval}\"1ms\"")),
            (RunArguments { probe_interval: some("2h"), ..good() }, format!("{interval}\"2h\"")),
            (RunArguments { log_format: some("xml"), ..good() }, "--log-format: must be text or json, found \"xml\"".to_owned()),
            (RunArguments { state_dir: some(""), ..good() }, "--state-dir: must be a path, found \"\"".to_owned()),
        ] {
            assert_eq!(arguments.resolve().unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_token_and_its_authority_belong_together() {
        let both = RunArguments { token_file: some("/t"), ca_file: some("/c"), ..good() };
        let files = CredentialFiles::Token { token_file: "/t".into(), authority_file: "/c".into() };
        assert_eq!(both.resolve().unwrap().credentials, files);
        for (arguments, expected) in [
            (
                RunArguments { token_file: some("/t"), ..good() },
                "--ca-file: is not given; --token-file needs it: an agent with a token has both, one with a certificate neither",
            ),
            (
                RunArguments { ca_file: some("/c"), ..good() },
                "--token-file: is not given; --ca-file needs it: an agent with a token has both, one with a certificate neither",
            ),
        ] {
            assert_eq!(arguments.resolve().unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_and_what_is_missing_last() {
        let arguments = RunArguments {
            coordinator: Vec::new(),
            probe_interval: some("0s"),
            log_format: some("xml"),
            ..good()
        };
        assert_eq!(
            arguments.resolve().unwrap_err().to_string(),
            "--probe-interval: must be a duration from 100ms to 1h such as 5s, found \"0s\"\n\
             error: --log-format: must be text or json, found \"xml\"\n\
             error: --coordinator: is not given; name the coordinator's address, such as 127.0.0.1:7410"
        );
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_is_checked_alike() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.toml");
        let resolve = |text: &str, arguments: RunArguments| {
            fs::write(&path, text).unwrap();
            RunArguments { config: Some(path.clone()), ..arguments }.resolve()
        };
        let whole = "node = \"from-file\"\ncoordinator = [\"a:1\", \"b:2\"]\nstate-dir = \"/s\"\nprobe-interval = \"1m\"\n";
        let config = resolve(whole, RunArguments::default()).unwrap();
        assert_eq!((config.node.as_str(), config.coordinators.len()), ("from-file", 2));
        assert_eq!(config.probe_interval, Duration::from_secs(60));
        let config = resolve(whole, good()).unwrap();
        assert_eq!((config.node.as_str(), config.coordinators.len()), ("node-1", 1));

        let file = path.display();
        for (text, expected) in [
            ("\nlog-format = \"xml\"", format!("{file}:2: log-format: must be text or json, found \"xml\"")),
            ("\n\ncoordinator = [\"x\"]", format!("{file}:3: coordinator: must be HOST:PORT")),
            (
                "nodes = \"x\"",
                format!("{file}:1: unknown key \"nodes\"; did you mean node?; known keys: node, "),
            ),
            ("node = 5.5.5", format!("{file}:1: is not valid TOML: ")),
            ("node = [\"a\"]", format!("{file}:1: node: must be a node name")),
            ("node = ", format!("{file}:1: is not valid TOML: ")),
        ] {
            let mut arguments = good();
            if text.contains("coordinator") {
                arguments.coordinator.clear();
            }
            if text.contains("node") {
                arguments.node = None;
            }
            let error = resolve(text, arguments).unwrap_err().to_string();
            assert!(error.starts_with(&expected), "{error}\nshould begin with\n{expected}");
        }
        let missing = RunArguments { config: Some(PathBuf::from("/nonexistent")), ..good() };
        assert!(missing.resolve().unwrap_err().to_string().starts_with("/nonexistent: cannot be read: "));
    }
}
