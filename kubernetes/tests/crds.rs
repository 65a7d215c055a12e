//! The manifests in deploy/crds are those of the types, and the definitions are what Volcano's users expect.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use phalanx_kubernetes::crds;

fn definition(plural: &str) -> CustomResourceDefinition {
    crds::all().into_iter().find(|found| found.spec.names.plural == plural).unwrap()
}

fn version(plural: &str) -> CustomResourceDefinitionVersion {
    let mut versions = definition(plural).spec.versions;
    assert_eq!(versions.len(), 1, "{plural}");
    versions.remove(0)
}

fn schema(plural: &str) -> JSONSchemaProps {
    version(plural).schema.unwrap().open_api_v3_schema.unwrap()
}

/// The schema at a path of fields; `[]` goes into a list.
fn at(plural: &str, path: &str) -> JSONSchemaProps {
    path.split('.').fold(schema(plural), |schema, part| match part {
        "[]" => serde_json::from_value(serde_json::to_value(schema.items.unwrap()).unwrap()).unwrap(),
        field => {
            schema.properties.unwrap().remove(field).unwrap_or_else(|| panic!("{plural}: {path}: {field}"))
        }
    })
}

fn fields(plural: &str, path: &str) -> BTreeSet<String> {
    at(plural, path).properties.unwrap().into_keys().collect()
}

fn columns(plural: &str, priority: i32) -> Vec<String> {
    let columns = version(plural).additional_printer_columns.unwrap();
    let shown = columns.into_iter().filter(|column| column.priority.unwrap_or(0) <= priority);
    shown.map(|column| column.name.to_uppercase()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn files_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    let files = crds::files().unwrap();
    let found: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    assert_eq!(
        found,
        files.iter().map(|file| file.name.clone()).collect(),
        "run `cargo xtask crds` and remove what is no longer made"
    );
    for file in files {
        let text = std::fs::read_to_string(folder.join(&file.name)).unwrap();
        assert_eq!(text, file.text, "{} is not what the types say: run `cargo xtask crds`", file.name);
    }
}

#[test]
fn names_are_those_of_volcano() {
    let names = |plural: &str| {
        let found = definition(plural);
        let names = found.spec.names;
        (found.spec.group, names.kind, found.spec.scope, names.short_names.unwrap().join(" "))
    };
    let of = |group: &str, kind: &str, scope: &str, short: &str| {
        (group.to_owned(), kind.to_owned(), scope.to_owned(), short.to_owned())
    };
    let scheduling = "scheduling.volcano.sh";
    assert_eq!(names("queues"), of(scheduling, "Queue", "Cluster", "q queue-v1beta1"));
    assert_eq!(names("podgroups"), of(scheduling, "PodGroup", "Namespaced", "pg podgroup-v1beta1"));
    assert_eq!(names("jobs"), of("batch.volcano.sh", "Job", "Namespaced", "vcjob vj"));
    assert_eq!(names("gangplans"), of("phalanx.dev", "GangPlan", "Namespaced", "gplan"));
    assert_eq!(names("queuepolicies"), of("phalanx.dev", "QueuePolicy", "Cluster", "qpol"));
    let of_version = |plural: &str| version(plural).name;
    let versions = ["queues", "podgroups", "jobs", "gangplans", "queuepolicies"].map(of_version);
    assert_eq!(versions, ["v1beta1", "v1beta1", "v1alpha1", "v1alpha1", "v1alpha1"]);
}

#[test]
fn columns_are_those_people_look_at() {
    assert_eq!(columns("podgroups", 0), ["STATUS", "MINMEMBER", "RUNNINGS", "AGE"]);
    assert_eq!(columns("podgroups", 1), ["STATUS", "MINMEMBER", "RUNNINGS", "AGE", "QUEUE"]);
    assert_eq!(columns("jobs", 0), ["STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"]);
    assert_eq!(columns("gangplans", 0), ["GANGS", "TERM", "AGE"]);
    let queue = ["PARENT", "STATE", "WEIGHT", "PENDING", "INQUEUE", "RUNNING", "AGE"];
    assert_eq!(columns("queues", 0), queue);
}

/// A client that patches the status of a PodGroup through a subresource does not know Volcano's.
#[test]
fn only_pod_groups_have_no_status_subresource() {
    for definition in crds::all() {
        let plural = definition.spec.names.plural.clone();
        let status = version(&plural).subresources.is_some_and(|found| found.status.is_some());
        assert_eq!(status, plural != "podgroups", "{plural}");
        assert!(at(&plural, "status").properties.is_some(), "{plural} has a status");
    }
}

#[test]
fn every_field_of_volcano_survives() {
    let queue = [
        "weight",
        "capability",
        "guarantee",
        "deserved",
        "reclaimable",
        "priority",
        "parent",
        "dequeueStrategy",
        "affinity",
        "extendClusters",
        "type",
    ];
    assert_eq!(fields("queues", "spec"), set(&queue));
    let group = [
        "minMember",
        "minTaskMember",
        "queue",
        "priorityClassName",
        "minResources",
        "networkTopology",
        "subGroupPolicy",
        "preemptable",
    ];
    assert_eq!(fields("podgroups", "spec"), set(&group));
    let sub_group =
        ["name", "networkTopology", "subGroupSize", "minSubGroups", "labelSelector", "matchLabelKeys"];
    assert_eq!(fields("podgroups", "spec.subGroupPolicy.[]"), set(&sub_group));
    let condition = ["type", "status", "transitionID", "lastTransitionTime", "reason", "message"];
    assert_eq!(fields("podgroups", "status.conditions.[]"), set(&condition));
    let job = [
        "schedulerName",
        "minAvailable",
        "volumes",
        "tasks",
        "policies",
        "plugins",
        "runningEstimate",
        "queue",
        "maxRetry",
        "ttlSecondsAfterFinished",
        "priorityClassName",
        "minSuccess",
        "networkTopology",
    ];
    assert_eq!(fields("jobs", "spec"), set(&job));
    let task = [
        "name",
        "replicas",
        "minAvailable",
        "template",
        "policies",
        "topologyPolicy",
        "maxRetry",
        "dependsOn",
        "partitionPolicy",
    ];
    assert_eq!(fields("jobs", "spec.tasks.[]"), set(&task));
    let template = at("jobs", "spec.tasks.[].template");
    assert_eq!(template.x_kubernetes_preserve_unknown_fields, Some(true));
}

/// An object without a spec has the defaults, as with Volcano's webhook.
#[test]
fn defaults_hold_without_a_spec() {
    for plural in ["queues", "podgroups", "jobs", "queuepolicies"] {
        assert_eq!(schema(plural).required, None, "{plural}");
        assert_eq!(at(plural, "spec").default.unwrap().0, serde_json::json!({}), "{plural}");
    }
    let default = |plural: &str, path: &str| at(plural, path).default.unwrap().0;
    assert_eq!(default("queues", "spec.weight"), 1);
    assert_eq!(default("queues", "spec.reclaimable"), true);
    assert_eq!(default("podgroups", "spec.queue"), "default");
    assert_eq!(default("podgroups", "spec.minMember"), 1);
    assert_eq!(default("jobs", "spec.queue"), "default");
    // A null in place of a default has to be the default, too.
    assert_eq!(at("queues", "spec.weight").nullable, None);
    assert_eq!(at("queues", "spec.weight").maximum, Some(65535.0));
}
