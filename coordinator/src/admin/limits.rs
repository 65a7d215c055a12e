//! Bounds of the admin interface's requests: how many are worked on at once, and how many texts are on their way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{Semaphore, oneshot};

use super::{Failure, unreadable};

/// Requests that are worked on at once; more are refused with 503.
const REQUESTS: usize = 64;
/// Texts that are on their way at once. The one that has been for longest gives way to the next: a client that does
/// not send what it promised keeps nobody else out.
const TEXTS: usize = 64;
/// A text must be there within this.
const TEXT_TIMEOUT: Duration = Duration::from_secs(30);

/// The places.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    requests: Arc<Semaphore>,
    texts: Arc<Texts>,
}

impl Limits {
    pub(super) fn new() -> Self {
        Self::with(REQUESTS, TEXTS)
    }

    fn with(requests: usize, texts: usize) -> Self {
        let texts = Texts { most: texts, open: Mutex::new(BTreeMap::new()), numbers: AtomicU64::new(0) };
        Self { requests: Arc::new(Semaphore::new(requests)), texts: Arc::new(texts) }
    }
}

/// Texts that are on their way, by number.
#[derive(Debug)]
struct Texts {
    most: usize,
    /// Dropping an end gives the text up.
    open: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    numbers: AtomicU64,
}

/// A text that is on its way.
struct Reading<'t> {
    texts: &'t Texts,
    number: u64,
}

impl Texts {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> (Reading<'_>, oneshot::Receiver<()>) {
        let mut open = self.open();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        if open.len() >= self.most {
            open.pop_first();
        }
        let (stay, give_way) = oneshot::channel();
        open.insert(number, stay);
        (Reading { texts: self, number }, give_way)
    }

    /// The request with its whole text.
    async fn read(&self, request: Request) -> Result<Request, Failure> {
        let (parts, body) = request.into_parts();
        let reading = Bytes::from_request(Request::from_parts(parts.clone(), body), &());
        let (_open, give_way) = self.enter();
        tokio::select! {
            read = tokio::time::timeout(TEXT_TIMEOUT, reading) => match read {
                Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
                Ok(Err(rejection)) => Err(unreadable(rejection.status(), &rejection.body_text())),
                Err(_) => {
                    let text =
                        format!("the text did not arrive within {} s: send it again", TEXT_TIMEOUT.as_secs());
                    Err(Failure::new(StatusCode::REQUEST_TIMEOUT, text))
                }
            },
            _ = give_way => {
                let text = format!(
                    "more than {} texts are being sent, and this one has taken longest: send it again", self.most
                );
                Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, text))
            }
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.texts.open().remove(&self.number);
    }
}

/// Reads a request's text, then takes a place, or refuses what would be too much at once. What changes something is
/// done in a task of its own: it ends also where the client does not wait for it, as half a text is worth nothing.
pub(super) async fn bound(
    State(limits): State<Limits>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let changes = !request.method().is_safe();
    let request = if changes { limits.texts.read(request).await? } else { request };
    let Ok(place) = limits.requests.try_acquire_owned() else {
        let text = format!("{REQUESTS} requests are being worked on already: try again");
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    let work = async move {
        let response = next.run(request).await;
        drop(place);
        response
    };
    if !changes {
        return Ok(work.await);
    }
    let done = tokio::spawn(work).await;
    done.map_err(|error| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the request failed: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::{MethodRouter, get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Notify, mpsc};

    use super::*;

    /// Whoever waits longer for an answer waits for nothing.
    const PATIENCE: Duration = Duration::from_secs(20);

    async fn serve(path: &str, method: MethodRouter, limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route(path, method).layer(from_fn_with_state(limits, bound));
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    /// Sends a request with a text that may be shorter than it says.
    async fn say(address: SocketAddr, start: &str, length: usize, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("{start} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        let request = format!("{head}content-length: {length}\r\n\r\n{text}");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn rest(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn too_many_requests_are_refused() {
        let (entered, mut inside) = mpsc::channel::<()>(1);
        let hold = Arc::new(Notify::new());
        let waiting = Arc::clone(&hold);
        let long = get(async move || {
            let _ = entered.send(()).await;
            waiting.notified().await;
            "done"
        });
        let address = serve("/long", long, Limits::with(1, 1)).await;
        let first = say(address, "GET /long", 0, "").await;
        inside.recv().await.unwrap();
        let refused = rest(say(address, "GET /long", 0, "").await).await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("try again"), "{refused}");
        hold.notify_one();
        assert!(rest(first).await.ends_with("done"));
    }

    #[tokio::test]
    async fn half_texts_hold_no_place_and_the_oldest_gives_way() {
        let echo = post(async |text: String| text);
        let address = serve("/", echo, Limits::with(1, 2)).await;
        let mut half = Vec::new();
        for _ in 0..3 {
            half.push(say(address, "POST /", 5, "ab").await);
            assert!(rest(say(address, "POST /", 5, "whole").await).await.ends_with("whole"));
        }
        let refused = rest(half.remove(0)).await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("send it again"), "{refused}");
        half[1].write_all(b"cde").await.unwrap();
        assert!(rest(half.remove(1)).await.ends_with("abcde"));
    }

    #[tokio::test]
    async fn what_changes_something_is_done_to_its_end_also_when_nobody_waits() {
        let (entered, mut steps) = mpsc::channel::<&str>(2);
        let hold = Arc::new(Notify::new());
        let waiting = Arc::clone(&hold);
        let long = post(async move |_text: String| {
            let _ = entered.send("begun").await;
            waiting.notified().await;
            let _ = entered.send("done").await;
            "done"
        });
        let address = serve("/", long, Limits::with(1, 1)).await;
        let client = say(address, "POST /", 5, "whole").await;
        assert_eq!(steps.recv().await, Some("begun"));
        drop(client);
        // The place is free only when the work has ended.
        let refused = rest(say(address, "POST /", 5, "whole").await).await;
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        hold.notify_one();
        assert_eq!(steps.recv().await, Some("done"));
    }
}
