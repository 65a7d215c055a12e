//! How much the machine keeps, by name.

use crate::core::Core;

impl Core {
    /// What is kept for leases, and how many entries of each. All of it is zero when no lease is left, but for the
    /// tombstones of the present term, which `MAX_TOMBSTONES` bounds.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("leases", self.leases.iter().len()),
            ("answers_that_wait_for_the_disk", self.waiting.len()),
            ("tombstones", self.tombstones.len()),
        ]
    }
}
