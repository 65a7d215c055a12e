//! What is to be read at an object itself: fields of it that have no effect, values that are not taken, amounts that may be
//! slips of the hand, and a job that cannot be read.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::events::Happening;
use crate::api::{Kind, Object, ObjectKey};
use crate::convert::{Reading, event_of_object, warnings_of_job};
use crate::jobs::status::{INVALID, invalid_text};
use crate::manifest::group::read_pod_group;
use crate::manifest::job::read_job;
use crate::manifest::policy::is_of_gangs;
use crate::manifest::queue::read_queue;
use crate::manifest::reader::{Cursor, Sink};
use crate::manifest::tree::Node;

/// Fields named one by one.
const MOST_FIELDS: usize = 12;

/// What was told of one object.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    uid: String,
    not_honoured: Option<String>,
    doubtful: Option<String>,
    wrong: Vec<String>,
    invalid: Option<String>,
}

/// What was told, so that each text is told once. Objects of which there is nothing to tell are not kept.
#[derive(Debug, Default)]
pub struct Notices {
    told: BTreeMap<ObjectKey, Told>,
}

impl Notices {
    /// An object is there, or changed: what is to be told of it now. What is wrong with one that was there `before` was
    /// told by whoever led then; its fields without effect may not have been, since it may be older than all leaders.
    pub fn applied(&mut self, reading: &Reading, object: &Object, before: bool) -> Vec<Happening> {
        if !matches!(object.kind, Kind::Queue | Kind::QueuePolicy | Kind::PodGroup | Kind::Job | Kind::Pod) {
            return Vec::new();
        }
        let (key, invalid) = (object.key(), invalid_job(object));
        let uid = object.metadata.uid.clone();
        let now = Told {
            uid,
            not_honoured: not_honoured(object),
            doubtful: doubtful(object),
            wrong: wrong(reading, object),
            invalid: invalid.as_ref().map(|it| it.note.clone()),
        };
        let told = self.told.remove(&key).filter(|told| told.uid == now.uid);
        let mut happenings = Vec::new();
        if told.as_ref().is_none_or(|told| told.not_honoured != now.not_honoured) {
            let note = now.not_honoured.clone();
            happenings.extend(note.map(|note| event(object, NOT_HONOURED, note)));
        }
        if told.as_ref().is_none_or(|told| told.doubtful != now.doubtful) {
            let note = now.doubtful.clone();
            happenings.extend(note.map(|note| event(object, DOUBTFUL, note)));
        }
        // What a pod says is read in part once it has a PodGroup: what is left of it was told.
        let is_new = |text: &String| told.as_ref().is_none_or(|told| !told.wrong.contains(text));
        if now.wrong.iter().any(is_new) {
            let note = now.wrong.iter().take(MOST_FIELDS).map(String::as_str).collect::<Vec<_>>();
            happenings.push(event(object, INVALID_VALUE, note.join("; ")));
        }
        if !before && told.is_none_or(|told| told.invalid != now.invalid) {
            happenings.extend(invalid);
        }
        let is_some = [&now.not_honoured, &now.doubtful, &now.invalid].into_iter().any(Option::is_some);
        if is_some || !now.wrong.is_empty() {
            self.told.insert(key, now);
        }
        happenings
    }

    /// An object is gone.
    pub fn deleted(&mut self, key: &ObjectKey) {
        self.told.remove(key);
    }
}

/// Reason of the event for fields without effect.
pub const NOT_HONOURED: &str = "NotHonoured";

/// Reason of the event for values that may not be what was meant.
pub const DOUBTFUL: &str = "DoubtfulValue";

/// Reason of the event for values that are not taken.
pub const INVALID_VALUE: &str = "InvalidValue";

/// Values that API servers and admission fill in where nobody has asked for anything.
fn is_default(field: &str, value: Option<&Value>) -> bool {
    let last = field.rsplit('.').next().unwrap_or(field);
    match (last, value) {
        ("weight", Some(value)) => *value == 1,
        ("reclaimable", Some(value)) => *value == true,
        ("maxRetry", Some(value)) => *value == 3,
        ("dequeueStrategy", Some(value)) => *value == "traverse",
        ("parent", Some(value)) => *value == "root",
        (_, Some(Value::Null)) => true,
        (_, Some(Value::Array(items))) => items.is_empty(),
        (_, Some(Value::Object(entries))) => entries.is_empty(),
        _ => false,
    }
}

/// The value of a field such as `spec.tasks[0].policies`.
fn value_at<'o>(spec: &'o Value, field: &str) -> Option<&'o Value> {
    let path = field.strip_prefix("spec.")?.replace('[', ".").replace(']', "");
    spec.pointer(&format!("/{}", path.replace('.', "/")))
}

/// Which fields of an object have no effect; `None` where all that it asks for is done.
fn not_honoured(object: &Object) -> Option<String> {
    // Most objects are pods, and are not read for nothing.
    if object.spec.is_null() || !matches!(object.kind, Kind::Queue | Kind::PodGroup | Kind::Job) {
        return None;
    }
    let tree = Node::from_json(&object.spec);
    let (root, mut sink) = (Cursor::root(&tree, "spec"), Sink::new(""));
    match object.kind {
        Kind::Queue => drop(read_queue(Some(&root), &mut sink)),
        Kind::PodGroup => drop(read_pod_group(Some(&root), &mut sink)),
        Kind::Job => drop(read_job(&root, &object.metadata.name, &mut sink)),
        _ => return None,
    }
    // Volumes of a job are more than not honoured: it is refused.
    let is_told = |field: &&str| {
        let is_refused = object.kind == Kind::Job && *field == "spec.volumes";
        !is_refused && !is_default(field, value_at(&object.spec, field))
    };
    let fields: Vec<&str> = sink.not_honoured().filter(is_told).collect();
    if fields.is_empty() {
        return None;
    }
    let more = fields.len().saturating_sub(MOST_FIELDS);
    let named = fields.iter().take(MOST_FIELDS).copied().collect::<Vec<_>>().join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("accepted, and without effect: {named}{more}"))
}

/// What of a queue's amounts may not be what was meant: a name that no node offers, a zero that is no limit.
fn doubtful(object: &Object) -> Option<String> {
    if object.kind != Kind::Queue || object.spec.is_null() {
        return None;
    }
    let tree = Node::from_json(&object.spec);
    let mut sink = Sink::new("");
    drop(read_queue(Some(&Cursor::root(&tree, "spec")), &mut sink));
    let doubts: Vec<String> =
        sink.doubts().take(MOST_FIELDS).map(|(field, message)| format!("{field}: {message}")).collect();
    (!doubts.is_empty()).then(|| doubts.join("; "))
}

/// Values of an object that are not taken, each with what is done instead.
fn wrong(reading: &Reading, object: &Object) -> Vec<String> {
    let metadata = &object.metadata;
    let warnings = match object.kind {
        Kind::Job => warnings_of_job(object),
        // There are many, and most say nothing.
        Kind::Pod => {
            let mut keys = metadata.annotations.keys().chain(metadata.labels.keys());
            if !reading.is_ours(object) || !keys.any(|key| is_of_gangs(key)) {
                return Vec::new();
            }
            event_of_object(reading, object).warnings
        }
        _ => event_of_object(reading, object).warnings,
    };
    let begin = format!("{}: ", object.key());
    let text = |warning: String| warning.strip_prefix(&begin).map(str::to_owned).unwrap_or(warning);
    warnings.into_iter().map(text).collect()
}

/// The event for a job that cannot be read.
fn invalid_job(object: &Object) -> Option<Happening> {
    let text = invalid_text(&object.status).filter(|_| object.kind == Kind::Job)?;
    Some(event(object, INVALID, text.to_owned()))
}

fn event(object: &Object, reason: &'static str, note: String) -> Happening {
    let (key, uid) = (object.key(), object.metadata.uid.clone());
    Happening { key, uid, is_warning: true, reason, action: "Reading", note }
}
