//! The coordinator's shell in the simulation: its start and its crash, its loop, its connections. The core inside
//! is the real one. Its calls to the API are in `calls`, its stand-in for the kubelet in `kubelet`.

use std::collections::{BTreeMap, VecDeque};

use phalanx_common::ids::{ClusterId, GangName, NodeName, PodUid, QueueName, Term};
use phalanx_common::units::Time;
use phalanx_common::wire::{FromAgent, LeaseState, ToAgent, VERSION};
use phalanx_coordinator::agents::PodReport;
use phalanx_coordinator::api::{ApiError, Mutation};
use phalanx_coordinator::convert::{self, PlansTold, Reading};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;
use phalanx_core::{Core, invariants};

use crate::coverage::{Fault, command_name, crash_name, move_name};
use crate::fake_api::Follower;
use crate::faults::ProcessClock;
use crate::kubelet::Kubelet;
use crate::log::Log;
use crate::network::{from_agent, to_agent};
use crate::world::{Happening, World};

/// Name of the cluster.
const CLUSTER: &str = "simulated";

/// Writes of one of these keep their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Gang(GangName),
    /// The object of plans of this number.
    Plans(u8),
    Queue(QueueName),
    Pod(PodUid),
    Term,
}

/// A call on its way to the API.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) incarnation: u64,
    pub(crate) lane: Lane,
    pub(crate) action: Action,
    /// Changes of plans that become one write with it.
    pub(crate) beside: Vec<Action>,
    /// The second half of a call that reads before it writes.
    pub(crate) second: Option<Mutation>,
    /// What comes of the changes of plans if that is done.
    pub(crate) answers: Vec<Result<(), ApiError>>,
    /// Conflicts met so far.
    pub(crate) conflicts: u32,
}

/// A coordinator's process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) incarnation: u64,
    pub(crate) clock: ProcessClock,
    /// Nothing of it runs until then; what is due for it waits.
    pub(crate) paused_until: Option<Time>,
    /// Another one has taken its place; it does not know yet.
    pub(crate) is_deposed: bool,
    pub(crate) core: Core,
    pub(crate) kubelet: Kubelet,
    /// Actions that wait, by lane; the first of each is on its way, and changes of plans that go with it.
    pub(crate) lanes: BTreeMap<Lane, VecDeque<Action>>,
    /// Answers that are still to come of the call of a lane.
    pub(crate) expected: BTreeMap<Lane, usize>,
    /// Plans that its core was told of.
    plans: PlansTold,
    follower: Follower,
    /// Connections by number, and the newest of each node.
    sessions: BTreeMap<u64, u64>,
    newest: BTreeMap<NodeName, u64>,
    next_session: u64,
    term: Term,
    pass_at: Option<Time>,
    feed_is_due: bool,
}

impl World {
    /// The coordinator's process, where it is this one.
    pub(crate) fn alive(&mut self, incarnation: u64) -> Option<&mut Process> {
        self.processes.get_mut(&incarnation)
    }

    /// The process that was started last.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.processes.last_key_value().map(|(incarnation, _)| *incarnation)
    }

    /// A new process, where none leads.
    pub(crate) fn start_coordinator(&mut self) {
        if self.processes.values().all(|process| process.is_deposed) {
            self.lead();
        }
    }

    /// Raises the term, lists everything, begins.
    pub(crate) fn lead(&mut self) {
        let incarnation = self.next_number();
        let counter = self.api.raise_term(0);
        let term = Term { counter, incarnation };
        let (follower, objects) = Follower::start(&self.api.store);
        let kubelet = Kubelet::start(&self.api.store);
        let clock = self.draw_clock();
        let mut plans = PlansTold::default();
        let stored: Vec<Event> = objects
            .iter()
            .flat_map(|object| {
                let event = convert::event_of_object(&Reading::default(), object).event;
                event.into_iter().chain(plans.object(&Reading::default(), object).0)
            })
            .collect();
        let process = Process {
            incarnation,
            clock,
            paused_until: None,
            is_deposed: false,
            core: Core::new(self.settings.clone()),
            kubelet,
            lanes: BTreeMap::new(),
            expected: BTreeMap::new(),
            plans,
            follower,
            sessions: BTreeMap::new(),
            newest: BTreeMap::new(),
            next_session: 1,
            term,
            pass_at: None,
            feed_is_due: false,
        };
        self.recordings.start(incarnation, process.clock.told(self.now), &self.settings);
        self.processes.insert(incarnation, process);
        self.log.line(self.now, format_args!("coordinator starts, term {term}, {} objects", objects.len()));
        self.log.count("coordinator start");
        let events = std::iter::once(Event::Started { term }).chain(stored).chain([Event::Synced]);
        let mut actions = Vec::new();
        for event in events {
            self.record(incarnation, event, &mut actions);
        }
        self.plan_pass(incarnation, self.now.0);
        self.dispatch(incarnation, actions);
        self.plan_look(incarnation, 1);
    }

    /// The process ends in the middle of whatever it does. Calls on their way may still land.
    pub(crate) fn crash_coordinator(&mut self, incarnation: u64) {
        let Some(process) = self.processes.get(&incarnation) else { return };
        for gang in process.core.view().gangs {
            self.log.count(&crash_name(&gang.phase));
        }
        self.log.line(self.now, format_args!("coordinator {incarnation} CRASHES"));
        self.note(Fault::CoordinatorCrash);
        self.restart_coordinator(incarnation);
    }

    /// The process ends; where it leads another one follows a while later.
    pub(crate) fn restart_coordinator(&mut self, incarnation: u64) {
        let is_deposed = self.processes.get(&incarnation).is_some_and(|process| process.is_deposed);
        self.end_process(incarnation);
        if !is_deposed {
            let away = self.random.between(50, self.rates.away_ms);
            self.after(away, Happening::CoordinatorStarts);
        }
    }

    /// Ends a process; nobody takes its place.
    pub(crate) fn end_process(&mut self, incarnation: u64) {
        let Some(process) = self.processes.remove(&incarnation) else { return };
        count_moves(&process, &mut self.log);
        // The store was set back to an older copy of itself, as far as the term goes.
        let is_alone = self.processes.is_empty() && process.term.counter == self.api.term;
        if is_alone && self.goes_wrong(self.rates.term_lost) {
            self.api.term -= 1;
            self.note(Fault::TermForgotten);
        }
        let flights: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.incarnation == process.incarnation)
            .map(|(number, _)| *number)
            .collect();
        for number in flights {
            let Some(flight) = self.flights.remove(&number) else { continue };
            if can_land_alone(&flight) && self.random.per_mille(self.rates.survival) {
                let late = self.random.between(1, self.rates.survival_ms);
                let number = self.next_number();
                self.flights.insert(number, flight);
                self.after(late, Happening::CallLands { flight: number });
            }
        }
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| link.incarnation == process.incarnation)
            .map(|(number, _)| *number)
            .collect();
        for link in links {
            self.break_link(link);
        }
    }

    /// Counts what the gangs of those did that live at the end.
    pub(crate) fn count_moves(&mut self) {
        for process in self.processes.values() {
            count_moves(process, &mut self.log);
        }
    }

    /// An action is next: the process may end before it. One that ends after its last action is ended by `disturb`.
    pub(crate) fn before_action(&mut self, incarnation: u64) {
        self.actions_done += u64::from(self.faults);
        let is_chosen = self.faults && self.crash_at_action == Some(self.actions_done);
        if is_chosen {
            self.note(Fault::CoordinatorCrashAtAction);
        }
        if is_chosen || self.goes_wrong(self.rates.coordinator_crash / 3) {
            self.crash_coordinator(incarnation);
        }
    }

    /// One fact for the core.
    pub(crate) fn record(&mut self, incarnation: u64, event: Event, actions: &mut Vec<Action>) {
        let Some(process) = self.processes.get_mut(&incarnation) else { return };
        let (at, before) = (process.clock.told(self.now), actions.len());
        self.recordings.event(incarnation, at, &event);
        process.core.apply(event, at, actions);
        self.recordings.actions(incarnation, &actions[before..]);
        let is_overtaken = process.core.overtaken().is_some();
        if let Err(error) = invariants::check(&process.core) {
            self.fail("coordinator-core", error);
        }
        if is_overtaken {
            self.after(0, Happening::LearnsOfLoss { incarnation });
        }
    }

    /// A fact that came in, and what the core wants at once.
    pub(crate) fn tell_core(&mut self, incarnation: u64, event: Event) {
        let mut actions = Vec::new();
        self.record(incarnation, event, &mut actions);
        // As in the loop: several facts that come close together get one pass.
        let delay = if self.random.per_mille(300) { self.random.between(1, 15) } else { 0 };
        self.plan_pass(incarnation, self.now.0 + delay);
        self.dispatch(incarnation, actions);
    }

    fn plan_pass(&mut self, incarnation: u64, at: u64) {
        let now = self.now;
        let at = Time(at).max(now);
        let Some(process) = self.alive(incarnation) else { return };
        if process.pass_at.is_some_and(|pass| pass >= now && pass <= at) {
            return;
        }
        process.pass_at = Some(at);
        self.after((at - now).0, Happening::Pass { incarnation });
    }

    /// One pass of the core.
    pub(crate) fn pass(&mut self, incarnation: u64) {
        let now = self.now;
        // One that was planned before an earlier one is not needed any more.
        let is_due = |process: &&mut Process| process.pass_at.is_some_and(|at| at <= now);
        let Some(process) = self.processes.get_mut(&incarnation).filter(is_due) else { return };
        process.pass_at = None;
        let mut actions = Vec::new();
        let at = process.clock.told(now);
        process.core.cycle(at, &mut actions);
        self.recordings.pass(incarnation, at, &actions, &mut process.core);
        let deadline = process.core.next_deadline().map(|(at, _)| process.clock.until(now, at));
        let unheeded = process.core.reached().find(|(what, _)| *what == "hold: NOT HEEDED");
        if let Some((what, _)) = unheeded {
            self.fail("holds", format!("a pod was given GPUs that are held for another gang: {what}"));
            return;
        }
        if let Err(error) = invariants::check(&process.core) {
            self.fail("coordinator-core", error);
            return;
        }
        self.dispatch(incarnation, actions);
        if let Some(wait) = deadline {
            // A deadline that has passed and was not moved by the pass must not stop the time.
            self.plan_pass(incarnation, now.0 + wait.max(1));
        }
    }

    /// Out with the actions, in order; a crash may come between any two.
    fn dispatch(&mut self, incarnation: u64, actions: Vec<Action>) {
        for action in actions {
            self.before_action(incarnation);
            let Some(process) = self.processes.get_mut(&incarnation) else { return };
            let is_deposed = process.is_deposed;
            self.log.count(command_name(&action.command));
            if is_deposed {
                self.note(Fault::OldOneActs);
            }
            self.look_at_command(incarnation, &action.command);
            let Some(process) = self.processes.get_mut(&incarnation) else { return };
            match action.command {
                Command::Send { session, message, node } => {
                    if let ToAgent::Reserve { lease, .. } = &*message {
                        self.facts.decided.entry(*lease).or_insert(self.now);
                    }
                    let link = process.sessions.get(&session).copied();
                    self.log.line(self.now, format_args!("core: to {node}: {}", to_agent(&message)));
                    if let Some(link) = link {
                        self.send_to_agent(link, *message);
                    }
                }
                Command::RecordPromise { gang, expected, started, .. } => {
                    self.log.line(
                        self.now,
                        format_args!("core: {gang} was to start at {}, started {started:?}", expected.0),
                    );
                }
                Command::Warn { message } => {
                    self.log.line(self.now, format_args!("core warns: {message}"));
                }
                command => {
                    self.enqueue(incarnation, Action { id: action.id, command });
                }
            }
        }
    }

    /// Whoever follows the API gets to know, a little later.
    pub(crate) fn wake_readers(&mut self) {
        let all: Vec<u64> = self.processes.keys().copied().collect();
        for incarnation in all {
            self.wake_reader(incarnation);
        }
    }

    fn wake_reader(&mut self, incarnation: u64) {
        let mut delay = self.random.between(1, 20);
        if self.goes_wrong(self.rates.late) {
            delay = self.random.between(100, 3_000);
        }
        let look = self.random.between(5, 40);
        let Some(process) = self.alive(incarnation) else { return };
        let feed = !std::mem::replace(&mut process.feed_is_due, true);
        if feed {
            self.after(delay, Happening::Feed { incarnation });
        }
        self.plan_look(incarnation, look);
    }

    /// Changes of the API become facts.
    pub(crate) fn feed(&mut self, incarnation: u64) {
        let Some(process) = self.processes.get_mut(&incarnation) else { return };
        process.feed_is_due = false;
        let changes = process.follower.next(&mut self.api);
        if process.follower.is_behind(&self.api.store) {
            process.feed_is_due = true;
            self.after(20, Happening::Feed { incarnation });
        }
        let mut actions = Vec::new();
        for change in &changes {
            let event = convert::event_of_change(&Reading::default(), change).event;
            let Some(process) = self.processes.get_mut(&incarnation) else { return };
            let found = process.plans.change(&Reading::default(), change).0;
            for event in event.into_iter().chain(found) {
                self.record(incarnation, event, &mut actions);
            }
        }
        self.plan_pass(incarnation, self.now.0);
        self.dispatch(incarnation, actions);
    }

    /// A message of an agent.
    pub(crate) fn reach_coordinator(&mut self, number: u64, message: FromAgent) {
        let Some(link) = self.links.get(&number) else { return };
        let (node, incarnation, session) = (link.node.clone(), link.incarnation, link.session);
        let newest_link = self.hosts.get(&node).and_then(|host| host.link);
        let Some(process) = self.processes.get_mut(&incarnation) else { return };
        if let FromAgent::Hello(hello) = message {
            // A doubled Hello is no new connection, and the one of a connection that was given up is not read.
            if session.is_none() && newest_link == Some(number) {
                self.admit(incarnation, number, hello);
            }
            return;
        }
        let Some(session) = session.filter(|session| process.sessions.contains_key(session)) else { return };
        self.log.line(self.now, format_args!("coordinator <- {node}: {}", from_agent(&message)));
        let report = match &message {
            FromAgent::PodStarted { pod } => {
                Some(PodReport::Started { node: node.clone(), session, pod: pod.clone() })
            }
            FromAgent::PodEnded { pod, succeeded } => {
                Some(PodReport::Ended { node: node.clone(), pod: pod.clone(), succeeded: *succeeded })
            }
            FromAgent::PodStopped { pod } => {
                Some(PodReport::Stopped { node: node.clone(), pod: pod.clone() })
            }
            FromAgent::LeaseIs { lease, state: LeaseState::Gone, .. } => {
                Some(PodReport::LeaseGone { node: node.clone(), session, lease: *lease })
            }
            _ => None,
        };
        if let Some(report) = report {
            self.report(incarnation, report);
        }
        self.tell_core(incarnation, Event::AgentSaid { node, session, message: Box::new(message) });
    }

    fn admit(&mut self, incarnation: u64, number: u64, hello: phalanx_common::wire::Hello) {
        let node = hello.node.clone();
        let Some(process) = self.alive(incarnation) else { return };
        let session = process.next_session;
        process.next_session += 1;
        process.sessions.insert(session, number);
        let replaced = process.newest.insert(node.clone(), session);
        let replaced = replaced.and_then(|old| process.sessions.get(&old).copied());
        let term = process.term;
        if let Some(link) = self.links.get_mut(&number) {
            link.session = Some(session);
        }
        if let Some(old) = replaced {
            self.break_link(old);
        }
        self.log.line(self.now, format_args!("coordinator <- {node}: Hello, session {session}"));
        let cluster = ClusterId::from(CLUSTER);
        self.send_to_agent(number, ToAgent::Welcome { version: VERSION, cluster, term });
        self.tell_core(incarnation, Event::AgentConnected { session, hello: Box::new(hello) });
    }

    /// The coordinator's side of a connection has ended.
    pub(crate) fn coordinator_notices(&mut self, number: u64) {
        let Some(link) = self.links.get(&number) else { return };
        let (node, incarnation, session) = (link.node.clone(), link.incarnation, link.session);
        let Some(session) = session else { return };
        let Some(process) = self.alive(incarnation) else { return };
        if process.sessions.remove(&session).is_none() {
            return;
        }
        if process.newest.get(&node) == Some(&session) {
            process.newest.remove(&node);
        }
        self.log.line(self.now, format_args!("coordinator: session {session} of {node} is gone"));
        self.tell_core(incarnation, Event::AgentGone { node, session });
    }

    /// The term was raised: agents are welcomed under the new one.
    pub(crate) fn set_term(&mut self, term: Term) {
        if let Some(process) = self.alive(term.incarnation) {
            process.term = term;
        }
    }
}

fn count_moves(process: &Process, log: &mut Log) {
    for (from, to, count) in process.core.moves() {
        log.count_more(&move_name(from, to), count);
    }
    for (what, count) in process.core.reached() {
        log.count_more(what, count);
    }
}

/// A call of a process that is dead lands only where nothing had to be read before, or was.
fn can_land_alone(flight: &Flight) -> bool {
    match flight.action.command {
        Command::WritePlan(_) | Command::DeletePlan { .. } => flight.second.is_some(),
        Command::Bind { .. }
        | Command::FenceWrite { .. }
        | Command::Evict { .. }
        | Command::AnnounceEviction { .. }
        | Command::RaiseTerm { .. } => true,
        Command::ReadPod { .. }
        | Command::SetGangStatus { .. }
        | Command::SetQueueStatus { .. }
        | Command::Send { .. }
        | Command::RecordPromise { .. }
        | Command::Warn { .. } => false,
    }
}
