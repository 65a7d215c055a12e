//! What a run may be told: its seed, its faults, and a bug to be planted.

#[cfg(feature = "planted-bugs")]
use phalanx_common::planted::Bug;
use phalanx_coordinator::api::faults::FaultRates;

use crate::random::Random;

/// How often what goes wrong, in thousandths; times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// A message is lost; its connection breaks a little later.
    pub loss: u32,
    /// A message arrives twice.
    pub duplicate: u32,
    /// A message is late: others overtake it.
    pub late: u32,
    /// A connection breaks, per event.
    pub link_break: u32,
    /// An agent crashes, per event; its machine reboots in a third of the cases.
    pub agent_crash: u32,
    /// The coordinator crashes, per event.
    pub coordinator_crash: u32,
    /// A pod that ends has failed.
    pub pods_fail: u32,
    /// A pod that is stopped does not end in time.
    pub slow_end: u32,
    /// A ledger cannot be written.
    pub disk: u32,
    /// A write of a dead coordinator lands all the same.
    pub survival: u32,
    /// How late it may land.
    pub survival_ms: u64,
    /// How long a crashed process is away at most.
    pub away_ms: u64,
    /// The raise of the term is lost with a coordinator that crashes before it asked agents for anything.
    pub term_lost: u32,
    /// A GPU falls off the bus, per event, and comes back a while later.
    pub gpu_lost: u32,
    /// The driver of a machine that boots tells of no GPU for a while.
    pub driver_late: u32,
    /// A GPU is not even listed for a while, per event.
    pub gpu_missing: u32,
    /// A machine has fewer processors for a while, per event.
    pub fewer_processors: u32,
    /// The API answers no coordinator for a while, per event.
    pub api_away: u32,
    /// Somebody else uses a GPU for a while, per event.
    pub foreign_process: u32,
    /// A ledger cannot be read after a crash of its agent.
    pub ledger_torn: u32,
    /// A disk is slow for a while, per event.
    pub disk_slow: u32,
    /// A disk does not answer for a while, per event.
    pub disk_stuck: u32,
    /// Nodes are cut off, one way or both, per event.
    pub partition: u32,
    /// A machine with an agent stands still for a while, per event.
    pub agent_pause: u32,
    /// The leader stands still for a while, per event.
    pub coordinator_pause: u32,
    /// Of these pauses, those in which another one takes the lead.
    pub take_over: u32,
    /// A machine's clock jumps forward, per event.
    pub clock_jump: u32,
    /// Clocks may go wrong by so many milliseconds in a second.
    pub clock_drift: u32,
    /// A coordinator's clock may be set wrong by so much.
    pub clock_skew_ms: u64,
    /// Faults of the API.
    pub api: FaultRates,
}

impl Rates {
    /// In some seeds one kind of trouble is much more frequent: what needs two rare things at once is reached too.
    fn emphasize(&mut self, random: &mut Random) {
        match random.between(0, 11) {
            // An API that fails again and again.
            0 | 1 => {
                self.api.timed_out_not_done = 250;
                self.api.timed_out_but_done = 120;
                self.api.refused = 150;
                self.api_away = 6;
            }
            // Leaders that die in the middle of everything, and whose calls live on.
            2 => {
                self.coordinator_crash = 30;
                self.survival = 900;
                self.away_ms = 2_000;
            }
            // Leaders that take over from each other, while agents hold on to the old ones.
            3 if self.ledger_torn == 0 => {
                self.coordinator_pause = 12;
                self.take_over = 900;
                self.partition = 6;
            }
            // Pods that fail.
            4 | 5 => self.pods_fail = 500,
            _ => {}
        }
    }

    /// Rates of a seed. Each fault is absent from some seeds, so that no fault hides another.
    #[must_use]
    pub fn drawn(random: &mut Random) -> Self {
        if random.per_mille(60) {
            return Self { survival_ms: 1, away_ms: 1, ..Self::default() };
        }
        let mut draw = |most: u64| {
            let rate = random.between(1, most);
            if random.per_mille(600) { u32::try_from(rate).unwrap_or(0) } else { 0 }
        };
        let api = FaultRates {
            conflict: draw(60),
            refused: draw(40),
            timed_out_not_done: draw(60),
            timed_out_but_done: draw(60),
            storage_failed: draw(20),
            watch_gap: draw(60),
        };
        let ledger_torn = if draw(1000) > 650 { draw(300) } else { 0 };
        let mut rates = Self {
            loss: draw(60),
            duplicate: draw(120),
            late: draw(150),
            link_break: draw(15),
            agent_crash: draw(15),
            coordinator_crash: draw(12),
            pods_fail: draw(300),
            slow_end: draw(900),
            disk: draw(150),
            survival: draw(900),
            survival_ms: u64::from(draw(20_000)).max(50),
            away_ms: u64::from(draw(30_000)).max(500),
            gpu_lost: draw(6),
            term_lost: draw(500),
            driver_late: draw(900),
            gpu_missing: draw(3),
            foreign_process: draw(4),
            fewer_processors: draw(4),
            api_away: draw(3),
            ledger_torn,
            disk_slow: draw(4),
            disk_stuck: draw(3),
            partition: draw(6),
            agent_pause: draw(6),
            coordinator_pause: draw(6),
            // A leader that was replaced and an agent that has forgotten the newest term are two faults at once: nothing
            // is left then that could tell the two leaders apart.
            take_over: if ledger_torn == 0 { draw(800) } else { 0 },
            clock_jump: draw(4),
            clock_drift: draw(50),
            clock_skew_ms: u64::from(draw(10_000)),
            api,
        };
        rates.emphasize(random);
        rates
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// Keep the log's lines; the log's hash is made in any case.
    pub trace: bool,
    /// Keep what the coordinators did, for a replay.
    pub record: bool,
    /// The planted bug.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<Bug>,
    /// Rates; `None` = drawn from the seed.
    pub rates: Option<Rates>,
    /// The coordinator crashes before its action of this number, over all its lives.
    pub crash_at_action: Option<u64>,
}

impl Options {
    /// A plain run of a seed.
    #[must_use]
    pub const fn seed(seed: u64) -> Self {
        Self {
            seed,
            trace: false,
            record: false,
            #[cfg(feature = "planted-bugs")]
            bug: None,
            rates: None,
            crash_at_action: None,
        }
    }

    /// The same with a planted bug.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub const fn with_bug(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self
    }
}
