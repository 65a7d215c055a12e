//! Lines of a TOML text: of an error, and of a field that is named by its path.

use toml::de::{DeTable, DeValue};

/// Line on which a byte stands, from 1.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Line and text of a TOML error, in one line.
#[must_use]
pub fn toml_error(text: &str, error: &toml::de::Error) -> (usize, String) {
    let line = line_of(text, error.span().map_or(0, |span| span.start));
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    // TOML has no type that could be meant by a bare word, and its own message names types only.
    let hint = if message.contains("string values must be quoted") { ": write \"…\"" } else { "" };
    (line, format!("{message}{hint}"))
}

/// Line of the field at a path such as `gpus[1].numa`; of the last part of it that is there. `None` where nothing
/// of it is, or the text is not TOML.
#[must_use]
pub fn line_of_field(text: &str, path: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut found = None;
    let mut next = Some(Next::Table(table.get_ref()));
    for part in path.replace('[', ".[").split('.').filter(|part| !part.is_empty()) {
        let index = part.strip_prefix('[').and_then(|part| part.strip_suffix(']'));
        let value = match (next, index) {
            (Some(Next::Table(table)), None) => {
                let entry = table.iter().find(|(key, _)| key.get_ref() == part);
                entry.map(|(key, value)| (key.span().start, value.get_ref()))
            }
            (Some(Next::Array(values)), Some(index)) => {
                let value = index.parse::<usize>().ok().and_then(|index| values.get(index));
                value.map(|value| (value.span().start, value.get_ref()))
            }
            _ => None,
        };
        let Some((offset, value)) = value else { break };
        found = Some(line_of(text, offset));
        next = match value {
            DeValue::Table(table) => Some(Next::Table(table)),
            DeValue::Array(values) => Some(Next::Array(values)),
            _ => None,
        };
    }
    found
}

#[derive(Clone, Copy)]
enum Next<'t> {
    Table(&'t DeTable<'t>),
    Array(&'t [toml::Spanned<DeValue<'t>>]),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_line_on_which_they_are_written() {
        let text = "name = \"a\"\ngpus = [\n  { numa = 0 },\n  { numa = 1 },\n]\n[host]\ncpus = 1\n[[numa]]\nid = 0\n[[numa]]\nid = 0\n";
        for (path, line) in [
            ("name", Some(1)),
            ("gpus", Some(2)),
            ("gpus[1].numa", Some(4)),
            ("gpus[1].missing", Some(4)),
            ("gpus[7]", Some(2)),
            ("host.cpus", Some(7)),
            ("numa[1].id", Some(11)),
            ("nothing", None),
        ] {
            assert_eq!(line_of_field(text, path), line, "{path}");
        }
        assert_eq!(line_of_field("a = [", "a"), None);
    }
}
