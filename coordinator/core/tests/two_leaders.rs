//! Two machines that live at once and the agents between them, which go from one to the other in any order: the terms
//! are raised a bounded number of times, and exactly one of the two remains.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use phalanx_common::ids::{NodeName, Term};
use phalanx_common::topology::Inventory;
use phalanx_common::units::Time;
use phalanx_common::wire::Hello;
use phalanx_core::action::Command;
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

const AGENTS: usize = 5;

/// A coordinator with a store of its own: a copy of the other one's.
struct Leader {
    core: Core,
    sessions: u64,
    raises: usize,
    warnings: usize,
}

impl Leader {
    fn start(incarnation: u64) -> Self {
        let mut core = Core::new(Settings::default());
        let term = Term { counter: 6, incarnation };
        core.apply(Event::Started { term }, Time(0), &mut Vec::new());
        core.apply(Event::Synced, Time(0), &mut Vec::new());
        Self { core, sessions: 0, raises: 0, warnings: 0 }
    }

    /// An agent dials; gives the term that it knows then.
    fn meet(&mut self, node: usize, highest: Term) -> Term {
        self.sessions += 1;
        let hello = Hello {
            oldest_version: 1,
            newest_version: 2,
            node: NodeName::from(format!("n{node}")),
            cluster: None,
            highest_term: highest,
            inventory: Inventory::empty(1000, 1 << 30),
            leases: Vec::new(),
        };
        let mut actions = Vec::new();
        let event = Event::AgentConnected { session: self.sessions, hello: Box::new(hello) };
        self.core.apply(event, Time(self.sessions), &mut actions);
        self.core.cycle(Time(self.sessions), &mut actions);
        for action in actions {
            match action.command {
                Command::RaiseTerm { above } => {
                    self.raises += 1;
                    let own = self.core.term();
                    let term = Term { counter: above.max(own.counter) + 1, ..own };
                    self.core.apply(Event::TermRaised { term }, Time(self.sessions), &mut Vec::new());
                }
                Command::Warn { .. } => self.warnings += 1,
                _ => {}
            }
        }
        if self.core.overtaken().is_none() { highest.max(self.core.term()) } else { highest }
    }
}

/// Plays one order of meetings; true where one of the two gave way.
fn play(seed: u64) -> bool {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let mut leaders = [Leader::start(111), Leader::start(222)];
    let mut known = [Term::default(); AGENTS];
    for _ in 0..200 {
        let (agent, leader) = (random(AGENTS), random(2));
        known[agent] = leaders[leader].meet(agent, known[agent]);
        let gone: Vec<bool> = leaders.iter().map(|leader| leader.core.overtaken().is_some()).collect();
        assert_ne!(gone, [true, true], "seed {seed}: nobody leads");
    }
    for leader in &leaders {
        // Each raise is for an agent that was not met before under a lower term.
        assert!(leader.raises <= AGENTS, "seed {seed}: raised {} times", leader.raises);
        let gone = leader.core.overtaken().is_some();
        assert_eq!(leader.warnings, usize::from(gone), "seed {seed}: it is said once");
    }
    leaders.iter().any(|leader| leader.core.overtaken().is_some())
}

#[test]
fn one_of_two_coordinators_gives_way_whatever_the_order_of_meetings() {
    for seed in 1..=300 {
        assert!(play(seed), "seed {seed}: both still lead");
    }
}
