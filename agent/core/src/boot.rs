//! What a start of the agent, or a boot of the machine, makes of the leases on disk.

use phalanx_common::ids::{GpuId, LeaseId};
use phalanx_common::planted::{self, Bug};
use phalanx_common::topology::ProbeState;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::LeaseState;

use crate::action::{Action, Warning};
use crate::core::{Core, LEDGER_RETRY_MS, start_pod};
use crate::inventory::health;
use crate::leases::{Lease, Phase};
use crate::ledger::Ledger;

impl Core {
    /// Takes over what the disk holds. In the same boot pods go on for the rest of their time; after another one they
    /// begin anew, those with GPUs once these are seen to be there.
    pub(crate) fn recover(&mut self, ledger: Ledger, now: Time, actions: &mut Vec<Action>) {
        self.cluster = ledger.cluster;
        self.highest_term = ledger.highest_term;
        let same_boot = ledger.boot_id == self.boot_id && !planted::is(Bug::RestartPodsAnew);
        for stored in ledger.leases {
            let id = stored.lease;
            let mut lease = Lease::stored(stored);
            if planted::is(Bug::RestartReserves) && lease.phase == Phase::Armed {
                lease.phase = Phase::Reserved { expires_at: now + LEDGER_RETRY_MS };
            }
            if let Some(other) = self.leases.conflict(&lease) {
                self.touch();
                actions.push(Action::Warn(Warning::StoredLease(id, other)));
                continue;
            }
            let is_promised =
                matches!(lease.phase, Phase::Armed | Phase::Bound | Phase::Started { ended: None, .. });
            lease.unverified = (lease.unverified || !same_boot) && is_promised && !lease.gpus.is_empty();
            match &mut lease.phase {
                // Nothing of it runs any more.
                Phase::Started { ended: None, .. } if lease.unverified => lease.known = LeaseState::Bound,
                Phase::Started { at, ended: None } => {
                    let mut run_for = lease.request.run_for;
                    if same_boot {
                        run_for = run_for.map(|whole| Millis(whole.0.saturating_sub((now - *at).0)));
                    } else {
                        *at = now;
                    }
                    actions.push(start_pod(id, &lease, run_for));
                }
                Phase::Releasing => actions.push(Action::StopPod { pod: lease.request.pod.clone() }),
                Phase::Reserved { .. }
                | Phase::Armed
                | Phase::Bound
                | Phase::Started { .. }
                | Phase::Ending { .. } => {}
            }
            self.leases.insert(id, lease);
        }
        if !same_boot {
            self.touch();
        }
    }

    /// After a boot: which leases name GPUs that are still there. What runs in them begins anew, the others are void;
    /// nothing runs in those, since nothing survives a boot. A driver that tells of no GPU at all proves nothing. A pod
    /// that was let through the start gate, before the boot or since, then starts in `finish`.
    pub(crate) fn verify(&mut self, now: Time, actions: &mut Vec<Action>) {
        let Some(inventory) = &self.inventory else { return };
        if inventory.state != ProbeState::Ready || inventory.gpus.is_empty() {
            return;
        }
        let missing =
            |lease: &Lease| lease.gpus.iter().find(|gpu| health(inventory, **gpu).is_none()).copied();
        let unverified = self.leases.iter().filter(|(_, lease)| lease.unverified);
        let found: Vec<(LeaseId, Option<GpuId>)> =
            unverified.map(|(id, lease)| (*id, missing(lease))).collect();
        for (id, missing) in found {
            self.touch();
            let Some(lease) = self.leases.get_mut(id) else { continue };
            lease.unverified = false;
            match (missing, &mut lease.phase) {
                (Some(gpu), _) => {
                    let name = lease.request.pod_name.clone();
                    actions.push(Action::Warn(Warning::VoidLease(id, name, gpu)));
                    self.advance(id, Phase::Ending { stopped: false });
                    self.answer(self.highest_term, id);
                }
                (None, Phase::Started { at, ended: None }) => *at = now,
                (None, _) => {}
            }
        }
    }
}
