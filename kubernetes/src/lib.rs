//! What Phalanx needs of Kubernetes beside its decisions.
//!
//! `crds`: our custom resources, and Volcano's, as Rust types. `client`: how the API server is reached, with a time-out
//! and a rate limit of our own. `election`: who leads, and the counter of the term. `identity`: who an agent is.

pub mod client;
pub mod crds;
pub mod election;
pub mod identity;
