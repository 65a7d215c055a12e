//! A moment of a recording, as a person names it.

use std::str::FromStr;

use phalanx_common::units::{Millis, Time};
use thiserror::Error;

/// Where a replay stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Before the first record after this time.
    At(Time),
    /// The same, counted from the start of the process.
    After(Millis),
    /// After this event, counted from 1 in what is replayed.
    Event(u64),
    /// After this line of this part; without a part of the file that was given.
    Line {
        /// The part.
        part: Option<u32>,
        /// The line, from 1.
        line: usize,
    },
}

/// Not a moment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no moment of a recording: give milliseconds since 1970 (1764437478123), a time \
     (2026-11-29T17:31:18Z), an offset from the start of the process (+90s), event:NUMBER, line:NUMBER or \
     line:PART:NUMBER"
)]
pub struct UntilError(String);

impl FromStr for Until {
    type Err = UntilError;

    fn from_str(text: &str) -> Result<Self, UntilError> {
        let error = || UntilError(text.to_owned());
        if let Some(offset) = text.strip_prefix('+') {
            let duration = humantime::parse_duration(offset).map_err(|_| error())?;
            return Ok(Self::After(Millis(u64::try_from(duration.as_millis()).map_err(|_| error())?)));
        }
        if let Some(number) = text.strip_prefix("event:") {
            return number.parse().map(Self::Event).map_err(|_| error());
        }
        if let Some(place) = text.strip_prefix("line:") {
            let (part, line) = match place.split_once(':') {
                Some((part, line)) => (Some(part.parse().map_err(|_| error())?), line),
                None => (None, place),
            };
            return Ok(Self::Line { part, line: line.parse().map_err(|_| error())? });
        }
        if let Ok(at_ms) = text.parse() {
            return Ok(Self::At(Time(at_ms)));
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| error())?;
        Ok(Self::At(Time(u64::try_from(time.as_millisecond()).map_err(|_| error())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Until>();
        assert_eq!(read("1764437478123"), Ok(Until::At(Time(1_764_437_478_123))));
        assert_eq!(read("1970-01-01T00:01:00Z"), Ok(Until::At(Time(60_000))));
        assert_eq!(read("+90s"), Ok(Until::After(Millis(90_000))));
        assert_eq!(read("+1500ms"), Ok(Until::After(Millis(1500))));
        assert_eq!(read("event:12"), Ok(Until::Event(12)));
        assert_eq!(read("line:7"), Ok(Until::Line { part: None, line: 7 }));
        assert_eq!(read("line:3:7"), Ok(Until::Line { part: Some(3), line: 7 }));
        for wrong in ["", "yesterday", "+", "event:", "event:x", "line:1:", "-5", "1969-01-01T00:00:00Z"] {
            let text = read(wrong).unwrap_err().to_string();
            assert!(text.contains("event:NUMBER"), "{text}");
        }
    }
}
