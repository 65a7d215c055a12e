//! The last notable changes, for those who look on: a gang's phase moved, a node came or went.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use phalanx_common::ids::GangName;
use phalanx_common::units::Time;
use phalanx_core::action::{Command, GangPhase};
use serde::Serialize;

use crate::convert::status::format_time;

/// Entries kept; older ones are forgotten.
const KEPT: usize = 1000;

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A gang, `namespace/name`.
    Gang,
    /// A pod, `namespace/name`.
    Pod,
    /// A node.
    Node,
    /// The coordinator itself.
    Coordinator,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its number, from 1.
    pub number: u64,
    /// When.
    pub at: Time,
    /// What it is about.
    pub subject: Subject,
    /// The thing's name; empty for the coordinator.
    pub object: String,
    /// What happened, one line.
    pub text: String,
}

/// The ring of entries; shared by the driver, which writes, and the admin interface.
#[derive(Debug, Default)]
pub struct Progress {
    entries: Mutex<VecDeque<Entry>>,
}

impl Progress {
    /// Adds an entry.
    pub fn add(&self, at: Time, subject: Subject, object: impl ToString, text: impl Into<String>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let number = entries.back().map_or(1, |last| last.number + 1);
        if entries.len() == KEPT {
            entries.pop_front();
        }
        entries.push_back(Entry { number, at, subject, object: object.to_string(), text: text.into() });
    }

    /// Entries with a number above `after`, oldest first.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<Entry> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().filter(|entry| entry.number > after).cloned().collect()
    }
}

/// Tells moves of gangs from the commands that write their status.
#[derive(Debug, Default)]
pub struct Narrator {
    /// Phase and reason code told last.
    told: BTreeMap<GangName, (GangPhase, Option<&'static str>)>,
    /// Stands before what is only decided, in shadow mode.
    would_be: &'static str,
}

impl Narrator {
    /// Of a coordinator that does nothing of it.
    #[must_use]
    pub fn in_shadow() -> Self {
        Self { would_be: "would be ", ..Self::default() }
    }

    /// Adds what a command means for those who look on, where it means something.
    pub fn tell(&mut self, at: Time, command: &Command, progress: &Progress) {
        match command {
            Command::SetGangStatus { gang, status, .. } => {
                let code = status.reason.as_ref().map(phalanx_core::reason::Reason::code);
                let before = self.told.insert(gang.clone(), (status.phase, code));
                if before == Some((status.phase, code)) {
                    return;
                }
                let phase = match before {
                    Some((old, _)) if old != status.phase => {
                        format!("{} -> {}", old.as_str(), status.phase.as_str())
                    }
                    _ => status.phase.as_str().to_owned(),
                };
                let why = status.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
                progress.add(at, Subject::Gang, gang, format!("{phase}{why}"));
            }
            Command::WritePlan(plan) => {
                let mut nodes: Vec<&str> = plan.pods.iter().map(|pod| pod.node.as_str()).collect();
                nodes.sort_unstable();
                nodes.dedup();
                let gpus: usize = plan.pods.iter().map(|pod| pod.gpus.len()).sum();
                let text = format!(
                    "{}committed: {} pods, {gpus} GPUs on {}",
                    self.would_be,
                    plan.pods.len(),
                    nodes.join(", ")
                );
                progress.add(at, Subject::Gang, &plan.gang, text);
            }
            Command::Evict { name, cause, .. } => {
                progress.add(at, Subject::Pod, name, format!("{}evicted: {cause}", self.would_be));
            }
            Command::AnnounceEviction { name, at: then, cause, .. } => {
                let text = format!(
                    "{}told that it will be evicted at {}: {cause}",
                    self.would_be,
                    format_time(*then)
                );
                progress.add(at, Subject::Pod, name, text);
            }
            Command::Warn { message } => progress.add(at, Subject::Coordinator, "", message.clone()),
            _ => {}
        }
    }

    /// Forgets a gang that is gone.
    pub fn forget(&mut self, gang: &GangName) {
        self.told.remove(gang);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_core::action::GangStatus;
    use phalanx_core::reason::Reason;

    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_and_counts_on() {
        let progress = Progress::default();
        for number in 0..KEPT + 5 {
            progress.add(Time(number as u64), Subject::Node, "n1", "connected");
        }
        let all = progress.after(0);
        assert_eq!((all.len(), all[0].number, all[KEPT - 1].number), (KEPT, 6, 1005));
        assert_eq!(progress.after(1003).iter().map(|entry| entry.number).collect::<Vec<_>>(), [1004, 1005]);
        assert!(progress.after(u64::MAX).is_empty());
    }

    #[test]
    fn only_moves_are_told() {
        let gang = GangName::new("default", "g");
        let (progress, mut narrator) = (Progress::default(), Narrator::default());
        let mut tell = |phase, reason: Option<Reason>, running| {
            let status = Box::new(GangStatus { phase, reason, running, succeeded: 0, failed: 0 });
            let command = Command::SetGangStatus { gang: gang.clone(), uid: Arc::from("u"), status };
            narrator.tell(Time(1), &command, &progress);
        };
        let waits = || Some(Reason::NoSuchQueue { queue: "q".into() });
        tell(GangPhase::Pending, waits(), 0);
        tell(GangPhase::Pending, waits(), 0);
        tell(GangPhase::Inqueue, None, 0);
        tell(GangPhase::Running, None, 1);
        tell(GangPhase::Running, None, 2);
        let texts: Vec<String> = progress.after(0).into_iter().map(|entry| entry.text).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(texts[0].starts_with("Pending: "), "{texts:?}");
        assert_eq!(texts[1..], ["Pending -> Inqueue", "Inqueue -> Running"]);
        narrator.forget(&gang);
        assert!(narrator.told.is_empty());
    }
}
