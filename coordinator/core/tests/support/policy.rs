//! Queues and what gangs allow others, in scenarios:
//! `queue q gpu=8 deserved.gpu=4 guarantee.gpu=2 weight=3 parent=p prio=1 open=no reclaimable=no dequeue=fifo`,
//! `queue-policy q namespaces=a,b min-run=60 hold-after=60 startup=60 default-run=600 max-run=600` (seconds),
//! `gang G … preemptable=no cooldown=60 checkpoint=30 estimate=600 degraded-grace=300 group=NAME/2 fewer-after=2/60`,
//! `… sub=workers/2/1/role:w/rack`: parts of 2 of the pods with the label role=w, by their label rack, 1 of them needed;
//! several with `;` between. Pods have `labels=role:w,rack:a`.

use std::sync::Arc;

use phalanx_common::constraints::{LabelOperator, LabelRequirement};
use phalanx_common::gang::{FewerAfter, GangGroup, GangPolicy, Grace, PodPolicy, SubGroupPolicy};
use phalanx_common::queue::{Dequeue, QueuePolicySpec, QueueSpec};
use phalanx_common::units::{Millis, Time};

use super::{Words, resource};

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
