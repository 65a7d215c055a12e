//! Why a gang does not run: the limiting thing, its limit, its use, the request and the nearest fix.
//! Event, condition, CLI and dashboard print the same value.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::{NodeName, QueueName};
use phalanx_common::resources::format_amount;
use serde::{Deserialize, Serialize};

mod claims;
mod clock;
mod eviction;
mod fewer;
mod held;
mod offer;
mod queue;
mod room;
mod together;
mod unsuited;

pub use claims::{ClaimHeld, ClaimProblem};
pub(crate) use clock::clock;
pub use eviction::{
    HeldFor, HoldCause, LateVictim, MakingRoom, NoEviction, NoEvictionCause, Preempted, Spared,
};
pub use fewer::Fewer;
use fewer::or_fewer;
pub(crate) use held::TERMINATING;
pub use held::{Held, OtherHolder};
pub use queue::QueueHeld;
pub(crate) use queue::RAN_OUT;
use queue::short_of;
pub use room::{Closed, NoRoom};
use room::{
    WITH_ONE_MODEL, above_ceiling, amount_of, fix_of_all_nodes, more_than_all_nodes, name_closed,
    open_and_change, open_nodes, or_change, pods,
};
pub use together::Together;
pub use unsuited::{Unmet, Unsuited};

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
        lower_to: Option<Box<Fewer>>,
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
        /// Why nobody is evicted for it, where somebody could be.
        #[serde(default)]
        eviction: Option<Box<NoEviction>>,
    },
    /// Fewer pods exist than must start together.
    TooFewPods {
        /// Pods that exist.
        exist: u32,
        /// The minimum.
        minimum: u32,
        /// The task that lacks pods, where a task's own minimum is not met.
        task: Option<Arc<str>>,
        /// What to lower so that those that exist are enough, where there are any.
        #[serde(default)]
        lower_to: Option<Box<Fewer>>,
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
    /// A pod waits until its scheduling gates are removed.
    PodGated {
        /// The pod.
        pod: Arc<str>,
        /// Its gates.
        gates: Vec<Arc<str>>,
    },
    /// A pod waits for a PersistentVolumeClaim.
    Claim(Box<ClaimHeld>),
    /// The tree of queues keeps it waiting.
    Queue(Box<QueueHeld>),
    /// Taints, `nodeSelector`, node affinity or volumes keep a pod from every node that is large enough.
    NoNodeMatches(Box<Unsuited>),
    /// No node offers a resource at all.
    NoNodeOffers {
        /// The resource.
        resource: Arc<str>,
        /// What a pod asks.
        asked: u64,
        /// A name that is offered and close to it.
        suggestion: Option<Arc<str>>,
        /// A node that lists it, and enough of all else, and has no agent.
        #[serde(default)]
        listed_by: Option<Arc<str>>,
    },
    /// A pod is larger than the largest node, even when that is empty.
    LargerThanAnyNode {
        /// The resource.
        resource: Arc<str>,
        /// What the largest node has in all.
        largest: u64,
        /// What the pod asks.
        asked: u64,
        /// How that comes about where several containers count: `sidecar 8 + app 8`.
        #[serde(default)]
        parts: Option<Arc<str>>,
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
        lower_to: Option<Box<Fewer>>,
        /// Nodes that constraints of the pod leave out.
        #[serde(default)]
        left_out: Option<Box<Unsuited>>,
        /// Closed nodes that would have to be opened as well, beside the change that `left_out` names; mostly none.
        #[serde(default)]
        closed: Vec<(NodeName, Closed)>,
    },
    /// All nodes together, empty, have less than its PodGroup says that it needs at least.
    LargerThanAllNodes {
        /// The resource.
        resource: Arc<str>,
        /// What all nodes have together.
        total: u64,
        /// What the gang's minimum asks.
        asked: u64,
        /// It is that of several gangs that start together.
        #[serde(default)]
        is_group: bool,
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
        /// Pods that it has, those that have ended well included, and its minimum; `None` where that is not met.
        #[serde(default)]
        met: Option<(u32, u32)>,
        /// Pods that wait.
        waiting: u32,
        /// Why the first of them does.
        cause: Box<Reason>,
    },
    /// It waits for others with which it starts together, or has too few pods left.
    Together(Box<Together>),
    /// Others are being evicted for it.
    MakingRoom(Box<MakingRoom>),
    /// It was evicted for another gang.
    Preempted(Box<Preempted>),
    /// It is being placed at this moment.
    InProgress {
        /// What is awaited.
        step: Arc<str>,
    },
}

impl Reason {
    /// It waits until a queue has more, or for its turn there.
    pub(crate) fn is_for_quota(&self) -> bool {
        match self {
            Self::QuotaUsed { .. } => true,
            Self::Queue(held) => held.is_for_a_while(),
            _ => false,
        }
    }

    /// The ceiling that is reached, where one is: whose, and of what.
    pub(crate) fn ceiling(&self) -> Option<(&QueueName, &str)> {
        match self {
            Self::QuotaUsed { queue, resource, .. } => Some((queue, resource)),
            Self::Queue(held) => held.ceiling(),
            _ => None,
        }
    }

    /// It waits until others leave nodes, or nodes open.
    pub(crate) const fn is_for_room(&self) -> bool {
        matches!(
            self,
            Self::NoRoom(_) | Self::NodesClosed { .. } | Self::InProgress { .. } | Self::MakingRoom(_)
        )
    }

    /// It can never run unless its object, its queue or the nodes change.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::NoSuchQueue { .. }
            | Self::NoSuchPriorityClass { .. }
            | Self::AboveCapability { .. }
            | Self::LargerThanAllNodes { .. } => true,
            Self::Queue(held) => held.is_lasting(),
            Self::Together(together) => together.is_lasting(),
            Self::Preempted(preempted) => preempted.cause.as_ref().is_some_and(Self::is_lasting),
            _ => self.is_of_the_nodes(),
        }
    }

    /// True where the nodes that there are could not take it if they were empty.
    pub(crate) fn is_of_the_nodes(&self) -> bool {
        if let Self::Preempted(preempted) = self {
            return preempted.cause.as_ref().is_some_and(Self::is_of_the_nodes);
        }
        matches!(
            self,
            Self::NoNodeMatches(_)
                | Self::NoNodeOffers { .. }
                | Self::LargerThanAnyNode { .. }
                | Self::LargerThanCluster { .. }
        )
    }

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
            Self::PodGated { .. } => "PodGated",
            Self::Claim(held) => held.problem.code(),
            Self::Queue(held) => held.code(),
            Self::NoNodeMatches(_) => "NoNodeMatches",
            Self::NoNodeOffers { .. } => "NoNodeOffers",
            Self::LargerThanAnyNode { .. } => "LargerThanAnyNode",
            Self::LargerThanCluster { .. } => "LargerThanCluster",
            Self::LargerThanAllNodes { .. } => "LargerThanAllNodes",
            Self::NoRoom(_) => "NoRoom",
            Self::NodesClosed { .. } => "NodesClosed",
            Self::MorePodsWait { .. } => "MorePodsWait",
            Self::Together(together) => together.code(),
            Self::MakingRoom(_) => "MakingRoom",
            Self::Preempted(_) => "Preempted",
            Self::InProgress { .. } => "InProgress",
        }
    }

    /// The text of what keeps all gangs of a group together.
    pub(crate) fn text_of_group(&self) -> String {
        match self {
            Self::AboveCapability { queue, resource, limit, asked, .. } => {
                above_ceiling(&format_args!("queue {queue}"), resource, *limit, *asked, true)
            }
            Self::Queue(held) => held.text_of_group(),
            _ => self.to_string(),
        }
    }

    /// The reason within one that says in which state the gang waits: what is lacking now.
    pub(crate) fn cause(&self) -> Option<&Self> {
        match self {
            Self::Together(together) => together.cause(),
            Self::Preempted(preempted) => preempted.cause.as_ref(),
            _ => None,
        }
    }

    /// The code, and behind it those of the reasons within: `Preempted/NoRoom`. What people are told is told anew when
    /// this changes, for then the text and the fix are other ones.
    #[must_use]
    pub fn codes(&self) -> String {
        match self.cause() {
            Some(cause) => format!("{}/{}", self.code(), cause.codes()),
            None => self.code().to_owned(),
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
                or_fewer(lower_to.as_deref())
            ),
            Self::QuotaUsed { queue, resource, limit, used, asked, eviction } => {
                let short = short_of(*limit, *used, *asked, eviction.as_deref());
                format!(
                    "wait for {} of Queue {queue} to be given back, or raise its capability {resource} by {}",
                    amount_of(resource, short),
                    format_amount(resource, short)
                )
            }
            Self::TooFewPods { exist, minimum, task, lower_to } => {
                let fewer = or_fewer(lower_to.as_deref());
                let more = pods(minimum.saturating_sub(*exist), "more ");
                match task {
                    Some(task) => format!("create {more} of task {task}{BY_JOB}{fewer}"),
                    None if *exist == 0 => format!("create {} of this gang{BY_JOB}", pods(*minimum, "")),
                    None => format!("create {more}{BY_JOB}{fewer}"),
                }
            }
            Self::PodBlocked { field, .. } => format!("change {field}"),
            Self::PodGated { gates, .. } => {
                format!("remove {} from spec.schedulingGates, as whoever set them does", gates.join(", "))
            }
            Self::Claim(held) => held.fix(),
            Self::Queue(held) => held.fix(),
            Self::NoNodeMatches(unsuited) if unsuited.help.is_empty() => {
                "add nodes that meet what keeps the pod from these, or change that".to_owned()
            }
            Self::NoNodeMatches(unsuited) => unsuited.fix(),
            Self::NoNodeOffers { .. } => self.fix_of_offer(),
            Self::LargerThanAnyNode { resource, largest, asked, .. } => format!(
                "split the pod so that each asks at most {}, or add a node with {}",
                format_amount(resource, *largest),
                format_amount(resource, *asked)
            ),
            Self::LargerThanCluster { mixed_models_would_fit: true, .. } => MIX_FIX.to_owned(),
            Self::LargerThanCluster { fit, minimum, shape, lower_to, left_out, closed, .. } => format!(
                "{}add nodes for {}, of which the next asks {shape}{}{}",
                open_and_change(closed, left_out.as_deref()),
                pods(minimum.saturating_sub(*fit), "more "),
                or_fewer(lower_to.as_deref()),
                or_change(left_out.as_deref().filter(|_| closed.is_empty()))
            ),
            Self::LargerThanAllNodes { resource, total, asked, is_group } => {
                fix_of_all_nodes(resource, *total, *asked, *is_group)
            }
            Self::NoRoom(room) => room.fix(),
            Self::NodesClosed { nodes, .. } => open_nodes(nodes, "; "),
            Self::MorePodsWait { cause, .. } => cause.fix(),
            Self::Together(together) => together.fix(),
            Self::Preempted(preempted) => preempted.cause.as_ref().map(Self::fix).unwrap_or_default(),
            Self::InProgress { .. } | Self::MakingRoom(_) => String::new(),
        }
    }
}

/// The missing pods of a Job are on their way.
const BY_JOB: &str = " (a Job does that by itself)";

const MIX_FIX: &str =
    "annotate the gang phalanx.dev/mixed-gpu-models: \"true\" to use GPUs of several models";

impl Reason {
    /// More than there is of anything, whoever ends.
    fn fmt_too_large(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LargerThanAnyNode { resource, largest, asked, parts } => {
                let parts = parts.as_ref().map(|parts| format!(" ({parts})")).unwrap_or_default();
                write!(
                    formatter,
                    "can never fit: largest node has {}, pod asks {}{parts}",
                    amount_of(resource, *largest),
                    format_amount(resource, *asked)
                )
            }
            Self::LargerThanCluster {
                fit, minimum, shape, mixed_models_would_fit, left_out, closed, ..
            } => {
                let models = if *mixed_models_would_fit { WITH_ONE_MODEL } else { "" };
                write!(
                    formatter,
                    "can never fit: {minimum} pods needed, an empty cluster takes {fit}{models}; the next asks {shape}"
                )?;
                left_out.as_ref().map_or(Ok(()), |out| write!(formatter, "; {} {out}", out.of_nodes()))?;
                if closed.is_empty() {
                    Ok(())
                } else {
                    write!(formatter, "; closed: {}", name_closed(closed))
                }
            }
            Self::LargerThanAllNodes { resource, total, asked, is_group } => {
                formatter.write_str(&more_than_all_nodes(resource, *total, *asked, *is_group))
            }
            _ => Ok(()),
        }
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
            Self::AboveCapability { queue, resource, limit, asked, .. } => {
                let of = format_args!("queue {queue}");
                formatter.write_str(&above_ceiling(&of, resource, *limit, *asked, false))
            }
            Self::QuotaUsed { queue, resource, limit, used, asked, eviction } => {
                write!(
                    formatter,
                    "queue {queue} quota: capability {resource} {}, used or admitted {}, asked {}",
                    format_amount(resource, *limit),
                    format_amount(resource, *used),
                    format_amount(resource, *asked)
                )?;
                eviction.as_ref().map_or(Ok(()), |eviction| write!(formatter, "; {eviction}"))
            }
            Self::TooFewPods { exist, minimum, task: Some(task), .. } => {
                write!(formatter, "only {exist} of {minimum} pods of task {task} exist")
            }
            Self::TooFewPods { exist, minimum, task: None, .. } => {
                write!(formatter, "only {exist} of the {minimum} pods needed exist")
            }
            Self::PodBlocked { pod, field, message } => write!(formatter, "pod {pod}: {field}: {message}"),
            Self::PodGated { pod, gates } => {
                write!(formatter, "pod {pod} waits for its scheduling gates: {}", gates.join(", "))
            }
            Self::Claim(held) => held.fmt(formatter),
            Self::Queue(held) => held.fmt(formatter),
            Self::NoNodeMatches(unsuited) => {
                let suit = if unsuited.nodes == 1 { "suits" } else { "suit" };
                write!(formatter, "0 {} {suit} the pod: {unsuited}", unsuited.of_nodes())
            }
            Self::NoNodeOffers { .. } => self.fmt_offer(formatter),
            Self::LargerThanAnyNode { .. }
            | Self::LargerThanAllNodes { .. }
            | Self::LargerThanCluster { .. } => self.fmt_too_large(formatter),
            Self::NoRoom(room) => room.fmt(formatter),
            Self::NodesClosed { nodes, room } => {
                write!(
                    formatter,
                    "nodes it would use are closed: {}; without them {room}",
                    name_closed(nodes)
                )
            }
            Self::MorePodsWait { met, waiting, cause } => {
                match met {
                    Some((have, minimum)) => write!(formatter, "minimum met ({have} of {minimum}); ")?,
                    None => formatter.write_str("it runs; ")?,
                }
                let wait = if *waiting == 1 { "waits" } else { "wait" };
                write!(formatter, "{} {wait} for a place: {cause}", pods(*waiting, "more "))
            }
            Self::Together(together) => together.fmt(formatter),
            Self::MakingRoom(room) => room.fmt(formatter),
            Self::Preempted(preempted) => preempted.fmt(formatter),
            Self::InProgress { step } => write!(formatter, "in progress: {step}"),
        }
    }
}
