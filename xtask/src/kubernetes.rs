//! The binaries of Kubernetes that tests start, and the tests that start them.

use anyhow::{Context, Result, bail};
use phalanx_kube_binaries::{Tool, Version, ensure};

use crate::{cargo, step};

/// Packages with tests against a real API server. Those of such a package that need none run too.
const PACKAGES: [&str; 5] =
    ["phalanx-devcluster", "phalanx-kubernetes", "phalanx-agent", "phalanx-coordinator", "phalanx-cli"];

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

/// Runs the tests of all packages that start a real API server, against that version.
pub(crate) fn test(arguments: &[&str]) -> Result<()> {
    let chosen = Chosen::read("test", arguments, &[])?;
    // As a step of its own: what fails here is not a failed test.
    ensure(chosen.version, &Tool::SERVERS)?;
    let mut command = cargo(&["test"])?;
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
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
    use super::*;

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
