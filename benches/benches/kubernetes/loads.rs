//! What is placed.

use std::fmt;

use serde_json::{Value, json};

use crate::Failure;

/// Namespace of all pods.
pub const NAMESPACE: &str = "bench";
/// Queue of all gangs.
pub const QUEUE: &str = "bench";
/// Pods of the loads of many.
const PODS: usize = 1_600;
/// Pods of a small gang.
const GANG: usize = 8;
/// GPUs of a node.
const NODE_GPUS: usize = 8;

/// What is placed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// 1,600 pods of one GPU, each for itself.
    Singles,
    /// 1,600 pods of one GPU in gangs of eight.
    Gangs,
    /// One gang of pods that take a whole node each.
    Large {
        /// How many.
        pods: usize,
    },
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Singles => write!(formatter, "{PODS} single pods x 1 GPU"),
            Self::Gangs => write!(formatter, "{PODS} pods x 1 GPU in gangs of {GANG}"),
            Self::Large { pods } => write!(formatter, "one gang of {pods} x {NODE_GPUS} GPUs"),
        }
    }
}

impl Load {
    /// Reads `singles`, `gangs`, or `large:200`.
    pub fn read(text: &str) -> Result<Self, Failure> {
        match text.split_once(':') {
            None if text == "singles" => Ok(Self::Singles),
            None if text == "gangs" => Ok(Self::Gangs),
            Some(("large", pods)) => {
                let pods = pods.parse().map_err(|_| format!("--loads: {pods:?} is no number of pods"))?;
                Ok(Self::Large { pods })
            }
            _ => Err(format!("--loads: {text:?} must be singles, gangs or large:PODS").into()),
        }
    }

    /// How many pods.
    pub const fn pods(self) -> usize {
        match self {
            Self::Singles | Self::Gangs => PODS,
            Self::Large { pods } => pods,
        }
    }

    /// True where pods belong together.
    pub const fn is_gang(self) -> bool {
        !matches!(self, Self::Singles)
    }

    const fn gang_size(self) -> usize {
        match self {
            Self::Singles => 1,
            Self::Gangs => GANG,
            Self::Large { pods } => pods,
        }
    }

    /// GPUs of a pod.
    pub const fn gpus(self) -> usize {
        match self {
            Self::Singles | Self::Gangs => 1,
            Self::Large { .. } => NODE_GPUS,
        }
    }

    /// Node number of a pod where whole nodes are filled one after the other.
    pub const fn node_of(self, pod: usize) -> usize {
        pod * self.gpus() / NODE_GPUS
    }

    /// The PodGroups, where Phalanx places the pods.
    pub fn groups(self) -> Vec<Value> {
        if !self.is_gang() {
            return Vec::new();
        }
        let size = self.gang_size();
        let group = |number: usize| {
            json!({
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": { "name": format!("gang-{number}"), "namespace": NAMESPACE },
                "spec": { "minMember": size, "queue": QUEUE },
            })
        };
        (0..self.pods() / size).map(group).collect()
    }

    /// The pods.
    pub fn specs(self, scheduler: &str, with_groups: bool) -> Vec<Value> {
        let pod = |number: usize| {
            let gpus = self.gpus().to_string();
            let mut pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": { "name": format!("pod-{number:05}"), "namespace": NAMESPACE },
                "spec": {
                    "schedulerName": scheduler,
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 0,
                    "enableServiceLinks": false,
                    "containers": [{
                        "name": "train",
                        "image": "bench",
                        "resources": { "limits": { "nvidia.com/gpu": gpus, "cpu": "1", "memory": "1Gi" } },
                    }],
                },
            });
            if with_groups && self.is_gang() {
                let gang = format!("gang-{}", number / self.gang_size());
                pod["metadata"]["annotations"] = json!({ "scheduling.k8s.io/group-name": gang });
            }
            pod
        };
        (0..self.pods()).map(pod).collect()
    }
}
