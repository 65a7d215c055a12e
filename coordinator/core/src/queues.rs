//! What is wrong with queues as their objects state them. A queue with a problem is refused when it is made; one that
//! is stored nevertheless is set aside: only its own gangs wait, and those of the queues below it. So is one that cannot be
//! read.

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

/// Queues above one that are looked at.
const MOST_LOOKED_AT: usize = 64;

/// What is wrong with a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueProblem {
    /// The queue.
    pub queue: QueueName,
    /// The field: `parent`, `guarantee`, `deserved`, or whatever cannot be read.
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
    let contradiction = || {
        let (field, message) = parent_problem(spec, all).or_else(|| amounts_problem(spec))?;
        Some((field.to_owned(), message))
    };
    let unreadable = spec.unreadable.as_ref().map(|it| (it.field.to_string(), it.message.to_string()));
    let (field, message) = unreadable.or_else(contradiction)?;
    Some(QueueProblem { queue: spec.name.clone(), field, message })
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
        // However long the chain is that strangers make, it costs no more than this.
        if above.len() > MOST_LOOKED_AT {
            let too_many =
                format!("more than {MOST_LOOKED_AT} levels below {ROOT}; at most {MOST_LEVELS} are allowed");
            return problem(format!("is {parent}, which puts it {too_many}"));
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName};

    use super::*;

    fn queue(name: &str, parent: Option<&str>) -> QueueSpec {
        QueueSpec { parent: parent.map(QueueName::from), ..QueueSpec::new(QueueName::from(name)) }
    }

    fn gpus(amount: u64) -> Resources {
        Resources::new().with(ResourceName::known(NVIDIA_GPU), amount)
    }

    fn texts(specs: &[QueueSpec]) -> Vec<String> {
        problems(specs).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_tree_in_order_has_no_problem() {
        let mut chain = vec![queue("root", None), queue("l1", Some("root"))];
        for level in 2..=MOST_LEVELS {
            chain.push(queue(&format!("l{level}"), Some(&format!("l{}", level - 1))));
        }
        // Children may have a higher ceiling than their parent: they act as if they had its own.
        chain[2].capability = gpus(8);
        chain[1].capability = gpus(4);
        assert_eq!(texts(&chain), Vec::<String>::new());
    }

    #[test]
    fn parents_must_be_there_above_and_not_too_far_from_the_root() {
        let mut specs = vec![
            queue("a", Some("nowhere")),
            queue("b", Some("b")),
            queue("c", Some("d")),
            queue("d", Some("c")),
        ];
        specs.push(queue("below-c", Some("c")));
        specs.push(queue("l1", None));
        for level in 2..=MOST_LEVELS + 2 {
            specs.push(queue(&format!("l{level}"), Some(&format!("l{}", level - 1))));
        }
        let expected = [
            "queue a: parent: queue nowhere does not exist",
            "queue b: parent: is the queue itself",
            "queue c: parent: is d, which is below it: d > c",
            "queue d: parent: is c, which is below it: c > d",
            "queue l6: parent: is l5, which puts it 6 levels below root; at most 5 are allowed",
            "queue l7: parent: is l6, which puts it 7 levels below root; at most 5 are allowed",
        ];
        assert_eq!(texts(&specs), expected);
    }

    #[test]
    fn amounts_are_compared_by_resource() {
        let mut under = queue("under", None);
        (under.guarantee, under.deserved, under.capability) = (gpus(2), gpus(4), gpus(8));
        assert_eq!(texts(&[under.clone()]), Vec::<String>::new());
        // What the larger one does not name has no limit.
        let mut other = under.clone();
        other.guarantee = Resources::new().with(ResourceName::known(CPU), 4000);
        assert_eq!(texts(&[other]), Vec::<String>::new());
        let mut above = under.clone();
        above.guarantee = gpus(5);
        let text = "queue under: guarantee: nvidia.com/gpu is 5, above deserved 4 (guarantee <= deserved <= capability)";
        assert_eq!(texts(&[above]), [text]);
        under.deserved = gpus(9);
        let text = "queue under: deserved: nvidia.com/gpu is 9, above capability 8 (guarantee <= deserved <= capability)";
        assert_eq!(texts(&[under]), [text]);
    }

    #[test]
    fn a_chain_of_any_length_is_looked_at_in_part() {
        let queue = |number: usize| QueueSpec {
            parent: Some(format!("q{:05}", number + 1).as_str().into()),
            ..QueueSpec::new(format!("q{number:05}").as_str().into())
        };
        let specs: Vec<QueueSpec> = (0..20_000).map(queue).collect();
        let found = problems(&specs);
        // The last one's parent is missing; those a little below it wait for that one alone.
        assert_eq!(found.len(), specs.len() - MOST_LOOKED_AT + 1);
        assert!(
            found[0].message.ends_with("more than 64 levels below root; at most 5 are allowed"),
            "{}",
            found[0]
        );
        assert!(found.last().is_some_and(|problem| problem.message == "queue q20000 does not exist"));
    }
}
