//! An HTTP proxy in front of a real API server that counts requests and spoils those it is told to.

#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::{Client, Config};
use phalanx_devcluster::Servers;
use phalanx_kubernetes::client::{Target, client};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What is done to a request.
#[derive(Clone, Debug)]
pub enum Spoil {
    /// Answered with this code and text; the API server never sees it.
    Answer(u16, &'static str),
    /// As above, with `Retry-After`.
    Busy(u64),
    /// Done, and the answer comes so late.
    Late(Duration),
    /// Done, and the connection is cut in place of the answer.
    Cut,
    /// Never done and never answered.
    Swallow,
}

#[derive(Clone, Debug)]
struct Rule {
    method: Method,
    /// What the path contains.
    part: String,
    times: u32,
    spoil: Spoil,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    seen: Vec<Seen>,
    under_way: usize,
    most_under_way: usize,
}

#[derive(Debug)]
struct Seen {
    method: Method,
    path: String,
    /// The API server did as it was asked.
    is_done: bool,
}

/// The proxy; it ends with the value.
pub struct Proxy {
    pub url: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
    folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Stands before these servers, as their admin.
    pub async fn start(servers: &Servers) -> Self {
        Self::before(servers.kubeconfig()).await
    }

    /// Stands before the API server of a kubeconfig, as its user.
    pub async fn before(kubeconfig: &Path) -> Self {
        let target = Target { kubeconfig: Some(kubeconfig.to_owned()), context: None };
        let upstream = client(&target.load().await.unwrap(), "phalanx-test-proxy").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (upstream, state) = (upstream.clone(), Arc::clone(&shared));
                connections.spawn(serve(stream, upstream, state));
            }
        });
        Self { url, state, task, folder: tempfile::tempdir().unwrap() }
    }

    /// A client that goes through it.
    pub fn client(&self) -> Client {
        client(&Config::new(self.url.parse().unwrap()), "phalanx-coordinator/test").unwrap()
    }

    /// A kubeconfig that leads to it.
    pub fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{ "name": "proxy", "cluster": { "server": self.url } }],
            "users": [{ "name": "proxy", "user": {} }],
            "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "proxy" } }],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Spoils the next `times` requests of this method whose path contains `part`.
    pub fn spoil(&self, times: u32, method: Method, part: &str, spoil: Spoil) {
        let rule = Rule { method, part: part.to_owned(), times, spoil };
        self.state.lock().unwrap().rules.push(rule);
    }

    /// Spoils nothing any more.
    pub fn clear(&self) {
        self.state.lock().unwrap().rules.clear();
    }

    /// Requests of this method whose path contains `part`, so far.
    pub fn count(&self, method: &Method, part: &str) -> usize {
        let state = self.state.lock().unwrap();
        state.seen.iter().filter(|seen| seen.method == *method && seen.path.contains(part)).count()
    }

    /// Most requests that were under way at one time.
    pub fn most_at_once(&self) -> usize {
        self.state.lock().unwrap().most_under_way
    }

    /// All requests that could change something, also in vain.
    pub fn all_writes(&self) -> Vec<(Method, String)> {
        self.those(|seen| seen.method != Method::GET)
    }

    /// All requests that changed something.
    pub fn done_writes(&self) -> Vec<(Method, String)> {
        self.those(|seen| seen.method != Method::GET && seen.is_done)
    }

    fn those(&self, wanted: impl Fn(&Seen) -> bool) -> Vec<(Method, String)> {
        let state = self.state.lock().unwrap();
        let found = state.seen.iter().filter(|seen| wanted(seen));
        found.map(|seen| (seen.method.clone(), seen.path.clone())).collect()
    }
}

async fn serve(stream: TcpStream, upstream: Client, state: Arc<Mutex<State>>) {
    let service = service_fn(move |request| counted(request, upstream.clone(), Arc::clone(&state)));
    // A client that leaves, and a connection that is cut, end here too.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn counted(
    request: Request<Incoming>,
    upstream: Client,
    state: Arc<Mutex<State>>,
) -> Result<Response<Body>, String> {
    {
        let mut state = state.lock().unwrap();
        state.under_way += 1;
        state.most_under_way = state.most_under_way.max(state.under_way);
    }
    let answer = answer(request, upstream, Arc::clone(&state)).await;
    state.lock().unwrap().under_way -= 1;
    answer
}

async fn answer(
    request: Request<Incoming>,
    upstream: Client,
    state: Arc<Mutex<State>>,
) -> Result<Response<Body>, String> {
    let (number, spoil) = take(&state, request.method(), request.uri().path());
    match spoil {
        Some(Spoil::Answer(code, text)) => return Ok(refusal(code, text, &HeaderMap::new())),
        Some(Spoil::Busy(seconds)) => {
            let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, seconds.into())]);
            return Ok(refusal(429, "Too many requests, please try again later.", &headers));
        }
        Some(Spoil::Swallow) => std::future::pending::<()>().await,
        Some(Spoil::Late(_) | Spoil::Cut) | None => {}
    }
    // A request that has come is done, also when its client has left meanwhile.
    let (done, wait) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let _ = done.send(forward(request, upstream).await);
    });
    let answer = wait.await.map_err(|error| error.to_string())??;
    state.lock().unwrap().seen[number].is_done = answer.status().is_success();
    match spoil {
        Some(Spoil::Late(pause)) => tokio::time::sleep(pause).await,
        Some(Spoil::Cut) => return Err("cut".to_owned()),
        _ => {}
    }
    Ok(answer)
}

/// Number of the request, and what is done to it.
fn take(state: &Mutex<State>, method: &Method, path: &str) -> (usize, Option<Spoil>) {
    let mut state = state.lock().unwrap();
    state.seen.push(Seen { method: method.clone(), path: path.to_owned(), is_done: false });
    let number = state.seen.len() - 1;
    let is_meant = |rule: &&mut Rule| rule.times > 0 && rule.method == *method && path.contains(&rule.part);
    let Some(rule) = state.rules.iter_mut().find(is_meant) else { return (number, None) };
    rule.times -= 1;
    (number, Some(rule.spoil.clone()))
}

fn refusal(code: u16, text: &str, headers: &HeaderMap) -> Response<Body> {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": text });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    *response.headers_mut() = headers.clone();
    response
}

async fn forward(request: Request<Incoming>, upstream: Client) -> Result<Response<Body>, String> {
    let (head, body) = request.into_parts();
    let bytes: Bytes = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    let mut onward = Request::builder().method(head.method).uri(head.uri.path_and_query().unwrap().as_str());
    for (name, value) in &head.headers {
        if [http::header::ACCEPT, http::header::CONTENT_TYPE].contains(name) {
            onward = onward.header(name, value);
        }
    }
    let onward = onward.body(Body::from(bytes.to_vec())).map_err(|error| error.to_string())?;
    let answer = upstream.send(onward).await.map_err(|error| error.to_string())?;
    let (mut head, body) = answer.into_parts();
    // Hyper frames the body anew.
    head.headers.remove(http::header::TRANSFER_ENCODING);
    head.headers.remove(http::header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, body))
}
