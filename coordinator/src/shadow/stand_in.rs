//! Stands for the writer and for all agents: takes every action, does none of them, and answers as if each were done.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::{GangName, NodeName, PodUid, Term};
use phalanx_common::topology::Inventory;
use phalanx_common::wire::FromAgent;
use phalanx_core::action::{Action, Command};
use phalanx_core::event::{Event, NodeSpec, Outcome};
use tokio::sync::mpsc;

use super::Comparison;
use super::agents;
use crate::api::{Api, Change, ChangeBody, Kind, Object, ObjectKey};
use crate::clock::Clock;
use crate::convert::{self, binding_of_pod};
use crate::metrics::command_name;
use crate::watch::Watcher;
use crate::writer::pod_read;

/// What it works with.
pub(super) struct Parts<A> {
    pub(super) api: A,
    pub(super) watcher: Watcher<A>,
    pub(super) incarnation: u64,
    pub(super) actions: mpsc::Receiver<Action>,
    pub(super) outcomes: mpsc::Sender<Event>,
    pub(super) clock: Clock,
    pub(super) compared: Arc<Comparison>,
}

/// Answers until the loop is gone.
pub(super) async fn run<A: Api>(parts: Parts<A>, listed: Vec<Arc<Object>>) {
    let Parts { api, mut watcher, incarnation, mut actions, outcomes, clock, compared } = parts;
    let mut stand_in =
        StandIn { api, incarnation, outcomes, clock, compared, nodes: BTreeMap::new(), sessions: 0 };
    for object in &listed {
        stand_in.object(object, true).await;
    }
    drop(listed);
    loop {
        tokio::select! {
            action = actions.recv() => match action {
                Some(action) => stand_in.action(action).await,
                None => return,
            },
            changes = watcher.next() => {
                let Some(changes) = changes else { return };
                for change in &changes {
                    stand_in.change(change).await;
                }
            }
        }
    }
}

struct StandIn<A> {
    api: A,
    incarnation: u64,
    outcomes: mpsc::Sender<Event>,
    clock: Clock,
    compared: Arc<Comparison>,
    /// Nodes whose agent is there, with the number of its connection and what it has.
    nodes: BTreeMap<NodeName, (u64, Inventory)>,
    sessions: u64,
}

impl<A: Api> StandIn<A> {
    async fn tell(&self, event: Event) {
        // The loop is gone when the process ends: then nobody needs the answer.
        let _ = self.outcomes.send(event).await;
    }

    async fn action(&mut self, Action { id, command }: Action) {
        let (command_name, now) = (command_name(&command), self.clock.now());
        let event = match command {
            Command::Send { node, session, message } => {
                let answer = agents::answer(&message).filter(|_| self.is_there(&node, session));
                let Some(message) = answer else { return };
                return self.tell(Event::AgentSaid { node, session, message }).await;
            }
            Command::RaiseTerm { above } => {
                let term = Term { counter: above.saturating_add(1), incarnation: self.incarnation };
                Event::TermRaised { term }
            }
            Command::ReadPod { pod, name } | Command::FenceWrite { pod, name, .. } => {
                let key = ObjectKey::new(Kind::Pod, &name.namespace, &name.name);
                pod_read(&self.api.reading(), id, &pod, self.api.glance(&key).await)
            }
            Command::Bind { pod, name, binding, .. } => {
                self.compared.decided(&pod, &name, &binding.node, now);
                Event::ActionDone { action: id, outcome: Outcome::Done }
            }
            Command::Evict { pod, name, cause } => {
                self.compared.evicted(&pod, &name, &cause, now);
                Event::ActionDone { action: id, outcome: Outcome::Done }
            }
            Command::WritePlan(_)
            | Command::DeletePlan { .. }
            | Command::SetGangStatus { .. }
            | Command::SetQueueStatus { .. }
            | Command::AnnounceEviction { .. } => Event::ActionDone { action: id, outcome: Outcome::Done },
            Command::Warn { .. } | Command::RecordPromise { .. } => return,
        };
        tracing::debug!(command = command_name, "noted, and not done");
        self.tell(event).await;
    }

    fn is_there(&self, node: &NodeName, session: u64) -> bool {
        self.nodes.get(node).is_some_and(|(current, _)| *current == session)
    }

    async fn change(&mut self, change: &Change) {
        match &change.body {
            ChangeBody::Applied(object) => self.object(object, false).await,
            ChangeBody::Deleted { key, uid } => match key.kind {
                Kind::Pod => self.compared.gone(&PodUid::from(uid.as_str())),
                Kind::Node => self.node_gone(&NodeName::from(key.name.as_str())).await,
                _ => {}
            },
        }
    }

    async fn object(&mut self, object: &Object, is_first: bool) {
        match object.kind {
            Kind::Pod => self.pod(object, is_first),
            Kind::Node => {
                if let Some(Event::NodeApplied(node)) =
                    convert::event_of_object(&self.api.reading(), object).event
                {
                    self.node(&node).await;
                }
            }
            _ => {}
        }
    }

    fn pod(&self, object: &Object, is_first: bool) {
        if !self.api.reading().is_ours(object) {
            return;
        }
        let metadata = &object.metadata;
        let uid = PodUid::from(metadata.uid.as_str());
        let name = GangName::new(&metadata.namespace, &metadata.name);
        match binding_of_pod(object).0 {
            Some(_) if is_first => self.compared.ran_before(&uid, &name),
            Some(binding) => self.compared.placed(&uid, &name, &binding.node, self.clock.now()),
            None if is_terminal(object) => self.compared.gone(&uid),
            None => {}
        }
    }

    async fn node(&mut self, node: &NodeSpec) {
        let inventory = agents::inventory(node);
        if let Some((session, before)) = self.nodes.get_mut(&node.name) {
            if *before == inventory {
                return;
            }
            *before = inventory.clone();
            let message = Box::new(FromAgent::Inventory(inventory));
            let event = Event::AgentSaid { node: node.name.clone(), session: *session, message };
            return self.tell(event).await;
        }
        self.sessions += 1;
        let session = self.sessions;
        self.nodes.insert(node.name.clone(), (session, inventory));
        let hello = agents::hello(node, &self.api.cluster_id());
        self.tell(Event::AgentConnected { session, hello }).await;
    }

    async fn node_gone(&mut self, name: &NodeName) {
        if let Some((session, _)) = self.nodes.remove(name) {
            self.tell(Event::AgentGone { node: name.clone(), session }).await;
        }
    }
}

/// It ended without having been placed, as one that was refused does.
fn is_terminal(pod: &Object) -> bool {
    matches!(pod.status.get("phase").and_then(|phase| phase.as_str()), Some("Succeeded" | "Failed"))
}
