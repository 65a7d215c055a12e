//! The QUIC client: dials, keeps one control stream, dials again.
//!
//! A connection counts as up only when the coordinator has said Welcome: before that it may not even have looked at
//! our certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::topology::Inventory;
use phalanx_common::wire::{FromAgent, LeaseReport, MAX_LEASES, OLDEST_VERSION, ToAgent, VERSION};
use phalanx_node_core::leases::message_bytes;
use phalanx_transport::{COORDINATOR_NAME, ControlReader, ControlWriter, FrameError, open_control};
use quinn::{ClientConfig, Connection, Endpoint};
use thiserror::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

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
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Where nothing at all comes back, a new try finds the way sooner than this one, whose packets are sent ever
/// more seldom: the last of them leaves shortly before this time is over.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// Delays between tries are drawn from half to one and a half of a base that doubles each time: the first
/// tries are quick, and a thousand agents of a coordinator that was away come back over one to three seconds.
const FIRST_DELAY_MS: u64 = 100;
const LAST_DELAY_MS: u64 = 1_600;

/// Whom to dial, and as whom.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Socket to dial from; agents of one process may share it.
    pub endpoint: Endpoint,
    /// Identity and authority.
    pub config: ClientConfig,
    /// `HOST:PORT` of the coordinators, tried in turn.
    pub coordinators: Vec<String>,
}

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
enum LinkError {
    #[error("{0:?} has no address: {1}")]
    Name(String, String),
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

/// Dials for ever. Ends when the driver does.
pub(crate) async fn run(options: LinkOptions, driver: mpsc::Sender<Input>) {
    let mut tries = 0_u32;
    let mut last_reason = String::new();
    for session in 0_u64.. {
        let coordinator = &options.coordinators[session as usize % options.coordinators.len()];
        let mut welcomed = false;
        let connected = tokio::select! {
            connected = connect(&options, coordinator) => connected,
            () = driver.closed() => return,
        };
        let error = match connected {
            Ok(connection) => serve(connection, session, &driver, &mut welcomed).await,
            Err(error) => error,
        };
        if driver.is_closed() {
            return;
        }
        if welcomed {
            tries = 0;
        }
        if matches!(error, LinkError::Rejected(_)) {
            // Asking again at once would get the same answer.
            tries = u32::MAX;
        }
        let reason = error.to_string();
        if welcomed || reason != last_reason {
            tracing::warn!(%coordinator, %reason, "no link to the coordinator, dialling again");
            last_reason = reason;
        }
        let delay = delay_ms(tries, uuid::Uuid::new_v4().as_u128() as u64);
        tries = tries.saturating_add(1);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(delay)) => {}
            () = driver.closed() => return,
        }
    }
}

fn delay_ms(tries: u32, random: u64) -> u64 {
    let base = FIRST_DELAY_MS
        .saturating_mul(1_u64.checked_shl(tries.min(16)).unwrap_or(u64::MAX))
        .min(LAST_DELAY_MS);
    base / 2 + random % base
}

async fn connect(options: &LinkOptions, coordinator: &str) -> Result<Connection, LinkError> {
    let name_error = |reason: String| LinkError::Name(coordinator.to_owned(), reason);
    let mut addresses =
        tokio::net::lookup_host(coordinator).await.map_err(|error| name_error(error.to_string()))?;
    let address: SocketAddr = addresses.next().ok_or_else(|| name_error("the name is empty".to_owned()))?;
    let mut connecting = options.endpoint.connect_with(options.config.clone(), address, COORDINATOR_NAME)?;
    let silence = |time| move |_| LinkError::NoAnswer(time);
    let first = timeout(FIRST_ANSWER_TIMEOUT, connecting.handshake_data()).await;
    first.map_err(silence(FIRST_ANSWER_TIMEOUT))??;
    Ok(timeout(CONNECT_TIMEOUT, connecting).await.map_err(silence(CONNECT_TIMEOUT))??)
}

/// Serves one connection to its end and gives the reason of the end.
async fn serve(
    connection: Connection,
    session: u64,
    driver: &mpsc::Sender<Input>,
    welcomed: &mut bool,
) -> LinkError {
    let (reader, writer) = match open_control(&connection).await {
        Ok(control) => control,
        Err(error) => return error.into(),
    };
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
        error = write(writer, outgoing, driver, &written) => error,
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
            ToAgent::Welcome { version, .. } if !(OLDEST_VERSION..=VERSION).contains(version) => {
                return LinkError::Version(*version);
            }
            ToAgent::Welcome { version, cluster, term } => {
                *welcomed = true;
                tracing::info!(version, %cluster, %term, "the coordinator says welcome");
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
) -> LinkError {
    while let Some(next) = outgoing.recv().await {
        match next {
            Outgoing::Version(version) => writer.set_version(version),
            Outgoing::Message(message, taken) => {
                if let Err(error) = writer.send(&*message).await {
                    return error.into();
                }
                drop((message, taken));
            }
        }
        written.notify_one();
    }
    // The driver has dropped its end: it stops, or it had more to say than the channel holds.
    if driver.is_closed() { LinkError::Stopped } else { LinkError::Slow }
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

    #[test]
    fn the_first_tries_are_quick_and_the_last_ones_spread() {
        for random in [0, 1, 77, u64::MAX] {
            assert!((50..=150).contains(&delay_ms(0, random)));
            for tries in [10, 63, 64, u32::MAX] {
                assert!((800..2_400).contains(&delay_ms(tries, random)), "{tries} {random}");
            }
        }
        assert!(delay_ms(3, 5) < delay_ms(8, 5));
    }
}
