//! Why a gang does not run: the limiting thing, its limit, its use, the request and the nearest fix.
//! Event, condition, CLI and dashboard print the same value.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::{NodeName, QueueName};
use phalanx_common::resources::{NVIDIA_GPU, format_amount};
use serde::{Deserialize, Serialize};

/// Why a gang waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The queue it names does not exist.
    NoSuchQueue {
        /// The queue named.
        queue: QueueName,
    },
    /// The queue takes no new gangs.
    QueueClosed {
        /// The queue.
        queue: QueueName,
    },
    /// The PriorityClass it names does not exist.
    NoSuchPriorityClass {
        /// The class named.
        class: Arc<str>,
    },
    /// It asks for more than the queue's ceiling: it can never run there.
    AboveCapability {
        /// The queue.
        queue: QueueName,
        /// The resource.
        resource: Arc<str>,
        /// The ceiling.
        limit: u64,
        /// What the gang's minimum asks.
        asked: u64,
        /// The largest minimum that the ceiling allows, where there is one.
        lower_to: Option<u32>,
    },
    /// The queue's ceiling is reached.
    QuotaUsed {
        /// The queue.
        queue: QueueName,
        /// The resource.
        resource: Arc<str>,
        /// The ceiling.
        limit: u64,
        /// In use.
        used: u64,
        /// What the gang's minimum asks.
        asked: u64,
    },
    /// Fewer pods exist than must start together.
    TooFewPods {
        /// Pods that exist.
        exist: u32,
        /// The minimum.
        minimum: u32,
        /// The task that lacks pods, where a task's own minimum is not met.
        task: Option<Arc<str>>,
    },
    /// A pod cannot be placed because of a field of its own.
    PodBlocked {
        /// The pod.
        pod: Arc<str>,
        /// The field.
        field: Arc<str>,
        /// What is wrong and what would help.
        message: Arc<str>,
    },
    /// A node selector that no node meets.
    NoNodeMatches {
        /// The selector, `key=value` with commas.
        selector: Arc<str>,
    },
    /// No node offers a resource at all.
    NoNodeOffers {
        /// The resource.
        resource: Arc<str>,
        /// What a pod asks.
        asked: u64,
        /// A name that is offered and close to it.
        suggestion: Option<Arc<str>>,
    },
    /// A pod is larger than the largest node, even when that is empty.
    LargerThanAnyNode {
        /// The resource.
        resource: Arc<str>,
        /// What the largest node has in all.
        largest: u64,
        /// What the pod asks.
        asked: u64,
    },
    /// The whole cluster, empty, would not take the gang's minimum.
    LargerThanCluster {
        /// Pods of the minimum that an empty cluster would take.
        fit: u32,
        /// The minimum.
        minimum: u32,
        /// What limits: the shape of the pod that does not fit.
        shape: Arc<str>,
        /// Pods would fit if GPUs of several models could be mixed.
        mixed_models_would_fit: bool,
        /// The largest minimum that an empty cluster would take, where there is one.
        lower_to: Option<u32>,
    },
    /// Not enough free now.
    NoRoom(Box<NoRoom>),
    /// It would fit if nodes were open that are closed now.
    NodesClosed {
        /// The nodes it would use, and why each is closed.
        nodes: Vec<(NodeName, Closed)>,
        /// What would be free otherwise.
        room: Box<NoRoom>,
    },
    /// It runs, and more of its pods wait for a place.
    MorePodsWait {
        /// Pods that wait.
        waiting: u32,
        /// Why the first of them does.
        cause: Box<Reason>,
    },
    /// It is being placed at this moment.
    InProgress {
        /// What is awaited.
        step: Arc<str>,
    },
}

/// What is free where a gang does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRoom {
    /// Pods that would fit now.
    pub fit: u32,
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
    pub lower_to: Option<u32>,
    /// Nodes that take no new pods, and why; at most 8.
    pub closed: Vec<(NodeName, Closed)>,
    /// GPUs whose holder does not use them yet, or any more; at most 4.
    #[serde(default)]
    pub held: Vec<Held>,
    /// What pods of other schedulers hold; at most 4.
    #[serde(default)]
    pub others: Vec<OtherHolder>,
}

/// What pods of another scheduler hold on a node. It is theirs: nothing of them is ever evicted for a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherHolder {
    /// The node.
    pub node: NodeName,
    /// The scheduler that they name.
    pub scheduler: Arc<str>,
    /// How many pods.
    pub pods: u32,
    /// What they hold together of the resource that runs short.
    pub amount: u64,
}

impl OtherHolder {
    fn text(&self, resource: &str) -> String {
        let amount = amount_of(resource, self.amount);
        let whose = match self.pods {
            1 => "a pod".to_owned(),
            count => format!("{count} pods"),
        };
        format!("{}: {amount} held by {whose} of scheduler {}", self.node, self.scheduler)
    }
}

/// GPUs of one node with a holder that a person may wonder about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The node.
    pub node: NodeName,
    /// NVML indexes of the GPUs.
    pub gpus: Vec<u32>,
    /// The pod.
    pub by: Arc<str>,
    /// Its state, as `bound, device not yet taken`.
    pub state: Arc<str>,
}

impl fmt::Display for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus: Vec<String> = self.gpus.iter().map(|index| format!("g{index}")).collect();
        write!(formatter, "{}: {} held by {} ({})", self.node, gpus.join(","), self.by, self.state)
    }
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
    /// Neither object nor agent is left.
    Removed,
}

impl Closed {
    /// What would open the node.
    fn fix(&self, node: &NodeName) -> String {
        match self {
            Self::Unschedulable => format!("make node {node} schedulable"),
            Self::NotReady => format!("wait until node {node} is ready, or see why its kubelet is not"),
            Self::AgentAway | Self::NoReport { .. } => format!("bring the agent of {node} back"),
            Self::Tainted(taint) => {
                format!("wait until Kubernetes takes {taint} from {node}, or tolerate it")
            }
            Self::DriverError(_) => format!("repair the driver of {node}"),
            Self::Quarantined(_) => format!("wait until {node} opens again, which it does by itself"),
            Self::Removed => format!("bring node {node} back"),
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
        }
    }
}

impl Reason {
    /// Short name, stable, for conditions and metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoSuchQueue { .. } => "NoSuchQueue",
            Self::QueueClosed { .. } => "QueueClosed",
            Self::NoSuchPriorityClass { .. } => "NoSuchPriorityClass",
            Self::AboveCapability { .. } => "AboveCapability",
            Self::QuotaUsed { .. } => "QuotaUsed",
            Self::TooFewPods { .. } => "TooFewPods",
            Self::PodBlocked { .. } => "PodBlocked",
            Self::NoNodeMatches { .. } => "NoNodeMatches",
            Self::NoNodeOffers { .. } => "NoNodeOffers",
            Self::LargerThanAnyNode { .. } => "LargerThanAnyNode",
            Self::LargerThanCluster { .. } => "LargerThanCluster",
            Self::NoRoom(_) => "NoRoom",
            Self::NodesClosed { .. } => "NodesClosed",
            Self::MorePodsWait { .. } => "MorePodsWait",
            Self::InProgress { .. } => "InProgress",
        }
    }

    /// The nearest thing a person can do; empty where waiting is the answer.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::NoSuchQueue { queue } => format!("create Queue {queue}, or name another one in spec.queue"),
            Self::QueueClosed { queue } => format!("open Queue {queue}, or name another one in spec.queue"),
            Self::NoSuchPriorityClass { class } => {
                format!("create PriorityClass {class}, or drop priorityClassName")
            }
            Self::AboveCapability { queue, resource, asked, lower_to, .. } => format!(
                "raise capability {resource} of Queue {queue} to {}{}",
                format_amount(resource, *asked),
                lower(*lower_to)
            ),
            Self::QuotaUsed { queue, resource, limit, used, asked } => {
                let short = used.saturating_add(*asked).saturating_sub(*limit);
                format!(
                    "wait for {} of Queue {queue} to be given back, or raise its capability {resource} by {}",
                    amount_of(resource, short),
                    format_amount(resource, short)
                )
            }
            Self::TooFewPods { exist, minimum, task } => {
                let more = pods(minimum.saturating_sub(*exist), "more ");
                match task {
                    Some(task) => {
                        format!("create {more} of task {task}{BY_JOB}, or lower its minimum")
                    }
                    None if *exist == 0 => format!("create {} of this gang{BY_JOB}", pods(*minimum, "")),
                    None => format!("create {more}{BY_JOB}, or lower minMember to {exist}"),
                }
            }
            Self::PodBlocked { field, .. } => format!("change {field}"),
            Self::NoNodeMatches { selector, .. } => {
                format!("label a node {selector}, or change spec.nodeSelector")
            }
            Self::NoNodeOffers { suggestion: Some(name), .. } => format!("ask for {name}"),
            Self::NoNodeOffers { resource, .. } => format!("add a node that offers {resource}"),
            Self::LargerThanAnyNode { resource, largest, asked, .. } => format!(
                "split the pod so that each asks at most {}, or add a node with {}",
                format_amount(resource, *largest),
                format_amount(resource, *asked)
            ),
            Self::LargerThanCluster { mixed_models_would_fit: true, .. } => MIX_FIX.to_owned(),
            Self::LargerThanCluster { fit, minimum, shape, lower_to, .. } => format!(
                "add nodes for {}, of which the next asks {shape}{}",
                pods(minimum.saturating_sub(*fit), "more "),
                lower(*lower_to)
            ),
            Self::NoRoom(room) => room.fix(),
            Self::NodesClosed { nodes, .. } => {
                nodes.iter().map(|(node, closed)| closed.fix(node)).collect::<Vec<_>>().join("; ")
            }
            Self::MorePodsWait { cause, .. } => cause.fix(),
            Self::InProgress { .. } => String::new(),
        }
    }
}

/// The missing pods of a Job are on their way.
const BY_JOB: &str = " (a Job does that by itself)";

const MIX_FIX: &str =
    "annotate the gang phalanx.dev/mixed-gpu-models: \"true\" to use GPUs of several models";

impl NoRoom {
    fn fix(&self) -> String {
        if self.mixed_models_would_fit {
            return MIX_FIX.to_owned();
        }
        let missing = self.minimum.saturating_sub(self.fit);
        format!(
            "wait for room for {} of {}{}{}",
            pods(missing, "more "),
            amount_of(&self.resource, self.asked),
            if missing == 1 { "" } else { " each" },
            lower(self.lower_to)
        )
    }
}

/// The suggestion to lower the minimum, where a lower one would do.
fn lower(minimum: Option<u32>) -> String {
    minimum
        .map(|minimum| format!(", or lower minMember (minAvailable of a Job) to {minimum}"))
        .unwrap_or_default()
}

/// `1 more pod`, `3 pods`.
fn pods(count: u32, more: &str) -> String {
    format!("{count} {more}pod{}", if count == 1 { "" } else { "s" })
}

/// A resource's amount as people say it: `8 GPUs`, `cpu 32`, `memory 256Gi`.
fn amount_of(resource: &str, amount: u64) -> String {
    if resource == NVIDIA_GPU {
        return format!("{amount} GPU{}", if amount == 1 { "" } else { "s" });
    }
    format!("{resource} {}", format_amount(resource, amount))
}

/// `8 free GPUs`, `cpu 32 free`.
fn free_amount_of(resource: &str, amount: u64) -> String {
    if resource == NVIDIA_GPU {
        return format!("{amount} free GPU{}", if amount == 1 { "" } else { "s" });
    }
    format!("{resource} {} free", format_amount(resource, amount))
}

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |amount: u64| format_amount(&self.resource, amount);
        if self.minimum == 1 && self.pods == 1 {
            formatter.write_str("no room for the pod: ")?;
        } else {
            let (minimum, fit) = (self.minimum, self.fit);
            write!(formatter, "{minimum} of {} pods needed, only {fit} of {minimum} pods fit: ", self.pods)?;
        }
        write!(
            formatter,
            "{} node{} with {}; {} free in total",
            self.feasible_nodes,
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
        if self.closed.is_empty() {
            return Ok(());
        }
        write!(formatter, "; closed: {}", name_closed(&self.closed))
    }
}

fn name_closed(nodes: &[(NodeName, Closed)]) -> String {
    nodes.iter().map(|(node, closed)| format!("{node}: {closed}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchQueue { queue } => write!(formatter, "queue {queue} does not exist"),
            Self::QueueClosed { queue } => {
                write!(formatter, "queue {queue} is closed and takes no new gangs")
            }
            Self::NoSuchPriorityClass { class } => write!(formatter, "PriorityClass {class} does not exist"),
            Self::AboveCapability { queue, resource, limit, asked, .. } => write!(
                formatter,
                "queue {queue} has capability {resource} {}, the gang's minimum asks {}: it can never run there",
                format_amount(resource, *limit),
                format_amount(resource, *asked)
            ),
            Self::QuotaUsed { queue, resource, limit, used, asked } => write!(
                formatter,
                "queue {queue} quota: capability {resource} {}, used {}, asked {}",
                format_amount(resource, *limit),
                format_amount(resource, *used),
                format_amount(resource, *asked)
            ),
            Self::TooFewPods { exist, minimum, task: Some(task) } => {
                write!(formatter, "only {exist} of {minimum} pods of task {task} exist")
            }
            Self::TooFewPods { exist, minimum, task: None } => {
                write!(formatter, "only {exist} of the {minimum} pods needed exist")
            }
            Self::PodBlocked { pod, field, message } => write!(formatter, "pod {pod}: {field}: {message}"),
            Self::NoNodeMatches { selector } => write!(formatter, "no node has the labels {selector}"),
            Self::NoNodeOffers { resource, asked, .. } => {
                // Devices count only where an agent confirms them.
                let who = if resource.contains('/') { "no node with an agent" } else { "no node" };
                write!(formatter, "{who} offers {resource}, pod asks {}", format_amount(resource, *asked))
            }
            Self::LargerThanAnyNode { resource, largest, asked } => write!(
                formatter,
                "can never fit: largest node has {}, pod asks {}",
                amount_of(resource, *largest),
                format_amount(resource, *asked)
            ),
            Self::LargerThanCluster { fit, minimum, shape, mixed_models_would_fit, .. } => {
                let models = if *mixed_models_would_fit { " with one GPU model per task" } else { "" };
                write!(
                    formatter,
                    "can never fit: {minimum} pods needed, an empty cluster takes {fit}{models}; the next asks {shape}"
                )
            }
            Self::NoRoom(room) => room.fmt(formatter),
            Self::NodesClosed { nodes, room } => {
                write!(
                    formatter,
                    "nodes it would use are closed: {}; without them {room}",
                    name_closed(nodes)
                )
            }
            Self::MorePodsWait { waiting, cause } => {
                write!(
                    formatter,
                    "it runs; {} for a place: {cause}",
                    if *waiting == 1 {
                        "1 more pod waits".to_owned()
                    } else {
                        format!("{waiting} more pods wait")
                    }
                )
            }
            Self::InProgress { step } => write!(formatter, "in progress: {step}"),
        }
    }
}
