//! Project tasks: `cargo demo`, `cargo xtask sim --seeds N`, `cargo xtask chaos`, `cargo xtask check`,
//! `cargo xtask crds`, `cargo xtask kube-binaries`, `cargo xtask test`.

mod kubernetes;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

// Read by hand: clap would double the time until the first line of the demo shows.
const USAGE: &str = "\
Usage: cargo xtask TASK

  demo [ARGUMENTS]   build and run the demo; ARGUMENTS of `phalanx demo`, for example --keep
  sim [ARGUMENTS]    run the simulation over 2,000 seeds; ARGUMENTS of phalanx-sim, for example
                     --seeds 1 --seed K, as a failure prints it
  chaos [--rounds N] [--seed S]
                     real processes: random gangs, random faults, 20 rounds; --rounds 1 --seed K repeats
                     the round that failed
  chaos --measure [--rounds N]
                     how long a coordinator's death keeps a gang waiting
  chaos --kubernetes [--rounds N] [--seed S]
                     on a real API server: leaders that are killed, stopped, cut off and told to end at
                     each phase of a gang of 64 pods, 20 rounds
  crds               write deploy/crds from the types in kubernetes/src/crds
  kube-binaries [--kubernetes VERSION] [--nodes]
                     build etcd, kube-apiserver and what else the tests start, once, into a cache outside
                     the tree, and say where they are; --nodes adds kubelet and containerd
  test [--kubernetes VERSION]
                     the tests that need a real API server; VERSION is 1.34 or 1.37
  check              formatting, clippy, tidy, and cargo-deny where it is installed";

fn main() -> ExitCode {
    run_task().map_or_else(
        |error| {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run_task() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["demo", arguments @ ..] => demo(arguments),
        ["sim"] => simulate(&["--seeds", "2000"]),
        ["sim", arguments @ ..] => simulate(arguments),
        ["chaos", arguments @ ..] => chaos(arguments),
        ["crds"] => crds(),
        ["kube-binaries", arguments @ ..] => kubernetes::build(arguments),
        ["test", arguments @ ..] => kubernetes::test(arguments),
        ["check"] => check(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [] => bail!("no task is named\n{USAGE}"),
        [task, ..] => {
            bail!("task {task:?} is not one of demo, sim, chaos, crds, kube-binaries, test, check\n{USAGE}")
        }
    }
}

fn workspace() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("xtask has no folder above it")?.to_owned())
}

/// The cargo that runs us, in the workspace's folder.
fn cargo(arguments: &[&str]) -> Result<Command> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace()?);
    // Cargo tells us about our own package. A build script that sees these (ring's) takes them for a
    // change and builds again, here and in the next build from a shell.
    let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told)) {
        command.env_remove(name);
    }
    Ok(command)
}

fn run(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// Runs a step and fails with its name where it fails.
fn step(name: &str, command: &mut Command) -> Result<()> {
    let status = run(command)?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}

fn demo(arguments: &[&str]) -> Result<()> {
    let packages = ["phalanx-coordinator", "phalanx-agent", "phalanx-cli", "mock-nvml"];
    let mut build = cargo(&["build"])?;
    if !std::io::stderr().is_terminal() {
        build.arg("--quiet");
    }
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    eprintln!("building the demo (the first time takes a few minutes) ...");
    step("the build", &mut build)?;
    // We were built into the folder that the build has just filled.
    let phalanx =
        std::env::current_exe().context("cannot find the running program")?.with_file_name("phalanx");
    let mut command = Command::new(phalanx);
    command.arg("demo").arg("--root").arg(workspace()?).args(arguments);
    let status = run(&mut command)?;
    std::process::exit(status.code().unwrap_or(1));
}

fn simulate(arguments: &[&str]) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--package", "phalanx-sim", "--"])?;
    step("the simulation", command.args(arguments))
}

/// Runs one of the tests that are too long for every day, with what it is told.
fn chaos(arguments: &[&str]) -> Result<()> {
    let (chaos, settings) = chaos_settings(arguments)?;
    let Chaos { package, file, test } = chaos;
    if chaos == Chaos::KUBERNETES {
        // As a step of its own: what fails here is not a failed round.
        kubernetes::build(&[])?;
    }
    let chosen = |more: &[&str]| -> Result<Command> {
        let mut command = cargo(&["test", "--quiet", "--package", package, "--test", file, "--"])?;
        command.args(["--ignored", "--exact", test]).args(more);
        Ok(command)
    };
    // The test harness calls a filter that fits no test a success.
    let list = chosen(&["--list"])?.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    let found = String::from_utf8_lossy(&list.stdout).lines().any(|line| line == format!("{test}: test"));
    if !list.status.success() || !found {
        bail!("chaos: there is no test {test} in the tests {file} of {package} ({})", list.status);
    }
    step("chaos", chosen(&["--nocapture"])?.envs(settings))
}

/// One of the long tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chaos {
    package: &'static str,
    file: &'static str,
    test: &'static str,
}

impl Chaos {
    const ROUNDS: Self = Self { package: "phalanx-cli", file: "chaos", test: "rounds::many" };
    const MEASURE: Self = Self { test: "take_over::time", ..Self::ROUNDS };
    const KUBERNETES: Self =
        Self { package: "phalanx-coordinator", file: "kubernetes_chaos", test: "rounds::many" };
}

/// The test, and the environment variables it reads.
fn chaos_settings(arguments: &[&str]) -> Result<(Chaos, Vec<(&'static str, String)>)> {
    let mut test = Chaos::ROUNDS;
    let mut settings = Vec::new();
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let name = match *flag {
            "--measure" => {
                test = Chaos::MEASURE;
                continue;
            }
            "--kubernetes" => {
                test = Chaos::KUBERNETES;
                continue;
            }
            "--rounds" => "PHALANX_CHAOS_ROUNDS",
            "--seed" => "PHALANX_CHAOS_SEED",
            other => bail!("chaos: {other:?} is not one of --rounds N, --seed S, --measure, --kubernetes"),
        };
        let value = rest.next().with_context(|| format!("chaos: {flag} needs a number"))?;
        let number: u64 = value
            .parse()
            .with_context(|| format!("chaos: {flag}: must be a whole number, found {value:?}"))?;
        if *flag == "--rounds" && number == 0 {
            bail!("chaos: --rounds: 0 rounds show nothing; ask for 1 or more");
        }
        settings.push((name, number.to_string()));
    }
    Ok((test, settings))
}

fn crds() -> Result<()> {
    let arguments = ["run", "--quiet", "--package", "phalanx-kubernetes", "--bin", "crds"];
    step("crds", &mut cargo(&arguments)?)
}

fn check() -> Result<()> {
    step("cargo fmt", &mut cargo(&["fmt", "--all", "--check"])?)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    step("cargo clippy", &mut cargo(&clippy)?)?;
    step("tidy", &mut cargo(&["test", "--quiet", "--package", "phalanx-common", "--test", "tidy"])?)?;
    let installed = cargo(&["deny", "--version"])?.output().is_ok_and(|output| output.status.success());
    if installed {
        step("cargo deny", &mut cargo(&["deny", "check", "licenses", "bans", "sources"])?)
    } else {
        eprintln!("cargo-deny is not installed: licences and bans are not checked");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chaos_wants_a_round_at_least() {
        let told = |arguments: &[&str]| chaos_settings(arguments).map_err(|error| error.to_string());
        let rounds = |count: &str| vec![("PHALANX_CHAOS_ROUNDS", count.to_owned())];
        assert_eq!(told(&["--rounds", "3"]), Ok((Chaos::ROUNDS, rounds("3"))));
        assert_eq!(told(&["--measure", "--rounds", "1"]), Ok((Chaos::MEASURE, rounds("1"))));
        assert_eq!(told(&["--kubernetes", "--rounds", "2"]), Ok((Chaos::KUBERNETES, rounds("2"))));
        for arguments in [&["--rounds", "0"][..], &["--measure", "--rounds", "00"]] {
            assert_eq!(
                told(arguments),
                Err("chaos: --rounds: 0 rounds show nothing; ask for 1 or more".to_owned())
            );
        }
    }
}
