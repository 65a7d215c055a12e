//! What a user asks for: a gang, its pods, and what each pod needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::constraints::{LabelRequirement, PodConstraints};
use crate::ids::{GangName, GpuId, LeaseId, NodeName, PodUid, QueueName};
use crate::resources::{Resources, format_amount};
use crate::units::{Millis, Time};

/// Most containers of one pod, of all kinds.
pub const MAX_CONTAINERS: usize = 64;

/// When a container runs within its pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ContainerKind {
    /// Runs to its end before the app containers start.
    Init,
    /// An init container with `restartPolicy: Always`: starts in order, then runs beside the apps.
    Sidecar,
    /// An ordinary container.
    App,
}

/// One container and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Name within the pod.
    pub name: Arc<str>,
    /// When it runs.
    pub kind: ContainerKind,
    /// Requests; for extended resources Kubernetes makes them equal to the limits.
    pub requests: Resources,
}

/// What a pod asks for, container by container in kubelet's order (init containers first).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRequest {
    /// The containers.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, MAX_CONTAINERS>")]
    pub containers: Vec<ContainerRequest>,
    /// `spec.overhead`.
    pub overhead: Resources,
}

impl PodRequest {
    /// The pod's peak: the larger of the apps with all sidecars, and each init container with the
    /// sidecars before it, plus overhead (KEP-753).
    #[must_use]
    pub fn effective(&self) -> Resources {
        let mut sidecars = Resources::new();
        let mut init_peak = Resources::new();
        let mut apps = Resources::new();
        for container in &self.containers {
            match container.kind {
                ContainerKind::App => apps.add(&container.requests),
                ContainerKind::Sidecar => {
                    sidecars.add(&container.requests);
                    init_peak.raise_to(&sidecars);
                }
                ContainerKind::Init => {
                    let mut with_sidecars = sidecars.clone();
                    with_sidecars.add(&container.requests);
                    init_peak.raise_to(&with_sidecars);
                }
            }
        }
        apps.add(&sidecars);
        apps.raise_to(&init_peak);
        apps.add(&self.overhead);
        apps
    }
}

impl PodRequest {
    /// How the pod's peak of a resource comes about, `sidecar 8 + app 8`; `None` where it is one
    /// container's request.
    #[must_use]
    pub fn parts(&self, resource: &str) -> Option<String> {
        let peak = self.effective().get(resource)?;
        let asked = |request: &ContainerRequest| request.requests.get(resource).unwrap_or(0);
        let overhead = self.overhead.get(resource).unwrap_or(0);
        let sum = |parts: &[(&str, u64)]| parts.iter().map(|(_, amount)| *amount).sum::<u64>();
        let mut sidecars = Vec::new();
        let mut apps = Vec::new();
        let mut best: Vec<(&str, u64)> = Vec::new();
        for container in self.containers.iter().filter(|container| asked(container) > 0) {
            match container.kind {
                ContainerKind::App => apps.push(("app", asked(container))),
                ContainerKind::Sidecar => sidecars.push(("sidecar", asked(container))),
                ContainerKind::Init => {
                    let mut parts = sidecars.clone();
                    parts.push(("init", asked(container)));
                    if sum(&parts) > sum(&best) {
                        best = parts;
                    }
                }
            }
        }
        let mut running = sidecars;
        running.extend(apps);
        let mut parts = if sum(&running) >= sum(&best) { running } else { best };
        parts.extend((overhead > 0).then_some(("overhead", overhead)));
        let text = |(kind, amount): &(&str, u64)| format!("{kind} {}", format_amount(resource, *amount));
        let is_sum = parts.len() > 1 && sum(&parts) == peak;
        is_sum.then(|| parts.iter().map(text).collect::<Vec<_>>().join(" + "))
    }
}

/// A gang as its PodGroup states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangSpec {
    /// Namespace and name of the PodGroup.
    pub name: GangName,
    /// UID of the PodGroup: a new object of the old name is another gang.
    pub uid: Arc<str>,
    /// Creation time of the PodGroup.
    pub created: Time,
    /// Queue it waits in.
    pub queue: QueueName,
    /// Fewest pods that may run together.
    pub min_member: u32,
    /// Fewest pods of single tasks that may run together.
    pub min_task_member: BTreeMap<Arc<str>, u32>,
    /// Resources the gang must be able to get before its pods exist (`spec.minResources`).
    pub min_resources: Option<Resources>,
    /// PriorityClass by name; `None` = the global default.
    pub priority_class: Option<Arc<str>>,
    /// Pods of one task may run on GPUs of several models.
    pub mixed_gpu_models: bool,
    /// What it allows others, and how long it runs.
    #[serde(default)]
    pub policy: GangPolicy,
    /// What its status says; `None` where it was not told.
    #[serde(default)]
    pub shown: Option<ShownGang>,
}

/// What a gang allows others, and how long it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPolicy {
    /// `volcano.sh/preemptable`: false = never a victim; `None` = it may be one.
    pub preemptable: Option<bool>,
    /// `volcano.sh/cooldown-time`: no victim before it has run so long.
    pub cooldown_ms: Millis,
    /// `phalanx.dev/checkpoint-grace`: it is told so long before its pods are evicted.
    pub checkpoint_grace_ms: Millis,
    /// How long it runs, where it says so.
    pub run_estimate_ms: Option<Millis>,
    /// `phalanx.dev/degraded-grace`: below its minimum for so long, it gives back what it has; `None` = the coordinator's
    /// setting.
    pub degraded_grace: Option<Grace>,
    /// `phalanx.dev/gang-group`: gangs that start together.
    pub group: Option<GangGroup>,
    /// `phalanx.dev/fewer-after`: it starts with fewer pods when it has waited so long.
    pub fewer_after: Option<FewerAfter>,
    /// `spec.subGroupPolicy`: parts of the gang each of which is placed wholly or not at all.
    pub sub_groups: Vec<SubGroupPolicy>,
}

/// A time, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grace {
    /// After this.
    After(Millis),
    /// Never.
    Never,
}

/// Gangs of one namespace that start together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GangGroup {
    /// Name of the group.
    pub name: Arc<str>,
    /// Gangs that it has.
    pub size: u32,
}

/// A lower minimum for a gang that has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FewerAfter {
    /// Fewest pods that may run together then.
    pub minimum: u32,
    /// Time since it was made.
    pub after_ms: Millis,
}

/// Parts of a gang: the pods that a selector matches, split by the values of some labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubGroupPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// Pods of each part.
    pub size: u32,
    /// Parts that are needed.
    pub minimum: u32,
    /// What a pod's labels must meet, all of it.
    pub selector: Vec<LabelRequirement>,
    /// Pods with the same values of these labels are one part.
    pub match_labels: Vec<Arc<str>>,
}

/// How the UID of a gang begins that has no PodGroup: it is one pod's. No object's UID has a slash.
const LONE_POD: &str = "pod/";

impl GangSpec {
    /// UID of the gang of a pod that names no PodGroup, until there is one for it.
    #[must_use]
    pub fn lone_pod_uid(pod: &PodUid) -> Arc<str> {
        Arc::from(format!("{LONE_POD}{pod}"))
    }

    /// True for the gang of a pod that names no PodGroup: there is no object whose status could be written.
    #[must_use]
    pub fn is_lone_pod(&self) -> bool {
        self.uid.starts_with(LONE_POD)
    }

    /// True for the gang of this very pod, which names no PodGroup.
    #[must_use]
    pub fn is_of_lone_pod(&self, pod: &PodUid) -> bool {
        self.uid.strip_prefix(LONE_POD) == Some(pod.as_str())
    }
}

/// The status of a PodGroup as the API shows it, cut down to what is compared with what was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownGang {
    /// Phase, in Volcano's words; empty where there is none.
    pub phase: Arc<str>,
    /// Code of the reason why it does not run.
    pub reason: Option<Arc<str>>,
    /// Pods that run.
    pub running: u64,
    /// Pods that ended well.
    pub succeeded: u64,
    /// Pods that ended badly.
    pub failed: u64,
}

/// Phase of a pod, as in the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodPhase {
    /// Not started.
    Pending,
    /// Started, not ended.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
}

impl PodPhase {
    /// True where the pod has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Text as in the Kubernetes API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Where a pod was bound, read from its Binding's annotations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodBinding {
    /// The node.
    pub node: NodeName,
    /// Our lease, where we bound it.
    pub lease: Option<LeaseId>,
    /// The exact GPUs, where the lease is exact.
    pub gpus: Vec<GpuId>,
}

/// A constraint of a pod that cannot be met: malformed, or of a kind that is not served yet. The
/// pod waits with this as its reason; nothing is ignored in silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// Field of the pod, `spec.affinity.podAffinity`.
    pub field: Arc<str>,
    /// What is wrong with it and what would help.
    pub message: Arc<str>,
}

/// A PersistentVolumeClaim that a pod mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodClaim {
    /// Its name, in the pod's namespace.
    pub name: Arc<str>,
    /// It is made for this pod alone (an `ephemeral` volume): one of that name that does not belong to the pod is
    /// another one.
    #[serde(default)]
    pub own: bool,
}

/// A pod as the API shows it, cut down to what decisions need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSpec {
    /// UID.
    pub uid: PodUid,
    /// Namespace and name.
    pub name: GangName,
    /// The gang it belongs to.
    pub gang: GangName,
    /// Its task within the gang.
    pub task: Arc<str>,
    /// What it asks for.
    pub request: PodRequest,
    /// Labels a node must have.
    pub node_selector: BTreeMap<Arc<str>, Arc<str>>,
    /// Where it may go beside that; alike pods share one value.
    #[serde(default)]
    pub constraints: Arc<PodConstraints>,
    /// Claims that it mounts: without their volumes it cannot start.
    #[serde(default)]
    pub claims: Vec<PodClaim>,
    /// Constraints that cannot be met.
    pub blockers: Vec<Blocker>,
    /// Standalone mode: how long it runs; `None` = until it is deleted.
    pub run_for: Option<Millis>,
    /// resourceVersion of the object: precondition of the Binding.
    pub resource_version: u64,
    /// Phase.
    pub phase: PodPhase,
    /// Where it is bound.
    pub binding: Option<PodBinding>,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Counter of the term under which it was last bound or fenced; 0 = never.
    #[serde(default)]
    pub term: u64,
    /// UID of the PodGroup that it was bound for; empty where no coordinator bound it, or an older one did.
    #[serde(default)]
    pub group_uid: Arc<str>,
    /// What matters when it is to make room, or others for it.
    #[serde(default)]
    pub policy: PodPolicy,
}

/// What matters of a pod when it is to make room, or others for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPolicy {
    /// Labels, for disruption budgets and sub-groups.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// `preemptionPolicy: Never`: nothing is evicted for it.
    pub never_preempts: bool,
    /// `volcano.sh/preemptable`, where the pod says it.
    pub preemptable: Option<bool>,
    /// `volcano.sh/cooldown-time`, where the pod says it.
    pub cooldown_ms: Millis,
    /// When it was made.
    pub created: Time,
    /// When it started, or was scheduled.
    pub started: Option<Time>,
    /// `terminationGracePeriodSeconds`.
    pub grace_ms: Millis,
    /// `deletionTimestamp`: when its grace period ends.
    pub ends_by: Option<Time>,
    /// `activeDeadlineSeconds`: it is stopped when it has run so long.
    pub deadline_ms: Option<Millis>,
    /// It leads its gang (a master, a launcher): the last of it to be evicted.
    pub leads: bool,
}

impl Default for PodPolicy {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            never_preempts: false,
            preemptable: None,
            cooldown_ms: Millis(0),
            created: Time(0),
            started: None,
            grace_ms: Millis::from_seconds(30),
            ends_by: None,
            deadline_ms: None,
            leads: false,
        }
    }
}
