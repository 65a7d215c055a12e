//! Whose pods are ours, and where our own objects stand.

use std::sync::Arc;

use crate::api::Object;
use crate::manifest::names::{SCHEDULER_PHALANX, SCHEDULER_VOLCANO};

/// How objects are read, as configured. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    schedulers: Arc<[Arc<str>]>,
    on_kubernetes: bool,
    namespace: Arc<str>,
    in_shadow: bool,
}

/// Namespace of what is the coordinator's own, where none is configured.
pub const OWN_NAMESPACE: &str = "phalanx-system";

impl Default for Reading {
    /// As standalone mode reads manifests.
    fn default() -> Self {
        Self::new([SCHEDULER_PHALANX, SCHEDULER_VOLCANO])
    }
}

impl Reading {
    /// Pods that name one of these schedulers are ours.
    #[must_use]
    pub fn new<S: AsRef<str>>(schedulers: impl IntoIterator<Item = S>) -> Self {
        let schedulers = schedulers.into_iter().map(|name| Arc::from(name.as_ref())).collect();
        Self { schedulers, on_kubernetes: false, namespace: Arc::from(OWN_NAMESPACE), in_shadow: false }
    }

    /// The same on a cluster, where kubelets start pods.
    #[must_use]
    pub fn on_kubernetes(mut self) -> Self {
        self.on_kubernetes = true;
        self
    }

    /// The same where nothing is done: what a coordinator that leads has written onto pods is not ours.
    #[must_use]
    pub fn in_shadow(mut self) -> Self {
        self.in_shadow = true;
        self
    }

    /// True where terms and leases that stand on pods are somebody else's.
    #[must_use]
    pub const fn is_in_shadow(&self) -> bool {
        self.in_shadow
    }

    /// The same where what is the coordinator's own stands in this namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Arc::from(namespace);
        self
    }

    /// Namespace of what is the coordinator's own: the plans.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What a Binding says of a pod's GPUs: whether the pod gets exactly these, or so many, because kubelets choose them.
    #[must_use]
    pub const fn exactness(&self) -> &'static str {
        if self.on_kubernetes { "count" } else { "exact" }
    }

    /// True where a pod that names no PodGroup, and that nothing looks after, is placed without one: the object is made
    /// later, for people to look at.
    #[must_use]
    pub const fn has_lone_pods(&self) -> bool {
        self.on_kubernetes
    }

    /// True where pods have volumes. Standalone pods have none at all, and say so when they are applied.
    #[must_use]
    pub const fn has_volumes(&self) -> bool {
        self.on_kubernetes
    }

    /// Names of the schedulers whose pods are ours.
    pub fn schedulers(&self) -> impl Iterator<Item = &str> {
        self.schedulers.iter().map(|name| &**name)
    }

    /// True for a pod that names one of our schedulers.
    #[must_use]
    pub fn is_ours(&self, pod: &Object) -> bool {
        let scheduler = pod.spec.get("schedulerName").and_then(|name| name.as_str());
        scheduler.is_some_and(|scheduler| self.schedulers().any(|ours| ours == scheduler))
    }
}
