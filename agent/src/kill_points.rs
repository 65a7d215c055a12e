//! Points at which a debug build kills its own process, so that tests see what a crash leaves behind.
//!
//! `PHALANX_KILL_POINT=NAME` or `NAME:COUNT` arms one: the process gets SIGKILL when it is reached the first, or
//! the COUNTth, time. A release build has none of this.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use phalanx_common::wire::{FromAgent, LeaseState, ToAgent};
use phalanx_node_core::{Action, Event};

const VARIABLE: &str = "PHALANX_KILL_POINT";
/// Long enough for the link's task to send what it was given; the loop hears nothing meanwhile.
const SENT: Duration = Duration::from_millis(30);

/// The point that was asked for, and how often it is still to be passed.
#[derive(Debug)]
struct Armed {
    point: String,
    left: AtomicU32,
}

impl Armed {
    fn read(text: &str) -> Self {
        let counted = text.split_once(':').and_then(|(point, count)| Some((point, count.parse().ok()?)));
        let (point, left) = counted.unwrap_or((text, 1));
        Self { point: point.to_owned(), left: AtomicU32::new(left) }
    }

    fn is_due(&self, point: &str) -> bool {
        self.point == point && self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

fn is_due(point: &str) -> bool {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    let read = || std::env::var(VARIABLE).ok().map(|text| Armed::read(&text));
    ARMED.get_or_init(read).as_ref().is_some_and(|armed| armed.is_due(point))
}

/// Before an event reaches the core.
pub(crate) fn before_event(event: &Event) {
    let point = match event {
        Event::Message(ToAgent::Reserve { .. }) => "reserve-received",
        Event::Message(ToAgent::Bound { .. }) => "bound-seen",
        _ => return,
    };
    if is_due(point) {
        kill();
    }
}

/// Before what the core wants is done.
pub(crate) fn before_action(action: &Action) {
    let point = match action {
        Action::Send(FromAgent::Reserved { .. }) => "reserved",
        Action::Send(FromAgent::LeaseIs { state: LeaseState::Armed, .. }) => "ledger-written",
        Action::StartPod { .. } => "started",
        _ => return,
    };
    if is_due(point) {
        kill();
    }
}

/// After the link was given a message; `acknowledges` where that says that a lease is armed.
pub(crate) fn after_send(acknowledges: bool) {
    if acknowledges && is_due("acknowledged") {
        std::thread::sleep(SENT);
        kill();
    }
}

/// True for a message after which the coordinator counts on the ledger.
pub(crate) fn acknowledges(message: &FromAgent) -> bool {
    matches!(message, FromAgent::LeaseIs { state: LeaseState::Armed, .. })
}

/// Not an exit: nothing may be flushed, closed or said.
fn kill() {
    // It cannot fail for the own process.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
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
    }
}
