//! Examples of reasons that lie in the nodes: what they are, and what is free there.

use phalanx_common::constraints::{Taint, TaintEffect};
use phalanx_common::ids::GangName;
use phalanx_common::resources::NVIDIA_GPU;
use phalanx_core::reason::{
    Closed, Fewer, Held, HeldFor, HoldCause, NoEviction, NoEvictionCause, NoRoom, OtherHolder, Reason,
    Spared, Unmet, Unsuited,
};

use super::evictions::NOON;
use super::{Example, also, example};

/// Room on two nodes of 8 GPUs.
pub fn room(minimum: u32, fit: u32, pods: u32, asked: u64) -> NoRoom {
    NoRoom {
        fit,
        missing: vec![(minimum - fit, asked)],
        minimum,
        pods,
        resource: NVIDIA_GPU.into(),
        asked,
        free_total: 4,
        largest: 3,
        free_by_node: vec![("n1".into(), 3, 8), ("n2".into(), 1, 8)],
        feasible_nodes: 0,
        mixed_models_would_fit: false,
        lower_to: None,
        closed: Vec::new(),
        held: Vec::new(),
        others: Vec::new(),
        holds: Vec::new(),
        eviction: None,
        left_out: None,
    }
}

fn taint() -> Unmet {
    Unmet::Taint(Taint { key: "gpu".into(), value: "only".into(), effect: TaintEffect::NoSchedule })
}

fn unsuited(help: Vec<Unmet>) -> Box<Unsuited> {
    let selector = Unmet::Selector(vec![("disk".into(), "ssd".into())]);
    let unmet = vec![(taint(), 3), (selector, 2), (Unmet::NoAgent, 1)];
    Box::new(Unsuited { nodes: 6, unmet, help })
}

pub fn examples() -> Vec<Example> {
    let mut examples = of_the_nodes();
    examples.extend(of_what_is_free());
    // Between the first of NoRoom and those of other codes.
    let at = examples.iter().rposition(|example| example.reason.code() == "NoRoom").unwrap();
    examples.splice(at + 1..at + 1, of_what_is_held().into_iter().chain(without_evictions()));
    examples
}

fn of_what_is_held() -> Vec<Example> {
    let held =
        |node: &str, why| HeldFor { node: node.into(), gpus: 4, gang: GangName::new("team-a", "large"), why };
    let waited = HoldCause::Waited { seconds: 300, start: Some(NOON) };
    let holds = vec![held("n1", waited), held("n2", HoldCause::MakingRoom)];
    vec![also(Reason::NoRoom(Box::new(NoRoom { holds, ..room(1, 0, 1, 4) })))]
}

pub fn because(cause: NoEvictionCause) -> NoEviction {
    NoEviction { cause, spared: Vec::new(), lower_to: None, missing: Vec::new(), short: None }
}

/// No room for a pod above the minimum of a gang that runs.
pub fn above_minimum() -> Reason {
    let eviction = Some(Box::new(because(NoEvictionCause::AboveMinimum)));
    Reason::NoRoom(Box::new(NoRoom { eviction, ..room(1, 0, 1, 4) }))
}

/// Somebody could be evicted, and is not.
fn without_evictions() -> Vec<Example> {
    let spared = |spared| NoEviction { spared: vec![spared], ..because(NoEvictionCause::Protected) };
    let fit = NoEvictionCause::Fit { fit: 1, minimum: 2, best: 8, asked: 8, kept_from: Vec::new() };
    let over_share = NoEvictionCause::OverShare {
        queue: "vision".into(),
        resource: NVIDIA_GPU.into(),
        used: 24,
        deserved: 16,
    };
    let budget = Spared::Budget {
        node: "n1".into(),
        pod: "serve-0".into(),
        budget: GangName::new("team-a", "serve"),
        allowed: 0,
    };
    let until = Spared::Until {
        gang: GangName::new("team-a", "small"),
        until: NOON,
        what: "minimum run time".into(),
    };
    let all = [
        because(NoEvictionCause::NonPreempting),
        because(over_share),
        because(fit),
        spared(budget),
        spared(until),
        spared(Spared::NotPreemptable { gang: GangName::new("default", "small") }),
        spared(Spared::NotReclaimable { queue: "speech".into() }),
        spared(Spared::Guaranteed { queue: "speech".into(), resource: NVIDIA_GPU.into(), guarantee: 8 }),
        spared(Spared::SwitchedOff { setting: "preempt".into() }),
    ];
    let reason = |eviction| NoRoom { eviction: Some(Box::new(eviction)), ..room(2, 0, 2, 8) };
    let mut all: Vec<NoRoom> = all.into_iter().map(reason).collect();
    // Others go for the rest once there is room for this one.
    all[2].missing = vec![(1, 8)];
    let sizes = NoRoom { missing: vec![(1, 8), (2, 4)], ..room(3, 0, 3, 8) };
    all.into_iter().chain([sizes]).map(|room| also(Reason::NoRoom(Box::new(room)))).collect()
}

fn of_the_nodes() -> Vec<Example> {
    vec![
        example(
            "Nodes are large enough, and taints, `nodeSelector`, required node affinity or a volume that is not reached \
             from there keep the pod from all of them. Each node counts once, with the first thing that keeps the pod \
             from it. The fix names the fewest changes after which it would fit.",
            Reason::NoNodeMatches(unsuited(vec![taint()])),
        ),
        example(
            "No node has the resource at all. Often a slip in the name: the fix suggests one that exists. Devices count only \
             where an agent runs: GPUs as it sees them, devices of other kinds as the Node lists them. Parts of NVIDIA GPUs, such \
             as `nvidia.com/mig-1g.10gb` and `nvidia.com/gpu.shared`, are not served, whatever a Node lists.",
            Reason::NoNodeOffers {
                resource: "nvidia.com/gpus".into(),
                asked: 1,
                suggestion: Some(NVIDIA_GPU.into()),
                listed_by: None,
            },
        ),
        also(Reason::NoNodeOffers {
            resource: "mars-tech.com/gpu".into(),
            asked: 8,
            suggestion: None,
            listed_by: Some("n1".into()),
        }),
        example(
            "One pod asks for more than the largest node has, even when that is empty. Where several of its containers \
             count, it says how.",
            Reason::LargerThanAnyNode {
                resource: NVIDIA_GPU.into(),
                largest: 8,
                asked: 16,
                parts: Some("sidecar 8 + app 8".into()),
            },
        ),
        example(
            "All nodes together, empty, have less than its `spec.minResources`. Its pods may not be made yet.",
            Reason::LargerThanAllNodes { resource: NVIDIA_GPU.into(), total: 32, asked: 40, is_group: false },
        ),
        also(Reason::LargerThanAllNodes {
            resource: NVIDIA_GPU.into(),
            total: 32,
            asked: 40,
            is_group: true,
        }),
        example(
            "The whole cluster, empty, would not take the gang's minimum; nodes that constraints leave out are counted. \
             The fix may be to allow GPUs of several models, or to change a constraint; where closed nodes have to be \
             opened as well, those are named too.",
            Reason::LargerThanCluster {
                fit: 4,
                minimum: 6,
                shape: "8 nvidia.com/gpu".into(),
                mixed_models_would_fit: false,
                lower_to: Some(Box::new(Fewer {
                    tasks: vec![("worker".into(), 3)],
                    resources: vec![(NVIDIA_GPU.into(), 32)],
                    ..Fewer::to(4)
                })),
                left_out: None,
                closed: Vec::new(),
            },
        ),
    ]
}

fn of_what_is_free() -> Vec<Example> {
    let held =
        Held { node: "n1".into(), gpus: vec![4, 5, 6, 7], by: "train-1".into(), state: "terminating".into() };
    let other = OtherHolder { node: "n2".into(), scheduler: "default-scheduler".into(), pods: 1, amount: 4 };
    vec![
        example(
            "It would fit into the empty cluster, and not into what is free now. The reason says how many pods fit, what \
             is free in all and on how many nodes, and names GPUs whose holder does not use them, and what pods of \
             others hold. Nodes that constraints leave out, whose ports are taken or that are full of pods are counted. \
             Where a lower `minMember`, or another constraint, would let the gang start now, the fix says so.",
            Reason::NoRoom(Box::new(NoRoom {
                lower_to: Some(Fewer::to(1)),
                held: vec![held],
                others: vec![other],
                ..room(2, 1, 2, 3)
            })),
        ),
        also(Reason::NoRoom(Box::new(NoRoom {
            lower_to: Some(Fewer {
                is_so_low: true,
                resources: vec![(NVIDIA_GPU.into(), 3)],
                ..Fewer::to(1)
            }),
            ..room(1, 1, 2, 3)
        }))),
        also(Reason::NoRoom(Box::new(NoRoom { mixed_models_would_fit: true, ..room(2, 1, 2, 3) }))),
        also(Reason::NoRoom(Box::new(NoRoom {
            left_out: Some(unsuited(vec![taint()])),
            ..room(1, 0, 1, 4)
        }))),
        also(Reason::NoRoom(Box::new(NoRoom {
            missing: vec![(1, 1)],
            resource: "pods".into(),
            free_total: 1,
            largest: 1,
            free_by_node: vec![("n1".into(), 0, 110), ("n2".into(), 1, 110)],
            feasible_nodes: 1,
            ..room(2, 1, 2, 1)
        }))),
        example(
            "It would fit if the nodes it names were open, and why each is not: its agent is away or silent, it refused \
             (`unknown UUID`, `its list of leases is full`, `its ledger cannot be written`), a driver error, \
             `unschedulable`, `not ready`, or a taint by which Kubernetes keeps pods off a node for its state \
             (`node.kubernetes.io/…`). For cordoned nodes alone no quota is kept. A node that refused or did not answer \
             opens again by itself.",
            Reason::NodesClosed {
                nodes: vec![
                    ("n3".into(), Closed::Unschedulable),
                    ("n4".into(), Closed::NoReport { seconds: 12 }),
                ],
                room: Box::new(room(2, 0, 2, 8)),
            },
        ),
    ]
}
