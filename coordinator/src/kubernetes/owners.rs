//! What stands above a pod: pods of all ReplicaSets of a Deployment belong together, pods of two runs of a CronJob
//! do not.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

use super::REQUEST;
use super::watch::no_answer;
use crate::api::ControllerRef;
use crate::jobs::TopOwner;
use crate::manifest::policy::AS_LABELS;

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
/// Objects looked at above a pod. Users write who owns what, also in a circle.
const MOST_LEVELS: usize = 4;
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
        for _ in 0..MOST_LEVELS {
            let Some(metadata) = self.metadata(namespace, &top.object).await? else { return Ok(top) };
            // Some say in a label what others say in an annotation, which goes before it.
            let labels = texts(&metadata["labels"]).filter(|(key, _)| AS_LABELS.contains(&key.as_str()));
            top.annotations = labels.chain(texts(&metadata["annotations"])).collect();
            match controller_of(&metadata).filter(|_| top.object.kind == CLIMBED) {
                Some(above) => top = TopOwner { object: above, annotations: BTreeMap::new() },
                None => return Ok(top),
            }
        }
        Ok(top)
    }

    /// Metadata of an object of a kind that is read, where it is still there. The API server takes any text for the name
    /// of an owner: one that no object can have is not asked for, least of all one that leads elsewhere.
    async fn metadata(&self, namespace: &str, object: &ControllerRef) -> Result<Option<Value>, String> {
        let kind =
            READ.iter().find(|(version, kind, _)| *version == object.api_version && *kind == object.kind);
        let Some((version, kind, plural)) = kind.filter(|_| is_name(&object.name)) else { return Ok(None) };
        let failed = |error: &dyn std::fmt::Display| {
            format!(
                "{kind} {namespace}/{}, which pods without a PodGroup name as their owner, cannot be read: {error}",
                object.name
            )
        };
        let path = format!("/apis/{version}/namespaces/{namespace}/{plural}/{}", object.name);
        let request = http::Request::get(path).header(http::header::ACCEPT, ACCEPT).body(Vec::new());
        let request = request.map_err(|error| failed(&error))?;
        let asking = timeout(REQUEST, self.client.request::<Value>(request));
        match asking.await.unwrap_or_else(|_| Err(no_answer())) {
            Ok(found) if found["metadata"]["uid"] == object.uid.as_str() => {
                Ok(Some(found["metadata"].clone()))
            }
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }
}

fn texts(from: &Value) -> impl Iterator<Item = (String, String)> {
    let entries = from.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) && text.bytes().all(is_plain)
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Bytes;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn reference(kind: &str, name: &str) -> ControllerRef {
        let (api_version, uid) = ("apps/v1".to_owned(), format!("uid-{name}"));
        ControllerRef { api_version, kind: kind.to_owned(), name: name.to_owned(), uid }
    }

    /// A server of ReplicaSets, each with a controller as `above` says, and the number of questions it was asked.
    fn server(
        above: impl Fn(&str) -> Option<ControllerRef> + Send + 'static,
    ) -> (OwnerLookup, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
            let owners: Vec<Value> = above(&name)
                .map(|by| json!({ "apiVersion": by.api_version, "kind": by.kind, "name": by.name, "uid": by.uid, "controller": true }))
                .into_iter()
                .collect();
            let metadata = json!({ "name": name, "uid": format!("uid-{name}"), "ownerReferences": owners });
            let text = json!({ "metadata": metadata }).to_string();
            async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text)))) }
        });
        (OwnerLookup::new(Client::new(service, "default")), asked)
    }

    #[tokio::test]
    async fn replica_sets_lead_to_what_rolls_them_out() {
        let (owners, asked) = server(|name| (name == "web-1").then(|| reference("Deployment", "web")));
        let top = owners.top("default", &reference("ReplicaSet", "web-1")).await.unwrap();
        assert_eq!((top.object, asked.load(Ordering::SeqCst)), (reference("Deployment", "web"), 2));
    }

    #[tokio::test]
    async fn owners_in_a_circle_come_to_an_end() {
        let other = |name: &str| reference("ReplicaSet", if name == "a" { "b" } else { "a" });
        let (owners, asked) = server(move |name| Some(other(name)));
        let top = owners.top("default", &reference("ReplicaSet", "a")).await.unwrap();
        assert_eq!((top.object.kind.as_str(), asked.load(Ordering::SeqCst)), ("ReplicaSet", MOST_LEVELS));
    }

    #[tokio::test]
    async fn a_name_that_leads_elsewhere_is_not_asked_for() {
        let (owners, asked) = server(|_| None);
        for name in ["../../../other/replicasets/a", "a/status", "a?watch=1", "a#", "a b", "..", "", "A%2f"] {
            let named = reference("ReplicaSet", name);
            assert_eq!(owners.top("default", &named).await.unwrap().object, named);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0);
    }
}
