//! Room that is being made for a gang, why none can be, and what is held for whom.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::{GangName, NodeName, QueueName};
use phalanx_common::resources::format_amount;
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use super::{Fewer, Reason, amount_of, clock, pods};

/// Others are being evicted for a gang, or are to end by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakingRoom {
    /// Pods that are still there.
    pub victims: u32,
    /// The nodes that they are on; at most 8.
    pub nodes: Vec<NodeName>,
    /// Some have time to save their work before they are evicted.
    #[serde(default)]
    pub has_notice: bool,
    /// When the last of those is evicted; `None` where that is left out.
    #[serde(default)]
    pub evicted_at: Option<Time>,
    /// When the last of them is gone at the latest; `None` until that is known, and once it has passed.
    pub until: Option<Time>,
    /// One that should be gone by now.
    #[serde(default)]
    pub late: Option<LateVictim>,
    /// Where a plan before this one came to nothing, and why.
    #[serde(default)]
    pub gave_up: Option<Arc<str>>,
}

/// A pod that was told to go and is still there after its grace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateVictim {
    /// The pod.
    pub pod: Arc<str>,
    /// When another plan is made without it.
    pub given_up: Option<Time>,
}

/// A gang was evicted for another one and waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preempted {
    /// The gang that has its place.
    pub by: GangName,
    /// When.
    pub at: Time,
    /// Why it does not run elsewhere; `None` until that was looked into.
    pub cause: Option<Reason>,
}

/// What is held of a node for another gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFor {
    /// The node.
    pub node: NodeName,
    /// GPUs that are held there.
    pub gpus: u32,
    /// The gang.
    pub gang: GangName,
    /// Why.
    pub why: HoldCause,
}

/// Why something is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldCause {
    /// Others are being evicted for it.
    MakingRoom,
    /// It has waited longer than this.
    Waited {
        /// Seconds after which a gang gets a hold.
        seconds: u64,
        /// When it is expected to start, where that is known.
        start: Option<Time>,
    },
}

/// Why evictions do not help a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoEviction {
    /// The cause.
    pub cause: NoEvictionCause,
    /// Who could have gone and is protected; at most 4.
    pub spared: Vec<Spared>,
    /// The largest minimum for which evictions would make room, where there is one.
    pub lower_to: Option<Fewer>,
    /// Pods that would not fit though others went: how many, and how many GPUs each asks for. Empty where others going
    /// does not help at all.
    #[serde(default)]
    pub missing: Vec<(u32, u64)>,
    /// What of the ceiling would be lacking once others went; `None` where others going does not help at all.
    #[serde(default)]
    pub short: Option<u64>,
}

impl NoEviction {
    /// A cause of which no more is to be said.
    pub(crate) const fn of(cause: NoEvictionCause) -> Self {
        Self { cause, spared: Vec::new(), lower_to: None, missing: Vec::new(), short: None }
    }
}

/// What stands against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoEvictionCause {
    /// `preemptionPolicy: Never`.
    NonPreempting,
    /// Its queue would be above its share.
    OverShare {
        /// The queue.
        queue: QueueName,
        /// The resource.
        resource: Arc<str>,
        /// What the queue would have.
        used: u64,
        /// Its share.
        deserved: u64,
    },
    /// Not enough could go for its quota.
    Quota,
    /// The same, where one of those has no place yet: it is admitted before this one.
    AdmittedFirst {
        /// That gang.
        gang: GangName,
        /// Its priority.
        priority: i32,
        /// That of the one that waits.
        own: i32,
    },
    /// Too few pods would fit, whoever may go.
    Fit {
        /// Pods that would fit.
        fit: u32,
        /// Pods that must start together.
        minimum: u32,
        /// GPUs that one node would have free at most.
        best: u64,
        /// GPUs that the largest pod asks for.
        asked: u64,
        /// Nodes on which others could go, and what keeps the gang's pods from them; at most 4.
        kept_from: Vec<(NodeName, Arc<str>)>,
    },
    /// All that could go is protected.
    Protected,
    /// Its gang has its minimum without it.
    AboveMinimum,
}

impl NoEvictionCause {
    /// It is about who has the quota.
    pub(crate) const fn is_of_quota(&self) -> bool {
        matches!(self, Self::Quota | Self::AdmittedFirst { .. })
    }
}

/// Somebody who could have gone and is protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spared {
    /// By a disruption budget.
    Budget {
        /// The pod's node.
        node: NodeName,
        /// The pod.
        pod: Arc<str>,
        /// The budget.
        budget: GangName,
        /// Disruptions that it allows.
        allowed: u32,
    },
    /// By `preemptable: false`, of it or of a pod of it.
    NotPreemptable {
        /// The gang.
        gang: GangName,
    },
    /// By `reclaimable: false` of its queue, or of one above.
    NotReclaimable {
        /// The queue that says it.
        queue: QueueName,
    },
    /// By what its queue, or one above, is guaranteed.
    Guaranteed {
        /// The queue.
        queue: QueueName,
        /// The resource.
        resource: Arc<str>,
        /// How much it is guaranteed.
        guarantee: u64,
    },
    /// By a setting of the coordinator, which keeps all that it is about.
    SwitchedOff {
        /// `preempt` or `reclaim`.
        setting: Arc<str>,
    },
    /// It has just begun to run.
    Until {
        /// The gang.
        gang: GangName,
        /// Until when.
        until: Time,
        /// `cooldown-time` or `minimum run time`.
        what: Arc<str>,
    },
}

impl Spared {
    /// It ends by itself, or may any moment.
    const fn is_for_a_while(&self) -> bool {
        matches!(self, Self::Budget { .. } | Self::Until { .. })
    }
}

impl Reason {
    /// Says why nobody is evicted for it, where it waits for quota.
    pub(crate) fn set_eviction(&mut self, why: Option<NoEviction>) {
        if let Some(eviction) = self.eviction_mut() {
            *eviction = why.map(Box::new);
        }
    }

    /// The same, to be read and set.
    pub(crate) fn eviction_mut(&mut self) -> Option<&mut Option<Box<NoEviction>>> {
        match self {
            Self::QuotaUsed { eviction, .. } => Some(eviction),
            Self::Queue(held) => held.eviction_mut(),
            _ => None,
        }
    }

    /// The same for pods above the minimum of a gang that runs: nobody is evicted for those.
    pub(crate) fn above_minimum(mut self) -> Self {
        let why = NoEviction::of(NoEvictionCause::AboveMinimum);
        match &mut self {
            Self::NoRoom(room) => room.eviction = Some(Box::new(why)),
            other => other.set_eviction(Some(why)),
        }
        self
    }
}

impl fmt::Display for MakingRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.iter().map(NodeName::to_string).collect::<Vec<_>>().join(", ");
        if self.has_notice {
            let at = self.evicted_at.map(|at| format!(" at {}", clock(at))).unwrap_or_default();
            let pods = pods(self.victims, "");
            write!(
                formatter,
                "waiting for {pods} on {nodes}, told to save their work before they are evicted{at}"
            )?;
        } else {
            write!(formatter, "waiting for {} to end on {nodes}", pods(self.victims, "evicted "))?;
        }
        match &self.late {
            Some(late) => {
                write!(formatter, "; {} should be gone by now", late.pod)?;
                let then = late.given_up.map(|at| format!(", and is given up at {}", clock(at)));
                formatter.write_str(&then.unwrap_or_default())?;
            }
            None => {
                self.until.map_or(Ok(()), |until| write!(formatter, ", until {} at most", clock(until)))?
            }
        }
        self.gave_up.as_ref().map_or(Ok(()), |gave_up| write!(formatter, "; {gave_up}"))
    }
}

impl fmt::Display for Preempted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "preempted by {} at {}", self.by, clock(self.at))?;
        self.cause.as_ref().map_or(Ok(()), |cause| write!(formatter, "; {cause}"))
    }
}

impl fmt::Display for HeldFor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpus {
            0 => write!(formatter, "{} held for {}", self.node, self.gang.name)?,
            gpus => {
                let gpus = amount_of(phalanx_common::resources::NVIDIA_GPU, gpus.into());
                write!(formatter, "{gpus} on {} held for {}", self.node, self.gang.name)?;
            }
        }
        match &self.why {
            HoldCause::MakingRoom => formatter.write_str(" (preemption in progress)"),
            HoldCause::Waited { seconds, start } => {
                write!(formatter, " (waiting longer than {seconds} s")?;
                start.map_or(Ok(()), |start| write!(formatter, ", expected to start at {}", clock(start)))?;
                formatter.write_str(")")
            }
        }
    }
}

impl fmt::Display for NoEviction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            NoEvictionCause::NonPreempting => formatter.write_str("class is non-preempting")?,
            NoEvictionCause::OverShare { queue, resource, used, deserved } => write!(
                formatter,
                "queue {queue} would be over deserved in {resource} ({} > {}): idle only",
                format_amount(resource, *used),
                format_amount(resource, *deserved)
            )?,
            NoEvictionCause::Quota => {
                formatter.write_str("it is used by higher priority")?;
            }
            NoEvictionCause::AdmittedFirst { gang, priority, own } => {
                write!(formatter, "admission went to {} (priority {priority} > {own})", gang.name)?;
            }
            NoEvictionCause::Protected => {
                let may_change = self.spared.is_empty() || self.spared.iter().any(Spared::is_for_a_while);
                formatter.write_str("preemption does not help")?;
                formatter.write_str(if may_change { " yet" } else { "" })?;
            }
            NoEvictionCause::AboveMinimum => {
                formatter.write_str("pods above the minimum use what is idle only")?
            }
            NoEvictionCause::Fit { fit, minimum, best, asked, kept_from } => {
                if *minimum > 1 {
                    write!(formatter, "only {fit} of {minimum} pods would fit after preemption")?;
                } else if kept_from.is_empty() {
                    write!(
                        formatter,
                        "no node reaches {asked} free even after preemption; best node {best}"
                    )?;
                } else {
                    formatter.write_str("preemption does not help")?;
                }
                let kept = kept_from.iter().map(|(node, why)| format!("{node} {why}"));
                let kept = kept.collect::<Vec<_>>().join(", ");
                if !kept.is_empty() {
                    write!(formatter, ": {kept}")?;
                }
            }
        }
        for spared in &self.spared {
            write!(formatter, "; {spared}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Spared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget { node, pod, budget, allowed } => {
                write!(formatter, "{node}: budget {} of {pod} allows {allowed} disruptions", budget.name)
            }
            Self::NotPreemptable { gang } => write!(formatter, "{} says preemptable: false", gang.name),
            Self::NotReclaimable { queue } => write!(formatter, "queue {queue} says reclaimable: false"),
            Self::Guaranteed { queue, resource, guarantee } => write!(
                formatter,
                "queue {queue} would have less than its guarantee of {}",
                amount_of(resource, *guarantee)
            ),
            Self::SwitchedOff { setting } => write!(formatter, "the coordinator runs with --{setting}=false"),
            Self::Until { gang, until, what } => {
                write!(formatter, "{} is protected by its {what} until {}", gang.name, clock(*until))
            }
        }
    }
}
