//! What of the stored plans was told already. An object holds plans of many gangs: a write for one of them must not tell
//! of all the others once more.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use phalanx_core::event::Event;

use super::{Plans, plans_of_object};
use crate::api::{Change, ChangeBody, Kind, Object, ObjectKey};
use crate::convert::Reading;

/// Plans that were told, by object.
#[derive(Debug, Default)]
pub struct PlansTold {
    told: BTreeMap<ObjectKey, BTreeMap<String, u64>>,
}

impl PlansTold {
    /// The facts that a stored object of plans is, without those that it was before.
    pub fn object(&mut self, reading: &Reading, object: &Object) -> (Vec<Event>, Vec<String>) {
        if object.kind != Kind::GangPlan {
            return (Vec::new(), Vec::new());
        }
        let Plans { found, warnings } = plans_of_object(reading, object);
        let before = self.told.remove(&object.key()).unwrap_or_default();
        let (mut now, mut events) = (BTreeMap::new(), Vec::new());
        for plan in found {
            let mut hasher = DefaultHasher::new();
            format!("{plan:?}").hash(&mut hasher);
            let (gang, mark) = (plan.gang.to_string(), hasher.finish());
            if before.get(&gang) != Some(&mark) {
                events.push(Event::PlanFound(plan));
            }
            now.insert(gang, mark);
        }
        let mut news = Vec::new();
        for warning in warnings {
            let mut hasher = DefaultHasher::new();
            warning.hash(&mut hasher);
            let mark = hasher.finish();
            if before.get(&warning) != Some(&mark) {
                news.push(warning.clone());
            }
            now.insert(warning, mark);
        }
        if !now.is_empty() {
            self.told.insert(object.key(), now);
        }
        (events, news)
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
