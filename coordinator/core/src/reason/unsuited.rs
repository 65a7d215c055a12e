//! Nodes that a pod cannot use, whoever ends: which constraint keeps it from how many, and which
//! change would help.

use std::fmt;
use std::sync::Arc;

use phalanx_common::constraints::{HostPort, Taint};
use phalanx_common::resources::NVIDIA_GPU;
use serde::{Deserialize, Serialize};

/// Constraints named in one text.
const NAMED: usize = 6;

/// What keeps a pod from a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unmet {
    /// A taint that no toleration matches.
    Taint(Taint),
    /// Labels of the pod's `nodeSelector` that the node has not.
    Selector(Vec<(Arc<str>, Arc<str>)>),
    /// Required node affinity; its terms as text.
    Affinity(Arc<str>),
    /// The volume of a claim is reached from other nodes only; the terms that those meet, as text.
    Volume {
        /// The claim.
        claim: Arc<str>,
        /// The terms.
        terms: Arc<str>,
    },
    /// A port that another pod has there.
    Port(HostPort),
    /// The node has as many pods as it may have.
    Pods,
    /// The pod asks for a device and no agent vouches for the node's.
    NoAgent,
    /// The node, empty, has too little of a resource.
    TooSmall(Arc<str>),
}

impl Unmet {
    /// What so many nodes have or lack: `3 have taint gpu=only:NoSchedule that no toleration matches`.
    fn text(&self, count: u32) -> String {
        let (have, do_not, are) =
            if count == 1 { ("has", "does not", "is") } else { ("have", "do not", "are") };
        match self {
            Self::Taint(taint) => format!("{count} {have} taint {taint} that no toleration matches"),
            Self::Selector(labels) => {
                format!("{count} {do_not} match nodeSelector {}", label_text(labels))
            }
            Self::Affinity(terms) if terms.is_empty() => {
                format!("{count} {do_not} match its node affinity, whose terms are empty")
            }
            Self::Affinity(terms) => format!("{count} {do_not} match node affinity {terms}"),
            Self::Volume { claim, terms } if terms.is_empty() => {
                format!(
                    "{count} {do_not} reach claim {claim}: its volume is reachable from no node, its terms are empty"
                )
            }
            Self::Volume { claim, terms } => {
                format!(
                    "{count} {do_not} reach claim {claim}: its volume is only reachable from nodes with {terms}"
                )
            }
            Self::Port(port) => format!("{count} {have} {port} taken"),
            Self::Pods => format!("{count} {are} full of pods"),
            Self::NoAgent => format!("{count} {have} no agent"),
            Self::TooSmall(resource) if &**resource == NVIDIA_GPU => format!("{count} {have} too few GPUs"),
            Self::TooSmall(resource) => format!("{count} {have} too little {resource}"),
        }
    }

    /// The change of the pod after which the node would do; empty where there is none.
    fn fix(&self) -> String {
        match self {
            Self::Taint(taint) => format!("add a toleration for {taint} to the pod"),
            Self::Selector(labels) => format!(
                "drop {labels} from spec.nodeSelector (or label nodes {labels})",
                labels = label_text(labels)
            ),
            Self::Affinity(_) => "change spec.affinity.nodeAffinity (or label nodes to meet it)".to_owned(),
            Self::Volume { claim, .. } => {
                format!(
                    "use another claim than {claim}, with a volume that such nodes reach (or label nodes to meet its terms)"
                )
            }
            Self::Port(port) => format!("ask for another host port than {port}"),
            Self::Pods | Self::NoAgent | Self::TooSmall(_) => String::new(),
        }
    }
}

fn label_text(labels: &[(Arc<str>, Arc<str>)]) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Nodes that a pod cannot use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsuited {
    /// Nodes in all.
    pub nodes: u32,
    /// What keeps the pod away, and from how many nodes; each node counts once.
    pub unmet: Vec<(Unmet, u32)>,
    /// What has to be changed, all of it, for the gang to fit; empty where no such change would do.
    pub help: Vec<Unmet>,
}

impl Unsuited {
    /// The change after which the gang would fit; empty where there is none.
    #[must_use]
    pub fn fix(&self) -> String {
        self.help.iter().map(Unmet::fix).collect::<Vec<_>>().join(" and ")
    }

    /// `of 1 node`, `of 3 nodes`.
    pub(super) fn of_nodes(&self) -> String {
        format!("of {} node{}", self.nodes, if self.nodes == 1 { "" } else { "s" })
    }

    /// The port or the number of pods that stands in the way, where one does.
    pub(super) fn in_use(&self) -> Option<&Unmet> {
        let mut unmet = self.unmet.iter().map(|(unmet, _)| unmet);
        unmet.find(|unmet| matches!(unmet, Unmet::Port(_) | Unmet::Pods))
    }
}

impl fmt::Display for Unsuited {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> =
            self.unmet.iter().take(NAMED).map(|(unmet, count)| unmet.text(*count)).collect();
        let more: u32 = self.unmet.iter().skip(NAMED).map(|(_, count)| *count).sum();
        if more > 0 {
            parts.push(format!("{more} for other constraints"));
        }
        formatter.write_str(&parts.join(", "))
    }
}
