//! Many seeds at once: runs share nothing, so that they go over all processors.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::Options;
use crate::world::{Report, run};

/// Runs `count` seeds from `first`, on as many threads as there are processors, and hands each report to
/// `take` as it comes; the order is that in which runs end.
pub fn run_seeds(
    first: u64,
    count: u64,
    options: impl Fn(u64) -> Options + Sync,
    take: impl Fn(Report) + Sync,
) {
    let next = AtomicU64::new(first);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first.saturating_add(count) {
                        return;
                    }
                    take(run(options(seed)));
                }
            });
        }
    });
}
