//! Why something does not run. Asked by the name of a gang, of a job, or of a pod.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use phalanx_common::ids::GangName;
use phalanx_core::view::Explanation;

use super::{AdminParts, Failure, Shared};
use crate::api::{Api, ApiError, Kind, Object, ObjectKey};
use crate::convert;
use crate::driver::Question;

/// Names given in the text of an error.
const NAMES_SHOWN: usize = 10;

pub(super) async fn explain<A: Api>(
    State(parts): Shared<A>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Explanation>, Failure> {
    let gang = find_gang(&parts, &namespace, &name).await?;
    let answer = parts.ask(|answer| Question::Explain(gang.clone(), answer)).await?;
    // It was deleted in between, or its object has not reached the core yet.
    answer
        .map(Json)
        .ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, format!("gang {gang} is not known; ask again")))
}

async fn find_gang<A: Api>(parts: &AdminParts<A>, namespace: &str, name: &str) -> Result<GangName, Failure> {
    if object(parts, Kind::PodGroup, namespace, name).await?.is_some() {
        return Ok(GangName::new(namespace, name));
    }
    if let Some(job) = object(parts, Kind::Job, namespace, name).await? {
        let (groups, _) = parts.api.list(Some(Kind::PodGroup)).await?;
        let owned = |group: &&Arc<Object>| {
            group.metadata.owner.as_ref().is_some_and(|owner| owner.uid == job.metadata.uid)
        };
        return groups
            .iter()
            .find(owned)
            .map(|group| GangName::new(namespace, &group.metadata.name))
            .ok_or_else(|| {
                let text =
                    format!("job {namespace}/{name} exists and its PodGroup is not made yet; ask again");
                Failure::new(StatusCode::NOT_FOUND, text)
            });
    }
    if let Some(pod) = object(parts, Kind::Pod, namespace, name).await? {
        return convert::pod_of_object(&pod).map(|pod| pod.gang).ok_or_else(|| {
            let text = format!(
                "pod {namespace}/{name} exists and belongs to no gang: its schedulerName is neither phalanx nor \
                 volcano, or its PodGroup is not made yet"
            );
            Failure::new(StatusCode::NOT_FOUND, text)
        });
    }
    Err(missing(parts, namespace, name).await?)
}

async fn object<A: Api>(
    parts: &AdminParts<A>,
    kind: Kind,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Object>>, Failure> {
    match parts.api.get(&ObjectKey::new(kind, namespace, name)).await {
        Ok(object) => Ok(Some(object)),
        Err(ApiError::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Says what there is instead.
async fn missing<A: Api>(parts: &AdminParts<A>, namespace: &str, name: &str) -> Result<Failure, Failure> {
    let (jobs, _) = parts.api.list(Some(Kind::Job)).await?;
    let (groups, _) = parts.api.list(Some(Kind::PodGroup)).await?;
    let free_groups = groups.iter().filter(|group| group.metadata.owner.is_none());
    let mut names: Vec<String> = jobs
        .iter()
        .chain(free_groups)
        .map(|object| format!("{}/{}", object.metadata.namespace, object.metadata.name))
        .collect();
    // Names of the same namespace first: that is where a slip is likely.
    let prefix = format!("{namespace}/");
    names.sort_by_key(|text| (!text.starts_with(&prefix), text.clone()));
    let more = names.len().saturating_sub(NAMES_SHOWN);
    names.truncate(NAMES_SHOWN);
    let there = match (names.is_empty(), more) {
        (true, _) => "there are none at all".to_owned(),
        (false, 0) => format!("there are {}", names.join(", ")),
        (false, more) => format!("there are {} and {more} more", names.join(", ")),
    };
    let text = format!("no PodGroup, Job or Pod {namespace}/{name}; {there}");
    Ok(Failure::new(StatusCode::NOT_FOUND, text))
}
