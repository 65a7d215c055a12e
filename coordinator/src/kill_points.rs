//! Points at which a debug build kills its own process, so that tests see what a crash leaves behind.
//!
//! `PHALANX_KILL_POINT=NAME` or `NAME:COUNT` arms one: the process gets SIGKILL when it is reached the first, or
//! the COUNTth, time. A release build has none of this.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use phalanx_common::ids::ActionId;
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::{Event, Outcome};

const VARIABLE: &str = "PHALANX_KILL_POINT";

/// The point that was asked for, and how far it is.
#[derive(Debug)]
struct Armed {
    point: String,
    left: u32,
    /// Writes whose outcome is a point.
    writes: BTreeMap<ActionId, &'static str>,
}

impl Armed {
    fn read(text: &str) -> Self {
        let counted = text.split_once(':').and_then(|(point, count)| Some((point, count.parse().ok()?)));
        let (point, left) = counted.unwrap_or((text, 1));
        Self { point: point.to_owned(), left, writes: BTreeMap::new() }
    }

    /// True where this is the point, for the last time it was to be passed.
    fn is_due(&mut self, point: Option<&str>) -> bool {
        if point != Some(self.point.as_str()) {
            return false;
        }
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    fn event(&mut self, event: &Event) -> bool {
        let point = match event {
            Event::AgentSaid { message, .. } if matches!(**message, FromAgent::Reserved { .. }) => {
                Some("first-confirm")
            }
            Event::ActionDone { action, outcome: Outcome::Done } => self.writes.remove(action),
            _ => None,
        };
        self.is_due(point)
    }

    fn action(&mut self, action: &Action) -> bool {
        let point = match &action.command {
            Command::Send { message, .. } => match **message {
                ToAgent::Reserve { .. } => Some("planned"),
                ToAgent::GangBound { .. } => Some("last-bind"),
                _ => None,
            },
            Command::WritePlan(_) => {
                self.writes.insert(action.id, "plan-written");
                Some("all-confirmed")
            }
            Command::Bind { .. } => {
                self.writes.insert(action.id, "first-bind");
                Some("armed")
            }
            _ => None,
        };
        self.is_due(point)
    }
}

fn armed() -> Option<&'static Mutex<Armed>> {
    static ARMED: OnceLock<Option<Mutex<Armed>>> = OnceLock::new();
    let read = || std::env::var(VARIABLE).ok().map(|text| Mutex::new(Armed::read(&text)));
    ARMED.get_or_init(read).as_ref()
}

/// Before a fact reaches the core.
pub(crate) fn before_event(event: &Event) {
    if let Some(armed) = armed()
        && armed.lock().unwrap_or_else(PoisonError::into_inner).event(event)
    {
        kill();
    }
}

/// Before what the core decided is done.
pub(crate) fn before_action(action: &Action) {
    if let Some(armed) = armed()
        && armed.lock().unwrap_or_else(PoisonError::into_inner).action(action)
    {
        kill();
    }
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

    fn bind(id: u64) -> Action {
        Action { id: ActionId(id), command: Command::RaiseTerm { above: id } }
    }

    #[test]
    fn a_point_is_reached_as_often_as_asked_and_no_other_is() {
        let mut armed = Armed::read("first-bind:2");
        assert_eq!((armed.point.as_str(), armed.left), ("first-bind", 2));
        assert!(!armed.action(&bind(1)), "no point at all");
        for id in [5, 6] {
            armed.writes.insert(ActionId(id), "first-bind");
        }
        let done = |id| Event::ActionDone { action: ActionId(id), outcome: Outcome::Done };
        assert!(!armed.event(&done(4)));
        assert!(!armed.event(&done(5)));
        assert!(!armed.event(&done(5)), "an outcome counts once");
        assert!(armed.event(&done(6)));
        assert!(!Armed::read("planned").is_due(Some("armed")));
    }
}
