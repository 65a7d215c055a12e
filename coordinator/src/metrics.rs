//! Numbers for Prometheus. Labels take values from closed lists only, so that no user can make more of them.

mod shadow;

use std::fmt;
use std::sync::atomic::AtomicUsize;

use phalanx_core::action::Command;
use phalanx_core::event::{Event, Outcome};
use phalanx_core::kept::Totals;
use phalanx_core::{Core, Settings};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use self::shadow::ShadowMetrics;

/// A label whose value is a name of the program's text, never a user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub &'static str);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }
}

/// One label: the kind of the thing counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    kind: Name,
}

/// One label: the phase of a gang.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Phase {
    phase: Name,
}

/// One label: why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Cause {
    cause: Name,
}

/// One label: what is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct What {
    what: Name,
}

/// A write to the API and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Write {
    command: Name,
    outcome: Name,
}

/// All numbers.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    events: Family<Kind, Counter>,
    actions: Family<Kind, Counter>,
    writes: Family<Write, Counter>,
    rejected: Family<Cause, Counter>,
    gangs: Family<Phase, Gauge>,
    nodes: Gauge,
    gpus: Gauge,
    gpus_held: Gauge,
    kept: Family<What, Gauge>,
    /// Agents whose connection is up.
    pub agents: Gauge,
    /// Agents that wait for this coordinator to lead.
    pub standing_by: Gauge,
    /// Connections ended because the agent took its messages too slowly.
    pub slow_agents: Counter,
    /// Messages that were read later because the agent said more than any node has to say.
    pub throttled: Counter,
    /// Connections that are being let in.
    pub admitting: Gauge,
    /// Connections that wait to be let in.
    pub waiting: Gauge,
    /// Connections that had to show first that their address can be reached.
    pub retried: Counter,
    /// Messages for a connection that had ended.
    pub unsent: Counter,
    /// Time of `apply` and `cycle` of one pass.
    pub pass_seconds: Histogram,
    /// Actions that wait for the writer.
    pub backlog: Gauge,
    /// Writes of pods and plans that the writer has and that are not done: others give way to them. No series.
    pub urgent_writes: AtomicUsize,
    /// Writes of objects of plans: each is for all plans that waited.
    pub plan_objects: Counter,
    /// 1 while objects cannot be written.
    pub storage_failed: Gauge,
    /// 1 while everything is recorded.
    pub recording: Gauge,
    /// Times the watch had to begin anew.
    pub relists: Counter,
    /// Numbers of shadow mode.
    pub shadow: ShadowMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("phalanx");
        let metrics = Self {
            events: Family::default(),
            actions: Family::default(),
            writes: Family::default(),
            rejected: Family::default(),
            gangs: Family::default(),
            nodes: Gauge::default(),
            gpus: Gauge::default(),
            gpus_held: Gauge::default(),
            kept: Family::default(),
            agents: Gauge::default(),
            standing_by: Gauge::default(),
            slow_agents: Counter::default(),
            throttled: Counter::default(),
            admitting: Gauge::default(),
            waiting: Gauge::default(),
            retried: Counter::default(),
            unsent: Counter::default(),
            pass_seconds: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            backlog: Gauge::default(),
            urgent_writes: AtomicUsize::new(0),
            plan_objects: Counter::default(),
            storage_failed: Gauge::default(),
            recording: Gauge::default(),
            relists: Counter::default(),
            shadow: ShadowMetrics::default(),
            registry: Registry::default(),
        };
        registry.register("events", "Facts given to the core", metrics.events.clone());
        registry.register("actions", "Actions the core asked for", metrics.actions.clone());
        registry.register("api_writes", "Writes to the API by outcome", metrics.writes.clone());
        registry.register("agents_rejected", "Connections of agents not taken", metrics.rejected.clone());
        registry.register("gangs", "Gangs by PodGroup phase", metrics.gangs.clone());
        registry.register("nodes", "Nodes known", metrics.nodes.clone());
        registry.register("gpus", "GPUs known", metrics.gpus.clone());
        registry.register("gpus_held", "GPUs held by pods", metrics.gpus_held.clone());
        registry.register("kept", "Entries of the core's tables", metrics.kept.clone());
        registry.register("agents_connected", "Agents whose connection is up", metrics.agents.clone());
        let standing_by = metrics.standing_by.clone();
        registry.register("agents_standing_by", "Agents that wait for this coordinator to lead", standing_by);
        registry.register(
            "agents_slow",
            "Connections ended because the agent was slow",
            metrics.slow_agents.clone(),
        );
        let Self { throttled, admitting, waiting, retried, .. } = &metrics;
        registry.register("messages_throttled", "Messages read later: the agent floods", throttled.clone());
        registry.register("connections_admitting", "Connections being let in", admitting.clone());
        registry.register("connections_waiting", "Connections that wait to be let in", waiting.clone());
        registry.register("connections_retried", "Connections asked to prove their address", retried.clone());
        registry.register(
            "messages_unsent",
            "Messages for a connection that had ended or was ended as slow",
            metrics.unsent.clone(),
        );
        registry.register("pass_seconds", "Time of one pass of the core", metrics.pass_seconds.clone());
        registry.register("writer_backlog", "Actions that wait for the writer", metrics.backlog.clone());
        registry.register("plan_objects", "Writes of objects of plans", metrics.plan_objects.clone());
        let storage_failed = metrics.storage_failed.clone();
        registry.register("storage_failed", "1 while objects cannot be written", storage_failed);
        registry.register("recording", "1 while everything is recorded", metrics.recording.clone());
        registry.register("watch_relists", "Times the watch began anew", metrics.relists.clone());
        metrics.shadow.register(&mut registry);
        let metrics = Self { registry, ..metrics };
        metrics.make_all_series();
        metrics
    }
}

/// Names of the events.
const EVENTS: [&str; 27] = [
    "Started",
    "TermRaised",
    "QueueApplied",
    "QueueDeleted",
    "QueuePolicyApplied",
    "QueuePolicyDeleted",
    "PriorityClassApplied",
    "PriorityClassDeleted",
    "NodeApplied",
    "NodeDeleted",
    "GangApplied",
    "GangDeleted",
    "PodApplied",
    "PodDeleted",
    "OtherPodApplied",
    "LonePodApplied",
    "BudgetApplied",
    "BudgetDeleted",
    "ClaimApplied",
    "ClaimDeleted",
    "PlanFound",
    "Synced",
    "AgentConnected",
    "AgentGone",
    "AgentSaid",
    "ActionDone",
    "PodRead",
];
/// Names of the commands that go to agents or people.
const TOLD: [&str; 3] = ["Send", "RecordPromise", "Warn"];
/// Names of the commands that write to the API or read from it.
const WRITES: [&str; 10] = [
    "RaiseTerm",
    "WritePlan",
    "DeletePlan",
    "Bind",
    "FenceWrite",
    "ReadPod",
    "Evict",
    "AnnounceEviction",
    "SetGangStatus",
    "SetQueueStatus",
];
/// Name of a write of the reports: what a pod waits for.
pub const SET_POD_CONDITION: &str = "SetPodCondition";
/// Name of a write of the reports: an event.
pub const CREATE_EVENT: &str = "CreateEvent";
/// Names of the outcomes.
const OUTCOMES: [&str; 5] = ["Done", "Conflict", "NotFound", "Refused", "Unknown"];
/// Why agents are not let in.
const REJECTIONS: [&str; 10] = [
    "busy",
    "certificate",
    "frame",
    "handshake",
    "inventory",
    "node-name",
    "not-hello",
    "silent",
    "stuck",
    "version",
];

impl Metrics {
    /// Every series from the start, at zero: what never happened shows too, and nothing that happens adds one.
    fn make_all_series(&self) {
        for name in EVENTS {
            drop(self.events.get_or_create(&Kind { kind: Name(name) }));
        }
        for name in TOLD.into_iter().chain(WRITES) {
            drop(self.actions.get_or_create(&Kind { kind: Name(name) }));
        }
        let writes = WRITES.into_iter().chain([SET_POD_CONDITION, CREATE_EVENT]);
        for (command, outcome) in writes.flat_map(|name| OUTCOMES.map(|outcome| (name, outcome))) {
            let _ = self.writes(command, outcome);
        }
        for cause in REJECTIONS {
            let _ = self.rejected(cause);
        }
        self.show(&Core::new(Settings::default()).totals());
    }

    /// Counts an event.
    pub fn event(&self, event: &Event) {
        self.events.get_or_create(&Kind { kind: Name(event_name(event)) }).inc();
    }

    /// Counts an action.
    pub fn action(&self, command: &Command) {
        self.actions.get_or_create(&Kind { kind: Name(command_name(command)) }).inc();
    }

    /// Counts what came of a write.
    pub fn write(&self, command: &'static str, outcome: &'static str) {
        self.writes.get_or_create(&Write { command: Name(command), outcome: Name(outcome) }).inc();
    }

    /// How many writes of this command had this outcome.
    #[must_use]
    pub fn writes(&self, command: &'static str, outcome: &'static str) -> u64 {
        self.writes.get_or_create(&Write { command: Name(command), outcome: Name(outcome) }).get()
    }

    /// Counts a connection that was not taken.
    pub fn reject(&self, cause: &'static str) {
        self.rejected.get_or_create(&Cause { cause: Name(cause) }).inc();
    }

    /// How many connections were not taken for this cause.
    #[must_use]
    pub fn rejected(&self, cause: &'static str) -> u64 {
        self.rejected.get_or_create(&Cause { cause: Name(cause) }).get()
    }

    /// Everything as text, with gauges of what the core counts.
    ///
    /// # Errors
    /// Text could not be written, which memory never refuses.
    pub fn text(&self, totals: Option<&Totals>) -> Result<String, fmt::Error> {
        if let Some(totals) = totals {
            self.show(totals);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn show(&self, totals: &Totals) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for (phase, gangs) in &totals.gangs {
            self.gangs.get_or_create(&Phase { phase: Name(phase.as_str()) }).set(count(*gangs));
        }
        for (what, entries) in &totals.kept {
            self.kept.get_or_create(&What { what: Name(what) }).set(count(*entries));
        }
        self.nodes.set(count(totals.nodes));
        self.gpus.set(count(totals.gpus));
        self.gpus_held.set(count(totals.gpus_held));
    }
}

/// Stable name of an event.
#[must_use]
pub const fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "Started",
        Event::TermRaised { .. } => "TermRaised",
        Event::QueueApplied(_) => "QueueApplied",
        Event::QueueDeleted(_) => "QueueDeleted",
        Event::QueuePolicyApplied(_) => "QueuePolicyApplied",
        Event::QueuePolicyDeleted(_) => "QueuePolicyDeleted",
        Event::PriorityClassApplied(_) => "PriorityClassApplied",
        Event::PriorityClassDeleted(_) => "PriorityClassDeleted",
        Event::NodeApplied(_) => "NodeApplied",
        Event::NodeDeleted(_) => "NodeDeleted",
        Event::GangApplied(_) => "GangApplied",
        Event::GangDeleted(_) => "GangDeleted",
        Event::PodApplied(_) => "PodApplied",
        Event::PodDeleted(_) => "PodDeleted",
        Event::OtherPodApplied(_) => "OtherPodApplied",
        Event::LonePodApplied { .. } => "LonePodApplied",
        Event::BudgetApplied(_) => "BudgetApplied",
        Event::BudgetDeleted(_) => "BudgetDeleted",
        Event::ClaimApplied(_) => "ClaimApplied",
        Event::ClaimDeleted(_) => "ClaimDeleted",
        Event::PlanFound(_) => "PlanFound",
        Event::Synced => "Synced",
        Event::AgentConnected { .. } => "AgentConnected",
        Event::AgentGone { .. } => "AgentGone",
        Event::AgentSaid { .. } => "AgentSaid",
        Event::ActionDone { .. } => "ActionDone",
        Event::PodRead { .. } => "PodRead",
    }
}

/// Stable name of a command.
#[must_use]
pub const fn command_name(command: &Command) -> &'static str {
    match command {
        Command::Send { .. } => "Send",
        Command::RaiseTerm { .. } => "RaiseTerm",
        Command::WritePlan(_) => "WritePlan",
        Command::DeletePlan { .. } => "DeletePlan",
        Command::Bind { .. } => "Bind",
        Command::FenceWrite { .. } => "FenceWrite",
        Command::ReadPod { .. } => "ReadPod",
        Command::Evict { .. } => "Evict",
        Command::AnnounceEviction { .. } => "AnnounceEviction",
        Command::SetGangStatus { .. } => "SetGangStatus",
        Command::SetQueueStatus { .. } => "SetQueueStatus",
        Command::RecordPromise { .. } => "RecordPromise",
        Command::Warn { .. } => "Warn",
    }
}

/// Stable name of an outcome.
#[must_use]
pub const fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "Done",
        Outcome::Conflict => "Conflict",
        Outcome::NotFound => "NotFound",
        Outcome::Refused(_) => "Refused",
        Outcome::Unknown => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn series(text: &str) -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    }

    #[test]
    fn every_name_that_this_file_gives_has_its_series_from_the_start() {
        let names = include_str!("metrics.rs")
            .lines()
            .filter_map(|line| line.split_once("=> \"")?.1.strip_suffix("\","));
        let names: Vec<&str> = names.collect();
        let listed: Vec<&str> = EVENTS.into_iter().chain(WRITES).chain(TOLD).chain(OUTCOMES).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>(), listed.iter().collect::<BTreeSet<_>>());
    }

    #[test]
    fn every_cause_of_a_rejection_has_its_series_from_the_start() {
        let sources =
            [include_str!("agents.rs"), include_str!("agents/session.rs"), include_str!("agents/accept.rs")];
        let before = |text: &str, mark: &str| -> BTreeSet<String> {
            let found = text.split(mark).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
            found.collect()
        };
        let mut causes = BTreeSet::new();
        for source in sources {
            for mark in ["reject(\"", "silent(\"", "Err((\"", "Err((\n            \""] {
                causes.extend(before(source, mark));
            }
        }
        let known: BTreeSet<String> = REJECTIONS.map(str::to_owned).into();
        assert_eq!(causes, known);
    }

    #[test]
    fn what_happens_adds_no_series() {
        let metrics = Metrics::default();
        let before = series(&metrics.text(None).unwrap());
        metrics.event(&Event::Synced);
        metrics.action(&Command::Warn { message: "a gang of any name".to_owned() });
        metrics.write("Bind", "Conflict");
        metrics.reject("silent");
        let after = series(&metrics.text(Some(&Core::new(Settings::default()).totals())).unwrap());
        assert_eq!(before, after);
    }
}
