//! The API of a real Kubernetes API server, behind the same door as the embedded one.
//!
//! Reads are answered from a mirror: `watch` lists and watches every kind, `normalize` cuts the objects down to
//! what is used, `mirror` keeps them and the log of their changes. Writes, and reads that must be fresh, go to the
//! API server (`write`).

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use phalanx_common::ids::ClusterId;
use serde_json::Value;
use tokio::sync::watch as latest;

use crate::api::{Api, ApiError, Change, Kind, Listing, Mutation, Object, ObjectKey};
use crate::convert::{OWN_NAMESPACE, Reading};

pub mod admin_endpoint;
pub mod events;
mod fresh;
mod lean;
pub mod mirror;
pub mod normalize;
pub mod owners;
mod packed;
pub mod report;
pub mod run;
pub mod service;
pub mod volcano;
pub mod watch;
pub mod write;

use mirror::Mirror;
use normalize::Trim;
use write::Writes;

/// Time for one plain request.
pub(crate) const REQUEST: Duration = Duration::from_secs(30);
/// In a pod of so few bytes those of a Binding find room.
const ROOMY_BYTES: usize = 128 * 1024;
/// First pause after a question to the API server that was not answered, at the start; it doubles.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause.
const LONGEST_START_PAUSE: Duration = Duration::from_secs(15);
/// The API server, where nothing more is known of it.
const SOME_SERVER: &str = "the API server";

/// Where the term's counter is kept: the Lease of the leader's election.
pub trait TermStore: Send + Sync + 'static {
    /// Raises the counter above its stored value and above `above`, and gives it.
    fn raise(&self, above: u64) -> BoxFuture<'_, Result<u64, ApiError>>;
}

/// What the mirror is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scheduler names that are served: pods that name another one are cut down to what they use.
    pub scheduler_names: Vec<String>,
    /// Changes kept for those who read them.
    pub log_length: usize,
    /// Where the coordinator's own objects stand.
    pub namespace: String,
    /// Only looked at: plans and leases of pods are somebody else's, and our own kinds may not be served.
    pub in_shadow: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler_names: vec![crate::manifest::names::SCHEDULER_PHALANX.to_owned()],
            log_length: mirror::LOG_LENGTH,
            namespace: OWN_NAMESPACE.to_owned(),
            in_shadow: false,
        }
    }
}

/// A Kubernetes API server. Clones share one mirror; its watches end with the last clone.
#[derive(Clone)]
pub struct KubernetesApi {
    mirror: Arc<Mirror>,
    client: Client,
    writes: Writes,
    cluster: ClusterId,
    reading: Reading,
    terms: Arc<OnceLock<Arc<dyn TermStore>>>,
    watches: Arc<watch::Watches>,
}

impl fmt::Debug for KubernetesApi {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KubernetesApi").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl KubernetesApi {
    /// Asks for the cluster's identity and starts the watches. `client` reads without a limit of its rate; `writes`
    /// has its own.
    ///
    /// # Errors
    /// The API server refuses (401, 403), or did not answer for a minute.
    pub async fn start(client: Client, writes: Writes, options: &Options) -> Result<Self, ApiError> {
        let cluster = read_cluster_id(&client, SOME_SERVER).await?;
        let trim = Trim::new(&options.scheduler_names);
        let mut mirror = Mirror::new(options.log_length, trim.clone());
        let mut reading =
            Reading::new(&options.scheduler_names).on_kubernetes().in_namespace(&options.namespace);
        if options.in_shadow {
            (mirror, reading) = (mirror.in_shadow(), reading.in_shadow());
        }
        let mirror = Arc::new(mirror);
        let watches = Arc::new(watch::Watches::start(&client, &mirror, &trim));
        Ok(Self { mirror, client, writes, cluster, reading, terms: Arc::new(OnceLock::new()), watches })
    }

    /// Says where the term's counter is kept; before that `raise_term` is refused. Only the first call counts.
    pub fn set_terms(&self, terms: Arc<dyn TermStore>) {
        if self.terms.set(terms).is_err() {
            tracing::warn!("the term's counter was named twice; the first one stays");
        }
    }

    /// The mirror, for those who look without waiting.
    #[must_use]
    pub fn mirror(&self) -> &Arc<Mirror> {
        &self.mirror
    }

    /// The client that reads.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// What writes.
    #[must_use]
    pub const fn writes(&self) -> &Writes {
        &self.writes
    }

    /// How the watches fare, for metrics and tests.
    #[must_use]
    pub fn watches(&self) -> &watch::Watches {
        &self.watches
    }
}

impl KubernetesApi {
    /// What a write starts from. A Binding needs what is there only where its annotations may find no room any more.
    fn known(&self, mutation: &Mutation) -> Option<Arc<Object>> {
        let key = mutation.key()?;
        let is_needed = match mutation {
            Mutation::Update(_) | Mutation::UpdateStatus { .. } => true,
            Mutation::Bind { .. } => self.mirror.head_bytes(&key) > ROOMY_BYTES,
            _ => false,
        };
        is_needed.then(|| self.mirror.get(&key).ok().map(Arc::new)).flatten()
    }
}

impl Api for KubernetesApi {
    async fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        self.writes.get(key).await
    }

    async fn glance(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        self.mirror.get(key).map(Arc::new)
    }

    /// Waits until every kind that must be there was listed once.
    async fn list(&self, kind: Option<Kind>) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
        self.mirror.ready(kind).await?;
        self.mirror.list(kind)
    }

    async fn listing(&self, kind: Option<Kind>) -> Result<(Listing, u64), ApiError> {
        self.mirror.ready(kind).await?;
        Ok(self.mirror.listing(kind))
    }

    async fn changes_since(&self, resource_version: u64, max: usize) -> Result<Vec<Change>, ApiError> {
        self.mirror.changes_since(resource_version, max)
    }

    async fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        let known = self.known(&mutation);
        self.writes.mutate(mutation, known).await
    }

    async fn mutate_known(&self, known: Arc<Object>, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        self.writes.mutate(mutation, Some(known)).await
    }

    fn subscribe(&self) -> latest::Receiver<u64> {
        self.mirror.subscribe()
    }

    fn cluster_id(&self) -> ClusterId {
        self.cluster.clone()
    }

    fn reading(&self) -> Reading {
        self.reading.clone()
    }

    async fn raise_term(&self, above: u64) -> Result<u64, ApiError> {
        match self.terms.get() {
            Some(terms) => terms.raise(above).await,
            None => {
                Err(ApiError::Invalid("the term cannot be raised: this replica is not the leader".to_owned()))
            }
        }
    }
}

/// Identity of the cluster: the UID of its namespace kube-system, which lives as long as the cluster does. `server`
/// tells people which API server is asked.
pub(crate) async fn read_cluster_id(client: &Client, server: &str) -> Result<ClusterId, ApiError> {
    // A minute in all, where each is refused at once.
    const ATTEMPTS: u32 = 8;
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            let pause = start_pause(attempt);
            tracing::warn!(
                server,
                error = last,
                "the API server does not tell the cluster's identity; trying again in {} s",
                pause.as_secs()
            );
            tokio::time::sleep(pause).await;
        }
        match kube_system(client).await {
            Ok(namespace) => match namespace.pointer("/metadata/uid").and_then(Value::as_str) {
                Some(uid) if !uid.is_empty() => return Ok(ClusterId::from(uid)),
                _ => "the namespace kube-system has no UID".clone_into(&mut last),
            },
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
                return Err(ApiError::Invalid(format!(
                    "{server} refuses to show the namespace kube-system: {}; check the kubeconfig, or apply deploy/ (RBAC)",
                    status.message
                )));
            }
            Err(error) => last = watch::text(&error),
        }
    }
    Err(ApiError::Storage(format!("{server} does not tell the UID of the namespace kube-system: {last}")))
}

/// Pause before an attempt, which are counted from 0.
fn start_pause(attempt: u32) -> Duration {
    let doubled = START_PAUSE.saturating_mul(1 << attempt.saturating_sub(1).min(10));
    doubled.min(LONGEST_START_PAUSE)
}

async fn kube_system(client: &Client) -> Result<Value, kube::Error> {
    let request = http::Request::get("/api/v1/namespaces/kube-system")
        .header(http::header::ACCEPT_ENCODING, "identity")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    match tokio::time::timeout(REQUEST, client.request(request)).await {
        Ok(answer) => answer,
        Err(_) => Err(watch::no_answer()),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
