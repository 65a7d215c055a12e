//! The only loop: what happens becomes an event for the core, what the core wants is handed out. Nothing here
//! waits: disk, network, driver calls and pods have their own tasks and come back as inputs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx_common::describe::describe;
use phalanx_common::ids::Term;
use phalanx_common::topology::Inventory;
use phalanx_common::units::{Millis, Time};
use phalanx_common::wire::{FromAgent, LeaseReport};
use phalanx_node_core::{Action, Core, Event, Ledger, LinkId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::clock;
use crate::ledger_file::LedgerFile;
use crate::link::{LinkEvent, LinkSender};
use crate::runner::Runner;

/// A sign of life is sent after this time of silence. It comes from this loop, not from the link: a loop that
/// hangs must look dead.
const HEARTBEAT_MS: Millis = Millis(2_000);
/// Longest sleep. The runtime's timers stand still while the machine sleeps, the agent's clock does not.
const LONGEST_SLEEP_MS: u64 = 1_000;

/// Everything that may happen to an agent.
#[derive(Debug)]
pub(crate) enum Input {
    /// On the link.
    Link(LinkEvent),
    /// A fact for the core: outcome of a write, end of a pod.
    Event(Event),
    /// Somebody wants to see the state.
    Report(oneshot::Sender<AgentReport>),
    /// The agent is to end.
    Stop,
}

/// State of an agent, for those who watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    /// A coordinator has said Welcome on a present connection.
    pub link_is_up: bool,
    /// Coordinators that stand by.
    pub standbys: usize,
    /// Highest term obeyed.
    pub highest_term: Term,
    /// All leases.
    pub leases: Vec<LeaseReport>,
}

/// A ledger to be written; a newer one replaces one that still waits.
type Job = Option<(u64, Ledger)>;

/// Where ledgers go.
#[derive(Debug)]
pub(crate) enum LedgerSink {
    /// To disk.
    File(watch::Sender<Job>),
    /// Nowhere: agents that need not outlive their process.
    Memory,
}

impl LedgerSink {
    /// Writes to this file from a task of its own.
    pub(crate) fn to_file(file: LedgerFile, outcomes: mpsc::Sender<Input>) -> (Self, JoinHandle<()>) {
        let (sender, jobs) = watch::channel(None);
        let task = tokio::spawn(write_ledgers(file, jobs, outcomes));
        (Self::File(sender), task)
    }
}

async fn write_ledgers(file: LedgerFile, mut jobs: watch::Receiver<Job>, outcomes: mpsc::Sender<Input>) {
    let file = Arc::new(Mutex::new(file));
    while jobs.changed().await.is_ok() {
        let Some((revision, ledger)) = jobs.borrow_and_update().clone() else { continue };
        let shared = file.clone();
        let written = tokio::task::spawn_blocking(move || {
            shared.lock().unwrap_or_else(PoisonError::into_inner).write(&ledger)
        });
        let event = match written.await {
            Ok(Ok(())) => Event::Persisted { revision },
            Ok(Err(error)) => Event::PersistFailed { revision, message: describe(&error) },
            Err(error) => Event::PersistFailed { revision, message: error.to_string() },
        };
        if outcomes.send(Input::Event(event)).await.is_err() {
            return;
        }
    }
}

/// The loop and what it owns.
pub(crate) struct Driver {
    pub(crate) core: Core,
    pub(crate) ledger: LedgerSink,
    pub(crate) runner: Runner,
    pub(crate) inputs: mpsc::Receiver<Input>,
    pub(crate) inventories: mpsc::Receiver<Inventory>,
    /// The link may dial once the hardware was read: Hello tells what the node has.
    pub(crate) may_dial: Option<oneshot::Sender<()>>,
    pub(crate) sessions: BTreeMap<u64, Session>,
}

/// A connection to a coordinator.
#[derive(Debug)]
pub(crate) struct Session {
    sender: LinkSender,
    last_sent: Time,
}

impl Driver {
    /// Runs until it is told to stop, or until all who could tell it anything are gone. `first` is what the core
    /// wanted when it was made.
    pub(crate) async fn run(mut self, first: Vec<Action>) {
        let mut outcomes = VecDeque::new();
        self.carry_out(first, &mut outcomes);
        self.settle(outcomes);
        let mut probe_lives = true;
        loop {
            let sleep = tokio::time::sleep(self.sleep(clock::now()));
            let event = tokio::select! {
                input = self.inputs.recv() => match input {
                    Some(Input::Link(event)) => self.link_event(event),
                    Some(Input::Event(event)) => Some(event),
                    Some(Input::Report(answer)) => {
                        // Whoever asked may be gone.
                        let _ = answer.send(self.report());
                        None
                    }
                    Some(Input::Stop) | None => return,
                },
                reading = self.inventories.recv(), if probe_lives => match reading {
                    Some(reading) => {
                        if let Some(may_dial) = self.may_dial.take() {
                            let _ = may_dial.send(());
                        }
                        Some(Event::Inventory(reading))
                    }
                    None => {
                        probe_lives = false;
                        None
                    }
                },
                () = sleep => Some(Event::Tick),
            };
            if let Some(event) = event {
                self.settle(VecDeque::from([event]));
            }
            self.beat(clock::now());
        }
    }

    /// Applies events and those that follow from them at once.
    fn settle(&mut self, mut events: VecDeque<Event>) {
        while let Some(event) = events.pop_front() {
            if let Event::PodEnded { pod, .. } | Event::PodStopped { pod } = &event {
                self.runner.forget(pod);
            }
            #[cfg(debug_assertions)]
            crate::kill_points::before_event(&event);
            let mut actions = Vec::new();
            self.core.apply(event, clock::now(), &mut actions);
            self.carry_out(actions, &mut events);
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>, outcomes: &mut VecDeque<Event>) {
        for action in actions {
            #[cfg(debug_assertions)]
            crate::kill_points::before_action(&action);
            match action {
                Action::Send(link, message) => {
                    #[cfg(debug_assertions)]
                    let acknowledges = crate::kill_points::acknowledges(&message);
                    if !self.send(link, message) {
                        outcomes.push_back(Event::LinkDown(link));
                    }
                    #[cfg(debug_assertions)]
                    crate::kill_points::after_send(acknowledges);
                }
                Action::Persist { revision, ledger } => match &self.ledger {
                    LedgerSink::Memory => outcomes.push_back(Event::Persisted { revision }),
                    LedgerSink::File(jobs) => {
                        if jobs.send(Some((revision, ledger))).is_err() {
                            let message = "the task that writes it has ended".to_owned();
                            outcomes.push_back(Event::PersistFailed { revision, message });
                        }
                    }
                },
                // The file itself keeps what belongs to another cluster; here it is only told.
                Action::SetAside { old, new } => {
                    tracing::warn!(%old, %new, "this node has joined another cluster; its old ledger is kept aside");
                }
                Action::StartPod { pod, name, lease, gpus, run_for } => {
                    tracing::info!(pod = %name, %lease, gpus = gpus.len(), "pod starts");
                    self.runner.start(pod, run_for);
                }
                Action::StopPod { pod } => {
                    tracing::info!(uid = %pod, "pod is stopped");
                    self.runner.stop(pod);
                }
                Action::Warn(warning) => tracing::warn!("{warning}"),
            }
        }
    }

    fn link_event(&mut self, event: LinkEvent) -> Option<Event> {
        match event {
            LinkEvent::Up(session, sender) => {
                self.sessions.insert(session, Session { sender, last_sent: clock::now() });
                Some(Event::LinkUp(LinkId(session)))
            }
            LinkEvent::Said(session, message) => {
                self.sessions.contains_key(&session).then_some(Event::Message(LinkId(session), message))
            }
            LinkEvent::Down(session) => {
                self.sessions.remove(&session).map(|_| Event::LinkDown(LinkId(session)))
            }
        }
    }

    /// Hands a message to a link; false where this ends the link. A link that is gone or too slow ends when its
    /// sender is dropped, and the next Hello tells everything.
    fn send(&mut self, link: LinkId, message: FromAgent) -> bool {
        let Some(session) = self.sessions.get_mut(&link.0) else { return true };
        session.last_sent = clock::now();
        let sent = session.sender.try_send(message);
        if !sent {
            self.sessions.remove(&link.0);
        }
        sent
    }

    /// When a sign of life is due on each link that a coordinator has answered.
    fn beats(&self) -> impl Iterator<Item = (LinkId, Time)> + '_ {
        let sessions = self.sessions.iter().map(|(id, session)| (LinkId(*id), session.last_sent));
        let answered = sessions.filter(|(id, _)| self.core.is_welcome(*id) || self.core.is_standby(*id));
        answered.map(|(id, last_sent)| (id, last_sent + HEARTBEAT_MS))
    }

    fn beat(&mut self, now: Time) {
        let due: Vec<LinkId> = self.beats().filter(|(_, at)| *at <= now).map(|(id, _)| id).collect();
        for link in due {
            if !self.send(link, FromAgent::Heartbeat) {
                self.settle(VecDeque::from([Event::LinkDown(link)]));
            }
        }
    }

    fn sleep(&self, now: Time) -> Duration {
        let deadline = self.core.next_deadline().map(|(at, _)| at);
        let heartbeat = self.beats().map(|(_, at)| at).min();
        let wait = deadline.into_iter().chain(heartbeat).min().map_or(LONGEST_SLEEP_MS, |at| (at - now).0);
        Duration::from_millis(wait.min(LONGEST_SLEEP_MS))
    }

    fn report(&self) -> AgentReport {
        AgentReport {
            link_is_up: self.core.link_is_up(),
            standbys: self.sessions.keys().filter(|id| self.core.is_standby(LinkId(**id))).count(),
            highest_term: self.core.highest_term(),
            leases: self.core.leases().reports(),
        }
    }
}
