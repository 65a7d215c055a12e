//! Documents that must not drift from the program: the form of recordings, and the list of metrics.

use std::collections::BTreeSet;
use std::path::Path;

use phalanx_coordinator::metrics::{Metrics, command_name, event_name};
use phalanx_coordinator::recorder::{FORMAT, Record};
use phalanx_core::{Core, Settings};

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Lines of all blocks of a language.
fn lines<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let mark = format!("```{language}\n");
    let blocks = text.split(mark.as_str()).skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.flat_map(|(block, _)| block.lines()).collect()
}

/// Values of the label `kind` of a metric.
fn kinds(metric: &str) -> BTreeSet<String> {
    let text = Metrics::default().text(None).unwrap();
    let begin = format!("phalanx_{metric}_total{{kind=\"");
    let values = text.lines().filter_map(|line| line.strip_prefix(begin.as_str())?.split_once('"'));
    values.map(|(kind, _)| kind.to_owned()).collect()
}

/// Names that are keys in a text that resembles JSON.
fn keys(text: &str) -> BTreeSet<&str> {
    let pieces: Vec<&str> = text.split('"').collect();
    let named = pieces.chunks(2).filter_map(|pair| Some((pair.get(1)?, pair)));
    named.map(|(name, _)| *name).collect()
}

#[test]
fn every_record_in_the_document_is_one_and_every_kind_has_an_example() {
    let text = document("recording.md");
    let (mut events, mut commands) = (BTreeSet::new(), BTreeSet::new());
    let mut headers = 0;
    for line in lines(&text, "json") {
        match serde_json::from_str::<Record>(line).unwrap_or_else(|error| panic!("{error}: {line}")) {
            Record::Header(header) => {
                assert_eq!(header.format, FORMAT);
                headers += 1;
            }
            Record::Event { event, .. } => drop(events.insert(event_name(&event).to_owned())),
            Record::Cycle { actions, .. } => {
                commands.extend(actions.iter().map(|action| command_name(&action.command).to_owned()));
            }
            Record::Snapshot { .. } => panic!("a whole snapshot is too long for people"),
        }
        // Written again it is the same: no field is missing or of another name.
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let record: Record = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_value(record).unwrap(), value, "{line}");
    }
    assert_eq!(headers, 1);
    assert_eq!(events, kinds("events"));
    assert_eq!(commands, kinds("actions"));
    assert!(text.contains(&format!("## Form {FORMAT}\n")));
}

#[test]
fn the_example_of_queues_is_taken_without_a_warning() {
    let text = document("queues.md");
    let example = text.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let parsed = phalanx_coordinator::manifest::parse(example, "queues.md");
    assert_eq!((parsed.objects.len(), parsed.diagnostics), (4, Vec::new()));
}

#[test]
fn the_state_in_the_document_names_what_there_is() {
    let text = document("recording.md");
    let shortened: Vec<&str> =
        lines(&text, "text").into_iter().filter(|line| line.starts_with("{\"snapshot\"")).collect();
    let core = serde_json::to_value(Core::new(Settings::default())).unwrap();
    let known: BTreeSet<&str> = core.as_object().unwrap().keys().map(String::as_str).collect();
    let named: BTreeSet<&str> =
        keys(shortened[0]).into_iter().filter(|name| !["snapshot", "at", "core"].contains(name)).collect();
    assert!(named.len() > 5 && named.is_subset(&known), "{named:?}");
}

#[test]
fn every_metric_is_in_the_list_and_no_other() {
    let text = Metrics::default().text(None).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names: BTreeSet<String> = types
        .map(|(name, kind)| format!("{name}{}", if kind == "counter" { "_total" } else { "" }))
        .collect();
    let document = document("metrics.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `phalanx_")?.split_once('`'));
    let listed: BTreeSet<String> = rows.map(|(name, _)| format!("phalanx_{name}")).collect();
    assert_eq!(names, listed);
    let core = Core::new(Settings::default());
    for (what, _) in core.totals().kept {
        assert!(document.contains(&format!("`{what}`")), "{what}");
    }
    for (name, count) in [("events", "27 kinds"), ("actions", "13 kinds")] {
        assert!(document.contains(count) && kinds(name).len().to_string() == count[..2], "{name}");
    }
}
