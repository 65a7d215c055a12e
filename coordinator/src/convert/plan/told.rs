//! What of the stored plans was told already. An object holds plans of many gangs: a write for one of them must not tell
//! of all the others once more, nor read them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use phalanx_core::event::Event;

use super::{entries, read_entry};
use crate::api::{Change, ChangeBody, Kind, Object, ObjectKey};
use crate::convert::Reading;

/// Marks of what was told, by object.
#[derive(Debug, Default)]
pub struct PlansTold {
    told: BTreeMap<ObjectKey, BTreeSet<u64>>,
}

fn mark_of(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl PlansTold {
    /// The facts that a stored object of plans is, without those that it was before, and what of it cannot be read.
    pub fn object(&mut self, reading: &Reading, object: &Object) -> (Vec<Event>, Vec<String>) {
        let (mut events, mut warnings) = (Vec::new(), Vec::new());
        if object.kind != Kind::GangPlan {
            return (events, warnings);
        }
        let before = self.told.remove(&object.key()).unwrap_or_default();
        let mut now = BTreeSet::new();
        let mut is_news = |mark: u64| {
            now.insert(mark);
            !before.contains(&mark)
        };
        match entries(reading, object) {
            Ok(entries) => {
                for (name, entry) in entries.filter(|(name, entry)| is_news(mark_of((name, entry)))) {
                    match read_entry(object, name, entry) {
                        Ok(plan) => events.push(Event::PlanFound(plan)),
                        Err(warning) => warnings.push(warning),
                    }
                }
            }
            Err(warning) => warnings.extend(Some(warning).filter(|warning| is_news(mark_of(warning)))),
        }
        if !now.is_empty() {
            self.told.insert(object.key(), now);
        }
        (events, warnings)
    }

    /// The same of a change. That plans are gone is no fact: whoever removes one knows.
    pub fn change(&mut self, reading: &Reading, change: &Change) -> (Vec<Event>, Vec<String>) {
        match &change.body {
            ChangeBody::Applied(object) => self.object(reading, object),
            ChangeBody::Deleted { key, .. } => {
                self.told.remove(key);
                (Vec::new(), Vec::new())
            }
        }
    }
}
