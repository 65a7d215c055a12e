//! Who places them.

use std::fmt;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use phalanx_devcluster::hollow::node_name;
use phalanx_devcluster::installation::Installation;
use phalanx_kube_binaries::Tool;
use phalanx_kubernetes::client::{self, Target};
use serde_json::json;
use tokio::sync::mpsc;

use crate::costs::Costs;
use crate::loads::{Load, NAMESPACE, QUEUE};
use crate::pods::{self, BINDINGS_AT_ONCE, Bound, LIMIT};
use crate::report::Took;
use crate::steps::Recording;
use crate::{Failure, Plan};

const POLL: Duration = Duration::from_millis(100);
/// What was created may still be on its way to those who watch.
const SETTLE: Duration = Duration::from_secs(2);
/// So many agents at most may look for a coordinator that has ended: more would take the processor from those that are
/// measured. Theirs only stands still.
const MOST_THAT_DIAL: usize = 1_000;
/// Prefix of hollow nodes.
const NODES: &str = "hollow";

/// Who places the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// A loop that knows where they go and only posts the Bindings.
    Bare,
    /// Phalanx, with an agent on each node.
    Phalanx,
    /// kube-scheduler; it knows no gangs.
    KubeScheduler,
}

impl fmt::Display for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bare => "bare loop",
            Self::Phalanx => "Phalanx",
            Self::KubeScheduler => "kube-scheduler",
        })
    }
}

/// Waits until every agent has its coordinator.
pub async fn wait_for_agents(installation: &Installation, nodes: usize) -> Result<(), Failure> {
    let hollow = installation.hollow().ok_or("there are no hollow nodes")?;
    let began = Instant::now();
    while hollow.connected().await < nodes {
        if began.elapsed() > LIMIT {
            return Err(format!("{} of {nodes} agents are connected", hollow.connected().await).into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

impl Contender {
    /// Reads a name.
    pub fn read(text: &str) -> Result<Self, Failure> {
        match text {
            "bare" => Ok(Self::Bare),
            "phalanx" => Ok(Self::Phalanx),
            "kube-scheduler" => Ok(Self::KubeScheduler),
            _ => Err(format!("--contenders: {text:?} must be bare, phalanx or kube-scheduler").into()),
        }
    }

    /// kube-scheduler cannot be asked for gangs; of the large one it places the pods one by one.
    pub const fn takes(self, load: Load) -> bool {
        !matches!((self, load), (Self::KubeScheduler, Load::Gangs))
    }

    /// One round: an empty cluster before and after.
    pub async fn run(
        self,
        installation: &mut Installation,
        load: Load,
        plan: &Plan,
    ) -> Result<Took, Failure> {
        // Only the one that is measured works.
        let is_phalanx = self == Self::Phalanx;
        let replica = installation.replica(0)?;
        let works = replica.runs() && !replica.is_frozen();
        if works && !is_phalanx && plan.nodes > MOST_THAT_DIAL {
            replica.freeze(true);
        } else if works && !is_phalanx {
            replica.terminate().await;
        } else if !works && is_phalanx {
            replica.kill();
            replica.start()?;
            installation.wait_for_leader().await?;
            wait_for_agents(installation, plan.nodes).await?;
        }
        let client = installation.client().clone();
        prepare(&client).await?;
        let recording = if is_phalanx { Some(Recording::begin(installation)?) } else { None };
        let meter = Meter { installation, is_on: plan.costs };
        let began = match self {
            Self::Bare => bare(&client, load, &meter).await,
            Self::Phalanx => phalanx(&client, load, &meter).await,
            Self::KubeScheduler => {
                installation.servers().start_scheduler().await?;
                tokio::time::sleep(SETTLE).await;
                kube_scheduler(&client, load, &meter).await
            }
        };
        if let Ok((_, _, Some(before))) = &began {
            Costs::read(installation).await?.print_since(before, load.pods());
        }
        if let Some(recording) = recording.filter(|_| plan.costs) {
            recording.print()?;
        }
        if self == Self::KubeScheduler {
            installation.servers().stop_other(Tool::Scheduler);
        }
        let (took, bound, _) = began?;
        check(load, &bound)?;
        pods::remove_all(&client).await?;
        if is_phalanx {
            wait_for_ledgers(installation).await?;
        }
        Ok(Took { pods: load.pods(), seconds: took.as_secs_f64() })
    }
}

type Round = Result<(Duration, Bound, Option<Costs>), Failure>;

/// Reads what has been used so far, right before a clock starts.
struct Meter<'a> {
    installation: &'a Installation,
    is_on: bool,
}

impl Meter<'_> {
    async fn read(&self) -> Result<Option<Costs>, Failure> {
        Ok(if self.is_on { Some(Costs::read(self.installation).await?) } else { None })
    }
}

/// Namespace and queue.
async fn prepare(client: &Client) -> Result<(), Failure> {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    let queue = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": { "name": QUEUE },
        "spec": { "weight": 1 },
    });
    for (path, object) in
        [("/api/v1/namespaces", namespace), ("/apis/scheduling.volcano.sh/v1beta1/queues", queue)]
    {
        match pods::post(client, path, &object).await {
            Err(error) if !error.to_string().contains("exists") => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn bare(client: &Client, load: Load, meter: &Meter<'_>) -> Round {
    let mut bound = Bound::watch(client);
    let (created, pods) = mpsc::unbounded_channel();
    let creating = {
        let (client, specs) = (client.clone(), load.specs("bare", false));
        async move { pods::create(&client, &pods::pods_path(), specs, Some(created)).await }
    };
    let mut before = meter.read().await?;
    let mut began = Instant::now();
    let creating = tokio::spawn(creating);
    let creating = if load.is_gang() {
        creating.await??;
        tokio::time::sleep(SETTLE).await;
        before = meter.read().await?;
        began = Instant::now();
        None
    } else {
        Some(creating)
    };
    // With the coordinator's rights and as it connects: the API server does less for an admin.
    let kubeconfig = meter.installation.replicas().first().map(|replica| replica.kubeconfig().to_owned());
    let target = Target { kubeconfig, context: None };
    let binder = client::client(&target.load().await?, "bare-loop")?;
    let binder = &binder;
    let pods = stream::unfold(pods, |mut pods| async move { Some((pods.recv().await?, pods)) });
    let binding = pods.map(|pod| async move {
        let number: usize = pod.name.trim_start_matches("pod-").parse()?;
        let node = node_name(NODES, load.node_of(number));
        pods::bind(binder, &pod, node.as_str(), load.gpus()).await
    });
    binding.buffer_unordered(BINDINGS_AT_ONCE).try_collect::<()>().await?;
    if let Some(creating) = creating {
        creating.await??;
    }
    let last = bound.wait(load.pods()).await?;
    Ok((last - began, bound, before))
}

async fn phalanx(client: &Client, load: Load, meter: &Meter<'_>) -> Round {
    let mut bound = Bound::watch(client);
    let specs = load.specs("phalanx", true);
    if !load.is_gang() {
        let before = meter.read().await?;
        let began = Instant::now();
        pods::create(client, &pods::pods_path(), specs, None).await?;
        let last = bound.wait(load.pods()).await?;
        return Ok((last - began, bound, before));
    }
    set_queue(client, "Closed").await?;
    pods::create(client, &pods::groups_path(), load.groups(), None).await?;
    pods::create(client, &pods::pods_path(), specs, None).await?;
    tokio::time::sleep(SETTLE).await;
    if !bound.nodes().is_empty() {
        return Err("pods of a closed queue were bound".into());
    }
    let before = meter.read().await?;
    let began = Instant::now();
    set_queue(client, "Open").await?;
    let last = bound.wait(load.pods()).await?;
    Ok((last - began, bound, before))
}

async fn kube_scheduler(client: &Client, load: Load, meter: &Meter<'_>) -> Round {
    let mut bound = Bound::watch(client);
    let before = meter.read().await?;
    let began = Instant::now();
    pods::create(client, &pods::pods_path(), load.specs("default-scheduler", false), None).await?;
    let last = bound.wait(load.pods()).await?;
    Ok((last - began, bound, before))
}

async fn set_queue(client: &Client, state: &str) -> Result<(), Failure> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.volcano.sh", "v1beta1", "Queue"));
    let queues: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let patch = Patch::Merge(json!({ "status": { "state": state } }));
    queues.patch_status(QUEUE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// No node has more than it can take.
fn check(load: Load, bound: &Bound) -> Result<(), Failure> {
    let mut nodes = std::collections::BTreeMap::<&str, usize>::new();
    for node in bound.nodes().values() {
        *nodes.entry(node).or_default() += 1;
    }
    let most = if matches!(load, Load::Large { .. }) { 1 } else { 8 };
    match nodes.iter().find(|(_, count)| **count > most) {
        Some((node, count)) => Err(format!("{count} pods are bound to {node}, which can take {most}").into()),
        None => Ok(()),
    }
}

/// The agents have no leases any more.
async fn wait_for_ledgers(installation: &Installation) -> Result<(), Failure> {
    let hollow = installation.hollow().ok_or("there are no hollow nodes")?;
    let began = Instant::now();
    loop {
        let reports = hollow.reports().await;
        let left: usize = reports.values().flatten().map(|report| report.leases.len()).sum();
        if left == 0 {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
            return Err(format!("{left} leases are left after all pods are gone").into());
        }
        tokio::time::sleep(POLL).await;
    }
}
