//! The binaries of Kubernetes that tests start, and the tests that start them.

use anyhow::{Context, Result, bail};
use phalanx_kube_binaries::{Tool, Version, ensure};

use crate::{cargo, step};

/// Packages with tests against a real API server.
const PACKAGES: [&str; 3] = ["phalanx-devcluster", "phalanx-coordinator", "phalanx-cli"];
/// Those tests, by the names of their files and folders.
const TESTS: [&str; 3] = ["servers", "hollow", "kubernetes*"];

/// Builds what is missing in the cache, and says where each is.
pub(crate) fn build(arguments: &[&str]) -> Result<()> {
    let chosen = Chosen::read("kube-binaries", arguments, &["--nodes"])?;
    let mut tools = Tool::SERVERS.to_vec();
    if chosen.flags.contains(&"--nodes") {
        tools.extend(Tool::NODE);
    }
    for (_, path) in ensure(chosen.version, &tools)?.iter() {
        println!("{}", path.display());
    }
    Ok(())
}

/// Runs the tests that start a real API server, against that version.
pub(crate) fn test(arguments: &[&str]) -> Result<()> {
    let chosen = Chosen::read("test", arguments, &[])?;
    // As a step of its own: what fails here is not a failed test.
    ensure(chosen.version, &Tool::SERVERS)?;
    let mut command = cargo(&["test", "--no-fail-fast"])?;
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.args(TESTS.iter().flat_map(|test| ["--test", test]));
    step("the tests", command.env(Version::VARIABLE, chosen.version.name()))
}

#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    version: Version,
    flags: Vec<&'static str>,
}

impl Chosen {
    fn read(task: &str, arguments: &[&str], flags: &[&'static str]) -> Result<Self> {
        let mut chosen = Self { version: Version::of_environment()?, flags: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if *argument == "--kubernetes" {
                let text = rest.next().with_context(|| format!("{task}: --kubernetes needs a version"))?;
                chosen.version = text.parse()?;
            } else if let Some(flag) = flags.iter().find(|flag| *flag == argument) {
                chosen.flags.push(flag);
            } else {
                let known: Vec<&str> =
                    ["--kubernetes VERSION"].into_iter().chain(flags.iter().copied()).collect();
                bail!("{task}: {argument:?} is not one of {}", known.join(", "));
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// All Rust files under a folder, which need not be there.
    fn rust_files(folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let mut files = Vec::new();
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                files.extend(rust_files(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
        files
    }

    #[test]
    fn every_test_that_starts_servers_is_among_those_that_are_run() {
        let workspace = crate::workspace().unwrap();
        let mut found = Vec::new();
        for package in ["agent", "benches", "cli", "common", "coordinator", "kubernetes"] {
            let tests = workspace.join(package).join("tests");
            for path in rust_files(&tests) {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                // Its random numbers alone start nothing.
                if text.replace("phalanx_devcluster::random", "").contains("phalanx_devcluster::") {
                    let program = path.strip_prefix(&tests).unwrap().components().next().unwrap();
                    // Other folders are parts of several programs.
                    let folder = tests.join(program);
                    if folder.is_file() || folder.join("main.rs").is_file() {
                        found.push((package, program.as_os_str().to_string_lossy().into_owned()));
                    }
                }
            }
        }
        for (package, file) in &found {
            assert!(file.starts_with("kubernetes"), "{package}/tests/{file}: name it kubernetes_{file}");
            assert!(
                PACKAGES.contains(&format!("phalanx-{package}").as_str()),
                "{package} is not in PACKAGES"
            );
        }
        assert!(!found.is_empty(), "nothing was looked at");
    }

    #[test]
    fn a_wrong_argument_is_told_with_what_is_allowed() {
        let told = |arguments: &[&str]| {
            Chosen::read("test", arguments, &["--nodes"]).map_err(|error| error.to_string())
        };
        let old = Chosen { version: Version::V1_34, flags: vec!["--nodes"] };
        assert_eq!(told(&["--nodes", "--kubernetes", "1.34"]), Ok(old));
        assert_eq!(told(&["--kubernetes"]), Err("test: --kubernetes needs a version".to_owned()));
        assert_eq!(
            told(&["--quick"]),
            Err("test: \"--quick\" is not one of --kubernetes VERSION, --nodes".to_owned())
        );
        let error = told(&["--kubernetes", "1.30"]).unwrap_err();
        assert!(error.contains("1.34, 1.37"), "{error}");
    }
}
