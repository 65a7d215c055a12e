//! How the API server is reached: kubeconfig or service account, time-outs, rate limit.
//!
//! Two clients are made of one configuration: one for watches, which stay open, and one for writes, which give up in
//! time. Neither repeats a request by itself: a write that is repeated behind our back may land after a later leader
//! has decided. Each is a connection per request in flight (HTTP/1.1), kept for the next one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::{BoxError, ServiceBuilder};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// A connection that is silent for so long is probed, and again; after three probes without an answer it is over. Less
/// than the shortest time for which load balancers remember a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Connections kept open although nothing is asked over them.
const IDLE_CONNECTIONS: usize = 64;

/// Says whether this process may write now: it leads, and its lease has not run out. Asked before each request.
pub type MayWrite = Arc<dyn Fn() -> bool + Send + Sync>;

/// May always write: for tools and tests, where nobody else leads.
#[must_use]
pub fn always() -> MayWrite {
    Arc::new(|| true)
}

/// Why there is no client. Every text says the way out.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The kubeconfig cannot be read.
    #[error("--kubeconfig: {path}: {cause}; name a file as `kubectl config view --raw` prints it")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// Neither a kubeconfig nor a service account is there.
    #[error(
        "no way to an API server: {0}; name a file with --kubeconfig, or run in a pod that has a service account token"
    )]
    NoCluster(String),
    /// The configuration cannot be used.
    #[error(
        "the way to the API server cannot be used: {0}; check certificates and credentials of the kubeconfig"
    )]
    Unusable(String),
}

/// Where the API server is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// A kubeconfig; without one the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; without one its current one.
    pub context: Option<String>,
}

impl Target {
    /// Reads the configuration.
    ///
    /// # Errors
    /// The file cannot be read or names no such context; there is no service account.
    pub async fn load(&self) -> Result<Config, ClientError> {
        let Some(path) = &self.kubeconfig else {
            return Config::incluster().map_err(|error| ClientError::NoCluster(error.to_string()));
        };
        let wrong = |cause: String| ClientError::Kubeconfig { path: path.clone(), cause };
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| wrong(error.to_string()))?;
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| wrong(error.to_string()))
    }
}

/// Both clients of one process.
#[derive(Clone)]
pub struct Clients {
    /// For lists and watches: answers may take as long as they do.
    pub watch: Client,
    /// For single reads and writes.
    pub write: Client,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Clients")
    }
}

impl Clients {
    /// Clients that call themselves `user_agent`, for example `phalanx-coordinator/0.1.0`.
    ///
    /// # Errors
    /// Certificates or credentials cannot be used.
    pub fn new(config: &Config, user_agent: &str) -> Result<Self, ClientError> {
        Ok(Self { watch: client(config, user_agent)?, write: client(config, user_agent)? })
    }
}

/// One client without time-out of its own but for the connection: callers bound each request.
///
/// # Errors
/// Certificates or credentials cannot be used.
pub fn client(config: &Config, user_agent: &str) -> Result<Client, ClientError> {
    let unusable = |error: &dyn std::fmt::Display| ClientError::Unusable(error.to_string());
    let mut config = config.clone();
    let agent = HeaderValue::from_str(user_agent).map_err(|error| unusable(&error))?;
    config.headers.push((USER_AGENT, agent));
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Small requests, each of which somebody waits for.
    tcp.set_nodelay(true);
    // A watch says nothing while nothing happens: whether the other end is still there is found out so.
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE));
    tcp.set_keepalive_retries(Some(3));
    let tls = config.rustls_https_connector_with_connector(tcp).map_err(|error| unusable(&error))?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(Some(CONNECT));
    let http: HttpClient<_, Body> =
        HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(IDLE_CONNECTIONS).build(connector);
    let credentials = config.auth_layer().map_err(|error| unusable(&error))?;
    let headers = config.extra_headers_layer().map_err(|error| unusable(&error))?;
    // Not kube's own stack: that one repeats requests, and logs each failure as an error of its own.
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(credentials)
        .layer(headers)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// So many a second, evenly, after a first burst of as many as a tenth of a second has.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Time between two, and the earliest time of the next one. `None` = no limit.
    limit: Option<(Duration, Arc<Mutex<Instant>>)>,
}

impl Pace {
    /// At most `per_second` a second; 0 = as many as can be.
    #[must_use]
    pub fn per_second(per_second: u32) -> Self {
        if per_second == 0 {
            return Self::default();
        }
        let between = Duration::from_secs(1) / per_second;
        Self { limit: Some((between, Arc::new(Mutex::new(Instant::now())))) }
    }

    /// Waits for one's turn. A caller that gives up takes no turn.
    pub async fn turn(&self) {
        let Some((between, next)) = &self.limit else { return };
        let mut next = next.lock().await;
        let turn = next_turn(*next, Instant::now(), *between);
        tokio::time::sleep_until(turn).await;
        *next = turn + *between;
    }
}

/// When the next one may go. What was not used is kept for a burst, and not for longer.
fn next_turn(next: Instant, now: Instant, between: Duration) -> Instant {
    let burst = Duration::from_millis(100).max(between);
    next.max(now.checked_sub(burst).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long 500 turns take that begin at `now`, all of them wanted at once.
    fn five_hundred(next: &mut Instant, now: Instant, between: Duration) -> Duration {
        let mut last = now;
        for _ in 0..500 {
            let turn = next_turn(*next, last, between);
            *next = turn + between;
            last = last.max(turn);
        }
        last - now
    }

    #[test]
    fn a_pace_lets_through_what_it_says_and_no_more() {
        let began = Instant::now();
        let (mut next, between) = (began, Duration::from_millis(10));
        assert_eq!(five_hundred(&mut next, began, between), Duration::from_millis(4_990));
        // An idle hour gives a burst of a tenth of a second, not of an hour.
        let later = began + Duration::from_secs(3600);
        assert_eq!(five_hundred(&mut next, later, between), Duration::from_millis(4_890));
    }

    #[tokio::test]
    async fn no_limit_waits_for_nothing() {
        let pace = Pace::per_second(0);
        for _ in 0..10_000 {
            pace.turn().await;
        }
        assert!(pace.limit.is_none());
    }

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_used_is_named() {
        let target = Target { kubeconfig: Some("/does/not/exist".into()), context: None };
        let error = target.load().await.unwrap_err().to_string();
        assert!(error.starts_with("--kubeconfig: /does/not/exist: "), "{error}");
        let error = Target::default().load().await.unwrap_err().to_string();
        assert!(error.contains("name a file with --kubeconfig"), "{error}");
    }
}
