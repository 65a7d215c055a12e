//! What is wrong with queues as their objects state them. A queue with a problem is refused when it is made; one that
//! is stored nevertheless is set aside: only its own gangs wait, and those of the queues below it.

use std::collections::BTreeMap;
use std::fmt;

use phalanx_common::ids::QueueName;
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::{Resources, format_amount};
use serde::{Deserialize, Serialize};

/// The queue above all others, which takes no gangs.
pub const ROOT: &str = "root";

/// Queues from the root, which does not count, to a leaf.
pub const MOST_LEVELS: usize = 5;

/// What is wrong with a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueProblem {
    /// The queue.
    pub queue: QueueName,
    /// The field: `parent`, `guarantee`, `deserved`.
    pub field: String,
    /// The field's value, and the limit that it breaks.
    pub message: String,
}

impl fmt::Display for QueueProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "queue {}: {}: {}", self.queue, self.field, self.message)
    }
}

/// What is wrong with queues, taken together: in order of their names, at most one for each.
#[must_use]
pub fn problems(specs: &[QueueSpec]) -> Vec<QueueProblem> {
    let by_name: BTreeMap<&QueueName, &QueueSpec> = specs.iter().map(|spec| (&spec.name, spec)).collect();
    by_name.values().filter_map(|spec| problem(spec, &by_name)).collect()
}

/// What is wrong with one of them.
pub(crate) fn problem(spec: &QueueSpec, all: &BTreeMap<&QueueName, &QueueSpec>) -> Option<QueueProblem> {
    let (field, message) = parent_problem(spec, all).or_else(|| amounts_problem(spec))?;
    Some(QueueProblem { queue: spec.name.clone(), field: field.to_owned(), message })
}

fn parent_problem(
    spec: &QueueSpec,
    all: &BTreeMap<&QueueName, &QueueSpec>,
) -> Option<(&'static str, String)> {
    let problem = |message: String| Some(("parent", message));
    let parent = spec.parent.as_ref().filter(|parent| parent.as_str() != ROOT)?;
    if spec.name.as_str() == ROOT {
        return problem(format!("is {parent}, and {ROOT} is above all queues"));
    }
    if *parent == spec.name {
        return problem("is the queue itself".to_owned());
    }
    let mut above = vec![parent];
    loop {
        let last = above.last()?;
        let Some(next) = all.get(last) else {
            // Further up it is the problem of the queue that names it.
            return if above.len() == 1 { problem(format!("queue {parent} does not exist")) } else { None };
        };
        let Some(next) = next.parent.as_ref().filter(|next| next.as_str() != ROOT) else { break };
        if *next == spec.name {
            let names: Vec<&str> = above.iter().map(|name| name.as_str()).collect();
            return problem(format!("is {parent}, which is below it: {} > {}", names.join(" > "), spec.name));
        }
        if above.contains(&next) {
            return None;
        }
        above.push(next);
    }
    let levels = above.len() + 1;
    if levels > MOST_LEVELS {
        return problem(format!(
            "is {parent}, which puts it {levels} levels below {ROOT}; at most {MOST_LEVELS} are allowed"
        ));
    }
    None
}

/// Per resource guarantee <= deserved <= capability; what the larger one does not name has no limit.
fn amounts_problem(spec: &QueueSpec) -> Option<(&'static str, String)> {
    let pairs: [(&str, &Resources, &str, &Resources); 3] = [
        ("guarantee", &spec.guarantee, "deserved", &spec.deserved),
        ("guarantee", &spec.guarantee, "capability", &spec.capability),
        ("deserved", &spec.deserved, "capability", &spec.capability),
    ];
    pairs.into_iter().find_map(|(field, smaller, limit_field, larger)| {
        smaller.iter().find_map(|(name, value)| {
            let limit = larger.get(name.as_str()).filter(|limit| value > *limit)?;
            let (value, limit) = (format_amount(name.as_str(), value), format_amount(name.as_str(), limit));
            let rule = "guarantee <= deserved <= capability";
            Some((field, format!("{name} is {value}, above {limit_field} {limit} ({rule})")))
        })
    })
}
