//! What a reason suggests, as changes of a world: taken from its values, and found in its text again.

use std::sync::Arc;

use phalanx_common::constraints::{Toleration, TolerationOperator};
use phalanx_common::gang::PodSpec;
use phalanx_common::ids::{NodeName, QueueName};
use phalanx_common::queue::Dequeue;
use phalanx_common::resources::{NVIDIA_GPU, ResourceName, format_amount};
use phalanx_core::reason::{Closed, Fewer, NoEviction, NoRoom, QueueHeld, Reason, Together, Unmet, Unsuited};

use super::super::support::World;
use super::state::SPARES;

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Change {
    /// A queue's ceiling becomes this.
    Ceiling {
        queue: QueueName,
        resource: Arc<str>,
        limit: u64,
    },
    /// What is guaranteed to each of these is so much less.
    Guarantees {
        resource: Arc<str>,
        by: Vec<(QueueName, u64)>,
    },
    Minimum(Fewer),
    /// Room for so many pods of so many GPUs each.
    Rooms(Vec<(u32, u64)>),
    /// Nodes that are added: so many, with so many GPUs.
    Nodes {
        nodes: u32,
        gpus: u64,
    },
    Pods(u32),
    Gates(Vec<Arc<str>>),
    OpenQueue(QueueName),
    OpenNodes(Vec<NodeName>),
    Allow(QueueName, Arc<str>),
    MakeQueue(QueueName),
    MakeClass(Arc<str>),
    MoveTo(QueueName),
    Traverse(QueueName),
    Unmet(Vec<Unmet>),
}

/// Something that a reason suggests: what to do, what its text says of it, and less of the same kind, each of which must
/// not do.
#[derive(Clone, Debug)]
pub struct Suggestion {
    pub change: Change,
    pub text: String,
    pub less: Vec<Change>,
}

impl Suggestion {
    fn new(change: Change, text: String) -> Self {
        let less = change.less();
        Self { change, text, less }
    }
}

/// Everything that a reason suggests. Empty where it suggests nothing.
pub fn suggestions(reason: &Reason) -> Vec<Suggestion> {
    let one = |change, text: String| vec![Suggestion::new(change, text)];
    match reason {
        Reason::NoSuchQueue { queue } => {
            one(Change::MakeQueue(queue.clone()), format!("create Queue {queue}"))
        }
        Reason::QueueClosed { queue } => one(Change::OpenQueue(queue.clone()), format!("open Queue {queue}")),
        Reason::NoSuchPriorityClass { class } => {
            one(Change::MakeClass(class.clone()), format!("create PriorityClass {class}"))
        }
        Reason::AboveCapability { queue, resource, asked, lower_to, .. } => {
            ceiling_to(queue, resource, *asked).into_iter().chain(lower(lower_to.as_deref())).collect()
        }
        Reason::QuotaUsed { queue, resource, limit, used, asked, eviction } => {
            vec![ceiling_by(queue, resource, *limit, *used + *asked, eviction.as_deref())]
        }
        Reason::TooFewPods { exist, minimum, task, lower_to } => {
            // A pod that is made here is like the last one, of whatever task.
            let more = one(Change::Pods(minimum - exist), format!("create {} ", minimum - exist));
            let more = more.into_iter().filter(|_| task.is_none());
            more.chain(lower(lower_to.as_deref())).collect()
        }
        Reason::PodGated { gates, .. } => {
            one(Change::Gates(gates.clone()), format!("remove {}", gates.join(", ")))
        }
        Reason::Queue(held) => of_queue(held),
        Reason::NoNodeMatches(unsuited) => unmet(unsuited),
        Reason::LargerThanAnyNode { resource, asked, .. } if &**resource == NVIDIA_GPU => {
            one(Change::Nodes { nodes: 1, gpus: *asked }, format!("add a node with {asked}"))
        }
        Reason::LargerThanCluster { fit, minimum, shape, lower_to, closed, .. } => {
            let gpus = shape.strip_suffix(" nvidia.com/gpu").filter(|_| closed.is_empty());
            let nodes = gpus.map(|gpus| Change::Nodes { nodes: minimum - fit, gpus: gpus.parse().unwrap() });
            let text = format!("add nodes for {} more pod", minimum - fit);
            // The first of those that do not fit is the largest one: less is tried of one kind of pod only.
            let nodes = nodes.map(|change| Suggestion { change, text, less: Vec::new() });
            nodes.into_iter().chain(lower(lower_to.as_deref())).collect()
        }
        Reason::LargerThanAllNodes { resource, total, asked, .. } if &**resource == NVIDIA_GPU => {
            let gpus = asked - total;
            one(Change::Nodes { nodes: 1, gpus }, format!("have {gpus} GPU"))
        }
        Reason::NoRoom(room) => of_room(room),
        Reason::NodesClosed { nodes, .. } if nodes.iter().all(|(_, closed)| can_be_opened(closed)) => {
            let nodes: Vec<NodeName> = nodes.iter().map(|(node, _)| node.clone()).collect();
            let first = nodes.first().map(ToString::to_string).unwrap_or_default();
            one(Change::OpenNodes(nodes), first)
        }
        Reason::MorePodsWait { cause, .. } => suggestions(cause),
        Reason::Together(together) => match &**together {
            Together::Degraded { cause: Some(cause), .. } => suggestions(cause),
            _ => Vec::new(),
        },
        Reason::Preempted(preempted) => preempted.cause.as_ref().map(suggestions).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn ceiling_to(queue: &QueueName, resource: &Arc<str>, limit: u64) -> Vec<Suggestion> {
    let text = format!("raise capability {resource} of Queue {queue} to {}", format_amount(resource, limit));
    vec![Suggestion::new(Change::Ceiling { queue: queue.clone(), resource: resource.clone(), limit }, text)]
}

fn ceiling_by(
    queue: &QueueName,
    resource: &Arc<str>,
    limit: u64,
    needed: u64,
    eviction: Option<&NoEviction>,
) -> Suggestion {
    let by = eviction.and_then(|eviction| eviction.short).unwrap_or(u64::MAX).min(needed - limit);
    let change = Change::Ceiling { queue: queue.clone(), resource: resource.clone(), limit: limit + by };
    Suggestion::new(change, format!("raise its capability {resource} by {}", format_amount(resource, by)))
}

fn lower(fewer: Option<&Fewer>) -> impl Iterator<Item = Suggestion> {
    let lower = |fewer: &Fewer| Suggestion::new(Change::Minimum(fewer.clone()), fewer.text());
    fewer.into_iter().map(lower)
}

fn of_queue(held: &QueueHeld) -> Vec<Suggestion> {
    let one = |change, text: String| vec![Suggestion::new(change, text)];
    match held {
        QueueHeld::AncestorUsed { ancestor, resource, limit, used, asked, eviction, .. } => {
            vec![ceiling_by(ancestor, resource, *limit, *used + *asked, eviction.as_deref())]
        }
        QueueHeld::AboveAncestor { ancestor, resource, asked, lower_to, .. } => {
            ceiling_to(ancestor, resource, *asked).into_iter().chain(lower(lower_to.as_deref())).collect()
        }
        QueueHeld::NotLeaf { child: Some(child), .. } => {
            one(Change::MoveTo(child.clone()), child.to_string())
        }
        QueueHeld::AncestorClosed { ancestor, .. } => {
            one(Change::OpenQueue(ancestor.clone()), format!("open Queue {ancestor}"))
        }
        QueueHeld::NotAllowed { queue, namespace, .. } => one(
            Change::Allow(queue.clone(), namespace.clone()),
            format!("add {namespace} to namespaces of QueuePolicy {queue}"),
        ),
        QueueHeld::Guaranteed { resource, lower, .. } => {
            let change = Change::Guarantees { resource: resource.clone(), by: lower.clone() };
            let each = lower.iter().map(|(queue, by)| format!("of Queue {queue} by {by}"));
            one(change, format!("lower guarantee {resource} {}", each.collect::<Vec<_>>().join(" and ")))
        }
        QueueHeld::Behind { queue, .. } => {
            one(Change::Traverse(queue.clone()), format!("set dequeueStrategy of Queue {queue} to traverse"))
        }
        QueueHeld::NotLeaf { child: None, .. } | QueueHeld::SetAside { .. } | QueueHeld::RanOut { .. } => {
            Vec::new()
        }
    }
}

fn of_room(room: &NoRoom) -> Vec<Suggestion> {
    let missing: u32 = room.missing.iter().map(|(pods, _)| *pods).sum();
    let mut all = Vec::new();
    if &*room.resource == NVIDIA_GPU {
        let pods = format!("{missing} more pod{}", if missing == 1 { "" } else { "s" });
        let gpus = |gpus: u64| format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" });
        let sizes = match &room.missing[..] {
            [(1, size)] => format!(" of {}", gpus(*size)),
            [(_, size)] => format!(" of {} each", gpus(*size)),
            sizes => {
                let sizes = sizes.iter().map(|(pods, size)| format!("{pods} of {}", gpus(*size)));
                format!(": {}", sizes.collect::<Vec<_>>().join(", "))
            }
        };
        let change = Change::Rooms(room.missing.clone());
        all.push(Suggestion::new(change, format!("wait for room for {pods}{sizes}")));
    }
    all.extend(lower(room.lower_to.as_ref()));
    all.extend(room.left_out.iter().flat_map(|out| unmet(out)));
    all
}

fn unmet(unsuited: &Unsuited) -> Vec<Suggestion> {
    if unsuited.help.is_empty() {
        return Vec::new();
    }
    vec![Suggestion::new(Change::Unmet(unsuited.help.clone()), unsuited.fix())]
}

fn can_be_opened(closed: &Closed) -> bool {
    matches!(closed, Closed::Unschedulable | Closed::AgentAway | Closed::NoReport { .. })
}

/// All, but of one a little less.
fn one_less<T: Clone>(all: &[T], less: impl Fn(&T) -> T) -> Vec<Vec<T>> {
    let with_less = |at: usize| {
        let mut all = all.to_vec();
        all[at] = less(&all[at]);
        all
    };
    (0..all.len()).map(with_less).collect()
}

/// All but one.
fn all_but_one<T: Clone>(all: &[T]) -> Vec<Vec<T>> {
    let without = |at: usize| {
        let others = all.iter().enumerate().filter(|(other, _)| *other != at);
        others.map(|(_, one)| one.clone()).collect()
    };
    (0..all.len()).map(without).collect()
}

impl Change {
    /// A little less of the same kind.
    fn less(&self) -> Vec<Self> {
        match self {
            Self::Ceiling { queue, resource, limit } => {
                vec![Self::Ceiling { queue: queue.clone(), resource: resource.clone(), limit: limit - 1 }]
            }
            Self::Guarantees { resource, by } => {
                let less = one_less(by, |(queue, by)| (queue.clone(), by - 1));
                less.into_iter().map(|by| Self::Guarantees { resource: resource.clone(), by }).collect()
            }
            // With one pod more nothing else is lowered: what asks for the others does so still.
            Self::Minimum(fewer) if fewer.is_so_low => Vec::new(),
            Self::Minimum(fewer) => vec![Self::Minimum(Fewer::to(fewer.minimum + 1))],
            Self::Rooms(sizes) => {
                let sizes: Vec<(u32, u64)> = sizes.iter().copied().filter(|(_, gpus)| *gpus > 0).collect();
                let fewer = one_less(&sizes, |(pods, gpus)| (pods - 1, *gpus));
                let smaller = one_less(&sizes, |(pods, gpus)| (*pods, gpus - 1));
                fewer.into_iter().chain(smaller).map(Self::Rooms).collect()
            }
            Self::Nodes { nodes, gpus } => vec![Self::Nodes { nodes: *nodes, gpus: gpus - 1 }],
            Self::Pods(pods) => vec![Self::Pods(pods - 1)],
            Self::Gates(gates) => all_but_one(gates).into_iter().map(Self::Gates).collect(),
            Self::OpenNodes(nodes) => all_but_one(nodes).into_iter().map(Self::OpenNodes).collect(),
            Self::Unmet(all) => all_but_one(all).into_iter().map(Self::Unmet).collect(),
            Self::OpenQueue(_)
            | Self::Allow(..)
            | Self::MakeQueue(_)
            | Self::MakeClass(_)
            | Self::MoveTo(_)
            | Self::Traverse(_) => Vec::new(),
        }
    }

    pub fn apply(&self, world: &mut World, gang: &str) {
        match self {
            Self::Ceiling { queue, resource, limit } => {
                let resource = ResourceName::parse(resource).unwrap();
                world.change_queue(queue, |spec| spec.capability.set(resource, *limit));
            }
            Self::Guarantees { resource, by } => {
                let name = ResourceName::parse(resource).unwrap();
                for (queue, by) in by {
                    let has = world.queue(queue).and_then(|spec| spec.guarantee.get(resource));
                    let left = has.unwrap().checked_sub(*by).unwrap();
                    world.change_queue(queue, |spec| spec.guarantee.set(name.clone(), left));
                }
            }
            Self::Minimum(fewer) => world.lower(gang, fewer),
            Self::Rooms(sizes) => sizes.iter().for_each(|(pods, gpus)| make_rooms(world, *pods, *gpus)),
            Self::Nodes { nodes, gpus } => {
                for at in 0..*nodes {
                    add_node(world, u64::from(at), *gpus);
                }
            }
            Self::Pods(pods) => world.add_pods(gang, *pods),
            Self::Gates(gates) => world.change_waiting_pods(gang, |pod| {
                Arc::make_mut(&mut pod.constraints).gates.retain(|gate| !gates.contains(gate));
            }),
            Self::OpenQueue(queue) => world.change_queue(queue, |spec| spec.open = true),
            Self::OpenNodes(nodes) => nodes.iter().for_each(|node| world.open_node(node)),
            Self::Allow(queue, namespace) => world.change_policy(queue, |policy| {
                policy.namespaces.get_or_insert_default().push(namespace.clone());
            }),
            Self::MakeQueue(queue) => world.change_queue(queue, |_| {}),
            Self::MakeClass(class) => drop(world.run(&format!("class {class} 0"))),
            Self::MoveTo(queue) => world.change_gang(gang, |spec| spec.queue = queue.clone()),
            Self::Traverse(queue) => world.change_queue(queue, |spec| spec.dequeue = Dequeue::Traverse),
            Self::Unmet(all) => {
                world.change_waiting_pods(gang, |pod| {
                    all.iter().for_each(|unmet| drop_constraint(pod, unmet))
                });
            }
        }
    }
}

/// Pods of others leave room for so many pods of so many GPUs; what they do not have is added in nodes.
fn make_rooms(world: &mut World, pods: u32, gpus: u64) {
    let mut left = pods;
    for spare in 0..SPARES {
        let held = world.other_gpus(&format!("h{spare}"));
        let fit = u32::try_from(held / gpus.max(1)).unwrap().min(left);
        left -= fit;
        match held - u64::from(fit) * gpus {
            rest if fit == 0 || rest == held => {}
            0 => drop(world.run(&format!("other-gone h{spare}"))),
            rest => drop(world.run(&format!("other s{spare} h{spare} gpu={rest}"))),
        }
    }
    for at in 0..left {
        add_node(world, u64::from(at) + 100 * gpus, gpus);
    }
}

fn add_node(world: &mut World, at: u64, gpus: u64) {
    let name = format!("new{}-{at}", world.seconds());
    world.run(&format!("node {name} {gpus}G"));
    world.run(&format!("plain-node {name} label-disk=ssd"));
}

fn drop_constraint(pod: &mut PodSpec, unmet: &Unmet) {
    match unmet {
        Unmet::Taint(taint) => Arc::make_mut(&mut pod.constraints).tolerations.push(Toleration {
            key: taint.key.clone(),
            operator: TolerationOperator::Equal,
            value: taint.value.clone(),
            effect: Some(taint.effect),
        }),
        Unmet::Selector(labels) => pod.node_selector.retain(|key, _| labels.iter().all(|(of, _)| of != key)),
        other => panic!("{other:?} is nothing to change"),
    }
}
