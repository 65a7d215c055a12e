//! Custom resources as Rust types; the manifests in deploy/crds are made from them.
//!
//! The types of `scheduling.volcano.sh` and `batch.volcano.sh` have the names, fields and meanings that Volcano's users
//! know: an object that Volcano's own definitions take is taken by these. Where Volcano's are installed already, they
//! are used as they are, and these are not applied.

pub mod batch;
pub mod phalanx;
pub mod scheduling;
pub mod shared;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
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
    vec![
        optional_spec(scheduling::Queue::crd()),
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
