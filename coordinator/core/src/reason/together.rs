//! Why a gang waits, or gives back what it has, that has to do with who starts together: other gangs of its group,
//! parts of it, and pods that it lost.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::QueueName;
use phalanx_common::units::Time;
use serde::{Deserialize, Serialize};

use super::{Reason, clock, pods};

/// Gangs named in one reason.
const GANGS_NAMED: usize = 4;

/// What holds a gang up, or is missing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Together {
    /// Gangs of its group do not exist.
    GroupIncomplete {
        /// The group.
        group: Arc<str>,
        /// Gangs that exist.
        exist: u32,
        /// Gangs that it has.
        size: u32,
    },
    /// A gang of its group, or all of them together, may not start.
    GroupHeld {
        /// The gangs that start together.
        gangs: Vec<Arc<str>>,
        /// The one that is held up; `None` where it is all of them together.
        gang: Option<Arc<str>>,
        /// Why.
        cause: Box<Reason>,
    },
    /// Gangs of its group do not fit together.
    GroupDoesNotFit {
        /// The gangs that start together.
        gangs: Vec<Arc<str>>,
        /// How many of them would fit, one after the other.
        fit: u32,
        /// Why the others do not.
        cause: Box<Reason>,
    },
    /// Gangs of its group are in different queues.
    GroupOfQueues {
        /// The gangs that start together.
        gangs: Vec<Arc<str>>,
        /// One of them.
        gang: Arc<str>,
        /// Its queue.
        queue: QueueName,
        /// The queue of the first one.
        other: QueueName,
    },
    /// Too few parts of a sub-group have all their pods.
    TooFewParts {
        /// The sub-group.
        sub_group: Arc<str>,
        /// Parts that have all their pods.
        whole: u32,
        /// Parts that are needed.
        minimum: u32,
        /// Pods of each part.
        size: u32,
        /// The first part that lacks pods, where there is one, and how many it has.
        short: Option<(Arc<str>, u32)>,
    },
    /// It has fewer pods than its minimum, and waits for others in the place of those that are lost.
    Degraded {
        /// What it has too few of: `pods of task master`, `whole parts of workers`; `None` = members.
        of: Option<Arc<str>>,
        /// How many of them it has, those that have ended well included.
        have: u32,
        /// How many it needs.
        minimum: u32,
        /// Since when.
        since: Time,
        /// When it gives back what it has; `None` = never.
        until: Option<Time>,
        /// Why pods that wait have no place; `None` where none waits.
        cause: Option<Box<Reason>>,
    },
}

impl Together {
    /// Short name, stable.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::GroupIncomplete { .. } => "GroupIncomplete",
            Self::GroupHeld { .. } => "GroupHeld",
            Self::GroupDoesNotFit { .. } => "GroupDoesNotFit",
            Self::GroupOfQueues { .. } => "GroupOfQueues",
            Self::TooFewParts { .. } => "TooFewParts",
            Self::Degraded { .. } => "Degraded",
        }
    }

    pub(super) fn fix(&self) -> String {
        match self {
            Self::GroupIncomplete { group, exist, size } => format!(
                "create {} of group {group}, or give the number {exist} in phalanx.dev/gang-group of all its gangs",
                many(size.saturating_sub(*exist), "more gang")
            ),
            Self::GroupHeld { cause, .. } | Self::GroupDoesNotFit { cause, .. } => cause.fix(),
            Self::GroupOfQueues { gang, other, .. } => format!("name queue {other} in spec.queue of {gang}"),
            Self::TooFewParts { sub_group, size, short: Some((part, exist)), .. } => format!(
                "create {} of part {part}, or lower subGroupSize of {sub_group} to {exist}",
                pods(size.saturating_sub(*exist), "more ")
            ),
            Self::TooFewParts { sub_group, whole, minimum, size, short: None } => format!(
                "create {} of {} each, or lower minSubGroups of {sub_group} to {whole}",
                many(minimum.saturating_sub(*whole), "more part"),
                pods(*size, "")
            ),
            Self::Degraded { cause: Some(cause), .. } => cause.fix(),
            Self::Degraded { of: Some(_), .. } => {
                "create pods in the place of those that are lost (a Job does that by itself)".to_owned()
            }
            Self::Degraded { have, minimum, .. } => format!(
                "create {} in the place of those that are lost (a Job does that by itself), or lower minMember to {have}",
                pods(minimum.saturating_sub(*have), "")
            ),
        }
    }

    /// It can never run unless an object or the nodes change. Gangs and pods that are missing may come any moment.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self, Self::GroupOfQueues { .. }) || self.cause().is_some_and(Reason::is_lasting)
    }

    /// The reason within, which says what is lacking now.
    pub(crate) fn cause(&self) -> Option<&Reason> {
        match self {
            Self::GroupHeld { cause, .. } | Self::GroupDoesNotFit { cause, .. } => Some(cause),
            Self::Degraded { cause, .. } => cause.as_deref(),
            Self::GroupIncomplete { .. } | Self::GroupOfQueues { .. } | Self::TooFewParts { .. } => None,
        }
    }

    /// The same, to change.
    pub(crate) fn cause_mut(&mut self) -> Option<&mut Reason> {
        match self {
            Self::GroupHeld { cause, .. } | Self::GroupDoesNotFit { cause, .. } => Some(cause),
            Self::Degraded { cause, .. } => cause.as_deref_mut(),
            Self::GroupIncomplete { .. } | Self::GroupOfQueues { .. } | Self::TooFewParts { .. } => None,
        }
    }
}

impl fmt::Display for Together {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GroupIncomplete { group, exist, size } => {
                write!(formatter, "group {group}: {exist} of {} exist", many(*size, "gang"))
            }
            Self::GroupHeld { gangs, gang, cause } => {
                write!(formatter, "group {}", names(gangs))?;
                match gang {
                    Some(gang) => write!(formatter, ": gang {gang}: {cause}"),
                    None => write!(formatter, ": {}", cause.text_of_group()),
                }
            }
            Self::GroupDoesNotFit { gangs, fit, cause } => write!(
                formatter,
                "group {}: {fit} of {} fit: {cause}",
                names(gangs),
                many(u32::try_from(gangs.len()).unwrap_or(u32::MAX), "gang")
            ),
            Self::GroupOfQueues { gangs, gang, queue, other } => write!(
                formatter,
                "group {}: gang {gang} is in queue {queue} and others in {other}; a group starts in one queue",
                names(gangs)
            ),
            Self::TooFewParts { sub_group, whole, minimum, size, short } => {
                write!(formatter, "sub-group {sub_group}: ")?;
                if whole < minimum {
                    let parts = many(*minimum, "part");
                    write!(formatter, "{whole} of {parts} needed with {} each", pods(*size, ""))?;
                }
                let Some((part, exist)) = short else { return Ok(()) };
                let between = if whole < minimum { "; " } else { "" };
                write!(formatter, "{between}part {part} has {exist} of {}", pods(*size, ""))
            }
            Self::Degraded { of, have, minimum, since, until, cause } => {
                let of = of.as_ref().map(|of| format!("{minimum} {of}"));
                let of = of.unwrap_or_else(|| many(*minimum, "member"));
                write!(formatter, "{have} of {of} since {}", clock(*since))?;
                match until {
                    Some(until) => write!(formatter, "; released at {}", clock(*until))?,
                    None => formatter.write_str("; it keeps what it has")?,
                }
                cause.as_ref().map_or(Ok(()), |cause| write!(formatter, "; those that wait: {cause}"))
            }
        }
    }
}

/// `1 gang`, `2 gangs`.
fn many(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `{A,B}`, and of many the first ones.
fn names(gangs: &[Arc<str>]) -> String {
    let more = if gangs.len() > GANGS_NAMED { ",…" } else { "" };
    let first: Vec<&str> = gangs.iter().take(GANGS_NAMED).map(|name| &**name).collect();
    format!("{{{}{more}}}", first.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_gangs_the_first_are_named() {
        let gangs: Vec<Arc<str>> = ["a", "b", "c", "d", "e"].into_iter().map(Arc::from).collect();
        assert_eq!(names(&gangs[..2]), "{a,b}");
        assert_eq!(names(&gangs), "{a,b,c,d,…}");
    }
}
