//! The best-connected sets of GPUs of each size, for people to see what a node can still offer.
//!
//! Greedy from every GPU: exact on the regular layouts of real machines, and quick for 64 GPUs. The
//! coordinator decides placements with its own, exact choice.

use std::cmp::Reverse;

use phalanx_common::topology::{Inventory, LinkClass};

/// A set of GPUs and how well its worst pair is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Positions in `Inventory::gpus`, ascending.
    pub gpus: Vec<usize>,
    /// Link class of the worst pair.
    pub class: LinkClass,
    /// NVLinks of the worst pair; 0 where not all pairs have one.
    pub nvlinks: u8,
}

/// The best set of 1, 2, 4, 8 … healthy GPUs, and of all of them.
#[must_use]
pub fn best_fragments(inventory: &Inventory) -> Vec<Fragment> {
    let healthy: Vec<usize> =
        (0..inventory.gpus.len()).filter(|at| inventory.gpus[*at].health.is_healthy()).collect();
    let powers = (0..usize::BITS).map(|power| 1 << power).take_while(|size| *size < healthy.len());
    let sizes: Vec<usize> = powers.chain((!healthy.is_empty()).then_some(healthy.len())).collect();
    sizes.into_iter().filter_map(|size| best_of(inventory, &healthy, size)).collect()
}

fn best_of(inventory: &Inventory, healthy: &[usize], size: usize) -> Option<Fragment> {
    let grown = healthy.iter().map(|seed| grow(inventory, healthy, *seed, size));
    grown.min_by_key(|fragment| (fragment.class, Reverse(fragment.nvlinks), fragment.gpus.clone()))
}

/// Adds the GPU that keeps the set's worst pair best, until the set is large enough.
fn grow(inventory: &Inventory, healthy: &[usize], seed: usize, size: usize) -> Fragment {
    let mut set = vec![seed];
    while set.len() < size {
        let cost = |candidate: usize| {
            let links = set.iter().map(|member| inventory.links[candidate][*member]);
            let nvlinks = links.clone().map(|link| link.nvlinks).min().unwrap_or(0);
            let pcie = links.map(|link| link.pcie).max();
            (Reverse(nvlinks), pcie, candidate)
        };
        let outside = healthy.iter().copied().filter(|candidate| !set.contains(candidate));
        let Some(best) = outside.min_by_key(|candidate| cost(*candidate)) else { break };
        set.push(best);
    }
    set.sort_unstable();
    let pairs = set.iter().flat_map(|first| set.iter().map(move |second| (*first, *second)));
    let worst = pairs
        .filter(|(first, second)| first < second)
        .map(|(first, second)| inventory.links[first][second].nvlinks)
        .min();
    Fragment { class: inventory.link_class(&set), nvlinks: worst.unwrap_or(0), gpus: set }
}

#[cfg(test)]
mod tests {
    use phalanx_common::topology::{GpuHealth, PcieLevel};

    use super::super::tests::pairs;
    use super::*;

    fn shown(inventory: &Inventory) -> Vec<(Vec<usize>, LinkClass, u8)> {
        best_fragments(inventory)
            .into_iter()
            .map(|fragment| (fragment.gpus, fragment.class, fragment.nvlinks))
            .collect()
    }

    #[test]
    fn a_pair_with_nvlink_is_the_best_two() {
        let expected = vec![
            (vec![0], LinkClass::Single, 0),
            (vec![0, 1], LinkClass::NvLink, 4),
            (vec![0, 1, 2, 3], LinkClass::Pcie(PcieLevel::Sys), 0),
        ];
        assert_eq!(shown(&pairs()), expected);
    }

    #[test]
    fn a_lost_gpu_is_in_no_fragment() {
        let mut inventory = pairs();
        inventory.gpus[0].health = GpuHealth::Lost;
        let expected = vec![
            (vec![1], LinkClass::Single, 0),
            (vec![2, 3], LinkClass::NvLink, 4),
            (vec![1, 2, 3], LinkClass::Pcie(PcieLevel::Sys), 0),
        ];
        assert_eq!(shown(&inventory), expected);
        assert!(shown(&Inventory::empty(1, 1)).is_empty());
    }
}
