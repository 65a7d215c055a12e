//! What an answer of the API server means. Pure.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;

use crate::api::{ApiError, ObjectKey};

/// Longest text of the API server that is kept: it goes into conditions and logs.
const LONGEST_TEXT: usize = 600;
/// Pause after 429 where the API server names none.
const DEFAULT_PAUSE: Duration = Duration::from_millis(500);
/// Shortest and longest pause, whatever is named: what stands between may say 0, or any number.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// `v1` Status, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    message: String,
    reason: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    name: String,
    causes: Vec<Cause>,
    retry_after_seconds: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    field: String,
}

/// An answer that is no success.
#[derive(Debug)]
pub(super) struct Refusal {
    code: StatusCode,
    status: Status,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// Reads it; a body that is no Status (a proxy's, say) becomes the message.
    pub(super) fn new(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let status = serde_json::from_slice::<Value>(body)
            .ok()
            .filter(|body| body["kind"] == "Status")
            .and_then(|body| serde_json::from_value::<Status>(body).ok());
        let status = status.unwrap_or_else(|| Status {
            message: String::from_utf8_lossy(body).trim().to_owned(),
            ..Status::default()
        });
        let named = headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.trim().parse().ok());
        let in_body = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let seconds = named.or_else(|| (in_body > 0).then_some(in_body));
        Self { code, status, retry_after: seconds.map(Duration::from_secs) }
    }

    /// How long to wait before the same request may be sent again; `None` where it must not be. Only what the API
    /// server turned away unread is safe to repeat.
    pub(super) fn pause(&self) -> Option<Duration> {
        let is_busy = self.code == StatusCode::TOO_MANY_REQUESTS && !self.is_budget();
        is_busy.then(|| self.retry_after.unwrap_or(DEFAULT_PAUSE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE))
    }

    /// True where a PodDisruptionBudget forbids an eviction: that is an answer about the pod and not about load.
    fn is_budget(&self) -> bool {
        self.causes().any(|cause| cause.reason == "DisruptionBudget")
    }

    fn causes(&self) -> impl Iterator<Item = &Cause> {
        self.status.details.iter().flat_map(|details| &details.causes)
    }

    /// True where the stored object has another UID than the request names. A patch says so by a field that cannot
    /// change, everything else by a precondition.
    fn is_other_uid(&self) -> bool {
        let message = &self.status.message;
        message.contains("UID in precondition")
            || message.contains("the UID in the precondition")
            || (self.code == StatusCode::UNPROCESSABLE_ENTITY
                && self.causes().any(|cause| cause.field == "metadata.uid"))
    }

    /// The server's words, with its code.
    pub(super) fn text(&self) -> String {
        let mut text = match self.status.message.as_str() {
            "" => format!("the API server answered {}", self.code),
            message => format!("{message} ({})", self.code.as_u16()),
        };
        if let Some((at, _)) = text.char_indices().nth(LONGEST_TEXT) {
            text.truncate(at);
            text.push('…');
        }
        text
    }

    /// What it means for the write, or read, of this object.
    pub(super) fn error(&self, key: &ObjectKey) -> ApiError {
        let text = || format!("{key}: {}", self.text());
        if self.is_other_uid() {
            return ApiError::OtherUid(text());
        }
        match self.code.as_u16() {
            404 if self.is_about(key) => ApiError::NotFound(key.to_string()),
            409 if self.status.reason == "AlreadyExists" => ApiError::AlreadyExists(key.to_string()),
            409 | 410 => ApiError::Conflict(text()),
            // Our credentials, not the write: with new ones it may be done.
            401 => ApiError::Storage(text()),
            429 if !self.is_budget() => ApiError::Unknown,
            408 => ApiError::Unknown,
            400..=499 => ApiError::Invalid(text()),
            _ => ApiError::Unknown,
        }
    }

    /// A 404 of something else (a namespace, a kind that is not served) does not say that the object is gone.
    fn is_about(&self, key: &ObjectKey) -> bool {
        self.status.details.as_ref().is_some_and(|details| details.name == key.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Kind;
    use serde_json::json;

    fn key() -> ObjectKey {
        ObjectKey::new(Kind::Pod, "default", "a")
    }

    fn refusal(code: u16, body: Value) -> Refusal {
        let body = serde_json::to_vec(&body).unwrap();
        Refusal::new(StatusCode::from_u16(code).unwrap(), &HeaderMap::new(), &body)
    }

    fn status(reason: &str, message: &str) -> Value {
        json!({ "kind": "Status", "reason": reason, "message": message, "details": { "name": "a" } })
    }

    #[test]
    fn each_answer_has_its_meaning() {
        let error = |code, reason: &str, message: &str| refusal(code, status(reason, message)).error(&key());
        assert_eq!(error(404, "NotFound", "x"), ApiError::NotFound("Pod default/a".to_owned()));
        assert!(matches!(error(409, "AlreadyExists", "x"), ApiError::AlreadyExists(_)));
        assert!(matches!(error(409, "Conflict", "the object has been modified"), ApiError::Conflict(_)));
        for other in [
            "Precondition failed: UID in precondition: 1, UID in object meta: 2",
            "the UID in the precondition (1) does not match the UID in record (2)",
        ] {
            assert!(matches!(error(409, "Conflict", other), ApiError::OtherUid(_)));
        }
        let stale =
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (2)";
        assert!(matches!(error(409, "Conflict", stale), ApiError::Conflict(_)));
        for code in [400, 403, 405, 413, 415, 422] {
            assert_eq!(
                error(code, "Forbidden", "no"),
                ApiError::Invalid(format!("Pod default/a: no ({code})"))
            );
        }
        for code in [408, 429, 500, 502, 503, 504] {
            assert_eq!(error(code, "InternalError", "x"), ApiError::Unknown, "{code}");
        }
        assert!(matches!(error(401, "Unauthorized", "x"), ApiError::Storage(_)));
    }

    #[test]
    fn a_kind_that_is_not_served_is_no_object_that_is_gone() {
        let body =
            json!({ "kind": "Status", "reason": "NotFound", "message": "the server could not find it" });
        assert!(matches!(refusal(404, body).error(&key()), ApiError::Invalid(_)));
        assert!(matches!(refusal(404, json!("404 page not found")).error(&key()), ApiError::Invalid(_)));
    }

    #[test]
    fn a_patch_of_another_object_of_that_name_is_known_by_its_field() {
        let body = json!({ "kind": "Status", "reason": "Invalid", "message": "Pod \"a\" is invalid",
            "details": { "name": "a", "causes": [{ "reason": "FieldValueInvalid", "field": "metadata.uid" }] } });
        assert!(matches!(refusal(422, body).error(&key()), ApiError::OtherUid(_)));
    }

    #[test]
    fn only_what_was_turned_away_unread_is_sent_again() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, "2".parse().unwrap());
        let busy = |headers: &HeaderMap| Refusal::new(StatusCode::TOO_MANY_REQUESTS, headers, b"slow down");
        assert_eq!(busy(&headers).pause(), Some(Duration::from_secs(2)));
        assert_eq!(busy(&HeaderMap::new()).pause(), Some(DEFAULT_PAUSE));
        for (named, pause) in [("0", SHORTEST_PAUSE), ("18446744073709551615", LONGEST_PAUSE)] {
            headers.insert(header::RETRY_AFTER, named.parse().unwrap());
            assert_eq!(busy(&headers).pause(), Some(pause), "{named}");
        }
        assert_eq!(refusal(500, status("InternalError", "x")).pause(), None);
        let budget = json!({ "kind": "Status", "reason": "TooManyRequests", "message": "Cannot evict pod",
            "details": { "name": "a", "causes": [{ "reason": "DisruptionBudget" }] } });
        let budget = refusal(429, budget);
        assert_eq!(budget.pause(), None);
        assert!(matches!(budget.error(&key()), ApiError::Invalid(_)));
    }

    #[test]
    fn a_long_text_is_cut() {
        let long = refusal(500, status("InternalError", &"é".repeat(10_000))).text();
        assert_eq!(long.chars().count(), LONGEST_TEXT + 1);
    }
}
