//! Examples of how the tree of queues keeps a gang waiting.

use phalanx_common::ids::GangName;
use phalanx_core::queues::QueueProblem;
use phalanx_core::reason::{QueueHeld, Reason};

use super::{Example, also, example};

fn held(held: QueueHeld) -> Reason {
    Reason::Queue(Box::new(held))
}

fn problem(queue: &str, field: &str, message: &str) -> QueueProblem {
    QueueProblem { queue: queue.into(), field: field.to_owned(), message: message.to_owned() }
}

/// It stands with that of a closed queue.
pub fn ancestor_closed() -> Reason {
    held(QueueHeld::AncestorClosed { queue: "vision".into(), ancestor: "research".into() })
}

fn guaranteed(used: u64, kept: u64, asked: u64, never: bool) -> Reason {
    held(QueueHeld::Guaranteed {
        queue: "batch".into(),
        resource: "nvidia.com/gpu".into(),
        capacity: 64,
        used,
        kept,
        owners: vec!["vision".into()],
        asked,
        never,
    })
}

pub fn examples() -> Vec<Example> {
    let gpus = || "nvidia.com/gpu".into();
    vec![
        example(
            "The gang's queue, or one above it, contradicts itself or others: it is set aside until that is corrected. \
             All other queues go on, and so do gangs of this one that run.",
            held(QueueHeld::SetAside {
                queue: "vision".into(),
                problem: problem(
                    "vision",
                    "guarantee",
                    "nvidia.com/gpu is 16, above deserved 8 (guarantee <= deserved <= capability)",
                ),
            }),
        ),
        also(held(QueueHeld::SetAside {
            queue: "vision".into(),
            problem: problem("research", "parent", "queue science does not exist"),
        })),
        example(
            "Queues below the gang's queue share what it has: only those take gangs. `root` takes none.",
            held(QueueHeld::NotLeaf { queue: "research".into(), child: Some("vision".into()) }),
        ),
        also(held(QueueHeld::NotLeaf { queue: "root".into(), child: None })),
        example(
            "The QueuePolicy of the queue, or of one above it, names the namespaces that may use it, and the gang's is \
             none of them.",
            held(QueueHeld::NotAllowed {
                queue: "vision".into(),
                namespace: "guests".into(),
                allowed: vec!["team-a".into(), "team-b".into()],
            }),
        ),
        example(
            "The gang's minimum asks for more of a resource than the ceiling of a queue above its own: it can never run \
             there.",
            held(QueueHeld::AboveAncestor {
                queue: "vision".into(),
                ancestor: "research".into(),
                resource: gpus(),
                limit: 32,
                asked: 64,
                lower_to: Some(4),
            }),
        ),
        example(
            "It would fit under its queue's ceiling, and that of a queue above is used up.",
            held(QueueHeld::AncestorUsed {
                queue: "vision".into(),
                ancestor: "research".into(),
                resource: gpus(),
                limit: 32,
                used: 28,
                asked: 8,
            }),
        ),
        example(
            "What is left is set aside for others: a guarantee is never lent.",
            guaranteed(40, 16, 16, false),
        ),
        also(guaranteed(0, 16, 56, true)),
        example(
            "Its queue serves strictly in order (`dequeueStrategy: fifo`), and a gang that waits before it could use the \
             same nodes. Its pool is what its `nodeSelector` names.",
            held(QueueHeld::Behind {
                queue: "vision".into(),
                first: GangName::new("team-a", "train"),
                pool: Some("gpu=h200".into()),
                node: "n1".into(),
            }),
        ),
        also(held(QueueHeld::Behind {
            queue: "vision".into(),
            first: GangName::new("team-a", "train"),
            pool: None,
            node: "n1".into(),
        })),
    ]
}
