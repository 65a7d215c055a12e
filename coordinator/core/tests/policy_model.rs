//! Random histories against a small model of the policy: quota, guarantees, owners of GPUs, who is evicted for whom, and
//! that nobody waits who could run. After each history a fresh coordinator decides the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;
mod support;

/// Histories of a plain run; `PHALANX_HISTORIES=10000` plays as many as asked for.
const HISTORIES: u64 = 300;

#[test]
fn histories_keep_to_the_model() {
    let number = |key: &str| std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a number"));
    let histories = number("PHALANX_HISTORIES").unwrap_or(HISTORIES);
    let first = number("PHALANX_HISTORY").unwrap_or(0);
    let mut all = model::Counts::default();
    let mut broken = Vec::new();
    for seed in first..first + histories {
        match model::play(seed) {
            Ok(counts) => {
                all.started += counts.started;
                all.plans += counts.plans;
                all.waited += counts.waited;
                all.rests += counts.rests;
                all.dropped += counts.dropped;
            }
            Err(error) => broken.push(error),
        }
    }
    println!("{all:?}");
    assert!(
        broken.is_empty(),
        "{} of {histories} histories:\n{}",
        broken.len(),
        broken.iter().take(12).cloned().collect::<Vec<_>>().join("\n\n")
    );
    // The histories must reach what is to be checked.
    assert!(histories < HISTORIES || (all.plans > histories / 8 && all.waited > histories), "{all:?}");
}
