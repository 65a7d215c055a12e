//! What one connection, and one cause of log lines, may use of what all share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_common::wire::{FromAgent, MAX_LEASES};

/// Messages of one connection that may wait for the loop.
pub(super) const UNREAD: usize = 128;
/// An agent may say something of every lease a node can have, some times over, at once.
const BURST: f64 = 4.0 * MAX_LEASES as f64;
/// Afterwards so many messages in a second.
const PER_SECOND: f64 = 1000.0;
/// Messages that an inventory counts for: it is read, compared and indexed anew.
const INVENTORY_MESSAGES: f64 = 50.0;

/// Things that may happen at some rate, and a number of them at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    left: f64,
    burst: f64,
    per_second: f64,
    filled: Instant,
}

impl Bucket {
    pub(super) const fn new(burst: f64, per_second: f64, now: Instant) -> Self {
        Self { left: burst, burst, per_second, filled: now }
    }

    /// The budget of one connection's messages.
    pub(super) const fn of_messages(now: Instant) -> Self {
        Self::new(BURST, PER_SECOND, now)
    }

    /// Takes so much, and says how long to wait before that is right.
    pub(super) fn take(&mut self, amount: f64, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.left = (self.left + since * self.per_second).min(self.burst) - amount;
        self.filled = now;
        (self.left < 0.0).then(|| Duration::from_secs_f64(-self.left / self.per_second))
    }

    /// Takes so much where it is there.
    fn try_take(&mut self, amount: f64, now: Instant) -> bool {
        let enough = self.take(amount, now).is_none();
        if !enough {
            self.left += amount;
        }
        enough
    }
}

/// What a message counts for.
pub(super) const fn weight(message: &FromAgent) -> f64 {
    match message {
        FromAgent::Hello(_) | FromAgent::Token(_) | FromAgent::Inventory(_) | FromAgent::Refused { .. } => {
            INVENTORY_MESSAGES
        }
        _ => 1.0,
    }
}

/// Keeps a cause that strangers can repeat at will from filling the log.
#[derive(Debug)]
pub(super) struct Quiet {
    state: Mutex<(Bucket, u64)>,
}

impl Quiet {
    /// So many lines at once, then one in this time.
    pub(super) fn new(lines: u32, every: Duration) -> Self {
        let bucket = Bucket::new(f64::from(lines), every.as_secs_f64().recip(), Instant::now());
        Self { state: Mutex::new((bucket, 0)) }
    }

    /// Whether a line may be written now: then how many were left out before it.
    pub(super) fn ask(&self) -> Option<u64> {
        self.ask_at(Instant::now())
    }

    fn ask_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.try_take(1.0, now) {
            return Some(std::mem::take(&mut state.1));
        }
        state.1 += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_a_flood_is_slowed_to_its_rate() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10.0, 100.0, now);
        for _ in 0..10 {
            assert_eq!(bucket.take(1.0, now), None);
        }
        assert_eq!(bucket.take(1.0, now), Some(Duration::from_millis(10)));
        assert_eq!(bucket.take(50.0, now), Some(Duration::from_millis(510)));
        // Whoever waits as told is not slowed twice, and saves nothing up beyond the burst.
        assert_eq!(bucket.take(1.0, now + Duration::from_millis(520)), None);
        let late = now + Duration::from_secs(3600);
        assert_eq!(bucket.take(10.0, late), None);
        assert!(bucket.take(1.0, late).is_some());
    }

    #[test]
    fn lines_left_out_are_counted() {
        let quiet = Quiet::new(2, Duration::from_secs(10));
        let now = Instant::now();
        let asked: Vec<Option<u64>> = (0..5).map(|_| quiet.ask_at(now)).collect();
        assert_eq!(asked, [Some(0), Some(0), None, None, None]);
        assert_eq!(quiet.ask_at(now + Duration::from_secs(11)), Some(3));
        assert_eq!(quiet.ask_at(now + Duration::from_secs(11)), None);
    }
}
