//! Pods that name no PodGroup: each is a gang of one from the moment it is seen, so that it need not wait for an object
//! that would only say so.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::gang::{GangSpec, PodSpec};
use phalanx_common::ids::QueueName;

use super::{Reading, policy};
use crate::api::Object;
use crate::jobs::{is_bare, made_group_name, queue_of_pod};

/// Name of a lone pod's gang; `None` where the pod is none.
pub(super) fn gang_name(reading: &Reading, pod: &Object) -> Option<String> {
    let is_lone = reading.has_lone_pods()
        && pod.metadata.controller.is_none()
        && pod.metadata.owner.is_none()
        && is_bare(reading, pod);
    is_lone.then(|| made_group_name(pod, None))
}

/// Its gang, as its PodGroup will say it.
pub(super) fn gang_of(
    object: &Object,
    pod: &PodSpec,
    priority_class: Option<&str>,
    warnings: &mut Vec<String>,
) -> GangSpec {
    // Bound, it has been said, as by the pod itself.
    let mut unread = Vec::new();
    let policy = policy::of_object(object, &mut unread);
    let mixed_gpu_models = policy::mixed_gpu_models(object, &mut unread);
    if pod.binding.is_none() {
        let new: Vec<String> = unread.into_iter().filter(|warning| !warnings.contains(warning)).collect();
        warnings.extend(new);
    }
    GangSpec {
        name: pod.gang.clone(),
        uid: GangSpec::lone_pod_uid(&pod.uid),
        created: object.metadata.creation,
        queue: QueueName::from(queue_of_pod(object)),
        min_member: 1,
        min_task_member: BTreeMap::new(),
        min_resources: None,
        priority_class: priority_class.map(Arc::from),
        mixed_gpu_models,
        policy,
        shown: None,
    }
}
