//! Who holds what a gang waits for: pods of ours that do not use it yet, or any more, and pods of others.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::NodeName;
use serde::{Deserialize, Serialize};

use super::amount_of;

/// State of a holder that is being deleted and still has its GPUs.
pub(crate) const TERMINATING: &str = "terminating";

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
    pub(super) fn text(&self, resource: &str) -> String {
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
    /// The pod; or a gang that lacks pods and gives back what it has, and when.
    pub by: Arc<str>,
    /// Its state, as `bound, device not yet taken`; empty for a gang.
    pub state: Arc<str>,
}

impl fmt::Display for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus = name_gpus(&self.gpus);
        if &*self.state == TERMINATING {
            return write!(formatter, "{}: {gpus} held by terminating pod {}", self.node, self.by);
        }
        if self.state.is_empty() {
            return write!(formatter, "{}: {gpus} held by {}", self.node, self.by);
        }
        write!(formatter, "{}: {gpus} held by {} ({})", self.node, self.by, self.state)
    }
}

/// `g0,g2`, and `g4..g7` for a row of more than two.
fn name_gpus(indexes: &[u32]) -> String {
    let rows = indexes.chunk_by(|left, right| left.checked_add(1) == Some(*right));
    let text = |row: &[u32]| match row {
        [first, _, .., last] => format!("g{first}..g{last}"),
        row => row.iter().map(|index| format!("g{index}")).collect::<Vec<_>>().join(","),
    };
    rows.map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_gpus_are_named_by_their_ends() {
        assert_eq!(name_gpus(&[4, 5, 6, 7]), "g4..g7");
        assert_eq!(name_gpus(&[0, 1, 3, 5, 6, 7]), "g0,g1,g3,g5..g7");
        assert_eq!(name_gpus(&[]), "");
    }
}
