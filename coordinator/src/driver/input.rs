//! Everything the loop may be told, and the bounded channels by which it comes.

use std::time::Duration;

use phalanx_common::ids::GangName;
use phalanx_core::action::Action;
use phalanx_core::event::Event;
use phalanx_core::kept::Totals;
use phalanx_core::view::{Explanation, StateView};
use tokio::sync::{mpsc, oneshot, watch};

use crate::agents::AgentInput;

/// Batches of changes of the API; one holds at most some hundred events.
const CHANGES_BATCHES: usize = 16;
/// Messages of all agents. More wait in the QUIC streams, where the agents feel it.
const AGENT_INPUTS: usize = 4096;
/// Outcomes of actions. The writers wait for room, never the loop.
const OUTCOMES: usize = 1024;
/// Questions of people and their tools.
const QUESTIONS: usize = 64;
/// A deadline that has passed and is not moved by a pass must not spin the loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// All that may come in.
#[derive(Debug)]
pub enum Input {
    /// Objects changed.
    Changes(Vec<Event>),
    /// An agent is there, is gone, or said something.
    Agent(AgentInput),
    /// What came of an action.
    Outcome(Event),
    /// Someone wants to know something.
    Question(Question),
    /// The core's next deadline is here.
    Deadline,
    /// The writer takes actions again.
    WriterReady,
    /// The process ends.
    Stop,
}

impl Input {
    /// Facts it holds; at least one, so that a stream of inputs without facts ends a batch too.
    #[must_use]
    pub fn facts(&self) -> usize {
        match self {
            Self::Changes(events) => events.len().max(1),
            _ => 1,
        }
    }
}

/// A question and where its answer goes.
#[derive(Debug)]
pub enum Question {
    /// Everything.
    View(oneshot::Sender<StateView>),
    /// Numbers of the whole.
    Totals(oneshot::Sender<Totals>),
    /// Why a gang does not run.
    Explain(GangName, oneshot::Sender<Option<Explanation>>),
}

/// The ends that tell the loop something.
#[derive(Clone, Debug)]
pub struct Senders {
    /// Changes of the API.
    pub changes: mpsc::Sender<Vec<Event>>,
    /// From the agents.
    pub agents: mpsc::Sender<AgentInput>,
    /// From the writers.
    pub outcomes: mpsc::Sender<Event>,
    /// From the admin interface.
    pub questions: mpsc::Sender<Question>,
}

/// The ends where the loop hears.
#[derive(Debug)]
pub struct Inputs {
    changes: mpsc::Receiver<Vec<Event>>,
    agents: mpsc::Receiver<AgentInput>,
    outcomes: mpsc::Receiver<Event>,
    questions: mpsc::Receiver<Question>,
    stop: watch::Receiver<bool>,
}

/// The loop's channels, all bounded. The loop ends when `stop` says true or is dropped.
#[must_use]
pub fn channels(stop: watch::Receiver<bool>) -> (Senders, Inputs) {
    let (changes, changes_in) = mpsc::channel(CHANGES_BATCHES);
    let (agents, agents_in) = mpsc::channel(AGENT_INPUTS);
    let (outcomes, outcomes_in) = mpsc::channel(OUTCOMES);
    let (questions, questions_in) = mpsc::channel(QUESTIONS);
    let inputs = Inputs {
        changes: changes_in,
        agents: agents_in,
        outcomes: outcomes_in,
        questions: questions_in,
        stop,
    };
    (Senders { changes, agents, outcomes, questions }, inputs)
}

impl Inputs {
    /// Waits for the next input. `deadline`: how long at most; `writer`: wake when it takes actions again;
    /// `open`: take facts, not only outcomes.
    pub async fn next(
        &mut self,
        deadline: Option<Duration>,
        writer: Option<&mpsc::Sender<Action>>,
        open: bool,
    ) -> Input {
        let wait = deadline.map(|duration| duration.max(SHORTEST_WAIT));
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => Input::Stop,
            Some(event) = self.outcomes.recv() => Input::Outcome(event),
            Some(question) = self.questions.recv() => Input::Question(question),
            Some(input) = self.agents.recv(), if open => Input::Agent(input),
            Some(events) = self.changes.recv(), if open => Input::Changes(events),
            () = ready(writer), if writer.is_some() => Input::WriterReady,
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Input::Deadline,
            else => Input::Stop,
        }
    }

    /// What is there already, without waiting. Outcomes come first: they make room.
    pub fn ready(&mut self, open: bool) -> Option<Input> {
        if let Ok(event) = self.outcomes.try_recv() {
            return Some(Input::Outcome(event));
        }
        if let Ok(question) = self.questions.try_recv() {
            return Some(Input::Question(question));
        }
        if !open {
            return None;
        }
        if let Ok(input) = self.agents.try_recv() {
            return Some(Input::Agent(input));
        }
        self.changes.try_recv().ok().map(Input::Changes)
    }
}

async fn ready(writer: Option<&mpsc::Sender<Action>>) {
    let room = match writer {
        Some(writer) => writer.reserve().await.is_ok(),
        None => false,
    };
    if !room {
        // A writer that is gone never takes anything again; waking for it would spin.
        std::future::pending::<()>().await;
    }
}
