//! The log of a run: a hash of every line, the lines themselves where they are wanted, and counts of what was
//! reached.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use phalanx_common::units::Time;

/// The log.
#[derive(Debug)]
pub struct Log {
    lines: Option<Vec<String>>,
    hash: u64,
    buffer: String,
    /// How often each thing happened.
    pub counts: BTreeMap<String, u64>,
}

impl Log {
    /// An empty log, which keeps its lines or not.
    #[must_use]
    pub fn new(keep: bool) -> Self {
        Self {
            lines: keep.then(Vec::new),
            hash: 0xcbf2_9ce4_8422_2325,
            buffer: String::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Adds a line.
    pub fn line(&mut self, now: Time, text: std::fmt::Arguments<'_>) {
        self.buffer.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.buffer, "{:>9.3} {text}", now.0 as f64 / 1000.0);
        // FNV-1a: no secret, no speed, only the same for the same lines.
        for byte in self.buffer.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.buffer.clone());
        }
    }

    /// Counts something reached.
    pub fn count(&mut self, what: &str) {
        match self.counts.get_mut(what) {
            Some(count) => *count += 1,
            None => {
                self.counts.insert(what.to_owned(), 1);
            }
        }
    }

    /// Counts something reached more than once.
    pub fn count_more(&mut self, what: &str, times: u64) {
        *self.counts.entry(what.to_owned()).or_default() += times;
    }

    /// Hash of all lines so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines, where they were kept.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}
