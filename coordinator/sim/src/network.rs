//! The network between coordinator and agents: connections that break, messages that are lost, late or doubled.

use phalanx_common::ids::NodeName;
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, ToAgent};

use crate::coverage::{Fault, to_agent_name};
use crate::world::{Happening, World};

/// Usual time of a message, in milliseconds.
const TRANSIT_MS: (u64, u64) = (1, 5);
/// A late message.
const LATE_MS: (u64, u64) = (50, 4_000);
/// A connection that lost something ends within this time.
const DOOMED_MS: u64 = 6_000;
/// A message that a partition would hold back longer than this is lost, and its connection ends.
const LONGEST_HELD_MS: u64 = 10_000;
/// Time until a side notices that its connection is gone.
const NOTICE_MS: u64 = 6_000;

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeName,
    /// The agent's process.
    pub(crate) life: u64,
    /// The coordinator's process.
    pub(crate) incarnation: u64,
    /// Its number at the coordinator, once Hello was taken.
    pub(crate) session: Option<u64>,
    is_broken: bool,
    /// Arrival of the newest message to each side: a stream keeps its order.
    newest: [Time; 2],
}

impl World {
    /// An agent tries to connect.
    pub(crate) fn dial(&mut self, node: &NodeName, life: u64) {
        let Some(incarnation) = self.who_answers(node) else {
            let delay = self.random.between(200, 2_000);
            self.after(delay, Happening::Dial { node: node.clone(), life });
            return;
        };
        let Some(host) = self.hosts.get_mut(node) else { return };
        if host.life != life || host.core.is_none() || host.link.is_some() {
            return;
        }
        self.connect(node, life, incarnation);
    }

    fn connect(&mut self, node: &NodeName, life: u64, incarnation: u64) {
        let number = self.next_number();
        let newest = [Time(0); 2];
        let link = Link { node: node.clone(), life, incarnation, session: None, is_broken: false, newest };
        self.links.insert(number, link);
        if let Some(host) = self.hosts.get_mut(node) {
            host.link = Some(number);
        }
        self.log.line(self.now, format_args!("{node} dials: link {number}"));
        self.apply_agent(node, phalanx_node_core::Event::LinkUp(phalanx_node_core::LinkId(number)));
    }

    /// Ends a connection; each side notices in its own time.
    pub(crate) fn break_link(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if link.is_broken {
            return;
        }
        link.is_broken = true;
        self.log.line(self.now, format_args!("link {number} breaks"));
        let agent = self.random.between(0, NOTICE_MS / 4);
        let coordinator = self.random.between(0, NOTICE_MS);
        self.after(agent, Happening::AgentNotices { link: number });
        self.after(coordinator, Happening::CoordinatorNotices { link: number });
    }

    /// A connection that lost something ends: a stream has no gaps.
    fn doom(&mut self, number: u64) {
        let delay = self.random.between(0, DOOMED_MS);
        self.after(delay, Happening::AgentNotices { link: number });
        self.after(delay + 1, Happening::CoordinatorNotices { link: number });
    }

    pub(crate) fn send_to_agent(&mut self, number: u64, message: ToAgent) {
        self.log.count(to_agent_name(&message));
        for delay in self.fates(number, 0) {
            let message = Box::new(message.clone());
            self.after(delay, Happening::ToAgent { link: number, message });
        }
    }

    pub(crate) fn send_to_coordinator(&mut self, number: u64, message: FromAgent) {
        for delay in self.fates(number, 1) {
            let message = Box::new(message.clone());
            self.after(delay, Happening::ToCoordinator { link: number, message });
        }
    }

    /// When a message arrives, if at all, and how often.
    fn fates(&mut self, number: u64, side: usize) -> Vec<u64> {
        let is_broken = self.links.get(&number).is_none_or(|link| link.is_broken);
        // What was sent before the other side noticed may still be in its buffers.
        if is_broken && !self.random.per_mille(300) {
            return Vec::new();
        }
        if self.goes_wrong(self.rates.loss) {
            self.note(Fault::MessageLost);
            self.doom(number);
            return Vec::new();
        }
        let node = self.links.get(&number).map(|link| link.node.clone());
        let cut = node.and_then(|node| self.cut_of(&node, side));
        if let Some(until) = cut {
            // What waits too long is never delivered, and its connection ends.
            let wait = (until - self.now).0;
            if wait > LONGEST_HELD_MS {
                self.doom(number);
                return Vec::new();
            }
            self.note(Fault::MessageHeldBack);
            return vec![wait + self.random.between(1, 50)];
        }
        let mut transit = self.random.between(TRANSIT_MS.0, TRANSIT_MS.1);
        if !self.faults {
            let Some(link) = self.links.get_mut(&number) else { return Vec::new() };
            let at = Time(self.now.0 + transit).max(link.newest[side]);
            link.newest[side] = at;
            return vec![at.0 - self.now.0];
        }
        if self.goes_wrong(self.rates.late) {
            self.note(Fault::MessageLate);
            transit = self.random.between(LATE_MS.0, LATE_MS.1);
        }
        if self.goes_wrong(self.rates.duplicate) {
            self.note(Fault::MessageDoubled);
            let again = self.random.between(LATE_MS.0, LATE_MS.1);
            return vec![transit, again];
        }
        vec![transit]
    }

    pub(crate) fn reach_agent(&mut self, number: u64, message: ToAgent) {
        let Some(link) = self.links.get(&number) else { return };
        let node = link.node.clone();
        let is_current =
            self.hosts.get(&node).is_some_and(|host| host.core.is_some() && host.link == Some(number));
        if !is_current {
            return;
        }
        self.log.line(self.now, format_args!("{node} <- {}", to_agent(&message)));
        self.tell_agent(&node, number, message);
    }

    /// The agent's side of a connection has ended.
    pub(crate) fn agent_notices(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.is_broken = true;
        let (node, life) = (link.node.clone(), link.life);
        let Some(host) = self.hosts.get_mut(&node) else { return };
        if host.link != Some(number) || host.life != life || host.core.is_none() {
            return;
        }
        host.link = None;
        self.log.line(self.now, format_args!("{node}: link {number} is gone"));
        self.apply_agent(&node, phalanx_node_core::Event::LinkDown(phalanx_node_core::LinkId(number)));
        let delay = self.random.between(100, 2_000);
        self.after(delay, Happening::Dial { node, life });
    }
}

/// A message in a few words.
pub(crate) fn to_agent(message: &ToAgent) -> String {
    match message {
        ToAgent::Welcome { term, .. } => format!("Welcome {term}"),
        ToAgent::Rejected { message } => format!("Rejected {message}"),
        ToAgent::Reserve { term, lease, request, .. } => {
            format!("Reserve {lease} for {} {:?} ({term})", request.pod_name.name, positions(&request.gpus()))
        }
        ToAgent::Arm { term, lease } => format!("Arm {lease} ({term})"),
        ToAgent::Bound { term, lease } => format!("Bound {lease} ({term})"),
        ToAgent::GangBound { term, lease } => format!("GangBound {lease} ({term})"),
        ToAgent::Release { term, lease } => format!("Release {lease} ({term})"),
        ToAgent::Standby { term, .. } => format!("Standby {term}"),
        ToAgent::SayHello => "SayHello".to_owned(),
    }
}

/// A message in a few words.
pub(crate) fn from_agent(message: &FromAgent) -> String {
    match message {
        FromAgent::Hello(hello) => {
            let leases: Vec<String> =
                hello.leases.iter().map(|report| format!("{} {:?}", report.lease, report.state)).collect();
            format!("Hello {} [{}]", hello.highest_term, leases.join(", "))
        }
        FromAgent::Inventory(_) => "Inventory".to_owned(),
        FromAgent::Heartbeat => "Heartbeat".to_owned(),
        FromAgent::Reserved { lease, .. } => format!("Reserved {lease}"),
        FromAgent::Refused { lease, cause, leases, .. } => {
            let leases: Vec<String> =
                leases.iter().map(|report| format!("{} {:?}", report.lease, report.state)).collect();
            format!("Refused {lease} {cause:?} [{}]", leases.join(", "))
        }
        FromAgent::LeaseIs { lease, state, .. } => format!("LeaseIs {lease} {state:?}"),
        FromAgent::PodStarted { pod } => format!("PodStarted {pod}"),
        FromAgent::PodEnded { pod, succeeded } => format!("PodEnded {pod} {succeeded}"),
        FromAgent::PodStopped { pod } => format!("PodStopped {pod}"),
        FromAgent::HealthChanged { gpus } => format!("HealthChanged {}", gpus.len()),
        FromAgent::Token(_) => "Token".to_owned(),
    }
}

/// GPUs as node and position.
pub(crate) fn positions(gpus: &[phalanx_common::ids::GpuId]) -> Vec<String> {
    gpus.iter().map(|gpu| format!("{}.{}", (gpu.0 >> 64) - 1, gpu.0 & 0xff)).collect()
}
