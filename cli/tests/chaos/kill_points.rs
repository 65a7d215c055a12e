//! SIGKILL at each step of a gang's life, of the coordinator and of an agent, and a restart.

use crate::cluster::Cluster;
use crate::look::{HEAL, Seen};
use crate::workload::{rivals, run_out};

/// Where a coordinator dies.
pub const COORDINATOR: [&str; 7] =
    ["planned", "first-confirm", "all-confirmed", "plan-written", "armed", "first-bind", "last-bind"];
/// Where an agent dies.
pub const AGENT: [&str; 6] =
    ["reserve-received", "reserved", "ledger-written", "acknowledged", "bound-seen", "started"];

/// The coordinator dies at this point, is started again at once, and all gangs get their turn.
pub fn coordinator_dies(point: &str) {
    let mut cluster = Cluster::new(3);
    let mut seen = Seen::default();
    cluster.start(Some(point), None);
    cluster.coordinator.try_apply(&rivals());
    cluster.coordinator.process.as_mut().unwrap().dies(point);
    seen.look_at_the_dead(&cluster);
    cluster.restart_coordinator();
    cluster.coordinator.wait_until_ready();
    // The answer may have died with it; applying again is what a user does.
    cluster.coordinator.apply(&rivals());
    run_out(&cluster, &mut seen, HEAL, 3);
    cluster.finish(&seen, 3);
}

/// The agent of one node dies at this point and is started again at once.
pub fn agent_dies(point: &str, victim: usize) {
    let mut cluster = Cluster::new(3);
    let mut seen = Seen::default();
    cluster.start(None, Some((victim, point)));
    cluster.coordinator.apply(&rivals());
    cluster.agents[victim].process.as_mut().unwrap().dies(point);
    seen.look_at_the_dead(&cluster);
    cluster.start_agent(victim, None);
    run_out(&cluster, &mut seen, HEAL, 3);
    cluster.finish(&seen, 3);
}

macro_rules! points {
    ($dies:expr; $($name:ident: $point:literal),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $dies($point);
        })+
    };
}

points! { coordinator_dies;
    coordinator_planned: "planned",
    coordinator_first_confirm: "first-confirm",
    coordinator_all_confirmed: "all-confirmed",
    coordinator_plan_written: "plan-written",
    coordinator_armed: "armed",
    coordinator_first_bind: "first-bind",
    coordinator_last_bind: "last-bind",
}

points! { |point| agent_dies(point, 0);
    agent_reserve_received: "reserve-received",
    agent_reserved: "reserved",
    agent_ledger_written: "ledger-written",
    agent_acknowledged: "acknowledged",
    agent_bound_seen: "bound-seen",
    agent_started: "started",
}
