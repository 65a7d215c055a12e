//! Examples of room that is made for a gang, and of one that had to go.

use phalanx_common::ids::GangName;
use phalanx_common::units::Time;
use phalanx_core::reason::{LateVictim, MakingRoom, Preempted, Reason};

use super::{Example, also, example, nodes};

/// Some moment of the year 2026.
pub const NOON: Time = Time(1_780_315_200_000);

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "Others are being evicted for it, or are to end by themselves. What they free is held for it.",
            Reason::MakingRoom(Box::new(MakingRoom {
                victims: 2,
                nodes: vec!["n1".into(), "n2".into()],
                has_notice: false,
                evicted_at: None,
                until: Some(NOON),
                late: None,
                gave_up: None,
            })),
        ),
        also(Reason::MakingRoom(Box::new(MakingRoom {
            victims: 1,
            nodes: vec!["n2".into()],
            has_notice: false,
            evicted_at: None,
            until: None,
            late: Some(LateVictim { pod: "train-0".into(), given_up: Some(NOON) }),
            gave_up: Some("n1: small-0 did not end in time".into()),
        }))),
        also(Reason::MakingRoom(Box::new(MakingRoom {
            victims: 1,
            nodes: vec!["n2".into()],
            has_notice: true,
            evicted_at: Some(NOON),
            until: None,
            late: None,
            gave_up: None,
        }))),
        example(
            "It was evicted for another gang, and waits. Why it does not run elsewhere follows.",
            Reason::Preempted(Box::new(Preempted {
                by: GangName::new("team-b", "urgent"),
                at: NOON,
                cause: Some(Reason::NoRoom(Box::new(nodes::room(2, 0, 2, 8)))),
            })),
        ),
    ]
}
