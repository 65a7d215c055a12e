//! Connections to coordinators. One of them may lead, the others stand by; two that both claim to lead are each
//! answered on their own connection, and only the newer term is obeyed.

use std::collections::BTreeMap;

use phalanx_common::ids::Term;
use phalanx_common::topology::Inventory;
use phalanx_common::wire::{FromAgent, Hello, OLDEST_VERSION, VERSION};

use crate::action::Action;
use crate::core::Core;
use crate::event::LinkId;
use crate::inventory::difference;

/// What the coordinator at the other end knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    /// Nothing: there was no reading of the hardware to say Hello with.
    Silent,
    /// Hello was said with this inventory.
    Greeted(Box<Inventory>),
    /// It does not lead, and asks for a Hello when it does.
    Standby,
    /// Welcome came; it knows this inventory.
    Up {
        /// Version of the messages.
        version: u16,
        /// Inventory as it knows it.
        told: Box<Inventory>,
    },
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub talk: Talk,
    /// Term that people were told is not obeyed.
    pub told_stale: Option<Term>,
    /// Term that the coordinator was told is not obeyed.
    pub refused_stale: Option<Term>,
}

/// All connections.
pub(crate) type Links = BTreeMap<LinkId, Link>;

impl Core {
    pub(crate) fn link_up(&mut self, id: LinkId, actions: &mut Vec<Action>) {
        self.links.insert(id, Link { talk: Talk::Silent, told_stale: None, refused_stale: None });
        self.greet(id, actions);
    }

    /// True between a Welcome and the end of any connection.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.links.keys().any(|id| self.is_welcome(*id))
    }

    /// True where the coordinator at the other end has said Welcome.
    #[must_use]
    pub fn is_welcome(&self, id: LinkId) -> bool {
        matches!(self.links.get(&id), Some(Link { talk: Talk::Up { .. }, .. }))
    }

    /// True where the coordinator at the other end stands by.
    #[must_use]
    pub fn is_standby(&self, id: LinkId) -> bool {
        matches!(self.links.get(&id), Some(Link { talk: Talk::Standby, .. }))
    }

    /// Says Hello, as soon as there is a reading of the hardware to say it with.
    pub(crate) fn greet(&mut self, id: LinkId, actions: &mut Vec<Action>) {
        let Some(inventory) = self.inventory.clone() else { return };
        let hello = Hello {
            oldest_version: OLDEST_VERSION,
            newest_version: VERSION,
            node: self.node.clone(),
            cluster: self.cluster.clone(),
            highest_term: self.highest_term,
            inventory: inventory.clone(),
            leases: self.leases.reports(),
        };
        let Some(link) = self.links.get_mut(&id) else { return };
        link.talk = Talk::Greeted(Box::new(inventory));
        actions.push(Action::Send(id, FromAgent::Hello(hello)));
    }

    /// Says Hello where it could not be said yet, and elsewhere what changed.
    pub(crate) fn tell_reading(&mut self, actions: &mut Vec<Action>) {
        let all: Vec<LinkId> = self.links.keys().copied().collect();
        for id in all {
            match self.links.get(&id).map(|link| &link.talk) {
                Some(Talk::Silent) => self.greet(id, actions),
                Some(Talk::Up { .. }) => self.tell_inventory(id, actions),
                Some(Talk::Greeted(_) | Talk::Standby) | None => {}
            }
        }
    }

    /// Tells what changed since this coordinator was last told.
    pub(crate) fn tell_inventory(&mut self, id: LinkId, actions: &mut Vec<Action>) {
        let Some(Link { talk: Talk::Up { version, told }, .. }) = self.links.get_mut(&id) else { return };
        let Some(inventory) = &self.inventory else { return };
        if let Some(message) = difference(told, inventory, *version) {
            **told = inventory.clone();
            actions.push(Action::Send(id, message));
        }
    }

    /// Answers on this connection.
    pub(crate) fn reply(&self, id: LinkId, message: FromAgent, actions: &mut Vec<Action>) {
        if self.is_welcome(id) {
            actions.push(Action::Send(id, message));
        }
    }

    /// Tells every coordinator that has said Welcome; without one the next Hello tells.
    pub(crate) fn send(&self, message: FromAgent, actions: &mut Vec<Action>) {
        for id in self.links.keys().copied().filter(|id| self.is_welcome(*id)) {
            actions.push(Action::Send(id, message.clone()));
        }
    }
}
