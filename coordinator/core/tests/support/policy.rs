//! Queues and what gangs allow others, in scenarios:
//! `queue q gpu=8 deserved.gpu=4 guarantee.gpu=2 weight=3 parent=p prio=1 open=no reclaimable=no dequeue=fifo unreadable=FIELD`,
//! `queue-policy q namespaces=a,b min-run=60 hold-after=60 startup=60 default-run=600 max-run=600` (seconds),
//! `quick` (invariants are not checked), `many G 100 1G q=q` (gangs G-0 …), `set-minimum G min=8 tmin=a:2 need-gpu=4`, `set-queue G q`, `fail POD`, `pod-deleted UID`, `queues`, `next` (deadline), `alone` (pods whose PodGroup is not there),
//! `gang G … preemptable=no cooldown=60 checkpoint=30 estimate=600 degraded-grace=300 group=NAME/2 fewer-after=2/60`,
//! `… sub=workers/2/1/role:w/rack`: parts of 2 of the pods with the label role=w, by their label rack, 1 of them needed;
//! several with `;` between. Pods have `labels=role:w,rack:a`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use phalanx_common::constraints::{LabelOperator, LabelRequirement};
use phalanx_common::gang::{
    FewerAfter, GangGroup, GangPolicy, Grace, PodPhase, PodPolicy, PodSpec, SubGroupPolicy,
};
use phalanx_common::ids::PodUid;
use phalanx_common::queue::{Dequeue, QueuePolicySpec, QueueSpec, Unreadable};
use phalanx_common::units::{Millis, Time};
use phalanx_core::event::Event;

use phalanx_core::Settings;
use phalanx_core::event::DisruptionBudget;

use super::{Words, World, resource};

/// Options of a queue that are no resources of its capability.
const NO_RESOURCE: [&str; 7] = ["prio", "open", "parent", "weight", "reclaimable", "dequeue", "unreadable"];

pub fn queue(words: &Words<'_>) -> QueueSpec {
    let mut spec = QueueSpec::new(words.plain[1].into());
    for (key, value) in words.options.iter().filter(|(key, _)| !NO_RESOURCE.contains(*key)) {
        let (list, key) = match key.split_once('.') {
            Some(("deserved", key)) => (&mut spec.deserved, key),
            Some(("guarantee", key)) => (&mut spec.guarantee, key),
            _ => (&mut spec.capability, *key),
        };
        let (name, amount) = resource(key, value);
        list.set(name, amount);
    }
    let text = |key: &str| words.options.get(key).copied();
    spec.priority = i32::try_from(words.number("prio", 0)).unwrap();
    spec.open = text("open") != Some("no");
    spec.parent = text("parent").map(Into::into);
    spec.weight = u32::try_from(words.number("weight", 1)).unwrap();
    spec.reclaimable = text("reclaimable") != Some("no");
    spec.dequeue = if text("dequeue") == Some("fifo") { Dequeue::Fifo } else { Dequeue::Traverse };
    spec.unreadable = text("unreadable")
        .map(|field| Unreadable { field: field.into(), message: "must be a quantity, found \"x\"".into() });
    spec
}

fn seconds(words: &Words<'_>, key: &str) -> Option<Millis> {
    words.options.get(key).map(|text| Millis::from_seconds(text.parse().unwrap()))
}

pub fn queue_policy(words: &Words<'_>) -> QueuePolicySpec {
    let namespaces = words.options.get("namespaces");
    QueuePolicySpec {
        namespaces: namespaces.map(|list| list.split(',').map(Arc::from).collect()),
        minimum_run_ms: seconds(words, "min-run").unwrap_or(Millis(0)),
        hold_after_ms: seconds(words, "hold-after"),
        startup_deadline_ms: seconds(words, "startup"),
        default_run_ms: seconds(words, "default-run"),
        maximum_run_ms: seconds(words, "max-run"),
        ..QueuePolicySpec::new(words.plain[1].into())
    }
}

pub fn of_gang(words: &Words<'_>) -> GangPolicy {
    let text = |key: &str| words.options.get(key).copied();
    GangPolicy {
        preemptable: text("preemptable").map(|text| text == "yes"),
        cooldown_ms: seconds(words, "cooldown").unwrap_or(Millis(0)),
        checkpoint_grace_ms: seconds(words, "checkpoint").unwrap_or(Millis(0)),
        run_estimate_ms: seconds(words, "estimate"),
        degraded_grace: text("degraded-grace").map(|text| {
            text.parse().map_or(Grace::Never, |seconds| Grace::After(Millis::from_seconds(seconds)))
        }),
        group: text("group")
            .and_then(|text| text.split_once('/'))
            .map(|(name, size)| GangGroup { name: name.into(), size: size.parse().unwrap() }),
        fewer_after: text("fewer-after").and_then(|text| text.split_once('/')).map(|(minimum, after)| {
            FewerAfter {
                minimum: minimum.parse().unwrap(),
                after_ms: Millis::from_seconds(after.parse().unwrap()),
            }
        }),
        sub_groups: text("sub").into_iter().flat_map(|text| text.split(';')).map(sub_group).collect(),
    }
}

fn sub_group(text: &str) -> SubGroupPolicy {
    let words: Vec<&str> = text.split('/').collect();
    let rule = |text: &str| {
        let (key, value) = text.split_once(':').unwrap();
        LabelRequirement { key: key.into(), operator: LabelOperator::In, values: vec![value.into()] }
    };
    SubGroupPolicy {
        name: words[0].into(),
        size: words[1].parse().unwrap(),
        minimum: words[2].parse().unwrap(),
        selector: words.get(3).filter(|text| !text.is_empty()).map(|text| rule(text)).into_iter().collect(),
        match_labels: words.get(4).map(|label| Arc::from(*label)).into_iter().collect(),
    }
}

pub fn of_pod(words: &Words<'_>, task: &str, now: Time) -> PodPolicy {
    let labels = words.options.get("labels").into_iter().flat_map(|text| text.split(','));
    PodPolicy {
        labels: labels
            .filter_map(|text| text.split_once(':'))
            .map(|(key, value)| (Arc::from(key), Arc::from(value)))
            .collect(),
        never_preempts: words.options.get("never") == Some(&"yes"),
        created: now,
        grace_ms: seconds(words, "grace").unwrap_or(Millis::from_seconds(30)),
        deadline_ms: seconds(words, "deadline"),
        leads: matches!(task, "master" | "launcher"),
        ..PodPolicy::default()
    }
}

/// `budget B allows=0 labels=app:web`: a PodDisruptionBudget.
pub fn budget(words: &Words<'_>) -> Event {
    let labels = words.options.get("labels").into_iter().flat_map(|text| text.split(','));
    let requirement = |(key, value): (&str, &str)| LabelRequirement {
        key: key.into(),
        operator: LabelOperator::In,
        values: vec![value.into()],
    };
    Event::BudgetApplied(Box::new(DisruptionBudget {
        name: super::name(words.plain[1]),
        selector: Some(labels.filter_map(|text| text.split_once(':')).map(requirement).collect()),
        disruptions_allowed: u32::try_from(words.number("allows", 0)).unwrap(),
    }))
}

/// `setting preempt off`, `setting hold-after 60`: the coordinator starts anew with it.
pub fn set(settings: &mut Settings, key: &str, value: &str) {
    let is_on = value == "on";
    let seconds = || Millis::from_seconds(value.parse().unwrap());
    match key {
        "preempt" => settings.preempt = is_on,
        "reclaim" => settings.reclaim = is_on,
        "hold-after" => settings.hold_after_ms = seconds(),
        "victim-timeout" => settings.victim_timeout_ms = seconds(),
        "degraded-grace" => settings.degraded_grace_ms = (value != "never").then(seconds),
        other => panic!("no setting {other}"),
    }
}

/// What happens to pods that are told to go: `gang G … dies=30 exit=0 recreated=yes`. Without `dies` they end at once,
/// where kubelets stop pods.
#[derive(Clone, Default)]
pub struct Endings {
    /// By gang: how long its pods take to end, `None` = for ever, and whether they exit with 0.
    dies: BTreeMap<String, (Option<u64>, bool)>,
    /// Gangs whose pods somebody makes again.
    recreated: BTreeSet<String>,
    due: BTreeSet<(Time, PodUid)>,
}

impl Endings {
    pub fn note_gang(&mut self, words: &Words<'_>) {
        let gang = words.plain[1].to_owned();
        if let Some(dies) = words.options.get("dies") {
            let exits_well = words.options.get("exit") == Some(&"0");
            self.dies.insert(gang.clone(), (dies.parse().ok(), exits_well));
        }
        if words.options.get("recreated") == Some(&"yes") {
            self.recreated.insert(gang);
        }
    }

    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }
}

impl World {
    /// A pod was told to go: where kubelets stop pods, its kubelet does.
    pub fn plan_ending(&mut self, uid: &PodUid) {
        let gang = self.pods[uid].gang.name.to_string();
        if !self.settings.kubelet_stops_pods {
            return;
        }
        if let Some((Some(seconds), _)) = self.endings.dies.get(&gang) {
            self.endings.due.insert((self.now + Millis::from_seconds(*seconds), uid.clone()));
        }
    }

    /// Pods whose time has come end.
    pub fn end_due(&mut self) {
        while self.endings.due.first().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, uid)) = self.endings.due.pop_first() else { return };
            let Some(pod) = self.pods.get_mut(&uid) else { continue };
            let exits_well = self.endings.dies.get(&*pod.gang.name).is_some_and(|(_, well)| *well);
            if exits_well {
                pod.phase = PodPhase::Succeeded;
                self.touch(&uid);
                self.apply_stored(&uid);
            }
            self.remove_pod(&uid);
        }
    }

    /// The object of a pod is gone; where its gang has a controller that one makes it again.
    pub fn remove_pod(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.remove(uid) else { return };
        self.apply(Event::PodDeleted(uid.clone()));
        let has_owner = self.gangs.contains_key(&pod.gang);
        if !self.endings.recreated.contains(&*pod.gang.name) || !pod.deleting || !has_owner {
            return;
        }
        self.next_uid += 1;
        self.next_version += 1;
        let anew = PodSpec {
            uid: format!("{}-{}", pod.name.name, self.next_uid).into(),
            phase: PodPhase::Pending,
            binding: None,
            deleting: false,
            term: 0,
            group_uid: Arc::from(""),
            resource_version: self.next_version,
            policy: PodPolicy { created: self.now, started: None, ends_by: None, ..pod.policy.clone() },
            ..pod
        };
        let event = self.pod_event(&anew);
        self.pods.insert(anew.uid.clone(), anew);
        self.apply(event);
    }
}

impl World {
    /// Commands of the policy; false for one that is none of them.
    pub(super) fn policy_command(&mut self, words: &Words<'_>) -> bool {
        match words.plain[0] {
            "many" => {
                let count: u32 = words.plain[2].parse().unwrap();
                for at in 0..count {
                    let (gang, shape) = (format!("{}-{at}", words.plain[1]), format!("1x{}", words.plain[3]));
                    let plain = vec!["gang", &gang, &shape];
                    let words = Words { plain, options: words.options.clone() };
                    self.endings.note_gang(&words);
                    self.make_gang(&words);
                }
            }
            "fail" => {
                let uid = self.uid(words.plain[1]);
                self.touch(&uid);
                self.pods.get_mut(&uid).unwrap().phase = PodPhase::Failed;
                self.apply_stored(&uid);
            }
            "queues" => self.print_queues(),
            "next" => {
                // What the coordinator waits for by itself.
                let next = self.core.next_deadline();
                let text = next.map(|(at, why)| format!("{why}, in {} ms", at.0.saturating_sub(self.now.0)));
                writeln!(self.out, "next: {}", text.unwrap_or_else(|| "nothing".to_owned())).unwrap();
            }
            "set-minimum" => {
                // The same PodGroup with another minimum.
                let spec = self.gangs.get_mut(&super::name(words.plain[1])).unwrap();
                spec.min_member = u32::try_from(words.number("min", 1)).unwrap();
                for (task, count) in super::minima(words) {
                    spec.min_task_member.insert(task, count);
                }
                spec.min_resources = super::min_resources(words).or(spec.min_resources.take());
                let spec = spec.clone();
                self.apply(Event::GangApplied(spec));
            }
            "set-queue" => {
                // The same PodGroup in another queue.
                let spec = self.gangs.get_mut(&super::name(words.plain[1])).unwrap();
                spec.queue = words.plain[2].into();
                let spec = spec.clone();
                self.apply(Event::GangApplied(spec));
            }
            "quick" => self.checks = false,
            "pod-deleted" => self.apply(Event::PodDeleted(words.plain[1].into())),
            "alone" => {
                for alone in self.core.view().pods_without_gang {
                    writeln!(self.out, "pod {}: PodGroup {} not found", alone.pod.name, alone.group).unwrap();
                }
            }
            _ => return false,
        }
        true
    }

    fn print_queues(&mut self) {
        for queue in self.core.view().queues {
            let counts =
                [queue.pending, queue.inqueue, queue.running, queue.completed].map(|count| count.to_string());
            let (share, allocated) = (queue.share.to_string(), queue.allocated.to_string());
            let text = |amounts: String| if amounts.is_empty() { "-".to_owned() } else { amounts };
            writeln!(
                self.out,
                "{}: share {}; allocated {}; pending/inqueue/running/completed {}",
                queue.name,
                text(share),
                text(allocated),
                counts.join("/")
            )
            .unwrap();
            if let Some(problem) = queue.problem {
                writeln!(self.out, "  problem: {problem}").unwrap();
            }
        }
    }
}
