//! A coordinator that is stopped, replaced by a successor that runs on a copy of its folder, and goes on afterwards as
//! if nothing had been.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use phalanx_node_core::Ledger;
use rustix::process::Signal;

use crate::cluster::{Agent, Cluster, Coordinator};
use crate::look::{Seen, highest_term, ledger, look_at};
use crate::support::wait_for;
use crate::workload::{job, names_of_running};

/// What a backup holds: objects and certificates.
fn restore_backup(from: &Path, to: &Path) {
    fs::copy(from.join("objects.redb"), to.join("objects.redb")).unwrap();
    fs::create_dir(to.join("pki")).unwrap();
    for file in fs::read_dir(from.join("pki")).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&file, to.join("pki").join(file.file_name().unwrap())).unwrap();
    }
}

/// Waits until everything is in order at this coordinator and exactly these gangs run.
fn only_runs(coordinator: &Coordinator, agents: &[Agent], seen: &mut Seen, gangs: &[&str]) {
    let mut last = String::new();
    wait_for(&format!("{gangs:?} alone at {}", coordinator.name), || {
        let now = look_at(coordinator, agents, seen).map(|phases| names_of_running(&phases));
        let done = now.as_ref().is_ok_and(|running| running == gangs);
        let text = format!("{now:?}");
        if text != last {
            eprintln!("{}: {text}", coordinator.name);
            last = text;
        }
        done.then_some(())
    });
}

fn ledgers(agents: &[Agent]) -> Vec<Ledger> {
    agents.iter().map(|agent| ledger(agent).unwrap()).collect()
}

#[test]
fn it_gets_no_lease_and_moves_no_pod() {
    let mut cluster = Cluster::new(3);
    let mut successor = Coordinator::new(cluster.path(), "successor");
    for agent in &mut cluster.agents {
        agent.coordinators = vec![cluster.coordinator.listen, successor.listen];
    }
    cluster.start(None, None);
    cluster.coordinator.apply(&(job("alpha", 2, 4) + &job("gamma", 2, 4)));
    let mut seen = Seen::default();
    only_runs(&cluster.coordinator, &cluster.agents, &mut seen, &["team/alpha"]);

    // The agents hear nothing more of the old one, and find the next in their list.
    cluster.coordinator.process.as_ref().unwrap().signal(Signal::STOP);
    restore_backup(&cluster.coordinator.state_dir, &successor.state_dir);
    successor.spawn(cluster.path(), None);
    successor.wait_until_ready();
    only_runs(&successor, &cluster.agents, &mut seen, &["team/alpha"]);
    assert_eq!(successor.run(&["delete", "job", "team/alpha"]).code, 0);
    only_runs(&successor, &cluster.agents, &mut seen, &["team/gamma"]);
    let before = ledgers(&cluster.agents);
    let term = highest_term(&cluster.agents[0]);

    // For the old one alpha runs and a node is free: it would place a gang there, and stop the pods of alpha.
    let old = &mut cluster.coordinator;
    old.process.as_ref().unwrap().signal(Signal::CONT);
    // An agent whose link was silent for long dials the first of its list, and then the old one knows early.
    old.try_apply(&job("stale", 1, 4));
    let deleted = old.run(&["delete", "job", "team/alpha"]);
    assert!(deleted.code == 0 || Coordinator::was_gone(&deleted), "{deleted:?}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(ledgers(&cluster.agents), before, "the old coordinator was obeyed");

    // An agent that starts anew dials the first of its list: the old one, which so hears of its successor.
    cluster.agents[0].process.as_mut().unwrap().kill();
    cluster.start_agent(0, None);
    let code = cluster.coordinator.process.as_mut().unwrap().exit_code();
    assert_eq!(code, Some(1), "whoever gives way ends with a failure: its supervisor is to tell");
    let log = cluster.coordinator.log(cluster.path());
    assert!(log.contains("another coordinator leads"), "{log}");
    only_runs(&successor, &cluster.agents, &mut seen, &["team/gamma"]);
    assert_eq!(ledgers(&cluster.agents), before, "the old coordinator was obeyed");
    let terms: BTreeSet<_> = cluster.agents.iter().map(highest_term).collect();
    assert_eq!(terms, BTreeSet::from([term]), "the terms stay with the successor");

    let old = std::mem::replace(&mut cluster.coordinator, successor);
    cluster.finish_after(&[old], &seen, 2);
}
