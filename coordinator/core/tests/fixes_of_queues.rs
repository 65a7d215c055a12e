//! The oracle of reasons over several queues: in random states every gang that waits is told what helps, and that does;
//! a little less does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

mod oracle;
#[path = "support/random.rs"]
mod random;
mod support;

/// States of a plain run; `PHALANX_STATES=10000` looks at as many as asked for.
const STATES: u64 = 1_000;

#[test]
fn what_reasons_suggest_helps_and_less_does_not() {
    let number = |key: &str| std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a number"));
    let states = number("PHALANX_STATES").unwrap_or(STATES);
    let first = number("PHALANX_STATE").unwrap_or(0);
    let (next, all, broken) =
        (AtomicU64::new(first), Mutex::new(oracle::Counts::default()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + states {
                        return;
                    }
                    match oracle::look(seed) {
                        Ok(counts) => all.lock().unwrap().add(counts),
                        Err(error) => broken.lock().unwrap().push(error),
                    }
                }
            });
        }
    });
    let (all, broken) = (all.into_inner().unwrap(), broken.into_inner().unwrap());
    println!("{all:#?}");
    assert!(
        broken.is_empty(),
        "{} of {states} states:\n{}",
        broken.len(),
        broken.iter().take(3).cloned().collect::<Vec<_>>().join("\n\n")
    );
    // Open faults: who could be evicted is looked for with the shares of before, and pods of several sizes are not
    // placed as well as they could be.
    assert!(all.late <= 1 + states / 30 && all.unpacked <= 1 + states / 200, "{all:#?}");
    // The states must reach what is to be tried.
    let missed = all.missed();
    assert!(states < STATES || missed.is_empty(), "never tried: {missed:?}");
    assert!(states < STATES || (all.less > 4 * states && all.at_once > states), "{all:#?}");
}
