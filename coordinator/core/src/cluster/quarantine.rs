//! Nodes that take no new pods for a while: since when, why, and what opens them before their time.

use std::sync::Arc;

use phalanx_common::units::Time;
use phalanx_common::wire::RefusalCause;
use serde::{Deserialize, Serialize};

use super::{Cluster, NodeIndex};

/// What ends a quarantine before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EarlyEnd {
    /// An answer: the agent was silent.
    Answer,
    /// A lease that was armed: the agent could not write its ledger.
    Disk,
    /// The end of a lease there: the agent's list is full.
    Release,
    /// Nothing: what it refuses it would refuse again.
    No,
}

/// A node takes no new pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Quarantine {
    pub(crate) until: Time,
    pub(crate) why: Arc<str>,
    pub(crate) ends_early: EarlyEnd,
}

impl Cluster {
    /// A refusal; closes the node when the budget is used up, and says so.
    pub(crate) fn count_refusal(
        &mut self,
        index: NodeIndex,
        budget: u32,
        cause: &RefusalCause,
        until: Time,
    ) -> bool {
        let node = &mut self.nodes[index.0 as usize];
        node.refusals += 1;
        if node.refusals < budget {
            return false;
        }
        let why = format!("it refused {} reservations in a row, the last one: {cause}", node.refusals);
        self.close_until(index, &why, until, EarlyEnd::No);
        true
    }

    /// Takes no new pods until then.
    pub(crate) fn close_until(&mut self, index: NodeIndex, why: &str, until: Time, ends_early: EarlyEnd) {
        self.nodes[index.0 as usize].quarantine = Some(Quarantine { until, why: Arc::from(why), ends_early });
        self.refresh(index);
    }

    /// A promise: the count of refusals in a row begins anew, and the agent is silent no more.
    pub(crate) fn note_promise(&mut self, index: NodeIndex) {
        self.nodes[index.0 as usize].refusals = 0;
        self.end_early(index, EarlyEnd::Answer);
    }

    /// Opens the node where this is what it waits for.
    pub(crate) fn end_early(&mut self, index: NodeIndex, by: EarlyEnd) {
        let node = &self.nodes[index.0 as usize];
        if node.quarantine.as_ref().is_some_and(|quarantine| quarantine.ends_early == by) {
            self.end_quarantine(index);
        }
    }

    /// Opens the node again.
    pub(crate) fn end_quarantine(&mut self, index: NodeIndex) {
        let node = &mut self.nodes[index.0 as usize];
        node.refusals = 0;
        if node.quarantine.take().is_some() {
            self.refresh(index);
        }
    }
}
