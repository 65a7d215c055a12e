//! Reads typed values out of a tree and says what is wrong with file, line and field.

use std::fmt;

use phalanx_text::did_you_mean;
use serde::{Deserialize, Serialize};

use super::tree::{Entry, Node, Tree, shorten};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The object is not applied.
    Error,
    /// The object is applied; a person should know.
    Warning,
}

/// Something a person should know about a manifest. `Display` writes
/// `FILE:LINE: error: FIELD: MESSAGE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The file's name as given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The field, `spec.tasks[0].replicas`; empty where it is about the document.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(formatter, "{}:{}: {severity}: ", self.file, self.line)?;
        if !self.field.is_empty() {
            write!(formatter, "{}: ", self.field)?;
        }
        formatter.write_str(&self.message)
    }
}

/// Collects diagnostics of one file.
#[derive(Debug)]
pub struct Sink {
    file: String,
    /// The first errors. Warnings have a bound of their own: however many there are, they hide no error.
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
    /// All there were, kept or not.
    error_count: usize,
    warning_count: usize,
}

/// Diagnostics of one file stop here: a file of nonsense must not become megabytes of text.
const MAX_DIAGNOSTICS: usize = 1000;

/// What is said of a field that is accepted and has no effect.
const NOT_HONOURED: &str = "accepted, not honoured yet";

/// What is said of a field that nobody knows.
const UNKNOWN_FIELD: &str = "unknown field";

/// Unknown fields of one mapping that are named one by one.
const MAX_UNKNOWN_FIELDS: usize = 20;

impl Sink {
    /// For a file of this name.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            errors: Vec::new(),
            warnings: Vec::new(),
            error_count: 0,
            warning_count: 0,
        }
    }

    /// Adds a diagnostic.
    pub fn push(&mut self, severity: Severity, line: usize, field: &str, message: impl Into<String>) {
        let (kept, count) = match severity {
            Severity::Error => (&mut self.errors, &mut self.error_count),
            Severity::Warning => (&mut self.warnings, &mut self.warning_count),
        };
        *count += 1;
        if kept.len() < MAX_DIAGNOSTICS {
            kept.push(Diagnostic {
                severity,
                file: self.file.clone(),
                line,
                field: on_one_line(field),
                message: on_one_line(&message.into()),
            });
        }
    }

    /// Number of errors so far, kept or not: they decide whether an object is applied.
    #[must_use]
    pub const fn errors(&self) -> usize {
        self.error_count
    }

    /// The errors that are kept, as they were found.
    #[must_use]
    pub fn kept_errors(&self) -> &[Diagnostic] {
        &self.errors
    }

    /// The fields that are accepted and have no effect, as far as they are kept.
    pub fn not_honoured(&self) -> impl Iterator<Item = &str> {
        let warnings = self.warnings.iter().filter(|warning| warning.message == NOT_HONOURED);
        warnings.map(|warning| warning.field.as_str())
    }

    /// Warnings of values that may not be what was meant, as far as they are kept.
    pub fn doubts(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_doubt = |warning: &&Diagnostic| {
            warning.message != NOT_HONOURED && !warning.message.contains(UNKNOWN_FIELD)
        };
        self.warnings
            .iter()
            .filter(is_doubt)
            .map(|warning| (warning.field.as_str(), warning.message.as_str()))
    }

    /// True where no more warnings are kept.
    fn is_full_of_warnings(&self) -> bool {
        self.warnings.len() >= MAX_DIAGNOSTICS
    }

    /// What is kept, by line: errors before warnings where there is no room for both. The last one says how many are
    /// not shown, and is an error only where an error is not.
    #[must_use]
    pub fn finish(self) -> Vec<Diagnostic> {
        let mut kept = self.errors;
        let errors_left_out = self.error_count - kept.len();
        kept.extend(self.warnings.into_iter().take(MAX_DIAGNOSTICS - kept.len()));
        let warnings_left_out = self.error_count + self.warning_count - kept.len() - errors_left_out;
        kept.sort_by_key(|diagnostic| diagnostic.line);
        let (severity, message) = match (errors_left_out, warnings_left_out) {
            (0, 0) => return kept,
            (0, warnings) => (Severity::Warning, format!("{warnings} more warnings are not shown")),
            (errors, 0) => {
                (Severity::Error, format!("{errors} more errors are not shown: repair these first"))
            }
            (errors, warnings) => (
                Severity::Error,
                format!("{errors} more errors and {warnings} warnings are not shown: repair these first"),
            ),
        };
        let line = kept.last().map_or(1, |last| last.line);
        kept.push(Diagnostic { severity, file: self.file, line, field: String::new(), message });
        kept
    }
}

/// The text without line ends and what else steers a terminal: keys and values come from whoever wrote the file.
fn on_one_line(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

/// A place in a tree, with the path that leads there.
#[derive(Clone, Debug)]
pub struct Cursor<'n> {
    /// The value.
    pub node: &'n Node,
    /// Line to name in diagnostics: of the key, where there is one.
    pub line: usize,
    /// The path.
    pub path: String,
}

impl<'n> Cursor<'n> {
    /// The root of a tree, under this path.
    #[must_use]
    pub fn root(node: &'n Node, path: &str) -> Self {
        Self { node, line: node.line, path: path.to_owned() }
    }

    /// Records an error here.
    pub fn error(&self, sink: &mut Sink, message: impl Into<String>) {
        sink.push(Severity::Error, self.line, &self.path, message);
    }

    /// Records a warning here.
    pub fn warn(&self, sink: &mut Sink, message: impl Into<String>) {
        sink.push(Severity::Warning, self.line, &self.path, message);
    }

    /// Records that a known field is read and has no effect yet.
    pub fn warn_not_honoured(&self, sink: &mut Sink) {
        self.warn(sink, NOT_HONOURED);
    }

    /// Path of a field below here.
    #[must_use]
    pub fn below(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else if key.contains(['.', '/']) {
            format!("{}[{}]", self.path, shorten(key))
        } else {
            format!("{}.{}", self.path, shorten(key))
        }
    }

    fn wrong_type(&self, sink: &mut Sink, wanted: &str) {
        let hint = match (&self.node.value, wanted) {
            (Tree::Number { .. } | Tree::Bool(_), "text") => ": put it in quotes",
            (Tree::Text(text), "a whole number") if text.parse::<i64>().is_ok() => ": drop the quotes",
            (Tree::Text(_), "true or false") => ": write true or false without quotes",
            // `name:value` is one word in YAML.
            (Tree::Text(text), "a mapping")
                if text.split_once(':').is_some_and(|(_, rest)| !rest.is_empty()) =>
            {
                ": write a space after the colon"
            }
            _ => "",
        };
        let wanted = match (wanted, self.path.is_empty()) {
            ("a mapping", true) => "an object with apiVersion, kind and metadata",
            _ => wanted,
        };
        self.error(sink, format!("must be {wanted}, found {}{hint}", self.node.describe()));
    }

    /// Text.
    pub fn text(&self, sink: &mut Sink) -> Option<&'n str> {
        match &self.node.value {
            Tree::Text(text) => Some(text),
            _ => {
                self.wrong_type(sink, "text");
                None
            }
        }
    }

    /// Text that is one of these.
    pub fn one_of(&self, sink: &mut Sink, allowed: &[&str]) -> Option<&'n str> {
        let text = self.text(sink)?;
        if allowed.contains(&text) {
            return Some(text);
        }
        self.error(sink, format!("must be {}, found {:?}", allowed.join(" or "), shorten(text)));
        None
    }

    /// `true` or `false`.
    pub fn boolean(&self, sink: &mut Sink) -> Option<bool> {
        match self.node.value {
            Tree::Bool(value) => Some(value),
            _ => {
                self.wrong_type(sink, "true or false");
                None
            }
        }
    }

    /// A whole number within bounds.
    pub fn whole(&self, sink: &mut Sink, least: i64, most: i64) -> Option<i64> {
        match &self.node.value {
            Tree::Number { whole: Some(whole), .. } if (least..=most).contains(whole) => Some(*whole),
            Tree::Number { text, .. } => {
                let kind = if text.contains(['.', 'e', 'E']) { " and whole" } else { "" };
                self.error(
                    sink,
                    format!("must be between {least} and {most}{kind}, found {}", shorten(text)),
                );
                None
            }
            _ => {
                self.wrong_type(sink, "a whole number");
                None
            }
        }
    }

    /// A whole number of pods or replicas: 0 to 2147483647.
    pub fn count(&self, sink: &mut Sink) -> Option<u32> {
        self.whole(sink, 0, i64::from(i32::MAX)).and_then(|value| u32::try_from(value).ok())
    }

    /// The elements of a list, each with its path.
    pub fn list(&self, sink: &mut Sink) -> Option<Vec<Cursor<'n>>> {
        match &self.node.value {
            Tree::List(nodes) => Some(
                nodes
                    .iter()
                    .enumerate()
                    .map(|(at, node)| Cursor { node, line: node.line, path: format!("{}[{at}]", self.path) })
                    .collect(),
            ),
            _ => {
                self.wrong_type(sink, "a list");
                None
            }
        }
    }

    /// The entries of a mapping whose keys are free, each with its path.
    pub fn entries(&self, sink: &mut Sink) -> Option<Vec<(&'n str, Cursor<'n>)>> {
        match &self.node.value {
            Tree::Map(entries) => {
                Some(entries.iter().map(|entry| (&*entry.key, self.entry_cursor(entry))).collect())
            }
            _ => {
                self.wrong_type(sink, "a mapping");
                None
            }
        }
    }

    /// The fields of a mapping whose keys are known.
    pub fn fields(&self, sink: &mut Sink) -> Option<Fields<'n>> {
        match &self.node.value {
            Tree::Map(entries) => Some(Fields { cursor: self.clone(), entries, known: Vec::new() }),
            _ => {
                self.wrong_type(sink, "a mapping");
                None
            }
        }
    }

    /// The entry of a mapping with this key; the mapping itself where there is none.
    #[must_use]
    pub fn entry_or_self(&self, key: &str) -> Cursor<'n> {
        match &self.node.value {
            Tree::Map(entries) => entries
                .iter()
                .find(|entry| &*entry.key == key)
                .map_or_else(|| self.clone(), |entry| self.entry_cursor(entry)),
            _ => self.clone(),
        }
    }

    fn entry_cursor(&self, entry: &'n Entry) -> Cursor<'n> {
        let line = if entry.line == 0 { entry.node.line } else { entry.line };
        Cursor { node: &entry.node, line, path: self.below(&entry.key) }
    }

    /// True for an empty list, an empty mapping, or nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.node.value {
            Tree::Null => true,
            Tree::List(nodes) => nodes.is_empty(),
            Tree::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }
}

/// The fields of a mapping. Every field that is asked for is known; `finish` warns of the others.
#[derive(Debug)]
pub struct Fields<'n> {
    /// The mapping itself.
    pub cursor: Cursor<'n>,
    entries: &'n [Entry],
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// A field; `None` where it is absent or null.
    pub fn get(&mut self, name: &'static str) -> Option<Cursor<'n>> {
        self.known.push(name);
        let entry = self.entries.iter().find(|entry| &*entry.key == name)?;
        (entry.node.value != Tree::Null).then(|| self.cursor.entry_cursor(entry))
    }

    /// A field that must be there.
    pub fn required(&mut self, sink: &mut Sink, name: &'static str, allowed: &str) -> Option<Cursor<'n>> {
        let field = self.get(name);
        if field.is_none() {
            let path = self.cursor.below(name);
            sink.push(Severity::Error, self.cursor.line, &path, format!("missing: must be {allowed}"));
        }
        field
    }

    /// Fields that are known and mean nothing to us.
    pub fn ignore(&mut self, names: &[&'static str]) {
        self.known.extend_from_slice(names);
    }

    /// Known fields that have no effect yet: each one that is there gives a warning.
    pub fn not_honoured(&mut self, sink: &mut Sink, names: &[&'static str]) {
        for name in names {
            if let Some(cursor) = self.get(name)
                && !cursor.is_empty()
            {
                cursor.warn_not_honoured(sink);
            }
        }
    }

    /// Refuses fields that nobody asked for, where all are ours to name. `example` is one that is read.
    pub fn refuse_unknown(self, sink: &mut Sink, example: &str) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&&*entry.key)) {
            let known = self.known.join(", ");
            let hint = did_you_mean(&entry.key, self.known.iter().copied());
            let text = format!("unknown field: must be one of {known}, such as {example}{hint}");
            self.cursor.entry_cursor(entry).error(sink, text);
        }
    }

    /// Warns of fields that nobody asked for.
    pub fn finish(self, sink: &mut Sink) {
        let unknown: Vec<&Entry> =
            self.entries.iter().filter(|entry| !self.known.contains(&&*entry.key)).collect();
        for entry in unknown.iter().take(MAX_UNKNOWN_FIELDS) {
            // A hint that nobody sees must cost no time.
            let known =
                self.known.iter().copied().take(if sink.is_full_of_warnings() { 0 } else { usize::MAX });
            let hint = did_you_mean(&entry.key, known);
            self.cursor.entry_cursor(entry).warn(sink, format!("{UNKNOWN_FIELD}, ignored{hint}"));
        }
        if let Some(more) = unknown.len().checked_sub(MAX_UNKNOWN_FIELDS).filter(|more| *more > 0) {
            self.cursor.warn(sink, format!("{more} more unknown fields, ignored"));
        }
    }
}
