//! A network that loses, delays and cuts.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::look::{HEAL, Seen, look};
use crate::proxy::Proxy;
use crate::support::wait_for;
use crate::workload::{PATIENCE, job, rivals, run_out};

/// Three agents behind a proxy.
fn behind_proxy(seed: u64) -> (Cluster, Proxy) {
    let mut cluster = Cluster::new(3);
    let proxy = Proxy::start(cluster.coordinator.listen, seed);
    for agent in &mut cluster.agents {
        agent.coordinators = vec![proxy.address];
    }
    (cluster, proxy)
}

#[test]
fn loss_and_delay() {
    let (mut cluster, proxy) = behind_proxy(1);
    let mut seen = Seen::default();
    proxy.weather.set(50, Duration::from_millis(200));
    cluster.start(None, None);
    cluster.coordinator.apply(&rivals());
    run_out(&cluster, &mut seen, PATIENCE, 3);
    let (passed, dropped) = proxy.weather.counts();
    assert!(passed > 50 && dropped > 0, "{passed} passed, {dropped} dropped: the proxy was not in the way");
    cluster.finish(&seen, 3);
}

/// Gangs wait, run and end during a cut of all agents; afterwards all is as if nothing had been.
fn cut(length: Duration, up: bool, down: bool, seed: u64) {
    let (mut cluster, proxy) = behind_proxy(seed);
    let mut seen = Seen::default();
    cluster.start(None, None);
    cluster.coordinator.apply(&job("before", 2, 4));
    wait_for("a gang that runs", || {
        look(&cluster, &mut seen)
            .is_ok_and(|phases| phases.values().any(|phase| phase == "running"))
            .then_some(())
    });
    // Some of these are on their way when the cut comes.
    cluster.coordinator.apply(&rivals());
    proxy.weather.cut(up, down);
    std::thread::sleep(length / 2);
    let deleted = cluster.coordinator.run(&["delete", "job", "team/before"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    std::thread::sleep(length / 2);
    proxy.weather.cut(false, false);
    run_out(&cluster, &mut seen, HEAL, 3);
    cluster.finish(&seen, 4);
}

#[test]
fn cut_of_30_s() {
    cut(Duration::from_secs(30), true, true, 2);
}

#[test]
fn one_way_cut_to_the_coordinator() {
    cut(Duration::from_secs(10), true, false, 3);
}

#[test]
fn one_way_cut_to_the_agents() {
    cut(Duration::from_secs(10), false, true, 4);
}
