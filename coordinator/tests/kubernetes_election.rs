//! Who leads, on a real API server: one at a time, and never twice under one counter, whatever is done to the Lease.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use phalanx_devcluster::{Options, Servers};
use phalanx_kubernetes::election::{
    Candidate, ElectionError, LEASE_NAME, Leadership, LeaseTimes, TERM_ANNOTATION,
};
use serde_json::json;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(60);

fn times() -> LeaseTimes {
    LeaseTimes {
        lease_duration: Duration::from_secs(2),
        renew_deadline: Duration::from_millis(1400),
        retry_period: Duration::from_millis(300),
    }
}

/// A namespace with its candidates. All the time at most one of them leads, and no counter is had twice.
struct Election {
    client: Client,
    namespace: String,
    leaders: Arc<Mutex<Vec<Leadership>>>,
    counters: Arc<Mutex<BTreeSet<u64>>>,
    watched: Arc<AtomicBool>,
    watcher: JoinHandle<()>,
}

static INCARNATIONS: AtomicU64 = AtomicU64::new(1);

impl Election {
    async fn of(servers: &Servers, prefix: &str) -> Self {
        let namespace = servers.namespace(prefix).await.unwrap();
        let leaders: Arc<Mutex<Vec<Leadership>>> = Arc::default();
        let watched = Arc::new(AtomicBool::new(true));
        let watcher = tokio::spawn({
            let (leaders, watched) = (Arc::clone(&leaders), Arc::clone(&watched));
            async move {
                while watched.load(Ordering::Acquire) {
                    let leading = leaders.lock().unwrap().iter().filter(|one| one.leads()).count();
                    assert!(leading <= 1, "{leading} lead at once");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
        let client = servers.admin_client().await.unwrap();
        Self { client, namespace, leaders, counters: Arc::default(), watched, watcher }
    }

    async fn new(prefix: &str) -> Self {
        Self::of(Servers::shared().await.unwrap(), prefix).await
    }

    fn candidate(&self, identity: &str) -> Leadership {
        let candidate = Candidate {
            namespace: self.namespace.clone(),
            identity: identity.to_owned(),
            incarnation: INCARNATIONS.fetch_add(1, Ordering::Relaxed),
            admin: Some("10.0.0.7:7411".to_owned()),
            times: times(),
        };
        let leadership = Leadership::new(self.client.clone(), candidate);
        self.leaders.lock().unwrap().push(leadership.clone());
        leadership
    }

    /// Waits until this one leads, and keeps the Lease from then on.
    async fn lead(&self, leadership: &Leadership) -> (u64, JoinHandle<ElectionError>) {
        let counter = tokio::time::timeout(PATIENCE, leadership.acquire()).await.unwrap();
        assert!(self.counters.lock().unwrap().insert(counter), "{counter} was had before");
        let keeper = leadership.clone();
        (counter, tokio::spawn(async move { keeper.keep().await }))
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn lease(&self) -> Lease {
        self.leases().get(LEASE_NAME).await.unwrap()
    }

    async fn annotate(&self, term: &str) {
        let patch = json!({"metadata": {"annotations": {TERM_ANNOTATION: term}}});
        self.leases().patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn end(self) {
        self.watched.store(false, Ordering::Release);
        self.watcher.await.unwrap();
    }
}

fn term(lease: &Lease) -> u64 {
    lease.metadata.annotations.as_ref().unwrap()[TERM_ANNOTATION].parse().unwrap()
}

fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().unwrap().lease_transitions.unwrap()
}

async fn lost(keeper: JoinHandle<ElectionError>) -> String {
    let error = tokio::time::timeout(PATIENCE, keeper).await.unwrap().unwrap();
    assert!(matches!(error, ElectionError::Lost(_)), "{error:?}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_one_leads_as_soon_as_the_lease_is_given_back() {
    let election = Election::new("election-release").await;
    let (one, two) = (election.candidate("one"), election.candidate("two"));
    let (first, keeper) = election.lead(&one).await;
    let lease = election.lease().await;
    assert_eq!((first, term(&lease), transitions(&lease)), (1, 1, 0));
    let spec = lease.spec.unwrap();
    assert!(spec.holder_identity.unwrap().starts_with("one_"));
    assert_eq!(spec.lease_duration_seconds, Some(2));
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.acquire().await }
    });
    // Longer than the lease: it is renewed all the time.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(one.leads() && !waiting.is_finished());
    let unrenewed = two.unrenewed().await;
    assert!(!unrenewed.is_zero() && unrenewed < times().lease_duration, "{unrenewed:?}");
    assert_eq!(one.unrenewed().await, Duration::ZERO, "it leads");
    let seen = two.holder().borrow().clone().unwrap();
    assert_eq!((seen.admin.as_deref(), seen.term), (Some("10.0.0.7:7411"), 1));

    keeper.abort();
    let began = Instant::now();
    one.release().await.unwrap();
    assert!(!one.leads() && !*one.leading().borrow());
    let second = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    let taken = began.elapsed();
    assert!(two.leads());
    let lease = election.lease().await;
    assert_eq!((second, term(&lease), transitions(&lease)), (2, 2, 1));
    // The lease need not end before.
    assert!(taken < times().lease_duration, "{taken:?}");
    // Two acquires in a row, also of one candidate, are two terms.
    two.release().await.unwrap();
    assert_eq!(two.acquire().await, 3);
    election.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_deleted_while_it_is_held_comes_back_with_its_counter() {
    let election = Election::new("election-deleted").await;
    let (one, two) = (election.candidate("one"), election.candidate("two"));
    let (_, keeper) = election.lead(&one).await;
    assert_eq!(one.raise(40).await.unwrap(), 41);
    // One that stands by, and one that has just begun: neither takes what the holder is about to make again.
    let acquiring = |candidate: &Leadership| {
        let candidate = candidate.clone();
        tokio::spawn(async move { candidate.acquire().await })
    };
    let waiting = acquiring(&two);
    tokio::time::sleep(times().retry_period).await;
    for round in 0..5 {
        election.leases().delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
        let newcomer = election.candidate("newcomer");
        let starting = acquiring(&newcomer);
        let began = Instant::now();
        while election.leases().get_opt(LEASE_NAME).await.unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "it never came back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let lease = election.lease().await;
        assert!(
            lease.spec.as_ref().unwrap().holder_identity.as_ref().unwrap().starts_with("one_"),
            "{round}"
        );
        assert_eq!(term(&lease), 41);
        starting.abort();
        assert!(one.leads() && !waiting.is_finished());
    }
    assert_eq!(one.raise(0).await.unwrap(), 42);
    // Gone together with its holder: the counter that the next one has seen does not come back.
    tokio::time::sleep(times().retry_period).await;
    keeper.abort();
    election.leases().delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap(), 43);
    election.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_lease_in_its_place_ends_its_holder_and_the_counter_goes_on() {
    let election = Election::new("election-restored").await;
    let (one, two) = (election.candidate("one"), election.candidate("two"));
    let (first, keeper) = election.lead(&one).await;
    let old = election.lease().await;
    keeper.abort();
    one.release().await.unwrap();
    let (second, keeper) = election.lead(&two).await;
    assert_eq!(two.raise(7).await.unwrap(), 8);
    election.counters.lock().unwrap().insert(8);
    // As `kubectl replace --force` of a backup: the former holder's name, and the counter of then.
    let mut restored = old.clone();
    restored.metadata.uid = None;
    restored.metadata.resource_version = None;
    election.leases().delete(LEASE_NAME, &DeleteParams::default()).await.unwrap();
    let restored = election.leases().create(&PostParams::default(), &restored).await;
    let why = match restored {
        Ok(_) => lost(keeper).await,
        // Its holder was faster than the backup.
        Err(_) => {
            assert!(two.leads());
            return election.end().await;
        }
    };
    assert!(why.contains("held by \"one_"), "{why}");
    assert!(!two.leads());
    assert!(matches!(two.raise(0).await, Err(ElectionError::Lost(_))));
    // Whoever saw the higher counter goes above it, and one that did not is told by the agents.
    let three = election.candidate("three");
    let (fresh, keeper) = {
        let counter = tokio::time::timeout(PATIENCE, three.acquire()).await.unwrap();
        let keeper = three.clone();
        (counter, tokio::spawn(async move { keeper.keep().await }))
    };
    assert_eq!((first, second, fresh), (1, 2, 2));
    assert_eq!(three.raise(8).await.unwrap(), 9);
    keeper.abort();
    three.release().await.unwrap();
    let (last, _keeper) = election.lead(&two).await;
    assert_eq!(last, 10);
    election.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_was_set_back_under_its_holder_is_written_again() {
    let election = Election::new("election-annotated").await;
    let one = election.candidate("one");
    let (_, keeper) = election.lead(&one).await;
    assert_eq!(one.raise(20).await.unwrap(), 21);
    for wrong in ["3", "none", "-1"] {
        election.annotate(wrong).await;
        let began = Instant::now();
        while term_text(&election.lease().await) != "21" {
            assert!(began.elapsed() < PATIENCE, "never written again after {wrong}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(one.leads());
    }
    // What others keep there stays.
    let patch = json!({"metadata": {"labels": {"team": "a"}}});
    election.leases().patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_eq!(one.raise(0).await.unwrap(), 22);
    assert_eq!(election.lease().await.metadata.labels.unwrap()["team"], "a");
    keeper.abort();
    // One that cannot be raised is named, and nobody leads under it.
    one.release().await.unwrap();
    election.annotate(&u64::MAX.to_string()).await;
    let two = election.candidate("two");
    assert!(tokio::time::timeout(Duration::from_secs(2), two.acquire()).await.is_err());
    assert!(!two.leads());
    election.end().await;
}

fn term_text(lease: &Lease) -> String {
    lease.metadata.annotations.as_ref().unwrap()[TERM_ANNOTATION].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_under_the_same_name_is_another_holder_and_another_term() {
    let election = Election::new("election-restart").await;
    let before = election.candidate("same");
    let (first, keeper) = election.lead(&before).await;
    // Killed: nothing is given back.
    keeper.abort();
    let after = election.candidate("same");
    let began = Instant::now();
    let (second, _keeper) = election.lead(&after).await;
    assert_eq!((first, second), (1, 2));
    assert!(began.elapsed() >= times().lease_duration, "{:?}", began.elapsed());
    assert!(!before.leads());
    assert!(matches!(before.raise(0).await, Err(ElectionError::Lost(_))));
    // One that wakes up gives nothing back that is another's.
    before.release().await.unwrap();
    assert!(after.leads());
    assert_eq!(term(&election.lease().await), 2);
    election.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_of_others_do_not_matter() {
    let election = Election::new("election-clocks").await;
    let stamp = |hours: i64| MicroTime(Timestamp::now() + SignedDuration::from_hours(hours));
    let held = |renewed: MicroTime, acquired: MicroTime| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE_NAME},
            "spec": {
                "holderIdentity": "elsewhere", "leaseDurationSeconds": 2,
                "renewTime": renewed, "acquireTime": acquired,
            },
        })
    };
    let apply = PatchParams::apply("elsewhere").force();
    let write = |lease: serde_json::Value| {
        let (leases, apply) = (election.leases(), apply.clone());
        async move { leases.patch(LEASE_NAME, &apply, &Patch::Apply(lease)).await.unwrap() }
    };
    // Its clock is hours behind, and it renews: it leads.
    write(held(stamp(-9), stamp(-9))).await;
    let one = election.candidate("one");
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.acquire().await }
    });
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        write(held(stamp(-9), stamp(-9))).await;
        assert!(!waiting.is_finished());
    }
    // Its clock is hours ahead, and it renews no more: it is gone.
    write(held(stamp(9), stamp(9))).await;
    let counter = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert_eq!(counter, 1);
    election.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_renew_leads_no_more_before_the_next_one_does() {
    let servers = Servers::start(Options::default()).await.unwrap();
    let election = Election::of(&servers, "election-frozen").await;
    let (one, two) = (election.candidate("one"), election.candidate("two"));
    let (_, keeper) = election.lead(&one).await;
    // The next one stands by, and looks.
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.acquire().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    servers.freeze_api_server(true);
    let began = Instant::now();
    let why = lost(keeper).await;
    let waited = began.elapsed();
    servers.freeze_api_server(false);
    assert!(why.contains("was not renewed for 1.4 s"), "{why}");
    assert!(waited <= times().lease_duration, "{waited:?}");
    assert!(!one.leads());
    assert_eq!(tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap(), 2);
    election.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_did_not_run_knows_that_it_leads_no_more() {
    let election = Election::new("election-stopped").await;
    let one = election.candidate("one");
    one.acquire().await;
    assert!(one.leads());
    // Nobody renews, and nobody says so: as after SIGSTOP and SIGCONT.
    tokio::time::sleep(times().renew_deadline).await;
    assert!(!one.leads() && *one.leading().borrow());
    assert!(matches!(one.keep().await, ElectionError::Lost(_)));
    assert!(!*one.leading().borrow());
    election.end().await;
}
