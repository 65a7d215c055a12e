//! Numbers of shadow mode.

use phalanx_common::shadow::ShadowOutcome;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Name;

/// One label: what came of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Compared {
    outcome: Name,
}

/// All of them; at zero in any other mode.
#[derive(Debug, Default)]
pub struct ShadowMetrics {
    pods: Family<Compared, Counter>,
    /// Pods that would have been bound.
    pub decided: Counter,
    /// Of these, those that the other scheduler has not placed.
    pub waiting: Gauge,
    /// Pods that would have been evicted.
    pub evictions: Counter,
}

impl ShadowMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("shadow_pods", "Pods compared with another scheduler's", self.pods.clone());
        registry.register("shadow_decided", "Pods that would have been bound", self.decided.clone());
        registry.register("shadow_waiting", "Of these not placed by the other one", self.waiting.clone());
        registry.register("shadow_evictions", "Pods that would have been evicted", self.evictions.clone());
        for outcome in ShadowOutcome::ALL {
            drop(self.pods.get_or_create(&Compared { outcome: Name(outcome.as_str()) }));
        }
    }

    /// Counts a pod that was compared.
    pub fn compared(&self, outcome: ShadowOutcome) {
        self.pods.get_or_create(&Compared { outcome: Name(outcome.as_str()) }).inc();
    }
}
