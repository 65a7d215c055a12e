//! Which write goes next. Pure: writes of one thing keep their order and are never under way together; of each class so
//! many are under way at once as it may have, whatever the others do. Statuses and removals of plans give way to the
//! rest for a moment, and of several for one thing only the newest is written. Plans of one object that wait when one of
//! them begins go with it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use phalanx_common::ids::{ActionId, GangName, PodUid, QueueName};
use phalanx_core::action::{Action, Command};
use tokio::time::Instant;

use crate::convert::plan;

/// A status or the removal of a plan gives way to Bindings for so long.
pub(super) const GIVES_WAY: Duration = Duration::from_secs(2);
/// So many of those that gave way for long enough go beside Bindings.
const BESIDE_BINDINGS: usize = 2;

/// So many plans go together, with so many bytes of text, and so many removals.
const TOGETHER_PLANS: usize = 64;
const TOGETHER_BYTES: usize = 256 * 1024;
const TOGETHER_REMOVALS: usize = 256;

const PODS: usize = 0;
const PLANS: usize = 1;
const TERM: usize = 2;
const LATER: usize = 3;

/// What a write is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Pod(PodUid),
    /// The object of plans of this number.
    Plans(u8),
    GangStatus(GangName),
    Queue(QueueName),
    Term,
}

impl Subject {
    /// `None` for what is no write.
    pub(super) fn of(command: &Command) -> Option<Self> {
        match command {
            Command::WritePlan(plan) => Some(Self::Plans(plan::number_of(&plan.gang))),
            Command::DeletePlan { gang, .. } => Some(Self::Plans(plan::number_of(gang))),
            Command::SetGangStatus { gang, .. } => Some(Self::GangStatus(gang.clone())),
            Command::SetQueueStatus { queue, .. } => Some(Self::Queue(queue.clone())),
            Command::Bind { pod, .. }
            | Command::FenceWrite { pod, .. }
            | Command::ReadPod { pod, .. }
            | Command::Evict { pod, .. }
            | Command::AnnounceEviction { pod, .. } => Some(Self::Pod(pod.clone())),
            Command::RaiseTerm { .. } => Some(Self::Term),
            Command::Send { .. } | Command::RecordPromise { .. } | Command::Warn { .. } => None,
        }
    }
}

/// Where a write waits: pods wait for a plan, nobody waits for its removal or for a status.
const fn class_of(command: &Command) -> usize {
    match command {
        Command::WritePlan(_) => PLANS,
        Command::RaiseTerm { .. } => TERM,
        Command::DeletePlan { .. } | Command::SetGangStatus { .. } | Command::SetQueueStatus { .. } => LATER,
        Command::Bind { .. }
        | Command::FenceWrite { .. }
        | Command::ReadPod { .. }
        | Command::Evict { .. }
        | Command::AnnounceEviction { .. }
        | Command::Send { .. }
        | Command::RecordPromise { .. }
        | Command::Warn { .. } => PODS,
    }
}

/// True where the newer write leaves nothing of the older one.
fn replaces(newer: &Command, older: &Command) -> bool {
    match (newer, older) {
        (Command::SetGangStatus { uid, .. }, Command::SetGangStatus { uid: before, .. }) => uid == before,
        (Command::SetQueueStatus { .. }, Command::SetQueueStatus { .. }) => true,
        _ => false,
    }
}

#[derive(Debug, Default)]
struct Class {
    at_once: usize,
    running: usize,
    ready: VecDeque<(Subject, Instant)>,
}

/// The writes of one thing.
#[derive(Debug, Default)]
struct Line {
    /// Class of the write that is under way.
    running: Option<usize>,
    /// Those that wait, oldest first.
    waiting: VecDeque<Action>,
}

impl Line {
    /// The oldest, and, where they may go `together`, those after it that find room beside it.
    fn take(&mut self, together: bool) -> Vec<Action> {
        let (mut plans, mut bytes, mut removals) = (0, 0, 0);
        let mut fits = |command: &Command| {
            match command {
                Command::WritePlan(plan) => {
                    plans += 1;
                    bytes += plan::text_bytes(plan);
                }
                _ => removals += 1,
            }
            plans <= TOGETHER_PLANS && bytes <= TOGETHER_BYTES && removals <= TOGETHER_REMOVALS
        };
        let all = self.waiting.iter().take_while(|action| fits(&action.command)).count();
        let count = if together { all.max(1) } else { 1 };
        self.waiting.drain(..count.min(self.waiting.len())).collect()
    }
}

/// Writes that wait, and what is under way.
#[derive(Debug)]
pub(super) struct Pool {
    classes: [Class; 4],
    /// Things of which a write waits or is under way.
    lines: HashMap<Subject, Line>,
    waiting: usize,
}

impl Pool {
    /// So many at once of pods, and so many of plans, and as many of statuses.
    pub(super) fn new(pods: usize, groups: usize) -> Self {
        let class = |at_once| Class { at_once, ..Class::default() };
        let classes = [class(pods), class(groups), class(1), class(groups)];
        Self { classes, lines: HashMap::new(), waiting: 0 }
    }

    /// Writes that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Writes of pods and plans that wait or are under way.
    pub(super) fn urgent(&self) -> usize {
        [PODS, PLANS]
            .iter()
            .map(|class| &self.classes[*class])
            .map(|class| class.running + class.ready.len())
            .sum()
    }

    /// True where a write gives way to others.
    pub(super) fn holds_back(&self) -> bool {
        !self.classes[LATER].ready.is_empty()
    }

    /// Takes a write. Gives one that had not begun and that needs not be done any more, because this one says all.
    pub(super) fn push(&mut self, subject: Subject, action: Action, now: Instant) -> Option<ActionId> {
        let line = self.lines.entry(subject.clone()).or_default();
        if let Some(last) = line.waiting.back_mut().filter(|last| replaces(&action.command, &last.command)) {
            return Some(std::mem::replace(last, action).id);
        }
        self.waiting += 1;
        let class = class_of(&action.command);
        let is_first = line.waiting.is_empty() && line.running.is_none();
        let holds_up = line.running.is_none() && class != LATER;
        line.waiting.push_back(action);
        if is_first {
            self.classes[class].ready.push_back((subject, now));
        } else if holds_up {
            self.hurry(&subject, class, now);
        }
        None
    }

    /// A write that others wait for stands behind one that gives way: that one goes with the others' class.
    fn hurry(&mut self, subject: &Subject, class: usize, now: Instant) {
        let later = &mut self.classes[LATER].ready;
        if let Some(at) = later.iter().position(|(other, _)| other == subject)
            && let Some((subject, _)) = later.remove(at)
        {
            self.classes[class].ready.push_back((subject, now));
        }
    }

    /// What may begin now: a write, or several of plans that become one.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Subject, Vec<Action>)> {
        let mut order = [PODS, PLANS, TERM, LATER].into_iter();
        let class = order.find(|class| self.may_begin(*class, now))?;
        let (subject, _) = self.classes[class].ready.pop_front()?;
        let line = self.lines.get_mut(&subject)?;
        let actions = line.take(matches!(subject, Subject::Plans(_)));
        line.running = Some(class);
        self.classes[class].running += 1;
        self.waiting -= actions.len();
        Some((subject, actions))
    }

    fn may_begin(&self, index: usize, now: Instant) -> bool {
        let class = &self.classes[index];
        let Some((_, since)) = class.ready.front() else { return false };
        let has_waited = now.saturating_duration_since(*since) >= GIVES_WAY;
        let at_once = match index {
            LATER if self.urgent() > 0 && has_waited => class.at_once.min(BESIDE_BINDINGS),
            LATER if self.urgent() > 0 => 0,
            _ => class.at_once,
        };
        class.running < at_once
    }

    /// The write of this thing that was under way has ended.
    pub(super) fn ended(&mut self, subject: Subject, now: Instant) {
        let Some(line) = self.lines.get_mut(&subject) else { return };
        if let Some(class) = line.running.take() {
            self.classes[class].running = self.classes[class].running.saturating_sub(1);
        }
        let hurries =
            line.waiting.iter().map(|action| class_of(&action.command)).find(|class| *class != LATER);
        if line.waiting.is_empty() {
            self.lines.remove(&subject);
        } else {
            self.classes[hurries.unwrap_or(LATER)].ready.push_back((subject, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_common::ids::GpuId;
    use phalanx_common::plan::{GangPlan, PlanPurpose, PlannedPod};
    use phalanx_common::units::Time;
    use phalanx_core::action::{GangPhase, GangStatus};

    use super::*;

    fn read(id: u64, pod: &str) -> Action {
        let name = GangName::new("default", pod);
        Action { id: ActionId(id), command: Command::ReadPod { pod: pod.into(), name } }
    }

    fn raise(id: u64) -> Action {
        Action { id: ActionId(id), command: Command::RaiseTerm { above: 1 } }
    }

    fn push(pool: &mut Pool, action: Action) {
        assert_eq!(push_at(pool, action, Instant::now()), None);
    }

    fn push_at(pool: &mut Pool, action: Action, now: Instant) -> Option<ActionId> {
        pool.push(Subject::of(&action.command).unwrap(), action, now)
    }

    fn status(id: u64, gang: &str) -> Action {
        let status =
            GangStatus { phase: GangPhase::Running, reason: None, running: 1, succeeded: 0, failed: 0 };
        let gang = GangName::new("default", gang);
        let command = Command::SetGangStatus { gang, uid: "u".into(), status: Box::new(status) };
        Action { id: ActionId(id), command }
    }

    fn plan_of(id: u64, gang: &str, pods: Vec<PlannedPod>) -> Action {
        let plan = GangPlan {
            gang: GangName::new("default", gang),
            gang_uid: "u".into(),
            term: 1,
            binding_deadline: Time(0),
            purpose: PlanPurpose::Bind,
            victims: Vec::new(),
            pods,
        };
        Action { id: ActionId(id), command: Command::WritePlan(Box::new(plan)) }
    }

    fn plan(id: u64, gang: &str) -> Action {
        plan_of(id, gang, Vec::new())
    }

    fn removal(id: u64, gang: &str) -> Action {
        let command = Command::DeletePlan { gang: GangName::new("default", gang), term: 1 };
        Action { id: ActionId(id), command }
    }

    fn plans_of(gang: &str) -> Subject {
        Subject::Plans(plan::number_of(&GangName::new("default", gang)))
    }

    /// Names of so many gangs whose plans stand in the same object as that of "g".
    fn beside(count: usize) -> Vec<String> {
        let names = (0..).map(|number| format!("g-{number}"));
        names.filter(|name| plans_of(name) == plans_of("g")).take(count).collect()
    }

    fn together_at(pool: &mut Pool, now: Instant) -> Vec<u64> {
        pool.next(now)
            .map(|(_, actions)| actions.iter().map(|action| action.id.0).collect())
            .unwrap_or_default()
    }

    fn together(pool: &mut Pool) -> Vec<u64> {
        together_at(pool, Instant::now())
    }

    fn next(pool: &mut Pool) -> Option<u64> {
        next_at(pool, Instant::now())
    }

    fn ended(pool: &mut Pool, subject: Subject) {
        pool.ended(subject, Instant::now());
    }

    fn next_at(pool: &mut Pool, now: Instant) -> Option<u64> {
        pool.next(now).map(|(_, actions)| {
            assert_eq!(actions.len(), 1, "{actions:?}");
            actions[0].id.0
        })
    }

    #[test]
    fn writes_of_one_thing_follow_each_other_and_hold_up_no_other() {
        let mut pool = Pool::new(2, 1);
        for action in [read(1, "a"), read(2, "a"), read(3, "b"), read(4, "c")] {
            push(&mut pool, action);
        }
        assert_eq!((next(&mut pool), next(&mut pool), next(&mut pool)), (Some(1), Some(3), None));
        ended(&mut pool, Subject::Pod("b".into()));
        assert_eq!((next(&mut pool), next(&mut pool)), (Some(4), None));
        ended(&mut pool, Subject::Pod("a".into()));
        assert_eq!((next(&mut pool), pool.waiting()), (Some(2), 0));
        ended(&mut pool, Subject::Pod("a".into()));
        ended(&mut pool, Subject::Pod("c".into()));
        assert!(pool.lines.is_empty());
    }

    #[test]
    fn a_class_that_is_full_leaves_the_others_theirs() {
        let mut pool = Pool::new(1, 1);
        for action in [read(1, "a"), read(2, "b"), raise(3), raise(4)] {
            push(&mut pool, action);
        }
        assert_eq!((next(&mut pool), next(&mut pool), next(&mut pool)), (Some(1), Some(3), None));
        ended(&mut pool, Subject::Term);
        assert_eq!((next(&mut pool), next(&mut pool)), (Some(4), None));
    }

    #[test]
    fn a_status_gives_way_to_bindings_for_a_while_and_only_the_newest_is_written() {
        let mut pool = Pool::new(2, 4);
        let began = Instant::now();
        for action in [read(1, "a"), read(2, "a"), status(3, "g"), plan(4, "h")] {
            assert_eq!(push_at(&mut pool, action, began), None);
        }
        assert_eq!((next_at(&mut pool, began), next_at(&mut pool, began)), (Some(1), Some(4)));
        assert_eq!(next_at(&mut pool, began), None);
        assert_eq!(push_at(&mut pool, status(5, "g"), began), Some(ActionId(3)));
        for number in 0..4 {
            assert_eq!(push_at(&mut pool, status(6 + number, &format!("g{number}")), began), None);
        }
        let later = began + GIVES_WAY;
        assert_eq!((next_at(&mut pool, later), next_at(&mut pool, later)), (Some(5), Some(6)));
        assert_eq!(next_at(&mut pool, later), None);
        // One that is under way is followed, not replaced.
        assert_eq!(push_at(&mut pool, status(20, "g"), later), None);
        ended(&mut pool, Subject::Pod("a".into()));
        assert_eq!(next(&mut pool), Some(2));
        ended(&mut pool, Subject::Pod("a".into()));
        ended(&mut pool, plans_of("h"));
        assert_eq!((next_at(&mut pool, later), next_at(&mut pool, later)), (Some(7), Some(8)));
        ended(&mut pool, Subject::GangStatus(GangName::new("default", "g")));
        assert_eq!((next_at(&mut pool, later), next_at(&mut pool, later)), (Some(9), None));
    }

    #[test]
    fn a_plan_waits_for_no_bindings_though_the_removal_of_the_last_one_does() {
        let mut pool = Pool::new(1, 1);
        push(&mut pool, read(1, "a"));
        assert_eq!(next(&mut pool), Some(1));
        push(&mut pool, removal(2, "g"));
        assert_eq!(next(&mut pool), None);
        push(&mut pool, plan(3, "g"));
        assert_eq!(together(&mut pool), [2, 3], "the removal costs no write of its own");
        assert_eq!(next(&mut pool), None);
        ended(&mut pool, plans_of("g"));
        ended(&mut pool, Subject::Pod("a".into()));
        assert!(pool.lines.is_empty() && pool.urgent() == 0);
    }

    #[test]
    fn plans_that_wait_go_together_and_none_waits_for_others_to_come() {
        let mut pool = Pool::new(1, 8);
        let gangs = beside(100);
        push(&mut pool, plan(1, &gangs[0]));
        assert_eq!(together(&mut pool), [1], "the first goes at once");
        for (id, gang) in (2..).zip(&gangs[1..4]) {
            push(&mut pool, plan(id, gang));
        }
        push(&mut pool, removal(5, &gangs[0]));
        push(&mut pool, plan(6, &gangs[0]));
        assert_eq!(together(&mut pool), [0; 0], "one write of an object is under way at a time");
        ended(&mut pool, plans_of("g"));
        assert_eq!(together(&mut pool), [2, 3, 4, 5, 6]);
        ended(&mut pool, plans_of("g"));
        // So many, and so much text.
        for (id, gang) in (10..).zip(&gangs) {
            push(&mut pool, plan(id, gang));
        }
        assert_eq!(together(&mut pool), (10..74).collect::<Vec<u64>>());
        ended(&mut pool, plans_of("g"));
        assert_eq!((together(&mut pool).len(), pool.waiting()), (36, 0));
        ended(&mut pool, plans_of("g"));
        let large = || {
            let pod = PlannedPod {
                pod: "u".into(),
                name: "p".into(),
                node: "n".into(),
                lease: None,
                gpus: (0..8).map(GpuId).collect(),
            };
            vec![pod; 500]
        };
        for (id, gang) in (200..).zip(&gangs[..4]) {
            push(&mut pool, plan_of(id, gang, large()));
        }
        let huge = large().into_iter().cycle().take(5_000).collect();
        push(&mut pool, plan_of(204, &gangs[4], huge));
        for expected in [vec![200, 201], vec![202, 203], vec![204]] {
            assert_eq!(together(&mut pool), expected);
            ended(&mut pool, plans_of("g"));
        }
        assert!(pool.lines.is_empty() && pool.waiting() == 0);
    }

    #[test]
    fn removals_give_way_together() {
        let mut pool = Pool::new(1, 8);
        push(&mut pool, read(1, "a"));
        assert_eq!(next(&mut pool), Some(1));
        let began = Instant::now();
        let gangs = beside(10);
        for (id, gang) in (2..).zip(&gangs) {
            assert_eq!(push_at(&mut pool, removal(id, gang), began), None);
        }
        assert_eq!(together_at(&mut pool, began), [0; 0]);
        assert_eq!(together_at(&mut pool, began + GIVES_WAY).len(), 10);
        ended(&mut pool, plans_of("g"));
        ended(&mut pool, Subject::Pod("a".into()));
        assert!(pool.lines.is_empty());
    }
}
