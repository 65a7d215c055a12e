//! Writes the inventory of the live machine as JSON, for tests that replay it.
//!
//! `capture [FILE]`: to FILE, or to standard output.

use std::io::Write;

use anyhow::{Context, bail};
use phalanx_agent::probe::{NodeProbe, Probe, ProbeOptions};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let file = arguments.next();
    if arguments.next().is_some() {
        bail!("usage: capture [FILE]");
    }
    let mut probe = NodeProbe::new(&ProbeOptions::of_machine("capture"))?;
    let text = serde_json::to_string_pretty(&probe.read())? + "\n";
    match file {
        Some(file) => std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display())),
        None => std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output"),
    }
}
