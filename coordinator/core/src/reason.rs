//! Why a gang does not run: the limiting thing, its limit, its use, the request and the nearest fix.
//! Event, condition, CLI and dashboard print the same value.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::{NodeName, QueueName};
use phalanx_common::resources::format_amount;
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
        /// The pod.
        pod: Arc<str>,
        /// The selector, `key=value` with commas.
        selector: Arc<str>,
    },
    /// No node offers a resource at all.
    NoNodeOffers {
        /// The pod.
        pod: Arc<str>,
        /// The resource.
        resource: Arc<str>,
        /// What a pod asks.
        asked: u64,
        /// A name that is offered and close to it.
        suggestion: Option<Arc<str>>,
    },
    /// A pod is larger than the largest node, even when that is empty.
    LargerThanAnyNode {
        /// The pod.
        pod: Arc<str>,
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
    /// The resource that runs short.
    pub resource: Arc<str>,
    /// What the first pod that does not fit asks of it.
    pub asked: u64,
    /// Free in the whole cluster.
    pub free_total: u64,
    /// Free on the nodes with most of it, as `(node, free)`, most first; at most 8.
    pub free_by_node: Vec<(NodeName, u64)>,
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
            Self::TooFewPods { exist, minimum, task } => match task {
                Some(task) => {
                    format!("create {} more pods of task {task}, or lower its minimum", minimum - exist)
                }
                None => format!("create {} more pods, or lower minMember to {exist}", minimum - exist),
            },
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
                format!("add nodes for {} more pods of {shape}, or lower minMember to {fit}", minimum - fit)
            }
            Self::NoRoom(room) => room.fix(),
            Self::NodesClosed { nodes, .. } => {
                format!(
                    "bring back {}",
                    nodes.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>().join(", ")
                )
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
        format!(
            "wait until {} on one node {} free{}, or lower minMember to {}",
            describe(&self.resource, self.asked),
            if self.asked == 1 { "is" } else { "are" },
            if missing > 1 { format!(" {missing} times") } else { String::new() },
            self.fit
        )
    }
}

/// `8 GPUs`, `32 cpu`, `256Gi memory`.
fn describe(resource: &str, amount: u64) -> String {
    if resource == phalanx_common::resources::NVIDIA_GPU {
        return format!("{amount} GPU{}", if amount == 1 { "" } else { "s" });
    }
    format!("{} {resource}", format_amount(resource, amount))
}

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} of {} pods needed, {} fit; {} nodes with {} free; {} free in total",
            self.minimum,
            self.minimum,
            self.fit,
            self.feasible_nodes,
            describe(&self.resource, self.asked).replace("GPU", "free GPU").replace(" free free", " free"),
            describe(&self.resource, self.free_total),
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.code())
    }
}
