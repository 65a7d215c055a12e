//! Feeds a recording into a fresh core and compares what it does with what was done.

mod command;
mod compare;
mod lines;
mod player;
mod state;
mod until;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use phalanx_core::action::Action;
use thiserror::Error;

use crate::recorder::FORMAT;

pub use self::command::{ReplayArguments, run};
pub use self::until::{Until, UntilError};

use self::player::{Played, Player};

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
    /// The state at the begin of a later part is not there, or not whole.
    #[error(
        "{path}: is part {part} of its recording and ends before the state with which it begins was written; \
         begin with an earlier part, {before}"
    )]
    NoState {
        /// The file.
        path: PathBuf,
        /// Its part.
        part: u32,
        /// The part before.
        before: PathBuf,
    },
    /// What was asked for cannot be had together.
    #[error(
        "--until stops the replay of one recording; --diff OTHER compares two as a whole: leave one of them out"
    )]
    UntilBesideOther,
    /// The result cannot be written.
    #[error("output: {0}")]
    Output(io::Error),
}

/// The first difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The file.
    pub path: PathBuf,
    /// Line of the cycle or of the state, from 1.
    pub line: usize,
    /// The action recorded; `None` where there was none.
    pub recorded: Option<Action>,
    /// The action of the replay; `None` where there was none.
    pub replayed: Option<Action>,
    /// Where the machine differs from the state that a part begins with: no action does then.
    pub state: Option<String>,
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
    /// What a reader should know: a line that was cut off, records that are missing, another version.
    pub notes: Vec<String>,
    /// The first difference, where there is one; the replay ends there.
    pub difference: Option<Difference>,
}

/// Replays the recording that begins with this file, any part of its chain, and writes each action as a line.
///
/// # Errors
/// The recording cannot be read, or the output not be written.
pub fn replay(first: &Path, output: &mut dyn Write) -> Result<Replay, ReplayError> {
    let mut player = Player::open(first, 0)?;
    loop {
        let played = step(&mut player, output, &mut io::sink())?;
        if matches!(played, Played::End) || player.replay.difference.is_some() {
            return Ok(player.replay);
        }
    }
}

/// Plays one record. Its actions go to `output`, what a reader should know to `report`.
fn step(player: &mut Player, output: &mut dyn Write, report: &mut dyn Write) -> Result<Played, ReplayError> {
    let played = player.step()?;
    match &played {
        Played::Cycle { at, made, .. } => print(output, at.0, made).map_err(ReplayError::Output)?,
        Played::Note(note) => writeln!(report, "note: {note}").map_err(ReplayError::Output)?,
        Played::Event | Played::Quiet | Played::End => {}
    }
    Ok(played)
}

fn print(output: &mut dyn Write, at_ms: u64, actions: &[Action]) -> io::Result<()> {
    for action in actions {
        writeln!(output, "{at_ms} {} {}", action.id.0, serde_json::to_string(&action.command)?)?;
    }
    Ok(())
}
