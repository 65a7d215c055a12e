//! Recordings of the coordinators of a run, in the form in which a real one writes them: what went wrong here can
//! be looked at with `phalanx-coordinator replay`.

use std::collections::BTreeMap;

use phalanx_common::units::Time;
use phalanx_coordinator::recorder::{Header, Record};
use phalanx_core::action::Action;
use phalanx_core::event::Event;
use phalanx_core::{Core, Settings};

/// After so many passes a new part begins, so that the state that a part begins with is tried too.
const PASSES_A_PART: u32 = 40;

/// The recordings of a run, one for each process. Where nothing is to be recorded, all calls do nothing.
#[derive(Debug, Default)]
pub(crate) struct Recordings {
    is_on: bool,
    processes: BTreeMap<u64, Recording>,
}

/// What one process has done.
#[derive(Debug)]
struct Recording {
    header: Header,
    lines: Vec<u8>,
    /// Actions since the last pass.
    actions: Vec<Action>,
    passes: u32,
}

impl Recording {
    fn line(&mut self, record: &Record) {
        // Memory takes everything.
        if serde_json::to_writer(&mut self.lines, record).is_ok() {
            self.lines.push(b'\n');
        }
    }
}

impl Recordings {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, processes: BTreeMap::new() }
    }

    pub(crate) fn start(&mut self, incarnation: u64, at: Time, settings: &Settings) {
        if !self.is_on {
            return;
        }
        let header = Header::first(at, settings);
        let mut recording =
            Recording { header: header.clone(), lines: Vec::new(), actions: Vec::new(), passes: 0 };
        recording.line(&Record::Header(header));
        self.processes.insert(incarnation, recording);
    }

    /// A fact, before it is applied.
    pub(crate) fn event(&mut self, incarnation: u64, at: Time, event: &Event) {
        if let Some(recording) = self.processes.get_mut(&incarnation) {
            recording.line(&Record::Event { at, event: event.clone() });
        }
    }

    /// Actions that a fact led to.
    pub(crate) fn actions(&mut self, incarnation: u64, actions: &[Action]) {
        if let Some(recording) = self.processes.get_mut(&incarnation) {
            recording.actions.extend_from_slice(actions);
        }
    }

    /// A pass, after it was done.
    pub(crate) fn pass(&mut self, incarnation: u64, at: Time, actions: &[Action], core: &mut Core) {
        let Some(recording) = self.processes.get_mut(&incarnation) else { return };
        let mut all = std::mem::take(&mut recording.actions);
        all.extend_from_slice(actions);
        recording.line(&Record::Cycle { at, actions: all });
        recording.passes += 1;
        if recording.passes.is_multiple_of(PASSES_A_PART) {
            let header =
                Header { part: recording.header.part + 1, continues: true, ..recording.header.clone() };
            recording.header = header.clone();
            recording.line(&Record::Header(header));
            recording.line(&Record::Snapshot { at, core: Box::new(core.snapshot()) });
        }
    }

    /// All of them, one process after the other.
    pub(crate) fn text(self) -> Vec<u8> {
        self.processes.into_values().flat_map(|recording| recording.lines).collect()
    }
}
