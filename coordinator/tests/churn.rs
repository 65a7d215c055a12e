//! Nothing is kept of finished jobs: by the parts of the shell one by one, and by the whole coordinator, whose numbers
//! have the same series whatever happens.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::ids::{LeaseId, NodeName, PodUid};
use phalanx_common::units::{Millis, Time};
use phalanx_coordinator::agents::PodReport;
use phalanx_coordinator::api::store::Store;
use phalanx_coordinator::api::{ChangeBody, Kind, Mutation, Object, ObjectKey, Preconditions};
use phalanx_coordinator::coordinator::Coordinator;
use phalanx_coordinator::jobs::Jobs;
use phalanx_coordinator::manifest::parse;
use phalanx_coordinator::recorder::{RecordingLimits, chain_of};
use phalanx_coordinator::replay::replay;
use phalanx_coordinator::runner::{Objects, PodLedger};
use support::cluster::{agents, held, job};
use support::{apply_ok, ask, config, get, stop, until, until_phase};

/// Changes that the store of the parts remembers.
const LOG: usize = 500;

/// The parts of the standalone runner beside a store.
struct Parts {
    store: Store,
    jobs: Jobs,
    ledger: PodLedger,
    objects: Objects,
    seen: u64,
    now: u64,
}

impl Parts {
    fn mutate(&mut self, mutation: Mutation) -> Arc<Object> {
        self.now += 1;
        self.store.mutate(mutation, Time(self.now), &format!("uid-{}", self.now)).unwrap()
    }

    /// Follows changes and does what is wanted until nothing is.
    fn settle(&mut self) {
        loop {
            for change in self.store.changes_since(self.seen, usize::MAX).unwrap() {
                self.seen = change.resource_version;
                self.jobs.change(&change);
                match change.body {
                    ChangeBody::Applied(object) => drop(self.objects.insert(object.key(), object)),
                    ChangeBody::Deleted { key, uid } => {
                        self.objects.remove(&key);
                        self.ledger.forget(&uid);
                    }
                }
            }
            let mut writes = self.ledger.look(&self.objects, Time(self.now)).writes;
            writes.extend(self.jobs.writes(Time(self.now)).mutations);
            if writes.is_empty() {
                return;
            }
            writes.into_iter().for_each(|write| drop(self.mutate(write)));
        }
    }

    /// A job is made, its pods run and end, and it is deleted: every third while its pods still run.
    fn live(&mut self, number: u64) {
        let text = job(&format!("job-{number}"), "default", 2, "nvidia.com/gpu: 1", "1s");
        let parsed = parse(&text, "job.yaml").objects.remove(0);
        let key = parsed.key();
        self.mutate(Mutation::Create(Box::new(parsed)));
        // Pods are made when their gang is admitted.
        self.settle();
        let groups = self.objects.values().filter(|object| object.kind == Kind::PodGroup);
        let group = groups.map(|group| group.key()).next().unwrap();
        let status = serde_json::json!({ "phase": "Inqueue" });
        self.mutate(Mutation::UpdateStatus { key: group, preconditions: Preconditions::default(), status });
        self.settle();
        let pods: Vec<Arc<Object>> =
            self.objects.values().filter(|object| object.kind == Kind::Pod).cloned().collect();
        assert_eq!(pods.len(), 2, "job {number}");
        let node = NodeName::from("n1");
        for (at, pod) in pods.iter().enumerate() {
            let lease = LeaseId { term: 1, serial: number * 2 + at as u64 + 1 };
            let annotations = BTreeMap::from([("phalanx.dev/lease-id".to_owned(), lease.to_string())]);
            self.mutate(Mutation::Bind {
                key: pod.key(),
                preconditions: Preconditions::default(),
                node: node.as_str().to_owned(),
                annotations,
            });
            self.settle();
            let uid = PodUid::from(pod.metadata.uid.as_str());
            self.report(PodReport::Started { node: node.clone(), session: 1, pod: uid.clone() });
            if number.is_multiple_of(3) {
                self.delete(&key);
                self.report(PodReport::Stopped { node: node.clone(), pod: uid });
            } else {
                self.report(PodReport::Ended { node: node.clone(), pod: uid, succeeded: true });
            }
            self.report(PodReport::LeaseGone { node: node.clone(), session: 1, lease });
            if !self.objects.contains_key(&key) && at == 0 {
                // The other pod went with the job before it was bound.
                break;
            }
        }
        self.delete(&key);
    }

    fn report(&mut self, report: PodReport) {
        self.ledger.report(report);
        self.settle();
    }

    fn delete(&mut self, key: &ObjectKey) {
        if self.objects.contains_key(key) {
            self.mutate(Mutation::Delete { key: key.clone(), preconditions: Preconditions::default() });
            self.settle();
        }
    }
}

#[test]
fn case_107_the_parts_of_the_shell_keep_nothing_of_jobs_that_are_gone() {
    let mut parts = Parts {
        store: Store::new(LOG),
        jobs: Jobs::new(),
        ledger: PodLedger::default(),
        objects: Objects::new(),
        seen: 0,
        now: 0,
    };
    for number in 0..300 {
        parts.live(number);
        assert!(parts.objects.is_empty(), "job {number}: {:?}", parts.objects.keys());
    }
    let tables = ["objects", "pods_of_jobs", "owners_of_pods", "lone_pods", "to_look_at"];
    assert_eq!(parts.jobs.kept(), tables.map(|table| (table, 0)));
    assert_eq!(parts.store.kept(), [("objects", 0), ("uids", 0), ("owners", 0), ("log", LOG)]);
    let ledger = parts.ledger.kept();
    assert_eq!(ledger[0], ("reports", 0));
    assert!(ledger[1].1 <= 600, "{ledger:?}");
}

/// Names and labels of all series, and their values.
async fn series(coordinator: &Coordinator) -> BTreeMap<String, f64> {
    let text = get(coordinator, "/metrics").await.text;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

async fn one_round(coordinator: &Coordinator, round: u32) {
    let name = format!("round-{round}");
    let queue = format!(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {{name: {name}}}\n\
         spec: {{capability: {{nvidia.com/gpu: 8}}}}\n---\n"
    );
    apply_ok(coordinator, &format!("{queue}{}", job(&name, &name, 2, "nvidia.com/gpu: 1", "20ms"))).await;
    until_phase(coordinator, &name, "Completed").await;
    assert_eq!(
        ask(coordinator, "DELETE", &format!("/v1/objects/job/default/{name}"), None).await.status,
        200
    );
    until(coordinator, "the job is gone", |state| state.gangs.is_empty() && held(state) == 0).await;
    assert_eq!(ask(coordinator, "DELETE", &format!("/v1/objects/queue/-/{name}"), None).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_107_the_coordinator_keeps_nothing_and_its_metrics_stay_the_same_series() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.recording = RecordingLimits { file_bytes: 30_000, files: 4 };
    config.settings.binding_deadline_ms = Millis(3_000);
    config.settings.confirm_timeout_ms = Millis(1_000);
    config.settings.pods_timeout_ms = Millis(3_000);
    let coordinator = Coordinator::start(&config).await.unwrap();
    let at_start: BTreeSet<String> = series(&coordinator).await.into_keys().collect();
    let _agents = agents(&coordinator, directory.path(), 2, 4).await;
    for round in 0..12 {
        one_round(&coordinator, round).await;
    }
    let mut kept = BTreeMap::new();
    for _ in 0..600 {
        kept = series(&coordinator).await;
        kept.retain(|name, value| {
            let stays = ["nodes", "node_numbers", "topology_classes", "gpu_sets", "gpu_models", "queues"];
            let is_of_cluster = stays.iter().any(|what| name.contains(&format!("what=\"{what}\"")));
            name.starts_with("phalanx_kept{") && !is_of_cluster && *value > 0.0
        });
        if kept.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(kept.is_empty(), "{kept:?}");
    let at_end: BTreeSet<String> = series(&coordinator).await.into_keys().collect();
    assert_eq!(at_start, at_end);
    for kind in ["job", "podgroup", "pod", "gangplan"] {
        let left = get(&coordinator, &format!("/v1/objects/{kind}")).await;
        assert_eq!(left.json()["items"].as_array().map(Vec::len), Some(0), "{kind}: {}", left.text);
    }
    stop(coordinator).await;
    // The recording went on in new files, and the oldest that is left replays without those before it.
    let recordings = directory.path().join("recordings");
    let mut files: Vec<_> =
        std::fs::read_dir(recordings).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() == 4 && chain_of(&files[0]).unwrap().1 > 0, "{files:?}");
    let replayed = replay(&files[0], &mut std::io::sink()).unwrap();
    assert_eq!((replayed.difference, replayed.notes), (None, Vec::new()));
    assert!(replayed.actions > 0);
}
