//! The Lease itself: what is read from it, what is written into it, and how the API server is asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::sync::{Mutex, watch};

use super::{ADMIN_ANNOTATION, Candidate, ElectionError, Holder, LEASE_NAME, TERM_ANNOTATION};

/// A write that meets another write is tried so often at once.
pub(super) const ATTEMPTS: u32 = 4;
/// A duration that another holder wrote and that is longer than this is not believed.
const LONGEST_DURATION: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) leases: Api<Lease>,
    pub(super) candidate: Candidate,
    pub(super) base: Instant,
    /// Milliseconds after `base` until which we lead; 0 where we do not.
    pub(super) leads_until_ms: AtomicU64,
    pub(super) leading: watch::Sender<bool>,
    pub(super) holder: watch::Sender<Option<Holder>>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The Lease as we wrote it last, while it is ours.
    pub(super) held: Option<Lease>,
    /// Highest counter ever seen: a Lease that was deleted or set back does not make it smaller.
    pub(super) highest: u64,
    pub(super) seen: Option<Seen>,
    /// Since when there is no Lease.
    pub(super) missing: Option<Instant>,
}

/// What another's Lease said, and when it was first seen to say so.
#[derive(Debug)]
pub(super) struct Seen {
    uid: Option<String>,
    spec: LeaseSpec,
    at: Instant,
}

impl Seen {
    /// How long its Lease has said the same.
    pub(super) fn unchanged(&self) -> Duration {
        self.at.elapsed()
    }

    /// True where its holder must have given up by now.
    fn is_over(&self, own: Duration) -> bool {
        let told = self.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let told = told.map(Duration::from_secs).filter(|told| *told <= LONGEST_DURATION);
        self.at.elapsed() > told.unwrap_or(own).max(own)
    }
}

impl Shared {
    /// True where the Lease may be taken. Remembers since when it has said what it says.
    pub(super) fn is_free(&self, state: &mut State, lease: &Lease) -> bool {
        state.highest = state.highest.max(counter_of(lease));
        state.missing = None;
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        // Our own: an answer that did not come in time was a yes.
        if holder == self.candidate.holder() {
            return true;
        }
        let uid = lease.metadata.uid.clone();
        match &state.seen {
            Some(seen) if seen.uid == uid && seen.spec == spec => {
                seen.is_over(self.candidate.times.lease_duration)
            }
            // Given back. Another object in the place of one that is held says nothing of that one's holder.
            seen if holder.is_empty() && seen.as_ref().is_none_or(|seen| seen.uid == uid) => true,
            _ => {
                state.seen = Some(Seen { uid, spec, at: Instant::now() });
                false
            }
        }
    }

    /// True where there is no Lease and nobody can hold it: a holder whose Lease was deleted makes it anew when it
    /// renews, and leads no more when it could not for its renew deadline. Who has seen no Lease yet cannot know that nobody
    /// held one a moment ago.
    pub(super) fn is_free_without(&self, state: &mut State) -> bool {
        let missing = state.missing.get_or_insert_with(Instant::now).elapsed();
        let times = &self.candidate.times;
        match &state.seen {
            Some(seen) => seen.is_over(times.lease_duration) && missing > times.retry_period,
            None => missing > times.renew_deadline,
        }
    }

    /// Writes our Lease with this counter. Who wrote in between is looked at: people may annotate it, delete it or put an
    /// old one in its place, and it is ours as long as nobody else is its holder.
    pub(super) async fn write_held(&self, state: &mut State, counter: u64) -> Result<(), ElectionError> {
        let Some(held) = state.held.clone() else {
            return Err(ElectionError::Lost("the Lease is not ours".to_owned()));
        };
        let counter = counter.max(counter_of(&held));
        let mut base = Some(held.clone());
        for _ in 0..ATTEMPTS {
            let sent = Instant::now();
            let written = match &base {
                Some(lease) => self.replace(&self.wanted(Some(lease), counter, false)).await,
                None => self.create(&self.recreated(&held, counter)).await,
            };
            match written {
                Ok(lease) => {
                    self.holds(state, lease, counter, sent);
                    return Ok(());
                }
                Err(CallError::Overtaken(_) | CallError::Missing) => {
                    base = self.get().await.map_err(|error| self.told(error))?;
                }
                Err(error) => return Err(self.told(error)),
            }
            let other = base.as_ref().map(|lease| holder_name(lease).to_owned());
            if let Some(other) = other.filter(|other| *other != self.candidate.holder()) {
                state.held = None;
                self.give_up();
                return Err(ElectionError::Lost(match other.as_str() {
                    "" => "the Lease was given back by somebody else".to_owned(),
                    other => format!("the Lease is held by {other:?}"),
                }));
            }
        }
        Err(self.unreachable("it is written all the time by others"))
    }

    pub(super) fn holds(&self, state: &mut State, lease: Lease, counter: u64, sent: Instant) {
        // Counted from the sending: others may have seen the change at any time since.
        let until = (sent + self.candidate.times.renew_deadline).duration_since(self.base);
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        state.highest = state.highest.max(counter);
        self.holder.send_replace(holder_of(&lease));
        state.held = Some(lease);
        self.leads_until_ms.store(until_ms, Ordering::Release);
        self.leading.send_replace(true);
    }

    pub(super) fn give_up(&self) {
        self.leads_until_ms.store(0, Ordering::Release);
        self.leading.send_replace(false);
    }

    pub(super) fn above(&self, counter: u64) -> Result<u64, ElectionError> {
        let namespace = self.candidate.namespace.clone();
        counter.checked_add(1).ok_or(ElectionError::Exhausted { namespace, counter })
    }

    /// The Lease as it is to be. What others keep there stays.
    pub(super) fn wanted(&self, stored: Option<&Lease>, counter: u64, acquired: bool) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = stored.cloned().unwrap_or_default();
        lease.metadata.name = Some(LEASE_NAME.to_owned());
        lease.metadata.managed_fields = None;
        self.annotate(&mut lease.metadata, counter);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.candidate.holder());
        spec.lease_duration_seconds = self.candidate.times.whole_seconds();
        if acquired {
            let transitions = spec.lease_transitions.unwrap_or(0).max(0);
            spec.lease_transitions = Some(if stored.is_some() { transitions.saturating_add(1) } else { 0 });
            spec.acquire_time = Some(now.clone());
        }
        spec.renew_time = Some(now);
        lease
    }

    /// Our Lease once more, after it was deleted.
    fn recreated(&self, held: &Lease, counter: u64) -> Lease {
        let mut lease = Lease { metadata: ObjectMeta::default(), spec: held.spec.clone() };
        lease.metadata.labels.clone_from(&held.metadata.labels);
        self.wanted(Some(&lease), counter, false)
    }

    fn annotate(&self, metadata: &mut ObjectMeta, counter: u64) {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(TERM_ANNOTATION.to_owned(), counter.to_string());
        match &self.candidate.admin {
            Some(admin) => annotations.insert(ADMIN_ANNOTATION.to_owned(), admin.clone()),
            None => annotations.remove(ADMIN_ANNOTATION),
        };
    }

    pub(super) async fn get(&self) -> Result<Option<Lease>, CallError> {
        self.call(self.leases.get_opt(LEASE_NAME)).await
    }

    pub(super) async fn replace(&self, lease: &Lease) -> Result<Lease, CallError> {
        self.call(self.leases.replace(LEASE_NAME, &PostParams::default(), lease)).await
    }

    pub(super) async fn create(&self, lease: &Lease) -> Result<Lease, CallError> {
        self.call(self.leases.create(&PostParams::default(), lease)).await
    }

    async fn call<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
        match tokio::time::timeout(self.candidate.times.answer_timeout(), call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(match status.code {
                404 if status.message.contains("namespaces") => CallError::Refused(status.message.clone()),
                404 => CallError::Missing,
                409 => CallError::Overtaken(status.message.clone()),
                400..=428 => CallError::Refused(status.message.clone()),
                _ => CallError::Unreachable(status.message.clone()),
            }),
            Ok(Err(error)) => Err(CallError::Unreachable(error.to_string())),
            Err(_) => Err(CallError::Unreachable("no answer in time".to_owned())),
        }
    }

    pub(super) fn told(&self, error: CallError) -> ElectionError {
        let namespace = self.candidate.namespace.clone();
        match error {
            CallError::Refused(message) => ElectionError::Refused { namespace, message },
            CallError::Overtaken(message) | CallError::Unreachable(message) => {
                ElectionError::Unreachable { namespace, message }
            }
            CallError::Missing => self.unreachable("it was deleted meanwhile"),
        }
    }

    pub(super) fn unreachable(&self, message: &str) -> ElectionError {
        let namespace = self.candidate.namespace.clone();
        ElectionError::Unreachable { namespace, message: message.to_owned() }
    }
}

/// What came of a call.
#[derive(Debug)]
pub(super) enum CallError {
    Overtaken(String),
    Missing,
    Refused(String),
    Unreachable(String),
}

/// The Lease without a holder.
pub(super) fn released(lease: &Lease) -> Lease {
    let mut lease = lease.clone();
    lease.metadata.managed_fields = None;
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
        // As others do it: whoever reads this waits no longer than a second.
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
    lease
}

pub(super) fn holder_name(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn annotation<'l>(lease: &'l Lease, name: &str) -> Option<&'l str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The stored counter. What is no number counts as none: agents tell the highest they know.
pub(super) fn counter_of(lease: &Lease) -> u64 {
    annotation(lease, TERM_ANNOTATION).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

pub(super) fn holder_of(lease: &Lease) -> Option<Holder> {
    let name = holder_name(lease).to_owned();
    let admin = annotation(lease, ADMIN_ANNOTATION).map(str::to_owned);
    (!name.is_empty()).then(|| Holder { name, admin, term: counter_of(lease) })
}
