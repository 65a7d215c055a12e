//! What changed between two looks at the state, as lines: one for each step of a gang that lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_common::ids::{GangName, GpuId, NodeName};
use phalanx_common::topology::LinkClass;
use phalanx_core::view::{GangView, StateView};

/// Where a pod is or was. Kept after its end, for the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: NodeName,
    /// Its GPUs.
    pub gpus: Vec<GpuId>,
    /// Their link class.
    pub link_class: Option<LinkClass>,
}

/// What has been seen of all gangs.
#[derive(Debug, Default)]
pub struct Progress {
    told: BTreeMap<GangName, (String, String)>,
    phases: BTreeMap<GangName, Vec<String>>,
    /// Places by gang and pod name.
    pub places: BTreeMap<(GangName, String), Place>,
}

impl Progress {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a state; gives a line for each gang whose phase or kind of reason is new. Phases that
    /// last milliseconds are not told on their own.
    pub fn look(&mut self, state: &StateView, since: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        for gang in &state.gangs {
            self.note(gang);
            let code = gang.reason.as_ref().map_or("", |reason| &*reason.code).to_owned();
            let step = (gang.phase.to_string(), code);
            if !lasts(gang) || self.told.get(&gang.name) == Some(&step) {
                continue;
            }
            self.told.insert(gang.name.clone(), step);
            let seconds = since.as_secs_f64();
            let name = gang.name.to_string();
            lines.push(format!("  {seconds:4.1}s {name:<28} {:<9} {}", gang.phase, self.detail(gang)));
        }
        lines
    }

    fn note(&mut self, gang: &GangView) {
        let phases = self.phases.entry(gang.name.clone()).or_default();
        if phases.last().is_none_or(|last| **last != *gang.phase) {
            phases.push(gang.phase.to_string());
        }
        for pod in &gang.pods {
            if let Some(node) = &pod.node {
                let place = Place { node: node.clone(), gpus: pod.gpus.clone(), link_class: pod.link_class };
                let known =
                    self.places.entry((gang.name.clone(), pod.name.to_string())).or_insert(place.clone());
                if !place.gpus.is_empty() {
                    *known = place;
                }
            }
        }
    }

    fn detail(&self, gang: &GangView) -> String {
        match (&gang.reason, &*gang.phase) {
            (Some(reason), _) => reason.text.clone(),
            (None, "running") => {
                let mut gpus: BTreeMap<&NodeName, usize> = BTreeMap::new();
                for place in self.places_of(&gang.name).map(|(_, place)| place) {
                    *gpus.entry(&place.node).or_default() += place.gpus.len();
                }
                let nodes: Vec<String> =
                    gpus.iter().map(|(node, count)| format!("{node} ({count})")).collect();
                format!("{}, GPUs on {}", pods(gang.pods.len()), nodes.join(", "))
            }
            (None, _) => pods(gang.pods.len()),
        }
    }

    /// Places of a gang's pods, by pod name.
    pub fn places_of(&self, gang: &GangName) -> impl Iterator<Item = (&String, &Place)> {
        self.places.iter().filter(move |((of, _), _)| of == gang).map(|((_, pod), place)| (pod, place))
    }

    /// True where the gang was seen running.
    #[must_use]
    pub fn has_run(&self, gang: &GangName) -> bool {
        self.was_seen(gang, "running") || self.has_finished(gang)
    }

    /// True where the gang was seen finished.
    #[must_use]
    pub fn has_finished(&self, gang: &GangName) -> bool {
        self.was_seen(gang, "finished")
    }

    fn was_seen(&self, gang: &GangName, phase: &str) -> bool {
        self.phases.get(gang).is_some_and(|phases| phases.iter().any(|seen| seen == phase))
    }
}

fn pods(count: usize) -> String {
    format!("{count} pod{}", if count == 1 { "" } else { "s" })
}

/// True for what a gang does for longer than the exchange of a few messages.
fn lasts(gang: &GangView) -> bool {
    match &gang.reason {
        Some(reason) => &*reason.code != "InProgress",
        None => matches!(&*gang.phase, "running" | "degraded" | "finished"),
    }
}
