//! The messages of a lease in any order, lost and doubled, under two leaders, with crashes and a disk that fails: the
//! GPUs end free or with exactly one holder, and nothing is said that the disk does not hold.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use proptest::prelude::*;
use support::orders::{Step, World, every_short_order};

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..5_u8, 0..3_usize, 1..3_u64).prop_map(|(kind, lease, term)| Step::Deliver(kind, lease, term)),
        6 => (0..5_u8).prop_map(|kind| Step::Deliver(kind, 0, 1)),
        6 => Just(Step::DiskOk),
        2 => any::<bool>().prop_map(|written| Step::DiskFail { written }),
        1 => any::<(bool, bool)>().prop_map(|(written, reboot)| Step::Crash { written, reboot }),
        1 => (1..3_u64).prop_map(Step::Reconnect),
        1 => Just(Step::PodEnds),
        2 => Just(Step::PodGone),
        2 => prop_oneof![Just(500), Just(2_000)].prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gpus_end_free_or_with_one_holder(steps in proptest::collection::vec(steps(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check_holders();
        }
        world.settle();
    }
}

#[test]
fn every_short_order_ends_well() {
    every_short_order();
}
