//! Examples of reasons that have to do with who starts together.

use std::sync::Arc;

use phalanx_common::units::Time;
use phalanx_core::reason::{Reason, Together};

use super::{Example, also, example, nodes};

fn names(names: [&str; 2]) -> Vec<Arc<str>> {
    names.map(Arc::from).to_vec()
}

fn no_room() -> Box<Reason> {
    Box::new(Reason::NoRoom(Box::new(nodes::room(1, 0, 1, 4))))
}

fn groups() -> Vec<(&'static str, Together)> {
    vec![
        (
            "Gangs of its group (`phalanx.dev/gang-group`) do not exist. None of the group is admitted, and none holds \
             anything.",
            Together::GroupIncomplete { group: "train".into(), exist: 1, size: 2 },
        ),
        (
            "A gang of its group is held up, or all of them together are, as by a quota. The reason within follows.",
            Together::GroupHeld {
                gangs: names(["trainer", "servers"]),
                gang: Some("servers".into()),
                cause: Box::new(Reason::TooFewPods { exist: 0, minimum: 2, task: None, lower_to: None }),
            },
        ),
        (
            "The gangs of its group do not fit together.",
            Together::GroupDoesNotFit { gangs: names(["trainer", "servers"]), fit: 0, cause: no_room() },
        ),
        (
            "Gangs of its group are in different queues.",
            Together::GroupOfQueues {
                gangs: names(["trainer", "servers"]),
                gang: "servers".into(),
                queue: "speech".into(),
                other: "vision".into(),
            },
        ),
    ]
}

pub fn examples() -> Vec<Example> {
    let reason = |together| Reason::Together(Box::new(together));
    let parts =
        |short| Together::TooFewParts { sub_group: "workers".into(), whole: 1, minimum: 2, size: 2, short };
    let degraded = |until, cause| Together::Degraded {
        of: None,
        have: 1,
        minimum: 2,
        since: Time(1_796_011_200_000),
        until,
        cause,
    };
    let mut examples: Vec<Example> =
        groups().into_iter().map(|(meaning, together)| example(meaning, reason(together))).collect();
    examples.extend([
        example(
            "Too few parts of a sub-group (`subGroupPolicy`) have all their pods, or pods of a part wait for the others \
             of it.",
            reason(parts(Some(("rack=a".into(), 1)))),
        ),
        also(reason(parts(None))),
        example(
            "It was whole and has fewer pods than its minimum, since when, and when it gives back the rest \
             (`phalanx.dev/degraded-grace`). Those who wait for what it holds are told so too.",
            reason(degraded(Some(Time(1_796_011_500_000)), None)),
        ),
        also(reason(degraded(None, Some(no_room())))),
    ]);
    examples
}
