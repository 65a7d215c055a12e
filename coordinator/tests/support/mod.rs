//! A real coordinator in this process, on free ports, with what tests ask of it.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

pub mod cluster;
pub mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use phalanx_coordinator::config::{Config, LogFormat};
use phalanx_coordinator::coordinator::Coordinator;
use phalanx_coordinator::recorder::RecordingLimits;
use phalanx_core::Settings;
use phalanx_core::view::{Explanation, GangView, StateView};
use serde_json::Value;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// No single wait of a test takes longer; it only says that something hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// ERROR lines of the log so far, with their text.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// WARN lines of the log so far, of all tests in the process.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LOG: Once = Once::new();

/// Counts ERROR lines: none is allowed, whatever the test asks.
struct CountErrors;

impl<S: tracing::Subscriber> Layer<S> for CountErrors {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        match *event.metadata().level() {
            tracing::Level::ERROR => ERRORS.lock().unwrap().push(format!("{event:?}")),
            tracing::Level::WARN => WARNINGS.lock().unwrap().push(format!("{event:?}")),
            _ => {}
        }
    }
}

/// WARN lines so far that say this.
pub fn warnings(text: &str) -> usize {
    WARNINGS.lock().unwrap().iter().filter(|line| line.contains(text)).count()
}

/// Starts the log's counters.
pub fn log() {
    LOG.call_once(|| tracing_subscriber::registry().with(CountErrors).init());
}

/// Ends a coordinator; nothing crashed and nothing was logged as an error.
pub async fn stop(coordinator: Coordinator) {
    assert!(coordinator.stop().await);
    assert_eq!(*ERRORS.lock().unwrap(), Vec::<String>::new());
}

/// Free ports and the default policy.
pub fn config(state_dir: &Path) -> Config {
    log();
    Config {
        state_dir: state_dir.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: "127.0.0.1:0".parse().unwrap(),
        log_format: LogFormat::Text,
        settings: Settings::default(),
        recording: RecordingLimits::default(),
        kubernetes: None,
    }
}

pub async fn start(state_dir: &Path) -> Coordinator {
    Coordinator::start(&config(state_dir)).await.unwrap()
}

/// What has an admin interface.
pub trait Served {
    /// Where it answers.
    fn admin(&self) -> SocketAddr;
}

impl Served for Coordinator {
    fn admin(&self) -> SocketAddr {
        self.admin
    }
}

impl Served for SocketAddr {
    fn admin(&self) -> SocketAddr {
        *self
    }
}

/// An answer of the admin interface.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The text of an error.
    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error: {}", self.text)).to_owned()
    }
}

/// Asks `METHOD path`, with a body where there is one.
pub async fn ask(coordinator: &impl Served, method: &str, path: &str, body: Option<String>) -> Answer {
    let url = format!("http://{}{path}", coordinator.admin());
    let method = method.to_owned();
    let asking = move || {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        let request = ureq::http::Request::builder().method(method.as_str()).uri(url);
        let request = request.header("content-type", "text/plain").body(body.unwrap_or_default()).unwrap();
        let mut answer = agent.run(request).unwrap();
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string().unwrap();
        Answer { status, text }
    };
    tokio::task::spawn_blocking(asking).await.unwrap()
}

pub async fn get(coordinator: &impl Served, path: &str) -> Answer {
    ask(coordinator, "GET", path, None).await
}

pub async fn apply(coordinator: &impl Served, manifest: &str) -> Value {
    let answer = ask(coordinator, "POST", "/v1/apply?file=test.yaml", Some(manifest.to_owned())).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// Applies what must be taken.
pub async fn apply_ok(coordinator: &impl Served, manifest: &str) {
    let answer = apply(coordinator, manifest).await;
    assert_eq!(answer["ok"], true, "{answer:#}");
}

pub async fn state(coordinator: &impl Served) -> StateView {
    let answer = get(coordinator, "/v1/state").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    serde_json::from_str(&answer.text).unwrap()
}

pub async fn explain(coordinator: &impl Served, name: &str) -> Explanation {
    let answer = get(coordinator, &format!("/v1/explain/{name}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    serde_json::from_str(&answer.text).unwrap()
}

/// The gang of a job: its name begins with the job's.
pub fn gang_of<'s>(state: &'s StateView, job: &str) -> Option<&'s GangView> {
    state.gangs.iter().find(|gang| gang.name.name.starts_with(&format!("{job}-")))
}

/// Waits until the state is as wanted.
pub async fn until(
    coordinator: &impl Served,
    what: &str,
    mut wanted: impl FnMut(&StateView) -> bool,
) -> StateView {
    let began = Instant::now();
    loop {
        let state = state(coordinator).await;
        if wanted(&state) {
            return state;
        }
        assert!(began.elapsed() < PATIENCE, "never came: {what}; {state:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a job's gang is in a PodGroup phase.
pub async fn until_phase(coordinator: &impl Served, job: &str, phase: &str) -> StateView {
    let in_phase =
        |state: &StateView| gang_of(state, job).is_some_and(|gang| &*gang.pod_group_phase == phase);
    until(coordinator, &format!("{job} {phase}"), in_phase).await
}
