//! Why a pod has no gang: the PodGroup that it names does not exist.

use std::sync::Arc;

use super::AdminParts;
use crate::api::{Api, ApiError, Kind, Object, ObjectKey};
use crate::convert::Reading;
use crate::jobs::is_bare;
use crate::manifest::names::GROUP_NAME;

/// The PodGroup that a pod's owner wants it in; `None` where one is made for it.
fn named_group<'a>(reading: &Reading, pod: &'a Object) -> Option<&'a str> {
    if reading.is_ours(pod) && !is_bare(reading, pod) { pod.annotation(GROUP_NAME) } else { None }
}

/// Why a pod has no gang, where its PodGroup is missing.
pub(super) async fn missing_group<A: Api>(
    parts: &AdminParts<A>,
    pod: &Object,
) -> Result<Option<String>, ApiError> {
    let Some(group) = named_group(&parts.api.reading(), pod) else { return Ok(None) };
    let group = ObjectKey::new(Kind::PodGroup, &pod.metadata.namespace, group);
    match parts.api.glance(&group).await {
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
    let (mut pods, _) = parts.api.listing(Some(Kind::Pod)).await?;
    let reading = parts.api.reading();
    let names =
        |pod: &Arc<Object>| pod.metadata.namespace == namespace && named_group(&reading, pod) == Some(group);
    Ok(pods.find(names))
}
