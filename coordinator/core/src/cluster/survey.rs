//! Nodes that are the same for a pod but for their names. A reason looks at all nodes for each size of pod that waits;
//! most of thousands are like others, and one look does for all of those.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use phalanx_common::constraints::{HOSTNAME_LABEL, NodeTerm};

use super::{Cluster, Node, NodeIndex};
use crate::gang::natural;
use crate::place::PodNeed;

/// Nodes by what a pod sees of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// In the order of their names.
    by_rank: Vec<NodeIndex>,
    /// Place in that order, by number of the node.
    ranks: Vec<u32>,
    /// Nodes that are alike, by the hash of what they are like; several where hashes are the same by chance.
    groups: BTreeMap<u64, Vec<BTreeSet<u32>>>,
    /// The hash under which a node stands.
    hashes: Vec<u64>,
    /// Nodes that changed since, each once.
    changed: Vec<NodeIndex>,
    has_changed: Vec<bool>,
}

/// Nodes that are the same for a pod.
pub(crate) struct Kind<'c> {
    /// One of them.
    pub(crate) node: &'c Node,
    cluster: &'c Cluster,
    members: Members<'c>,
}

enum Members<'c> {
    One(NodeIndex),
    Alike(&'c BTreeSet<u32>, &'c [NodeIndex]),
}

impl<'c> Kind<'c> {
    pub(crate) fn count(&self) -> usize {
        match self.members {
            Members::One(_) => 1,
            Members::Alike(ranks, _) => ranks.len(),
        }
    }

    /// All of them, by name.
    pub(crate) fn members(&self) -> impl Iterator<Item = (NodeIndex, &'c Node)> + use<'c> {
        let (one, alike) = match self.members {
            Members::One(index) => (Some(index), None),
            Members::Alike(ranks, by_rank) => (None, Some((ranks, by_rank))),
        };
        let alike =
            alike.into_iter().flat_map(|(ranks, by_rank)| ranks.iter().map(|rank| by_rank[*rank as usize]));
        let cluster = self.cluster;
        one.into_iter().chain(alike).map(|index| (index, cluster.node(index)))
    }
}

impl Survey {
    fn mark(&mut self, index: NodeIndex) {
        let rank = self.ranks.get(index.0 as usize).and_then(|rank| self.by_rank.get(*rank as usize));
        if rank != Some(&index) {
            // No node has this number now.
            return;
        }
        if let Some(has_changed) = self.has_changed.get_mut(index.0 as usize).filter(|changed| !**changed) {
            *has_changed = true;
            self.changed.push(index);
        }
    }

    fn leave(&mut self, index: NodeIndex) {
        let (rank, hash) = (self.ranks[index.0 as usize], self.hashes[index.0 as usize]);
        let Some(groups) = self.groups.get_mut(&hash) else { return };
        groups.iter_mut().for_each(|group| {
            group.remove(&rank);
        });
        groups.retain(|group| !group.is_empty());
        if groups.is_empty() {
            self.groups.remove(&hash);
        }
    }

    /// All that stand in a group already are as they are in `nodes`.
    fn enter(&mut self, index: NodeIndex, nodes: &[Node]) {
        let node = &nodes[index.0 as usize];
        let (rank, hash) = (self.ranks[index.0 as usize], hash_of(node));
        self.hashes[index.0 as usize] = hash;
        let by_rank = &self.by_rank;
        let is_alike = |group: &&mut BTreeSet<u32>| {
            let first = group.first().and_then(|rank| by_rank.get(*rank as usize));
            first.is_some_and(|first| is_alike(&nodes[first.0 as usize], node))
        };
        let groups = self.groups.entry(hash).or_default();
        match groups.iter_mut().find(is_alike) {
            Some(group) => {
                group.insert(rank);
            }
            None => groups.push(BTreeSet::from([rank])),
        }
    }
}

impl Cluster {
    /// A node changed.
    pub(super) fn note_for_survey(&mut self, index: NodeIndex) {
        if let Some(survey) = &mut self.survey {
            survey.mark(index);
        }
    }

    /// Brings it up to date which nodes are alike.
    pub(crate) fn survey(&mut self) {
        let Some(mut survey) = self.survey.take() else {
            self.survey = Some(self.whole_survey());
            return;
        };
        let changed = std::mem::take(&mut survey.changed);
        for index in &changed {
            survey.leave(*index);
            survey.has_changed[index.0 as usize] = false;
        }
        for index in &changed {
            survey.enter(*index, &self.nodes);
        }
        self.survey = Some(survey);
    }

    fn whole_survey(&self) -> Survey {
        let mut by_rank: Vec<NodeIndex> = self.nodes().map(|(index, _)| index).collect();
        by_rank.sort_by_key(|index| natural(self.node(*index).name.as_str()));
        let mut survey = Survey {
            ranks: vec![0; self.nodes.len()],
            hashes: vec![0; self.nodes.len()],
            has_changed: vec![false; self.nodes.len()],
            ..Survey::default()
        };
        for (rank, index) in by_rank.iter().enumerate() {
            survey.ranks[index.0 as usize] = u32::try_from(rank).unwrap_or(u32::MAX);
        }
        survey.by_rank = by_rank;
        for at in 0..survey.by_rank.len() {
            survey.enter(survey.by_rank[at], &self.nodes);
        }
        survey
    }

    /// All nodes, those together that are the same for such a pod where that is known.
    pub(crate) fn kinds(&self, need: &PodNeed) -> Vec<Kind<'_>> {
        let survey = self.survey.as_ref().filter(|survey| survey.changed.is_empty() && !names_nodes(need));
        let Some(survey) = survey else {
            let one = |(index, node)| Kind { node, cluster: self, members: Members::One(index) };
            return self.nodes().map(one).collect();
        };
        let kind = |ranks| {
            let members = Members::Alike(ranks, &survey.by_rank);
            let first = ranks.first().and_then(|rank| survey.by_rank.get(*rank as usize))?;
            Some(Kind { node: self.node(*first), cluster: self, members })
        };
        survey.groups.values().flatten().filter_map(kind).collect()
    }

    /// Nodes that count as alike are.
    pub(crate) fn check_survey(&self) -> Result<(), String> {
        let Some(survey) = self.survey.as_ref() else { return Ok(()) };
        let changed: BTreeSet<NodeIndex> = survey.changed.iter().copied().collect();
        let mut known = 0;
        for group in survey.groups.values().flatten() {
            let members = group.iter().map(|rank| survey.by_rank[*rank as usize]);
            let members: Vec<NodeIndex> = members.filter(|index| !changed.contains(index)).collect();
            known += members.len();
            let Some(first) = members.first() else { continue };
            if let Some(other) = members.iter().find(|other| !is_alike(self.node(*first), self.node(**other)))
            {
                let (first, other) = (&self.node(*first).name, &self.node(*other).name);
                return Err(format!("nodes {first} and {other} count as alike, and are not"));
            }
        }
        let all = self.nodes().filter(|(index, _)| !changed.contains(index)).count();
        if all == known { Ok(()) } else { Err(format!("{known} of {all} nodes are known as alike or not")) }
    }
}

/// The pod looks at names, or may: what is reached from a node is most often said by its name.
fn names_nodes(need: &PodNeed) -> bool {
    let names = |term: &NodeTerm| {
        !term.fields.is_empty() || term.labels.iter().any(|label| &*label.key == HOSTNAME_LABEL)
    };
    need.selector.contains_key(HOSTNAME_LABEL)
        || need.constraints.required.iter().flatten().any(names)
        || !need.volumes.is_empty()
}

/// The same for both where `is_alike` holds.
fn hash_of(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    (node.free_mask, node.most_pods, node.used.pods, &node.capacity, &node.used.amounts).hash(&mut hasher);
    node.agent.as_ref().map(|agent| (agent.class, agent.session.is_some())).hash(&mut hasher);
    node.spec.as_ref().map(|spec| (spec.ready, spec.unschedulable, &spec.taints)).hash(&mut hasher);
    other_labels(node).for_each(|label| label.hash(&mut hasher));
    hasher.finish()
}

fn other_labels(node: &Node) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
    node.labels.iter().filter(|(key, _)| &***key != HOSTNAME_LABEL)
}

fn is_alike(left: &Node, right: &Node) -> bool {
    let of_object = |node: &Node| node.spec.as_ref().map(|spec| (spec.ready, spec.unschedulable));
    let class = |node: &Node| node.agent.as_ref().map(|agent| agent.class);
    left.free_mask == right.free_mask
        && left.capacity == right.capacity
        && left.used == right.used
        && left.most_pods == right.most_pods
        && (left.is_unknown(), left.is_there()) == (right.is_unknown(), right.is_there())
        && of_object(left) == of_object(right)
        && left.spec.as_ref().map(|spec| &spec.taints) == right.spec.as_ref().map(|spec| &spec.taints)
        && class(left) == class(right)
        && left.shut() == right.shut()
        && other_labels(left).eq(other_labels(right))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use phalanx_common::constraints::{LabelOperator, LabelRequirement, PodConstraints};
    use phalanx_common::ids::NodeName;
    use phalanx_common::resources::{CPU, ResourceName, Resources};
    use phalanx_common::units::Time;

    use super::*;
    use crate::amounts::Amounts;
    use crate::cluster::EarlyEnd;
    use crate::event::NodeSpec;

    fn need() -> PodNeed {
        PodNeed {
            gpus: 0,
            amounts: Amounts::default(),
            selector: BTreeMap::new(),
            constraints: Arc::default(),
            volumes: Vec::new(),
            needs_agent: false,
            devices: 0,
        }
    }

    fn spec(number: usize, zone: &str) -> NodeSpec {
        let name = format!("n{number}");
        NodeSpec {
            name: NodeName::from(name.as_str()),
            labels: BTreeMap::from([
                (HOSTNAME_LABEL.into(), name.as_str().into()),
                ("zone".into(), zone.into()),
            ]),
            allocatable: Resources::new().with(ResourceName::known(CPU), 64_000),
            unschedulable: false,
            taints: Vec::new(),
            ready: true,
        }
    }

    /// Names of each kind, the kinds by the first name.
    fn names(cluster: &Cluster, need: &PodNeed) -> Vec<Vec<String>> {
        let kinds = cluster.kinds(need);
        let of_kind =
            |kind: &Kind<'_>| kind.members().map(|(_, node)| node.name.to_string()).collect::<Vec<_>>();
        let mut names: Vec<_> = kinds.iter().map(of_kind).collect();
        assert_eq!(kinds.iter().map(Kind::count).sum::<usize>(), names.iter().flatten().count());
        names.sort();
        names
    }

    #[test]
    fn nodes_that_are_the_same_but_for_their_names_are_one_kind_until_one_changes() {
        let mut cluster = Cluster::default();
        for number in [10, 2, 1, 3] {
            cluster.apply_spec(spec(number, if number == 3 { "b" } else { "a" }));
        }
        assert_eq!(names(&cluster, &need()).len(), 4, "nobody has looked yet");
        cluster.survey();
        assert_eq!(names(&cluster, &need()), [vec!["n1", "n2", "n10"], vec!["n3"]]);
        let index = cluster.find(&NodeName::from("n1")).unwrap();
        let mut amounts = Amounts::default();
        amounts.cpu_milli = 1_000;
        cluster.occupy(index, &amounts, &[]);
        cluster.apply_spec(NodeSpec { ready: false, ..spec(2, "a") });
        assert_eq!(names(&cluster, &need()).len(), 4, "what changed is not known to be like anything");
        cluster.check_survey().unwrap();
        cluster.survey();
        assert_eq!(names(&cluster, &need()), [["n1"], ["n10"], ["n2"], ["n3"]]);
        cluster.vacate(index, &amounts, &[]);
        cluster.apply_spec(spec(3, "a"));
        cluster.survey();
        assert_eq!(names(&cluster, &need()), [vec!["n1", "n3", "n10"], vec!["n2"]]);
        cluster.remove_spec(&NodeName::from("n3"));
        cluster.forget_if_gone(cluster.find(&NodeName::from("n3")).unwrap());
        cluster.survey();
        assert_eq!(names(&cluster, &need()), [vec!["n1", "n10"], vec!["n2"]]);
        cluster.check_survey().unwrap();
    }

    #[test]
    fn a_node_that_is_gone_does_not_come_back_when_its_quarantine_ends() {
        let mut cluster = Cluster::default();
        (1..4).for_each(|number| {
            cluster.apply_spec(spec(number, "a"));
        });
        let gone = cluster.find(&NodeName::from("n2")).unwrap();
        cluster.close_until(gone, "it refused", Time(30), EarlyEnd::No);
        cluster.remove_spec(&NodeName::from("n2"));
        cluster.forget_if_gone(gone);
        cluster.survey();
        cluster.end_quarantine(gone);
        cluster.survey();
        assert_eq!(names(&cluster, &need()), [["n1", "n3"]]);
        cluster.check_survey().unwrap();
        // Who has its number next is open.
        assert_eq!(cluster.apply_spec(spec(9, "a")), gone);
        assert_eq!(cluster.node(gone).closed(), None);
    }

    #[test]
    fn who_asks_for_names_sees_each_node_for_itself() {
        let mut cluster = Cluster::default();
        (0..3).for_each(|number| {
            cluster.apply_spec(spec(number, "a"));
        });
        cluster.survey();
        assert_eq!(names(&cluster, &need()).len(), 1);
        let rule = |key: &str| LabelRequirement {
            key: key.into(),
            operator: LabelOperator::In,
            values: vec!["n1".into()],
        };
        let by_selector =
            PodNeed { selector: BTreeMap::from([(HOSTNAME_LABEL.into(), "n1".into())]), ..need() };
        let with = |term: NodeTerm| {
            let constraints = PodConstraints { required: Some(vec![term]), ..PodConstraints::default() };
            PodNeed { constraints: Arc::new(constraints), ..need() }
        };
        let by_label = with(NodeTerm { labels: vec![rule(HOSTNAME_LABEL)], fields: Vec::new() });
        let by_field = with(NodeTerm { labels: Vec::new(), fields: vec![rule("metadata.name")] });
        for need in [by_selector, by_label, by_field] {
            assert_eq!(names(&cluster, &need).len(), 3, "{need:?}");
        }
        let by_zone = with(NodeTerm { labels: vec![rule("zone")], fields: Vec::new() });
        assert_eq!(names(&cluster, &by_zone).len(), 1);
    }
}
