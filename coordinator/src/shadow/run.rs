//! A coordinator in shadow mode: what of a replica only reads, with the stand-in where agents and writer would be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_common::ids::Term;
use phalanx_core::Core;
use phalanx_kubernetes::client::{Clients, MayWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::Comparison;
use super::stand_in::{self, Parts};
use crate::admin::AdminParts;
use crate::api::ApiError;
use crate::clock::Clock;
use crate::config::{Config, KubernetesConfig};
use crate::coordinator::{Endpoints, StartError, follow, new_incarnation, run as run_driver, serve_admin};
use crate::driver::{self, Driver, Inputs, Messages, Permit, Senders};
use crate::kubernetes::normalize::Trim;
use crate::kubernetes::run::server_text;
use crate::kubernetes::write::{WriteParts, Writes};
use crate::kubernetes::{KubernetesApi, Options, read_cluster_id};
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::watch::Watcher;

/// Actions between the loop and the stand-in.
const QUEUE_ACTIONS: usize = 1024;
/// How often it is said what is still missing before anything is decided.
const MISSING_LINE: Duration = Duration::from_secs(30);
/// What is said in place of answers until then.
const READING: &str = "the cluster's objects are still being read; ask again in some seconds";

/// A coordinator in shadow mode that has not begun to decide.
#[derive(Debug)]
pub struct Shadow {
    /// Where the admin interface answers.
    pub admin: SocketAddr,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// What was compared.
    pub compared: Arc<Comparison>,
    config: Config,
    api: KubernetesApi,
    clock: Clock,
    recorder: Recorder,
    progress: Arc<Progress>,
    ready: Arc<AtomicBool>,
    standby: watch::Sender<Option<String>>,
    senders: Senders,
    inputs: Inputs,
    stop: watch::Sender<bool>,
    endpoints: Endpoints,
    others: JoinSet<()>,
}

/// What is open before anything runs.
struct Opened {
    api: KubernetesApi,
    clock: Clock,
    recorder: Recorder,
    admin: TcpListener,
    address: SocketAddr,
}

async fn open(config: &Config, kubernetes: &KubernetesConfig) -> Result<Opened, StartError> {
    let user_agent = concat!("phalanx-coordinator/", env!("CARGO_PKG_VERSION"), " (shadow)");
    let target = kubernetes.target.load().await?;
    let clients = Clients::new(&target, user_agent)?;
    let server = server_text(&target.cluster_url, kubernetes.target.kubeconfig.as_deref());
    read_cluster_id(&clients.watch, &server).await.map_err(StartError::Cluster)?;
    let directory: &PathBuf = &config.state_dir;
    std::fs::create_dir_all(directory)
        .map_err(|cause| StartError::StateDirectory { directory: directory.clone(), cause })?;
    let clock = Clock::start();
    let failed = |cause| StartError::Admin { address: config.admin, cause };
    let admin = TcpListener::bind(config.admin).await.map_err(failed)?;
    let address = admin.local_addr().map_err(failed)?;
    let recordings = directory.join("recordings");
    let recorder = Recorder::start(&recordings, clock.now(), &config.settings, config.recording)?;
    let options = Options {
        scheduler_names: kubernetes.scheduler_names.clone(),
        namespace: kubernetes.namespace.clone(),
        in_shadow: true,
        ..Options::default()
    };
    // Nothing here writes. Should anything ever try to, it is refused before it is sent.
    let may_write: MayWrite = Arc::new(|| false);
    let writes = Writes::new(WriteParts {
        client: clients.write,
        trim: Trim::new(&options.scheduler_names),
        may_write,
        time_out: Duration::from_secs(1),
    });
    let api = KubernetesApi::start(clients.watch, writes, &options).await.map_err(StartError::Cluster)?;
    Ok(Opened { api, clock, recorder, admin, address })
}

impl Shadow {
    /// Starts the mirror and the admin interface.
    ///
    /// # Errors
    /// The first part that does not come up.
    pub async fn start(config: &Config, kubernetes: &KubernetesConfig) -> Result<Self, StartError> {
        let Opened { api, clock, recorder, admin, address } = open(config, kubernetes).await?;
        let (metrics, progress) = (Arc::new(Metrics::default()), Arc::new(Progress::default()));
        let names = kubernetes.scheduler_names.clone();
        let compared = Arc::new(Comparison::new(clock.now(), names, Arc::clone(&metrics)));
        let ready = Arc::new(AtomicBool::new(false));
        let (stop, stopping) = watch::channel(false);
        let (senders, inputs) = driver::channels(stopping.clone());
        let (standby, told) = watch::channel(Some(READING.to_owned()));
        let mut others = JoinSet::new();
        let parts = AdminParts {
            api: api.clone(),
            questions: senders.questions.clone(),
            metrics: Arc::clone(&metrics),
            progress: Arc::clone(&progress),
            ready: Arc::clone(&ready),
            trouble: watch::channel(None).1,
            standby: told,
            answers_only: true,
            loopback: address.ip().is_loopback(),
            default_queue: config.settings.default_queue.clone(),
            shadow: Some(Arc::clone(&compared)),
        };
        serve_admin(admin, parts, stopping, &mut others);
        let endpoints = Endpoints::write(&config.state_dir, address, config.listen)?;
        tracing::info!(admin = %address, "shadow mode: everything is decided, nothing is done");
        Ok(Self {
            admin: address,
            metrics,
            compared,
            config: config.clone(),
            api,
            clock,
            recorder,
            progress,
            ready,
            standby,
            senders,
            inputs,
            stop,
            endpoints,
            others,
        })
    }

    /// Decides until `stop` is there. False where a part of it crashed, or could not begin.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let mut stop = pin!(stop);
        let Self { endpoints, stop: stopping, mut others, .. } = self;
        let parts = Deciding {
            config: self.config,
            api: self.api,
            clock: self.clock,
            recorder: self.recorder,
            progress: self.progress,
            metrics: self.metrics,
            compared: self.compared,
            senders: self.senders,
            inputs: self.inputs,
        };
        let begun = tokio::select! {
            () = &mut stop => None,
            begun = parts.begin(&mut others) => Some(begun),
        };
        let is_clean = match begun {
            None => true,
            Some(Err(error)) => {
                tracing::warn!(%error, "what is stored could not be read: nothing can be decided");
                false
            }
            Some(Ok(mut driver)) => {
                self.ready.store(true, Ordering::Release);
                self.standby.send_replace(None);
                tracing::info!("everything is read: decisions begin");
                tokio::select! {
                    () = &mut stop => {
                        stopping.send_replace(true);
                        finish(driver.await).await
                    }
                    ended = &mut driver => {
                        tracing::error!("the loop has ended by itself");
                        finish(ended).await;
                        false
                    }
                }
            }
        };
        endpoints.remove();
        stopping.send_replace(true);
        others.shutdown().await;
        is_clean
    }
}

/// Ends the recording of a loop that has ended.
async fn finish(ended: Result<Recorder, JoinError>) -> bool {
    match ended {
        Ok(recorder) => tokio::task::spawn_blocking(|| recorder.finish()).await.is_ok(),
        Err(error) => {
            tracing::error!(%error, "the loop has crashed");
            false
        }
    }
}

/// What the loop and the stand-in are made of.
struct Deciding {
    config: Config,
    api: KubernetesApi,
    clock: Clock,
    recorder: Recorder,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    compared: Arc<Comparison>,
    senders: Senders,
    inputs: Inputs,
}

impl Deciding {
    /// Waits until all that is stored is known, and begins to decide.
    async fn begin(self, others: &mut JoinSet<()>) -> Result<JoinHandle<Recorder>, ApiError> {
        let mirror = self.api.mirror();
        while tokio::time::timeout(MISSING_LINE, mirror.ready(None)).await.is_err() {
            let missing: Vec<&str> = mirror.missing().into_iter().map(|kind| kind.as_str()).collect();
            tracing::warn!(missing = missing.join(", "), "kinds cannot be listed yet: nothing is decided");
        }
        let incarnation = new_incarnation();
        let (writer, actions) = mpsc::channel(QUEUE_ACTIONS);
        let mut driver = Driver::new(driver::Parts {
            core: Core::new(self.config.settings.clone()),
            clock: self.clock,
            recorder: self.recorder,
            writer,
            term: watch::channel(Term::default()).0,
            metrics: Arc::clone(&self.metrics),
            progress: self.progress,
            permit: Permit::always(),
            messages: Messages::ByWriter,
        });
        // Nobody else has it: no agent hears of it, and no object.
        let term = Term { counter: 1, incarnation };
        follow(&self.api, &mut driver, term, &self.senders, &self.metrics, others).await?;
        let (watcher, listed) = Watcher::start(self.api.clone(), Arc::clone(&self.metrics)).await?;
        let parts = Parts {
            api: self.api,
            watcher,
            incarnation,
            actions,
            outcomes: self.senders.outcomes,
            clock: self.clock,
            compared: self.compared,
        };
        others.spawn(stand_in::run(parts, listed));
        Ok(tokio::spawn(run_driver(driver, self.inputs)))
    }
}
