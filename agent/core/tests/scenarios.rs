//! Text scenarios: commands, `----`, what the machine does. An action that is not listed fails.
//!
//! `PHALANX_UPDATE_SCENARIOS=1` writes what happens into the files; read the difference before it is kept.
//!
//! The commands stand in `support/scenario.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::Path;

use support::scenario::replay;

#[test]
fn scenarios() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let update = std::env::var_os("PHALANX_UPDATE_SCENARIOS").is_some();
    let mut files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} scenarios in {}", files.len(), directory.display());
    for file in files {
        let expected = fs::read_to_string(&file).unwrap();
        let happened = replay(&expected);
        if update {
            fs::write(&file, happened).unwrap();
        } else {
            assert_eq!(expected, happened, "{} (left: expected, right: what happened)", file.display());
        }
    }
}
