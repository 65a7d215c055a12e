//! Examples of what a queue, or one above it, keeps from a gang.

use phalanx_common::ids::GangName;
use phalanx_common::resources::NVIDIA_GPU;
use phalanx_common::units::Millis;
use phalanx_core::queues::QueueProblem;
use phalanx_core::reason::{Fewer, NoEviction, NoEvictionCause, QueueHeld, Reason};

use super::nodes::because;
use super::{Example, also, example};

pub fn examples() -> Vec<Example> {
    [of_the_queue(), of_those_above(), of_others()].into_iter().flatten().collect()
}

fn held(held: QueueHeld) -> Reason {
    Reason::Queue(Box::new(held))
}

fn of_the_queue() -> Vec<Example> {
    let quota_used = |cause, short| Reason::QuotaUsed {
        queue: "vision".into(),
        resource: NVIDIA_GPU.into(),
        limit: 8,
        used: 8,
        asked: 8,
        eviction: Some(Box::new(NoEviction { short: Some(short), ..because(cause) })),
    };
    let first =
        NoEvictionCause::AdmittedFirst { gang: GangName::new("team-b", "urgent"), priority: 100, own: 10 };
    vec![
        example(
            "The queue takes no new gangs. Gangs that were admitted before go on.",
            Reason::QueueClosed { queue: "vision".into() },
        ),
        also(held(QueueHeld::AncestorClosed { queue: "vision".into(), ancestor: "research".into() })),
        example(
            "The gang's minimum asks for more of a resource than the queue's ceiling: it can never run there.",
            Reason::AboveCapability {
                queue: "vision".into(),
                resource: NVIDIA_GPU.into(),
                limit: 16,
                asked: 32,
                lower_to: Some(Box::new(Fewer::to(2))),
            },
        ),
        example(
            "It would fit under the ceiling, and gangs ahead of it, or that run, have used it up. Where \
             others would be evicted for a part of it, the fix says the rest.",
            Reason::QuotaUsed {
                queue: "vision".into(),
                resource: NVIDIA_GPU.into(),
                limit: 128,
                used: 120,
                asked: 16,
                eviction: None,
            },
        ),
        also(quota_used(NoEvictionCause::Quota, 4)),
        also(quota_used(first, 8)),
        example(
            "The queue, or one above it, contradicts itself or others, or cannot be read: it is set aside, and all other queues go on.",
            held(QueueHeld::SetAside {
                queue: "vision".into(),
                problem: QueueProblem {
                    queue: "vision".into(),
                    field: "guarantee".to_owned(),
                    message: "nvidia.com/gpu 16 is above deserved 8".to_owned(),
                },
            }),
        ),
        example(
            "The queue has queues below it. Only those without take gangs.",
            held(QueueHeld::NotLeaf { queue: "research".into(), child: Some("vision".into()) }),
        ),
        example(
            "The QueuePolicy of the queue names the namespaces that may use it, and the gang's is none of them.",
            held(QueueHeld::NotAllowed {
                queue: "vision".into(),
                namespace: "team-b".into(),
                allowed: vec!["team-a".into()],
            }),
        ),
        example(
            "The gang has run for as long as the QueuePolicy of its queue allows, and was ended. It is not started again.",
            held(QueueHeld::RanOut {
                queue: "vision".into(),
                ran: Millis(72 * 3_600_000),
                maximum: Millis(72 * 3_600_000),
            }),
        ),
    ]
}

fn of_those_above() -> Vec<Example> {
    vec![
        example(
            "The ceiling of a queue above the gang's is reached.",
            held(QueueHeld::AncestorUsed {
                queue: "vision".into(),
                ancestor: "research".into(),
                resource: NVIDIA_GPU.into(),
                limit: 8,
                used: 8,
                asked: 8,
                eviction: None,
            }),
        ),
        example(
            "The gang's minimum asks for more than the ceiling of a queue above its own: it can never run there.",
            held(QueueHeld::AboveAncestor {
                queue: "vision".into(),
                ancestor: "research".into(),
                resource: NVIDIA_GPU.into(),
                limit: 8,
                asked: 16,
                lower_to: Some(Box::new(Fewer::to(1))),
            }),
        ),
    ]
}

fn of_others() -> Vec<Example> {
    vec![
        example(
            "What is left in the cluster is guaranteed to other queues, which is never lent.",
            held(QueueHeld::Guaranteed {
                queue: "vision".into(),
                resource: NVIDIA_GPU.into(),
                capacity: 32,
                used: 16,
                kept: 8,
                owners: vec!["serving".into()],
                asked: 16,
                never: false,
                lower: vec![("serving".into(), 8)],
            }),
        ),
        example(
            "The queue's `dequeueStrategy` is `fifo`: a gang before this one waits, and could use a node that this one \
             could use too.",
            held(QueueHeld::Behind {
                queue: "vision".into(),
                first: GangName::new("team-a", "large"),
                pool: None,
                node: "n1".into(),
            }),
        ),
    ]
}
