//! Points at which a debug build of the coordinator kills itself: see [`kill_point`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use phalanx_common::ids::ActionId;
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::{Event, Outcome};
use phalanx_process::kill_point;

/// Writes whose outcome is a point.
#[derive(Debug)]
struct Writes(BTreeMap<ActionId, &'static str>);

static WRITES: Mutex<Writes> = Mutex::new(Writes(BTreeMap::new()));

impl Writes {
    /// The point that an event is.
    fn event(&mut self, event: &Event) -> Option<&'static str> {
        match event {
            Event::AgentSaid { message, .. } if matches!(**message, FromAgent::Reserved { .. }) => {
                Some("first-confirm")
            }
            Event::ActionDone { action, outcome } => {
                let point = self.0.remove(action);
                point.filter(|_| *outcome == Outcome::Done)
            }
            _ => None,
        }
    }

    /// The point that an action is.
    fn action(&mut self, action: &Action) -> Option<&'static str> {
        match &action.command {
            Command::Send { message, .. } => match **message {
                ToAgent::Reserve { .. } => Some("planned"),
                ToAgent::GangBound { .. } => Some("last-bind"),
                _ => None,
            },
            Command::WritePlan(_) => {
                self.0.insert(action.id, "plan-written");
                Some("all-confirmed")
            }
            Command::Bind { .. } => {
                self.0.insert(action.id, "first-bind");
                Some("armed")
            }
            _ => None,
        }
    }
}

/// Before a fact reaches the core.
pub(crate) fn before_event(event: &Event) {
    let point = WRITES.lock().unwrap_or_else(PoisonError::into_inner).event(event);
    point.into_iter().for_each(kill_point::pass);
}

/// Before what the core decided is done.
pub(crate) fn before_action(action: &Action) {
    let point = WRITES.lock().unwrap_or_else(PoisonError::into_inner).action(action);
    point.into_iter().for_each(kill_point::pass);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_a_point_again_when_it_is_done_and_only_then() {
        let mut writes = Writes(BTreeMap::from([5, 6].map(|id| (ActionId(id), "first-bind"))));
        let raise = Action { id: ActionId(1), command: Command::RaiseTerm { above: 1 } };
        assert_eq!(writes.action(&raise), None, "no point at all");
        let ended = |id, outcome| Event::ActionDone { action: ActionId(id), outcome };
        assert_eq!(writes.event(&ended(4, Outcome::Done)), None);
        assert_eq!(writes.event(&ended(5, Outcome::Done)), Some("first-bind"));
        assert_eq!(writes.event(&ended(5, Outcome::Done)), None, "an outcome counts once");
        assert_eq!(writes.event(&ended(6, Outcome::Unknown)), None);
        assert!(writes.0.is_empty(), "nothing is kept of a write that has ended");
    }
}
