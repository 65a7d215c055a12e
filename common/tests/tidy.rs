//! Tidy: rules about the tree itself that no compiler checks. The first half looks at the workspace,
//! the second shows of each rule that it can fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files under `folder` with one of these extensions; build output and hidden folders left out,
/// but for `.ci` and `.cargo`. In a worktree `.git` is a file, and names a folder outside the tree.
fn files_under(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() || name == "target" || name == ".git" {
                continue;
            }
            if path.is_dir() {
                if !name.starts_with('.') || [".ci", ".cargo"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if extensions.contains(&path.extension().unwrap_or_default().to_str().unwrap_or("")) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "nothing found under {}", folder.display());
    found
}

/// Fails with one line for each complaint.
fn assert_none(complaints: impl IntoIterator<Item = (PathBuf, Vec<String>)>) {
    let root = workspace();
    let lines: Vec<String> = complaints
        .into_iter()
        .flat_map(|(path, complaints)| {
            let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
            complaints.into_iter().map(move |complaint| format!("{name}: {complaint}"))
        })
        .collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

fn check_rust(rule: impl Fn(&Path, &str) -> Vec<String>) {
    assert_none(files_under(&workspace(), &["rs"]).into_iter().map(|path| {
        let complaints = rule(&path, &read(&path));
        (path, complaints)
    }));
}

fn is_test_file(path: &Path) -> bool {
    let inside = path.strip_prefix(workspace()).unwrap();
    let mut folders = inside.iter().rev().skip(1);
    folders.any(|part| part == "tests" || part == "benches" && inside.starts_with("benches/benches"))
}

#[test]
fn every_file_says_what_it_is() {
    check_rust(|_, text| rules::opens_with_documentation(text));
}

#[test]
fn files_and_functions_are_short() {
    check_rust(|path, text| if is_test_file(path) { Vec::new() } else { rules::sizes(text) });
}

#[test]
fn nothing_is_left_unfinished() {
    check_rust(|_, text| rules::unfinished(text));
}

/// Source of the programs; the machines inside them have no channels.
fn shells() -> Vec<PathBuf> {
    let folders = ["coordinator/src", "agent/src", "common/transport/src", "cli/src"];
    folders.iter().flat_map(|folder| files_under(&workspace().join(folder), &["rs"])).collect()
}

#[test]
fn no_queue_is_without_bound() {
    assert_none(shells().into_iter().map(|path| {
        let complaints = rules::unbounded_queues(&read(&path));
        (path, complaints)
    }));
}

#[test]
fn every_queue_is_listed_with_its_bound() {
    let root = workspace();
    let architecture = read(&root.join("ARCHITECTURE.md"));
    let section = architecture.split("\n## ").find(|part| part.starts_with("Queues and their bounds"));
    let section = section.unwrap_or_else(|| panic!("ARCHITECTURE.md lists no queues"));
    let keepers: Vec<PathBuf> =
        shells().into_iter().filter(|path| rules::keeps_a_queue(&read(path))).collect();
    assert!(keepers.len() > 8, "{keepers:?}");
    assert_none(keepers.into_iter().map(|path| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let complaint = format!("keeps a queue that ARCHITECTURE.md does not list as `{name}`");
        let complaints = if section.contains(&format!("`{name}`")) { Vec::new() } else { vec![complaint] };
        (path, complaints)
    }));
}

#[test]
fn no_word_names_a_workplace() {
    let extensions = ["rs", "toml", "md", "yaml", "txt", "json", "sh", ""];
    assert_none(files_under(&workspace(), &extensions).into_iter().map(|path| {
        let complaints = rules::forbidden_words(&String::from_utf8_lossy(&fs::read(&path).unwrap()));
        (path, complaints)
    }));
}

#[test]
fn every_source_file_belongs_to_a_target() {
    let manifests = files_under(&workspace(), &["toml"]);
    let crates: Vec<&Path> = manifests
        .iter()
        .filter(|path| path.ends_with("Cargo.toml"))
        .map(|path| path.parent().unwrap())
        .filter(|folder| *folder != workspace())
        .collect();
    assert!(crates.len() > 10, "{crates:?}");
    // A crate may lie inside another one's folder (agent/core in agent): a file belongs to the deepest.
    let owner = |file: &Path| {
        let around = crates.iter().filter(|folder| file.starts_with(folder));
        around.max_by_key(|folder| folder.components().count()).copied()
    };
    assert_none(crates.iter().map(|folder| {
        let files: BTreeMap<PathBuf, String> = files_under(folder, &["rs"])
            .into_iter()
            .filter(|file| owner(file) == Some(folder))
            .map(|file| (file.strip_prefix(folder).unwrap().to_owned(), read(&file)))
            .collect();
        let dead = rules::dead_files(&read(&folder.join("Cargo.toml")), &files);
        let lines = dead.iter().map(|file| format!("{} is reached by no target", file.display()));
        (folder.to_path_buf(), lines.collect())
    }));
}

#[test]
fn both_machines_stay_pure() {
    let root = workspace();
    assert_none(["coordinator/core/Cargo.toml", "agent/core/Cargo.toml"].map(|manifest| {
        let path = root.join(manifest);
        let complaints = rules::pure_dependencies(&read(&path));
        (path, complaints)
    }));
}

#[test]
fn decisions_and_dependencies_are_written_down() {
    let folder = workspace().join("docs/adr");
    let records: Vec<String> = files_under(&folder, &["md"])
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .filter(|name| name != "README.md")
        .collect();
    let index = read(&folder.join("README.md"));
    let listed = rules::all_named(records.iter().map(String::as_str), &index, "the list of decisions");
    let manifest = read(&workspace().join("Cargo.toml"));
    let own = |name: &String| manifest.contains(&format!("\n{name} = {{ path = "));
    let dependencies = rules::table_keys(&manifest, "workspace.dependencies");
    let foreign: Vec<&str> = dependencies.iter().filter(|name| !own(name)).map(String::as_str).collect();
    assert!(foreign.len() > 20, "{foreign:?}");
    let named = rules::all_named(foreign, &read(&folder.join("dependencies.md")), "dependencies.md");
    assert_none([(folder.join("README.md"), listed), (folder.join("dependencies.md"), named)]);
}

#[test]
fn every_reason_is_explained() {
    let codes = rules::reason_codes(&read(&workspace().join("coordinator/core/src/reason.rs")));
    assert!(codes.len() >= 14, "{codes:?}");
    let path = workspace().join("docs/reasons.md");
    let complaints = rules::all_named(codes.iter().map(String::as_str), &read(&path), "this page");
    assert_none([(path, complaints)]);
}

#[test]
fn links_between_documents_lead_somewhere() {
    assert_none(files_under(&workspace(), &["md"]).into_iter().map(|path| {
        let folder = path.parent().unwrap().to_owned();
        let links = rules::relative_links(&read(&path));
        let broken = links.into_iter().filter(|link| !folder.join(link).exists());
        (path, broken.map(|link| format!("link to {link} leads nowhere")).collect())
    }));
}

#[test]
fn files_that_documents_name_are_there() {
    let root = workspace();
    assert_none(files_under(&root, &["md"]).into_iter().map(|path| {
        let gone = rules::named_files(&read(&path)).into_iter().filter(|name| !root.join(name).exists());
        (path, gone.map(|name| format!("names {name}, which is not there")).collect())
    }));
}

mod rules_can_fail {
    //! Each rule on text that breaks it, beside text that does not.

    use super::*;

    #[test]
    fn blanking_knows_comments_strings_and_lifetimes() {
        let text = "a /* { /* { */ */ b \"{\\\"\" c r#\"{\"#  '{' '\\'' &'a str b\"{\" b'{' // {\nd";
        let words: Vec<String> =
            source::tokens(&source::blank(text)).into_iter().map(|token| token.text).collect();
        assert_eq!(words, ["a", "b", "c", "&", "'", "a", "str", "d"]);
        assert_eq!(source::blank(text).lines().count(), 2);
    }

    #[test]
    fn documentation() {
        assert!(rules::opens_with_documentation("//! What this is.\nfn a() {}\n").is_empty());
        for bad in ["", "fn a() {}\n", "// Not this.\n", "\n//! Late.\n", "//!\n"] {
            assert_eq!(rules::opens_with_documentation(bad).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn long_files_and_functions() {
        let function = |lines: usize| format!("fn long() {{\n{}}}\n", "    call();\n".repeat(lines - 2));
        assert!(rules::sizes(&function(70)).is_empty());
        assert_eq!(rules::sizes(&function(71)), ["fn long at line 1 has 71 lines: at most 70"]);
        assert!(rules::sizes(&"\n".repeat(500)).is_empty());
        assert_eq!(rules::sizes(&"\n".repeat(501)), ["501 lines without tests: at most 500"]);
        let tests = format!("#[cfg(test)]\n#[allow(unused)]\nmod tests {{\n{}}}\n", function(600));
        assert!(rules::sizes(&tests).is_empty());
        assert_eq!(rules::sizes(&tests.replace("#[cfg(test)]\n", "")).len(), 2);
        let trait_method = "trait A {\n    fn b(&self) -> [u8; 2];\n    fn c(&self) {}\n}\n";
        let found = source::functions(&source::tokens(&source::blank(trait_method)));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].line, found[0].lines), ("c", 3, 1));
    }

    #[test]
    fn unfinished_code() {
        for bad in ["fn a() { todo!() }", "fn a() { unimplemented!(\"b\") }", "fn a() { dbg!(1); }"] {
            assert_eq!(rules::unfinished(bad).len(), 1, "{bad}");
        }
        assert!(rules::unfinished("// todo!()\nconst A: &str = \"dbg!(1)\"; fn todo() {}").is_empty());
    }

    #[test]
    fn queues() {
        for bad in [
            "let (a, b) = mpsc::unbounded_channel();",
            "use tokio::sync::mpsc::UnboundedSender;",
            "let (a, b) = std::sync::mpsc::channel();",
            "let (a, b) = channel::<Vec<u8>>();",
        ] {
            assert_eq!(rules::unbounded_queues(bad).len(), 1, "{bad}");
        }
        for good in [
            "let (a, b) = oneshot::channel();",
            "let (a, b) = oneshot::channel::<()>();",
            "let (a, b) = mpsc::channel(4);",
            "let (a, b) = watch::channel::<Term>(Term::default());",
            "#[cfg(test)]\nmod tests {\n    fn a() { channel(); }\n}\n",
            "fn channel() {} // unbounded",
        ] {
            assert!(rules::unbounded_queues(good).is_empty(), "{good}");
        }
        for keeper in
            ["waiting: VecDeque<Incoming>,", "mpsc::channel(4)", "mpsc::channel::<A>(4)", "sync_channel(1)"]
        {
            assert!(rules::keeps_a_queue(keeper), "{keeper}");
        }
        for other in [
            "oneshot::channel::<()>()",
            "watch::channel(1)",
            "use std::collections::VecDeque;",
            "channels(a)",
        ] {
            assert!(!rules::keeps_a_queue(other), "{other}");
        }
    }

    #[test]
    fn words() {
        assert_eq!(rules::forbidden_words(&["see /wo", "rk/main"].concat()).len(), 1);
        assert_eq!(rules::forbidden_words(&["x\nIssue", " #3"].concat()).len(), 1);
        assert!(rules::forbidden_words("a framework of work / and issues").is_empty());
    }

    #[test]
    fn dead_code_files() {
        let files: BTreeMap<PathBuf, String> = [
            ("src/lib.rs", "mod a;\n// mod dead;\nmod inline { mod deep; }\nmod b;"),
            ("src/a.rs", "#[path = \"other.rs\"]\nmod c;\nmod inner;"),
            ("src/a/inner.rs", ""),
            ("src/b/mod.rs", "mod d;"),
            ("src/b/d.rs", ""),
            ("src/other.rs", ""),
            ("src/inline/deep.rs", ""),
            ("src/dead.rs", "mod also_dead;"),
            ("src/dead/also_dead.rs", ""),
            ("src/tool.rs", ""),
            ("tests/outside.rs", "mod helper;"),
            ("tests/helper/mod.rs", ""),
            ("tests/lost/helper.rs", ""),
        ]
        .map(|(path, text)| (PathBuf::from(path), text.to_owned()))
        .into();
        let dead = rules::dead_files("[[bin]]\npath = \"src/tool.rs\"\n", &files);
        let expected = ["src/dead/also_dead.rs", "src/dead.rs", "tests/lost/helper.rs"];
        assert_eq!(dead, expected.map(PathBuf::from));
    }

    #[test]
    fn impure_machines() {
        let pure = "[dependencies]\nserde.workspace = true\n[dev-dependencies]\nproptest = \"1\"\n";
        assert!(rules::pure_dependencies(pure).is_empty());
        for bad in ["tokio.workspace = true", "tokio = \"1\"", "tokio = { version = \"1\" }"] {
            assert_eq!(rules::pure_dependencies(&format!("[dependencies]\n{bad}\n")).len(), 1, "{bad}");
        }
        assert_eq!(rules::pure_dependencies("[dependencies.tokio]\nversion = \"1\"\n").len(), 1);
    }

    #[test]
    fn missing_names_and_broken_links() {
        let document =
            "| `serde` | why |\n[0001](0001-a.md)\n```\n[x](not-a-link)\n```\n[r](https://a.b/c) [s](#d)";
        assert!(rules::all_named(["serde", "0001-a.md"], document, "it").is_empty());
        assert_eq!(rules::all_named(["serde_json"], document, "it").len(), 1);
        assert_eq!(rules::relative_links(document), ["0001-a.md"]);
        let named = "`a/b.rs` `b.rs` `a/*.rs` ```\nx\n``` a/c.rs `docs/d.md` `cargo run -p a/b.rs`";
        assert_eq!(rules::named_files(named), ["a/b.rs", "docs/d.md"]);
    }

    #[test]
    fn reasons() {
        let source = "Self::A { .. } => \"NoRoom\",\nSelf::B => \"not a code\",\nSelf::C => \"x\",";
        assert_eq!(rules::reason_codes(source), ["NoRoom"]);
    }
}
