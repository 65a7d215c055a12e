//! Random tests of many seeds, on all processors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that the environment may set.
pub fn number(key: &str) -> Option<u64> {
    std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a number"))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}

/// Tries so many seeds from the first one on: what each gave, and what was broken, in the order of the seeds.
pub fn try_all<T: Send>(
    first: u64,
    count: u64,
    look: impl Fn(u64) -> Result<T, String> + Sync,
) -> (Vec<T>, Vec<String>) {
    let (next, all) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    // What is asserted on the way names no seed: a failure must be repeatable.
                    let found = catch_unwind(AssertUnwindSafe(|| look(seed)));
                    let found =
                        found.unwrap_or_else(|panic| Err(format!("seed {seed}: {}", text_of(&*panic))));
                    all.lock().unwrap().push((seed, found));
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    all.sort_by_key(|(seed, _)| *seed);
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for (_, result) in all {
        match result {
            Ok(one) => found.push(one),
            Err(error) => broken.push(error),
        }
    }
    (found, broken)
}
