//! The name `volcano` is served only where Volcano's own scheduler does not run: two that bind the same pods would
//! each undo what the other one planned.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::time::timeout;

use super::REQUEST;
use super::watch::no_answer;
use crate::api::ApiError;
use crate::coordinator::StartError;
use crate::manifest::names::SCHEDULER_VOLCANO;

/// Label of the pods of Volcano's scheduler.
const SCHEDULER_PODS: &str = "app=volcano-scheduler";
/// Pods that may still act.
const LIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// A live pod of Volcano's scheduler, as `namespace/name`.
///
/// # Errors
/// The API server does not say.
pub async fn scheduler_pod(client: &Client) -> Result<Option<String>, kube::Error> {
    let parameters = ListParams::default().labels(SCHEDULER_PODS).fields(LIVE).limit(1);
    let pods = Api::<Pod>::all(client.clone());
    let pods = timeout(REQUEST, pods.list(&parameters)).await.unwrap_or_else(|_| Err(no_answer()))?;
    let name = |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    Ok(pods.items.first().map(name))
}

/// Takes the name `volcano` from those that are served where Volcano's scheduler runs.
///
/// # Errors
/// No other name is left, or the API server does not say who runs.
pub(super) async fn leave_out(client: &Client, names: &mut Vec<String>) -> Result<(), StartError> {
    if !names.iter().any(|name| name == SCHEDULER_VOLCANO) {
        return Ok(());
    }
    let failed = |error: kube::Error| StartError::Cluster(ApiError::Storage(format!("pods: {error}")));
    let Some(pod) = scheduler_pod(client).await.map_err(failed)? else { return Ok(()) };
    names.retain(|name| name != SCHEDULER_VOLCANO);
    if names.is_empty() {
        return Err(StartError::VolcanoRuns { pod });
    }
    tracing::warn!(
        pod,
        serves = names.join(","),
        "Volcano's scheduler runs: pods with schedulerName volcano are left to it; scale it to 0 and start the \
         coordinator again to serve them"
    );
    Ok(())
}
