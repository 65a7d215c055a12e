//! `phalanx apply`, and reading the files it names.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::arguments::Apply;
use crate::client::{Applied, Client};
use crate::cluster::plain;
use crate::failure::{Failure, Format, print_json, print_text};

/// Largest text that is sent; the server's limit.
const MAX_TEXT_BYTES: u64 = 4 << 20;

/// A text with the name diagnostics give it.
#[derive(Debug)]
pub struct Source {
    /// Path as the user wrote it, `<stdin>` for standard input.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// What files, folders and standard input hold.
#[derive(Debug, Default)]
pub struct Sources {
    /// The texts.
    pub texts: Vec<Source>,
    /// What cannot be read, by name.
    pub unreadable: Vec<Failure>,
}

/// Applies files one after another. A wrong file or document never stops the others.
///
/// # Errors
/// A file cannot be read, the server cannot be reached, or a document was refused.
pub fn run(client: &Client, options: &Apply, format: Format) -> Result<(), Failure> {
    let mut answers = Vec::new();
    let sources = read_sources(&options.files);
    sources.unreadable.iter().for_each(|failure| failure.print(format));
    for source in sources.texts {
        let applied = client.apply(&source.name, &source.text)?;
        if format == Format::Text {
            print_applied(&applied);
        }
        answers.push(applied);
    }
    if format == Format::Json {
        print_json(&answers)?;
    }
    if !sources.unreadable.is_empty() {
        return Err(Failure::Reported);
    }
    check_objects(&options.files, &answers)?;
    if answers.iter().all(|applied| applied.ok) { Ok(()) } else { Err(Failure::Reported) }
}

/// Fails where all that was named holds nothing: the user meant another file.
///
/// # Errors
/// There is no object, and nothing that was reported instead.
pub fn check_objects(files: &[PathBuf], answers: &[Applied]) -> Result<(), Failure> {
    if answers.iter().any(|answer| answer.objects > 0 || !answer.diagnostics.is_empty()) {
        return Ok(());
    }
    let names: Vec<String> = files.iter().map(|file| format!("-f {}", file.display())).collect();
    Err(Failure::new(format!("{}: no objects in it", names.join(" "))))
}

fn print_applied(applied: &Applied) {
    for object in &applied.applied {
        print_text(&format!("{} {}", object.title(), object.change));
    }
    for diagnostic in &applied.diagnostics {
        eprintln!("{diagnostic}");
    }
}

/// Reads all files, folders and standard input that the user named.
#[must_use]
pub fn read_sources(paths: &[PathBuf]) -> Sources {
    let mut sources = Sources::default();
    let mut take = |read: Result<Source, Failure>| match read {
        Ok(text) => sources.texts.push(text),
        Err(failure) => sources.unreadable.push(failure),
    };
    for path in paths {
        if path.as_os_str() == "-" {
            take(limited("<stdin>", std::io::stdin().lock()));
        } else if path.is_dir() {
            match manifests_in(path) {
                Ok(files) => files.iter().for_each(|file| take(read_file(file))),
                Err(failure) => take(Err(failure)),
            }
        } else {
            take(read_file(path));
        }
    }
    sources
}

fn manifests_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("-f {}: {}", folder.display(), plain(&error)));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let manifest = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if manifest && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Failure::new(format!("-f {}: no .yaml, .yml or .json file in it", folder.display())));
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> Result<Source, Failure> {
    let name = path.display().to_string();
    let file = fs::File::open(path).map_err(|error| Failure::new(format!("-f {name}: {}", plain(&error))))?;
    limited(&name, file)
}

fn limited(name: &str, reader: impl Read) -> Result<Source, Failure> {
    let mut bytes = Vec::new();
    reader
        .take(MAX_TEXT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(format!("-f {name}: {}", plain(&error))))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        let limit = MAX_TEXT_BYTES >> 20;
        return Err(Failure::new(format!("-f {name}: more than {limit} MiB: split it into several files")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Failure::new(format!(
            "-f {name}: line {line} is not UTF-8 text: is it a YAML or JSON file? save it as UTF-8"
        ))
    })?;
    Ok(Source { name: name.to_owned(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(failure: Failure) -> String {
        let Failure::Message(text) = failure else { panic!("no text") };
        text
    }

    #[test]
    fn folders_give_their_manifests_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.yml", "a.yaml", "notes.md", "c.json"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let sources = read_sources(&[folder.path().to_owned()]).texts;
        let texts: Vec<&str> = sources.iter().map(|source| source.text.as_str()).collect();
        assert_eq!(texts, ["a.yaml", "b.yml", "c.json"]);
    }

    #[test]
    fn unreadable_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let failure = |path: PathBuf| text_of(read_sources(&[path]).unreadable.remove(0));
        assert!(failure(path("no.yaml")).ends_with("no.yaml: no such file or directory"));
        assert!(failure(folder.path().to_owned()).ends_with("no .yaml, .yml or .json file in it"));
        fs::write(path("image.png"), b"a\n\xff").unwrap();
        assert!(failure(path("image.png")).contains("image.png: line 2 is not UTF-8 text: is it a YAML"));
        fs::write(path("large.yaml"), vec![b' '; (4 << 20) + 1]).unwrap();
        assert!(failure(path("large.yaml")).contains("more than 4 MiB"));
    }
}
