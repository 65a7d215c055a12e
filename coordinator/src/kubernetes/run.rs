//! One replica of the coordinator on a Kubernetes cluster: it stands by until the Lease is its own, leads until it
//! loses the Lease or is told to stop, and ends. Nobody leads twice in one life: what a former leader knew is old.

mod lead;
mod open;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use phalanx_common::ids::Term;
use phalanx_kubernetes::election::{Holder, LEASE_NAME, Leadership};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::open::Agents;
pub(crate) use self::open::server_text;
use super::{KubernetesApi, TermStore};
use crate::admin::AdminParts;
use crate::agents::{AgentServer, AgentServerParts, PodReport};
use crate::api::{Api, ApiError};
use crate::clock::Clock;
use crate::config::{Config, KubernetesConfig};
use crate::coordinator::{Endpoints, StartError, serve_admin};
use crate::driver::{self, Inputs, Senders};
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::recorder::Recorder;

/// How often it is said what is still missing before a replica may lead.
const MISSING_LINE: Duration = Duration::from_secs(30);
/// Reports of pods that wait to be dropped.
const REPORTS: usize = 64;

/// How a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it was told to.
    Stopped,
    /// It leads no more: the Lease is not its own, or agents obey a later leader.
    Lost,
    /// A part of it crashed, or could not begin.
    Crashed,
}

impl End {
    /// The process's exit code. One that lost the Lease has one of its own: nothing is wrong with it.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Stopped => 0,
            Self::Crashed => 1,
            Self::Lost => 3,
        }
    }
}

/// A replica that stands by. `run` lets it stand for election.
#[derive(Debug)]
pub struct Replica {
    /// Where the admin interface answers.
    pub admin: SocketAddr,
    /// Where agents dial.
    pub quic: SocketAddr,
    /// First file of the recording.
    pub recording: PathBuf,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    config: Config,
    kubernetes: KubernetesConfig,
    incarnation: u64,
    api: KubernetesApi,
    leadership: Leadership,
    clock: Clock,
    recorder: Recorder,
    progress: Arc<Progress>,
    ready: Arc<AtomicBool>,
    senders: Senders,
    inputs: Inputs,
    term: watch::Sender<Term>,
    stop: watch::Sender<bool>,
    agents: AgentServer,
    endpoints: Endpoints,
    others: JoinSet<()>,
}

impl TermStore for Leadership {
    fn raise(&self, above: u64) -> BoxFuture<'_, Result<u64, ApiError>> {
        let raised = Self::raise(self, above);
        raised.map(|raised| raised.map_err(|error| ApiError::Storage(error.to_string()))).boxed()
    }
}

impl Replica {
    /// Starts all that a replica that stands by has: the mirror of the objects, the agents' links, the admin interface.
    ///
    /// # Errors
    /// The first part that does not come up.
    pub async fn start(config: &Config, kubernetes: &KubernetesConfig) -> Result<Self, StartError> {
        let opened = open::open(config, kubernetes).await?;
        let (metrics, progress) = (Arc::new(Metrics::default()), Arc::new(Progress::default()));
        let ready = Arc::new(AtomicBool::new(false));
        let (stop, stopping) = watch::channel(false);
        let (senders, inputs) = driver::channels(stopping.clone());
        let mut others = JoinSet::new();
        let (standby, standby_told) = watch::channel(Some(NOBODY.to_owned()));
        others.spawn(tell_standby(opened.leadership.clone(), kubernetes.clone(), standby));
        serve_admin(
            opened.admin,
            AdminParts {
                api: opened.api.clone(),
                questions: senders.questions.clone(),
                metrics: Arc::clone(&metrics),
                progress: Arc::clone(&progress),
                ready: Arc::clone(&ready),
                trouble: watch::channel(None).1,
                standby: standby_told,
                answers_only: true,
                loopback: opened.admin_address.ip().is_loopback(),
                default_queue: config.settings.default_queue.clone(),
                shadow: None,
            },
            stopping,
            &mut others,
        );
        let (pods, reports) = mpsc::channel(REPORTS);
        others.spawn(drop_reports(reports));
        let (term, term_told) = watch::channel(Term::default());
        let parts = AgentServerParts {
            cluster: opened.api.cluster_id(),
            term: term_told,
            driver: senders.agents.clone(),
            pods,
            metrics: Arc::clone(&metrics),
        };
        let Agents { quic, tokens, authority } = opened.agents;
        if let Some(authority) = authority {
            others.spawn(authority.keep(quic.clone()));
        }
        let agents = AgentServer::start_with(quic, parts, tokens);
        let quic = agents.address().unwrap_or(config.listen);
        let endpoints = Endpoints::write(&config.state_dir, opened.admin_address, quic)?;
        tracing::info!(
            admin = %opened.admin_address, %quic, identity = kubernetes.identity, "the replica stands by"
        );
        Ok(Self {
            admin: opened.admin_address,
            quic,
            recording: opened.recorder.file().to_owned(),
            metrics,
            config: opened.config,
            kubernetes: opened.kubernetes,
            incarnation: opened.incarnation,
            api: opened.api,
            leadership: opened.leadership,
            clock: opened.clock,
            recorder: opened.recorder,
            progress,
            ready,
            senders,
            inputs,
            term,
            stop,
            agents,
            endpoints,
            others,
        })
    }

    /// Who leads, as this replica knows it.
    #[must_use]
    pub const fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// The API as this replica sees it.
    #[must_use]
    pub const fn api(&self) -> &KubernetesApi {
        &self.api
    }

    /// Stands by, leads, and ends: when `stop` is there, or when the Lease is lost.
    pub async fn run(self, stop: impl Future<Output = ()>) -> End {
        let mut stop = pin!(stop);
        let counter = tokio::select! {
            () = &mut stop => None,
            counter = self.stand_for_election() => Some(counter),
        };
        let Some(counter) = counter else {
            self.endpoints.remove();
            self.stop.send_replace(true);
            self.agents.stop().await;
            let _ = tokio::task::spawn_blocking(|| self.recorder.finish()).await;
            return End::Stopped;
        };
        tracing::info!(term = counter, "this replica leads");
        lead::lead(self, counter, stop).await
    }

    /// Waits until everything that is stored is known, and then until the Lease is ours.
    async fn stand_for_election(&self) -> u64 {
        let mirror = self.api.mirror();
        while tokio::time::timeout(MISSING_LINE, mirror.ready(None)).await.is_err() {
            let missing: Vec<&str> = mirror.missing().into_iter().map(|kind| kind.as_str()).collect();
            tracing::warn!(
                missing = missing.join(", "),
                "kinds cannot be listed yet: this replica does not lead"
            );
        }
        self.ready.store(true, Ordering::Release);
        self.leadership.acquire().await
    }
}

/// How often the answer is looked at, since nothing tells that a holder does NOT renew.
const STANDBY_LOOK: Duration = Duration::from_secs(1);

const NOBODY: &str = "this replica does not lead, and none is known to; ask again in some seconds";

/// Keeps the answer to questions that only a leader can answer.
async fn tell_standby(
    leadership: Leadership,
    kubernetes: KubernetesConfig,
    standby: watch::Sender<Option<String>>,
) {
    let (mut leading, mut holder) = (leadership.leading(), leadership.holder());
    loop {
        let unrenewed = leadership.unrenewed().await;
        let text = match &*holder.borrow_and_update() {
            _ if *leading.borrow_and_update() => None,
            None => Some(NOBODY.to_owned()),
            Some(holder) => Some(held_by(holder, unrenewed, &kubernetes)),
        };
        standby.send_replace(text);
        let changed = tokio::select! {
            changed = leading.changed() => changed,
            changed = holder.changed() => changed,
            () = tokio::time::sleep(STANDBY_LOOK) => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// What is known of the leader: one that has not renewed the Lease in its time leads no more.
fn held_by(holder: &Holder, unrenewed: Duration, kubernetes: &KubernetesConfig) -> String {
    let (name, namespace, times) = (&holder.name, &kubernetes.namespace, &kubernetes.times);
    if unrenewed > times.renew_deadline.min(times.retry_period * 3) {
        return format!(
            "this replica does not lead, and no replica has renewed the Lease {namespace}/{LEASE_NAME} for {} s (it \
             names {name}); a standby takes over {} s after the last renewal: ask again, and if that goes on look at \
             `kubectl -n {namespace} get pods,leases`",
            unrenewed.as_secs(),
            times.lease_duration.as_secs()
        );
    }
    let at = holder.admin.as_ref().map(|admin| format!(" at {admin}")).unwrap_or_default();
    format!("this replica does not lead; the leader is {name}{at}")
}

/// Kubelets tell how pods fare; what agents say of them is not needed.
async fn drop_reports(mut reports: mpsc::Receiver<PodReport>) {
    while reports.recv().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use phalanx_kubernetes::client::Target;
    use phalanx_kubernetes::election::LeaseTimes;

    use super::*;
    use crate::config::AgentIdentity;

    #[test]
    fn a_holder_that_does_not_renew_is_not_called_the_leader() {
        let kubernetes = KubernetesConfig {
            shadow: false,
            target: Target::default(),
            namespace: "phalanx-system".to_owned(),
            identity: "b".to_owned(),
            times: LeaseTimes::default(),
            bind_qps: None,
            scheduler_names: Vec::new(),
            admin_advertise: None,
            agent_identity: AgentIdentity::Token,
            pki_dir: None,
        };
        let holder = Holder { name: "a_1".to_owned(), admin: Some("10.0.0.1:7411".to_owned()), term: 1 };
        let text = |seconds| held_by(&holder, Duration::from_secs(seconds), &kubernetes);
        assert_eq!(text(2), "this replica does not lead; the leader is a_1 at 10.0.0.1:7411");
        let gone = text(9);
        assert!(!gone.contains("the leader is"), "{gone}");
        assert!(gone.contains("has renewed the Lease phalanx-system/phalanx-coordinator for 9 s"), "{gone}");
        assert!(gone.contains("takes over 15 s after") && gone.contains("get pods,leases"), "{gone}");
    }
}
