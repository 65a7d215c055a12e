//! temp
#![cfg(feature = "planted-bugs")]
mod support;
use phalanx_common::planted::{Bug, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[test]
fn survey() {
    std::panic::set_hook(Box::new(|_| {}));
    let first = Bug::ALL.iter().position(|bug| *bug == Bug::CeilingOffByOne).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios"))
        .unwrap()
        .map(|f| f.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let only = std::env::var("ONLY").unwrap_or_default();
    for bug in &Bug::ALL[first..] {
        if !only.is_empty() && !only.split(',').any(|o| o == bug.as_str()) {
            continue;
        }
        let mut found = vec![];
        let began = std::time::Instant::now();
        for name in &names {
            if name.starts_with("stress")
                || name == "many_gpus"
                
                || name == "shares_by_weight"
            {
                if *bug != Bug::IgnoreWeights {
                    continue;
                }
            }
            let text =
                std::fs::read_to_string(format!("{}/tests/scenarios/{name}.txt", env!("CARGO_MANIFEST_DIR")))
                    .unwrap();
            let _planted = plant(*bug);
            match catch_unwind(AssertUnwindSafe(|| {
                support::play::difference(&text, &support::play::play(&text))
            })) {
                Ok(None) => {}
                Ok(Some(d)) => found.push(format!(
                    "{name} [{}]",
                    d.lines().take(3).collect::<Vec<_>>().join("|").chars().take(200).collect::<String>()
                )),
                Err(e) => found.push(format!(
                    "{name} PANIC {}",
                    e.downcast::<String>()
                        .map(|s| s.chars().take(150).collect::<String>())
                        .unwrap_or_default()
                )),
            }
        }
        println!("== {} ({:?})", bug.as_str(), began.elapsed());
        for f in found {
            println!("   {f}");
        }
    }
}
