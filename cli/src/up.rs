//! `phalanx up` and `phalanx down`.

use std::path::PathBuf;
use std::time::Duration;

use crate::arguments::{Down, Up};
use crate::client::default_state_dir;
use crate::cluster::{Cluster, ClusterPlan, check_profiles, config_file, plan_nodes};
use crate::failure::{Failure, Format, print_json, print_text};
use crate::process::Started;
use crate::signals::Stop;

/// Starts a cluster and watches it until a signal comes.
///
/// # Errors
/// Something does not start, or ends by itself.
pub fn up(options: &Up, format: Format) -> Result<(), Failure> {
    let default_dir = options.state_dir.is_none();
    let plan = ClusterPlan {
        state_dir: folder(options.state_dir.as_ref())?,
        listen: options.listen,
        admin: options.admin,
        config: config_file(options.config.as_deref())?,
        nodes: plan_nodes(&options.profiles)?,
        detached: false,
        temporary: false,
    };
    check_profiles(&options.profiles)?;
    let stop = Stop::listen()?;
    let mut cluster = Cluster::start(&plan, &stop)?;
    announce(&cluster, default_dir, format)?;
    while !stop.is_asked() {
        cluster.check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(cluster);
    if format == Format::Text {
        print_text("stopped; the state is kept, and the next `phalanx up` goes on with it");
    }
    Ok(())
}

fn announce(cluster: &Cluster, default_dir: bool, format: Format) -> Result<(), Failure> {
    let endpoints = &cluster.endpoints;
    if format == Format::Json {
        let processes: Vec<_> =
            cluster.processes().map(|(name, pid)| serde_json::json!({ "name": name, "pid": pid })).collect();
        return print_json(&serde_json::json!({
            "admin": endpoints.admin,
            "quic": endpoints.quic,
            "state_dir": cluster.state_dir(),
            "processes": processes,
        }));
    }
    let state = cluster.client.state()?;
    print_text(&format!("coordinator  {}  (agents: {})", endpoints.admin, endpoints.quic));
    for node in &state.nodes {
        let model = node.gpus.first().map_or("", |gpu| &gpu.model);
        let model = if node.gpus.is_empty() {
            "(no NVIDIA GPU found; --profile FILE shows one of deploy/profiles)"
        } else {
            model
        };
        print_text(&format!("agent        {}  {} GPUs {model}", node.name, node.gpus.len()));
    }
    print_text(&format!("state, logs  {}", cluster.state_dir().display()));
    print_text("\nCtrl-C stops all of it. In another terminal:");
    if !default_dir {
        print_text(&format!("  export PHALANX_SERVER={}", endpoints.admin));
    }
    print_text("  phalanx apply -f deploy/examples\n  phalanx get gangs -A");
    Ok(())
}

fn folder(named: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    named.map_or_else(default_state_dir, |folder| Ok(folder.clone()))
}

/// Stops what was started from a state folder.
///
/// # Errors
/// Nothing was started from there, or something does not end.
pub fn down(options: &Down, format: Format) -> Result<(), Failure> {
    let state_dir = folder(options.state_dir.as_ref())?;
    let started = Started::read(&state_dir).ok_or_else(|| {
        Failure::new(format!(
            "nothing runs from {}: name the folder that `phalanx up` or `phalanx demo --keep` printed with \
             --state-dir",
            state_dir.display()
        ))
    })?;
    let running = started.running();
    started.stop();
    if let Some(left) = started.running().first() {
        return Err(Failure::new(format!("{} (pid {}) does not end", left.name, left.pid)));
    }
    Started::remove(&state_dir);
    if started.temporary {
        std::fs::remove_dir_all(&state_dir)
            .map_err(|error| Failure::new(format!("cannot remove {}: {error}", state_dir.display())))?;
    }
    if format == Format::Json {
        return print_json(&serde_json::json!({ "stopped": running }));
    }
    for process in &running {
        print_text(&format!("stopped {} (pid {})", process.name, process.pid));
    }
    if running.is_empty() {
        print_text(&format!("nothing ran from {} any more", state_dir.display()));
    }
    Ok(())
}
