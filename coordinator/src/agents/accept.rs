//! The accept loop: takes every connection that arrives off the endpoint at once, and lets it in, keeps it waiting,
//! asks it to prove its address, or sheds it, as the gate says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::{Connecting, Endpoint, Incoming};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio::time::error::Elapsed;

use super::gate::{ADMISSIONS, Arrival, Gate, source_of};
use super::session::{Refusal, Session};
use super::{HELLO_TIMEOUT, Shared, session};

/// How often it is looked whether those inside are stuck.
const LOOK: Duration = Duration::from_millis(250);

/// An admission has ended.
struct Ended {
    number: u64,
    /// The agent is let in.
    welcomed: bool,
}

/// Lets agents in until the endpoint closes.
pub(super) async fn run(endpoint: Endpoint, shared: Arc<Shared>) {
    let (ended, mut endings) = mpsc::channel(ADMISSIONS);
    let mut door = Door { gate: Gate::new(Instant::now()), give_up: BTreeMap::new(), ended, shared };
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // One at a time, and those who have come meanwhile are seen in between.
        let more = door.fill_one();
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => door.arrive(incoming),
                None => return,
            },
            Some(Ended { number, welcomed }) = endings.recv() => {
                door.give_up.remove(&number);
                door.gate.leave(number, welcomed, Instant::now());
            }
            _ = looks.tick() => door.look(),
            () = tokio::task::yield_now(), if more => {}
        }
        door.count();
    }
}

struct Door {
    gate: Gate<Incoming>,
    /// Gives the admission up. Dropped with the door when the server stops, which says nothing about the agent.
    give_up: BTreeMap<u64, oneshot::Sender<()>>,
    ended: mpsc::Sender<Ended>,
    shared: Arc<Shared>,
}

impl Door {
    fn arrive(&mut self, incoming: Incoming) {
        let address = incoming.remote_address();
        if self.gate.is_busy() && !incoming.remote_address_validated() {
            // Costs us nothing to remember; who has borrowed the address of another never comes back.
            self.shared.metrics.retried.inc();
            // Never an error: one that is not validated may be asked.
            let _ = incoming.retry();
            return;
        }
        match self.gate.arrive(address, incoming, Instant::now()) {
            Arrival::Enter(number, incoming) => self.admit(number, incoming),
            Arrival::Wait => {}
            Arrival::Shed(incoming) => {
                // No answer: an agent asks again by itself, a little later each time.
                incoming.ignore();
                self.shared.metrics.reject("busy");
                self.shed(address, "too many connections are being let in");
            }
        }
    }

    /// One of those who wait takes a place that is free; false where nobody does.
    fn fill_one(&mut self) -> bool {
        let next = self.gate.next(Instant::now());
        let more = next.is_some();
        if let Some((number, incoming)) = next {
            self.admit(number, incoming);
        }
        more
    }

    fn look(&mut self) {
        let now = Instant::now();
        self.gate.expired(now).into_iter().for_each(Incoming::ignore);
        for number in self.gate.stuck(now) {
            if let Some(give_up) = self.give_up.remove(&number) {
                // Nobody hears it where the admission has just ended.
                let _ = give_up.send(());
            }
            self.shared.metrics.reject("stuck");
        }
    }

    fn count(&self) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.shared.metrics.admitting.set(count(self.gate.admitting()));
        self.shared.metrics.waiting.set(count(self.gate.waiting()));
    }

    fn shed(&self, address: SocketAddr, why: &str) {
        if let Some(left_out) = self.shared.shed_lines.ask() {
            let source = source_of(address);
            tracing::warn!(%source, left_out, "connections are shed: {why}");
        }
    }

    /// The first answer is made right here, so that each who is let in is answered before the next is: a hundred at
    /// once on a slow machine would all be answered too late.
    fn admit(&mut self, number: u64, incoming: Incoming) {
        let address = incoming.remote_address();
        let connecting = match incoming.accept() {
            Ok(connecting) => connecting,
            Err(error) => {
                self.gate.leave(number, false, Instant::now());
                self.shared.metrics.reject("handshake");
                self.shared.refused(address, "handshake", &error.to_string());
                return;
            }
        };
        let (give_up, given_up) = oneshot::channel::<()>();
        self.give_up.insert(number, give_up);
        let (ended, shared) = (self.ended.clone(), Arc::clone(&self.shared));
        tokio::spawn(async move {
            let Some(admitted) = unless_given_up(connecting, address, given_up, &shared).await else {
                return;
            };
            let session = match admitted {
                Ok(Ok(session)) => Some(session),
                // The place is kept until the refusal is told: refusals are bounded like admissions.
                Ok(Err(refusal)) => {
                    refusal.tell(address, &shared).await;
                    None
                }
                Err(_) => {
                    shared.metrics.reject("silent");
                    shared.refused(address, "silent", "no Hello within 5 s: the connection is dropped");
                    None
                }
            };
            // The loop is gone when the server stops: then nobody counts.
            let _ = ended.send(Ended { number, welcomed: session.is_some() }).await;
            if let Some(session) = session {
                // A task of its own: what the admission needed is given back.
                tokio::spawn(async move { session.run(&shared).await });
            }
        });
    }
}

/// What came of an admission; nothing where it was given up.
async fn unless_given_up(
    connecting: Connecting,
    address: SocketAddr,
    given_up: oneshot::Receiver<()>,
    shared: &Shared,
) -> Option<Result<Result<Session, Refusal>, Elapsed>> {
    let mut admission = pin!(tokio::time::timeout(HELLO_TIMEOUT, session::admit(connecting, shared)));
    tokio::select! {
        biased;
        given_up = given_up => {
            if given_up.is_ok() {
                shared.refused(address, "stuck", "others waited, and this one did not get on");
            } else {
                // The server stops. The agent is told so by its end, and nothing is said of what comes of this.
                let _ = admission.await;
            }
            None
        }
        admitted = &mut admission => Some(admitted),
    }
}
