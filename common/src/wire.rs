//! Messages between coordinator and agent.
//!
//! bincode cannot grow a field: a changed message is a new variant, appended at the end of its enum,
//! with the version that brought it in `since`. Hello carries the versions an agent speaks, Welcome
//! the one that both use from then on; neither ever changes its form. All messages may arrive twice,
//! late or not at all, and are safe to repeat.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::gang::PodRequest;
use crate::ids::{ClusterId, GangName, GpuId, LeaseId, NodeName, PodUid, Term};
use crate::topology::{GpuHealth, Inventory};
use crate::units::Millis;

pub mod codec;

/// Newest version of the messages this build speaks.
pub const VERSION: u16 = 3;
/// Oldest version this build still serves.
pub const OLDEST_VERSION: u16 = 1;
/// Application protocol of the QUIC connection.
pub const ALPN: &[u8] = b"phalanx/1";
/// Most leases in one message.
pub const MAX_LEASES: usize = 4096;
/// Version that brought coordinators that do not lead, and tokens.
pub const STANDBY_SINCE: u16 = 3;
/// Longest bearer token; those of Kubernetes have one to two KiB.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Reads a sequence of at most `MAX` elements; a longer one is refused before memory is taken for it.
///
/// # Errors
/// More than `MAX` elements, or an element that does not decode.
pub fn limited<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Limited<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Limited<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
            let announced = sequence.size_hint().unwrap_or(0);
            if announced > MAX {
                return Err(A::Error::invalid_length(announced, &self));
            }
            let mut elements = Vec::with_capacity(announced);
            while let Some(element) = sequence.next_element()? {
                if elements.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    deserializer.deserialize_seq(Limited::<T, MAX>(PhantomData))
}

/// A token that says who an agent is. Whoever has it can pose as that agent, so it is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BearerToken(#[serde(deserialize_with = "short_text::<_, MAX_TOKEN_BYTES>")] String);

impl BearerToken {
    /// Takes a token; `None` where it is longer than a token may be.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (text.len() <= MAX_TOKEN_BYTES).then(|| Self(text.to_owned()))
    }

    /// The token itself.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BearerToken({} bytes)", self.0.len())
    }
}

fn short_text<'de, D: Deserializer<'de>, const MAX: usize>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = text.len();
    if bytes <= MAX {
        return Ok(text);
    }
    Err(D::Error::custom(format_args!("a text of {bytes} bytes: at most {MAX} are allowed")))
}

/// How firmly a lease names devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exactness {
    /// These UUIDs. Devices of other kinds that the pod asks for beside its GPUs are counted all the same.
    #[default]
    Exact,
    /// So many, whichever the node's plugin picks.
    Count,
}

/// Devices of one container, in the order of the pod's containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerDevices {
    /// Container by name.
    pub container: Arc<str>,
    /// Its GPUs.
    #[serde(deserialize_with = "limited::<_, _, { crate::topology::MAX_GPUS_PER_NODE }>")]
    pub gpus: Vec<GpuId>,
    /// Its NICs, by device name; empty until requests for RDMA are placed.
    #[serde(deserialize_with = "limited::<_, _, { crate::topology::MAX_NICS_PER_NODE }>")]
    pub nics: Vec<Arc<str>>,
}

/// What the coordinator asks an agent to promise: the pod's whole request and its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The pod.
    pub pod: PodUid,
    /// Its namespace and name.
    pub pod_name: GangName,
    /// Its gang.
    pub gang: GangName,
    /// Everything it asks for, container by container.
    pub request: PodRequest,
    /// Devices chosen for each container that has some.
    #[serde(deserialize_with = "limited::<_, _, { crate::gang::MAX_CONTAINERS }>")]
    pub devices: Vec<ContainerDevices>,
    /// Whether the devices are exact.
    pub exactness: Exactness,
    /// Standalone mode: how long the pod runs.
    pub run_for: Option<Millis>,
}

impl LeaseRequest {
    /// All GPUs of the pod. Containers of one pod may share a GPU over time (init, then app): each is
    /// listed once.
    #[must_use]
    pub fn gpus(&self) -> Vec<GpuId> {
        let mut gpus: Vec<GpuId> =
            self.devices.iter().flat_map(|devices| devices.gpus.iter().copied()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus
    }
}

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseState {
    /// Promised in memory; ends by the agent's clock.
    Reserved,
    /// On disk; never ends by itself.
    Armed,
    /// Its pod is bound to the node.
    Bound,
    /// Its gang is wholly bound and its pod was let through the start gate. After a boot of the machine it counts
    /// as bound until its GPUs are seen again.
    Started,
    /// Asked to end; its pod may still run.
    Releasing,
    /// No more; the GPUs are free.
    Gone,
}

/// One lease as an agent reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// The lease.
    pub lease: LeaseId,
    /// Its state.
    pub state: LeaseState,
    /// What it is for.
    pub request: LeaseRequest,
}

/// Why an agent did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCause {
    /// A coordinator of a newer term, or another one of this term, is obeyed.
    StaleTerm(Term),
    /// The lease was released or has expired in this term.
    Released,
    /// No lease of this id is known.
    UnknownLease,
    /// The node has no such GPU.
    UnknownGpu(GpuId),
    /// The GPU is not healthy.
    Unhealthy(GpuId, GpuHealth),
    /// The GPU is promised to another lease.
    Held(GpuId, LeaseId),
    /// The pod already has another lease here.
    PodHasLease(LeaseId),
    /// Not enough of a resource: name, free, asked.
    Short(Arc<str>, u64, u64),
    /// The devices do not add up to the request.
    Malformed(Arc<str>),
    /// The ledger could not be written; the text is the system's.
    Disk(Arc<str>),
}

/// Name under which an agent refuses for want of room in its list of leases, which must fit into one message.
pub const LEASE_BYTES: &str = "phalanx.dev/lease-bytes";

impl fmt::Display for RefusalCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StaleTerm(term) => write!(formatter, "it obeys term {term}"),
            Self::Released => write!(formatter, "the lease was released or has expired"),
            Self::UnknownLease => write!(formatter, "it knows no such lease"),
            Self::UnknownGpu(gpu) => write!(formatter, "unknown UUID {gpu}: the node has no such GPU"),
            Self::Unhealthy(gpu, GpuHealth::Failed(text)) => write!(formatter, "{gpu} has failed: {text}"),
            Self::Unhealthy(gpu, _) => write!(formatter, "{gpu} is lost"),
            Self::Held(gpu, lease) => write!(formatter, "{gpu} is held by lease {lease}"),
            Self::PodHasLease(lease) => write!(formatter, "the pod has lease {lease} there already"),
            Self::Short(name, free, asked) if &**name == LEASE_BYTES => {
                write!(formatter, "its list of leases is full: {free} bytes are free, the pod takes {asked}")
            }
            Self::Short(name, free, asked) => {
                write!(formatter, "short of {name}: {free} free, {asked} asked")
            }
            Self::Malformed(text) => formatter.write_str(text),
            Self::Disk(text) => write!(formatter, "its ledger cannot be written: {text}"),
        }
    }
}

/// What an agent tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// First message of a connection, but for a token; always in the form of version 1. Sent again when a
    /// coordinator that begins to lead asks for it.
    Hello(Hello),
    /// Everything the node has, after a change of what is there.
    Inventory(Inventory),
    /// Alive. Sent every two seconds when nothing else is.
    Heartbeat,
    /// The lease is promised.
    Reserved {
        /// Term of the request.
        term: Term,
        /// The lease.
        lease: LeaseId,
    },
    /// The request was refused; with what the node has and who holds it now. Where the ledger cannot be written one
    /// such message stands for all that was asked alike, the others are answered by `LeaseIs`; it is also sent, unasked,
    /// while a lease that ends cannot be written down.
    Refused {
        /// Term of the request.
        term: Term,
        /// The lease.
        lease: LeaseId,
        /// Why.
        cause: RefusalCause,
        /// Fresh inventory.
        inventory: Box<Inventory>,
        /// All leases.
        #[serde(deserialize_with = "limited::<_, _, MAX_LEASES>")]
        leases: Vec<LeaseReport>,
    },
    /// State of a lease: the answer to Arm, Bound, GangBound and Release, and sent unasked when a
    /// lease expires or its pod is really gone. It may be less than what was asked for: what is armed is not on
    /// disk yet, or the machine has booted and the lease's GPUs are not seen yet. Whoever wants more asks again.
    LeaseIs {
        /// Term under which it was asked, or the newest known.
        term: Term,
        /// The lease.
        lease: LeaseId,
        /// Its state.
        state: LeaseState,
    },
    /// Standalone mode: what a pod does. The agent repeats it until the lease is released.
    PodStarted {
        /// The pod.
        pod: PodUid,
    },
    /// Standalone mode: the pod has ended by itself.
    PodEnded {
        /// The pod.
        pod: PodUid,
        /// It ended well.
        succeeded: bool,
    },
    /// Standalone mode: the pod was stopped on request and is gone.
    PodStopped {
        /// The pod.
        pod: PodUid,
    },
    /// Since version 2: some GPUs changed their health; nothing else did.
    HealthChanged {
        /// GPU and its new health.
        #[serde(deserialize_with = "limited::<_, _, { crate::topology::MAX_GPUS_PER_NODE }>")]
        gpus: Vec<(GpuId, GpuHealth)>,
    },
    /// Since version 3: who the agent is, where it has no certificate. Comes before the first Hello, and again when the
    /// node has a newer token.
    Token(BearerToken),
}

/// An agent's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest version the agent speaks.
    pub oldest_version: u16,
    /// Newest version the agent speaks.
    pub newest_version: u16,
    /// Node the agent guards; must equal the name in its certificate.
    pub node: NodeName,
    /// Cluster its ledger belongs to; `None` before the first Welcome.
    pub cluster: Option<ClusterId>,
    /// Highest term it knows.
    pub highest_term: Term,
    /// What the node has.
    pub inventory: Inventory,
    /// Who holds it.
    #[serde(deserialize_with = "limited::<_, _, MAX_LEASES>")]
    pub leases: Vec<LeaseReport>,
}

/// What the coordinator tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Answer to Hello; always in the form of version 1.
    Welcome {
        /// Version of all further messages.
        version: u16,
        /// The cluster.
        cluster: ClusterId,
        /// The leader's term.
        term: Term,
    },
    /// Answer to a Hello that is not taken; the connection ends.
    Rejected {
        /// Why, and what to change.
        message: String,
    },
    /// Promise these devices to this pod.
    Reserve {
        /// The leader's term.
        term: Term,
        /// The lease.
        lease: LeaseId,
        /// What for.
        request: Box<LeaseRequest>,
        /// The promise ends after this time unless it is armed.
        expires_in_ms: Millis,
    },
    /// Write the lease to disk; from now on it never ends by itself.
    Arm {
        /// The leader's term.
        term: Term,
        /// The lease.
        lease: LeaseId,
    },
    /// The pod is bound to the node.
    Bound {
        /// The leader's term.
        term: Term,
        /// The lease.
        lease: LeaseId,
    },
    /// The whole gang is bound: the pod may start.
    GangBound {
        /// The leader's term.
        term: Term,
        /// The lease.
        lease: LeaseId,
    },
    /// End the lease: its pod has ended, was deleted, or was never bound.
    Release {
        /// The leader's term.
        term: Term,
        /// The lease.
        lease: LeaseId,
    },
    /// Since version 3: answer to Hello by a coordinator that does not lead. The connection stays, so that the agent
    /// is there at once when this coordinator begins to lead.
    Standby {
        /// Version of all further messages.
        version: u16,
        /// The cluster.
        cluster: ClusterId,
        /// Term of the leader as far as this coordinator knows; for people, never obeyed.
        term: Term,
    },
    /// Since version 3: this coordinator leads now. The agent says Hello again, with what is true now.
    SayHello,
}

impl FromAgent {
    /// Version that brought this message.
    #[must_use]
    pub const fn since(&self) -> u16 {
        match self {
            Self::HealthChanged { .. } => 2,
            Self::Token(_) => STANDBY_SINCE,
            _ => 1,
        }
    }
}

impl ToAgent {
    /// Version that brought this message.
    #[must_use]
    pub const fn since(&self) -> u16 {
        match self {
            Self::Standby { .. } | Self::SayHello => STANDBY_SINCE,
            _ => 1,
        }
    }
}
