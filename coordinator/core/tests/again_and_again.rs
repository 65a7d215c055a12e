//! Cases in which the same is done many times, in random order or in all orders.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/random.rs"]
mod random;
mod support;

use std::collections::{BTreeMap, BTreeSet};

use random::Random;
use support::World;

impl Random {
    fn shuffled<T: Clone>(&mut self, from: &[T]) -> Vec<T> {
        let mut rest = from.to_vec();
        let mut order = Vec::new();
        while !rest.is_empty() {
            order.push(rest.remove(self.at(rest.len())));
        }
        order
    }
}

fn run_all(world: &mut World, lines: &[&str]) {
    for line in lines {
        world.run(line);
    }
}

/// What is allocated to a queue of a resource, as the coordinator shows it.
fn allocated(world: &mut World, queue: &str, resource: &str) -> u64 {
    let text = world.run("queues");
    let line = text.lines().find(|line| line.starts_with(&format!("{queue}:"))).unwrap();
    let amounts = line.split("allocated ").nth(1).unwrap().split(';').next().unwrap();
    let amount = amounts.split(", ").find_map(|amount| amount.strip_prefix(&format!("{resource} ")));
    amount.map_or(0, |amount| amount.parse().unwrap())
}

/// Gangs of case 62.
const SOAKED: u64 = 500;

/// Every gang with its phase and how many of its pods have a place, and how many nodes have so many GPUs taken. Which of
/// nodes that are alike is taken depends on which was heard of first.
fn plan(world: &World) -> BTreeSet<String> {
    let view = world.seen().view;
    let has_place = |pod: &&phalanx_core::view::PodView| pod.node.is_some();
    let gangs = view.gangs.iter().map(|gang| {
        let placed = gang.pods.iter().filter(has_place).count();
        format!("{} {}: {placed} of {}", gang.name.name, gang.phase, gang.pods.len())
    });
    let mut taken: BTreeMap<usize, u32> = BTreeMap::new();
    for node in &view.nodes {
        *taken.entry(node.gpus.iter().filter(|gpu| gpu.holder.is_some()).count()).or_default() += 1;
    }
    gangs.chain(taken.iter().map(|(gpus, nodes)| format!("{nodes} nodes with {gpus} taken"))).collect()
}

/// A gang comes, and mostly something happens to it, or to another one, in whatever phase it is.
fn soak(world: &mut World, random: &mut Random, at: u64, seconds: &mut u64) {
    let (pods, gpus) = (1 + random.below(8), 1 + random.below(4));
    world.run(&format!("gang g{at} {pods}x{gpus}G min={}", 1 + random.below(pods)));
    if random.one_in(6) {
        world.run(&format!("agent n{} refuses 1", 1 + random.below(18)));
    }
    if random.one_in(2) {
        for _ in 0..random.below(5 * pods) {
            world.run("step");
        }
        match random.below(3) {
            0 => drop(world.run(&format!("delete g{at}"))),
            1 => drop(world.run(&format!("delete-pod g{at}-0"))),
            _ => {}
        }
    }
    world.run("settle-quietly");
    let gangs = world.gang_names();
    for _ in 0..random.below(3) {
        let gang = random.pick(&gangs);
        let pod = world.pods_of(&gang).next().map(|pod| pod.name.name.to_string());
        match (random.below(4), pod) {
            (0, _) if world.is_bound(&gang) => drop(world.run(&format!("end {gang}"))),
            (1, Some(pod)) if world.is_bound(&gang) => drop(world.run(&format!("fail {pod}"))),
            (2, Some(pod)) => drop(world.run(&format!("delete-pod {pod}"))),
            (3, _) if world.gang_names().contains(&gang) => drop(world.run(&format!("delete {gang}"))),
            _ => {}
        }
    }
    // No more of them than there is room for twice.
    while world.gang_names().len() > 12 {
        let gang = random.pick(&world.gang_names());
        world.run(&format!("delete {gang}"));
    }
    *seconds += random.below(30);
    world.run(&format!("quiet-t {seconds}"));
}

#[test]
fn case_062_idle_nodes_stay_usable_after_500_gangs() {
    let (mut world, mut random, mut seconds) = (World::new(), Random(62), 0);
    world.checks = false;
    // What nobody wrote down counts from the start of a coordinator, so that a fresh one would wait longer.
    run_all(&mut world, &["setting hold-after 1000000", "setting degraded-grace never"]);
    for node in 1..=18 {
        world.run(&format!("node n{node} 4G"));
    }
    for at in 0..SOAKED {
        soak(&mut world, &mut random, at, &mut seconds);
        // Nothing waits for a time: the live one and a fresh one, which is told the same, plan the same.
        let (mut live, mut fresh) = (world.clone(), world.clone());
        fresh.run("restart");
        for world in [&mut live, &mut fresh] {
            world.run(&format!("quiet-t {}", seconds + 600));
            world.run("gang probe 5x2G");
            world.run("settle-quietly");
            world.checks = true;
            world.run("settle-quietly");
        }
        let (live, fresh) = (plan(&live), plan(&fresh));
        let differ: Vec<&String> = live.symmetric_difference(&fresh).collect();
        assert!(differ.is_empty(), "after gang {at}: {differ:#?}");
    }
    for gang in world.gang_names() {
        world.run(&format!("delete {gang}"));
    }
    world.checks = true;
    world.run("settle-quietly");
    assert!(world.run("used").starts_with("0/72 used, 18 whole nodes idle"), "{}", world.run("used"));
    world.run(&format!("quiet-t {}", seconds + 2_000_000));
    let kept: Vec<_> = world.kept().into_iter().filter(|(_, count)| *count > 0).collect();
    assert!(kept.is_empty(), "kept of nobody: {kept:?}");
    // Channels of an IMEX domain are not served: G is the case's without them.
    run_all(&mut world, &["gang G 16x4G", "settle-quietly"]);
    assert_eq!(world.phase("G"), "running");
}

#[test]
fn case_065_pods_of_two_sizes_find_their_nodes_in_any_order() {
    let nodes = ["node n9 8G", "node n10 8G"];
    let fill = [
        "gang fill9 1x3G selector=kubernetes.io/hostname:n9",
        "gang fill10 1x5G selector=kubernetes.io/hostname:n10",
    ];
    let mut random = Random(65);
    for round in 0..100 {
        let mut world = World::new();
        run_all(&mut world, &random.shuffled(&[nodes, fill].concat()));
        world.run("settle-quietly");
        let small = random.pick(&["T-0", "T-1"]);
        let large = if small == "T-0" { "T-1" } else { "T-0" };
        let pods = [format!("pod T {small} 3G"), format!("pod T {large} 5G")];
        let lines = ["make-group T min=2", pods[0].as_str(), pods[1].as_str()];
        run_all(&mut world, &random.shuffled(&lines));
        world.run("settle-quietly");
        let places: Vec<String> = world
            .pods_of("T")
            .map(|pod| format!("{}@{}", pod.name.name, pod.binding.as_ref().unwrap().node))
            .collect();
        for (pod, node) in [(small, "n10"), (large, "n9")] {
            assert!(places.contains(&format!("{pod}@{node}")), "round {round}: {places:?}");
        }
    }
}

#[test]
fn case_072_gpus_stay_divided_however_jobs_come_and_go() {
    let mut world = World::new();
    world.checks = false;
    run_all(
        &mut world,
        &[
            "node n1 10G cpu=10",
            "queue n1 weight=1",
            "queue n2 weight=1",
            "queue n21 parent=n2",
            "queue n22 parent=n2",
            "many A 10 1G q=n1 cpu=0",
            "many B 10 0G q=n21 cpu=1",
            "many C 10 1G q=n22 cpu=0",
            "settle-quietly",
        ],
    );
    let mut random = Random(72);
    let jobs = [("A", "1x1G q=n1 cpu=0"), ("B", "1x0G q=n21 cpu=1"), ("C", "1x1G q=n22 cpu=0")];
    for round in 0..100 {
        let (kind, shape) = random.pick(&jobs);
        let running = world.gang_names().into_iter();
        let running: Vec<String> =
            running.filter(|gang| gang.starts_with(kind) && world.is_bound(gang)).collect();
        let gang = random.pick(&running);
        run_all(&mut world, &[&format!("end {gang}"), &format!("delete {gang}")]);
        run_all(&mut world, &[&format!("gang {kind}-again-{round} {shape}"), "settle-quietly"]);
        let gpus = ["n1", "n22"].map(|queue| allocated(&mut world, queue, "nvidia.com/gpu"));
        assert_eq!(gpus.iter().sum::<u64>(), 10, "round {round}");
        assert!(gpus.iter().all(|gpus| (4..=6).contains(gpus)), "round {round}: {gpus:?}");
        assert_eq!(allocated(&mut world, "n21", "cpu"), 10, "round {round}");
    }
}

/// What the coordinator hears of a pod that is on its way out, some of it twice.
const HEARD: [&str; 4] = ["fail B-0", "delete-pod B-0", "pod-deleted B-0-4", "pod-deleted B-0-4"];

/// All orders of these.
fn orders<'a>(of: &[&'a str]) -> Vec<Vec<&'a str>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let mut rest = of.to_vec();
        let first = rest.remove(at);
        orders(&rest).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    (0..of.len()).flat_map(first).collect()
}

#[test]
fn case_097_use_is_taken_back_once_in_whatever_order_it_is_heard_of() {
    for order in orders(&HEARD) {
        for settles in [false, true] {
            let mut world = World::new();
            run_all(&mut world, &["node n1 8G", "queue q gpu=8", "gang A 1x4G q=q", "gang B 1x4G q=q"]);
            world.run("settle-quietly");
            let used = |world: &mut World| allocated(world, "q", "nvidia.com/gpu");
            assert_eq!(used(&mut world), 8);
            for line in &order {
                // An update or an eviction of a pod whose object is gone is not heard of.
                if line.starts_with("pod-deleted") || world.pods_of("B").next().is_some() {
                    world.run(line);
                }
                assert!([4, 8].contains(&used(&mut world)), "{order:?}: {}", used(&mut world));
                if settles {
                    world.run("settle-quietly");
                    assert!([4, 8].contains(&used(&mut world)), "{order:?}: {}", used(&mut world));
                }
            }
            if world.pods_of("B").next().is_some() {
                world.run("delete-pod B-0");
            }
            world.run("settle-quietly");
            assert_eq!(used(&mut world), 4, "{order:?}");
            assert!(world.run("nodes").trim_end().ends_with("nvidia.com/gpu 4"), "{order:?}");
            run_all(&mut world, &["pod B B-0 4G", "settle-quietly", "gang C 1x4G q=q", "settle-quietly"]);
            assert_eq!(used(&mut world), 8, "{order:?}");
            assert!(world.is_bound("B") && !world.is_bound("C"), "{order:?}");
            let why = world.run("why C");
            assert!(
                why.contains("capability nvidia.com/gpu 8, used or admitted 8, asked 4"),
                "{order:?}: {why}"
            );
        }
    }
}
