//! Leases that are gone for good in the present term: a late message must not bring one back.

use std::collections::BTreeSet;

use phalanx_common::ids::LeaseId;
use phalanx_common::planted::{self, Bug};

/// Tombstones kept; beyond, the oldest give way to a watermark.
pub const MAX_TOMBSTONES: usize = 65_536;

/// The set of gone leases, in bounded memory.
#[derive(Clone, Debug)]
pub struct Tombstones {
    gone: BTreeSet<LeaseId>,
    /// Ids up to this one count as gone, whether they ever lived or not: the safe side.
    watermark: Option<LeaseId>,
    limit: usize,
}

impl Default for Tombstones {
    fn default() -> Self {
        Self::with_limit(MAX_TOMBSTONES)
    }
}

impl Tombstones {
    /// Keeps at most so many single ids.
    #[must_use]
    pub const fn with_limit(limit: usize) -> Self {
        Self { gone: BTreeSet::new(), watermark: None, limit }
    }

    /// Ids kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.gone.len()
    }

    /// True where none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Marks a lease as gone.
    pub fn add(&mut self, lease: LeaseId) {
        if self.contains(lease) || planted::is(Bug::ForgetTombstone) {
            return;
        }
        self.gone.insert(lease);
        if self.gone.len() > self.limit {
            self.watermark = self.gone.pop_first().max(self.watermark);
        }
    }

    /// True where the lease is gone for good.
    #[must_use]
    pub fn contains(&self, lease: LeaseId) -> bool {
        self.watermark.is_some_and(|watermark| lease <= watermark) || self.gone.contains(&lease)
    }

    /// Forgets all: messages of older terms are refused as such.
    pub fn clear(&mut self) {
        self.gone.clear();
        self.watermark = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(serial: u64) -> LeaseId {
        LeaseId { term: 1, serial }
    }

    #[test]
    fn beyond_the_limit_old_ids_stay_gone() {
        let mut tombstones = Tombstones::with_limit(3);
        for serial in [2, 4, 6, 8, 10] {
            tombstones.add(lease(serial));
        }
        assert!(tombstones.gone.len() <= 3);
        for serial in [1, 2, 3, 4, 6, 8, 10] {
            assert!(tombstones.contains(lease(serial)), "{serial}");
        }
        for serial in [5, 7, 9, 11] {
            assert!(!tombstones.contains(lease(serial)), "{serial}");
        }
        tombstones.clear();
        assert!(!tombstones.contains(lease(2)));
    }
}
