//! Events (`events.k8s.io/v1`) as `kubectl describe` shows them. Pure: a thing that happened becomes the object to store.

use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::units::Time;
use serde_json::{Value, json};

use crate::api::{Kind, ObjectKey};
use crate::convert::status::format_time;

/// Longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;
/// Of a name so much is used in the event's own.
const LONGEST_NAME: usize = 200;
/// Who says it.
const CONTROLLER: &str = "phalanx.dev/coordinator";

/// A pod that was evicted, for its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The pod.
    pub pod: PodUid,
    /// Its namespace and name.
    pub name: GangName,
    /// Why.
    pub cause: String,
}

/// Something that people should read at an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// The object.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// True for what is not as wished.
    pub is_warning: bool,
    /// One word, as Volcano has it: `Unschedulable`, `Scheduled`, `Evict`.
    pub reason: &'static str,
    /// What was done or tried: `Scheduling`, `Binding`, `Evicting`.
    pub action: &'static str,
    /// The text.
    pub note: String,
}

impl Happening {
    /// What is told of an evicted pod.
    #[must_use]
    pub fn evicted(evicted: &Evicted) -> Self {
        Self {
            key: ObjectKey::new(Kind::Pod, &evicted.name.namespace, &evicted.name.name),
            uid: evicted.pod.as_str().to_owned(),
            is_warning: true,
            reason: "Evict",
            action: "Evicting",
            note: format!("evicted: {}", evicted.cause),
        }
    }

    /// The object to store. `number` tells events of one millisecond apart; `instance` is the process that says it.
    #[must_use]
    pub fn event(&self, now: Time, number: u64, instance: &str) -> Value {
        let name = cut(&self.key.name, LONGEST_NAME).trim_end_matches(['.', '-']);
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                // Those of objects of the whole cluster stand where kubectl looks for them.
                "namespace": if self.key.namespace.is_empty() { "default" } else { &self.key.namespace },
                "name": format!("{name}.{:x}{:04x}", now.0, number & 0xffff),
            },
            "eventTime": micro_time(now),
            "reportingController": CONTROLLER,
            "reportingInstance": cut(instance, 128),
            "action": self.action,
            "reason": self.reason,
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "regarding": {
                "apiVersion": self.key.kind.api_version(),
                "kind": self.key.kind.as_str(),
                "namespace": self.key.namespace,
                "name": self.key.name,
                "uid": self.uid,
            },
            "note": cut(&self.note, LONGEST_NOTE),
        })
    }
}

/// A MicroTime must have its fraction.
fn micro_time(time: Time) -> String {
    let seconds = format_time(Time(time.0 - time.0 % 1000));
    let date = seconds.strip_suffix('Z').unwrap_or(&seconds);
    format!("{date}.{:03}000Z", time.0 % 1000)
}

/// As much of a text as fits, in bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_fits_what_the_api_server_takes() {
        let long = Happening {
            key: ObjectKey::new(Kind::PodGroup, "default", &"a.".repeat(126)),
            uid: "u".to_owned(),
            is_warning: true,
            reason: "Unschedulable",
            action: "Scheduling",
            note: "é".repeat(1000),
        };
        let event = long.event(Time(1_764_417_600_042), 0x12_3456, &"i".repeat(300));
        assert_eq!(event["eventTime"], "2025-11-29T12:00:00.042000Z");
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= 253 && name.ends_with(".19acf7bfa2a3456"), "{name}");
        assert!(!name.contains(".."), "{name}");
        assert!(event["note"].as_str().unwrap().len() <= LONGEST_NOTE);
        assert_eq!(event["reportingInstance"].as_str().unwrap().len(), 128);
    }
}
