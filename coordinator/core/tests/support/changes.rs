//! What a person changes in a world: objects as they are stored, one thing at a time.

#![allow(dead_code, reason = "some of the tests that share this file ask for less")]

use std::collections::BTreeMap;

use phalanx_common::gang::{GangSpec, PodPhase, PodSpec};
use phalanx_common::ids::{NodeName, PodUid, QueueName};
use phalanx_common::queue::{QueuePolicySpec, QueueSpec};
use phalanx_common::resources::ResourceName;
use phalanx_core::event::Event;
use phalanx_core::reason::{Fewer, Reason};

use super::{World, name};

impl World {
    pub fn queue(&self, queue: &QueueName) -> Option<&QueueSpec> {
        self.queues.get(queue)
    }

    pub fn change_queue(&mut self, queue: &QueueName, change: impl FnOnce(&mut QueueSpec)) {
        let mut spec = self.queues.get(queue).cloned().unwrap_or_else(|| QueueSpec::new(queue.clone()));
        change(&mut spec);
        self.queues.insert(queue.clone(), spec.clone());
        self.apply(Event::QueueApplied(spec));
    }

    pub fn change_policy(&mut self, queue: &QueueName, change: impl FnOnce(&mut QueuePolicySpec)) {
        let known = self.policies.get(queue).cloned();
        let mut policy = known.unwrap_or_else(|| QueuePolicySpec::new(queue.clone()));
        change(&mut policy);
        self.policies.insert(queue.clone(), policy.clone());
        self.apply(Event::QueuePolicyApplied(Box::new(policy)));
    }

    pub fn gang(&self, gang: &str) -> &GangSpec {
        &self.gangs[&name(gang)]
    }

    pub fn change_gang(&mut self, gang: &str, change: impl FnOnce(&mut GangSpec)) {
        let mut spec = self.gangs[&name(gang)].clone();
        change(&mut spec);
        self.gangs.insert(spec.name.clone(), spec.clone());
        self.apply(Event::GangApplied(spec));
    }

    /// All that is to be lowered of a PodGroup.
    pub fn lower(&mut self, gang: &str, fewer: &Fewer) {
        self.change_gang(gang, |spec| {
            spec.min_member = fewer.minimum;
            spec.min_task_member.extend(fewer.tasks.iter().cloned());
            for (name, amount) in &fewer.resources {
                let name = ResourceName::parse(name).unwrap();
                spec.min_resources.get_or_insert_default().set(name, *amount);
            }
        });
    }

    pub fn pods_of(&self, gang: &str) -> impl Iterator<Item = &PodSpec> {
        let gang = name(gang);
        self.pods.values().filter(move |pod| pod.gang == gang)
    }

    /// Pods of a gang that wait are made anew with this change, one by one.
    pub fn change_waiting_pods(&mut self, gang: &str, change: impl Fn(&mut PodSpec)) {
        let waiting = self.pods_of(gang).filter(|pod| pod.binding.is_none());
        let uids: Vec<_> = waiting.map(|pod| pod.uid.clone()).collect();
        for uid in uids {
            self.touch(&uid);
            if let Some(pod) = self.pods.get_mut(&uid) {
                change(pod);
            }
            self.apply_stored(&uid);
        }
    }

    /// The missing pods of a gang, like the last of those that there are; where there are none, of 1 GPU.
    pub fn add_pods(&mut self, gang: &str, mut count: u32) {
        if count > 0 && self.pods_of(gang).next().is_none() {
            self.run(&format!("pod {gang} {gang}-new 1G"));
            count -= 1;
        }
        for _ in 0..count {
            let known = self.pods_of(gang).last().cloned().unwrap();
            self.next_uid += 1;
            self.next_version += 1;
            let pod = format!("{gang}-more-{}", self.next_uid);
            let spec = PodSpec {
                uid: pod.as_str().into(),
                name: name(&pod),
                phase: PodPhase::Pending,
                binding: None,
                resource_version: self.next_version,
                ..known
            };
            let event = self.pod_event(&spec);
            self.pods.insert(spec.uid.clone(), spec);
            self.apply(event);
        }
    }

    pub fn is_agent_away(&self, node: &NodeName) -> bool {
        self.agents.get(node).is_some_and(|agent| !agent.connected)
    }

    pub fn open_node(&mut self, node: &NodeName) {
        if let Some(mut spec) = self.nodes.get(node).cloned() {
            spec.unschedulable = false;
            spec.ready = true;
            self.nodes.insert(node.clone(), spec.clone());
            self.apply(Event::NodeApplied(spec));
        }
        if self.is_agent_away(node) {
            self.connect(node);
        }
    }

    /// GPUs that a pod of others has.
    pub fn other_gpus(&self, uid: &str) -> u64 {
        self.others.get(&PodUid::from(uid)).map_or(0, |pod| pod.request.gpus())
    }

    /// Seconds since the world began.
    pub fn seconds(&self) -> u64 {
        self.now.0 / 1000
    }

    /// Each gang that waits with its reason, by name.
    pub fn waiting(&self) -> Vec<(String, Reason)> {
        let gangs = self.core.view().gangs.into_iter();
        gangs.filter_map(|gang| Some((gang.name.name.to_string(), gang.reason?.reason))).collect()
    }

    /// Bindings of a gang's pods that were made since the world began.
    pub fn bindings_of(&self, gang: &str) -> u32 {
        self.bindings.get(&name(gang)).copied().unwrap_or(0)
    }

    /// Phase of each gang, and how many Bindings of its pods were made since the world began.
    pub fn standing(&self) -> BTreeMap<String, (String, u32)> {
        let gangs = self.core.view().gangs.into_iter();
        gangs
            .map(|gang| {
                let made = self.bindings.get(&gang.name).copied().unwrap_or(0);
                (gang.name.name.to_string(), (gang.phase.to_string(), made))
            })
            .collect()
    }
}
