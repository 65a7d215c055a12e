//! PersistentVolumeClaims with what they are joined with: the volume says from which nodes it is reached, and whose it
//! is; the StorageClass whether a claim without a volume gets one before a pod of it is scheduled. The core is told of
//! claims only, each with all that is known of it.
//!
//! A StorageClass is watched for that, since nothing else says it: a claim's annotations name a node only after a
//! scheduler has chosen one, and events are forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::constraints::NodeTerm;
use phalanx_common::gang::PodClaim;
use phalanx_common::ids::{GangName, PodUid};
use phalanx_common::units::Time;
use phalanx_core::event::{ClaimSpec, ClaimState, Event};
use serde_json::Value;

use super::{errors, tree_of_spec};
use crate::api::{Change, ChangeBody, Kind, Object, ObjectKey};
use crate::manifest::constraints::read_required;
use crate::manifest::names::ONE_POD;
use crate::manifest::reader::{Cursor, Sink};

/// The claims that a pod of this name mounts.
pub(super) fn claims_of(mut claims: Vec<PodClaim>, pod: &str) -> Vec<PodClaim> {
    for claim in claims.iter_mut().filter(|claim| claim.own) {
        claim.name = Arc::from(format!("{pod}-{}", claim.name));
    }
    claims
}

/// All claims, volumes and StorageClasses, as far as they were told.
#[derive(Debug, Default)]
pub struct Claims {
    claims: BTreeMap<GangName, Claim>,
    volumes: BTreeMap<Box<str>, Volume>,
    /// StorageClasses whose volumes wait for a pod.
    waiting: BTreeSet<Box<str>>,
    /// Told one after the other, many volumes are reached from the same nodes.
    last: Option<Arc<[NodeTerm]>>,
}

#[derive(Debug)]
struct Claim {
    uid: Box<str>,
    created: Time,
    one_pod: bool,
    owner: Option<PodUid>,
    is_deleting: bool,
    phase: Phase,
    /// The volume that it names; empty where it names none.
    volume: Box<str>,
    /// Its StorageClass; empty where it has none.
    class: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pending,
    Bound,
    Lost,
}

#[derive(Debug)]
struct Volume {
    /// The claim that it is for, with its UID.
    claim: Option<(GangName, Box<str>)>,
    /// The nodes from which it is reached, or why that cannot be read.
    nodes: Result<Option<Arc<[NodeTerm]>>, Arc<str>>,
}

impl Claims {
    /// Takes a change, and gives what it says of claims.
    pub fn heard(&mut self, change: &Change) -> Vec<Event> {
        match &change.body {
            ChangeBody::Applied(object) => self.applied(object),
            ChangeBody::Deleted { key, .. } => self.deleted(key),
        }
    }

    /// The same of an object that is there.
    pub fn applied(&mut self, object: &Object) -> Vec<Event> {
        match object.kind {
            Kind::PersistentVolumeClaim => {
                let name = GangName::new(&object.metadata.namespace, &object.metadata.name);
                self.claims.insert(name.clone(), claim(object));
                self.told(&name).into_iter().collect()
            }
            Kind::PersistentVolume => {
                let volume = self.volume(object);
                let now_for = volume.claim.as_ref().map(|(claim, _)| claim.clone());
                let before = self.volumes.insert(object.metadata.name.as_str().into(), volume);
                let was_for = before.and_then(|volume| volume.claim).map(|(claim, _)| claim);
                let was_for = was_for.filter(|claim| Some(claim) != now_for.as_ref());
                was_for.iter().chain(&now_for).filter_map(|claim| self.told(claim)).collect()
            }
            Kind::StorageClass => {
                let waits = object.spec.get("volumeBindingMode").and_then(Value::as_str)
                    == Some("WaitForFirstConsumer");
                self.class_changed(&object.metadata.name, waits)
            }
            _ => Vec::new(),
        }
    }

    fn deleted(&mut self, key: &ObjectKey) -> Vec<Event> {
        match key.kind {
            Kind::PersistentVolumeClaim => {
                let name = GangName::new(&key.namespace, &key.name);
                self.claims.remove(&name);
                vec![Event::ClaimDeleted(name)]
            }
            Kind::PersistentVolume => {
                let claim = self.volumes.remove(key.name.as_str()).and_then(|volume| volume.claim);
                claim.and_then(|(claim, _)| self.told(&claim)).into_iter().collect()
            }
            Kind::StorageClass => self.class_changed(&key.name, false),
            _ => Vec::new(),
        }
    }

    fn class_changed(&mut self, class: &str, waits: bool) -> Vec<Event> {
        let is_news = if waits { self.waiting.insert(class.into()) } else { self.waiting.remove(class) };
        if !is_news {
            return Vec::new();
        }
        // Classes hardly ever change: no table by class is worth its room.
        let of_class =
            self.claims.iter().filter(|(_, claim)| claim.phase != Phase::Bound && &*claim.class == class);
        of_class.filter_map(|(name, _)| self.told(name)).collect()
    }

    /// A claim as the core is told of it; `None` where it is not there.
    fn told(&self, name: &GangName) -> Option<Event> {
        let claim = self.claims.get(name)?;
        Some(Event::ClaimApplied(Box::new(ClaimSpec {
            name: name.clone(),
            created: claim.created,
            one_pod: claim.one_pod,
            owner: claim.owner.clone(),
            state: self.state(claim),
        })))
    }

    fn state(&self, claim: &Claim) -> ClaimState {
        if claim.is_deleting {
            return ClaimState::Deleting;
        }
        match claim.phase {
            Phase::Lost => ClaimState::Lost,
            // Kubelet mounts a volume only where each of the two names the other.
            Phase::Bound => {
                let volume = self.volumes.get(&claim.volume);
                let its =
                    volume.filter(|volume| volume.claim.as_ref().is_some_and(|(_, uid)| *uid == claim.uid));
                match its.map(|volume| &volume.nodes) {
                    Some(Ok(nodes)) => ClaimState::Bound { reachable_from: nodes.clone() },
                    Some(Err(problem)) => ClaimState::Unreadable { problem: problem.clone() },
                    None => ClaimState::Binding,
                }
            }
            // One that names its volume waits for nobody.
            Phase::Pending if claim.volume.is_empty() && self.waiting.contains(&*claim.class) => {
                ClaimState::AwaitsPod { class: claim.class.clone() }
            }
            Phase::Pending => ClaimState::Binding,
        }
    }

    fn volume(&mut self, object: &Object) -> Volume {
        let reference = object.status.get("claimRef");
        let text = |field: &str| reference.and_then(|of| of.get(field)).and_then(Value::as_str);
        let claim = text("name").map(|name| {
            let name = GangName::new(text("namespace").unwrap_or_default(), name);
            (name, text("uid").unwrap_or_default().into())
        });
        let nodes = nodes_of(object).map(|nodes| {
            nodes.map(|nodes| match &self.last {
                Some(last) if **last == *nodes => last.clone(),
                _ => self.last.insert(Arc::from(nodes)).clone(),
            })
        });
        Volume { claim, nodes }
    }
}

fn claim(object: &Object) -> Claim {
    let text = |from: &Value, field: &str| {
        from.get(field).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
    };
    let metadata = &object.metadata;
    let modes = object.spec.get("accessModes").and_then(Value::as_array).into_iter().flatten();
    let owner = metadata.owner.as_ref().filter(|owner| owner.kind == Kind::Pod);
    Claim {
        uid: metadata.uid.as_str().into(),
        created: metadata.creation,
        one_pod: modes.into_iter().any(|mode| mode == ONE_POD),
        owner: owner.map(|owner| PodUid::from(owner.uid.as_str())),
        is_deleting: metadata.deletion.is_some(),
        phase: match text(&object.status, "phase").as_str() {
            "Bound" => Phase::Bound,
            "Lost" => Phase::Lost,
            _ => Phase::Pending,
        },
        volume: text(&object.status, "volumeName").into(),
        class: text(&object.spec, "storageClassName").into(),
    }
}

/// The terms of which a node must meet one to reach the volume; `None` where every node reaches it.
fn nodes_of(object: &Object) -> Result<Option<Vec<NodeTerm>>, Arc<str>> {
    let tree = tree_of_spec(object);
    let mut sink = Sink::new("");
    let required = Cursor::root(&tree, "spec")
        .fields(&mut sink)
        .and_then(|mut fields| fields.get("nodeAffinity"))
        .and_then(|at| at.fields(&mut sink))
        .and_then(|mut fields| fields.get("required"))
        .map(|at| read_required(&at, &mut sink));
    let wrong = errors(&sink).map(|(field, message)| format!("{}: {field}: {message}", object.key())).next();
    wrong.map_or(Ok(required), |wrong| Err(Arc::from(wrong)))
}
