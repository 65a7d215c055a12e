//! Where a pod may go beside what it asks for: taints and tolerations, node affinity, host ports,
//! scheduling gates. The values as Kubernetes means them, and the rules by which they match.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Taint of a cordoned node; who tolerates it may go to one.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Taint of a node that is not ready; who tolerates it with `NoSchedule` may go to one.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";

/// Taint that keeps pods of other schedulers off the nodes that Phalanx manages alone. It keeps none
/// of ours away.
pub const EXCLUSIVE_TAINT: &str = "phalanx.dev/exclusive";

/// Label that every node has.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// The only field of a node that `matchFields` may name.
pub const NAME_FIELD: &str = "metadata.name";

/// Address that stands for all of a node.
pub const ANY_ADDRESS: &str = "0.0.0.0";

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaintEffect {
    /// New pods are kept away.
    NoSchedule,
    /// New pods go elsewhere where they can.
    PreferNoSchedule,
    /// New pods are kept away, and those that run are evicted.
    NoExecute,
}

impl TaintEffect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// Text as in the Kubernetes API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// The effect of this name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == text)
    }
}

/// A taint of a node. `Display` writes it as kubectl does: `gpu=only:NoSchedule`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: Arc<str>,
    /// Value; empty where it has none.
    pub value: Arc<str>,
    /// What it does.
    pub effect: TaintEffect,
}

impl Taint {
    /// Keeps pods away that do not tolerate it.
    #[must_use]
    pub fn keeps_away(&self) -> bool {
        self.effect != TaintEffect::PreferNoSchedule
    }

    /// Kubernetes set it for the node's state and takes it away when that is over: cordoned, not
    /// ready, short of memory or disk, without network, not set up by its cloud yet.
    #[must_use]
    pub fn is_of_state(&self) -> bool {
        is_key_of_state(&self.key)
    }
}

fn is_key_of_state(key: &str) -> bool {
    ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"].iter().any(|prefix| key.starts_with(prefix))
}

impl fmt::Display for Taint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(formatter, "{}{equals}{}:{}", self.key, self.value, self.effect.as_str())
    }
}

/// How a toleration compares a taint's value with its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TolerationOperator {
    /// The values are equal.
    #[default]
    Equal,
    /// Any value.
    Exists,
    /// The taint's value is a number below the toleration's.
    Less,
    /// The taint's value is a number above the toleration's.
    Greater,
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Toleration {
    /// Key; empty with `Exists` = every key.
    pub key: Arc<str>,
    /// How values are compared.
    pub operator: TolerationOperator,
    /// Value.
    pub value: Arc<str>,
    /// Effect that is tolerated; `None` = all.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// True where the pod may ignore the taint.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.looks_at(&taint.key, taint.effect) && self.compares(&taint.value)
    }

    /// True where the pod may ignore a taint of this key that has no value.
    #[must_use]
    pub fn tolerates_key(&self, key: &str, effect: TaintEffect) -> bool {
        self.looks_at(key, effect) && self.compares("")
    }

    /// True where the pod may ignore a taint that Kubernetes sets for a node's state and that keeps
    /// new pods away.
    #[must_use]
    pub fn is_for_states(&self) -> bool {
        self.effect.is_none_or(|effect| effect == TaintEffect::NoSchedule)
            && (self.key.is_empty() || is_key_of_state(&self.key))
    }

    fn looks_at(&self, key: &str, effect: TaintEffect) -> bool {
        let same_effect = self.effect.is_none_or(|known| known == effect);
        same_effect && (self.key.is_empty() || &*self.key == key)
    }

    fn compares(&self, value: &str) -> bool {
        let numbers = || Some((whole(value)?, whole(&self.value)?));
        match self.operator {
            // Without a key only Exists says anything.
            TolerationOperator::Equal => !self.key.is_empty() && &*self.value == value,
            TolerationOperator::Exists => true,
            TolerationOperator::Less => numbers().is_some_and(|(theirs, ours)| theirs < ours),
            TolerationOperator::Greater => numbers().is_some_and(|(theirs, ours)| theirs > ours),
        }
    }
}

/// How a requirement looks at a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LabelOperator {
    /// The value is one of those listed.
    In,
    /// The value is none of those listed; met too where the label is not there.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The value is a whole number above the one listed.
    Gt,
    /// The value is a whole number below the one listed.
    Lt,
}

impl LabelOperator {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::In, Self::NotIn, Self::Exists, Self::DoesNotExist, Self::Gt, Self::Lt];

    /// Text as in the Kubernetes API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
            Self::Gt => "Gt",
            Self::Lt => "Lt",
        }
    }
}

/// One requirement. `Display` writes it as in a manifest: `zone In [a, b]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LabelRequirement {
    /// Label, or field.
    pub key: Arc<str>,
    /// How it is looked at.
    pub operator: LabelOperator,
    /// What it is compared with.
    pub values: Vec<Arc<str>>,
}

impl LabelRequirement {
    /// True where the label's value, or that there is none, meets it.
    #[must_use]
    pub fn is_met_by(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|known| &**known == value);
        let limit = || self.values.first().and_then(|limit| whole(limit));
        let number = || value.and_then(whole);
        match self.operator {
            LabelOperator::In => value.is_some_and(listed),
            LabelOperator::NotIn => !value.is_some_and(listed),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
            LabelOperator::Gt => number().zip(limit()).is_some_and(|(value, limit)| value > limit),
            LabelOperator::Lt => number().zip(limit()).is_some_and(|(value, limit)| value < limit),
        }
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.key, self.operator.as_str())?;
        if matches!(self.operator, LabelOperator::Exists | LabelOperator::DoesNotExist) {
            return Ok(());
        }
        write!(formatter, " [{}]", self.values.join(", "))
    }
}

/// A term of node affinity: all requirements must be met; one without any is met by no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeTerm {
    /// `matchExpressions`: on labels.
    pub labels: Vec<LabelRequirement>,
    /// `matchFields`: on the node's name.
    pub fields: Vec<LabelRequirement>,
}

impl NodeTerm {
    /// True for a node of this name with these labels.
    #[must_use]
    pub fn is_met_by(&self, name: &str, labels: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return false;
        }
        let label = |rule: &LabelRequirement| rule.is_met_by(labels.get(&rule.key).map(|value| &**value));
        let field = |rule: &LabelRequirement| &*rule.key == NAME_FIELD && rule.is_met_by(Some(name));
        self.labels.iter().all(label) && self.fields.iter().all(field)
    }
}

impl fmt::Display for NodeTerm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.labels.iter().chain(&self.fields).map(ToString::to_string).collect();
        formatter.write_str(&rules.join(" and "))
    }
}

/// A term that counts where it is met.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PreferredTerm {
    /// 1 to 100.
    pub weight: u8,
    /// The term.
    pub term: NodeTerm,
}

/// Protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Text as in the Kubernetes API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// A port of the node itself. `Display` writes `TCP 0.0.0.0:80`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// Address; `0.0.0.0` = all of the node.
    pub address: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

impl HostPort {
    /// True where two pods with these ports cannot be on one node.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let is_any = |address: &str| address == ANY_ADDRESS;
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || is_any(&self.address) || is_any(&other.address))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}:{}", self.protocol.as_str(), self.address, self.port)
    }
}

/// Where a pod may go, beside `nodeSelector` and what it asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodConstraints {
    /// Scheduling gates that are closed: it waits for whoever removes them.
    pub gates: Vec<Arc<str>>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Terms of which a node must meet one; `None` = any node will do.
    pub required: Option<Vec<NodeTerm>>,
    /// Terms that a node had better meet.
    pub preferred: Vec<PreferredTerm>,
    /// Ports of the node that it takes.
    pub host_ports: Vec<HostPort>,
}

impl PodConstraints {
    /// True where a toleration matches the taint, or it is our own.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        &*taint.key == EXCLUSIVE_TAINT || self.tolerations.iter().any(|known| known.tolerates(taint))
    }

    /// True for a node of this name with these labels; `nodeSelector` is looked at elsewhere.
    #[must_use]
    pub fn affinity_is_met_by(&self, name: &str, labels: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
        let terms = self.required.as_ref();
        terms.is_none_or(|terms| terms.iter().any(|term| term.is_met_by(name, labels)))
    }
}

/// A whole number, as Kubernetes reads labels for `Gt` and `Lt`.
fn whole(text: &str) -> Option<i64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(text: &str, effect: TaintEffect) -> Taint {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        Taint { key: key.into(), value: value.into(), effect }
    }

    fn toleration(
        key: &str,
        operator: TolerationOperator,
        value: &str,
        effect: Option<TaintEffect>,
    ) -> Toleration {
        Toleration { key: key.into(), operator, value: value.into(), effect }
    }

    #[test]
    fn tolerations_match_as_in_kubernetes() {
        use TaintEffect::{NoExecute, NoSchedule};
        use TolerationOperator::{Equal, Exists, Greater, Less};
        let gpu = taint("gpu=only", NoSchedule);
        for (toleration, tolerates) in [
            (toleration("gpu", Equal, "only", Some(NoSchedule)), true),
            (toleration("gpu", Equal, "only", None), true),
            (toleration("gpu", Equal, "only", Some(NoExecute)), false),
            (toleration("gpu", Equal, "other", None), false),
            (toleration("gpu", Equal, "", None), false),
            (toleration("gpu", Exists, "", None), true),
            (toleration("cpu", Exists, "", None), false),
            (toleration("", Exists, "", None), true),
            (toleration("", Exists, "", Some(NoExecute)), false),
            (toleration("", Equal, "only", None), false),
            (toleration("gpu", Less, "5", None), false),
        ] {
            assert_eq!(toleration.tolerates(&gpu), tolerates, "{toleration:?}");
        }
        let level = taint("level=950", NoSchedule);
        assert!(toleration("level", Greater, "900", None).tolerates(&level));
        assert!(!toleration("level", Greater, "950", None).tolerates(&level));
        assert!(toleration("level", Less, "951", None).tolerates(&level));
    }

    #[test]
    fn our_own_taint_keeps_none_of_our_pods_away() {
        let ours = taint(EXCLUSIVE_TAINT, TaintEffect::NoSchedule);
        assert!(PodConstraints::default().tolerates(&ours));
        assert!(!PodConstraints::default().tolerates(&taint("gpu", TaintEffect::NoSchedule)));
    }

    #[test]
    fn ports_conflict_on_one_address_and_on_any() {
        let port = |address: &str, protocol, port| HostPort { address: address.into(), protocol, port };
        let tcp = port("10.0.0.1", Protocol::Tcp, 80);
        for (other, conflicts) in [
            (port("10.0.0.1", Protocol::Tcp, 80), true),
            (port(ANY_ADDRESS, Protocol::Tcp, 80), true),
            (port("10.0.0.2", Protocol::Tcp, 80), false),
            (port("10.0.0.1", Protocol::Udp, 80), false),
            (port("10.0.0.1", Protocol::Tcp, 81), false),
        ] {
            assert_eq!(tcp.conflicts_with(&other), conflicts, "{other}");
            assert_eq!(other.conflicts_with(&tcp), conflicts, "{other}");
        }
    }

    #[test]
    fn an_empty_term_matches_nothing_and_no_terms_match_no_node() {
        let labels = BTreeMap::new();
        assert!(!NodeTerm::default().is_met_by("n1", &labels));
        let none = PodConstraints { required: Some(Vec::new()), ..PodConstraints::default() };
        assert!(!none.affinity_is_met_by("n1", &labels));
        assert!(PodConstraints::default().affinity_is_met_by("n1", &labels));
    }
}
