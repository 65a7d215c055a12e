//! Which write goes next. Pure: writes of one thing keep their order and are never under way together; of each class so
//! many are under way at once as it may have, whatever the others do.

use std::collections::{HashMap, VecDeque};

use phalanx_common::ids::{GangName, PodUid, QueueName};
use phalanx_core::action::{Action, Command};

/// What a write is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Pod(PodUid),
    Gang(GangName),
    Queue(QueueName),
    Term,
}

impl Subject {
    /// `None` for what is no write.
    pub(super) fn of(command: &Command) -> Option<Self> {
        match command {
            Command::WritePlan(plan) => Some(Self::Gang(plan.gang.clone())),
            Command::DeletePlan { gang, .. } | Command::SetGangStatus { gang, .. } => {
                Some(Self::Gang(gang.clone()))
            }
            Command::SetQueueStatus { queue, .. } => Some(Self::Queue(queue.clone())),
            Command::Bind { pod, .. }
            | Command::FenceWrite { pod, .. }
            | Command::ReadPod { pod, .. }
            | Command::Evict { pod, .. } => Some(Self::Pod(pod.clone())),
            Command::RaiseTerm { .. } => Some(Self::Term),
            Command::Send { .. } | Command::Warn { .. } => None,
        }
    }

    const fn class(&self) -> usize {
        match self {
            Self::Pod(_) => 0,
            Self::Gang(_) | Self::Queue(_) => 1,
            Self::Term => 2,
        }
    }
}

#[derive(Debug, Default)]
struct Class {
    at_once: usize,
    running: usize,
    ready: VecDeque<(Subject, Action)>,
}

/// Writes that wait, and what is under way.
#[derive(Debug)]
pub(super) struct Pool {
    classes: [Class; 3],
    /// Things of which a write is ready or under way, with the writes behind it.
    busy: HashMap<Subject, VecDeque<Action>>,
    waiting: usize,
}

impl Pool {
    /// So many at once of pods, and of gangs and queues together.
    pub(super) fn new(pods: usize, groups: usize) -> Self {
        let class = |at_once| Class { at_once, ..Class::default() };
        Self { classes: [class(pods), class(groups), class(1)], busy: HashMap::new(), waiting: 0 }
    }

    /// Writes that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn push(&mut self, subject: Subject, action: Action) {
        self.waiting += 1;
        if let Some(behind) = self.busy.get_mut(&subject) {
            behind.push_back(action);
            return;
        }
        self.busy.insert(subject.clone(), VecDeque::new());
        self.classes[subject.class()].ready.push_back((subject, action));
    }

    /// A write that may begin now.
    pub(super) fn next(&mut self) -> Option<(Subject, Action)> {
        let class =
            self.classes.iter_mut().find(|class| class.running < class.at_once && !class.ready.is_empty())?;
        let next = class.ready.pop_front()?;
        class.running += 1;
        self.waiting -= 1;
        Some(next)
    }

    /// The write of this thing that was under way has ended.
    pub(super) fn ended(&mut self, subject: Subject) {
        let class = &mut self.classes[subject.class()];
        class.running = class.running.saturating_sub(1);
        match self.busy.get_mut(&subject).and_then(VecDeque::pop_front) {
            Some(action) => class.ready.push_back((subject, action)),
            None => drop(self.busy.remove(&subject)),
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::ActionId;

    use super::*;

    fn read(id: u64, pod: &str) -> Action {
        let name = GangName::new("default", pod);
        Action { id: ActionId(id), command: Command::ReadPod { pod: pod.into(), name } }
    }

    fn raise(id: u64) -> Action {
        Action { id: ActionId(id), command: Command::RaiseTerm { above: 1 } }
    }

    fn push(pool: &mut Pool, action: Action) {
        pool.push(Subject::of(&action.command).unwrap(), action);
    }

    fn next(pool: &mut Pool) -> Option<u64> {
        pool.next().map(|(_, action)| action.id.0)
    }

    #[test]
    fn writes_of_one_thing_follow_each_other_and_hold_up_no_other() {
        let mut pool = Pool::new(2, 1);
        for action in [read(1, "a"), read(2, "a"), read(3, "b"), read(4, "c")] {
            push(&mut pool, action);
        }
        assert_eq!((next(&mut pool), next(&mut pool), next(&mut pool)), (Some(1), Some(3), None));
        pool.ended(Subject::Pod("b".into()));
        assert_eq!((next(&mut pool), next(&mut pool)), (Some(4), None));
        pool.ended(Subject::Pod("a".into()));
        assert_eq!((next(&mut pool), pool.waiting()), (Some(2), 0));
        pool.ended(Subject::Pod("a".into()));
        pool.ended(Subject::Pod("c".into()));
        assert!(pool.busy.is_empty());
    }

    #[test]
    fn a_class_that_is_full_leaves_the_others_theirs() {
        let mut pool = Pool::new(1, 1);
        for action in [read(1, "a"), read(2, "b"), raise(3), raise(4)] {
            push(&mut pool, action);
        }
        assert_eq!((next(&mut pool), next(&mut pool), next(&mut pool)), (Some(1), Some(3), None));
        pool.ended(Subject::Term);
        assert_eq!((next(&mut pool), next(&mut pool)), (Some(4), None));
    }
}
