//! Objects over HTTP: apply and delete by manifest, list, read, delete by name.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::queues::{self, Tree};
use super::{AdminParts, Failure, Shared, Text};
use crate::api::apply::apply_object;
use crate::api::{Api, ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use crate::manifest::reader::Sink;
use crate::manifest::{self, Diagnostic, Parsed, Severity};

/// Stands for the namespace of what has none.
const NO_NAMESPACE: &str = "-";
/// Longest name of a file in a query.
const MAX_FILE_NAME: usize = 4096;
/// Texts that are read at once: more would take the processors from the agents.
static READERS: Semaphore = Semaphore::const_new(2);
/// How long a text's queues are kept for gangs that are deleted and still have to stop.
const ENDING: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
pub(super) struct FileName {
    #[serde(default = "stdin")]
    file: String,
}

fn stdin() -> String {
    "<stdin>".to_owned()
}

/// Objects that are deleted together: those that others name go last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// Jobs, pods, PodGroups, and all that nobody names.
    Gangs,
    /// Queues.
    Queues,
    /// Priority classes.
    PriorityClasses,
}

impl Part {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Queue => Self::Queues,
            Kind::PriorityClass => Self::PriorityClasses,
            Kind::Job
            | Kind::Pod
            | Kind::PodGroup
            | Kind::QueuePolicy
            | Kind::Node
            | Kind::GangPlan
            | Kind::PodDisruptionBudget
            | Kind::StorageClass
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim => Self::Gangs,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Deletion {
    #[serde(default = "stdin")]
    file: String,
    /// Only this part of the text: whoever deletes several texts asks for the first part of all of them first.
    part: Option<Part>,
}

/// What was done with a manifest.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    /// Objects that the text names and that can be read.
    objects: usize,
    /// Every document was taken.
    ok: bool,
    /// Objects in the order of the text.
    applied: Vec<DoneObject>,
    /// What was wrong or worth knowing, by line.
    diagnostics: Vec<Diagnostic>,
    /// What the API did not take, which comes among the diagnostics at the end.
    #[serde(skip)]
    refused: Sink,
}

#[derive(Debug, Serialize)]
struct DoneObject {
    kind: Kind,
    /// Empty where the kind has none.
    namespace: String,
    name: String,
    /// `created`, `configured`, `unchanged` or `deleted`.
    change: &'static str,
}

impl DoneObject {
    fn new(object: &Object, change: &'static str) -> Self {
        let ObjectKey { kind, namespace, name } = object.key();
        Self { kind, namespace, name, change }
    }
}

impl Done {
    fn new(objects: usize, diagnostics: Vec<Diagnostic>, file: &str) -> Self {
        Self { objects, ok: true, applied: Vec::new(), diagnostics, refused: Sink::new(file) }
    }

    fn failed(&mut self, line: usize, key: &ObjectKey, error: &ApiError) {
        self.refused.push(Severity::Error, line, "", format!("{key}: {error}"));
    }

    fn finish(mut self) -> Json<Self> {
        let refused = std::mem::replace(&mut self.refused, Sink::new(""));
        self.diagnostics.extend(refused.finish());
        self.diagnostics.sort_by_key(|diagnostic| diagnostic.line);
        self.ok = !self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        Json(self)
    }
}

/// A file's name goes into every diagnostic: it must not be longer than one.
fn check_file(file: &str) -> Result<(), Failure> {
    if file.len() <= MAX_FILE_NAME {
        return Ok(());
    }
    let text = format!("file: must have at most {MAX_FILE_NAME} characters, found {}", file.len());
    Err(Failure::new(StatusCode::BAD_REQUEST, text))
}

/// Reads a text on a thread of its own: it takes up to seconds, in which the agents must be heard.
async fn parse(text: Text, file: &str) -> Result<Parsed, Failure> {
    let unavailable = |error: &dyn std::fmt::Display| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the text was not read: {error}"))
    };
    let _turn = READERS.acquire().await.map_err(|error| unavailable(&error))?;
    let file = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || manifest::parse(&text.0, &file));
    reading.await.map_err(|error| unavailable(&error))
}

/// Applies every document that is right; the others are in the diagnostics.
pub(super) async fn apply<A: Api>(
    State(parts): Shared<A>,
    name: Result<Query<FileName>, QueryRejection>,
    text: Result<Text, Failure>,
) -> Result<Json<Done>, Failure> {
    let Query(FileName { file }) = name?;
    check_file(&file)?;
    let parsed = parse(text?, &file).await?;
    let mut done = Done::new(parsed.objects.len(), parsed.diagnostics, &file);
    let tree = Tree::of_text(&parts, &parsed.objects).await?;
    for (wanted, line) in parsed.objects.iter().zip(parsed.lines) {
        if let Err(error) = tree.check(&parts, wanted).await {
            done.failed(line, &wanted.key(), &error);
            continue;
        }
        match apply_object(&parts.api, wanted).await {
            Ok((object, change)) => done.applied.push(DoneObject::new(&object, change.as_str())),
            Err(error) => done.failed(line, &wanted.key(), &error),
        }
    }
    Ok(done.finish())
}

/// Deletes what the documents name. What is not there is no error: it is gone, as wanted.
pub(super) async fn delete_text<A: Api>(
    State(parts): Shared<A>,
    deletion: Result<Query<Deletion>, QueryRejection>,
    text: Result<Text, Failure>,
) -> Result<Json<Done>, Failure> {
    let Query(Deletion { file, part }) = deletion?;
    check_file(&file)?;
    let parsed = parse(text?, &file).await?;
    // What is wrong with the text is said with its first part.
    let told = if part.is_none_or(|part| part == Part::Gangs) { parsed.diagnostics } else { Vec::new() };
    let mut done = Done::new(parsed.objects.len(), told, &file);
    // Backwards, and what others name last.
    let mut named: Vec<(&Object, usize)> = parsed.objects.iter().zip(parsed.lines).rev().collect();
    named.retain(|(object, _)| part.is_none_or(|part| part == Part::of(object.kind)));
    let parents = queues::parents(&parsed.objects);
    named.sort_by_key(|(object, _)| (Part::of(object.kind), Reverse(queues::depth(object, &parents))));
    let limit = Instant::now() + ENDING;
    for (object, line) in named {
        let key = object.key();
        if key.kind == Kind::Queue {
            queues::wait_for_users(&parts, &key, limit).await?;
        }
        match remove(&parts, &key).await {
            Ok(object) => done.applied.push(DoneObject::new(&object, "deleted")),
            Err(ApiError::NotFound(_)) => {}
            Err(error) => done.failed(line, &key, &error),
        }
    }
    Ok(done.finish())
}

fn kind(text: &str) -> Result<Kind, Failure> {
    Kind::parse(text).ok_or_else(|| {
        let kinds = Kind::STANDALONE.map(Kind::as_str).join(", ");
        Failure::new(StatusCode::NOT_FOUND, format!("no such kind {text:?}; there are {kinds}"))
    })
}

fn key(kind: Kind, namespace: &str, name: &str) -> Result<ObjectKey, Failure> {
    match (kind.is_cluster_scoped(), namespace == NO_NAMESPACE) {
        (true, false) => Err(Failure::new(
            StatusCode::BAD_REQUEST,
            format!("a {kind} has no namespace: write {NO_NAMESPACE} instead of {namespace:?}"),
        )),
        (false, true) => Err(Failure::new(
            StatusCode::BAD_REQUEST,
            format!("a {kind} has a namespace: write it instead of {NO_NAMESPACE}"),
        )),
        _ => Ok(ObjectKey::new(kind, namespace, name)),
    }
}

pub(super) async fn list<A: Api>(
    State(parts): Shared<A>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Failure> {
    let Path(kind_text) = path?;
    let (objects, revision) = parts.api.list(Some(kind(&kind_text)?)).await?;
    Ok(Json(json!({ "items": objects, "resource_version": revision })))
}

pub(super) async fn one<A: Api>(
    State(parts): Shared<A>,
    path: Result<Path<(String, String, String)>, PathRejection>,
) -> Result<Json<Arc<Object>>, Failure> {
    let Path((kind_text, namespace, name)) = path?;
    let key = key(kind(&kind_text)?, &namespace, &name)?;
    Ok(Json(parts.api.get(&key).await?))
}

/// Deletes; `gone` is false where a pod still has to stop first.
pub(super) async fn delete<A: Api>(
    State(parts): Shared<A>,
    path: Result<Path<(String, String, String)>, PathRejection>,
) -> Result<Json<Value>, Failure> {
    let Path((kind_text, namespace, name)) = path?;
    let key = key(kind(&kind_text)?, &namespace, &name)?;
    let object = remove(&parts, &key).await?;
    let gone = object.metadata.deletion.is_none();
    Ok(Json(json!({ "kind": key.kind, "namespace": key.namespace, "name": key.name, "gone": gone })))
}

async fn remove<A: Api>(parts: &AdminParts<A>, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
    match key.kind {
        Kind::Queue => queues::check_deletion(parts, key).await?,
        Kind::GangPlan => {
            return Err(ApiError::Conflict(format!(
                "{key} records where gangs are placed and is the coordinator's own: delete the gang instead"
            )));
        }
        _ => {}
    }
    parts.api.mutate(Mutation::Delete { key: key.clone(), preconditions: Preconditions::default() }).await
}
