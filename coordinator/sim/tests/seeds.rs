//! Seeds that must hold, and everything that they must reach. That the checkers can fail is shown in `planted.rs`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use phalanx_sim::{Options, Rates, Report, coverage, run, run_seeds};

/// As many as a developer waits for; CI runs 2,000 beside them.
const SEEDS: u64 = coverage::ENOUGH_SEEDS;

/// Reports of the seeds 0 to `count`.
fn reports(count: u64, options: impl Fn(u64) -> Options + Sync) -> Vec<Report> {
    let reports = Mutex::new(Vec::new());
    run_seeds(0, count, options, |report| reports.lock().unwrap().push(report));
    reports.into_inner().unwrap()
}

#[test]
fn seeds_hold_and_reach_everything() {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for report in reports(SEEDS, Options::seed) {
        if let Some(failure) = report.failure {
            failed.push(format!("cargo xtask sim --seeds 1 --seed {}: {failure:?}", report.seed));
        }
        for (what, count) in report.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(coverage::missing(&counts, SEEDS), Vec::<String>::new(), "never reached; {counts:#?}");
    assert_eq!(coverage::reached_all_the_same(&counts), Vec::<&str>::new(), "said to be unreachable");
}

#[test]
fn what_is_not_reached_is_named() {
    let nothing = coverage::missing(&BTreeMap::new(), SEEDS);
    assert_eq!(nothing, coverage::wanted(SEEDS));
    assert!(nothing.len() > 120 && coverage::wanted(2_000).len() > nothing.len());
    assert!(coverage::wanted(10).is_empty());
    for name in [
        "fault: two coordinators",
        "move arming -> binding",
        "refusal Disk",
        "to agent: GangBound",
        "command Evict",
    ] {
        assert!(nothing.iter().any(|wanted| wanted == name), "{name}");
    }
    let one = BTreeMap::from([("refusal Disk".to_owned(), 1)]);
    assert_eq!(coverage::missing(&one, SEEDS).len(), nothing.len() - 1);
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

/// A fault is counted where it is drawn, and not where something ends in order: else "reached" would say nothing.
#[test]
fn what_does_not_go_wrong_is_not_counted() {
    let calm = Rates { survival_ms: 1, away_ms: 1, ..Rates::default() };
    let options =
        |seed| Options { rates: Some(calm), crash_at_action: Some(u64::MAX), ..Options::seed(seed) };
    for report in reports(40, options) {
        assert_eq!(report.failure, None, "seed {}", report.seed);
        // What others do to pods and nodes is drawn with the work, whatever goes wrong.
        let of_others = ["fault: pod bound by somebody else", "fault: pod of another scheduler"];
        for name in report.counts.keys().filter(|name| !of_others.contains(&name.as_str())) {
            assert!(!name.starts_with("fault: "), "seed {}: {name}", report.seed);
            assert!(!name.starts_with("coordinator crash"), "seed {}: {name}", report.seed);
        }
    }
}

/// Every other pause of a leader ends with two that live, and late calls land: what the replaced one still writes, reads
/// and is told must do no harm and must not stay. `PHALANX_WHOLE_CASES=1` runs more seeds.
#[test]
fn replaced_coordinators_leave_nothing_behind() {
    let rates = Rates {
        coordinator_pause: 20,
        take_over: 800,
        survival_ms: 3_000,
        away_ms: 1_500,
        ..Rates::default()
    };
    let is_whole = std::env::var("PHALANX_WHOLE_CASES").as_deref() == Ok("1");
    let options = |seed| Options { rates: Some(rates), ..Options::seed(seed) };
    let mut two = 0;
    let mut failed = Vec::new();
    for report in reports(if is_whole { 300 } else { 80 }, options) {
        two += report.counts.get("fault: two coordinators").copied().unwrap_or(0);
        failed.extend(report.failure.map(|failure| format!("seed {}: {failure:?}", report.seed)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(two > 80, "two coordinators lived at once only {two} times");
}

/// The coordinator crashes before its first action, before its second, and so on to the last: nothing else goes wrong.
/// The workload is the smallest of some seeds; what was on its way at the crash may land late or never.
#[test]
fn a_crash_before_every_single_action_is_survived() {
    let calm = Rates { survival: 300, survival_ms: 2_000, away_ms: 1_500, ..Rates::default() };
    let options =
        |seed, action| Options { rates: Some(calm), crash_at_action: Some(action), ..Options::seed(seed) };
    let actions = |seed: &u64| run(options(*seed, u64::MAX)).actions;
    let sizes = (0..12).map(|seed| (actions(&seed), seed));
    let (all, seed) = sizes.filter(|(all, _)| *all > 80).min().unwrap();
    let failed = Mutex::new(Vec::new());
    run_seeds(
        1,
        all,
        |action| options(seed, action),
        |report| {
            if let Some(failure) = report.failure {
                failed.lock().unwrap().push(format!("{failure:?}"));
            }
            assert!(report.counts.contains_key("fault: coordinator crash at a chosen action"));
        },
    );
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seed {seed}, {all} actions:\n{}", failed.join("\n"));
}
