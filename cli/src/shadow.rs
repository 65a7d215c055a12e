//! `phalanx get shadow`: what a coordinator in shadow mode would have done, beside what another scheduler did.

use std::fmt::Write as _;

use phalanx_common::shadow::{ShadowEviction, ShadowOutcome, ShadowPlace, ShadowPod, ShadowReport};
use phalanx_common::units::Time;

use crate::arguments::Get;
use crate::client::Client;
use crate::failure::{Failure, Format, print_json, print_text};
use crate::table::{age, list, now};

/// Prints the report. Names and a namespace leave out other pods, and change no number.
///
/// # Errors
/// The server cannot be reached, or is not in shadow mode.
pub fn run(client: &Client, options: &Get, format: Format) -> Result<(), Failure> {
    let mut report = client.shadow()?;
    let is_meant = |namespace: &str, name: &str| {
        options.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && (options.names.is_empty() || options.names.iter().any(|wanted| wanted == name))
    };
    report.waiting_pods.retain(|pod| is_meant(&pod.namespace, &pod.name));
    report.recent.retain(|pod| is_meant(&pod.namespace, &pod.name));
    report.recent_evictions.retain(|pod| is_meant(&pod.namespace, &pod.name));
    if format == Format::Json {
        return print_json(&report);
    }
    print_text(&text(&report, now()));
    Ok(())
}

const fn meaning(outcome: ShadowOutcome) -> &'static str {
    match outcome {
        ShadowOutcome::SameNode => "decided here first, and placed on the same node",
        ShadowOutcome::OtherNode => "decided here first, and placed on another node",
        ShadowOutcome::NotDecided => "placed before it was decided here",
        ShadowOutcome::NotPlaced => "decided here, and gone before it was placed",
    }
}

fn text(report: &ShadowReport, now: Time) -> String {
    let mut text = format!(
        "Shadow mode for {}, beside what serves {}: nothing of this is done.\n\n",
        age(now - report.since),
        report.scheduler_names.join(", ")
    );
    let row = |outcome: &str, count: u64, meaning: &str| {
        vec![outcome.to_owned(), count.to_string(), meaning.to_owned()]
    };
    let mut rows: Vec<Vec<String>> = report
        .outcomes
        .iter()
        .map(|(outcome, count)| row(outcome.as_str(), *count, meaning(*outcome)))
        .collect();
    rows.push(row("waiting", report.waiting, "decided here, and not placed yet"));
    rows.push(row("would evict", report.evictions, "pods that would have had to go"));
    text += &list(&["OUTCOME", "PODS", "MEANING"], rows);
    let pods: Vec<&ShadowPod> = report.waiting_pods.iter().chain(&report.recent).collect();
    if !pods.is_empty() {
        let headers = ["NAMESPACE", "NAME", "DECIDED", "PLACED", "AHEAD", "OUTCOME"];
        let _ =
            write!(text, "\n\n{}", list(&headers, pods.into_iter().map(|pod| pod_row(pod, now)).collect()));
    }
    if !report.recent_evictions.is_empty() {
        let row = |pod: &ShadowEviction| {
            vec![pod.namespace.to_string(), pod.name.to_string(), age(now - pod.at), pod.cause.to_string()]
        };
        let rows = report.recent_evictions.iter().map(row).collect();
        let _ = write!(text, "\n\n{}", list(&["NAMESPACE", "WOULD EVICT", "AGE", "CAUSE"], rows));
    }
    text
}

fn pod_row(pod: &ShadowPod, now: Time) -> Vec<String> {
    let node =
        |place: &Option<ShadowPlace>| place.as_ref().map(|place| place.node.to_string()).unwrap_or_default();
    // How long the decision came before the other one's, so far.
    let ahead = pod.decided.as_ref().map(|decided| {
        let until = pod.placed.as_ref().map_or(now, |placed| placed.at);
        if pod.outcome == Some(ShadowOutcome::NotPlaced) { String::new() } else { age(until - decided.at) }
    });
    vec![
        pod.namespace.to_string(),
        pod.name.to_string(),
        node(&pod.decided),
        node(&pod.placed),
        ahead.unwrap_or_default(),
        pod.outcome.map_or("waiting", ShadowOutcome::as_str).to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::NodeName;

    use super::*;

    fn place(node: &str, second: u64) -> Option<ShadowPlace> {
        Some(ShadowPlace { node: NodeName::from(node), at: Time(second * 1000) })
    }

    #[test]
    fn numbers_stand_first_then_pods_then_evictions() {
        let pod = |name: &str, decided, placed, outcome| ShadowPod {
            namespace: "team".into(),
            name: name.into(),
            decided,
            placed,
            outcome,
        };
        let report = ShadowReport {
            since: Time(0),
            scheduler_names: vec!["volcano".to_owned()],
            outcomes: vec![(ShadowOutcome::SameNode, 1), (ShadowOutcome::NotDecided, 1)],
            evictions: 1,
            waiting: 1,
            waiting_pods: vec![pod("wait", place("n1", 90), None, None)],
            recent: vec![
                pod("same", place("n1", 10), place("n1", 15), Some(ShadowOutcome::SameNode)),
                pod("late", None, place("n2", 15), Some(ShadowOutcome::NotDecided)),
            ],
            recent_evictions: vec![ShadowEviction {
                namespace: "team".into(),
                name: "small".into(),
                cause: "room for team/large".into(),
                at: Time(60_000),
            }],
        };
        let lines = [
            "Shadow mode for 100s, beside what serves volcano: nothing of this is done.",
            "",
            "OUTCOME      PODS  MEANING",
            "same-node    1     decided here first, and placed on the same node",
            "not-decided  1     placed before it was decided here",
            "waiting      1     decided here, and not placed yet",
            "would evict  1     pods that would have had to go",
            "",
            "NAMESPACE  NAME  DECIDED  PLACED  AHEAD  OUTCOME",
            "team       wait  n1               10s    waiting",
            "team       same  n1       n1      5s     same-node",
            "team       late           n2             not-decided",
            "",
            "NAMESPACE  WOULD EVICT  AGE  CAUSE",
            "team       small        40s  room for team/large",
        ];
        assert_eq!(text(&report, Time(100_000)).lines().collect::<Vec<_>>(), lines);
    }
}
