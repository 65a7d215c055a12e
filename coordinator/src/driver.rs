//! The only loop. Facts come in, the core decides, actions go out; nothing else touches the core.
//!
//! All facts that wait are applied, then ONE scheduling pass is done. Whatever may take long happens elsewhere and
//! comes back as a fact. The loop never waits for a slow reader: actions for the API wait in a list of its
//! own, and while that is long, no new facts but the outcomes of actions are taken.

mod input;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use phalanx_common::ids::{NodeName, Term};
use phalanx_common::units::Time;
use phalanx_common::wire::ToAgent;
use phalanx_core::Core;
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_kubernetes::client::{self, MayWrite};
use tokio::sync::{mpsc, watch};

pub use self::input::{Input, Inputs, Question, Senders, channels};
use crate::agents::{AgentInput, NotSent, Outbox};
use crate::clock::Clock;
use crate::convert::status::format_time;
use crate::metrics::Metrics;
use crate::progress::{Narrator, Progress, Subject};
use crate::recorder::{Record, Recorder};

/// Facts taken before a pass is done; the last input may hold some hundred more.
const BATCH_FACTS: usize = 1024;
/// Passes lie at least so far apart: in a burst of facts one of them does for many.
const BETWEEN_PASSES: Duration = Duration::from_millis(1);
/// Actions that may wait for the writer before the loop takes no more facts.
const BACKLOG_ACTIONS: usize = 4096;

/// Says whether this coordinator may act: another one may lead by now, although nobody told this one yet.
#[derive(Clone)]
pub struct Permit(MayWrite);

impl Permit {
    /// Where nobody else can lead.
    #[must_use]
    pub fn always() -> Self {
        Self(client::always())
    }

    /// By what a Lease says.
    #[must_use]
    pub fn new(may_act: MayWrite) -> Self {
        Self(may_act)
    }

    fn holds(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Permit").field(&self.holds()).finish()
    }
}

/// How messages reach agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Messages {
    /// Over the connections that agents have made.
    #[default]
    ByConnection,
    /// Through the writer, which answers for the agents: none are connected.
    ByWriter,
}

/// What the loop works with.
#[derive(Debug)]
pub struct Parts {
    /// The machine, new.
    pub core: Core,
    /// The time.
    pub clock: Clock,
    /// Takes every event and pass.
    pub recorder: Recorder,
    /// To the writer; bounded by its maker.
    pub writer: mpsc::Sender<Action>,
    /// Tells the leader's term to those who welcome agents.
    pub term: watch::Sender<Term>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// For those who look on.
    pub progress: Arc<Progress>,
    /// The loop ends where it does not hold.
    pub permit: Permit,
    /// How messages reach agents.
    pub messages: Messages,
}

/// The loop's state.
#[derive(Debug)]
pub struct Driver {
    parts: Parts,
    sessions: Sessions,
    narrator: Narrator,
    backlog: VecDeque<Action>,
    actions: Vec<Action>,
    /// When the last pass ended.
    passed: Option<Instant>,
    overtaken: Arc<OnceLock<Term>>,
}

impl Driver {
    /// A loop that has not begun.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        parts.metrics.recording.set(1);
        let narrator = match parts.messages {
            Messages::ByConnection => Narrator::default(),
            Messages::ByWriter => Narrator::in_shadow(),
        };
        Self {
            parts,
            sessions: Sessions::default(),
            narrator,
            backlog: VecDeque::new(),
            actions: Vec::new(),
            passed: None,
            overtaken: Arc::default(),
        }
    }

    /// Tells the core what was stored, before the loop begins. `Synced` is added.
    pub async fn begin(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events.into_iter().chain([Event::Synced]) {
            let at = self.parts.clock.now();
            self.parts.recorder.record_patiently(Record::Event { at, event: event.clone() }).await;
            self.apply_recorded(event, at);
        }
        let (at, actions) = self.decide();
        self.parts.recorder.record_patiently(Record::Cycle { at, actions: actions.clone() }).await;
        self.dispatch(at, actions);
    }

    /// Where the term of a coordinator that took over will stand; the loop ends then.
    #[must_use]
    pub fn overtaken(&self) -> Arc<OnceLock<Term>> {
        Arc::clone(&self.overtaken)
    }

    /// Runs until it is told to stop, all who could tell it something are gone, another coordinator took over, or the
    /// permit does not hold. Gives the recorder back.
    pub async fn run(mut self, mut inputs: Inputs) -> Recorder {
        loop {
            let deadline = self.parts.core.next_deadline().map(|(time, _)| self.parts.clock.until(time));
            let writer = (!self.backlog.is_empty()).then_some(&self.parts.writer);
            let open = self.backlog.len() < BACKLOG_ACTIONS;
            let mut next = Some(inputs.next(deadline, writer, open).await);
            self.gather().await;
            let mut facts = false;
            let mut taken = 0;
            while let Some(input) = next {
                taken += input.facts();
                match input {
                    Input::Stop => return self.parts.recorder,
                    input => facts |= self.take(input),
                }
                next = if taken < BATCH_FACTS { inputs.ready(open) } else { None };
            }
            if !self.parts.permit.holds() {
                return self.parts.recorder;
            }
            // Questions alone must not push a deadline away.
            if facts
                || self.parts.core.next_deadline().is_some_and(|(time, _)| time <= self.parts.clock.now())
            {
                self.pass();
            } else {
                self.flush();
            }
            if let Some(term) = self.parts.core.overtaken() {
                // What waits for the writer was decided by one that leads no more.
                let _ = self.overtaken.set(term);
                return self.parts.recorder;
            }
        }
    }

    /// Waits a moment after a pass that was just now.
    async fn gather(&mut self) {
        if let Some(left) = self.passed.and_then(|at| BETWEEN_PASSES.checked_sub(at.elapsed())) {
            tokio::time::sleep(left).await;
        }
    }

    /// Takes one input; true where a pass is due.
    fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Changes(events) => {
                for event in events {
                    if let Event::GangDeleted(gang) = &event {
                        self.narrator.forget(gang);
                    }
                    self.apply(event);
                }
                true
            }
            Input::Outcome(event) => {
                self.apply(*event);
                true
            }
            Input::Agent(input) => {
                self.take_agent(input);
                true
            }
            Input::Question(question) => {
                self.answer(question);
                false
            }
            Input::Deadline => true,
            Input::WriterReady | Input::Stop => false,
        }
    }

    fn take_agent(&mut self, input: AgentInput) {
        let now = self.parts.clock.now();
        let event = match input {
            AgentInput::Connected { session, hello, outbox } => {
                let gpus = hello.inventory.gpus.len();
                self.sessions.insert(session, hello.node.clone(), outbox);
                self.parts.progress.add(now, Subject::Node, &hello.node, format!("connected, {gpus} GPUs"));
                Event::AgentConnected { session, hello }
            }
            AgentInput::Gone { node, session } => {
                if self.sessions.remove(session, &node) {
                    self.parts.progress.add(now, Subject::Node, &node, "disconnected");
                }
                Event::AgentGone { node, session }
            }
            AgentInput::Said { node, session, message, .. } => Event::AgentSaid { node, session, message },
        };
        self.apply(event);
    }

    fn answer(&mut self, question: Question) {
        self.parts.core.asked_at(self.parts.clock.now());
        // Who asked may have left: then nobody misses the answer.
        match question {
            Question::View(answer) => drop(answer.send(self.parts.core.view())),
            Question::Totals(answer) => drop(answer.send(self.parts.core.totals())),
            Question::Explain(gang, answer) => drop(answer.send(self.parts.core.explain(&gang))),
        }
    }

    fn apply(&mut self, event: Event) {
        let at = self.parts.clock.now();
        self.parts.recorder.record(|| Record::Event { at, event: event.clone() });
        self.apply_recorded(event, at);
    }

    fn apply_recorded(&mut self, event: Event, at: Time) {
        #[cfg(debug_assertions)]
        crate::kill_points::before_event(&event);
        self.parts.metrics.event(&event);
        if let Event::Started { term } | Event::TermRaised { term } = &event {
            self.parts.term.send_replace(*term);
        }
        self.parts.core.apply(event, at, &mut self.actions);
    }

    /// One scheduling pass, and out with the actions.
    fn pass(&mut self) {
        let (at, actions) = self.decide();
        self.parts.recorder.record(|| Record::Cycle { at, actions: actions.clone() });
        self.keep_recording(at);
        self.dispatch(at, actions);
        self.passed = Some(Instant::now());
    }

    /// Between a pass and the next fact, the machine's state is the whole truth: a part may begin.
    fn keep_recording(&mut self, at: Time) {
        let recorder = &mut self.parts.recorder;
        if recorder.part_is_due() {
            recorder.begin_part(at, self.parts.core.snapshot());
        }
        self.parts.metrics.recording.set(i64::from(recorder.is_recording()));
    }

    fn decide(&mut self) -> (Time, Vec<Action>) {
        let began = Instant::now();
        let at = self.parts.clock.now();
        self.parts.core.cycle(at, &mut self.actions);
        self.parts.metrics.pass_seconds.observe(began.elapsed().as_secs_f64());
        (at, std::mem::take(&mut self.actions))
    }

    fn dispatch(&mut self, at: Time, actions: Vec<Action>) {
        for action in actions {
            self.dispatch_one(at, action);
        }
        self.flush();
    }

    fn dispatch_one(&mut self, at: Time, action: Action) {
        #[cfg(debug_assertions)]
        crate::kill_points::before_action(&action);
        self.parts.metrics.action(&action.command);
        self.narrator.tell(at, &action.command, &self.parts.progress);
        match action.command {
            // A process that was stopped between the pass and this must not speak for one that leads no more.
            Command::Send { .. } if !self.parts.permit.holds() => {}
            Command::Send { node, session, message } if self.parts.messages == Messages::ByConnection => {
                if self.sessions.send(session, &node, *message).is_err() {
                    self.parts.metrics.unsent.inc();
                }
            }
            Command::RecordPromise { gang, made, expected, started } => {
                let started = started.map_or_else(|| "not by its hold".to_owned(), format_time);
                let (made, expected) = (format_time(made), format_time(expected));
                tracing::info!(%gang, made, expected, started, "what came of a start that was promised");
            }
            Command::Warn { message } => tracing::warn!("{message}"),
            command => self.backlog.push_back(Action { id: action.id, command }),
        }
    }

    /// Hands the writer what it takes now.
    fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let Ok(place) = self.parts.writer.try_reserve() else { break };
            if let Some(action) = self.backlog.pop_front() {
                place.send(action);
            }
        }
        self.parts.metrics.backlog.set(i64::try_from(self.backlog.len()).unwrap_or(i64::MAX));
    }
}

/// The connections, by number and by node.
#[derive(Debug, Default)]
struct Sessions {
    outboxes: BTreeMap<u64, Outbox>,
    newest: BTreeMap<NodeName, u64>,
}

impl Sessions {
    fn insert(&mut self, session: u64, node: NodeName, outbox: Outbox) {
        let before = self.newest.insert(node, session);
        if let Some(old) = before.and_then(|old| self.outboxes.get(&old)) {
            old.replaced();
        }
        self.outboxes.insert(session, outbox);
    }

    /// True where the node has no connection now.
    fn remove(&mut self, session: u64, node: &NodeName) -> bool {
        self.outboxes.remove(&session);
        let last = self.newest.get(node) == Some(&session);
        if last {
            self.newest.remove(node);
        }
        last
    }

    fn send(&self, session: u64, node: &NodeName, message: ToAgent) -> Result<(), NotSent> {
        let outbox = self.outboxes.get(&session).filter(|_| self.newest.get(node) == Some(&session));
        outbox.map_or(Err(NotSent), |outbox| outbox.send(message))
    }
}
