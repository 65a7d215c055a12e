//! Feeds a recording into a fresh core and compares what it does with what was done.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use phalanx_common::units::Time;
use phalanx_core::Core;
use phalanx_core::action::Action;
use thiserror::Error;

use crate::recorder::{FORMAT, Header, Record, sibling};

/// Why a recording cannot be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A file cannot be read.
    #[error("{path}: cannot be read: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// A line is no record.
    #[error("{path}:{line}: is no record of a recording: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A file of another form.
    #[error(
        "{path}: form {found} of the recording: this build reads form {FORMAT}; use the version that wrote it"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Form found.
        found: u32,
    },
    /// Not the first file of its chain.
    #[error(
        "{path}: is part {part} of its recording: replay begins with part 0, {first}; where that was dropped \
         (recording-files), the recording cannot be replayed"
    )]
    NotFirst {
        /// The file.
        path: PathBuf,
        /// Its part.
        part: u32,
        /// The first file.
        first: PathBuf,
    },
    /// The result cannot be written.
    #[error("output: {0}")]
    Output(io::Error),
}

/// The first difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The file.
    pub path: PathBuf,
    /// Line of the cycle, from 1.
    pub line: usize,
    /// The action recorded; `None` where there was none.
    pub recorded: Option<Action>,
    /// The action of the replay; `None` where there was none.
    pub replayed: Option<Action>,
}

/// What a replay has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Events fed.
    pub events: u64,
    /// Cycles done.
    pub cycles: u64,
    /// Actions that were the same.
    pub actions: u64,
    /// The first difference, where there is one; the replay ends there.
    pub difference: Option<Difference>,
}

/// Replays the recording that begins with this file, and writes each action as a line.
///
/// # Errors
/// The recording cannot be read, or the output not be written.
pub fn replay(first: &Path, output: &mut dyn Write) -> Result<Replay, ReplayError> {
    let mut lines = Lines::open(first)?;
    let header = lines.header()?;
    if header.part != 0 {
        let first = sibling(first, &header, 0);
        return Err(ReplayError::NotFirst { path: lines.path, part: header.part, first });
    }
    if header.version != env!("CARGO_PKG_VERSION") {
        let text = format!(
            "note: recorded by version {}, replayed by {}",
            header.version,
            env!("CARGO_PKG_VERSION")
        );
        writeln!(output, "{text}").map_err(ReplayError::Output)?;
    }
    let mut core = Core::new(header.settings.clone());
    let mut replay = Replay::default();
    let mut actions = Vec::new();
    for part in 1.. {
        while let Some(record) = lines.next()? {
            match record {
                Record::Header(_) => return Err(lines.error("a second header")),
                Record::Event { at, event } => {
                    core.apply(event, at, &mut actions);
                    replay.events += 1;
                }
                Record::Cycle { at, actions: recorded } => {
                    core.cycle(at, &mut actions);
                    replay.cycles += 1;
                    let made = std::mem::take(&mut actions);
                    print(output, at, &made).map_err(ReplayError::Output)?;
                    replay.difference = difference(&lines, &recorded, &made);
                    if replay.difference.is_some() {
                        return Ok(replay);
                    }
                    replay.actions += made.len() as u64;
                }
            }
        }
        let next = sibling(first, &header, part);
        if !next.exists() {
            break;
        }
        lines = Lines::open(&next)?;
        lines.header()?;
    }
    Ok(replay)
}

fn print(output: &mut dyn Write, at: Time, actions: &[Action]) -> io::Result<()> {
    for action in actions {
        writeln!(output, "{} {} {}", at.0, action.id.0, serde_json::to_string(&action.command)?)?;
    }
    Ok(())
}

fn difference(lines: &Lines, recorded: &[Action], replayed: &[Action]) -> Option<Difference> {
    let longest = recorded.len().max(replayed.len());
    let at = (0..longest).find(|at| recorded.get(*at) != replayed.get(*at))?;
    Some(Difference {
        path: lines.path.clone(),
        line: lines.line,
        recorded: recorded.get(at).cloned(),
        replayed: replayed.get(at).cloned(),
    })
}

/// The lines of a file as records.
struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: usize,
    text: String,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, ReplayError> {
        let file = File::open(path).map_err(|cause| ReplayError::Read { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), reader: BufReader::new(file), line: 0, text: String::new() })
    }

    fn error(&self, message: impl ToString) -> ReplayError {
        ReplayError::Line { path: self.path.clone(), line: self.line, message: message.to_string() }
    }

    fn header(&mut self) -> Result<Header, ReplayError> {
        match self.next()? {
            Some(Record::Header(header)) if header.format == FORMAT => Ok(header),
            Some(Record::Header(header)) => {
                Err(ReplayError::Format { path: self.path.clone(), found: header.format })
            }
            _ => Err(self.error("the first line must be the header")),
        }
    }

    /// The next record; `None` at the end. A last line without its end was cut off by a crash and is no record.
    fn next(&mut self) -> Result<Option<Record>, ReplayError> {
        self.text.clear();
        let read = self.reader.read_line(&mut self.text);
        read.map_err(|cause| ReplayError::Read { path: self.path.clone(), cause })?;
        self.line += 1;
        if !self.text.ends_with('\n') {
            return Ok(None);
        }
        serde_json::from_str(&self.text).map(Some).map_err(|error| self.error(error))
    }
}
