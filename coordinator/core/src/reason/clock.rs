//! Points in time as reasons name them. The core knows no calendar but this: it must stay free of whatever reads clocks.

use phalanx_common::units::Time;

/// A moment as people and Kubernetes write it, `2026-11-30T04:05:00Z`.
pub(crate) fn clock(time: Time) -> String {
    let seconds = time.0 / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin with March here, so that the day that leap years have more is a year's last one.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + later;
    let (hour, minute, second) = (second / 3_600, second % 3_600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use phalanx_common::units::Time;

    use super::clock;

    #[test]
    fn moments_are_written_as_kubernetes_does() {
        let at = |seconds: u64| clock(Time(seconds * 1000));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_796_011_500), "2026-11-30T04:05:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
