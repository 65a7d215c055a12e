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
    },
    /// Not enough free now.
    NoRoom(NoRoom),
    /// Nodes it needs are closed: agents are away, or refused too often.
    NodesClosed {
        /// Closed nodes and why.
        nodes: Vec<(NodeName, Arc<str>)>,
        /// What would be free otherwise.
        room: Box<NoRoom>,
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
            Self::AboveCapability { queue, resource, asked, .. } => format!(
                "raise capability {resource} of Queue {queue} to {}, or lower minMember",
                format_amount(resource, *asked)
            ),
            Self::QuotaUsed { queue, resource, limit, used, asked } => format!(
                "wait for {} to end in Queue {queue}, or raise its capability {resource} by {}",
                format_amount(resource, used.saturating_add(*asked).saturating_sub(*limit)),
                format_amount(resource, used.saturating_add(*asked).saturating_sub(*limit))
            ),
            Self::TooFewPods { exist, minimum, task } => {
                let more = pods(minimum.saturating_sub(*exist), "more ");
                match task {
                    Some(task) => format!("create {more} of task {task}, or lower its minimum"),
                    None if *exist == 0 => format!("create {} of this gang", pods(*minimum, "")),
                    None => format!("create {more}, or lower minMember to {exist}"),
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
            Self::LargerThanCluster { fit, minimum, shape, .. } => {
                let lower = if *fit > 0 { format!(", or lower minMember to {fit}") } else { String::new() };
                format!("add nodes for {} of {shape}{lower}", pods(minimum.saturating_sub(*fit), "more "))
            }
            Self::NoRoom(room) => room.fix(),
            Self::NodesClosed { nodes, .. } => {
                let names: Vec<&str> = nodes.iter().map(|(node, _)| node.as_str()).collect();
                format!("look at {}: a node opens again by itself once its agent answers", names.join(", "))
            }
            Self::InProgress { .. } => String::new(),
        }
    }
}

const MIX_FIX: &str =
    "annotate the gang phalanx.dev/mixed-gpu-models: \"true\" to use GPUs of several models";

impl NoRoom {
    fn fix(&self) -> String {
        if self.mixed_models_would_fit {
            return MIX_FIX.to_owned();
        }
        let missing = self.minimum.saturating_sub(self.fit);
        let lower =
            if self.fit > 0 { format!(", or lower minMember to {}", self.fit) } else { String::new() };
        format!(
            "wait for room for {} of {}{}{lower}",
            pods(missing, "more "),
            amount_of(&self.resource, self.asked),
            if missing == 1 { "" } else { " each" },
        )
    }
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
        write!(
            formatter,
            "{} of {} pods needed, only {} of {} pods fit: {} node{} with {}; {} free in total",
            self.minimum,
            self.pods,
            self.fit,
            self.minimum,
            self.feasible_nodes,
            if self.feasible_nodes == 1 { "" } else { "s" },
            free_amount_of(&self.resource, self.asked),
            amount_of(&self.resource, self.free_total),
        )?;
        if self.free_by_node.is_empty() {
            return Ok(());
        }
        let free: Vec<String> = self.free_by_node.iter().map(|(_, free, _)| amount(*free)).collect();
        let nodes: Vec<String> = self
            .free_by_node
            .iter()
            .map(|(node, free, all)| format!("{node}: {} of {} free", amount(*free), amount(*all)))
            .collect();
        let largest = amount(self.largest);
        write!(
            formatter,
            "; free per node {}; largest free block {largest} ({})",
            free.join(","),
            nodes.join(", ")
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchQueue { queue } => write!(formatter, "queue {queue} does not exist"),
            Self::QueueClosed { queue } => {
                write!(formatter, "queue {queue} is closed and takes no new gangs")
            }
            Self::NoSuchPriorityClass { class } => write!(formatter, "PriorityClass {class} does not exist"),
            Self::AboveCapability { queue, resource, limit, asked } => write!(
                formatter,
                "queue {queue} has capability {resource} {}, the gang's minimum asks {}: it can never run there",
                format_amount(resource, *limit),
                format_amount(resource, *asked)
            ),
            Self::QuotaUsed { queue, resource, limit, used, asked } => write!(
                formatter,
                "queue {queue} quota: capability {resource} {}, used {}, the gang's minimum asks {}",
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
            Self::LargerThanCluster { fit, minimum, shape, mixed_models_would_fit } => {
                let models = if *mixed_models_would_fit { " with one GPU model per task" } else { "" };
                write!(
                    formatter,
                    "can never fit: {minimum} pods of {shape} needed, an empty cluster takes {fit}{models}"
                )
            }
            Self::NoRoom(room) => room.fmt(formatter),
            Self::NodesClosed { nodes, room } => {
                let nodes: Vec<String> = nodes.iter().map(|(node, why)| format!("{node}: {why}")).collect();
                write!(formatter, "closed nodes would have room: {}; without them {room}", nodes.join("; "))
            }
            Self::InProgress { step } => write!(formatter, "in progress: {step}"),
        }
    }
}
