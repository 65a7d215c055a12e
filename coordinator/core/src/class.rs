//! Topology classes: nodes whose GPUs are of the same models and linked alike share one table
//! (free mask × size → best set), so that the choice inside a node is a look-up.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::topology::{GpuLink, Inventory, PcieLevel};
use serde::{Deserialize, Serialize};

/// Up to this many free GPUs every set is compared; above it a set is grown from the best pair.
const EXHAUSTIVE_GPUS: u32 = 16;

/// Answers kept of a class. One of eight GPUs has far fewer; of 64 there is no end of sets, and an answer that was
/// forgotten is found again.
pub(crate) const MOST_SETS: usize = 65_536;

/// Number of a GPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ModelId(pub(crate) u32);

/// What makes two nodes equal for the choice of GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ClassKey {
    models: Vec<Arc<str>>,
    links: Vec<(u8, PcieLevel)>,
}

impl ClassKey {
    pub(crate) fn of(inventory: &Inventory) -> Self {
        Self {
            models: inventory.gpus.iter().map(|gpu| Arc::from(gpu.model.as_str())).collect(),
            links: inventory.links.iter().flatten().map(|link| (link.nvlinks, link.pcie)).collect(),
        }
    }

    pub(crate) fn models(&self) -> &[Arc<str>] {
        &self.models
    }
}

/// How well a set of GPUs is connected. Smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetScore {
    /// Of the worst pair: 0 = NVLink or a single GPU, 1 = below one host bridge, 2 = farther.
    pub(crate) tier: u8,
    /// Sum over pairs; more is better.
    bandwidth: Reverse<u32>,
    /// The same sum over the GPUs that stay free: the fragment left for others.
    remainder: Reverse<u32>,
}

/// The best set of one size out of a free mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) mask: u64,
    pub(crate) score: SetScore,
}

/// One topology class.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Class {
    pub(crate) gpus: u32,
    /// Mask of the GPUs of each model.
    pub(crate) models: Vec<(ModelId, u64)>,
    weights: Vec<Vec<u32>>,
    tiers: Vec<Vec<u8>>,
    /// Answers found so far: found again where they are missing.
    #[serde(skip)]
    table: RefCell<BTreeMap<(u64, u32), Choice>>,
}

/// NVLinks count far more than any PCIe path; among equal NVLinks the nearer PCIe path decides,
/// because NICs and host memory are shared along it.
fn weight(link: GpuLink) -> u32 {
    let pcie = match link.pcie {
        PcieLevel::Pix => 16,
        PcieLevel::Pxb => 8,
        PcieLevel::Phb => 4,
        PcieLevel::Node => 2,
        PcieLevel::Sys => 1,
    };
    u32::from(link.nvlinks) * 100 + pcie
}

fn tier(link: GpuLink) -> u8 {
    if link.nvlinks > 0 {
        0
    } else if link.pcie <= PcieLevel::Pxb {
        1
    } else {
        2
    }
}

impl Class {
    pub(crate) fn new(inventory: &Inventory, models: Vec<(ModelId, u64)>) -> Self {
        let map = |row: &Vec<GpuLink>| row.iter().map(|link| weight(*link)).collect();
        Self {
            gpus: u32::try_from(inventory.gpus.len()).unwrap_or(0),
            models,
            weights: inventory.links.iter().map(map).collect(),
            tiers: inventory.links.iter().map(|row| row.iter().map(|link| tier(*link)).collect()).collect(),
            table: RefCell::new(BTreeMap::new()),
        }
    }

    /// Answers kept.
    pub(crate) fn kept(&self) -> usize {
        self.table.borrow().len()
    }

    /// The best `size` GPUs out of `free`; `None` where there are fewer.
    pub(crate) fn best(&self, free: u64, size: u32) -> Option<Choice> {
        if free.count_ones() < size {
            return None;
        }
        if let Some(choice) = self.table.borrow().get(&(free, size)) {
            return Some(*choice);
        }
        let mask = if free.count_ones() == size {
            free
        } else if free.count_ones() <= EXHAUSTIVE_GPUS {
            self.best_of_all(free, size)
        } else {
            self.grown(free, size)
        };
        let choice = Choice { mask, score: self.score(free, mask) };
        let mut table = self.table.borrow_mut();
        if table.len() >= MOST_SETS {
            table.clear();
        }
        table.insert((free, size), choice);
        Some(choice)
    }

    fn score(&self, free: u64, mask: u64) -> SetScore {
        let (bandwidth, tier) = self.measure(mask);
        let (remainder, _) = self.measure(free & !mask);
        SetScore { tier, bandwidth: Reverse(bandwidth), remainder: Reverse(remainder) }
    }

    fn measure(&self, mask: u64) -> (u32, u8) {
        let mut sum = 0;
        let mut worst = 0;
        for first in bits(mask) {
            for second in bits(mask & !(2_u64 << first).wrapping_sub(1)) {
                sum += self.weights[first][second];
                worst = worst.max(self.tiers[first][second]);
            }
        }
        (sum, worst)
    }

    /// Compares all sets; equal ones are decided by the lowest positions.
    fn best_of_all(&self, free: u64, size: u32) -> u64 {
        let positions: Vec<usize> = bits(free).collect();
        let mut best: Option<(SetScore, u64)> = None;
        for pattern in 0..1_u64 << positions.len() {
            if pattern.count_ones() != size {
                continue;
            }
            let mask = bits(pattern).fold(0, |mask, at| mask | 1 << positions[at]);
            let score = self.score(free, mask);
            if best.is_none_or(|known| (score, mask) < known) {
                best = Some((score, mask));
            }
        }
        best.map_or(0, |(_, mask)| mask)
    }

    /// Adds the GPU nearest to those taken, from the best start; for nodes with very many GPUs.
    fn grown(&self, free: u64, size: u32) -> u64 {
        let grow_from = |start: usize| {
            let mut mask = 1_u64 << start;
            while mask.count_ones() < size {
                let gain = |at: usize| bits(mask).map(|taken| self.weights[taken][at]).sum::<u32>();
                match bits(free & !mask).max_by_key(|at| (gain(*at), Reverse(*at))) {
                    Some(next) => mask |= 1 << next,
                    None => break,
                }
            }
            mask
        };
        bits(free).map(grow_from).min_by_key(|mask| (self.score(free, *mask), *mask)).unwrap_or(0)
    }
}

/// Positions of the bits that are set, lowest first.
pub(crate) fn bits(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let at = left.trailing_zeros() as usize;
        left = if left == 0 { return None } else { left & (left - 1) };
        Some(at)
    })
}
