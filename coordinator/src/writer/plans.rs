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
        let mut answers = Vec::new();
        for change in changes {
            answers.push(self.check_earlier(change).await);
        }
        let open: Vec<usize> = (0..changes.len()).filter(|at| answers[*at].is_ok()).collect();
        let written: Vec<&PlanChange> = open.iter().map(|at| &changes[*at]).collect();
        for (at, answer) in open.into_iter().zip(self.written(key, &written).await) {
            answers[at] = match self.remove_earlier(&changes[at]).await {
                Some(removed) if matches!(answer, Ok(()) | Err(ApiError::NotFound(_))) => removed,
                _ => answer,
            };
        }
        answers
    }

    async fn written(&self, key: &ObjectKey, changes: &[&PlanChange]) -> Vec<Result<(), ApiError>> {
        if changes.is_empty() {
            return Vec::new();
        }
        match self.write_plans(key, changes).await {
            // What is wrong with one must not be held against the others.
            Err(ApiError::Invalid(_)) if changes.len() > 1 => {
                let mut answers = Vec::new();
                for change in changes {
                    let alone = self.write_plans(key, &[*change]).await;
                    answers.push(alone.and_then(|answers| answers.into_iter().next().unwrap_or(Ok(()))));
                }
                answers
            }
            Err(error) => vec![Err(error); changes.len()],
            Ok(answers) => answers,
        }
    }

    /// Looks at the object, decides by it, and writes where it is still what was seen. A glance is enough for that: what
    /// the API takes was decided by what is there. That nothing is to be written must not rest on it.
    async fn write_plans(
        &self,
        key: &ObjectKey,
        changes: &[&PlanChange],
    ) -> Result<Vec<Result<(), ApiError>>, ApiError> {
        let mut conflicts = 0;
        let mut is_fresh = false;
        loop {
            let seen = self.look(key, is_fresh).await?;
            let stored = if is_fresh { seen } else { self.last_writes.newer(key, seen) };
            let decided = plan::decide(key, stored.as_deref(), changes.iter().copied());
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

    /// What an earlier version of this program has stored of a gang.
    async fn earlier(&self, change: &PlanChange) -> Result<Option<Arc<Object>>, ApiError> {
        let stored = self.look(&plan::earlier::key(change.gang()), false).await?;
        Ok(stored.filter(|stored| plan::earlier::is_earlier(stored)))
    }

    /// It stops the plan of an earlier term.
    async fn check_earlier(&self, change: &PlanChange) -> Result<(), ApiError> {
        let PlanChange::Write(plan) = change else { return Ok(()) };
        self.earlier(change).await?.map_or(Ok(()), |stored| plan::earlier::check(&stored, plan.term))
    }

    /// It goes with the gang's plan. `None` where there is nothing to remove.
    async fn remove_earlier(&self, change: &PlanChange) -> Option<Result<(), ApiError>> {
        let PlanChange::Remove { term, .. } = change else { return None };
        let removed = match self.earlier(change).await {
            Ok(stored) => match plan::earlier::removal(&*stored?, *term) {
                Ok(removal) => self.mutate(removal).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        // Gone as it should be.
        Some(if matches!(removed, Err(ApiError::NotFound(_))) { Ok(()) } else { removed })
    }
}
