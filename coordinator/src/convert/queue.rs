//! Queues and their policies.
//!
//! What is wrong with a field that only ranks or lends is told, and its default taken. A limit, a share or a parent that
//! cannot be read must not be taken for none: the object is left out, as is every other one that cannot be read.

use phalanx_common::ids::QueueName;
use phalanx_common::queue::{QueuePolicySpec, QueueSpec};
use phalanx_common::units::Millis;
use phalanx_core::event::Event;

use super::{Converted, errors, problems, queue_is_open, status, tree_of_spec};
use crate::api::Object;
use crate::manifest::queue::{read_queue, read_queue_policy};
use crate::manifest::reader::{Cursor, Sink};

/// Fields of a queue for which there is a default to take.
const WITH_DEFAULT: [(&str, &str); 4] = [
    ("spec.weight", "1"),
    ("spec.priority", "0"),
    ("spec.reclaimable", "true"),
    ("spec.dequeueStrategy", "traverse"),
];

/// A queue as it is stored. Shares that contradict each other are for the core to judge: it sets the queue aside.
pub(super) fn queue(object: &Object) -> Converted {
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let queue = read_queue(Some(&Cursor::root(&tree, "spec")), &mut sink);
    let default = |field: &str| WITH_DEFAULT.iter().find(|(known, _)| *known == field);
    if errors(&sink).any(|(field, _)| default(field).is_none()) {
        return Converted { event: None, warnings: problems(&object.key(), &sink) };
    }
    let key = object.key();
    let warnings = errors(&sink).filter_map(|(field, message)| {
        let (_, taken) = default(field)?;
        Some(format!("{key}: {field}: {message}; {taken} is taken"))
    });
    let spec = QueueSpec {
        name: QueueName::from(object.metadata.name.as_str()),
        priority: queue.priority,
        capability: queue.capability,
        open: queue_is_open(object),
        parent: queue.parent.map(QueueName::from),
        weight: queue.weight,
        deserved: queue.deserved,
        guarantee: queue.guarantee,
        reclaimable: queue.reclaimable,
        dequeue: queue.dequeue,
        shown: Some(status::shown_queue(&object.status)),
    };
    Converted { event: Some(Event::QueueApplied(spec)), warnings: warnings.collect() }
}

/// What stands beside a queue. A field that cannot be read is left out by itself; namespaces that cannot be read are none.
pub(super) fn policy(object: &Object) -> Converted {
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let policy = read_queue_policy(Some(&Cursor::root(&tree, "spec")), &mut sink);
    let key = object.key();
    let warnings = errors(&sink).map(|(field, message)| format!("{key}: {field}: {message}; it is left out"));
    let spec = QueuePolicySpec {
        name: QueueName::from(object.metadata.name.as_str()),
        namespaces: policy.namespaces,
        minimum_run_ms: policy.minimum_run.unwrap_or(Millis(0)),
        hold_after_ms: policy.hold_after,
        startup_deadline_ms: policy.startup_deadline,
        default_run_ms: policy.default_run,
        maximum_run_ms: policy.maximum_run,
    };
    Converted { event: Some(Event::QueuePolicyApplied(Box::new(spec))), warnings: warnings.collect() }
}
