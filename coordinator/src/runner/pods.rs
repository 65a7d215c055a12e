//! The kubelet's part: what happens to pods that are bound.
//!
//! A pod with a lease runs where its agent says so. A pod without one (its node has no agent) is taken to run from
//! the moment its gang is wholly bound, for the time in its annotation.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use phalanx_common::gang::{PodBinding, PodPhase, PodSpec};
use phalanx_common::ids::{GangName, LeaseId, NodeName, PodUid};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::Time;

use super::Objects;
use crate::agents::PodReport;
use crate::api::store::{node_name, phase};
use crate::api::{Kind, Mutation, Object, ObjectKey};
use crate::convert::status::{pod_end, pod_start, pod_status};
use crate::convert::{self, Reading, plan};

/// Reports kept of pods that are not known, and leases kept that are gone: the oldest is forgotten first.
const KEPT: usize = 65_536;

/// When something was said: by which session of an agent, and as which of all reports that were read. Sessions of one
/// process are numbered in their order; the reader of one that was replaced may still hold a report.
type Said = (u64, u64);

/// What an agent reported of a pod.
#[derive(Clone, Debug)]
struct Report {
    node: NodeName,
    /// The last time.
    started: Option<Said>,
    ended: Option<bool>,
    stopped: bool,
}

/// All reports that still matter.
#[derive(Debug, Default)]
pub struct PodLedger {
    reports: BTreeMap<String, Report>,
    /// UIDs by age of their first report.
    report_order: VecDeque<String>,
    /// The last time that each was said to be gone.
    gone: BTreeMap<LeaseId, Said>,
    gone_order: VecDeque<LeaseId>,
    /// Reports read so far.
    read: u64,
    reading: Reading,
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
    /// How much is kept, by name: zero without pods, but for leases that are gone, of which a fixed number is kept.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("reports", self.reports.len().max(self.report_order.len())),
            ("gone_leases", self.gone.len().max(self.gone_order.len())),
        ]
    }

    /// Takes a report. A lease counts as gone only where its agent says so of this lease: one that a Hello does not
    /// name may have come after it, and then its pod runs.
    pub fn report(&mut self, report: PodReport) {
        self.read += 1;
        match report {
            PodReport::Started { node, session, pod } => {
                let said = Some((session, self.read));
                let report = self.of(&pod, node);
                report.started = report.started.max(said);
            }
            PodReport::Ended { node, pod, succeeded } => self.of(&pod, node).ended = Some(succeeded),
            PodReport::Stopped { node, pod } => self.of(&pod, node).stopped = true,
            PodReport::LeaseGone { session, lease, .. } => self.lease_gone(lease, (session, self.read)),
        }
    }

    fn lease_gone(&mut self, lease: LeaseId, said: Said) {
        if let Some(before) = self.gone.get_mut(&lease) {
            *before = said.max(*before);
            return;
        }
        self.gone.insert(lease, said);
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
        let fresh = Report { node: node.clone(), started: None, ended: None, stopped: false };
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
    #[must_use]
    pub fn look(&self, objects: &Objects, now: Time) -> Wanted {
        let mut wanted = Wanted::default();
        let started = OnceCell::new();
        for object in objects.values().filter(|object| object.kind == Kind::Pod) {
            // Most pods need nothing, and reading one is the costly part.
            let over = phase(object).is_terminal() && object.metadata.deletion.is_none();
            if over || node_name(object).is_none() {
                continue;
            }
            let Some(pod) = convert::pod_of_object(&self.reading, object) else { continue };
            let Some(binding) = &pod.binding else { continue };
            match binding.lease {
                Some(lease) => wanted.writes.extend(self.with_agent(object, &pod, binding, lease, now)),
                None => without_agent(object, &pod, (objects, &started, &self.reading), now, &mut wanted),
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
            let over = planted::is(Bug::FinalizeRunning)
                || pod.phase.is_terminal()
                || ended.is_some()
                || report.is_some_and(|report| report.stopped)
                || self.is_gone(lease, report);
            if over {
                return Some(Mutation::Finalize { uid: pod.uid.clone() });
            }
        }
        let phase = match ended {
            Some(true) => PodPhase::Succeeded,
            Some(false) => PodPhase::Failed,
            None if report.is_some_and(|report| report.started.is_some()) => PodPhase::Running,
            None => return None,
        };
        set_phase(object, pod, phase, now)
    }

    /// An agent that had lost its ledger may have been given the same lease again: then its pod was started later.
    fn is_gone(&self, lease: LeaseId, report: Option<&Report>) -> bool {
        let started = report.and_then(|report| report.started);
        self.gone.get(&lease).is_some_and(|gone| started.is_none_or(|started| started < *gone))
    }
}

/// Everything there is, the gangs of which something has run, once somebody has asked, and whose pods are ours.
type Known<'a> = (&'a Objects, &'a OnceCell<BTreeSet<GangName>>, &'a Reading);

fn without_agent(object: &Object, pod: &PodSpec, known: Known<'_>, now: Time, wanted: &mut Wanted) {
    if pod.deleting {
        wanted.writes.push(Mutation::Finalize { uid: pod.uid.clone() });
        return;
    }
    match pod.phase {
        PodPhase::Pending if gang_is_bound(pod, known) => {
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

/// The plan is written before the first pod is bound. It is removed when all are, or when the binding was rolled
/// back: then the pod is deleted before.
fn gang_is_bound(pod: &PodSpec, (objects, started, reading): Known<'_>) -> bool {
    let group = ObjectKey::new(Kind::PodGroup, &pod.gang.namespace, &pod.gang.name);
    // Who was bound by somebody else, which leaves neither lease nor term, never had a plan.
    if !objects.contains_key(&group)
        && pod.term > 0
        && !started.get_or_init(|| gangs_that_started(reading, objects)).contains(&pod.gang)
    {
        // Without a PodGroup its plan is removed: that there is none shows nothing.
        return false;
    }
    let is_of_another =
        |group: &Object| !pod.group_uid.is_empty() && *pod.group_uid != *group.metadata.uid.as_str();
    if objects
        .get(&group)
        .is_some_and(|group| is_of_another(group) && !is_whole(pod, group, objects, reading))
    {
        // The plan that it was bound by is that of an earlier PodGroup of this name, and is removed.
        return false;
    }
    let stored = objects.get(&plan::plan_key(reading, &pod.gang));
    let stored = stored.and_then(|object| plan::plan_in(reading, object, &pod.gang));
    !stored.is_some_and(|plan| plan.pods.iter().any(|planned| planned.pod == pod.uid))
}

/// True where the pods of a gang that were bound for an earlier PodGroup may start for the present one: others were bound
/// for this one, and nothing is planned any more, or as many are bound as must be.
fn is_whole(pod: &PodSpec, group: &Object, objects: &Objects, reading: &Reading) -> bool {
    let pods = objects.values().filter(|object| object.kind == Kind::Pod && node_name(object).is_some());
    let pods = pods.filter_map(|object| convert::pod_of_object(reading, object));
    let live =
        pods.filter(|other| other.gang == pod.gang && !other.deleting && other.phase != PodPhase::Failed);
    let minimum = group.spec.get("minMember").and_then(|minimum| minimum.as_u64()).unwrap_or(1);
    let mut bound = 0;
    for other in live {
        bound += 1;
        if bound >= minimum || *other.group_uid == *group.metadata.uid.as_str() {
            return true;
        }
    }
    false
}

/// Gangs of which a pod was let start before: each was whole then.
fn gangs_that_started(reading: &Reading, objects: &Objects) -> BTreeSet<GangName> {
    let pods = objects.values().filter(|object| object.kind == Kind::Pod && has_run(object));
    let pods = pods.filter_map(|object| convert::pod_of_object(reading, object));
    pods.filter(|pod| pod.binding.is_some()).map(|pod| pod.gang).collect()
}

/// A pod may also fail because it could not start at all; one that failed at once is taken for such.
fn has_run(pod: &Object) -> bool {
    match phase(pod) {
        PodPhase::Pending => false,
        PodPhase::Running | PodPhase::Succeeded => true,
        PodPhase::Failed => {
            let times = pod_start(&pod.status).zip(pod_end(&pod.status));
            times.is_some_and(|(start, end)| start < end)
        }
    }
}

/// The write that moves a pod forward; none where it is there already or past it.
fn set_phase(object: &Object, pod: &PodSpec, phase: PodPhase, now: Time) -> Option<Mutation> {
    if phase <= pod.phase || pod.phase.is_terminal() {
        return None;
    }
    Some(Mutation::UpdateStatus {
        key: object.key(),
        // Exactly this state: one that was replaced and does not know it yet must not undo what its successor wrote, least of
        // all that the pod has ended, whose GPUs are another's by then.
        preconditions: object.preconditions(),
        status: pod_status(&object.status, phase, now),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_common::ids::Term;
    use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
    use phalanx_common::wire::Exactness;
    use serde_json::json;

    use super::*;

    const NOW: Time = Time(1_000_000);

    fn lease(serial: u64) -> LeaseId {
        LeaseId { term: 1, serial }
    }

    /// A pod of gang `g`, bound to node `n` with this lease, or without one.
    fn bound(name: &str, lease: Option<LeaseId>, phase: &str) -> Object {
        let mut pod = Object::new(Kind::Pod, "default", name).with_spec(
            json!({ "schedulerName": "phalanx", "nodeName": "n", "containers": [{ "name": "main" }] }),
        );
        pod.metadata.uid = format!("uid-{name}");
        let binding = PodBinding { node: NodeName::from("n"), lease, gpus: Vec::new() };
        pod.metadata.annotations = convert::bind_annotations(
            &Reading::default(),
            &binding,
            Exactness::Exact,
            "",
            Term { counter: 1, incarnation: 1 },
        );
        let annotations = [("scheduling.k8s.io/group-name", "g"), ("phalanx.dev/run-for", "10s")];
        for (name, value) in annotations {
            pod.metadata.annotations.insert(name.to_owned(), value.to_owned());
        }
        pod.status = json!({ "phase": phase });
        pod
    }

    fn deleting(mut pod: Object) -> Object {
        pod.metadata.deletion = Some(NOW);
        pod
    }

    fn objects(objects: impl IntoIterator<Item = Object>) -> Objects {
        objects.into_iter().map(|object| (object.key(), Arc::new(object))).collect()
    }

    fn told(wanted: &Wanted) -> Vec<String> {
        let text = |mutation: &Mutation| match mutation {
            Mutation::UpdateStatus { key, status, .. } => {
                format!("{} {}", key.name, status["phase"].as_str().unwrap())
            }
            Mutation::Finalize { uid } => format!("finalize {uid}"),
            other => panic!("{other:?}"),
        };
        wanted.writes.iter().map(text).collect()
    }

    fn after(reports: impl IntoIterator<Item = PodReport>, pods: &Objects) -> Vec<String> {
        let mut ledger = PodLedger::default();
        reports.into_iter().for_each(|report| ledger.report(report));
        told(&ledger.look(pods, NOW))
    }

    fn started(node: &str, pod: &str) -> PodReport {
        started_in(1, node, pod)
    }

    fn started_in(session: u64, node: &str, pod: &str) -> PodReport {
        PodReport::Started { node: node.into(), session, pod: format!("uid-{pod}").into() }
    }

    fn gone_in(session: u64, serial: u64) -> PodReport {
        PodReport::LeaseGone { node: "n".into(), session, lease: lease(serial) }
    }

    fn ended(pod: &str, succeeded: bool) -> PodReport {
        PodReport::Ended { node: "n".into(), pod: format!("uid-{pod}").into(), succeeded }
    }

    #[test]
    fn an_agents_pod_does_what_its_agent_says() {
        let pods = objects([bound("a", Some(lease(1)), "Pending")]);
        assert!(after([], &pods).is_empty());
        assert_eq!(after([started("n", "a")], &pods), ["a Running"]);
        assert_eq!(after([started("n", "a"), ended("a", true)], &pods), ["a Succeeded"]);
        assert_eq!(after([ended("a", false), started("n", "a")], &pods), ["a Failed"]);
        // Another node cannot speak for it, and what is written is not written again.
        assert!(after([started("m", "a")], &pods).is_empty());
        let pods = objects([bound("a", Some(lease(1)), "Running")]);
        assert!(after([started("n", "a")], &pods).is_empty());
        assert_eq!(after([ended("a", true)], &pods), ["a Succeeded"]);
    }

    #[test]
    fn a_phase_is_written_over_the_state_that_was_seen_and_no_other() {
        let mut pod = bound("a", Some(lease(1)), "Pending");
        pod.metadata.resource_version = 7;
        let mut ledger = PodLedger::default();
        ledger.report(started("n", "a"));
        let writes = ledger.look(&objects([pod]), NOW).writes;
        let [Mutation::UpdateStatus { preconditions, .. }] = &*writes else { panic!("{writes:?}") };
        assert_eq!((preconditions.uid.as_deref(), preconditions.resource_version), (Some("uid-a"), 7));
    }

    #[test]
    fn a_deleted_pod_goes_when_nothing_of_it_runs() {
        let pods = objects([deleting(bound("a", Some(lease(1)), "Running"))]);
        assert!(after([started("n", "a")], &pods).is_empty());
        let stopped = PodReport::Stopped { node: "n".into(), pod: "uid-a".into() };
        assert_eq!(after([started("n", "a"), stopped.clone()], &pods), ["finalize uid-a"]);
        assert_eq!(after([gone_in(1, 1)], &pods), ["finalize uid-a"]);
        assert!(after([gone_in(1, 2)], &pods).is_empty());
        assert_eq!(after([ended("a", true)], &pods), ["finalize uid-a"]);
        // The report may come before the deletion.
        let mut ledger = PodLedger::default();
        let running = objects([bound("a", Some(lease(1)), "Running")]);
        ledger.report(stopped);
        assert!(ledger.look(&running, NOW).writes.is_empty());
        assert_eq!(told(&ledger.look(&pods, NOW)), ["finalize uid-a"]);
    }

    #[test]
    fn a_lease_that_its_agent_has_again_is_not_gone() {
        let pods = objects([deleting(bound("a", Some(lease(1)), "Running"))]);
        assert_eq!(after([gone_in(1, 1)], &pods), ["finalize uid-a"]);
        assert!(after([gone_in(1, 1), started("n", "a")], &pods).is_empty(), "it runs again");
    }

    #[test]
    fn what_an_older_session_said_is_not_taken_for_news() {
        let pods = objects([deleting(bound("a", Some(lease(1)), "Running"))]);
        let late = [gone_in(2, 1), started_in(1, "n", "a")];
        assert_eq!(after(late, &pods), ["finalize uid-a"], "it ran before the lease went");
        let late = [started_in(2, "n", "a"), gone_in(1, 1)];
        assert!(after(late, &pods).is_empty(), "it was started after the lease had gone");
        // Said twice, with a late one between: kept once, as the newest.
        let mut ledger = PodLedger::default();
        for report in [gone_in(2, 1), started_in(1, "n", "a"), gone_in(2, 1), gone_in(1, 1)] {
            ledger.report(report);
        }
        assert_eq!((ledger.gone.len(), ledger.gone_order.len()), (1, 1));
        assert_eq!(told(&ledger.look(&pods, NOW)), ["finalize uid-a"]);
    }

    #[test]
    fn a_forgotten_pod_leaves_nothing_behind() {
        let mut ledger = PodLedger::default();
        ledger.report(started("n", "a"));
        ledger.forget("uid-a");
        assert!(ledger.reports.is_empty() && ledger.report_order.is_empty());
        for number in 0..KEPT + 10 {
            ledger.report(started("n", &number.to_string()));
            ledger.report(gone_in(1, number as u64));
        }
        assert_eq!((ledger.reports.len(), ledger.report_order.len()), (KEPT, KEPT));
        assert_eq!((ledger.gone.len(), ledger.gone_order.len()), (KEPT, KEPT));
    }

    fn plan(pods: &[&str]) -> Object {
        let planned = |name: &&str| PlannedPod {
            pod: format!("uid-{name}").into(),
            name: Arc::from(*name),
            node: "n".into(),
            lease: None,
            gpus: Vec::new(),
        };
        let gang = GangName::new("default", "g");
        let key = plan::plan_key(&Reading::default(), &gang);
        let change = plan::PlanChange::Write(Box::new(GangPlan {
            gang,
            gang_uid: Arc::from("uid-g"),
            term: 1,
            binding_deadline: NOW,
            purpose: PlanPurpose::Bind,
            victims: Vec::new(),
            pods: pods.iter().map(planned).collect(),
        }));
        let Some(Mutation::Create(object)) = plan::decide(&key, None, &[change]).mutation else { panic!() };
        *object
    }

    #[test]
    fn without_an_agent_a_pod_starts_when_its_gang_is_bound() {
        let group = || Object::new(Kind::PodGroup, "default", "g");
        let pods = || [bound("a", None, "Pending"), bound("b", None, "Pending"), group()];
        // The core removes the plan when it has heard that all of it is bound.
        assert!(after([], &objects(pods().into_iter().chain([plan(&["a", "b"])]))).is_empty());
        assert_eq!(after([], &objects(pods())), ["a Running", "b Running"]);
        // A plan of members that join later holds up only these.
        assert_eq!(after([], &objects(pods().into_iter().chain([plan(&["b"])]))), ["a Running"]);
        // Without a PodGroup its plan is removed: without both, only a pod that runs shows that the gang was whole.
        let without_group = |phase: &str| objects([bound("a", None, "Pending"), bound("b", None, phase)]);
        assert!(after([], &without_group("Pending")).is_empty());
        assert_eq!(after([], &without_group("Running")), ["a Running"]);
        // Who was bound by somebody else never had a plan, and waits for nobody.
        let mut by_hand = bound("a", None, "Pending");
        by_hand.metadata.annotations.remove("phalanx.dev/term");
        assert_eq!(after([], &objects([by_hand])), ["a Running"]);
        // A pod that failed when it was to start shows nothing; one that ran for a while does.
        let mut failed = bound("b", None, "Failed");
        failed.status = pod_status(&json!({}), PodPhase::Failed, NOW);
        assert!(after([], &objects([bound("a", None, "Pending"), failed.clone()])).is_empty());
        failed.status = pod_status(&json!({}), PodPhase::Running, NOW);
        failed.status = pod_status(&failed.status, PodPhase::Failed, Time(NOW.0 + 1_000));
        assert_eq!(after([], &objects([bound("a", None, "Pending"), failed])), ["a Running"]);
        // They were bound for an earlier PodGroup, half of them, and it was made anew.
        let mut anew = group();
        anew.metadata.uid = "uid-g-2".to_owned();
        anew.spec = json!({ "minMember": 2 });
        let bound_for = |name: &str, uid: &str| {
            let mut pod = bound(name, None, "Pending");
            pod.metadata.annotations.insert("phalanx.dev/pod-group-uid".to_owned(), uid.to_owned());
            pod
        };
        let old = bound_for("a", "uid-g");
        assert!(after([], &objects([old.clone(), anew.clone()])).is_empty());
        let next = bound_for("b", "uid-g-2");
        assert_eq!(after([], &objects([old.clone(), next, anew.clone()])), ["a Running", "b Running"]);
        let both = [old, bound_for("b", "uid-g"), anew];
        assert_eq!(after([], &objects(both)), ["a Running", "b Running"], "as many as must be");
        let mut waiting = bound("c", None, "Pending");
        waiting.spec.as_object_mut().unwrap().remove("nodeName");
        assert!(after([], &objects([waiting])).is_empty());
    }

    #[test]
    fn without_an_agent_a_pod_ends_when_its_time_has_passed_also_after_a_restart() {
        let running = |started: u64| {
            let mut pod = bound("a", None, "Running");
            pod.status = pod_status(&json!({}), PodPhase::Running, Time(started));
            objects([pod])
        };
        let wanted = PodLedger::default().look(&running(NOW.0 - 4_000), NOW);
        assert!(wanted.writes.is_empty());
        assert_eq!(wanted.next, Some(Time(NOW.0 + 6_000)));
        assert_eq!(after([], &running(NOW.0 - 10_000)), ["a Succeeded"]);
        assert_eq!(after([], &objects([deleting(bound("a", None, "Running"))])), ["finalize uid-a"]);
    }
}
