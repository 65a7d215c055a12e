//! Who leads: a Lease that is taken and kept by compare-and-swap.
//!
//! Wall clocks are never compared: a holder counts as gone when nothing of its Lease was SEEN to change for the lease's
//! duration, by our own monotonic clock. Each acquire raises a counter of our own in an annotation, also when the
//! holder's name is our own: it is the term by which agents tell leaders apart. `leaseTransitions` says the same to
//! people, and decides nothing: it is 0 again when the Lease was deleted, and stays when a holder comes back.

mod lease;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::{Mutex, watch};

use self::lease::{ATTEMPTS, CallError, Shared, counter_of, holder_name, holder_of, released};

/// Name of the Lease.
pub const LEASE_NAME: &str = "phalanx-coordinator";
/// Annotation of the Lease with the counter of the term.
pub const TERM_ANNOTATION: &str = "phalanx.dev/term";
/// Annotation of the Lease with the address of the leader's admin interface, for people.
pub const ADMIN_ANNOTATION: &str = "phalanx.dev/admin";

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

    /// For how long the Lease that another holds was not seen to be renewed; nothing where this candidate leads, and
    /// where none is held.
    pub async fn unrenewed(&self) -> Duration {
        if self.leads() || self.shared.holder.borrow().is_none() {
            return Duration::ZERO;
        }
        let state = self.shared.state.lock().await;
        state.seen.as_ref().map_or(Duration::ZERO, lease::Seen::unchanged)
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
