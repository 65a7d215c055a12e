//! What all processes of a coordinator together have bound, by their recordings, beside what store and ledgers had.
//!
//! A recording is written by a thread of its own, so that no disk delays a decision: of a process that was killed the
//! last moments are in no recording, though they took effect. What was bound is therefore told by store and ledgers;
//! the recordings have to agree with them, and must know all of it but what was bound by one that was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use phalanx_common::gang::PodBinding;
use phalanx_coordinator::recorder::chain_of;
use serde_json::Value;

use crate::look::Seen;

/// What recordings tell of the writes that bind pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// Places (node and lease) by pod, of writes that were done.
    done: BTreeMap<String, Vec<(String, String)>>,
    /// Pods of plans that were written or found.
    planned: BTreeSet<String>,
    /// Writes whose outcome is not known to be good, by chain of recordings and action.
    open: BTreeMap<(String, u64), (String, (String, String))>,
}

impl Bindings {
    /// A line of a recording of this chain.
    fn line(&mut self, chain: &str, line: &str) {
        // The last line of a process that was killed may be cut off.
        let Ok(record) = serde_json::from_str::<Value>(line) else { return };
        for action in record["cycle"]["actions"].as_array().into_iter().flatten() {
            let command = &action["command"];
            if let Some(bind) = command.get("Bind") {
                let binding: PodBinding = serde_json::from_value(bind["binding"].clone()).unwrap();
                let place = (binding.node.to_string(), binding.lease.unwrap().to_string());
                let pod = bind["pod"].as_str().unwrap().to_owned();
                self.open.insert((chain.to_owned(), action["id"].as_u64().unwrap()), (pod, place));
            }
            self.plan(&command["WritePlan"]);
        }
        let event = &record["event"]["event"];
        // The process that wrote it may have died before that was recorded.
        self.plan(&event["PlanFound"]);
        let outcome = &event["ActionDone"];
        if outcome["outcome"] == "Done"
            && let Some((pod, place)) =
                outcome["action"].as_u64().and_then(|id| self.open.remove(&(chain.to_owned(), id)))
        {
            self.done.entry(pod).or_default().push(place);
        }
    }

    fn plan(&mut self, plan: &Value) {
        let pods = plan["pods"].as_array().into_iter().flatten();
        self.planned.extend(pods.map(|pod| pod["pod"].as_str().unwrap().to_owned()));
    }

    /// All lines of all recordings of these coordinators.
    pub fn of(state_dirs: &[&Path]) -> Self {
        let mut bindings = Self::default();
        for state_dir in state_dirs {
            let files = fs::read_dir(state_dir.join("recordings")).unwrap();
            let paths: BTreeSet<_> = files.map(|entry| entry.unwrap().path()).collect();
            for path in paths {
                let chain = format!("{} {}", state_dir.display(), chain_of(&path).unwrap().0);
                fs::read_to_string(&path).unwrap().lines().for_each(|line| bindings.line(&chain, line));
            }
        }
        bindings
    }

    /// No pod was bound a second time, or without a plan, or elsewhere than was seen; what was bound since the last
    /// death is recorded; and so many gangs were bound.
    pub fn check(&self, seen: &Seen, gangs: usize) {
        for (pod, places) in &self.done {
            assert_eq!(places.len(), 1, "{pod} was bound {} times: {places:?}", places.len());
            assert!(self.planned.contains(pod), "{pod} was bound without a plan");
            let place = seen.bound.get(pod).map(|place| (place.node.clone(), place.lease.clone()));
            assert_eq!(place.as_ref(), places.first(), "{pod}: what was seen, and what was recorded");
        }
        for (pod, place) in &seen.bound {
            let place = (pod.clone(), (place.node.clone(), place.lease.clone()));
            let is_recorded = self.done.contains_key(pod) || self.open.values().any(|open| *open == place);
            assert!(is_recorded || seen.before_death.contains(pod), "no recording has {place:?}");
        }
        let bound: BTreeSet<_> = seen.bound.values().map(|place| &place.gang).collect();
        assert_eq!(bound.len(), gangs, "gangs that were seen bound: {bound:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::Place;

    const PLAN: &str =
        r#"{"cycle":{"at":1,"actions":[{"id":1,"command":{"WritePlan":{"pods":[{"pod":"a"}]}}}]}}"#;
    const FOUND: &str = r#"{"event":{"at":1,"event":{"PlanFound":{"pods":[{"pod":"a"}]}}}}"#;
    const BIND: &str = r#"{"cycle":{"at":1,"actions":[{"id":2,"command":{"Bind":{"pod":"a","binding":{"node":"n","lease":{"term":1,"serial":1},"gpus":[]}}}}]}}"#;
    const DONE: &str = r#"{"event":{"at":2,"event":{"ActionDone":{"action":2,"outcome":"Done"}}}}"#;
    const UNKNOWN: &str = r#"{"event":{"at":2,"event":{"ActionDone":{"action":2,"outcome":"Unknown"}}}}"#;

    fn seen(node: &str) -> Seen {
        let mut seen = Seen::default();
        let place = Place { gang: "team/g".into(), node: node.into(), lease: "1-1".into() };
        seen.bound("a", "team/a", place);
        seen
    }

    /// What `check` says of these chains, and of one gang.
    fn said(chains: &[&[&str]], seen: &Seen, gangs: usize) -> Result<(), String> {
        let mut bindings = Bindings::default();
        for (number, lines) in chains.iter().enumerate() {
            lines.iter().for_each(|line| bindings.line(&number.to_string(), line));
        }
        let check = std::panic::AssertUnwindSafe(|| bindings.check(seen, gangs));
        std::panic::catch_unwind(check).map_err(|panic| panic.downcast_ref::<String>().unwrap().clone())
    }

    fn fails(chains: &[&[&str]], seen: &Seen, gangs: usize, text: &str) {
        let said = said(chains, seen, gangs).expect_err(text);
        assert!(said.contains(text), "{text}: {said}");
    }

    #[test]
    fn the_checks_of_recordings_can_fail() {
        assert_eq!(said(&[&[PLAN, BIND, DONE]], &seen("n"), 1), Ok(()));
        fails(&[&[PLAN, BIND, DONE]], &seen("n"), 2, "gangs that were seen bound");
        fails(&[&[PLAN, BIND, DONE]], &seen("m"), 1, "what was seen, and what was recorded");
        fails(&[&[PLAN, BIND, DONE]], &Seen::default(), 0, "what was seen, and what was recorded");
        fails(&[&[BIND, DONE]], &seen("n"), 1, "without a plan");
        // The next process has the same numbers of actions.
        fails(&[&[PLAN, BIND, DONE], &[BIND, DONE]], &seen("n"), 1, "was bound 2 times");
        // A write without a good answer may have taken effect, but only where it was sent.
        assert_eq!(said(&[&[PLAN, BIND, UNKNOWN]], &seen("n"), 1), Ok(()));
        fails(&[&[PLAN, BIND, UNKNOWN]], &seen("m"), 1, "no recording has");
        // The process that wrote the plan died before that was recorded, or before it had recorded anything.
        assert_eq!(said(&[&[], &[FOUND, BIND, DONE]], &seen("n"), 1), Ok(()));
        fails(&[&[PLAN]], &seen("n"), 1, "no recording has");
        let mut killed = seen("n");
        killed.before_death.insert("a".into());
        assert_eq!(said(&[&[PLAN]], &killed, 1), Ok(()));
        fails(&[&[PLAN]], &killed, 2, "gangs that were seen bound");
    }
}
