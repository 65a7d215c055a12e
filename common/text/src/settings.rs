//! Values of a program's settings as they were written, with where they stand, and how they are read. All that is
//! wrong is told at once, also what a flag overrides in the file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use toml::de::{DeTable, DeValue};

use crate::near::did_you_mean;
use crate::places::{line_of, toml_error};

/// A file larger than this is no configuration.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Problems that are shown: a file of nonsense must not become megabytes of text.
const PROBLEMS_SHOWN: usize = 20;
/// Longest value that is shown in a text.
const SHOWN_LETTERS: usize = 80;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("{path}: cannot be read: {cause}; give an existing file with --config, or leave the flag out")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: String,
    },
    /// The file is too large.
    #[error("{path}: is larger than 1 MiB and no configuration; give another file with --config")]
    Size {
        /// The file.
        path: PathBuf,
    },
    /// The file is no text.
    #[error("{path}:{line}: is not UTF-8 text: is it another file? a configuration is TOML, saved as UTF-8")]
    Encoding {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// The file is not TOML.
    #[error("{path}:{line}: is not valid TOML: {message} (in {text:?})")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the reader says.
        message: String,
        /// The line itself.
        text: String,
    },
    /// A key that does not exist.
    #[error("{path}:{line}: unknown key {key:?}{hint}; known keys: {known}")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// `; did you mean …?`, or nothing.
        hint: String,
        /// All keys.
        known: String,
    },
    /// A value that is not allowed.
    #[error("{place}: must be {expected}, found {found:?}")]
    Value {
        /// `--flag`, or `FILE:LINE: key`.
        place: String,
        /// What is allowed.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A value that must be given is not.
    #[error("--{flag}: is not given; {fix}")]
    Missing {
        /// The flag, which is also the key.
        flag: &'static str,
        /// What to do.
        fix: String,
    },
}

/// All that is wrong; at least one. `Display` gives a line each, the later ones with `error: ` before them, as the
/// program writes it before the first.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().take(PROBLEMS_SHOWN).enumerate() {
            let start = if at == 0 { "" } else { "\nerror: " };
            write!(formatter, "{start}{problem}")?;
        }
        match self.0.len().saturating_sub(PROBLEMS_SHOWN) {
            0 => Ok(()),
            more => write!(formatter, "\nerror: {more} more are not shown: repair these first"),
        }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// What stands there; several where it is a list.
    pub texts: Vec<String>,
    /// `--flag`, or `FILE:LINE: key`.
    pub place: String,
    /// A text, and not a bare number, date, table or list.
    pub is_text: bool,
}

impl Written {
    /// The value, where it is one.
    #[must_use]
    pub fn text(&self) -> &str {
        self.texts.first().map_or("", String::as_str)
    }

    fn wrong(&self, expected: &str, found: &str) -> Problem {
        let long = found.chars().count() > SHOWN_LETTERS;
        let cut: String = found.chars().take(SHOWN_LETTERS).collect();
        let found = if long { format!("{cut}...") } else { cut };
        Problem::Value { place: self.place.clone(), expected: expected.to_owned(), found }
    }
}

/// All values that were written, by key: those of the file and those of the flags, which win.
#[derive(Debug)]
pub struct Values {
    keys: &'static [&'static str],
    lists: &'static [&'static str],
    file: BTreeMap<&'static str, Written>,
    flags: BTreeMap<&'static str, Written>,
    problems: Vec<Problem>,
}

impl Values {
    /// No values yet. `keys` are those that exist, `lists` those of them that take several values.
    #[must_use]
    pub fn new(keys: &'static [&'static str], lists: &'static [&'static str]) -> Self {
        Self { keys, lists, file: BTreeMap::new(), flags: BTreeMap::new(), problems: Vec::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no TOML. Unknown keys are told by `finish`.
    pub fn read_file(&mut self, path: &Path) -> Result<(), Problems> {
        let failed =
            |cause: std::io::Error| Problem::Read { path: path.to_owned(), cause: cause.to_string() };
        // Not by the length that the system tells: that of a device or a pipe is 0, and it may never end.
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        self.read_bytes(&bytes, path)
    }

    /// Reads what a file holds; `path` is only named.
    ///
    /// # Errors
    /// As `read_file`.
    pub fn read_bytes(&mut self, bytes: &[u8], path: &Path) -> Result<(), Problems> {
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(Problem::Size { path: path.to_owned() }.into());
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            Problem::Encoding { path: path.to_owned(), line }
        })?;
        let table = DeTable::parse(text).map_err(|error| {
            let (line, message) = toml_error(text, &error);
            let own = text.lines().nth(line - 1).unwrap_or_default();
            let text = own.chars().take(SHOWN_LETTERS).collect();
            Problem::Syntax { path: path.to_owned(), line, message, text }
        })?;
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let (mut line, mut counted) = (1, 0);
        for (key, value) in entries {
            // Counted on from the entry before: a count from the start for each would take its square.
            line += line_of(text.get(counted..).unwrap_or_default(), key.span().start - counted) - 1;
            counted = key.span().start;
            let name: &str = key.get_ref();
            let Some(known) = self.keys.iter().copied().find(|known| *known == name) else {
                // Those that are not shown cost no search for near names.
                let keys = if self.problems.len() < PROBLEMS_SHOWN { self.keys } else { &[] };
                self.problems.push(unknown(path, line, name, keys));
                continue;
            };
            let takes_list = self.lists.contains(&known);
            let place = format!("{}:{line}: {name}", path.display());
            let written = Written { place, ..as_written(text, value, takes_list) };
            self.file.insert(known, written);
        }
        Ok(())
    }

    /// Sets the values of a flag; none leaves it out.
    pub fn set_flag(&mut self, key: &'static str, texts: impl IntoIterator<Item = String>) {
        let texts: Vec<String> = texts.into_iter().collect();
        if !texts.is_empty() {
            self.flags.insert(key, Written { texts, place: format!("--{key}"), is_text: true });
        }
    }

    /// What holds: the flag, else the file.
    #[must_use]
    pub fn written(&self, key: &str) -> Option<&Written> {
        self.flags.get(key).or_else(|| self.file.get(key))
    }

    /// Records something that is wrong.
    pub fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Records that what holds for a key is not what it must be.
    pub fn wrong(&mut self, key: &'static str, expected: &str) {
        let none = Written { texts: Vec::new(), place: format!("--{key}"), is_text: true };
        let written = self.written(key).unwrap_or(&none);
        let problem = written.wrong(expected, written.text());
        self.problems.push(problem);
    }

    /// True while nothing wrong was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// All that was found.
    pub fn finish(self) -> Result<(), Problems> {
        if self.problems.is_empty() { Ok(()) } else { Err(Problems(self.problems)) }
    }

    /// Reads a value by a rule. Both file and flag are checked; `None` where neither is there, or what holds is wrong.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        rule: impl Fn(&Written) -> Option<T>,
    ) -> Option<T> {
        let mut result = None;
        for written in [self.file.get(key), self.flags.get(key)].into_iter().flatten() {
            result = rule(written);
            if result.is_none() {
                self.problems.push(written.wrong(expected, written.text()));
            }
        }
        result
    }

    /// A list of texts that each keep a rule.
    pub fn list(&mut self, key: &'static str, expected: &str, rule: impl Fn(&str) -> bool) -> Vec<String> {
        for written in [self.file.get(key), self.flags.get(key)].into_iter().flatten() {
            let wrong = written.texts.iter().filter(|text| !rule(text));
            self.problems.extend(wrong.map(|text| written.wrong(expected, text)));
        }
        self.written(key).map(|written| written.texts.clone()).unwrap_or_default()
    }

    /// A duration such as `10s` or `1m 30s`.
    pub fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        least: Duration,
        most: Duration,
    ) -> Duration {
        let [least_text, most_text, default_text] = [least, most, default].map(shown);
        let expected = format!("a duration from {least_text} to {most_text} such as {default_text}");
        let rule = |written: &Written| {
            let duration = humantime::parse_duration(written.text()).ok()?;
            (least..=most).contains(&duration).then_some(duration)
        };
        self.read(key, &expected, rule).unwrap_or(default)
    }

    /// A whole number.
    pub fn number(&mut self, key: &'static str, default: u64, least: u64, most: u64) -> u64 {
        let expected = format!("a whole number from {least} to {most}");
        let rule = |written: &Written| {
            written.text().parse().ok().filter(|number: &u64| (least..=most).contains(number))
        };
        self.read(key, &expected, rule).unwrap_or(default)
    }

    /// True or false.
    pub fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        self.read(key, "true or false", |written| written.text().parse().ok()).unwrap_or(default)
    }

    /// An IP address and port.
    pub fn address(&mut self, key: &'static str, default: SocketAddr) -> SocketAddr {
        let expected = format!("an IP address and a port such as {default} or [::1]:0");
        self.read(key, &expected, |written| written.text().parse().ok()).unwrap_or(default)
    }

    /// A path.
    pub fn path(&mut self, key: &'static str, expected: &str) -> Option<PathBuf> {
        let rule = |written: &Written| {
            (written.is_text && !written.text().is_empty()).then(|| PathBuf::from(written.text()))
        };
        self.read(key, expected, rule)
    }
}

/// The texts of a value. What is no text, and a list where one value is wanted, stand as they were written.
fn as_written(text: &str, value: &toml::Spanned<DeValue<'_>>, takes_list: bool) -> Written {
    let one = |value: &toml::Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        _ => text.get(value.span()).unwrap_or_default().to_owned(),
    };
    let texts = match value.get_ref() {
        DeValue::Array(values) if takes_list => values.iter().map(one).collect(),
        _ => vec![one(value)],
    };
    Written { texts, place: String::new(), is_text: value.get_ref().is_str() }
}

/// A duration as it would be written.
#[must_use]
pub fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

fn unknown(path: &Path, line: usize, key: &str, keys: &[&str]) -> Problem {
    Problem::UnknownKey {
        path: path.to_owned(),
        line,
        key: key.chars().take(SHOWN_LETTERS).collect(),
        hint: did_you_mean(key, keys.iter().copied()),
        known: keys.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 4] = ["wait", "files", "folder", "peers"];

    fn values(text: &str) -> Result<Values, Problems> {
        let mut values = Values::new(&KEYS, &["peers"]);
        values.read_bytes(text.as_bytes(), Path::new("FILE")).map(|()| values)
    }

    fn text(problems: Result<(), Problems>) -> String {
        problems.unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_told_at_once_with_its_place() {
        let mut values = values("wait = 5\n\nfiles = 1.5\nfolder = [\"a\"]\nfile = 1\n").unwrap();
        values.set_flag("files", ["x".to_owned()]);
        let second = Duration::from_secs(1);
        values.duration("wait", second, second, second * 60);
        values.number("files", 1, 1, 9);
        values.path("folder", "a path");
        assert_eq!(
            text(values.finish()),
            "FILE:5: unknown key \"file\"; did you mean files?; known keys: wait, files, folder, peers\n\
             error: FILE:1: wait: must be a duration from 1s to 1m such as 1s, found \"5\"\n\
             error: FILE:3: files: must be a whole number from 1 to 9, found \"1.5\"\n\
             error: --files: must be a whole number from 1 to 9, found \"x\"\n\
             error: FILE:4: folder: must be a path, found \"[\\\"a\\\"]\""
        );
    }

    #[test]
    fn flags_win_and_lists_are_read() {
        let mut values = values("peers = [\"a\", \"b\"]\nfiles = 2\n").unwrap();
        values.set_flag("files", ["3".to_owned()]);
        assert_eq!(values.number("files", 1, 1, 9), 3);
        assert_eq!(values.list("peers", "a name", |text| !text.is_empty()), ["a", "b"]);
        assert!(values.finish().is_ok());
    }

    #[test]
    fn what_is_no_configuration_is_named_with_its_line() {
        let error = |text: &str| values(text).unwrap_err().to_string();
        assert!(error("wait = \"1s\"\nfiles = = 1").starts_with("FILE:2: is not valid TOML: "));
        assert!(error("wait = 1\nwait = 2").starts_with("FILE:2: is not valid TOML: duplicate key"));
        let mut values = Values::new(&KEYS, &[]);
        let mut problem = |bytes: &[u8]| values.read_bytes(bytes, Path::new("FILE")).unwrap_err().to_string();
        assert!(problem(b"a\n\xff").starts_with("FILE:2: is not UTF-8 text"));
        assert!(problem(&vec![b'#'; (1 << 20) + 1]).starts_with("FILE: is larger than 1 MiB"));
        let missing = values.read_file(Path::new("/nowhere/file")).unwrap_err().to_string();
        assert!(missing.starts_with("/nowhere/file: cannot be read: No such file"), "{missing}");
        // Has no length and no end.
        let endless = values.read_file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.starts_with("/dev/zero: is larger than 1 MiB"), "{endless}");
    }
}
