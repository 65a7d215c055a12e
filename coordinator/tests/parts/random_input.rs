//! The bodies of the fuzz targets under bounded random input: the committed corpus as it is, and changed at random
//! with a fixed seed. `PHALANX_RANDOM_INPUTS=100` makes a hundred times as many, with other seeds; `cargo fuzz` looks
//! further still.
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use crate::inputs;

/// Inputs of each target that are made from its corpus.
const CHANGED: usize = 3000;
/// The same of a target that writes files.
const CHANGED_ON_DISK: usize = 200;
/// Larger inputs are the fuzzer's.
const MAX_BYTES: usize = 16 << 10;

/// What has a meaning to one of the readers.
const TOKENS: [&[u8]; 30] = [
    b"\n",
    b"---\n",
    b": ",
    b"- ",
    b"{",
    b"}",
    b"[",
    b"]",
    b"&a ",
    b"*a",
    b"<<: ",
    b"\"",
    b"'",
    b"|\n",
    b"#",
    b"\t",
    b"\0",
    b"\xff",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"1e999",
    b"0.5",
    b"null",
    b"true",
    b"= ",
    b"[[a]]\n",
    b"\xef\xbb\xbf",
    b"\x7f\xff\xff\xff",
    b"\xfd\xff\xff\xff\xff\xff\xff\xff\xff",
];

/// SplitMix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A piece of at most `most` bytes.
    fn piece<'b>(&mut self, bytes: &'b [u8], most: usize) -> &'b [u8] {
        let start = self.below(bytes.len() + 1);
        let length = self.below(most.min(bytes.len() - start) + 1);
        &bytes[start..start + length]
    }
}

/// One to four changes of one file; pieces come from another.
fn changed(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = at + random.below((bytes.len() - at).min(64) + 1);
                bytes.drain(at..end);
            }
            4 => {
                let other = &corpus[random.below(corpus.len())];
                let piece = random.piece(other, 256).to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let piece = random.piece(&bytes, 64).to_vec();
                bytes.splice(at..at, piece.repeat(1 + random.below(8)));
            }
            _ => {
                let token = TOKENS[random.below(TOKENS.len())];
                bytes.splice(at..at, token.iter().copied());
            }
        }
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn files(folders: &[&str]) -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| {
            fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"))
        })
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn check(target: &str, seed: u64, inputs: usize, read: fn(&[u8]) -> bool, more: &[&str]) {
    let own = format!("fuzz/corpus/{target}");
    let corpus = files(&[&[own.as_str()], more].concat());
    assert!(!corpus.is_empty(), "{own} is empty");
    let mut taken = 0;
    for (path, bytes) in &corpus {
        println!("{}", path.display());
        taken += usize::from(read(bytes));
    }
    assert!(taken > 0, "{own}: nothing in it is what it should be: has the form changed?");
    let corpus: Vec<Vec<u8>> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let times = std::env::var("PHALANX_RANDOM_INPUTS").map_or(1, |times| times.parse().unwrap());
    let inputs = inputs * times;
    let mut random = Random(seed * times as u64);
    let mut taken = 0;
    for number in 0..inputs {
        let input = changed(&mut random, &corpus);
        match catch_unwind(|| read(&input)) {
            Ok(was_taken) => taken += usize::from(was_taken),
            Err(panic) => {
                let file = std::env::temp_dir().join(format!("{target}-{seed}-{number}"));
                fs::write(&file, &input).unwrap();
                println!("input {number} is in {}: copy it to {own} when it is repaired", file.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{target}: {taken} of {inputs} were taken in whole or part");
    assert!((1..inputs).contains(&taken), "{target}: the changes reach one side only: {taken} of {inputs}");
}

#[test]
fn wire_decoder() {
    check("wire_decoder", 1, CHANGED, inputs::wire_decoder, &[]);
}

#[test]
fn yaml_objects() {
    check(
        "yaml_objects",
        2,
        CHANGED,
        inputs::yaml_objects,
        &["cli/tests/broken/manifests", "deploy/examples"],
    );
}

#[test]
fn profiles() {
    check("profiles", 3, CHANGED, inputs::profiles, &["cli/tests/broken/profiles", "deploy/profiles"]);
}

#[test]
fn config() {
    check("config", 4, CHANGED, inputs::config, &["cli/tests/broken/config"]);
}

#[test]
fn ledger_file() {
    check("ledger_file", 5, CHANGED_ON_DISK, inputs::ledger_file, &[]);
}

#[test]
fn recording_line() {
    check("recording_line", 6, CHANGED, inputs::recording_line, &[]);
}
