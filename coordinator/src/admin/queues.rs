//! Queues as they are applied and deleted: the tree that they make must hold together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_common::ids::QueueName;
use phalanx_common::queue::QueueSpec;
use phalanx_core::event::Event;
use phalanx_core::queues::{QueueProblem, ROOT, problems};
use serde_json::Value;

use super::AdminParts;
use crate::api::{Api, ApiError, Kind, Object, ObjectKey};
use crate::convert;

/// Gangs, or queues, named in the text of a refusal.
const NAMES_SHOWN: usize = 5;
/// Pause between two looks at the gangs of a queue that are deleted.
const PAUSE: Duration = Duration::from_millis(50);
/// Levels of queues that are counted: more than may be there.
const MOST_DEPTH: usize = 16;

/// How the problem of a queue ends whose parent is not there.
const MISSING: &str = "does not exist";

/// Queues by name.
type Specs = BTreeMap<QueueName, QueueSpec>;

fn spec_of<A: Api>(parts: &AdminParts<A>, object: &Object) -> Option<QueueSpec> {
    match convert::event_of_object(&parts.api.reading(), object).event {
        Some(Event::QueueApplied(spec)) => Some(spec),
        _ => None,
    }
}

async fn stored<A: Api>(parts: &AdminParts<A>) -> Result<Specs, ApiError> {
    let (objects, _) = parts.api.list(Some(Kind::Queue)).await?;
    let specs = objects.iter().filter_map(|object| spec_of(parts, object));
    Ok(specs.map(|spec| (spec.name.clone(), spec)).collect())
}

/// The tree of queues as a text makes it, and what of the text is refused for it.
#[derive(Default)]
pub(super) struct Tree {
    refused: BTreeMap<QueueName, QueueProblem>,
    /// Queues that have others below them already.
    parents: BTreeSet<QueueName>,
}

impl Tree {
    /// What is stored, with the queues of a text over it. Those of the text that break it are taken out one after
    /// another, because others of it may hang below them.
    pub(super) async fn of_text<A: Api>(parts: &AdminParts<A>, text: &[Object]) -> Result<Self, ApiError> {
        let mut tree = Self::default();
        let wanted: Specs = text
            .iter()
            .filter(|object| object.kind == Kind::Queue)
            .filter_map(|object| spec_of(parts, object))
            .map(|spec| (spec.name.clone(), spec))
            .collect();
        if wanted.is_empty() {
            return Ok(tree);
        }
        let stored = stored(parts).await?;
        tree.parents = stored.values().filter_map(|spec| spec.parent.clone()).collect();
        let before: BTreeSet<QueueName> = of(&stored).into_iter().map(|problem| problem.queue).collect();
        let mut all = stored.clone();
        all.extend(wanted.clone());
        // Each round takes at least one out.
        for _ in 0..=wanted.len() {
            let found = of(&all);
            let mut broken: Vec<QueueProblem> =
                found.iter().filter(|problem| wanted.contains_key(&problem.queue)).cloned().collect();
            // A stored queue that this text leaves without its place is not the text's to break.
            let harmed = found
                .into_iter()
                .filter(|problem| !wanted.contains_key(&problem.queue) && !before.contains(&problem.queue));
            for problem in harmed {
                let above = above(&problem.queue, &all);
                let cause = above.iter().find(|name| wanted.contains_key(*name));
                broken.extend(cause.map(|cause| QueueProblem {
                    queue: cause.clone(),
                    field: problem.field.clone(),
                    message: format!(
                        "queue {}, which is below it, would be wrong: {}",
                        problem.queue, problem
                    ),
                }));
            }
            broken.retain(|problem| !tree.refused.contains_key(&problem.queue));
            if broken.is_empty() {
                break;
            }
            for problem in broken {
                match stored.get(&problem.queue) {
                    Some(spec) => drop(all.insert(problem.queue.clone(), spec.clone())),
                    None => drop(all.remove(&problem.queue)),
                }
                tree.refused.entry(problem.queue.clone()).or_insert(problem);
            }
        }
        Ok(tree)
    }

    /// Refuses a queue that the tree has no place for.
    pub(super) async fn check<A: Api>(&self, parts: &AdminParts<A>, wanted: &Object) -> Result<(), ApiError> {
        if wanted.kind != Kind::Queue {
            return Ok(());
        }
        if let Some(problem) = self.refused.get(&QueueName::from(wanted.metadata.name.as_str())) {
            let QueueProblem { field, message, .. } = problem;
            let fix = if message.ends_with(MISSING) { ": apply it first, or in the same file" } else { "" };
            return Err(ApiError::Invalid(format!("spec.{field}: {message}{fix}")));
        }
        let parent = spec_of(parts, wanted).and_then(|spec| spec.parent);
        let Some(parent) = parent.filter(|parent| !self.parents.contains(parent)) else { return Ok(()) };
        let key = ObjectKey::new(Kind::Queue, "", parent.as_str());
        let users = users_of(parts, &key).await?;
        if users.is_empty() {
            return Ok(());
        }
        let names = shown(users.iter().map(|user| user.name.as_str()));
        Err(ApiError::Conflict(format!(
            "spec.parent: {key} has gangs of its own ({names}), and a queue with others below it takes none: name another \
             parent, or move the gangs first"
        )))
    }
}

/// The queues that name this one as their parent, where there are some.
fn below(name: &str, stored: &Specs) -> Option<String> {
    let is_below = |spec: &&QueueSpec| spec.parent.as_ref().is_some_and(|above| above.as_str() == name);
    let names = shown(stored.values().filter(is_below).map(|spec| spec.name.as_str()));
    (!names.is_empty()).then_some(names)
}

/// The first names of many.
fn shown<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.take(NAMES_SHOWN + 1).collect();
    let more = if names.len() > NAMES_SHOWN { " and more" } else { "" };
    format!("{}{more}", names[..names.len().min(NAMES_SHOWN)].join(", "))
}

fn of(specs: &Specs) -> Vec<QueueProblem> {
    problems(&specs.values().cloned().collect::<Vec<_>>())
}

/// A queue's ancestors, from below.
fn above(name: &QueueName, all: &Specs) -> Vec<QueueName> {
    let mut names = Vec::new();
    let mut next = all.get(name).and_then(|spec| spec.parent.clone());
    while let Some(parent) = next.filter(|parent| !names.contains(parent)) {
        next = all.get(&parent).and_then(|spec| spec.parent.clone());
        names.push(parent);
    }
    names
}

/// Parents of the queues of a text.
pub(super) fn parents(text: &[Object]) -> BTreeMap<&str, &str> {
    let queues = text.iter().filter(|object| object.kind == Kind::Queue);
    queues.filter_map(|queue| Some((&*queue.metadata.name, queue.spec.get("parent")?.as_str()?))).collect()
}

/// How deep an object stands in the tree of its text: what is below others is deleted before them.
pub(super) fn depth(object: &Object, parents: &BTreeMap<&str, &str>) -> usize {
    if object.kind != Kind::Queue {
        return 0;
    }
    let up = |name: &&str| parents.get(name).copied();
    std::iter::successors(Some(&*object.metadata.name), up).take(MOST_DEPTH).count()
}

/// A queue that is in use stays.
pub(super) async fn check_deletion<A: Api>(parts: &AdminParts<A>, key: &ObjectKey) -> Result<(), ApiError> {
    if key.name == ROOT {
        return Err(ApiError::Conflict(format!("{key} is above all queues and cannot be deleted")));
    }
    if key.name == parts.default_queue {
        return Err(ApiError::Conflict(format!(
            "{key} is the queue of gangs that name none and cannot be deleted"
        )));
    }
    if let Some(names) = below(&key.name, &stored(parts).await?) {
        return Err(ApiError::Conflict(format!("{key} has queues below it ({names}): delete them first")));
    }
    let users = users_of(parts, key).await?;
    let names: Vec<&str> = users.iter().take(NAMES_SHOWN).map(|user| user.name.as_str()).collect();
    let names = names.join(", ");
    match users.len() {
        0 => Ok(()),
        1 => Err(ApiError::Conflict(format!("{key} is used by 1 gang ({names}): delete it first"))),
        count => {
            let more = if count > NAMES_SHOWN { " and more" } else { "" };
            let text = format!("{key} is used by {count} gangs ({names}{more}): delete them first");
            Err(ApiError::Conflict(text))
        }
    }
}

/// Waits while all gangs of a queue are about to be gone.
pub(super) async fn wait_for_users<A: Api>(
    parts: &AdminParts<A>,
    queue: &ObjectKey,
    limit: Instant,
) -> Result<(), ApiError> {
    loop {
        let users = users_of(parts, queue).await?;
        if users.is_empty() || users.iter().any(|user| !user.ending) || Instant::now() >= limit {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A gang of a queue, by the object that people know.
struct User {
    name: String,
    /// It was deleted and still has to stop.
    ending: bool,
}

async fn users_of<A: Api>(parts: &AdminParts<A>, queue: &ObjectKey) -> Result<Vec<User>, ApiError> {
    let uses =
        |object: &&Arc<Object>| object.spec.get("queue").and_then(Value::as_str) == Some(queue.name.as_str());
    let (jobs, _) = parts.api.list(Some(Kind::Job)).await?;
    let mut users: Vec<User> =
        jobs.iter().filter(uses).map(|job| User { name: job.key().to_string(), ending: false }).collect();
    let (groups, _) = parts.api.list(Some(Kind::PodGroup)).await?;
    for group in groups.iter().filter(uses) {
        match &group.metadata.owner {
            None => users.push(User { name: group.key().to_string(), ending: false }),
            Some(owner) if owner.kind == Kind::Pod => {
                let pod = ObjectKey::new(Kind::Pod, &group.metadata.namespace, &owner.name);
                let ending = match parts.api.get(&pod).await {
                    Ok(pod) => pod.metadata.deletion.is_some(),
                    Err(ApiError::NotFound(_)) => true,
                    Err(error) => return Err(error),
                };
                users.push(User { name: pod.to_string(), ending });
            }
            // The same gang as its job.
            Some(_) => {}
        }
    }
    Ok(users)
}
