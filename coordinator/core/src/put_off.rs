//! Nobody is evicted, and nothing held, before all that may have a chance were tried: what queues are entitled to depends
//! on who can run at all.

use std::collections::BTreeSet;

use crate::core::Core;
use crate::gang::{Gang, GangKey};

impl Core {
    /// Shares are not known before it is known who can run at all: what can never run asks for none, and that is found
    /// out when it is tried. Where one of those to be tried was not tried with the nodes of now, nobody goes, and nothing
    /// is held, until all were.
    pub(crate) fn put_off_evictions(&mut self) {
        let generation = self.cluster.capacity_generation;
        let is_known = |gang: &Gang| gang.tried_with == Some(generation);
        let to_try = self.queues.to_try.iter().filter_map(|name| self.queues.get(name));
        let mut gangs = to_try.flat_map(|queue| queue.gangs_to_try());
        if gangs.any(|key| self.gangs.gangs.get(key).is_some_and(|gang| !is_known(gang))) {
            self.eviction_memory.put_off = Some(BTreeSet::new());
        }
    }

    /// It is known that the gang is tried once more in this pass.
    pub(crate) fn is_put_off(&self, key: GangKey) -> bool {
        self.eviction_memory.put_off.as_ref().is_some_and(|put_off| put_off.contains(&key))
    }

    /// True while nobody goes: the gang is tried once more in this pass.
    pub(crate) fn put_off(&mut self, key: GangKey) -> bool {
        self.eviction_memory.put_off.as_mut().is_some_and(|put_off| {
            put_off.insert(key);
            true
        })
    }

    /// All were tried: those for which others may have to go are tried again. True where there are any.
    pub(crate) fn take_up_evictions(&mut self) -> bool {
        let Some(put_off) = self.eviction_memory.put_off.take() else { return false };
        for key in &put_off {
            let gang = self.gangs.gangs.get(key).filter(|gang| self.is_waiting(gang));
            if let Some((queue, order)) = gang.map(|gang| (gang.spec.queue.clone(), gang.order)) {
                self.queues.try_again(&queue, order);
            }
        }
        self.refresh_shares();
        !put_off.is_empty()
    }
}
