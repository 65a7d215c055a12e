//! Seeds that must hold, and planted bugs that must be found: a simulation that cannot fail shows nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use phalanx_sim::{Bug, Options, Rates, Report, run, run_seeds};

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

/// The first of some seeds that finds a planted bug, which must be found by this checker.
fn must_find(bug: Bug, checker: &str, rates: Option<Rates>) {
    let found = (0..60).find_map(|seed| {
        let planted = Options { rates, ..Options::seed(seed).with_bug(bug) };
        run(planted).failure.filter(|failure| failure.checker == checker).map(|failure| (seed, failure))
    });
    let Some((seed, failure)) = found else { panic!("{bug:?} is not found by {checker}") };
    let healthy = run(Options { rates, ..Options::seed(seed) });
    assert_eq!(healthy.failure, None, "seed {seed} fails without the bug too; with it: {failure:?}");
}

#[test]
fn an_agent_that_speaks_before_its_disk_is_found() {
    let rates = Rates { disk: 400, agent_crash: 20, survival_ms: 50, away_ms: 3_000, ..Rates::default() };
    must_find(Bug::AckBeforePersist, "ownership", Some(rates));
}

#[test]
fn an_agent_that_frees_on_absence_is_found() {
    must_find(Bug::FreeOnAbsence, "ownership", None);
}

#[test]
fn an_agent_without_start_gate_is_found() {
    must_find(Bug::NoStartGate, "all_or_nothing", None);
}

#[test]
fn a_coordinator_that_does_not_fence_is_found() {
    let rates = Rates {
        coordinator_crash: 25,
        agent_crash: 30,
        survival: 1_000,
        survival_ms: 3_000,
        away_ms: 1_500,
        ..Rates::default()
    };
    must_find(Bug::NoFences, "ownership", Some(rates));
}

#[test]
fn a_coordinator_that_does_not_know_ceilings_is_found() {
    must_find(Bug::NoCapability, "quota", None);
}

#[test]
fn a_coordinator_that_binds_without_a_plan_is_found() {
    must_find(Bug::NoPlan, "all_or_nothing", None);
}

#[test]
fn a_coordinator_that_keeps_plans_is_found() {
    must_find(Bug::KeepPlans, "leaks", None);
}

#[test]
fn a_coordinator_that_loses_the_start_is_found() {
    must_find(Bug::LoseGangBound, "liveness", None);
}
