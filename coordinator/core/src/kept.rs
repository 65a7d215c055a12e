//! How much the machine keeps, by name: what must be nothing again when the last gang is gone, and what may stay.

use crate::core::Core;

impl Core {
    /// What is kept for gangs, and how many entries of each. All of it is zero when no gang, no pod and no lease is
    /// left and the last deadline has passed. The names are a closed list.
    #[must_use]
    pub fn kept(&self) -> Vec<(&'static str, usize)> {
        let queued: usize = self.queues.queues.values().map(|queue| queue.admitted.len()).sum();
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
            ("gangs_waiting", self.waiting.len()),
            ("gangs_to_try", self.to_try.len()),
            ("gangs_admitted", queued),
            ("plans_found", self.plans_found.len()),
            ("lease_reports", reports),
        ]
    }

    /// What is kept of the cluster itself: it follows nodes, queues and priority classes, never gangs.
    #[must_use]
    pub fn kept_of_cluster(&self) -> Vec<(&'static str, usize)> {
        let mut kept = self.cluster.kept();
        kept.push(("queues", self.queues.queues.len()));
        kept.push(("priority_classes", self.priority_classes.len()));
        kept
    }
}
