//! Who an agent is, in Kubernetes: the API server says whose token it shows, and we that it is the one agent of a node.
//!
//! A token is taken where the API server takes it for our audience, it is of the agents' ServiceAccount, it is bound to a
//! pod and a node, the pod is still there, is of our DaemonSet and on that node, and the node is still the same. Whoever
//! may create pods or tokens in our namespace can pose as an agent: that is for RBAC to keep.

mod authority;
mod claims;
mod review;

use std::time::SystemTime;

use thiserror::Error;

pub use self::authority::{AuthorityError, AuthorityPems, AuthorityStore, Stored};
pub use self::review::Reviewer;

/// Audience of agents' tokens.
pub const AUDIENCE: &str = "phalanx";
/// ServiceAccount of agents.
pub const AGENT_SERVICE_ACCOUNT: &str = "phalanx-agent";
/// DaemonSet of agents.
pub const AGENT_DAEMON_SET: &str = "phalanx-agent";

/// Whom a token lets speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// Name of the node.
    pub node: String,
    /// UID of the node.
    pub node_uid: String,
    /// Name of the agent's pod.
    pub pod: String,
    /// UID of the agent's pod.
    pub pod_uid: String,
    /// When the token ends.
    pub expires: SystemTime,
}

/// Why a token is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenRefusal {
    /// It is no token of Kubernetes.
    #[error("the token cannot be read: {0}")]
    Malformed(String),
    /// It has ended.
    #[error("the token has expired, {0} s ago")]
    Expired(u64),
    /// It is for somebody else.
    #[error(
        "token is for audience {0}, not for {AUDIENCE}: project one with the audience {AUDIENCE} into the agent's pod"
    )]
    Audience(String),
    /// The API server does not take it.
    #[error("the API server does not take the token: {0}")]
    NotAuthenticated(String),
    /// It is another user's.
    #[error("token is of {found}, not of {wanted}")]
    User {
        /// Whose it is.
        found: String,
        /// The agents' ServiceAccount, as a user.
        wanted: String,
    },
    /// It is not bound to pod and node.
    #[error("token does not say {0}: only one that kubelet projects into the agent's pod is taken")]
    Unbound(&'static str),
    /// Its pod is gone.
    #[error("token of pod {0}, which is gone")]
    PodGone(String),
    /// Its pod was replaced.
    #[error("token of pod {pod} of UID {token}: the pod of this name has UID {now}")]
    PodReplaced {
        /// The pod.
        pod: String,
        /// UID in the token.
        token: String,
        /// UID of the pod that is there.
        now: String,
    },
    /// Its pod is not one of ours.
    #[error("pod {pod} is not owned by DaemonSet {AGENT_DAEMON_SET}: {owner}")]
    NotOurs {
        /// The pod.
        pod: String,
        /// Whose it is.
        owner: String,
    },
    /// Its pod is on another node.
    #[error("token of pod {pod} on node {token}: the pod is on node {now}")]
    PodElsewhere {
        /// The pod.
        pod: String,
        /// Node in the token.
        token: String,
        /// Node of the pod.
        now: String,
    },
    /// Its node is gone.
    #[error("token of pod {pod} on node {node}: the node is gone")]
    NodeGone {
        /// The pod.
        pod: String,
        /// The node.
        node: String,
    },
    /// Its node was replaced.
    #[error("token of pod {pod} on node {node} of UID {token}: the node of this name has UID {now}")]
    NodeReplaced {
        /// The pod.
        pod: String,
        /// The node.
        node: String,
        /// UID in the token.
        token: String,
        /// UID of the node that is there.
        now: String,
    },
    /// The API server did not say anything of use: the same token may be taken later.
    #[error("the token cannot be looked at now: {what}: {cause}")]
    Unanswered {
        /// What was asked.
        what: &'static str,
        /// What came of it.
        cause: String,
    },
}

impl TokenRefusal {
    /// True where the same token may be taken later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }

    /// A name for counting, from a closed list.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "token-malformed",
            Self::Expired(_) => "token-expired",
            Self::Audience(_) => "token-audience",
            Self::NotAuthenticated(_) => "token-not-authenticated",
            Self::User { .. } => "token-user",
            Self::Unbound(_) => "token-unbound",
            Self::PodGone(_) | Self::PodReplaced { .. } | Self::PodElsewhere { .. } => "token-pod",
            Self::NotOurs { .. } => "token-owner",
            Self::NodeGone { .. } | Self::NodeReplaced { .. } => "token-node",
            Self::Unanswered { .. } => "token-unanswered",
        }
    }
}
