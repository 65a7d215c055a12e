//! Pods that name a PodGroup that does not exist. The core knows gangs only; these would be seen nowhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_core::view::PodView;
use serde::Serialize;

use super::{AdminParts, Failure};
use crate::api::{Api, ApiError, Kind, Object, ObjectKey};
use crate::convert;
use crate::jobs::is_bare;
use crate::manifest::names::GROUP_NAME;

/// A pod without a gang.
#[derive(Debug, Serialize)]
pub(super) struct PodWithoutGang {
    /// Its namespace.
    namespace: String,
    /// The PodGroup that it names.
    group: String,
    /// The pod.
    pod: PodView,
}

/// All of them, by namespace and name.
pub(super) async fn without_gang<A: Api>(parts: &AdminParts<A>) -> Result<Vec<PodWithoutGang>, Failure> {
    let (pods, _) = parts.api.list(Some(Kind::Pod)).await?;
    let (groups, _) = parts.api.list(Some(Kind::PodGroup)).await?;
    let groups: BTreeSet<(&str, &str)> = groups
        .iter()
        .map(|group| (group.metadata.namespace.as_str(), group.metadata.name.as_str()))
        .collect();
    let alone = pods.iter().filter_map(|pod| {
        let group = named_group(pod)?;
        let namespace = pod.metadata.namespace.as_str();
        if groups.contains(&(namespace, group)) {
            return None;
        }
        Some(PodWithoutGang { namespace: namespace.to_owned(), group: group.to_owned(), pod: view(pod)? })
    });
    Ok(alone.collect())
}

/// The PodGroup that a pod's owner wants it in; `None` where one is made for it.
fn named_group(pod: &Object) -> Option<&str> {
    if convert::is_ours(pod) && !is_bare(pod) { pod.annotation(GROUP_NAME) } else { None }
}

fn view(object: &Object) -> Option<PodView> {
    let pod = convert::pod_of_object(object)?;
    let (node, lease, gpus) =
        pod.binding.map_or((None, None, Vec::new()), |bound| (Some(bound.node), bound.lease, bound.gpus));
    Some(PodView {
        name: pod.name.name,
        uid: pod.uid,
        task: pod.task,
        phase: Arc::from(if pod.deleting { "Terminating" } else { pod.phase.as_str() }),
        request: pod.request.effective(),
        node,
        lease,
        gpus,
        link_class: None,
    })
}

/// Why a pod has no gang, where its PodGroup is missing.
pub(super) async fn missing_group<A: Api>(
    parts: &AdminParts<A>,
    pod: &Object,
) -> Result<Option<String>, ApiError> {
    let Some(group) = named_group(pod) else { return Ok(None) };
    let group = ObjectKey::new(Kind::PodGroup, &pod.metadata.namespace, group);
    match parts.api.get(&group).await {
        Ok(_) => Ok(None),
        Err(ApiError::NotFound(_)) => {
            let name = &pod.metadata.name;
            Ok(Some(format!(
                "{group}, which pod {}/{name} names, does not exist: create it, or drop the annotation {GROUP_NAME}",
                group.namespace
            )))
        }
        Err(error) => Err(error),
    }
}

/// A pod that names this PodGroup.
pub(super) async fn naming<A: Api>(
    parts: &AdminParts<A>,
    namespace: &str,
    group: &str,
) -> Result<Option<Arc<Object>>, ApiError> {
    let (pods, _) = parts.api.list(Some(Kind::Pod)).await?;
    let names = |pod: &Arc<Object>| pod.metadata.namespace == namespace && named_group(pod) == Some(group);
    Ok(pods.into_iter().find(names))
}
