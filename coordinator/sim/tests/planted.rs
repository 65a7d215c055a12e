//! Bugs planted on purpose, and what finds each. A test that cannot fail shows nothing: here all of them do.
//!
//! `cargo test -p phalanx-sim --features planted-bugs --test planted`. The table is printed, and stands in
//! `docs/testing.md`; `PHALANX_UPDATE_PLANTED=1` writes it there. For a bug that is to be added:
//! `PHALANX_SURVEY=BUG cargo test ... -- --ignored --nocapture survey` prints all that finds it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../agent/core/tests/support/mod.rs"]
mod agent;
#[path = "../../core/tests/support/mod.rs"]
mod core;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use phalanx_common::planted::{Bug, plant};
use phalanx_coordinator::api::faults::FaultRates;
use phalanx_sim::{Options, Rates, run};

/// A bug that is not found in so many seeds is not found.
const MOST_SEEDS: u64 = 300;
/// Around the table in the document.
const BEGIN: &str = "<!-- planted bugs: written by the test -->";
const END: &str = "<!-- end of planted bugs -->";

/// What finds a bug.
#[derive(Clone, Copy, Debug)]
enum Finder {
    /// One of these checkers of the simulation.
    Seeds(&'static [&'static str]),
    /// The same, with faults of this kind: those drawn from a seed are too rare.
    SeedsWith(&'static [&'static str], fn() -> Rates),
    /// A text scenario of the coordinator's core.
    Core(&'static str),
    /// A text scenario of the agent's core.
    Agent(&'static str),
    /// All short orders of the messages of a lease.
    Orders,
}

impl Finder {
    fn text(self) -> String {
        match self {
            Self::Seeds(checkers) => format!("simulation: {}", checkers.join(", ")),
            Self::SeedsWith(checkers, _) => format!("simulation, faults chosen: {}", checkers.join(", ")),
            Self::Core(name) => format!("scenario `coordinator/core/tests/scenarios/{name}.txt`"),
            Self::Agent(name) => format!("scenario `agent/core/tests/scenarios/{name}.txt`"),
            Self::Orders => "all short orders, `agent/core/tests/properties.rs`".to_owned(),
        }
    }
}

fn disks_that_fail() -> Rates {
    Rates { disk: 400, agent_crash: 20, survival_ms: 50, away_ms: 3_000, ..Rates::default() }
}

/// Coordinators that die, and whose calls land after their successors have begun.
fn coordinators_that_die() -> Rates {
    Rates {
        coordinator_crash: 25,
        agent_crash: 30,
        survival: 1_000,
        survival_ms: 3_000,
        away_ms: 1_500,
        ..Rates::default()
    }
}

/// Leaders that take over from others that do not know it yet, and whose calls are late.
fn coordinators_that_take_over() -> Rates {
    Rates {
        coordinator_pause: 20,
        take_over: 800,
        survival: 900,
        survival_ms: 8_000,
        coordinator_crash: 15,
        away_ms: 1_500,
        ..Rates::default()
    }
}

/// An API that refuses what it is asked for again and again.
fn bindings_that_fail() -> Rates {
    let api = FaultRates { refused: 600, ..FaultRates::default() };
    Rates { api, pods_fail: 300, survival_ms: 50, away_ms: 500, ..Rates::default() }
}

/// Connections that break all the time, and agents that die.
fn links_that_break() -> Rates {
    Rates { link_break: 80, agent_crash: 20, survival_ms: 50, away_ms: 1_500, ..Rates::default() }
}

/// An API that often does what it was asked for and does not say so, or the other way round.
fn an_api_that_is_slow() -> Rates {
    let api = FaultRates { timed_out_but_done: 250, timed_out_not_done: 150, ..FaultRates::default() };
    Rates { api, survival_ms: 50, away_ms: 500, ..Rates::default() }
}

/// An API in which others write all the time.
fn an_api_that_disagrees() -> Rates {
    let api = FaultRates { conflict: 300, ..FaultRates::default() };
    Rates { api, survival_ms: 50, away_ms: 500, ..Rates::default() }
}

/// What finds each bug.
const fn finder(bug: Bug) -> Finder {
    match bug {
        Bug::AckBeforePersist => Finder::SeedsWith(&["ownership"], disks_that_fail),
        Bug::FreeOnAbsence => Finder::Seeds(&["ownership"]),
        Bug::NoStartGate | Bug::StartBeforeWhole | Bug::NoPlan => Finder::Seeds(&["all_or_nothing"]),
        Bug::ExpireArmed => Finder::SeedsWith(&["ownership", "leaks", "liveness"], links_that_break),
        Bug::ForgetTombstone => Finder::Agent("tombstone"),
        Bug::ObeyEqualTerm | Bug::ObeyLowerTerm => Finder::Agent("stale_term"),
        Bug::GoneBeforeDisk | Bug::ReserveAgain => Finder::Orders,
        Bug::IgnoreHealth => Finder::Agent("gpu_lost"),
        Bug::ConfirmHeldGpu => Finder::Agent("refusals"),
        Bug::RestartReserves => Finder::Orders,
        Bug::RestartPodsAnew => Finder::Agent("restart"),
        Bug::SkipFence => Finder::Core("late_bindings"),
        Bug::BindAnyVersion => Finder::SeedsWith(&["ownership"], coordinators_that_die),
        Bug::NoCapability => Finder::Seeds(&["quota"]),
        Bug::KeepPlans | Bug::ForgetRelease => Finder::Seeds(&["leaks"]),
        Bug::LoseGangBound | Bug::CountTwice => Finder::Seeds(&["liveness"]),
        Bug::ReleaseOnlyFirst => Finder::Seeds(&["liveness", "leaks", "heal"]),
        Bug::CommitHalfConfirmed => Finder::Core("silent_agent"),
        Bug::BindBeforeArmed => Finder::Core("full_disk_on_a_node"),
        Bug::NeverUncharge => Finder::Seeds(&["coordinator-core"]),
        Bug::TimedOutIsFailed => Finder::SeedsWith(&["ownership"], an_api_that_is_slow),
        Bug::ConflictIsDone => Finder::SeedsWith(&["ownership", "all_or_nothing"], an_api_that_disagrees),
        Bug::DropUnreported | Bug::AwayIsFree => Finder::Seeds(&["ownership", "coordinator-core"]),
        Bug::IgnoreMinMember => Finder::Core("case_005_not_enough_per_node"),
        Bug::NeverRetry | Bug::OtherNodesGpus | Bug::SilentReason => Finder::Seeds(&["liveness"]),
        Bug::ForgetStrangers => Finder::Seeds(&["leaks", "liveness"]),
        Bug::SamePlaceTwice => Finder::Seeds(&["liveness"]),
        Bug::IgnoreForeignPlans => Finder::SeedsWith(&["heal", "leaks"], coordinators_that_take_over),
        Bug::EvictGrown => Finder::SeedsWith(&["eviction"], bindings_that_fail),
        Bug::FinalizeRunning => Finder::Seeds(&["ownership"]),
        Bug::ReclaimWithinShare => Finder::Seeds(&["eviction"]),
        Bug::TimeoutIsDone => Finder::SeedsWith(&["ownership", "all_or_nothing"], an_api_that_is_slow),
        Bug::VictimUnderGuarantee
        | Bug::ReclaimAlways
        | Bug::MostUrgentFirst
        | Bug::EvictProtected
        | Bug::EvictInVain
        | Bug::EvictBeforePlan => Finder::Core("who_may_not_go"),
        Bug::CeilingOffByOne => Finder::Core("case_015_ceiling_is_checked_as_fits"),
        Bug::IgnoreAncestors => Finder::Core("case_024_ceiling_of_the_parent"),
        Bug::ChargeChildrenTwice => Finder::Core("quota"),
        Bug::LendGuarantees => Finder::Core("guarantees"),
        Bug::ReclaimAboveShare => Finder::Core("case_054_a_queue_above_its_share_takes_nothing"),
        Bug::EvictEqualPriority => Finder::Core("case_058_eviction_in_the_right_places"),
        Bug::IgnoreBudgets => Finder::Core("case_088_disruption_budgets"),
        Bug::IgnoreCooldown => Finder::Core("story_e_restarting_job_and_urgent_ones"),
        Bug::WholeGangsFirst => Finder::Core("case_044_a_gang_is_not_cut_below_its_minimum"),
        Bug::LeaderFirst => Finder::Core("story_c_two_tenants"),
        Bug::FreedIsIdle => Finder::Core("case_018_freed_gpus_are_held"),
        Bug::IgnoreNever => Finder::Core("case_089_preemption_policy_never"),
        Bug::KeepHolds | Bug::LateBackfill => Finder::Core("case_111_hold_that_ends_with_its_gang"),
        Bug::IgnoreHolds => Finder::Core("case_010_small_jobs_do_not_starve_a_big_one"),
        Bug::IgnoreFifo => Finder::Core("case_051_strict_order"),
        Bug::ForgetDegraded | Bug::KeepWants => Finder::Core("turns_after_changes"),
        Bug::IgnoreWeights => Finder::Core("shares_by_weight"),
        Bug::IgnoreDemand => Finder::Core("case_055_shares_by_weight_with_ceilings"),
        Bug::AnyNamespace => Finder::Core("namespaces_of_queues"),
        Bug::QuotaWakesNobody => Finder::Core("quota"),
    }
}

fn scenarios(crate_folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(crate_folder).join("tests/scenarios")
}

/// Says what went wrong, where something does.
fn fails(test: impl FnOnce() -> Option<String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(test)) {
        Ok(wrong) => wrong,
        Err(panic) => Some(said(panic)),
    }
}

/// What a panic says.
fn said(panic: Box<dyn Any + Send>) -> String {
    panic.downcast::<String>().map_or_else(|_| "it panics".to_owned(), |text| *text)
}

fn core_scenario_fails(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(scenarios("coordinator/core").join(format!("{name}.txt"))).unwrap();
    fails(|| core::play::difference(&text, &core::play::play(&text)))
}

fn agent_scenario_fails(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(scenarios("agent/core").join(format!("{name}.txt"))).unwrap();
    fails(|| (agent::scenario::replay(&text) != text).then(|| "it differs".to_owned()))
}

fn orders_fail() -> Option<String> {
    fails(|| {
        agent::orders::every_short_order();
        None
    })
}

fn options(seed: u64, rates: Option<Rates>) -> Options {
    Options { rates, ..Options::seed(seed) }
}

/// Which checker fails in a run, and with what.
fn failure(options: Options) -> Option<(&'static str, String)> {
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(report) => report.failure.map(|failure| (failure.checker, failure.message)),
        Err(panic) => Some(("panic", said(panic))),
    }
}

/// The first seed that finds a bug, by one of these checkers; the same seed must hold without the bug.
fn first_seed(bug: Bug, checkers: &[&str], rates: Option<Rates>) -> Result<(u64, String), String> {
    let mut others = BTreeMap::<&str, u32>::new();
    for seed in 0..MOST_SEEDS {
        let Some((checker, message)) = failure(options(seed, rates).with_bug(bug)) else { continue };
        if !checkers.contains(&checker) {
            *others.entry(checker).or_default() += 1;
            continue;
        }
        // One that fails without the bug too shows nothing of it.
        if failure(options(seed, rates)).is_some() {
            *others.entry("healthy").or_default() += 1;
            continue;
        }
        return Ok((seed + 1, format!("{checker}: {message}")));
    }
    Err(format!("{MOST_SEEDS} seeds do not find it by {checkers:?}; by others: {others:?}"))
}

/// Seeds needed, and what was found.
fn find(bug: Bug) -> Result<(Option<u64>, String), String> {
    let seeds = |checkers, rates| first_seed(bug, checkers, rates).map(|(seeds, found)| (Some(seeds), found));
    let test = |test: &dyn Fn() -> Option<String>, name: &str| {
        if let Some(wrong) = test() {
            return Err(format!("{name} fails without the bug too: {wrong}"));
        }
        let _planted = plant(bug);
        test().map(|wrong| (None, wrong)).ok_or_else(|| format!("{name} does not find it"))
    };
    match finder(bug) {
        Finder::Seeds(checkers) => seeds(checkers, None),
        Finder::SeedsWith(checkers, rates) => seeds(checkers, Some(rates())),
        Finder::Core(name) => test(&|| core_scenario_fails(name), name),
        Finder::Agent(name) => test(&|| agent_scenario_fails(name), name),
        Finder::Orders => test(&orders_fail, "every short order"),
    }
}

/// Does something for each bug, on all processors; a bug is planted on its own thread alone.
fn for_each_bug<T: Send>(work: impl Fn(Bug) -> T + Sync) -> BTreeMap<Bug, T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(*bug);
                    done.lock().unwrap().insert(*bug, result);
                }
            });
        }
    });
    done.into_inner().unwrap()
}

#[test]
fn every_planted_bug_is_found() {
    let found = for_each_bug(find);
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    for (bug, found) in &found {
        match found {
            Ok((seeds, what)) => {
                let seeds = seeds.map_or_else(|| "–".to_owned(), |seeds| seeds.to_string());
                println!("{:<22} {seeds:>4}  {}", bug.as_str(), what.lines().next().unwrap_or_default());
                rows.push((*bug, seeds));
            }
            Err(error) => missed.push(format!("{}: {error}", bug.as_str())),
        }
    }
    assert!(missed.is_empty(), "{} of {} bugs are missed:\n{}", missed.len(), found.len(), missed.join("\n"));
    check_document(&rows);
}

/// The document has a row for each bug, with what finds it; the seeds are those of the last update.
fn check_document(rows: &[(Bug, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testing.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the mark before the table");
    let (table, after) = rest.split_once(END).expect("the mark behind the table");
    if std::env::var("PHALANX_UPDATE_PLANTED").as_deref() == Ok("1") {
        let mut table =
            "| bug | what a user would suffer | found by | seeds |\n| --- | --- | --- | --- |\n".to_owned();
        for (bug, seeds) in rows {
            let (name, harm, finder) = (bug.as_str(), bug.harm(), finder(*bug).text());
            writeln!(table, "| `{name}` | {harm} | {finder} | {seeds} |").unwrap();
        }
        std::fs::write(&path, format!("{before}{BEGIN}\n\n{table}\n{END}{after}")).unwrap();
        return;
    }
    let documented = table.lines().filter(|line| line.starts_with("| `"));
    let documented: Vec<&str> = documented.map(|line| line.rsplit_once(" | ").unwrap().0).collect();
    let row =
        |(bug, _): &(Bug, String)| format!("| `{}` | {} | {}", bug.as_str(), bug.harm(), finder(*bug).text());
    let wanted: Vec<String> = rows.iter().map(row).collect();
    assert_eq!(documented, wanted, "docs/testing.md: PHALANX_UPDATE_PLANTED=1 writes the table");
}

#[test]
fn a_bug_is_planted_on_one_thread_and_for_a_while() {
    use phalanx_common::planted::is;
    assert!(!is(Bug::NoPlan));
    {
        let _planted = plant(Bug::NoPlan);
        assert!(is(Bug::NoPlan) && !is(Bug::SkipFence));
        std::thread::spawn(|| assert!(!is(Bug::NoPlan))).join().unwrap();
        let inner = plant(Bug::SkipFence);
        assert!(is(Bug::SkipFence) && !is(Bug::NoPlan));
        drop(inner);
        assert!(is(Bug::NoPlan));
    }
    assert!(!is(Bug::NoPlan));
    for bug in Bug::ALL {
        assert_eq!(Bug::parse(bug.as_str()), Some(*bug));
    }
}

/// All that finds the bugs named in `PHALANX_SURVEY`, or any bug.
#[test]
#[ignore = "for whoever adds a bug"]
fn survey() {
    let only = std::env::var("PHALANX_SURVEY").unwrap_or_default();
    let seeds: u64 = std::env::var("PHALANX_SURVEY_SEEDS").map_or(60, |text| text.parse().unwrap());
    for_each_bug(|bug| {
        if !only.is_empty() && !only.split(',').any(|name| name == bug.as_str()) {
            return;
        }
        let rates = match finder(bug) {
            Finder::SeedsWith(_, rates) => Some(rates()),
            _ => None,
        };
        let mut checkers = BTreeMap::<&str, (u64, u32, String)>::new();
        for seed in 0..seeds {
            if let Some((checker, message)) = failure(options(seed, rates).with_bug(bug)) {
                checkers.entry(checker).or_insert((seed, 0, message)).1 += 1;
            }
        }
        let names = |folder| {
            let files = std::fs::read_dir(scenarios(folder)).unwrap();
            let names =
                files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
            names.collect::<Vec<String>>()
        };
        let _planted = plant(bug);
        let core: Vec<_> = names("coordinator/core")
            .into_iter()
            .filter(|name| core_scenario_fails(name).is_some())
            .collect();
        let agent: Vec<_> =
            names("agent/core").into_iter().filter(|name| agent_scenario_fails(name).is_some()).collect();
        let orders = orders_fail().is_some();
        println!(
            "== {}\n   seeds {checkers:?}\n   core {core:?}\n   agent {agent:?} orders {orders}",
            bug.as_str()
        );
    });
}
