//! PodGroups for pods that name none, made for what looks after the pods: all pods of a Deployment are one gang.
//!
//! Who stands at the top is not known from the pod alone: a ReplicaSet belongs to a Deployment. Whoever runs the jobs
//! asks for it and tells it here; until then the pod waits without a PodGroup.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{ControllerRef, ObjectKey};

/// The topmost object that looks after a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopOwner {
    /// What it is.
    pub object: ControllerRef,
    /// Its annotations; empty where they cannot be read.
    pub annotations: BTreeMap<String, String>,
}

/// A controller that was not looked up yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownOwner {
    /// Namespace of the pods, and of everything above them.
    pub namespace: String,
    /// What the pods name as their controller.
    pub controller: ControllerRef,
}

/// Which pods have which controller, and what stands above it.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// By UID of the controller that the pods name.
    known: BTreeMap<String, TopOwner>,
    pods: BTreeMap<String, BTreeSet<ObjectKey>>,
    unknown: BTreeSet<UnknownOwner>,
}

impl Owners {
    /// A pod names this controller. What stands above it, where that is known.
    pub(super) fn of_pod(&mut self, pod: &ObjectKey, controller: &ControllerRef) -> Option<&TopOwner> {
        self.pods.entry(controller.uid.clone()).or_default().insert(pod.clone());
        if !self.known.contains_key(&controller.uid) {
            let namespace = pod.namespace.clone();
            self.unknown.insert(UnknownOwner { namespace, controller: controller.clone() });
        }
        self.known.get(&controller.uid)
    }

    /// A pod is gone. What stood above it is forgotten with the last one.
    pub(super) fn forget(&mut self, pod: &ObjectKey, controller: &ControllerRef) {
        let Some(pods) = self.pods.get_mut(&controller.uid) else { return };
        pods.remove(pod);
        if pods.is_empty() {
            self.pods.remove(&controller.uid);
            self.known.remove(&controller.uid);
            self.unknown.retain(|unknown| unknown.controller.uid != controller.uid);
        }
    }

    /// What stands above a controller. The pods that waited for it.
    pub(super) fn found(&mut self, controller: &ControllerRef, top: TopOwner) -> Vec<ObjectKey> {
        self.unknown.retain(|unknown| unknown.controller.uid != controller.uid);
        let Some(pods) = self.pods.get(&controller.uid) else { return Vec::new() };
        self.known.insert(controller.uid.clone(), top);
        pods.iter().cloned().collect()
    }

    /// Controllers that are to be looked up.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &UnknownOwner> {
        self.unknown.iter()
    }

    /// True where a pod below this object still waits to be told so, or has been.
    pub(super) fn has_pods_of(&self, namespace: &str, top_uid: &str) -> bool {
        let tops = self.known.iter().filter(|(_, top)| top.object.uid == top_uid);
        tops.into_iter().any(|(uid, _)| self.pods.contains_key(uid))
            || self.unknown.iter().any(|unknown| unknown.namespace == namespace)
    }

    pub(super) fn kept(&self) -> usize {
        self.pods.len().max(self.known.len()).max(self.unknown.len())
    }
}
