//! `phalanx demo`: a coordinator and five agents as processes, the example manifests, live progress,
//! and at the end who got which GPU and why the others wait.

pub(crate) mod progress;
mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_core::view::{GangView, StateView};

use crate::arguments::{Demo, ObjectName};
use crate::client::Client;
use crate::cluster::{Cluster, ClusterPlan, ProfileCount, plan_nodes};
use crate::failure::{Failure, Format, print_json, print_text};
use crate::get::devices;
use crate::signals::Stop;
use crate::table::wrap;
use crate::title::title;
use crate::why;

use progress::Progress;

/// Profiles in `deploy/profiles` and how many nodes of each.
const PROFILES: [(&str, u32); 3] = [("hgx-h100.toml", 3), ("dgx-a100-40gb.toml", 1), ("l40s-4gpu.toml", 1)];
/// Manifests in `deploy/examples`, in the order in which they are applied.
const EXAMPLES: [&str; 4] = ["queues.yaml", "training.yaml", "notebooks.yaml", "impossible.yaml"];
/// The story takes about twelve seconds; far more than that means that it hangs.
const STORY_LIMIT: Duration = Duration::from_secs(60);
/// How often the state is looked at.
const POLL: Duration = Duration::from_millis(100);

/// Runs the demo.
///
/// # Errors
/// Something does not start, or the story does not come to its end in time; with the ends of all logs.
pub fn run(options: &Demo, format: Format) -> Result<(), Failure> {
    let stop = Stop::listen()?;
    let examples = files(&options.root, "deploy/examples", &EXAMPLES)?;
    let profiles = files(&options.root, "deploy/profiles", &PROFILES.map(|(file, _)| file))?;
    let counts = profiles.into_iter().zip(PROFILES);
    let counts: Vec<ProfileCount> = counts.map(|(file, (_, count))| ProfileCount { file, count }).collect();
    let folder = tempfile::Builder::new()
        .prefix("phalanx-demo-")
        .tempdir()
        .map_err(|error| Failure::new(format!("cannot make a temporary folder: {error}")))?;
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let plan = ClusterPlan {
        state_dir: folder.path().to_owned(),
        listen: any_port,
        admin: any_port,
        nodes: plan_nodes(&counts)?,
        config: None,
        detached: options.keep,
        temporary: true,
    };
    let say = Say(format);
    say.line("Phalanx demo: one coordinator and five agents as separate processes on this machine.");
    say.line("The GPUs come from node profiles; agents read them through the real NVML bindings.\n");
    let mut cluster = Cluster::start(&plan, &stop)?;
    let told = tell(&mut cluster, &examples, say, &stop);
    let (progress, state) = told.map_err(|failure| with_logs(failure, &cluster))?;
    match format {
        Format::Json => print_json(&report::json(&progress, &state))?,
        Format::Text => print_text(&report::text(&progress, &state)),
    }
    if options.keep {
        cluster.release();
        let folder = folder.keep();
        say.line(&keep_text(&cluster.endpoints.admin, &folder));
    } else {
        drop(cluster);
        say.line(
            "\nEverything is stopped and removed. `cargo demo --keep` leaves it running for you to try.",
        );
    }
    Ok(())
}

/// Prints the story; in JSON mode to standard error, so that standard output is one value.
#[derive(Clone, Copy)]
struct Say(Format);

impl Say {
    fn line(self, text: &str) {
        match self.0 {
            Format::Text => print_text(text),
            Format::Json => eprintln!("{text}"),
        }
    }
}

fn files(root: &Path, folder: &str, names: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    let paths = names.iter().map(|name| root.join(folder).join(name));
    paths
        .map(|path| {
            if path.is_file() {
                return Ok(path);
            }
            Err(Failure::new(format!(
                "{} is missing: run the demo in a checkout of Phalanx, or name its folder with --root",
                path.display()
            )))
        })
        .collect()
}

fn with_logs(failure: Failure, cluster: &Cluster) -> Failure {
    match failure {
        Failure::Message(text) if !text.contains("stopped by a signal") => {
            Failure::new(format!("{text}\n{}", cluster.tails()))
        }
        other => other,
    }
}

/// The story: nodes, manifests, progress until the first large gang has finished and the second runs.
fn tell(
    cluster: &mut Cluster,
    examples: &[PathBuf],
    say: Say,
    stop: &Stop,
) -> Result<(Progress, StateView), Failure> {
    let state = cluster.client.state()?;
    for node in &state.nodes {
        let model = node.gpus.first().map_or("no GPU", |gpu| &gpu.model);
        say.line(&format!("  {:<16} {} x {model}", node.name.as_str(), node.gpus.len()));
    }
    say.line("");
    for file in examples {
        apply(&cluster.client, file, say)?;
    }
    say.line("\n  time  gang");
    let mut progress = Progress::new();
    let mut asked = Asked::default();
    let start = Instant::now();
    loop {
        cluster.check()?;
        let state = cluster.client.state()?;
        for line in progress.look(&state, start.elapsed()) {
            say.line(&line);
        }
        asked.ask(&state, &progress, &cluster.client, say)?;
        if asked.is_complete() && is_over(&state, &progress) {
            return Ok((progress, state));
        }
        if stop.is_asked() {
            return Err(Failure::new("stopped by a signal"));
        }
        if start.elapsed() > STORY_LIMIT {
            let limit = STORY_LIMIT.as_secs();
            return Err(Failure::new(format!(
                "the demo did not come to its end in {limit} s; gangs: {}",
                summary(&state)
            )));
        }
        std::thread::sleep(POLL);
    }
}

fn summary(state: &StateView) -> String {
    let one = |gang: &GangView| format!("{} {}", title(gang), gang.phase);
    state.gangs.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn apply(client: &Client, file: &Path, say: Say) -> Result<(), Failure> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    let applied = client.apply(&name, &text)?;
    let titles: Vec<String> = applied.applied.iter().map(crate::client::AppliedObject::title).collect();
    say.line(&format!("  applied {name}: {}", titles.join(", ")));
    if applied.ok {
        return Ok(());
    }
    let lines: Vec<String> = applied.diagnostics.iter().map(ToString::to_string).collect();
    Err(Failure::new(format!("{} was refused:\n{}", file.display(), lines.join("\n"))))
}

/// The gangs with the most GPUs that can run at all: the two that cannot run at once.
fn large(state: &StateView) -> Vec<&GangView> {
    let possible = |gang: &&GangView| !is_impossible(gang);
    let most = state.gangs.iter().filter(possible).map(devices).max().unwrap_or(0);
    state.gangs.iter().filter(possible).filter(|gang| devices(gang) == most).collect()
}

fn is_impossible(gang: &GangView) -> bool {
    let never = ["LargerThanAnyNode", "LargerThanCluster", "AboveCapability"];
    gang.reason.as_ref().is_some_and(|reason| never.contains(&&*reason.code))
}

fn waits(gang: &GangView) -> bool {
    gang.reason.as_ref().is_some_and(|reason| &*reason.code != "InProgress")
}

fn is_over(state: &StateView, progress: &Progress) -> bool {
    let large = large(state);
    let finished = large.iter().any(|gang| progress.has_finished(&gang.name));
    finished && large.iter().any(|gang| &*gang.phase == "running")
}

/// Which explanations the story has shown.
#[derive(Default)]
struct Asked {
    second: bool,
    impossible: bool,
    announced: bool,
}

impl Asked {
    fn is_complete(&self) -> bool {
        self.second && self.impossible
    }

    /// Shows `why` of the second large gang while the first runs, and of one that can never run.
    fn ask(
        &mut self,
        state: &StateView,
        progress: &Progress,
        client: &Client,
        say: Say,
    ) -> Result<(), Failure> {
        let large = large(state);
        let first_runs = large.iter().any(|gang| progress.has_run(&gang.name));
        let told = |gang: &GangView| progress.has_told_reason(&gang.name);
        let second = large.iter().find(|gang| waits(gang) && told(gang));
        if let Some(gang) = second.filter(|_| first_runs && !self.second) {
            self.second = true;
            show_why(gang, client, say)?;
        }
        let never = state.gangs.iter().find(|gang| is_impossible(gang) && told(gang));
        if let Some(gang) = never.filter(|_| !self.impossible) {
            self.impossible = true;
            show_why(gang, client, say)?;
        }
        if self.is_complete() && !self.announced {
            self.announced = true;
            if let Some(first) = large.iter().find(|gang| &*gang.phase == "running") {
                say.line(&format!("\n  waiting for {} to end ...", title(first)));
            }
        }
        Ok(())
    }
}

fn show_why(gang: &GangView, client: &Client, say: Say) -> Result<(), Failure> {
    let (namespace, name) = (gang.name.namespace.to_string(), gang.name.name.to_string());
    let explanation = client.explain(&ObjectName { namespace: Some(namespace), name })?;
    say.line(&format!("\n  $ phalanx why {}", title(gang)));
    for line in why::text(&explanation).lines() {
        say.line(&wrap(line, 112, "  ", "      "));
    }
    Ok(())
}

fn keep_text(admin: &str, folder: &Path) -> String {
    let own =
        std::env::current_exe().map_or_else(|_| "phalanx".to_owned(), |path| path.display().to_string());
    let folder = folder.display();
    format!(
        "\nEverything is left running; state and logs are in {folder}.\n\n  \
         export PHALANX_SERVER={admin}\n  \
         {own} get gangs -A\n  \
         {own} get pods -A --wide\n  \
         {own} delete -f deploy/examples\n\n\
         Stop it and remove the folder:\n\n  \
         {own} down --state-dir {folder}"
    )
}

#[cfg(test)]
mod tests {
    use phalanx_core::reason::Reason;

    use super::progress::tests::{gang, no_queue, state, with_reason};
    use super::*;

    #[test]
    fn the_story_is_over_when_the_first_has_finished_and_the_second_runs() {
        let mut progress = Progress::new();
        let mut over = |first: &str, second: &str| {
            let gangs =
                vec![gang("first", first, 32), gang("second", second, 32), gang("small", "running", 1)];
            let state = state(gangs);
            progress.look(&state, Duration::ZERO);
            is_over(&state, &progress)
        };
        assert!(!over("running", "admitted"));
        assert!(!over("finished", "admitted"));
        assert!(over("finished", "running"));
    }

    #[test]
    fn an_impossible_gang_is_none_of_the_large_ones() {
        let reason = Reason::AboveCapability {
            queue: "q".into(),
            resource: std::sync::Arc::from("nvidia.com/gpu"),
            limit: 8,
            asked: 99,
            lower_to: None,
        };
        let impossible = with_reason(gang("impossible", "queued", 99), reason);
        let state = state(vec![impossible.clone(), with_reason(gang("large", "admitted", 32), no_queue())]);
        assert!(is_impossible(&impossible));
        assert_eq!(large(&state).iter().map(|gang| &*gang.name.name).collect::<Vec<_>>(), ["large"]);
    }

    #[test]
    fn a_missing_file_is_named_with_the_way_out() {
        let Err(Failure::Message(text)) = files(Path::new("/nonexistent"), "deploy/examples", &["a.yaml"])
        else {
            panic!("no failure")
        };
        assert_eq!(
            text,
            "/nonexistent/deploy/examples/a.yaml is missing: run the demo in a checkout of Phalanx, or name its \
             folder with --root"
        );
    }
}
