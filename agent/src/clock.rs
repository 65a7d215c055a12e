//! The agent's clock. CLOCK_BOOTTIME goes on while the machine sleeps and never jumps, so a reservation
//! ends in time whatever happens to the wall clock.

use std::fs;

use phalanx_common::units::Time;
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was booted.
#[must_use]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u64);
    Time(seconds * 1000 + nanoseconds / 1_000_000)
}

/// Names the present boot: times of another one cannot be compared. Where the kernel does not tell,
/// every start counts as a boot.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_else(|_| uuid::Uuid::new_v4().to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_goes_forward_and_the_boot_has_a_name() {
        let before = super::now();
        assert!(before.0 > 0 && super::now() >= before);
        assert_eq!(super::boot_id(), super::boot_id());
    }
}
