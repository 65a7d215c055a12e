//! Where in a file the scheduler's configuration is: the file itself, or a key of a ConfigMap.

use phalanx_text::tree::{Entry, Node, Tree, TreeError, parse_documents, shorten};

use super::Problem;

/// Key under which Volcano's installation keeps it.
const KEY: &str = "volcano-scheduler.conf";
const EXPECTED: &str = "expected the configuration of Volcano's scheduler (actions and tiers), or the ConfigMap that \
                        holds it (data key volcano-scheduler.conf)";

/// A configuration in its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its fields.
    pub entries: Vec<Entry>,
    /// Line on which it begins.
    pub line: usize,
    /// Lines of the file before the first of the configuration: what is added to the lines of its nodes.
    pub before: usize,
}

/// Finds the one configuration of a file.
///
/// # Errors
/// It is no YAML, or holds none, or several.
pub fn find(text: &str) -> Result<Found, Vec<Problem>> {
    let documents = documents(text, 0)?;
    let mut found = Vec::new();
    let mut others = Vec::new();
    for document in &documents {
        look_at(document, text, &mut found, &mut others)?;
    }
    if found.len() > 1 {
        let lines: Vec<String> = found.iter().map(|found| found.line.to_string()).collect();
        let message =
            format!("more than one configuration, at lines {}: leave one of them", lines.join(", "));
        return Err(vec![Problem::new(0, message)]);
    }
    found.pop().ok_or_else(|| {
        if others.is_empty() {
            vec![Problem::new(0, format!("nothing is in it: {EXPECTED}"))]
        } else {
            others
        }
    })
}

/// All documents of a text that stands after so many lines of the file.
fn documents(text: &str, before: usize) -> Result<Vec<Node>, Vec<Problem>> {
    let (documents, errors) = parse_documents(text);
    if errors.is_empty() {
        return Ok(documents);
    }
    let problem = |error: TreeError| Problem::new(error.line + before, error.message);
    Err(errors.into_iter().map(problem).collect())
}

fn look_at(
    document: &Node,
    text: &str,
    found: &mut Vec<Found>,
    others: &mut Vec<Problem>,
) -> Result<(), Vec<Problem>> {
    let line = document.line;
    let Tree::Map(entries) = &document.value else {
        if document.value != Tree::Null {
            others.push(Problem::new(line, format!("is {}: {EXPECTED}", document.describe())));
        }
        return Ok(());
    };
    match field(entries, "kind").map(|kind| &kind.value) {
        None if entries.iter().any(|entry| matches!(&*entry.key, "actions" | "tiers" | "configurations")) => {
            found.push(Found { entries: entries.clone(), line, before: 0 });
        }
        None => {
            let keys: Vec<&str> = entries.iter().take(5).map(|entry| &*entry.key).collect();
            others.push(Problem::new(
                line,
                format!("has neither actions nor tiers, only {}: {EXPECTED}", keys.join(", ")),
            ));
        }
        Some(Tree::Text(kind)) if &**kind == "ConfigMap" => match in_config_map(entries, line, text) {
            Ok(inside) => found.push(inside?),
            Err(problem) => others.push(problem),
        },
        // As `kubectl get -o yaml` prints several objects.
        Some(Tree::Text(kind)) if kind.ends_with("List") => {
            if let Some(Tree::List(items)) = field(entries, "items").map(|items| &items.value) {
                for item in items {
                    look_at(item, text, found, others)?;
                }
            }
        }
        Some(_) => {
            let kind = field(entries, "kind").map(Node::describe).unwrap_or_default();
            others.push(Problem::new(line, format!("kind: {kind}: {EXPECTED}")));
        }
    }
    Ok(())
}

/// The configuration in a ConfigMap. The outer error: it holds none; the inner one: what it holds is wrong.
#[allow(clippy::type_complexity, reason = "two kinds of failure, told apart by the caller alone")]
fn in_config_map(entries: &[Entry], line: usize, text: &str) -> Result<Result<Found, Vec<Problem>>, Problem> {
    let Some(Tree::Map(data)) = field(entries, "data").map(|data| &data.value) else {
        return Err(Problem::new(line, format!("data: a ConfigMap without it: {EXPECTED}")));
    };
    let mut files = data.iter().filter(|entry| entry.key.ends_with(".conf"));
    let named = data
        .iter()
        .find(|entry| &*entry.key == KEY)
        .or_else(|| files.next().filter(|_| files.next().is_none()));
    let Some(entry) = named else {
        let keys: Vec<&str> = data.iter().map(|entry| &*entry.key).collect();
        let message = format!("data: has no key {KEY}, only {}: {EXPECTED}", shorten(&keys.join(", ")));
        return Err(Problem::new(line, message));
    };
    let Tree::Text(inside) = &entry.node.value else {
        let message = format!(
            "data.{}: must be text, found {}; write `{}: |`",
            entry.key,
            entry.node.describe(),
            entry.key
        );
        return Err(Problem::new(entry.line, message));
    };
    let before = lines_before(text, entry.line);
    Ok(found_inside(inside, entry, before))
}

fn found_inside(inside: &str, entry: &Entry, before: usize) -> Result<Found, Vec<Problem>> {
    let documents = documents(inside, before)?;
    match documents.as_slice() {
        [Node { value: Tree::Map(entries), line }] => {
            Ok(Found { entries: entries.clone(), line: line + before, before })
        }
        [] => Err(vec![Problem::new(entry.line, format!("data.{}: is empty: {EXPECTED}", entry.key))]),
        [other] => {
            let message = format!("data.{}: is {}: {EXPECTED}", entry.key, other.describe());
            Err(vec![Problem::new(entry.line, message)])
        }
        _ => Err(vec![Problem::new(
            entry.line,
            format!("data.{}: has several documents: leave one", entry.key),
        )]),
    }
}

/// Lines of the file before the text of a key. Only a block scalar has lines of its own: the lines of a text in quotes
/// all stand on that of its key, and are counted from there.
fn lines_before(text: &str, line: usize) -> usize {
    let own = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let value = own.split_once(':').map(|(_, value)| value.trim()).unwrap_or_default();
    if value.starts_with(['|', '>']) { line } else { line.saturating_sub(1) }
}

/// A field of a mapping.
pub(super) fn field<'n>(entries: &'n [Entry], name: &str) -> Option<&'n Node> {
    entries.iter().find(|entry| &*entry.key == name).map(|entry| &entry.node)
}
