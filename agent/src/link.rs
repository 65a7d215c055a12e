//! One connection to a coordinator: its control stream, both ways, until it ends.
//!
//! It counts as up only when the coordinator has said Welcome, or that it stands by: before that it may not even have
//! looked at our certificate.

use std::sync::Arc;
use std::time::Duration;

use phalanx_common::topology::Inventory;
use phalanx_common::wire::{
    BearerToken, FromAgent, LeaseReport, MAX_LEASES, OLDEST_VERSION, STANDBY_SINCE, ToAgent, VERSION,
};
use phalanx_node_core::leases::message_bytes;
use phalanx_transport::{ControlReader, ControlWriter, FrameError, open_control};
use quinn::Connection;
use thiserror::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::credentials::{CredentialError, Renewals};
use crate::driver::Input;

/// Messages that may wait for the stream: some for every lease a node can have. An agent that has more to say than
/// this begins anew.
const OUTGOING: usize = 4 * MAX_LEASES;
/// Bytes of them. A refusal names everything that the node has, and many of them may be due at a time.
const OUTGOING_BYTES: usize = 64 << 20;
/// With less room than this for answers nothing more is read: a coordinator that does not listen has to wait.
const ROOM: usize = OUTGOING / 2;
/// The same in bytes: what is read already and not answered yet must find room too.
const ROOM_BYTES: usize = OUTGOING_BYTES / 4 * 3;
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// What happens on the link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// A connection stands; what is put into the channel is sent.
    Up(u64, LinkSender),
    /// The coordinator says something.
    Said(u64, ToAgent),
    /// The connection is gone.
    Down(u64),
}

/// What goes to the stream.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A message, and the room it takes until it has left.
    Message(Box<FromAgent>, OwnedSemaphorePermit),
    /// All further messages are of this version.
    Version(u16),
}

/// The driver's end of a link.
#[derive(Debug)]
pub(crate) struct LinkSender {
    sender: mpsc::Sender<Outgoing>,
    /// Bytes that may still wait.
    space: Arc<Semaphore>,
}

impl LinkSender {
    /// Puts a message behind those that wait; false where there is no room, or the link has ended.
    pub(crate) fn try_send(&self, message: FromAgent) -> bool {
        let Ok(bytes) = u32::try_from(queued_bytes(&message)) else { return false };
        let Ok(taken) = Arc::clone(&self.space).try_acquire_many_owned(bytes) else { return false };
        self.sender.try_send(Outgoing::Message(Box::new(message), taken)).is_ok()
    }
}

/// Bytes that a message takes while it waits, roughly.
fn queued_bytes(message: &FromAgent) -> usize {
    const MESSAGE: usize = 256;
    const DEVICE: usize = 256;
    const LINK: usize = 8;
    let (inventory, leases): (&Inventory, &[LeaseReport]) = match message {
        FromAgent::Hello(hello) => (&hello.inventory, &hello.leases),
        FromAgent::Inventory(inventory) => (inventory, &[]),
        FromAgent::Refused { inventory, leases, .. } => (inventory, leases),
        _ => return MESSAGE,
    };
    let devices = inventory.gpus.len() + inventory.nics.len();
    let leases: usize = leases.iter().map(|report| message_bytes(&report.request)).sum();
    MESSAGE + DEVICE * devices + LINK * inventory.gpus.len() * devices + leases
}

/// Why a connection was not made, or ended.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("no answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    #[error("cannot dial: {0}")]
    Dial(#[from] quinn::ConnectError),
    #[error("{0}")]
    Connection(#[from] quinn::ConnectionError),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no Welcome within {} s", WELCOME_TIMEOUT.as_secs())]
    NoWelcome,
    #[error("turned away: {0}")]
    Rejected(String),
    #[error("the coordinator chose version {0}, this agent speaks {OLDEST_VERSION} to {VERSION}")]
    Version(u16),
    #[error("the coordinator ended the stream")]
    Ended,
    #[error("too many messages wait for the stream")]
    Slow,
    #[error("the agent stops")]
    Stopped,
}

/// Serves one connection to its end and gives the reason of the end.
pub(crate) async fn serve(
    connection: Connection,
    session: u64,
    driver: &mpsc::Sender<Input>,
    mut renewals: Renewals,
    welcomed: &mut bool,
) -> LinkError {
    let (reader, mut writer) = match open_control(&connection).await {
        Ok(control) => control,
        Err(error) => return error.into(),
    };
    // Who we are comes before what the node has.
    if let Some(token) = renewals.first()
        && let Err(error) = send_token(&mut writer, token).await
    {
        return error.into();
    }
    let (sender, outgoing) = mpsc::channel(OUTGOING);
    let space = Arc::new(Semaphore::new(OUTGOING_BYTES));
    let written = Notify::new();
    // The driver must be the only one to keep the link's sender alive.
    let answers = Answers { sender: sender.downgrade(), space: Arc::clone(&space), written: &written };
    if driver.send(Input::Link(LinkEvent::Up(session, LinkSender { sender, space }))).await.is_err() {
        return LinkError::Stopped;
    }
    let ended = tokio::select! {
        error = read(reader, session, driver, answers, welcomed) => error,
        error = write(writer, outgoing, driver, &written, renewals) => error,
    };
    let _ = driver.send(Input::Link(LinkEvent::Down(session))).await;
    // The connection knows better than its streams why it ended.
    let error = match (ended, connection.close_reason()) {
        (LinkError::Frame(FrameError::Stream(_)) | LinkError::Ended, Some(reason)) => reason.into(),
        (error, _) => error,
    };
    connection.close(quinn::VarInt::from_u32(0), error.to_string().as_bytes());
    error
}

/// The way of what the agent answers.
struct Answers<'l> {
    sender: mpsc::WeakSender<Outgoing>,
    /// Bytes that may still wait.
    space: Arc<Semaphore>,
    /// Wakes when a message has left.
    written: &'l Notify,
}

impl Answers<'_> {
    /// Waits until there is room; `None` where the driver has given up this link.
    async fn room(&self) -> Option<()> {
        while self.sender.upgrade()?.capacity() < ROOM || self.space.available_permits() < ROOM_BYTES {
            self.written.notified().await;
        }
        Some(())
    }

    /// Messages behind this one are of the version.
    async fn set_version(&self, version: u16) -> Option<()> {
        self.sender.upgrade()?.send(Outgoing::Version(version)).await.ok()
    }
}

async fn read(
    mut reader: ControlReader,
    session: u64,
    driver: &mpsc::Sender<Input>,
    answers: Answers<'_>,
    welcomed: &mut bool,
) -> LinkError {
    let first = match timeout(WELCOME_TIMEOUT, reader.next::<ToAgent>()).await {
        Ok(first) => first,
        Err(_) => return LinkError::NoWelcome,
    };
    let mut next = first;
    loop {
        let message = match next {
            Ok(Some(message)) => message,
            Ok(None) => return LinkError::Ended,
            Err(error) => return error.into(),
        };
        let rejection = match &message {
            ToAgent::Welcome { version, .. } | ToAgent::Standby { version, .. }
                if !(OLDEST_VERSION..=VERSION).contains(version) =>
            {
                return LinkError::Version(*version);
            }
            ToAgent::Welcome { version, cluster, term } | ToAgent::Standby { version, cluster, term } => {
                *welcomed = true;
                let leads = matches!(message, ToAgent::Welcome { .. });
                tracing::info!(session, leads, version, %cluster, %term, "the coordinator has let this agent in");
                // Before the driver hears of the Welcome, so that its answers are of the new version.
                if answers.set_version(*version).await.is_none() {
                    return LinkError::Stopped;
                }
                None
            }
            ToAgent::Rejected { message } => Some(LinkError::Rejected(message.clone())),
            _ => None,
        };
        if driver.send(Input::Link(LinkEvent::Said(session, message))).await.is_err() {
            return LinkError::Stopped;
        }
        if let Some(rejection) = rejection {
            return rejection;
        }
        if answers.room().await.is_none() {
            return LinkError::Stopped;
        }
        next = reader.next::<ToAgent>().await;
    }
}

async fn write(
    mut writer: ControlWriter,
    mut outgoing: mpsc::Receiver<Outgoing>,
    driver: &mpsc::Sender<Input>,
    written: &Notify,
    mut renewals: Renewals,
) -> LinkError {
    loop {
        let next = tokio::select! {
            next = outgoing.recv() => next,
            token = renewals.next() => {
                if let Err(error) = send_token(&mut writer, token).await {
                    return error.into();
                }
                continue;
            }
        };
        match next {
            Some(Outgoing::Version(version)) => writer.set_version(version),
            Some(Outgoing::Message(message, taken)) => {
                if let Err(error) = writer.send(&*message).await {
                    return error.into();
                }
                drop((message, taken));
            }
            None => break,
        }
        written.notify_one();
    }
    // The driver has dropped its end: it stops, or it had more to say than the channel holds.
    if driver.is_closed() { LinkError::Stopped } else { LinkError::Slow }
}

/// Before the version is agreed on, too: only coordinators that know tokens are asked to take one.
async fn send_token(writer: &mut ControlWriter, token: BearerToken) -> Result<(), FrameError> {
    let agreed = writer.version();
    writer.set_version(agreed.max(STANDBY_SINCE));
    let sent = writer.send(&FromAgent::Token(token)).await;
    writer.set_version(agreed);
    sent
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::{GangName, LeaseId, PodUid, Term};
    use phalanx_common::wire::{Exactness, LeaseRequest, LeaseState, RefusalCause};

    use super::*;

    fn refusal(leases: u64) -> FromAgent {
        let report = |serial| LeaseReport {
            lease: LeaseId { term: 1, serial },
            state: LeaseState::Armed,
            request: LeaseRequest {
                pod: PodUid::from("uid"),
                pod_name: GangName::new("team", "pod"),
                gang: GangName::new("team", "gang"),
                request: Default::default(),
                devices: Vec::new(),
                exactness: Exactness::Exact,
                run_for: None,
            },
        };
        FromAgent::Refused {
            term: Term::default(),
            lease: LeaseId { term: 1, serial: 0 },
            cause: RefusalCause::Released,
            inventory: Box::new(Inventory::empty(0, 0)),
            leases: (0..leases).map(report).collect(),
        }
    }

    #[tokio::test]
    async fn large_messages_fill_the_queue_long_before_it_is_full_of_small_ones() {
        let (sender, mut outgoing) = mpsc::channel(OUTGOING);
        let link = LinkSender { sender, space: Arc::new(Semaphore::new(OUTGOING_BYTES)) };
        let mut sent = 0;
        while link.try_send(refusal(4_000)) {
            sent += 1;
        }
        assert!((10..1_000).contains(&sent), "{sent}");
        // What has left makes room again.
        drop(outgoing.recv().await);
        assert!(link.try_send(refusal(4_000)));
        assert!(!link.try_send(refusal(4_000)));

        let (sender, _outgoing) = mpsc::channel(OUTGOING);
        let link = LinkSender { sender, space: Arc::new(Semaphore::new(OUTGOING_BYTES)) };
        let small = (0..=OUTGOING).take_while(|_| link.try_send(FromAgent::Heartbeat)).count();
        assert_eq!(small, OUTGOING);
    }
}
