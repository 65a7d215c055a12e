//! The command `replay`: it stops where it is told to and shows the state there, and finds where two things part.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;

use crate::support::cluster::inventory;
use phalanx_common::gang::{ContainerKind, ContainerRequest, GangSpec, PodPhase, PodRequest, PodSpec};
use phalanx_common::ids::{ActionId, GangName, NodeName, PodUid, QueueName, Term};
use phalanx_common::resources::{NVIDIA_GPU, ResourceName, Resources};
use phalanx_common::units::Time;
use phalanx_common::wire::{Hello, VERSION};
use phalanx_coordinator::recorder::{Header, Record};
use phalanx_coordinator::replay::{ReplayArguments, run};
use phalanx_core::action::Command;
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

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
        policy: Default::default(),
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
        group_uid: Default::default(),
        policy: Default::default(),
        constraints: Default::default(),
        claims: Vec::new(),
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
    // Its last record is of that moment, and is played.
    let moments = ["+11s", &(START_MS + 11_000).to_string(), "event:5", "line:11", "line:0:11"];
    let ends = moments.map(|moment| until(&file, moment));
    assert!(ends.iter().all(|(_, report)| report.is_empty()), "{ends:?}");
    for beyond in ["+11001ms", &(START_MS + 11_001).to_string(), "event:6", "line:12", "line:1:1"] {
        let (output, report) = until(&file, beyond);
        assert!(report.contains("the recording ends before that moment"), "{beyond}: {report}");
        assert_eq!(output, ends[0].0, "{beyond}");
    }
    let output = &ends[0].0;
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
    let other = Some(Some(second.clone()));
    let (same, _, report) = replayed(&ReplayArguments { diff: other.clone(), ..arguments(&first) });
    assert!(same && report.contains("actions in both"), "{report}");

    write(&second, &recording(2));
    let (same, output, _) = replayed(&ReplayArguments { diff: other, ..arguments(&first) });
    assert!(!same);
    assert!(output.starts_with("the recordings part after 4 actions\n"), "{output}");
    for file in [&first, &second] {
        assert!(output.contains(&format!("\n{}:9:\n", file.display())), "{output}");
    }
    let shown: Vec<&str> = output.lines().filter(|line| line.starts_with("> ")).collect();
    // The gang waits in both, for another number of GPUs.
    assert!(
        shown.len() == 2 && shown[0].contains("\"asked\":4") && shown[1].contains("\"asked\":2"),
        "{output}"
    );
    assert!(output.contains("pod asks 4") && output.contains("pod asks 2"), "{output}");
}

#[test]
fn diff_of_two_recordings_says_what_a_reader_should_know_of_each() {
    let directory = tempfile::tempdir().unwrap();
    let first = directory.path().join("first.jsonl");
    let second = directory.path().join("second.jsonl");
    write(&first, &recording(4));
    let text = fs::read_to_string(&first).unwrap();
    fs::write(&second, format!("{text}{{\"event\":")).unwrap();
    let compared = |first: &Path, second: &Path| {
        let (same, output, report) =
            replayed(&ReplayArguments { diff: Some(Some(second.to_owned())), ..arguments(first) });
        assert!(same && output.is_empty(), "{output}");
        report
    };
    assert!(!compared(&first, &first).contains("note: "));
    for report in [compared(&first, &second), compared(&second, &first)] {
        let note = format!("note: {}:12: the line was cut off after 9 bytes", second.display());
        assert!(report.starts_with(&note) && report.lines().count() == 2, "{report}");
    }
}

#[test]
fn until_does_not_go_with_the_comparison_of_two_recordings() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(directory.path(), &recording(4));
    let both =
        ReplayArguments { until: "+5s".parse().ok(), diff: Some(Some(file.clone())), ..arguments(&file) };
    let error = run(&both, &mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("--until") && error.contains("--diff OTHER"), "{error}");
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
