//! Bugs planted on purpose: each is a mistake that somebody could really make in this code, and a test shows that
//! the simulation or a scenario finds it.
//!
//! Without the feature `planted-bugs` the answer is a constant `false`, and nothing of this is in a program.

/// A planted bug, with what a user would suffer from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// The agent's shell says that a ledger is on disk before it is: after a power cut two pods get one GPU.
    AckBeforePersist,
    /// The agent forgets its leases when the coordinator is away: a restart of the coordinator lets a second gang
    /// onto GPUs in use.
    FreeOnAbsence,
    /// The agent lets a pod start as soon as it is bound: half a gang runs, and burns GPU time for nothing.
    NoStartGate,
    /// The coordinator reads a pod where it should fence it: a Binding of its predecessor lands after all, on GPUs
    /// that belong to somebody else by then.
    SkipFence,
    /// The ceilings of queues are read and not used: one team takes the whole cluster.
    NoCapability,
    /// Pods are bound without a durable plan: a crash half way leaves half a gang that nobody completes.
    NoPlan,
    /// Plans are never deleted: after a restart a gang that has long run is taken for one that was cut short.
    KeepPlans,
    /// The message that lets pods start is never sent: a whole gang is bound and waits for ever.
    LoseGangBound,
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
        pub const ALL: [Self; 8] = [
            Self::AckBeforePersist,
            Self::FreeOnAbsence,
            Self::NoStartGate,
            Self::SkipFence,
            Self::NoCapability,
            Self::NoPlan,
            Self::KeepPlans,
            Self::LoseGangBound,
        ];

        /// Name on the command line and in `docs/testing.md`.
        #[must_use]
        pub const fn as_str(self) -> &'static str {
            match self {
                Self::AckBeforePersist => "ack-before-persist",
                Self::FreeOnAbsence => "free-on-absence",
                Self::NoStartGate => "no-start-gate",
                Self::SkipFence => "skip-fence",
                Self::NoCapability => "no-capability",
                Self::NoPlan => "no-plan",
                Self::KeepPlans => "keep-plans",
                Self::LoseGangBound => "lose-gang-bound",
            }
        }

        /// Reads a name.
        #[must_use]
        pub fn parse(text: &str) -> Option<Self> {
            Self::ALL.into_iter().find(|bug| bug.as_str() == text)
        }
    }
}
