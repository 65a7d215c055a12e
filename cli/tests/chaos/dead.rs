//! What is looked at before a process that died is started again: its disk, which nobody repairs meanwhile.

use std::fs;
use std::path::Path;

use phalanx_coordinator::api::embedded::EmbeddedApi;
use phalanx_coordinator::api::store::node_name;
use phalanx_coordinator::api::{Api, Kind};

use crate::cluster::Cluster;
use crate::look::{Place, Seen, in_store, on_disk};

impl Seen {
    /// After the death of a coordinator, an agent, or both, and before any of them is started again: what is bound now
    /// stays bound to its place, and no GPU has two holders.
    pub fn look_at_the_dead(&mut self, cluster: &Cluster) {
        let coordinator = &cluster.coordinator;
        if coordinator.process.as_ref().is_none_or(crate::cluster::Running::was_reaped) {
            self.store_on_disk(&coordinator.state_dir);
            self.before_death = self.bound.keys().cloned().collect();
        } else {
            // It lives, and where it does not answer at the moment it is looked at later.
            let _ = in_store(coordinator, self);
        }
        on_disk(&cluster.agents, self);
    }

    /// The pods in the store of a coordinator that does not run.
    fn store_on_disk(&mut self, state_dir: &Path) {
        // A copy: opening repairs the file, and the next process is to find it as it was left.
        let copy = tempfile::tempdir().unwrap();
        let file = copy.path().join("objects.redb");
        fs::copy(state_dir.join("objects.redb"), &file).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (pods, _) = runtime.block_on(async {
            let api = EmbeddedApi::open(&file).unwrap();
            api.list(Some(Kind::Pod)).await.unwrap()
        });
        for pod in pods {
            let Some(node) = node_name(&pod) else { continue };
            let annotation = |name: &str| pod.annotation(name).unwrap_or_default().to_owned();
            let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
            let place = Place {
                gang: format!("{}/{}", pod.metadata.namespace, annotation("scheduling.k8s.io/group-name")),
                node: node.to_owned(),
                lease: annotation("phalanx.dev/lease-id"),
            };
            self.bound(&pod.metadata.uid, &name, place);
        }
    }
}
