//! The QUIC server: who is let in, as whom, and how messages go both ways.
//!
//! Each connection has one task that reads and one that writes. The reader waits for the driver where that is
//! busy; nobody waits for a slow agent: one that takes nothing for some seconds, or has too much before it, is cut
//! off. One that says more than any node has to say is read more slowly, and feels that in its own stream.

mod accept;
pub mod authority;
mod budget;
mod credential;
mod gate;
mod session;
mod standby;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use phalanx_common::ids::{ClusterId, LeaseId, NodeName, PodUid, Term};
use phalanx_common::wire::{FromAgent, Hello, MAX_LEASES, ToAgent};
use quinn::{Connection, Endpoint, VarInt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use self::budget::Quiet;
pub use self::credential::{Review, TokenCheck};
use crate::metrics::Metrics;

/// From the first packet to the Hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// An agent sends a heartbeat every two seconds.
const SILENCE: Duration = Duration::from_secs(6);
/// Messages that wait for one agent. One pass may have something to say of every lease a node can have, and the
/// next pass again before the first message has left.
const OUTBOX_MESSAGES: usize = 4 * MAX_LEASES;
/// An agent is slow when it takes nothing for so long. However much waits, one that goes on taking is not.
const STALLED: Duration = Duration::from_secs(5);
/// How long a rejected agent has to read why.
const REJECTION: Duration = Duration::from_secs(1);
/// One line about connections that are shed in this time.
const SHED_LINE: Duration = Duration::from_secs(10);
/// So many lines at once about agents that are not let in, and then one in this time.
const REFUSED_LINES: u32 = 20;
const REFUSED_LINE: Duration = Duration::from_secs(1);

/// Codes of connections that the coordinator ends.
mod code {
    pub(super) const STOPPING: u32 = 0;
    pub(super) const REJECTED: u32 = 1;
    pub(super) const SLOW: u32 = 2;
    pub(super) const SILENT: u32 = 3;
    pub(super) const INVALID: u32 = 4;
    pub(super) const REPLACED: u32 = phalanx_transport::REPLACED_CODE;
    pub(super) const IDENTITY: u32 = 6;
}

/// What happens at the agents, for the driver.
#[derive(Debug)]
pub enum AgentInput {
    /// An agent was let in.
    Connected {
        /// Number of the connection.
        session: u64,
        /// What the agent told; of an agent of another cluster only what its node has.
        hello: Box<Hello>,
        /// Where messages to it go.
        outbox: Outbox,
    },
    /// Its connection has ended.
    Gone {
        /// The node.
        node: NodeName,
        /// The connection.
        session: u64,
    },
    /// It said something that the core must know.
    Said {
        /// The node.
        node: NodeName,
        /// The connection.
        session: u64,
        /// The message.
        message: Box<FromAgent>,
        /// Its place among the connection's messages that the loop has not taken.
        place: Place,
    },
}

/// Held while a message waits for the loop. A connection has few of them, so that one that says much fills
/// nobody else's queue.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

/// What agents tell of pods: in standalone mode they stand for the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodReport {
    /// A pod was started.
    Started {
        /// The node.
        node: NodeName,
        /// The agent's session: what an older one said may be read after what a newer one said.
        session: u64,
        /// The pod.
        pod: PodUid,
    },
    /// A pod has ended by itself.
    Ended {
        /// The node.
        node: NodeName,
        /// The pod.
        pod: PodUid,
        /// It ended well.
        succeeded: bool,
    },
    /// A pod was stopped on request and is gone.
    Stopped {
        /// The node.
        node: NodeName,
        /// The pod.
        pod: PodUid,
    },
    /// A lease is gone: nothing of its pod runs.
    LeaseGone {
        /// The node.
        node: NodeName,
        /// The agent's session.
        session: u64,
        /// The lease.
        lease: LeaseId,
    },
}

/// The queue to one agent.
#[derive(Clone, Debug)]
pub struct Outbox {
    messages: mpsc::Sender<ToAgent>,
    end: End,
}

/// A connection, and whether it was ended because the agent was slow: that is counted and logged once.
#[derive(Clone, Debug)]
struct End {
    connection: Connection,
    slow: Arc<AtomicBool>,
}

impl End {
    fn of(connection: Connection) -> Self {
        Self { connection, slow: Arc::default() }
    }

    fn close_slow(&self) {
        self.slow.store(true, Ordering::Release);
        self.connection.close(VarInt::from_u32(code::SLOW), b"messages are taken too slowly");
    }

    fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Acquire)
    }
}

/// The connection has ended, or was ended because the agent is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent;

impl Outbox {
    /// Puts a message into the queue; never waits.
    ///
    /// # Errors
    /// The connection has ended, or ends now because the queue is full.
    pub fn send(&self, message: ToAgent) -> Result<(), NotSent> {
        // The writer may still make room in what is given up already.
        if self.end.is_slow() {
            return Err(NotSent);
        }
        self.messages.try_send(message).map_err(|error| {
            if matches!(error, mpsc::error::TrySendError::Full(_)) {
                self.end.close_slow();
            }
            NotSent
        })
    }

    /// Ends the connection because the node has a newer one.
    pub fn replaced(&self) {
        self.end.connection.close(VarInt::from_u32(code::REPLACED), b"the node has a newer connection");
    }
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    cluster: ClusterId,
    term: watch::Receiver<Term>,
    sessions: AtomicU64,
    driver: mpsc::Sender<AgentInput>,
    pods: mpsc::Sender<PodReport>,
    metrics: Arc<Metrics>,
    /// Looks at the tokens of those that have no certificate; without it each must have one.
    tokens: Option<TokenCheck>,
    /// Agents that are asked for a Hello at once, when this coordinator begins to lead.
    promotions: Arc<Semaphore>,
    /// Lines about connections that are shed.
    shed_lines: Quiet,
    /// Lines about agents that are not let in.
    refused_lines: Quiet,
}

/// The server; dropping it leaves the connections to their ends, `stop` ends them.
#[derive(Debug)]
pub struct AgentServer {
    endpoint: Endpoint,
    accepting: JoinHandle<()>,
}

/// What the server needs to know and where it tells.
#[derive(Debug)]
pub struct AgentServerParts {
    /// The cluster.
    pub cluster: ClusterId,
    /// The leader's term, for the Welcome. As long as it is `Term::default()` this coordinator does not lead: agents are
    /// kept, and the driver hears of none of them.
    pub term: watch::Receiver<Term>,
    /// To the driver; bounded by its maker.
    pub driver: mpsc::Sender<AgentInput>,
    /// To what stands for the kubelet; bounded by its maker.
    pub pods: mpsc::Sender<PodReport>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
}

impl AgentServer {
    /// Lets agents with a certificate in from now on.
    #[must_use]
    pub fn start(endpoint: Endpoint, parts: AgentServerParts) -> Self {
        Self::start_with(endpoint, parts, None)
    }

    /// As `start`, and those without a certificate whose token this check takes. The endpoint must let them come:
    /// `PeerCertificate::Optional`.
    #[must_use]
    pub fn start_with(endpoint: Endpoint, parts: AgentServerParts, tokens: Option<TokenCheck>) -> Self {
        let AgentServerParts { cluster, term, driver, pods, metrics } = parts;
        let shared = Arc::new(Shared {
            cluster,
            term,
            sessions: AtomicU64::new(1),
            driver,
            pods,
            metrics,
            tokens,
            promotions: Arc::new(Semaphore::new(standby::PROMOTIONS)),
            shed_lines: Quiet::new(1, SHED_LINE),
            refused_lines: Quiet::new(REFUSED_LINES, REFUSED_LINE),
        });
        let accepting = tokio::spawn(accept::run(endpoint.clone(), shared));
        Self { endpoint, accepting }
    }

    /// Address agents dial; `None` where the system does not say.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr().ok()
    }

    /// Ends all connections, and waits a moment until the agents know.
    pub async fn stop(self) {
        self.accepting.abort();
        // First those who are being let in are given up, so that the end of their connections is told of none.
        let _ = self.accepting.await;
        self.endpoint.close(VarInt::from_u32(code::STOPPING), b"the coordinator stops");
        let _ = tokio::time::timeout(REJECTION, self.endpoint.wait_idle()).await;
    }
}

impl Shared {
    /// Says that somebody was not let in; of many at once only some.
    fn refused(&self, address: SocketAddr, cause: &str, why: &str) {
        if let Some(left_out) = self.refused_lines.ask() {
            tracing::warn!(%address, cause, left_out, "an agent was not let in: {why}");
        }
    }

    fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }
}
