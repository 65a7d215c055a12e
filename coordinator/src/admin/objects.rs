//! Objects over HTTP: apply and delete by manifest, list, read, delete by name.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::StringRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AdminParts, Failure, Shared};
use crate::api::apply::apply_object;
use crate::api::{Api, ApiError, Kind, Mutation, Object, ObjectKey, Preconditions};
use crate::manifest::{self, Diagnostic, Severity};

/// Stands for the namespace of what has none.
const NO_NAMESPACE: &str = "-";
/// Gangs named in the text of a refusal.
const NAMES_SHOWN: usize = 5;

#[derive(Deserialize)]
pub(super) struct FileName {
    #[serde(default = "stdin")]
    file: String,
}

fn stdin() -> String {
    "<stdin>".to_owned()
}

/// What was done with a manifest.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    /// Every document was taken.
    ok: bool,
    /// Objects in the order of the text.
    applied: Vec<DoneObject>,
    /// What was wrong or worth knowing, by line.
    diagnostics: Vec<Diagnostic>,
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
    fn failed(&mut self, file: &str, line: usize, key: &ObjectKey, error: &ApiError) {
        self.diagnostics.push(Diagnostic {
            severity: Severity::Error,
            file: file.to_owned(),
            line,
            field: String::new(),
            message: format!("{key}: {error}"),
        });
    }

    fn finish(mut self) -> Json<Self> {
        self.diagnostics.sort_by_key(|diagnostic| diagnostic.line);
        self.ok = !self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        Json(self)
    }
}

fn body(text: Result<String, StringRejection>) -> Result<String, Failure> {
    text.map_err(|rejection| {
        let status = rejection.status();
        let text = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "the text is larger than 4 MiB: apply it in parts".to_owned(),
            _ => format!("the text cannot be read: {}", rejection.body_text()),
        };
        Failure::new(status, text)
    })
}

/// Applies every document that is right; the others are in the diagnostics.
pub(super) async fn apply<A: Api>(
    State(parts): Shared<A>,
    Query(FileName { file }): Query<FileName>,
    text: Result<String, StringRejection>,
) -> Result<Json<Done>, Failure> {
    let parsed = manifest::parse(&body(text)?, &file);
    let mut done = Done { ok: true, applied: Vec::new(), diagnostics: parsed.diagnostics };
    for (wanted, line) in parsed.objects.iter().zip(parsed.lines) {
        match apply_object(&parts.api, wanted).await {
            Ok((object, change)) => done.applied.push(DoneObject::new(&object, change.as_str())),
            Err(error) => done.failed(&file, line, &wanted.key(), &error),
        }
    }
    Ok(done.finish())
}

/// Deletes what the documents name. What is not there is no error: it is gone, as wanted.
pub(super) async fn delete_text<A: Api>(
    State(parts): Shared<A>,
    Query(FileName { file }): Query<FileName>,
    text: Result<String, StringRejection>,
) -> Result<Json<Done>, Failure> {
    let parsed = manifest::parse(&body(text)?, &file);
    let mut done = Done { ok: true, applied: Vec::new(), diagnostics: parsed.diagnostics };
    // Backwards: a queue stands before the jobs that use it.
    for (named, line) in parsed.objects.iter().zip(parsed.lines).rev() {
        let key = named.key();
        match remove(&parts, &key).await {
            Ok(object) => done.applied.push(DoneObject::new(&object, "deleted")),
            Err(ApiError::NotFound(_)) => {}
            Err(error) => done.failed(&file, line, &key, &error),
        }
    }
    Ok(done.finish())
}

fn kind(text: &str) -> Result<Kind, Failure> {
    Kind::parse(text).ok_or_else(|| {
        let kinds = Kind::ALL.map(Kind::as_str).join(", ");
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
    Path(kind_text): Path<String>,
) -> Result<Json<Value>, Failure> {
    let (objects, revision) = parts.api.list(Some(kind(&kind_text)?)).await?;
    Ok(Json(json!({ "items": objects, "resource_version": revision })))
}

pub(super) async fn one<A: Api>(
    State(parts): Shared<A>,
    Path((kind_text, namespace, name)): Path<(String, String, String)>,
) -> Result<Json<Arc<Object>>, Failure> {
    let key = key(kind(&kind_text)?, &namespace, &name)?;
    Ok(Json(parts.api.get(&key).await?))
}

/// Deletes; `gone` is false where a pod still has to stop first.
pub(super) async fn delete<A: Api>(
    State(parts): Shared<A>,
    Path((kind_text, namespace, name)): Path<(String, String, String)>,
) -> Result<Json<Value>, Failure> {
    let key = key(kind(&kind_text)?, &namespace, &name)?;
    let object = remove(&parts, &key).await?;
    let gone = object.metadata.deletion.is_none();
    Ok(Json(json!({ "kind": key.kind, "namespace": key.namespace, "name": key.name, "gone": gone })))
}

async fn remove<A: Api>(parts: &AdminParts<A>, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
    match key.kind {
        Kind::Queue => check_queue(parts, key).await?,
        Kind::GangPlan => {
            return Err(ApiError::Conflict(format!(
                "{key} records where a gang was placed and is the coordinator's own: delete the gang instead"
            )));
        }
        _ => {}
    }
    parts.api.mutate(Mutation::Delete { key: key.clone(), preconditions: Preconditions::default() }).await
}

/// A queue that is in use stays.
async fn check_queue<A: Api>(parts: &AdminParts<A>, key: &ObjectKey) -> Result<(), ApiError> {
    if key.name == parts.default_queue {
        return Err(ApiError::Conflict(format!(
            "{key} is the queue of gangs that name none and cannot be deleted"
        )));
    }
    let mut users = Vec::new();
    for kind in [Kind::Job, Kind::PodGroup] {
        let (objects, _) = parts.api.list(Some(kind)).await?;
        // A job's own PodGroup would be the same gang twice.
        let own = objects.iter().filter(|object| object.metadata.owner.is_none());
        let using = own.filter(|object| object.spec.get("queue").and_then(Value::as_str) == Some(&*key.name));
        users.extend(using.map(|object| object.key().to_string()));
    }
    if users.is_empty() {
        return Ok(());
    }
    let count = users.len();
    users.truncate(NAMES_SHOWN);
    let more = if count > users.len() { " and more" } else { "" };
    Err(ApiError::Conflict(format!(
        "{key} is used by {count} gangs ({}{more}): delete them first",
        users.join(", ")
    )))
}
