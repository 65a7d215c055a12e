//! Random histories of groups of gangs: agents refuse, fall silent and go, pods are deleted and made anew, the
//! coordinator restarts. No group starts in part, and when the faults stop all of them run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use support::World;

/// A small generator; the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

struct Gang {
    name: String,
    group: usize,
    pods: Vec<String>,
    gpus: u64,
    made: u64,
}

struct Play {
    world: World,
    random: Random,
    nodes: u64,
    gangs: Vec<Gang>,
    /// Whether all of a group were bound at once.
    started: Vec<bool>,
    seconds: u64,
    log: Vec<String>,
}

impl Play {
    fn new(seed: u64) -> Self {
        let (world, mut random) = (World::new(), Random(seed));
        let nodes = 2 + random.below(2);
        let mut play = Self {
            world,
            random,
            nodes,
            gangs: Vec::new(),
            started: Vec::new(),
            seconds: 0,
            log: Vec::new(),
        };
        for node in 0..nodes {
            play.run(&format!("node n{node} 4G"));
        }
        let ceiling = [8, 100][play.random.below(2) as usize];
        play.run(&format!("queue q gpu={ceiling}"));
        play
    }

    fn run(&mut self, command: &str) -> String {
        self.log.push(command.to_owned());
        self.world.run(command)
    }

    /// Gangs of several groups, in a random order; each group fits into two nodes of four GPUs, and into its queue.
    fn make_gangs(&mut self) {
        let groups = 2 + self.random.below(2) as usize;
        let mut commands = Vec::new();
        for group in 0..groups {
            self.started.push(false);
            let size = 1 + self.random.below(3);
            for gang in 0..size {
                let gpus = [1, 2, 4][self.random.below(if size > 2 { 2 } else { 3 }) as usize];
                let pods = 1 + self.random.below(2).min(8 / size / gpus - 1);
                let name = format!("g{group}{gang}");
                let options = format!("q=q group=group{group}/{size} degraded-grace=60");
                commands.push(format!("gang {name} {pods}x{gpus}G {options}"));
                let pods: Vec<String> = (0..pods).map(|pod| format!("{name}-{pod}")).collect();
                self.gangs.push(Gang { name, group, pods, gpus, made: 100 });
            }
        }
        while !commands.is_empty() {
            let next = self.random.below(commands.len() as u64) as usize;
            let command = commands.swap_remove(next);
            self.run(&command);
            if self.random.below(2) == 0 {
                self.run("settle-quietly");
                self.check();
            }
        }
        self.run("settle-quietly");
        self.check();
    }

    /// True where something of the gang is bound, or was.
    fn is_bound(&self, gang: &Gang) -> bool {
        let phase = self.world.phase(&gang.name);
        !matches!(&*phase, "" | "queued" | "admitted" | "reserving" | "committing" | "arming")
    }

    /// A group that has not started is bound wholly or not at all.
    fn check(&mut self) {
        for group in 0..self.started.len() {
            if self.started[group] {
                continue;
            }
            let gangs: Vec<&Gang> = self.gangs.iter().filter(|gang| gang.group == group).collect();
            let bound = gangs.iter().filter(|gang| self.is_bound(gang)).count();
            let commands = self.log.join("\n");
            assert!(
                bound == 0 || bound == gangs.len(),
                "{bound} of {} gangs of group {group} are bound after\n{commands}",
                gangs.len()
            );
            self.started[group] = bound > 0;
        }
    }

    fn advance(&mut self, seconds: u64) {
        self.seconds += seconds;
        self.run(&format!("quiet-t {}", self.seconds));
    }

    /// A pod is deleted, and its controller makes another one, at once or later.
    fn replace_pod(&mut self) {
        let gang = self.random.below(self.gangs.len() as u64) as usize;
        let pod = self.random.below(self.gangs[gang].pods.len() as u64) as usize;
        let old = self.gangs[gang].pods[pod].clone();
        self.gangs[gang].made += 1;
        let new = format!("{}-{}", self.gangs[gang].name, self.gangs[gang].made);
        let make = format!("pod {} {new} {}G q=q", self.gangs[gang].name, self.gangs[gang].gpus);
        self.gangs[gang].pods[pod] = new;
        // It may have been evicted.
        if self.run("state").contains(&format!("{old}@")) {
            self.run(&format!("delete-pod {old}"));
        }
        if self.random.below(2) == 0 {
            self.run("settle-quietly");
            self.check();
        }
        self.run(&make);
    }

    fn step(&mut self) {
        let node = self.random.below(self.nodes);
        match self.random.below(9) {
            0 => drop(self.run(&format!("agent n{node} refuses 1"))),
            1 => drop(self.run(&format!("agent n{node} silent"))),
            2 | 3 => drop(self.run(&format!("agent n{node} answers"))),
            4 => {
                self.run(&format!("agent n{node} gone"));
                self.run("settle-quietly");
                self.check();
                self.run(&format!("agent n{node} back"));
            }
            5 => self.replace_pod(),
            6 => drop(self.run("restart")),
            _ => {
                let seconds = 1 + self.random.below(40);
                self.advance(seconds);
            }
        }
        self.run("settle-quietly");
        self.check();
    }

    /// The faults stop. Whoever was evicted, or lost a pod for good, has its pods made anew; what runs ends.
    fn finish(&mut self) {
        for node in 0..self.nodes {
            self.run(&format!("agent n{node} answers"));
            self.run(&format!("agent n{node} refuses 0"));
            self.run(&format!("agent n{node} back"));
        }
        for _ in 0..20 {
            self.advance(130);
            self.check();
            self.make_missing();
            let names: Vec<String> = self.gangs.iter().map(|gang| gang.name.clone()).collect();
            for name in names {
                if self.world.phase(&name) == "running" {
                    self.run(&format!("end {name}"));
                    self.run("settle-quietly");
                    self.check();
                }
            }
        }
        let state = self.run("state");
        let waits = self.gangs.iter().any(|gang| self.world.phase(&gang.name) != "finished");
        assert!(!waits, "not all have run:\n{state}\nafter\n{}", self.log.join("\n"));
    }

    fn make_missing(&mut self) {
        let state = self.run("state");
        for gang in 0..self.gangs.len() {
            for pod in 0..self.gangs[gang].pods.len() {
                let name = &self.gangs[gang].pods[pod];
                if state.contains(&format!("{name}@")) {
                    continue;
                }
                self.gangs[gang].made += 1;
                let new = format!("{}-{}", self.gangs[gang].name, self.gangs[gang].made);
                let make = format!("pod {} {new} {}G q=q", self.gangs[gang].name, self.gangs[gang].gpus);
                self.gangs[gang].pods[pod] = new;
                self.run(&make);
            }
        }
        self.run("settle-quietly");
        self.check();
    }
}

#[test]
fn no_group_starts_in_part_and_all_run_in_the_end() {
    let seeds: u64 =
        std::env::var("PHALANX_GROUP_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let mut play = Play::new(seed);
        play.make_gangs();
        for _ in 0..25 {
            play.step();
        }
        play.finish();
    }
}
