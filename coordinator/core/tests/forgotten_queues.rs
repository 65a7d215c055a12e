//! A queue that nobody made is known as long as a gang names it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use phalanx_common::gang::{GangPolicy, GangSpec};
use phalanx_common::ids::{GangName, QueueName, Term};
use phalanx_common::units::Time;
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

fn without_object(core: &Core) -> usize {
    core.kept().into_iter().find(|(name, _)| *name == "queues_without_object").unwrap().1
}

fn gang(name: &GangName, queue: QueueName) -> GangSpec {
    GangSpec {
        name: name.clone(),
        uid: "uid".into(),
        created: Time(0),
        queue,
        min_member: 1,
        min_task_member: BTreeMap::new(),
        min_resources: None,
        priority_class: None,
        mixed_gpu_models: false,
        policy: GangPolicy::default(),
        shown: None,
    }
}

#[test]
fn a_gang_that_goes_from_queue_to_queue_leaves_none_behind() {
    let mut core = Core::new(Settings::default());
    let name = GangName::new("default", "gang");
    let apply = |core: &mut Core, event: Event| {
        core.apply(event, Time(0), &mut Vec::new());
        core.cycle(Time(0), &mut Vec::new());
    };
    apply(&mut core, Event::Started { term: Term { counter: 1, incarnation: 1 } });
    apply(&mut core, Event::Synced);
    for number in 0..50 {
        let queue = QueueName::from(format!("q{number}").as_str());
        apply(&mut core, Event::GangApplied(gang(&name, queue)));
        assert_eq!(without_object(&core), 1, "{number}");
    }
    apply(&mut core, Event::GangDeleted(name));
    assert_eq!(without_object(&core), 0);
}
