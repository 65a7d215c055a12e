//! Who leads: a Lease that is taken and kept by compare-and-swap.
//!
//! Wall clocks are never compared: a holder counts as gone when nothing of its Lease was SEEN to change for the lease's
//! duration, by our own monotonic clock. Each acquire raises a counter of our own in an annotation, also when the
//! holder's name is our own: it is the term by which agents tell leaders apart. `leaseTransitions` says the same to
//! people, and decides nothing: it is 0 again when the Lease was deleted, and stays when a holder comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::{Mutex, watch};

/// Name of the Lease.
pub const LEASE_NAME: &str = "phalanx-coordinator";
/// Annotation of the Lease with the counter of the term.
pub const TERM_ANNOTATION: &str = "phalanx.dev/term";
/// Annotation of the Lease with the address of the leader's admin interface, for people.
pub const ADMIN_ANNOTATION: &str = "phalanx.dev/admin";

/// A write that meets another write is tried so often at once.
const ATTEMPTS: u32 = 4;
/// A duration that another holder wrote and that is longer than this is not believed.
const LONGEST_DURATION: Duration = Duration::from_secs(600);

/// The three times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Others take the Lease when they saw no change for so long. At least a second, whole seconds.
    pub lease_duration: Duration,
    /// Who has not renewed for so long leads no more.
    pub renew_deadline: Duration,
    /// Time between two renewals.
    pub retry_period: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) }
    }
}

impl LeaseTimes {
    /// How often others look: what passes between a change and the look at it is added to each take-over.
    fn look_period(&self) -> Duration {
        self.retry_period / 5
    }

    /// What the Lease says: never less than the duration is.
    fn whole_seconds(&self) -> Option<i32> {
        i32::try_from(self.lease_duration.as_millis().div_ceil(1000)).ok()
    }

    /// Longest wait for one answer.
    fn answer_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// One that wants to lead.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the pod, or whatever tells people who it is.
    pub identity: String,
    /// Number that no other process has: two of one name are two holders.
    pub incarnation: u64,
    /// Where its admin interface answers.
    pub admin: Option<String>,
    /// The times.
    pub times: LeaseTimes,
}

impl Candidate {
    /// `holderIdentity` of the Lease.
    #[must_use]
    pub fn holder(&self) -> String {
        format!("{}_{:016x}", self.identity, self.incarnation)
    }
}

/// Who holds the Lease, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `holderIdentity`.
    pub name: String,
    /// Where its admin interface answers.
    pub admin: Option<String>,
    /// Counter of its term.
    pub term: u64,
}

/// Why the Lease is not had, or not any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ElectionError {
    /// Another holds it, or it was not renewed in time: nothing more may be written.
    #[error("{0}")]
    Lost(String),
    /// The API server refuses the call.
    #[error(
        "Lease {namespace}/{LEASE_NAME}: {message}; the ServiceAccount needs get, create and update on leases of \
         coordination.k8s.io in that namespace (deploy/rbac.yaml)"
    )]
    Refused {
        /// Namespace of the Lease.
        namespace: String,
        /// The server's text.
        message: String,
    },
    /// No answer, or one that says nothing.
    #[error("Lease {namespace}/{LEASE_NAME}: {message}")]
    Unreachable {
        /// Namespace of the Lease.
        namespace: String,
        /// What happened.
        message: String,
    },
    /// The counter cannot be raised any more.
    #[error(
        "Lease {namespace}/{LEASE_NAME}: annotation {TERM_ANNOTATION} is {counter} and cannot be raised; remove the \
         annotation: agents tell the counter they know"
    )]
    Exhausted {
        /// Namespace of the Lease.
        namespace: String,
        /// The counter.
        counter: u64,
    },
}

/// A candidate and what it knows of the Lease. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    leases: Api<Lease>,
    candidate: Candidate,
    base: Instant,
    /// Milliseconds after `base` until which we lead; 0 where we do not.
    leads_until_ms: AtomicU64,
    leading: watch::Sender<bool>,
    holder: watch::Sender<Option<Holder>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The Lease as we wrote it last, while it is ours.
    held: Option<Lease>,
    /// Highest counter ever seen: a Lease that was deleted or set back does not make it smaller.
    highest: u64,
    seen: Option<Seen>,
    /// Since when there is no Lease.
    missing: Option<Instant>,
}

/// What another's Lease said, and when it was first seen to say so.
#[derive(Debug)]
struct Seen {
    uid: Option<String>,
    spec: LeaseSpec,
    at: Instant,
}

impl Seen {
    /// True where its holder must have given up by now.
    fn is_over(&self, own: Duration) -> bool {
        let told = self.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let told = told.map(Duration::from_secs).filter(|told| *told <= LONGEST_DURATION);
        self.at.elapsed() > told.unwrap_or(own).max(own)
    }
}

impl Leadership {
    /// A candidate that does nothing yet.
    #[must_use]
    pub fn new(client: Client, candidate: Candidate) -> Self {
        let shared = Shared {
            leases: Api::namespaced(client, &candidate.namespace),
            candidate,
            base: Instant::now(),
            leads_until_ms: AtomicU64::new(0),
            leading: watch::Sender::new(false),
            holder: watch::Sender::new(None),
            state: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// True while this candidate leads. It may say so a moment too long: before each write ask `leads`.
    #[must_use]
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.shared.leading.subscribe()
    }

    /// True where the Lease is ours and was renewed within the deadline, by the clock and whoever has run meanwhile: a
    /// process that was stopped for a while knows by this that it leads no more.
    #[must_use]
    pub fn leads(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Who holds the Lease, as last seen; `None` where nobody does.
    #[must_use]
    pub fn holder(&self) -> watch::Receiver<Option<Holder>> {
        self.shared.holder.subscribe()
    }

    /// Waits until the Lease is ours, and gives the counter of the new term. Errors are logged and tried again.
    pub async fn acquire(&self) -> u64 {
        let mut said = None;
        loop {
            match self.try_acquire().await {
                Ok(Some(term)) => return term,
                Ok(None) => said = None,
                Err(error) => {
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(%error, "the Lease cannot be looked at; trying again");
                    }
                    said = Some(error);
                }
            }
            tokio::time::sleep(self.shared.candidate.times.look_period()).await;
        }
    }

    /// Renews the Lease until it is lost; gives why. From then on `leads` is false.
    pub async fn keep(&self) -> ElectionError {
        let error = self.renew_until_lost().await;
        self.give_up();
        error
    }

    /// Raises the counter above its present value and above `above`, and renews the Lease with it: that is the proof that
    /// it is still ours.
    ///
    /// # Errors
    /// It is not ours any more, or the API server does not say so.
    pub async fn raise(&self, above: u64) -> Result<u64, ElectionError> {
        let mut state = self.shared.state.lock().await;
        let counter = self.shared.above(state.highest.max(above))?;
        self.shared.write_held(&mut state, counter).await?;
        Ok(counter)
    }

    /// Gives the Lease back, so that the next one need not wait for its end. Whatever must be written before is done.
    ///
    /// # Errors
    /// It is not ours, or there was no answer.
    pub async fn release(&self) -> Result<(), ElectionError> {
        self.give_up();
        let mut state = self.shared.state.lock().await;
        let Some(mut lease) = state.held.take() else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            match self.shared.replace(&released(&lease)).await {
                Ok(_) => return Ok(()),
                Err(CallError::Overtaken(_)) => {}
                Err(error) => return Err(self.shared.told(error)),
            }
            let stored = self.shared.get().await.map_err(|error| self.shared.told(error))?;
            match stored.filter(|stored| holder_name(stored) == self.shared.candidate.holder()) {
                Some(stored) => lease = stored,
                None => return Ok(()),
            }
        }
        Err(self.shared.unreachable("it is written all the time by others"))
    }

    fn give_up(&self) {
        self.shared.give_up();
    }

    fn remaining(&self) -> Duration {
        let until = Duration::from_millis(self.shared.leads_until_ms.load(Ordering::Acquire));
        until.saturating_sub(self.shared.base.elapsed())
    }

    async fn renew_until_lost(&self) -> ElectionError {
        let times = self.shared.candidate.times;
        let mut leading = self.leading();
        let mut last = None;
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                let cause: &dyn std::fmt::Display = match &last {
                    Some(error) => error,
                    None => &"this process did not run",
                };
                return ElectionError::Lost(format!(
                    "the Lease was not renewed for {} s: {cause}",
                    times.renew_deadline.as_secs_f64()
                ));
            }
            // Who raises the counter may find out first.
            let lost = leading.wait_for(|leading| !*leading);
            let _ = tokio::time::timeout(times.retry_period.min(remaining), lost).await;
            let renewal = async {
                let mut state = self.shared.state.lock().await;
                let counter = state.held.as_ref().map_or(0, counter_of);
                self.shared.write_held(&mut state, counter).await
            };
            match tokio::time::timeout(self.remaining(), renewal).await {
                Ok(Ok(())) => last = None,
                Ok(Err(lost @ ElectionError::Lost(_))) => return lost,
                Ok(Err(error)) => last = Some(error),
                Err(_) => last = Some(self.shared.unreachable("no answer in time")),
            }
        }
    }

    async fn try_acquire(&self) -> Result<Option<u64>, ElectionError> {
        let shared = &self.shared;
        let mut state = shared.state.lock().await;
        let stored = shared.get().await.map_err(|error| shared.told(error))?;
        shared.holder.send_if_modified(|holder| {
            let now = stored.as_ref().and_then(holder_of);
            std::mem::replace(holder, now.clone()) != now
        });
        let is_free = match &stored {
            Some(lease) => shared.is_free(&mut state, lease),
            None => shared.is_free_without(&mut state),
        };
        if !is_free {
            return Ok(None);
        }
        let counter = shared.above(state.highest)?;
        let sent = Instant::now();
        let wanted = shared.wanted(stored.as_ref(), counter, true);
        let written = match stored {
            Some(_) => shared.replace(&wanted).await,
            None => shared.create(&wanted).await,
        };
        match written {
            Ok(lease) => {
                shared.holds(&mut state, lease, counter, sent);
                Ok(Some(counter))
            }
            // Somebody was faster.
            Err(CallError::Overtaken(_) | CallError::Missing) => Ok(None),
            Err(error) => Err(shared.told(error)),
        }
    }
}

impl Shared {
    /// True where the Lease may be taken. Remembers since when it has said what it says.
    fn is_free(&self, state: &mut State, lease: &Lease) -> bool {
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
    /// renews.
    fn is_free_without(&self, state: &mut State) -> bool {
        let missing = state.missing.get_or_insert_with(Instant::now).elapsed();
        let times = &self.candidate.times;
        let is_over = state.seen.as_ref().is_none_or(|seen| seen.is_over(times.lease_duration));
        is_over && missing > times.retry_period
    }

    /// Writes our Lease with this counter. Who wrote in between is looked at: people may annotate it, delete it or put an
    /// old one in its place, and it is ours as long as nobody else is its holder.
    async fn write_held(&self, state: &mut State, counter: u64) -> Result<(), ElectionError> {
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

    fn holds(&self, state: &mut State, lease: Lease, counter: u64, sent: Instant) {
        // Counted from the sending: others may have seen the change at any time since.
        let until = (sent + self.candidate.times.renew_deadline).duration_since(self.base);
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        state.highest = state.highest.max(counter);
        self.holder.send_replace(holder_of(&lease));
        state.held = Some(lease);
        self.leads_until_ms.store(until_ms, Ordering::Release);
        self.leading.send_replace(true);
    }

    fn give_up(&self) {
        self.leads_until_ms.store(0, Ordering::Release);
        self.leading.send_replace(false);
    }

    fn above(&self, counter: u64) -> Result<u64, ElectionError> {
        let namespace = self.candidate.namespace.clone();
        counter.checked_add(1).ok_or(ElectionError::Exhausted { namespace, counter })
    }

    /// The Lease as it is to be. What others keep there stays.
    fn wanted(&self, stored: Option<&Lease>, counter: u64, acquired: bool) -> Lease {
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

    async fn get(&self) -> Result<Option<Lease>, CallError> {
        self.call(self.leases.get_opt(LEASE_NAME)).await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, CallError> {
        self.call(self.leases.replace(LEASE_NAME, &PostParams::default(), lease)).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, CallError> {
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

    fn told(&self, error: CallError) -> ElectionError {
        let namespace = self.candidate.namespace.clone();
        match error {
            CallError::Refused(message) => ElectionError::Refused { namespace, message },
            CallError::Overtaken(message) | CallError::Unreachable(message) => {
                ElectionError::Unreachable { namespace, message }
            }
            CallError::Missing => self.unreachable("it was deleted meanwhile"),
        }
    }

    fn unreachable(&self, message: &str) -> ElectionError {
        let namespace = self.candidate.namespace.clone();
        ElectionError::Unreachable { namespace, message: message.to_owned() }
    }
}

/// What came of a call.
#[derive(Debug)]
enum CallError {
    Overtaken(String),
    Missing,
    Refused(String),
    Unreachable(String),
}

/// The Lease without a holder.
fn released(lease: &Lease) -> Lease {
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

fn holder_name(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn annotation<'l>(lease: &'l Lease, name: &str) -> Option<&'l str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The stored counter. What is no number counts as none: agents tell the highest they know.
fn counter_of(lease: &Lease) -> u64 {
    annotation(lease, TERM_ANNOTATION).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn holder_of(lease: &Lease) -> Option<Holder> {
    let name = holder_name(lease).to_owned();
    let admin = annotation(lease, ADMIN_ANNOTATION).map(str::to_owned);
    (!name.is_empty()).then(|| Holder { name, admin, term: counter_of(lease) })
}
