//! Before a replica leads, its mirror must know everything that the former leader has written: a watch that lags would
//! show pods as unbound that are bound, and their leases as nobody's.
//!
//! What it must know is read from the API server itself, names and versions only: the pods that name one of our
//! schedulers, PodGroups and plans. Other kinds are not the coordinator's to write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::Client;
use serde::Deserialize;

use super::KubernetesApi;
use crate::api::{Api, ApiError, Kind, ObjectKey};

/// Objects of one answer.
const PAGE: usize = 1000;
/// How long the mirror may take. Then the watch is slower than the answers to lists, and somebody should know.
const PATIENCE: Duration = Duration::from_secs(20);
/// Objects that the mirror does not get are asked for one by one, so often: they may be gone.
const GONE_LOOK: Duration = Duration::from_secs(5);
/// Time between two looks at the mirror.
const LOOK: Duration = Duration::from_millis(10);
/// Only the metadata is asked for.
const ACCEPT: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    #[serde(default)]
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    #[serde(default)]
    namespace: String,
    name: String,
    resource_version: String,
}

/// Versions of objects, by key.
type Versions = BTreeMap<ObjectKey, u64>;

/// Waits until the mirror is as new as the API server is now.
///
/// # Errors
/// The API server does not tell, or the mirror does not get there.
pub(super) async fn catch_up(api: &KubernetesApi, scheduler_names: &[String]) -> Result<(), ApiError> {
    let began = Instant::now();
    let client = api.client();
    let mut wanted = Versions::new();
    for name in scheduler_names {
        read(client, Kind::Pod, "/api/v1/pods", &format!("spec.schedulerName={name}"), &mut wanted).await?;
    }
    read(client, Kind::PodGroup, "/apis/scheduling.volcano.sh/v1beta1/podgroups", "", &mut wanted).await?;
    read(client, Kind::GangPlan, "/apis/phalanx.dev/v1alpha1/gangplans", "", &mut wanted).await?;
    let objects = wanted.len();
    let mut gone_look = GONE_LOOK;
    loop {
        wanted.retain(|key, version| !is_known(api, key, *version));
        // Objects that are gone by now are never known.
        if !wanted.is_empty() && began.elapsed() > gone_look {
            drop_gone(api, &mut wanted).await?;
            gone_look = began.elapsed() + GONE_LOOK;
        }
        if wanted.is_empty() {
            let seconds = began.elapsed().as_secs_f64();
            tracing::debug!(objects, seconds, "the mirror knows all that the former leader has written");
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            let first = wanted.keys().next().map(ToString::to_string).unwrap_or_default();
            return Err(ApiError::Storage(format!(
                "the watch lags: {} objects were not seen within 20 s, for example {first}",
                wanted.len()
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// True where the mirror has this state of the object or a later one, or a later object of its name.
fn is_known(api: &KubernetesApi, key: &ObjectKey, version: u64) -> bool {
    api.mirror().get(key).is_ok_and(|object| object.metadata.resource_version >= version)
}

async fn drop_gone(api: &KubernetesApi, wanted: &mut Versions) -> Result<(), ApiError> {
    let keys: Vec<ObjectKey> = wanted.keys().take(PAGE).cloned().collect();
    for key in keys {
        match api.get(&key).await {
            Err(ApiError::NotFound(_)) => drop(wanted.remove(&key)),
            other => drop(other?),
        }
    }
    Ok(())
}

async fn read(
    client: &Client,
    kind: Kind,
    path: &str,
    fields: &str,
    versions: &mut Versions,
) -> Result<(), ApiError> {
    let mut next = String::new();
    loop {
        let uri = format!("{path}?limit={PAGE}&fieldSelector={}&continue={next}", fields.replace('=', "%3D"));
        let page = page(client, &uri).await?;
        for Item { metadata } in page.items.unwrap_or_default() {
            let version = metadata.resource_version.parse().unwrap_or(0);
            let key = ObjectKey::new(kind, &metadata.namespace, &metadata.name);
            versions.insert(key, version);
        }
        match page.metadata.next.filter(|next| !next.is_empty()) {
            Some(token) => next = token.replace('+', "%2B").replace('=', "%3D").replace('/', "%2F"),
            None => return Ok(()),
        }
    }
}

async fn page(client: &Client, uri: &str) -> Result<Page, ApiError> {
    let failed = |why: &dyn std::fmt::Display| ApiError::Storage(format!("{uri}: {why}"));
    let request = http::Request::get(uri)
        .header(http::header::ACCEPT, ACCEPT)
        .body(Vec::new())
        .map_err(|error| failed(&error))?;
    match tokio::time::timeout(super::REQUEST, client.request(request)).await {
        Ok(answer) => answer.map_err(|error| failed(&error)),
        Err(_) => Err(failed(&"no answer in time")),
    }
}
