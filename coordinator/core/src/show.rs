//! Views of the state, for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::ids::{GangName, LeaseId};
use phalanx_common::resources::{ResourceName, Resources};
use phalanx_common::units::Time;

use crate::cluster::EarlyEnd;
use crate::cluster::Node;
use crate::core::Core;
use crate::gang::{Gang, Pod, natural};
use crate::phase::PhaseKind;
use crate::quotas::quota_texts;
use crate::reason::{Preempted, QueueHeld, Reason, clock};
use crate::status::pod_group_phase;
use crate::view::{
    Explanation, GangView, GpuView, LeaseView, NodeView, PodView, PodWithoutGang, QuotaView, ReasonView,
    StateView,
};
use crate::why::{feasible_nodes, free_amounts};

impl Core {
    /// Everything, for people.
    #[must_use]
    pub fn view(&self) -> StateView {
        let mut gangs: Vec<GangView> =
            self.gangs.gangs.values().map(|gang| self.gang_view(gang, |reason| reason)).collect();
        gangs.sort_by(|left, right| left.name.cmp(&right.name));
        let mut nodes: Vec<NodeView> = self.cluster.nodes().map(|(_, node)| self.node_view(node)).collect();
        nodes.sort_by(|left, right| left.name.cmp(&right.name));
        StateView {
            queues: self.queue_views(),
            gangs,
            nodes,
            pods_without_gang: self.pods_without_gang(),
            budgets: self.budgets.values().cloned().collect(),
            policies: self.policies.values().cloned().collect(),
        }
    }

    /// All leases, by id, those on their way out included.
    #[must_use]
    pub fn lease_views(&self) -> Vec<LeaseView> {
        let views = self.leases.leases.iter().map(|(id, lease)| LeaseView {
            lease: *id,
            node: self.cluster.node(lease.node).name.clone(),
            pod: lease.request.pod_name.clone(),
            gang: lease.gang.and_then(|key| self.gangs.gangs.get(&key)).map(|gang| gang.spec.name.clone()),
            gpus: lease.taken.gpus.clone(),
            wanted: lease.wanted,
            known: lease.known,
        });
        views.collect()
    }

    fn pods_without_gang(&self) -> Vec<PodWithoutGang> {
        let alone = self.gangs.pods_of.keys().filter(|name| self.gang_key(name).is_none());
        let pods = alone.flat_map(|name| self.gangs.pods_of(name).map(move |(_, pod)| (name, pod)));
        let view = |(name, pod): (&GangName, &Pod)| PodWithoutGang {
            namespace: name.namespace.clone(),
            group: name.name.clone(),
            pod: self.pod_view(pod),
        };
        pods.map(view).collect()
    }

    fn gang_view(&self, gang: &Gang, freshen: impl Fn(Reason) -> Reason) -> GangView {
        let mut pods: Vec<&Pod> = self.gangs.pods_of(&gang.spec.name).map(|(_, pod)| pod).collect();
        pods.sort_by(|left, right| natural(&left.spec.name.name).cmp(&natural(&right.spec.name.name)));
        let kind = gang.phase.kind();
        GangView {
            name: gang.spec.name.clone(),
            queue: gang.spec.queue.clone(),
            priority: self.priority_of(&gang.spec).unwrap_or(0),
            phase: Arc::from(kind.as_str()),
            pod_group_phase: Arc::from(pod_group_phase(gang).as_str()),
            minimum: gang.minimum(self.now),
            created: gang.spec.created,
            pods: pods.into_iter().map(|pod| self.pod_view(pod)).collect(),
            reason: self.reason_of(gang).map(|reason| self.freshen(gang.key(), freshen(reason))).map(
                |reason| ReasonView {
                    code: Arc::from(reason.code()),
                    text: reason.to_string(),
                    fix: reason.fix(),
                    reason,
                },
            ),
        }
    }

    /// Why a gang does not run.
    fn reason_of(&self, gang: &Gang) -> Option<Reason> {
        let step = |text: &str| Some(Reason::InProgress { step: Arc::from(text) });
        match gang.phase.kind() {
            PhaseKind::Queued | PhaseKind::Admitted if gang.deleted => {
                step("its PodGroup is gone; create it again, or delete its pods")
            }
            PhaseKind::Queued | PhaseKind::Admitted => {
                gang.reason.clone().or_else(|| step("it is looked at in a moment"))
            }
            PhaseKind::Reserving => step("agents are asked to reserve its GPUs"),
            PhaseKind::Committing => match gang.phase.round().map_or(0, |round| round.plan_failures) {
                0 => step("its plan is being written"),
                count => {
                    step(&format!("its plan is being written; writes without an answer so far: {count}"))
                }
            },
            PhaseKind::Arming => {
                let unarmed = gang.phase.round().into_iter().flat_map(|round| &round.unarmed);
                let nodes =
                    unarmed.filter_map(|id| Some(self.cluster.node(self.leases.leases.get(id)?.node)));
                let sick = nodes.filter_map(|node| {
                    let closed = node.quarantine.as_ref()?;
                    (closed.ends_early == EarlyEnd::Disk)
                        .then(|| format!("; node {}: {}", node.name, closed.why))
                });
                step(&format!("agents write its leases to disk{}", sick.take(1).collect::<String>()))
            }
            PhaseKind::Binding => {
                let refused = gang.phase.round().and_then(|round| round.refused.as_deref());
                step(&format!(
                    "its pods are being bound{}",
                    refused.map(|text| format!("; {text}")).unwrap_or_default()
                ))
            }
            PhaseKind::Running => self.more_wait(gang),
            PhaseKind::Finished => None,
            PhaseKind::Evicting if gang.preempted.is_some() => gang
                .preempted
                .clone()
                .map(|(by, at)| Reason::Preempted(Box::new(Preempted { by, at, cause: None }))),
            PhaseKind::Degraded if gang.is_minimum_raised() && gang.reason.is_some() => gang.reason.clone(),
            PhaseKind::Degraded if self.degraded_reason(gang).is_some() => self.degraded_reason(gang),
            PhaseKind::Degraded | PhaseKind::Evicting => match &gang.phase {
                crate::phase::Phase::Degraded { cause, .. } | crate::phase::Phase::Evicting { cause, .. } => {
                    step(cause)
                }
                _ => None,
            },
        }
    }

    /// Why more pods of a gang that runs wait. Its numbers of this moment, which change while nobody tries those again.
    fn more_wait(&self, gang: &Gang) -> Option<Reason> {
        let mut reason = gang.reason.clone()?;
        let Reason::MorePodsWait { met, .. } = &mut reason else { return None };
        let tally = self.gangs.tally(&gang.spec.name);
        *met = (!gang.is_made_up()).then(|| (tally.live + tally.succeeded, gang.minimum(self.now)));
        Some(reason)
    }

    fn pod_view(&self, pod: &Pod) -> PodView {
        let lease = pod.lease.and_then(|id| self.leases.leases.get(&id));
        let binding = pod.spec.binding.as_ref();
        let node = lease.map(|lease| self.cluster.node(lease.node));
        let gpus = lease.map_or_else(
            || binding.map_or_else(Vec::new, |binding| binding.gpus.clone()),
            |lease| lease.taken.gpus.clone(),
        );
        let name = binding.map(|binding| binding.node.clone()).or_else(|| node.map(|node| node.name.clone()));
        let at = node.or_else(|| Some(self.cluster.node(self.cluster.find(name.as_ref()?)?)));
        let link_class = at.and_then(|node| {
            let positions: Option<Vec<usize>> = gpus.iter().map(|gpu| node.position(*gpu)).collect();
            let positions = positions.filter(|positions| !positions.is_empty())?;
            Some(node.agent.as_ref()?.inventory.link_class(&positions))
        });
        PodView {
            name: pod.spec.name.name.clone(),
            uid: pod.spec.uid.clone(),
            task: pod.spec.task.clone(),
            phase: Arc::from(if pod.spec.deleting { "Terminating" } else { pod.spec.phase.as_str() }),
            request: self.cluster.resources.resources(&pod.need.amounts),
            node: name,
            lease: lease.filter(|lease| !lease.local).map(|lease| lease.taken.lease),
            gpus,
            link_class,
        }
    }

    fn node_view(&self, node: &Node) -> NodeView {
        let holder = |lease: &Option<LeaseId>| {
            let lease = lease.and_then(|id| self.leases.leases.get(&id))?;
            Some(lease.request.pod_name.clone())
        };
        let open = if node.agent.is_some() { "ready" } else { "no-agent" };
        let state = node.closed().map_or_else(|| Arc::from(open), |closed| Arc::from(closed.to_string()));
        let gpus = node.agent.iter().flat_map(|agent| agent.inventory.gpus.iter().zip(&agent.holders));
        let mut free = self.cluster.resources.resources(&free_amounts(node));
        free.subtract(&Resources::new().with(ResourceName::known("pods"), node.used.pods));
        NodeView {
            name: node.name.clone(),
            state,
            capacity: self.cluster.resources.resources(&node.capacity),
            free,
            gpus: gpus
                .map(|(gpu, lease)| GpuView {
                    id: gpu.id,
                    index: gpu.index,
                    model: Arc::from(gpu.model.as_str()),
                    health: gpu.health.clone(),
                    holder: holder(lease),
                })
                .collect(),
            refusals: node.refusals,
            other_pods: self.cluster.find(&node.name).map_or(0, |node| self.others.on(node).count()),
        }
    }

    /// The time to which answers refer: where nothing happens the last event is long ago. Nothing is decided by it, because
    /// every event and every cycle brings its own.
    pub fn asked_at(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Why a gang does not run; `None` where it is not known.
    #[must_use]
    pub fn explain(&self, name: &GangName) -> Option<Explanation> {
        let gang = self.gangs.gangs.get(&self.gang_key(name)?)?;
        let view = self.gang_view(gang, |reason| self.as_of_now(gang.key(), reason));
        let quota = self.quota_views(gang);
        let needs: BTreeMap<_, _> = self
            .gangs
            .pods_of(name)
            .filter(|(_, pod)| pod.may_be_placed())
            .map(|(_, pod)| (pod.need.clone(), ()))
            .collect();
        let feasible = needs.keys().map(|need| feasible_nodes(&self.cluster, need)).min().unwrap_or(0);
        let nodes = u32::try_from(self.cluster.nodes().count()).unwrap_or(u32::MAX);
        let mut lines = explain_lines(&view, &quota, (!needs.is_empty()).then_some(feasible), nodes);
        lines.extend(self.ahead_line(gang));
        lines.extend(self.time_lines(gang));
        // One that cannot start as things are has no turn.
        let is_lasting = gang.reason.as_ref().is_some_and(Reason::is_lasting);
        let position = self.position(gang).filter(|_| !is_lasting);
        let expected_start = self.expected_start(gang.key());
        if let Some(position) = position {
            let expected = expected_start.map(|at| format!("; expected to start by {}", clock(at)));
            lines.push(format!(
                "position: {position} in queue {}{}",
                gang.spec.queue,
                expected.unwrap_or_default()
            ));
        }
        Some(Explanation {
            gang: view,
            quota,
            feasible_nodes: feasible,
            nodes,
            position,
            expected_start,
            lines,
        })
    }

    /// Its place among the gangs of its queue that wait.
    fn position(&self, gang: &Gang) -> Option<u32> {
        let waits = |gang: &&Gang| {
            matches!(gang.phase.kind(), PhaseKind::Queued | PhaseKind::Admitted) && !gang.deleted
        };
        Some(gang).filter(waits)?;
        let others = self.gangs.gangs.values().filter(waits);
        let before =
            others.filter(|other| other.spec.queue == gang.spec.queue && other.order.precedes(&gang.order));
        Some(u32::try_from(before.count()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Gangs that wait for the quota of the same queue and are served first.
    fn ahead_line(&self, gang: &Gang) -> Option<String> {
        if !matches!(gang.reason, Some(Reason::QuotaUsed { .. })) {
            return None;
        }
        let waiting = &self.queues.get(&gang.spec.queue)?.waiting;
        let ahead = waiting.range(..gang.order).filter_map(|(_, key)| self.gangs.gangs.get(key));
        let ahead = ahead.filter(|other| matches!(other.reason, Some(Reason::QuotaUsed { .. })));
        match ahead.count() {
            0 => None,
            1 => Some("ahead of it: 1 gang of its queue waits for quota too and is served first".to_owned()),
            count => Some(format!(
                "ahead of it: {count} gangs of its queue wait for quota too and are served first"
            )),
        }
    }
}

fn explain_lines(view: &GangView, quota: &[QuotaView], feasible: Option<u32>, nodes: u32) -> Vec<String> {
    let mut lines = Vec::new();
    let limited = quota_texts(quota);
    let text = if quota.is_empty() && view.reason.is_none() {
        "it asks for nothing more".to_owned()
    } else if limited.is_empty() {
        "no limit on what it asks for".to_owned()
    } else {
        limited.join(", ")
    };
    let text = match view.reason.as_ref().map(|view| &view.reason) {
        Some(Reason::NoSuchQueue { .. }) => "there is no such queue".to_owned(),
        Some(Reason::Queue(held)) if matches!(**held, QueueHeld::SetAside { .. }) => {
            "none, since it is set aside".to_owned()
        }
        _ => text,
    };
    lines.push(format!("quota of queue {}: {text}", view.queue));
    if let Some(feasible) = feasible {
        lines.push(format!("feasible nodes: {feasible} of {nodes} have room now for one more of its pods"));
    }
    let running = view.pods.iter().filter(|pod| &*pod.phase == "Running").count();
    lines.push(format!(
        "phase: {} ({}), {running} of {} pods running",
        view.pod_group_phase,
        view.phase,
        view.pods.len()
    ));
    if let Some(reason) = &view.reason {
        lines.push(format!("reason: {}", reason.text));
        if !reason.fix.is_empty() {
            lines.push(format!("fix: {}", reason.fix));
        }
    }
    lines
}
