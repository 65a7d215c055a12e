//! Values as they were written, with where they stand, and how they are read.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_common::units::Millis;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use super::{ConfigError, KEYS};

/// Where a value was written.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// On the command line.
    Flag,
    /// In a file; the line counts from 1.
    File { path: PathBuf, line: usize },
}

/// All values that were written, by key.
#[derive(Debug, Default)]
pub(super) struct Values {
    by_key: BTreeMap<&'static str, (String, Place)>,
}

/// Text, whole number or boolean of a TOML file, as text: what is allowed depends on the key.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Scalar;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, a whole number, true or false")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_bool<E: Error>(self, boolean: bool) -> Result<Scalar, E> {
                Ok(Scalar(boolean.to_string()))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl Values {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
        let line_at = |offset: usize| text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        let entries: BTreeMap<Spanned<String>, Spanned<Scalar>> =
            toml::from_str(&text).map_err(|error| ConfigError::Syntax {
                path: path.to_owned(),
                line: line_at(error.span().map_or(0, |span| span.start)),
                message: error.message().to_owned(),
            })?;
        let mut values = Self::default();
        for (key, value) in entries {
            let line = line_at(key.span().start);
            let Some(known) = KEYS.iter().find(|known| *known == key.get_ref()) else {
                return Err(unknown(path, line, key.get_ref()));
            };
            values.set(known, value.into_inner().0, Place::File { path: path.to_owned(), line });
        }
        Ok(values)
    }

    /// Sets a value; a later one wins.
    pub(super) fn set(&mut self, key: &'static str, text: String, place: Place) {
        self.by_key.insert(key, (text, place));
    }

    /// The value as text, where one was written.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.by_key.get(key).map(|(text, _)| text.as_str())
    }

    /// Says that a value is not what it must be.
    pub(super) fn error(&self, key: &str, expected: &str) -> ConfigError {
        let (found, place) = match self.by_key.get(key) {
            Some((text, Place::File { path, line })) => {
                (text.clone(), format!("{}:{line}: {key}", path.display()))
            }
            Some((text, Place::Flag)) => (text.clone(), format!("--{key}")),
            None => (String::new(), format!("--{key}")),
        };
        ConfigError::Value { place, expected: expected.to_owned(), found }
    }

    /// A duration such as `10s` or `1m 30s`.
    pub(super) fn duration(
        &self,
        key: &str,
        default: Millis,
        least: Millis,
        most: Millis,
    ) -> Result<Millis, ConfigError> {
        let Some(text) = self.text(key) else {
            return Ok(default);
        };
        humantime::parse_duration(text)
            .ok()
            .and_then(|duration| u64::try_from(duration.as_millis()).ok())
            .map(Millis)
            .filter(|duration| (least..=most).contains(duration))
            .ok_or_else(|| {
                self.error(
                    key,
                    &format!(
                        "a duration from {} to {} such as {}",
                        shown(least),
                        shown(most),
                        shown(default)
                    ),
                )
            })
    }

    /// A whole number.
    pub(super) fn number(&self, key: &str, default: u64, least: u64, most: u64) -> Result<u64, ConfigError> {
        let Some(text) = self.text(key) else {
            return Ok(default);
        };
        text.parse()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.error(key, &format!("a whole number from {least} to {most}")))
    }

    /// True or false.
    pub(super) fn boolean(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        let Some(text) = self.text(key) else {
            return Ok(default);
        };
        text.parse().map_err(|_| self.error(key, "true or false"))
    }

    /// An IP address and port.
    pub(super) fn address(&self, key: &str, default: &str) -> Result<SocketAddr, ConfigError> {
        let text = self.text(key).unwrap_or(default);
        text.parse()
            .map_err(|_| self.error(key, &format!("an IP address and a port such as {default} or [::1]:0")))
    }

    /// The name of an object.
    pub(super) fn name(&self, key: &str, default: &str) -> Result<String, ConfigError> {
        let text = self.text(key).unwrap_or(default);
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let valid = (1..=63).contains(&text.len())
            && text.bytes().all(|byte| inner(byte) || byte == b'-')
            && text.bytes().next().is_some_and(inner)
            && text.bytes().last().is_some_and(inner);
        if valid {
            Ok(text.to_owned())
        } else {
            Err(self.error(key, "1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"))
        }
    }
}

/// A duration as it would be written.
pub(super) fn shown(duration: Millis) -> String {
    humantime::format_duration(Duration::from_millis(duration.0)).to_string()
}

fn unknown(path: &Path, line: usize, key: &str) -> ConfigError {
    let near = KEYS.iter().find(|known| differs_little(known, key));
    ConfigError::UnknownKey {
        path: path.to_owned(),
        line,
        key: key.to_owned(),
        hint: near.map_or_else(String::new, |near| format!(", did you mean {near:?}")),
        known: KEYS.join(", "),
    }
}

/// True where one character is missing, added, changed or swapped with its neighbour, or where `_` and upper
/// case stand for `-` and lower case.
fn differs_little(known: &str, written: &str) -> bool {
    let written = written.to_ascii_lowercase().replace('_', "-");
    if known == written {
        return true;
    }
    let (short, long) =
        if known.len() <= written.len() { (known, written.as_str()) } else { (written.as_str(), known) };
    let (short, long) = (short.as_bytes(), long.as_bytes());
    let start = short.iter().zip(long).take_while(|(one, other)| one == other).count();
    let end =
        short[start..].iter().rev().zip(long.iter().rev()).take_while(|(one, other)| one == other).count();
    let left = (short.len() - start - end, long.len() - start - end);
    let swapped = left == (2, 2) && short[start] == long[start + 1] && short[start + 1] == long[start];
    matches!(left, (0, 1) | (1, 1)) || swapped
}
