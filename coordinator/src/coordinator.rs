//! Puts the parts together, in the order in which they must come up, and takes them down again.

mod endpoints;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use phalanx_common::ids::{ClusterId, NodeName, Term};
use phalanx_core::Core;
use phalanx_core::event::Event;
use phalanx_kubernetes::client::ClientError;
use phalanx_transport::pki::AUTHORITY_KEY_FILE;
use phalanx_transport::{
    CertificateAuthority, EndpointError, Identity, PkiError, TrustAnchor, server_endpoint,
};
use quinn::Endpoint;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

pub use self::endpoints::{Endpoints, EndpointsError};
use crate::admin::{self, AdminParts, Bounded};
use crate::agents::authority::KubernetesAuthorityError;
use crate::agents::{AgentInput, AgentServer, AgentServerParts, PodReport};
use crate::api::embedded::{EmbeddedApi, OpenError};
use crate::api::{Api, ApiError, Change, Object};
use crate::clock::Clock;
use crate::config::Config;
use crate::convert::claims::Claims;
use crate::convert::{self, Converted, PlansTold, Reading};
use crate::driver::{self, Driver, Inputs, Messages, Permit, Senders};
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::recorder::{Recorder, RecorderError};
use crate::runner;
use crate::watch::Watcher;
use crate::writer;

/// Name of the objects' file in the state directory.
pub const OBJECTS_FILE: &str = "objects.redb";
/// How long the writer may finish what was asked, when the process ends.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// Why a coordinator does not start. Every text says the way out.
#[derive(Debug, Error)]
pub enum StartError {
    /// The state directory cannot be made.
    #[error("--state-dir: {directory}: {cause}; name a directory that can be written")]
    StateDirectory {
        /// The directory.
        directory: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The objects cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The objects cannot be read.
    #[error("stored objects: {0}")]
    Api(#[from] ApiError),
    /// The way to the cluster cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The authority that is kept in the cluster.
    #[error("{0}; the coordinator's ServiceAccount needs what deploy/ gives it (RBAC)")]
    Authority(#[from] KubernetesAuthorityError),
    /// The cluster cannot be worked with.
    #[error("the cluster: {0}")]
    Cluster(ApiError),
    /// Nothing is left to serve.
    #[error(
        "--scheduler-names: volcano alone cannot be served while Volcano's scheduler runs (pod {pod}); scale it to 0, or \
         add phalanx to the names"
    )]
    VolcanoRuns {
        /// A pod of it.
        pod: String,
    },
    /// Certificates.
    #[error(
        "certificates in {directory}: {cause}; put a backup of the directory in its place, or move it away and start \
         again: a new authority is made then, and every agent needs new files from `issue-agent`"
    )]
    Pki {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        cause: PkiError,
    },
    /// The agents' address.
    #[error("--listen: {0}; is another program using it? port 0 takes a free one")]
    Listen(#[from] EndpointError),
    /// The admin address.
    #[error("--admin: {address}: {cause}; is another program using it? port 0 takes a free one")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The recording.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// The file that says where we listen.
    #[error(transparent)]
    Endpoints(#[from] EndpointsError),
}

/// A coordinator that runs. `stop` ends it in order.
#[derive(Debug)]
pub struct Coordinator {
    /// Where the admin interface answers.
    pub admin: SocketAddr,
    /// Where agents dial.
    pub quic: SocketAddr,
    /// First file of the recording.
    pub recording: PathBuf,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    endpoints: Endpoints,
    stop: watch::Sender<bool>,
    driver: JoinHandle<Recorder>,
    overtaken: Arc<OnceLock<Term>>,
    writer: JoinHandle<()>,
    agents: AgentServer,
    others: JoinSet<()>,
}

/// Directory of the authority's files.
#[must_use]
pub fn pki_directory(state_dir: &Path) -> PathBuf {
    state_dir.join("pki")
}

/// True where a coordinator ran here before: agents may have certificates.
fn was_used(state_dir: &Path) -> bool {
    let objects = state_dir.join(OBJECTS_FILE);
    objects.exists() || objects.with_extension("confirmed").exists()
}

fn authority(state_dir: &Path, was_used: bool) -> Result<CertificateAuthority, StartError> {
    authority_in(pki_directory(state_dir), was_used)
}

/// The authority whose files are in this directory; it is made where there is none.
pub(crate) fn authority_in(directory: PathBuf, was_used: bool) -> Result<CertificateAuthority, StartError> {
    let is_missing = !directory.join(AUTHORITY_KEY_FILE).exists();
    let authority = CertificateAuthority::load_or_create(&directory)
        .map_err(|cause| StartError::Pki { directory: directory.clone(), cause })?;
    if is_missing && was_used {
        tracing::warn!(
            "{}: missing: a new authority was made, and the certificates of all agents are void: put a backup of the \
             directory in its place and start again, or give every agent new files from `phalanx-coordinator \
             issue-agent` and start it again",
            directory.display()
        );
    }
    Ok(authority)
}

/// Issues an agent's certificate by the authority of a state directory, which is made if it is not there.
///
/// # Errors
/// The authority cannot be read or made, or the name cannot be a node's.
pub fn issue_agent(state_dir: &Path, node: &NodeName) -> Result<(Identity, TrustAnchor), StartError> {
    let authority = authority(state_dir, was_used(state_dir))?;
    let identity = authority
        .issue_agent(node)
        .map_err(|cause| StartError::Pki { directory: pki_directory(state_dir), cause })?;
    Ok((identity, authority.trust_anchor()))
}

/// What is opened before anything runs: whoever fails here leaves nothing behind.
struct Opened {
    api: EmbeddedApi,
    quic: Endpoint,
    admin: TcpListener,
    admin_address: SocketAddr,
    recorder: Recorder,
    clock: Clock,
}

async fn open(config: &Config) -> Result<Opened, StartError> {
    let directory = &config.state_dir;
    std::fs::create_dir_all(directory)
        .map_err(|cause| StartError::StateDirectory { directory: directory.clone(), cause })?;
    let was_used = was_used(directory);
    let clock = Clock::start();
    let new_uid = Box::new(|| uuid::Uuid::new_v4().to_string());
    let api = EmbeddedApi::open_with(&directory.join(OBJECTS_FILE), new_uid, Box::new(move || clock.now()))?;
    let authority = authority(directory, was_used)?;
    let identity = authority
        .issue_coordinator(&[], &[])
        .map_err(|cause| StartError::Pki { directory: pki_directory(directory), cause })?;
    let (quic, _) = server_endpoint(config.listen, &identity, &authority.trust_anchor())?;
    let failed = |cause| StartError::Admin { address: config.admin, cause };
    let admin = TcpListener::bind(config.admin).await.map_err(failed)?;
    let admin_address = admin.local_addr().map_err(failed)?;
    let recordings = directory.join("recordings");
    let recorder = Recorder::start(&recordings, clock.now(), &config.settings, config.recording)?;
    Ok(Opened { api, quic, admin, admin_address, recorder, clock })
}

impl Coordinator {
    /// Starts all parts. Afterwards agents are let in and the admin interface answers.
    ///
    /// # Errors
    /// The first part that does not come up.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_on(config, |api| api).await
    }

    /// As `start`, on something that stands before the embedded API: faults, for tests.
    ///
    /// # Errors
    /// The first part that does not come up.
    pub async fn start_on<A: Api>(
        config: &Config,
        wrap: impl FnOnce(EmbeddedApi) -> A,
    ) -> Result<Self, StartError> {
        let Opened { api, quic, admin, admin_address, recorder, clock } = open(config).await?;
        let (trouble, tended) = (api.trouble(), api.clone());
        let api = wrap(api);
        let (metrics, progress) = (Arc::new(Metrics::default()), Arc::new(Progress::default()));
        let ready = Arc::new(AtomicBool::new(false));
        let (stop, stopping) = watch::channel(false);
        let (senders, inputs) = driver::channels(stopping.clone());
        let mut others = JoinSet::from_iter([tended.tend()]);
        serve_admin(
            admin,
            AdminParts {
                api: api.clone(),
                questions: senders.questions.clone(),
                metrics: Arc::clone(&metrics),
                progress: Arc::clone(&progress),
                ready: Arc::clone(&ready),
                trouble,
                // Nobody else leads: it is never in standby.
                standby: watch::channel(None).1,
                answers_only: false,
                loopback: admin_address.ip().is_loopback(),
                default_queue: config.settings.default_queue.clone(),
                shadow: None,
            },
            stopping,
            &mut others,
        );
        let incarnation = new_incarnation();
        let writer =
            writer::start(api.clone(), incarnation, senders.outcomes.clone(), Arc::clone(&metrics), clock);
        let recording = recorder.file().to_owned();
        let (term, term_told) = watch::channel(Term::default());
        let mut driver = Driver::new(driver::Parts {
            core: Core::new(config.settings.clone()),
            clock,
            recorder,
            writer: writer.queue,
            term,
            metrics: Arc::clone(&metrics),
            progress,
            permit: Permit::always(),
            messages: Messages::default(),
        });
        let term = Term { counter: api.raise_term(0).await?, incarnation };
        follow(&api, &mut driver, term, &senders, &metrics, &mut others).await?;
        let (pods, overtaken) = (run_pods(&api, clock, &metrics, &mut others).await?, driver.overtaken());
        let driver = tokio::spawn(run(driver, inputs));
        ready.store(true, Ordering::Release);
        let agents = let_in(quic, api.cluster_id(), term_told, senders.agents, pods, &metrics);
        let quic = agents.address().unwrap_or(config.listen);
        let endpoints = Endpoints::write(&config.state_dir, admin_address, quic)?;
        tracing::info!(admin = %admin_address, %quic, recording = %recording.display(), "the coordinator is ready");
        Ok(Self {
            admin: admin_address,
            quic,
            recording,
            metrics,
            endpoints,
            stop,
            driver,
            overtaken,
            writer: writer.done,
            agents,
            others,
        })
    }

    /// Waits until the loop ends by itself: it crashed, or another coordinator took over.
    pub async fn failed(&mut self) {
        // After the first answer the handle must not be asked again: `stop` would find it used up.
        while !self.driver.is_finished() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends everything: first those who ask, then the loop, then what it asked for. False where a part crashed, or
    /// another coordinator took over.
    pub async fn stop(mut self) -> bool {
        self.endpoints.remove();
        self.agents.stop().await;
        self.stop.send_replace(true);
        let mut clean = self.overtaken.get().is_none();
        match self.driver.await {
            Ok(recorder) => {
                clean &= tokio::task::spawn_blocking(|| recorder.finish()).await.is_ok();
            }
            Err(error) => {
                tracing::error!(%error, "the loop has crashed");
                clean = false;
            }
        }
        if tokio::time::timeout(LAST_WRITES, self.writer).await.is_err() {
            tracing::warn!("the last writes were not done within 10 s");
        }
        self.others.shutdown().await;
        if let Some(term) = self.overtaken.get() {
            tracing::warn!(
                term = term.counter,
                "this coordinator has given way to the one that leads under this term"
            );
        }
        clean
    }
}

/// Lets agents in.
fn let_in(
    quic: Endpoint,
    cluster: ClusterId,
    term: watch::Receiver<Term>,
    driver: mpsc::Sender<AgentInput>,
    pods: mpsc::Sender<PodReport>,
    metrics: &Arc<Metrics>,
) -> AgentServer {
    let metrics = Arc::clone(metrics);
    AgentServer::start(quic, AgentServerParts { cluster, term, driver, pods, metrics })
}

/// The loop, as its own task. A crash in it ends the process, see `failed`.
pub(crate) async fn run(driver: Driver, inputs: Inputs) -> Recorder {
    driver.run(inputs).await
}

/// Tells the core under which term it leads and everything that is stored, and starts who follows changes.
pub(crate) async fn follow<A: Api>(
    api: &A,
    driver: &mut Driver,
    term: Term,
    senders: &Senders,
    metrics: &Arc<Metrics>,
    others: &mut JoinSet<()>,
) -> Result<(), ApiError> {
    let mut watcher = Watcher::begin(api.clone(), Arc::clone(metrics)).await?;
    // Queues come before the gangs in them: objects are listed by kind in that order. Nothing is decided before `Synced`.
    let reading = api.reading();
    let objects = std::iter::from_fn(|| watcher.listed());
    let mut told = Told { reading, plans: PlansTold::default(), claims: Claims::default() };
    let stored = objects.flat_map(|object| told.object(&object));
    driver.begin(std::iter::once(Event::Started { term }).chain(stored)).await;
    others.spawn(feed(told, watcher, senders.changes.clone()));
    Ok(())
}

/// Starts what stands for controllers and kubelets. Gives the end that takes reports of pods.
async fn run_pods<A: Api>(
    api: &A,
    clock: Clock,
    metrics: &Arc<Metrics>,
    others: &mut JoinSet<()>,
) -> Result<mpsc::Sender<PodReport>, ApiError> {
    let (watcher, objects) = Watcher::start(api.clone(), Arc::clone(metrics)).await?;
    let (pods, reports) = mpsc::channel(runner::REPORTS);
    others.spawn(runner::run(api.clone(), watcher, objects, reports, clock));
    Ok(pods)
}

/// A number that no other process has.
pub(crate) fn new_incarnation() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}

/// What the core was told: most objects are a fact each, plans and claims are joined with others first.
struct Told {
    reading: Reading,
    plans: PlansTold,
    claims: Claims,
}

impl Told {
    /// Facts of an object that is there.
    fn object(&mut self, object: &Object) -> Vec<Event> {
        let of_claims = self.claims.applied(object);
        let of_plans = self.plans.object(&self.reading, object);
        facts(of_claims, convert::event_of_object(&self.reading, object), of_plans)
    }

    /// Facts of a change.
    fn change(&mut self, change: &Change) -> Vec<Event> {
        let of_claims = self.claims.heard(change);
        let of_plans = self.plans.change(&self.reading, change);
        facts(of_claims, convert::event_of_change(&self.reading, change), of_plans)
    }
}

/// All facts together. What could not be read is said.
fn facts(of_claims: Vec<Event>, own: Converted, of_plans: (Vec<Event>, Vec<String>)) -> Vec<Event> {
    let (plans, warnings) = of_plans;
    for warning in own.warnings.into_iter().chain(warnings) {
        tracing::warn!("{warning}");
    }
    of_claims.into_iter().chain(own.event).chain(plans).collect()
}

/// Changes of the API become events for the loop.
async fn feed<A: Api>(mut told: Told, mut watcher: Watcher<A>, events: mpsc::Sender<Vec<Event>>) {
    while let Some(changes) = watcher.next().await {
        let batch: Vec<Event> = changes.iter().flat_map(|change| told.change(change)).collect();
        if !batch.is_empty() && events.send(batch).await.is_err() {
            return;
        }
    }
}

/// Answers people until `stopping` says so.
pub(crate) fn serve_admin<A: Api>(
    listener: TcpListener,
    parts: AdminParts<A>,
    mut stopping: watch::Receiver<bool>,
    others: &mut JoinSet<()>,
) {
    let router = admin::router(parts).into_make_service_with_connect_info::<admin::Place>();
    others.spawn(async move {
        let stop = async move {
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        if let Err(error) = axum::serve(Bounded::new(listener), router).with_graceful_shutdown(stop).await {
            tracing::warn!(%error, "the admin interface has ended");
        }
    });
}
