//! Gangs that compete for the same GPUs, and how they get their turn one after the other.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::look::{Seen, settles};

/// Long enough for what no deadline stands behind.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A job of `pods` pods with `gpus` GPUs each; its pods run until they are stopped.
pub fn job(name: &str, pods: usize, gpus: usize) -> String {
    format!(
        "apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: {name}, namespace: team}}
spec:
  minAvailable: {pods}
  schedulerName: phalanx
  tasks:
    - name: worker
      replicas: {pods}
      template:
        metadata: {{annotations: {{phalanx.dev/run-for: 1h}}}}
        spec:
          containers:
            - name: main
              image: example/train
              resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
---
"
    )
}

/// Two gangs of two whole nodes and one of four pods: on three nodes of four GPUs one of them has to wait.
pub fn rivals() -> String {
    let mut text = String::new();
    for (name, pods, gpus) in [("alpha", 2, 4), ("beta", 4, 1), ("gamma", 2, 4)] {
        let _ = write!(text, "{}", job(name, pods, gpus));
    }
    text
}

/// Names of the gangs that run. A job's gang is named after it, with a part of its UID.
pub fn names_of_running(phases: &BTreeMap<String, String>) -> Vec<String> {
    let names = phases.iter().filter(|(_, phase)| *phase == "running").map(|(gang, _)| gang);
    let mut names: Vec<String> = names.map(|gang| gang.split('-').next().unwrap().to_owned()).collect();
    names.sort_unstable();
    names
}

/// After a fault: everything is in order within `limit`, and some gang runs. Then whoever runs is deleted, until each
/// of `total` gangs has run once; in the end nothing is left.
pub fn run_out(cluster: &Cluster, seen: &mut Seen, limit: Duration, total: usize) {
    let mut phases =
        settles(cluster, seen, limit, "after the fault", |phases| !names_of_running(phases).is_empty());
    let mut done = 0;
    loop {
        let names = names_of_running(&phases);
        done += names.len();
        for name in &names {
            let deleted = cluster.coordinator.run(&["delete", "job", name]);
            assert_eq!(deleted.code, 0, "{deleted:?}");
        }
        let what = format!("after the end of {names:?}");
        phases = settles(cluster, seen, PATIENCE, &what, |phases| {
            let left = names.iter().any(|name| phases.keys().any(|gang| gang.starts_with(name.as_str())));
            !left && (phases.is_empty() || !names_of_running(phases).is_empty())
        });
        if phases.is_empty() {
            break;
        }
    }
    assert_eq!(done, total, "gangs that ran");
}
