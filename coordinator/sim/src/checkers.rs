//! What must be true whatever happens. Each checker looks at the facts alone and knows nothing of the two
//! machines' inside.

use phalanx_core::view::StateView;

use crate::facts::Facts;

pub mod all_or_nothing;
pub mod binding;
pub mod eviction;
pub mod heal;
pub mod leaks;
pub mod liveness;
pub mod objects;
pub mod ownership;
pub mod quota;
pub mod settle;

/// What is known when the faults have stopped and all work should be done.
#[derive(Debug)]
pub struct End<'e> {
    /// The facts.
    pub facts: &'e Facts,
    /// What the coordinator shows to people.
    pub view: &'e StateView,
    /// Writes to the API in the last quiet minute.
    pub late_writes: u64,
}

/// All checkers, with what they remember.
#[derive(Debug, Default)]
pub struct Checkers {
    all_or_nothing: all_or_nothing::AllOrNothing,
    binding: binding::Binding,
    eviction: eviction::Eviction,
    heal: heal::Heal,
    quota: quota::Quota,
    settle: settle::Settle,
}

impl Checkers {
    /// Looks at the facts after a step.
    ///
    /// # Errors
    /// Name of the checker and what is wrong.
    pub fn step(&mut self, facts: &Facts) -> Result<(), (&'static str, String)> {
        ownership::check(facts).map_err(|error| ("ownership", error))?;
        self.all_or_nothing.check(facts).map_err(|error| ("all_or_nothing", error))?;
        self.binding.check(facts).map_err(|error| ("binding", error))?;
        self.eviction.check(facts).map_err(|error| ("eviction", error))?;
        objects::check(facts).map_err(|error| ("objects", error))?;
        self.settle.check(facts).map_err(|error| ("settle", error))?;
        self.heal.check(facts).map_err(|error| ("heal", error))?;
        self.quota.check(facts).map_err(|error| ("quota", error))
    }

    /// Looks at the end of a run.
    ///
    /// # Errors
    /// Name of the checker and what is wrong.
    pub fn end(end: &End<'_>) -> Result<(), (&'static str, String)> {
        objects::check_told(end).map_err(|error| ("objects", error))?;
        liveness::check(end).map_err(|error| ("liveness", error))?;
        leaks::check(end).map_err(|error| ("leaks", error))
    }
}
