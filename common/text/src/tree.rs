//! YAML text to trees that know their lines. Limits first: the text comes from people and the network.

use std::collections::BTreeMap;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

/// Most that one file may weigh after its aliases are expanded: one for each node, and one for each 32 bytes of text.
pub const MAX_WEIGHT: usize = 250_000;
/// Deepest nesting.
pub const MAX_DEPTH: usize = 64;
/// Most documents of one file.
pub const MAX_DOCUMENTS: usize = 10_000;

/// A value and the line it stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Line, from 1; 0 where the value does not come from a text.
    pub line: usize,
    /// The value.
    pub value: Tree,
}

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number: as written, and as a whole number where it is one.
    Number {
        /// As written.
        text: Arc<str>,
        /// Its value, where it is whole and fits.
        whole: Option<i64>,
    },
    /// Text.
    Text(Arc<str>),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order written.
    Map(Vec<Entry>),
}

/// An entry of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Key.
    pub key: Arc<str>,
    /// Line of the key.
    pub line: usize,
    /// Value.
    pub node: Node,
}

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl Node {
    /// A tree of a JSON value.
    #[must_use]
    pub fn from_json(value: &Value) -> Self {
        let value = match value {
            Value::Null => Tree::Null,
            Value::Bool(value) => Tree::Bool(*value),
            Value::Number(number) => {
                Tree::Number { text: Arc::from(number.to_string()), whole: number.as_i64() }
            }
            Value::String(text) => Tree::Text(Arc::from(text.as_str())),
            Value::Array(values) => Tree::List(values.iter().map(Self::from_json).collect()),
            Value::Object(map) => Tree::Map(
                map.iter()
                    .map(|(key, value)| Entry {
                        key: Arc::from(key.as_str()),
                        line: 0,
                        node: Self::from_json(value),
                    })
                    .collect(),
            ),
        };
        Self { line: 0, value }
    }

    /// The same value as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.value {
            Tree::Null => Value::Null,
            Tree::Bool(value) => Value::Bool(*value),
            Tree::Number { whole: Some(whole), .. } => Value::from(*whole),
            Tree::Number { text, whole: None } => text
                .parse()
                .ok()
                .and_then(Number::from_f64)
                .map_or_else(|| Value::String(text.to_string()), Value::Number),
            Tree::Text(text) => Value::String(text.to_string()),
            Tree::List(nodes) => Value::Array(nodes.iter().map(Self::to_json).collect()),
            Tree::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.to_string(), entry.node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// What a person would call it, shortened: `0`, `"text"`, `a list`.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Tree::Null => "nothing".to_owned(),
            Tree::Bool(value) => value.to_string(),
            Tree::Number { text, .. } => shorten(text),
            Tree::Text(text) => format!("{:?}", shorten(text)),
            Tree::List(_) => "a list".to_owned(),
            Tree::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// At most 60 characters of a text.
#[must_use]
pub fn shorten(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_owned()
    } else {
        text.chars().take(57).collect::<String>() + "..."
    }
}

/// All documents of a text. What can be read is returned beside the errors: a document that is wrong
/// does not hide the others.
#[must_use]
pub fn parse_documents(text: &str) -> (Vec<Node>, Vec<TreeError>) {
    // Editors of some systems begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    let mut budget = MAX_WEIGHT;
    for (first_line, chunk) in chunks(text) {
        let last_line = first_line + chunk.lines().count().max(1) - 1;
        let mut builder = Builder::new(first_line, last_line, &mut budget);
        if let Err(error) = builder.run(chunk) {
            errors.push(explained(error, first_line, chunk));
        }
        documents.append(&mut builder.documents);
        if documents.len() > MAX_DOCUMENTS {
            documents.truncate(MAX_DOCUMENTS);
            let message = format!("at most {MAX_DOCUMENTS} documents in one file: split it");
            errors.push(TreeError { line: first_line, message });
            break;
        }
    }
    (documents, errors)
}

/// The error on a line that is there, and with the fix where it is a usual slip.
fn explained(error: TreeError, first_line: usize, chunk: &str) -> TreeError {
    let lines: Vec<&str> = chunk.lines().collect();
    let last = first_line + lines.iter().rposition(|line| !line.trim().is_empty()).unwrap_or(0);
    let line = error.line.min(last);
    let own = lines.get(line - first_line).copied().unwrap_or_default();
    let TreeError { mut message, .. } = error;
    let fix = if own.contains("{{") {
        "; is it a template? render it first"
    } else if message.contains("tabs disallowed") || own.starts_with('\t') {
        "; indent with spaces"
    } else if message.contains("unknown anchor") {
        ": an &NAME must stand before its *NAME; put the text in quotes if it begins with *"
    } else if message.contains("quoted scalar") {
        "; is a quote left open?"
    } else if message.contains("flow mapping") || message.contains("flow sequence") {
        "; is a bracket left open?"
    } else {
        ""
    };
    message.push_str(fix);
    TreeError { line, message }
}

/// The text split at lines that begin a document, so that a syntax error ends one document only.
/// `---` at the start of a line cannot be part of a value.
fn chunks(text: &str) -> Vec<(usize, &str)> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut start_line = 1;
    let mut offset = 0;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let content = line.trim_end_matches(['\n', '\r']);
        let begins = content == "---" || content.starts_with("--- ") || content.starts_with("---\t");
        if begins && offset > start {
            chunks.push((start_line, &text[start..offset]));
            start = offset;
            start_line = at + 1;
        }
        offset += line.len();
    }
    chunks.push((start_line, &text[start..]));
    let is_content = |line: &str| {
        let line = line.trim();
        !(line.is_empty() || line.starts_with('#') || line.starts_with('%') || line == "---")
    };
    chunks.retain(|(_, chunk)| chunk.lines().any(is_content));
    chunks
}

/// A list or mapping that is being read.
struct Frame {
    line: usize,
    anchor: usize,
    weight: usize,
    body: FrameBody,
}

enum FrameBody {
    List(Vec<Node>),
    Map(MapFrame),
}

#[derive(Default)]
struct MapFrame {
    entries: Vec<Entry>,
    /// Keys and their lines.
    seen: BTreeMap<Arc<str>, usize>,
    /// The key whose value comes next, its line, and whether it is `<<`.
    key: Option<(Arc<str>, usize, bool)>,
    merged: Vec<Node>,
}

struct Builder<'b> {
    first_line: usize,
    last_line: usize,
    budget: &'b mut usize,
    frames: Vec<Frame>,
    anchors: BTreeMap<usize, (Node, usize)>,
    documents: Vec<Node>,
}

impl<'b> Builder<'b> {
    fn new(first_line: usize, last_line: usize, budget: &'b mut usize) -> Self {
        Self {
            first_line,
            last_line,
            budget,
            frames: Vec::new(),
            anchors: BTreeMap::new(),
            documents: Vec::new(),
        }
    }

    /// The parser puts what is empty at the end of a text behind it, and counts a carriage return alone as a line.
    fn line(&self, line: usize) -> usize {
        (line.max(1) + self.first_line - 1).min(self.last_line)
    }

    fn run(&mut self, chunk: &str) -> Result<(), TreeError> {
        self.refuse_control_characters(chunk)?;
        let mut parser = Parser::new_from_str(chunk);
        let mut ended = false;
        let mut last_line = self.first_line;
        while let Some(next) = parser.next_event() {
            let (event, span) = next.map_err(|error| TreeError {
                line: self.line(error.marker().line()),
                message: format!("not valid YAML: {}", error.info()),
            })?;
            ended = event == Event::StreamEnd;
            last_line = self.line(span.start.line());
            self.event(event, span)?;
        }
        // A document that is not whole must never pass as an empty one.
        if ended && self.frames.is_empty() {
            return Ok(());
        }
        let message = "not valid YAML: the text ends before this is complete; is a quote or bracket open?";
        Err(TreeError { line: last_line, message: message.to_owned() })
    }

    /// YAML forbids them; the parser takes a NUL for the end of the text.
    fn refuse_control_characters(&self, chunk: &str) -> Result<(), TreeError> {
        let forbidden = |byte: u8| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r');
        for (at, line) in chunk.split('\n').enumerate() {
            if let Some(byte) = line.bytes().find(|byte| forbidden(*byte)) {
                let message = format!("not valid YAML: the control character U+{byte:04X} is not allowed");
                return Err(TreeError { line: self.first_line + at, message });
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), TreeError> {
        let line = self.line(span.start.line());
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Alias(anchor) => {
                let (node, weight) = self.anchors.get(&anchor).cloned().ok_or_else(|| TreeError {
                    line,
                    message: "an alias to something that contains it, or is not there".to_owned(),
                })?;
                self.spend(weight, line)?;
                self.place(node, weight, 0, line)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let weight = 1 + text.len() / 32;
                self.spend(weight, line)?;
                if self.take_as_key(&text, style, anchor, line) {
                    return Ok(());
                }
                let node = Node { line, value: scalar(&text, style, tag.as_deref()) };
                self.place(node, weight, anchor, line)
            }
            Event::SequenceStart(anchor, _) => self.open(anchor, FrameBody::List(Vec::new()), line),
            Event::MappingStart(anchor, _) => self.open(anchor, FrameBody::Map(MapFrame::default()), line),
            Event::SequenceEnd | Event::MappingEnd => self.close(),
        }
    }

    fn spend(&mut self, weight: usize, line: usize) -> Result<(), TreeError> {
        *self.budget = self.budget.checked_sub(weight).ok_or_else(|| TreeError {
            line,
            message: "too large once its aliases are expanded: split the file, or use fewer aliases"
                .to_owned(),
        })?;
        Ok(())
    }

    fn open(&mut self, anchor: usize, body: FrameBody, line: usize) -> Result<(), TreeError> {
        self.spend(1, line)?;
        if self.frames.len() >= MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(TreeError { line, message });
        }
        if let Some(Frame { body: FrameBody::Map(MapFrame { key: None, .. }), .. }) = self.frames.last() {
            return Err(key_error(line));
        }
        self.frames.push(Frame { line, anchor, weight: 1, body });
        Ok(())
    }

    fn close(&mut self) -> Result<(), TreeError> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        let value = match frame.body {
            FrameBody::List(nodes) => Tree::List(nodes),
            FrameBody::Map(mut map) => {
                for node in std::mem::take(&mut map.merged) {
                    map.merge(node)?;
                }
                Tree::Map(map.entries)
            }
        };
        self.place(Node { line: frame.line, value }, frame.weight, frame.anchor, frame.line)
    }

    /// Takes a scalar as the key of the innermost mapping, where that waits for one.
    fn take_as_key(&mut self, text: &str, style: ScalarStyle, anchor: usize, line: usize) -> bool {
        let Some(Frame { body: FrameBody::Map(MapFrame { key: key @ None, .. }), .. }) =
            self.frames.last_mut()
        else {
            return false;
        };
        let is_merge = text == "<<" && style == ScalarStyle::Plain;
        *key = Some((Arc::from(text), line, is_merge));
        if anchor != 0 {
            let node = Node { line, value: Tree::Text(Arc::from(text)) };
            self.anchors.insert(anchor, (node, 1 + text.len() / 32));
        }
        true
    }

    /// Puts a finished value where it belongs.
    fn place(&mut self, node: Node, weight: usize, anchor: usize, line: usize) -> Result<(), TreeError> {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), weight));
        }
        let Some(frame) = self.frames.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        frame.weight += weight;
        match &mut frame.body {
            FrameBody::List(nodes) => nodes.push(node),
            FrameBody::Map(map) => map.add(node, line)?,
        }
        Ok(())
    }
}

fn key_error(line: usize) -> TreeError {
    TreeError { line, message: "a key must be plain text".to_owned() }
}

impl MapFrame {
    /// Takes the value of the key that was read last.
    fn add(&mut self, node: Node, line: usize) -> Result<(), TreeError> {
        match self.key.take() {
            None => return Err(key_error(line)),
            Some((_, _, true)) => self.merged.push(node),
            Some((key, line, false)) => {
                if let Some(first) = self.seen.insert(Arc::clone(&key), line) {
                    let message = format!(
                        "{:?} is given twice in one mapping, first at line {first}: remove one of them",
                        shorten(&key)
                    );
                    return Err(TreeError { line, message });
                }
                self.entries.push(Entry { key, line, node });
            }
        }
        Ok(())
    }

    /// `<<: *other`: what is not given here is taken from there.
    fn merge(&mut self, node: Node) -> Result<(), TreeError> {
        let line = node.line;
        let sources = match node.value {
            Tree::Map(source) => vec![source],
            Tree::List(nodes) => nodes
                .into_iter()
                .filter_map(|node| match node.value {
                    Tree::Map(source) => Some(source),
                    _ => None,
                })
                .collect(),
            _ => return Err(TreeError { line, message: "<<: must name a mapping".to_owned() }),
        };
        for entry in sources.into_iter().flatten() {
            if !self.seen.contains_key(&entry.key) {
                self.seen.insert(Arc::clone(&entry.key), entry.line);
                self.entries.push(entry);
            }
        }
        Ok(())
    }
}

/// A scalar by YAML's core schema: only plain ones can be something other than text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Tree {
    let tagged_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
    if style != ScalarStyle::Plain || tagged_text {
        return Tree::Text(Arc::from(text));
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Tree::Null,
        "true" | "True" | "TRUE" => return Tree::Bool(true),
        "false" | "False" | "FALSE" => return Tree::Bool(false),
        _ => {}
    }
    if let Some(whole) = whole_number(text) {
        return Tree::Number { text: Arc::from(text), whole };
    }
    if is_float(text) {
        return Tree::Number { text: Arc::from(text), whole: None };
    }
    Tree::Text(Arc::from(text))
}

/// `Some(None)`: a whole number that does not fit.
fn whole_number(text: &str) -> Option<Option<i64>> {
    if let Some(digits) = text.strip_prefix("0x") {
        let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        return valid.then(|| i64::from_str_radix(digits, 16).ok());
    }
    if let Some(digits) = text.strip_prefix("0o") {
        let valid = !digits.is_empty() && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        return valid.then(|| i64::from_str_radix(digits, 8).ok());
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| text.parse().ok())
}

fn is_float(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits(whole)
        && all_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && all_digits(exponent))
}
