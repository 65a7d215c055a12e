//! The connections of the admin interface: so many at once, none that does nothing for ever, and where all places are
//! taken, whoever has kept one longest without asking anything makes room for the next.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, Sleep, sleep};

/// Bounds of the connections.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at once.
    most: usize,
    /// The head of a request must be there within this, counted from the last answer where there was one.
    head: Duration,
    /// An answer must be taken within this. While a request is worked on there is no limit: the work has its own.
    answer: Duration,
}

/// The admin interface's.
const LIMITS: Limits = Limits { most: 256, head: Duration::from_secs(30), answer: Duration::from_secs(60) };

/// What a connection waits for. Those that come first make room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The client has to ask something.
    Head,
    /// The client has to take an answer.
    Answer,
    /// We work on a request, or read its text.
    Work,
}

#[derive(Debug)]
struct Slot {
    phase: Phase,
    since: Instant,
    /// Dropped to make the connection give way.
    stay: Option<oneshot::Sender<()>>,
}

/// All connections.
#[derive(Debug)]
struct Table {
    limits: Limits,
    slots: Mutex<BTreeMap<u64, Slot>>,
    numbers: AtomicU64,
    /// A connection has ended, or one more could make room.
    changed: Notify,
}

impl Table {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<u64, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place. Where there is none, one is made to give way, and `changed` says when to ask again.
    fn enter(self: &Arc<Self>) -> Option<(Place, oneshot::Receiver<()>)> {
        let mut slots = self.slots();
        if slots.len() < self.limits.most {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let (stay, give_way) = oneshot::channel();
            slots.insert(number, Slot { phase: Phase::Head, since: Instant::now(), stay: Some(stay) });
            return Some((Place { number, table: Arc::clone(self) }, give_way));
        }
        let waits = |slot: &&mut Slot| slot.phase != Phase::Work;
        let leaves = slots.values_mut().filter(waits).any(|slot| slot.stay.is_none());
        if !leaves
            && let Some(slot) = slots.values_mut().filter(waits).min_by_key(|slot| (slot.phase, slot.since))
        {
            slot.stay = None;
        }
        None
    }
}

/// A connection's place in the table: its stream has it, and every request that comes over it.
#[derive(Clone, Debug)]
pub struct Place {
    number: u64,
    table: Arc<Table>,
}

impl Place {
    fn turn(&self, phase: Phase) {
        if let Some(slot) = self.table.slots().get_mut(&self.number) {
            (slot.phase, slot.since) = (phase, Instant::now());
        }
        self.table.changed.notify_one();
    }

    fn now(&self) -> (Phase, Instant) {
        self.table
            .slots()
            .get(&self.number)
            .map_or((Phase::Work, Instant::now()), |slot| (slot.phase, slot.since))
    }

    /// When it is cut, unless something comes first.
    fn limit(&self) -> Option<Instant> {
        let (phase, since) = self.now();
        match phase {
            Phase::Head => Some(since + self.table.limits.head),
            Phase::Answer => Some(since + self.table.limits.answer),
            Phase::Work => None,
        }
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Place {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        stream.io().place.clone()
    }
}

/// Keeps the table: while a request is worked on, nothing cuts its connection.
pub(super) async fn follow(request: Request, next: Next) -> Response {
    let place = request.extensions().get::<ConnectInfo<Place>>().cloned();
    let turn = |phase| {
        if let Some(ConnectInfo(place)) = &place {
            place.turn(phase);
        }
    };
    turn(Phase::Work);
    let response = next.run(request).await;
    turn(Phase::Answer);
    response
}

/// Takes so many connections and no more.
pub struct Bounded {
    listener: TcpListener,
    table: Arc<Table>,
}

impl Bounded {
    /// The admin interface's bounds.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self::with(listener, LIMITS)
    }

    fn with(listener: TcpListener, limits: Limits) -> Self {
        let (slots, numbers) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
        Self { listener, table: Arc::new(Table { limits, slots, numbers, changed: Notify::new() }) }
    }
}

impl Listener for Bounded {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        // First the next one: nobody is made to give way while there is none.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        loop {
            if let Some((place, give_way)) = self.table.enter() {
                let deadline = Box::pin(sleep(self.table.limits.head));
                return (Guarded { stream, place, give_way, gives_way: false, deadline }, address);
            }
            self.table.changed.notified().await;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that has a place, and is cut when its client keeps it for nothing.
pub struct Guarded {
    stream: TcpStream,
    place: Place,
    give_way: oneshot::Receiver<()>,
    /// What `give_way` said: it must not be asked again.
    gives_way: bool,
    deadline: Pin<Box<Sleep>>,
}

impl Guarded {
    /// What came of a step; where nothing moved, whether the connection has to end.
    fn watch<T>(&mut self, step: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            return step;
        }
        self.gives_way = self.gives_way || Pin::new(&mut self.give_way).poll(context).is_ready();
        let Some(limit) = self.place.limit() else { return Poll::Pending };
        if self.deadline.deadline() != limit {
            self.deadline.as_mut().reset(limit);
        }
        if self.gives_way || self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.place.table.slots().remove(&self.place.number);
        self.place.table.changed.notify_one();
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

    /// Asked for once all that was to be written is: then the answer is out, and the next request may come.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.stream).poll_flush(context);
        if step.is_ready() && self.place.now().0 == Phase::Answer {
            self.place.turn(Phase::Head);
        }
        step
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Whoever waits longer for an answer waits for nothing.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// Longer than any test.
    const NEVER: Duration = Duration::from_secs(600);
    const NONE: Limits = Limits { most: 256, head: NEVER, answer: NEVER };

    async fn serve(limits: Limits, router: Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = router.layer(from_fn(follow));
        let service = router.into_make_service_with_connect_info::<Place>();
        let bounded = Bounded::with(listener, limits);
        tokio::spawn(async move { axum::serve(bounded, service).await });
        address
    }

    async fn say(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(address: SocketAddr, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        rest(say(address, &request).await).await
    }

    /// All until the end, or until it is cut.
    async fn rest(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[tokio::test]
    async fn a_head_that_does_not_end_is_cut_however_often_a_byte_comes() {
        let router = Router::new().route("/", get(async || "here"));
        let address = serve(Limits { head: Duration::from_millis(100), ..NONE }, router).await;
        let (mut reading, mut writing) = say(address, "GET / HTTP/1.1\r\nx: ").await.into_split();
        let drip = tokio::spawn(async move {
            while writing.write_all(b"y").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let mut bytes = Vec::new();
        let _ = reading.read_to_end(&mut bytes).await;
        assert_eq!(bytes, b"");
        drip.await.unwrap();
    }

    #[tokio::test]
    async fn whoever_says_nothing_longest_makes_room_and_whoever_is_worked_for_does_not() {
        let (entered, mut inside) = tokio::sync::mpsc::channel::<()>(1);
        let hold = Arc::new(Notify::new());
        let waiting = Arc::clone(&hold);
        let long = get(async move || {
            let _ = entered.send(()).await;
            waiting.notified().await;
            "done"
        });
        let router = Router::new().route("/", get(async || "here")).route("/long", long);
        let address = serve(Limits { most: 3, ..NONE }, router).await;
        let first = tokio::spawn(async move { ask(address, "/long").await });
        inside.recv().await.unwrap();
        // The one that has been answered may ask again, and waits longest.
        let mut answered = say(address, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let mut start = [0; 4];
        answered.read_exact(&mut start).await.unwrap();
        let half = say(address, "GET / HTTP/1.1\r\nhost: ").await;
        assert!(ask(address, "/").await.ends_with("here"));
        assert!(rest(answered).await.ends_with("here"));
        let more = [say(address, "").await, say(address, "").await];
        assert!(ask(address, "/").await.ends_with("here"));
        assert_eq!(rest(half).await, "");
        hold.notify_one();
        assert!(first.await.unwrap().ends_with("done"));
        drop(more);
    }

    #[tokio::test]
    async fn work_is_not_cut_and_an_answer_that_nobody_takes_is() {
        let slow = get(async || {
            tokio::time::sleep(Duration::from_millis(300)).await;
            "done"
        });
        let (entered, mut inside) = tokio::sync::mpsc::channel::<()>(1);
        let large = get(async move || {
            let _ = entered.send(()).await;
            "x".repeat(64 << 20)
        });
        let router = Router::new().route("/slow", slow).route("/large", large);
        let short = Duration::from_millis(100);
        let address = serve(Limits { most: 256, head: short, answer: short }, router).await;
        assert!(ask(address, "/slow").await.ends_with("done"));
        let untaken = say(address, "GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        inside.recv().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(rest(untaken).await.len() < 64 << 20);
    }
}
