//! How much the machine keeps, by name: what must be nothing again when the last gang is gone, and what may stay.

use crate::action::GangPhase;
use crate::core::Core;
use crate::queue::Queue;
use crate::status::pod_group_phase;

/// Numbers of the whole, without anything that has a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Gangs by phase.
    pub gangs: Vec<(GangPhase, usize)>,
    /// Nodes known.
    pub nodes: usize,
    /// GPUs known.
    pub gpus: usize,
    /// GPUs with a holder.
    pub gpus_held: usize,
    /// `Core::kept` and `Core::kept_of_cluster`.
    pub kept: Vec<(&'static str, usize)>,
}

impl Core {
    /// What is kept for gangs, and how many entries of each. All of it is zero when no gang, no pod and no lease is
    /// left and the last deadline has passed. The names are a closed list.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        let queued: usize = self.queues.queues.values().map(|queue| queue.admitted.len()).sum();
        // The root is no queue that anybody names.
        let queues = self.queues.queues.values().filter(|queue| queue.up.is_some());
        let without_object = queues.filter(|queue| queue.spec.is_none()).count();
        let reports: usize = self.reports.values().map(Vec::len).sum();
        vec![
            ("gangs", self.gangs.gangs.len().max(self.gangs.by_name.len())),
            ("pods", self.gangs.pods.len()),
            ("pods_by_gang", self.gangs.pods_of.len()),
            ("leases", self.leases.leases.len()),
            ("nodes_with_leases", self.leases.by_node.len()),
            ("leases_to_drive", self.leases.touched.len()),
            ("actions_in_flight", self.pending.len()),
            ("deadlines", self.timers.len()),
            ("gangs_to_look_at", self.touched.len()),
            ("queues_to_look_at", self.touched_queues.len()),
            ("gangs_waiting", self.queues.count_waiting()),
            ("gangs_to_try", self.queues.count_to_try()),
            ("gangs_alike", self.queues.queues.values().map(Queue::count_alike).sum()),
            ("gangs_admitted", queued),
            ("queues_without_object", without_object),
            ("strangers_fenced", self.strangers_fenced.len()),
            ("plans_of_others", self.foreign.len()),
            ("fences_held", self.fences_held.len()),
            ("plans_found", self.plans_found.len()),
            ("lease_reports", reports),
            ("crowded_nodes", self.others.crowded.len()),
            ("claims_mounted", self.claims.mounted()),
        ]
    }

    /// Numbers of the whole: far less work than a view of it.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut gangs: Vec<(GangPhase, usize)> = GangPhase::ALL.map(|phase| (phase, 0)).to_vec();
        for gang in self.gangs.gangs.values() {
            let phase = pod_group_phase(gang);
            if let Some((_, count)) = gangs.iter_mut().find(|(known, _)| *known == phase) {
                *count += 1;
            }
        }
        let mut totals = Totals { gangs, kept: self.kept(), ..Totals::default() };
        totals.kept.extend(self.kept_of_cluster());
        for (_, node) in self.cluster.nodes() {
            totals.nodes += 1;
            let holders = node.agent.as_ref().map_or(&[][..], |agent| &agent.holders);
            totals.gpus += holders.len();
            totals.gpus_held += holders.iter().filter(|holder| holder.is_some()).count();
        }
        totals
    }

    /// What is kept of the cluster itself: it follows nodes, queues, priority classes, budgets, claims and pods of others,
    /// never gangs.
    #[must_use]
    pub fn kept_of_cluster(&self) -> Vec<(&'static str, usize)> {
        let mut kept = self.cluster.kept();
        kept.push(("queues", self.queues.queues.len()));
        kept.push(("priority_classes", self.priority_classes.len()));
        kept.push(("pods_of_others", self.others.pods.len()));
        kept.push(("nodes_with_others", self.others.by_node.len()));
        kept.push(("disruption_budgets", self.budgets.len()));
        kept.push(("claims", self.claims.len()));
        kept
    }
}
