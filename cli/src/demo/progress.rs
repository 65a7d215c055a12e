//! What changed between two looks at the state, as lines: one for each step of a gang that lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use phalanx_common::ids::{GangName, GpuId, NodeName};
use phalanx_common::topology::LinkClass;
use phalanx_core::view::{GangView, StateView};

use crate::title::title;

/// Letters of a line's last part; `why` tells the whole.
const DETAIL_WIDTH: usize = 76;

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
    /// Phase and reason code told last.
    told: BTreeMap<GangName, (String, String)>,
    /// Phase and reason code at the last look.
    seen: BTreeMap<GangName, (String, String)>,
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

    /// Takes in a state; gives a line for each gang whose phase or kind of reason is new. What lasts
    /// milliseconds is not told: a reason has to stand for two looks.
    pub fn look(&mut self, state: &StateView, since: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        for gang in &state.gangs {
            self.note(gang);
            let code = gang.reason.as_ref().map_or("", |reason| &*reason.code).to_owned();
            let step = (gang.phase.to_string(), code);
            let stands = self.seen.insert(gang.name.clone(), step.clone()) == Some(step.clone());
            let new = self.told.get(&gang.name) != Some(&step);
            if !new || !lasts(gang) || (gang.reason.is_some() && !stands) {
                continue;
            }
            self.told.insert(gang.name.clone(), step);
            let seconds = since.as_secs_f64();
            let detail = shorten(&self.detail(gang), DETAIL_WIDTH);
            lines.push(format!("  {seconds:4.1}s  {:<22} {:<9} {detail}", title(gang), gang.phase));
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
                let places = || self.places_of(&gang.name).map(|(_, place)| place);
                let gpus = places().map(|place| place.gpus.len()).sum();
                let nodes: BTreeSet<&str> = places().map(|place| place.node.as_str()).collect();
                let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
                format!("{}, {} on {nodes}", count(gang.pods.len(), "pod"), count(gpus, "GPU"))
            }
            (None, _) => count(gang.pods.len(), "pod"),
        }
    }

    /// Places of a gang's pods, by pod name.
    pub fn places_of(&self, gang: &GangName) -> impl Iterator<Item = (&String, &Place)> {
        self.places.iter().filter(move |((of, _), _)| of == gang).map(|((_, pod), place)| (pod, place))
    }

    /// True where a line has told why the gang waits.
    #[must_use]
    pub fn has_told_reason(&self, gang: &GangName) -> bool {
        self.told.get(gang).is_some_and(|(_, code)| !code.is_empty())
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

/// At most `width` letters, cut at the end of a word.
fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let cut: String = text.chars().take(width - 2).collect();
    let cut = cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words);
    format!("{} …", cut.trim_end_matches([',', ';', ':', ' ']))
}

/// `1 pod`, `4 pods`.
fn count(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// True for what a gang does for longer than the exchange of a few messages.
fn lasts(gang: &GangView) -> bool {
    match &gang.reason {
        // Pods of a job are made one after another.
        Some(reason) => !matches!(&*reason.code, "InProgress" | "TooFewPods"),
        None => matches!(&*gang.phase, "running" | "degraded" | "finished"),
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;

    use phalanx_common::resources::{NVIDIA_GPU, ResourceName, Resources};
    use phalanx_common::units::Time;
    use phalanx_core::reason::Reason;
    use phalanx_core::view::{PodView, ReasonView};

    use super::*;

    /// A gang of one pod with so many GPUs.
    pub fn gang(name: &str, phase: &str, gpus: u64) -> GangView {
        let request = Resources::new().with(ResourceName::known(NVIDIA_GPU), gpus);
        let placed = phase == "running";
        let pod = PodView {
            name: Arc::from(format!("{name}-0")),
            uid: name.into(),
            task: Arc::from("worker"),
            phase: Arc::from("Pending"),
            request,
            node: placed.then(|| "node-1".into()),
            lease: None,
            gpus: if placed {
                (0..gpus).map(|gpu| GpuId(u128::from(gpu) << 96)).collect()
            } else {
                Vec::new()
            },
            link_class: placed.then_some(LinkClass::NvLink),
        };
        GangView {
            name: GangName::new("team", name),
            queue: "default".into(),
            priority: 0,
            phase: Arc::from(phase),
            pod_group_phase: Arc::from("Inqueue"),
            minimum: 1,
            created: Time(0),
            pods: vec![pod],
            reason: None,
        }
    }

    /// The same gang with a reason.
    pub fn with_reason(mut gang: GangView, reason: Reason) -> GangView {
        let code = Arc::from(reason.code());
        gang.reason = Some(ReasonView { code, text: "text".to_owned(), fix: reason.fix(), reason });
        gang
    }

    /// A reason that lasts milliseconds.
    pub fn in_progress() -> Reason {
        Reason::InProgress { step: Arc::from("confirmation") }
    }

    /// A reason that lasts.
    pub fn no_queue() -> Reason {
        Reason::NoSuchQueue { queue: "q".into() }
    }

    /// A state of these gangs.
    pub fn state(gangs: Vec<GangView>) -> StateView {
        StateView {
            queues: Vec::new(),
            gangs,
            nodes: Vec::new(),
            pods_without_gang: Vec::new(),
            budgets: Vec::new(),
            policies: Vec::new(),
        }
    }

    #[test]
    fn each_lasting_step_is_told_once() {
        let mut progress = Progress::new();
        let mut look = |gang: GangView| progress.look(&state(vec![gang]), Duration::from_millis(1500));
        let waits = with_reason(gang("a", "admitted", 2), no_queue());
        assert!(look(waits.clone()).is_empty(), "may be gone at the next look");
        assert_eq!(look(waits.clone()), ["   1.5s  team/a                 admitted  text"]);
        assert!(look(waits).is_empty(), "told already");
        assert!(look(with_reason(gang("a", "reserving", 2), in_progress())).is_empty(), "lasts milliseconds");
        assert_eq!(
            look(gang("a", "running", 2)),
            ["   1.5s  team/a                 running   1 pod, 2 GPUs on node-1"]
        );
        assert_eq!(look(gang("a", "finished", 2)), ["   1.5s  team/a                 finished  1 pod"]);
        let name = GangName::new("team", "a");
        assert!(progress.has_run(&name) && progress.has_finished(&name));
        let (pod, place) = progress.places_of(&name).next().unwrap();
        assert_eq!(shorten("one, two three", 9), "one …");
        assert_eq!((pod.as_str(), place.gpus.len()), ("a-0", 2), "places stay after the end");
    }
}
