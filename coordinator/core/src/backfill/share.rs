//! What is held lies within the share of the gang's queue: borrowed room is never held.

use std::collections::BTreeSet;

use phalanx_common::ids::{LeaseId, QueueName};

use crate::amounts::Amounts;
use crate::core::Core;
use crate::gang::GangKey;
use crate::lease::Lease;

impl Core {
    /// Once these have ended its queues have no more than their share with it. What is borrowed is never held.
    pub(super) fn is_within_share(
        &mut self,
        key: GangKey,
        asked: &Amounts,
        ending: &[(QueueName, Amounts)],
    ) -> bool {
        let Some(queue) = self.gangs.gangs.get(&key).map(|gang| gang.spec.queue.clone()) else {
            return false;
        };
        self.chain(&queue).into_iter().all(|queue| {
            let mut used = self.allocated_of(&queue).clone();
            for (of, amounts) in ending {
                if self.chain(of).contains(&queue) {
                    used.subtract(amounts);
                }
            }
            used.add(asked);
            let share = self.deserved(&queue);
            asked.keys().all(|key| share.limit(key).is_none_or(|share| used.get(key) <= share))
        })
    }

    /// The same once what uses its places has ended: the share may have become smaller since it was made.
    pub(super) fn is_hold_within_share(&mut self, key: GangKey, asked: &Amounts) -> bool {
        let stands = self.cluster.held_for(key).flat_map(|index| self.cluster.node(index).stands_for(key));
        let leases: BTreeSet<LeaseId> = stands.collect();
        let leases = leases.iter().filter_map(|id| self.leases.leases.get(id)).filter(|lease| lease.charged);
        let of_queue = |lease: &Lease| {
            let queue = self.gangs.gangs.get(&lease.gang?)?.spec.queue.clone();
            Some((queue, lease.taken.amounts.of_pod()))
        };
        let ending: Vec<_> = leases.filter_map(of_queue).collect();
        self.is_within_share(key, asked, &ending)
    }
}
