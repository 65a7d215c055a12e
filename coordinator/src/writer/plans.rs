//! Writes of plans: all that wait for one object become one write.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx_common::ids::ActionId;
use phalanx_core::action::{Action, Command};
use tokio::time::Instant;

use super::Worker;
use crate::api::apply::MOST_CONFLICTS;
use crate::api::{Api, ApiError, Mutation, Object, ObjectKey};
use crate::convert::plan::{self, PlanChange};
use crate::metrics::command_name;

/// Of one batch so many writes that are refused are narrowed: enough to find two of the gangs that go together, and few
/// where the API refuses whatever is written.
const MOST_REFUSALS: usize = 16;
/// Of one object it is said once in this time that a plan was refused: where there is no room, there is none for many.
const REFUSALS_SAID: Duration = Duration::from_secs(60);

/// When it was said last of each object that a plan was refused.
#[derive(Debug, Default)]
pub(super) struct RefusalsSaid(Mutex<HashMap<u8, Instant>>);

impl RefusalsSaid {
    /// True where it is to be said now.
    fn is_due(&self, number: u8, now: Instant) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due =
            said.get(&number).is_none_or(|last| now.saturating_duration_since(*last) >= REFUSALS_SAID);
        if is_due {
            said.insert(number, now);
        }
        is_due
    }
}

/// An object of plans as it was after the last write of this process. What is watched lags behind that, and a write
/// made from it would meet a conflict each time.
#[derive(Debug)]
enum Last {
    Stored(Arc<Object>),
    /// It was at this version, and is gone.
    Gone(u64),
}

/// The last writes, by object.
#[derive(Debug, Default)]
pub(super) struct LastWrites(Mutex<HashMap<ObjectKey, Last>>);

impl LastWrites {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<ObjectKey, Last>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is newer of an object: what was seen, or what was written.
    fn newer(&self, key: &ObjectKey, seen: Option<Arc<Object>>) -> Option<Arc<Object>> {
        let version = seen.as_ref().map_or(0, |seen| seen.metadata.resource_version);
        self.with(|last| match last.get(key) {
            Some(Last::Stored(written)) if written.metadata.resource_version > version => {
                Some(Arc::clone(written))
            }
            Some(Last::Gone(gone)) if version <= *gone => None,
            _ => seen,
        })
    }

    fn forget(&self, key: &ObjectKey) {
        self.with(|last| drop(last.remove(key)));
    }

    fn remember(&self, key: &ObjectKey, last: Last) {
        self.with(|all| drop(all.insert(key.clone(), last)));
    }
}

/// The changes of actions that are about plans, with their numbers and names.
fn changes_of(actions: Vec<Action>) -> (Vec<(ActionId, &'static str)>, Vec<PlanChange>) {
    let changes = actions.into_iter().filter_map(|Action { id, command }| {
        let name = command_name(&command);
        match command {
            Command::WritePlan(plan) => Some(((id, name), PlanChange::Write(plan))),
            Command::DeletePlan { gang, term } => Some(((id, name), PlanChange::Remove { gang, term })),
            _ => None,
        }
    });
    changes.unzip()
}

impl<A: Api> Worker<A> {
    /// Does writes and removals of plans of one object. Each has its outcome when all are done.
    pub(super) async fn change_plans(&self, number: u8, actions: Vec<Action>) {
        let (asked, changes) = changes_of(actions);
        let key = plan::key_of_number(&self.api.reading(), number);
        let answers = self.plans_changed(&key, &changes).await;
        for ((action, name), answer) in asked.into_iter().zip(answers) {
            if let Err(ApiError::Invalid(why)) = &answer
                && self.refusals_said.is_due(number, Instant::now())
            {
                tracing::warn!(command = name, "the plan of a gang is refused: {why}");
            }
            self.conclude(name, Self::done(action, &answer)).await;
        }
    }

    /// What came of each change. A write that is refused is halved until what is wrong stands alone: it must not be held
    /// against the other gangs.
    async fn plans_changed(&self, key: &ObjectKey, changes: &[PlanChange]) -> Vec<Result<(), ApiError>> {
        let mut answers = Vec::new();
        let mut refusals_left = MOST_REFUSALS;
        // What is still to be written, the first of it last.
        let mut open: Vec<Range<usize>> = std::iter::once(0..changes.len()).collect();
        while let Some(range) = open.pop() {
            match self.write_plans(key, &changes[range.clone()]).await {
                Err(ApiError::Invalid(_)) if range.len() > 1 && refusals_left > 0 => {
                    refusals_left -= 1;
                    let middle = range.start + range.len() / 2;
                    open.extend([middle..range.end, range.start..middle]);
                }
                Err(error) => answers.extend(range.map(|_| Err(error.clone()))),
                Ok(found) => answers.extend(found),
            }
        }
        answers
    }

    /// Looks at the object, decides by it, and writes where it is still what was seen. A glance is enough for that: what
    /// the API takes was decided by what is there. That nothing is to be written must not rest on it.
    async fn write_plans(
        &self,
        key: &ObjectKey,
        changes: &[PlanChange],
    ) -> Result<Vec<Result<(), ApiError>>, ApiError> {
        let mut conflicts = 0;
        let mut is_fresh = false;
        loop {
            let seen = self.timed(self.look(key, is_fresh)).await?;
            let stored = if is_fresh { seen } else { self.last_writes.newer(key, seen) };
            let decided = plan::decide(key, stored.as_deref(), changes);
            match decided.mutation {
                Some(mutation) => match self.timed(self.write_object(key, stored, mutation)).await {
                    Ok(()) => return Ok(decided.answers),
                    Err(error) if error.is_overtaken() && conflicts < MOST_CONFLICTS => conflicts += 1,
                    // Others were faster each time. That a later leader has a plan of the gang was not seen.
                    Err(error) if error.is_overtaken() => return Err(ApiError::Unknown),
                    Err(error) => return Err(error),
                },
                None if is_fresh => return Ok(decided.answers),
                None => {}
            }
            is_fresh = true;
        }
    }

    async fn write_object(
        &self,
        key: &ObjectKey,
        stored: Option<Arc<Object>>,
        mutation: Mutation,
    ) -> Result<(), ApiError> {
        // Until there is an answer nothing is known; the call may also be given up.
        self.last_writes.forget(key);
        let version = stored.as_ref().map_or(0, |stored| stored.metadata.resource_version);
        let is_removal = matches!(mutation, Mutation::Delete { .. });
        let written = match stored {
            Some(stored) => self.api.mutate_known(stored, mutation).await?,
            None => self.api.mutate(mutation).await?,
        };
        self.metrics.plan_objects.inc();
        let last = if is_removal { Last::Gone(version) } else { Last::Stored(written) };
        self.last_writes.remember(key, last);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_plans_are_refused_is_said_once_a_minute_for_each_object() {
        let (said, now) = (RefusalsSaid::default(), Instant::now());
        assert!(said.is_due(1, now) && said.is_due(2, now));
        assert!(!said.is_due(1, now) && !said.is_due(2, now + Duration::from_secs(59)));
        assert!(said.is_due(1, now + REFUSALS_SAID));
    }
}
