//! Kinds of objects, and how people and API servers write them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kinds of objects that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// `scheduling.volcano.sh/v1beta1` Queue, cluster-scoped.
    Queue,
    /// `phalanx.dev/v1alpha1` QueuePolicy, cluster-scoped: what the Queue of the same name has no field for.
    QueuePolicy,
    /// `scheduling.k8s.io/v1` PriorityClass, cluster-scoped.
    PriorityClass,
    /// `v1` Node, cluster-scoped.
    Node,
    /// `scheduling.volcano.sh/v1beta1` PodGroup.
    PodGroup,
    /// `batch.volcano.sh/v1alpha1` Job.
    Job,
    /// `v1` Pod.
    Pod,
    /// `phalanx.dev/v1alpha1` GangPlan, written by the coordinator only.
    GangPlan,
    /// `policy/v1` PodDisruptionBudget; read from a Kubernetes API server only.
    PodDisruptionBudget,
    /// `storage.k8s.io/v1` StorageClass, cluster-scoped; read from a Kubernetes API server only.
    StorageClass,
    /// `v1` PersistentVolume, cluster-scoped; read from a Kubernetes API server only.
    PersistentVolume,
    /// `v1` PersistentVolumeClaim; read from a Kubernetes API server only. Stands behind what it is joined with, so that
    /// a listing tells of each claim once.
    PersistentVolumeClaim,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Queue,
        Self::QueuePolicy,
        Self::PriorityClass,
        Self::Node,
        Self::PodGroup,
        Self::Job,
        Self::Pod,
        Self::GangPlan,
        Self::PodDisruptionBudget,
        Self::StorageClass,
        Self::PersistentVolume,
        Self::PersistentVolumeClaim,
    ];

    /// The kinds that standalone mode serves, in the order in which they are best applied.
    pub const STANDALONE: [Self; 8] = [
        Self::Queue,
        Self::QueuePolicy,
        Self::PriorityClass,
        Self::Node,
        Self::PodGroup,
        Self::Job,
        Self::Pod,
        Self::GangPlan,
    ];

    /// Name as manifests write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "Queue",
            Self::QueuePolicy => "QueuePolicy",
            Self::PriorityClass => "PriorityClass",
            Self::Node => "Node",
            Self::PodGroup => "PodGroup",
            Self::Job => "Job",
            Self::Pod => "Pod",
            Self::GangPlan => "GangPlan",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::StorageClass => "StorageClass",
            Self::PersistentVolume => "PersistentVolume",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
        }
    }

    /// Name as the paths of an API server write it.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Queue => "queues",
            Self::QueuePolicy => "queuepolicies",
            Self::PriorityClass => "priorityclasses",
            Self::Node => "nodes",
            Self::PodGroup => "podgroups",
            Self::Job => "jobs",
            Self::Pod => "pods",
            Self::GangPlan => "gangplans",
            Self::PodDisruptionBudget => "poddisruptionbudgets",
            Self::StorageClass => "storageclasses",
            Self::PersistentVolume => "persistentvolumes",
            Self::PersistentVolumeClaim => "persistentvolumeclaims",
        }
    }

    /// `group/version` as manifests write it.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Queue | Self::PodGroup => "scheduling.volcano.sh/v1beta1",
            Self::PriorityClass => "scheduling.k8s.io/v1",
            Self::Node | Self::Pod | Self::PersistentVolume | Self::PersistentVolumeClaim => "v1",
            Self::Job => "batch.volcano.sh/v1alpha1",
            Self::QueuePolicy | Self::GangPlan => "phalanx.dev/v1alpha1",
            Self::PodDisruptionBudget => "policy/v1",
            Self::StorageClass => "storage.k8s.io/v1",
        }
    }

    /// True where objects have no namespace.
    #[must_use]
    pub const fn is_cluster_scoped(self) -> bool {
        matches!(
            self,
            Self::Queue
                | Self::QueuePolicy
                | Self::PriorityClass
                | Self::Node
                | Self::StorageClass
                | Self::PersistentVolume
        )
    }

    /// Reads a kind as people write it: any case, singular, plural or Volcano's short names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "queue" | "queues" | "q" => Some(Self::Queue),
            "queuepolicy" | "queuepolicies" | "qpol" => Some(Self::QueuePolicy),
            "priorityclass" | "priorityclasses" | "pc" => Some(Self::PriorityClass),
            "node" | "nodes" | "no" => Some(Self::Node),
            "podgroup" | "podgroups" | "pg" | "gang" | "gangs" => Some(Self::PodGroup),
            "job" | "jobs" | "vcjob" | "vcjobs" | "vj" => Some(Self::Job),
            "pod" | "pods" | "po" => Some(Self::Pod),
            "gangplan" | "gangplans" => Some(Self::GangPlan),
            "poddisruptionbudget" | "poddisruptionbudgets" | "pdb" => Some(Self::PodDisruptionBudget),
            "storageclass" | "storageclasses" | "sc" => Some(Self::StorageClass),
            "persistentvolume" | "persistentvolumes" | "pv" => Some(Self::PersistentVolume),
            "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => Some(Self::PersistentVolumeClaim),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
