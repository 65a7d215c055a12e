//! Units as types: time and durations. The unit stands last in every field name.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since the Unix epoch on the coordinator, of CLOCK_BOOTTIME on an
/// agent. The cores only compare and add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Millis(pub u64);

impl Millis {
    /// Whole seconds as milliseconds.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Twice as long, so many times over.
    #[must_use]
    pub const fn doubled(self, times: u32) -> Self {
        let factor = if times < u64::BITS { 1 << times } else { u64::MAX };
        Self(self.0.saturating_mul(factor))
    }
}

impl Add<Millis> for Time {
    type Output = Time;

    fn add(self, duration: Millis) -> Time {
        Time(self.0.saturating_add(duration.0))
    }
}

impl Sub<Time> for Time {
    type Output = Millis;

    /// Time passed since `earlier`; zero when `earlier` is later.
    fn sub(self, earlier: Time) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1000 && self.0.is_multiple_of(1000) {
            write!(formatter, "{} s", self.0 / 1000)
        } else {
            write!(formatter, "{} ms", self.0)
        }
    }
}
