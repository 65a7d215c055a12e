//! Configuration: a TOML file, overridden by flags. A wrong value is named with where it stands, what was
//! found and what is allowed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use phalanx_common::ids::NodeName;
use phalanx_transport::pki::check_node_name;
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use crate::probe::ProbeOptions;

const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// A file larger than this is no configuration.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Form of the log lines on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// An agent's configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Node it guards.
    pub node: NodeName,
    /// `HOST:PORT` of the coordinators; at least one.
    pub coordinators: Vec<String>,
    /// Directory of the ledger, and of what a node profile needs.
    pub state_directory: PathBuf,
    /// Directory of `ca.pem`, `agent.pem` and `agent.key`.
    pub pki_directory: PathBuf,
    /// Where the hardware is read.
    pub probe: ProbeOptions,
    /// Time between two readings.
    pub probe_interval: Duration,
    /// Form of the log.
    pub log_format: LogFormat,
}

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("--config: {path}: {source}; give an existing file, or leave the flag out")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("--config: {0}: is larger than 1 MiB and no configuration")]
    Size(PathBuf),
    /// The file is not TOML, has a key that does not exist, or a value of another type.
    #[error("{path}:{line}: {message} (in {text:?})")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the reader says.
        message: String,
        /// The line itself.
        text: String,
    },
    /// A value that is not allowed.
    #[error("{place}: must be {expected}, found {found:?}")]
    Value {
        /// `--flag`, or `FILE:LINE: key`.
        place: String,
        /// What is allowed.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A value that must be given is not.
    #[error("--{flag}: is not given; {fix}")]
    Missing {
        /// The flag, which is also the key.
        flag: &'static str,
        /// What to do.
        fix: String,
    },
}

/// The flags of `run`. Each is also a key of the configuration file, without the dashes in front.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArguments {
    /// TOML file with the same keys as these flags; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Node that this agent guards [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address of a coordinator; may be repeated. In the file a list
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Vec<String>,
    /// Directory of the ledger, one per agent [default: $XDG_STATE_HOME/phalanx-agent, else ~/.local/state/phalanx-agent]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<String>,
    /// Directory of ca.pem, agent.pem and agent.key [default: pki in the state directory]
    #[arg(long, value_name = "DIR")]
    pub pki_dir: Option<String>,
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

/// The keys of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileValues {
    node: Option<Spanned<String>>,
    coordinator: Option<Spanned<Vec<String>>>,
    state_dir: Option<Spanned<String>>,
    pki_dir: Option<Spanned<String>>,
    profile: Option<Spanned<String>>,
    nvml_library: Option<Spanned<String>>,
    sysfs_root: Option<Spanned<String>>,
    probe_interval: Option<Spanned<String>>,
    log_format: Option<Spanned<String>>,
}

/// A file and its text: to tell lines.
#[derive(Debug, Default)]
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn place<T>(&self, key: &str, value: &Spanned<T>) -> String {
        format!("{}:{}: {key}", self.path.display(), self.line(value.span().start))
    }
}

/// A value and where it was written.
struct Written {
    text: String,
    place: String,
}

impl Written {
    fn wrong(self, expected: &'static str) -> ConfigError {
        ConfigError::Value { place: self.place, expected, found: self.text }
    }

    fn path(self) -> Result<PathBuf, ConfigError> {
        if self.text.is_empty() { Err(self.wrong("a path")) } else { Ok(PathBuf::from(self.text)) }
    }
}

impl RunArguments {
    /// Reads the file, lays the flags over it and checks everything.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and what is allowed.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let (source, file) = match &self.config {
            Some(path) => read(path)?,
            None => (Source::default(), FileValues::default()),
        };
        let pick = |key: &str, flag: &Option<String>, value: &Option<Spanned<String>>| match (flag, value) {
            (Some(text), _) => Some(Written { text: text.clone(), place: format!("--{key}") }),
            (None, Some(value)) => {
                Some(Written { text: value.get_ref().clone(), place: source.place(key, value) })
            }
            (None, None) => None,
        };
        let path = |key: &str, flag: &Option<String>, value: &Option<Spanned<String>>| {
            pick(key, flag, value).map(Written::path).transpose()
        };
        let node = node(pick("node", &self.node, &file.node))?;
        let coordinators = self.coordinators(&source, &file)?;
        let state_directory = path("state-dir", &self.state_dir, &file.state_dir)?
            .or_else(default_state_directory)
            .ok_or_else(|| ConfigError::Missing {
                flag: "state-dir",
                fix: "neither XDG_STATE_HOME nor HOME is set; name a directory".to_owned(),
            })?;
        let pki_directory =
            path("pki-dir", &self.pki_dir, &file.pki_dir)?.unwrap_or_else(|| state_directory.join("pki"));
        let probe = ProbeOptions {
            nvml_library: path("nvml-library", &self.nvml_library, &file.nvml_library)?,
            sysfs_root: path("sysfs-root", &self.sysfs_root, &file.sysfs_root)?
                .unwrap_or_else(|| PathBuf::from("/sys")),
            profile: path("profile", &self.profile, &file.profile)?,
            node_name: node.to_string(),
            state_directory: state_directory.join("probe"),
        };
        let probe_interval = interval(pick("probe-interval", &self.probe_interval, &file.probe_interval))?;
        let log_format = log_format(pick("log-format", &self.log_format, &file.log_format))?;
        Ok(Config { node, coordinators, state_directory, pki_directory, probe, probe_interval, log_format })
    }

    fn coordinators(&self, source: &Source, file: &FileValues) -> Result<Vec<String>, ConfigError> {
        let (texts, place) = match &file.coordinator {
            Some(value) if self.coordinator.is_empty() => {
                (value.get_ref().clone(), source.place("coordinator", value))
            }
            _ => (self.coordinator.clone(), "--coordinator".to_owned()),
        };
        if texts.is_empty() {
            let fix = "name the coordinator's address, such as 127.0.0.1:7410".to_owned();
            return Err(ConfigError::Missing { flag: "coordinator", fix });
        }
        let good = |text: &str| {
            text.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        match texts.iter().find(|text| !good(text)) {
            Some(text) => Err(Written { text: text.clone(), place }
                .wrong("HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:7410")),
            None => Ok(texts),
        }
    }
}

fn read(path: &Path) -> Result<(Source, FileValues), ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(failed)?.len() > MAX_FILE_BYTES {
        return Err(ConfigError::Size(path.to_owned()));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let source = Source { path: path.to_owned(), text };
    let values = toml::from_str(&source.text).map_err(|error| {
        let line = source.line(error.span().map_or(0, |span| span.start));
        let text = source.text.lines().nth(line - 1).unwrap_or_default();
        ConfigError::Syntax {
            path: path.to_owned(),
            line,
            message: error.message().to_owned(),
            text: text.chars().take(80).collect(),
        }
    })?;
    Ok((source, values))
}

fn node(written: Option<Written>) -> Result<NodeName, ConfigError> {
    const EXPECTED: &str = "a node name: 1 to 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit";
    match written {
        Some(written) if check_node_name(&written.text).is_ok() => Ok(NodeName::from(written.text)),
        Some(written) => Err(written.wrong(EXPECTED)),
        None => {
            let name = sysinfo::System::host_name().unwrap_or_default().to_lowercase();
            check_node_name(&name).map_err(|error| ConfigError::Missing {
                flag: "node",
                fix: format!("the machine's own name does not do ({error}); name the node"),
            })?;
            Ok(NodeName::from(name))
        }
    }
}

fn interval(written: Option<Written>) -> Result<Duration, ConfigError> {
    let Some(written) = written else { return Ok(DEFAULT_INTERVAL) };
    match humantime::parse_duration(&written.text) {
        Ok(interval) if (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) => Ok(interval),
        _ => Err(written.wrong("a duration from 100ms to 1h, such as 5s")),
    }
}

fn log_format(written: Option<Written>) -> Result<LogFormat, ConfigError> {
    match written {
        None => Ok(LogFormat::default()),
        Some(written) => match written.text.as_str() {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(written.wrong("text or json")),
        },
    }
}

fn default_state_directory() -> Option<PathBuf> {
    let directory = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    directory("XDG_STATE_HOME")
        .or_else(|| directory("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("phalanx-agent"))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(config.pki_directory, Path::new("/tmp/state/pki"));
        assert_eq!(config.probe.sysfs_root, Path::new("/sys"));
        assert_eq!((config.probe_interval, config.log_format), (DEFAULT_INTERVAL, LogFormat::Text));
    }

    #[test]
    fn each_wrong_flag_is_named_with_what_is_allowed() {
        let coordinator =
            |text: &str| RunArguments { coordinator: vec![text.to_owned()], ..RunArguments { ..good() } };
        let port =
            "--coordinator: must be HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:7410, found ";
        let interval = "--probe-interval: must be a duration from 100ms to 1h, such as 5s, found ";
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
            ("nodes = \"x\"", format!("{file}:1: unknown field `nodes`, expected one of `node`")),
            ("node = 5", format!("{file}:1: invalid type: integer `5`, expected a string (in \"node = 5\")")),
            ("node = ", format!("{file}:1: ")),
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
        assert!(missing.resolve().unwrap_err().to_string().starts_with("--config: /nonexistent: "));
    }
}
