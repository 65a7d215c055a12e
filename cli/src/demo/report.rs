//! The tables at the end of the demo.

use phalanx_core::view::{GangView, StateView};

use crate::get::{devices, gpu_indexes, index_text, link_text};
use crate::table::{ShortIds, framed};
use crate::title::title;

use super::progress::Progress;

/// Tables for people: gangs; pods with node, GPUs and links; and for those that wait, why.
pub fn text(progress: &Progress, state: &StateView) -> String {
    let mut text = String::from("\nGangs\n");
    text.push_str(&framed(
        &["GANG", "QUEUE", "PHASE", "MINIMUM", "PODS", "GPUS"],
        state.gangs.iter().map(gang_row).collect(),
    ));
    text.push_str("\n\nWho got which GPUs (UUIDs shortened; --json prints them whole)\n");
    text.push_str(&framed(&["GANG", "POD", "NODE", "LINK", "INDEX", "GPUS"], place_rows(progress, state)));
    text.push_str("\n\nWhy the others wait\n");
    text.push_str(&framed(&["GANG", "REASON", "WHAT WOULD HELP"], waiting_rows(state)));
    text
}

fn gang_row(gang: &GangView) -> Vec<String> {
    vec![
        title(gang),
        gang.queue.to_string(),
        gang.phase.to_string(),
        gang.minimum.to_string(),
        gang.pods.len().to_string(),
        devices(gang).to_string(),
    ]
}

fn place_rows(progress: &Progress, state: &StateView) -> Vec<Vec<String>> {
    let indexes = gpu_indexes(state);
    let short = ShortIds::among(state.nodes.iter().flat_map(|node| &node.gpus).map(|gpu| gpu.id));
    let mut rows = Vec::new();
    for gang in &state.gangs {
        for (at, (pod, place)) in progress.places_of(&gang.name).enumerate() {
            let gpus: Vec<String> = place.gpus.iter().map(|gpu| short.show(*gpu)).collect();
            rows.push(vec![
                if at == 0 { title(gang) } else { String::new() },
                pod.clone(),
                place.node.to_string(),
                link_text(place.link_class),
                index_text(&place.gpus, &indexes),
                gpus.join(" "),
            ]);
        }
    }
    rows
}

fn waiting_rows(state: &StateView) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for gang in &state.gangs {
        if let Some(reason) = &gang.reason {
            rows.push(vec![title(gang), reason.text.clone(), reason.fix.clone()]);
        }
    }
    rows
}

/// The same for programs, with whole UUIDs.
pub fn json(progress: &Progress, state: &StateView) -> serde_json::Value {
    let gangs = state.gangs.iter().map(|gang| {
        let pods: Vec<_> = progress
            .places_of(&gang.name)
            .map(|(pod, place)| {
                serde_json::json!({
                    "pod": pod,
                    "node": place.node,
                    "gpus": place.gpus,
                    "link_class": link_text(place.link_class),
                })
            })
            .collect();
        serde_json::json!({
            "gang": title(gang),
            "queue": gang.queue,
            "phase": gang.phase,
            "pods": pods,
            "reason": gang.reason.as_ref().map(|reason| &reason.text),
            "fix": gang.reason.as_ref().map(|reason| &reason.fix),
        })
    });
    serde_json::json!({ "gangs": gangs.collect::<Vec<_>>() })
}
