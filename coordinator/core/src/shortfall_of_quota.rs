//! How much of a ceiling a gang has to wait for where others would be evicted for a part of what it lacks: what the fix of
//! its reason says.

use phalanx_common::units::Time;

use crate::amounts::Amounts;
use crate::core::Core;
use crate::evictable::Tally;
use crate::eviction::{Lack, all_gone};
use crate::gang::{Gang, GangKey};
use crate::reason::Reason;
use crate::required::Required;
use crate::tree::Gone;
use crate::victims::{NoHelp, Unit};

impl Core {
    /// Gangs ahead of it were admitted below a ceiling that it lacks something of, and have no place yet. Were it admitted
    /// beside them, they would take that back whenever they are tried, and it would be admitted again, for ever.
    pub(crate) fn would_be_pushed_back(&self, gang: &Gang, lacks: &[Lack]) -> bool {
        let own = &gang.spec.queue;
        lacks.iter().any(|(ceiling, _, _)| {
            let below = self.queues.queues.iter().filter(|(name, _)| self.queues.is_below(name, ceiling));
            let mut below = below.filter(|(_, queue)| !queue.admitted.is_empty());
            below.any(|(name, queue)| {
                let is_other = |key: GangKey| key != gang.key() && !self.starts_with(gang.key(), key);
                let ahead = queue.admitted.iter().filter(|(order, _)| name != own || **order < gang.order);
                (name == own || self.queues.goes_before(name, own))
                    && ahead.into_iter().any(|(_, key)| is_other(*key))
            })
        })
    }

    /// What goes for gangs that others are evicted for, as far as it stands for what these are charged: who was admitted
    /// before does not take from them what is on its way to them, to see them admitted again at once.
    pub(crate) fn count_going_for_others(&self, key: GangKey, gone: &mut Gone) {
        for other in self.rooms.keys().filter(|other| **other != key) {
            let charge = self.gangs.gangs.get(other).map(|gang| gang.charge.clone());
            let mut left = charge.unwrap_or_default();
            for (queue, going) in self.going_for(*other) {
                let mut part = Amounts::default();
                going.keys().for_each(|key| part.set(key, going.get(key).min(left.get(key))));
                left.subtract(&part);
                gone.entry(queue).or_default().add(&part);
            }
        }
    }

    /// What of the ceiling that is reached would be lacking if others went for the rest, where that would do.
    pub(crate) fn short_with_evictions(
        &mut self,
        key: GangKey,
        required: &Required,
        lacks: &[Lack],
        reason: &Reason,
        now: Time,
    ) -> Option<u64> {
        let look = self.look_for_room(key, &required.pods, lacks, now);
        let Some(Err(NoHelp::Quota)) = look.room else { return None };
        let (left, less) = self.beside_freed(&look.victims.units, look.tally, lacks, reason)?;
        let room = self.look_for_room(key, &required.pods, &less, now).room;
        matches!(room, Some(Ok(_))).then_some(left)
    }

    /// The same for a gang whose pods do not exist yet.
    pub(crate) fn short_for_admission(
        &mut self,
        key: GangKey,
        charge: &Amounts,
        lacks: &[Lack],
        reason: &Reason,
    ) -> Option<u64> {
        let (victims, tally) = self.victims_for_quota(key, charge, lacks)?;
        let (left, less) = self.beside_freed(&victims.units, tally, lacks, reason)?;
        self.could_free_quota(key, charge, &less).then_some(left)
    }

    /// What is left to be lacking of the ceiling that is reached if all went that may, and what these must give back.
    fn beside_freed(
        &self,
        units: &[Unit],
        tally: Tally,
        lacks: &[Lack],
        reason: &Reason,
    ) -> Option<(u64, Vec<Lack>)> {
        let (queue, resource) = reason.ceiling()?;
        let resource = self.cluster.resources.find(resource)?;
        let at = lacks.iter().position(|(of, known, _)| of == queue && *known == resource)?;
        let freed = all_gone(units, tally).lost_of(queue, resource);
        let mut less = lacks.to_vec();
        let left = less[at].2.saturating_sub(freed);
        less[at].2 -= left;
        (freed > 0 && left > 0).then_some((left, less))
    }
}
