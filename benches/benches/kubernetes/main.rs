//! Bindings a second on a real API server: Phalanx beside a bare loop that only posts the same Bindings, and beside
//! kube-scheduler.
//!
//! `cargo bench -p phalanx-benches --bench kubernetes -- [--nodes N] [--rounds N] [--loads LIST] [--contenders LIST]
//! [--costs yes]`
//!
//! All run on one machine, taken in turn in each round: only the ratios of one run mean something. Where nothing else
//! is said the clock of single pods starts at their first create; that of gangs starts when all of their objects are
//! there and nothing is bound yet. It ends when a watch has shown the last pod bound.

mod contenders;
mod costs;
mod loads;
mod pods;
mod report;
mod steps;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use phalanx_devcluster::hollow::{KubeletOptions, raise_file_limit};
use phalanx_devcluster::installation::{Installation, InstallationOptions};
use phalanx_devcluster::{Options, Servers};

use crate::contenders::Contender;
use crate::loads::Load;
use crate::report::Report;

type Failure = Box<dyn Error + Send + Sync>;

/// What is measured.
struct Plan {
    nodes: usize,
    rounds: usize,
    loads: Vec<Load>,
    contenders: Vec<Contender>,
    /// Processor time and requests of each round, and the steps of its gangs, are printed.
    costs: bool,
}

impl Plan {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut plan = Self {
            nodes: 200,
            rounds: 7,
            loads: vec![Load::Singles, Load::Gangs, Load::Large { pods: 200 }],
            contenders: vec![Contender::Bare, Contender::Phalanx, Contender::KubeScheduler],
            costs: false,
        };
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--nodes" => {
                    plan.nodes = value.parse().map_err(|_| format!("--nodes: {value:?} is no number"))?
                }
                "--rounds" => {
                    plan.rounds = value.parse().map_err(|_| format!("--rounds: {value:?} is no number"))?
                }
                "--loads" => plan.loads = value.split(',').map(Load::read).collect::<Result<_, _>>()?,
                "--contenders" => {
                    plan.contenders = value.split(',').map(Contender::read).collect::<Result<_, _>>()?;
                }
                "--costs" => plan.costs = value == "yes",
                _ => {
                    let known = "--nodes, --rounds, --loads, --contenders or --costs";
                    return Err(format!("{flag}: must be {known}").into());
                }
            }
        }
        Ok(plan)
    }
}

/// The coordinator's program, built with the same profile.
fn coordinator() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|deps| deps.parent()).ok_or("the bench lies in no folder")?;
    let program = folder.join("phalanx-coordinator");
    if !program.is_file() {
        let name = program.display();
        return Err(
            format!("{name} is missing: run `cargo build --release -p phalanx-coordinator` first").into()
        );
    }
    Ok(program)
}

async fn start(plan: &Plan) -> Result<(Installation, tempfile::TempDir), Failure> {
    // Real agents have a disk each.
    let ledgers = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let servers = Servers::start(Options::default()).await?;
    let program = coordinator()?;
    let installation = InstallationOptions {
        replicas: 1,
        coordinator_flags: vec!["--scheduler-names=phalanx".to_owned()],
        hollow: plan.nodes,
        ledgers: Some(ledgers.path().to_owned()),
        // Pods are bound and removed; nobody marks them running, so that this costs no contender anything.
        kubelets: KubeletOptions { node_prefix: "no-such-node".to_owned(), ..KubeletOptions::default() },
        ..InstallationOptions::new(program.clone(), program)
    };
    Ok((Installation::start(servers, installation).await?, ledgers))
}

async fn measure(plan: Plan) -> Result<bool, Failure> {
    let (mut installation, _ledgers) = start(&plan).await?;
    let mut report = Report::default();
    let began = Instant::now();
    contenders::wait_for_agents(&installation, plan.nodes).await?;
    println!("{} agents are connected after {:.1} s", plan.nodes, began.elapsed().as_secs_f64());
    report.memory("with all agents connected and nothing placed", &installation);
    for round in 1..=plan.rounds {
        for load in &plan.loads {
            for contender in plan.contenders.iter().filter(|contender| contender.takes(*load)) {
                let took = contender.run(&mut installation, *load, &plan).await?;
                println!("round {round} {load} {contender}: {took}");
                report.add(*load, *contender, took);
            }
        }
    }
    report.memory("at the end", &installation);
    report.print();
    installation.stop().await;
    Ok(report.is_clean())
}

fn main() -> ExitCode {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let measured = Plan::read(std::env::args().skip(1)).and_then(|plan| runtime?.block_on(measure(plan)));
    match measured {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
