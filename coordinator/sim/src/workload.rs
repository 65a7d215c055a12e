//! What users do: queues, nodes, gangs of several shapes, deletions. All from the seed.

use std::collections::BTreeMap;

use phalanx_common::ids::{GpuId, NodeName};
use phalanx_common::topology::{Gpu, GpuHealth, GpuLink, Inventory, PcieLevel};
use phalanx_common::units::Time;
use phalanx_coordinator::api::{Kind, Object};
use serde_json::{Value, json};

use crate::checkers::liveness::NEVER;
use crate::random::Random;
use crate::teams::{Manners, Team, Teams};

/// Namespace of everything.
pub const NAMESPACE: &str = "team";
/// Group annotation of pods.
pub(crate) const GROUP_NAME: &str = "scheduling.k8s.io/group-name";
/// Task annotation of pods.
pub(crate) const TASK_SPEC: &str = "volcano.sh/task-spec";
/// How long a pod runs.
pub(crate) const RUN_FOR: &str = "phalanx.dev/run-for";
/// Queue annotation of pods without a group.
pub(crate) const QUEUE_NAME: &str = "scheduling.volcano.sh/queue-name";
/// Classes of gangs.
const CLASSES: [Option<&str>; 8] =
    [None, None, None, None, Some("urgent"), Some("urgent"), Some("polite"), Some("modest")];

/// Something a user does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Creates an object.
    Create(Box<Object>),
    /// Creates a pod for a gang that is there already.
    AddPod(Box<Object>),
    /// Deletes an object by name, if it is there.
    Delete(Kind, String),
    /// Deletes one of the pods that are there.
    DeleteSomePod(u64),
    /// Binds one of the pods that wait to a node without an agent, as another scheduler would.
    BindSomePod(u64),
    /// Another scheduler binds a pod of its own to a node with GPUs.
    OtherPod(u64),
    /// Such a pod, by name, has ended, and is deleted.
    EndOther(String),
    /// Changes an object, if it is there.
    Change(Kind, String, Change),
    /// Makes an object what it was at first, whether it is there or not.
    Restore(Box<Object>),
    /// Whoever looks after an evicted pod makes it again once it is gone.
    Remake(Box<Object>),
}

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Change {
    /// Of a PodGroup: how many pods must start together.
    MinMember(u64),
    /// Of a Job: its pods, and how many of them must start together.
    Size {
        /// Pods.
        replicas: u64,
        /// Fewest that may run.
        minimum: u64,
    },
    /// Of a Queue: most GPUs.
    Ceiling(u64),
    /// Of a Queue: it takes no new gangs.
    Close,
    /// Of a Node: all that it says.
    Node(Value),
}

/// A machine with an agent.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name.
    pub name: NodeName,
    /// What it has.
    pub inventory: Inventory,
}

/// A whole workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Machines with agents.
    pub machines: Vec<Machine>,
    /// Objects that are there from the start.
    pub first: Vec<Object>,
    /// Steps and when they are done.
    pub steps: Vec<(Time, Step)>,
    /// What is deleted at the end, because it would run for ever.
    pub last: Vec<Step>,
    /// Pods that are left of gangs without PodGroup: deleted when all that should become of them has.
    pub leftovers: Vec<Step>,
    /// Sum of the times that pods run, in milliseconds.
    pub work_ms: u64,
    has_plain_node: bool,
    teams: Vec<Team>,
}

/// One gang to be made.
struct Plan {
    pods: u64,
    minimum: u64,
    gpus: u64,
    name: String,
    queue: String,
    priority: Option<&'static str>,
    selector: Value,
    run_for_ms: Option<u64>,
    at: u64,
    /// Most pods that it could have.
    most: u64,
    /// Of a job: pods of its second task, and fewest of each task that may run, where it says so.
    second: u64,
    minima: Option<(u64, u64)>,
    manners: Manners,
}

impl Workload {
    /// The workload of a seed, within this time.
    #[must_use]
    pub fn drawn(random: &mut Random, within_ms: u64) -> Self {
        let mut workload = Self {
            machines: machines(random),
            first: Vec::new(),
            steps: Vec::new(),
            last: Vec::new(),
            leftovers: Vec::new(),
            work_ms: 0,
            has_plain_node: random.per_mille(400),
            teams: Vec::new(),
        };
        workload.draw_first(random);
        let gangs = random.between(4, 12);
        for number in 0..gangs {
            workload.draw_gang(random, number, within_ms);
        }
        for _ in 0..random.between(0, 6) {
            let at = random.between(0, within_ms);
            workload.steps.push((Time(at), Step::DeleteSomePod(random.bits())));
        }
        if workload.has_plain_node && random.per_mille(500) {
            for _ in 0..random.between(1, 5) {
                let at = random.between(0, within_ms);
                workload.steps.push((Time(at), Step::BindSomePod(random.bits())));
            }
        }
        workload.draw_changes(random, within_ms);
        if random.per_mille(500) {
            for _ in 0..random.between(1, 6) {
                let at = random.between(0, within_ms);
                workload.steps.push((Time(at), Step::OtherPod(random.bits())));
            }
        }
        workload
    }

    fn draw_first(&mut self, random: &mut Random) {
        let total: u64 = self.machines.iter().map(|machine| machine.inventory.gpus.len() as u64).sum();
        let teams = Teams::drawn(random, total);
        self.first.extend(teams.objects);
        self.teams = teams.teams;
        if self.has_plain_node {
            let spec = json!({ "allocatable": { "cpu": "8", "memory": "32Gi" } });
            self.first.push(Object::new(Kind::Node, "", "plain").with_spec(spec));
        }
    }

    /// Pods of this size that the cluster takes when it is empty: of one GPU model.
    fn room(&self, gpus: u64) -> u64 {
        if gpus == 0 {
            return u64::MAX;
        }
        let mut by_model: BTreeMap<&str, u64> = BTreeMap::new();
        for machine in &self.machines {
            let Some(first) = machine.inventory.gpus.first() else { continue };
            let by_gpus = machine.inventory.gpus.len() as u64 / gpus;
            *by_model.entry(first.model.as_str()).or_default() +=
                by_gpus.min(machine.inventory.cpu_milli / 1000);
        }
        by_model.into_values().max().unwrap_or(0)
    }

    fn draw_gang(&mut self, random: &mut Random, number: u64, within_ms: u64) {
        let gpus = random.pick(&[0, 1, 1, 2, 2, 4, 4, 8]).copied().unwrap_or(1);
        let wanted = random.between(1, 5);
        let index = random.index(self.teams.len());
        let Team { name: queue, most: ceiling, is_strict, .. } = self.teams[index].clone();
        // More of them come while others run.
        let latest = if random.per_mille(500) { within_ms / 3 } else { within_ms * 3 / 4 };
        let at = random.between(0, latest);
        let run_for_ms = (!random.per_mille(150)).then(|| random.between(1, 25) * 1000);
        let mut plan = Plan {
            pods: wanted,
            minimum: 0,
            gpus,
            name: format!("gang-{number}"),
            queue,
            priority: random.pick(&CLASSES).copied().flatten(),
            selector: Value::Null,
            run_for_ms,
            manners: Manners::drawn(random, run_for_ms),
            at,
            most: 5,
            second: 0,
            minima: None,
        };
        if random.per_mille(120) && !is_strict {
            Self::make_impossible(random, &mut plan);
        } else {
            plan.pods = plan.pods.min(self.room(gpus)).min(ceiling.checked_div(gpus).unwrap_or(u64::MAX));
            if plan.pods == 0 {
                plan.pods = 1;
                plan.gpus = 1;
            }
            let of_ceiling = ceiling.checked_div(plan.gpus).unwrap_or(u64::MAX);
            plan.most = self.room(plan.gpus).min(of_ceiling).min(6);
        }
        plan.minimum = if random.per_mille(250) { random.between(1, plan.pods) } else { plan.pods };
        if plan.pods > 1 && random.per_mille(400) {
            plan.second = random.between(1, plan.pods - 1);
            let first = plan.pods - plan.second;
            let says = random.per_mille(500);
            plan.minima = says.then(|| (random.between(0, first), random.between(0, plan.second)));
        }
        self.work_ms += plan.run_for_ms.unwrap_or(0) * plan.pods * 2;
        match random.between(0, 9) {
            0..=3 => self.job(random, &plan),
            4..=7 => self.group(random, &plan, within_ms),
            _ => self.bare(random, &plan),
        }
    }

    fn make_impossible(random: &mut Random, plan: &mut Plan) {
        plan.name = format!("{NEVER}-{}", plan.name);
        match random.between(0, 3) {
            0 => plan.gpus = 16,
            1 => plan.queue = "nobodys".to_owned(),
            2 => plan.priority = Some("unheard-of"),
            _ => plan.selector = json!({ "zone": "nowhere" }),
        }
    }

    fn finish(&mut self, random: &mut Random, plan: &Plan, kind: Kind, names: &[String]) {
        let deletions = names.iter().map(|name| Step::Delete(kind, name.clone()));
        if plan.run_for_ms.is_none() {
            self.last.extend(deletions);
        } else if random.per_mille(120) {
            let first = plan.at + random.between(0, 40_000);
            for deletion in deletions {
                self.steps.push((Time(first + random.between(0, 500)), deletion));
            }
        }
    }

    fn job(&mut self, random: &mut Random, plan: &Plan) {
        let task = |name: &str, replicas: u64, minimum: Option<u64>| {
            let mut template = json!({ "spec": pod_spec(plan) });
            plan.manners.of_template(&mut template);
            let mut task = json!({ "name": name, "replicas": replicas, "template": template });
            if let Some(minimum) = minimum {
                task["minAvailable"] = json!(minimum);
            }
            task
        };
        let minima = plan.minima;
        let mut tasks = vec![task("worker", plan.pods - plan.second, minima.map(|(first, _)| first))];
        if plan.second > 0 {
            tasks.push(task("helper", plan.second, minima.map(|(_, second)| second)));
        }
        let mut spec = json!({
            "schedulerName": "volcano",
            "minAvailable": plan.minimum,
            "queue": plan.queue,
            "tasks": tasks,
        });
        if let Some(class) = plan.priority {
            spec["priorityClassName"] = json!(class);
        }
        let mut object = Object::new(Kind::Job, NAMESPACE, &plan.name).with_spec(spec);
        annotate(&mut object, plan);
        plan.manners.of_gang(&mut object);
        self.steps.push((Time(plan.at), Step::Create(Box::new(object))));
        if random.per_mille(180) {
            // Of the first task; what the tasks need at least is left as it was.
            let fewest = plan.minima.map_or(1, |(first, _)| first.max(1));
            let replicas = random.between(fewest, plan.most.saturating_sub(plan.second).max(fewest));
            let minimum = random.between(1, replicas + plan.second);
            let change = Change::Size { replicas, minimum };
            let at = plan.at + random.between(0, 40_000);
            self.steps.push((Time(at), Step::Change(Kind::Job, plan.name.clone(), change)));
        }
        self.finish(random, plan, Kind::Job, std::slice::from_ref(&plan.name));
    }

    fn group(&mut self, random: &mut Random, plan: &Plan, within_ms: u64) {
        let mut spec = json!({ "minMember": plan.minimum, "queue": plan.queue });
        let tasks = plan.minima.filter(|_| plan.second > 0);
        if let Some((first, second)) = tasks {
            spec["minTaskMember"] = json!({ "worker": first, "helper": second });
        }
        if let Some(class) = plan.priority {
            spec["priorityClassName"] = json!(class);
        }
        let mut object = Object::new(Kind::PodGroup, NAMESPACE, &plan.name).with_spec(spec);
        plan.manners.of_gang(&mut object);
        self.steps.push((Time(plan.at), Step::Create(Box::new(object))));
        let mut names = Vec::new();
        let trickle = random.per_mille(200);
        if random.per_mille(180) {
            let at = plan.at + random.between(0, 40_000);
            let change = Change::MinMember(random.between(1, plan.pods));
            self.steps.push((Time(at), Step::Change(Kind::PodGroup, plan.name.clone(), change)));
        }
        let more =
            if random.per_mille(180) { random.between(0, plan.most.saturating_sub(plan.pods)) } else { 0 };
        for index in 0..plan.pods + more {
            let name = format!("{}-{index}", plan.name);
            let mut pod = Object::new(Kind::Pod, NAMESPACE, &name).with_spec(pod_spec(plan));
            annotate(&mut pod, plan);
            pod.metadata.annotations.insert(GROUP_NAME.to_owned(), plan.name.clone());
            plan.manners.of_pod(&mut pod);
            if tasks.is_some() {
                let task = if index < plan.second { "helper" } else { "worker" };
                pod.metadata.annotations.insert(TASK_SPEC.to_owned(), task.to_owned());
            }
            let is_added = index >= plan.pods;
            let late = random.between(
                0,
                if is_added {
                    40_000
                } else if trickle {
                    within_ms / 4
                } else {
                    20
                },
            );
            // Who is made after the faults have stopped would miss the deletion of those that run for ever.
            self.steps.push((
                Time((plan.at + late).min(within_ms)),
                if is_added { Step::AddPod(Box::new(pod)) } else { Step::Create(Box::new(pod)) },
            ));
            names.push(name);
        }
        if random.per_mille(80) {
            let at = plan.at + random.between(0, 30_000);
            self.steps.push((Time(at), Step::Delete(Kind::PodGroup, plan.name.clone())));
            self.leftovers.extend(names.iter().map(|name| Step::Delete(Kind::Pod, name.clone())));
        } else {
            self.finish(random, plan, Kind::Pod, &names);
        }
    }

    fn bare(&mut self, random: &mut Random, plan: &Plan) {
        let mut pod = Object::new(Kind::Pod, NAMESPACE, &plan.name).with_spec(pod_spec(plan));
        annotate(&mut pod, plan);
        plan.manners.of_gang(&mut pod);
        plan.manners.of_pod(&mut pod);
        pod.metadata.annotations.insert(QUEUE_NAME.to_owned(), plan.queue.clone());
        self.steps.push((Time(plan.at), Step::Create(Box::new(pod))));
        self.finish(random, plan, Kind::Pod, std::slice::from_ref(&plan.name));
    }
}

/// A pod that is bound to the node without an agent from the beginning.
pub(crate) fn bound_pod(name: &str, gang: &str) -> Object {
    let container = json!({ "name": "main", "image": "example/image" });
    let spec = json!({ "schedulerName": "phalanx", "nodeName": "plain", "containers": [container] });
    let mut pod = Object::new(Kind::Pod, NAMESPACE, name).with_spec(spec);
    pod.metadata.annotations.insert(GROUP_NAME.to_owned(), gang.to_owned());
    pod.metadata.annotations.insert(RUN_FOR.to_owned(), "5s".to_owned());
    pod
}

/// A pod of another scheduler that runs on a node.
pub(crate) fn other_pod(name: &str, node: &str, gpus: u64) -> Object {
    let limits = json!({ "nvidia.com/gpu": gpus, "cpu": "2" });
    let container = json!({ "name": "main", "image": "example/image", "resources": { "limits": limits } });
    let spec = json!({ "schedulerName": "default-scheduler", "nodeName": node, "containers": [container] });
    Object::new(Kind::Pod, NAMESPACE, name).with_spec(spec)
}

fn annotate(object: &mut Object, plan: &Plan) {
    if let Some(run_for) = plan.run_for_ms {
        object.metadata.annotations.insert(RUN_FOR.to_owned(), format!("{}s", run_for / 1000));
    }
}

fn pod_spec(plan: &Plan) -> Value {
    let mut limits = json!({ "cpu": "1", "memory": "1Gi" });
    if plan.gpus > 0 {
        limits["nvidia.com/gpu"] = json!(plan.gpus);
    }
    let mut spec = json!({
        "schedulerName": "phalanx",
        "containers": [{ "name": "main", "image": "example/image", "resources": { "limits": limits } }],
    });
    if let Some(class) = plan.priority {
        spec["priorityClassName"] = json!(class);
    }
    if plan.selector.is_object() {
        spec["nodeSelector"] = plan.selector.clone();
    }
    plan.manners.of_spec(&mut spec);
    spec
}

fn machines(random: &mut Random) -> Vec<Machine> {
    let two_models = random.per_mille(300);
    let few_cpus = random.per_mille(250);
    let count = random.between(2, 4);
    (0..count)
        .map(|number| {
            let gpus = if random.per_mille(500) { 8 } else { 4 };
            let cpus = if few_cpus { 6 } else { 64 };
            let model = if two_models && number % 2 == 1 { "L40S" } else { "H100" };
            Machine {
                name: NodeName::from(format!("node-{number}")),
                inventory: inventory(number, gpus, model, cpus),
            }
        })
        .collect()
}

fn inventory(node: u64, gpus: u32, model: &str, cpus: u64) -> Inventory {
    let gpu = |index: u32| Gpu {
        id: GpuId(u128::from(node + 1) << 64 | u128::from(index)),
        index,
        model: model.to_owned(),
        memory_mib: Some(81_920),
        pci_bus_id: format!("0000:{index:02x}:00.0"),
        numa: Some(index / 4),
        health: GpuHealth::Healthy,
    };
    let link = |left: u32, right: u32| GpuLink {
        nvlinks: if left / 4 == right / 4 && left != right { 12 } else { 0 },
        pcie: if left == right { PcieLevel::Pix } else { PcieLevel::Node },
    };
    Inventory {
        driver: "580.1".to_owned(),
        gpus: (0..gpus).map(gpu).collect(),
        links: (0..gpus).map(|left| (0..gpus).map(|right| link(left, right)).collect()).collect(),
        ..Inventory::empty(cpus * 1000, 512 << 30)
    }
}
