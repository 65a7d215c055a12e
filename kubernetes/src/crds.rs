//! Custom resources as Rust types; the manifests in deploy/crds are made from them.
//!
//! The types of `scheduling.volcano.sh` and `batch.volcano.sh` have the names, fields and meanings that Volcano's users
//! know: an object that Volcano's own definitions take is taken by these, but for amounts below zero and parents that are no
//! names. Where Volcano's are installed already, they are used as they are, and these are not applied.

pub mod batch;
pub mod phalanx;
pub mod scheduling;
pub mod shared;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::{Value, json};
use thiserror::Error;

/// Why a definition could not be written as text.
#[derive(Debug, Error)]
#[error("{name}: cannot be written as YAML: {cause}")]
pub struct CrdTextError {
    /// The definition.
    pub name: String,
    /// What the writer said.
    pub cause: String,
}

/// One definition as a file of deploy/crds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrdFile {
    /// File name, `GROUP_PLURAL.yaml`.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// All definitions, in the order in which they are applied.
#[must_use]
pub fn all() -> Vec<CustomResourceDefinition> {
    let optional_spec = |mut definition| {
        make_spec_optional(&mut definition);
        definition
    };
    // Volcano writes the status of a PodGroup with a plain update, and so do the operators that make one.
    let mut pod_group = optional_spec(scheduling::PodGroup::crd());
    for version in &mut pod_group.spec.versions {
        version.subresources = None;
    }
    let mut queue = optional_spec(scheduling::Queue::crd());
    add_queue_rules(&mut queue);
    vec![
        queue,
        pod_group,
        optional_spec(batch::Job::crd()),
        phalanx::GangPlan::crd(),
        optional_spec(phalanx::QueuePolicy::crd()),
    ]
}

/// An object without a spec is one whose fields all have their defaults.
fn make_spec_optional(definition: &mut CustomResourceDefinition) {
    for version in &mut definition.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        schema.required = None;
        let spec = schema.properties.as_mut().and_then(|properties| properties.get_mut("spec"));
        if let Some(spec) = spec {
            set_empty_default(spec);
        }
    }
}

/// Resources whose shares an API server compares. All of them would cost more than it allows for a rule, because a map
/// has any number of entries; the coordinator compares the rest, and sets a queue aside that contradicts itself.
const COMPARED: [&str; 3] = ["cpu", "memory", "nvidia.com/gpu"];
/// A field of a queue's spec, and where its amounts stand.
type Shares = (&'static str, &'static str);
/// Amounts that must not be above other ones.
const AT_MOST: [(Shares, Shares); 3] = [
    (("deserved", "self.deserved"), ("capability", "self.capability")),
    (("guarantee", "self.guarantee.resource"), ("deserved", "self.deserved")),
    (("guarantee", "self.guarantee.resource"), ("capability", "self.capability")),
];

/// What a queue says must not contradict itself.
fn add_queue_rules(definition: &mut CustomResourceDefinition) {
    let parent = ValidationRule {
        rule: "!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name"
            .to_owned(),
        message: Some(
            "spec.parent: a queue cannot be above itself: name another queue, or leave it out".to_owned(),
        ),
        ..ValidationRule::default()
    };
    let pairs =
        AT_MOST.iter().flat_map(|(less, limit)| COMPARED.map(|resource| at_most(*less, *limit, resource)));
    let shares: Vec<ValidationRule> = pairs.collect();
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let Some(schema) = schema else { continue };
        schema.x_kubernetes_validations = Some(vec![parent.clone()]);
        if let Some(spec) = schema.properties.as_mut().and_then(|properties| properties.get_mut("spec")) {
            spec.x_kubernetes_validations = Some(shares.clone());
        }
    }
}

/// Numbers are compared with numbers, texts with texts: what is written in two ways is for the coordinator.
fn at_most((name, less): Shares, (limit_name, limit): Shares, resource: &str) -> ValidationRule {
    let there = |path: &str| {
        let mut parts = path.match_indices('.').skip(1).map(|(at, _)| &path[..at]).collect::<Vec<_>>();
        parts.push(path);
        let has = parts.iter().map(|part| format!("has({part})")).collect::<Vec<_>>().join(" && ");
        format!("{has} && '{resource}' in {path}")
    };
    let of = |path: &str| format!("{path}['{resource}']");
    let (first, second) = (of(less), of(limit));
    let are = |kind: &str| format!("type({first}) == {kind} && type({second}) == {kind}");
    ValidationRule {
        rule: format!(
            "!({} && {}) || ({} ? int({first}) <= int({second}) : !({}) || !isQuantity({first}) || !isQuantity({second}) \
             || quantity({first}).compareTo(quantity({second})) <= 0)",
            there(less),
            there(limit),
            are("int"),
            are("string"),
        ),
        message: Some(format!("spec.{name}: {resource} must be at most that of spec.{limit_name}")),
        ..ValidationRule::default()
    }
}

fn set_empty_default(schema: &mut JSONSchemaProps) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON;
    schema.default = Some(JSON(json!({})));
}

/// The files of deploy/crds.
///
/// # Errors
/// A definition cannot be written as YAML.
pub fn files() -> Result<Vec<CrdFile>, CrdTextError> {
    all().iter().map(file_of).collect()
}

fn file_of(definition: &CustomResourceDefinition) -> Result<CrdFile, CrdTextError> {
    let spec = &definition.spec;
    let name = format!("{}_{}.yaml", spec.group, spec.names.plural);
    let failed =
        |cause: &dyn std::fmt::Display| CrdTextError { name: name.clone(), cause: cause.to_string() };
    // By way of a value, so that fields stand in one order whatever the types' order is.
    let value: Value = serde_json::to_value(definition).map_err(|error| failed(&error))?;
    let text = serde_saphyr::to_string(&value).map_err(|error| failed(&error))?;
    let head =
        "# Made from the types in kubernetes/src/crds by `cargo xtask crds`; change those, not this.\n";
    Ok(CrdFile { text: format!("{head}{text}"), name })
}
