//! The rules as functions over text. Each gives a list of complaints, empty where all is well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::source::{self, Token};

/// Most lines of a file, tests not counted.
pub const MAX_FILE_LINES: usize = 500;
/// Most lines of a function, tests not counted.
pub const MAX_FUNCTION_LINES: usize = 70;

/// What a pure machine may depend on.
pub const PURE_DEPENDENCIES: [&str; 3] = ["phalanx-common", "serde", "thiserror"];

/// The file opens with `//!`.
pub fn opens_with_documentation(text: &str) -> Vec<String> {
    let opens = text.lines().next().is_some_and(|line| line.starts_with("//!") && line.len() > 5);
    if opens {
        Vec::new()
    } else {
        vec!["the first line must be a //! comment that says what the file is".to_owned()]
    }
}

fn is_in(spans: &[(usize, usize)], line: usize) -> bool {
    spans.iter().any(|&(first, last)| (first..=last).contains(&line))
}

/// Files and functions are short. Only for files that are not tests themselves.
pub fn sizes(text: &str) -> Vec<String> {
    let tokens = source::tokens(&source::blank(text));
    let tests = source::test_modules(&tokens);
    let lines = (1..=text.lines().count()).filter(|&line| !is_in(&tests, line)).count();
    let mut complaints = Vec::new();
    if lines > MAX_FILE_LINES {
        complaints.push(format!("{lines} lines without tests: at most {MAX_FILE_LINES}"));
    }
    for function in source::functions(&tokens) {
        if !is_in(&tests, function.line) && function.lines > MAX_FUNCTION_LINES {
            complaints.push(format!(
                "fn {} at line {} has {} lines: at most {MAX_FUNCTION_LINES}",
                function.name, function.line, function.lines
            ));
        }
    }
    complaints
}

/// Nothing is left unfinished.
pub fn unfinished(text: &str) -> Vec<String> {
    let tokens = source::tokens(&source::blank(text));
    let mut complaints = Vec::new();
    for (at, Token { text, line }) in tokens.iter().enumerate() {
        let macro_name = matches!(text.as_str(), "todo" | "unimplemented" | "dbg");
        if macro_name && source::stands_at(&tokens, at + 1, "!") {
            complaints.push(format!("line {line}: {text}! must not stand in the tree"));
        }
    }
    complaints
}

/// Queues without a bound: one that nobody empties takes all memory. Tests may have them.
pub fn unbounded_queues(text: &str) -> Vec<String> {
    let tokens = source::tokens(&source::blank(text));
    let tests = source::test_modules(&tokens);
    let mut complaints = Vec::new();
    for (at, Token { text, line }) in
        tokens.iter().enumerate().filter(|(_, token)| !is_in(&tests, token.line))
    {
        let names_one = matches!(
            text.as_str(),
            "unbounded" | "unbounded_channel" | "UnboundedSender" | "UnboundedReceiver"
        );
        if names_one || (text == "channel" && has_no_size(&tokens, at)) {
            complaints.push(format!("line {line}: a queue without a bound"));
        }
    }
    complaints
}

/// A call of `channel` without a size that is no `oneshot::channel`.
fn has_no_size(tokens: &[Token], at: usize) -> bool {
    let is_oneshot = at >= 3 && source::stands_at(tokens, at - 3, "oneshot");
    let called = (at + 1..tokens.len().min(at + 16)).find(|&next| source::stands_at(tokens, next, "("));
    let is_call = called.is_some_and(|open| {
        open == at + 1 || source::stands_at(tokens, at + 1, ":") && source::stands_at(tokens, at + 3, "<")
    });
    let is_definition = at >= 1 && source::stands_at(tokens, at - 1, "fn");
    !is_oneshot
        && !is_definition
        && is_call
        && called.is_some_and(|open| source::stands_at(tokens, open + 1, ")"))
}

/// True where a file keeps a queue that may grow, tests not counted.
pub fn keeps_a_queue(text: &str) -> bool {
    let tokens = source::tokens(&source::blank(text));
    let tests = source::test_modules(&tokens);
    let makes = |at: usize, token: &Token| match token.text.as_str() {
        "VecDeque" => source::stands_at(&tokens, at + 1, "<"),
        "channel" | "sync_channel" => {
            !(at >= 3 && ["oneshot", "watch"].iter().any(|kind| source::stands_at(&tokens, at - 3, kind)))
                && (source::stands_at(&tokens, at + 1, "(") || source::stands_at(&tokens, at + 3, "<"))
        }
        _ => false,
    };
    tokens.iter().enumerate().any(|(at, token)| !is_in(&tests, token.line) && makes(at, token))
}

/// Words that name a workplace or a registry instead of the project.
pub fn forbidden_words(text: &str) -> Vec<String> {
    // Written in halves, so that this file passes its own rule.
    let words = [
        ["/wo", "rk/"].concat(),
        ["/tmp/wo", "rk"].concat(),
        ["issue", " #"].concat(),
        ["crates.io", "/index"].concat(),
        ["index.", "crates.io"].concat(),
        ["static.", "crates.io"].concat(),
        ["pypi", ".org"].concat(),
        ["registry.npmjs", ".org"].concat(),
    ];
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for word in words.iter().filter(|word| lower.contains(word.as_str())) {
            complaints.push(format!("line {}: {word:?} must not stand in the tree", number + 1));
        }
    }
    complaints
}

/// Source files of one crate that no target reaches. `files` are paths relative to the crate with
/// their text; `manifest` is its Cargo.toml.
pub fn dead_files(manifest: &str, files: &BTreeMap<PathBuf, String>) -> Vec<PathBuf> {
    let mut reached = BTreeSet::new();
    let roots: Vec<PathBuf> = files.keys().filter(|file| is_target(manifest, file)).cloned().collect();
    for root in roots {
        reach(&root, true, files, &mut reached);
    }
    files.keys().filter(|file| !reached.contains(*file)).cloned().collect()
}

fn is_target(manifest: &str, file: &Path) -> bool {
    let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
    let named = manifest.contains(&format!("path = \"{}\"", file.display()));
    named
        || matches!(
            parts.as_slice(),
            ["build.rs"]
                | ["src", "lib.rs" | "main.rs"]
                | ["src", "bin", _]
                | ["src", "bin", _, "main.rs"]
                | ["tests" | "benches" | "examples", _]
                | ["tests" | "benches" | "examples", _, "main.rs"]
        )
}

fn reach(file: &Path, root: bool, files: &BTreeMap<PathBuf, String>, reached: &mut BTreeSet<PathBuf>) {
    let Some(text) = files.get(file) else { return };
    if !reached.insert(file.to_owned()) {
        return;
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let own_folder = root || file.file_name().is_some_and(|name| name == "mod.rs");
    let base = if own_folder { folder.to_owned() } else { file.with_extension("") };
    for declaration in source::module_declarations(text) {
        if let Some(path) = &declaration.file {
            reach(&normal(&folder.join(path)), false, files, reached);
            continue;
        }
        let stem = declaration.path.iter().fold(base.clone(), |path, name| path.join(name));
        for candidate in [stem.with_extension("rs"), stem.join("mod.rs")] {
            reach(&candidate, false, files, reached);
        }
    }
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

/// Names of one table of a Cargo.toml.
pub fn table_keys(manifest: &str, table: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == format!("[{table}]");
            let nested = line.strip_prefix(&format!("[{table}.")).and_then(|rest| rest.strip_suffix(']'));
            keys.extend(nested.map(str::to_owned));
        } else if inside && !line.starts_with('#') {
            let key = line.split(['.', '=', ' ']).next().unwrap_or("");
            keys.extend(Some(key.to_owned()).filter(|key| !key.is_empty() && line.contains('=')));
        }
    }
    keys
}

/// A pure machine depends on nothing that has a clock, a socket or a thread.
pub fn pure_dependencies(manifest: &str) -> Vec<String> {
    let tables = ["dependencies", "build-dependencies"];
    let names = tables.iter().flat_map(|table| table_keys(manifest, table));
    names
        .filter(|name| !PURE_DEPENDENCIES.contains(&name.as_str()))
        .map(|name| {
            format!("depends on {name}: a pure machine may use only {}", PURE_DEPENDENCIES.join(", "))
        })
        .collect()
}

/// Each name stands in the document, in backticks or as a link.
pub fn all_named<'a>(names: impl IntoIterator<Item = &'a str>, document: &str, where_: &str) -> Vec<String> {
    let stands =
        |name: &str| document.contains(&format!("`{name}`")) || document.contains(&format!("({name})"));
    names
        .into_iter()
        .filter(|name| !stands(name))
        .map(|name| format!("`{name}` is not in {where_}: add a line for it"))
        .collect()
}

/// Targets of a Markdown file's relative links, without their `#part`.
pub fn relative_links(markdown: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut fenced = false;
    for line in markdown.lines() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or("");
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                links.push(target.to_owned());
            }
        }
    }
    links
}

/// Files of the tree that a document names in backticks, with their folders: `common/src/ids.rs`.
pub fn named_files(markdown: &str) -> Vec<String> {
    let quoted = markdown.split('`').skip(1).step_by(2);
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let known_end =
        |text: &str| [".rs", ".toml", ".txt", ".md", ".yaml"].iter().any(|end| text.ends_with(end));
    quoted
        .filter(|text| text.contains('/') && text.chars().all(letter) && known_end(text))
        .map(str::to_owned)
        .collect()
}

/// Codes of reasons in the source of the deciding machine: `=> "Code"`.
pub fn reason_codes(source: &str) -> Vec<String> {
    let mut codes = Vec::new();
    for line in source.lines() {
        let quoted = line.split_once("=> \"").and_then(|(_, rest)| rest.split_once('"'));
        if let Some((code, _)) = quoted.filter(|(code, _)| is_code(code)) {
            codes.push(code.to_owned());
        }
    }
    codes
}

fn is_code(text: &str) -> bool {
    text.len() > 3
        && text.chars().all(|c| c.is_ascii_alphanumeric())
        && text.starts_with(|c: char| c.is_ascii_uppercase())
}
