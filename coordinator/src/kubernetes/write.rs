//! Writes to a real API server, and reads that must be fresh.
//!
//! One request at most changes something, it carries its preconditions, and it is sent only while this process leads.
//! What was turned away unread (429) is sent again as long as there is time; everything else that is no clear answer
//! may have been done, and is told so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use phalanx_common::describe::describe;
use phalanx_kubernetes::client::MayWrite;
use serde_json::Value;
use tokio::time::Instant;

use self::answer::Refusal;
use super::lean::Lean;
use super::normalize::{self, Trim};
use crate::api::{ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use crate::manifest::names::{label_problem, name_problem};

mod answer;
mod body;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// A pod that is changed again and again is evicted after so many tries, or by the next order.
const EVICTION_ATTEMPTS: u32 = 4;
/// Time between two log lines about requests without a clear answer.
const LOG_EVERY_MS: u64 = 10_000;

/// What writes. Clones share one client.
#[derive(Clone)]
pub struct Writes {
    client: Client,
    trim: Trim,
    may_write: MayWrite,
    time_out: Duration,
    log: Arc<LogBudget>,
}

/// Parts of `Writes`.
pub struct WriteParts {
    /// Sends requests; repeats none by itself.
    pub client: Client,
    /// How objects are cut down to what is used.
    pub trim: Trim,
    /// Asked before each request that changes something.
    pub may_write: MayWrite,
    /// Longest wait for one answer, with all that is sent again meanwhile. Less than what lies between the moment when
    /// a leader stops and the moment when the next one may begin.
    pub time_out: Duration,
}

/// A request that is not bound to a connection.
struct Call<'a> {
    key: &'a ObjectKey,
    method: Method,
    path: String,
    content: &'static str,
    body: Vec<u8>,
}

impl<'a> Call<'a> {
    fn new(key: &'a ObjectKey, method: Method, path: String, content: &'static str, body: &Value) -> Self {
        Self { key, method, path, content, body: body.to_string().into_bytes() }
    }

    fn request(&self) -> Result<Request<Body>, ApiError> {
        let mut request = Request::builder().method(self.method.clone()).uri(&self.path).header(ACCEPT, JSON);
        if !self.body.is_empty() {
            request = request.header(CONTENT_TYPE, self.content);
        }
        request
            .body(Body::from(self.body.clone()))
            .map_err(|error| ApiError::Invalid(format!("{}: cannot be asked for: {error}", self.key)))
    }
}

impl Writes {
    /// Writes by these parts.
    #[must_use]
    pub fn new(parts: WriteParts) -> Self {
        let WriteParts { client, trim, may_write, time_out } = parts;
        Self { client, trim, may_write, time_out, log: Arc::default() }
    }

    /// One object, from the API server itself.
    ///
    /// # Errors
    /// The API server's.
    pub async fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        if place_problem(key).is_some() {
            return Err(ApiError::NotFound(key.to_string()));
        }
        let path = object_path(key, "");
        let call = Call { key, method: Method::GET, path, content: JSON, body: Vec::new() };
        let answer = self.sent(&call).await?;
        self.object(key, answer)
    }

    /// Does a write. `known` is the object as last seen: where it is the one that the preconditions name, it is not read
    /// again to find out what changes.
    ///
    /// # Errors
    /// The API server's; `Storage` where this process does not lead, and nothing was sent.
    pub async fn mutate(
        &self,
        mutation: Mutation,
        known: Option<Arc<Object>>,
    ) -> Result<Arc<Object>, ApiError> {
        let key = mutation.key();
        if let Some((key, problem)) = key.as_ref().and_then(|key| Some((key, place_problem(key)?))) {
            return Err(ApiError::Invalid(format!("{key}: its namespace or name {problem}")));
        }
        match mutation {
            Mutation::Create(object) => self.create(&object).await,
            Mutation::Update(wanted) => {
                let key = wanted.key();
                let stored = self.stored(&key, &wanted.preconditions(), known).await?;
                match body::update(&stored, &wanted) {
                    Some(patch) => self.patch(&key, "", MERGE_PATCH, &patch).await,
                    None => Ok(stored),
                }
            }
            Mutation::UpdateStatus { key, .. } if key.kind == Kind::Pod => Err(ApiError::Invalid(format!(
                "{key}: its status is kubelet's; only single conditions are set"
            ))),
            Mutation::UpdateStatus { key, preconditions, status } => {
                let stored = self.stored(&key, &preconditions, known).await?;
                match body::status(&stored, &status) {
                    Some(patch) => self.patch(&key, status_part(key.kind), MERGE_PATCH, &patch).await,
                    None => Ok(stored),
                }
            }
            Mutation::PatchAnnotations { key, preconditions, annotations } => {
                let patch = body::annotations(&preconditions, &annotations);
                self.patch(&key, "", MERGE_PATCH, &patch).await
            }
            Mutation::Bind { key, preconditions, node, annotations } => {
                let known = known.filter(|known| preconditions.uid.as_ref() == Some(&known.metadata.uid));
                let none = BTreeMap::new();
                let present = known.as_ref().map_or(&none, |known| &known.metadata.annotations);
                let binding = body::binding(&key, &preconditions, &node, &annotations, present)?;
                let path = object_path(&key, "/binding");
                self.sent(&Call::new(&key, Method::POST, path, JSON, &binding)).await?;
                Ok(stub(&key, preconditions))
            }
            Mutation::Delete { key, preconditions } => {
                let options = body::delete_options(&preconditions);
                let call = Call::new(&key, Method::DELETE, object_path(&key, ""), JSON, &options);
                let answer = self.sent(&call).await?;
                // The object where it has to end first, a Status where it is gone.
                Ok(self.object(&key, answer).unwrap_or_else(|_| stub(&key, preconditions)))
            }
            Mutation::Evict { key, preconditions } => self.evict(&key, preconditions).await,
            Mutation::Finalize { uid } => Err(ApiError::Invalid(format!(
                "Pod of UID {uid}: kubelet says when it has ended, not Phalanx"
            ))),
        }
    }

    /// Sets one condition of a pod; its other conditions stay.
    ///
    /// # Errors
    /// As `mutate`.
    pub async fn set_pod_condition(
        &self,
        key: &ObjectKey,
        preconditions: &Preconditions,
        condition: &Value,
    ) -> Result<(), ApiError> {
        let patch = body::condition(preconditions, condition);
        let path = object_path(key, "/status");
        self.sent(&Call::new(key, Method::PATCH, path, STRATEGIC_PATCH, &patch)).await.map(drop)
    }

    /// Stores an event (`events.k8s.io/v1`) about an object, in the namespace that it names.
    ///
    /// # Errors
    /// As `mutate`.
    pub async fn create_event(&self, about: &ObjectKey, event: &Value) -> Result<(), ApiError> {
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default");
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        self.sent(&Call::new(about, Method::POST, path, JSON, event)).await.map(drop)
    }

    /// With a UID alone the API server tries a conflict again by itself, ten seconds long, also where the pod of that
    /// name is another one: so the version goes with it.
    async fn evict(&self, key: &ObjectKey, preconditions: Preconditions) -> Result<Arc<Object>, ApiError> {
        let mut attempts_left = EVICTION_ATTEMPTS;
        loop {
            let stored = self.stored(key, &preconditions, None).await?;
            let eviction = body::eviction(key, &stored.preconditions());
            let path = object_path(key, "/eviction");
            attempts_left -= 1;
            match self.sent(&Call::new(key, Method::POST, path, JSON, &eviction)).await {
                Err(ApiError::Conflict(_)) if attempts_left > 0 && preconditions.resource_version == 0 => {}
                answer => return answer.map(|_| stored),
            }
        }
    }

    async fn create(&self, object: &Object) -> Result<Arc<Object>, ApiError> {
        let key = object.key();
        let manifest = normalize::to_json(object);
        let answer =
            self.sent(&Call::new(&key, Method::POST, collection_path(&key), JSON, &manifest)).await?;
        self.object(&key, answer)
    }

    async fn patch(
        &self,
        key: &ObjectKey,
        part: &str,
        content: &'static str,
        patch: &Value,
    ) -> Result<Arc<Object>, ApiError> {
        let call = Call::new(key, Method::PATCH, object_path(key, part), content, patch);
        let answer = self.sent(&call).await?;
        self.object(key, answer)
    }

    /// The object that a change starts from. Where it is not the one that the preconditions name, there is no change.
    async fn stored(
        &self,
        key: &ObjectKey,
        preconditions: &Preconditions,
        known: Option<Arc<Object>>,
    ) -> Result<Arc<Object>, ApiError> {
        let uid = preconditions.uid.as_ref().filter(|uid| !uid.is_empty());
        let is_meant = |object: &Object| {
            let version = preconditions.resource_version;
            uid.is_none_or(|uid| *uid == object.metadata.uid)
                && (version == 0 || version == object.metadata.resource_version)
        };
        // Without a version it must be the newest one.
        if let Some(known) = known.filter(|known| preconditions.resource_version != 0 && is_meant(known)) {
            return Ok(known);
        }
        let stored = self.get(key).await?;
        if is_meant(&stored) {
            return Ok(stored);
        }
        match uid.filter(|uid| **uid != stored.metadata.uid) {
            Some(uid) => Err(ApiError::OtherUid(format!(
                "{key} has UID {}, and this write is for {uid}",
                stored.metadata.uid
            ))),
            None => Err(ApiError::Conflict(format!(
                "{key} has resourceVersion {}, and this write is for {}",
                stored.metadata.resource_version, preconditions.resource_version
            ))),
        }
    }

    /// Sends a request until there is an answer or no time left.
    async fn sent(&self, call: &Call<'_>) -> Result<Value, ApiError> {
        let deadline = Instant::now() + self.time_out;
        loop {
            if call.method != Method::GET && !(self.may_write)() {
                return Err(ApiError::Storage(format!(
                    "{}: not written: this replica does not lead",
                    call.key
                )));
            }
            let answer = match tokio::time::timeout_at(deadline, self.once(call)).await {
                Ok(answer) => answer?,
                Err(_) => {
                    self.log.say(call, "no answer in time");
                    return Err(ApiError::Unknown);
                }
            };
            let refusal = match answer {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            match refusal.pause() {
                Some(pause) if Instant::now() + pause < deadline => tokio::time::sleep(pause).await,
                _ => {
                    let error = refusal.error(call.key);
                    if matches!(error, ApiError::Unknown | ApiError::Storage(_)) {
                        self.log.say(call, &refusal.text());
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn once(&self, call: &Call<'_>) -> Result<Result<Value, Refusal>, ApiError> {
        let unknown = |error: kube::Error| {
            self.log.say(call, &describe(&error));
            ApiError::Unknown
        };
        let answer = self.client.send(call.request()?).await.map_err(unknown)?;
        let (head, body) = answer.into_parts();
        let bytes = body.collect_bytes().await.map_err(unknown)?;
        if !head.status.is_success() {
            return Ok(Err(Refusal::new(head.status, &head.headers, &bytes)));
        }
        match serde_json::from_slice(&bytes) {
            Ok(Lean(answer)) => Ok(Ok(answer)),
            Err(error) => {
                self.log.say(call, &format!("an answer that is no JSON: {error}"));
                Err(ApiError::Unknown)
            }
        }
    }

    fn object(&self, key: &ObjectKey, answer: Value) -> Result<Arc<Object>, ApiError> {
        normalize::object(key.kind, answer, &self.trim)
            .map(Arc::new)
            .map_err(|problem| ApiError::Storage(format!("{key}: the answer cannot be read: {problem}")))
    }
}

/// Lines about requests without a clear answer: one in ten seconds, with the number of those left out.
#[derive(Debug, Default)]
struct LogBudget {
    /// Milliseconds since the first line after which the next one may come.
    next_ms: AtomicU64,
    left_out: AtomicU64,
    began: std::sync::OnceLock<Instant>,
}

impl LogBudget {
    fn say(&self, call: &Call<'_>, text: &str) {
        let now =
            u64::try_from(self.began.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = self.next_ms.load(Ordering::Relaxed);
        let (method, path) = (&call.method, &call.path);
        let is_first =
            self.next_ms.compare_exchange(next, now + LOG_EVERY_MS, Ordering::Relaxed, Ordering::Relaxed);
        if now < next || is_first.is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%method, path, "no clear answer of the API server: {text}");
            return;
        }
        let others = self.left_out.swap(0, Ordering::Relaxed);
        tracing::warn!(%method, path, others, "no clear answer of the API server: {text}");
    }
}

/// What is known of an object after a write whose answer does not show it.
fn stub(key: &ObjectKey, preconditions: Preconditions) -> Arc<Object> {
    let mut object = Object::new(key.kind, &key.namespace, &key.name);
    object.metadata.uid = preconditions.uid.unwrap_or_default();
    Arc::new(object)
}

/// Where a kind's status is written: Volcano's PodGroup has no part of its own for it.
const fn status_part(kind: Kind) -> &'static str {
    match kind {
        Kind::PodGroup => "",
        _ => "/status",
    }
}

/// Why there can be no such object. Pods name their gang in an annotation, and people ask for what they like: a text that
/// is no name could make the path lead elsewhere, under our rights.
fn place_problem(key: &ObjectKey) -> Option<String> {
    let namespace = (!key.namespace.is_empty()).then(|| label_problem(&key.namespace)).flatten();
    // One that the API server is to name has none yet.
    namespace.or_else(|| (!key.name.is_empty()).then(|| name_problem(&key.name)).flatten())
}

/// Path of a kind's objects, as in `/api/v1/namespaces/default/pods`.
fn collection_path(key: &ObjectKey) -> String {
    let version = key.kind.api_version();
    let root = if version.contains('/') { "apis" } else { "api" };
    let plural = key.kind.plural();
    if key.namespace.is_empty() {
        format!("/{root}/{version}/{plural}")
    } else {
        format!("/{root}/{version}/namespaces/{}/{plural}", key.namespace)
    }
}

fn object_path(key: &ObjectKey, part: &str) -> String {
    format!("{}/{}{part}", collection_path(key), key.name)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use http_body_util::Full;
    use hyper::body::Bytes;
    use phalanx_kubernetes::client::always;

    use super::*;

    #[tokio::test]
    async fn what_can_be_no_name_is_never_part_of_a_path() {
        let nobody = tower::service_fn(|request: Request<Body>| async move {
            panic!("asked for {}", request.uri());
            #[allow(unreachable_code)]
            Ok::<Response<Full<Bytes>>, Infallible>(Response::default())
        });
        let writes = Writes::new(WriteParts {
            client: Client::new(nobody, "default"),
            trim: Trim::new(&[]),
            may_write: always(),
            time_out: Duration::from_secs(1),
        });
        for (namespace, name) in [
            ("default", "../../../api/v1/secrets"),
            ("default", "a/status"),
            ("default", "a?watch=1"),
            ("default", ".."),
            ("default", "a%2fb"),
            ("../kube-system", "a"),
            ("a.b", "a"),
        ] {
            let key = ObjectKey::new(Kind::PodGroup, namespace, name);
            assert_eq!(writes.get(&key).await, Err(ApiError::NotFound(key.to_string())));
            let mutation = Mutation::Delete { key: key.clone(), preconditions: Preconditions::default() };
            let Err(ApiError::Invalid(text)) = writes.mutate(mutation, None).await else { panic!("{key}") };
            assert!(text.starts_with(&format!("{key}: its namespace or name must be")), "{text}");
        }
    }
}
