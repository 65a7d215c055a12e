//! Reads the records of a recording, file after file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::ReplayError;
use crate::recorder::{FORMAT, Header, Record, chain_of, sibling};

/// Where a record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The file.
    pub(super) path: PathBuf,
    /// Line, from 1.
    pub(super) line: usize,
}

/// What the next line is.
#[derive(Debug)]
pub(super) enum Line {
    /// A record, and how long its line is.
    Record(Box<Record>),
    /// The rest of the file is a line without its end.
    CutOff { bytes: usize },
    /// The chain ends here.
    End,
}

/// The lines of a recording.
pub(super) struct Lines {
    first: PathBuf,
    path: PathBuf,
    reader: BufReader<File>,
    line: usize,
    text: Vec<u8>,
    /// Header of the file, which says what the next one is called.
    header: Option<Header>,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, ReplayError> {
        let reader = open(path)?;
        let first = path.to_owned();
        Ok(Self { path: first.clone(), first, reader, line: 0, text: Vec::new(), header: None })
    }

    /// Part of the file that was opened, by its name.
    pub(super) fn first_part(&self) -> Option<u32> {
        chain_of(&self.first).map(|(_, part)| part)
    }

    pub(super) fn place(&self) -> Place {
        Place { path: self.path.clone(), line: self.line }
    }

    pub(super) fn error(&self, message: impl ToString) -> ReplayError {
        ReplayError::Line { path: self.path.clone(), line: self.line, message: message.to_string() }
    }

    /// The line read last, and its number, for those who look on.
    pub(super) fn text(&self) -> (usize, &[u8]) {
        (self.line, &self.text)
    }

    /// The next line; of the next part where this file is at its end. A last line without its end was cut off by a
    /// crash and is no record.
    pub(super) fn next(&mut self) -> Result<Line, ReplayError> {
        loop {
            self.text.clear();
            let read = self.reader.read_until(b'\n', &mut self.text);
            read.map_err(|cause| ReplayError::Read { path: self.path.clone(), cause })?;
            if self.text.is_empty() {
                match self.next_part()? {
                    true => continue,
                    false => return Ok(Line::End),
                }
            }
            self.line += 1;
            if self.text.last() != Some(&b'\n') {
                return Ok(Line::CutOff { bytes: self.text.len() });
            }
            return self.parse().map(|record| Line::Record(Box::new(record)));
        }
    }

    fn parse(&mut self) -> Result<Record, ReplayError> {
        // The form first: of another one nothing else can be told.
        if let Some(found) = form_of(&self.text).filter(|form| *form != FORMAT) {
            return Err(ReplayError::Format { path: self.path.clone(), found });
        }
        let record: Record = serde_json::from_slice(&self.text).map_err(|error| self.error(error))?;
        if self.line == 1 && !matches!(record, Record::Header(_)) {
            return Err(self.error("the first line must be the header"));
        }
        if let Record::Header(header) = &record {
            self.header = Some(header.clone());
        }
        Ok(record)
    }

    fn next_part(&mut self) -> Result<bool, ReplayError> {
        let Some(header) = &self.header else { return Ok(false) };
        let Some(next) = header.part.checked_add(1) else { return Ok(false) };
        let path = sibling(&self.first, header, next);
        if path == self.path || !path.exists() {
            return Ok(false);
        }
        self.reader = open(&path)?;
        self.path = path;
        self.line = 0;
        Ok(true)
    }
}

fn open(path: &Path) -> Result<BufReader<File>, ReplayError> {
    let file = File::open(path).map_err(|cause| ReplayError::Read { path: path.to_owned(), cause })?;
    Ok(BufReader::new(file))
}

/// The form that a header names.
fn form_of(text: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Form {
        format: u32,
    }
    #[derive(serde::Deserialize)]
    struct Line {
        header: Form,
    }
    // Only headers begin like this, and a snapshot is too long to be read twice.
    text.starts_with(b"{\"header\"")
        .then(|| serde_json::from_slice::<Line>(text).ok())?
        .map(|line| line.header.format)
}

/// The last few lines, for those who want to see what came before.
pub(super) struct Context {
    lines: VecDeque<String>,
    most: usize,
}

/// Longest part of a line that is shown as context.
const SHOWN_CHARACTERS: usize = 240;

impl Context {
    pub(super) const fn new(most: usize) -> Self {
        Self { lines: VecDeque::new(), most }
    }

    /// Remembers the begin of a line: a state is as long as a whole file, and most lines are never shown.
    pub(super) fn add(&mut self, (line, text): (usize, &[u8])) {
        const LONGEST_CHARACTER: usize = 4;
        if self.most == 0 {
            return;
        }
        if self.lines.len() == self.most {
            self.lines.pop_front();
        }
        let text = text.trim_ascii_end();
        let begin = &text[..text.len().min(SHOWN_CHARACTERS * LONGEST_CHARACTER)];
        let mut shown: String = String::from_utf8_lossy(begin).chars().take(SHOWN_CHARACTERS).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        self.lines.push_back(format!("{line}: {shown}"));
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_line_the_begin_is_remembered() {
        let mut context = Context::new(2);
        for (line, text) in [(1, "gone".to_owned()), (2, "short\n".to_owned()), (3, "é€😀".repeat(1000))]
        {
            context.add((line, text.as_bytes()));
        }
        let shown: Vec<&str> = context.lines().collect();
        assert_eq!(shown, ["2: short", &format!("3: {}…", "é€😀".repeat(SHOWN_CHARACTERS / 3))]);
        let mut none = Context::new(0);
        none.add((1, b"text"));
        assert_eq!(none.lines().count(), 0);
    }
}
