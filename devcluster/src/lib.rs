//! A real API server with etcd, and hollow nodes: for tests, benches and `phalanx dev-cluster`.
//!
//! [`Servers`] are etcd, kube-apiserver and what else is asked for, on free loopback ports, with their data in a folder
//! of their own. They end with the value or with this process, whatever ends it.
//!
//! With the feature `hollow`, [`hollow`] has nodes without machines: real agents, and a stand-in for the kubelets; and
//! [`installation`] is Phalanx itself on such servers: replicas of the coordinator and agents, as processes.

mod audit;
mod crds;
mod error;
mod folder;
#[cfg(feature = "hollow")]
pub mod hollow;
#[cfg(feature = "hollow")]
pub mod installation;
mod kubeconfig;
mod kubectl;
mod options;
mod pki;
mod process;
pub mod random;
mod servers;
mod tokens;

pub use audit::Audited;
pub use error::Error;
pub use kubeconfig::client as client_of;
pub use options::Options;
pub use phalanx_kube_binaries::{Tool, Version, ensure};
pub use servers::Servers;
pub use tokens::TokenOptions;
