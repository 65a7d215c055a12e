//! Queues that are set aside, and what is told of it at each. Their objects go in, as the core is told of them; what is
//! wrong with them together is found as the core finds it.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::ids::QueueName;
use phalanx_common::queue::QueueSpec;
use phalanx_common::units::{Millis, Time};
use phalanx_core::event::Event;
use phalanx_core::queues::{QueueProblem, problems};

use super::super::events::Happening;
use crate::api::{Kind, Object, ObjectKey};
use crate::convert::{Reading, event_of_object};

/// Reason of the event: the code of the reason that the queue's gangs have.
pub const SET_ASIDE: &str = "QueueSetAside";

/// What is wrong is told when it has stood for so long: a parent may come right after its child.
const STANDS: Millis = Millis(2_000);
/// Least time between two looks at all queues, however many of them are made at once.
const PAUSE: Millis = Millis(500);

#[derive(Debug)]
struct Known {
    uid: String,
    spec: QueueSpec,
}

/// What is wrong with a queue, since when, and whether it was told.
#[derive(Debug)]
struct Wrong {
    uid: String,
    text: String,
    since: Time,
    is_told: bool,
}

/// All queues, and what is wrong with them.
#[derive(Debug, Default)]
pub struct SetAside {
    queues: BTreeMap<QueueName, Known>,
    wrong: BTreeMap<QueueName, Wrong>,
    /// When they are looked at next, and were last.
    look_at: Option<Time>,
    looked: Time,
}

impl SetAside {
    /// A queue is there, or changed. Its status is no change.
    pub fn applied(&mut self, reading: &Reading, object: &Object) {
        let Some(Event::QueueApplied(spec)) = event_of_object(reading, object).event else { return };
        let known =
            Known { uid: object.metadata.uid.clone(), spec: QueueSpec { shown: None, open: true, ..spec } };
        let before = self.queues.get(&known.spec.name);
        if before.is_none_or(|before| before.uid != known.uid || before.spec != known.spec) {
            self.queues.insert(known.spec.name.clone(), known);
            self.look_soon();
        }
    }

    /// An object is gone; others may be wrong without it.
    pub fn deleted(&mut self, key: &ObjectKey) {
        if key.kind == Kind::Queue && self.queues.remove(&QueueName::from(key.name.as_str())).is_some() {
            self.look_soon();
        }
    }

    fn look_soon(&mut self) {
        let at = self.looked + PAUSE;
        self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
    }

    /// What is to be told now.
    pub fn due(&mut self, now: Time) -> Vec<Happening> {
        if self.look_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        (self.looked, self.look_at) = (now, None);
        let found = self.found();
        self.wrong.retain(|name, wrong| {
            let uid = self.queues.get(name).map(|known| &known.uid);
            found.get(name) == Some(&wrong.text) && uid == Some(&wrong.uid)
        });
        let mut happenings = Vec::new();
        for (name, text) in found {
            let Some(known) = self.queues.get(&name) else { continue };
            let key = ObjectKey::new(Kind::Queue, "", name.as_str());
            let new = || Wrong { uid: known.uid.clone(), text, since: now, is_told: false };
            let wrong = self.wrong.entry(name).or_insert_with(new);
            let at = wrong.since + STANDS;
            if wrong.is_told {
                continue;
            }
            if at > now {
                self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
                continue;
            }
            wrong.is_told = true;
            let (uid, note) = (wrong.uid.clone(), wrong.text.clone());
            happenings.push(Happening {
                key,
                uid,
                is_warning: true,
                reason: SET_ASIDE,
                action: "Reading",
                note,
            });
        }
        happenings
    }

    /// When it is looked next.
    pub const fn next(&self) -> Option<Time> {
        self.look_at
    }

    /// What is wrong with each queue, or with one above it.
    fn found(&self) -> BTreeMap<QueueName, String> {
        let specs: Vec<QueueSpec> = self.queues.values().map(|known| known.spec.clone()).collect();
        let own: BTreeMap<QueueName, QueueProblem> =
            problems(&specs).into_iter().map(|problem| (problem.queue.clone(), problem)).collect();
        if own.is_empty() {
            return BTreeMap::new();
        }
        let text = |name: &QueueName| match own.get(name) {
            Some(problem) => Some(format!(
                "{}; the queue is set aside: its gangs, and those of queues below it, wait until that is corrected",
                shown(problem)
            )),
            None => self.first_above(name, &own).map(|problem| {
                format!(
                    "Queue {} above it is set aside: {}; gangs of this queue wait until that is corrected",
                    problem.queue,
                    shown(problem)
                )
            }),
        };
        self.queues.keys().filter_map(|name| Some((name.clone(), text(name)?))).collect()
    }

    /// The nearest queue above this one that has a problem of its own.
    fn first_above<'p>(
        &self,
        name: &QueueName,
        own: &'p BTreeMap<QueueName, QueueProblem>,
    ) -> Option<&'p QueueProblem> {
        let mut passed = BTreeSet::new();
        let mut at = name;
        // Whoever stands in a circle has a problem of its own, and is where this ends.
        while passed.insert(at) {
            at = self.queues.get(at)?.spec.parent.as_ref()?;
            if let Some(problem) = own.get(at) {
                return Some(problem);
            }
        }
        None
    }

    /// Nothing is known.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.wrong.is_empty()
    }
}

/// Field and value, as people find them in the object.
fn shown(problem: &QueueProblem) -> String {
    let QueueProblem { field, message, .. } = problem;
    if field == "spec" { format!("{field}: {message}") } else { format!("spec.{field}: {message}") }
}
