//! What is found from outside: the ledgers on the nodes' disks, the store, and what the command line prints. All
//! three must tell the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use phalanx_agent::ledger_file::LedgerFile;
use phalanx_common::gang::PodRequest;
use phalanx_common::ids::{GangName, GpuId, PodUid, Term};
use phalanx_common::wire::{ContainerDevices, Exactness, LeaseRequest};
use phalanx_core::view::{GangView, NodeView};
use phalanx_node_core::{DurableLease, DurableState, Ledger};
use serde::de::DeserializeOwned;

use crate::cluster::{Agent, Cluster, Coordinator};

/// After a restart, or the end of a cut, everything must be in order again within this time.
pub const HEAL: Duration = Duration::from_secs(5);

/// A pod's place, as one of the three tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    pub pod: String,
    pub node: String,
    pub lease: String,
    pub gpus: BTreeSet<String>,
}

/// Where a pod is bound, and for which gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub gang: String,
    pub node: String,
    pub lease: String,
}

/// What was seen before, for what must never change.
#[derive(Debug, Default)]
pub struct Seen {
    /// Places by pod's UID.
    pub bound: BTreeMap<String, Place>,
    /// What was bound when a coordinator was last found dead: of this the recordings may know less.
    pub before_death: BTreeSet<String>,
}

impl Seen {
    /// A pod is bound, to this node and with this lease: for ever.
    pub fn bound(&mut self, uid: &str, name: &str, place: Place) {
        let before = self.bound.insert(uid.to_owned(), place.clone());
        assert!(
            before.as_ref().is_none_or(|before| *before == place),
            "{name} was bound twice: {before:?} {place:?}"
        );
    }
}

/// The ledger of an agent as it is on disk; `None` where there is none yet.
pub fn ledger(agent: &Agent) -> Option<Ledger> {
    // A copy: the running agent keeps the folder for itself. The file is replaced as a whole, never changed.
    let copy = tempfile::tempdir().unwrap();
    fs::copy(agent.state_dir.join("ledger"), copy.path().join("ledger")).ok()?;
    LedgerFile::open(copy.path()).unwrap().ledger
}

/// Highest term that an agent obeys, by its disk.
pub fn highest_term(agent: &Agent) -> Term {
    ledger(agent).map_or_else(Term::default, |ledger| ledger.highest_term)
}

fn texts(gpus: impl IntoIterator<Item = GpuId>) -> BTreeSet<String> {
    gpus.into_iter().map(|gpu| gpu.to_string()).collect()
}

/// What the disks hold, and what on them is still on its way. No GPU may ever have two holders.
/// A pod that an agent knows to be bound never gets another place.
pub fn on_disk(agents: &[Agent], seen: &mut Seen) -> (BTreeSet<Held>, Vec<String>) {
    let mut held = BTreeSet::new();
    let mut moving = Vec::new();
    let mut holders: BTreeMap<GpuId, String> = BTreeMap::new();
    for agent in agents {
        for lease in ledger(agent).into_iter().flat_map(|ledger| ledger.leases) {
            let id = lease.lease.to_string();
            for gpu in lease.request.gpus() {
                let other = holders.insert(gpu, id.clone());
                assert_eq!(other, None, "{gpu} of {} has two holders: {id} and {other:?}", agent.node);
            }
            let name = lease.request.pod_name.to_string();
            if matches!(lease.state, DurableState::Bound | DurableState::Started { .. }) {
                let gang = lease.request.gang.to_string();
                let place = Place { gang, node: agent.node.clone(), lease: id.clone() };
                seen.bound(lease.request.pod.as_str(), &name, place);
            }
            if !matches!(lease.state, DurableState::Started { ended: None, .. }) {
                moving.push(format!("lease {id} of {name} is {:?} on {}", lease.state, agent.node));
            }
            held.insert(Held {
                pod: name,
                node: agent.node.clone(),
                lease: id,
                gpus: texts(lease.request.gpus()),
            });
        }
    }
    (held, moving)
}

/// What the store says of bound pods. No pod may ever be bound again.
pub fn in_store(coordinator: &Coordinator, seen: &mut Seen) -> Result<BTreeSet<Held>, String> {
    let pods = coordinator.objects("pod").ok_or("the admin API does not answer")?;
    let mut held = BTreeSet::new();
    for pod in pods {
        let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
        let metadata = &pod["metadata"];
        let annotation = |name: &str| metadata["annotations"][name].as_str().unwrap_or_default();
        let namespace = metadata["namespace"].as_str().unwrap();
        let name = format!("{namespace}/{}", metadata["name"].as_str().unwrap());
        let place = Place {
            gang: format!("{namespace}/{}", annotation("scheduling.k8s.io/group-name")),
            node: node.to_owned(),
            lease: annotation("phalanx.dev/lease-id").to_owned(),
        };
        seen.bound(metadata["uid"].as_str().unwrap(), &name, place.clone());
        if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            continue;
        }
        let gpus = annotation("phalanx.dev/gpu-uuids").split(',').map(str::to_owned).collect();
        held.insert(Held { pod: name, node: place.node, lease: place.lease, gpus });
    }
    Ok(held)
}

fn get<T: DeserializeOwned>(coordinator: &Coordinator, what: &str) -> Result<T, String> {
    let printed = coordinator.run(&["get", what, "-A", "--json"]);
    if printed.code != 0 {
        return Err(printed.err);
    }
    Ok(serde_json::from_str(&printed.out).unwrap_or_else(|error| panic!("{error}: {}", printed.out)))
}

/// What the command line prints of pods that have a place.
fn printed(gangs: &[GangView]) -> BTreeSet<Held> {
    let pods = gangs.iter().flat_map(|gang| gang.pods.iter().map(move |pod| (&gang.name.namespace, pod)));
    pods.filter_map(|(namespace, pod)| {
        Some(Held {
            pod: format!("{namespace}/{}", pod.name),
            node: pod.node.as_ref()?.to_string(),
            lease: pod.lease.map_or_else(String::new, |lease| lease.to_string()),
            gpus: texts(pod.gpus.iter().copied()),
        })
    })
    .collect()
}

/// Gangs by name and phase, once everything is in order; else what is not.
pub fn look(cluster: &Cluster, seen: &mut Seen) -> Result<BTreeMap<String, String>, String> {
    look_at(&cluster.coordinator, &cluster.agents, seen)
}

/// The same for one of several coordinators.
pub fn look_at(
    coordinator: &Coordinator,
    agents: &[Agent],
    seen: &mut Seen,
) -> Result<BTreeMap<String, String>, String> {
    let stored = in_store(coordinator, seen)?;
    let gangs: Vec<GangView> = get(coordinator, "gangs")?;
    let nodes: Vec<NodeView> = get(coordinator, "nodes")?;
    let (disk, moving) = on_disk(agents, seen);
    if let Some(agent) = agents
        .iter()
        .find(|agent| !nodes.iter().any(|node| node.name.as_str() == agent.node && &*node.state == "ready"))
    {
        return Err(format!("{} is not ready", agent.node));
    }
    if !moving.is_empty() {
        return Err(moving.join("; "));
    }
    if disk != stored {
        return Err(format!("on disk: {disk:?}\nin store: {stored:?}"));
    }
    let printed = printed(&gangs);
    if printed != stored {
        return Err(format!("in store: {stored:?}\nprinted: {printed:?}"));
    }
    let holders = nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.holder.is_some());
    let held: BTreeSet<String> = texts(holders.map(|gpu| gpu.id));
    let leased: BTreeSet<String> = disk.iter().flat_map(|held| held.gpus.clone()).collect();
    if held != leased {
        return Err(format!("GPUs held by `get nodes`: {held:?}\non disk: {leased:?}"));
    }
    let mut phases = BTreeMap::new();
    for gang in &gangs {
        let placed = gang.pods.iter().filter(|pod| pod.node.is_some()).count();
        let (whole, phase) = (gang.minimum as usize, &*gang.phase);
        if !(placed == 0 || placed >= whole) {
            return Err(format!("{} has {placed} of {whole} pods", gang.name));
        }
        if !matches!(phase, "queued" | "admitted" | "running" | "finished") {
            return Err(format!("{} is {phase}", gang.name));
        }
        phases.insert(gang.name.to_string(), phase.to_owned());
    }
    let plans = coordinator.objects("gangplan").ok_or("the admin API does not answer")?;
    if !plans.is_empty() {
        return Err(format!("{} plans are left", plans.len()));
    }
    Ok(phases)
}

/// Looks until everything is in order and `wanted` says yes to the gangs' phases.
pub fn settles(
    cluster: &Cluster,
    seen: &mut Seen,
    limit: Duration,
    what: &str,
    mut wanted: impl FnMut(&BTreeMap<String, String>) -> bool,
) -> BTreeMap<String, String> {
    let start = Instant::now();
    loop {
        let last = match look(cluster, seen) {
            Ok(phases) if wanted(&phases) => return phases,
            Ok(phases) => format!("gangs: {phases:?}"),
            Err(problem) => problem,
        };
        assert!(start.elapsed() < limit, "{what}: not in order after {limit:?}: {last}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_checks_can_fail() {
    let mut seen = Seen::default();
    let place = |node: &str| Place {
        gang: "team/g".to_owned(),
        node: node.to_owned(),
        lease: "1.00000001-1".to_owned(),
    };
    seen.bound("uid", "team/a", place("node-1"));
    seen.bound("uid", "team/a", place("node-1"));
    let again = std::panic::catch_unwind(move || seen.bound("uid", "team/a", place("node-2")));
    assert!(again.is_err(), "a pod that was bound twice was not seen");

    // Two disks that name one GPU.
    let folder = tempfile::tempdir().unwrap();
    let request = LeaseRequest {
        pod: PodUid::from("uid"),
        pod_name: GangName::new("team", "a"),
        gang: GangName::new("team", "g"),
        request: PodRequest::default(),
        devices: vec![ContainerDevices {
            container: "main".into(),
            gpus: vec!["GPU-0badcafe-0001-0203-0405-060708090a0b".parse().unwrap()],
            nics: Vec::new(),
        }],
        exactness: Exactness::Exact,
        run_for: None,
    };
    let agents: Vec<Agent> = ["node-1", "node-2"]
        .map(|node| {
            let state_dir = folder.path().join(node);
            let lease = DurableLease {
                lease: "1.00000001-1".parse().unwrap(),
                state: DurableState::Armed,
                request: request.clone(),
                unverified: false,
            };
            let ledger = Ledger {
                cluster: None,
                highest_term: Term::default(),
                boot_id: "boot".into(),
                leases: vec![lease],
            };
            LedgerFile::open(&state_dir).unwrap().file.write(&ledger).unwrap();
            Agent { node: node.to_owned(), state_dir, coordinators: Vec::new(), process: None }
        })
        .into();
    let (one, moving) = on_disk(&agents[..1], &mut Seen::default());
    assert_eq!((one.len(), moving.len()), (1, 1), "an armed lease is on its way");
    let both = std::panic::catch_unwind(|| on_disk(&agents, &mut Seen::default()).0.len());
    assert!(both.is_err(), "a GPU with two holders was not seen");
}
