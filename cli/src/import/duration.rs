//! Durations as Volcano's language writes them: `1h30m`, `1.5h`, `300ms`.

use std::time::Duration;

/// Nanoseconds of each unit; the longer names first, so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration that is not negative; `None` where it is none, or too long to be told.
#[must_use]
pub fn read(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    rest = rest.strip_prefix('+').unwrap_or(rest);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanoseconds: u64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at(end);
        let (unit, of_unit) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        nanoseconds = nanoseconds.checked_add(part(number, *of_unit)?)?;
        rest = &after[unit.len()..];
    }
    Some(Duration::from_nanos(nanoseconds))
}

fn part(number: &str, of_unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    // More digits than a nanosecond has say nothing more.
    let fraction = fraction.get(..fraction.len().min(9))?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let of_fraction = u128::from(digits(fraction)?) * u128::from(of_unit) / scale;
    digits(whole)?.checked_mul(of_unit)?.checked_add(u64::try_from(of_fraction).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_volcano_does() {
        let seconds = |text: &str| read(text).map(|duration| duration.as_secs_f64());
        assert_eq!(seconds("1h2m3s"), Some(3723.0));
        assert_eq!(seconds("1.5h"), Some(5400.0));
        assert_eq!(seconds("300ms"), Some(0.3));
        assert_eq!(seconds(".5s"), Some(0.5));
        assert_eq!(seconds("0"), Some(0.0));
        for wrong in ["", "5", "1d", "-1h", "h", ".s", "1h2", "1.2.3s", "9999999999h", "\u{e9}1s"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
