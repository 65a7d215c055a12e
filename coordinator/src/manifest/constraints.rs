//! Where a pod may go, and what keeps pods from a node: tolerations and taints, node affinity,
//! scheduling gates, host ports.

use std::sync::Arc;

use phalanx_common::constraints::{
    ANY_ADDRESS, HostPort, LabelOperator, LabelRequirement, NAME_FIELD, NodeTerm, PodConstraints,
    PreferredTerm, Protocol, Taint, TaintEffect, Toleration, TolerationOperator,
};

use super::reader::{Cursor, Sink};
use super::shape::Shape;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Reads `spec.tolerations` of a pod.
pub(super) fn read_tolerations(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<Toleration> {
    let list = cursor.list(sink).into_iter().flatten();
    list.filter_map(|at| read_toleration(&at, sink)).collect()
}

fn read_toleration(at: &Cursor<'_>, sink: &mut Sink) -> Option<Toleration> {
    let errors = sink.errors();
    let mut fields = at.fields(sink)?;
    let key = fields.get("key").and_then(|at| at.text(sink)).unwrap_or_default();
    let is_key_wrong = sink.errors() > errors;
    let operator = fields.get("operator").map(|at| read_operator(&at, sink));
    let value_at = fields.get("value");
    let value = value_at.as_ref().and_then(|at| at.text(sink)).unwrap_or_default();
    if let Some(at) = &value_at
        && operator == Some(Some(TolerationOperator::Exists))
        && !value.is_empty()
    {
        at.error(sink, "must be left out with operator: Exists");
    }
    if key.is_empty() && !is_key_wrong && !matches!(operator, Some(Some(TolerationOperator::Exists) | None)) {
        at.error(sink, "without a key the operator must be Exists");
    }
    let operator = operator.flatten().unwrap_or_default();
    if matches!(operator, TolerationOperator::Less | TolerationOperator::Greater)
        && value.parse::<i64>().is_err()
    {
        at.error(sink, "with the operators Lt and Gt the value must be a whole number");
    }
    let effect = fields.get("effect").and_then(|at| read_effect(&at, true, sink));
    if let Some(at) = fields.get("tolerationSeconds") {
        at.whole(sink, i64::MIN, i64::MAX);
    }
    fields.finish(sink);
    let toleration = Toleration { key: Arc::from(key), operator, value: Arc::from(value), effect };
    (sink.errors() == errors).then_some(toleration)
}

fn read_operator(at: &Cursor<'_>, sink: &mut Sink) -> Option<TolerationOperator> {
    // The last two are served by new clusters only; nobody is pointed to them.
    match at.text(sink)? {
        "Lt" => Some(TolerationOperator::Less),
        "Gt" => Some(TolerationOperator::Greater),
        "" => Some(TolerationOperator::Equal),
        _ => match at.one_of(sink, &["Exists", "Equal"])? {
            "Exists" => Some(TolerationOperator::Exists),
            _ => Some(TolerationOperator::Equal),
        },
    }
}

fn read_effect(at: &Cursor<'_>, may_be_empty: bool, sink: &mut Sink) -> Option<TaintEffect> {
    if may_be_empty && at.text(sink)?.is_empty() {
        return None;
    }
    TaintEffect::parse(at.one_of(sink, &EFFECTS)?)
}

/// Reads `spec.taints` of a node.
pub(super) fn read_taints(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<Taint> {
    let list = cursor.list(sink).into_iter().flatten();
    list.filter_map(|at| read_taint(&at, sink)).collect()
}

fn read_taint(at: &Cursor<'_>, sink: &mut Sink) -> Option<Taint> {
    let mut fields = at.fields(sink)?;
    let key = fields.required(sink, "key", "the taint's key").and_then(|at| at.text(sink));
    let value = fields.get("value").and_then(|at| at.text(sink)).unwrap_or_default();
    let effect = fields.required(sink, "effect", &EFFECTS.join(" or "));
    let effect = effect.and_then(|at| read_effect(&at, false, sink));
    fields.ignore(&["timeAdded"]);
    fields.finish(sink);
    Some(Taint { key: Arc::from(key?), value: Arc::from(value), effect: effect? })
}

/// Reads `nodeAffinity` of a pod.
pub(super) fn read_node_affinity(cursor: &Cursor<'_>, constraints: &mut PodConstraints, sink: &mut Sink) {
    let Some(mut fields) = cursor.fields(sink) else { return };
    if let Some(at) = fields.get("requiredDuringSchedulingIgnoredDuringExecution") {
        constraints.required = Some(read_required(&at, sink));
    }
    if let Some(at) = fields.get("preferredDuringSchedulingIgnoredDuringExecution") {
        let terms = at.list(sink).into_iter().flatten();
        constraints.preferred = terms.filter_map(|at| read_preferred(&at, sink)).collect();
    }
    fields.finish(sink);
}

/// Reads a node selector: terms of which a node must meet one.
pub(crate) fn read_required(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<NodeTerm> {
    let Some(mut fields) = cursor.fields(sink) else { return Vec::new() };
    let terms = fields.required(sink, "nodeSelectorTerms", "a list of at least one term");
    fields.finish(sink);
    let Some(terms) = terms else { return Vec::new() };
    if terms.is_empty() {
        terms.error(sink, "must hold at least one term");
    }
    terms.list(sink).into_iter().flatten().filter_map(|at| read_term(&at, sink)).collect()
}

fn read_preferred(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<PreferredTerm> {
    let mut fields = cursor.fields(sink)?;
    let weight = fields.required(sink, "weight", "1 to 100").and_then(|at| at.whole(sink, 1, 100));
    let term = fields.required(sink, "preference", "a term").and_then(|at| read_term(&at, sink));
    fields.finish(sink);
    let (weight, term) = (u8::try_from(weight?).ok()?, term?);
    // One without requirements prefers nothing.
    (term != NodeTerm::default()).then_some(PreferredTerm { weight, term })
}

fn read_term(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<NodeTerm> {
    let mut fields = cursor.fields(sink)?;
    let mut term = NodeTerm::default();
    if let Some(at) = fields.get("matchExpressions") {
        let rules = at.list(sink).into_iter().flatten();
        term.labels = rules.filter_map(|at| read_requirement(&at, false, sink)).collect();
    }
    if let Some(at) = fields.get("matchFields") {
        let rules = at.list(sink).into_iter().flatten();
        term.fields = rules.filter_map(|at| read_requirement(&at, true, sink)).collect();
    }
    fields.finish(sink);
    Some(term)
}

/// One requirement, on a label or on the node's name.
fn read_requirement(cursor: &Cursor<'_>, on_name: bool, sink: &mut Sink) -> Option<LabelRequirement> {
    let mut fields = cursor.fields(sink)?;
    let key_at = fields.required(sink, "key", if on_name { NAME_FIELD } else { "a label's key" });
    let key = key_at.as_ref().and_then(|at| at.text(sink));
    if let Some((at, key)) = key_at.zip(key)
        && on_name
        && key != NAME_FIELD
    {
        at.error(sink, format!("must be {NAME_FIELD}, the only field that can be matched"));
    }
    let names = LabelOperator::ALL.map(LabelOperator::as_str);
    let allowed = if on_name { &names[..2] } else { &names[..] };
    let operator = fields.required(sink, "operator", &allowed.join(" or "));
    let operator = operator.and_then(|at| at.one_of(sink, allowed));
    let operator = LabelOperator::ALL.into_iter().find(|known| Some(known.as_str()) == operator);
    let values_at = fields.get("values");
    let texts = values_at.as_ref().and_then(|at| at.list(sink)).into_iter().flatten();
    let values: Vec<Arc<str>> = texts.filter_map(|at| at.text(sink)).map(Arc::from).collect();
    fields.finish(sink);
    let operator = operator?;
    if let Some(problem) = values_problem(operator, on_name, &values) {
        values_at.as_ref().unwrap_or(cursor).error(sink, problem);
    }
    Some(LabelRequirement { key: Arc::from(key?), operator, values })
}

fn values_problem(operator: LabelOperator, on_name: bool, values: &[Arc<str>]) -> Option<String> {
    let name = operator.as_str();
    match operator {
        LabelOperator::In | LabelOperator::NotIn if on_name && values.len() != 1 => {
            Some(format!("must hold one name with matchFields, found {}", values.len()))
        }
        LabelOperator::In | LabelOperator::NotIn if values.is_empty() => {
            Some(format!("must hold at least one value with the operator {name}"))
        }
        LabelOperator::Exists | LabelOperator::DoesNotExist if !values.is_empty() => {
            Some(format!("must be left out with the operator {name}"))
        }
        LabelOperator::Gt | LabelOperator::Lt
            if values.len() != 1 || values.iter().any(|value| value.parse::<i64>().is_err()) =>
        {
            Some(format!("must hold one whole number, in quotes, with the operator {name}"))
        }
        _ => None,
    }
}

/// Reads `spec.schedulingGates` of a pod.
pub(super) fn read_gates(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<Arc<str>> {
    let mut gates = Vec::new();
    for at in cursor.list(sink).into_iter().flatten() {
        let Some(mut fields) = at.fields(sink) else { continue };
        let name = fields.required(sink, "name", "the gate's name").and_then(|at| at.text(sink));
        gates.extend(name.map(Arc::from));
        fields.finish(sink);
    }
    gates
}

/// Reads `ports` of a container: those of its node that it takes. With `hostNetwork` all of them are.
pub(super) fn read_host_ports(cursor: &Cursor<'_>, host_network: bool, sink: &mut Sink) -> Vec<HostPort> {
    let mut ports = Vec::new();
    for at in cursor.list(sink).into_iter().flatten() {
        let Some(mut fields) = at.fields(sink) else { continue };
        let mut number = |name| fields.get(name).and_then(|at| at.whole(sink, 0, 65_535));
        let (container_port, host_port) = (number("containerPort"), number("hostPort"));
        let host_port = host_port.filter(|port| *port > 0).or(container_port.filter(|_| host_network));
        let address = fields.get("hostIP").and_then(|at| at.text(sink)).filter(|address| !address.is_empty());
        let protocol = fields.get("protocol").and_then(|at| read_protocol(&at, sink)).unwrap_or_default();
        fields.check(sink, &[("name", Shape::Text)]);
        fields.finish(sink);
        let port = host_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        let address = Arc::from(address.unwrap_or(ANY_ADDRESS));
        ports.extend(port.map(|port| HostPort { address, protocol, port }));
    }
    ports
}

fn read_protocol(at: &Cursor<'_>, sink: &mut Sink) -> Option<Protocol> {
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let text = at.one_of(sink, &known.map(Protocol::as_str))?;
    known.into_iter().find(|protocol| protocol.as_str() == text)
}
