//! Bodies of requests. Pure.
//!
//! Objects are kept trimmed, so a patch holds what changed between two trimmed forms of one object, and nothing else:
//! what we do not know is never wiped.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::api::{ApiError, Object, ObjectKey, Preconditions};
use crate::manifest::names::annotation_problem;

/// Longest sum of keys and values of all annotations of an object, as the API server allows it.
const MOST_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// What differs, as a JSON merge patch (RFC 7386); `None` where nothing does. With `keep_absent` a field of the top
/// level that `after` does not name stays as it is.
pub(super) fn difference(before: &Value, after: &Value, keep_absent: bool) -> Option<Value> {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
        let same = before == after || (is_empty(before) && is_empty(after));
        return (!same).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (name, wanted) in after {
        match before.get(name) {
            None => {
                patch.insert(name.clone(), wanted.clone());
            }
            Some(stored) => {
                if let Some(inner) = difference(stored, wanted, false) {
                    patch.insert(name.clone(), inner);
                }
            }
        }
    }
    if !keep_absent {
        let gone = before.keys().filter(|name| !after.contains_key(*name));
        patch.extend(gone.map(|name| (name.clone(), Value::Null)));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The patch that makes `wanted` of `stored`: spec, labels and annotations. `None` where nothing differs.
pub(super) fn update(stored: &Object, wanted: &Object) -> Option<Value> {
    let mut metadata = precondition(&stored.preconditions());
    let texts = |map: &BTreeMap<String, String>| json!(map);
    let mut differs = false;
    for (name, before, after) in [
        ("labels", &stored.metadata.labels, &wanted.metadata.labels),
        ("annotations", &stored.metadata.annotations, &wanted.metadata.annotations),
    ] {
        if let Some(patch) = difference(&texts(before), &texts(after), false) {
            metadata.insert(name.to_owned(), patch);
            differs = true;
        }
    }
    let spec = difference(&stored.spec, &wanted.spec, false);
    let mut patch = json!({ "metadata": metadata });
    if let Some(spec) = &spec {
        patch["spec"] = spec.clone();
    }
    (differs || spec.is_some()).then_some(patch)
}

/// The patch that brings a status; `None` where nothing differs. Fields that it does not name stay.
pub(super) fn status(stored: &Object, wanted: &Value) -> Option<Value> {
    let status = difference(&stored.status, wanted, true)?;
    Some(json!({ "metadata": precondition(&stored.preconditions()), "status": status }))
}

/// The patch that sets and removes annotations.
pub(super) fn annotations(
    preconditions: &Preconditions,
    annotations: &BTreeMap<String, Option<String>>,
) -> Value {
    let mut metadata = precondition(preconditions);
    metadata.insert("annotations".to_owned(), json!(annotations));
    json!({ "metadata": metadata })
}

/// The patch that sets one condition.
pub(super) fn condition(preconditions: &Preconditions, condition: &Value) -> Value {
    json!({ "metadata": precondition(preconditions), "status": { "conditions": [condition] } })
}

/// Preconditions as a patch or Binding carries them.
fn precondition(preconditions: &Preconditions) -> Map<String, Value> {
    let mut metadata = Map::new();
    if let Some(uid) = &preconditions.uid {
        metadata.insert("uid".to_owned(), json!(uid));
    }
    if preconditions.resource_version != 0 {
        let version = preconditions.resource_version.to_string();
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    metadata
}

/// DeleteOptions, by themselves or inside an eviction.
pub(super) fn delete_options(preconditions: &Preconditions) -> Value {
    json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": precondition(preconditions) })
}

/// `policy/v1` Eviction.
pub(super) fn eviction(key: &ObjectKey, preconditions: &Preconditions) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "namespace": key.namespace, "name": key.name },
        "deleteOptions": { "preconditions": precondition(preconditions) },
    })
}

/// `v1` Binding. The API server stores its annotations unchecked, and one that is wrong makes every later write to the
/// pod fail: so they are checked here, together with those the pod has already.
pub(super) fn binding(
    key: &ObjectKey,
    preconditions: &Preconditions,
    node: &str,
    annotations: &BTreeMap<String, String>,
    present: &BTreeMap<String, String>,
) -> Result<Value, ApiError> {
    if let Some((name, problem)) = annotations.keys().find_map(|name| Some((name, annotation_problem(name)?)))
    {
        return Err(ApiError::Invalid(format!("{key}: annotation {name:?} of its Binding: {problem}")));
    }
    let length = |(name, value): (&String, &String)| name.len() + value.len();
    let kept = present.iter().filter(|(name, _)| !annotations.contains_key(*name));
    let bytes: usize = kept.map(length).chain(annotations.iter().map(length)).sum();
    if bytes > MOST_ANNOTATIONS_BYTES {
        return Err(ApiError::Invalid(format!(
            "{key}: with those of its Binding its annotations have {bytes} bytes, and at most {MOST_ANNOTATIONS_BYTES} \
             are allowed; remove some of them"
        )));
    }
    let mut metadata = precondition(preconditions);
    metadata.insert("namespace".to_owned(), json!(key.namespace));
    metadata.insert("name".to_owned(), json!(key.name));
    metadata.insert("annotations".to_owned(), json!(annotations));
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Kind;

    fn patched(before: &Value, after: &Value) -> Option<Value> {
        difference(before, after, false)
    }

    #[test]
    fn a_patch_holds_what_changed_and_nothing_else() {
        let before = json!({ "a": 1, "b": { "c": 2, "d": [1, 2] }, "gone": true });
        let after = json!({ "a": 1, "b": { "c": 3, "d": [1, 2] }, "new": { "x": null } });
        let patch = json!({ "b": { "c": 3 }, "gone": null, "new": { "x": null } });
        assert_eq!(patched(&before, &after), Some(patch));
        assert_eq!(patched(&before, &before), None);
        assert_eq!(patched(&Value::Null, &json!({})), None);
        assert_eq!(patched(&Value::Null, &json!({ "a": 1 })), Some(json!({ "a": 1 })));
        assert_eq!(difference(&before, &json!({ "a": 2 }), true), Some(json!({ "a": 2 })));
    }

    #[test]
    fn a_status_keeps_fields_that_it_does_not_name_and_loses_entries_that_it_does_not() {
        let mut stored = Object::new(Kind::Queue, "", "q");
        stored.metadata.uid = "u".to_owned();
        stored.metadata.resource_version = 7;
        stored.status =
            json!({ "state": "Open", "allocated": { "cpu": "1", "nvidia.com/gpu": "8" }, "theirs": 1 });
        let wanted = json!({ "state": "Open", "allocated": { "cpu": "1" }, "running": 0 });
        let patch = json!({
            "metadata": { "uid": "u", "resourceVersion": "7" },
            "status": { "allocated": { "nvidia.com/gpu": null }, "running": 0 },
        });
        assert_eq!(status(&stored, &wanted), Some(patch));
        assert_eq!(status(&stored, &stored.status.clone()), None);
    }

    #[test]
    fn an_update_names_what_differs_of_spec_labels_and_annotations() {
        let mut stored = Object::new(Kind::PodGroup, "default", "g").with_spec(json!({ "minMember": 1 }));
        stored.metadata.uid = "u".to_owned();
        stored.metadata.labels.insert("kept".to_owned(), "x".to_owned());
        let mut wanted = stored.clone();
        assert_eq!(update(&stored, &wanted), None);
        wanted.spec["minMember"] = json!(2);
        wanted.metadata.annotations.insert("new".to_owned(), "y".to_owned());
        let patch = json!({
            "metadata": { "uid": "u", "annotations": { "new": "y" } },
            "spec": { "minMember": 2 },
        });
        assert_eq!(update(&stored, &wanted), Some(patch));
    }

    #[test]
    fn annotations_that_the_api_server_would_store_and_then_choke_on_are_refused() {
        let key = ObjectKey::new(Kind::Pod, "default", "a");
        let preconditions = Preconditions { uid: Some("u".to_owned()), resource_version: 5 };
        let made = |name: &str, value: &str, present: usize| {
            let annotations = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let present = BTreeMap::from([("theirs".to_owned(), "x".repeat(present))]);
            binding(&key, &preconditions, "n1", &annotations, &present)
        };
        let good = made("phalanx.dev/term", "1.0", 100).unwrap();
        assert_eq!(good["metadata"]["uid"], "u");
        assert_eq!(good["metadata"]["resourceVersion"], "5");
        assert_eq!(good["metadata"]["annotations"], json!({ "phalanx.dev/term": "1.0" }));
        assert_eq!(good["target"]["name"], "n1");
        for name in ["", "/x", "a b", "a/b/c", "UPPER.dev/x", "x.dev/"] {
            let Err(ApiError::Invalid(text)) = made(name, "v", 0) else { panic!("{name:?}") };
            assert!(
                text.starts_with(&format!("Pod default/a: annotation {name:?} of its Binding: ")),
                "{text}"
            );
        }
        assert!(made("a", &"v".repeat(MOST_ANNOTATIONS_BYTES - 7), 0).is_ok());
        assert!(made("a", &"v".repeat(MOST_ANNOTATIONS_BYTES - 6), 0).is_err());
        let Err(ApiError::Invalid(text)) = made("a", "v", MOST_ANNOTATIONS_BYTES - 7) else { panic!() };
        assert!(text.contains("at most 262144 are allowed"), "{text}");
    }
}
