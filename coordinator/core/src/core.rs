//! The two doors: `apply` and `cycle`. Dispatch only; the parts own their state.

use phalanx_common::ids::GangName;
use phalanx_common::units::Time;

use crate::action::Action;
use crate::event::Event;
use crate::settings::Settings;
use crate::view::{Explanation, StateView};

/// The deciding machine.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
}

impl Core {
    /// A machine that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Records a fact.
    pub fn apply(&mut self, _event: Event, _now: Time, _actions: &mut Vec<Action>) {}

    /// Does one scheduling pass.
    pub fn cycle(&mut self, _now: Time, _actions: &mut Vec<Action>) {}

    /// When `cycle` must be called at the latest, and for what.
    #[must_use]
    pub fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let _ = &self.settings;
        None
    }

    /// Everything, for people.
    #[must_use]
    pub fn view(&self) -> StateView {
        StateView { queues: Vec::new(), gangs: Vec::new(), nodes: Vec::new() }
    }

    /// Why a gang does not run; `None` where it is not known.
    #[must_use]
    pub fn explain(&self, _gang: &GangName) -> Option<Explanation> {
        None
    }
}
