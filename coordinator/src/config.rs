//! Configuration: a TOML file, overridden by flags. Every value is checked, and all that are wrong are named with
//! where they stand, what is allowed and what was found.

mod kubernetes;
mod policy;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use phalanx_common::units::Millis;
use phalanx_core::Settings;
pub use phalanx_process::LogFormat;
use phalanx_text::settings::shown;
use phalanx_text::{Problem, Problems, Values};

pub use self::kubernetes::{AgentIdentity, KubernetesConfig};
use crate::manifest::names::label_problem;
use crate::recorder::RecordingLimits;

/// Where agents dial when nothing else is said.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7410);
/// Where the admin interface answers when nothing else is said.
pub const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7411);

/// Where a pod keeps its recordings when nothing else is said.
const STATE_DIR_IN_POD: &str = "/var/lib/phalanx";

/// A coordinator's configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Directory of everything that is kept: objects, authority, recordings.
    pub state_dir: PathBuf,
    /// UDP address that agents dial; port 0 takes a free one.
    pub listen: SocketAddr,
    /// TCP address of the admin interface; port 0 takes a free one.
    pub admin: SocketAddr,
    /// Form of the log.
    pub log_format: LogFormat,
    /// The policy's numbers.
    pub settings: Settings,
    /// Bounds of the recording.
    pub recording: RecordingLimits,
    /// How it works on a Kubernetes cluster; `None` = standalone.
    pub kubernetes: Option<KubernetesConfig>,
}

/// The flags of `run`. Each is also a key of the configuration file, without the dashes in front.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArguments {
    /// TOML file with the same keys as these flags; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory for objects, certificates and recordings [default: $XDG_STATE_HOME/phalanx, else ~/.local/state/phalanx]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<String>,
    /// UDP address that agents dial; port 0 takes a free one [default: 127.0.0.1:7410]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// TCP address of the admin interface; port 0 takes a free one [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin: Option<String>,
    /// Let the admin interface, which asks for no password, listen on an address others can reach
    #[arg(long)]
    pub admin_allow_remote: bool,
    /// Form of the log: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// An agent's promise ends after this unless it is armed [default: 10s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub reservation: Option<String>,
    /// A plan not wholly confirmed by then is dropped; below --reservation [default: 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub confirm_timeout: Option<String>,
    /// A committed gang not wholly bound by then is rolled back [default: 120s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub binding_deadline: Option<String>,
    /// An unanswered message to an agent is sent again after this [default: 1s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub resend: Option<String>,
    /// Refusals in a row after which a node takes no new pods for a while [default: 3]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub refusal_budget: Option<String>,
    /// How long such a node takes none [default: 30s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub quarantine: Option<String>,
    /// An admitted gang whose pods are not all there by then gives its quota to gangs that wait [default: 120s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub pods_timeout: Option<String>,
    /// Placements of a gang that may fail per minute before it has to wait [default: 30]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub attempts_per_minute: Option<String>,
    /// Gangs may take the place of less urgent ones of their queue [default: true]
    #[arg(long, value_name = "BOOL")]
    pub preempt: Option<String>,
    /// Queues may take back what others have above their share [default: true]
    #[arg(long, value_name = "BOOL")]
    pub reclaim: Option<String>,
    /// A gang that waited so long for room gets a hold [default: 5m]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub hold_after: Option<String>,
    /// A victim that is not gone so long after its grace period is given up [default: 1m]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub victim_timeout: Option<String>,
    /// A gang below its minimum for so long gives back what it has; or never [default: 5m]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub degraded_grace: Option<String>,
    /// Queue of gangs that name none [default: default]
    #[arg(long, value_name = "NAME")]
    pub default_queue: Option<String>,
    /// A recording goes on in a new file after this many MiB [default: 64]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub recording_file_mib: Option<String>,
    /// Full recording files that are kept; a small one counts at least an eighth [default: 8]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub recording_files: Option<String>,
    /// Work on a Kubernetes cluster: objects are its API server's, and one of several replicas leads
    #[arg(long)]
    pub kubernetes: bool,
    /// Decide, record and compare with the scheduler that serves these names; bind, evict and write nothing
    #[arg(long)]
    pub shadow: bool,
    /// The cluster's kubeconfig [default: the service account of the pod this runs in]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of the Lease and of everything else that is Phalanx's own [default: $POD_NAMESPACE, else phalanx-system]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Name of this replica in the Lease [default: $POD_NAME, else the machine's name]
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    /// A leader that is gone is followed after this [default: 15s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub lease_duration: Option<String>,
    /// A leader that could not renew its Lease for this long ends; 500ms below --lease-duration or more [default: 10s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub renew_deadline: Option<String>,
    /// Time between two renewals; 1.2 times it is below --renew-deadline [default: 2s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub retry_period: Option<String>,
    /// Most Bindings a second; 0 = no limit [default: 0]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub bind_qps: Option<String>,
    /// Scheduler names that are served, with commas between them [default: phalanx]
    #[arg(long, value_name = "NAMES")]
    pub scheduler_names: Option<String>,
    /// Where the API server reaches the admin interface [default: $POD_IP and the port of --admin]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin_advertise: Option<String>,
    /// How agents show who they are: token (of their pod) or certificate (from --pki-dir) [default: token]
    #[arg(long, value_name = "HOW")]
    pub agent_identity: Option<String>,
    /// Directory of the authority for agents with certificates; replicas share it [default: pki in --state-dir]
    #[arg(long, value_name = "DIR")]
    pub pki_dir: Option<String>,
}

/// Keys that mean something in both modes, in the order of the flags.
const COMMON_KEYS: [&str; 22] = [
    "state-dir",
    "listen",
    "admin",
    "admin-allow-remote",
    "log-format",
    "reservation",
    "confirm-timeout",
    "binding-deadline",
    "resend",
    "refusal-budget",
    "quarantine",
    "pods-timeout",
    "attempts-per-minute",
    "preempt",
    "reclaim",
    "hold-after",
    "victim-timeout",
    "degraded-grace",
    "default-queue",
    "recording-file-mib",
    "recording-files",
    "kubernetes",
];

/// All keys, in the order of the flags.
pub(crate) const KEYS: [&str; 35] = {
    let mut keys = [""; 35];
    keys.split_at_mut(22).0.copy_from_slice(&COMMON_KEYS);
    keys.split_at_mut(22).1.copy_from_slice(&kubernetes::KEYS);
    keys
};

impl RunArguments {
    fn flags(&self) -> [(&'static str, Option<String>); 35] {
        let [remote, kubernetes, shadow] = [self.admin_allow_remote, self.kubernetes, self.shadow]
            .map(|is_set| is_set.then(|| "true".to_owned()));
        [
            ("state-dir", self.state_dir.clone()),
            ("listen", self.listen.clone()),
            ("admin", self.admin.clone()),
            ("admin-allow-remote", remote),
            ("log-format", self.log_format.clone()),
            ("reservation", self.reservation.clone()),
            ("confirm-timeout", self.confirm_timeout.clone()),
            ("binding-deadline", self.binding_deadline.clone()),
            ("resend", self.resend.clone()),
            ("refusal-budget", self.refusal_budget.clone()),
            ("quarantine", self.quarantine.clone()),
            ("pods-timeout", self.pods_timeout.clone()),
            ("attempts-per-minute", self.attempts_per_minute.clone()),
            ("preempt", self.preempt.clone()),
            ("reclaim", self.reclaim.clone()),
            ("hold-after", self.hold_after.clone()),
            ("victim-timeout", self.victim_timeout.clone()),
            ("degraded-grace", self.degraded_grace.clone()),
            ("default-queue", self.default_queue.clone()),
            ("recording-file-mib", self.recording_file_mib.clone()),
            ("recording-files", self.recording_files.clone()),
            ("kubernetes", kubernetes),
            ("shadow", shadow),
            ("kubeconfig", self.kubeconfig.clone()),
            ("context", self.context.clone()),
            ("namespace", self.namespace.clone()),
            ("identity", self.identity.clone()),
            ("lease-duration", self.lease_duration.clone()),
            ("renew-deadline", self.renew_deadline.clone()),
            ("retry-period", self.retry_period.clone()),
            ("bind-qps", self.bind_qps.clone()),
            ("scheduler-names", self.scheduler_names.clone()),
            ("admin-advertise", self.admin_advertise.clone()),
            ("agent-identity", self.agent_identity.clone()),
            ("pki-dir", self.pki_dir.clone()),
        ]
    }

    /// Reads the file, lays the flags over it and checks everything.
    ///
    /// # Errors
    /// All that is wrong, each with its place and what is allowed.
    pub fn resolve(&self) -> Result<Config, Problems> {
        let mut values = Values::new(&KEYS, &[]);
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
        let mut values = Values::new(&KEYS, &[]);
        values.read_bytes(bytes, file)?;
        self.resolve_over(values)
    }

    fn resolve_over(&self, mut values: Values) -> Result<Config, Problems> {
        for (key, text) in self.flags() {
            values.set_flag(key, text);
        }
        let listen = values.address("listen", DEFAULT_LISTEN);
        let in_kubernetes = values.boolean("kubernetes", false);
        let admin = admin(&mut values, in_kubernetes);
        let log_format = values.read("log-format", "text or json", |written| match written.text() {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        });
        let recording = RecordingLimits {
            file_bytes: values.number("recording-file-mib", 64, 1, 4096) << 20,
            files: values.number("recording-files", 8, 2, 1000),
        };
        let settings = settings(&mut values, in_kubernetes);
        let kubernetes = kubernetes::read(&mut values, in_kubernetes, admin);
        let state_dir = state_dir(&mut values, kubernetes.as_ref());
        values.finish()?;
        Ok(Config {
            state_dir,
            listen,
            admin,
            log_format: log_format.unwrap_or_default(),
            settings,
            recording,
            kubernetes,
        })
    }
}

fn admin(values: &mut Values, in_kubernetes: bool) -> SocketAddr {
    let admin = values.address("admin", DEFAULT_ADMIN);
    // In a cluster it only reads, and the API server must reach it.
    let allow_remote = values.boolean("admin-allow-remote", false) || in_kubernetes;
    // Only where it could be read: a default is no address that somebody wrote.
    if !admin.ip().is_loopback() && !allow_remote {
        values.wrong(
            "admin",
            "a loopback address such as 127.0.0.1:7411, because the interface asks for no password \
             (admin-allow-remote lifts this)",
        );
    }
    admin
}

fn settings(values: &mut Values, in_kubernetes: bool) -> Settings {
    let default = Settings::default();
    let seconds = Duration::from_secs;
    let mut duration = |key, default: Millis, least, most| {
        let default = Duration::from_millis(default.0);
        // The longest one allowed is an hour.
        Millis(values.duration(key, default, least, most).as_millis() as u64)
    };
    let reservation_ms = duration("reservation", default.reservation_ms, seconds(1), seconds(600));
    let confirm_timeout_ms =
        duration("confirm-timeout", default.confirm_timeout_ms, Duration::from_millis(100), seconds(600));
    let binding_deadline_ms =
        duration("binding-deadline", default.binding_deadline_ms, seconds(1), seconds(3600));
    let resend_ms = duration("resend", default.resend_ms, Duration::from_millis(50), seconds(60));
    let quarantine_ms = duration("quarantine", default.quarantine_ms, seconds(1), seconds(3600));
    let pods_timeout_ms = duration("pods-timeout", default.pods_timeout_ms, seconds(1), seconds(3600));
    let settings = Settings {
        reservation_ms,
        confirm_timeout_ms,
        binding_deadline_ms,
        resend_ms,
        refusal_budget: values.number("refusal-budget", default.refusal_budget.into(), 1, 1000) as u32,
        quarantine_ms,
        pods_timeout_ms,
        attempts_per_minute: values.number("attempts-per-minute", default.attempts_per_minute.into(), 1, 6000)
            as u32,
        default_queue: default_queue(values, default.default_queue),
        kubelet_stops_pods: in_kubernetes,
        ..policy::read(values)
    };
    // Of two values that could not be read nothing can be said.
    if values.is_clean() && confirm_timeout_ms >= reservation_ms {
        let text = |duration: Millis| shown(Duration::from_millis(duration.0));
        // Blame the one that was set: the other is a default the operator may not know.
        if values.written("confirm-timeout").is_some() {
            values.wrong("confirm-timeout", &format!("below reservation, which is {}", text(reservation_ms)));
        } else {
            let limit = text(confirm_timeout_ms);
            values.wrong("reservation", &format!("above confirm-timeout, which is {limit}"));
        }
    }
    settings
}

fn default_queue(values: &mut Values, default: String) -> String {
    let expected = "1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends";
    let name = values.read("default-queue", expected, |written| {
        let text = written.text();
        label_problem(text).is_none().then(|| text.to_owned())
    });
    name.unwrap_or(default)
}

fn state_dir(values: &mut Values, kubernetes: Option<&KubernetesConfig>) -> PathBuf {
    let named = values.path("state-dir", "the path of a directory");
    if kubernetes.is_some_and(|kubernetes| kubernetes.target.kubeconfig.is_none()) {
        // In a pod, where nobody has a home.
        return named.unwrap_or_else(|| PathBuf::from(STATE_DIR_IN_POD));
    }
    if values.written("state-dir").is_none() && default_state_dir().is_none() {
        let fix = "neither XDG_STATE_HOME nor HOME is set: name a directory".to_owned();
        values.problem(Problem::Missing { flag: "state-dir", fix });
    }
    named.or_else(default_state_dir).unwrap_or_default()
}

/// The state directory when none is named: the CLI looks in the same place.
#[must_use]
pub fn default_state_dir() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| Path::is_absolute(path));
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("phalanx"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(set: impl FnOnce(&mut RunArguments)) -> Result<Config, Problems> {
        let mut arguments =
            RunArguments { state_dir: Some("/var/lib/phalanx".to_owned()), ..RunArguments::default() };
        set(&mut arguments);
        arguments.resolve()
    }

    fn flag_error(set: impl FnOnce(&mut RunArguments)) -> String {
        flags(set).unwrap_err().to_string()
    }

    /// Resolves a file's text; the file's name in errors is `FILE`.
    fn file(text: &str) -> Result<Config, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("phalanx.toml");
        std::fs::write(&path, text).unwrap();
        let resolved = flags(|arguments| arguments.config = Some(path.clone()));
        resolved.map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn without_anything_the_defaults_hold() {
        let config = flags(|_| {}).unwrap();
        assert_eq!(config.settings, Settings::default());
        assert_eq!(config.listen, DEFAULT_LISTEN);
        assert_eq!(config.admin, DEFAULT_ADMIN);
        assert_eq!(config.log_format, LogFormat::Text);
        assert_eq!(config.recording, RecordingLimits::default());
    }

    #[test]
    fn every_key_of_a_file_is_read() {
        let config = file(
            "state-dir = \"/srv\"\nlisten = \"0.0.0.0:1\"\nadmin = \"0.0.0.0:2\"\nadmin-allow-remote = true\n\
             log-format = \"json\"\nreservation = \"20s\"\nconfirm-timeout = \"9s\"\nbinding-deadline = \"2m\"\n\
             resend = \"500ms\"\nrefusal-budget = 4\nquarantine = \"1m\"\npods-timeout = \"3m\"\nattempts-per-minute = 7\n\
             preempt = false\nreclaim = false\nhold-after = \"1h\"\nvictim-timeout = \"30s\"\n\
             degraded-grace = \"never\"\n\
             default-queue = \"team-a\"\nrecording-file-mib = 1\nrecording-files = 2\n",
        )
        .unwrap();
        let settings = Settings {
            reservation_ms: Millis(20_000),
            confirm_timeout_ms: Millis(9_000),
            binding_deadline_ms: Millis(120_000),
            resend_ms: Millis(500),
            refusal_budget: 4,
            quarantine_ms: Millis(60_000),
            pods_timeout_ms: Millis(180_000),
            attempts_per_minute: 7,
            default_queue: "team-a".to_owned(),
            kubelet_stops_pods: false,
            preempt: false,
            reclaim: false,
            hold_after_ms: Millis(3_600_000),
            victim_timeout_ms: Millis(30_000),
            degraded_grace_ms: None,
        };
        assert_eq!(config.settings, settings);
        // The flag of the helper wins over the file.
        assert_eq!(config.state_dir, PathBuf::from("/var/lib/phalanx"));
        assert_eq!((config.listen.port(), config.admin.port()), (1, 2));
        assert_eq!(config.log_format, LogFormat::Json);
        assert_eq!(config.recording, RecordingLimits { file_bytes: 1 << 20, files: 2 });
        for key in KEYS {
            assert!(RunArguments::default().flags().iter().any(|(flag, _)| *flag == key), "{key}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("phalanx.toml");
        std::fs::write(&path, "reservation = \"20s\"\nquarantine = \"40s\"\n").unwrap();
        let config = flags(|arguments| {
            arguments.config = Some(path);
            arguments.reservation = Some("30s".to_owned());
        });
        let settings = config.unwrap().settings;
        assert_eq!((settings.reservation_ms, settings.quarantine_ms), (Millis(30_000), Millis(40_000)));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = flag_error(|arguments| arguments.config = Some("/nowhere/phalanx.toml".into()));
        assert_eq!(
            error,
            "/nowhere/phalanx.toml: cannot be read: No such file or directory (os error 2); give an existing file \
             with --config, or leave the flag out"
        );
    }

    #[test]
    fn a_file_that_is_not_toml_is_named_with_its_line() {
        let error = file("reservation = \"10s\"\nresend = = 1\n").unwrap_err();
        assert!(error.starts_with("FILE:2: is not valid TOML: "), "{error}");
    }

    #[test]
    fn a_value_of_another_type_is_a_wrong_value() {
        assert_eq!(
            file("recording-files = 1.5\n").unwrap_err(),
            "FILE:1: recording-files: must be a whole number from 2 to 1000, found \"1.5\""
        );
        assert_eq!(
            file("listen = [\"127.0.0.1:1\"]\nrefusal-budget = 99999999999999999999\n").unwrap_err(),
            "FILE:1: listen: must be an IP address and a port such as 127.0.0.1:7410 or [::1]:0, found \
             \"[\\\"127.0.0.1:1\\\"]\"\n\
             error: FILE:2: refusal-budget: must be a whole number from 1 to 1000, found \"99999999999999999999\""
        );
        assert!(
            file("[coordinator]\nlisten = \"127.0.0.1:1\"\n")
                .unwrap_err()
                .starts_with("FILE:1: unknown key \"coordinator\"")
        );
    }

    #[test]
    fn the_file_is_checked_also_where_a_flag_wins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("phalanx.toml");
        std::fs::write(&path, "listen = \"here\"\n").unwrap();
        let error = flag_error(|arguments| {
            arguments.config = Some(path.clone());
            arguments.listen = Some("127.0.0.1:0".to_owned());
        });
        assert!(
            error.starts_with(&format!("{}:1: listen: must be an IP address", path.display())),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_near_one() {
        let known = KEYS.join(", ");
        assert_eq!(
            file("resend = \"1s\"\nreservatoin = \"10s\"\n").unwrap_err(),
            format!("FILE:2: unknown key \"reservatoin\"; did you mean reservation?; known keys: {known}")
        );
        assert_eq!(
            file("\n\nbinding_deadline = \"10s\"\n").unwrap_err(),
            format!(
                "FILE:3: unknown key \"binding_deadline\"; did you mean binding-deadline?; known keys: {known}"
            )
        );
        assert_eq!(
            file("weight = 1\n").unwrap_err(),
            format!("FILE:1: unknown key \"weight\"; known keys: {known}")
        );
    }

    #[test]
    fn listen_must_be_an_address() {
        assert_eq!(
            flag_error(|arguments| arguments.listen = Some("localhost:7410".to_owned())),
            "--listen: must be an IP address and a port such as 127.0.0.1:7410 or [::1]:0, found \
             \"localhost:7410\""
        );
    }

    #[test]
    fn admin_must_be_loopback_unless_allowed() {
        let expected = "--admin: must be a loopback address such as 127.0.0.1:7411, because the interface asks \
                        for no password (admin-allow-remote lifts this), found \"0.0.0.0:7411\"";
        assert_eq!(flag_error(|arguments| arguments.admin = Some("0.0.0.0:7411".to_owned())), expected);
        let allowed = flags(|arguments| {
            arguments.admin = Some("0.0.0.0:7411".to_owned());
            arguments.admin_allow_remote = true;
        });
        assert_eq!(allowed.unwrap().admin.to_string(), "0.0.0.0:7411");
        assert_eq!(
            flag_error(|arguments| arguments.admin = Some("7411".to_owned())),
            "--admin: must be an IP address and a port such as 127.0.0.1:7411 or [::1]:0, found \"7411\""
        );
    }

    #[test]
    fn admin_allow_remote_must_be_true_or_false() {
        assert_eq!(
            file("admin-allow-remote = 1\n").unwrap_err(),
            "FILE:1: admin-allow-remote: must be true or false, found \"1\""
        );
    }

    #[test]
    fn state_dir_must_not_be_empty() {
        assert_eq!(
            flag_error(|arguments| arguments.state_dir = Some(String::new())),
            "--state-dir: must be the path of a directory, found \"\""
        );
    }

    #[test]
    fn log_format_must_be_known() {
        assert_eq!(
            flag_error(|arguments| arguments.log_format = Some("xml".to_owned())),
            "--log-format: must be text or json, found \"xml\""
        );
    }

    #[test]
    fn reservation_must_be_a_duration_in_its_range() {
        let expected = |found: &str| {
            format!("--reservation: must be a duration from 1s to 10m such as 10s, found {found:?}")
        };
        for wrong in ["0s", "10", "ten", "", "11m", "-1s", "99999999999999999999s"] {
            let error = flag_error(|arguments| arguments.reservation = Some(wrong.to_owned()));
            assert_eq!(error, expected(wrong));
        }
        assert_eq!(
            file("resend = \"1s\"\n\nreservation = 10\n").unwrap_err(),
            "FILE:3: reservation: must be a duration from 1s to 10m such as 10s, found \"10\""
        );
    }

    #[test]
    fn confirm_timeout_must_be_below_reservation() {
        assert_eq!(
            flag_error(|arguments| arguments.confirm_timeout = Some("10s".to_owned())),
            "--confirm-timeout: must be below reservation, which is 10s, found \"10s\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.reservation = Some("4s".to_owned())),
            "--reservation: must be above confirm-timeout, which is 5s, found \"4s\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.confirm_timeout = Some("1ms".to_owned())),
            "--confirm-timeout: must be a duration from 100ms to 10m such as 5s, found \"1ms\""
        );
    }

    #[test]
    fn the_other_durations_have_their_ranges() {
        assert_eq!(
            flag_error(|arguments| arguments.binding_deadline = Some("2h".to_owned())),
            "--binding-deadline: must be a duration from 1s to 1h such as 2m, found \"2h\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.resend = Some("1ms".to_owned())),
            "--resend: must be a duration from 50ms to 1m such as 1s, found \"1ms\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.quarantine = Some("0s".to_owned())),
            "--quarantine: must be a duration from 1s to 1h such as 30s, found \"0s\""
        );
    }

    #[test]
    fn numbers_have_their_ranges() {
        assert_eq!(
            flag_error(|arguments| arguments.refusal_budget = Some("0".to_owned())),
            "--refusal-budget: must be a whole number from 1 to 1000, found \"0\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.attempts_per_minute = Some("1.5".to_owned())),
            "--attempts-per-minute: must be a whole number from 1 to 6000, found \"1.5\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.recording_file_mib = Some("0".to_owned())),
            "--recording-file-mib: must be a whole number from 1 to 4096, found \"0\""
        );
        assert_eq!(
            flag_error(|arguments| arguments.recording_files = Some("1".to_owned())),
            "--recording-files: must be a whole number from 2 to 1000, found \"1\""
        );
    }

    #[test]
    fn default_queue_must_be_a_name() {
        for wrong in ["", "Team", "-a", "a_b", &"a".repeat(64)] {
            assert_eq!(
                flag_error(|arguments| arguments.default_queue = Some(wrong.to_owned())),
                format!(
                    "--default-queue: must be 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends, \
                     found {wrong:?}"
                )
            );
        }
    }
}
