//! What all runs together must have reached: a fault, a message, a command or a move of a gang that no seed ever
//! sees is not tested, whatever the checkers say.

use std::collections::BTreeMap;

use phalanx_common::wire::{FromAgent, LeaseState, RefusalCause, ToAgent};
use phalanx_coordinator::api::faults;
use phalanx_core::Core;
use phalanx_core::action::Command;
use phalanx_node_core::Action;

/// From so many seeds on everything must have been reached.
pub const ENOUGH_SEEDS: u64 = 200;

/// A fault of the simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An agent's process ends, and with it its pods.
    AgentCrash,
    /// A machine reboots.
    AgentReboot,
    /// A pod does not end in time.
    SlowEnd,
    /// A machine with an agent stands still.
    AgentPaused,
    /// An agent's clock is too fast or too slow.
    AgentClockWrong,
    /// A machine's clock jumps forward.
    ClockJump,
    /// A coordinator's process ends.
    CoordinatorCrash,
    /// It ends before an action that was chosen before.
    CoordinatorCrashAtAction,
    /// A leader stands still.
    CoordinatorPaused,
    /// Its clock was set wrong, or is too fast or too slow.
    CoordinatorClockWrong,
    /// Another coordinator leads, and the old one does not know.
    TwoCoordinators,
    /// The old one does something all the same.
    OldOneActs,
    /// An agent connects to the old one.
    DialsTheOldOne,
    /// A raise of the term is forgotten.
    TermForgotten,
    /// A ledger cannot be written.
    LedgerNotWritten,
    /// A ledger that was written and not acknowledged is gone after a reboot.
    LedgerWriteForgotten,
    /// A ledger cannot be read.
    LedgerUnreadable,
    /// Writes take seconds.
    DiskSlow,
    /// Writes do not return.
    DiskStuck,
    /// A GPU fell off the bus.
    GpuLost,
    /// A GPU is not even listed.
    GpuMissing,
    /// The driver of a machine that boots tells of no GPU yet.
    DriverLate,
    /// Somebody else uses a GPU.
    ForeignProcess,
    /// A GPU is as it was.
    GpuBack,
    /// A machine has fewer processors than before.
    FewerProcessors,
    /// The API answers nobody.
    ApiAway,
    /// Somebody else binds a pod.
    BoundByHand,
    /// A pod of another scheduler runs on a node.
    OtherPod,
    /// A connection breaks.
    LinkBreak,
    /// A message is lost.
    MessageLost,
    /// A message is late.
    MessageLate,
    /// A message comes twice.
    MessageDoubled,
    /// Messages of one direction do not get through.
    PartitionOneWay,
    /// Messages of both directions do not get through.
    PartitionBothWays,
    /// More than one node is cut off.
    PartitionOfSeveral,
    /// A message waits for the end of a partition.
    MessageHeldBack,
}

/// Names of the variants of an enum, each with its own: a variant without one does not compile, and every name is
/// one that must be reached.
macro_rules! names {
    ($(#[$doc:meta])* $function:ident, $all:ident, $type:ty, $($pattern:pat => $name:literal,)+) => {
        $(#[$doc])*
        #[must_use]
        pub const fn $function(value: &$type) -> &'static str {
            match value {
                $($pattern => $name,)+
            }
        }

        const $all: &[&str] = &[$($name),+];
    };
}

names! {
    /// Name of a fault.
    fault_name, FAULTS, Fault,
    Fault::AgentCrash => "fault: agent crash",
    Fault::AgentReboot => "fault: agent reboot",
    Fault::SlowEnd => "fault: pod ends late",
    Fault::AgentPaused => "fault: agent paused",
    Fault::AgentClockWrong => "fault: agent's clock is fast or slow",
    Fault::ClockJump => "fault: clock jumps",
    Fault::CoordinatorCrash => "fault: coordinator crash",
    Fault::CoordinatorCrashAtAction => "fault: coordinator crash at a chosen action",
    Fault::CoordinatorPaused => "fault: coordinator paused",
    Fault::CoordinatorClockWrong => "fault: coordinator's clock is wrong",
    Fault::TwoCoordinators => "fault: two coordinators",
    Fault::OldOneActs => "fault: the old coordinator acts",
    Fault::DialsTheOldOne => "fault: an agent dials the old coordinator",
    Fault::TermForgotten => "fault: the term went back",
    Fault::LedgerNotWritten => "fault: ledger not written",
    Fault::LedgerWriteForgotten => "fault: ledger write forgotten by a reboot",
    Fault::LedgerUnreadable => "fault: ledger unreadable",
    Fault::DiskSlow => "fault: disk slow",
    Fault::DiskStuck => "fault: disk stuck",
    Fault::GpuLost => "fault: GPU lost",
    Fault::GpuMissing => "fault: GPU not listed",
    Fault::DriverLate => "fault: driver late after a boot",
    Fault::ForeignProcess => "fault: foreign process on a GPU",
    Fault::GpuBack => "fault: GPU back",
    Fault::FewerProcessors => "fault: fewer processors",
    Fault::ApiAway => "fault: API away",
    Fault::BoundByHand => "fault: pod bound by somebody else",
    Fault::OtherPod => "fault: pod of another scheduler",
    Fault::LinkBreak => "fault: link breaks",
    Fault::MessageLost => "fault: message lost",
    Fault::MessageLate => "fault: message late",
    Fault::MessageDoubled => "fault: message doubled",
    Fault::PartitionOneWay => "fault: partition one way",
    Fault::PartitionBothWays => "fault: partition both ways",
    Fault::PartitionOfSeveral => "fault: partition of several nodes",
    Fault::MessageHeldBack => "fault: message held back by a partition",
}

names! {
    /// Name of a fault of the API.
    api_fault_name, API_FAULTS, faults::Fault,
    faults::Fault::Conflict => "fault: API says conflict",
    faults::Fault::Refused => "fault: API refuses",
    faults::Fault::TimedOutNotDone => "fault: API does not answer, not done",
    faults::Fault::TimedOutButDone => "fault: API does not answer, and it was done",
    faults::Fault::StorageFailed => "fault: API's storage fails",
    faults::Fault::WatchGap => "fault: gap in the watch",
}

names! {
    /// Name of a command of the coordinator's core.
    command_name, COMMANDS, Command,
    Command::Send { .. } => "command Send",
    Command::RaiseTerm { .. } => "command RaiseTerm",
    Command::WritePlan(_) => "command WritePlan",
    Command::DeletePlan { .. } => "command DeletePlan",
    Command::Bind { .. } => "command Bind",
    Command::FenceWrite { .. } => "command FenceWrite",
    Command::ReadPod { .. } => "command ReadPod",
    Command::Evict { .. } => "command Evict",
    Command::AnnounceEviction { .. } => "command AnnounceEviction",
    Command::RecordPromise { .. } => "command RecordPromise",
    Command::SetGangStatus { .. } => "command SetGangStatus",
    Command::SetQueueStatus { .. } => "command SetQueueStatus",
    Command::Warn { .. } => "command Warn",
}

names! {
    /// Name of an action of the agent's core.
    action_name, ACTIONS, Action,
    Action::Send(..) => "agent action Send",
    Action::Persist { .. } => "agent action Persist",
    Action::SetAside { .. } => "agent action SetAside",
    Action::StartPod { .. } => "agent action StartPod",
    Action::StopPod { .. } => "agent action StopPod",
    Action::Warn(_) => "agent action Warn",
}

names! {
    /// Name of a message to an agent.
    to_agent_name, TO_AGENT, ToAgent,
    ToAgent::Welcome { .. } => "to agent: Welcome",
    ToAgent::Rejected { .. } => "to agent: Rejected",
    ToAgent::Reserve { .. } => "to agent: Reserve",
    ToAgent::Arm { .. } => "to agent: Arm",
    ToAgent::Bound { .. } => "to agent: Bound",
    ToAgent::GangBound { .. } => "to agent: GangBound",
    ToAgent::Release { .. } => "to agent: Release",
    ToAgent::Standby { .. } => "to agent: Standby",
    ToAgent::SayHello => "to agent: SayHello",
}

names! {
    /// Name of a message of an agent.
    from_agent_name, FROM_AGENT, FromAgent,
    FromAgent::Hello(_) => "from agent: Hello",
    FromAgent::Inventory(_) => "from agent: Inventory",
    FromAgent::Heartbeat => "from agent: Heartbeat",
    FromAgent::Reserved { .. } => "from agent: Reserved",
    FromAgent::Refused { .. } => "from agent: Refused",
    FromAgent::LeaseIs { state: LeaseState::Reserved, .. } => "from agent: LeaseIs Reserved",
    FromAgent::LeaseIs { state: LeaseState::Armed, .. } => "from agent: LeaseIs Armed",
    FromAgent::LeaseIs { state: LeaseState::Bound, .. } => "from agent: LeaseIs Bound",
    FromAgent::LeaseIs { state: LeaseState::Started, .. } => "from agent: LeaseIs Started",
    FromAgent::LeaseIs { state: LeaseState::Releasing, .. } => "from agent: LeaseIs Releasing",
    FromAgent::LeaseIs { state: LeaseState::Gone, .. } => "from agent: LeaseIs Gone",
    FromAgent::PodStarted { .. } => "from agent: PodStarted",
    FromAgent::PodEnded { .. } => "from agent: PodEnded",
    FromAgent::PodStopped { .. } => "from agent: PodStopped",
    FromAgent::HealthChanged { .. } => "from agent: HealthChanged",
    FromAgent::Token(_) => "from agent: Token",
}

names! {
    /// Name of a cause of a refusal.
    refusal_name, REFUSALS, RefusalCause,
    RefusalCause::StaleTerm(_) => "refusal StaleTerm",
    RefusalCause::Released => "refusal Released",
    RefusalCause::UnknownLease => "refusal UnknownLease",
    RefusalCause::UnknownGpu(_) => "refusal UnknownGpu",
    RefusalCause::Unhealthy(_, _) => "refusal Unhealthy",
    RefusalCause::Held(_, _) => "refusal Held",
    RefusalCause::PodHasLease(_) => "refusal PodHasLease",
    RefusalCause::Short(_, _, _) => "refusal Short",
    RefusalCause::Malformed(_) => "refusal Malformed",
    RefusalCause::Disk(_) => "refusal Disk",
}

/// Outcomes and late calls whose handling is easily wrong.
const CALLS: &[&str] = &[
    "late call of a dead coordinator: Bind",
    "late call of a dead coordinator: DeletePlan",
    "late call of a dead coordinator: Evict",
    "late call of a dead coordinator: FenceWrite",
    "late call of a dead coordinator: WritePlan",
    "outcome Bind Conflict",
    "outcome Bind NotFound",
    "outcome Bind Refused",
    "outcome Bind Unknown",
    "outcome DeletePlan Unknown",
    "outcome Evict Unknown",
    "outcome FenceWrite Unknown",
    "outcome WritePlan Refused",
    "outcome WritePlan Unknown",
];

/// What users do.
const USERS: &[&str] = &[
    "user adds a pod to a gang",
    "user changes a node",
    "user changes minMember",
    "user changes the ceiling of a queue",
    "user changes the size of a job",
    "user closes a queue",
    "user creates",
    "user deletes a node",
    "user deletes a pod",
    "user deletes a pod group",
    "user deletes a queue",
    "user deletes a job",
];

/// What becomes of gangs for which others make room, or for which room is held.
const ROOMS: &[&str] = &[
    "an evicted pod is made again",
    "evicted: not for another gang",
    "evicted: of a whole gang for another one",
    "evicted: surplus for another gang",
    "hold: made, with a start",
    "hold: made, without",
    "hold: over",
    "hold: started as expected",
    "hold: started late",
    "hold: used by others meanwhile",
    "hold: void",
    "room: a victim is given up",
    "room: dropped",
    "room: planned",
    "room: preempts",
    "room: reclaims",
    "room: resumed by a new leader",
];

/// What needs two or three rare things at once: it must be reached in so many seeds.
const SELDOM: (u64, &[&str]) = (
    2_000,
    &[
        "fault: ledger write forgotten by a reboot",
        "from agent: LeaseIs Reserved",
        "late call of a dead coordinator: DeletePlan",
        "late call of a dead coordinator: Evict",
        "late call of a dead coordinator: WritePlan",
        "move admitted -> finished",
        "move evicting -> running",
        "move finished -> degraded",
        "move running -> evicting",
        "outcome Bind NotFound",
        "outcome Evict Unknown",
        "refusal Held",
        "refusal Short",
        "refusal UnknownGpu",
    ],
);

/// What no seed can reach, and why.
const UNREACHABLE: &[(&str, &str)] = &[
    ("agent action SetAside", "an agent that changes its cluster: there is one cluster here"),
    ("to agent: Rejected", "said by the shell to an agent of another cluster or version: there is none here"),
    ("to agent: Standby", "said by the shell of a coordinator that does not lead"),
    ("to agent: SayHello", "said by the shell of a coordinator that begins to lead"),
    ("from agent: Token", "said and heard by the shells, where agents have no certificates"),
    ("from agent: Heartbeat", "said and heard by the shells; no machine knows of it"),
    ("refusal UnknownLease", "kept for the wire's sake; a lease that is not known is told as gone"),
    ("refusal Malformed", "only a coordinator that is broken asks for what does not add up"),
];

/// Everything that so many seeds must reach, by the key under which it is counted; nothing where they are too few.
#[must_use]
pub fn wanted(seeds: u64) -> Vec<String> {
    if seeds < ENOUGH_SEEDS {
        return Vec::new();
    }
    let lists = [FAULTS, API_FAULTS, COMMANDS, ACTIONS, TO_AGENT, FROM_AGENT, REFUSALS, CALLS, USERS, ROOMS];
    let mut wanted: Vec<String> =
        lists.iter().flat_map(|list| list.iter().map(|name| (*name).to_owned())).collect();
    wanted.extend(Core::legal_moves().map(|(from, to)| move_name(from, to)));
    let phases = Core::legal_moves().map(|(from, _)| crash_name(from));
    wanted.extend(phases);
    wanted.sort();
    wanted.dedup();
    wanted.retain(|name| !UNREACHABLE.iter().any(|(unreachable, _)| unreachable == name));
    wanted.retain(|name| seeds >= SELDOM.0 || !SELDOM.1.contains(&name.as_str()));
    wanted
}

/// What so many seeds must reach and did not.
#[must_use]
pub fn missing(counts: &BTreeMap<String, u64>, seeds: u64) -> Vec<String> {
    wanted(seeds).into_iter().filter(|name| !counts.contains_key(name)).collect()
}

/// What was called unreachable and was reached: the list is wrong.
#[must_use]
pub fn reached_all_the_same(counts: &BTreeMap<String, u64>) -> Vec<&'static str> {
    UNREACHABLE.iter().map(|(name, _)| *name).filter(|name| counts.contains_key(*name)).collect()
}

/// Key of a move of a gang.
#[must_use]
pub fn move_name(from: &str, to: &str) -> String {
    format!("move {from} -> {to}")
}

/// Key of a crash while a gang is in a phase.
#[must_use]
pub fn crash_name(phase: &str) -> String {
    format!("coordinator crash while a gang is {phase}")
}
