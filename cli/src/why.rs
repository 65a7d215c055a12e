//! `phalanx why`: why a gang waits and what would help, or where it runs.

use phalanx_core::view::{Explanation, GangView};

use crate::arguments::Why;
use crate::client::Client;
use crate::failure::{Failure, Format, print_json, print_text};
use crate::get::link_text;

/// Explains one gang.
///
/// # Errors
/// The server cannot be reached or knows no gang, job or pod of this name.
pub fn run(client: &Client, options: &Why, format: Format) -> Result<(), Failure> {
    let explanation = client.explain(&options.object()?)?;
    match format {
        Format::Json => print_json(&explanation),
        Format::Text => {
            print_text(&text(&explanation));
            Ok(())
        }
    }
}

/// The explanation for people: the server's lines, and where pods run.
#[must_use]
pub fn text(explanation: &Explanation) -> String {
    let gang = &explanation.gang;
    let mut lines = explanation.lines.clone();
    if &*gang.phase == "finished" {
        let ended = |phase: &str| gang.pods.iter().filter(|pod| &*pod.phase == phase).count();
        lines.push(format!("it has finished: succeeded {}, failed {}", ended("Succeeded"), ended("Failed")));
    }
    let places = places(gang);
    if !places.is_empty() {
        lines.push("where it runs:".to_owned());
        lines.extend(places);
    }
    lines.join("\n")
}

/// Nodes of the placed pods, a line each.
fn places(gang: &GangView) -> Vec<String> {
    let runs = |phase: &str| !matches!(phase, "Succeeded" | "Failed");
    let placed = gang.pods.iter().filter(|pod| pod.node.is_some() && runs(&pod.phase));
    placed
        .map(|pod| {
            let node = pod.node.as_ref().map_or("", |node| node.as_str());
            let gpus = match pod.gpus.len() {
                0 => String::new(),
                1 => ", 1 GPU".to_owned(),
                count if pod.link_class.is_none() => format!(", {count} GPUs"),
                count => format!(", {count} GPUs, {}", link_text(pod.link_class)),
            };
            format!("  {} on {node} ({}{gpus})", pod.name, pod.phase)
        })
        .collect()
}
