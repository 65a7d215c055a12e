//! What a gang is told while others are evicted for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_common::ids::PodUid;
use phalanx_common::units::Time;

use super::Victim;
use crate::cluster::NodeIndex;
use crate::core::Core;
use crate::gang::GangKey;
use crate::reason::{LateVictim, MakingRoom, Reason};

/// Nodes named in a reason.
const NAMED: usize = 8;

impl Core {
    /// What it waits for, while others are evicted for it. No time is told that has passed.
    pub(crate) fn making_room(&self, key: GangKey) -> Option<Reason> {
        let room = self.rooms.get(&key)?;
        let leases = room.victims.values().filter_map(|victim| self.leases.leases.get(&victim.lease?));
        let nodes: BTreeSet<NodeIndex> = leases.map(|lease| lease.node).collect();
        let nodes = nodes.into_iter().take(NAMED).map(|node| self.cluster.node(node).name.clone());
        let timeout = self.settings.victim_timeout_ms;
        let end_of = |given_up: Time| Time(given_up.0.saturating_sub(timeout.0));
        let grace = |uid: &PodUid| self.gangs.pods.get(uid).map(|pod| pod.spec.policy.grace_ms);
        let end = |(uid, victim): (&PodUid, &Victim)| match victim.gone_by {
            Some(given_up) => Some(end_of(given_up)),
            None => grace(uid).map(|grace| victim.ask_at + grace),
        };
        let ends = room.victims.iter().map(end);
        let until = ends.collect::<Option<Vec<Time>>>().and_then(|ends| ends.into_iter().max());
        let asked = room.victims.values().filter_map(|victim| Some((victim.gone_by?, victim)));
        let first = asked.min_by_key(|(given_up, victim)| (*given_up, victim.name.clone()));
        let late = first.filter(|(given_up, _)| end_of(*given_up) <= self.now).map(|(given_up, victim)| {
            LateVictim { pod: victim.name.name.clone(), given_up: Some(given_up).filter(|at| *at > self.now) }
        });
        let told_only = room.victims.values().filter(|victim| victim.is_told_only(self.now));
        let evicted_at = told_only.map(|victim| victim.ask_at).max();
        Some(Reason::MakingRoom(Box::new(MakingRoom {
            victims: u32::try_from(room.victims.len()).unwrap_or(u32::MAX),
            nodes: nodes.collect(),
            has_notice: evicted_at.is_some(),
            evicted_at,
            until: until.filter(|until| *until > self.now),
            late,
            gave_up: self.gave_up(key),
        })))
    }

    /// Where an earlier plan waited in vain, and for what, as long as the node is closed. That may be for another cause by
    /// then, which is not what the plan came to nothing for.
    fn gave_up(&self, key: GangKey) -> Option<Arc<str>> {
        let (node, why) = self.gangs.gangs.get(&key)?.gave_up.as_ref()?;
        self.cluster.node(self.cluster.find(node)?).quarantine.as_ref()?;
        Some(Arc::from(format!("{node}: {why}")))
    }
}
