//! The watches against a server of the process itself, which does what a test says.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use futures::stream;
use http::{Request as HttpRequest, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};

use super::super::mirror::Heard;
use super::*;

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What a watch does when its events are told.
#[derive(Clone, Copy, Debug)]
enum Then {
    Hold,
    Close,
    Break,
}

/// What the server does with watches of one kind.
type Script = Vec<(Vec<Value>, Then)>;

#[derive(Default)]
struct State {
    /// Lists, by kind: pages of objects. A kind without one is not served.
    lists: BTreeMap<Kind, Vec<Vec<Value>>>,
    /// Watches, by kind, first to last; after them one that closes at once, or holds for ever.
    watches: BTreeMap<Kind, Script>,
    closes: bool,
    /// Paths and queries asked for.
    asked: Vec<(Kind, String)>,
    version: u64,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

impl Server {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Serves every kind, without objects.
    fn new() -> Self {
        let server = Self::default();
        server.state().lists = Kind::ALL.map(|kind| (kind, vec![vec![]])).into();
        server.state().version = 100;
        server
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let answer = server.answer(request.uri());
            async move { Ok::<_, Infallible>(answer) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, uri: &http::Uri) -> Answer {
        let kind = Kind::ALL.into_iter().find(|kind| path(*kind) == uri.path()).unwrap();
        let query = uri.query().unwrap_or_default().to_owned();
        let mut state = self.state();
        state.asked.push((kind, query.clone()));
        if query.contains("watch=true") {
            let hold = if state.closes { Then::Close } else { Then::Hold };
            let script = state.watches.entry(kind).or_default();
            let (events, then) = if script.is_empty() { (vec![], hold) } else { script.remove(0) };
            return watch_answer(events, then);
        }
        let Some(pages) = state.lists.get(&kind) else {
            return answer(404, "404 page not found\n".to_owned());
        };
        let at: usize =
            query.split('&').find_map(|part| part.strip_prefix("continue=")?.parse().ok()).unwrap_or(0);
        let mut metadata = json!({ "resourceVersion": state.version.to_string() });
        if at + 1 < pages.len() {
            metadata["continue"] = json!((at + 1).to_string());
        }
        answer(200, json!({ "metadata": metadata, "items": pages[at] }).to_string())
    }

    fn start(&self) -> (Arc<Mirror>, Watches) {
        let trim = Trim::new(&["phalanx".to_owned()]);
        let mirror = Arc::new(Mirror::new(1_000, trim.clone()));
        let watches = Watches::start(&self.client(), &mirror, &trim);
        (mirror, watches)
    }

    fn asked(&self, kind: Kind, what: &str) -> Vec<String> {
        let state = self.state();
        let asked = state.asked.iter().filter(|(one, query)| *one == kind && query.contains(what));
        asked.map(|(_, query)| query.clone()).collect()
    }
}

fn answer(code: u16, text: String) -> Answer {
    let frame = Ok(Frame::data(Bytes::from(text)));
    let body = StreamBody::new(stream::iter([frame]));
    Response::builder().status(code).body(body.boxed_unsync()).unwrap()
}

fn watch_answer(events: Vec<Value>, then: Then) -> Answer {
    let lines = events.into_iter().map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
    let mut frames: Vec<io::Result<Frame<Bytes>>> = lines.collect();
    if matches!(then, Then::Break) {
        frames.push(Err(io::ErrorKind::ConnectionReset.into()));
    }
    let hold = stream::iter(matches!(then, Then::Hold).then_some(())).then(|()| std::future::pending());
    Response::new(StreamBody::new(stream::iter(frames).chain(hold)).boxed_unsync())
}

fn group(name: &str, version: u64) -> Value {
    json!({
        "metadata": {
            "namespace": "space", "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
        },
        "spec": { "minMember": 1 },
    })
}

fn event(kind: &str, object: Value) -> Value {
    json!({ "type": kind, "object": object })
}

fn gone() -> Value {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410 });
    event("ERROR", status)
}

/// Names and versions of the PodGroups.
fn groups(mirror: &Mirror) -> Vec<(String, u64)> {
    let (groups, _) = mirror.list(Some(Kind::PodGroup)).unwrap();
    groups.iter().map(|group| (group.metadata.name.clone(), group.metadata.resource_version)).collect()
}

fn named(groups: &[(&str, u64)]) -> Vec<(String, u64)> {
    groups.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_list_of_many_pages_is_read_to_its_end_before_the_watch_begins_behind_its_version() {
    let server = Server::new();
    server
        .state()
        .lists
        .insert(Kind::PodGroup, vec![vec![group("a", 1)], vec![group("b", 2)], vec![group("c", 3)]]);
    server
        .state()
        .watches
        .insert(Kind::PodGroup, vec![(vec![event("DELETED", group("b", 101))], Then::Hold)]);
    let (mirror, _watches) = server.start();
    mirror.ready(None).await.unwrap();
    until("b is gone", || groups(&mirror) == named(&[("a", 1), ("c", 3)])).await;
    assert_eq!(server.asked(Kind::PodGroup, "limit=500").len(), 3);
    let watched = server.asked(Kind::PodGroup, "watch=true");
    assert!(watched.len() == 1 && watched[0].contains("resourceVersion=100"), "{watched:?}");
    assert!(watched[0].contains("allowWatchBookmarks=true"), "{watched:?}");
}

#[tokio::test]
async fn a_watch_that_breaks_goes_on_where_it_was() {
    let server = Server::new();
    let bookmark =
        json!({ "kind": "PodGroup", "apiVersion": "x/v1", "metadata": { "resourceVersion": "120" } });
    server.state().watches.insert(
        Kind::PodGroup,
        vec![
            (vec![event("ADDED", group("a", 101))], Then::Break),
            (vec![event("BOOKMARK", bookmark)], Then::Close),
            (vec![event("ADDED", group("b", 121))], Then::Hold),
        ],
    );
    let (mirror, watches) = server.start();
    until("both are there", || groups(&mirror) == named(&[("a", 101), ("b", 121)])).await;
    let watched = server.asked(Kind::PodGroup, "watch=true");
    for (asked, version) in watched.iter().zip(["100", "101", "120"]) {
        assert!(asked.ends_with(&format!("resourceVersion={version}")), "{watched:?}");
    }
    assert_eq!(watches.counts(Kind::PodGroup).unwrap().lists.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_version_that_is_too_old_lists_again_and_tells_the_difference() {
    let server = Server::new();
    server.state().lists.insert(Kind::PodGroup, vec![vec![group("a", 1), group("b", 2)]]);
    let (first, second) = ((vec![gone()], Then::Close), (vec![event("ADDED", group("d", 201))], Then::Hold));
    server.state().watches.insert(Kind::PodGroup, vec![first, second]);
    let server_then = server.clone();
    let (mirror, watches) = server.start();
    mirror.ready(None).await.unwrap();
    // While nobody listened: b is gone and c is new.
    server_then.state().lists.insert(Kind::PodGroup, vec![vec![group("a", 1), group("c", 150)]]);
    until("all is as it is", || groups(&mirror) == named(&[("a", 1), ("c", 150), ("d", 201)])).await;
    assert_eq!(watches.counts(Kind::PodGroup).unwrap().lists.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_server_whose_versions_go_back_is_listed_again() {
    let server = Server::new();
    server.state().lists.insert(Kind::PodGroup, vec![vec![group("a", 90), group("b", 99)]]);
    let restored = vec![event("MODIFIED", group("a", 41))];
    server.state().watches.insert(Kind::PodGroup, vec![(restored, Then::Hold)]);
    let (mirror, _watches) = server.start();
    mirror.ready(None).await.unwrap();
    server.state().lists.insert(Kind::PodGroup, vec![vec![group("a", 41)]]);
    until("it is as restored", || groups(&mirror) == named(&[("a", 41)])).await;
}

#[tokio::test]
async fn a_malformed_object_is_left_out_and_told_once_and_all_others_go_on() {
    let bad = |version: u64| {
        let mut bad = group("bad", version);
        bad["metadata"]["uid"] = json!(null);
        bad
    };
    let server = Server::new();
    server.state().lists.insert(Kind::PodGroup, vec![vec![group("a", 1), bad(100), group("c", 3)]]);
    let events = vec![
        event("MODIFIED", bad(100)),
        event("ADDED", group("d", 101)),
        event("MODIFIED", bad(102)),
        event("MODIFIED", json!({ "metadata": { "resourceVersion": "103" } })),
        event("DELETED", json!({ "metadata": { "resourceVersion": "104" } })),
        event("MODIFIED", group("a", 105)),
    ];
    server.state().watches.insert(Kind::PodGroup, vec![(events, Then::Hold)]);
    let (mirror, watches) = server.start();
    until("the others are there", || groups(&mirror) == named(&[("a", 105), ("c", 3), ("d", 101)])).await;
    let counts = watches.counts(Kind::PodGroup).unwrap();
    assert_eq!(counts.malformed.load(Ordering::Relaxed), 3, "two versions of bad, and one without a name");
    assert_eq!(counts.lists.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_object_that_becomes_malformed_stays_as_it_was_last_read() {
    let mut bad = group("a", 101);
    bad["metadata"]["creationTimestamp"] = json!("yesterday");
    let server = Server::new();
    server.state().lists.insert(Kind::PodGroup, vec![vec![group("a", 1), group("b", 2)]]);
    server
        .state()
        .watches
        .insert(Kind::PodGroup, vec![(vec![event("MODIFIED", bad.clone()), gone()], Then::Close)]);
    let (mirror, watches) = server.start();
    mirror.ready(None).await.unwrap();
    server.state().lists.insert(Kind::PodGroup, vec![vec![bad]]);
    until("it was listed again", || groups(&mirror) == named(&[("a", 1)])).await;
    assert_eq!(watches.counts(Kind::PodGroup).unwrap().malformed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_asked_for_again_and_the_others_go_on() {
    let server = Server::new();
    server.state().lists.remove(&Kind::Job);
    let (mirror, _watches) = server.start();
    mirror.ready(None).await.unwrap();
    assert_eq!(mirror.heard(Kind::Job), Heard::NotServed);
    assert!(server.asked(Kind::Job, "").len() < 3, "{:?}", server.asked(Kind::Job, ""));
    server.state().lists.insert(Kind::Job, vec![vec![]]);
    until("it is listed", || mirror.heard(Kind::Job) == Heard::Listed).await;
}

#[tokio::test]
async fn a_server_that_ends_every_watch_at_once_is_not_asked_without_a_pause() {
    let server = Server::new();
    server.state().closes = true;
    let (mirror, _watches) = server.start();
    mirror.ready(None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = server.asked(Kind::Pod, "watch=true").len();
    assert!((2..=8).contains(&asked), "{asked}");
    // One that says that every version is too old neither.
    let server = Server::new();
    server.state().watches.insert(Kind::Pod, (0..100).map(|_| (vec![gone()], Then::Close)).collect());
    let (mirror, _watches) = server.start();
    mirror.ready(None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = server.asked(Kind::Pod, "limit=500").len();
    assert!((2..=8).contains(&asked), "{asked}");
}

#[test]
fn pauses_grow_and_end_growing() {
    let mut pause = Pause::default();
    let pauses: Vec<u128> = (0..40).map(|_| pause.next().as_millis()).collect();
    assert!((25..=50).contains(&pauses[0]) && (50..=100).contains(&pauses[1]), "{pauses:?}");
    assert!(pauses[20..].iter().all(|pause| (2_500..=5_000).contains(pause)), "{pauses:?}");
    pause.reset();
    assert!(pause.next() <= FIRST_PAUSE);
}

#[test]
fn paths_are_those_of_an_api_server() {
    assert_eq!(path(Kind::Pod), "/api/v1/pods");
    assert_eq!(path(Kind::PodGroup), "/apis/scheduling.volcano.sh/v1beta1/podgroups");
    assert_eq!(path(Kind::PodDisruptionBudget), "/apis/policy/v1/poddisruptionbudgets");
    assert_eq!(path(Kind::PersistentVolumeClaim), "/api/v1/persistentvolumeclaims");
    assert_eq!(path(Kind::PersistentVolume), "/api/v1/persistentvolumes");
    assert_eq!(path(Kind::StorageClass), "/apis/storage.k8s.io/v1/storageclasses");
}
