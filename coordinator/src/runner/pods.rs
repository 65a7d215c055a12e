//! The kubelet's part: what happens to pods that are bound.
//!
//! A pod with a lease runs where its agent says so. A pod without one (its node has no agent) is taken to run from
//! the moment its gang is wholly bound, for the time in its annotation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use phalanx_common::gang::{PodBinding, PodPhase, PodSpec};
use phalanx_common::ids::{LeaseId, NodeName, PodUid};
use phalanx_common::units::Time;

use super::Objects;
use crate::agents::PodReport;
use crate::api::store::{node_name, phase};
use crate::api::{Kind, Mutation, Object, ObjectKey, Preconditions};
use crate::convert;
use crate::convert::status::{pod_start, pod_status};

/// Reports kept of pods that are not known, and leases kept that are gone: the oldest is forgotten first.
const KEPT: usize = 65_536;

/// What an agent reported of a pod.
#[derive(Clone, Debug)]
struct Report {
    node: NodeName,
    started: bool,
    ended: Option<bool>,
    stopped: bool,
}

/// All reports that still matter.
#[derive(Debug, Default)]
pub struct PodLedger {
    reports: BTreeMap<String, Report>,
    /// UIDs by age of their first report.
    report_order: VecDeque<String>,
    gone: BTreeSet<LeaseId>,
    gone_order: VecDeque<LeaseId>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Writes, in this order.
    pub writes: Vec<Mutation>,
    /// When something is due next.
    pub next: Option<Time>,
}

impl PodLedger {
    /// Takes a report. An agent that connects keeps durable leases through every restart: a lease of a bound pod
    /// that it does not name is gone.
    pub fn report(&mut self, report: PodReport, objects: &Objects) {
        match report {
            PodReport::Connected { node, leases } => {
                let pods = objects.values().filter(|object| object.kind == Kind::Pod);
                let bindings = pods.filter_map(|object| convert::pod_of_object(object)?.binding);
                let here =
                    bindings.filter(|binding| binding.node == node).filter_map(|binding| binding.lease);
                here.filter(|lease| !leases.contains(lease)).for_each(|lease| self.lease_gone(lease));
            }
            PodReport::Started { node, pod } => self.of(&pod, node).started = true,
            PodReport::Ended { node, pod, succeeded } => self.of(&pod, node).ended = Some(succeeded),
            PodReport::Stopped { node, pod } => self.of(&pod, node).stopped = true,
            PodReport::LeaseGone { lease, .. } => self.lease_gone(lease),
        }
    }

    fn lease_gone(&mut self, lease: LeaseId) {
        if !self.gone.insert(lease) {
            return;
        }
        self.gone_order.push_back(lease);
        if self.gone_order.len() > KEPT
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    fn of(&mut self, pod: &PodUid, node: NodeName) -> &mut Report {
        let uid = pod.as_str().to_owned();
        if !self.reports.contains_key(&uid) {
            self.report_order.push_back(uid.clone());
            if self.report_order.len() > KEPT
                && let Some(oldest) = self.report_order.pop_front()
            {
                self.reports.remove(&oldest);
            }
        }
        let fresh = Report { node: node.clone(), started: false, ended: None, stopped: false };
        let report = self.reports.entry(uid).or_insert_with(|| fresh.clone());
        if report.node != node {
            // A UID is bound once: one of the two nodes is mistaken, and the API says which (see `look`).
            *report = fresh;
        }
        report
    }

    /// Forgets a pod that is gone.
    pub fn forget(&mut self, uid: &str) {
        if self.reports.remove(uid).is_some() {
            self.report_order.retain(|known| known != uid);
        }
    }

    /// What the bound pods need now.
    pub(super) fn look(&self, objects: &Objects, now: Time) -> Wanted {
        let mut wanted = Wanted::default();
        for object in objects.values().filter(|object| object.kind == Kind::Pod) {
            // Most pods need nothing, and reading one is the costly part.
            let over = phase(object).is_terminal() && object.metadata.deletion.is_none();
            if over || node_name(object).is_none() {
                continue;
            }
            let Some(pod) = convert::pod_of_object(object) else { continue };
            let Some(binding) = &pod.binding else { continue };
            match binding.lease {
                Some(lease) => wanted.writes.extend(self.with_agent(object, &pod, binding, lease, now)),
                None => without_agent(object, &pod, objects, now, &mut wanted),
            }
        }
        wanted
    }

    fn with_agent(
        &self,
        object: &Object,
        pod: &PodSpec,
        binding: &PodBinding,
        lease: LeaseId,
        now: Time,
    ) -> Option<Mutation> {
        let report = self.reports.get(&object.metadata.uid).filter(|report| report.node == binding.node);
        let ended = report.and_then(|report| report.ended);
        if pod.deleting {
            let over = pod.phase.is_terminal()
                || ended.is_some()
                || report.is_some_and(|report| report.stopped)
                || self.gone.contains(&lease);
            if over {
                return Some(Mutation::Finalize { uid: pod.uid.clone() });
            }
        }
        let phase = match ended {
            Some(true) => PodPhase::Succeeded,
            Some(false) => PodPhase::Failed,
            None if report.is_some_and(|report| report.started) => PodPhase::Running,
            None => return None,
        };
        set_phase(object, pod, phase, now)
    }
}

fn without_agent(object: &Object, pod: &PodSpec, objects: &Objects, now: Time, wanted: &mut Wanted) {
    if pod.deleting {
        wanted.writes.push(Mutation::Finalize { uid: pod.uid.clone() });
        return;
    }
    match pod.phase {
        PodPhase::Pending if gang_is_bound(pod, objects) => {
            wanted.writes.extend(set_phase(object, pod, PodPhase::Running, now));
        }
        PodPhase::Running => {
            let Some(run_for) = pod.run_for else { return };
            let end = pod_start(&object.status).unwrap_or(now) + run_for;
            if end <= now {
                wanted.writes.extend(set_phase(object, pod, PodPhase::Succeeded, now));
            } else {
                wanted.next = Some(wanted.next.map_or(end, |next| next.min(end)));
            }
        }
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed => {}
    }
}

/// The plan is written before the first pod is bound and stays until the last one is.
fn gang_is_bound(pod: &PodSpec, objects: &Objects) -> bool {
    let key = ObjectKey::new(Kind::GangPlan, &pod.gang.namespace, &pod.gang.name);
    let Some(Ok(plan)) = objects.get(&key).map(|object| convert::plan_of_object(object)) else {
        return true;
    };
    plan.pods.iter().all(|planned| {
        let key = ObjectKey::new(Kind::Pod, &pod.gang.namespace, &planned.name);
        objects
            .get(&key)
            .is_none_or(|object| object.metadata.uid != planned.pod.as_str() || node_name(object).is_some())
    })
}

/// The write that moves a pod forward; none where it is there already or past it.
fn set_phase(object: &Object, pod: &PodSpec, phase: PodPhase, now: Time) -> Option<Mutation> {
    if phase <= pod.phase || pod.phase.is_terminal() {
        return None;
    }
    Some(Mutation::UpdateStatus {
        key: object.key(),
        preconditions: Preconditions::uid(&object.metadata.uid),
        status: pod_status(&object.status, phase, now),
    })
}
