//! How long a coordinator's death keeps a gang waiting: `cargo xtask chaos --measure`. A measurement, and no test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use phalanx_devcluster::random::Random;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::look::{Seen, settles};
use crate::rounds::setting;
use crate::support::wait_for;
use crate::workload::{PATIENCE, job};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn recordings(state_dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(state_dir.join("recordings")).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    paths
}

/// When the newest process asked an agent for GPUs for the first time, by its own recording.
fn first_reserve_ms(state_dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(recordings(state_dir).pop()?).unwrap();
    let cycles = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let asks = |cycle: &Value| {
        cycle["actions"].as_array().is_some_and(|actions| {
            actions.iter().any(|action| action["command"]["Send"]["message"].get("Reserve").is_some())
        })
    };
    cycles.map(|record| record["cycle"].clone()).find(asks).map(|cycle| cycle["at"].as_u64().unwrap())
}

#[test]
#[ignore = "a measurement; run by `cargo xtask chaos --measure`"]
fn time() {
    let rounds = setting("PHALANX_CHAOS_ROUNDS", 25);
    assert!(rounds > 0, "PHALANX_CHAOS_ROUNDS: no round at all measures nothing");
    let mut cluster = Cluster::new(3);
    let mut seen = Seen::default();
    let mut times = Vec::new();
    let mut random = Random::new(setting("PHALANX_CHAOS_SEED", 1));
    cluster.start(Some("planned"), None);
    for round in 0..rounds {
        // Agents learn of a restart with the next packet they send: when that is must be left to chance.
        std::thread::sleep(Duration::from_millis(random.between(0, 2_000)));
        // The gang needs every node: all agents must be back before it can be placed.
        let name = format!("gang{round}");
        cluster.coordinator.try_apply(&job(&name, 3, 4));
        cluster.coordinator.process.as_mut().unwrap().dies("planned");
        let died_ms = now_ms();
        let before = recordings(&cluster.coordinator.state_dir).pop();
        cluster.restart_coordinator();
        cluster.coordinator.wait_until_ready();
        let reserved_ms = wait_for("a Reserve", || {
            let is_new = recordings(&cluster.coordinator.state_dir).pop() != before;
            is_new.then(|| first_reserve_ms(&cluster.coordinator.state_dir)).flatten()
        });
        times.push(reserved_ms.saturating_sub(died_ms));
        println!("round {round}: {} ms", reserved_ms.saturating_sub(died_ms));
        settles(&cluster, &mut seen, PATIENCE, "after the take-over", |phases| {
            phases.values().any(|phase| phase == "running")
        });
        assert_eq!(cluster.coordinator.run(&["delete", "job", &format!("team/{name}")]).code, 0);
        settles(&cluster, &mut seen, PATIENCE, "after the end", |phases| phases.is_empty());
        cluster.coordinator.process.as_mut().unwrap().kill();
        cluster.start_coordinator_again("planned");
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!(
        "take-over, from the kill to the first Reserve of the next process: median {} ms, p95 {} ms, longest {} ms \
         ({rounds} rounds, 3 agents)",
        at(50),
        at(95),
        times[times.len() - 1]
    );
}
