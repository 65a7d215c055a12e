//! Whatever an agent refuses, and why: how often it is asked is bounded, and another node is used.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use phalanx_common::wire::RefusalCause;
use support::{CAUSES, World};

/// Seconds of each run.
const SECONDS: u64 = 600;

/// A new cause does not compile here before it is among those of the tests.
fn kind(cause: &RefusalCause) -> &'static str {
    match cause {
        RefusalCause::Released => "Released",
        RefusalCause::UnknownLease => "UnknownLease",
        RefusalCause::UnknownGpu(_) => "UnknownGpu",
        RefusalCause::Unhealthy(..) => "Unhealthy",
        RefusalCause::Held(..) => "Held",
        RefusalCause::PodHasLease(_) => "PodHasLease",
        RefusalCause::Short(..) => "Short",
        RefusalCause::Malformed(_) => "Malformed",
        RefusalCause::Disk(_) => "Disk",
        // A later leader: see the scenario of two coordinators.
        RefusalCause::StaleTerm(_) => "StaleTerm",
    }
}

#[test]
fn every_cause_is_tried() {
    for cause in CAUSES {
        assert_eq!(kind(&support::cause(cause, "n1")), cause);
    }
}

fn count(printed: &str, start: &str) -> usize {
    printed.lines().filter(|line| line.starts_with(start)).count()
}

#[test]
fn a_cause_that_never_goes_away_makes_no_fast_loop() {
    for cause in CAUSES {
        let mut world = World::new();
        world.run("node n1 8G");
        world.run("settle-quietly");
        world.run(&format!("agent n1 refuses 1000000 cause={cause}"));
        for gang in 0..4 {
            world.run(&format!("gang g{gang} 1x1G"));
        }
        let printed = world.run("settle") + &world.run(&format!("t {SECONDS}"));
        let asked = count(&printed, "reserve ");
        assert!(asked > 0, "{cause}: never asked");
        // Four gangs: each waits 16 s at the end, and a node that refuses is closed for 30 s.
        assert!(asked <= 4 * (SECONDS as usize / 16 + 6), "{cause}: asked {asked} times in {SECONDS} s");
        assert!(printed.lines().count() < 2_000, "{cause}: {} actions", printed.lines().count());
    }
}

#[test]
fn another_node_is_used_unless_the_request_itself_is_wrong() {
    for cause in CAUSES {
        let mut world = World::new();
        world.run("node n1 8G");
        world.run("node n2 8G");
        world.run("settle-quietly");
        world.run(&format!("agent n1 refuses 1000000 cause={cause}"));
        world.run("gang A 1x8G");
        world.run("settle-quietly");
        world.run("t 60");
        assert_eq!(world.phase("A"), "running", "{cause}");
    }
}

#[test]
fn a_bound_pod_whose_lease_its_agent_refuses_is_asked_for_less_and_less_often() {
    for cause in CAUSES {
        let mut world = World::new();
        world.run("node n1 8G");
        world.run("gang A 1x1G");
        world.run("settle-quietly");
        world.run("agent n1 loses-leases");
        world.run(&format!("agent n1 refuses 1000000 cause={cause}"));
        world.run("agent n1 back");
        let printed = world.run("settle") + &world.run(&format!("t {SECONDS}"));
        let asked = count(&printed, "reserve A-0 n1");
        assert!((2..=SECONDS as usize / 64 + 8).contains(&asked), "{cause}: asked {asked} times");
        assert_eq!(world.phase("A"), "running", "{cause}");
        world.run("agent n1 refuses 0");
        let printed = world.run("t 700");
        assert_eq!(count(&printed, "gang-bound A-0 n1"), 1, "{cause}: it has its lease again");
    }
}
