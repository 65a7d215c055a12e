//! One list and one watch for each kind, for ever. A watch that breaks goes on where it was; where the API server
//! does not reach back that far, or says anything else, the kind is listed again and the mirror takes the difference.
//! Nothing that an object or the API server says ends a watch for good.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use kube::api::{ListParams, Request, WatchEvent, WatchParams};
use phalanx_common::describe::describe;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::REQUEST;
use super::lean::{Lean, read_page};
use super::mirror::Mirror;
use super::normalize::{self, Malformed, Trim};
use crate::api::Kind;

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// The API server ends a watch after this long, give or take, so that not all begin anew together.
const WATCH_SECONDS: u32 = 240;
const WATCH_SECONDS_MORE: u32 = 50;
/// A watch on which nothing is heard for this long is dead: a bookmark comes each minute.
const SILENCE: Duration = Duration::from_secs(150);
/// First pause after something went wrong; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A watch that lived this long was a good one: the next pause is short again.
const GOOD_WATCH: Duration = Duration::from_secs(2);
/// Pause where the API server does not serve the kind.
const NOT_SERVED_PAUSE: Duration = Duration::from_secs(5);
/// Of the warnings that a kind is not served one in so many is said.
const NOT_SERVED_SAID: u32 = 24;

/// How the watch of one kind fares.
#[derive(Debug, Default)]
pub struct Counts {
    /// Listings that reached their end.
    pub lists: AtomicU64,
    /// Watches opened.
    pub watches: AtomicU64,
    /// Events heard.
    pub events: AtomicU64,
    /// Objects left out because they cannot be read.
    pub malformed: AtomicU64,
}

/// The watches of all kinds. They end when this is dropped.
#[derive(Debug)]
pub struct Watches {
    tasks: Vec<JoinHandle<()>>,
    counts: BTreeMap<Kind, Arc<Counts>>,
}

impl Watches {
    /// Starts them.
    pub(super) fn start(client: &Client, mirror: &Arc<Mirror>, trim: &Trim) -> Self {
        let counts: BTreeMap<Kind, Arc<Counts>> = Kind::ALL.map(|kind| (kind, Arc::default())).into();
        let task = |(kind, counts): (&Kind, &Arc<Counts>)| {
            let follower = Follower {
                kind: *kind,
                client: client.clone(),
                mirror: Arc::clone(mirror),
                trim: trim.clone(),
                counts: Arc::clone(counts),
                listing: 0,
                said: BTreeMap::new(),
            };
            tokio::spawn(follower.run())
        };
        let followed = counts.iter().filter(|(kind, _)| mirror.follows(**kind));
        Self { tasks: followed.map(task).collect(), counts }
    }

    /// How the watch of a kind fares.
    #[must_use]
    pub fn counts(&self, kind: Kind) -> Option<&Counts> {
        self.counts.get(&kind).map(|counts| &**counts)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// How a watch ended.
enum End {
    /// It can go on where it was.
    Broken(String),
    /// The kind must be listed again.
    ListAgain(String),
}

struct Follower {
    kind: Kind,
    client: Client,
    mirror: Arc<Mirror>,
    trim: Trim,
    counts: Arc<Counts>,
    /// Listings begun.
    listing: u32,
    /// Malformed objects that were told, with their versions.
    said: BTreeMap<String, String>,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = Pause::default();
        loop {
            self.listing = self.listing.wrapping_add(1);
            match self.list().await {
                Ok(revision) => {
                    self.counts.lists.fetch_add(1, Ordering::Relaxed);
                    self.follow(revision, &mut pause).await;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    self.not_served();
                    tokio::time::sleep(NOT_SERVED_PAUSE).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(kind = %self.kind, error = text(&error), "the kind cannot be listed; trying again");
                }
            }
            pause.wait().await;
        }
    }

    fn not_served(&self) {
        self.mirror.not_served(self.kind);
        if self.listing % NOT_SERVED_SAID != 1 {
            return;
        }
        let (kind, version) = (self.kind, self.kind.api_version());
        if self.mirror.requires(kind) {
            tracing::warn!(%kind, version, "the API server does not serve the kind; nothing is decided before it does: kubectl apply -f deploy/crds");
        } else {
            tracing::warn!(%kind, version, "the API server does not serve the kind; it is left out until it does: kubectl apply -f deploy/crds");
        }
    }

    /// Lists the kind into the mirror and gives the version behind which a watch goes on.
    async fn list(&mut self) -> Result<String, kube::Error> {
        let request = Request::new(path(self.kind));
        let mut parameters = ListParams::default().limit(PAGE);
        let mut revision = None;
        let mut said = BTreeMap::new();
        loop {
            let page = request.list(&parameters).map_err(kube::Error::BuildRequest)?;
            let Ok(page) = timeout(REQUEST, self.client.request_text(page)).await else {
                return Err(no_answer());
            };
            let mut objects = Vec::new();
            let metadata =
                read_page(&page?, &mut |json| match normalize::object(self.kind, json, &self.trim) {
                    Ok(object) => objects.push(object),
                    Err(malformed) => drop(said.insert(malformed.name.clone(), malformed)),
                });
            let metadata = metadata.map_err(kube::Error::SerdeError)?;
            self.mirror.apply(self.kind, objects, self.listing);
            // The first page's: what changes during the listing is told by the watch.
            revision.get_or_insert(metadata.resource_version);
            if metadata.next.is_empty() {
                break;
            }
            parameters = parameters.continue_token(&metadata.next);
        }
        // What cannot be read is still there: the version that could be read stays.
        for malformed in said.values() {
            self.mirror.keep(self.kind, &malformed.name, self.listing);
        }
        self.said.retain(|name, _| said.contains_key(name));
        said.into_values().for_each(|malformed| self.say(malformed));
        let gone = self.mirror.finish_listing(self.kind, self.listing);
        tracing::debug!(kind = %self.kind, gone, "listed");
        Ok(revision.unwrap_or_default())
    }

    /// Watches until the kind must be listed again.
    async fn follow(&mut self, mut revision: String, pause: &mut Pause) {
        loop {
            let (begin, heard) = (Instant::now(), self.counts.events.load(Ordering::Relaxed));
            let end = self.watch(&mut revision).await;
            if begin.elapsed() >= GOOD_WATCH || self.counts.events.load(Ordering::Relaxed) > heard {
                pause.reset();
            }
            match end {
                End::Broken(why) => {
                    if pause.is_long() {
                        tracing::warn!(kind = %self.kind, why, "watches of the kind end at once; trying again");
                    } else {
                        tracing::debug!(kind = %self.kind, why, "a watch has ended and goes on");
                    }
                    pause.wait().await;
                }
                End::ListAgain(why) => {
                    tracing::info!(kind = %self.kind, why, "the kind is listed again");
                    return;
                }
            }
        }
    }

    /// One watch, to its end.
    async fn watch(&mut self, revision: &mut String) -> End {
        let seconds = WATCH_SECONDS + jitter(WATCH_SECONDS_MORE);
        let parameters = WatchParams::default().timeout(seconds);
        let request = match Request::new(path(self.kind)).watch(&parameters, revision) {
            Ok(request) => request,
            Err(error) => return End::ListAgain(error.to_string()),
        };
        let client = self.client.clone();
        self.counts.watches.fetch_add(1, Ordering::Relaxed);
        let stream = match timeout(REQUEST, client.request_events::<Lean>(request)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return end_of(&error),
            Err(_) => return End::Broken("no answer in time".to_owned()),
        };
        let mut stream = pin!(stream);
        loop {
            let event = match timeout(SILENCE, stream.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return end_of(&error),
                Ok(None) => return End::Broken("ended by the API server".to_owned()),
                Err(_) => return End::Broken("nothing was heard".to_owned()),
            };
            if let Some(end) = self.hear(event, revision) {
                return end;
            }
        }
    }

    /// Takes one event; an end where the watch cannot go on.
    fn hear(&mut self, event: WatchEvent<Lean>, revision: &mut String) -> Option<End> {
        match event {
            WatchEvent::Bookmark(bookmark) => advance(revision, &bookmark.metadata.resource_version),
            WatchEvent::Error(status) => {
                Some(End::ListAgain(format!("{} ({})", status.message, status.code)))
            }
            WatchEvent::Added(Lean(json)) | WatchEvent::Modified(Lean(json)) => {
                let version = normalize::version(&json).map(str::to_owned);
                match normalize::object(self.kind, json, &self.trim) {
                    Ok(object) => self.mirror.apply(self.kind, vec![object], self.listing),
                    Err(malformed) => self.say(malformed),
                }
                self.heard(version, revision)
            }
            WatchEvent::Deleted(Lean(json)) => {
                if let Some((namespace, name)) = normalize::place(&json) {
                    self.said.remove(&normalize::name_of(namespace, name));
                    self.mirror.delete(self.kind, namespace, name);
                }
                let version = normalize::version(&json).map(str::to_owned);
                self.heard(version, revision)
            }
        }
    }

    fn heard(&self, version: Option<String>, revision: &mut String) -> Option<End> {
        self.counts.events.fetch_add(1, Ordering::Relaxed);
        match version {
            Some(version) => advance(revision, &version),
            None => Some(End::ListAgain("an event without a version".to_owned())),
        }
    }

    /// Warns of an object that cannot be read, once for each of its versions.
    fn say(&mut self, malformed: Malformed) {
        let known = self.said.insert(malformed.name.clone(), malformed.version.clone());
        if known.as_ref() != Some(&malformed.version) {
            self.counts.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("{malformed}");
        }
    }
}

/// Goes on behind this version. One that is lower than the last is of another history: the API server was restored.
fn advance(revision: &mut String, version: &str) -> Option<End> {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    if number(version) < number(revision) {
        return Some(End::ListAgain(format!(
            "version {version} after {revision}: the API server has gone back"
        )));
    }
    version.clone_into(revision);
    None
}

/// What an error of a watch means. Whatever the API server itself says is a reason to list again; only a connection
/// that broke goes on where it was.
fn end_of(error: &kube::Error) -> End {
    match error {
        kube::Error::ReadEvents(_) | kube::Error::HyperError(_) | kube::Error::Service(_) => {
            End::Broken(text(error))
        }
        // Too many requests, or a server that stops: the watch is as good as before.
        kube::Error::Api(status) if matches!(status.code, 429 | 500..=599) => End::Broken(text(error)),
        _ => End::ListAgain(text(error)),
    }
}

/// Path of a kind in all namespaces.
pub(super) fn path(kind: Kind) -> String {
    let version = kind.api_version();
    let root = if version.contains('/') { "apis" } else { "api" };
    format!("/{root}/{version}/{}", kind.plural())
}

/// An error with its causes.
pub(super) fn text(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} ({} {})", status.message, status.code, status.reason);
    }
    describe(error)
}

/// The API server has not answered in time.
pub(super) fn no_answer() -> kube::Error {
    let cause = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", REQUEST.as_secs()));
    kube::Error::Service(Box::new(cause))
}

/// A number below `below`. Only so that not everybody does the same at the same moment.
fn jitter(below: u32) -> u32 {
    let drawn = uuid::Uuid::new_v4().as_u128();
    u32::try_from(drawn % u128::from(below.max(1))).unwrap_or_default()
}

/// Pauses that grow.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
}

impl Pause {
    fn reset(&mut self) {
        self.failures = 0;
    }

    /// True now and then while nothing works.
    fn is_long(&self) -> bool {
        self.failures % 16 == 4
    }

    fn next(&mut self) -> Duration {
        let full = LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.pow(self.failures.min(10)));
        self.failures += 1;
        full / 2 + full * jitter(1_000) / 2_000
    }

    async fn wait(&mut self) {
        let pause = self.next();
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
