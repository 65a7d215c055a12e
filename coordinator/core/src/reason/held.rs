//! Who holds what a gang waits for: pods of ours that do not use it yet, or any more, and pods of others.

use std::fmt;
use std::sync::Arc;

use phalanx_common::ids::NodeName;
use serde::{Deserialize, Serialize};

use super::amount_of;

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
    /// The pod.
    pub by: Arc<str>,
    /// Its state, as `bound, device not yet taken`.
    pub state: Arc<str>,
}

impl fmt::Display for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus: Vec<String> = self.gpus.iter().map(|index| format!("g{index}")).collect();
        write!(formatter, "{}: {} held by {} ({})", self.node, gpus.join(","), self.by, self.state)
    }
}
