//! What random histories are drawn from.

#![allow(dead_code, reason = "some of the tests that share this file ask for less")]

/// Random numbers from a seed, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    pub fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }

    /// The same as a place in a list.
    pub fn at(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap_or(0)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.at(from.len())].clone()
    }
}
