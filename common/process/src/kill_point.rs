//! Points at which a debug build kills its own process, so that tests see what a crash leaves behind.
//!
//! `PHALANX_KILL_POINT=NAME` or `NAME:COUNT` arms one: the process gets SIGKILL when it is reached the first, or
//! the COUNTth, time. `PHALANX_STOP_POINT` of the same form stops it there, as SIGSTOP does, until somebody sends SIGCONT.
//! A release build has none of this. Which points there are each program says itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

const VARIABLE: &str = "PHALANX_KILL_POINT";
const STOP_VARIABLE: &str = "PHALANX_STOP_POINT";
/// A signal to a process stops the thread that sends it a moment later: until then it must do nothing.
const STOPS_WITHIN: Duration = Duration::from_millis(20);

/// The point that was asked for, and how often it is still to be passed.
#[derive(Debug)]
struct Armed {
    point: String,
    left: AtomicU32,
}

impl Armed {
    /// A count of 0 is that of a point that is never reached.
    fn read(text: &str) -> Self {
        let counted = text.split_once(':').and_then(|(point, count)| Some((point, count.parse().ok()?)));
        let (point, left) = counted.unwrap_or((text, 1));
        Self { point: point.to_owned(), left: AtomicU32::new(left) }
    }

    /// True where this is the point, for the last time it was to be passed.
    fn is_due(&self, point: &str) -> bool {
        let pass = |left: u32| left.checked_sub(1);
        self.point == point
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok_and(|left| left == 1)
    }
}

static TO_KILL: OnceLock<Option<Armed>> = OnceLock::new();
static TO_STOP: OnceLock<Option<Armed>> = OnceLock::new();

fn is_due_of(armed: &OnceLock<Option<Armed>>, variable: &str, point: &str) -> bool {
    let read = || std::env::var(variable).ok().map(|text| Armed::read(&text));
    armed.get_or_init(read).as_ref().is_some_and(|armed| armed.is_due(point))
}

/// Passes a point. True where the process is to die here.
#[must_use]
pub fn is_due(point: &str) -> bool {
    is_due_of(&TO_KILL, VARIABLE, point)
}

/// Passes a point, and stops or dies where that is asked for.
pub fn pass(point: &str) {
    if is_due_of(&TO_STOP, STOP_VARIABLE, point) {
        stop();
    }
    if is_due(point) {
        kill();
    }
}

/// Stands still until SIGCONT.
fn stop() {
    // It cannot fail for the own process.
    let _ = kill_process(getpid(), Signal::STOP);
    std::thread::sleep(STOPS_WITHIN);
}

/// Not an exit: nothing may be flushed, closed or said.
pub fn kill() -> ! {
    // It cannot fail for the own process.
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_reached_as_often_as_asked_and_no_other_is() {
        let armed = Armed::read("reserved:2");
        assert!(!armed.is_due("ledger-written"));
        assert!(!armed.is_due("reserved"));
        assert!(armed.is_due("reserved"));
        assert!(!armed.is_due("reserved"), "once is enough");
        assert!(Armed::read("started").is_due("started"));
        let never = Armed::read("started:0");
        assert!(!never.is_due("started") && !never.is_due("started"));
    }
}
