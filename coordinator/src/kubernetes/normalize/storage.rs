//! Claims, volumes and StorageClasses, cut down to what decides when and where a pod may start. A cluster may have ten
//! thousand of them: what differs from one to the next stands in the status, so that equal specs are kept once.

use serde_json::{Map, Value, json};

use super::picked;
use crate::api::Object;
use crate::manifest::names::ONE_POD;

/// A StorageClass: whether its volumes wait for a pod.
pub(super) fn cut_class(object: &mut Object, top: &Value) {
    cut_metadata(object);
    object.spec = picked(top, &["volumeBindingMode"]);
}

/// A volume: the nodes from which it is reached, and the claim that it is for.
pub(super) fn cut_volume(object: &mut Object, spec: &Value) {
    cut_metadata(object);
    object.spec = part(spec, "nodeAffinity", &["required"]);
    object.status = part(spec, "claimRef", &["namespace", "name", "uid"]);
}

/// A claim: how far it is, and whether one pod alone may use it.
pub(super) fn cut_claim(object: &mut Object, spec: &Value, status: &Value) {
    cut_metadata(object);
    let mut kept = match picked(spec, &["storageClassName"]) {
        Value::Object(kept) => kept,
        _ => Map::new(),
    };
    let modes = spec.get("accessModes").and_then(Value::as_array).into_iter().flatten();
    if modes.into_iter().any(|mode| mode == ONE_POD) {
        kept.insert("accessModes".to_owned(), json!([ONE_POD]));
    }
    object.spec = Value::Object(kept);
    object.status = picked(status, &["phase"]);
    if let (Some(volume), Some(status)) = (spec.get("volumeName"), object.status.as_object_mut()) {
        status.insert("volumeName".to_owned(), volume.clone());
    }
}

/// Those fields of one field of an object, under its name.
fn part(from: &Value, field: &str, names: &[&str]) -> Value {
    match from.get(field).filter(|value| !value.is_null()) {
        Some(value) => json!({ field: picked(value, names) }),
        None => json!({}),
    }
}

fn cut_metadata(object: &mut Object) {
    object.metadata.labels.clear();
    object.metadata.annotations.clear();
    object.metadata.controller = None;
}
