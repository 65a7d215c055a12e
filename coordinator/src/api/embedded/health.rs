//! Whether the store can be written, for those who watch over the coordinator: whoever asks for a write is told anyway.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// At most one warning in this time: on a disk that is nearly full small writes succeed between larger ones that fail.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Health {
    /// Why nothing can be written.
    trouble: watch::Sender<Option<String>>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// When it was warned of last.
    warned: Option<Instant>,
    /// Whoever reads the log takes it for failed.
    open: bool,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { trouble: watch::Sender::new(None), told: Mutex::default() }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// A write failed.
    pub(super) fn failed(&self, text: &str) {
        self.failed_at(text, Instant::now());
    }

    /// True where this was logged.
    fn failed_at(&self, text: &str, now: Instant) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        self.trouble.send_replace(Some(text.to_owned()));
        let warns = !told.open && told.warned.is_none_or(|warned| now.duration_since(warned) >= QUIET);
        if warns {
            *told = Told { warned: Some(now), open: true };
            tracing::warn!("{text}");
        }
        warns
    }

    /// A write succeeded. True where this was logged.
    pub(super) fn well(&self, file: &Path) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        self.trouble.send_if_modified(|trouble| trouble.take().is_some());
        let tells = std::mem::take(&mut told.open);
        if tells {
            tracing::info!("{}: can be written again", file.display());
        }
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_now_full_and_now_not_is_warned_of_once_a_minute_and_whoever_was_warned_hears_the_end() {
        let (health, file, start) = (Health::new(), Path::new("objects.redb"), Instant::now());
        assert!(!health.well(file));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!([0, 1, 90].map(|at| health.failed_at("full", after(at))), [true, false, false]);
        assert_eq!([health.well(file), health.well(file)], [true, false]);
        assert_eq!(*health.subscribe().borrow(), None);
        // Soon after the end: a warning, but the one of a moment ago was not yet long ago.
        assert!(health.failed_at("full", after(100)));
        assert!(health.well(file));
        assert!(!health.failed_at("full", after(130)));
        assert_eq!(health.subscribe().borrow().as_deref(), Some("full"));
        assert!(!health.well(file), "who was not warned needs no end");
        assert!(!health.failed_at("full", after(140)));
        assert!(health.failed_at("full", after(160)), "what lasts is told in the end");
    }
}
