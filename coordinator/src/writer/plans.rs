//! Writes of plans: all that wait for one object become one write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_common::ids::ActionId;
use phalanx_core::action::{Action, Command};

use super::Worker;
use crate::api::apply::MOST_CONFLICTS;
use crate::api::{Api, ApiError, Mutation, Object, ObjectKey};
use crate::convert::plan::{self, PlanChange};
use crate::metrics::command_name;

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
    /// Does writes and removals of plans of one object, in their order. Each has its outcome when all are done.
    pub(super) async fn change_plans(&self, number: u8, actions: Vec<Action>) {
        let (asked, changes) = changes_of(actions);
        let key = plan::key_of_number(&self.api.reading(), number);
        let answers = self.timed(async { Ok(self.plans_changed(&key, &changes).await) }).await;
        let answers = answers.unwrap_or_else(|error| vec![Err(error); changes.len()]);
        for ((action, name), answer) in asked.into_iter().zip(answers) {
            self.conclude(name, Self::done(action, &answer)).await;
        }
    }

    async fn plans_changed(&self, key: &ObjectKey, changes: &[PlanChange]) -> Vec<Result<(), ApiError>> {
        let answers = match self.write_plans(key, changes).await {
            // What is wrong with one must not be held against the others.
            Err(ApiError::Invalid(_)) if changes.len() > 1 => {
                let mut answers = Vec::new();
                for change in changes {
                    let alone = self.write_plans(key, std::slice::from_ref(change)).await;
                    answers.push(alone.and_then(|answers| answers.into_iter().next().unwrap_or(Ok(()))));
                }
                answers
            }
            Err(error) => vec![Err(error); changes.len()],
            Ok(answers) => answers,
        };
        let mut all = Vec::new();
        for (change, answer) in changes.iter().zip(answers) {
            all.push(match self.earlier_changed(change).await {
                Some(earlier) if matches!(answer, Ok(()) | Err(ApiError::NotFound(_))) => earlier,
                _ => answer,
            });
        }
        all
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
            let seen = self.look(key, is_fresh).await?;
            let stored = if is_fresh { seen } else { self.last_writes.newer(key, seen) };
            let decided = plan::decide(key, stored.as_deref(), changes);
            match decided.mutation {
                Some(mutation) => match self.write_object(key, stored, mutation).await {
                    Ok(()) => return Ok(decided.answers),
                    Err(error) if error.is_overtaken() && conflicts < MOST_CONFLICTS => conflicts += 1,
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

    /// What an earlier version of this program has stored of the gang goes with its plan, and stops who is of an earlier
    /// term. `None` where there is nothing.
    async fn earlier_changed(&self, change: &PlanChange) -> Option<Result<(), ApiError>> {
        let stored = match self.look(&plan::earlier::key(change.gang()), false).await {
            Ok(stored) => stored.filter(|stored| plan::earlier::is_earlier(stored))?,
            Err(error) => return Some(Err(error)),
        };
        let removal = match change {
            PlanChange::Write(plan) => return plan::earlier::check(&stored, plan.term).err().map(Err),
            PlanChange::Remove { term, .. } => plan::earlier::removal(&stored, *term),
        };
        let removed = match removal {
            Ok(removal) => self.mutate(removal).await,
            Err(error) => Err(error),
        };
        // Gone as it should be.
        Some(if matches!(removed, Err(ApiError::NotFound(_))) { Ok(()) } else { removed })
    }
}
