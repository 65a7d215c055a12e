//! Bounds of the admin interface: connections, requests at once, and how long a connection may do nothing.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use super::Failure;

/// Connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 256;
/// A connection on which nothing moves for so long is cut. Longer than any answer takes.
const IDLE: Duration = Duration::from_secs(60);
/// Requests that are answered at once; more are refused with 503.
pub(super) const REQUESTS: usize = 64;

/// Takes so many connections and no more.
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    idle: Duration,
}

impl Bounded {
    /// The admin interface's bounds.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self::with(listener, CONNECTIONS, IDLE)
    }

    fn with(listener: TcpListener, connections: usize, idle: Duration) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(connections)), idle }
    }
}

impl Listener for Bounded {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        // The semaphore is never closed; without a place nothing is accepted.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (Guarded { stream, idle: self.idle, deadline: Box::pin(sleep(self.idle)), _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that holds a place, and is cut when nothing moves.
pub struct Guarded {
    stream: TcpStream,
    idle: Duration,
    deadline: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Guarded {
    /// What came of a step; where nothing moved, whether that has gone on for too long.
    fn watch<T>(&mut self, step: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.deadline.as_mut().reset(Instant::now() + self.idle);
            return step;
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(step, context)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(step, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(step, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Refuses what would be too much at once. Whether the coordinator lives is always answered.
pub(super) async fn refuse_too_many(
    State(places): State<Arc<Semaphore>>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    if matches!(request.uri().path(), "/healthz" | "/readyz") {
        return Ok(next.run(request).await);
    }
    let Ok(_place) = places.try_acquire() else {
        let text = format!("{REQUESTS} requests are being answered already: try again");
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn serve(connections: usize, idle: Duration, router: Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounded = Bounded::with(listener, connections, idle);
        tokio::spawn(async move { axum::serve(bounded, router).await });
        address
    }

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn those_who_say_nothing_are_cut_and_the_next_gets_in() {
        let router = Router::new().route("/", get(async || "here"));
        let address = serve(2, Duration::from_millis(50), router).await;
        let mut slow = Vec::new();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
            slow.push(stream);
        }
        assert!(ask(address, "/").await.ends_with("here"));
        let mut rest = Vec::new();
        // Cut, by an end or a reset.
        let _ = slow[0].read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }

    #[tokio::test]
    async fn too_many_requests_are_refused_and_health_is_not() {
        let places = Arc::new(Semaphore::new(1));
        let (entered, mut inside) = tokio::sync::mpsc::channel::<()>(1);
        let hold = Arc::new(tokio::sync::Notify::new());
        let waiting = Arc::clone(&hold);
        let long = get(async move || {
            let _ = entered.send(()).await;
            waiting.notified().await;
            "done"
        });
        let router = Router::new()
            .route("/long", long)
            .route("/healthz", get(async || "ok"))
            .layer(axum::middleware::from_fn_with_state(places, refuse_too_many));
        let address = serve(8, Duration::from_secs(60), router).await;
        let first = tokio::spawn(async move { ask(address, "/long").await });
        inside.recv().await.unwrap();
        let refused = ask(address, "/long").await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("try again"), "{refused}");
        assert!(ask(address, "/healthz").await.ends_with("ok"));
        hold.notify_one();
        assert!(first.await.unwrap().ends_with("done"));
    }
}
