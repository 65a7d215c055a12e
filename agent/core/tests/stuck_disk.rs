//! A disk that takes a write and never answers: what is asked meanwhile is kept within a bound.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "support/mod.rs"]
mod support;

use phalanx_common::ids::{ClusterId, LeaseId, NodeName, Term};
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, ToAgent};
use phalanx_node_core::{Action, Core, Event, LinkId};

const LINK: LinkId = LinkId(0);
use support::{Wish, inventory, request};

const TERM: Term = Term { counter: 1, incarnation: 1 };
/// Answers that may wait for the disk.
const MAX_WAITING: usize = 4096;

fn waiting(core: &Core) -> usize {
    let kept = core.kept();
    kept.iter().find(|(name, _)| *name == "answers_that_wait_for_the_disk").unwrap().1
}

#[test]
fn what_is_asked_again_and_again_waits_once_and_strange_leases_fill_nothing() {
    let mut actions = Vec::new();
    let mut core = Core::new(NodeName::from("n1"), "boot", None, Time(0), &mut actions);
    let mut newest = 0;
    let mut apply = |core: &mut Core, event| {
        core.apply(event, Time(1), &mut actions);
        for action in &actions {
            if let Action::Persist { revision, .. } = action {
                newest = *revision;
            }
        }
        (std::mem::take(&mut actions), newest)
    };
    apply(&mut core, Event::Inventory(inventory(2, 64_000, 1 << 36)));
    apply(&mut core, Event::LinkUp(LINK));
    let cluster = ClusterId::from("cluster");
    apply(&mut core, Event::Message(LINK, ToAgent::Welcome { version: 2, cluster, term: TERM }));
    let wish =
        Wish { pod: "pod", gpus: &[0], asked: 1, cpu_milli: 1000, memory_bytes: 1 << 20, run_for: None };
    let lease = LeaseId { term: 1, serial: 1 };
    for _ in 0..10_000 {
        let reserve = ToAgent::Reserve {
            term: TERM,
            lease,
            request: Box::new(request(&wish)),
            expires_in_ms: Millis(600_000),
        };
        apply(&mut core, Event::Message(LINK, reserve));
    }
    assert_eq!(waiting(&core), 1);
    for serial in 2..5_000 {
        let release = ToAgent::Release { term: TERM, lease: LeaseId { term: 1, serial } };
        apply(&mut core, Event::Message(LINK, release));
    }
    assert_eq!(waiting(&core), MAX_WAITING);
    let (_, newest) = apply(&mut core, Event::Tick);
    assert!(newest > 0, "the term goes to disk first");
    let (said, _) = apply(&mut core, Event::Persisted { revision: newest });
    let reserved = Action::Send(LINK, FromAgent::Reserved { term: TERM, lease });
    assert_eq!(said.iter().filter(|action| **action == reserved).count(), 1, "answered once");
    assert_eq!(waiting(&core), 0);
}
