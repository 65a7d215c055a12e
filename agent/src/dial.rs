//! Whom to dial: every address of every coordinator, each with a connection of its own that is made anew for ever.
//!
//! An address is one coordinator. Names are looked up again and again, since coordinators come and go: a new address is
//! dialled, one that has vanished is not dialled again. A connection that still stands is left alone then: whoever
//! answers is there, whatever the name says at the moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use phalanx_transport::REPLACED_CODE;
use quinn::{Connection, ConnectionError, Endpoint};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::credentials::{Dialling, Presented};
use crate::driver::Input;
use crate::link::{LinkError, serve};

/// Names are looked up again after this time, and sooner while one has no address.
const LOOK_UP: Duration = Duration::from_secs(10);
const LOOK_UP_SOON: Duration = Duration::from_secs(1);
/// Addresses that are dialled at most: more are no coordinators of one installation.
const MAX_ADDRESSES: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Where nothing at all comes back, a new try finds the way sooner than this one, whose packets are sent ever
/// more seldom: the last of them leaves shortly before this time is over.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Delays between tries are drawn from half to one and a half of a base that doubles each time: the first
/// tries are quick, and a thousand agents of a coordinator that was away come back over one to three seconds.
const FIRST_DELAY_MS: u64 = 100;
const LAST_DELAY_MS: u64 = 1_600;
/// Two connections of one node at one coordinator end each other for ever; at least not often.
const REPLACED_DELAY: Duration = Duration::from_secs(10);

/// Whom to dial, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct DialOptions {
    /// Socket to dial from; agents of one process may share it.
    pub endpoint: Endpoint,
    /// Who this agent is, and whom it trusts.
    pub presented: Presented,
    /// `HOST:PORT` of the coordinators.
    pub coordinators: Vec<String>,
}

/// Dials for ever. Ends when the driver does.
pub(crate) async fn run(options: DialOptions, driver: mpsc::Sender<Input>) {
    let mut names = Names::default();
    let shared = Shared { options: Arc::new(options), sessions: Arc::default(), driver: driver.clone() };
    let mut wanted: BTreeMap<SocketAddr, Arc<()>> = BTreeMap::new();
    let mut dialling = JoinSet::new();
    loop {
        let (addresses, all_known) = tokio::select! {
            found = names.look_up(&shared.options.coordinators) => found,
            () = driver.closed() => break,
        };
        wanted.retain(|address, _| addresses.contains(address));
        for address in addresses {
            wanted.entry(address).or_insert_with(|| {
                let wish = Arc::new(());
                dialling.spawn(dial(address, shared.clone(), Arc::downgrade(&wish)));
                wish
            });
        }
        // Those that have ended dialled an address that has vanished.
        while dialling.try_join_next().is_some() {}
        tokio::select! {
            () = tokio::time::sleep(if all_known { LOOK_UP } else { LOOK_UP_SOON }) => {}
            () = driver.closed() => break,
        }
    }
    // Each says goodbye first.
    while dialling.join_next().await.is_some() {}
}

/// What names meant last, and what was said about them.
#[derive(Debug, Default)]
struct Names {
    known: BTreeMap<String, Vec<SocketAddr>>,
    complaints: BTreeMap<String, String>,
}

impl Names {
    /// All addresses, and whether each name has one. A name that cannot be looked up now means what it meant before.
    async fn look_up(&mut self, coordinators: &[String]) -> (BTreeSet<SocketAddr>, bool) {
        let mut all_known = true;
        for name in coordinators {
            let found = tokio::net::lookup_host(name).await.map(|found| one_family(found.collect()));
            let complaint = match found {
                Ok(addresses) if !addresses.is_empty() => {
                    self.known.insert(name.clone(), addresses);
                    self.complaints.remove(name);
                    continue;
                }
                Ok(_) => "the name is empty".to_owned(),
                Err(error) => error.to_string(),
            };
            all_known = false;
            if self.complaints.insert(name.clone(), complaint.clone()).as_ref() != Some(&complaint) {
                tracing::warn!(coordinator = %name, "the name has no address: {complaint}");
            }
        }
        let addresses: BTreeSet<SocketAddr> = self.known.values().flatten().copied().collect();
        (addresses.into_iter().take(MAX_ADDRESSES).collect(), all_known)
    }
}

/// Addresses of the family that the system names first: a coordinator that has one of each must not be dialled twice.
fn one_family(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    addresses.into_iter().filter(|address| address.is_ipv6() == is_first).collect()
}

/// What those who dial share.
#[derive(Clone, Debug)]
struct Shared {
    options: Arc<DialOptions>,
    sessions: Arc<AtomicU64>,
    driver: mpsc::Sender<Input>,
}

/// Keeps a connection to one address for as long as that is wanted.
async fn dial(coordinator: SocketAddr, shared: Shared, wish: Weak<()>) {
    let Shared { options, sessions, driver } = shared;
    let mut tries = 0_u32;
    let mut last_reason = String::new();
    while wish.strong_count() > 0 {
        let session = sessions.fetch_add(1, Ordering::Relaxed);
        let mut welcomed = false;
        let connected = tokio::select! {
            connected = connect(&options, coordinator) => connected,
            () = driver.closed() => return,
        };
        let error = match connected {
            Ok((connection, dialling)) => {
                serve(connection, session, &driver, dialling.renewals, &mut welcomed).await
            }
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
        let mut delay = Duration::from_millis(delay_ms(tries, uuid::Uuid::new_v4().as_u128() as u64));
        if is_replaced(&error) {
            delay = delay.max(REPLACED_DELAY);
        }
        tries = tries.saturating_add(1);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = driver.closed() => return,
        }
    }
}

fn is_replaced(error: &LinkError) -> bool {
    let LinkError::Connection(ConnectionError::ApplicationClosed(close)) = error else { return false };
    close.error_code == quinn::VarInt::from_u32(REPLACED_CODE)
}

fn delay_ms(tries: u32, random: u64) -> u64 {
    let base = FIRST_DELAY_MS
        .saturating_mul(1_u64.checked_shl(tries.min(16)).unwrap_or(u64::MAX))
        .min(LAST_DELAY_MS);
    base / 2 + random % base
}

async fn connect(
    options: &DialOptions,
    coordinator: SocketAddr,
) -> Result<(Connection, Dialling), LinkError> {
    let dialling = options.presented.dialling()?;
    let (config, name) = (dialling.config.clone(), dialling.server_name);
    let mut connecting = options.endpoint.connect_with(config, coordinator, name)?;
    let silence = |time| move |_| LinkError::NoAnswer(time);
    let first = timeout(FIRST_ANSWER_TIMEOUT, connecting.handshake_data()).await;
    first.map_err(silence(FIRST_ANSWER_TIMEOUT))??;
    let connection = timeout(CONNECT_TIMEOUT, connecting).await.map_err(silence(CONNECT_TIMEOUT))??;
    Ok((connection, dialling))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_coordinator_of_two_families_is_one() {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let both = addresses(&["[fd00::1]:1", "10.0.0.1:1", "[fd00::2]:1", "10.0.0.2:1"]);
        assert_eq!(one_family(both), addresses(&["[fd00::1]:1", "[fd00::2]:1"]));
        assert_eq!(one_family(addresses(&["10.0.0.1:1"])), addresses(&["10.0.0.1:1"]));
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_looked_up_means_what_it_meant() {
        let mut names = Names::default();
        let address: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let list = ["127.0.0.1:7".to_owned(), "no such name:1".to_owned()];
        assert_eq!(names.look_up(&list).await, (BTreeSet::from([address]), false));
        names.known.insert(list[1].clone(), vec!["127.0.0.2:1".parse().unwrap()]);
        assert_eq!(names.look_up(&list).await.0.len(), 2);
    }
}
