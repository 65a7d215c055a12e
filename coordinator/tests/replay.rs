//! The command `replay`: it stops where it is told to and shows the state there, and finds where two things part.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;

use phalanx_common::gang::{ContainerKind, ContainerRequest, GangSpec, PodPhase, PodRequest, PodSpec};
use phalanx_common::ids::{ActionId, GangName, NodeName, PodUid, QueueName, Term};
use phalanx_common::resources::{NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::Time;
use phalanx_common::wire::{Hello, VERSION};
use phalanx_coordinator::recorder::{Header, Record};
use phalanx_coordinator::replay::{Place, ReplayArguments, compare, run};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};
use support::cluster::inventory;

const START_MS: u64 = 1_764_437_478_000;

fn name() -> GangName {
    GangName::new("team", "train")
}

fn gang() -> Event {
    Event::GangApplied(GangSpec {
        name: name(),
        uid: Arc::from("g1"),
        created: Time(START_MS),
        queue: QueueName::from("default"),
        min_member: 1,
        min_task_member: BTreeMap::new(),
        min_resources: None,
        priority_class: None,
        mixed_gpu_models: false,
        shown: None,
    })
}

fn pod(gpus: u64) -> Event {
    let requests = Resources::new().with(ResourceName::known(NVIDIA_GPU), gpus);
    let container = ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests };
    Event::PodApplied(Box::new(PodSpec {
        uid: PodUid::from("p1"),
        name: name(),
        gang: name(),
        task: "worker".into(),
        request: PodRequest { containers: vec![container], overhead: Resources::new() },
        node_selector: BTreeMap::new(),
        blockers: Vec::new(),
        run_for: None,
        resource_version: 1,
        phase: PodPhase::Pending,
        binding: None,
        deleting: false,
        term: 0,
    }))
}

fn connected() -> Event {
    let hello = Hello {
        oldest_version: 1,
        newest_version: VERSION,
        node: NodeName::from("n1"),
        cluster: None,
        highest_term: Term::default(),
        inventory: inventory(1, 8),
        leases: Vec::new(),
    };
    Event::AgentConnected { session: 1, hello: Box::new(hello) }
}

/// A recording of a gang that waits for a node, which comes ten seconds later: a line a record.
fn recording(gpus: u64) -> Vec<Record> {
    let settings = Settings::default();
    let mut core = Core::new(settings.clone());
    let mut records = vec![Record::Header(Header::first(Time(START_MS), &settings))];
    let events = [
        (0, Event::Started { term: Term { counter: 1, incarnation: 2 } }),
        (0, Event::Synced),
        (1_000, gang()),
        (1_000, pod(gpus)),
        (11_000, connected()),
    ];
    for (after_ms, event) in events {
        let at = Time(START_MS + after_ms);
        records.push(Record::Event { at, event: event.clone() });
        let mut actions = Vec::new();
        core.apply(event, at, &mut actions);
        core.cycle(at, &mut actions);
        records.push(Record::Cycle { at, actions });
    }
    records
}

fn write(file: &Path, records: &[Record]) {
    let lines = records.iter().map(|record| format!("{}\n", serde_json::to_string(record).unwrap()));
    fs::write(file, lines.collect::<String>()).unwrap();
}

fn file(directory: &Path, records: &[Record]) -> PathBuf {
    let file = directory.join(format!("recording-{START_MS:015}-00000.jsonl"));
    write(&file, records);
    file
}

fn arguments(file: &Path) -> ReplayArguments {
    ReplayArguments { file: file.to_owned(), until: None, diff: None, context: 10 }
}

/// Whether nothing differs, what is printed, and what is reported.
fn replayed(arguments: &ReplayArguments) -> (bool, String, String) {
    let (mut output, mut report) = (Vec::new(), Vec::new());
    let same = run(arguments, &mut output, &mut report).unwrap();
    (same, String::from_utf8(output).unwrap(), String::from_utf8(report).unwrap())
}

fn until(file: &Path, moment: &str) -> (String, String) {
    let moment = Some(moment.parse().unwrap());
    let (same, output, report) = replayed(&ReplayArguments { until: moment, ..arguments(file) });
    assert!(same);
    (output, report)
}

#[test]
fn until_stops_at_a_time_an_event_or_a_line_and_shows_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(directory.path(), &recording(4));
    let waits = "team/train in queue default: queued (Pending), 1 pods, at least 1 together";
    let before = |(output, report): (String, String)| {
        assert!(output.contains(waits) && output.contains("reason: "), "{output}");
        assert!(output.contains("nodes: 0") && output.contains("leases: 0"), "{output}");
        assert_eq!(report, "");
    };
    before(until(&file, "+5s"));
    before(until(&file, &(START_MS + 10_999).to_string()));
    before(until(&file, "line:9"));
    before(until(&file, "line:0:9"));
    let (output, report) = until(&file, "+11s");
    assert!(report.contains("the recording ends before that moment"), "{report}");
    assert!(output.contains("team/train in queue default: reserving (Inqueue)"), "{output}");
    assert!(output.contains("n1: ready, 4 of 8 GPUs free"), "{output}");
    assert!(
        output.contains("leases: 1") && output.contains("on n1 for team/train: wanted Reserved"),
        "{output}"
    );
    // Right after its event a gang was not looked at yet: the pass comes with the next line.
    let (output, _) = until(&file, "event:4");
    assert!(output.contains("after 4 events and 3 cycles"), "{output}");
    let (output, _) = until(&file, "event:2");
    assert!(output.contains("gangs: 0"), "{output}");
}

#[test]
fn diff_shows_what_came_before_the_difference_both_actions_and_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let mut records = recording(4);
    let Some(Record::Cycle { actions, .. }) = records.last_mut() else { panic!() };
    let position = actions.iter().position(|action| matches!(action.command, Command::Send { .. })).unwrap();
    let Command::Send { node, .. } = &mut actions[position].command else { panic!() };
    *node = NodeName::from("n2");
    let file = file(directory.path(), &records);
    let (same, output, report) = replayed(&ReplayArguments { diff: Some(None), ..arguments(&file) });
    assert!(!same);
    assert_eq!(output, "");
    assert!(
        report.contains(&format!("{}:{}: the actions differ", file.display(), records.len())),
        "{report}"
    );
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0] == "before it:" && lines[1].starts_with("  2: {\"event\""), "{report}");
    assert!(lines.iter().any(|line| line.starts_with("- ") && line.contains("\"n2\"")), "{report}");
    assert!(lines.iter().any(|line| line.starts_with("+ ") && line.contains("\"n1\"")), "{report}");
    assert!(report.contains("n1: ready, 4 of 8 GPUs free"), "{report}");
    // Without the flag only the two actions are shown.
    let (same, _, report) = replayed(&arguments(&file));
    assert!(!same && report.contains("  recorded: ") && !report.contains("before it:"), "{report}");
    // What comes before the difference is the same.
    let (same, output, _) = replayed(&ReplayArguments { until: "+5s".parse().ok(), ..arguments(&file) });
    assert!(same && output.contains("gangs: 1"), "{output}");
}

#[test]
fn diff_of_two_recordings_compares_what_was_done_and_not_when() {
    let directory = tempfile::tempdir().unwrap();
    let first = directory.path().join("first.jsonl");
    let second = directory.path().join("second.jsonl");
    write(&first, &recording(4));
    let mut later = recording(4);
    for record in &mut later {
        if let Record::Cycle { actions, .. } = record {
            actions.iter_mut().for_each(|action| action.id = ActionId(action.id.0 + 7));
        }
    }
    write(&second, &later);
    assert_eq!(compare(&first, &second).unwrap().0, None);
    let other = Some(Some(second.clone()));
    let (same, _, report) = replayed(&ReplayArguments { diff: other.clone(), ..arguments(&first) });
    assert!(same && report.contains("actions in both"), "{report}");

    write(&second, &recording(2));
    let (same, output, _) = replayed(&ReplayArguments { diff: other, ..arguments(&first) });
    assert!(!same);
    assert!(output.contains("the recordings part after"), "{output}");
    let shown: Vec<&str> = output.lines().filter(|line| line.starts_with("> ")).collect();
    // The gang waits in both, for another number of GPUs.
    assert!(
        shown.len() == 2 && shown[0].contains("\"asked\":4") && shown[1].contains("\"asked\":2"),
        "{output}"
    );
    assert!(output.contains("pod asks 4") && output.contains("pod asks 2"), "{output}");
    let divergence = compare(&first, &second).unwrap().0.unwrap();
    let of = |side: &Option<(Place, Action)>| side.as_ref().map(|(place, _)| place.line);
    assert_eq!((divergence.same, of(&divergence.first), of(&divergence.second)), (4, Some(9), Some(9)));
}

#[test]
fn the_program_prints_the_state_and_names_a_moment_that_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(directory.path(), &recording(4));
    let program = |more: &[&str]| {
        let output = Process::new(env!("CARGO_BIN_EXE_phalanx-coordinator"))
            .args(["replay", file.to_str().unwrap()])
            .args(more)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, printed, _) = program(&["--until", "+5s"]);
    assert!(code == 0 && printed.contains("team/train in queue default"), "{printed}");
    let (code, _, reported) = program(&["--diff"]);
    assert!(code == 0 && reported.starts_with("the same: 5 events, 5 cycles, "), "{reported}");
    let (code, _, reported) = program(&["--until", "yesterday"]);
    assert!(code == 2 && reported.contains("\"yesterday\" is no moment of a recording"), "{reported}");
}
