//! What each plugin of Volcano's scheduler, its arguments and its switches become here.

use super::report::Becomes;

/// A plugin of Volcano and what stands for it.
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What it becomes.
    pub becomes: Becomes,
    /// The same for people.
    pub text: &'static str,
    /// Volcano asks it which pods may go when a gang preempts others.
    pub votes_on_preemption: bool,
    /// Volcano asks it which pods may go when a queue reclaims.
    pub votes_on_reclaim: bool,
}

const fn plugin(name: &'static str, becomes: Becomes, text: &'static str) -> Known {
    Known { name, becomes, text, votes_on_preemption: false, votes_on_reclaim: false }
}

const fn always(name: &'static str, text: &'static str) -> Known {
    plugin(name, Becomes::AlwaysOn, text)
}

const fn elsewhere(name: &'static str, text: &'static str) -> Known {
    plugin(name, Becomes::Elsewhere, text)
}

const fn nothing(name: &'static str, text: &'static str) -> Known {
    plugin(name, Becomes::Nothing, text)
}

impl Known {
    const fn votes(mut self, preemption: bool, reclaim: bool) -> Self {
        (self.votes_on_preemption, self.votes_on_reclaim) = (preemption, reclaim);
        self
    }
}

/// All plugins that Volcano has.
pub const PLUGINS: [Known; 25] = [
    always("priority", "always on: PriorityClass orders gangs of a queue, and less urgent ones go first")
        .votes(true, false),
    always(
        "gang",
        "always on: all of minMember and minTaskMember, or nothing; victims keep their minimum or go whole",
    )
    .votes(true, true),
    always(
        "conformance",
        "always on: only pods of gangs are ever evicted, never those of other schedulers or of the system",
    )
    .votes(true, true),
    always(
        "drf",
        "always on: between queues the smaller dominant share goes first; inside a queue priority and age do",
    )
    .votes(true, true),
    always(
        "proportion",
        "always on: shares by Queue weight, each at most what it asks and its capability; above it \
                          only idle room is lent",
    )
    .votes(false, true),
    always("capacity", "always on: deserved, guarantee and capability of Queue, each resource for itself")
        .votes(false, true),
    always(
        "predicates",
        "always on: taints, selectors, node affinity, ports, volumes; what is not served yet is in \
                          docs/reasons.md",
    ),
    always(
        "nodeorder",
        "always on: links between GPUs first, then preferences of pod and node, then packing",
    ),
    always("binpack", "always on: placement packs anyway, and keeps the best-connected GPUs together"),
    always("pdb", "always on: disruption budgets are honoured by every eviction").votes(true, true),
    always(
        "cdp",
        "always on: volcano.sh/cooldown-time protects; for a whole queue use minimumRunTime of its \
                   QueuePolicy",
    )
    .votes(true, true),
    plugin("sla", Becomes::Set, "hold-after: a gang that waited so long gets a hold"),
    nothing(
        "overcommit",
        "nothing: a gang is Inqueue when its queue's quota allows, so that no factor is needed",
    ),
    nothing("resource-strategy-fit", "nothing: placement packs GPUs, whatever the resource"),
    nothing(
        "resourcequota",
        "nothing: a namespace's ResourceQuota is enforced by the API server when pods are made",
    ),
    nothing(
        "deviceshare",
        "nothing: whole GPUs only; pods that ask for shares of GPUs wait with the reason NoNodeOffers",
    ),
    nothing("network-topology-aware", "nothing yet: HyperNodes are not read; inside a node links decide"),
    nothing("numa-aware", "nothing: CPUs are not pinned; GPUs and NICs are chosen by NUMA node anyway"),
    nothing(
        "task-topology",
        "nothing: tasks of a job are packed, not kept apart; use nodeSelector where one must be",
    ),
    nothing(
        "tdm",
        "nothing: nodes are not lent by the time of day; leave its jobs to Volcano, or taint the nodes",
    )
    .votes(true, false),
    nothing("rescheduling", "nothing: running pods are not moved to even out the load"),
    nothing("usage", "nothing: what is asked counts, not the load that is measured"),
    elsewhere(
        "nodegroup",
        "use labels and nodeSelector of the pods, and namespaces of the QueuePolicy for who may \
                            use a queue",
    ),
    nothing("extender", "nothing: no decision is asked of others over HTTP").votes(true, true),
    nothing("reservation", "nothing: Volcano has removed it; a gang that waited for hold-after gets a hold"),
];

/// The plugin of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Known> {
    PLUGINS.iter().find(|known| known.name == name)
}

/// What an argument becomes that no key of ours stands for.
#[must_use]
pub fn argument(plugin: &str, argument: &str) -> &'static str {
    match (plugin, argument) {
        ("overcommit", _) => "nothing: nothing is admitted above what the queue's quota allows",
        ("binpack" | "nodeorder" | "resource-strategy-fit", _) => {
            "nothing: the order of nodes has no weights"
        }
        ("predicates", _) => "nothing: every check is made, and made again when something changes",
        ("capacity", "ancestorReclaimLevel") => "nothing: shares count on every level of the tree",
        ("gangpreempt" | "gangreclaim", _) => "nothing: the fewest victims are found among all nodes",
        ("preempt", _) => "nothing: whole gangs are planned with exact GPUs before anybody is evicted",
        ("tdm", _) => "nothing: nodes are not lent by the time of day",
        _ => "nothing: no key of ours stands for it",
    }
}

/// Switches that Volcano knows.
pub const SWITCHES: [&str; 23] = [
    "enableJobOrder",
    "enableSubJobOrder",
    "enableHierarchy",
    "enableJobReady",
    "enableSubJobReady",
    "enableJobPipelined",
    "enableSubJobPipelined",
    "enableTaskOrder",
    "enablePreemptable",
    "enableReclaimable",
    "enablePreemptive",
    "enableQueueOrder",
    "enablePredicate",
    "enableBestNode",
    "enableNodeOrder",
    "enableTargetJob",
    "enableReservedNodes",
    "enableJobEnqueued",
    "enableVictim",
    "enableJobStarving",
    "enableOverused",
    "enableAllocatable",
    "enableClusterOrder",
];

/// What a switch becomes.
#[must_use]
pub fn switch(plugin: &str, switch: &str, on: bool) -> &'static str {
    match (plugin, switch, on) {
        ("drf", "enableHierarchy", true) => {
            "use parent of Queue: annotations volcano.sh/hierarchy are not read, the tree is that of the queues"
        }
        (_, "enableHierarchy", true) => "always on: queues form a tree by parent",
        (_, "enableHierarchy", false) => "nothing: queues form a tree where they name a parent, else none",
        ("gang", "enablePreemptable" | "enableReclaimable", false) => {
            "nothing: a gang's minimum is never broken into; it keeps it, or goes whole"
        }
        ("conformance", "enablePreemptable" | "enableReclaimable", false) => {
            "nothing: pods that Phalanx has not placed are never evicted"
        }
        (_, "enablePreemptable", false) => {
            "nothing: it has no vote here; victims are less urgent, surplus before minimum, fewest GPUs first"
        }
        (_, "enableReclaimable", false) => {
            "nothing: it has no vote here; a queue's reclaimable: false protects it from reclaim"
        }
        (_, _, true) => "nothing: true is what Volcano takes anyway",
        (_, _, false) => "nothing: order and rules are fixed, and nothing of them is switched off",
    }
}
