//! A client whose connections can be cut: at the n-th event of all watches together, in the middle of its line.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use futures::future::{self, Either};
use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What the connections do.
#[derive(Clone)]
pub struct Cuts(Arc<Shared>);

struct Shared {
    inner: Client,
    /// Lines of watches that were heard.
    lines: AtomicU64,
    /// Lines that may still be heard before the cut; negative: no cut is planned.
    left: AtomicI64,
    stays_cut: AtomicBool,
    is_cut: AtomicBool,
    was_cut: AtomicBool,
    from_first: AtomicBool,
    /// Cuts so far: whoever reads a body that began before the newest one is cut off.
    generation: Mutex<watch::Sender<u64>>,
}

impl Cuts {
    /// Connections like this client's.
    pub fn new(inner: Client) -> Self {
        Self(Arc::new(Shared {
            inner,
            lines: AtomicU64::new(0),
            left: AtomicI64::new(-1),
            stays_cut: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            was_cut: AtomicBool::new(false),
            from_first: AtomicBool::new(false),
            generation: Mutex::new(watch::Sender::new(0)),
        }))
    }

    /// A client over them.
    pub fn client(&self) -> Client {
        let cuts = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let cuts = cuts.clone();
            async move { cuts.send(request).await }
        });
        Client::new(service, "default")
    }

    /// Lines of watches heard so far.
    pub fn lines(&self) -> u64 {
        self.0.lines.load(Ordering::SeqCst)
    }

    /// All connections are cut in the middle of the n-th line from now on; `stays_cut`: new ones are refused until
    /// `heal`.
    pub fn cut_after(&self, lines: u64, stays_cut: bool) {
        self.0.stays_cut.store(stays_cut, Ordering::SeqCst);
        self.0.left.store(i64::try_from(lines).unwrap(), Ordering::SeqCst);
    }

    /// All connections are cut, and new ones are refused until `heal`.
    pub fn cut_now(&self) {
        self.0.stays_cut.store(true, Ordering::SeqCst);
        self.cut();
    }

    fn cut(&self) {
        self.0.is_cut.store(self.0.stays_cut.load(Ordering::SeqCst), Ordering::SeqCst);
        self.0.was_cut.store(true, Ordering::SeqCst);
        self.0.generation.lock().unwrap().send_modify(|generation| *generation += 1);
    }

    /// New connections are let through again.
    pub fn heal(&self) {
        self.0.is_cut.store(false, Ordering::SeqCst);
    }

    /// True when there was a cut.
    pub fn were_cut(&self) -> bool {
        self.0.was_cut.load(Ordering::SeqCst)
    }

    /// From now on each kind is first watched from version 1, which no server has kept.
    pub fn watch_from_the_first_version(&self) {
        self.0.from_first.store(true, Ordering::SeqCst);
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Answer, BoxError> {
        if self.0.is_cut.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_watch = query.contains("watch=true");
        if is_watch && self.0.from_first.load(Ordering::SeqCst) {
            self.0.from_first.store(!request.uri().path().contains("podgroups"), Ordering::SeqCst);
            let uri = request.uri().to_string();
            let (before, _) = uri.rsplit_once("resourceVersion=").unwrap();
            *request.uri_mut() = format!("{before}resourceVersion=1").parse()?;
        }
        let cut = self.0.generation.lock().unwrap().subscribe();
        let answer = self.0.inner.send(request).await?;
        let (parts, body) = answer.into_parts();
        let cuts = self.clone();
        let frames = body.into_data_stream().map(|data| data.map_err(io::Error::other));
        let frames = stream::unfold(Some(Box::pin(frames)), move |frames| {
            let (cuts, mut cut) = (cuts.clone(), cut.clone());
            async move {
                let mut frames = frames?;
                let cut_off = std::pin::pin!(cut.changed());
                match future::select(cut_off, frames.next()).await {
                    Either::Left(_) => Some((Err(io::ErrorKind::ConnectionReset.into()), None)),
                    Either::Right((None, _)) => None,
                    Either::Right((Some(Err(error)), _)) => Some((Err(error), None)),
                    Either::Right((Some(Ok(data)), _)) => {
                        let data = if is_watch { cuts.hear(data) } else { data };
                        Some((Ok(Frame::data(data)), Some(frames)))
                    }
                }
            }
        });
        Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()))
    }

    /// Counts the lines; the one that is the last before the cut is heard by half.
    fn hear(&self, data: Bytes) -> Bytes {
        for (at, _) in data.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            self.0.lines.fetch_add(1, Ordering::SeqCst);
            let left = self.0.left.load(Ordering::SeqCst);
            if left > 0 && self.0.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.0.left.store(-1, Ordering::SeqCst);
                self.cut();
                return data.slice(..at / 2);
            }
        }
        data
    }
}
