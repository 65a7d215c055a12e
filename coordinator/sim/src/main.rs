//! `phalanx-sim`: runs seeds, prints what was reached, and for a seed that fails the command that repeats it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::Parser;
#[cfg(feature = "planted-bugs")]
use phalanx_common::planted::Bug;
use phalanx_sim::{Options, Report, coverage, run_seeds};

/// Runs both machines in virtual time, with faults from a seed.
#[derive(Debug, Parser)]
#[command(name = "phalanx-sim", max_term_width = 110)]
struct Arguments {
    /// Number of seeds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print the log of the seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write what the coordinators of the seed did to a file, for `phalanx-coordinator replay FILE`
    #[arg(long, value_name = "FILE", requires = "seed")]
    record: Option<PathBuf>,
    /// Plant a bug, to see a checker fail
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_parser = parse_bug)]
    bug: Option<Bug>,
}

impl Arguments {
    /// The command that runs this with the same bug planted, if any.
    #[cfg(feature = "planted-bugs")]
    fn program(&self) -> String {
        self.bug.map_or_else(
            || "cargo xtask sim".to_owned(),
            |bug| format!("cargo run -p phalanx-sim --features planted-bugs -- --bug {}", bug.as_str()),
        )
    }

    /// The command that runs this.
    #[cfg(not(feature = "planted-bugs"))]
    const fn program(&self) -> &str {
        "cargo xtask sim"
    }
}

#[cfg(feature = "planted-bugs")]
fn parse_bug(text: &str) -> Result<Bug, String> {
    let names = || Bug::ALL.iter().map(|bug| bug.as_str()).collect::<Vec<_>>().join(", ");
    Bug::parse(text).ok_or_else(|| format!("not one of {}", names()))
}

/// What all runs together reached.
#[derive(Debug, Default)]
struct Summary {
    counts: BTreeMap<String, u64>,
    steps: u64,
    recording: Vec<u8>,
    failed: Vec<(u64, String)>,
}

impl Summary {
    fn add(&mut self, report: Report) {
        self.steps += report.steps;
        for (what, count) in report.counts {
            *self.counts.entry(what).or_default() += count;
        }
        if let Some(failure) = report.failure {
            let at = failure.at_ms as f64 / 1000.0;
            self.failed.push((report.seed, format!("{} at {at:.3} s: {}", failure.checker, failure.message)));
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (first, count) = match arguments.seed {
        Some(seed) => (seed, 1),
        None => (arguments.first, arguments.seeds),
    };
    let summary = run_all(first, count, &arguments);
    for (what, count) in &summary.counts {
        println!("{count:>10}  {what}");
    }
    println!("{count} seeds from {first}, {} steps", summary.steps);
    if let Some(file) = &arguments.record
        && let Err(error) = std::fs::write(file, &summary.recording)
    {
        eprintln!("error: --record: {}: {error}; name a file that can be written", file.display());
        return ExitCode::FAILURE;
    }
    let is_covered = report_coverage(&summary.counts, count);
    if summary.failed.is_empty() {
        return if is_covered { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    for (seed, failure) in &summary.failed {
        println!("seed {seed}: {failure}\n    repeat: {} --seeds 1 --seed {seed}", arguments.program());
    }
    println!("{} of {count} seeds failed", summary.failed.len());
    ExitCode::FAILURE
}

/// Says what was never reached; false where so many seeds should have reached it.
fn report_coverage(counts: &BTreeMap<String, u64>, seeds: u64) -> bool {
    let wanted = coverage::wanted(seeds).len();
    let missing = coverage::missing(counts, seeds);
    if wanted == 0 {
        println!("what must be reached is looked at from {} seeds on", coverage::ENOUGH_SEEDS);
    } else {
        println!("reached {} of {wanted} things that so many seeds must reach", wanted - missing.len());
    }
    for name in &missing {
        println!("    never reached: {name}");
    }
    let wrong = coverage::reached_all_the_same(counts);
    for name in &wrong {
        println!("    said to be unreachable, and was reached: {name}");
    }
    missing.is_empty() && wrong.is_empty()
}

/// Runs all seeds and adds up what came of them.
fn run_all(first: u64, count: u64, arguments: &Arguments) -> Summary {
    let summary = Mutex::new(Summary::default());
    let options = |seed| Options {
        trace: arguments.trace,
        record: arguments.record.is_some(),
        #[cfg(feature = "planted-bugs")]
        bug: arguments.bug,
        ..Options::seed(seed)
    };
    run_seeds(first, count, options, |report| {
        let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
        for line in &report.lines {
            println!("{line}");
        }
        summary.recording.extend_from_slice(&report.recording);
        summary.add(report);
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failed.sort();
    summary
}
