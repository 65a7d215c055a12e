//! Examples of reasons that come before a place is looked for, and of those after.

use phalanx_core::reason::{Fewer, Reason};

use super::{Example, also, example, nodes};

pub fn names() -> Vec<Example> {
    vec![
        example(
            "The queue that `spec.queue` names does not exist.",
            Reason::NoSuchQueue { queue: "gpu-tema".into() },
        ),
        example(
            "`priorityClassName` names a class that does not exist.",
            Reason::NoSuchPriorityClass { class: "urgent".into() },
        ),
    ]
}

pub fn pods() -> Vec<Example> {
    vec![
        example(
            "Fewer pods exist than must start together. A gang that has been admitted for `--pods-timeout` without them \
             gives its quota to gangs of its queue that have theirs, and is queued again.",
            Reason::TooFewPods { exist: 3, minimum: 4, task: None, lower_to: Some(Box::new(Fewer::to(3))) },
        ),
        also(Reason::TooFewPods {
            exist: 1,
            minimum: 2,
            task: Some("worker".into()),
            lower_to: Some(Box::new(Fewer { tasks: vec![("worker".into(), 1)], ..Fewer::to(2) })),
        }),
        example(
            "A pod has a field that cannot be met: malformed, or of a kind that is not served yet.",
            Reason::PodBlocked {
                pod: "train-0".into(),
                field: "spec.resourceClaims".into(),
                message: "claims of devices are not served yet".into(),
            },
        ),
        example(
            "A pod has `schedulingGates`. It is no candidate until they are gone, and its gang is charged nothing.",
            Reason::PodGated { pod: "train-0".into(), gates: vec!["example.com/volume".into()] },
        ),
    ]
}

pub fn while_placed() -> Vec<Example> {
    vec![
        example(
            "The gang runs, and pods above its minimum, or replacements, wait for a place. The reason of the first of \
             them follows. Nobody is evicted for pods above the minimum.",
            Reason::MorePodsWait { met: Some((3, 2)), waiting: 2, cause: Box::new(nodes::above_minimum()) },
        ),
        example(
            "It is being placed at this moment; or it waits a short while after a refusal, which the reason names with \
             node, pod and cause; or a Binding, or what comes before it, failed (`bind failed:` or `fence failed:` and \
             the cause) and is tried again until the binding deadline; or another coordinator planned it too, whose \
             Bindings are made to fail first.",
            Reason::InProgress { step: "reserving: 2 of 4 agents have confirmed".into() },
        ),
    ]
}
