//! What must go so that a gang fits: a pure function of the nodes, the units that may go, and the gang's pods.
//!
//! A unit goes as one: a pod above its gang's minimum, or a whole gang. Each pod gets the node on which the least has to
//! go for it, and of that node the fewest units; what went for an earlier pod is free for later ones. Less is, in this
//! order: pods above a minimum before whole gangs, lower priority, fewer GPUs, younger. In the end every unit is left out
//! once more, so that none goes in vain.
//!
//! The same function finds the room that is free first, where units are what ends by itself and less is what ends
//! earlier.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_common::ids::{GangName, LeaseId, PodUid, QueueName};
use phalanx_common::planted::{self, Bug};

use crate::amounts::Amounts;
use crate::cluster::{Cluster, InUse, NodeIndex};
use crate::gang::GangKey;
use crate::place::{
    Candidate, GangShape, Models, Overlay, Placed, PodNeed, left_over, models_of, place, tasks_with_models,
};
use crate::predicates;

/// Up to so many trials (pods times units) every unit is left out once more in the end.
const MOST_TRIALS: usize = 4096;

/// How bad it is that a unit goes; smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// 0 for a pod above its gang's minimum, 1 for a whole gang.
    pub(crate) class: u8,
    /// Priority of its queue, where it is another one.
    pub(crate) queue_priority: i32,
    /// Priority of the gang, or the time at which the unit ends.
    pub(crate) priority: i64,
    /// GPUs that are lost; of what has none, devices of other kinds.
    pub(crate) gpus: u64,
    /// Negative time of its start: the youngest first.
    pub(crate) age: i64,
    /// Order of what is equal: gang and pod, the last first.
    pub(crate) last: (Reverse<GangKey>, Reverse<u32>),
}

/// What a unit uses of one node.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) node: NodeIndex,
    /// GPUs that are free when it is gone.
    pub(crate) mask: u64,
    pub(crate) used: InUse,
}

/// What goes as one.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) rank: Rank,
    pub(crate) gang: GangKey,
    pub(crate) pods: Vec<(PodUid, LeaseId)>,
    pub(crate) parts: Vec<Part>,
    pub(crate) queue: QueueName,
    /// All that it uses, as it counts in its queue.
    pub(crate) amounts: Amounts,
    /// Disruption budgets that its pods count in, and how many of its pods do.
    pub(crate) budgets: Vec<(GangName, u32)>,
    /// Units that must have gone before: the pods above the minimum of the same gang.
    pub(crate) after: Vec<usize>,
}

/// Says which units may go, given what has gone.
pub(crate) trait Guard: Clone {
    fn may_go(&self, unit: &Unit) -> bool;
    fn gone(&mut self, unit: &Unit);
    /// True where the gang's quota has room, given what has gone.
    fn has_quota(&self) -> bool;
    /// True for a unit that gives quota back that the gang lacks.
    fn frees_quota(&self, unit: &Unit) -> bool;
}

/// What goes, and where the pods go then.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// Numbers of the units, in the order in which they go.
    pub(crate) units: Vec<usize>,
    pub(crate) placed: Vec<Placed>,
}

/// How far it came.
#[derive(Clone, Debug)]
pub(crate) enum NoHelp {
    /// The gang's quota has no room, whatever may go.
    Quota,
    /// These of its pods would not fit.
    Fit(Vec<Candidate>),
}

/// How bad it is to take a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// The worst that goes.
    worst: Option<(u8, i32, i64)>,
    gpus: u64,
    pods: usize,
    age: i64,
    last: Option<(Reverse<GangKey>, Reverse<u32>)>,
    dislike: predicates::Dislike,
    left_over: u32,
    node: NodeIndex,
}

#[derive(Clone, Debug)]
struct State {
    free: u64,
    used: InUse,
}

/// The search.
#[derive(Clone)]
struct Search<'a, G: Guard> {
    cluster: &'a Cluster,
    units: &'a [Unit],
    by_node: BTreeMap<NodeIndex, Vec<usize>>,
    gone: BTreeSet<usize>,
    order: Vec<usize>,
    states: BTreeMap<NodeIndex, State>,
    guard: G,
}

impl<G: Guard> Search<'_, G> {
    fn state(&self, node: NodeIndex) -> State {
        self.states.get(&node).cloned().unwrap_or_else(|| {
            let known = self.cluster.node(node);
            State { free: known.free_mask, used: known.used.clone() }
        })
    }

    fn fits(&self, index: NodeIndex, state: &State, need: &PodNeed, models: Models) -> bool {
        let node = self.cluster.node(index);
        if node.shut().is_some() || state.free.count_ones() < need.gpus {
            return false;
        }
        let has_gpus = need.gpus == 0
            || node.agent.as_ref().is_some_and(|agent| {
                let mut masks = models_of(self.cluster.class(agent.class), models);
                masks.any(|mask| (state.free & mask).count_ones() >= need.gpus)
            });
        has_gpus && predicates::check(node, need, &state.used).is_ok()
    }

    /// A unit and those that go before it, without those that have gone.
    fn with_those_before(&self, unit: usize, chosen: &[usize]) -> Vec<usize> {
        let before = self.units[unit].after.iter().copied().chain([unit]);
        before.filter(|at| !self.gone.contains(at) && !chosen.contains(at)).collect()
    }

    /// The fewest units that have to go for a pod on a node.
    fn least(&self, index: NodeIndex, need: &PodNeed, models: Models) -> Option<Vec<usize>> {
        if self.fits(index, &self.state(index), need, models) {
            return Some(Vec::new());
        }
        let node = self.cluster.node(index);
        if node.shut().is_some() || !predicates::suits(node, need) {
            return None;
        }
        let all = self.by_node.get(&index).map_or(&[][..], Vec::as_slice);
        for first in 0..all.len() {
            let (chosen, refused) = self.gather(index, need, models, &all[first..]);
            match chosen {
                Some(chosen) => return Some(self.trim(index, need, models, chosen)),
                // The first one was in vain, and others may not go once it has.
                None if refused => {}
                None => break,
            }
        }
        None
    }

    /// Lets units of a node go in this order until the pod fits. True where one was refused that might go alone.
    fn gather(
        &self,
        index: NodeIndex,
        need: &PodNeed,
        models: Models,
        units: &[usize],
    ) -> (Option<Vec<usize>>, bool) {
        let mut state = self.state(index);
        let mut chosen: Vec<usize> = Vec::new();
        let mut guard = self.guard.clone();
        let mut refused = false;
        for at in units {
            let more = self.with_those_before(*at, &chosen);
            if !self.may_all_go(&guard, &more) {
                refused |= !chosen.is_empty();
                continue;
            }
            for at in more {
                guard.gone(&self.units[at]);
                Self::release(&self.units[at], index, &mut state);
                chosen.push(at);
            }
            if self.fits(index, &state, need, models) {
                return (Some(chosen), refused);
            }
        }
        (None, refused)
    }

    /// Whether each of these may go after those before it.
    fn may_all_go(&self, guard: &G, units: &[usize]) -> bool {
        let [before @ .., last] = units else { return true };
        if before.is_empty() {
            return guard.may_go(&self.units[*last]);
        }
        let mut guard = guard.clone();
        units.iter().all(|at| {
            let may = guard.may_go(&self.units[*at]);
            guard.gone(&self.units[*at]);
            may
        })
    }

    fn release(unit: &Unit, index: NodeIndex, state: &mut State) {
        for part in unit.parts.iter().filter(|part| part.node == index) {
            state.free |= part.mask;
            state.used.exclude(&part.used);
        }
    }

    /// Leaves out what need not go, the worst first.
    fn trim(&self, index: NodeIndex, need: &PodNeed, models: Models, mut chosen: Vec<usize>) -> Vec<usize> {
        let mut by_rank = chosen.clone();
        by_rank.sort_by_key(|at| Reverse(self.units[*at].rank));
        by_rank.retain(|_| !planted::is(Bug::EvictInVain));
        for at in by_rank {
            if chosen.iter().any(|other| self.units[*other].after.contains(&at)) {
                continue;
            }
            let mut state = self.state(index);
            for other in chosen.iter().filter(|other| **other != at) {
                Self::release(&self.units[*other], index, &mut state);
            }
            if self.fits(index, &state, need, models) {
                chosen.retain(|other| *other != at);
            }
        }
        chosen
    }

    fn cost(&self, node: NodeIndex, need: &PodNeed, units: &[usize]) -> Cost {
        let ranks = || units.iter().map(|at| self.units[*at].rank);
        let free = self.state(node).free.count_ones();
        let has_gpus = self.cluster.node(node).agent.as_ref().is_some_and(|agent| !agent.holders.is_empty());
        Cost {
            worst: ranks().map(|rank| (rank.class, rank.queue_priority, rank.priority)).max(),
            gpus: ranks().map(|rank| rank.gpus).sum(),
            pods: units.iter().map(|at| self.units[*at].pods.len()).sum(),
            age: ranks().map(|rank| rank.age).max().unwrap_or(i64::MIN),
            last: ranks().map(|rank| rank.last).max(),
            dislike: predicates::dislike(self.cluster.node(node), need),
            left_over: free.saturating_sub(need.gpus) + if need.gpus == 0 && has_gpus { 1 << 16 } else { 0 },
            node,
        }
    }

    fn let_go(&mut self, units: &[usize]) {
        for at in units {
            if !self.gone.insert(*at) {
                continue;
            }
            self.order.push(*at);
            let unit = &self.units[*at];
            self.guard.gone(unit);
            // Several of its pods may be on one node, which gets back once what all of them use.
            let nodes: BTreeSet<NodeIndex> = unit.parts.iter().map(|part| part.node).collect();
            for node in nodes {
                let mut state = self.state(node);
                Self::release(unit, node, &mut state);
                self.states.insert(node, state);
            }
        }
    }

    fn take(&mut self, index: NodeIndex, need: &PodNeed, models: Models) {
        let mut state = self.state(index);
        if need.gpus > 0
            && let Some(agent) = &self.cluster.node(index).agent
        {
            let class = self.cluster.class(agent.class);
            let sets = models_of(class, models).filter_map(|mask| class.best(state.free & mask, need.gpus));
            if let Some(choice) = sets.min_by_key(|choice| (choice.score, choice.mask)) {
                state.free &= !choice.mask;
            }
        }
        state.used.add(&need.amounts, &need.constraints.host_ports);
        self.states.insert(index, state);
    }

    /// Gives back what the gang lacks of its quota.
    fn free_quota(&mut self) -> bool {
        let mut units: Vec<usize> = (0..self.units.len()).collect();
        units.sort_by_key(|at| self.units[*at].rank);
        for at in units {
            if self.guard.has_quota() {
                return true;
            }
            if self.gone.contains(&at) || !self.guard.frees_quota(&self.units[at]) {
                continue;
            }
            let more = self.with_those_before(at, &[]);
            if self.may_all_go(&self.guard, &more) {
                self.let_go(&more);
            }
        }
        self.guard.has_quota()
    }

    /// Gives each pod the node on which the least has to go; how many got none, where not all did.
    fn place(&mut self, pods: &[Candidate], models: Models) -> Result<(), usize> {
        let nodes: Vec<NodeIndex> = self.cluster.nodes().map(|(index, _)| index).collect();
        let mut known: Option<Arc<PodNeed>> = None;
        let mut choices: BTreeSet<(Cost, Vec<usize>)> = BTreeSet::new();
        for (done, candidate) in pods.iter().enumerate() {
            let need = &candidate.need;
            if known.as_ref().is_none_or(|known| known != need) {
                choices = nodes.iter().filter_map(|node| self.choice(*node, need, models)).collect();
                known = Some(need.clone());
            }
            loop {
                let Some((cost, _)) = choices.pop_first() else {
                    return Err(pods.len() - done);
                };
                // What went since may have changed what this node costs, or whether its units may still go.
                let now = self.choice(cost.node, need, models);
                let Some((now_cost, now_units)) = now else { continue };
                if choices.first().is_some_and(|(next, _)| *next < now_cost) {
                    choices.insert((now_cost, now_units));
                    continue;
                }
                self.let_go(&now_units);
                self.take(cost.node, need, models);
                choices.extend(self.choice(cost.node, need, models));
                let others: BTreeSet<NodeIndex> =
                    now_units.iter().flat_map(|at| &self.units[*at].parts).map(|part| part.node).collect();
                for other in others.into_iter().filter(|other| *other != cost.node) {
                    choices.retain(|(known, _)| known.node != other);
                    choices.extend(self.choice(other, need, models));
                }
                break;
            }
        }
        Ok(())
    }

    fn choice(&self, node: NodeIndex, need: &PodNeed, models: Models) -> Option<(Cost, Vec<usize>)> {
        let units = self.least(node, need, models)?;
        Some((self.cost(node, need, &units), units))
    }
}

/// What has to go so that all of `pods` fit, where anything helps. `base` has what the gang may use beside what is free
/// for everybody.
pub(crate) fn make_room<G: Guard>(
    cluster: &Cluster,
    base: &Overlay,
    units: &[Unit],
    guard: &G,
    shape: &GangShape,
    pods: &[Candidate],
) -> Result<Room, NoHelp> {
    let mut by_node: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        for part in &unit.parts {
            by_node.entry(part.node).or_default().push(at);
        }
    }
    for list in by_node.values_mut() {
        list.sort_by_key(|at| units[*at].rank);
        list.dedup();
    }
    let states = base.states().map(|(node, free, used)| (node, State { free, used: used.clone() })).collect();
    let mut search = Search {
        cluster,
        units,
        by_node,
        gone: BTreeSet::new(),
        order: Vec::new(),
        states,
        guard: guard.clone(),
    };
    if !search.free_quota() {
        return Err(NoHelp::Quota);
    }
    let mut missing = Vec::new();
    for (group, models) in tasks_with_models(cluster, shape, pods) {
        let mut best: Option<(usize, Search<'_, G>)> = None;
        for models in models {
            let mut trial = search.clone();
            let left = trial.place(&group, models).err().unwrap_or(0);
            let is_better = |(known_left, known): &(usize, Search<'_, G>)| {
                left < *known_left || (left == *known_left && trial.worse_than(known).is_lt())
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some((left, trial));
            }
        }
        let left = best.as_ref().map_or(group.len(), |(left, _)| *left);
        missing.extend_from_slice(&group[group.len() - left..]);
        search = best.map_or(search, |(_, found)| found);
    }
    if !missing.is_empty() {
        return Err(NoHelp::Fit(missing));
    }
    let chosen = search.order.clone();
    finish(cluster, base, units, guard, shape, pods, chosen)
}

impl<G: Guard> Search<'_, G> {
    fn worse_than(&self, other: &Self) -> std::cmp::Ordering {
        let sum = |search: &Self| {
            let ranks = || search.order.iter().map(|at| search.units[*at].rank);
            let worst = ranks().map(|rank| (rank.class, rank.queue_priority, rank.priority)).max();
            (worst, ranks().map(|rank| rank.gpus).sum::<u64>(), search.order.len())
        };
        sum(self).cmp(&sum(other))
    }
}

/// The free room once these units have gone.
fn without(cluster: &Cluster, base: &Overlay, units: &[Unit], gone: &[usize]) -> Overlay {
    let mut overlay = base.clone();
    for at in gone {
        for part in &units[*at].parts {
            overlay.release(cluster, part.node, part.mask, &part.used);
        }
    }
    overlay
}

/// Places the pods for good, and leaves out what goes in vain.
fn finish<G: Guard>(
    cluster: &Cluster,
    base: &Overlay,
    units: &[Unit],
    guard: &G,
    shape: &GangShape,
    pods: &[Candidate],
    mut chosen: Vec<usize>,
) -> Result<Room, NoHelp> {
    let fits = |gone: &[usize]| place(cluster, &mut without(cluster, base, units, gone), shape, pods);
    let left = |gone: &[usize]| left_over(cluster, without(cluster, base, units, gone), shape, pods);
    let mut placed = fits(&chosen).map_err(|_| NoHelp::Fit(left(&chosen)))?;
    if pods.len().saturating_mul(chosen.len()) <= MOST_TRIALS && !planted::is(Bug::EvictInVain) {
        let mut by_rank = chosen.clone();
        by_rank.sort_by_key(|at| Reverse(units[*at].rank));
        for at in by_rank {
            let rest: Vec<usize> = chosen.iter().copied().filter(|other| *other != at).collect();
            if rest.iter().any(|other| units[*other].after.contains(&at)) {
                continue;
            }
            let mut left = guard.clone();
            rest.iter().for_each(|other| left.gone(&units[*other]));
            if !left.has_quota() {
                continue;
            }
            if let Ok(better) = fits(&rest) {
                (chosen, placed) = (rest, better);
            }
        }
    }
    Ok(Room { units: chosen, placed })
}
