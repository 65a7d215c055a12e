//! Pods that run on nodes and are none of ours: what they use there is counted, and nothing else of them is known.

use std::sync::Arc;

use phalanx_common::gang::PodClaim;
use phalanx_common::ids::{GangName, NodeName, PodUid};
use phalanx_core::event::{Event, Mounts, OtherPod};

use super::tree_of_spec;
use crate::api::Object;
use crate::api::store::{node_name, phase};
use crate::manifest::amounts::read_container_resources;
use crate::manifest::pod::read_pod;
use crate::manifest::reader::{Cursor, Sink};

/// The scheduler of pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The claims that it shares with pods of its namespace.
fn mounts(object: &Object, claims: &[PodClaim]) -> Option<Box<Mounts>> {
    let shared = claims.iter().filter(|claim| !claim.own && !claim.name.is_empty());
    let claims: Vec<Arc<str>> = shared.map(|claim| claim.name.clone()).collect();
    let pod = GangName::new(&object.metadata.namespace, &object.metadata.name);
    (!claims.is_empty()).then(|| Box::new(Mounts { pod, claims }))
}

/// The fact that such a pod uses something of a node, or uses it no more; `None` where it never did.
pub(super) fn other_pod(object: &Object) -> Option<Event> {
    let node = node_name(object)?;
    let uid = PodUid::from(object.metadata.uid.as_str());
    if phase(object).is_terminal() {
        return Some(Event::PodDeleted(uid));
    }
    let tree = tree_of_spec(object);
    // Whatever else is wrong with it is for its own scheduler to say.
    let mut sink = Sink::new("");
    let cursor = Cursor::root(&tree, "spec");
    let pod = read_pod(&cursor, &mut sink);
    let mut request = pod.request.effective();
    if let Some(whole) = cursor.fields(&mut sink).and_then(|mut fields| fields.get("resources")) {
        request.raise_to(&read_container_resources(&whole, &mut sink).0);
    }
    let scheduler = object.spec.get("schedulerName").and_then(|name| name.as_str());
    Some(Event::OtherPodApplied(Box::new(OtherPod {
        uid,
        node: NodeName::from(node),
        scheduler: Arc::from(scheduler.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_SCHEDULER)),
        request,
        host_ports: pod.constraints.host_ports.clone(),
        mounts: mounts(object, &pod.claims),
    })))
}
