//! Random states: a tree of queues with every kind of limit, nodes of which some are kept from pods or closed, gangs that
//! run and gangs that wait.

use super::super::random::Random;
use super::super::support::World;

/// Nodes whose GPUs pods of others have: room that can be given back without a change of what there is.
pub const SPARES: u64 = 3;
const SPARE_GPUS: u64 = 8;

struct Maker {
    random: Random,
    world: World,
    log: Vec<String>,
    leaves: Vec<&'static str>,
    nodes: u64,
    made: u64,
    seconds: u64,
}

/// A state, and the commands that led to it.
pub fn state(seed: u64) -> (World, Vec<String>) {
    let mut maker = Maker {
        random: Random(seed.wrapping_mul(6007).wrapping_add(29)),
        world: World::new(),
        log: Vec::new(),
        leaves: Vec::new(),
        nodes: 0,
        made: 0,
        seconds: 0,
    };
    maker.world.checks = seed.is_multiple_of(16);
    maker.run();
    (maker.world, maker.log)
}

impl Maker {
    fn command(&mut self, line: String) {
        self.world.run(&line);
        self.log.push(line);
    }

    fn settle(&mut self) {
        self.command("settle-quietly".to_owned());
        self.seconds += 1;
        let line = format!("quiet-t {}", self.seconds);
        self.command(line);
    }

    fn run(&mut self) {
        for switch in ["preempt", "reclaim"] {
            if self.random.one_in(4) {
                self.command(format!("setting {switch} off"));
            }
        }
        self.command("setting degraded-grace never".to_owned());
        let hold = if self.random.one_in(3) { 60 } else { 100_000 };
        self.command(format!("setting hold-after {hold}"));
        for class in 0..4 {
            let never = if class == 3 { " never=yes" } else { "" };
            self.command(format!("class c{class} {}{never}", [0, 10, 20, 30][class]));
        }
        self.make_nodes();
        let shape = [&["a"][..], &["a", "b"], &["a", "p", "b", "c"]][self.random.below(3) as usize];
        for queue in shape {
            let line = self.queue(queue, shape.contains(&"p"));
            self.command(line);
        }
        self.leaves = shape.iter().filter(|queue| **queue != "p").copied().collect();
        if self.random.one_in(4) {
            let line = format!("budget B allows={} labels=app:x", self.random.below(2));
            self.command(line);
        }
        for _ in 0..3 + self.random.below(7) {
            let line = self.gang();
            self.command(line);
            self.settle();
            if self.random.one_in(4) {
                self.end_one();
            }
        }
        self.change(shape);
        for _ in 0..1 + self.random.below(3) {
            let line = self.gang();
            self.command(line);
        }
        self.settle();
        if self.random.one_in(3) {
            self.seconds += 70;
            self.settle();
        }
    }

    fn make_nodes(&mut self) {
        self.nodes = 1 + self.random.below(3);
        for node in 0..self.nodes {
            let gpus = [2, 4, 8][self.random.below(3) as usize];
            self.command(format!("node n{node} {gpus}G"));
            let taint = if self.random.one_in(8) { " taint=team=x:NoSchedule" } else { "" };
            let label = if self.random.one_in(2) { " label-disk=ssd" } else { "" };
            self.command(format!("plain-node n{node}{label}{taint}"));
        }
        // Where there are none, room comes with new nodes, and changes what queues are entitled to.
        let spares = if self.random.one_in(2) { SPARES } else { 0 };
        for spare in 0..spares {
            self.command(format!("node s{spare} {SPARE_GPUS}G"));
            self.command(format!("plain-node s{spare} label-disk=ssd"));
            self.command(format!("other s{spare} h{spare} gpu={SPARE_GPUS}"));
        }
    }

    fn queue(&mut self, name: &str, has_parent: bool) -> String {
        let mut line = format!("queue {name} weight={}", 1 + self.random.below(3));
        let mut limit = 14;
        for (key, chance) in [("", 2), ("deserved.", 3), ("guarantee.", 4)] {
            if self.random.one_in(chance) {
                limit = 1 + self.random.below(limit);
                line += &format!(" {key}gpu={limit}");
            }
        }
        if self.random.one_in(5) {
            line += &format!(" cpu={}", 2 + self.random.below(10));
        }
        for (option, chance) in [("reclaimable=no", 6), ("dequeue=fifo", 6), ("prio=1", 6)] {
            if self.random.one_in(chance) {
                line += &format!(" {option}");
            }
        }
        if has_parent && matches!(name, "b" | "c") {
            line += " parent=p";
        }
        line
    }

    /// What happens to queues and nodes after the first gangs have come.
    fn change(&mut self, shape: &[&str]) {
        let queue = shape[self.random.below(shape.len() as u64) as usize];
        let node = self.random.below(self.nodes);
        match self.random.below(8) {
            0 => {
                let line = self.queue(queue, shape.contains(&"p"));
                self.command(format!("{line} open=no"));
            }
            1 => self.command(format!("queue-policy {queue} namespaces=others")),
            2 => {
                let line = self.queue(queue, shape.contains(&"p"));
                self.command(line);
            }
            3 => self.command(format!("agent n{node} gone")),
            4 => self.command(format!("plain-node n{node} unschedulable=yes")),
            _ => {}
        }
    }

    fn end_one(&mut self) {
        let gangs = self.world.gang_names();
        let bound: Vec<&String> = gangs.iter().filter(|gang| self.world.is_bound(gang)).collect();
        let one = bound.get(self.random.below(bound.len().max(1) as u64) as usize);
        if let Some(line) = one.map(|gang| format!("end {gang}")) {
            self.command(line);
            self.settle();
        }
    }

    fn gang(&mut self) -> String {
        self.made += 1;
        let sizes = if self.random.one_in(8) { 7 } else { 6 };
        let size = [1, 1, 2, 2, 3, 4, 9][self.random.below(sizes) as usize];
        let count = 1 + self.random.below(4);
        let mut minimum = 1 + self.random.below(count);
        let mut line = format!("gang g{}", self.made);
        if count > 1 && self.random.one_in(4) {
            line += &format!(" master:1x{}G worker:{}x{size}G", self.random.below(3), count - 1);
            // As the controller of a Job writes it: minima of tasks, and what those pods ask for. Nothing is drawn for it.
            let workers = (self.made / 4 + size) % count;
            if self.made.is_multiple_of(2) {
                line += &format!(" tmin=master:1,worker:{workers}");
            }
            if self.made.is_multiple_of(4) {
                line += &format!(" need-gpu={}", workers * size);
            }
        } else {
            line += &format!(" {count}x{size}G");
        }
        if self.random.one_in(12) {
            minimum += count;
        }
        let queue = match self.random.below(24) {
            0 => "zz",
            1 => "p",
            _ => self.leaves[self.random.below(self.leaves.len() as u64) as usize],
        };
        let class = if self.random.one_in(30) { 9 } else { self.random.below(4) };
        line += &format!(" min={minimum} q={queue} class=c{class}");
        for (option, chance) in [
            ("cpu=2", 3),
            ("preemptable=no", 8),
            ("cooldown=50", 10),
            ("labels=app:x", 4),
            ("recreated=yes", 2),
            ("selector=disk:ssd", 6),
            ("tolerates=team=x:NoSchedule", 4),
            ("gates=first,second", 25),
        ] {
            if self.random.one_in(chance) {
                line += &format!(" {option}");
            }
        }
        line
    }
}
