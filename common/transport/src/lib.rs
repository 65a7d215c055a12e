//! QUIC as coordinator and agents use it: certificates, endpoints and framing.
//!
//! The shape of a connection: the agent dials and opens ONE bidirectional control stream. Its first
//! frame is a `Hello` in the form of version 1; the answer is `Welcome` or `Rejected`. After the Welcome,
//! frames of the agreed version go both ways on that stream. A TLS 1.3 client is connected before the server
//! has looked at its certificate, so the link counts as up only after the Welcome.
//!
//! The coordinator takes an agent's name from its verified certificate (`pki::peer_node_name`), never from a message.

pub mod endpoint;
pub mod frames;
pub mod pki;

pub use endpoint::{EndpointError, PeerCertificate, SocketBuffers};
pub use endpoint::{client_config, client_endpoint, server_config, server_endpoint};
pub use frames::{ControlReader, ControlWriter, FrameError, FrameReader, FrameWriter};
pub use frames::{accept_control, open_control};
pub use pki::{CertificateAuthority, Identity, PeerError, PkiError, TrustAnchor, peer_node_name};

/// The name by which agents know every coordinator, whatever its address: a DNS name in its certificate.
pub const COORDINATOR_NAME: &str = "phalanx-coordinator";

/// The name by which agents that show a token know every coordinator: that of its Service in Kubernetes.
pub const KUBERNETES_COORDINATOR_NAME: &str = "phalanx-coordinator.phalanx-system.svc";

/// Code of a connection that the coordinator ends because the node has a newer one.
pub const REPLACED_CODE: u32 = 5;

/// What stands before the node's name in the URI of an agent's certificate.
pub const NODE_URI_PREFIX: &str = "spiffe://phalanx.dev/node/";
