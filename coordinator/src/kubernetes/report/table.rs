//! Which reports are due. Pure: objects go in, reports come out.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_common::units::{Millis, Time};
use serde_json::Value;

use super::super::events::Happening;
use super::notice::Notices;
use super::set_aside::SetAside;
use super::shown::{MORE_WAIT, NOT_FOR_NODES, Shown, code_of};
use crate::api::store::node_name;
use crate::api::{Kind, Object, ObjectKey, Preconditions};
use crate::convert::Reading;
use crate::jobs::is_bare;
use crate::manifest::names::GROUP_NAME;

/// A cause is reported when it has stood for so long.
const STANDS: Millis = Millis(2_000);
/// Pods above the minimum of a gang that runs are told of later: they are bound right after it, where there is room.
const MORE_STANDS: Millis = Millis(10_000);
/// A text whose cause is the same is written anew at most so often.
const REFRESH: Millis = Millis(600_000);
/// One event of a cause for each gang in so long, however often it comes back.
const EVENT_AGAIN: Millis = Millis(300_000);
/// Happenings that wait to be told; the oldest is left out.
const MOST_HAPPENINGS: usize = 1024;
/// Causes of one gang that are remembered.
const MOST_CAUSES: usize = 16;

/// Reasons of the events of gangs.
const UNSCHEDULABLE: &str = "Unschedulable";
const SCHEDULED: &str = "Scheduled";

/// A condition to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The pod.
    pub key: ObjectKey,
    /// The pod as it was seen: it may have been bound meanwhile.
    pub preconditions: Preconditions,
    /// The condition.
    pub condition: Shown,
    /// The pod's gang.
    pub group: ObjectKey,
    /// Told when the condition is written.
    pub event: Option<Happening>,
}

/// Something to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A pod's condition.
    Condition(Condition),
    /// An event.
    Event(Happening),
}

#[derive(Debug)]
struct Group {
    uid: String,
    phase: String,
    /// Message of the condition Unschedulable, where it is True.
    waits: Option<String>,
    /// It has the condition Scheduled.
    is_scheduled: bool,
    /// Since when the cause is this one.
    since: Time,
    /// The event of the present cause is told.
    is_told: bool,
    /// When an event of a cause was told last.
    told: BTreeMap<String, Time>,
    /// How long a cause must stand.
    stands: Millis,
    /// The job that it was made for, and its UID.
    job: Option<(ObjectKey, String)>,
}

impl Group {
    fn new(object: &Object, now: Time) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = object.status.get("conditions").and_then(Value::as_array);
        let with = |kind: &str| {
            let mut all = conditions.into_iter().flatten();
            all.find(|condition| condition["type"] == kind && condition["status"] == "True")
        };
        let owner = object.metadata.owner.as_ref();
        Self {
            uid: object.metadata.uid.clone(),
            phase: text(&object.status["phase"]),
            waits: with("Unschedulable").map(|condition| text(&condition["message"])),
            is_scheduled: with("Scheduled").is_some(),
            since: now,
            is_told: false,
            told: BTreeMap::new(),
            // A lone pod has waited before its PodGroup is made, and so do those that read of it.
            stands: if owner.is_some_and(|owner| owner.kind == Kind::Pod) { Millis(0) } else { STANDS },
            job: owner.filter(|owner| owner.kind == Kind::Job).map(|owner| {
                (ObjectKey::new(Kind::Job, &object.metadata.namespace, &owner.name), owner.uid.clone())
            }),
        }
    }

    fn is_admitted(&self) -> bool {
        !matches!(self.phase.as_str(), "" | "Pending")
    }

    /// What its unbound pods should show; `None` where there is nothing to say.
    fn shown(&self) -> Option<Shown> {
        let Some(message) = &self.waits else {
            return (self.phase == "Running").then(|| Shown::waiting(MORE_WAIT));
        };
        let reason = match code_of(message) {
            _ if !self.is_admitted() => "WaitingForAdmission",
            codes if codes.split('/').any(|code| NOT_FOR_NODES.contains(&code)) => "WaitingForGang",
            _ => "Unschedulable",
        };
        Some(Shown { reason: reason.to_owned(), message: message.clone() })
    }

    /// How long its pods must have waited before something is written to them.
    fn pods_stand(&self) -> Millis {
        if self.waits.is_none() { MORE_STANDS } else { self.stands }
    }

    /// What must change before anything is told anew.
    fn cause(&self) -> (bool, bool, Option<&str>) {
        (self.is_admitted(), self.is_scheduled, self.waits.as_deref().map(code_of))
    }

    /// The event of the present cause, in a word for the memory and the event's own.
    fn happening(&self, key: &ObjectKey) -> Option<(String, Happening)> {
        let (cause, is_warning, reason, action, note) = match &self.waits {
            Some(message) => (code_of(message), true, UNSCHEDULABLE, "Scheduling", message.clone()),
            None if self.is_scheduled => {
                let note = "all pods of the gang's minimum are bound".to_owned();
                (SCHEDULED, false, SCHEDULED, "Binding", note)
            }
            None => return None,
        };
        let (key, uid) = (key.clone(), self.uid.clone());
        Some((cause.to_owned(), Happening { key, uid, is_warning, reason, action, note }))
    }
}

#[derive(Debug)]
struct Pod {
    preconditions: Preconditions,
    group: ObjectKey,
    shown: Option<Shown>,
    /// When it was first seen.
    since: Time,
    /// When its condition was last written by us; 0 where that is not known.
    written: Time,
    /// When an event was told of it last; 0 = never.
    told: Time,
    /// Its PodGroup is not one that is made for it.
    names_group: bool,
}

/// Gangs, their unbound pods, and what is due when.
#[derive(Debug)]
pub struct Table {
    reading: Reading,
    groups: BTreeMap<ObjectKey, Group>,
    pods: BTreeMap<ObjectKey, Pod>,
    pods_of: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    due: BTreeSet<(Time, ObjectKey)>,
    /// What is to be told, and not before when.
    happenings: Vec<(Time, Happening)>,
    notices: Notices,
    queues: SetAside,
}

impl Table {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(reading: Reading) -> Self {
        let (groups, pods, pods_of) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (happenings, notices, queues) = (Vec::new(), Notices::default(), SetAside::default());
        Self { reading, groups, pods, pods_of, due: BTreeSet::new(), happenings, notices, queues }
    }

    /// An object that was there before: its cause was told by whoever led then.
    pub fn known(&mut self, object: &Object, now: Time) {
        self.take(object, now, true);
        if let Some(group) = self.groups.get_mut(&object.key()) {
            group.is_told = true;
        }
    }

    /// An object is there, or changed.
    pub fn applied(&mut self, object: &Object, now: Time) {
        self.take(object, now, false);
    }

    fn take(&mut self, object: &Object, now: Time, before: bool) {
        for happening in self.notices.applied(&self.reading, object, before) {
            self.happened(happening);
        }
        match object.kind {
            Kind::Queue => self.queues.applied(&self.reading, object),
            Kind::PodGroup => self.group_applied(object, now),
            Kind::Pod => self.pod_applied(object, now),
            _ => {}
        }
    }

    fn group_applied(&mut self, object: &Object, now: Time) {
        let key = object.key();
        let mut group = Group::new(object, now);
        if let Some(before) = self.groups.get_mut(&key).filter(|before| before.uid == group.uid) {
            group.told = std::mem::take(&mut before.told);
            if before.cause() == group.cause() {
                (group.since, group.is_told) = (before.since, before.is_told);
                if before.waits == group.waits {
                    self.groups.insert(key, group);
                    return;
                }
            }
        }
        self.due.insert((group.since + group.stands, key.clone()));
        self.groups.insert(key, group);
    }

    fn pod_applied(&mut self, object: &Object, now: Time) {
        let key = object.key();
        let group = object.annotation(GROUP_NAME).filter(|_| self.is_reported(object));
        let Some(group) = group.map(|name| ObjectKey::new(Kind::PodGroup, &key.namespace, name)) else {
            self.pod_gone(&key);
            return;
        };
        let conditions = object.status.get("conditions").and_then(Value::as_array).into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut own = conditions.filter(|condition| condition["type"] == "PodScheduled");
        let shown = own.next().filter(|condition| condition["status"] == "False").map(|condition| Shown {
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
        });
        let preconditions = object.preconditions();
        let before = self
            .pods
            .get(&key)
            .filter(|before| before.preconditions.uid == preconditions.uid && before.group == group);
        let (since, written, told) =
            before.map_or((now, Time(0), Time(0)), |before| (before.since, before.written, before.told));
        if before.is_none() {
            self.pod_gone(&key);
        }
        let (since_of_group, stands) =
            self.groups.get(&group).map_or((since, STANDS), |group| (group.since, group.pods_stand()));
        self.due.insert((since.max(since_of_group) + stands, group.clone()));
        let names_group = !is_bare(&self.reading, object);
        self.pods_of.entry(group.clone()).or_default().insert(key.clone());
        self.pods.insert(key, Pod { preconditions, group, shown, since, written, told, names_group });
    }

    /// True for a pod of ours that waits for a node. What a gate holds back says so by itself.
    fn is_reported(&self, pod: &Object) -> bool {
        let is_gated =
            pod.spec.get("schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty());
        let is_pending = pod.status.get("phase").is_none_or(|phase| phase == "Pending");
        self.reading.is_ours(pod)
            && node_name(pod).is_none()
            && pod.metadata.deletion.is_none()
            && is_pending
            && !is_gated
    }

    /// An object is gone.
    pub fn deleted(&mut self, key: &ObjectKey) {
        self.groups.remove(key);
        self.notices.deleted(key);
        self.queues.deleted(key);
        self.pod_gone(key);
    }

    /// A pod is gone, or waits for nothing any more.
    fn pod_gone(&mut self, key: &ObjectKey) {
        let Some(pod) = self.pods.remove(key) else { return };
        if let Some(pods) = self.pods_of.get_mut(&pod.group) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods_of.remove(&pod.group);
            }
        }
    }

    /// Something to be told as soon as there is time.
    pub fn happened(&mut self, happening: Happening) {
        self.tell(happening, Time(0));
    }

    fn tell(&mut self, happening: Happening, at: Time) {
        if self.happenings.len() >= MOST_HAPPENINGS {
            self.happenings.remove(0);
        }
        self.happenings.push((at, happening));
    }

    /// What is due, about `most` of it.
    pub fn due(&mut self, now: Time, most: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        self.queues.due(now).into_iter().for_each(|happening| self.happened(happening));
        let groups = &self.groups;
        self.happenings.retain(|(at, happening)| {
            let is_due = *at <= now && reports.len() < most;
            if is_due && is_true_still(groups, happening) {
                reports.push(Report::Event(happening.clone()));
            }
            !is_due
        });
        while reports.len() < most {
            let Some((time, key)) = self.due.first().cloned().filter(|(time, _)| *time <= now) else { break };
            self.due.remove(&(time, key.clone()));
            self.event_due(&key, now, &mut reports);
            self.conditions_due(&key, now, most, &mut reports);
        }
        reports
    }

    fn event_due(&mut self, key: &ObjectKey, now: Time, reports: &mut Vec<Report>) {
        let Some(group) = self.groups.get_mut(key).filter(|group| !group.is_told) else { return };
        let Some((cause, happening)) = group.happening(key) else { return };
        let at = group.since + group.stands;
        if at > now {
            self.due.insert((at, key.clone()));
            return;
        }
        group.is_told = true;
        group.told.retain(|_, told| *told + EVENT_AGAIN > now);
        if !group.told.contains_key(&cause) && group.told.len() < MOST_CAUSES {
            group.told.insert(cause, now);
            if let Some((key, uid)) = group.job.clone().filter(|_| happening.is_warning) {
                reports.push(Report::Event(Happening { key, uid, ..happening.clone() }));
            }
            reports.push(Report::Event(happening));
        }
    }

    fn conditions_due(&mut self, group_key: &ObjectKey, now: Time, most: usize, reports: &mut Vec<Report>) {
        let group = self.groups.get(group_key);
        let shown = group.map_or_else(|| Some(Shown::without_group(group_key)), Group::shown);
        let Some(wanted) = shown else { return };
        let (since_of_group, stands) =
            group.map_or((Time(0), STANDS), |group| (group.since, group.pods_stand()));
        for key in self.pods_of.get(group_key).into_iter().flatten() {
            let pod = self.pods.get_mut(key).filter(|pod| group.is_some() || pod.names_group);
            let Some(pod) = pod else { continue };
            let is_new = pod.shown.as_ref().is_none_or(|shown| shown.cause() != wanted.cause());
            let at = match &pod.shown {
                Some(shown) if *shown == wanted => continue,
                Some(shown) if shown.cause() == wanted.cause() => {
                    // Who led before may have written it just now.
                    let written = if pod.written == Time(0) { pod.since } else { pod.written };
                    written + REFRESH
                }
                _ => since_of_group.max(pod.since) + stands,
            };
            if at > now {
                self.due.insert((at, group_key.clone()));
            } else if reports.len() >= most {
                self.due.insert((now, group_key.clone()));
                return;
            } else {
                pod.written = now;
                let is_told = !is_new || pod.told != Time(0) && pod.told + EVENT_AGAIN > now;
                let event = (!is_told).then(|| wanted.event(key, &pod.preconditions));
                if event.is_some() {
                    pod.told = now;
                }
                // As if it were written: the change that the write makes says the same.
                pod.shown = Some(wanted.clone());
                reports.push(Report::Condition(Condition {
                    key: key.clone(),
                    preconditions: pod.preconditions.clone(),
                    condition: wanted.clone(),
                    group: group_key.clone(),
                    event,
                }));
            }
        }
    }

    /// A report was not written: it is tried again then.
    pub fn again(&mut self, report: Report, at: Time) {
        match report {
            Report::Condition(Condition { key, group, event, .. }) => {
                if let Some(pod) = self.pods.get_mut(&key) {
                    pod.shown = None;
                    if event.is_some() {
                        pod.told = Time(0);
                    }
                }
                self.due.insert((at, group));
            }
            Report::Event(happening) => self.tell(happening, at),
        }
    }

    /// When the next one is due.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let happenings = self.happenings.iter().map(|(time, _)| *time);
        happenings.chain(self.due.first().map(|(time, _)| *time)).chain(self.queues.next()).min()
    }
}

/// A gang that has started meanwhile is not said to wait, and the other way about.
fn is_true_still(groups: &BTreeMap<ObjectKey, Group>, happening: &Happening) -> bool {
    let waits = match happening.reason {
        UNSCHEDULABLE => true,
        SCHEDULED => false,
        _ => return true,
    };
    groups.get(&happening.key).is_none_or(|group| group.waits.is_some() == waits)
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "table/wrong_tests.rs"]
mod wrong_tests;
