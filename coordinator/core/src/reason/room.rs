//! What is free where a gang does not fit, who has the rest, and which nodes are closed.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::NodeName;
use phalanx_common::resources::{NVIDIA_GPU, format_amount};
use serde::{Deserialize, Serialize};

use crate::amounts::PODS;

use super::fewer::{Fewer, or_fewer};
use super::{Held, HeldFor, MIX_FIX, NoEviction, OtherHolder, Unmet, Unsuited};

/// What is free where a gang does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRoom {
    /// Pods that would fit now.
    pub fit: u32,
    /// Pods that would not fit, though others were evicted where that helps: how many, and how much of the resource each
    /// asks for. Empty where only the first that does not fit is known.
    #[serde(default)]
    pub missing: Vec<(u32, u64)>,
    /// Pods that must start together.
    pub minimum: u32,
    /// Pods that take part.
    pub pods: u32,
    /// The resource that runs short.
    pub resource: Arc<str>,
    /// What the first pod that does not fit asks of it.
    pub asked: u64,
    /// Free in the whole cluster.
    pub free_total: u64,
    /// Free on the node with most of it.
    pub largest: u64,
    /// Node, free, capacity; where there are more than 8 nodes, the 8 with most free.
    pub free_by_node: Vec<(NodeName, u64, u64)>,
    /// Nodes that have room for one such pod.
    pub feasible_nodes: u32,
    /// It would fit if GPUs of several models could be mixed.
    pub mixed_models_would_fit: bool,
    /// The largest minimum that would fit now, where there is one.
    pub lower_to: Option<Fewer>,
    /// Nodes that take no new pods, and why; at most 8.
    pub closed: Vec<(NodeName, Closed)>,
    /// GPUs whose holder does not use them yet, or any more; at most 4.
    #[serde(default)]
    pub held: Vec<Held>,
    /// What pods of other schedulers hold; at most 4.
    #[serde(default)]
    pub others: Vec<OtherHolder>,
    /// What is held for other gangs; at most 8.
    #[serde(default)]
    pub holds: Vec<HeldFor>,
    /// Why nobody is evicted for it, where somebody could be.
    #[serde(default)]
    pub eviction: Option<Box<NoEviction>>,
    /// Nodes that constraints of the pod leave out, or ports and numbers of pods in use.
    #[serde(default)]
    pub left_out: Option<Box<Unsuited>>,
}

/// Why a node takes no new pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closed {
    /// Its object says so.
    Unschedulable,
    /// Its condition `Ready` is not true.
    NotReady,
    /// Kubernetes keeps pods away for its state; the taint.
    Tainted(Arc<str>),
    /// No connection to its agent.
    AgentAway,
    /// No connection to its agent for so long.
    NoReport {
        /// Seconds since it ended.
        seconds: u64,
    },
    /// Its driver answers with an error.
    DriverError(Arc<str>),
    /// It refused or did not answer; it opens again by itself.
    Quarantined(Arc<str>),
    /// Its object was deleted.
    Removed,
    /// Its agent speaks, or something runs there, and the API server has no such Node.
    NoObject,
}

impl Closed {
    /// What would open the node.
    pub(super) fn fix(&self, node: &NodeName) -> String {
        match self {
            Self::Unschedulable => format!("make node {node} schedulable"),
            Self::NotReady => format!("wait until node {node} is ready, or see why its kubelet is not"),
            Self::AgentAway | Self::NoReport { .. } => format!("bring the agent of {node} back"),
            Self::Tainted(taint) => {
                format!("wait until Kubernetes takes {taint} from {node}, or tolerate it")
            }
            Self::DriverError(_) => format!("repair the driver of {node}"),
            Self::Quarantined(_) => format!("wait until {node} opens again, which it does by itself"),
            Self::Removed | Self::NoObject => {
                format!("bring node {node} back, as its kubelet does when it registers")
            }
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => formatter.write_str("unschedulable"),
            Self::NotReady => formatter.write_str("not ready"),
            Self::Tainted(taint) => write!(formatter, "tainted {taint}"),
            Self::AgentAway => formatter.write_str("its agent is not connected"),
            Self::NoReport { seconds } => write!(formatter, "no report for {seconds} s"),
            Self::DriverError(message) => write!(formatter, "driver error: {message}"),
            Self::Quarantined(why) => formatter.write_str(why),
            Self::Removed => formatter.write_str("no such node any more"),
            Self::NoObject => formatter.write_str("it has no Node object"),
        }
    }
}

/// It would fit if pods of one task could use several models.
pub(super) const WITH_ONE_MODEL: &str = " with one GPU model per task";

/// A gang, or a group of gangs, asks for more of a resource than there is.
pub(super) fn more_than_all_nodes(resource: &str, total: u64, asked: u64, is_group: bool) -> String {
    let asked = format_amount(resource, asked);
    let who = if is_group { "the group" } else { "the gang" };
    if total == 0 {
        return format!("can never fit: no node offers {resource}, {who} needs {asked}");
    }
    let total = amount_of(resource, total);
    format!("can never fit: all nodes together have {total}, {who} needs at least {asked}")
}

/// A gang, or a group of gangs, asks for more than a queue may ever have.
pub(super) fn above_ceiling(
    of: &dyn fmt::Display,
    resource: &str,
    limit: u64,
    asked: u64,
    is_group: bool,
) -> String {
    let (limit, asked) = (format_amount(resource, limit), format_amount(resource, asked));
    let who = if is_group { "the group's minimum" } else { "the gang's minimum" };
    format!("{of} has capability {resource} {limit}, {who} asks {asked}: it can never run there")
}

pub(super) fn fix_of_all_nodes(resource: &str, total: u64, asked: u64, is_group: bool) -> String {
    if total == 0 {
        let name = resource.trim_end_matches('s');
        let instead = match resource {
            NVIDIA_GPU => String::new(),
            _ if name == "gpu" || name == NVIDIA_GPU => format!("ask for {NVIDIA_GPU}, or "),
            _ => "correct the name, or ".to_owned(),
        };
        return format!("{instead}add nodes that offer {resource}");
    }
    format!(
        "add nodes that take its pods and have {} more together, or have {} need at most {} (of a Job lower what its \
         pods ask, or minAvailable of it and of its tasks, of a PodGroup spec.minResources)",
        amount_of(resource, asked.saturating_sub(total)),
        if is_group { "its gangs" } else { "it" },
        format_amount(resource, total)
    )
}

impl NoRoom {
    pub(super) fn fix(&self) -> String {
        if self.mixed_models_would_fit {
            return MIX_FIX.to_owned();
        }
        let missing: u32 = match self.missing.iter().map(|(count, _)| *count).sum() {
            0 => self.minimum.saturating_sub(self.fit),
            missing => missing,
        };
        if &*self.resource == PODS {
            let slots =
                if missing == 1 { "1 more pod slot is" } else { &format!("{missing} more pod slots are") };
            return format!("wait until {slots} free{}", or_fewer(self.lower_to.as_ref()));
        }
        if let Some(unmet) = self.left_out.as_ref().and_then(|out| out.in_use()) {
            let nodes = if missing == 1 { "1 more node".to_owned() } else { format!("{missing} more nodes") };
            let what = match unmet {
                Unmet::Port(port) => format!("{port} is free on {nodes}"),
                _ => format!("{nodes} may have one pod more"),
            };
            return format!("wait until {what}{}", or_fewer(self.lower_to.as_ref()));
        }
        format!(
            "wait for room for {}{}{}{}",
            pods(missing, "more "),
            self.sizes(missing),
            or_fewer(self.lower_to.as_ref()),
            or_change(self.left_out.as_deref())
        )
    }
}

impl NoRoom {
    /// What evicting others would help, or why it would not.
    pub(crate) fn settle_evictions(&mut self, why: Option<Box<NoEviction>>) {
        let evicted = why.as_ref().and_then(|why| why.lower_to.clone());
        self.lower_to = self.lower_to.take().max(evicted);
        self.count_on_evictions(why.as_deref());
        self.eviction = why;
    }

    /// Once there is room for some of its pods, others are evicted for the rest: then that is not waited for.
    fn count_on_evictions(&mut self, why: Option<&NoEviction>) {
        let sum =
            |sizes: &[(u32, u64)]| sizes.iter().map(|(count, asked)| u64::from(*count) * asked).sum::<u64>();
        let missing = why.map(|why| &why.missing).filter(|missing| !missing.is_empty());
        if let Some(missing) = missing.filter(|missing| sum(missing) < sum(&self.missing))
            && &*self.resource == NVIDIA_GPU
        {
            self.missing.clone_from(missing);
        }
    }

    /// What so many pods that are missing ask for: ` of 2 GPUs each`, `: 1 of 4 GPUs, 2 of 1 GPU`.
    fn sizes(&self, missing: u32) -> String {
        let amount = |asked: u64| amount_of(&self.resource, asked);
        match &self.missing[..] {
            [_, _, ..] => {
                let sizes =
                    self.missing.iter().map(|(count, asked)| format!("{count} of {}", amount(*asked)));
                format!(": {}", sizes.collect::<Vec<_>>().join(", "))
            }
            one => {
                let asked = one.first().map_or(self.asked, |(_, asked)| *asked);
                format!(" of {}{}", amount(asked), if missing == 1 { "" } else { " each" })
            }
        }
    }
}

/// The suggestion to change the pod, where that would do.
pub(super) fn or_change(left_out: Option<&Unsuited>) -> String {
    let fix = left_out.map(Unsuited::fix).unwrap_or_default();
    if fix.is_empty() { fix } else { format!(", or {fix}") }
}

/// What would open these nodes, one after the other.
pub(super) fn open_nodes(nodes: &[(NodeName, Closed)], between: &str) -> String {
    nodes.iter().map(|(node, closed)| closed.fix(node)).collect::<Vec<_>>().join(between)
}

/// Nodes to open and the change of the pod that must go with it; empty where that would not do.
pub(super) fn open_and_change(nodes: &[(NodeName, Closed)], left_out: Option<&Unsuited>) -> String {
    let fix = left_out.map(Unsuited::fix).filter(|_| !nodes.is_empty());
    fix.map(|fix| format!("{} and {fix}, or ", open_nodes(nodes, " and "))).unwrap_or_default()
}

/// `1 more pod`, `3 pods`.
pub(super) fn pods(count: u32, more: &str) -> String {
    format!("{count} {more}pod{}", if count == 1 { "" } else { "s" })
}

/// What is counted by its word: `GPU`, `pod slot`; `None` where the resource's name stands before its amount.
fn counted(resource: &str) -> Option<&'static str> {
    match resource {
        NVIDIA_GPU => Some("GPU"),
        PODS => Some("pod slot"),
        _ => None,
    }
}

/// A resource's amount as people say it: `8 GPUs`, `1 pod slot`, `cpu 32`, `memory 256Gi`.
pub(super) fn amount_of(resource: &str, amount: u64) -> String {
    match counted(resource) {
        Some(word) => format!("{amount} {word}{}", if amount == 1 { "" } else { "s" }),
        None => format!("{resource} {}", format_amount(resource, amount)),
    }
}

/// `8 free GPUs`, `cpu 32 free`.
fn free_amount_of(resource: &str, amount: u64) -> String {
    match counted(resource) {
        Some(word) => format!("{amount} free {word}{}", if amount == 1 { "" } else { "s" }),
        None => format!("{} free", amount_of(resource, amount)),
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |amount: u64| format_amount(&self.resource, amount);
        if self.minimum == 1 && self.pods == 1 {
            formatter.write_str("no room for the pod")?;
        } else {
            let (minimum, fit) = (self.minimum, self.fit);
            write!(formatter, "{minimum} of {} pods needed, only {fit} of {minimum} pods fit", self.pods)?;
        }
        formatter.write_str(if self.mixed_models_would_fit { WITH_ONE_MODEL } else { "" })?;
        formatter.write_str(": ")?;
        write!(
            formatter,
            "{} {}node{} with {}; {} free in total",
            self.feasible_nodes,
            if self.left_out.is_some() { "suitable " } else { "" },
            if self.feasible_nodes == 1 { "" } else { "s" },
            free_amount_of(&self.resource, self.asked),
            amount_of(&self.resource, self.free_total),
        )?;
        if !self.free_by_node.is_empty() {
            let free: Vec<String> = self.free_by_node.iter().map(|(_, free, _)| amount(*free)).collect();
            let nodes = self.free_by_node.iter();
            let nodes =
                nodes.map(|(node, free, all)| format!("{node}: {} of {} free", amount(*free), amount(*all)));
            let (free, nodes) = (free.join(","), nodes.collect::<Vec<_>>().join(", "));
            let largest = amount(self.largest);
            write!(formatter, "; free per node {free}; largest free block {largest} ({nodes})")?;
        }
        for held in &self.held {
            write!(formatter, "; {held}")?;
        }
        for other in &self.others {
            write!(formatter, "; {}", other.text(&self.resource))?;
        }
        for held in &self.holds {
            write!(formatter, "; {held}")?;
        }
        if let Some(eviction) = &self.eviction {
            write!(formatter, "; {eviction}")?;
        }
        if let Some(out) = &self.left_out {
            write!(formatter, "; {} {out}", out.of_nodes())?;
        }
        if self.closed.is_empty() {
            return Ok(());
        }
        write!(formatter, "; closed: {}", name_closed(&self.closed))
    }
}

pub(super) fn name_closed(nodes: &[(NodeName, Closed)]) -> String {
    nodes.iter().map(|(node, closed)| format!("{node}: {closed}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_resource_that_nobody_offers_the_name_is_doubted() {
        assert_eq!(
            more_than_all_nodes("gpu", 0, 8, false),
            "can never fit: no node offers gpu, the gang needs 8"
        );
        for (name, fix) in [
            ("gpu", "ask for nvidia.com/gpu, or add nodes that offer gpu"),
            ("nvidia.com/gpus", "ask for nvidia.com/gpu, or add nodes that offer nvidia.com/gpus"),
            ("mars-tech.com/gpu", "correct the name, or add nodes that offer mars-tech.com/gpu"),
            ("nvidia.com/gpu", "add nodes that offer nvidia.com/gpu"),
        ] {
            assert_eq!(fix_of_all_nodes(name, 0, 8, false), fix);
        }
    }
}
