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
    /// A GPU falls off the bus, per event; it comes back with a reboot or when the faults stop.
    pub gpu_lost: u32,
    /// Faults of the API.
    pub api: FaultRates,
}

impl Rates {
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
        Self {
            loss: draw(60),
            duplicate: draw(120),
            late: draw(150),
            link_break: draw(15),
            agent_crash: draw(15),
            coordinator_crash: draw(12),
            disk: draw(150),
            survival: draw(900),
            survival_ms: u64::from(draw(20_000)).max(50),
            away_ms: u64::from(draw(30_000)).max(500),
            gpu_lost: draw(6),
            term_lost: draw(500),
            api,
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// Keep the log's lines; the log's hash is made in any case.
    pub trace: bool,
    /// The planted bug.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<Bug>,
    /// Rates; `None` = drawn from the seed.
    pub rates: Option<Rates>,
}

impl Options {
    /// A plain run of a seed.
    #[must_use]
    pub const fn seed(seed: u64) -> Self {
        Self {
            seed,
            trace: false,
            #[cfg(feature = "planted-bugs")]
            bug: None,
            rates: None,
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
