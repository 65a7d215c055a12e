//! Plays a recording record by record: what it holds goes into a machine, and what that does is compared.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use phalanx_common::units::Time;
use phalanx_core::action::Action;
use phalanx_core::event::Event;
use phalanx_core::{Core, invariants};
use serde_json::Value;

use super::lines::{Context, Line, Lines, Place};
use super::{Difference, Replay, ReplayError};
use crate::recorder::{Header, Record, sibling};

/// What one step was.
#[derive(Debug)]
pub(super) enum Played {
    /// A fact went in.
    Event,
    /// A pass was done.
    Cycle {
        /// When.
        at: Time,
        /// Actions recorded.
        recorded: Vec<Action>,
        /// Actions made now.
        made: Vec<Action>,
    },
    /// Something that a reader should know, also in `Replay::notes`.
    Note(String),
    /// A header or a state that says nothing new.
    Quiet,
    /// The recording ends.
    End,
}

/// A recording that is being played.
pub(super) struct Player {
    lines: Lines,
    /// The machine; `None` before the first header, and between a header of a later part and its state.
    core: Option<Core>,
    header: Option<Header>,
    /// Actions since the last pass.
    actions: Vec<Action>,
    /// The state that comes next belongs to records that are missing, or to none at all.
    is_apart: bool,
    /// Time of the last record.
    pub(super) at: Time,
    /// The next line, where it was read already.
    waiting: Option<Line>,
    /// Where the record stands that was played last.
    place: Place,
    pub(super) context: Context,
    pub(super) replay: Replay,
}

impl Player {
    /// Opens a recording; `context`: lines that are remembered.
    pub(super) fn open(first: &Path, context: usize) -> Result<Self, ReplayError> {
        let lines = Lines::open(first)?;
        let mut player = Self {
            place: lines.place(),
            lines,
            core: None,
            header: None,
            actions: Vec::new(),
            is_apart: false,
            at: Time(0),
            waiting: None,
            context: Context::new(context),
            replay: Replay::default(),
        };
        match player.lines.next()? {
            line @ Line::Record(_) => player.waiting = Some(line),
            Line::CutOff { .. } | Line::End => {
                let message = "the first line must be the header".to_owned();
                return Err(ReplayError::Line { path: first.to_owned(), line: 1, message });
            }
        }
        Ok(player)
    }

    /// Where the record stands that was played last.
    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    /// Part that was opened first.
    pub(super) fn first_part(&self) -> Option<u32> {
        self.lines.first_part()
    }

    /// The machine as it is now.
    pub(super) const fn core(&self) -> Option<&Core> {
        self.core.as_ref()
    }

    /// When the process began that is being replayed.
    pub(super) fn start(&self) -> Time {
        self.header.as_ref().map_or(Time(0), |header| header.start)
    }

    /// Time and place of the record that the next step plays; no time where it has none.
    pub(super) fn next_record(&mut self) -> Result<(Option<Time>, Place), ReplayError> {
        let line = match self.waiting.take() {
            Some(line) => line,
            None => self.lines.next()?,
        };
        let time = match &line {
            Line::Record(record) => match &**record {
                Record::Event { at, .. } | Record::Cycle { at, .. } | Record::Snapshot { at, .. } => {
                    Some(*at)
                }
                Record::Header(_) => None,
            },
            Line::CutOff { .. } | Line::End => None,
        };
        self.waiting = Some(line);
        Ok((time, self.lines.place()))
    }

    /// True where nothing comes after what was played last.
    pub(super) fn is_at_end(&mut self) -> Result<bool, ReplayError> {
        self.next_record()?;
        Ok(matches!(self.waiting, Some(Line::End)))
    }

    /// Plays one record.
    pub(super) fn step(&mut self) -> Result<Played, ReplayError> {
        let line = match self.waiting.take() {
            Some(line) => line,
            None => self.lines.next()?,
        };
        let record = match line {
            Line::Record(record) => record,
            Line::CutOff { bytes } => return self.cut_off(bytes),
            Line::End => return self.end(),
        };
        self.place = self.lines.place();
        self.context.add(self.lines.text());
        match *record {
            Record::Header(header) => self.begin(header),
            Record::Snapshot { at, core } => self.take_state(at, *core),
            Record::Event { at, event } => self.apply(at, event),
            Record::Cycle { at, actions } => self.cycle(at, actions),
        }
    }

    fn note(&mut self, note: String) -> Played {
        self.replay.notes.push(note.clone());
        Played::Note(note)
    }

    fn begin(&mut self, header: Header) -> Result<Played, ReplayError> {
        let place = self.lines.place();
        let same_process = self.header.as_ref().is_some_and(|known| known.start == header.start);
        let note = match &self.header {
            None if header.version != env!("CARGO_PKG_VERSION") => Some(format!(
                "recorded by version {}, replayed by {}",
                header.version,
                env!("CARGO_PKG_VERSION")
            )),
            None => None,
            Some(_) if header.part == 0 || !same_process => {
                Some(format!("{}:{}: another process begins", place.path.display(), place.line))
            }
            Some(_) if !header.continues => Some(format!(
                "{}: what happened before this part was not all recorded: the disk was full or too slow",
                place.path.display()
            )),
            Some(_) => None,
        };
        self.is_apart = self.core.is_none() || !same_process || !header.continues;
        if self.is_apart {
            self.actions.clear();
            self.core = (header.part == 0).then(|| Core::new(header.settings.clone()));
        }
        self.header = Some(header);
        Ok(note.map_or(Played::Quiet, |note| self.note(note)))
    }

    /// The state at the begin of a part: what the machine must be by now, or what it begins with.
    fn take_state(&mut self, at: Time, core: Core) -> Result<Played, ReplayError> {
        self.at = at;
        if self.header.as_ref().is_none_or(|header| header.part == 0) {
            return Err(self.lines.error("a state belongs to the begin of a part after part 0"));
        }
        whole(&self.lines, || invariants::check(&core))?.map_err(|error| self.lines.error(error))?;
        if !self.is_apart
            && let Some(mine) = &mut self.core
        {
            let values = (serde_json::to_value(mine.snapshot()), serde_json::to_value(&core));
            if let (Ok(mine), Ok(recorded)) = values
                && let Some(state) = state_difference("core", &recorded, &mine)
            {
                let Place { path, line } = self.lines.place();
                self.replay.difference =
                    Some(Difference { path, line, recorded: None, replayed: None, state: Some(state) });
            }
        }
        self.is_apart = false;
        self.core = Some(core);
        Ok(Played::Quiet)
    }

    fn apply(&mut self, at: Time, event: Event) -> Result<Played, ReplayError> {
        self.at = at;
        let Some(core) = &mut self.core else { return Err(self.without_state()) };
        let actions = &mut self.actions;
        whole(&self.lines, || core.apply(event, at, actions))?;
        self.replay.events += 1;
        Ok(Played::Event)
    }

    fn cycle(&mut self, at: Time, recorded: Vec<Action>) -> Result<Played, ReplayError> {
        self.at = at;
        let Some(core) = &mut self.core else { return Err(self.without_state()) };
        let actions = &mut self.actions;
        whole(&self.lines, || core.cycle(at, actions))?;
        self.replay.cycles += 1;
        let made = std::mem::take(&mut self.actions);
        self.replay.difference = difference(self.lines.place(), &recorded, &made);
        if self.replay.difference.is_none() {
            self.replay.actions += made.len() as u64;
        }
        Ok(Played::Cycle { at, recorded, made })
    }

    fn without_state(&self) -> ReplayError {
        self.lines.error("a part after part 0 begins with the machine's state")
    }

    fn cut_off(&mut self, bytes: usize) -> Result<Played, ReplayError> {
        let place = self.lines.place();
        let note = format!(
            "{}:{}: the line was cut off after {bytes} bytes and is not replayed: the process was killed, or the \
             disk was full",
            place.path.display(),
            place.line
        );
        Ok(self.note(note))
    }

    fn end(&mut self) -> Result<Played, ReplayError> {
        match (&self.header, &self.core) {
            (Some(header), None) if self.replay.cycles + self.replay.events == 0 => {
                let path = self.lines.place().path;
                let before = sibling(&path, header, header.part.saturating_sub(1));
                Err(ReplayError::NoState { path, part: header.part, before })
            }
            _ => Ok(Played::End),
        }
    }
}

/// A machine that breaks off is no reason to break off here: which record it was is what matters.
fn whole<T>(lines: &Lines, step: impl FnOnce() -> T) -> Result<T, ReplayError> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| {
        lines
            .error("the machine breaks off here: a fault of this build, or the recording was changed by hand")
    })
}

fn difference(place: Place, recorded: &[Action], replayed: &[Action]) -> Option<Difference> {
    let longest = recorded.len().max(replayed.len());
    let at = (0..longest).find(|at| recorded.get(*at) != replayed.get(*at))?;
    Some(Difference {
        path: place.path,
        line: place.line,
        recorded: recorded.get(at).cloned(),
        replayed: replayed.get(at).cloned(),
        state: None,
    })
}

/// The first place at which two states differ, and both values.
fn state_difference(path: &str, recorded: &Value, replayed: &Value) -> Option<String> {
    match (recorded, replayed) {
        (Value::Object(left), Value::Object(right)) if left.keys().eq(right.keys()) => left
            .iter()
            .zip(right.values())
            .find_map(|((name, left), right)| state_difference(&format!("{path}.{name}"), left, right)),
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let pairs = left.iter().zip(right).enumerate();
            pairs
                .into_iter()
                .find_map(|(at, (left, right))| state_difference(&format!("{path}[{at}]"), left, right))
        }
        (left, right) if left == right => None,
        (left, right) => Some(format!("{path}: recorded {}, replayed {}", shortened(left), shortened(right))),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_of_two_states_is_named() {
        let left = json!({ "a": 1, "b": { "c": [1, 2] } });
        assert_eq!(state_difference("core", &left, &left), None);
        let right = json!({ "a": 1, "b": { "c": [1, 3] } });
        let text = state_difference("core", &left, &right).unwrap();
        assert_eq!(text, "core.b.c[1]: recorded 2, replayed 3");
        let other = json!({ "a": 1 });
        assert!(state_difference("core", &left, &other).unwrap().starts_with("core: recorded {"));
    }
}
