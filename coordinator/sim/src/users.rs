//! What users do to the API: they create, change and delete, and at the end put right what they left incomplete.

use std::collections::BTreeMap;

use phalanx_common::ids::{GangName, PodUid};
use phalanx_coordinator::api::store::node_name;
use phalanx_coordinator::api::{Kind, Mutation, Object, ObjectKey, Preconditions};
use serde_json::{Value, json};

use crate::checkers::liveness::{is_done, short_of_pods};
use crate::coverage::Fault;
use crate::teams::REMADE;
use crate::workload::{
    Change, GROUP_NAME, NAMESPACE, QUEUE_NAME, RUN_FOR, Step, TASK_SPEC, bound_pod, other_pod,
};
use crate::world::{Happening, World};

/// So often users look after what they left incomplete.
const TIDY_MS: u64 = 30_000;
/// So often a controller looks whether an evicted pod is gone.
const REMAKE_MS: u64 = 500;

impl World {
    /// A user does something. What it is done to may be gone: that is the user's own affair.
    pub(crate) fn user(&mut self, step: Step) {
        if !matches!(step, Step::Remake(_)) {
            self.facts.news_at = self.now;
        }
        match step {
            Step::Create(object) => {
                self.log.count("user creates");
                let _ = self.create(*object);
            }
            Step::AddPod(object) => {
                self.log.count("user adds a pod to a gang");
                let _ = self.create(*object);
            }
            Step::Restore(object) => self.restore(*object),
            Step::Remake(object) => self.remake(*object),
            Step::Delete(kind, name) => self.delete(&key_of(kind, &name)),
            Step::DeleteSomePod(choice) => {
                let (pods, _) = self.api.store.list(Some(Kind::Pod));
                let bound: Vec<_> = pods.iter().filter(|pod| node_name(pod).is_some()).collect();
                let among = if choice % 3 == 0 || bound.is_empty() { pods.iter().collect() } else { bound };
                let at = usize::try_from(choice >> 8).unwrap_or(0) % among.len().max(1);
                let Some(pod) = among.get(at) else { return };
                self.delete(&pod.key());
            }
            Step::BindSomePod(choice) => self.bind_by_hand(choice),
            Step::OtherPod(choice) => self.add_other_pod(choice),
            Step::EndOther(name) => self.end_other_pod(&name),
            Step::Change(kind, name, change) => self.change(&key_of(kind, &name), change),
        }
    }

    /// Another scheduler binds a pod that waits.
    fn bind_by_hand(&mut self, choice: u64) {
        if choice.is_multiple_of(2) {
            self.add_bound_pod(choice);
            return;
        }
        let (pods, _) = self.api.store.list(Some(Kind::Pod));
        let waiting: Vec<_> = pods.iter().filter(|pod| node_name(pod).is_none()).collect();
        let at = usize::try_from(choice >> 8).unwrap_or(0) % waiting.len().max(1);
        let Some(pod) = waiting.get(at) else { return };
        let uid = PodUid::from(pod.metadata.uid.as_str());
        let Some(gang) = self.facts.pods.get(&uid).map(|fact| fact.gang.clone()) else { return };
        self.note(Fault::BoundByHand);
        self.facts.bound_by_hand.insert(gang);
        self.facts.by_hand.insert(uid);
        let preconditions = Preconditions::uid(&pod.metadata.uid);
        let (key, node, annotations) = (pod.key(), "plain".to_owned(), BTreeMap::new());
        self.as_user(Mutation::Bind { key, preconditions, node, annotations });
        self.api_changed();
    }

    /// A pod of a gang is made that names its node itself.
    fn add_bound_pod(&mut self, choice: u64) {
        let is_over = |gang: &&GangName| {
            let mut pods = self.facts.pods.values().filter(|pod| pod.gang == **gang);
            pods.clone().next().is_some() && pods.all(|pod| pod.phase.is_terminal())
        };
        let all = self.facts.groups.keys();
        let mut gangs: Vec<GangName> = all.clone().filter(is_over).cloned().collect();
        if gangs.is_empty() {
            gangs = all.cloned().collect();
        }
        let at = usize::try_from(choice >> 8).unwrap_or(0) % gangs.len().max(1);
        let Some(gang) = gangs.get(at) else { return };
        self.note(Fault::BoundByHand);
        self.facts.bound_by_hand.insert(gang.clone());
        if let Some(uid) = self.create(bound_pod(&format!("by-hand-{}", choice >> 40), &gang.name)) {
            self.facts.by_hand.insert(uid.as_str().into());
        }
    }

    /// A pod of another scheduler takes GPUs of a node for a while, whoever was promised them.
    fn add_other_pod(&mut self, choice: u64) {
        let at = usize::try_from(choice >> 8).unwrap_or(0) % self.hosts.len().max(1);
        let Some(node) = self.hosts.keys().nth(at).cloned() else { return };
        self.note(Fault::OtherPod);
        let name = format!("other-{}", choice >> 40);
        self.as_user(Mutation::Create(Box::new(other_pod(&name, node.as_str(), 1 + choice % 4))));
        self.users_left += 1;
        self.after(5_000 + (choice >> 16) % 20_000, Happening::User(Step::EndOther(name)));
        self.api_changed();
    }

    fn end_other_pod(&mut self, name: &str) {
        let key = key_of(Kind::Pod, name);
        let Ok(stored) = self.api.store.get(&key) else { return };
        self.facts.may_go.insert(stored.metadata.uid.clone());
        let preconditions = Preconditions::uid(&stored.metadata.uid);
        let status = json!({ "phase": "Succeeded" });
        self.as_user(Mutation::UpdateStatus { key: key.clone(), preconditions, status });
        // Its kubelet lets one go that was deleted before it ended.
        self.as_user(if stored.metadata.deletion.is_some() {
            Mutation::Finalize { uid: PodUid::from(stored.metadata.uid.as_str()) }
        } else {
            Mutation::Delete { key, preconditions: Preconditions::default() }
        });
        self.api_changed();
    }

    /// A pod was evicted whose controller makes another one in its place.
    pub(crate) fn plan_remake(&mut self, uid: &PodUid) {
        let Some(name) = self.facts.pods.get(uid).map(|pod| pod.name.clone()) else { return };
        let Ok(stored) = self.api.store.get(&key_of(Kind::Pod, &name.name)) else { return };
        // What runs for ever is deleted in the end: what is made after that would stay.
        let is_endless = stored.annotation(RUN_FOR).is_none();
        if stored.annotation(REMADE).is_none() || (is_endless && self.now >= self.last_at) {
            return;
        }
        let mut pod = Object::new(Kind::Pod, NAMESPACE, &stored.metadata.name).with_spec(stored.spec.clone());
        if let Some(spec) = pod.spec.as_object_mut() {
            spec.remove("nodeName");
        }
        pod.metadata.labels = stored.metadata.labels.clone();
        for key in [RUN_FOR, GROUP_NAME, TASK_SPEC, QUEUE_NAME, REMADE] {
            let text = stored.annotation(key).map(|text| (key.to_owned(), text.to_owned()));
            pod.metadata.annotations.extend(text);
        }
        let delay = self.random.between(10, 3_000);
        self.users_left += 1;
        self.after(delay, Happening::User(Step::Remake(Box::new(pod))));
    }

    fn remake(&mut self, pod: Object) {
        if self.api.store.get(&pod.key()).is_ok() {
            // The old one is still on its way out.
            self.users_left += 1;
            self.after(REMAKE_MS, Happening::User(Step::Remake(Box::new(pod))));
            return;
        }
        let group = pod.annotation(GROUP_NAME).map(|group| key_of(Kind::PodGroup, group));
        let is_endless = pod.annotation(RUN_FOR).is_none();
        if group.is_some_and(|group| self.api.store.get(&group).is_err())
            || (is_endless && self.now >= self.last_at)
        {
            return;
        }
        self.log.count("an evicted pod is made again");
        self.work_ms += 25_000;
        let _ = self.create(pod);
    }

    /// Creates an object, and gives its UID.
    fn create(&mut self, object: Object) -> Option<String> {
        let (key, status) = (object.key(), object.status.clone());
        let created = self.as_user(Mutation::Create(Box::new(object)))?;
        if key.kind == Kind::PodDisruptionBudget {
            let preconditions = Preconditions::default();
            self.as_user(Mutation::UpdateStatus { key: key.clone(), preconditions, status });
        }
        let uid = created.metadata.uid.clone();
        self.facts.created.insert(key, uid.clone());
        self.api_changed();
        Some(uid)
    }

    /// Makes an object what it was at first.
    fn restore(&mut self, object: Object) {
        let key = object.key();
        let Ok(stored) = self.api.store.get(&key) else {
            let _ = self.create(object);
            return;
        };
        let mut wanted = Object::clone(&stored);
        wanted.spec = object.spec;
        self.as_user(Mutation::Update(Box::new(wanted)));
        if key.kind == Kind::Queue {
            self.set_queue_state(&key, "Open");
        }
        self.api_changed();
    }

    fn delete(&mut self, key: &ObjectKey) {
        self.log.count(match key.kind {
            Kind::Queue => "user deletes a queue",
            Kind::QueuePolicy => "user deletes a queue policy",
            Kind::PriorityClass => "user deletes a priority class",
            Kind::Node => "user deletes a node",
            Kind::PodGroup => "user deletes a pod group",
            Kind::Pod => "user deletes a pod",
            Kind::Job => "user deletes a job",
            Kind::GangPlan => "user deletes a plan",
            Kind::PodDisruptionBudget => "user deletes a budget",
            Kind::StorageClass | Kind::PersistentVolume | Kind::PersistentVolumeClaim => {
                "user deletes storage"
            }
        });
        if let Ok(stored) = self.api.store.get(key) {
            self.facts.may_go.insert(stored.metadata.uid.clone());
        }
        self.as_user(Mutation::Delete { key: key.clone(), preconditions: Preconditions::default() });
        self.api_changed();
    }

    fn change(&mut self, key: &ObjectKey, change: Change) {
        let Ok(stored) = self.api.store.get(key) else { return };
        let mut wanted = Object::clone(&stored);
        match change {
            Change::MinMember(minimum) => {
                self.log.count("user changes minMember");
                wanted.spec["minMember"] = json!(minimum);
            }
            Change::Size { replicas, minimum } => {
                self.log.count("user changes the size of a job");
                wanted.spec["minAvailable"] = json!(minimum);
                wanted.spec["tasks"][0]["replicas"] = json!(replicas);
            }
            Change::Ceiling(gpus) => {
                self.log.count("user changes the ceiling of a queue");
                wanted.spec["capability"] = json!({ "nvidia.com/gpu": gpus });
            }
            Change::Close => {
                self.log.count("user closes a queue");
                self.set_queue_state(key, "Closed");
                self.api_changed();
                return;
            }
            Change::Node(spec) => {
                self.log.count("user changes a node");
                wanted.spec = spec;
            }
        }
        self.as_user(Mutation::Update(Box::new(wanted)));
        self.api_changed();
    }

    fn set_queue_state(&mut self, key: &ObjectKey, state: &str) {
        let Ok(stored) = self.api.store.get(key) else { return };
        let mut status = stored.status.clone();
        if !status.is_object() {
            status = Value::Object(serde_json::Map::new());
        }
        status["state"] = json!(state);
        let preconditions = Preconditions::default();
        self.as_user(Mutation::UpdateStatus { key: key.clone(), preconditions, status });
    }

    fn as_user(&mut self, mutation: Mutation) -> Option<std::sync::Arc<Object>> {
        self.log.line(self.now, format_args!("user: {} {}", mutation.verb(), mutation.target()));
        self.api.write(None, mutation, self.now).ok()
    }

    /// Gangs that have fewer pods than they need hold the quota they were admitted with: somebody takes them back.
    pub(crate) fn tidy(&mut self) {
        for gang in short_of_pods(&self.facts) {
            self.tidied_at = self.now;
            let job = self.facts.groups.get(&gang).and_then(|group| group.job.as_ref());
            if let Some(job) = job.and_then(|uid| gang.name.strip_suffix(&format!("-{uid}"))) {
                self.user(Step::Delete(Kind::Job, job.to_owned()));
                continue;
            }
            let pods = self.facts.pods.values().filter(|pod| pod.gang == gang);
            let names: Vec<String> = pods.map(|pod| pod.name.name.to_string()).collect();
            for name in names {
                self.user(Step::Delete(Kind::Pod, name));
            }
            self.user(Step::Delete(Kind::PodGroup, gang.name.to_string()));
        }
        if !is_done(&self.facts) {
            self.after(TIDY_MS, Happening::Tidy);
        }
    }
}

fn key_of(kind: Kind, name: &str) -> ObjectKey {
    let namespace = if kind.is_cluster_scoped() { "" } else { NAMESPACE };
    ObjectKey::new(kind, namespace, name)
}
