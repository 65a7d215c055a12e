//! What is to be lowered of a gang that would start with fewer pods.

use std::sync::Arc;

use phalanx_common::resources::format_amount;
use serde::{Deserialize, Serialize};

/// Everything that has to be lowered together, so that the gang needs no more than these pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fewer {
    /// Its `minMember`.
    pub minimum: u32,
    /// That is as low already.
    #[serde(default)]
    pub is_so_low: bool,
    /// Minima of its tasks that would ask for others, and what they become.
    #[serde(default)]
    pub tasks: Vec<(Arc<str>, u32)>,
    /// What of its `minResources` would ask for more pods, and what it becomes.
    #[serde(default)]
    pub resources: Vec<(Arc<str>, u64)>,
}

impl Fewer {
    /// No more than its `minMember`.
    #[must_use]
    pub const fn to(minimum: u32) -> Self {
        Self { minimum, is_so_low: false, tasks: Vec::new(), resources: Vec::new() }
    }

    /// Nothing is to be lowered.
    pub(crate) const fn is_nothing(&self) -> bool {
        self.is_so_low && self.tasks.is_empty() && self.resources.is_empty()
    }

    /// What to lower, for people: of a PodGroup, and of the Job that it follows.
    #[must_use]
    pub fn text(&self) -> String {
        let mut all = Vec::new();
        if !self.is_so_low {
            all.push(format!("minMember (minAvailable of a Job) to {}", self.minimum));
        }
        if !self.tasks.is_empty() {
            let tasks = self.tasks.iter().map(|(task, minimum)| format!("of {task} to {minimum}"));
            let tasks = tasks.collect::<Vec<_>>().join(", ");
            all.push(format!("minTaskMember (minAvailable of the task) {tasks}"));
        }
        if !self.resources.is_empty() {
            let amount =
                |(name, amount): &(Arc<str>, u64)| format!("{name} {}", format_amount(name, *amount));
            let amounts = self.resources.iter().map(amount).collect::<Vec<_>>().join(", ");
            let of = if all.is_empty() { "" } else { " (those of a Job follow)" };
            all.push(format!("minResources{of} to {amounts}"));
        }
        format!("lower {}", all.join(" and "))
    }
}

/// The suggestion to lower the minimum, where a lower one would do.
pub(super) fn or_fewer(fewer: Option<&Fewer>) -> String {
    fewer.map(|fewer| format!(", or {}", fewer.text())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_to_be_lowered_is_named() {
        let mut fewer = Fewer::to(4);
        assert_eq!(fewer.text(), "lower minMember (minAvailable of a Job) to 4");
        fewer.tasks = vec![("ps".into(), 1), ("worker".into(), 3)];
        fewer.resources = vec![("nvidia.com/gpu".into(), 24)];
        assert_eq!(
            fewer.text(),
            "lower minMember (minAvailable of a Job) to 4 and minTaskMember (minAvailable of the task) of ps to 1, \
             of worker to 3 and minResources (those of a Job follow) to nvidia.com/gpu 24"
        );
        fewer.is_so_low = true;
        fewer.tasks.clear();
        assert_eq!(fewer.text(), "lower minResources to nvidia.com/gpu 24");
    }
}
