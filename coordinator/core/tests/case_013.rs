//! What waits for one cause is told of it once, however long it waits and whatever else changes in the cluster.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use support::World;

/// As many as a developer waits for: what is written of one gang does not depend on how many there are.
const WAITING: usize = 200;
const RUNNING: usize = 10;

/// Statuses that were asked for, by gang.
fn statuses(printed: &str) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for line in printed.lines().filter_map(|line| line.strip_prefix("status ")) {
        *counts.entry(line.split(' ').next().unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn case_013_status_is_written_when_the_cause_changes_and_not_when_a_number_does() {
    let mut world = World::new();
    world.checks = false;
    for node in 0..RUNNING {
        world.run(&format!("node n{node} 8G"));
    }
    for gang in 0..RUNNING {
        world.run(&format!("gang r{gang} 1x8G"));
    }
    world.run("settle-quietly");
    for gang in 0..WAITING {
        world.run(&format!("gang w{gang} 1x8G"));
    }
    let first = world.run("settle");
    let first = statuses(&first);
    assert_eq!(first.len(), WAITING);
    assert!(first.values().all(|count| *count <= 2), "created, and admitted with its cause: {first:?}");

    // Half an hour, a node without GPUs, a pod of another scheduler, and half an hour more.
    let mut later = world.run("t 1800");
    later += &world.run("plain-node c1 cpu=64");
    later += &world.run("settle");
    later += &world.run("other c1 D cpu=2");
    later += &world.run("settle");
    later += &world.run("t 3600");
    assert_eq!(statuses(&later), BTreeMap::new());
    assert!(world.run("why w7").contains("0 GPUs free in total"), "who asks is told the numbers of now");

    // Another cause is told, once: the quota of the queue.
    world.run("queue default gpu=80");
    let quota = world.run("settle");
    let quota = statuses(&quota);
    assert_eq!(quota.len(), WAITING, "{quota:?}");
    assert!(quota.values().all(|count| *count == 1), "{quota:?}");
}
