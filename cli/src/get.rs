//! `phalanx get`: lists of queues, gangs, nodes and pods.

use std::collections::BTreeMap;

use phalanx_common::ids::GpuId;
use phalanx_common::resources::{CPU, MEMORY, NVIDIA_GPU, Resources, format_amount};
use phalanx_common::topology::LinkClass;
use phalanx_core::view::{GangView, NodeView, PodView, PodWithoutGang, QueueView, StateView};

use crate::arguments::{Get, Listed};
use crate::client::Client;
use crate::failure::{Failure, Format, print_json, print_text};
use crate::table::{ShortIds, age, list, now, ranges};
use crate::title::short_name;

/// Prints one list.
///
/// # Errors
/// The server cannot be reached or answers with an error.
pub fn run(client: &Client, options: &Get, format: Format) -> Result<(), Failure> {
    let state = client.state()?;
    let namespace = options.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let alone: Vec<&PodWithoutGang> = state
        .pods_without_gang
        .iter()
        .filter(|pod| {
            options.what == Listed::Pods && (options.all_namespaces || *pod.namespace == *namespace)
        })
        .collect();
    let mine = |gang: &&GangView| options.all_namespaces || *gang.name.namespace == *namespace;
    let gangs: Vec<&GangView> = state.gangs.iter().filter(mine).collect();
    if format == Format::Json {
        return match options.what {
            Listed::Queues => print_json(&state.queues),
            Listed::Gangs => print_json(&gangs),
            Listed::Nodes => print_json(&state.nodes),
            Listed::Pods => {
                let pods = gangs.iter().flat_map(|gang| &gang.pods);
                print_json(&pods.chain(alone.iter().map(|alone| &alone.pod)).collect::<Vec<_>>())
            }
        };
    }
    let text = match options.what {
        Listed::Queues => queue_list(&state.queues),
        Listed::Gangs => gang_list(&gangs, options.wide),
        Listed::Nodes => node_list(&state.nodes),
        Listed::Pods => pod_list(&gangs, &alone, &state, options.wide),
    };
    let nothing_here =
        gangs.is_empty() && alone.is_empty() && matches!(options.what, Listed::Gangs | Listed::Pods);
    if !nothing_here {
        print_text(&text);
        return Ok(());
    }
    if options.all_namespaces || state.gangs.is_empty() {
        let program = if client.is_of_cluster() { "kubectl" } else { "phalanx" };
        eprintln!("there are none; create some with `{program} apply -f FILE`");
    } else {
        let mut others: Vec<&str> = state.gangs.iter().map(|gang| &*gang.name.namespace).collect();
        others.dedup();
        eprintln!(
            "none in namespace {}; there are some in {}: use -n NAMESPACE or -A",
            namespace,
            others.join(", ")
        );
    }
    Ok(())
}

/// `used/limit`, or only what is used where there is no limit.
fn used_of(queue: &QueueView, resource: &str) -> String {
    let used = format_amount(resource, queue.allocated.amount(resource));
    match queue.capability.get(resource) {
        Some(limit) => format!("{used}/{}", format_amount(resource, limit)),
        None => used,
    }
}

fn queue_list(queues: &[QueueView]) -> String {
    let headers =
        ["NAME", "PRIORITY", "STATE", "GPUS", "CPU", "MEMORY", "PENDING", "INQUEUE", "RUNNING", "ENDED"];
    let row = |queue: &QueueView| {
        vec![
            queue.name.to_string(),
            queue.priority.to_string(),
            if queue.open { "Open" } else { "Closed" }.to_owned(),
            used_of(queue, NVIDIA_GPU),
            used_of(queue, CPU),
            used_of(queue, MEMORY),
            queue.pending.to_string(),
            queue.inqueue.to_string(),
            queue.running.to_string(),
            queue.completed.to_string(),
        ]
    };
    list(&headers, queues.iter().map(row).collect())
}

/// Devices of all kinds that the gang's pods ask for.
#[must_use]
pub fn devices(gang: &GangView) -> u64 {
    gang.pods.iter().map(|pod| pod_devices(&pod.request)).fold(0, u64::saturating_add)
}

fn pod_devices(request: &Resources) -> u64 {
    request.iter().filter(|(name, _)| name.is_device()).map(|(_, amount)| amount).fold(0, u64::saturating_add)
}

/// The name people know, or the PodGroup's whole one.
fn name_of(gang: &GangView, wide: bool) -> &str {
    if wide { &gang.name.name } else { short_name(gang) }
}

fn gang_list(gangs: &[&GangView], wide: bool) -> String {
    let now = now();
    let row = |gang: &&GangView| {
        let placed = gang.pods.iter().filter(|pod| pod.node.is_some()).count();
        vec![
            gang.name.namespace.to_string(),
            name_of(gang, wide).to_owned(),
            gang.queue.to_string(),
            gang.phase.to_string(),
            gang.minimum.to_string(),
            format!("{placed}/{}", gang.pods.len()),
            devices(gang).to_string(),
            age(now - gang.created),
            gang.reason.as_ref().map_or_else(String::new, |reason| reason.text.clone()),
        ]
    };
    let headers = ["NAMESPACE", "NAME", "QUEUE", "PHASE", "MIN", "PLACED", "GPUS", "AGE", "WAITS BECAUSE"];
    list(&headers, gangs.iter().map(row).collect())
}

fn node_list(nodes: &[NodeView]) -> String {
    let row = |node: &NodeView| {
        let amount = |resource| {
            let text = |of: &Resources| format_amount(resource, of.amount(resource));
            format!("{}/{}", text(&node.free), text(&node.capacity))
        };
        let lost = node.gpus.iter().filter(|gpu| !gpu.health.is_healthy()).count();
        let state =
            if lost == 0 { node.state.to_string() } else { format!("{} ({lost} GPUs bad)", node.state) };
        let mut models: Vec<&str> = node.gpus.iter().map(|gpu| &*gpu.model).collect();
        models.dedup();
        vec![node.name.to_string(), state, amount(NVIDIA_GPU), amount(CPU), amount(MEMORY), models.join(", ")]
    };
    list(&["NAME", "STATE", "GPUS FREE", "CPU FREE", "MEMORY FREE", "MODEL"], nodes.iter().map(row).collect())
}

/// NVML index of every GPU of the cluster.
#[must_use]
pub fn gpu_indexes(state: &StateView) -> BTreeMap<GpuId, u32> {
    state.nodes.iter().flat_map(|node| &node.gpus).map(|gpu| (gpu.id, gpu.index)).collect()
}

/// `0-3`, for the GPUs of a pod on its node.
#[must_use]
pub fn index_text(gpus: &[GpuId], indexes: &BTreeMap<GpuId, u32>) -> String {
    ranges(&gpus.iter().filter_map(|gpu| indexes.get(gpu).copied()).collect::<Vec<_>>())
}

/// Link class of a pod's GPUs, empty where it holds none.
#[must_use]
pub fn link_text(class: Option<LinkClass>) -> String {
    class.map_or_else(String::new, |class| class.to_string())
}

fn pod_list(gangs: &[&GangView], alone: &[&PodWithoutGang], state: &StateView, wide: bool) -> String {
    let indexes = gpu_indexes(state);
    let short = ShortIds::among(state.nodes.iter().flat_map(|node| &node.gpus).map(|gpu| gpu.id));
    let row = |namespace: &str, gang: &str, pod: &PodView| {
        let show = |id: &GpuId| if wide { id.to_string() } else { short.show(*id) };
        vec![
            namespace.to_owned(),
            pod.name.to_string(),
            gang.to_owned(),
            pod.phase.to_string(),
            pod.node.as_ref().map_or_else(String::new, ToString::to_string),
            index_text(&pod.gpus, &indexes),
            link_text(pod.link_class),
            pod.gpus.iter().map(show).collect::<Vec<_>>().join(" "),
        ]
    };
    let mut rows = Vec::new();
    for gang in gangs {
        rows.extend(gang.pods.iter().map(|pod| row(&gang.name.namespace, name_of(gang, wide), pod)));
    }
    rows.extend(
        alone.iter().map(|alone| row(&alone.namespace, &format!("{} (missing)", alone.group), &alone.pod)),
    );
    list(&["NAMESPACE", "NAME", "GANG", "PHASE", "NODE", "INDEX", "LINK", "GPUS"], rows)
}
