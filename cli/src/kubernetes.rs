//! The coordinator of a Kubernetes cluster, asked through the API server's service proxy: with the user's own kubeconfig
//! and rights, and without any other way into the cluster.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use phalanx_common::describe::describe;
use phalanx_kubernetes::client::client;
use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// Where Phalanx is installed unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "phalanx-system";
/// Service of the leader's admin interface, and its port.
const SERVICE: &str = "phalanx-admin";
const PORT: &str = "admin";
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for the API server's own word that it is there.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Which cluster is meant, as the user said it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterChoice {
    /// A kubeconfig; without one those of `KUBECONFIG`, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Context; without one the current one.
    pub context: Option<String>,
    /// Namespace in which Phalanx is installed.
    pub phalanx_namespace: Option<String>,
}

impl ClusterChoice {
    /// The user has named a cluster.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// There is a kubeconfig where kubectl looks for one.
    #[must_use]
    pub fn has_default() -> bool {
        // One that is named and not there is said to be missing, and nothing else is asked in its place.
        named_by_environment().is_some()
            || std::env::home_dir().is_some_and(|home| home.join(".kube/config").is_file())
    }

    /// The environment names a kubeconfig.
    #[must_use]
    pub fn is_in_environment() -> bool {
        named_by_environment().is_some()
    }

    fn read(&self) -> Result<Kubeconfig, Failure> {
        if self.kubeconfig.is_none() {
            named_by_environment().map_or(Ok(()), |names| files_exist(&names))?;
        }
        let read = self.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
        read.map_err(|error| {
            let named = match &self.kubeconfig {
                Some(path) => format!("--kubeconfig {}", path.display()),
                None => "KUBECONFIG, else ~/.kube/config".to_owned(),
            };
            Failure::new(format!(
                "{named}: {}; name one with --kubeconfig, or a coordinator of its own with --server",
                describe(&error)
            ))
        })
    }
}

fn named_by_environment() -> Option<OsString> {
    std::env::var_os("KUBECONFIG").filter(|names| !names.is_empty())
}

/// At least one of the files that `KUBECONFIG` names must be there.
fn files_exist(names: &OsStr) -> Result<(), Failure> {
    if std::env::split_paths(names).any(|path| path.exists()) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "KUBECONFIG={}: there is no such file; correct the variable, name a file with --kubeconfig, or a coordinator of \
         its own with --server",
        names.display()
    )))
}

/// The API server's own words about a request.
#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    message: String,
}

/// A way to the coordinator of a cluster.
pub struct ClusterClient {
    runtime: Runtime,
    client: Client,
    namespace: String,
    user_namespace: String,
    /// Context and address, for people.
    cluster: String,
    /// Longest wait for an answer.
    patience: Duration,
}

impl ClusterClient {
    /// Reads the kubeconfig. Nothing is asked yet.
    ///
    /// # Errors
    /// The kubeconfig cannot be read or used; the text names the file or the field.
    pub fn open(choice: &ClusterChoice) -> Result<Self, Failure> {
        let kubeconfig = choice.read()?;
        let context = choice.context.clone().or_else(|| kubeconfig.current_context.clone());
        let shown = context.clone().unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
        let options = KubeConfigOptions { context: choice.context.clone(), ..KubeConfigOptions::default() };
        let unusable = |error: &(dyn std::error::Error + 'static)| {
            Failure::new(format!("kubeconfig: context {shown:?} cannot be used: {}", describe(error)))
        };
        let (client, config) = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| unusable(&error))?;
            if let Some(proxy) = &config.proxy_url {
                return Err(Failure::new(format!(
                    "kubeconfig: context {shown:?}: proxy-url {proxy} is not served yet; forward a port with \
                     `kubectl -n {DEFAULT_NAMESPACE} port-forward POD 7411` and use --server"
                )));
            }
            let agent = concat!("phalanx/", env!("CARGO_PKG_VERSION"));
            let client = client(&config, agent).map_err(|error| unusable(&error))?;
            Ok((client, config))
        })?;
        Ok(Self {
            runtime,
            client,
            namespace: choice.phalanx_namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            user_namespace: config.default_namespace,
            cluster: format!("context {shown:?}, {}", config.cluster_url),
            patience: ANSWER_TIMEOUT,
        })
    }

    /// The namespace of the context, `default` where it names none.
    #[must_use]
    pub fn default_namespace(&self) -> &str {
        &self.user_namespace
    }

    /// What the leader answers to a question, as text.
    ///
    /// # Errors
    /// There is no such cluster, no leader, no right to ask, or the leader's own error.
    pub fn get(&self, path: &str) -> Result<String, Failure> {
        let service = format!("/api/v1/namespaces/{}/services", self.namespace);
        let proxy = format!("{service}/http:{SERVICE}:{PORT}/proxy{path}");
        let Some((status, text)) = self.ask(&proxy, self.patience)? else {
            // Who is silent: the API server, or the coordinator to whom it passes questions on?
            let asked = self.ask("/version", self.patience.min(SERVER_TIMEOUT))?;
            let waited = format!("no answer within {} s", self.patience.as_secs_f64());
            return Err(Failure::new(match asked {
                Some(_) => self.silent(&waited),
                None => format!("cannot reach the API server ({}): {waited}", self.cluster),
            }));
        };
        if status.is_success() {
            return Ok(text);
        }
        if let Ok(leader) = serde_json::from_str::<LeaderError>(&text) {
            return Err(Failure::new(leader.error));
        }
        let said: Status = serde_json::from_str(&text).unwrap_or_default();
        let message = if said.kind == "Status" { said.message } else { text };
        Err(Failure::new(self.explain(status, &message, &service)))
    }

    fn explain(&self, status: StatusCode, message: &str, service: &str) -> String {
        let Self { namespace, cluster, .. } = self;
        match status {
            StatusCode::UNAUTHORIZED => {
                format!("the API server does not know you ({cluster}): {message}; check the context's user")
            }
            StatusCode::FORBIDDEN => format!(
                "you may not ask Phalanx ({cluster}): {message}; ask for the ClusterRole phalanx-viewer, for example: \
                 kubectl -n {namespace} create rolebinding NAME --clusterrole=phalanx-viewer --user=NAME"
            ),
            StatusCode::NOT_FOUND => self.not_installed(),
            StatusCode::SERVICE_UNAVAILABLE => match self.ask(&format!("{service}/{SERVICE}"), self.patience)
            {
                Ok(Some((StatusCode::NOT_FOUND, _))) => self.not_installed(),
                _ => format!(
                    "no coordinator answers in namespace {namespace} ({cluster}): {message}; while nobody leads there is no \
                     answer: try again in half a minute, and look at `kubectl -n {namespace} get pods,leases`"
                ),
            },
            StatusCode::GATEWAY_TIMEOUT | StatusCode::BAD_GATEWAY => self.silent(message),
            other => format!("the API server answers {other} ({cluster}): {message}"),
        }
    }

    fn silent(&self, cause: &str) -> String {
        let Self { namespace, cluster, .. } = self;
        format!(
            "the API server answers, and the coordinator behind Service {namespace}/{SERVICE} does not ({cluster}): \
             {cause}; it may hang, or its node may be away: a standby takes over within half a minute, so try again; then \
             look at `kubectl -n {namespace} get pods,leases` and at the coordinators' logs"
        )
    }

    fn not_installed(&self) -> String {
        format!(
            "Phalanx is not installed in namespace {} ({}): install it with `kubectl apply -k deploy`, or name its \
             namespace with --phalanx-namespace",
            self.namespace, self.cluster
        )
    }

    /// The answer; `None` where none comes within `patience`.
    fn ask(&self, path: &str, patience: Duration) -> Result<Option<(StatusCode, String)>, Failure> {
        let unreachable =
            |cause: String| Failure::new(format!("cannot reach the API server ({}): {cause}", self.cluster));
        let request = Request::builder()
            .method(Method::GET)
            .uri(path)
            .body(Body::empty())
            .map_err(|error| unreachable(error.to_string()))?;
        let asking = async {
            let answer = self.client.send(request).await?;
            let status = answer.status();
            let bytes = answer.into_body().collect_bytes().await?;
            Ok::<_, kube::Error>((status, bytes))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(patience, asking).await });
        match answer {
            Ok(Ok((status, bytes))) => Ok(Some((status, String::from_utf8_lossy(&bytes).into_owned()))),
            Ok(Err(error)) => Err(unreachable(describe(&error))),
            Err(_) => Ok(None),
        }
    }
}

/// An error as the coordinator writes it.
#[derive(Deserialize)]
struct LeaderError {
    error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(choice: &ClusterChoice) -> String {
        match ClusterClient::open(choice).err().unwrap() {
            Failure::Message(text) => text,
            Failure::Reported => panic!("no text"),
        }
    }

    fn choice(text: &str, context: Option<&str>) -> (tempfile::NamedTempFile, ClusterChoice) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let kubeconfig = Some(file.path().to_owned());
        (file, ClusterChoice { kubeconfig, context: context.map(str::to_owned), phalanx_namespace: None })
    }

    const GOOD: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
        "users": [{"name": "u", "user": {"token": "t"}}]}"#;

    #[test]
    fn a_kubeconfig_that_cannot_be_read_is_named() {
        let missing =
            ClusterChoice { kubeconfig: Some("/nonexistent/config".into()), ..ClusterChoice::default() };
        let text = text_of(&missing);
        assert!(text.starts_with("--kubeconfig /nonexistent/config: "), "{text}");
        assert!(text.contains("--server"), "{text}");
        let (_file, broken) = choice("{ nothing", None);
        assert!(text_of(&broken).starts_with("--kubeconfig "), "{}", text_of(&broken));
    }

    #[test]
    fn a_context_that_is_not_there_is_named() {
        let (_file, other) = choice(GOOD, Some("elsewhere"));
        let text = text_of(&other);
        assert!(text.contains("elsewhere"), "{text}");
    }

    #[test]
    fn the_context_says_the_namespace_and_who_does_not_answer() {
        let (_file, good) = choice(GOOD, None);
        let client = ClusterClient::open(&good).unwrap();
        assert_eq!(client.default_namespace(), "team-a");
        let Failure::Message(text) = client.get("/v1/state").unwrap_err() else { panic!("no text") };
        assert!(
            text.starts_with("cannot reach the API server (context \"here\", http://127.0.0.1:1/): "),
            "{text}"
        );
    }

    /// An API server that answers everything but what it would pass on; with `None` nothing at all.
    fn said_of_silence(answer: Option<&'static str>) -> String {
        use std::io::{Read, Write};
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for mut stream in server.incoming().flatten() {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap_or(0);
                match answer {
                    Some(answer) if !String::from_utf8_lossy(&request[..length]).contains("/proxy") => {
                        let _ = stream.write_all(answer.as_bytes());
                    }
                    _ => silent.push(stream),
                }
            }
        });
        let (_file, config) = choice(&GOOD.replace("http://127.0.0.1:1", &format!("http://{address}")), None);
        let mut client = ClusterClient::open(&config).unwrap();
        client.patience = Duration::from_secs(2);
        let Failure::Message(text) = client.get("/v1/state").unwrap_err() else { panic!("no text") };
        text
    }

    #[test]
    fn a_silent_coordinator_is_not_taken_for_a_silent_api_server() {
        let text =
            said_of_silence(Some("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"));
        assert!(
            text.contains("the coordinator behind Service phalanx-system/phalanx-admin does not"),
            "{text}"
        );
        let text = said_of_silence(None);
        assert!(text.starts_with("cannot reach the API server ("), "{text}");
        assert!(text.ends_with("no answer within 2 s"), "{text}");
    }

    #[test]
    fn a_kubeconfig_of_the_environment_that_is_missing_is_said_to_be() {
        let Failure::Message(text) = files_exist(OsStr::new("/nope")).unwrap_err() else { panic!("no text") };
        assert!(text.starts_with("KUBECONFIG=/nope: there is no such file"), "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut both = OsString::from("/nope:");
        both.push(file.path());
        assert!(files_exist(&both).is_ok());
    }

    #[test]
    fn proxies_are_not_ignored_in_silence() {
        let with =
            GOOD.replace("\"http://127.0.0.1:1\"", "\"http://127.0.0.1:1\", \"proxy-url\": \"http://a:1\"");
        let (_file, proxied) = choice(&with, None);
        let text = text_of(&proxied);
        assert!(text.contains("proxy-url http://a:1/ is not served yet"), "{text}");
    }
}
