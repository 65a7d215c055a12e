//! Why the tree of queues keeps a gang waiting.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::{GangName, NodeName, QueueName};
use phalanx_common::resources::format_amount;
use phalanx_common::units::Millis;
use serde::{Deserialize, Serialize};

use super::fewer::{Fewer, or_fewer};
use super::room::above_ceiling;
use super::{NoEviction, amount_of};
use crate::queues::{QueueProblem, ROOT};

/// Code of a gang that was ended for having run as long as it may: a leader that follows reads it in the status.
pub(crate) const RAN_OUT: &str = "MaximumRunTime";

/// What about its queue, beside that queue's own ceiling, keeps a gang waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueHeld {
    /// The ceiling of a queue above it is reached.
    AncestorUsed {
        /// The gang's queue.
        queue: QueueName,
        /// The queue above it.
        ancestor: QueueName,
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
    /// It asks for more than the ceiling of a queue above it.
    AboveAncestor {
        /// The gang's queue.
        queue: QueueName,
        /// The queue above it.
        ancestor: QueueName,
        /// The resource.
        resource: Arc<str>,
        /// The ceiling.
        limit: u64,
        /// What the gang's minimum asks.
        asked: u64,
        /// The largest minimum that the ceiling allows, where there is one.
        lower_to: Option<Box<Fewer>>,
    },
    /// Its queue, or one above it, contradicts itself or others.
    SetAside {
        /// The gang's queue.
        queue: QueueName,
        /// What is wrong with which.
        problem: QueueProblem,
    },
    /// Queues below it share what it has: only those take gangs.
    NotLeaf {
        /// The gang's queue.
        queue: QueueName,
        /// One of its children, where it has one.
        child: Option<QueueName>,
    },
    /// A queue above it is closed.
    AncestorClosed {
        /// The gang's queue.
        queue: QueueName,
        /// The closed one.
        ancestor: QueueName,
    },
    /// Its namespace may not use the queue.
    NotAllowed {
        /// The gang's queue.
        queue: QueueName,
        /// The gang's namespace.
        namespace: Arc<str>,
        /// Those that may.
        allowed: Vec<Arc<str>>,
    },
    /// It has run as long as the queue's policy allows, and was ended.
    RanOut {
        /// The gang's queue.
        queue: QueueName,
        /// How long it ran.
        ran: Millis,
        /// How long it may run.
        maximum: Millis,
    },
    /// What is left is guaranteed to others.
    Guaranteed {
        /// The gang's queue.
        queue: QueueName,
        /// The resource.
        resource: Arc<str>,
        /// What all nodes have.
        capacity: u64,
        /// What all queues use of it.
        used: u64,
        /// Set aside for others, and not used by them.
        kept: u64,
        /// Who they are.
        owners: Vec<QueueName>,
        /// What the gang's minimum asks.
        asked: u64,
        /// It is more than others would ever leave.
        never: bool,
        /// By how much less which of them would do, those below them included: one choice of several.
        #[serde(default)]
        lower: Vec<(QueueName, u64)>,
    },
    /// Its queue serves strictly in order, and one that waits before it could use the same nodes.
    Behind {
        /// The gang's queue.
        queue: QueueName,
        /// The gang before it.
        first: GangName,
        /// The nodes that it must have, by its labels, where it says so.
        pool: Option<Arc<str>>,
        /// A node that both could use.
        node: NodeName,
    },
}

impl QueueHeld {
    /// It stays until the gang's object, or that of a queue, changes.
    pub(super) const fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::AboveAncestor { .. }
                | Self::SetAside { .. }
                | Self::NotLeaf { .. }
                | Self::NotAllowed { .. }
                | Self::RanOut { .. }
                | Self::Guaranteed { never: true, .. }
        )
    }

    /// It is about how much there is, and who has it.
    pub(crate) const fn is_of_amounts(&self) -> bool {
        matches!(self, Self::AncestorUsed { .. } | Self::AboveAncestor { .. } | Self::Guaranteed { .. })
    }

    /// It passes when others give back what they have.
    pub(super) const fn is_for_a_while(&self) -> bool {
        matches!(
            self,
            Self::AncestorUsed { .. } | Self::Guaranteed { never: false, .. } | Self::Behind { .. }
        )
    }

    /// The ceiling that is reached, where one is: whose, and of what.
    pub(super) fn ceiling(&self) -> Option<(&QueueName, &str)> {
        match self {
            Self::AncestorUsed { ancestor, resource, .. } => Some((ancestor, resource)),
            _ => None,
        }
    }

    /// Why nobody is evicted for it, to be set.
    pub(super) const fn eviction_mut(&mut self) -> Option<&mut Option<Box<NoEviction>>> {
        match self {
            Self::AncestorUsed { eviction, .. } => Some(eviction),
            _ => None,
        }
    }

    /// Short name, stable.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::AncestorUsed { .. } => "AncestorQuotaUsed",
            Self::AboveAncestor { .. } => "AboveAncestorCapability",
            Self::SetAside { .. } => "QueueSetAside",
            Self::NotLeaf { .. } => "QueueHasChildren",
            Self::AncestorClosed { .. } => "QueueClosed",
            Self::NotAllowed { .. } => "NamespaceNotAllowed",
            Self::RanOut { .. } => RAN_OUT,
            Self::Guaranteed { .. } => "GuaranteedToOthers",
            Self::Behind { .. } => "StrictOrder",
        }
    }

    /// The text of what keeps all gangs of a group together.
    pub(super) fn text_of_group(&self) -> String {
        if matches!(self, Self::AboveAncestor { .. }) { self.above_ancestor(true) } else { self.to_string() }
    }

    fn above_ancestor(&self, is_group: bool) -> String {
        let Self::AboveAncestor { queue, ancestor, resource, limit, asked, .. } = self else {
            return String::new();
        };
        let of = format_args!("queue {queue}: ancestor {ancestor}");
        above_ceiling(&of, resource, *limit, *asked, is_group)
    }

    /// The nearest fix.
    pub(super) fn fix(&self) -> String {
        match self {
            Self::AncestorUsed { ancestor, resource, limit, used, asked, eviction, .. } => {
                let over = short_of(*limit, *used, *asked, eviction.as_deref());
                let more = format_amount(resource, over);
                format!(
                    "wait for {} of Queue {ancestor} to be given back, or raise its capability {resource} by {more}",
                    amount_of(resource, over),
                )
            }
            Self::AboveAncestor { ancestor, resource, asked, lower_to, .. } => {
                let asked = format_amount(resource, *asked);
                let fewer = or_fewer(lower_to.as_deref());
                format!("raise capability {resource} of Queue {ancestor} to {asked}{fewer}")
            }
            Self::SetAside { problem, .. } => {
                format!(
                    "correct {} of Queue {}, or name another one in spec.queue",
                    problem.field, problem.queue
                )
            }
            Self::NotLeaf { child: Some(child), .. } => {
                format!("name a queue below it in spec.queue, such as {child}")
            }
            Self::NotLeaf { .. } => "name another one in spec.queue".to_owned(),
            Self::AncestorClosed { ancestor, .. } => {
                format!("open Queue {ancestor}, or name another one in spec.queue")
            }
            Self::NotAllowed { queue, namespace, .. } => {
                format!(
                    "add {namespace} to namespaces of QueuePolicy {queue}, or name another one in spec.queue"
                )
            }
            Self::RanOut { queue, ran, .. } => format!(
                "delete it and submit it again, or raise maximumRunTime of QueuePolicy {queue} above {ran}"
            ),
            Self::Guaranteed { resource, capacity, used, kept, asked, never, lower, .. } => {
                let used = if *never { 0 } else { *used };
                let over = used.saturating_add(*kept).saturating_add(*asked).saturating_sub(*capacity);
                let each = |(queue, by): &(QueueName, u64)| {
                    format!("of Queue {queue} by {}", format_amount(resource, *by))
                };
                let lower = lower.iter().map(each).collect::<Vec<_>>().join(" and ");
                let lower = format!("lower guarantee {resource} {lower}");
                if *never {
                    return lower;
                }
                format!("wait for {} to be given back, or {lower}", amount_of(resource, over))
            }
            Self::Behind { queue, first, .. } => {
                format!("wait for {first} to start, or set dequeueStrategy of Queue {queue} to traverse")
            }
        }
    }
}

/// What a gang lacks of a ceiling: where others would be evicted for the rest, that is not waited for.
pub(super) fn short_of(limit: u64, used: u64, asked: u64, eviction: Option<&NoEviction>) -> u64 {
    let short = used.saturating_add(asked).saturating_sub(limit);
    eviction.and_then(|eviction| eviction.short).map_or(short, |left| left.min(short))
}

fn list(names: impl Iterator<Item = impl fmt::Display>) -> String {
    names.map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for QueueHeld {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AncestorUsed { .. } | Self::AboveAncestor { .. } | Self::Guaranteed { .. } => {
                self.fmt_amounts(formatter)
            }
            Self::SetAside { queue, problem } if *queue == problem.queue => {
                write!(formatter, "queue {queue} is set aside: {}: {}", problem.field, problem.message)
            }
            Self::SetAside { queue, problem } => {
                let QueueProblem { queue: ancestor, field, message } = problem;
                write!(formatter, "queue {queue}: ancestor {ancestor} is set aside: {field}: {message}")
            }
            Self::NotLeaf { queue, .. } if queue.as_str() == ROOT => {
                write!(formatter, "queue {queue} is above all queues and takes no gangs")
            }
            Self::NotLeaf { queue, .. } => {
                write!(formatter, "queue {queue} has queues below it and takes no gangs itself")
            }
            Self::AncestorClosed { queue, ancestor } => {
                write!(formatter, "queue {queue} takes no new gangs: ancestor {ancestor} is closed")
            }
            Self::NotAllowed { queue, namespace, allowed } => {
                let allowed = if allowed.is_empty() { "none".to_owned() } else { list(allowed.iter()) };
                write!(formatter, "namespace {namespace} may not use queue {queue}; allowed: {allowed}")
            }
            Self::RanOut { queue, ran, maximum } => write!(
                formatter,
                "it was ended when it had run for {ran}: QueuePolicy {queue} allows {maximum} (maximumRunTime)"
            ),
            Self::Behind { first, pool: Some(pool), .. } => {
                write!(formatter, "strict order: behind {first} in pool {pool}")
            }
            Self::Behind { first, node, .. } => {
                write!(formatter, "strict order: behind {first}, which could use node {node} too")
            }
        }
    }
}

impl QueueHeld {
    /// Those that say how much of a resource there is.
    fn fmt_amounts(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AncestorUsed { queue, ancestor, resource, limit, used, asked, eviction } => {
                let [limit, used, asked] =
                    [limit, used, asked].map(|amount| format_amount(resource, *amount));
                write!(
                    formatter,
                    "queue {queue} quota: ancestor {ancestor}: capability {resource} {limit}, used or admitted {used}, \
                     asked {asked}"
                )?;
                eviction.as_ref().map_or(Ok(()), |eviction| write!(formatter, "; {eviction}"))
            }
            Self::AboveAncestor { .. } => formatter.write_str(&self.above_ancestor(false)),
            Self::Guaranteed { queue, resource, capacity, used, kept, owners, asked, never, .. } => {
                let amounts = [capacity, used, kept, asked];
                let [capacity, used, kept, asked] = amounts.map(|amount| format_amount(resource, *amount));
                let owners = list(owners.iter());
                write!(formatter, "queue {queue}: {resource}: all nodes have {capacity}, ")?;
                if *never {
                    return write!(
                        formatter,
                        "guaranteed to {owners} {kept}, the gang's minimum asks {asked}: it can never run there"
                    );
                }
                write!(formatter, "used {used}, guaranteed to {owners} and not used {kept}, asked {asked}")
            }
            _ => Ok(()),
        }
    }
}
