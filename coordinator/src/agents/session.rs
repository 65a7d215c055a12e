//! One agent's connection: admission, then messages both ways until it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use phalanx_common::ids::{NodeName, Term};
use phalanx_common::topology::{Inventory, InventoryError};
use phalanx_common::wire::{
    FromAgent, Hello, LeaseState, OLDEST_VERSION, STANDBY_SINCE, ToAgent, VERSION, codec,
};
use phalanx_transport::{ControlReader, ControlWriter, FrameError, accept_control, peer_node_name};
use quinn::{Connecting, Connection, VarInt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::budget::{Bucket, UNREAD, weight};
use super::credential::Credential;
use super::{AgentInput, End, OUTBOX_MESSAGES, Outbox, Place, PodReport};
use super::{REJECTION, SILENCE, STALLED, Shared, code, standby};

/// An agent that was let in.
pub(super) struct Session {
    number: u64,
    credential: Credential,
    /// This coordinator did not lead when the agent came.
    stands_by: bool,
    hello: Box<Hello>,
    connection: Connection,
    reader: ControlReader,
    writer: ControlWriter,
}

/// An agent that was not let in.
pub(super) struct Refusal {
    cause: &'static str,
    message: String,
    /// Where the answer can still be written.
    answer: Option<(Connection, ControlWriter)>,
}

impl Refusal {
    fn silent(cause: &'static str, message: impl ToString) -> Self {
        Self { cause, message: message.to_string(), answer: None }
    }

    /// Counts it, logs it, and tells the agent why where that is possible.
    pub(super) async fn tell(self, address: SocketAddr, shared: &Shared) {
        shared.metrics.reject(self.cause);
        shared.refused(address, self.cause, &self.message);
        let Some((connection, mut writer)) = self.answer else {
            return;
        };
        let message = ToAgent::Rejected { message: self.message };
        let telling = async {
            writer.send(&message).await?;
            writer.finish().await?;
            // The agent closes when it has read the answer; closing first could overtake it.
            connection.closed().await;
            Ok::<(), FrameError>(())
        };
        let _ = timeout(REJECTION, telling).await;
        connection.close(VarInt::from_u32(code::REJECTED), b"rejected");
    }
}

/// Handshake, identity, Hello and its checks, Welcome or, where this coordinator does not lead, Standby.
pub(super) async fn admit(connecting: Connecting, shared: &Shared) -> Result<Session, Refusal> {
    let connection = connecting.await.map_err(|error| Refusal::silent("handshake", error))?;
    if shared.tokens.is_none()
        && let Err(error) = peer_node_name(&connection)
    {
        connection.close(VarInt::from_u32(code::REJECTED), error.to_string().as_bytes());
        return Err(Refusal::silent("certificate", error));
    }
    let (mut reader, mut writer) =
        accept_control(&connection).await.map_err(|error| Refusal::silent("handshake", error))?;
    let credential = match Credential::of_peer(&connection, &mut reader, shared).await {
        Ok(credential) => credential,
        Err((cause, message)) => {
            return Err(Refusal { cause, message, answer: Some((connection, writer)) });
        }
    };
    let first = reader.next::<FromAgent>().await;
    let (cluster, term) = (shared.cluster.clone(), *shared.term.borrow());
    let stands_by = term == Term::default();
    let checked = check(first, &credential).and_then(|(hello, version)| {
        if stands_by && version < STANDBY_SINCE { Err(too_old(version)) } else { Ok((hello, version)) }
    });
    let (mut hello, version) = match checked {
        Ok(checked) => checked,
        Err((cause, message)) => {
            return Err(Refusal { cause, message, answer: Some((connection, writer)) });
        }
    };
    let unsent = |error| Refusal::silent("handshake", error);
    if stands_by {
        writer.set_version(version);
        writer.send(&ToAgent::Standby { version, cluster, term }).await.map_err(unsent)?;
        // What it has and holds is asked again when that matters.
        *hello = Hello { inventory: Inventory::empty(0, 0), leases: Vec::new(), ..*hello };
    } else {
        writer.send(&ToAgent::Welcome { version, cluster, term }).await.map_err(unsent)?;
        writer.set_version(version);
        clean(&mut hello, shared);
    }
    let number = shared.next_session();
    Ok(Session { number, credential, stands_by, hello, connection, reader, writer })
}

fn too_old(version: u16) -> (&'static str, String) {
    let message = format!(
        "this coordinator does not lead, and an agent that speaks message version {version} cannot wait for that: \
         it dials again by itself; upgrade the agent"
    );
    ("standby", message)
}

/// At the Welcome an agent sets another cluster's state aside: none of it counts here.
pub(super) fn clean(hello: &mut Hello, shared: &Shared) {
    if hello.cluster.as_ref().is_some_and(|cluster| *cluster != shared.cluster) {
        tracing::info!(node = %hello.node, "the agent comes from another cluster and starts clean");
        hello.leases.clear();
        hello.highest_term = Term::default();
    }
}

type Checked = Result<(Box<Hello>, u16), (&'static str, String)>;

/// Whether the first message is a Hello that can be taken.
pub(super) fn check(first: Result<Option<FromAgent>, FrameError>, credential: &Credential) -> Checked {
    let (node, what) = (&credential.node, &credential.what);
    let hello = match first {
        Ok(Some(FromAgent::Hello(hello))) => hello,
        Ok(Some(_)) => {
            return Err(("not-hello", "the first message of a connection must be Hello".to_owned()));
        }
        Ok(None) => return Err(("not-hello", "the control stream ended before a Hello".to_owned())),
        Err(error) => return Err(("frame", format!("the first message cannot be read: {error}"))),
    };
    if hello.node != *node {
        let asked = &hello.node;
        let message = if credential.is_token() {
            format!("{what}, Hello names node {asked}: start the agent with --node {node}")
        } else {
            format!(
                "Hello names node {asked}, and {what}: start the agent with --node {node}, or issue a certificate with \
                 `phalanx-coordinator issue-agent --node {asked}`"
            )
        };
        return Err(("node-name", message));
    }
    let Some(version) = codec::agree(hello.oldest_version, hello.newest_version) else {
        return Err((
            "version",
            format!(
                "the agent speaks message versions {} to {}, this coordinator {OLDEST_VERSION} to {VERSION}: \
                 upgrade the older of the two",
                hello.oldest_version, hello.newest_version
            ),
        ));
    };
    if let Err(error) = hello.inventory.check() {
        return Err(("inventory", format!("the inventory of node {node} cannot be used: {error}")));
    }
    Ok((Box::new(hello), version))
}

impl Session {
    /// Waits until this coordinator leads, tells the driver, then carries messages until the connection ends.
    pub(super) async fn run(mut self, shared: &Shared) {
        let mut promotion = None;
        if self.stands_by {
            match self.stand_by(shared).await {
                Ok((hello, permit)) => (self.hello, promotion) = (hello, Some(permit)),
                Err(why) => return self.close(&why),
            }
        }
        let Self { number, credential, hello, connection, reader, writer, .. } = self;
        let node = hello.node.clone();
        let (messages, outgoing) = mpsc::channel(OUTBOX_MESSAGES);
        let end = End::of(connection.clone());
        let outbox = Outbox { messages, end: end.clone() };
        if shared.driver.send(AgentInput::Connected { session: number, hello, outbox }).await.is_err() {
            return;
        }
        drop(promotion);
        shared.metrics.agents.inc();
        tracing::info!(%node, session = number, address = %connection.remote_address(), "an agent is connected");
        let writing = tokio::spawn(write(outgoing, writer, end.clone()));
        let why = Reading::new(&node, number, shared).run(reader, credential).await;
        if let Ending::Close(code, why) = &why {
            connection.close(VarInt::from_u32(*code), why.as_bytes());
        }
        writing.abort();
        shared.metrics.agents.dec();
        if end.is_slow() {
            shared.metrics.slow_agents.inc();
            tracing::warn!(%node, session = number, "the agent is too slow: its connection was ended");
        } else if matches!(why, Ending::Close(code::IDENTITY, _)) {
            tracing::warn!(%node, session = number, "the agent's connection was ended: {why}");
        } else {
            tracing::info!(%node, session = number, "the agent's connection has ended: {why}");
        }
        let _ = shared.driver.send(AgentInput::Gone { node, session: number }).await;
    }

    async fn stand_by(&mut self, shared: &Shared) -> Result<(Box<Hello>, OwnedSemaphorePermit), Ending> {
        let (node, session) = (&self.hello.node, self.number);
        tracing::info!(%node, session, address = %self.connection.remote_address(), "an agent stands by");
        shared.metrics.standing_by.inc();
        let outcome = standby::wait(&mut self.reader, &mut self.writer, &mut self.credential, shared).await;
        shared.metrics.standing_by.dec();
        outcome
    }

    /// Ends the connection of an agent of which the driver has not heard.
    fn close(&self, why: &Ending) {
        let (node, session) = (&self.hello.node, self.number);
        if let Ending::Close(code, why) = why {
            self.connection.close(VarInt::from_u32(*code), why.as_bytes());
        }
        if matches!(why, Ending::Close(code::IDENTITY | code::INVALID, _)) {
            tracing::warn!(%node, session, "the connection of an agent that stands by was ended: {why}");
        } else {
            tracing::info!(%node, session, "the connection of an agent that stands by has ended: {why}");
        }
    }
}

/// Why reading ended.
pub(super) enum Ending {
    /// The other side, or the driver, ended the connection.
    Ended(String),
    /// The connection is to be closed with this code.
    Close(u32, String),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(why) | Self::Close(_, why) => formatter.write_str(why),
        }
    }
}

async fn write(mut outgoing: mpsc::Receiver<ToAgent>, mut writer: ControlWriter, end: End) {
    while let Some(message) = outgoing.recv().await {
        match timeout(STALLED, writer.send(&message)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "a message could not be written");
                return;
            }
            Err(_) => return end.close_slow(),
        }
    }
}

/// The way of one connection's messages to the loop.
struct Reading<'s> {
    node: &'s NodeName,
    session: u64,
    shared: &'s Shared,
    budget: Bucket,
    unread: Arc<Semaphore>,
    /// It was said that this one is slowed.
    told: bool,
}

struct Stopped;

impl<'s> Reading<'s> {
    fn new(node: &'s NodeName, session: u64, shared: &'s Shared) -> Self {
        let budget = Bucket::of_messages(Instant::now());
        Self { node, session, shared, budget, unread: Arc::new(Semaphore::new(UNREAD)), told: false }
    }

    async fn run(mut self, mut reader: ControlReader, mut credential: Credential) -> Ending {
        loop {
            let heard = tokio::select! {
                heard = timeout(SILENCE, reader.next::<FromAgent>()) => heard,
                why = credential.ended() => return Ending::Close(code::IDENTITY, why),
            };
            let message = match heard {
                Err(_) => return Ending::Close(code::SILENT, "nothing was heard for 6 s".to_owned()),
                Ok(Ok(None)) => {
                    return Ending::Close(code::INVALID, "the control stream has ended".to_owned());
                }
                Ok(Ok(Some(message))) => message,
                Ok(Err(FrameError::Stream(error))) => return Ending::Ended(error.to_string()),
                Ok(Err(error)) => return Ending::Close(code::INVALID, error.to_string()),
            };
            self.slow_down(&message).await;
            if let FromAgent::Token(token) = message {
                credential.renew(token);
                continue;
            }
            if let Err(error) = check_inventory(&message) {
                return Ending::Close(code::INVALID, format!("its inventory cannot be used: {error}"));
            }
            if self.forward(message).await.is_err() {
                return Ending::Close(code::STOPPING, "the coordinator stops".to_owned());
            }
        }
    }

    /// Nothing is read meanwhile: the agent's stream fills, and then it can send no more.
    async fn slow_down(&mut self, message: &FromAgent) {
        let Some(wait) = self.budget.take(weight(message), Instant::now()) else { return };
        self.shared.metrics.throttled.inc();
        if !self.told {
            self.told = true;
            let (node, session) = (self.node, self.session);
            tracing::warn!(%node, session, "the agent says more than any node has to say: it is read slowly");
        }
        tokio::time::sleep(wait).await;
    }

    /// Sends a message where it belongs. Heartbeats have done their work by arriving.
    async fn forward(&self, message: FromAgent) -> Result<(), Stopped> {
        let (node, session) = (self.node.clone(), self.session);
        let report = match &message {
            FromAgent::Heartbeat => return Ok(()),
            FromAgent::Hello(_) => {
                tracing::debug!(%node, "a second Hello is ignored");
                return Ok(());
            }
            FromAgent::PodStarted { pod } => PodReport::Started { node, session, pod: pod.clone() },
            FromAgent::PodEnded { pod, succeeded } => {
                PodReport::Ended { node, pod: pod.clone(), succeeded: *succeeded }
            }
            FromAgent::PodStopped { pod } => PodReport::Stopped { node, pod: pod.clone() },
            FromAgent::LeaseIs { lease, state: LeaseState::Gone, .. } => {
                let report = PodReport::LeaseGone { node, session, lease: *lease };
                self.tell_driver(message).await?;
                report
            }
            _ => return self.tell_driver(message).await,
        };
        self.shared.pods.send(report).await.map_err(|_| Stopped)
    }

    async fn tell_driver(&self, message: FromAgent) -> Result<(), Stopped> {
        let permit = Arc::clone(&self.unread).acquire_owned().await.map_err(|_| Stopped)?;
        let (node, session, message) = (self.node.clone(), self.session, Box::new(message));
        let input = AgentInput::Said { node, session, message, place: Place { _permit: permit } };
        self.shared.driver.send(input).await.map_err(|_| Stopped)
    }
}

fn check_inventory(message: &FromAgent) -> Result<(), InventoryError> {
    match message {
        FromAgent::Inventory(inventory) => inventory.check(),
        FromAgent::Refused { inventory, .. } => inventory.check(),
        _ => Ok(()),
    }
}
