//! The coordinator's time: read from the system once, then counted on by the monotonic clock, so that a jump of
//! the system's clock moves no deadline.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx_common::units::Time;

/// Gives the time; cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
    base_time: Time,
}

impl Clock {
    /// Reads the system's clock, for the only time. A clock before 1970 counts as 1970.
    #[must_use]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let base_time = Time(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX / 2));
        Self { base: Instant::now(), base_time }
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Time {
        let passed = u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX / 2);
        Time(self.base_time.0.saturating_add(passed))
    }

    /// How long it is until `time`; zero where it has passed.
    #[must_use]
    pub fn until(&self, time: Time) -> Duration {
        Duration::from_millis((time - self.now()).0)
    }
}
