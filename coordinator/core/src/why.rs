//! Finds the thing that limits a gang that did not fit.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_common::gang::PodRequest;
use phalanx_common::ids::NodeName;
use phalanx_common::resources::{NVIDIA_GPU, ResourceName, format_amount};
use phalanx_common::wire::LeaseState;

use crate::amounts::{Amounts, ResourceKey};
use crate::cluster::{Cluster, Kind, Node, NodeIndex, Taken};
use crate::core::Core;
use crate::gang::natural;
use crate::place::{Candidate, GangShape, Overlay, PodNeed, Shortfall, left_over, place};
use crate::predicates::{self, Obstacle};
use crate::reason::{Closed, NoRoom, Reason, Unsuited};
use crate::required::Required;

mod unsuited;

/// Nodes named in a reason.
const NODES_NAMED: usize = 8;

impl Core {
    /// Why a gang did not fit; true where it can never fit as nodes are now.
    pub(crate) fn diagnose(
        &mut self,
        shape: &GangShape,
        required: &Required,
        shortfall: &Shortfall,
    ) -> (Reason, bool) {
        let generation = self.cluster.capacity_generation;
        if self.emptied.as_ref().is_none_or(|(known, _)| *known != generation) {
            let mut empty = self.cluster.emptied();
            empty.survey();
            self.emptied = Some((generation, empty));
        }
        if let Some((_, empty)) = &mut self.emptied {
            // A pod that came since may ask for what nobody asked for before.
            empty.learn_names(&self.cluster);
        }
        self.cluster.survey();
        let kinds = self.cluster.kinds(&shortfall.need);
        let closed = kinds.iter().filter(|kind| kind.node.closed().is_some()).flat_map(Kind::members);
        let leases = closed.flat_map(|(index, _)| self.leases.by_node.get(&index).into_iter().flatten());
        let leases = leases.filter_map(|id| self.leases.leases.get(id));
        let leaving: Vec<_> = leases
            .filter(|lease| lease.wanted == LeaseState::Gone)
            .map(|lease| (lease.node, lease.taken.clone()))
            .collect();
        let Some((_, empty)) = &self.emptied else {
            return (Reason::InProgress { step: Arc::from("") }, false);
        };
        self.diagnose_beside(empty, shape, required, shortfall, &leaving)
    }

    /// The same where `empty` is the cluster without all that uses it; true where no end of other work would help.
    fn diagnose_beside(
        &self,
        empty: &Cluster,
        shape: &GangShape,
        required: &Required,
        shortfall: &Shortfall,
        leaving: &[(NodeIndex, Taken)],
    ) -> (Reason, bool) {
        let (cluster, need) = (&self.cluster, &shortfall.need);
        let mut pods = required.pods.iter().filter(|candidate| candidate.need == shortfall.need);
        let pod = pods.next().and_then(|candidate| self.gangs.pods.get(&candidate.pod));
        let request = pod.map(|pod| &pod.spec.request);
        // A node that was not heard of yet may have what no other has.
        let kinds = cluster.kinds(need);
        let all_known = !kinds.iter().any(|kind| kind.node.is_unknown());
        if let Some(reason) = no_node_ever(empty, shape, required, need, request).filter(|_| all_known) {
            return (reason, true);
        }
        let closed = closed_nodes(&kinds, need);
        if let Err(ever) = place(empty, &mut Overlay::default(), shape, &required.pods)
            && all_known
        {
            // Nodes that a person has cordoned count as gone until a person opens them.
            let open = empty.opened(&[]);
            if let Some(nodes) = nodes_to_open(&open, &closed, shape, required) {
                let room = Box::new(self.no_room(required, shape, need));
                return (Reason::NodesClosed { nodes, room }, true);
            }
            let fit = count_of(&required.pods)
                - count_of(&left_over(empty, Overlay::default(), shape, &required.pods));
            let mut left_out = left_out(empty, shape, required, &ever.need);
            let closed = left_out
                .as_mut()
                .map(|out| open_and_change(&open, &closed, shape, required, out, &ever.need));
            let reason = Reason::LargerThanCluster {
                fit,
                minimum: required.minimum,
                shape: describe(cluster, &ever.need),
                mixed_models_would_fit: fits_mixed(empty, shape, required),
                lower_to: self.fewer_that_fit(empty, shape, required).map(Box::new),
                left_out,
                closed: closed.unwrap_or_default(),
            };
            return (reason, true);
        }
        let mut room = self.no_room(required, shape, need);
        room.mixed_models_would_fit = fits_mixed(cluster, shape, required);
        let would_help = closed.iter().any(|(index, _, _)| has_room(cluster, *index, need, leaving));
        if would_help && let Some(nodes) = nodes_to_open(&cluster.opened(leaving), &closed, shape, required) {
            return (Reason::NodesClosed { nodes, room: Box::new(room) }, false);
        }
        room.closed = closed.into_iter().map(|(_, name, why)| (name, why)).take(NODES_NAMED).collect();
        (Reason::NoRoom(Box::new(room)), false)
    }

    /// How much room there is for pods that do not fit, the first of which needs this.
    pub(crate) fn no_room(&self, required: &Required, shape: &GangShape, need: &PodNeed) -> NoRoom {
        let cluster = &self.cluster;
        let missing = left_over(cluster, Overlay::default(), shape, &required.pods);
        let kinds = cluster.kinds(need);
        let open = kinds.iter().filter(|kind| kind.node.shut().is_none() && could_serve(kind.node, need));
        let open: Vec<&Kind<'_>> = open.collect();
        let key = scarcest(&open, required, need);
        let of_kind = |kind: &&Kind<'_>| free(kind.node, key).saturating_mul(kind.count() as u64);
        let free_total = open.iter().map(of_kind).fold(0, u64::saturating_add);
        let largest = open.iter().map(|kind| free(kind.node, key)).max().unwrap_or(0);
        NoRoom {
            fit: count_of(&required.pods) - count_of(&missing),
            missing: by_size(&missing, key),
            minimum: required.minimum,
            pods: required.all,
            resource: Arc::from(cluster.resources.name(key)),
            asked: asked_of(need, key),
            free_total,
            largest,
            free_by_node: free_by_node(&open, key),
            feasible_nodes: feasible_nodes(cluster, need),
            mixed_models_would_fit: false,
            lower_to: self.fewer_that_fit(cluster, shape, required),
            closed: Vec::new(),
            held: Vec::new(),
            holds: Vec::new(),
            eviction: None,
            left_out: left_out(cluster, shape, required, need),
            others: Vec::new(),
        }
    }
}

/// They would fit if the pods of a task could have GPUs of several models.
pub(crate) fn fits_mixed(cluster: &Cluster, shape: &GangShape, required: &Required) -> bool {
    let mixed = GangShape { mixed_models: true, ..GangShape::default() };
    !shape.mixed_models && place(cluster, &mut Overlay::default(), &mixed, &required.pods).is_ok()
}

/// Closed nodes that a plan would use if all were open; `None` where it would use none, or there is
/// no plan.
fn nodes_to_open(
    open: &Cluster,
    closed: &[(NodeIndex, NodeName, Closed)],
    shape: &GangShape,
    required: &Required,
) -> Option<Vec<(NodeName, Closed)>> {
    if closed.is_empty() {
        return None;
    }
    let placed = place(open, &mut Overlay::default(), shape, &required.pods).ok()?;
    let used: BTreeSet<NodeIndex> = placed.iter().map(|place| place.node).collect();
    let needed = closed.iter().filter(|(index, _, _)| used.contains(index));
    let nodes: Vec<_> = needed.map(|(_, name, why)| (name.clone(), why.clone())).take(NODES_NAMED).collect();
    (!nodes.is_empty()).then_some(nodes)
}

/// Where neither open nodes alone would do nor a change of the pod: the closed nodes that would do with a change, which
/// is noted.
fn open_and_change(
    open: &Cluster,
    closed: &[(NodeIndex, NodeName, Closed)],
    shape: &GangShape,
    required: &Required,
    out: &mut Unsuited,
    need: &PodNeed,
) -> Vec<(NodeName, Closed)> {
    if closed.is_empty() || !out.help.is_empty() {
        return Vec::new();
    }
    let help = unsuited::what_helps(open, shape, required, need);
    let changed = unsuited::required_without(required, &help);
    let nodes = nodes_to_open(open, closed, shape, &changed).filter(|_| !help.is_empty());
    let Some(nodes) = nodes else { return Vec::new() };
    out.help = help;
    nodes
}

/// Nodes that take no such pod for now and are not gone for good, by name.
fn closed_nodes(kinds: &[Kind<'_>], need: &PodNeed) -> Vec<(NodeIndex, NodeName, Closed)> {
    let mut closed = Vec::new();
    for kind in kinds {
        let why = predicates::closed_to(kind.node, need).filter(|why| *why != Closed::Removed);
        let Some(why) = why else { continue };
        closed.extend(kind.members().map(|(index, node)| (index, node.name.clone(), why.clone())));
    }
    closed.sort_by(|(_, left, _), (_, right, _)| natural(left.as_str()).cmp(&natural(right.as_str())));
    closed
}

/// Nodes that constraints leave out, and what would help where any does.
fn left_out(
    cluster: &Cluster,
    shape: &GangShape,
    required: &Required,
    need: &PodNeed,
) -> Option<Box<Unsuited>> {
    let mut out = unsuited::left_out(cluster, need)?;
    out.help = unsuited::what_helps(cluster, shape, required, need);
    Some(Box::new(out))
}

fn count_of(pods: &[Candidate]) -> u32 {
    u32::try_from(pods.len()).unwrap_or(u32::MAX)
}

/// How many of these pods, one after the other, ask for the same of something, and how much each does.
pub(crate) fn by_size(pods: &[Candidate], key: ResourceKey) -> Vec<(u32, u64)> {
    let mut all: Vec<(u32, u64)> = Vec::new();
    for asked in pods.iter().map(|pod| asked_of(&pod.need, key)) {
        match all.last_mut().filter(|(_, known)| *known == asked) {
            Some((count, _)) => *count += 1,
            None => all.push((1, asked)),
        }
    }
    all
}

/// A pod as text: `8 nvidia.com/gpu, 32 cpu`.
fn describe(cluster: &Cluster, need: &PodNeed) -> Arc<str> {
    let part = |key: ResourceKey| {
        let name = cluster.resources.name(key);
        format!("{} {name}", format_amount(name, need.amounts.get(key)))
    };
    let ports = need.constraints.host_ports.iter().map(ToString::to_string);
    Arc::from(need.amounts.keys().map(part).chain(ports).collect::<Vec<_>>().join(", "))
}

/// The node could take such a pod if it had more free.
fn could_serve(node: &Node, need: &PodNeed) -> bool {
    let check = predicates::check(node, need, &node.used);
    check.err().is_none_or(|obstacle| obstacle.is_of_use())
}

/// One pod alone is more than any node could ever take.
fn no_node_ever(
    empty: &Cluster,
    shape: &GangShape,
    required: &Required,
    need: &PodNeed,
    request: Option<&PodRequest>,
) -> Option<Reason> {
    let (mut suitable, mut vouched_for) = (Vec::new(), Vec::new());
    let mut is_kept_away = false;
    for node in empty.kinds(need).into_iter().map(|kind| kind.node).filter(|node| node.is_there()) {
        let obstacles = predicates::obstacles(node, need, &node.used);
        if obstacles.contains(&Obstacle::NoAgent) {
            continue;
        }
        let is_large_enough =
            node.capacity.gpus >= need.amounts.gpus && !obstacles.iter().any(Obstacle::is_of_use);
        let is_suitable = !obstacles.iter().any(Obstacle::is_lasting);
        if is_suitable && is_large_enough {
            return None;
        }
        is_kept_away |= !is_suitable && is_large_enough;
        vouched_for.push(node);
        if is_suitable {
            suitable.push(node);
        }
    }
    if is_kept_away {
        let mut unsuited = unsuited::all_obstacles(empty, need);
        unsuited.help = unsuited::what_helps(empty, shape, required, need);
        return Some(Reason::NoNodeMatches(Box::new(unsuited)));
    }
    let nodes = if suitable.is_empty() { vouched_for } else { suitable };
    never_enough(empty, &nodes, need, request)
}

/// A resource of which none of these nodes has enough.
fn never_enough(
    cluster: &Cluster,
    nodes: &[&Node],
    need: &PodNeed,
    request: Option<&PodRequest>,
) -> Option<Reason> {
    for key in need.amounts.keys() {
        let asked = need.amounts.get(key);
        let largest = nodes.iter().map(|node| node.capacity.get(key)).max().unwrap_or(0);
        if largest >= asked {
            continue;
        }
        let resource: Arc<str> = Arc::from(cluster.resources.name(key));
        if largest > 0 {
            let parts = request.and_then(|request| request.parts(&resource)).map(Arc::from);
            return Some(Reason::LargerThanAnyNode { resource, largest, asked, parts });
        }
        let offers_gpus = nodes.iter().any(|node| node.capacity.gpus > 0);
        let looks_like_gpu = resource.trim_end_matches('s').to_ascii_lowercase().ends_with("gpu");
        let asks_already = need.amounts.gpus > 0;
        let suggestion = (offers_gpus && looks_like_gpu && !asks_already).then(|| Arc::from(NVIDIA_GPU));
        let listed_by = listed_by(cluster, &resource, need);
        return Some(Reason::NoNodeOffers { resource, asked, suggestion, listed_by });
    }
    None
}

/// A node that would take the pod by what it lists, and has no agent that confirms it.
fn listed_by(cluster: &Cluster, resource: &str, need: &PodNeed) -> Option<Arc<str>> {
    let is_served =
        ResourceName::parse(resource).is_ok_and(|name| name.is_device() && !name.is_part_of_gpu());
    let lists = |node: &Node| {
        let Some(spec) = &node.spec else { return false };
        let has = |key| spec.allocatable.amount(cluster.resources.name(key)) >= need.amounts.get(key);
        node.agent.is_none() && predicates::suits(node, need) && need.amounts.keys().all(has)
    };
    let mut nodes = cluster.nodes().map(|(_, node)| node).filter(|_| is_served);
    nodes.find(|node| lists(node)).map(|node| Arc::from(node.name.as_str()))
}

/// What a pod asks for; each takes one of a node's pods.
fn asked_of(need: &PodNeed, key: ResourceKey) -> u64 {
    if key == ResourceKey::Pods { 1 } else { need.amounts.get(key) }
}

/// What a node has of a resource when it is empty.
fn capacity(node: &Node, key: ResourceKey) -> u64 {
    match key {
        ResourceKey::Pods => node.most_pods.unwrap_or(u64::MAX),
        _ => node.capacity.get(key),
    }
}

/// Free amount of a resource on a node.
fn free(node: &Node, key: ResourceKey) -> u64 {
    match key {
        ResourceKey::Gpus => u64::from(node.free_mask.count_ones()),
        ResourceKey::Pods => capacity(node, key).saturating_sub(node.used.pods),
        _ => capacity(node, key).saturating_sub(node.used.amounts.get(key)),
    }
}

/// The resource that runs short: the one of which these nodes have enough for the fewest such pods, then on the fewest
/// nodes.
fn scarcest(open: &[&Kind<'_>], required: &Required, need: &PodNeed) -> ResourceKey {
    let alike = required.pods.iter().filter(|pod| *pod.need == *need).count() as u64;
    let nodes_with = |key| {
        let have = open.iter().filter(|kind| free(kind.node, key) >= asked_of(need, key));
        have.map(|kind| kind.count()).sum::<usize>()
    };
    let pods_by = |key| {
        let of_node = |kind: &Kind<'_>| free(kind.node, key) / asked_of(need, key).max(1);
        let by_kind = open.iter().map(|kind| of_node(kind).saturating_mul(kind.count() as u64));
        by_kind.fold(0, u64::saturating_add).min(alike)
    };
    let rank = |key| match key {
        ResourceKey::Gpus => 0,
        ResourceKey::Pods => 2,
        _ => 1,
    };
    let are_pods_counted = open.iter().all(|kind| kind.node.most_pods.is_some());
    let keys = need.amounts.keys().chain(are_pods_counted.then_some(ResourceKey::Pods));
    keys.min_by_key(|key| (pods_by(*key), nodes_with(*key), rank(*key))).unwrap_or(ResourceKey::Cpu)
}

/// True where a closed node would take the pod, were it open and rid of the promises it owes an answer.
fn has_room(cluster: &Cluster, index: NodeIndex, need: &PodNeed, leaving: &[(NodeIndex, Taken)]) -> bool {
    let node = cluster.node(index);
    let mut used = node.used.clone();
    let mut gpus = u64::from(node.free_mask.count_ones());
    for (_, taken) in leaving.iter().filter(|(of, _)| *of == index) {
        used.subtract(&taken.amounts, &taken.ports);
        gpus += taken.amounts.gpus;
    }
    let is_closed = |obstacle: &Obstacle<'_>| obstacle.is_closed();
    gpus >= u64::from(need.gpus) && predicates::obstacles(node, need, &used).iter().all(is_closed)
}

/// Nodes that could take one such pod now.
pub(crate) fn feasible_nodes(cluster: &Cluster, need: &PodNeed) -> u32 {
    let is_feasible = |node: &Node| {
        let gpus = match &node.agent {
            Some(agent) => cluster
                .class(agent.class)
                .models
                .iter()
                .any(|(_, mask)| (node.free_mask & mask).count_ones() >= need.gpus),
            None => false,
        };
        node.shut().is_none() && (need.gpus == 0 || gpus) && predicates::check(node, need, &node.used).is_ok()
    };
    let kinds = cluster.kinds(need);
    let feasible = kinds.iter().filter(|kind| is_feasible(kind.node));
    u32::try_from(feasible.map(Kind::count).sum::<usize>()).unwrap_or(u32::MAX)
}

/// Free amount and whole of nodes, those with the most first; of few nodes all, by name.
fn free_by_node(open: &[&Kind<'_>], key: ResourceKey) -> Vec<(NodeName, u64, u64)> {
    let are_many = open.iter().map(|kind| kind.count()).sum::<usize>() > NODES_NAMED;
    let mut by_node: Vec<(&Node, u64)> = Vec::new();
    for kind in open {
        // Those that are alike come by name: of each kind no more are named.
        let free = free(kind.node, key);
        by_node.extend(kind.members().take(NODES_NAMED).map(|(_, node)| (node, free)));
    }
    let by_name = |left: &Node, right: &Node| natural(left.name.as_str()).cmp(&natural(right.name.as_str()));
    if are_many {
        by_node.retain(|(_, free)| *free > 0);
        let most_first = |(left, left_free): &(&Node, u64), (right, right_free): &(&Node, u64)| {
            right_free.cmp(left_free).then_with(|| by_name(left, right))
        };
        if by_node.len() > NODES_NAMED {
            // Of thousands only those that are named are put in order.
            by_node.select_nth_unstable_by(NODES_NAMED, most_first);
            by_node.truncate(NODES_NAMED);
        }
        by_node.sort_by(most_first);
    } else {
        by_node.sort_by(|(left, _), (right, _)| by_name(left, right));
    }
    by_node.into_iter().map(|(node, free)| (node.name.clone(), free, capacity(node, key))).collect()
}

/// What a node has left of everything.
pub(crate) fn free_amounts(node: &Node) -> Amounts {
    let mut free = node.capacity.clone();
    free.subtract(&node.used.amounts);
    free.gpus = u64::from(node.free_mask.count_ones());
    free
}
