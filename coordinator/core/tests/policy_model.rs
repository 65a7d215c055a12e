//! Random histories against a small model of the policy: quota, guarantees, owners of GPUs, who is evicted for whom, and
//! that nobody waits who could run. After each history a fresh coordinator decides the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

mod model;
#[path = "support/random.rs"]
mod random;
mod support;

/// Histories of a plain run; `PHALANX_HISTORIES=10000` plays as many as asked for.
const HISTORIES: u64 = 300;

#[test]
fn histories_keep_to_the_model() {
    let number = |key: &str| std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a number"));
    let histories = number("PHALANX_HISTORIES").unwrap_or(HISTORIES);
    let first = number("PHALANX_HISTORY").unwrap_or(0);
    let (next, all, broken) =
        (AtomicU64::new(first), Mutex::new(model::Counts::default()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + histories {
                        return;
                    }
                    match model::play(seed) {
                        Ok(counts) => all.lock().unwrap().add(counts),
                        Err(error) => broken.lock().unwrap().push(error),
                    }
                }
            });
        }
    });
    let (all, broken) = (all.into_inner().unwrap(), broken.into_inner().unwrap());
    println!("{all:?}");
    assert!(
        broken.is_empty(),
        "{} of {histories} histories:\n{}",
        broken.len(),
        broken.iter().take(3).cloned().collect::<Vec<_>>().join("\n\n")
    );
    assert!(all.missed <= 1 + histories / 400, "evictions would help in {} histories", all.missed);
    assert!(all.less <= 1 + all.plans / 200, "less would do in {} of {} plans", all.less, all.plans);
    // The histories must reach what is to be checked.
    assert!(histories < HISTORIES || (all.plans > histories / 8 && all.waited > histories), "{all:?}");
}

/// Of gangs that are alike only the first is tried again; all ends as if each had been.
#[test]
fn gangs_that_are_alike_wait_as_each_for_itself() {
    let number = std::env::var("PHALANX_HISTORIES").ok().map(|text| text.parse::<u64>().expect("a number"));
    let broken: Vec<String> = (0..(number.unwrap_or(HISTORIES) / 10).max(100))
        .filter_map(|seed| model::play_both(seed).err())
        .collect();
    assert!(broken.is_empty(), "{} broken:\n{}", broken.len(), broken.first().map_or("", |first| first));
}
