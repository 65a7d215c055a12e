//! One value of a profile file together with its path, so that every error can name the field.

use std::fmt::Display;
use std::str::FromStr;

use phalanx_text::did_you_mean;
use serde_json::Value;

use crate::error::ProfileError;

/// Longest text in a profile, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// A value that may be missing; JSON `null` counts as missing.
#[derive(Clone)]
pub(crate) struct Field<'file> {
    file: &'file str,
    path: String,
    value: Option<&'file Value>,
}

impl<'file> Field<'file> {
    pub(crate) fn root(file: &'file str, value: &'file Value) -> Self {
        Self { file, path: String::new(), value: Some(value) }
    }

    /// An error about this field.
    pub(crate) fn error(&self, reason: impl Into<String>) -> ProfileError {
        let field = if self.path.is_empty() { "(whole file)".to_owned() } else { self.path.clone() };
        ProfileError::Field { file: self.file.to_owned(), field, reason: reason.into() }
    }

    pub(crate) fn expected(&self, expected: &str) -> ProfileError {
        match self.value {
            None => self.error(format!("is missing: expected {expected}")),
            Some(value) => {
                let shown: String = value.to_string().chars().take(64).collect();
                self.error(format!("{shown} is not allowed: expected {expected}"))
            }
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    /// A member of an object. A member of a missing object is missing.
    pub(crate) fn get(&self, name: &str) -> Result<Self, ProfileError> {
        let value = match self.value {
            None => None,
            Some(Value::Object(members)) => members.get(name).filter(|value| !value.is_null()),
            Some(_) => return Err(self.expected("an object")),
        };
        Ok(Self { value, ..self.child(name) })
    }

    /// A member that is not there.
    fn child(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { file: self.file, path, value: None }
    }

    /// Refuses members that are not in `names`: a misspelt field must not be ignored.
    pub(crate) fn only(&self, names: &[&str]) -> Result<(), ProfileError> {
        let Some(Value::Object(members)) = self.value else { return Ok(()) };
        match members.keys().find(|key| !names.contains(&key.as_str())) {
            Some(unknown) => {
                let hint = did_you_mean(unknown, names.iter().copied());
                let allowed = names.join(", ");
                Err(self.child(unknown).error(format!("is not a known member{hint}; allowed: {allowed}")))
            }
            None => Ok(()),
        }
    }

    /// The entries of a list; a missing list is empty.
    pub(crate) fn items(&self, most: usize) -> Result<Vec<Self>, ProfileError> {
        let list = match self.value {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.expected("a list")),
        };
        if list.len() > most {
            return Err(self.error(format!("has {} entries: at most {most} are allowed", list.len())));
        }
        let entry = |(at, value): (usize, &'file Value)| Self {
            file: self.file,
            path: format!("{}[{at}]", self.path),
            value: (!value.is_null()).then_some(value),
        };
        Ok(list.iter().enumerate().map(entry).collect())
    }

    /// A text without control characters.
    pub(crate) fn text(&self) -> Result<&'file str, ProfileError> {
        match self.value {
            Some(Value::String(text)) if text.len() > MAX_TEXT_BYTES => {
                Err(self.error(format!("has {} bytes: at most {MAX_TEXT_BYTES} are allowed", text.len())))
            }
            Some(Value::String(text)) if text.chars().any(char::is_control) => {
                Err(self.error("contains control characters"))
            }
            Some(Value::String(text)) => Ok(text),
            _ => Err(self.expected("a text")),
        }
    }

    /// Text that says something.
    pub(crate) fn name(&self) -> Result<&'file str, ProfileError> {
        let text = self.text()?;
        if text.trim().is_empty() { Err(self.expected("a name")) } else { Ok(text) }
    }

    pub(crate) fn optional_text(&self) -> Result<Option<&'file str>, ProfileError> {
        if self.is_present() { self.text().map(Some) } else { Ok(None) }
    }

    /// A text read by `FromStr`; its error says what is allowed.
    pub(crate) fn parsed<T: FromStr<Err: Display>>(&self) -> Result<T, ProfileError> {
        self.text()?.parse().map_err(|error: T::Err| self.error(error.to_string()))
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn number(&self, least: u64, most: u64) -> Result<u64, ProfileError> {
        let number = self.value.and_then(Value::as_u64).filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| self.expected(&format!("a whole number from {least} to {most}")))
    }

    pub(crate) fn optional_number(&self, least: u64, most: u64) -> Result<Option<u64>, ProfileError> {
        if self.is_present() { self.number(least, most).map(Some) } else { Ok(None) }
    }

    pub(crate) fn flag(&self) -> Result<bool, ProfileError> {
        self.value.and_then(Value::as_bool).ok_or_else(|| self.expected("true or false"))
    }

    /// One of some words.
    pub(crate) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ProfileError> {
        let allowed = || words.iter().map(|(word, _)| *word).collect::<Vec<&str>>().join(", ");
        let Some(Value::String(text)) = self.value else {
            return Err(self.expected(&format!("one of {}", allowed())));
        };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| self.expected(&format!("one of {}", allowed())))
    }

    /// A text where there is one, whatever the value: for fields that take a number or a text.
    pub(crate) fn number_or_text(&self) -> Option<String> {
        match self.value? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// Name of the file, for errors about several fields.
    pub(crate) fn file(&self) -> &str {
        self.file
    }
}
