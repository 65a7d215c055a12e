//! Queues and what gangs allow others, in scenarios:
//! `queue q gpu=8 deserved.gpu=4 guarantee.gpu=2 weight=3 parent=p prio=1 open=no reclaimable=no dequeue=fifo`,
//! `queue-policy q namespaces=a,b min-run=60 hold-after=60 startup=60 default-run=600 max-run=600` (seconds),
//! `quick` (invariants are not checked), `many G 100 1G q=q` (gangs G-0 …), `set-minimum G min=8`, `fail POD`, `pod-deleted UID`, `queues`, `alone` (pods whose PodGroup is not there),
//! `gang G … preemptable=no cooldown=60 checkpoint=30 estimate=600 degraded-grace=300 group=NAME/2 fewer-after=2/60`.

use std::fmt::Write as _;
use std::sync::Arc;

use phalanx_common::gang::{FewerAfter, GangGroup, GangPolicy, Grace, PodPhase, PodPolicy};
use phalanx_common::queue::{Dequeue, QueuePolicySpec, QueueSpec};
use phalanx_common::units::{Millis, Time};
use phalanx_core::event::Event;

use super::{Words, World, resource};

/// Options of a queue that are no resources of its capability.
const NO_RESOURCE: [&str; 6] = ["prio", "open", "parent", "weight", "reclaimable", "dequeue"];

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
        sub_groups: Vec::new(),
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

impl World {
    /// Commands of the policy; false for one that is none of them.
    pub(super) fn policy_command(&mut self, words: &Words<'_>) -> bool {
        match words.plain[0] {
            "many" => {
                let count: u32 = words.plain[2].parse().unwrap();
                for at in 0..count {
                    let (gang, shape) = (format!("{}-{at}", words.plain[1]), format!("1x{}", words.plain[3]));
                    let plain = vec!["gang", &gang, &shape];
                    self.make_gang(&Words { plain, options: words.options.clone() });
                }
            }
            "fail" => {
                let uid = self.uid(words.plain[1]);
                self.touch(&uid);
                self.pods.get_mut(&uid).unwrap().phase = PodPhase::Failed;
                self.apply_stored(&uid);
            }
            "queues" => self.print_queues(),
            "set-minimum" => {
                // The same PodGroup with another minimum.
                let spec = self.gangs.get_mut(&super::name(words.plain[1])).unwrap();
                spec.min_member = u32::try_from(words.number("min", 1)).unwrap();
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
