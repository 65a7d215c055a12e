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
/// Questions answered in one batch. To look at a large cluster takes as long as many facts, and those who ask again at
/// once must not keep the facts waiting; whatever waits of these is taken in every batch.
const QUESTIONS_TOGETHER: u32 = 4;
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
    Outcome(Box<Event>),
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
    batch: Batch,
}

/// What was taken since `next`.
#[derive(Debug, Default)]
struct Batch {
    questions: u32,
    agents: usize,
    changes: usize,
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
        batch: Batch::default(),
    };
    (Senders { changes, agents, outcomes, questions }, inputs)
}

impl Inputs {
    /// Waits for the first input of a batch. `deadline`: how long at most; `writer`: wake when it takes actions again;
    /// `open`: take facts, not only outcomes.
    pub async fn next(
        &mut self,
        deadline: Option<Duration>,
        writer: Option<&mpsc::Sender<Action>>,
        open: bool,
    ) -> Input {
        let wait = deadline.map(|duration| duration.max(SHORTEST_WAIT));
        self.batch = Batch::default();
        let input = tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => Input::Stop,
            Some(event) = self.outcomes.recv() => Input::Outcome(Box::new(event)),
            Some(question) = self.questions.recv() => Input::Question(question),
            Some(input) = self.agents.recv(), if open => Input::Agent(input),
            Some(events) = self.changes.recv(), if open => Input::Changes(events),
            () = ready(writer), if writer.is_some() => Input::WriterReady,
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Input::Deadline,
            else => Input::Stop,
        };
        self.batch.count(&input);
        input
    }

    /// What is there already, without waiting. Outcomes come first: they make room. Then a few questions; then agents
    /// and changes, of which none keeps the other waiting for a whole batch.
    pub fn ready(&mut self, open: bool) -> Option<Input> {
        let input = self.waiting(open)?;
        self.batch.count(&input);
        Some(input)
    }

    fn waiting(&mut self, open: bool) -> Option<Input> {
        if let Ok(event) = self.outcomes.try_recv() {
            return Some(Input::Outcome(Box::new(event)));
        }
        if self.batch.questions < QUESTIONS_TOGETHER
            && let Ok(question) = self.questions.try_recv()
        {
            return Some(Input::Question(question));
        }
        if !open {
            return None;
        }
        if self.batch.changes < self.batch.agents
            && let Ok(events) = self.changes.try_recv()
        {
            return Some(Input::Changes(events));
        }
        let agent = self.agents.try_recv().map(Input::Agent);
        agent.or_else(|_| self.changes.try_recv().map(Input::Changes)).ok()
    }
}

impl Batch {
    fn count(&mut self, input: &Input) {
        match input {
            Input::Question(_) => self.questions += 1,
            Input::Agent(_) => self.agents += input.facts(),
            Input::Changes(_) => self.changes += input.facts(),
            Input::Outcome(_) | Input::Deadline | Input::WriterReady | Input::Stop => {}
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use phalanx_common::ids::NodeName;

    use super::*;

    /// What a loop takes in one batch: inputs by their first letter. `refill` is called after each.
    async fn batch(inputs: &mut Inputs, mut refill: impl FnMut()) -> String {
        let mut taken = String::new();
        let mut next = Some(inputs.next(None, None, true).await);
        while let Some(input) = next {
            taken.push(match &input {
                Input::Question(_) => 'q',
                Input::Agent(_) => 'a',
                Input::Changes(_) => 'c',
                Input::Outcome(_) => 'o',
                input => panic!("{input:?}"),
            });
            refill();
            next = if taken.len() < 100 { inputs.ready(true) } else { None };
        }
        taken
    }

    fn gone() -> AgentInput {
        AgentInput::Gone { node: NodeName::from("n1"), session: 1 }
    }

    #[tokio::test]
    async fn questions_that_never_end_keep_no_fact_waiting() {
        let (_stop, stopped) = watch::channel(false);
        let (senders, mut inputs) = channels(stopped);
        let ask = || while senders.questions.try_send(Question::Totals(oneshot::channel().0)).is_ok() {};
        ask();
        for _ in 0..3 {
            senders.agents.try_send(gone()).unwrap();
            senders.changes.try_send(vec![Event::Synced]).unwrap();
        }
        senders.outcomes.try_send(Event::Synced).unwrap();
        assert_eq!(batch(&mut inputs, ask).await, "oqqqqacacac");
        // Where nothing else is there, they are answered all the same, batch by batch.
        assert_eq!(batch(&mut inputs, ask).await, "qqqq");
        assert_eq!(batch(&mut inputs, ask).await, "qqqq");
    }

    #[tokio::test]
    async fn agents_that_say_very_much_keep_no_change_waiting() {
        let (_stop, stopped) = watch::channel(false);
        let (senders, mut inputs) = channels(stopped);
        let say = || while senders.agents.try_send(gone()).is_ok() {};
        say();
        senders.changes.try_send(vec![Event::Synced; 3]).unwrap();
        senders.changes.try_send(vec![Event::Synced]).unwrap();
        let taken = batch(&mut inputs, say).await;
        assert!(taken.starts_with("acaaacaaaa"), "{taken}");
        // Nor the other way round.
        let (_stop, stopped) = watch::channel(false);
        let (senders, mut inputs) = channels(stopped);
        let change = || while senders.changes.try_send(vec![Event::Synced; 3]).is_ok() {};
        change();
        (0..6).for_each(|_| senders.agents.try_send(gone()).unwrap());
        let taken = batch(&mut inputs, change).await;
        assert!(taken.starts_with("acaaacaac"), "{taken}");
    }
}
