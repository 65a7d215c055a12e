//! `phalanx get`: lists of queues and their policies, gangs, nodes and pods.

use std::collections::BTreeMap;

use phalanx_common::ids::GpuId;
use phalanx_common::queue::{Dequeue, QueuePolicySpec, closed_state};
use phalanx_common::resources::{CPU, MEMORY, NVIDIA_GPU, ResourceName, Resources, format_amount};
use phalanx_common::topology::LinkClass;
use phalanx_common::units::Millis;
use phalanx_core::view::{GangView, NodeView, PodView, PodWithoutGang, QueueView, StateView};

use crate::arguments::{Get, Listed};
use crate::client::Client;
use crate::failure::{Failure, Format, print_json, print_text};
use crate::shadow;
use crate::table::{ShortIds, age, list, now, ranges};
use crate::title::short_name;

/// Prints one list.
///
/// # Errors
/// The server cannot be reached or answers with an error.
pub fn run(client: &Client, options: &Get, format: Format) -> Result<(), Failure> {
    if options.what == Listed::Shadow {
        return shadow::run(client, options, format);
    }
    let mut state = client.state()?;
    let namespace = options.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    keep_named(&mut state, options, namespace)?;
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
            Listed::QueuePolicies => print_json(&state.policies),
            Listed::Gangs => print_json(&gangs),
            Listed::Nodes => print_json(&state.nodes),
            Listed::Pods => {
                let pods = gangs.iter().flat_map(|gang| &gang.pods);
                print_json(&pods.chain(alone.iter().map(|alone| &alone.pod)).collect::<Vec<_>>())
            }
            // Has a report of its own.
            Listed::Shadow => Ok(()),
        };
    }
    let text = match options.what {
        Listed::Queues => queue_list(&state.queues, options.wide),
        Listed::QueuePolicies => policy_list(&state.policies),
        Listed::Gangs => gang_list(&gangs, options.wide),
        Listed::Nodes => node_list(&state.nodes),
        Listed::Pods => pod_list(&gangs, &alone, &state, options.wide),
        Listed::Shadow => String::new(),
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

/// Leaves only what is named. A gang has the name that is shown and the PodGroup's; a pod its own.
fn keep_named(state: &mut StateView, options: &Get, namespace: &str) -> Result<(), Failure> {
    let names = &options.names;
    if names.is_empty() {
        return Ok(());
    }
    let named = |name: &str| names.iter().any(|named| named == name);
    let here = |gang: &GangView| *gang.name.namespace == *namespace;
    let mut found: Vec<String> = Vec::new();
    match options.what {
        Listed::Queues => {
            state.queues.retain(|queue| named(queue.name.as_str()));
            found.extend(state.queues.iter().map(|queue| queue.name.to_string()));
        }
        Listed::QueuePolicies => {
            state.policies.retain(|policy| named(policy.name.as_str()));
            found.extend(state.policies.iter().map(|policy| policy.name.to_string()));
        }
        Listed::Nodes => {
            state.nodes.retain(|node| named(node.name.as_str()));
            found.extend(state.nodes.iter().map(|node| node.name.to_string()));
        }
        Listed::Gangs => {
            state.gangs.retain(|gang| here(gang) && (named(short_name(gang)) || named(&gang.name.name)));
            for gang in &state.gangs {
                found.extend([short_name(gang).to_owned(), gang.name.name.to_string()]);
            }
        }
        Listed::Pods => {
            state.gangs.retain(here);
            for gang in &mut state.gangs {
                gang.pods.retain(|pod| named(&pod.name));
                found.extend(gang.pods.iter().map(|pod| pod.name.to_string()));
            }
            state.pods_without_gang.retain(|alone| *alone.namespace == *namespace && named(&alone.pod.name));
            found.extend(state.pods_without_gang.iter().map(|alone| alone.pod.name.to_string()));
        }
        Listed::Shadow => return Ok(()),
    }
    let missing: Vec<&str> = names.iter().filter(|name| !found.contains(name)).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (kind, place) = match options.what {
        Listed::Queues => ("queue", String::new()),
        Listed::QueuePolicies => ("queue policy", String::new()),
        Listed::Nodes => ("node", String::new()),
        Listed::Gangs => ("gang", format!(" in namespace {namespace}")),
        Listed::Pods | Listed::Shadow => ("pod of a gang", format!(" in namespace {namespace}")),
    };
    Err(Failure::new(format!("there is no {kind} {}{place}", missing.join(", "))))
}

/// `used/limit`, or only what is used where there is no limit.
fn used_of(queue: &QueueView, resource: &str) -> String {
    let used = format_amount(resource, queue.allocated.amount(resource));
    match queue.capability.get(resource) {
        Some(limit) => format!("{used}/{}", format_amount(resource, limit)),
        None => used,
    }
}

/// `nvidia.com/gpu 8, cpu 4`.
fn amounts<'r>(resources: impl Iterator<Item = (&'r ResourceName, u64)>) -> String {
    let text =
        |(name, amount): (&ResourceName, u64)| format!("{name} {}", format_amount(name.as_str(), amount));
    resources.map(text).collect::<Vec<_>>().join(", ")
}

fn state(queue: &QueueView) -> &'static str {
    let gangs = [queue.pending, queue.inqueue, queue.running, queue.completed].map(u64::from);
    if queue.open { "Open" } else { closed_state(gangs.iter().sum()) }
}

/// What a queue is entitled to as its object says.
fn entitled(queue: &QueueView) -> String {
    if queue.deserved.is_empty() {
        format!("weight {}", queue.weight)
    } else {
        amounts(queue.deserved.iter())
    }
}

fn queue_list(queues: &[QueueView], wide: bool) -> String {
    let mut headers = vec![
        "NAME",
        "PARENT",
        "PRIORITY",
        "STATE",
        "GPUS",
        "CPU",
        "MEMORY",
        "DESERVED",
        "SHARE",
        "GUARANTEE",
    ];
    headers.extend(["PENDING", "INQUEUE", "RUNNING", "ENDED"]);
    if wide {
        headers.extend(["CAPABILITY", "ALLOCATED", "RECLAIMABLE", "DEQUEUE"]);
    }
    let has_problems = queues.iter().any(|queue| queue.problem.is_some());
    headers.extend(has_problems.then_some("SET ASIDE BECAUSE"));
    let row = |queue: &QueueView| {
        let mut row = vec![
            queue.name.to_string(),
            queue.parent.as_ref().map_or_else(String::new, ToString::to_string),
            queue.priority.to_string(),
            state(queue).to_owned(),
            used_of(queue, NVIDIA_GPU),
            used_of(queue, CPU),
            used_of(queue, MEMORY),
            entitled(queue),
            amounts(queue.share.iter().filter(|(name, _)| name.is_device())),
            amounts(queue.guarantee.iter()),
            queue.pending.to_string(),
            queue.inqueue.to_string(),
            queue.running.to_string(),
            queue.completed.to_string(),
        ];
        if wide {
            row.extend([
                amounts(queue.capability.iter()),
                amounts(queue.allocated.iter()),
                if queue.reclaimable { "yes" } else { "no" }.to_owned(),
                match queue.dequeue {
                    Dequeue::Fifo => "fifo",
                    Dequeue::Traverse => "traverse",
                }
                .to_owned(),
            ]);
        }
        row.extend(has_problems.then(|| queue.problem.clone().unwrap_or_default()));
        row
    };
    list(&headers, queues.iter().map(row).collect())
}

fn policy_list(policies: &[QueuePolicySpec]) -> String {
    let headers =
        ["NAME", "NAMESPACES", "MINIMUM RUN", "HOLD AFTER", "STARTUP", "DEFAULT RUN", "MAXIMUM RUN"];
    let time = |time: Option<Millis>| time.map_or_else(String::new, |time| time.to_string());
    let row = |policy: &QueuePolicySpec| {
        let namespaces = match policy.namespaces.as_deref() {
            None => "all".to_owned(),
            Some([]) => "none".to_owned(),
            Some(namespaces) => namespaces.join(", "),
        };
        vec![
            policy.name.to_string(),
            namespaces,
            time(Some(policy.minimum_run_ms)),
            time(policy.hold_after_ms),
            time(policy.startup_deadline_ms),
            time(policy.default_run_ms),
            time(policy.maximum_run_ms),
        ]
    };
    list(&headers, policies.iter().map(row).collect())
}

/// Devices of all kinds that the gang's pods ask for.
#[must_use]
pub fn devices(gang: &GangView) -> u64 {
    gang.pods.iter().map(|pod| pod_devices(&pod.request)).fold(0, u64::saturating_add)
}

/// Those that it holds or waits for: pods that have ended hold none.
fn devices_now(gang: &GangView) -> u64 {
    let lives = |pod: &&PodView| !matches!(&*pod.phase, "Succeeded" | "Failed");
    gang.pods.iter().filter(lives).map(|pod| pod_devices(&pod.request)).fold(0, u64::saturating_add)
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
            devices_now(gang).to_string(),
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};
    use crate::demo::progress::tests::{gang, state};

    fn kept(words: &[&str]) -> Result<Vec<String>, String> {
        let parsed = Arguments::try_parse_from([&["phalanx", "get"], words].concat()).unwrap();
        let Command::Get(get) = parsed.command else { panic!("another command") };
        let uid = "40c3d7df-1bd0-4111-923c-edac690a250d";
        let mut state = state(vec![gang(&format!("llm-{uid}"), "running", 2), gang("other", "queued", 1)]);
        match keep_named(&mut state, &get, get.namespace.as_deref().unwrap_or("team")) {
            Ok(()) => Ok(state.gangs.iter().map(|gang| short_name(gang).to_owned()).collect()),
            Err(Failure::Message(text)) => Err(text),
            Err(Failure::Reported) => panic!("no text"),
        }
    }

    #[test]
    fn names_leave_the_rest_out() {
        assert_eq!(kept(&["gangs"]).unwrap(), ["llm", "other"]);
        assert_eq!(kept(&["gangs", "llm"]).unwrap(), ["llm"]);
        assert_eq!(kept(&["gangs", "llm-40c3d7df-1bd0-4111-923c-edac690a250d"]).unwrap(), ["llm"]);
        assert_eq!(kept(&["gangs", "llm", "none"]).unwrap_err(), "there is no gang none in namespace team");
        assert_eq!(kept(&["gangs", "llm", "-n", "b"]).unwrap_err(), "there is no gang llm in namespace b");
        assert_eq!(kept(&["nodes", "n9"]).unwrap_err(), "there is no node n9");
    }

    fn queue(json: &str) -> QueueView {
        let rest = r#""priority":0,"open":true,"charged":{"amounts":[]},"pending":1,"inqueue":2,"running":3,"completed":4"#;
        serde_json::from_str(&format!("{{{json},{rest}}}")).unwrap()
    }

    #[test]
    fn queues_show_their_place_and_what_they_are_entitled_to() {
        let gpus = |amount| format!(r#"{{"amounts":[["nvidia.com/gpu",{amount}]]}}"#);
        let team = format!(
            r#""name":"team","parent":"top","weight":3,"capability":{},"allocated":{},"share":{},"guarantee":{}"#,
            gpus(8),
            gpus(4),
            gpus(6),
            gpus(2)
        );
        let other = r#""name":"other","weight":1,"capability":{"amounts":[]},"allocated":{"amounts":[]},"dequeue":"Fifo",
            "deserved":{"amounts":[["cpu",1500],["nvidia.com/gpu",5]]},"problem":"deserved: too much""#;
        let narrow = queue_list(&[queue(&team)], false);
        let words: Vec<Vec<&str>> = narrow.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][7..10], ["DESERVED", "SHARE", "GUARANTEE"]);
        let row = ["team", "top", "0", "Open", "4/8", "0", "0", "weight", "3", "nvidia.com/gpu", "6"];
        assert_eq!(words[1][..11], row);
        assert_eq!(words[1][11..], ["nvidia.com/gpu", "2", "1", "2", "3", "4"]);
        let wide = queue_list(&[queue(&team), queue(other)], true);
        assert!(wide.contains("SET ASIDE BECAUSE") && wide.contains("deserved: too much"), "{wide}");
        assert!(wide.contains("cpu 1500m, nvidia.com/gpu 5") && wide.contains("fifo"), "{wide}");
    }

    #[test]
    fn policies_show_who_may_use_a_queue_and_its_times() {
        let mut policy = QueuePolicySpec::new("red".into());
        policy.namespaces = Some(vec!["a".into(), "b".into()]);
        policy.maximum_run_ms = Some(Millis(3_600_000));
        let none = QueuePolicySpec { namespaces: Some(Vec::new()), ..QueuePolicySpec::new("shut".into()) };
        let text = policy_list(&[policy, QueuePolicySpec::new("open".into()), none]);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["red", "a,", "b", "0", "ms", "3600", "s"]);
        assert_eq!((rows[1][1], rows[2][1]), ("all", "none"));
    }

    #[test]
    fn pods_that_have_ended_hold_no_gpus() {
        let mut ended = gang("llm", "finished", 8);
        let asked = devices(&ended);
        assert!(asked > 0);
        assert_eq!(devices_now(&ended), asked);
        ended.pods.iter_mut().for_each(|pod| pod.phase = "Succeeded".into());
        assert_eq!((devices(&ended), devices_now(&ended)), (asked, 0));
    }
}
