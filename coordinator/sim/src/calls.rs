//! The coordinator's calls to the API: in order for each pod, gang, queue and object of plans, with faults, and with
//! answers that are late. Calls of a process that died may land all the same.

use std::collections::BTreeMap;

use phalanx_common::ids::{ActionId, GangName, PodUid, Term};
use phalanx_coordinator::api::faults::{Call, Fault};
use phalanx_coordinator::api::{ApiError, Kind, Mutation, ObjectKey, Preconditions};
use phalanx_coordinator::convert::plan::{PlanChange, decide, number_of, plan_key};
use phalanx_coordinator::convert::status::{pod_group_status, queue_status};
use phalanx_coordinator::convert::{self, Reading, outcome_of};
use phalanx_coordinator::metrics::{command_name, outcome_name};
use phalanx_coordinator::writer::{pod_fenced, pod_read};
use phalanx_core::action::{Action, Command};
use phalanx_core::event::Event;

use crate::coordinator::{Flight, Lane};
use crate::facts::Evicted;
use crate::kubelet::short;
use crate::world::{Happening, World};

/// Conflicts met by a call that reads before it writes, before it gives up.
const MOST_CONFLICTS: u32 = 8;
/// The term is tried again after this.
const TERM_RETRY_MS: u64 = 1_000;
/// The coordinator waits no longer for an answer.
const TIME_OUT_MS: u64 = 10_000;

/// What came of a landing.
enum Landed {
    /// The call goes on with this write; if it is done, these are the answers.
    Second(Box<Mutation>, Vec<Result<(), ApiError>>),
    /// The call begins anew.
    Again,
    /// It begins anew with the first half of its changes.
    Half,
    /// The call is over, and each of its changes of plans has an answer.
    Changed(Vec<Result<(), ApiError>>),
    /// The call is over.
    Over(Option<Box<Event>>),
}

impl Landed {
    /// The call is over, and this comes of it.
    fn over(event: Event) -> Self {
        Self::Over(Some(Box::new(event)))
    }
}

impl World {
    /// Puts an action behind those of the same thing.
    pub(crate) fn enqueue(&mut self, incarnation: u64, action: Action) {
        let lane = lane_of(&action.command);
        let Some(process) = self.alive(incarnation) else { return };
        let waiting = process.lanes.entry(lane.clone()).or_default();
        waiting.push_back(action);
        if waiting.len() == 1 {
            self.send_call(incarnation, &lane);
        }
    }

    /// Sends the first action of a lane.
    fn send_call(&mut self, incarnation: u64, lane: &Lane) {
        let Some(process) = self.processes.get_mut(&incarnation) else { return };
        let Some(waiting) = process.lanes.get(lane) else { return };
        let mut actions = waiting.iter().cloned();
        let Some(action) = actions.next() else { return };
        let beside: Vec<Action> = if matches!(lane, Lane::Plans(_)) { actions.collect() } else { Vec::new() };
        process.expected.insert(lane.clone(), 1 + beside.len());
        if !beside.is_empty() {
            self.log.count("changes of plans that go together");
        }
        let (lane, answers) = (lane.clone(), Vec::new());
        self.launch(Flight { incarnation, lane, action, beside, second: None, answers, conflicts: 0 });
    }

    fn launch(&mut self, flight: Flight) {
        let number = self.next_number();
        self.flights.insert(number, flight);
        let most = if self.faults { 60 } else { 5 };
        let delay = self.random.between(1, most);
        self.after(delay, Happening::CallLands { flight: number });
    }

    /// A call reaches the API.
    pub(crate) fn call_lands(&mut self, number: u64) {
        let Some(mut flight) = self.flights.remove(&number) else { return };
        let is_read = matches!(flight.action.command, Command::ReadPod { .. });
        let is_alive = self.processes.contains_key(&flight.incarnation);
        let fault = if is_alive {
            self.api_fault(if is_read { Call::Read } else { Call::Write })
        } else {
            self.log
                .count(&format!("late call of a dead coordinator: {}", command_name(&flight.action.command)));
            None
        };
        let id = flight.action.id;
        let landed = match flight.second.take() {
            Some(mutation) => self.finish_call(id, &flight, fault, mutation),
            None => self.do_call(&flight, fault),
        };
        match landed {
            Landed::Second(mutation, answers) => {
                (flight.second, flight.answers) = (Some(*mutation), answers);
                let incarnation = flight.incarnation;
                self.launch(flight);
                // Between what was read and what is written by it.
                if self.goes_wrong(self.rates.coordinator_crash) {
                    self.crash_coordinator(incarnation);
                }
            }
            Landed::Again => {
                flight.conflicts += 1;
                self.launch(flight);
            }
            Landed::Half => {
                let count = flight.beside.len().div_ceil(2);
                flight.beside.truncate(count - 1);
                if let Some(process) = self.alive(flight.incarnation) {
                    process.expected.insert(flight.lane.clone(), count);
                }
                self.launch(flight);
            }
            Landed::Changed(answers) => self.end_changes(&flight, fault, answers),
            Landed::Over(event) => self.end_call(flight, fault, event.map(|event| *event)),
        }
        self.api_changed();
    }

    /// The answer is on its way.
    fn end_call(&mut self, flight: Flight, fault: Option<Fault>, event: Option<Event>) {
        self.count_outcome(&flight.action, event.as_ref());
        let delay = self.answer_delay(fault);
        let (incarnation, lane) = (flight.incarnation, flight.lane);
        self.after(delay, Happening::Answer { incarnation, lane, event: event.map(Box::new) });
    }

    /// The same of changes of plans. Each is told for itself.
    fn end_changes(&mut self, flight: &Flight, fault: Option<Fault>, answers: Vec<Result<(), ApiError>>) {
        let delay = self.answer_delay(fault);
        for (action, answer) in flight.actions().zip(answers) {
            let event = done(action.id, &answer);
            self.count_outcome(action, Some(&event));
            let (incarnation, lane) = (flight.incarnation, flight.lane.clone());
            self.after(delay, Happening::Answer { incarnation, lane, event: Some(Box::new(event)) });
        }
    }

    fn count_outcome(&mut self, action: &Action, event: Option<&Event>) {
        if let Some(Event::ActionDone { outcome, .. }) = event {
            let name = command_name(&action.command);
            self.log.count(&format!("outcome {name} {}", outcome_name(outcome)));
        }
    }

    fn answer_delay(&mut self, fault: Option<Fault>) -> u64 {
        match fault {
            Some(Fault::TimedOutNotDone | Fault::TimedOutButDone) => {
                self.random.between(TIME_OUT_MS / 10, TIME_OUT_MS)
            }
            _ if self.goes_wrong(self.rates.late) => self.random.between(100, TIME_OUT_MS / 2),
            _ => self.random.between(1, 10),
        }
    }

    /// The coordinator hears what came of a call, and sends the next one of the lane.
    pub(crate) fn answer(&mut self, incarnation: u64, lane: &Lane, event: Option<Event>) {
        let Some(process) = self.alive(incarnation) else { return };
        let is_term = *lane == Lane::Term;
        if is_term && event.is_none() {
            self.send_call(incarnation, lane);
            return;
        }
        if let Some(waiting) = process.lanes.get_mut(lane) {
            waiting.pop_front();
            if waiting.is_empty() {
                process.lanes.remove(lane);
            }
        }
        let left = process.expected.remove(lane).unwrap_or(1) - 1;
        if left > 0 {
            process.expected.insert(lane.clone(), left);
        } else {
            // Before the core hears: what it asks for now stands behind.
            self.send_call(incarnation, lane);
        }
        if let Some(event) = event {
            if let Event::TermRaised { term } = &event {
                self.set_term(*term);
            }
            self.tell_core(incarnation, event);
        }
    }

    /// A call, or the first half of one.
    fn do_call(&mut self, flight: &Flight, fault: Option<Fault>) -> Landed {
        let id = flight.action.id;
        match flight.action.command.clone() {
            Command::RaiseTerm { above } => self.raise_term(flight.incarnation, above, fault),
            Command::ReadPod { pod, name } => Landed::over(self.read_pod(id, &pod, &name, fault)),
            Command::FenceWrite { pod, name, term } => {
                let event = self.fence(id, &pod, &name, term, fault);
                if matches!(&event, Event::PodRead { pod: Some(pod), .. } if pod.binding.is_none()) {
                    self.fenced.insert(pod, flight.incarnation);
                }
                Landed::over(event)
            }
            Command::WritePlan(_) | Command::DeletePlan { .. } => self.change_plans(flight),
            command => match self.mutation(command) {
                // As the writer does: a status that is there already is not written again.
                Ok(Mutation::UpdateStatus { key, status, .. })
                    if self.api.store.get(&key).is_ok_and(|stored| stored.status == status) =>
                {
                    Landed::over(done(id, &Ok(())))
                }
                Ok(mutation) => self.finish_call(id, flight, fault, mutation),
                Err(error) => Landed::over(done(id, &Err::<(), _>(error))),
            },
        }
    }

    /// Looks at the object that holds the gangs' plans, and decides by it.
    fn change_plans(&self, flight: &Flight) -> Landed {
        let changes: Vec<PlanChange> = flight.actions().filter_map(change_of).collect();
        let Some(first) = changes.first() else { return Landed::Changed(Vec::new()) };
        let key = plan_key(&Reading::default(), first.gang());
        let stored = self.api.store.get(&key).ok();
        let decided = decide(&key, stored.as_deref(), &changes);
        match decided.mutation {
            Some(mutation) => Landed::Second(Box::new(mutation), decided.answers),
            None => Landed::Changed(decided.answers),
        }
    }

    /// As the writer does with what came of the write of an object of plans.
    fn plans_landed(flight: &Flight, is_alive: bool, answer: Result<(), ApiError>) -> Landed {
        let all = |error: ApiError| Landed::Changed(vec![Err(error); 1 + flight.beside.len()]);
        match answer {
            Ok(()) => Landed::Changed(flight.answers.clone()),
            Err(ApiError::Invalid(_)) if is_alive && !flight.beside.is_empty() => Landed::Half,
            Err(error) if error.is_overtaken() => {
                if is_alive && flight.conflicts < MOST_CONFLICTS {
                    Landed::Again
                } else {
                    all(ApiError::Unknown)
                }
            }
            Err(error) => all(error),
        }
    }

    /// The write of a call.
    fn finish_call(
        &mut self,
        id: ActionId,
        flight: &Flight,
        fault: Option<Fault>,
        mutation: Mutation,
    ) -> Landed {
        let text = format!("{} {}", mutation.verb(), mutation.target());
        let is_alive = self.processes.contains_key(&flight.incarnation);
        let answer = self.api.write(fault, mutation, self.now);
        self.writes += 1;
        let is_done = answer.is_ok() || matches!(fault, Some(Fault::TimedOutButDone));
        if let Command::Evict { pod, .. } = &flight.action.command
            && is_done
        {
            self.evicted(flight.incarnation, pod);
        }
        self.log
            .line(self.now, format_args!("api: {} {}: {text}: {}", flight.incarnation, id.0, short(&answer)));
        if let (Command::Bind { pod, name, .. }, Ok(_)) = (&flight.action.command, &answer)
            && self.fenced.get(pod).is_some_and(|by| *by > flight.incarnation)
        {
            self.fail(
                "ownership",
                format!("a late Binding reached pod {name} after a newer coordinator fenced it"),
            );
        }
        if matches!(flight.lane, Lane::Plans(_)) {
            self.note_late_rooms(flight);
            return Self::plans_landed(flight, is_alive, answer.map(drop));
        }
        Landed::over(done(id, &answer))
    }

    /// Plans that make room, of a coordinator that does not lead: whoever does takes them away without a word.
    fn note_late_rooms(&mut self, flight: &Flight) {
        if self.newest() == Some(flight.incarnation) {
            return;
        }
        for action in flight.actions() {
            if let Command::WritePlan(plan) = &action.command {
                self.facts.rooms.late.insert((plan.gang.clone(), plan.term));
            }
        }
    }

    /// A coordinator has deleted a pod. Where it was not there, or was being deleted already, nothing came of it.
    fn evicted(&mut self, incarnation: u64, uid: &PodUid) {
        // The facts are told of it only after this.
        let Some(pod) = self.facts.pods.get(uid).filter(|pod| !pod.deleting).cloned() else { return };
        self.facts.may_go.insert(uid.as_str().to_owned());
        let by_leader = self.newest() == Some(incarnation);
        self.log.count(match self.facts.rooms.victims.get(uid) {
            Some(true) => "evicted: of a whole gang for another one",
            Some(false) => "evicted: surplus for another gang",
            None => "evicted: not for another gang",
        });
        self.plan_remake(uid);
        self.facts.evicted.push(Evicted { uid: uid.clone(), pod, by_leader });
    }

    /// What a command that is one write asks for.
    fn mutation(&self, command: Command) -> Result<Mutation, ApiError> {
        let any = Preconditions::default();
        Ok(match command {
            Command::Bind { pod, name, resource_version, binding, exactness, group_uid, term } => {
                Mutation::Bind {
                    key: pod_key(&name),
                    preconditions: Preconditions { uid: Some(pod.as_str().to_owned()), resource_version },
                    node: binding.node.as_str().to_owned(),
                    annotations: convert::bind_annotations(
                        &convert::Reading::default(),
                        &binding,
                        exactness,
                        &group_uid,
                        term,
                    ),
                }
            }
            Command::Evict { pod, name, .. } => {
                Mutation::Delete { key: pod_key(&name), preconditions: Preconditions::uid(pod.as_str()) }
            }
            Command::AnnounceEviction { pod, name, at, .. } => Mutation::PatchAnnotations {
                key: pod_key(&name),
                preconditions: Preconditions::uid(pod.as_str()),
                annotations: convert::announcement(at),
            },
            Command::SetGangStatus { gang, uid, status } => {
                let key = ObjectKey::new(Kind::PodGroup, &gang.namespace, &gang.name);
                let before = self.api.store.get(&key)?;
                let status = pod_group_status(&before.status, &status, self.now);
                Mutation::UpdateStatus { key, preconditions: Preconditions::uid(&uid), status }
            }
            Command::SetQueueStatus { queue, status } => {
                let key = ObjectKey::new(Kind::Queue, "", queue.as_str());
                let status = queue_status(&self.api.store.get(&key)?.status, &status);
                Mutation::UpdateStatus { key, preconditions: any, status }
            }
            other => return Err(ApiError::Invalid(format!("{} is no write", command_name(&other)))),
        })
    }

    fn raise_term(&mut self, incarnation: u64, above: u64, fault: Option<Fault>) -> Landed {
        // The compare-and-swap of a leader that was replaced fails, and tells it so.
        if self.processes.get(&incarnation).is_some_and(|process| process.is_deposed) {
            self.after(0, Happening::LearnsOfLoss { incarnation });
            return Landed::Over(None);
        }
        if matches!(fault, None | Some(Fault::TimedOutButDone)) {
            let counter = self.api.raise_term(above);
            self.log.line(self.now, format_args!("api: term {counter}"));
            if fault.is_none() {
                return Landed::over(Event::TermRaised { term: Term { counter, incarnation } });
            }
        }
        self.log.count(&format!("the term is tried again after {TERM_RETRY_MS} ms"));
        Landed::Over(None)
    }

    fn fence(
        &mut self,
        action: ActionId,
        pod: &PodUid,
        name: &GangName,
        term: Term,
        fault: Option<Fault>,
    ) -> Event {
        let annotations: BTreeMap<String, Option<String>> = convert::fence_annotations(term);
        let preconditions = Preconditions::uid(pod.as_str());
        let patch = Mutation::PatchAnnotations { key: pod_key(name), preconditions, annotations };
        let answer = self.api.write(fault, patch, self.now);
        self.log.line(self.now, format_args!("api: fence {}: {}", name.name, short(&answer)));
        pod_fenced(&Reading::default(), action, pod, answer)
    }

    fn read_pod(&mut self, action: ActionId, pod: &PodUid, name: &GangName, fault: Option<Fault>) -> Event {
        let answer = match fault {
            Some(fault) => Err(fault.error(&name.to_string())),
            None => self.api.store.get(&pod_key(name)),
        };
        self.log.line(self.now, format_args!("api: read {}: {}", name.name, short(&answer)));
        pod_read(&Reading::default(), action, pod, answer)
    }
}

fn lane_of(command: &Command) -> Lane {
    match command {
        Command::WritePlan(plan) => Lane::Plans(number_of(&plan.gang)),
        Command::DeletePlan { gang, .. } => Lane::Plans(number_of(gang)),
        Command::SetGangStatus { gang, .. } => Lane::Gang(gang.clone()),
        Command::SetQueueStatus { queue, .. } => Lane::Queue(queue.clone()),
        Command::Bind { pod, .. }
        | Command::FenceWrite { pod, .. }
        | Command::ReadPod { pod, .. }
        | Command::Evict { pod, .. }
        | Command::AnnounceEviction { pod, .. } => Lane::Pod(pod.clone()),
        Command::RaiseTerm { .. }
        | Command::Send { .. }
        | Command::RecordPromise { .. }
        | Command::Warn { .. } => Lane::Term,
    }
}

fn change_of(action: &Action) -> Option<PlanChange> {
    match action.command.clone() {
        Command::WritePlan(plan) => Some(PlanChange::Write(plan)),
        Command::DeletePlan { gang, term } => Some(PlanChange::Remove { gang, term }),
        _ => None,
    }
}

impl Flight {
    fn actions(&self) -> impl Iterator<Item = &Action> {
        std::iter::once(&self.action).chain(&self.beside)
    }
}

fn pod_key(name: &GangName) -> ObjectKey {
    ObjectKey::new(Kind::Pod, &name.namespace, &name.name)
}

fn done<T>(action: ActionId, answer: &Result<T, ApiError>) -> Event {
    Event::ActionDone { action, outcome: outcome_of(answer) }
}
