//! Numbers for Prometheus. Labels take values from closed lists only, so that no user can make more of them.

use std::fmt;

use phalanx_core::action::{Command, GangPhase};
use phalanx_core::event::{Event, Outcome};
use phalanx_core::view::StateView;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

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
    /// Agents whose connection is up.
    pub agents: Gauge,
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
    /// 1 while everything is recorded.
    pub recording: Gauge,
    /// Times the watch had to begin anew.
    pub relists: Counter,
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
            agents: Gauge::default(),
            slow_agents: Counter::default(),
            throttled: Counter::default(),
            admitting: Gauge::default(),
            waiting: Gauge::default(),
            retried: Counter::default(),
            unsent: Counter::default(),
            pass_seconds: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            backlog: Gauge::default(),
            recording: Gauge::default(),
            relists: Counter::default(),
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
        registry.register("agents_connected", "Agents whose connection is up", metrics.agents.clone());
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
        registry.register("recording", "1 while everything is recorded", metrics.recording.clone());
        registry.register("watch_relists", "Times the watch began anew", metrics.relists.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
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

    /// Everything as text, with gauges of what the core shows.
    ///
    /// # Errors
    /// Text could not be written, which memory never refuses.
    pub fn text(&self, view: Option<&StateView>) -> Result<String, fmt::Error> {
        if let Some(view) = view {
            self.show(view);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn show(&self, view: &StateView) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let phases = [
            GangPhase::Pending,
            GangPhase::Inqueue,
            GangPhase::Running,
            GangPhase::Unknown,
            GangPhase::Completed,
        ];
        for phase in phases.map(GangPhase::as_str) {
            let gangs = view.gangs.iter().filter(|gang| &*gang.pod_group_phase == phase).count();
            self.gangs.get_or_create(&Phase { phase: Name(phase) }).set(count(gangs));
        }
        self.nodes.set(count(view.nodes.len()));
        self.gpus.set(count(view.nodes.iter().map(|node| node.gpus.len()).sum()));
        let held = view.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.holder.is_some());
        self.gpus_held.set(count(held.count()));
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
        Event::PriorityClassApplied(_) => "PriorityClassApplied",
        Event::PriorityClassDeleted(_) => "PriorityClassDeleted",
        Event::NodeApplied(_) => "NodeApplied",
        Event::NodeDeleted(_) => "NodeDeleted",
        Event::GangApplied(_) => "GangApplied",
        Event::GangDeleted(_) => "GangDeleted",
        Event::PodApplied(_) => "PodApplied",
        Event::PodDeleted(_) => "PodDeleted",
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
        Command::SetGangStatus { .. } => "SetGangStatus",
        Command::SetQueueStatus { .. } => "SetQueueStatus",
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
