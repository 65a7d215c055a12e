//! One set of faults for every API: the embedded one, the simulation's store and, later, a proxy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_common::ids::ClusterId;
use phalanx_common::units::Time;
use tokio::sync::watch;

use super::store::Store;
use super::{Api, ApiError, Change, Kind, Listing, Mutation, Object, ObjectKey};
use crate::convert::Reading;

/// What may go wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Someone else changed the object first.
    Conflict,
    /// Refused for good, as by an admission webhook.
    Refused,
    /// No answer, and the write was not done.
    TimedOutNotDone,
    /// No answer, and the write was done.
    TimedOutButDone,
    /// The store failed.
    StorageFailed,
    /// The change log does not reach back far enough: only for `changes_since`.
    WatchGap,
}

/// What a call is, for the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `get` or `list`.
    Read,
    /// `changes_since`.
    Watch,
    /// `mutate`, or `raise_term`.
    Write,
}

/// How often each fault happens, in thousandths of the calls it can happen to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// `Fault::Conflict`.
    pub conflict: u32,
    /// `Fault::Refused`.
    pub refused: u32,
    /// `Fault::TimedOutNotDone`.
    pub timed_out_not_done: u32,
    /// `Fault::TimedOutButDone`.
    pub timed_out_but_done: u32,
    /// `Fault::StorageFailed`.
    pub storage_failed: u32,
    /// `Fault::WatchGap`.
    pub watch_gap: u32,
}

/// Decides which call fails: a script first, then a seed. The same plan and calls give the same faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    script: VecDeque<(Call, Fault)>,
    rates: FaultRates,
    state: u64,
}

impl FaultPlan {
    /// Nothing fails.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Faults at these rates.
    #[must_use]
    pub fn seeded(seed: u64, rates: FaultRates) -> Self {
        Self { script: VecDeque::new(), rates, state: seed }
    }

    /// The next call of this sort fails like this; several are used up in order.
    pub fn push(&mut self, call: Call, fault: Fault) {
        self.script.push_back((call, fault));
    }

    /// No more faults from now on.
    pub fn stop(&mut self) {
        *self = Self::none();
    }

    /// What happens to this call.
    pub fn decide(&mut self, call: Call) -> Option<Fault> {
        if let Some(at) = self.script.iter().position(|(wanted, _)| *wanted == call) {
            return self.script.remove(at).map(|(_, fault)| fault);
        }
        if self.rates == FaultRates::default() {
            return None;
        }
        let mut drawn = (self.next_random() % 1000) as u32;
        let rates = self.rates;
        let possible: &[(u32, Fault)] = match call {
            Call::Read => &[
                (rates.timed_out_not_done, Fault::TimedOutNotDone),
                (rates.storage_failed, Fault::StorageFailed),
            ],
            Call::Watch => {
                &[(rates.timed_out_not_done, Fault::TimedOutNotDone), (rates.watch_gap, Fault::WatchGap)]
            }
            Call::Write => &[
                (rates.conflict, Fault::Conflict),
                (rates.refused, Fault::Refused),
                (rates.timed_out_not_done, Fault::TimedOutNotDone),
                (rates.timed_out_but_done, Fault::TimedOutButDone),
                (rates.storage_failed, Fault::StorageFailed),
            ],
        };
        for (rate, fault) in possible {
            if drawn < *rate {
                return Some(*fault);
            }
            drawn -= rate;
        }
        None
    }

    /// SplitMix64: small, and good enough to choose faults.
    fn next_random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Fault {
    /// The error the caller sees. A `TimedOutButDone` write must be done before.
    #[must_use]
    pub fn error(self, target: &str) -> ApiError {
        match self {
            Self::Conflict => ApiError::Conflict(format!("{target} was changed by someone else")),
            Self::Refused => ApiError::Invalid(format!("{target}: refused by an admission rule")),
            Self::TimedOutNotDone | Self::TimedOutButDone => ApiError::Unknown,
            Self::StorageFailed => ApiError::Storage(format!("{target}: the store did not answer")),
            Self::WatchGap => ApiError::Gone { asked: 0 },
        }
    }
}

/// A write to a plain store under a fault.
///
/// # Errors
/// The store's, or the fault's.
pub fn mutate_store(
    store: &mut Store,
    fault: Option<Fault>,
    mutation: Mutation,
    now: Time,
    new_uid: &str,
) -> Result<Arc<Object>, ApiError> {
    let target = mutation.target();
    match fault {
        None => store.mutate(mutation, now, new_uid),
        Some(fault @ Fault::TimedOutButDone) => {
            store.mutate(mutation, now, new_uid)?;
            Err(fault.error(&target))
        }
        Some(fault) => Err(fault.error(&target)),
    }
}

/// An API whose calls fail by plan.
#[derive(Clone, Debug)]
pub struct FaultyApi<A> {
    inner: A,
    plan: Arc<Mutex<FaultPlan>>,
}

impl<A: Api> FaultyApi<A> {
    /// Wraps an API.
    #[must_use]
    pub fn new(inner: A, plan: FaultPlan) -> Self {
        Self { inner, plan: Arc::new(Mutex::new(plan)) }
    }

    /// Changes the plan while calls go on.
    pub fn with_plan(&self, change: impl FnOnce(&mut FaultPlan)) {
        change(&mut self.plan.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn decide(&self, call: Call) -> Option<Fault> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).decide(call)
    }
}

impl<A: Api> Api for FaultyApi<A> {
    async fn get(&self, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        match self.decide(Call::Read) {
            Some(fault) => Err(fault.error(&key.to_string())),
            None => self.inner.get(key).await,
        }
    }

    async fn list(&self, kind: Option<Kind>) -> Result<(Vec<Arc<Object>>, u64), ApiError> {
        match self.decide(Call::Read) {
            Some(fault) => Err(fault.error("the list")),
            None => self.inner.list(kind).await,
        }
    }

    async fn listing(&self, kind: Option<Kind>) -> Result<(Listing, u64), ApiError> {
        match self.decide(Call::Read) {
            Some(fault) => Err(fault.error("the list")),
            None => self.inner.listing(kind).await,
        }
    }

    async fn changes_since(&self, resource_version: u64, max: usize) -> Result<Vec<Change>, ApiError> {
        match self.decide(Call::Watch) {
            Some(Fault::WatchGap) => Err(ApiError::Gone { asked: resource_version }),
            Some(fault) => Err(fault.error("the watch")),
            None => self.inner.changes_since(resource_version, max).await,
        }
    }

    async fn mutate(&self, mutation: Mutation) -> Result<Arc<Object>, ApiError> {
        let target = mutation.target();
        match self.decide(Call::Write) {
            None => self.inner.mutate(mutation).await,
            Some(fault @ Fault::TimedOutButDone) => {
                self.inner.mutate(mutation).await?;
                Err(fault.error(&target))
            }
            Some(fault) => Err(fault.error(&target)),
        }
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.subscribe()
    }

    fn reading(&self) -> Reading {
        self.inner.reading()
    }

    fn cluster_id(&self) -> ClusterId {
        self.inner.cluster_id()
    }

    async fn raise_term(&self, above: u64) -> Result<u64, ApiError> {
        match self.decide(Call::Write) {
            None => self.inner.raise_term(above).await,
            Some(fault @ Fault::TimedOutButDone) => {
                self.inner.raise_term(above).await?;
                Err(fault.error("the term"))
            }
            Some(fault) => Err(fault.error("the term")),
        }
    }
}
