//! What teams agree on: queues in a tree with shares, policies of queues, classes of priority, disruption budgets, and
//! what gangs say of being evicted and of how long they run. All from the seed.

use phalanx_coordinator::api::{Kind, Object};
use serde_json::{Value, json};

use crate::random::Random;
use crate::workload::NAMESPACE;

/// A queue above others.
const PARENT: &str = "division";
/// Pods with this label are in the budget.
const CAREFUL: &str = "careful";
/// On a pod: whoever looks after it makes it again when it was evicted.
pub(crate) const REMADE: &str = "simulation/remade";

/// A queue that takes gangs.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    /// Name.
    pub(crate) name: String,
    /// GPUs that it can have at most, whatever others do.
    pub(crate) most: u64,
    /// GPUs of what it is a part of.
    within: u64,
    /// A gang that can never run would hold back all others.
    pub(crate) is_strict: bool,
}

/// Everything that is there from the start.
pub(crate) struct Teams {
    pub(crate) objects: Vec<Object>,
    pub(crate) teams: Vec<Team>,
}

/// What a gang says of evictions and of its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manners {
    /// Of its PodGroup or job.
    annotations: Vec<(&'static str, String)>,
    is_careful: bool,
    is_remade: bool,
    /// Of its pods.
    grace_seconds: u64,
    deadline_seconds: Option<u64>,
}

fn gpus(count: u64) -> Value {
    json!({ "nvidia.com/gpu": count })
}

impl Teams {
    /// Queues, policies, classes and a budget for a cluster of so many GPUs.
    pub(crate) fn drawn(random: &mut Random, total: u64) -> Self {
        let mut all = Self { objects: Vec::new(), teams: Vec::new() };
        let has_parent = random.per_mille(350);
        let mut of_parent = total;
        if has_parent {
            let mut spec = json!({ "weight": random.between(1, 3) });
            if random.per_mille(400) {
                of_parent = random.between(total.div_ceil(2), total);
                spec["capability"] = gpus(of_parent);
            }
            all.objects.push(Object::new(Kind::Queue, "", PARENT).with_spec(spec));
        }
        let names: &[&str] = if random.per_mille(350) { &["red", "blue", "green"] } else { &["red", "blue"] };
        let mut kept = Vec::new();
        for name in names {
            let is_below = has_parent && random.per_mille(700);
            let within = if is_below { of_parent } else { total };
            let limited = random.per_mille(450);
            let most = if limited { random.between(2.min(within), within) } else { within };
            let mut spec = json!({ "priority": random.between(0, 1), "weight": random.between(1, 4) });
            if is_below {
                spec["parent"] = json!(PARENT);
            }
            if limited {
                spec["capability"] = gpus(most);
            }
            let guarantee = if random.per_mille(200) { random.between(1, (most / 3).max(1)) } else { 0 };
            if guarantee > 0 {
                spec["guarantee"] = json!({ "resource": gpus(guarantee) });
            }
            if random.per_mille(350) {
                spec["deserved"] = gpus(random.between(guarantee, most));
            }
            if random.per_mille(150) {
                spec["reclaimable"] = json!(false);
            }
            let is_strict = random.per_mille(150);
            if is_strict {
                spec["dequeueStrategy"] = json!("fifo");
            }
            kept.push(guarantee);
            all.objects.push(Object::new(Kind::Queue, "", name).with_spec(spec));
            all.teams.push(Team { name: (*name).to_owned(), most, within, is_strict });
            if random.per_mille(450) {
                all.objects.push(Object::new(Kind::QueuePolicy, "", name).with_spec(policy(random)));
            }
        }
        let guaranteed: u64 = kept.iter().sum();
        for (team, own) in all.teams.iter_mut().zip(kept) {
            team.most = team.most.min(team.within.saturating_sub(guaranteed - own));
        }
        let most = total - guaranteed.min(total);
        all.teams.push(Team { name: "default".to_owned(), most, within: total, is_strict: false });
        for (name, value, preempts) in [("urgent", 1000, true), ("polite", 900, false), ("modest", 10, true)]
        {
            let mut class = json!({ "value": value, "globalDefault": false });
            if !preempts {
                class["preemptionPolicy"] = json!("Never");
            }
            all.objects.push(Object::new(Kind::PriorityClass, "", name).with_spec(class));
        }
        let selector = json!({ "selector": { "matchLabels": { CAREFUL: "true" } } });
        let mut budget = Object::new(Kind::PodDisruptionBudget, NAMESPACE, CAREFUL).with_spec(selector);
        budget.status = json!({ "disruptionsAllowed": random.between(0, 2) });
        all.objects.push(budget);
        all
    }
}

/// A policy of a queue.
fn policy(random: &mut Random) -> Value {
    let mut spec = json!({ "minimumRunTime": format!("{}s", random.between(0, 10)) });
    if random.per_mille(600) {
        spec["holdAfter"] = json!(format!("{}s", random.between(1, 20)));
    }
    if random.per_mille(400) {
        spec["defaultRunTime"] = json!(format!("{}s", random.between(5, 30)));
    }
    spec
}

impl Manners {
    /// What a gang says whose pods run for so long.
    pub(crate) fn drawn(random: &mut Random, run_for_ms: Option<u64>) -> Self {
        let mut manners = Self { grace_seconds: random.between(0, 5), ..Self::default() };
        let mut says = |what: &'static str, text: String| manners.annotations.push((what, text));
        if random.per_mille(120) {
            says("volcano.sh/preemptable", "false".to_owned());
        }
        if random.per_mille(150) {
            says("volcano.sh/cooldown-time", format!("{}s", random.between(1, 15)));
        }
        if random.per_mille(200) {
            says("phalanx.dev/checkpoint-grace", random.between(1, 8).to_string());
        }
        if let Some(run_for) = run_for_ms {
            if random.per_mille(150) {
                says("phalanx.dev/run-estimate", format!("{}s", run_for / 1000));
            }
            manners.deadline_seconds = random.per_mille(250).then(|| run_for / 1000 + random.between(0, 5));
        }
        manners.is_careful = random.per_mille(150);
        manners.is_remade = random.per_mille(750);
        manners
    }

    /// Says it of the gang.
    pub(crate) fn of_gang(&self, object: &mut Object) {
        let texts = self.annotations.iter().map(|(key, text)| ((*key).to_owned(), text.clone()));
        object.metadata.annotations.extend(texts);
    }

    /// Says it of one of its pods that no job makes.
    pub(crate) fn of_pod(&self, pod: &mut Object) {
        if self.is_careful {
            pod.metadata.labels.insert(CAREFUL.to_owned(), "true".to_owned());
        }
        if self.is_remade {
            pod.metadata.annotations.insert(REMADE.to_owned(), "true".to_owned());
        }
    }

    /// Of the template of a job: what of it stands in metadata.
    pub(crate) fn of_template(&self, template: &mut Value) {
        if self.is_careful {
            template["metadata"] = json!({ "labels": { CAREFUL: "true" } });
        }
    }

    /// Says it in the spec of a pod.
    pub(crate) fn of_spec(&self, spec: &mut Value) {
        spec["terminationGracePeriodSeconds"] = json!(self.grace_seconds);
        if let Some(deadline) = self.deadline_seconds {
            spec["activeDeadlineSeconds"] = json!(deadline);
        }
    }
}
