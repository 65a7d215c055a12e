//! Random histories: a tree of queues, nodes that come and go, gangs that come, end and change.

use std::collections::{BTreeMap, BTreeSet};

use super::super::random::Random;
use super::super::support::World;
use super::super::support::watch::Seen;
use super::{COUNTED, Model, named};

/// What histories have reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub started: u64,
    pub plans: u64,
    pub waited: u64,
    pub rests: u64,
    pub dropped: u64,
    /// Plans where less would have done.
    pub less: u64,
    /// Histories in which a gang waits that evictions would help.
    pub missed: u64,
}

impl Counts {
    pub fn add(&mut self, other: Self) {
        self.started += other.started;
        self.plans += other.plans;
        self.waited += other.waited;
        self.rests += other.rests;
        self.dropped += other.dropped;
        self.missed += other.missed;
        self.less += other.less;
    }
}

struct History {
    random: Random,
    /// Devices are counted; else they are GPUs.
    is_counted: bool,
    world: World,
    log: Vec<String>,
    seconds: u64,
    nodes: Vec<String>,
    away: BTreeSet<String>,
    leaves: Vec<String>,
    budget: u64,
    made: u64,
    /// Seconds of cooldown, and when it was last seen not to run.
    cooldown: BTreeMap<String, (u64, u64)>,
    /// What each queue had at the last rest, and all needed.
    before: Option<(BTreeMap<String, u64>, u64)>,
    last_dropped: Option<u64>,
    counts: Counts,
    /// Most gangs are like the one before.
    repeats: bool,
    /// What the last one asked for.
    shape: Option<String>,
}

/// Plays one history; an error says what broke, with all that led to it.
pub fn play(seed: u64) -> Result<Counts, String> {
    let mut history = History::new(seed);
    let result = history.run();
    result.map(|()| history.counts).map_err(|error| {
        let seen = history.world.seen();
        format!("seed {seed}: {error}\n  {}\n{}", Model::new(&seen).text(), history.log.join("\n"))
    })
}

/// Plays a history in which many gangs are alike twice: once as it is, and once each is tried for itself whenever
/// anything may have changed. Both must end alike, to the last word but one: how much of a ceiling is used is told as it was
/// when the gang itself was last tried.
pub fn play_both(seed: u64) -> Result<(), String> {
    let mut ends = Vec::new();
    for forgets in [false, true] {
        let mut history = History::new(seed);
        history.repeats = true;
        history.world.checks = !forgets && seed.is_multiple_of(4);
        history.world.forgets = forgets;
        history.run().map_err(|error| format!("seed {seed}: {error}\n{}", history.log.join("\n")))?;
        ends.push((Model::new(&history.world.seen()).text(), history.log.join("\n")));
    }
    let [(end, log), (each, _)] = &ends[..] else { return Ok(()) };
    let is_of_ceiling = |line: &str| line.contains(" quota: ");
    let differs = end
        .lines()
        .zip(each.lines())
        .find(|(end, each)| end != each && !(is_of_ceiling(end) && is_of_ceiling(each)));
    match differs {
        Some((end, each)) => Err(format!("seed {seed}: {end}\neach for itself: {each}\n{log}")),
        None => Ok(()),
    }
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed.wrapping_mul(7919).wrapping_add(11)),
            is_counted: seed % 3 == 2,
            world: World::new(),
            log: Vec::new(),
            seconds: 0,
            nodes: Vec::new(),
            away: BTreeSet::new(),
            leaves: Vec::new(),
            budget: u64::MAX,
            made: 0,
            cooldown: BTreeMap::new(),
            before: None,
            last_dropped: None,
            counts: Counts::default(),
            repeats: false,
            shape: None,
        }
    }
}

impl History {
    fn command(&mut self, line: String) {
        self.world.run(&line);
        self.log.push(line);
    }

    fn run(&mut self) -> Result<(), String> {
        self.command("kubelets-stop-pods".to_owned());
        // Holds after a wait are another matter: scenarios show them.
        self.command("setting hold-after 100000".to_owned());
        self.command("setting degraded-grace never".to_owned());
        for node in 0..2 + self.random.below(3) {
            let (name, gpus) = (format!("n{node}"), 2 + self.random.below(7));
            if self.is_counted {
                self.command(format!("node {name} 0G"));
                self.command(format!("plain-node {name} {COUNTED}={gpus}"));
            } else {
                self.command(format!("node {name} {gpus}G"));
            }
            self.nodes.push(name);
        }
        for class in 0..4 {
            let never = if class == 3 { " never=yes" } else { "" };
            self.command(format!("class c{class} {}{never}", [0, 10, 20, 30][class]));
        }
        let shape = [&["a", "b"][..], &["a", "b", "c"], &["a", "p", "b", "c"]][self.random.below(3) as usize];
        for queue in shape {
            let line = self.queue(queue, shape.contains(&"p"));
            self.command(line);
        }
        self.leaves = shape.iter().filter(|queue| **queue != "p").map(|queue| (*queue).to_owned()).collect();
        if self.random.one_in(3) {
            self.budget = self.random.below(2);
            let line = format!("budget B allows={} labels=app:x", self.budget);
            self.command(line);
        }
        self.command("settle-quietly".to_owned());
        self.world.watch();
        for _ in 0..6 + self.random.below(6) {
            let (line, changes_limits) = self.step();
            if let Some(line) = line {
                self.command(line);
            }
            self.settle(changes_limits)?;
        }
        self.restart()
    }

    fn queue(&mut self, name: &str, has_parent: bool) -> String {
        let mut line = format!("queue {name} weight={}", 1 + self.random.below(3));
        let mut limit = 12;
        for (key, chance) in [("", 3), ("deserved.", 3), ("guarantee.", 4)] {
            if self.random.one_in(chance) {
                limit = 1 + self.random.below(limit);
                line += &format!(" {key}{}={limit}", if self.is_counted { COUNTED } else { "gpu" });
            }
        }
        if self.random.one_in(6) {
            line += " reclaimable=no";
        }
        if self.random.one_in(5) {
            line += &format!(" prio={}", self.random.below(3));
        }
        if has_parent && matches!(name, "b" | "c") {
            line += " parent=p";
        }
        line
    }

    fn step(&mut self) -> (Option<String>, bool) {
        let gangs = self.world.gang_names();
        let any = |random: &mut Random| gangs.get(random.below(gangs.len().max(1) as u64) as usize).cloned();
        match self.random.below(20) {
            0..=10 => (Some(self.gang()), false),
            11..=12 => {
                let bound: Vec<&String> = gangs.iter().filter(|gang| self.world.is_bound(gang)).collect();
                let one = bound.get(self.random.below(bound.len().max(1) as u64) as usize);
                (one.map(|gang| format!("end {gang}")), false)
            }
            13 => (any(&mut self.random).map(|gang| format!("delete {gang}")), false),
            14 => {
                let (class, value) = (self.random.below(3), self.random.below(4) * 10);
                (Some(format!("class c{class} {value}")), false)
            }
            15 => {
                let all = self.leaves.clone();
                let name = &all[self.random.below(all.len() as u64) as usize];
                let has_parent = self.log.iter().any(|line| line.starts_with("queue p"));
                (Some(self.queue(name, has_parent)), true)
            }
            16 => {
                let node = self.nodes[self.random.below(self.nodes.len() as u64) as usize].clone();
                let goes = self.away.insert(node.clone());
                if !goes {
                    self.away.remove(&node);
                }
                (Some(format!("agent {node} {}", if goes { "gone" } else { "back" })), true)
            }
            17 => {
                let waiting: Vec<&String> = gangs.iter().filter(|gang| !self.world.is_bound(gang)).collect();
                let one = waiting.get(self.random.below(waiting.len().max(1) as u64) as usize);
                let queue = self.leaves[self.random.below(self.leaves.len() as u64) as usize].clone();
                (one.map(|gang| format!("set-queue {gang} {queue}")), false)
            }
            18 => {
                self.seconds += 60;
                (None, false)
            }
            _ => (Some(self.gang()), false),
        }
    }

    fn gang(&mut self) -> String {
        self.made += 1;
        let name = format!("g{}", self.made);
        if let Some(shape) = self.shape.clone().filter(|_| self.repeats && !self.random.one_in(4)) {
            return format!("gang {name}{shape}");
        }
        let (count, size) = (1 + self.random.below(4), [1, 1, 2, 2, 4][self.random.below(5) as usize]);
        let minimum = 1 + self.random.below(count);
        let queue = self.leaves[self.random.below(self.leaves.len() as u64) as usize].clone();
        let mut line = format!("gang {name}");
        let gpus = if self.is_counted { 0 } else { size };
        if count > 1 && self.random.one_in(4) {
            line += &format!(" master:1x{gpus}G worker:{}x{gpus}G", count - 1);
        } else {
            line += &format!(" {count}x{gpus}G");
        }
        if self.is_counted {
            line += &format!(" {COUNTED}={size}");
        }
        line += &format!(" min={minimum} q={queue} class=c{} dies=0", self.random.below(4));
        if self.random.one_in(8) {
            line += " preemptable=no";
        }
        if self.random.one_in(8) {
            line += " cooldown=50";
            self.cooldown.insert(name.clone(), (50, self.seconds));
        }
        if self.random.one_in(4) {
            line += " labels=app:x";
        }
        if self.random.one_in(2) {
            line += " recreated=yes";
        }
        self.shape = line.strip_prefix(&format!("gang {name}")).map(str::to_owned);
        line
    }

    fn settle(&mut self, changes_limits: bool) -> Result<(), String> {
        self.command("settle-quietly".to_owned());
        for _ in 0..2 {
            self.seconds += 1;
            let line = format!("quiet-t {}", self.seconds);
            self.command(line);
        }
        let protected = self.protected();
        let watched = self.world.take_watched();
        for made in &watched.made {
            self.counts.plans += 1;
            let (at, after) = (Model::new(&made.seen), Model::of_pass(made));
            // What was started before it in the same step may be protected later: the start counts.
            let less = at
                .check_plan(made, self.budget, &protected)
                .or_else(|_| after.check_plan(made, self.budget, &protected))
                .map_err(|error| format!("{error}\n  at {} ms: {}", made.seen.now_ms, at.text()))?;
            self.counts.less += u64::from(less);
        }
        if !watched.dropped.is_empty() {
            self.counts.dropped += 1;
            self.last_dropped = Some(self.seconds);
        }
        let seen = self.world.seen();
        self.check_rest(&seen, changes_limits)?;
        self.note_running(&seen);
        Ok(())
    }

    /// Gangs whose cooldown cannot be over yet.
    fn protected(&self) -> BTreeSet<String> {
        let all = self.cooldown.iter().filter(|(_, (length, since))| self.seconds < since + length);
        all.map(|(gang, _)| gang.clone()).collect()
    }

    fn note_running(&mut self, seen: &Seen) {
        for gang in seen.view.gangs.iter().filter(|gang| !matches!(&*gang.phase, "running" | "degraded")) {
            if let Some((_, since)) = self.cooldown.get_mut(&*gang.name.name) {
                *since = self.seconds;
            }
        }
    }

    fn check_rest(&mut self, seen: &Seen, changes_limits: bool) -> Result<(), String> {
        let model = Model::new(seen);
        self.counts.rests += 1;
        self.counts.started += seen.view.gangs.iter().filter(|gang| &*gang.phase == "running").count() as u64;
        model.check_ownership()?;
        let now: BTreeMap<String, u64> =
            seen.queues.keys().map(|queue| (queue.to_string(), model.allocated(queue))).collect();
        let total = model.needs_in_all();
        // Limits that were made smaller may be passed, and only by what was there before.
        let is_comparable = !changes_limits && self.away.is_empty();
        if let Some((before, total_before)) = self.before.as_ref().filter(|_| is_comparable) {
            for (name, spec) in &seen.queues {
                let (has, had) = (now[name.as_str()], before.get(name.as_str()).copied().unwrap_or(0));
                if named(&spec.capability).is_some_and(|limit| has > limit && has > had) {
                    return Err(format!("queue {name} has {has}, more than its ceiling"));
                }
            }
            if total > model.capacity() && total > *total_before {
                return Err(format!("{total} are used or guaranteed of {}", model.capacity()));
            }
        }
        self.before = Some((now, total));
        let is_busy = seen.view.gangs.iter().any(|gang| {
            let code = gang.reason.as_ref().map_or("", |reason| &*reason.code);
            matches!(code, "MakingRoom" | "InProgress") || matches!(&*gang.phase, "evicting" | "binding")
        });
        self.counts.waited += seen.view.gangs.iter().filter(|gang| &*gang.phase == "admitted").count() as u64;
        if is_busy || !self.away.is_empty() {
            return Ok(());
        }
        // A plan that was dropped is not made again at once, and what is protected for a time is looked at then.
        let evicts = self.last_dropped.is_none_or(|at| self.seconds > at + 400);
        let all: BTreeSet<String> = self.cooldown.keys().cloned().collect();
        if model.check_waiting(self.budget, &all, evicts)? {
            self.counts.missed = 1;
        }
        Ok(())
    }

    /// A fresh coordinator that is told the same decides the same.
    fn restart(&mut self) -> Result<(), String> {
        let before = self.world.seen();
        self.command("restart".to_owned());
        self.command("settle-quietly".to_owned());
        let watched = self.world.take_watched();
        let after = self.world.seen();
        let is_at_rest = |seen: &Seen| {
            self.last_dropped.is_none()
                && seen.view.gangs.iter().all(|gang| {
                    gang.reason.as_ref().is_none_or(|reason| !reason.text.contains("to end on"))
                        && &*gang.phase != "evicting"
                })
        };
        if !is_at_rest(&before) || !self.away.is_empty() {
            return Ok(());
        }
        if let Some(made) = watched.made.first() {
            let before = Model::new(&before).text();
            return Err(format!("after a restart others go for {:?}; before:\n  {before}", made.plan.gang));
        }
        let places = |seen: &Seen| -> Vec<String> {
            let gangs = seen.view.gangs.iter().map(|gang| {
                let pods = gang.pods.iter().map(|pod| format!("{}@{:?}{:?}", pod.name, pod.node, pod.gpus));
                format!("{} {} {}", gang.name.name, gang.phase, pods.collect::<Vec<_>>().join(" "))
            });
            gangs.collect()
        };
        match places(&before).iter().zip(&places(&after)).find(|(before, after)| before != after) {
            Some((was, is)) => Err(format!(
                "after a restart: {was}, then {is}; before:\n  {}\nafter:",
                Model::new(&before).text()
            )),
            None => Ok(()),
        }
    }
}
