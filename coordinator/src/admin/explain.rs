//! Why something does not run. Asked by the name of a gang, of a job, or of a pod.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use phalanx_common::ids::GangName;
use phalanx_core::view::Explanation;

use super::{AdminParts, Failure, Shared, pods};
use crate::api::{Api, ApiError, Kind, Object, ObjectKey};
use crate::convert;
use crate::driver::Question;
use crate::jobs::status as job_status;

/// Names given in the text of an error.
const NAMES_SHOWN: usize = 10;
/// What was applied a moment ago may not have reached the core: asked so often before it is said.
const ATTEMPTS: u32 = 20;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn explain<A: Api>(
    State(parts): Shared<A>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Explanation>, Failure> {
    let Path((namespace, name)) = path?;
    // What is not there is told by one that leads: the objects of another may be old.
    parts.must_lead()?;
    let mut attempt = 1;
    loop {
        let not_yet = match find_gang(&parts, &namespace, &name).await? {
            Found::Gang(gang) => match parts.ask(|answer| Question::Explain(gang.clone(), answer)).await? {
                Some(explanation) => return Ok(Json(explanation)),
                None => match unreadable(&parts, &gang).await? {
                    Some(problem) => return Err(Failure::new(StatusCode::NOT_FOUND, problem)),
                    None => format!("gang {gang} exists and has not been looked at yet; ask again"),
                },
            },
            Found::NotYet(text) => text,
        };
        if attempt == ATTEMPTS {
            return Err(Failure::new(StatusCode::NOT_FOUND, not_yet));
        }
        attempt += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// What keeps a PodGroup from being read, where that is why nothing is known of its gang.
async fn unreadable<A: Api>(parts: &AdminParts<A>, gang: &GangName) -> Result<Option<String>, Failure> {
    let Some(group) = object(parts, Kind::PodGroup, &gang.namespace, &gang.name).await? else {
        return Ok(None);
    };
    let converted = convert::event_of_object(&parts.api.reading(), &group);
    let problems = converted.event.is_none().then(|| converted.warnings.join("; "));
    Ok(problems
        .map(|problems| format!("{problems}; it is left out, and its pods wait until that is corrected")))
}

/// What a name stands for.
enum Found {
    /// A gang.
    Gang(GangName),
    /// Something that will have a gang in a moment.
    NotYet(String),
}

async fn find_gang<A: Api>(parts: &AdminParts<A>, namespace: &str, name: &str) -> Result<Found, Failure> {
    if object(parts, Kind::PodGroup, namespace, name).await?.is_some() {
        return Ok(Found::Gang(GangName::new(namespace, name)));
    }
    if let Some(job) = object(parts, Kind::Job, namespace, name).await? {
        let (groups, _) = parts.api.list(Some(Kind::PodGroup)).await?;
        let owned = |group: &&Arc<Object>| {
            group.metadata.owner.as_ref().is_some_and(|owner| owner.uid == job.metadata.uid)
        };
        let invalid = job_status::invalid_text(&job.status);
        return Ok(match groups.iter().find(owned) {
            Some(group) => Found::Gang(GangName::new(namespace, &group.metadata.name)),
            None if invalid.is_some() => Found::NotYet(format!(
                "job {namespace}/{name} cannot run: {}; repair it with kubectl apply",
                invalid.unwrap_or_default()
            )),
            None => Found::NotYet(format!(
                "job {namespace}/{name} exists and its PodGroup is not made yet; ask again"
            )),
        });
    }
    if let Some(pod) = object(parts, Kind::Pod, namespace, name).await? {
        let reading = parts.api.reading();
        if !reading.is_ours(&pod) {
            let ours: Vec<&str> = reading.schedulers().collect();
            let text = format!(
                "pod {namespace}/{name} is not ours: spec.schedulerName is not {}",
                ours.join(" or ")
            );
            return Err(Failure::new(StatusCode::NOT_FOUND, text));
        }
        if let Some(text) = pods::missing_group(parts, &pod).await? {
            return Ok(Found::NotYet(text));
        }
        return Ok(match convert::pod_of_object(&reading, &pod) {
            Some(pod) => Found::Gang(pod.gang),
            None => Found::NotYet(format!(
                "pod {namespace}/{name} exists and its PodGroup is not made yet; ask again"
            )),
        });
    }
    if let Some(pod) = pods::naming(parts, namespace, name).await?
        && let Some(text) = pods::missing_group(parts, &pod).await?
    {
        return Ok(Found::NotYet(text));
    }
    Err(missing(parts, namespace, name).await?)
}

async fn object<A: Api>(
    parts: &AdminParts<A>,
    kind: Kind,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Object>>, Failure> {
    match parts.api.glance(&ObjectKey::new(kind, namespace, name)).await {
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
