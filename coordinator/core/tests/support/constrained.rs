//! Constraints in the language of scenarios.
//!
//! Of a pod: `selector=zone:a`, `tolerates=gpu=only:NoSchedule,other` (without `=` any value, without
//! `:` any effect, `*` = everything), `requires=zone:In:a|b&ssd:Exists,metadata.name:In:n1` (terms
//! with commas, requirements with `&`), `prefers=10@ssd:Exists`, `ports=80,UDP/10.0.0.1/53`,
//! `gates=one,two`, `before=sidecar:1G,init:2G` (containers before the app's), `overhead=1` (cpu).
//! Of a node's object: `label-zone=a`, `taint=gpu=only:NoSchedule`, `ready=no`, `unschedulable=yes`.

use phalanx_common::constraints::{
    ANY_ADDRESS, HostPort, LabelOperator, LabelRequirement, NAME_FIELD, NodeTerm, PodConstraints,
    PreferredTerm, Protocol, Taint, TaintEffect, Toleration, TolerationOperator,
};
use phalanx_common::gang::{ContainerKind, ContainerRequest, PodRequest};
use phalanx_common::resources::{CPU, NVIDIA_GPU, ResourceName, Resources};
use phalanx_core::event::NodeSpec;

use super::Words;

/// The constraints that a pod's options state.
pub(super) fn constraints(words: &Words<'_>) -> PodConstraints {
    let list = |key: &str| words.options.get(key).into_iter().flat_map(|text| text.split(','));
    PodConstraints {
        gates: list("gates").map(Into::into).collect(),
        tolerations: list("tolerates").map(toleration).collect(),
        required: words.options.contains_key("requires").then(|| list("requires").map(term).collect()),
        preferred: list("prefers").map(preferred).collect(),
        host_ports: list("ports").map(port).collect(),
    }
}

/// Adds to a node's object what its options state; true for an option that was understood.
pub(super) fn of_node(spec: &mut NodeSpec, key: &str, value: &str) -> bool {
    match key {
        "taint" => spec.taints = value.split(',').map(taint).collect(),
        "ready" => spec.ready = value != "no",
        "unschedulable" => spec.unschedulable = value == "yes",
        _ => return false,
    }
    true
}

/// What a pod asks for whose app container asks for `requests`.
pub(super) fn request(words: &Words<'_>, requests: Resources) -> PodRequest {
    let mut containers = Vec::new();
    for part in words.options.get("before").into_iter().flat_map(|text| text.split(',')) {
        let (kind, gpus) = part.split_once(':').unwrap();
        let gpus = gpus.trim_end_matches('G').parse().unwrap();
        let kind = match kind {
            "init" => ContainerKind::Init,
            "sidecar" => ContainerKind::Sidecar,
            other => panic!("unknown container {other}"),
        };
        let name = format!("before-{}", containers.len()).into();
        let requests = Resources::new().with(ResourceName::known(NVIDIA_GPU), gpus);
        containers.push(ContainerRequest { name, kind, requests });
    }
    containers.push(ContainerRequest { name: "main".into(), kind: ContainerKind::App, requests });
    let overhead = words.number("overhead", 0) * 1000;
    let overhead = match overhead {
        0 => Resources::new(),
        milli => Resources::new().with(ResourceName::known(CPU), milli),
    };
    PodRequest { containers, overhead }
}

pub(super) fn taint(text: &str) -> Taint {
    let (name, effect) = text.rsplit_once(':').unwrap();
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    Taint { key: key.into(), value: value.into(), effect: TaintEffect::parse(effect).unwrap() }
}

pub(super) fn toleration(text: &str) -> Toleration {
    let (name, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let (key, operator, value) = match name.split_once('=') {
        Some((key, value)) => (key, TolerationOperator::Equal, value),
        None => (name.trim_matches('*'), TolerationOperator::Exists, ""),
    };
    let effect = TaintEffect::parse(effect);
    Toleration { key: key.into(), operator, value: value.into(), effect }
}

pub(super) fn term(text: &str) -> NodeTerm {
    let mut term = NodeTerm::default();
    for rule in text.split('&').filter(|rule| !rule.is_empty()) {
        let mut parts = rule.split(':');
        let (key, operator) = (parts.next().unwrap(), parts.next().unwrap());
        let operator = LabelOperator::ALL.into_iter().find(|known| known.as_str() == operator).unwrap();
        let values = parts.next().into_iter().flat_map(|text| text.split('|')).map(Into::into).collect();
        let rule = LabelRequirement { key: key.into(), operator, values };
        if key == NAME_FIELD { term.fields.push(rule) } else { term.labels.push(rule) }
    }
    term
}

fn preferred(text: &str) -> PreferredTerm {
    let (weight, text) = text.split_once('@').unwrap();
    PreferredTerm { weight: weight.parse().unwrap(), term: term(text) }
}

fn port(text: &str) -> HostPort {
    let mut parts = text.rsplit('/');
    let port = parts.next().unwrap().parse().unwrap();
    let address = parts.next().unwrap_or(ANY_ADDRESS).into();
    let protocol = match parts.next().unwrap_or("TCP") {
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    HostPort { address, protocol, port }
}
