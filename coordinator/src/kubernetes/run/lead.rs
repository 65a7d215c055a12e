//! What a leader runs, from the moment when the Lease is its own to the moment when it is not.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use phalanx_common::ids::Term;
use phalanx_core::Core;
use phalanx_kubernetes::client::Pace;
use phalanx_kubernetes::election::{ElectionError, Leadership};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::super::admin_endpoint::{self, AdminAddress};
use super::super::owners::OwnerLookup;
use super::super::report::{self, ReportParts};
use super::super::service::{self, ServiceParts};
use super::super::{fresh, volcano};
use super::open::write_time_out;
use super::{End, Replica};
use crate::api::{Api, ApiError, Kind, Object};
use crate::coordinator::{self, follow};
use crate::driver::{self, Driver, Messages, Permit};
use crate::manifest::names::SCHEDULER_VOLCANO;
use crate::recorder::Recorder;
use crate::watch::Watcher;
use crate::writer::{self, Limits};

/// How long the writer may finish what was asked, when the process is told to stop.
const LAST_WRITES: Duration = Duration::from_secs(4);
/// How long the Lease may take to be given back.
const RELEASE: Duration = Duration::from_secs(2);
/// One that leads no more has nothing to wait for but its own parts.
const LOST_PARTS: Duration = Duration::from_secs(1);
/// Evictions that wait for their event; one more has none.
const EVICTIONS: usize = 256;
/// Pause before the leader's address is written again where it could not be.
const PUBLISH_AGAIN: Duration = Duration::from_secs(10);
/// How often it is written although it was: a former leader's last write may have come after ours, and people may have
/// removed it.
const PUBLISH_EVERY: Duration = Duration::from_secs(60);
/// How often it is looked whether Volcano's scheduler runs.
const VOLCANO_LOOK: Duration = Duration::from_secs(60);

/// The loop and its writer.
struct Running {
    driver: JoinHandle<Recorder>,
    writer: JoinHandle<()>,
    overtaken: Arc<OnceLock<Term>>,
    /// Ends when this replica must begin anew, to serve other scheduler names.
    rivals: JoinHandle<()>,
}

/// Leads under the term of this counter until `stop` is there or the Lease is lost, and ends everything.
pub(super) async fn lead(
    replica: Replica,
    counter: u64,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> End {
    let leadership = replica.leadership.clone();
    // From the first moment on: reading a large cluster may take longer than the Lease lasts.
    let mut lost = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.keep().await }
    });
    let Replica { endpoints, agents, stop: stopping, mut others, .. } = replica;
    let parts = Parts {
        config: replica.config,
        kubernetes: replica.kubernetes,
        incarnation: replica.incarnation,
        api: replica.api,
        leadership: leadership.clone(),
        clock: replica.clock,
        recorder: replica.recorder,
        progress: replica.progress,
        metrics: replica.metrics,
        senders: replica.senders,
        inputs: replica.inputs,
        term: replica.term,
    };
    let started = tokio::select! {
        biased;
        why = &mut lost => Err(lost_because(why)),
        () = &mut stop => Err(End::Stopped),
        running = parts.start(counter, &mut others) => running.map_err(|error| {
            tracing::warn!(%error, "what is stored could not be read: this replica cannot lead");
            End::Crashed
        }),
    };
    let (end, running) = match started {
        Err(end) => (end, None),
        Ok(mut running) => {
            let end = tokio::select! {
                biased;
                why = &mut lost => lost_because(why),
                () = stop => End::Stopped,
                () = ended(&running.driver) => ended_by_itself(&running, &leadership),
                _ = &mut running.rivals => End::Stopped,
            };
            (end, Some(running))
        }
    };
    endpoints.remove();
    stopping.send_replace(true);
    if end_parts(running, end, &mut others).await {
        give_back(&leadership, &lost).await;
    } else {
        lost.abort();
    }
    agents.stop().await;
    end
}

/// Ends what runs; true where the Lease is to be given back.
async fn end_parts(running: Option<Running>, end: End, others: &mut JoinSet<()>) -> bool {
    match running {
        Some(running) if end == End::Stopped => {
            finish(running, others).await;
            true
        }
        Some(running) => {
            abandon(running, others).await;
            false
        }
        None => {
            others.shutdown().await;
            end != End::Lost
        }
    }
}

fn lost_because(why: Result<ElectionError, JoinError>) -> End {
    let why = why.map_or_else(|error| error.to_string(), |why| why.to_string());
    tracing::warn!(why, "this replica leads no more: nothing more is sent, and it ends");
    End::Lost
}

/// Why the loop has ended although nobody told it to.
fn ended_by_itself(running: &Running, leadership: &Leadership) -> End {
    if let Some(term) = running.overtaken.get() {
        tracing::warn!(
            term = term.counter,
            "agents obey the one that leads under this term: this replica leads no more, and it ends"
        );
        return End::Lost;
    }
    if !leadership.leads() {
        tracing::warn!(
            "the Lease was not renewed in time: this replica leads no more: nothing more is sent, and it ends"
        );
        return End::Lost;
    }
    tracing::error!("the loop has crashed");
    End::Crashed
}

/// Lets the loop and the writer come to their ends.
async fn finish(running: Running, others: &mut JoinSet<()>) {
    running.rivals.abort();
    match running.driver.await {
        Ok(recorder) => {
            let mut writer = running.writer;
            if tokio::time::timeout(LAST_WRITES, &mut writer).await.is_err() {
                tracing::warn!("the last writes were not done within 4 s");
                writer.abort();
            }
            let _ = tokio::task::spawn_blocking(|| recorder.finish()).await;
        }
        Err(error) => tracing::error!(%error, "the loop has crashed"),
    }
    others.shutdown().await;
}

/// Ends the loop and the writer of one that leads no more.
async fn abandon(running: Running, others: &mut JoinSet<()>) {
    running.writer.abort();
    running.rivals.abort();
    others.shutdown().await;
    let parts = async {
        if let Ok(recorder) = running.driver.await {
            let _ = tokio::task::spawn_blocking(|| recorder.finish()).await;
        }
    };
    let _ = tokio::time::timeout(LOST_PARTS, parts).await;
}

async fn give_back(leadership: &Leadership, keeper: &JoinHandle<ElectionError>) {
    keeper.abort();
    match tokio::time::timeout(RELEASE, leadership.release()).await {
        Ok(Ok(())) => tracing::info!("the Lease is given back"),
        Ok(Err(error)) => tracing::warn!(%error, "the Lease was not given back: others wait for its end"),
        Err(_) => tracing::warn!("the Lease was not given back within 2 s: others wait for its end"),
    }
}

/// Waits for the end of a task without taking its result.
async fn ended<T>(task: &JoinHandle<T>) {
    while !task.is_finished() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What a replica gives its leader.
struct Parts {
    config: crate::config::Config,
    kubernetes: crate::config::KubernetesConfig,
    incarnation: u64,
    api: super::KubernetesApi,
    leadership: Leadership,
    clock: crate::clock::Clock,
    recorder: Recorder,
    progress: Arc<crate::progress::Progress>,
    metrics: Arc<crate::metrics::Metrics>,
    senders: driver::Senders,
    inputs: driver::Inputs,
    term: tokio::sync::watch::Sender<Term>,
}

impl Parts {
    async fn start(self, counter: u64, others: &mut JoinSet<()>) -> Result<Running, ApiError> {
        fresh::catch_up(&self.api, &self.kubernetes.scheduler_names).await?;
        let term = Term { counter, incarnation: self.incarnation };
        let bindings = Pace::per_second(self.kubernetes.bind_qps.unwrap_or(0));
        let (evictions, evicted) = mpsc::channel(EVICTIONS);
        let limits = Limits {
            evictions: Some(evictions),
            ..Limits::kubernetes(write_time_out(&self.kubernetes.times), bindings)
        };
        let writer = writer::start_with(
            limits,
            self.api.clone(),
            self.incarnation,
            self.senders.outcomes.clone(),
            Arc::clone(&self.metrics),
            self.clock,
        );
        let leads = self.leadership.clone();
        let mut driver = Driver::new(driver::Parts {
            core: Core::new(self.config.settings.clone()),
            clock: self.clock,
            recorder: self.recorder,
            writer: writer.queue,
            term: self.term,
            metrics: Arc::clone(&self.metrics),
            progress: self.progress,
            permit: Permit::new(Arc::new(move || leads.leads())),
            messages: Messages::default(),
        });
        follow(&self.api, &mut driver, term, &self.senders, &self.metrics, others).await?;
        let overtaken = driver.overtaken();
        let driver = tokio::spawn(coordinator::run(driver, self.inputs));
        let mut watcher = Watcher::begin(self.api.clone(), Arc::clone(&self.metrics)).await?;
        // Not all at once: most objects of a large cluster are nodes and pods of others, which the service has no use for.
        let reading = self.api.reading();
        let is_of_use = |object: &Arc<Object>| match object.kind {
            Kind::Node => false,
            Kind::Pod => reading.is_ours(object) || object.metadata.owner.is_some(),
            _ => true,
        };
        let objects = std::iter::from_fn(|| watcher.listed()).filter(is_of_use).collect();
        others.spawn(report::run(ReportParts {
            api: self.api.clone(),
            watcher,
            objects,
            clock: self.clock,
            metrics: Arc::clone(&self.metrics),
            evictions: evicted,
            instance: self.kubernetes.identity.clone(),
        }));
        let (watcher, objects) = Watcher::start(self.api.clone(), Arc::clone(&self.metrics)).await?;
        others.spawn(service::run(ServiceParts {
            api: self.api.clone(),
            watcher,
            objects,
            clock: self.clock,
            owners: OwnerLookup::new(self.api.client().clone()),
            default_queue: self.config.settings.default_queue.clone(),
        }));
        if let Some(address) = self.kubernetes.admin_advertise {
            let (ip, port, pod) = (address.ip(), address.port(), self.kubernetes.identity.clone());
            let client = self.api.client().clone();
            others.spawn(publish(client, self.kubernetes.namespace.clone(), AdminAddress { pod, ip, port }));
        }
        let serves_volcano = self.kubernetes.scheduler_names.iter().any(|name| name == SCHEDULER_VOLCANO);
        let rivals = tokio::spawn(rivals(self.api.client().clone(), serves_volcano));
        tracing::info!(term = counter, "the leader is ready");
        Ok(Running { driver, writer: writer.done, overtaken, rivals })
    }
}

/// Keeps written where the leader's admin interface answers.
async fn publish(client: kube::Client, namespace: String, address: AdminAddress) {
    let mut said = None;
    loop {
        let problem = admin_endpoint::publish(&client, &namespace, &address).await.err();
        let problem = problem.map(|error| error.to_string());
        if let Some(text) = problem.as_ref().filter(|_| problem != said) {
            tracing::warn!("{text}");
        }
        tokio::time::sleep(if problem.is_some() { PUBLISH_AGAIN } else { PUBLISH_EVERY }).await;
        said = problem;
    }
}

/// Ends where Volcano's scheduler runs and we serve its name.
async fn rivals(client: kube::Client, serves_volcano: bool) {
    if !serves_volcano {
        std::future::pending::<()>().await;
    }
    loop {
        tokio::time::sleep(VOLCANO_LOOK).await;
        match volcano::scheduler_pod(&client).await {
            Ok(Some(pod)) => {
                tracing::warn!(
                    pod,
                    "Volcano's scheduler runs: this replica ends, and serves its name no more when it is started again"
                );
                return;
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "whether Volcano's scheduler runs is not known"),
        }
    }
}
