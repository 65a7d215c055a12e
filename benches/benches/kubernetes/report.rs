//! Medians, ratios and memory.

use std::collections::BTreeMap;
use std::fmt;

use phalanx_devcluster::installation::Installation;

use crate::contenders::Contender;
use crate::loads::Load;

/// How long one round took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Pods bound.
    pub pods: usize,
    /// Seconds.
    pub seconds: f64,
}

impl Took {
    fn rate(self) -> f64 {
        self.pods as f64 / self.seconds
    }
}

impl fmt::Display for Took {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.2} s, {:.0} pods/s", self.seconds, self.rate())
    }
}

/// Everything measured.
#[derive(Debug, Default)]
pub struct Report {
    rounds: BTreeMap<(Load, Contender), Vec<Took>>,
    memory: Vec<(String, u64)>,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Report {
    /// One round.
    pub fn add(&mut self, load: Load, contender: Contender, took: Took) {
        self.rounds.entry((load, contender)).or_default().push(took);
    }

    /// Memory of the coordinator's process now.
    pub fn memory(&mut self, when: &str, installation: &Installation) {
        let process = installation.replicas().first().and_then(|replica| replica.process());
        let status = process.and_then(|(_, id)| std::fs::read_to_string(format!("/proc/{id}/status")).ok());
        let line = status.as_deref().unwrap_or_default().lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        if let Some(kibibytes) = kibibytes {
            self.memory.push((when.to_owned(), kibibytes));
        }
    }

    /// True where every round is there.
    pub fn is_clean(&self) -> bool {
        !self.rounds.is_empty()
    }

    /// The table: medians, and the median of the ratios of each round.
    pub fn print(&self) {
        println!("\n| load | contender | median | rate | of the bare loop's rate in the same round |");
        println!("|---|---|---|---|---|");
        for ((load, contender), rounds) in &self.rounds {
            let seconds = median(rounds.iter().map(|took| took.seconds));
            let rate = median(rounds.iter().map(|took| took.rate()));
            let bare = self.rounds.get(&(*load, Contender::Bare)).map_or(&[][..], Vec::as_slice);
            let ratio = median(rounds.iter().zip(bare).map(|(took, bare)| took.rate() / bare.rate()));
            println!("| {load} | {contender} | {seconds:.2} s | {rate:.0} pods/s | {ratio:.2} |");
        }
        for (when, kibibytes) in &self.memory {
            println!("memory of the coordinator {when}: {} MiB", kibibytes / 1024);
        }
    }
}
