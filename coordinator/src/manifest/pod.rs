//! A pod's spec, alone or as a template: what it asks for, where it may go, and what keeps it from
//! being placed.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::constraints::PodConstraints;
use phalanx_common::gang::{Blocker, ContainerKind, MAX_CONTAINERS, PodClaim, PodRequest};
use phalanx_common::units::Millis;

use super::amounts::{container, read_container_resources, read_resources};
use super::constraints::{read_gates, read_host_ports, read_node_affinity, read_tolerations};
use super::group::read_never_preempts;
use super::names::{SCHEDULER_PHALANX, SCHEDULER_VOLCANO, read_label_name, read_labels, read_name};
use super::reader::{Cursor, Fields, Sink};
use super::shape::Shape;
use super::tree::Tree;

/// What we read of a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFields {
    /// What its containers ask for.
    pub request: PodRequest,
    /// Labels a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Where it may go beside that.
    pub constraints: Arc<PodConstraints>,
    /// What keeps it from being placed.
    pub blockers: Vec<Blocker>,
    /// The claims that its volumes name. That of an `ephemeral` volume has the name of the volume here, without the
    /// pod's before it.
    pub claims: Vec<PodClaim>,
    /// The same where no claims are served.
    pub volume_blockers: Vec<Blocker>,
    /// Its scheduler, where it names one.
    pub scheduler: Option<String>,
    /// Its PriorityClass.
    pub priority_class: Option<String>,
    /// The node it is on.
    pub node: Option<String>,
    /// `preemptionPolicy: Never`: nothing is evicted for it.
    pub never_preempts: bool,
    /// `activeDeadlineSeconds`: it is stopped when it has run so long.
    pub deadline: Option<Millis>,
    /// `terminationGracePeriodSeconds`.
    pub grace: Option<Millis>,
}

/// Fields that mean nothing for placement.
const IGNORED: [(&str, Shape); 22] = [
    ("automountServiceAccountToken", Shape::Switch),
    ("dnsConfig", Shape::Any),
    ("dnsPolicy", Shape::OneOf(&["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"])),
    ("enableServiceLinks", Shape::Switch),
    ("hostAliases", Shape::Any),
    ("hostIPC", Shape::Switch),
    ("hostNetwork", Shape::Switch),
    ("hostPID", Shape::Switch),
    ("hostUsers", Shape::Switch),
    ("hostname", Shape::Text),
    ("imagePullSecrets", Shape::Any),
    ("os", Shape::Any),
    ("priority", Shape::AtLeast(i64::MIN)),
    ("readinessGates", Shape::Any),
    ("restartPolicy", Shape::OneOf(&["Always", "OnFailure", "Never"])),
    ("runtimeClassName", Shape::Text),
    ("securityContext", Shape::Any),
    ("serviceAccount", Shape::Text),
    ("serviceAccountName", Shape::Text),
    ("setHostnameAsFQDN", Shape::Switch),
    ("shareProcessNamespace", Shape::Switch),
    ("subdomain", Shape::Text),
];

/// Fields of a container that mean nothing for placement.
const CONTAINER_IGNORED: [(&str, Shape); 19] = [
    ("args", Shape::Texts),
    ("command", Shape::Texts),
    ("env", Shape::Environment),
    ("envFrom", Shape::Any),
    ("image", Shape::Text),
    ("imagePullPolicy", Shape::OneOf(&["Always", "IfNotPresent", "Never"])),
    ("lifecycle", Shape::Any),
    ("livenessProbe", Shape::Any),
    ("readinessProbe", Shape::Any),
    ("resizePolicy", Shape::Any),
    ("restartPolicyRules", Shape::Any),
    ("securityContext", Shape::Any),
    ("startupProbe", Shape::Any),
    ("stdin", Shape::Switch),
    ("stdinOnce", Shape::Switch),
    ("terminationMessagePath", Shape::Text),
    ("terminationMessagePolicy", Shape::OneOf(&["File", "FallbackToLogsOnError"])),
    ("tty", Shape::Switch),
    ("workingDir", Shape::Text),
];

/// Reads a pod's spec. A constraint that is not served becomes a blocker, which the pod waits with.
pub fn read_pod(cursor: &Cursor<'_>, sink: &mut Sink) -> PodFields {
    let mut pod = PodFields::default();
    let Some(mut fields) = cursor.fields(sink) else { return pod };
    let mut constraints = PodConstraints::default();
    let host_network = fields.get("hostNetwork").is_some_and(|at| at.node.value == Tree::Bool(true));
    if let Some(init) = fields.get("initContainers") {
        read_containers(&init, Part { init: true, host_network }, &mut pod, &mut constraints, sink);
    }
    match fields.required(sink, "containers", "a list of at least one container") {
        Some(containers) if containers.is_empty() => {
            containers.error(sink, "must hold at least one container");
        }
        Some(containers) => {
            let part = Part { init: false, host_network };
            read_containers(&containers, part, &mut pod, &mut constraints, sink);
        }
        None => {}
    }
    pod.request.overhead = fields.get("overhead").map(|at| read_resources(&at, sink)).unwrap_or_default();
    pod.node_selector = fields.get("nodeSelector").map(|at| read_labels(&at, sink)).unwrap_or_default();
    pod.scheduler = fields.get("schedulerName").and_then(|at| read_scheduler(&at, sink));
    pod.priority_class = fields.get("priorityClassName").and_then(|at| read_name(&at, sink));
    pod.node = fields.get("nodeName").and_then(|at| read_name(&at, sink));
    constraints.tolerations =
        fields.get("tolerations").map(|at| read_tolerations(&at, sink)).unwrap_or_default();
    constraints.gates = fields.get("schedulingGates").map(|at| read_gates(&at, sink)).unwrap_or_default();
    read_constraints(&mut fields, &mut constraints, &mut pod.blockers, sink);
    if let Some(volumes) = fields.get("volumes") {
        read_volumes(&volumes, &mut pod, sink);
    }
    pod.constraints = Arc::new(constraints);
    if let Some(at) = fields.get("preemptionPolicy") {
        pod.never_preempts = read_never_preempts(&at, sink);
    }
    let mut seconds = |name, least| {
        let found = fields.get(name).and_then(|at| at.whole(sink, least, i64::MAX));
        found.and_then(|seconds| u64::try_from(seconds).ok()).map(Millis::from_seconds)
    };
    pod.deadline = seconds("activeDeadlineSeconds", 1);
    pod.grace = seconds("terminationGracePeriodSeconds", 0);
    fields.check(sink, &IGNORED);
    fields.ignore(&["ephemeralContainers"]);
    fields.finish(sink);
    pod
}

/// Reads `schedulerName`: ours, or Volcano's.
pub fn read_scheduler(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<String> {
    cursor.one_of(sink, &[SCHEDULER_PHALANX, SCHEDULER_VOLCANO]).map(str::to_owned)
}

/// Which containers of a pod are read.
#[derive(Clone, Copy)]
struct Part {
    init: bool,
    /// The pod has the network of its node: every port of its containers is the node's.
    host_network: bool,
}

fn read_containers(
    cursor: &Cursor<'_>,
    part: Part,
    pod: &mut PodFields,
    constraints: &mut PodConstraints,
    sink: &mut Sink,
) {
    let Some(list) = cursor.list(sink) else { return };
    if list.len() + pod.request.containers.len() > MAX_CONTAINERS {
        cursor
            .error(sink, format!("a pod may have at most {MAX_CONTAINERS} containers, found {}", list.len()));
        return;
    }
    for at in list {
        read_container(&at, part, pod, constraints, sink);
    }
}

fn read_container(
    cursor: &Cursor<'_>,
    part: Part,
    pod: &mut PodFields,
    constraints: &mut PodConstraints,
    sink: &mut Sink,
) {
    let Some(mut fields) = cursor.fields(sink) else { return };
    let name_at = fields.required(sink, "name", "the container's name");
    let name = name_at.as_ref().and_then(|at| read_label_name(at, sink)).unwrap_or_default();
    if let Some(at) = &name_at
        && pod.request.containers.iter().any(|other| *other.name == *name && !name.is_empty())
    {
        at.error(sink, format!("two containers are named {name:?}: rename one"));
    }
    let mut kind = if part.init { ContainerKind::Init } else { ContainerKind::App };
    if let Some(at) = fields.get("restartPolicy") {
        let allowed: &[&str] = &["Always", "Never", "OnFailure"];
        if at.one_of(sink, allowed) == Some("Always") && part.init {
            kind = ContainerKind::Sidecar;
        }
    }
    let mut requests = Default::default();
    if let Some(at) = fields.get("resources") {
        let (asked, claims) = read_container_resources(&at, sink);
        requests = asked;
        if claims {
            block(
                &mut pod.blockers,
                &at.below("claims"),
                "claims of DRA are not served yet: ask for the devices as limits",
                &at,
                sink,
            );
        }
    }
    if let Some(at) = fields.get("ports") {
        let ports = read_host_ports(&at, part.host_network, sink);
        // An init container that ends has given its ports back when the others run.
        if kind != ContainerKind::Init {
            constraints.host_ports.extend(ports);
        }
    }
    fields.check(sink, &CONTAINER_IGNORED);
    fields.ignore(&["volumeMounts", "volumeDevices"]);
    fields.finish(sink);
    pod.request.containers.push(container(&name, kind, requests));
}

/// Fields that constrain placement: node affinity is read, and those that are not served yet become blockers.
fn read_constraints(
    fields: &mut Fields<'_>,
    constraints: &mut PodConstraints,
    blockers: &mut Vec<Blocker>,
    sink: &mut Sink,
) {
    if let Some(affinity) = fields.get("affinity") {
        read_affinity(&affinity, constraints, blockers, sink);
    }
    if let Some(spread) = fields.get("topologySpreadConstraints") {
        for constraint in spread.list(sink).into_iter().flatten() {
            let soft = text_field(constraint.node, "whenUnsatisfiable") == Some("ScheduleAnyway");
            if soft {
                constraint.warn_not_honoured(sink);
            } else {
                block(
                    blockers,
                    &constraint.path,
                    "spread constraints are not served yet: remove it, or set whenUnsatisfiable: ScheduleAnyway",
                    &constraint,
                    sink,
                );
            }
        }
    }
    for (name, message) in [
        ("resourceClaims", "claims of DRA are not served yet: ask for the devices as limits"),
        ("resources", "resources of a whole pod are not served yet: set them on its containers"),
        (
            "schedulingGroup",
            "native pod groups are not served yet: use the annotation scheduling.k8s.io/group-name",
        ),
    ] {
        if let Some(at) = fields.get(name)
            && !at.is_empty()
        {
            block(blockers, &at.path, message, &at, sink);
        }
    }
}

/// Volumes that are claims: without one the pod cannot start.
fn read_volumes(volumes: &Cursor<'_>, pod: &mut PodFields, sink: &mut Sink) {
    for volume in volumes.list(sink).into_iter().flatten() {
        for source in ["persistentVolumeClaim", "ephemeral"] {
            let Some(node) = field(volume.node, source).filter(|node| node.value != Tree::Null) else {
                continue;
            };
            let name = match source {
                "ephemeral" => text_field(volume.node, "name"),
                _ => text_field(node, "claimName"),
            };
            let claim = Arc::from(name.unwrap_or_default());
            pod.claims.push(PodClaim { name: claim, own: source == "ephemeral" });
            let message = format!("volumes with {source} are not served in standalone mode: remove it");
            block(&mut pod.volume_blockers, &volume.below(source), &message, &volume, sink);
        }
    }
}

fn read_affinity(
    cursor: &Cursor<'_>,
    constraints: &mut PodConstraints,
    blockers: &mut Vec<Blocker>,
    sink: &mut Sink,
) {
    for (kind, part) in cursor.entries(sink).into_iter().flatten() {
        match kind {
            // As a client writes a kind of affinity that it has not.
            "nodeAffinity" | "podAffinity" | "podAntiAffinity" if part.node.value == Tree::Null => {}
            "nodeAffinity" => read_node_affinity(&part, constraints, sink),
            "podAffinity" | "podAntiAffinity" => read_pod_affinity(kind, &part, blockers, sink),
            _ => part.warn(sink, "unknown field, ignored"),
        }
    }
}

fn read_pod_affinity(kind: &str, cursor: &Cursor<'_>, blockers: &mut Vec<Blocker>, sink: &mut Sink) {
    for (rule, at) in cursor.entries(sink).into_iter().flatten() {
        if at.is_empty() {
            continue;
        }
        if rule.starts_with("preferred") {
            at.warn_not_honoured(sink);
        } else {
            block(blockers, &at.path, &format!("required {kind} is not served yet: remove it"), &at, sink);
        }
    }
}

fn block(blockers: &mut Vec<Blocker>, field: &str, message: &str, at: &Cursor<'_>, sink: &mut Sink) {
    sink.push(super::Severity::Warning, at.line, field, format!("the pod will wait: {message}"));
    blockers.push(Blocker { field: Arc::from(field), message: Arc::from(message) });
}

fn field<'n>(node: &'n super::tree::Node, name: &str) -> Option<&'n super::tree::Node> {
    match &node.value {
        Tree::Map(entries) => entries.iter().find(|entry| &*entry.key == name).map(|entry| &entry.node),
        _ => None,
    }
}

fn text_field<'n>(node: &'n super::tree::Node, name: &str) -> Option<&'n str> {
    match &field(node, name)?.value {
        Tree::Text(text) => Some(text),
        _ => None,
    }
}
