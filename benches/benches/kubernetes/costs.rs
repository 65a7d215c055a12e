//! What a round costs: processor time of each process, and what the API server was asked for.

use std::collections::BTreeMap;

use http::Request;
use phalanx_devcluster::installation::Installation;

use crate::Failure;

/// Ticks of `/proc/PID/stat` in a second; Linux has the same everywhere.
const TICKS_PER_SECOND: f64 = 100.0;
/// Requests of a round that are not worth a line.
const FEW: u64 = 20;

/// Counters at one moment.
#[derive(Debug, Default)]
pub struct Costs {
    ticks: BTreeMap<String, u64>,
    requests: BTreeMap<String, u64>,
}

impl Costs {
    /// Reads them all.
    pub async fn read(installation: &Installation) -> Result<Self, Failure> {
        let mut ticks = BTreeMap::new();
        let own = ("the bench with its agents".to_owned(), std::process::id());
        for (name, id) in installation.processes().into_iter().chain([own]) {
            // A process that has just ended costs nothing more.
            ticks.insert(name, ticks_of(id).unwrap_or_default());
        }
        let request = Request::get("/metrics").body(Vec::new())?;
        let text = installation.client().request_text(request).await?;
        Ok(Self { ticks, requests: requests(&text) })
    }

    /// Prints what was used since `before`.
    pub fn print_since(&self, before: &Self, pods: usize) {
        let used = |name: &String, now: &u64| {
            now.saturating_sub(before.ticks.get(name).copied().unwrap_or_default())
        };
        let processes = self.ticks.iter().map(|(name, now)| {
            let seconds = used(name, now) as f64 / TICKS_PER_SECOND;
            format!("{name} {seconds:.2} s ({:.2} ms a pod)", seconds * 1_000.0 / pods as f64)
        });
        println!("    processor: {}", processes.collect::<Vec<_>>().join(", "));
        for (what, now) in &self.requests {
            let count = now - before.requests.get(what).copied().unwrap_or_default().min(*now);
            if count >= FEW {
                println!("    {count:6} {what}");
            }
        }
    }
}

/// Time in user and system mode.
fn ticks_of(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in brackets may hold blanks.
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let times = fields.skip(11).take(2).map(|field| field.parse::<u64>().ok());
    times.sum()
}

/// Requests by verb, resource and answer.
fn requests(text: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let Some((labels, count)) =
            line.strip_prefix("apiserver_request_total{").and_then(|line| line.rsplit_once("} "))
        else {
            continue;
        };
        let label = |name: &str| {
            let value = labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\""));
            value.map(|value| value.trim_end_matches('"')).filter(|value| !value.is_empty())
        };
        let part = label("subresource").map(|part| format!("/{part}")).unwrap_or_default();
        let (verb, resource) = (label("verb").unwrap_or("?"), label("resource").unwrap_or("-"));
        let what = format!("{verb} {resource}{part} {}", label("code").unwrap_or("?"));
        *all.entry(what).or_default() += count.parse::<f64>().unwrap_or_default() as u64;
    }
    all
}
