//! Bugs planted on purpose: each is a mistake that somebody could really make in this code, and a test shows
//! that the simulation or a scenario finds it.
//!
//! Without the feature `planted-bugs` the answer is a constant `false`, and nothing of this is in a program.

/// One table: for each bug its name in the code, its name for people, and what a user would suffer.
macro_rules! bugs {
    ($($bug:ident = $name:literal, $harm:literal;)+) => {
        /// A planted bug, with what a user would suffer from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $(#[doc = $harm] $bug,)+
        }

        #[cfg(feature = "planted-bugs")]
        impl Bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$bug),+];

            /// Name on the command line and in `docs/testing.md`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// What a user would suffer, as `docs/testing.md` says it.
            #[must_use]
            pub const fn harm(self) -> &'static str {
                match self {
                    $(Self::$bug => $harm,)+
                }
            }

            /// Reads a name.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| bug.as_str() == text)
            }
        }
    };
}

bugs! {
    AckBeforePersist = "ack-before-persist",
        "The agent's shell says that a ledger is on disk before it is: after a power cut two pods get one \
         GPU";
    FreeOnAbsence = "free-on-absence",
        "The agent forgets its leases when the coordinator is away: a restart of the coordinator lets a \
         second gang onto GPUs in use";
    NoStartGate = "no-start-gate",
        "The agent lets a pod start as soon as it is bound: half a gang runs, and burns GPU time for \
         nothing";
    ExpireArmed = "expire-armed",
        "The agent lets armed leases expire while the coordinator is away: a committed gang finds its GPUs \
         given to others";
    ForgetTombstone = "forget-tombstone",
        "The agent keeps no tombstones: a message that comes late brings a released lease back, and its \
         GPUs stay taken";
    ObeyEqualTerm = "obey-equal-term",
        "The agent obeys another coordinator of an equal term: two that were split place two gangs on one \
         node";
    ObeyLowerTerm = "obey-lower-term",
        "The agent obeys lower terms: a coordinator that was paused takes GPUs away that its successor has \
         given";
    GoneBeforeDisk = "gone-before-disk",
        "The agent says that a lease is gone before the disk has forgotten it: after a crash it is back, \
         and nobody expects it";
    IgnoreHealth = "ignore-health",
        "The agent promises GPUs that fell off the bus: the pod that gets them fails";
    ConfirmHeldGpu = "confirm-held-gpu",
        "The agent promises a GPU that another lease holds: two pods share it and one runs out of memory";
    ReserveAgain = "reserve-again",
        "A Reserve that arrives twice makes the lease a reservation again: a promise on disk expires";
    RestartReserves = "restart-reserves",
        "After a restart of the agent a stored armed lease is a reservation again: it expires under a pod \
         that is bound";
    RestartPodsAnew = "restart-pods-anew",
        "After a restart of the agent pods run for their whole time again: jobs end late, and their GPUs \
         stay taken";
    SkipFence = "skip-fence",
        "The coordinator reads a pod where it should fence it: a Binding of its predecessor lands after \
         all, on GPUs that belong to somebody else by then";
    BindAnyVersion = "bind-any-version",
        "A Binding is sent without the version of the pod that was planned: a late one lands on a pod that \
         was fenced";
    NoCapability = "no-capability",
        "The ceilings of queues are read and not used: one team takes the whole cluster";
    NoPlan = "no-plan",
        "Pods are bound without a durable plan: a crash half way leaves half a gang that nobody completes";
    KeepPlans = "keep-plans",
        "Plans are never deleted: after a restart a gang that has long run is taken for one that was cut \
         short";
    LoseGangBound = "lose-gang-bound",
        "The message that lets pods start is never sent: a whole gang is bound and waits for ever";
    CommitHalfConfirmed = "commit-half-confirmed",
        "A plan is written as soon as one agent has confirmed: it names GPUs that the others refuse";
    BindBeforeArmed = "bind-before-armed",
        "Pods are bound before all their leases are on disk: an agent that crashes then gives the GPUs of a \
         bound pod away";
    StartBeforeWhole = "start-before-whole",
        "The coordinator lets each pod start when it is bound: half a gang runs, and burns GPU time for \
         nothing";
    ReleaseOnlyFirst = "release-only-first",
        "Of a placement that is dropped only the first lease is released: GPUs stay taken though nothing \
         runs";
    ForgetRelease = "forget-release",
        "The lease of a deleted pod is not released: its GPUs stay taken";
    CountTwice = "count-twice",
        "A gang that has a place keeps the charge of its admission: its queue is full at half its ceiling";
    NeverUncharge = "never-uncharge",
        "What a finished gang used stays charged: its queue takes nothing any more after a while";
    TimedOutIsFailed = "timed-out-is-failed",
        "A Binding whose answer did not come is taken for failed: the GPUs of a bound pod are given to \
         another";
    ConflictIsDone = "conflict-is-done",
        "A Binding that met a conflict is taken for done: a gang starts without one of its pods";
    DropUnreported = "drop-unreported",
        "A lease that an agent does not name when it comes back is dropped while its gang still counts on \
         it";
    NeverRetry = "never-retry",
        "A gang whose placement was refused is not tried again: it waits for ever on an empty cluster";
    IgnoreMinMember = "ignore-min-member",
        "A gang is placed with whatever pods exist: fewer than its minimum hold GPUs and cannot start";
    OtherNodesGpus = "other-nodes-gpus",
        "A lease names the GPUs of another node: no agent confirms, and the gang never starts";
    SilentReason = "silent-reason",
        "A gang that waits does not say why: its owner can only guess";
    ForgetStrangers = "forget-strangers",
        "Leases that an agent reports and nobody knows are not counted: their GPUs look free and are \
         refused, and stay taken for ever";
    SamePlaceTwice = "same-place-twice",
        "Two pods of one plan get the same GPUs: the agent refuses one of them, again and again";
    AwayIsFree = "away-is-free",
        "The coordinator frees the GPUs of a node whose agent is away: a second gang is sent there when it \
         is back";
    FinalizeRunning = "finalize-running",
        "A deleted pod is removed from the API while it still runs: its owner starts another, and both \
         write to one disk";
    IgnoreForeignPlans = "ignore-foreign-plans",
        "Plans that a replaced coordinator writes late are not looked at: they stay, and the next start \
         goes on with a placement of long ago";
    EvictGrown = "evict-grown",
        "A running gang whose additional pods cannot be bound in time is evicted whole: its work of hours \
         is gone";
    TimeoutIsDone = "timeout-is-done",
        "A write whose answer did not come is taken for done: plans and Bindings that were lost are missed \
         by nobody";
    CeilingOffByOne = "ceiling-off-by-one",
        "A queue may have one more than its ceiling: a team gets a GPU that it has not paid for";
    IgnoreAncestors = "ignore-ancestors",
        "Ceilings of the queues above a queue are not looked at: a department has more than its part";
    ChargeChildrenTwice = "charge-children-twice",
        "What is admitted below a queue is charged to it twice: it looks full at half its ceiling";
    LendGuarantees = "lend-guarantees",
        "What is guaranteed to a queue is lent while it is idle: its owner waits for what he was promised";
    VictimUnderGuarantee = "victim-under-guarantee",
        "Others take from a queue what it is guaranteed: a promise that is not kept";
    ReclaimWithinShare = "reclaim-within-share",
        "Others take from a queue that has no more than its share: two queues evict each other in turns";
    ReclaimAboveShare = "reclaim-above-share",
        "A queue that has its share already takes from others: whoever asks most gets all";
    ReclaimAlways = "reclaim-always",
        "Others take from queues that say reclaimable: false: work that must not be stopped is stopped";
    EvictEqualPriority = "evict-equal-priority",
        "A gang makes room for one that is no more urgent: equal jobs evict each other for ever";
    MostUrgentFirst = "most-urgent-first",
        "Of those that may be evicted the most urgent ones go first";
    EvictProtected = "evict-protected",
        "Pods with preemptable: false are evicted: work that must not be stopped is stopped";
    IgnoreBudgets = "ignore-budgets",
        "Disruption budgets are not heeded: a service loses more pods than it can do without";
    IgnoreCooldown = "ignore-cooldown",
        "A gang is evicted before its cooldown is over: it restarts again and again and gets nothing done";
    WholeGangsFirst = "whole-gangs-first",
        "A whole gang goes where a pod above its minimum would have done";
    LeaderFirst = "leader-first",
        "Of the pods above a minimum the master goes first: the rest of the gang is of no use";
    EvictInVain = "evict-in-vain",
        "More goes than has to: jobs are evicted and the room that they leave stays empty";
    EvictBeforePlan = "evict-before-plan",
        "Victims go before the plan is stored: after a crash nobody knows for whom the room was made";
    FreedIsIdle = "freed-is-idle",
        "What victims leave is not held: a small job takes it, and the evictions were in vain";
    IgnoreNever = "ignore-never",
        "Gangs whose PriorityClass says preemptionPolicy: Never evict others";
    KeepHolds = "keep-holds",
        "A hold outlives its gang: GPUs stay empty for nobody";
    IgnoreHolds = "ignore-holds",
        "What is held for a gang that has waited long is given to others: big gangs starve";
    LateBackfill = "late-backfill",
        "Jobs that end too late use what is held: the start that was promised does not come";
    IgnoreFifo = "ignore-fifo",
        "A strict queue is not served in order: later jobs pass the first one";
    ForgetDegraded = "forget-degraded",
        "A gang that lost pods waits behind fresh ones: what it has left is of no use meanwhile";
    IgnoreWeights = "ignore-weights",
        "Weights of queues are not looked at: all get the same";
    IgnoreDemand = "ignore-demand",
        "Shares go to queues that ask for nothing: what they leave is missing in the shares of others";
    KeepWants = "keep-wants",
        "What a deleted gang asked for counts in the shares of its queue for ever";
    AnyNamespace = "any-namespace",
        "The namespaces that may use a queue are not looked at: everybody uses it";
    QuotaWakesNobody = "quota-wakes-nobody",
        "Those who wait for quota are not tried when some is given back: they wait beside free GPUs";
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
}
