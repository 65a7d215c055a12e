//! Rust source cut down to what the rules look at: comments, strings and character literals are
//! blanked, line breaks stay, so that positions still name lines.

/// Blanks comments and literals.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut output = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let length = literal_or_comment(&chars, at);
        if length == 0 {
            output.push(chars[at]);
            at += 1;
        } else {
            output.extend(chars[at..at + length].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at += length;
        }
    }
    output
}

/// Length of the comment or literal that starts at `at`; 0 where none does.
fn literal_or_comment(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    let after_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next == Some('/') => chars[at..].iter().position(|&c| c == '\n').unwrap_or(chars.len() - at),
        '/' if next == Some('*') => block_comment(chars, at),
        '"' => quoted(chars, at, '"'),
        '\'' if next == Some('\\') || chars.get(at + 2) == Some(&'\'') => quoted(chars, at, '\''),
        'r' | 'b' | 'c' if !after_word => prefixed(chars, at),
        _ => 0,
    }
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => {
                depth += 1;
                at += 2;
            }
            ('*', '/') => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at - start;
                }
            }
            _ => at += 1,
        }
    }
    chars.len() - start
}

fn quoted(chars: &[char], start: usize, quote: char) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1 - start,
            _ => at += 1,
        }
    }
    chars.len() - start
}

/// `b"…"`, `c"…"`, `r"…"`, `r#"…"#`, `br#"…"#`, `b'…'`.
fn prefixed(chars: &[char], start: usize) -> usize {
    let mut at = start;
    while matches!(chars.get(at), Some('b' | 'c' | 'r')) && at < start + 2 {
        at += 1;
    }
    let raw = chars[start..at].contains(&'r');
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    match chars.get(at + hashes) {
        Some('"') if raw => raw_string(chars, start, at + hashes + 1, hashes),
        Some('"') if hashes == 0 => at - start + quoted(chars, at, '"'),
        Some('\'') if hashes == 0 && chars[start..at] == ['b'] => at - start + quoted(chars, at, '\''),
        _ => 0,
    }
}

fn raw_string(chars: &[char], start: usize, body: usize, hashes: usize) -> usize {
    (body..chars.len())
        .find(|&at| {
            let tail = &chars[at + 1..];
            chars[at] == '"' && tail.len() >= hashes && tail[..hashes].iter().all(|&c| c == '#')
        })
        .map_or(chars.len(), |at| at + 1 + hashes)
        - start
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// A word or a single other character, with the line it stands on (from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its text.
    pub text: String,
    /// Its line.
    pub line: usize,
}

/// Words and marks of blanked source.
pub fn tokens(blanked: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in blanked.lines().enumerate() {
        let mut word = String::new();
        for character in line.chars().chain([' ']) {
            if is_word(character) {
                word.push(character);
                continue;
            }
            if !word.is_empty() {
                tokens.push(Token { text: std::mem::take(&mut word), line: number + 1 });
            }
            if !character.is_whitespace() {
                tokens.push(Token { text: character.to_string(), line: number + 1 });
            }
        }
    }
    tokens
}

/// Position of the token that closes the bracket at `open`; the last token where nothing closes it.
pub fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

/// True where the words and marks of `pattern` (separated by spaces) stand at `at`.
pub fn stands_at(tokens: &[Token], at: usize, pattern: &str) -> bool {
    pattern
        .split(' ')
        .enumerate()
        .all(|(offset, word)| tokens.get(at + offset).is_some_and(|token| token.text == word))
}

/// Spans of lines `(first, last)` of `#[cfg(test)] mod … { … }`.
pub fn test_modules(tokens: &[Token]) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    for at in 0..tokens.len() {
        if !stands_at(tokens, at, "# [ cfg ( test ) ]") {
            continue;
        }
        let mut item = at + 7;
        while stands_at(tokens, item, "#") {
            item = closing(tokens, item + 1) + 1;
        }
        if stands_at(tokens, item, "mod") && stands_at(tokens, item + 2, "{") {
            spans.push((tokens[at].line, tokens[closing(tokens, item + 2)].line));
        }
    }
    spans
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its `fn`.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

/// All functions that have a body.
pub fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut functions = Vec::new();
    for at in 0..tokens.len().saturating_sub(1) {
        let named = tokens[at + 1].text.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
        if tokens[at].text != "fn" || !named {
            continue;
        }
        let mut body = at + 2;
        while body < tokens.len() && !matches!(tokens[body].text.as_str(), "{" | ";") {
            let bracket = matches!(tokens[body].text.as_str(), "(" | "[");
            body = if bracket { closing(tokens, body) + 1 } else { body + 1 };
        }
        if tokens.get(body).is_some_and(|token| token.text == "{") {
            let last = tokens[closing(tokens, body)].line;
            let line = tokens[at].line;
            functions.push(Function { name: tokens[at + 1].text.clone(), line, lines: last + 1 - line });
        }
    }
    functions
}

/// A `mod name;` with the inline modules around it and its `#[path]`.
#[derive(Debug, PartialEq, Eq)]
pub struct ModuleDeclaration {
    /// Inline modules around it, outermost first, and its own name last.
    pub path: Vec<String>,
    /// Its `#[path = "…"]`.
    pub file: Option<String>,
}

/// All `mod name;` of a file. `original` is the source before blanking, for the `#[path]` texts.
pub fn module_declarations(original: &str) -> Vec<ModuleDeclaration> {
    let tokens = tokens(&blank(original));
    let lines: Vec<&str> = original.lines().collect();
    let mut around: Vec<(String, usize)> = Vec::new();
    let mut declarations = Vec::new();
    for at in 0..tokens.len() {
        around.retain(|(_, end)| *end > at);
        if !stands_at(&tokens, at, "mod") || at + 2 >= tokens.len() {
            continue;
        }
        let name = tokens[at + 1].text.clone();
        match tokens[at + 2].text.as_str() {
            "{" => around.push((name, closing(&tokens, at + 2))),
            ";" => {
                let mut path: Vec<String> = around.iter().map(|(name, _)| name.clone()).collect();
                path.push(name);
                let above = lines[..tokens[at].line].iter().rev().take(2);
                let file = above.filter_map(|line| path_attribute(line)).next();
                declarations.push(ModuleDeclaration { path, file });
            }
            _ => {}
        }
    }
    declarations
}

fn path_attribute(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("#[path = \"")?;
    rest.split_once('"').map(|(file, _)| file.to_owned())
}
