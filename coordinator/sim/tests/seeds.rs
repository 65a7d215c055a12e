//! Seeds that must hold and reach everything, and the same run for the same seed. That the checkers can fail is
//! shown in `planted.rs`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use phalanx_sim::{Options, Report, run, run_seeds};

/// Reports of the seeds 0 to `count`.
fn reports(count: u64) -> Vec<Report> {
    let reports = Mutex::new(Vec::new());
    run_seeds(0, count, Options::seed, |report| reports.lock().unwrap().push(report));
    reports.into_inner().unwrap()
}

#[test]
fn two_hundred_seeds_hold_and_reach_everything() {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for report in reports(200) {
        if let Some(failure) = report.failure {
            failed.push(format!("cargo xtask sim --seeds 1 --seed {}: {failure:?}", report.seed));
        }
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    for what in [
        "GPU lost",
        "agent crash",
        "agent reboot",
        "command DeletePlan",
        "command Evict",
        "command RaiseTerm",
        "command ReadPod",
        "command Send Release",
        "coordinator crash while a gang is admitted",
        "coordinator crash while a gang is arming",
        "coordinator crash while a gang is binding",
        "coordinator crash while a gang is committing",
        "coordinator crash while a gang is degraded",
        "coordinator crash while a gang is evicting",
        "coordinator crash while a gang is finished",
        "coordinator crash while a gang is queued",
        "coordinator crash while a gang is reserving",
        "coordinator crash while a gang is running",
        "late call of a dead coordinator: Bind",
        "late call of a dead coordinator: DeletePlan",
        "late call of a dead coordinator: WritePlan",
        "ledger not written",
        "message doubled",
        "message late",
        "message lost",
        "outcome Bind Conflict",
        "outcome Bind Refused",
        "outcome Bind Unknown",
        "pod stopped",
        "refusal Disk",
        "refusal PodHasLease",
        "refusal Released",
        "refusal Unhealthy",
        "the term went back",
    ] {
        assert!(counts.contains_key(what), "no seed reaches {what:?}; {counts:#?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in 0..10 {
        let (first, second) = (run(Options::seed(seed)), run(Options { trace: true, ..Options::seed(seed) }));
        assert_eq!(first.log_hash, second.log_hash, "seed {seed}");
        assert!(first.lines.is_empty() && !second.lines.is_empty());
    }
    assert_ne!(run(Options::seed(1)).log_hash, run(Options::seed(2)).log_hash);
}
