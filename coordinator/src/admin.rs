//! The admin interface: health, numbers, state, reasons, and the objects. It asks for no password, so it listens on
//! loopback unless it is told otherwise. Every error is JSON `{"error": "…"}`.

mod connections;
mod explain;
mod limits;
mod objects;
mod pods;
mod queues;

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, Query, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use phalanx_common::shadow::ShadowReport;
use phalanx_core::view::StateView;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::connections::{Bounded, Place};
use self::limits::Limits;
use crate::api::{Api, ApiError};
use crate::driver::Question;
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::shadow::Comparison;

/// Largest manifest taken.
const BODY_BYTES: usize = 4 << 20;
/// The loop answers between two passes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the handlers share.
#[derive(Debug)]
pub struct AdminParts<A> {
    /// The objects.
    pub api: A,
    /// To the loop.
    pub questions: mpsc::Sender<Question>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// The last notable changes.
    pub progress: Arc<Progress>,
    /// True once everything stored was told to the core.
    pub ready: Arc<AtomicBool>,
    /// Why nothing can be written; `None` while all is well.
    pub trouble: watch::Receiver<Option<String>>,
    /// Why the loop is not asked: another replica leads, and its name. `None` where this one leads.
    pub standby: watch::Receiver<Option<String>>,
    /// The objects are those of a Kubernetes API server: they are read and changed there, under everybody's own rights,
    /// and here is only told what was decided about them.
    pub answers_only: bool,
    /// It listens on loopback only.
    pub loopback: bool,
    /// The queue that exists without an object and cannot be deleted.
    pub default_queue: String,
    /// What shadow mode has compared; `None` in any other mode.
    pub shadow: Option<Arc<Comparison>>,
}

type Shared<A> = State<Arc<AdminParts<A>>>;

/// The routes. They are served over `Bounded`, with its `Place` as what is known of a connection.
pub fn router<A: Api>(parts: AdminParts<A>) -> Router {
    let (loopback, answers_only) = (parts.loopback, parts.answers_only);
    Router::new()
        .route("/metrics", get(metrics::<A>))
        .route("/v1/state", get(state::<A>))
        .route("/v1/explain/{namespace}/{name}", get(explain::explain::<A>))
        .route("/v1/events", get(events::<A>))
        .route("/v1/shadow", get(shadow::<A>))
        .route("/v1/apply", post(objects::apply::<A>))
        .route("/v1/delete", post(objects::delete_text::<A>))
        .route("/v1/objects/{kind}", get(objects::list::<A>))
        .route("/v1/objects/{kind}/{namespace}/{name}", get(objects::one::<A>).delete(objects::delete::<A>))
        .route_layer(middleware::from_fn_with_state(Limits::new(), limits::bound))
        // Whether the coordinator lives is always answered.
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready::<A>))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::from_fn_with_state(answers_only, refuse_objects))
        .layer(middleware::from_fn_with_state(loopback, refuse_browsers))
        .layer(middleware::from_fn(connections::follow))
        .with_state(Arc::new(parts))
}

/// A request's text, which has arrived.
pub(crate) struct Text(String);

impl<S: Send + Sync> FromRequest<S> for Text {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let read = String::from_request(request, state).await;
        read.map(Self).map_err(|rejection| unreadable(rejection.status(), &rejection.body_text()))
    }
}

/// Why a text could not be read.
fn unreadable(status: StatusCode, text: &str) -> Failure {
    let text = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "the text is larger than 4 MiB: apply it in parts".to_owned(),
        _ => format!("the text cannot be read: {text}"),
    };
    Failure::new(status, text)
}

/// An answer that is an error.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, message: impl Display) -> Self {
        Self { status, message: message.to_string() }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let status = match &error {
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::AlreadyExists(_) | ApiError::Conflict(_) | ApiError::OtherUid(_) => {
                StatusCode::CONFLICT
            }
            ApiError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ApiError::Gone { .. } => StatusCode::GONE,
            ApiError::Unknown => StatusCode::GATEWAY_TIMEOUT,
            ApiError::Storage(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error)
    }
}

impl<A: Api> AdminParts<A> {
    /// A failure that names the leader, where this replica is not it.
    fn must_lead(&self) -> Result<(), Failure> {
        match &*self.standby.borrow() {
            Some(why) => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, why)),
            None => Ok(()),
        }
    }

    /// Asks the loop.
    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, Failure> {
        self.must_lead()?;
        let (sender, answer) = oneshot::channel();
        let asking = async {
            self.questions.send(question(sender)).await.ok()?;
            answer.await.ok()
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping")),
            Err(_) => Err(Failure::new(
                StatusCode::GATEWAY_TIMEOUT,
                "the coordinator did not answer within 5 s; its log may say why",
            )),
        }
    }

    async fn view(&self) -> Result<StateView, Failure> {
        self.ask(Question::View).await
    }
}

/// A web page that someone on this machine looks at must not reach what needs no password: browsers name the
/// page in `Origin`, and a name that was made to point at loopback stands in `Host`.
async fn refuse_browsers(
    State(loopback): State<bool>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) {
        return Err(Failure::new(StatusCode::FORBIDDEN, "requests of web pages are not served"));
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if loopback && !is_loopback_host(host) {
        let text = format!("Host {host:?} is not this machine's loopback: use 127.0.0.1, [::1] or localhost");
        return Err(Failure::new(StatusCode::FORBIDDEN, text));
    }
    Ok(next.run(request).await)
}

/// Whoever reaches this interface would otherwise have the coordinator's rights on objects in place of its own.
async fn refuse_objects(
    State(answers_only): State<bool>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let asks = matches!(*request.method(), Method::GET | Method::HEAD);
    if answers_only && (!asks || request.uri().path().starts_with("/v1/objects")) {
        let text = "on a Kubernetes cluster objects are read and changed with kubectl, under your own rights; this \
                    interface only answers questions about them";
        return Err(Failure::new(StatusCode::FORBIDDEN, text));
    }
    Ok(next.run(request).await)
}

fn is_loopback_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// A disk that cannot be written does not make it unready: whoever takes an unready one out of service takes it from
/// the agents too, and they need no disk here.
async fn ready<A: Api>(State(parts): Shared<A>) -> Result<String, Failure> {
    if !parts.ready.load(Ordering::Acquire) {
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "stored objects are still being read"));
    }
    let trouble = parts.trouble.borrow();
    Ok(trouble.as_ref().map_or("ready\n".to_owned(), |trouble| format!("ready, but {trouble}\n")))
}

async fn metrics<A: Api>(State(parts): Shared<A>) -> Result<Response, Failure> {
    // The numbers are worth having even where the loop does not answer.
    let totals = parts.ask(Question::Totals).await.ok();
    parts.metrics.storage_failed.set(parts.trouble.borrow().is_some().into());
    let text = parts
        .metrics
        .text(totals.as_ref())
        .map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, form)], text).into_response())
}

async fn state<A: Api>(State(parts): Shared<A>) -> Result<Json<StateView>, Failure> {
    Ok(Json(parts.view().await?))
}

async fn shadow<A: Api>(State(parts): Shared<A>) -> Result<Json<ShadowReport>, Failure> {
    match &parts.shadow {
        Some(compared) => Ok(Json(compared.report())),
        None => {
            let text = "this coordinator is not in shadow mode: it does what it decides; ask one that runs with --shadow";
            Err(Failure::new(StatusCode::NOT_FOUND, text))
        }
    }
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

/// Entries after a number, and the number to ask for next.
async fn events<A: Api>(
    State(parts): Shared<A>,
    after: Result<Query<After>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(After { after }) = after?;
    let events = parts.progress.after(after);
    let last = events.last().map_or(after, |entry| entry.number);
    Ok(Json(json!({ "events": events, "last": last })).into_response())
}

async fn no_such_path(uri: axum::http::Uri) -> Failure {
    Failure::new(
        StatusCode::NOT_FOUND,
        format!(
            "no such path {:?}; there are /healthz, /readyz, /metrics, /v1/state, /v1/events, /v1/shadow, \
             /v1/apply, /v1/explain/NAMESPACE/NAME and /v1/objects/KIND[/NAMESPACE/NAME]",
            uri.path()
        ),
    )
}

async fn no_such_method(method: axum::http::Method, uri: axum::http::Uri) -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, format!("{:?} does not answer {method}", uri.path()))
}
