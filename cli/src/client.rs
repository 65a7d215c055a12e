//! The admin API of the coordinator over HTTP.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_common::shadow::ShadowReport;
use phalanx_core::view::{Explanation, StateView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ureq::http::Response;
use ureq::{Agent, Timeout};

use crate::arguments::ObjectName;
use crate::failure::Failure;
use crate::kubernetes::{ClusterChoice, ClusterClient};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a text to be applied or deleted: each of its objects, of which there can be ten thousand, is
/// written to the coordinator's disk.
const TEXT_TIMEOUT: Duration = Duration::from_secs(300);
/// How a connection ends that was there.
const ENDS: [ErrorKind; 4] = [
    ErrorKind::BrokenPipe,
    ErrorKind::ConnectionAborted,
    ErrorKind::ConnectionReset,
    ErrorKind::UnexpectedEof,
];
/// Largest answer that is read: the state of a large cluster is tens of MiB.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// Environment variable that names a server.
const SERVER_VARIABLE: &str = "PHALANX_SERVER";

/// Address of an admin API, `http://HOST:PORT`, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(String);

impl std::str::FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "expected http://HOST:PORT, for example http://127.0.0.1:7411";
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(match text.split_once("://") {
                Some((scheme, _)) => format!("{scheme}:// is not served; {FORM}"),
                None => FORM.to_owned(),
            });
        };
        let authority = rest.trim_end_matches('/');
        let port = authority.rsplit_once(':').map_or(Some(80), |(_, port)| port.parse::<u16>().ok());
        if authority.is_empty() || authority.contains(['/', '?', '#', '@', ' ']) || port.is_none() {
            return Err(FORM.to_owned());
        }
        Ok(Self(format!("http://{authority}")))
    }
}

impl std::fmt::Display for ServerUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a coordinator writes into its state folder once it listens.
#[derive(Clone, Debug, Deserialize)]
pub struct Endpoints {
    /// Admin API, `http://ADDRESS:PORT`.
    pub admin: String,
    /// Where agents connect, `ADDRESS:PORT`.
    pub quic: String,
    /// Process that wrote it.
    pub pid: u32,
}

impl Endpoints {
    /// File in the state folder.
    pub const FILE: &'static str = "endpoints.json";

    /// Reads the file of a state folder; `None` where there is none yet or it is not whole.
    #[must_use]
    pub fn read(state_dir: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(state_dir.join(Self::FILE)).ok()?).ok()
    }
}

/// Where `up` keeps its state unless told otherwise; the coordinator's own default.
///
/// # Errors
/// Neither `XDG_STATE_HOME` nor `HOME` is set.
pub fn default_state_dir() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|folder| folder.join("phalanx"))
        .ok_or_else(|| {
            Failure::new("neither XDG_STATE_HOME nor HOME is set: name the folder with --state-dir")
        })
}

/// Objects that are deleted together, in this order: those that others name go last.
pub const PARTS: [&str; 3] = ["gangs", "queues", "priority-classes"];

/// What applying one text did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// Objects that the text names.
    pub objects: u64,
    /// All documents were applied.
    pub ok: bool,
    /// Objects in the order of the text.
    pub applied: Vec<AppliedObject>,
    /// What was wrong or worth knowing.
    pub diagnostics: Vec<Diagnostic>,
}

/// One applied object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppliedObject {
    /// Kind.
    pub kind: String,
    /// Namespace; empty or `-` where the kind has none.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// `created`, `configured` or `unchanged`.
    pub change: String,
}

impl AppliedObject {
    /// `Job team-a/training`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.namespace.as_deref() {
            None | Some("" | "-") => format!("{} {}", self.kind, self.name),
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// One remark about a text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Diagnostic {
    /// `error` or `warning`.
    pub severity: String,
    /// File as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// Field path; empty for the whole document.
    #[serde(default)]
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = self.severity.to_lowercase();
        write!(formatter, "{}:{}: {severity}: ", self.file, self.line)?;
        if !self.field.is_empty() {
            write!(formatter, "{}: ", self.field)?;
        }
        formatter.write_str(&self.message)
    }
}

/// A coordinator to talk to.
pub struct Client {
    way: Way,
}

/// How it is reached.
enum Way {
    /// At its own address.
    Direct(Direct),
    /// Through the API server of its cluster, where it only answers questions.
    Cluster(Box<ClusterClient>),
}

/// A coordinator at an address.
struct Direct {
    agent: Agent,
    /// As `agent`, with the patience that a whole text needs.
    texts: Agent,
    server: ServerUrl,
}

/// What a request was for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// To know something.
    Look,
    /// To change something.
    Change,
}

/// As what the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// `phalanx`.
    Own,
    /// `kubectl phalanx`, which asks the cluster that kubectl would ask, whatever runs on this machine.
    Kubectl,
}

impl Caller {
    /// How the user calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "phalanx",
            Self::Kubectl => "kubectl phalanx",
        }
    }
}

impl Client {
    /// The server that was named, else the cluster that was, else the server of the environment, else the one that `up`
    /// started in the default state folder where that answers (not for kubectl's plugin), else the cluster that kubectl
    /// would ask.
    ///
    /// # Errors
    /// None is named and none was started here, or what is named cannot be used.
    pub fn find(caller: Caller, server: Option<ServerUrl>, cluster: &ClusterChoice) -> Result<Self, Failure> {
        if let Some(server) = server {
            return Ok(Self::new(server));
        }
        if cluster.is_named() {
            return Self::of_cluster(cluster);
        }
        // Read here and not by the command line's parser, which would show it as part of every usage.
        if let Some(text) = std::env::var_os(SERVER_VARIABLE).filter(|text| !text.is_empty()) {
            let text = text.to_string_lossy();
            let named = text
                .parse()
                .map_err(|form: String| Failure::new(format!("{SERVER_VARIABLE}: {text:?}: {form}")));
            return named.map(Self::new);
        }
        if caller == Caller::Kubectl {
            return Self::of_cluster(cluster);
        }
        let state_dir = default_state_dir();
        let started = state_dir.as_ref().ok().and_then(|folder| Endpoints::read(folder));
        let started = started.and_then(|endpoints| endpoints.admin.parse().ok()).map(Self::new);
        if ClusterChoice::has_default() && !started.as_ref().is_some_and(Self::is_there) {
            return Self::of_cluster(cluster);
        }
        match started {
            Some(client) => {
                if ClusterChoice::is_in_environment() {
                    // Two were meant by something that the user has set or started: who answers is said.
                    eprintln!(
                        "note: this is the coordinator of `phalanx up`; the cluster of KUBECONFIG is asked with \
                         `kubectl phalanx` or --kubeconfig"
                    );
                }
                Ok(client)
            }
            None => Err(Failure::new(format!(
                "no coordinator is known: start one with `phalanx up`, name one with --server http://HOST:PORT or \
                 PHALANX_SERVER, or a cluster with --kubeconfig (looked for {}, $KUBECONFIG and ~/.kube/config)",
                state_dir?.join(Endpoints::FILE).display()
            ))),
        }
    }

    /// A client of this server. Proxies of the environment are not used: the admin API is local.
    #[must_use]
    pub fn new(server: ServerUrl) -> Self {
        Self::with(server, ANSWER_TIMEOUT, TEXT_TIMEOUT)
    }

    fn of_cluster(cluster: &ClusterChoice) -> Result<Self, Failure> {
        Ok(Self { way: Way::Cluster(Box::new(ClusterClient::open(cluster)?)) })
    }

    fn with(server: ServerUrl, answer: Duration, text: Duration) -> Self {
        let patient = |timeout: Duration| {
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .proxy(None)
                .timeout_connect(Some(CONNECT_TIMEOUT))
                .timeout_global(Some(timeout))
                .build();
            Agent::from(config)
        };
        Self { way: Way::Direct(Direct { agent: patient(answer), texts: patient(text), server }) }
    }

    /// True where the coordinator is one of a cluster, whose objects kubectl changes.
    #[must_use]
    pub const fn is_of_cluster(&self) -> bool {
        matches!(self.way, Way::Cluster(_))
    }

    /// The namespace of what is named without one.
    #[must_use]
    pub fn default_namespace(&self) -> &str {
        match &self.way {
            Way::Direct(_) => "default",
            Way::Cluster(cluster) => cluster.default_namespace(),
        }
    }

    /// True where somebody listens at its address.
    fn is_there(&self) -> bool {
        self.path("/healthz").is_ok_and(|(direct, url)| direct.agent.get(url).call().is_ok())
    }

    /// True where the server says that it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let answer = self.path("/readyz").map(|(direct, url)| direct.agent.get(url).call());
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status().is_success()))
    }

    /// Everything there is.
    ///
    /// # Errors
    /// The server cannot be reached or answers with an error.
    pub fn state(&self) -> Result<StateView, Failure> {
        self.look("/v1/state")
    }

    /// What shadow mode has compared.
    ///
    /// # Errors
    /// As `state`; also where the coordinator is not in shadow mode.
    pub fn shadow(&self) -> Result<ShadowReport, Failure> {
        self.look("/v1/shadow")
    }

    /// Why a gang waits.
    ///
    /// # Errors
    /// As `state`; also where no gang, job or pod has this name.
    pub fn explain(&self, name: &ObjectName) -> Result<Explanation, Failure> {
        let namespace = name.namespace.as_deref().unwrap_or_else(|| self.default_namespace());
        self.look(&format!("/v1/explain/{namespace}/{}", name.name))
    }

    fn look<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        match &self.way {
            Way::Direct(direct) => {
                direct.read(Wish::Look, direct.agent.get(format!("{}{path}", direct.server)).call())
            }
            Way::Cluster(cluster) => serde_json::from_str(&cluster.get(path)?).map_err(|error| {
                Failure::new(format!(
                    "the coordinator of the cluster answered something else than one of this version would ({error}): use \
                     the `phalanx` of its version"
                ))
            }),
        }
    }

    /// Applies the documents of a text; wrong ones are in the diagnostics.
    ///
    /// # Errors
    /// As `state`; also on a cluster.
    pub fn apply(&self, file: &str, text: &str) -> Result<Applied, Failure> {
        let (direct, url) = self.path("/v1/apply")?;
        let request = direct.texts.post(url).query("file", file);
        direct.read(Wish::Change, request.content_type("application/yaml").send(text))
    }

    /// Deletes one object. `namespace` is `-` for kinds without.
    ///
    /// # Errors
    /// As `apply`; also where it is not there or must stay.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), Failure> {
        let (direct, url) = self.path(&format!("/v1/objects/{kind}/{namespace}/{name}"))?;
        let _: serde_json::Value = direct.read(Wish::Change, direct.agent.delete(url).call())?;
        Ok(())
    }

    /// Deletes the objects of one of the parts that a text names; `applied` lists those that were there.
    ///
    /// # Errors
    /// As `apply`.
    pub fn delete_text(&self, file: &str, text: &str, part: &str) -> Result<Applied, Failure> {
        let (direct, url) = self.path("/v1/delete")?;
        let request = direct.texts.post(url).query("file", file).query("part", part);
        direct.read(Wish::Change, request.content_type("application/yaml").send(text))
    }

    /// What only a coordinator at its own address does.
    fn path(&self, path: &str) -> Result<(&Direct, String), Failure> {
        match &self.way {
            Way::Direct(direct) => Ok((direct, format!("{}{path}", direct.server))),
            Way::Cluster(_) => Err(Failure::new(
                "on a Kubernetes cluster objects are created, changed and deleted with kubectl: kubectl apply -f FILE, \
                 kubectl delete -f FILE (name a coordinator without a cluster with --server)",
            )),
        }
    }
}

impl Direct {
    fn read<T: DeserializeOwned>(
        &self,
        wish: Wish,
        answer: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let mut answer = answer.map_err(|error| self.no_answer(wish, &error))?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        let text = body.map_err(|error| self.no_answer(wish, &error))?;
        if status.is_success() {
            return serde_json::from_str(&text).map_err(|error| {
                Failure::new(format!(
                    "{} answered something else than a Phalanx coordinator of this version would ({error}): \
                     check --server",
                    self.server
                ))
            });
        }
        let told: Option<ErrorBody> = serde_json::from_str(&text).ok();
        Err(Failure::new(told.map_or_else(
            || format!("{} answered {status}: is it a Phalanx coordinator? check --server", self.server),
            |told| told.error,
        )))
    }

    /// Why there is no answer, and what that means: a coordinator that was reached may have done what was asked.
    fn no_answer(&self, wish: Wish, error: &ureq::Error) -> Failure {
        let cause = match error {
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                "connection refused".to_owned()
            }
            ureq::Error::HostNotFound => "no such host".to_owned(),
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                "it does not take the connection".to_owned()
            }
            ureq::Error::Timeout(_) => return self.broken_off(wish, "it takes too long"),
            ureq::Error::Io(error) if ENDS.contains(&error.kind()) => {
                return self.broken_off(wish, "it has ended the connection");
            }
            other => other.to_string(),
        };
        Failure::new(format!(
            "cannot reach the coordinator at {}: {cause}; start one with `phalanx up`, or name another with \
             --server or PHALANX_SERVER",
            self.server
        ))
    }

    fn broken_off(&self, wish: Wish, cause: &str) -> Failure {
        let server = &self.server;
        Failure::new(match wish {
            Wish::Look => format!("no answer from the coordinator at {server}: {cause}; its log may say why"),
            Wish::Change => format!(
                "no answer from the coordinator at {server}: {cause}; it goes on with what it was sent while it runs, \
                 and all, part or nothing of it may be done: `phalanx get` shows what is there, and the same command \
                 again does the rest"
            ),
        })
    }
}

#[derive(Deserialize)]
struct ErrorBody {
    error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_addresses_are_checked() {
        for good in ["http://127.0.0.1:7411", "http://[::1]:7411/", "http://coordinator"] {
            assert!(good.parse::<ServerUrl>().is_ok(), "{good}");
        }
        let error = |text: &str| text.parse::<ServerUrl>().unwrap_err();
        assert_eq!(error("127.0.0.1:7411"), "expected http://HOST:PORT, for example http://127.0.0.1:7411");
        assert!(error("https://a:1").starts_with("https:// is not served"));
        for bad in ["", "http://", "http://a:b", "http://a:70000", "http://a:1/v1", "http://a b:1"] {
            assert!(error(bad).contains("expected http://HOST:PORT"), "{bad}");
        }
    }

    #[test]
    fn a_diagnostic_reads_like_a_compiler() {
        let text =
            r#"{"severity":"Error","file":"a.yaml","line":3,"field":"spec.weight","message":"must be 1"}"#;
        let diagnostic: Diagnostic = serde_json::from_str(text).unwrap();
        assert_eq!(diagnostic.to_string(), "a.yaml:3: error: spec.weight: must be 1");
    }

    #[test]
    fn nothing_listens_there() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let client = Client::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        let Failure::Message(text) = client.state().unwrap_err() else { panic!("no text") };
        assert!(text.contains("connection refused; start one with `phalanx up`"), "{text}");
    }

    #[test]
    fn a_coordinator_that_takes_too_long_is_not_said_to_be_absent() {
        // Accepts, and says nothing.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server: ServerUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let moment = Duration::from_millis(50);
        let client = Client::with(server, moment, moment);
        let text = |failure: Failure| {
            let Failure::Message(text) = failure else { panic!("no text") };
            assert!(text.starts_with("no answer from the coordinator at http://127.0.0.1:"), "{text}");
            assert!(text.contains(": it takes too long; "), "{text}");
            text
        };
        assert!(text(client.state().unwrap_err()).ends_with("its log may say why"));
        let told = [client.apply("f", "text").err(), client.delete_text("f", "text", "gangs").err()];
        for told in told.map(|failure| text(failure.unwrap())) {
            assert!(told.contains("all, part or nothing of it may be done: `phalanx get` shows"), "{told}");
        }
    }

    #[test]
    fn a_coordinator_that_ends_may_have_done_what_it_was_sent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server: ServerUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let ending = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        });
        let Failure::Message(text) = Client::new(server).apply("f", "text").unwrap_err() else {
            panic!("no text")
        };
        ending.join().unwrap();
        assert!(
            text.contains(": it has ended the connection; it goes on") && text.contains("may be done"),
            "{text}"
        );
    }
}
