//! Points at which a debug build of the agent kills itself: see [`kill_point`].

use std::time::Duration;

use phalanx_common::wire::{FromAgent, LeaseState, ToAgent};
use phalanx_node_core::{Action, Event};
use phalanx_process::kill_point;

/// Long enough for the link's task to send what it was given; the loop hears nothing meanwhile.
const SENT: Duration = Duration::from_millis(30);

/// Before an event reaches the core.
pub(crate) fn before_event(event: &Event) {
    match event {
        Event::Message(_, ToAgent::Reserve { .. }) => kill_point::pass("reserve-received"),
        // Whichever comes first: where the last bind of a gang is this pod's, no Bound goes before GangBound.
        Event::Message(_, ToAgent::Bound { .. } | ToAgent::GangBound { .. }) => {
            kill_point::pass("bound-seen")
        }
        _ => {}
    }
}

/// Before what the core wants is done.
pub(crate) fn before_action(action: &Action) {
    match action {
        Action::Send(_, FromAgent::Reserved { .. }) => kill_point::pass("reserved"),
        Action::Send(_, message) if acknowledges(message) => kill_point::pass("ledger-written"),
        Action::StartPod { .. } => kill_point::pass("started"),
        _ => {}
    }
}

/// After the link was given a message; `acknowledges` where that says that a lease is armed.
pub(crate) fn after_send(acknowledges: bool) {
    if acknowledges && kill_point::is_due("acknowledged") {
        std::thread::sleep(SENT);
        kill_point::kill();
    }
}

/// True for a message after which the coordinator counts on the ledger.
pub(crate) const fn acknowledges(message: &FromAgent) -> bool {
    matches!(message, FromAgent::LeaseIs { state: LeaseState::Armed, .. })
}
