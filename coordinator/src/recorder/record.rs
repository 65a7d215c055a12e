//! The form of a recording: what a line holds, and how its files are named.

use std::path::{Path, PathBuf};

use phalanx_common::units::Time;
use phalanx_core::action::Action;
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};
use serde::{Deserialize, Serialize};

/// Form of the files; raised when an old file cannot be read any more.
pub const FORMAT: u32 = 3;

/// First line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Form of the file.
    pub format: u32,
    /// Version of the coordinator that wrote it.
    pub version: String,
    /// When the process started.
    pub start: Time,
    /// Number of the file within its chain, from 0.
    pub part: u32,
    /// The part before ends where this one begins. False for part 0, and where something was not recorded.
    pub continues: bool,
    /// The policy's numbers.
    pub settings: Settings,
}

impl Header {
    /// Header of the first file of a process.
    #[must_use]
    pub fn first(start: Time, settings: &Settings) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            start,
            part: 0,
            continues: false,
            settings: settings.clone(),
        }
    }
}

/// One line of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// First line.
    Header(Header),
    /// Second line of every part but the first: the whole machine, from which the part can be replayed alone.
    Snapshot {
        /// When.
        at: Time,
        /// The machine.
        core: Box<Core>,
    },
    /// A fact was recorded.
    Event {
        /// When.
        at: Time,
        /// The fact.
        event: Event,
    },
    /// A scheduling pass was done.
    Cycle {
        /// When.
        at: Time,
        /// All actions since the pass before.
        actions: Vec<Action>,
    },
}

/// The highest number that names have room for.
pub(super) const LAST_NUMBER: u64 = 999_999_999_999_999;

pub(super) fn path(directory: &Path, number: u64, part: u32) -> PathBuf {
    directory.join(format!("recording-{number:015}-{part:05}.jsonl"))
}

/// Number of the chain and part of a recording's file, from its name; `None` where it is none. The number is the start
/// of the process, or a little more than that of the chain before where the clock went back between the two.
#[must_use]
pub fn chain_of(path: &Path) -> Option<(u64, u32)> {
    let name = path.file_name()?.to_str()?;
    let (start, part) = name.strip_prefix("recording-")?.strip_suffix(".jsonl")?.split_once('-')?;
    Some((start.parse().ok()?, part.parse().ok()?))
}

/// The file of another part of the same chain.
#[must_use]
pub fn sibling(path: &Path, header: &Header, part: u32) -> PathBuf {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    // A file that somebody has given another name says by its header what the others were called, almost always.
    let number = chain_of(path).map_or(header.start.0, |(number, _)| number);
    self::path(directory, number, part)
}
