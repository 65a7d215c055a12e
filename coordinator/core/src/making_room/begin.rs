//! A plan that evicts others begins: from the units that go and the places that they leave to what is held.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_common::plan::{GangPlan, PlannedPod, PlannedVictim};
use phalanx_common::planted::{self, Bug};
use phalanx_common::units::{Millis, Time};

use super::{RoomPlan, RoomStep, Victim};
use crate::core::Core;
use crate::gang::{Gang, GangKey};
use crate::victims::{Room, Unit};

impl Core {
    /// How long before the pods of a gang go they are told so.
    fn notice_of(&self, gang: GangKey) -> Millis {
        self.gangs.gangs.get(&gang).map_or(Millis(0), |gang| gang.spec.policy.checkpoint_grace_ms)
    }

    /// The same for a victim of a plan that was found. One that is on its way out is told nothing more, and neither is one
    /// that goes with others that are: they were told together.
    pub(super) fn notice_again(&self, planned: &PlannedVictim, plan: &GangPlan) -> Millis {
        let Some(pod) = self.gangs.pods.get(&planned.pod) else { return Millis(0) };
        let goes_with = |other: &&PlannedVictim| {
            let other = self.gangs.pods.get(&other.pod).filter(|_| other.whole_gang && planned.whole_gang);
            other.is_some_and(|other| other.spec.gang == pod.spec.gang && other.spec.deleting)
        };
        if pod.spec.deleting || plan.victims.iter().any(|other| goes_with(&other)) {
            return Millis(0);
        }
        self.gang_key(&pod.spec.gang).map_or(Millis(0), |key| self.notice_of(key))
    }

    /// A plan was found: what it uses is held from now on.
    pub(crate) fn begin_room(&mut self, key: GangKey, units: &[Unit], room: &Room, now: Time) {
        let Some(gang) = self.gangs.gangs.get(&key) else { return };
        let mut victims = BTreeMap::new();
        for unit in room.units.iter().map(|at| &units[*at]) {
            let cause = self.cause(gang, unit);
            for (uid, lease) in &unit.pods {
                let Some(pod) = self.gangs.pods.get(uid) else { continue };
                let victim = Victim {
                    name: pod.spec.name.clone(),
                    gang: pod.spec.gang.clone(),
                    lease: Some(*lease),
                    whole: unit.rank.class > 0,
                    ask_at: now + self.notice_of(unit.gang),
                    asked: 0,
                    gone_by: None,
                    is_noticed: false,
                    cause: cause.clone(),
                };
                victims.insert(uid.clone(), victim);
            }
        }
        let places = room.placed.iter().filter_map(|place| {
            let pod = self.gangs.pods.get(&place.pod)?;
            let node = self.cluster.node(place.node);
            Some(PlannedPod {
                pod: place.pod.clone(),
                name: pod.spec.name.name.clone(),
                node: node.name.clone(),
                lease: None,
                gpus: node.gpu_ids(place.mask),
            })
        });
        let plan = RoomPlan {
            step: RoomStep::Unwritten,
            victims,
            places: places.collect(),
            stored: false,
            failures: 0,
            failed: None,
        };
        self.start_room(key, plan);
    }

    pub(super) fn start_room(&mut self, key: GangKey, plan: RoomPlan) {
        let places = plan.places.iter().filter(|place| self.gangs.pods.contains_key(&place.pod));
        let places = places.filter_map(|place| {
            Some((self.cluster.find(&place.node)?, place.pod.clone(), place.gpus.clone()))
        });
        let places: Vec<_> = places.collect();
        let nodes = places.iter().map(|(node, _, _)| *node).collect();
        self.cluster.unhold(key);
        self.take_from_holds(key, &nodes);
        // What was promised with its hold comes otherwise, if it comes.
        self.release_hold(key);
        let leaving = plan.victims.values().filter_map(|victim| victim.lease).collect();
        if !planted::is(Bug::FreedIsIdle) {
            self.hold_places(key, places, &leaving);
        }
        self.victims.extend(plan.victims.keys().map(|uid| (uid.clone(), key)));
        self.rooms.insert(key, plan);
        self.touched.insert(key);
    }

    /// Why a unit goes, for people.
    fn cause(&self, by: &Gang, unit: &Unit) -> Arc<str> {
        let Some(gang) = self.gangs.gangs.get(&unit.gang) else { return Arc::from("") };
        let priority = |gang: &Gang| self.priority_of(&gang.spec).unwrap_or(0);
        let why = if gang.spec.queue == by.spec.queue {
            format!("priority {} > {}", priority(by), priority(gang))
        } else {
            format!("queue {} takes back its share from queue {}", by.spec.queue, gang.spec.queue)
        };
        let what = match unit.rank.class {
            0 => "surplus pod above minMember".to_owned(),
            _ if unit.pods.len() == 1 => String::new(),
            _ => {
                format!("gang {} cannot run with fewer than {}", gang.spec.name.name, gang.minimum(self.now))
            }
        };
        let what = if what.is_empty() { what } else { format!("; {what}") };
        Arc::from(format!("for {}: {why}{what}", by.spec.name.name))
    }
}
