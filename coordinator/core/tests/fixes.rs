//! The oracle of reasons: in random clusters, what a reason suggests is done, and the gang starts; a
//! little less, and it does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/random.rs"]
mod random;
mod support;

use phalanx_core::reason::{Fewer, Reason};
use random::Random;
use support::World;

/// A cluster with some work on it and a gang that asks for a lot. Returns the gang's command.
fn world(seed: u64) -> (World, String) {
    let mut random = Random(seed);
    let mut world = World::new();
    let nodes = 2 + random.below(4);
    for node in 0..nodes {
        let gpus = [4, 8][random.below(2) as usize];
        let model = ["H100", "A100"][random.below(4) as usize / 3];
        world.run(&format!("node n{node} {gpus}G model={model} cpu={}", 8 + random.below(64)));
    }
    world.run(&format!("queue q gpu={}", 4 + random.below(30)));
    for fill in 0..random.below(8) {
        let queue = ["default", "q"][random.below(2) as usize];
        world.run(&format!("gang fill{fill} 1x{}G q={queue} cpu=1", 1 + random.below(4)));
        world.run("settle-quietly");
    }
    let queue = ["default", "q"][random.below(2) as usize];
    let masters = random.below(3);
    let master = if masters > 0 { format!("ps:{masters}x{}G ", random.below(2)) } else { String::new() };
    let workers = 1 + random.below(6);
    let size = 1 + random.below(8);
    let mut gang = format!("{master}worker:{workers}x{size}G q={queue} cpu={}", 1 + random.below(8));
    if seed.is_multiple_of(2) {
        // As the controller of a Job writes it: each task needs all its pods.
        let ps = if masters > 0 { format!("ps:{masters},") } else { String::new() };
        gang += &format!(" tmin={ps}worker:{workers}");
        if seed.is_multiple_of(4) {
            gang += &format!(" need-gpu={}", workers * size);
        }
    }
    (world, gang)
}

fn submit(world: &mut World, name: &str, gang: &str, options: &str) {
    world.run(&format!("gang {name} {gang} {options}"));
    world.run("settle-quietly");
}

/// The same world, once this is lowered of the gang.
fn starts_with(world: &World, fewer: &Fewer) -> bool {
    let mut world = world.clone();
    world.lower("G", fewer);
    world.run("settle-quietly");
    world.phase("G") == "running"
}

/// The same world, with the queue's ceiling on GPUs raised first; true where the ceiling no longer counts.
fn passes_with_ceiling(seed: u64, ceiling: u64) -> bool {
    let (mut world, gang) = world(seed);
    world.run(&format!("queue q gpu={ceiling}"));
    submit(&mut world, "G", &gang, "");
    !matches!(world.reason("G"), Some(Reason::QuotaUsed { .. } | Reason::AboveCapability { .. }))
}

#[test]
fn what_a_reason_suggests_helps_and_less_does_not() {
    let (mut lowered, mut whole, mut raised, mut mixed) = (0, 0, 0, 0);
    for seed in 0..400 {
        let (mut world, gang) = world(seed);
        submit(&mut world, "G", &gang, "");
        let Some(reason) = world.reason("G") else { continue };
        let lower_to = match &reason {
            Reason::NoRoom(room) => room.lower_to.clone().filter(|_| !room.mixed_models_would_fit),
            Reason::LargerThanCluster { lower_to, mixed_models_would_fit: false, .. } => {
                lower_to.as_deref().cloned()
            }
            _ => None,
        };
        let is_now = matches!(reason, Reason::NoRoom(_));
        if let Some(fewer) = lower_to.filter(|_| is_now) {
            assert!(starts_with(&world, &fewer), "seed {seed}: {gang}: {reason}: {}", reason.fix());
            let more = Fewer::to(fewer.minimum + 1);
            assert!(!starts_with(&world, &more), "seed {seed}: {gang}: {fewer:?} is not the most");
            lowered += 1;
            whole += u32::from(!fewer.tasks.is_empty() && !fewer.resources.is_empty());
        }
        // Gangs ahead that wait for quota take what is added first; `why` names them.
        let is_next = !world.run("why G").contains("ahead of it");
        if let Reason::QuotaUsed { resource, limit, used, asked, .. } = &reason
            && &**resource == "nvidia.com/gpu"
            && is_next
        {
            assert!(passes_with_ceiling(seed, used + asked), "seed {seed}: {gang}: {reason}");
            assert!(!passes_with_ceiling(seed, used + asked - 1), "seed {seed}: {gang}: limit {limit}");
            raised += 1;
        }
        if let Reason::AboveCapability { asked, .. } = &reason {
            assert!(!passes_with_ceiling(seed, asked - 1), "seed {seed}: {gang}: {reason}");
            raised += 1;
        }
        let mixes = match &reason {
            Reason::NoRoom(room) => room.mixed_models_would_fit,
            Reason::LargerThanCluster { mixed_models_would_fit, .. } => *mixed_models_would_fit,
            _ => false,
        };
        if mixes && matches!(reason, Reason::NoRoom(_)) {
            let (mut world, gang) = self::world(seed);
            submit(&mut world, "G", &gang, "mixed=yes");
            assert_eq!(world.phase("G"), "running", "seed {seed}: {gang}: {reason}");
            mixed += 1;
        }
    }
    // The worlds must reach what is to be tested.
    assert!(lowered > 10 && raised > 10 && mixed > 0, "{lowered} lowered, {raised} raised, {mixed} mixed");
    assert!(whole > 3, "{whole} of {lowered} lowered with minima of tasks and minResources");
}
