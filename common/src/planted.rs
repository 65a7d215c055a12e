//! Bugs planted on purpose: each is a mistake that somebody could really make in this code, and a test shows that
//! the simulation or a scenario finds it.
//!
//! Without the feature `planted-bugs` the answer is a constant `false`, and nothing of this is in a program.

/// A planted bug, with what a user would suffer from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// The agent's shell says that a ledger is on disk before it is: after a power cut two pods get one GPU.
    AckBeforePersist,
    /// The agent forgets its leases when the coordinator is away: a restart of the coordinator lets a second
    /// gang onto GPUs in use.
    FreeOnAbsence,
    /// The agent lets a pod start as soon as it is bound: half a gang runs, and burns GPU time for nothing.
    NoStartGate,
    /// The agent lets armed leases expire while the coordinator is away: a committed gang finds its GPUs
    /// given to others.
    ExpireArmed,
    /// The agent keeps no tombstones: a message that comes late brings a released lease back, and its GPUs
    /// stay taken.
    ForgetTombstone,
    /// The agent obeys another coordinator of an equal term: two that were split place two gangs on one node.
    ObeyEqualTerm,
    /// The agent obeys lower terms: a coordinator that was paused takes GPUs away that its successor has
    /// given.
    ObeyLowerTerm,
    /// The agent says that a lease is gone before the disk has forgotten it: after a crash it is back, and
    /// nobody expects it.
    GoneBeforeDisk,
    /// The agent promises GPUs that fell off the bus: the pod that gets them fails.
    IgnoreHealth,
    /// The agent promises a GPU that another lease holds: two pods share it and one runs out of memory.
    ConfirmHeldGpu,
    /// A Reserve that arrives twice makes the lease a reservation again: a promise on disk expires.
    ReserveAgain,
    /// After a restart of the agent a stored armed lease is a reservation again: it expires under a pod that
    /// is bound.
    RestartReserves,
    /// After a restart of the agent pods run for their whole time again: jobs end late, and their GPUs stay
    /// taken.
    RestartPodsAnew,
    /// The coordinator reads a pod where it should fence it: a Binding of its predecessor lands after all, on
    /// GPUs that belong to somebody else by then.
    SkipFence,
    /// A Binding is sent without the version of the pod that was planned: a late one lands on a pod that was
    /// fenced.
    BindAnyVersion,
    /// The ceilings of queues are read and not used: one team takes the whole cluster.
    NoCapability,
    /// Pods are bound without a durable plan: a crash half way leaves half a gang that nobody completes.
    NoPlan,
    /// Plans are never deleted: after a restart a gang that has long run is taken for one that was cut short.
    KeepPlans,
    /// The message that lets pods start is never sent: a whole gang is bound and waits for ever.
    LoseGangBound,
    /// A plan is written as soon as one agent has confirmed: it names GPUs that the others refuse.
    CommitHalfConfirmed,
    /// Pods are bound before all their leases are on disk: an agent that crashes then gives the GPUs of a
    /// bound pod away.
    BindBeforeArmed,
    /// The coordinator lets each pod start when it is bound: half a gang runs, and burns GPU time for
    /// nothing.
    StartBeforeWhole,
    /// Of a placement that is dropped only the first lease is released: GPUs stay taken though nothing runs.
    ReleaseOnlyFirst,
    /// The lease of a deleted pod is not released: its GPUs stay taken.
    ForgetRelease,
    /// A gang that has a place keeps the charge of its admission: its queue is full at half its ceiling.
    CountTwice,
    /// What a finished gang used stays charged: its queue takes nothing any more after a while.
    NeverUncharge,
    /// A Binding whose answer did not come is taken for failed: the GPUs of a bound pod are given to another.
    TimedOutIsFailed,
    /// A Binding that met a conflict is taken for done: a gang starts without one of its pods.
    ConflictIsDone,
    /// A lease that an agent does not name when it comes back is dropped while its gang still counts on it.
    DropUnreported,
    /// A gang whose placement was refused is not tried again: it waits for ever on an empty cluster.
    NeverRetry,
    /// A gang is placed with whatever pods exist: fewer than its minimum start.
    IgnoreMinMember,
    /// A lease names the GPUs of another node: no agent confirms, and the gang never starts.
    OtherNodesGpus,
    /// A gang that waits does not say why: its owner can only guess.
    SilentReason,
    /// Leases that an agent reports and nobody knows are not counted: their GPUs look free and are refused,
    /// and stay taken for ever.
    ForgetStrangers,
    /// Two pods of one plan get the same GPUs: the agent refuses one of them, again and again.
    SamePlaceTwice,
    /// The coordinator frees the GPUs of a node whose agent is away: a second gang is sent there when it is
    /// back.
    AwayIsFree,
    /// A deleted pod is removed from the API while it still runs: its owner starts another, and both write to
    /// one disk.
    FinalizeRunning,
    /// A write whose answer did not come is taken for done: plans and Bindings that were lost are missed by
    /// nobody.
    TimeoutIsDone,
}

/// True where this bug is planted: never, in a program that is shipped.
#[cfg(not(feature = "planted-bugs"))]
#[inline]
#[must_use]
pub const fn is(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub use with_feature::{Planted, is, plant};

#[cfg(feature = "planted-bugs")]
mod with_feature {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use super::Bug;

    thread_local! {
        /// One bug at a time, for this thread alone: runs on several threads do not disturb each other.
        static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// A bug is planted on this thread for as long as this lives.
    #[derive(Debug)]
    #[must_use]
    pub struct Planted {
        before: Option<Bug>,
        /// It must be dropped on the thread that planted.
        thread: PhantomData<*const ()>,
    }

    /// Plants a bug on this thread, until the answer is dropped.
    pub fn plant(bug: Bug) -> Planted {
        Planted { before: BUG.replace(Some(bug)), thread: PhantomData }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            BUG.set(self.before);
        }
    }

    /// True where this bug is planted on this thread.
    #[must_use]
    pub fn is(bug: Bug) -> bool {
        BUG.get() == Some(bug)
    }

    impl Bug {
        /// All of them.
        pub const ALL: [Self; 38] = [
            Self::AckBeforePersist,
            Self::FreeOnAbsence,
            Self::NoStartGate,
            Self::ExpireArmed,
            Self::ForgetTombstone,
            Self::ObeyEqualTerm,
            Self::ObeyLowerTerm,
            Self::GoneBeforeDisk,
            Self::IgnoreHealth,
            Self::ConfirmHeldGpu,
            Self::ReserveAgain,
            Self::RestartReserves,
            Self::RestartPodsAnew,
            Self::SkipFence,
            Self::BindAnyVersion,
            Self::NoCapability,
            Self::NoPlan,
            Self::KeepPlans,
            Self::LoseGangBound,
            Self::CommitHalfConfirmed,
            Self::BindBeforeArmed,
            Self::StartBeforeWhole,
            Self::ReleaseOnlyFirst,
            Self::ForgetRelease,
            Self::CountTwice,
            Self::NeverUncharge,
            Self::TimedOutIsFailed,
            Self::ConflictIsDone,
            Self::DropUnreported,
            Self::NeverRetry,
            Self::IgnoreMinMember,
            Self::OtherNodesGpus,
            Self::SilentReason,
            Self::ForgetStrangers,
            Self::SamePlaceTwice,
            Self::AwayIsFree,
            Self::FinalizeRunning,
            Self::TimeoutIsDone,
        ];

        /// Name on the command line and in `docs/testing.md`.
        #[must_use]
        pub const fn as_str(self) -> &'static str {
            match self {
                Self::AckBeforePersist => "ack-before-persist",
                Self::FreeOnAbsence => "free-on-absence",
                Self::NoStartGate => "no-start-gate",
                Self::ExpireArmed => "expire-armed",
                Self::ForgetTombstone => "forget-tombstone",
                Self::ObeyEqualTerm => "obey-equal-term",
                Self::ObeyLowerTerm => "obey-lower-term",
                Self::GoneBeforeDisk => "gone-before-disk",
                Self::IgnoreHealth => "ignore-health",
                Self::ConfirmHeldGpu => "confirm-held-gpu",
                Self::ReserveAgain => "reserve-again",
                Self::RestartReserves => "restart-reserves",
                Self::RestartPodsAnew => "restart-pods-anew",
                Self::SkipFence => "skip-fence",
                Self::BindAnyVersion => "bind-any-version",
                Self::NoCapability => "no-capability",
                Self::NoPlan => "no-plan",
                Self::KeepPlans => "keep-plans",
                Self::LoseGangBound => "lose-gang-bound",
                Self::CommitHalfConfirmed => "commit-half-confirmed",
                Self::BindBeforeArmed => "bind-before-armed",
                Self::StartBeforeWhole => "start-before-whole",
                Self::ReleaseOnlyFirst => "release-only-first",
                Self::ForgetRelease => "forget-release",
                Self::CountTwice => "count-twice",
                Self::NeverUncharge => "never-uncharge",
                Self::TimedOutIsFailed => "timed-out-is-failed",
                Self::ConflictIsDone => "conflict-is-done",
                Self::DropUnreported => "drop-unreported",
                Self::NeverRetry => "never-retry",
                Self::IgnoreMinMember => "ignore-min-member",
                Self::OtherNodesGpus => "other-nodes-gpus",
                Self::SilentReason => "silent-reason",
                Self::ForgetStrangers => "forget-strangers",
                Self::SamePlaceTwice => "same-place-twice",
                Self::AwayIsFree => "away-is-free",
                Self::FinalizeRunning => "finalize-running",
                Self::TimeoutIsDone => "timeout-is-done",
            }
        }

        /// Reads a name.
        #[must_use]
        pub fn parse(text: &str) -> Option<Self> {
            Self::ALL.into_iter().find(|bug| bug.as_str() == text)
        }
    }
}
