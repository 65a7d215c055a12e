//! Chance from a seed: SplitMix64. The same seed gives the same run on every machine.

/// A source of chance.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A source that follows from its seed alone.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `first` to `last`, both included.
    pub const fn between(&mut self, first: u64, last: u64) -> u64 {
        if last <= first { first } else { first + self.bits() % (last - first + 1) }
    }

    /// True in so many of 1000 cases.
    pub const fn per_mille(&mut self, rate: u32) -> bool {
        // Nothing is drawn for what cannot happen: switching one fault off leaves the rest as it was.
        rate > 0 && self.bits() % 1000 < rate as u64
    }

    /// One of several; `None` of none.
    pub fn pick<'s, T>(&mut self, choices: &'s [T]) -> Option<&'s T> {
        if choices.is_empty() {
            return None;
        }
        let at = self.between(0, choices.len() as u64 - 1);
        choices.get(usize::try_from(at).unwrap_or(0))
    }

    /// A position in a list that is not empty.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.between(0, (length as u64).saturating_sub(1))).unwrap_or(0)
    }
}
