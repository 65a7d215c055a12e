//! What stands above a pod: pods of all ReplicaSets of a Deployment belong together, pods of two runs of a CronJob
//! do not.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::Value;

use crate::api::ControllerRef;
use crate::jobs::TopOwner;

/// Kinds that are read, and how the API server spells them. Of others only what the pod says is known.
const READ: [(&str, &str, &str); 5] = [
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("batch/v1", "Job", "jobs"),
];
/// Their controllers are one object to their users: whatever rolls them out.
const CLIMBED: &str = "ReplicaSet";
/// Only the metadata is asked for.
const ACCEPT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Asks the API server.
#[derive(Clone)]
pub struct OwnerLookup {
    client: Client,
}

impl std::fmt::Debug for OwnerLookup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("OwnerLookup")
    }
}

impl OwnerLookup {
    /// Over this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The topmost object above pods that name this controller. One that is gone stands for itself.
    ///
    /// # Errors
    /// The API server did not answer; the text names the object.
    pub async fn top(&self, namespace: &str, controller: &ControllerRef) -> Result<TopOwner, String> {
        let mut top = TopOwner { object: controller.clone(), annotations: BTreeMap::new() };
        loop {
            let Some(metadata) = self.metadata(namespace, &top.object).await? else { return Ok(top) };
            let annotations = metadata["annotations"].as_object().into_iter().flatten();
            top.annotations = annotations
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect();
            match controller_of(&metadata).filter(|_| top.object.kind == CLIMBED) {
                Some(above) => top = TopOwner { object: above, annotations: BTreeMap::new() },
                None => return Ok(top),
            }
        }
    }

    /// Metadata of an object of a kind that is read, where it is still there.
    async fn metadata(&self, namespace: &str, object: &ControllerRef) -> Result<Option<Value>, String> {
        let kind =
            READ.iter().find(|(version, kind, _)| *version == object.api_version && *kind == object.kind);
        let Some((version, kind, plural)) = kind else { return Ok(None) };
        let failed = |error: &dyn std::fmt::Display| {
            format!(
                "{kind} {namespace}/{}, which pods without a PodGroup name as their owner, cannot be read: {error}",
                object.name
            )
        };
        let path = format!("/apis/{version}/namespaces/{namespace}/{plural}/{}", object.name);
        let request = http::Request::get(path).header(http::header::ACCEPT, ACCEPT).body(Vec::new());
        let request = request.map_err(|error| failed(&error))?;
        match self.client.request::<Value>(request).await {
            Ok(found) if found["metadata"]["uid"] == object.uid.as_str() => {
                Ok(Some(found["metadata"].clone()))
            }
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }
}

fn controller_of(metadata: &Value) -> Option<ControllerRef> {
    let owners = metadata["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let text = |field: &str| owner[field].as_str().map(str::to_owned);
    Some(ControllerRef {
        api_version: text("apiVersion")?,
        kind: text("kind")?,
        name: text("name")?,
        uid: text("uid")?,
    })
}
