//! Queues and their policies.
//!
//! What is wrong with a field that only ranks or lends is told, and its default taken. A limit, a share or a parent that
//! cannot be read must not be taken for none: the core is told of the queue with what cannot be read, and sets it aside.

use phalanx_common::ids::QueueName;
use phalanx_common::queue::{QueuePolicySpec, QueueSpec, Unreadable};
use phalanx_common::units::Millis;
use phalanx_core::event::Event;

use super::{Converted, errors, queue_is_open, status, tree_of_spec};
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

/// Fields of a policy that are left out where they cannot be read, and what is done then.
const LEFT_OUT: [(&str, &str); 7] = [
    ("spec", "nobody may use the queue"),
    ("spec.namespaces", "no namespace may use the queue"),
    ("spec.minimumRunTime", "0s is taken"),
    ("spec.holdAfter", "hold-after of the coordinator is taken"),
    ("spec.startupDeadline", "no deadline is taken"),
    ("spec.defaultRunTime", "no run time is taken"),
    ("spec.maximumRunTime", "no gang is stopped"),
];

/// A queue as it is stored. Shares that contradict each other are for the core to judge: it sets the queue aside.
pub(super) fn queue(object: &Object) -> Converted {
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let queue = read_queue(Some(&Cursor::root(&tree, "spec")), &mut sink);
    let default = |field: &str| WITH_DEFAULT.iter().find(|(known, _)| *known == field);
    let key = object.key();
    let (mut warnings, mut unreadable) = (Vec::new(), None);
    for (field, message) in errors(&sink) {
        match default(field) {
            Some((_, taken)) => warnings.push(format!("{key}: {field}: {message}; {taken} is taken")),
            // The core says it, with what follows for its gangs.
            None if unreadable.is_none() => {
                let field = field.strip_prefix("spec.").unwrap_or(field);
                unreadable = Some(Unreadable { field: field.into(), message: message.into() });
            }
            None => warnings.push(format!("{key}: {field}: {message}; the queue is set aside")),
        }
    }
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
        unreadable,
    };
    Converted { event: Some(Event::QueueApplied(spec)), warnings }
}

/// What stands beside a queue. A field that cannot be read is left out by itself; namespaces that cannot be read are none.
pub(super) fn policy(object: &Object) -> Converted {
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let mut policy = read_queue_policy(Some(&Cursor::root(&tree, "spec")), &mut sink);
    if errors(&sink).any(|(field, _)| field == "spec") {
        policy.namespaces = Some(Vec::new());
    }
    let key = object.key();
    let warnings = errors(&sink).map(|(field, message)| {
        let instead = LEFT_OUT.iter().find(|(known, _)| *known == field);
        let instead = instead.map_or("it is left out", |(_, instead)| instead);
        format!("{key}: {field}: {message}; {instead}")
    });
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
