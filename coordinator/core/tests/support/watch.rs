//! What a world looks like to somebody who checks it: plain values, and each plan that evicts others with the state in
//! which it was made.

#![allow(dead_code, reason = "one of the tests that share this file asks")]

use std::collections::BTreeMap;

use phalanx_common::gang::{GangSpec, PodSpec};
use phalanx_common::ids::{GpuId, NodeName, PodUid, QueueName};
use phalanx_common::plan::{GangPlan, PlanPurpose};
use phalanx_common::queue::QueueSpec;
use phalanx_common::resources::Resources;
use phalanx_common::wire::ToAgent;
use phalanx_core::action::{Action, Command};
use phalanx_core::view::StateView;

use super::World;

/// What there is, as the coordinator shows it and as it is stored.
#[derive(Clone)]
pub struct Seen {
    pub view: StateView,
    pub queues: BTreeMap<QueueName, QueueSpec>,
    pub gangs: Vec<GangSpec>,
    pub pods: BTreeMap<PodUid, PodSpec>,
    /// By agent that is connected: GPUs and who holds them.
    pub held: BTreeMap<NodeName, BTreeMap<GpuId, PodUid>>,
    /// By agent: what the pods ask for that have a lease there.
    pub leased: BTreeMap<NodeName, BTreeMap<PodUid, Resources>>,
    pub connected: Vec<NodeName>,
    /// Value and whether it evicts others, by class.
    pub classes: BTreeMap<String, (i32, bool)>,
    pub now_ms: u64,
}

/// A plan that evicts others.
#[derive(Clone)]
pub struct Made {
    pub plan: GangPlan,
    pub seen: Seen,
    /// Others that were made in the same pass, before it or after it: they are told in another order.
    pub others: Vec<GangPlan>,
    /// Pods that got a place in the same pass, before it or after it.
    pub placed: Vec<PodUid>,
}

/// What was seen since somebody last asked.
#[derive(Clone, Default)]
pub struct Watch {
    pub is_on: bool,
    pub made: Vec<Made>,
    pub dropped: Vec<String>,
    /// Pods that were told to go.
    pub evicted: Vec<PodUid>,
}

/// The pod for which an agent is asked to reserve something.
fn reserved(action: &Action) -> Option<PodUid> {
    let Command::Send { message, .. } = &action.command else { return None };
    match &**message {
        ToAgent::Reserve { request, .. } => Some(request.pod.clone()),
        _ => None,
    }
}

impl World {
    pub fn seen(&self) -> Seen {
        let connected = self.agents.iter().filter(|(_, agent)| agent.connected);
        let held = self.agents.iter().map(|(node, agent)| {
            let holders = agent.leases.values().flat_map(|report| {
                report.request.gpus().into_iter().map(|gpu| (gpu, report.request.pod.clone()))
            });
            (node.clone(), holders.collect())
        });
        let leased = self.agents.iter().map(|(node, agent)| {
            let requests = agent.leases.values().map(|report| &report.request);
            (node.clone(), requests.map(|lease| (lease.pod.clone(), lease.request.effective())).collect())
        });
        Seen {
            view: self.core.view(),
            queues: self.queues.clone(),
            gangs: self.gangs.values().cloned().collect(),
            pods: self.pods.clone(),
            held: held.collect(),
            leased: leased.collect(),
            connected: connected.map(|(node, _)| node.clone()).collect(),
            classes: self
                .classes
                .values()
                .map(|class| (class.name.to_string(), (class.value, class.preempts)))
                .collect(),
            now_ms: self.now.0,
        }
    }

    /// What the coordinator keeps for gangs, and how many entries of each.
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        self.core.kept()
    }

    pub fn watch(&mut self) {
        self.watch.is_on = true;
    }

    /// What was seen since the last call.
    pub fn take_watched(&mut self) -> Watch {
        let is_on = self.watch.is_on;
        std::mem::replace(&mut self.watch, Watch { is_on, ..Watch::default() })
    }

    /// Names of all gangs that there are.
    pub fn gang_names(&self) -> Vec<String> {
        self.gangs.keys().map(|gang| gang.name.to_string()).collect()
    }

    /// Something of the gang is bound.
    pub fn is_bound(&self, gang: &str) -> bool {
        self.pods.values().any(|pod| pod.gang == super::name(gang) && pod.binding.is_some())
    }

    /// All that is asked for in one pass.
    pub(super) fn note_actions(&mut self, actions: &[Action]) {
        if !self.watch.is_on {
            return;
        }
        let made: Vec<GangPlan> = actions
            .iter()
            .filter_map(|action| match &action.command {
                Command::WritePlan(plan) if plan.purpose == PlanPurpose::MakeRoom => Some((**plan).clone()),
                _ => None,
            })
            .collect();
        let placed: Vec<PodUid> = actions.iter().filter_map(reserved).collect();
        for (at, plan) in made.iter().enumerate() {
            let others = made.iter().enumerate().filter(|(other, _)| *other != at);
            let others = others.map(|(_, other)| other.clone()).collect();
            self.watch.made.push(Made {
                plan: plan.clone(),
                seen: self.seen(),
                others,
                placed: placed.clone(),
            });
        }
        for action in actions {
            match &action.command {
                Command::Warn { message } if message.contains("are dropped") => {
                    self.watch.dropped.push(message.clone());
                }
                Command::Evict { pod, .. } => self.watch.evicted.push(pod.clone()),
                _ => {}
            }
        }
    }
}
