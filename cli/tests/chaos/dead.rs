//! What is looked at before a process that died is started again: its disk, which nobody repairs meanwhile. And what
//! all processes of a coordinator together have bound, by their recordings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use phalanx_coordinator::api::embedded::EmbeddedApi;
use phalanx_coordinator::api::store::node_name;
use phalanx_coordinator::api::{Api, Kind};
use phalanx_coordinator::recorder::chain_of;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::look::{Seen, in_store, on_disk};

impl Seen {
    /// After the death of a coordinator, an agent, or both, and before any of them is started again: what is bound now
    /// stays bound to its place, and no GPU has two holders.
    pub fn look_at_the_dead(&mut self, cluster: &Cluster) {
        let coordinator = &cluster.coordinator;
        if coordinator.process.as_ref().is_none_or(crate::cluster::Running::was_reaped) {
            self.store_on_disk(&coordinator.state_dir);
        } else {
            // It lives, and where it does not answer at the moment it is looked at later.
            let _ = in_store(coordinator, self);
        }
        on_disk(&cluster.agents, self);
    }

    /// The pods in the store of a coordinator that does not run.
    fn store_on_disk(&mut self, state_dir: &Path) {
        // A copy: opening repairs the file, and the next process is to find it as it was left.
        let copy = tempfile::tempdir().unwrap();
        let file = copy.path().join("objects.redb");
        fs::copy(state_dir.join("objects.redb"), &file).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (pods, _) = runtime.block_on(async {
            let api = EmbeddedApi::open(&file).unwrap();
            api.list(Some(Kind::Pod)).await.unwrap()
        });
        for pod in pods {
            let Some(node) = node_name(&pod) else { continue };
            let lease = pod.annotation("phalanx.dev/lease-id").unwrap_or_default();
            let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
            self.bound(&pod.metadata.uid, &name, (node.to_owned(), lease.to_owned()));
        }
    }
}

/// What recordings tell of the writes that bind pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// Places by pod, of writes that were done.
    done: BTreeMap<String, Vec<String>>,
    /// Gangs' UIDs by pod, from the plans.
    gangs: BTreeMap<String, String>,
    /// Writes that wait for their outcome, by chain of recordings and action.
    open: BTreeMap<(u64, u64), (String, String)>,
}

impl Bindings {
    /// A line of a recording of this chain.
    fn line(&mut self, chain: u64, line: &str) {
        // The last line of a process that was killed may be cut off.
        let Ok(record) = serde_json::from_str::<Value>(line) else { return };
        for action in record["cycle"]["actions"].as_array().into_iter().flatten() {
            let command = &action["command"];
            if let Some(bind) = command.get("Bind") {
                let place = bind["binding"].to_string();
                let id = action["id"].as_u64().unwrap();
                self.open.insert((chain, id), (bind["pod"].as_str().unwrap().to_owned(), place));
            }
            if let Some(plan) = command.get("WritePlan") {
                for pod in plan["pods"].as_array().unwrap() {
                    let pod = pod["pod"].as_str().unwrap().to_owned();
                    self.gangs.insert(pod, plan["gang_uid"].as_str().unwrap().to_owned());
                }
            }
        }
        let outcome = &record["event"]["event"]["ActionDone"];
        if outcome["outcome"] == "Done"
            && let Some((pod, place)) =
                outcome["action"].as_u64().and_then(|id| self.open.remove(&(chain, id)))
        {
            self.done.entry(pod).or_default().push(place);
        }
    }

    /// All lines of all recordings of a coordinator.
    pub fn of(state_dir: &Path) -> Self {
        let files = fs::read_dir(state_dir.join("recordings")).unwrap();
        let paths: BTreeSet<_> = files.map(|entry| entry.unwrap().path()).collect();
        let mut bindings = Self::default();
        for path in paths {
            let (chain, _) = chain_of(&path).unwrap();
            fs::read_to_string(&path).unwrap().lines().for_each(|line| bindings.line(chain, line));
        }
        bindings
    }

    /// No pod was bound a second time, each belongs to a planned gang, and at least so many gangs were bound.
    pub fn check(&self, gangs: usize) {
        for (pod, places) in &self.done {
            assert_eq!(places.len(), 1, "{pod} was bound {} times: {places:?}", places.len());
            assert!(self.gangs.contains_key(pod), "{pod} was bound without a plan");
        }
        // The outcome of a write during which the process died is in no recording.
        let tried = self.open.values().map(|(pod, _)| pod);
        let bound: BTreeSet<_> =
            self.done.keys().chain(tried).filter_map(|pod| self.gangs.get(pod)).collect();
        assert!(bound.len() >= gangs, "{} gangs were bound by the recordings, of {gangs}", bound.len());
    }
}

#[test]
fn the_checks_of_recordings_can_fail() {
    let plan = r#"{"cycle":{"at":1,"actions":[{"id":1,"command":{"WritePlan":{"gang_uid":"g","pods":[{"pod":"a"}]}}},
        {"id":2,"command":{"Bind":{"pod":"a","binding":{"node":"n"}}}}]}}"#
        .replace('\n', "");
    let done = r#"{"event":{"at":2,"event":{"ActionDone":{"action":2,"outcome":"Done"}}}}"#;
    let unknown = done.replace(r#""Done"}"#, r#""Unknown"}"#);
    let mut bindings = Bindings::default();
    for line in [&plan, done, &plan, unknown.as_str()] {
        bindings.line(1, line);
    }
    bindings.check(1);
    assert!(
        std::panic::catch_unwind(|| bindings.check(2)).is_err(),
        "a gang that was not bound was not missed"
    );
    // The next process has the same numbers of actions.
    for line in [&plan, done] {
        bindings.line(2, line);
    }
    assert!(
        std::panic::catch_unwind(|| bindings.check(1)).is_err(),
        "a pod that was bound twice was not seen"
    );
}
