//! The whole path in one process: manifests over HTTP, a real coordinator, real agents over QUIC on loopback.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::cluster::{agent, agents, held, job};
use crate::support::{apply_ok, ask, config, explain, gang_of, get, start, stop, until, until_phase};
use phalanx_common::ids::GpuId;
use phalanx_coordinator::coordinator::Coordinator;
use phalanx_coordinator::replay::replay;
use phalanx_core::view::{GangView, StateView};

const QUEUE: &str = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: research}\n\
                     spec: {capability: {nvidia.com/gpu: 8}}\n---\n";

/// Node and GPUs of every pod; no GPU twice.
fn places(gang: &GangView) -> Vec<(String, Vec<GpuId>)> {
    let places: Vec<(String, Vec<GpuId>)> =
        gang.pods.iter().map(|pod| (pod.node.as_ref().unwrap().to_string(), pod.gpus.clone())).collect();
    let all: Vec<GpuId> = places.iter().flat_map(|(_, gpus)| gpus.clone()).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a GPU twice: {places:?}");
    places
}

/// What a process has recorded gives the same actions again.
fn assert_replays(recording: &Path) {
    let mut printed = Vec::new();
    let replay = replay(recording, &mut printed).unwrap();
    assert_eq!(replay.difference, None);
    assert!(replay.actions > 0, "nothing was decided");
    assert_eq!(String::from_utf8(printed).unwrap().lines().count() as u64, replay.actions);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_on_exact_gpus_and_finishes() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let agents = agents(&coordinator, directory.path(), 2, 4).await;
    let manifest = format!("{QUEUE}{}", job("train", "research", 2, "nvidia.com/gpu: 4, cpu: 1", "2s"));
    apply_ok(&coordinator, &manifest).await;

    let state = until_phase(&coordinator, "train", "Running").await;
    let places = places(gang_of(&state, "train").unwrap());
    assert!(places.iter().all(|(_, gpus)| gpus.len() == 4), "{places:?}");
    assert_eq!(held(&state), 8);
    // The objects say the same as the core.
    let state = until(&coordinator, "pods running", |state| {
        gang_of(state, "train").is_some_and(|gang| gang.pods.iter().all(|pod| &*pod.phase == "Running"))
    })
    .await;
    for pod in &gang_of(&state, "train").unwrap().pods {
        let stored = get(&coordinator, &format!("/v1/objects/pod/default/{}", pod.name)).await.json();
        assert_eq!(stored["spec"]["nodeName"], pod.node.as_ref().unwrap().as_str());
        let uuids: Vec<String> = pod.gpus.iter().map(ToString::to_string).collect();
        let annotations = &stored["metadata"]["annotations"];
        assert_eq!(annotations["phalanx.dev/gpu-uuids"], uuids.join(","));
        assert_eq!(annotations["phalanx.dev/lease-id"], pod.lease.unwrap().to_string());
    }
    let explanation = explain(&coordinator, "default/train").await;
    assert_eq!(&*explanation.gang.pod_group_phase, "Running", "{explanation:#?}");

    until_phase(&coordinator, "train", "Completed").await;
    until(&coordinator, "all GPUs free", |state| held(state) == 0).await;
    // The job's own status follows its gang's; a reader may come in between.
    let mut phase = serde_json::Value::Null;
    for _ in 0..500 {
        let stored = get(&coordinator, "/v1/objects/job/default/train").await.json();
        phase = stored["status"]["state"]["phase"].clone();
        if phase == "Completed" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(phase, "Completed");
    let events = get(&coordinator, "/v1/events").await.json();
    let told = |text: &str| {
        events["events"]
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["text"].as_str().unwrap().contains(text))
    };
    assert!(told("committed: 2 pods, 8 GPUs on n1, n2") && told("-> Completed"), "{events:#}");

    let recording = coordinator.recording.clone();
    stop(coordinator).await;
    assert_replays(&recording);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_what_runs_and_goes_on_with_what_waits() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let agents = agents(&coordinator, directory.path(), 2, 4).await;
    apply_ok(&coordinator, &job("long", "default", 2, "nvidia.com/gpu: 3", "")).await;
    apply_ok(&coordinator, &job("wide", "default", 2, "nvidia.com/gpu: 4", "1s")).await;
    let before = until_phase(&coordinator, "long", "Running").await;
    let before = places(gang_of(&before, "long").unwrap());

    let recording = coordinator.recording.clone();
    let mut config = config(directory.path());
    config.listen = coordinator.quic;
    stop(coordinator).await;
    assert_replays(&recording);
    let coordinator = Coordinator::start(&config).await.unwrap();

    let ready = |state: &StateView| state.nodes.iter().filter(|node| &*node.state == "ready").count() == 2;
    let state = until(&coordinator, "both agents are back", |state| {
        ready(state) && gang_of(state, "long").is_some_and(|gang| &*gang.pod_group_phase == "Running")
    })
    .await;
    assert_eq!(places(gang_of(&state, "long").unwrap()), before);
    let waiting = explain(&coordinator, "default/wide").await;
    assert!(waiting.gang.reason.is_some(), "{waiting:#?}");
    // Those that came later take what is free; the one that waits goes on when there is room.
    apply_ok(&coordinator, &job("small", "default", 1, "nvidia.com/gpu: 1", "")).await;
    until_phase(&coordinator, "small", "Running").await;
    for job in ["long", "small"] {
        let path = format!("/v1/objects/job/default/{job}");
        assert_eq!(ask(&coordinator, "DELETE", &path, None).await.status, 200);
    }
    until_phase(&coordinator, "wide", "Completed").await;
    until(&coordinator, "all GPUs free", |state| held(state) == 0).await;
    let pods = get(&coordinator, "/v1/objects/pods").await.json();
    let names: Vec<&str> = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["wide-worker-0", "wide-worker-1"]);

    let recording = coordinator.recording.clone();
    stop(coordinator).await;
    assert_replays(&recording);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_still_holds_what_runs() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let mut agents = agents(&coordinator, directory.path(), 1, 4).await;
    apply_ok(&coordinator, &job("long", "default", 1, "nvidia.com/gpu: 3", "")).await;
    let before = until_phase(&coordinator, "long", "Running").await;
    let before = places(gang_of(&before, "long").unwrap());
    agents.remove(0).kill().await;
    until(&coordinator, "the agent is missed", |state| {
        state.nodes.iter().all(|node| &*node.state != "ready")
    })
    .await;
    let back = agent(&coordinator, directory.path(), 1, 4).await;
    let state = until(&coordinator, "the agent is back", |state| {
        state.nodes.iter().any(|node| &*node.state == "ready")
    })
    .await;
    assert_eq!(places(gang_of(&state, "long").unwrap()), before);
    assert_eq!(held(&state), 3);
    assert_eq!(ask(&coordinator, "DELETE", "/v1/objects/job/default/long", None).await.status, 200);
    until(&coordinator, "all GPUs free", |state| held(state) == 0 && state.gangs.is_empty()).await;
    stop(coordinator).await;
    back.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_run_says_why_and_how() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let agents = agents(&coordinator, directory.path(), 1, 4).await;
    // Its pods are not made before it is admitted: what is known of it is its minimum.
    apply_ok(&coordinator, &job("huge", "default", 1, "nvidia.com/gpu: 16", "")).await;
    let with_reason = |state: &StateView| gang_of(state, "huge").is_some_and(|gang| gang.reason.is_some());
    until(&coordinator, "a reason", with_reason).await;
    let explanation = explain(&coordinator, "default/huge").await;
    let reason = explanation.gang.reason.unwrap();
    assert_eq!(&*reason.code, "LargerThanAllNodes", "{reason:?}");
    assert!(!reason.fix.is_empty() && !explanation.lines.is_empty());
    assert_eq!(explanation.nodes, 1);
    // A pod that is there is looked at itself; by its name it is the same gang.
    let large = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\n\
                 metadata: {name: large-group, namespace: default}\nspec: {minMember: 1}\n---\n\
                 apiVersion: v1\nkind: Pod\nmetadata: {name: large-0, namespace: default, \
                 annotations: {scheduling.k8s.io/group-name: large-group}}\n\
                 spec: {schedulerName: phalanx, containers: [{name: c, image: i, \
                 resources: {limits: {nvidia.com/gpu: 16}}}]}\n";
    apply_ok(&coordinator, large).await;
    let with_reason = |state: &StateView| {
        gang_of(state, "large").is_some_and(|gang| !gang.pods.is_empty() && gang.reason.is_some())
    };
    until(&coordinator, "a reason", with_reason).await;
    let explanation = explain(&coordinator, "default/large-group").await;
    let reason = explanation.gang.reason.unwrap();
    assert_eq!(&*reason.code, "LargerThanAnyNode", "{reason:?}");
    assert!(!reason.fix.is_empty() && !explanation.lines.is_empty());
    assert_eq!((explanation.feasible_nodes, explanation.nodes), (0, 1));
    assert_eq!(explain(&coordinator, "default/large-0").await.gang.name, explanation.gang.name);
    stop(coordinator).await;
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_devices_run_on_a_node_without_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: cpu-1}\n\
                status: {allocatable: {cpu: 4, memory: 8Gi, pods: 110}}\n---\n";
    apply_ok(&coordinator, &format!("{node}{}", job("sort", "default", 2, "cpu: 1", "1s"))).await;
    let state = until_phase(&coordinator, "sort", "Running").await;
    assert!(gang_of(&state, "sort").unwrap().pods.iter().all(|pod| pod.lease.is_none()), "{state:#?}");
    until_phase(&coordinator, "sort", "Completed").await;
    apply_ok(&coordinator, &job("serve", "default", 1, "cpu: 1", "")).await;
    until_phase(&coordinator, "serve", "Running").await;
    assert_eq!(ask(&coordinator, "DELETE", "/v1/objects/job/default/serve", None).await.status, 200);
    until(&coordinator, "it is gone", |state| gang_of(state, "serve").is_none()).await;
    let recording = coordinator.recording.clone();
    stop(coordinator).await;
    assert_replays(&recording);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_of_hundreds_of_pods_runs_on_one_node_over_one_connection() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let agents = agents(&coordinator, directory.path(), 1, 0).await;
    apply_ok(&coordinator, &job("many", "default", 400, "cpu: 100m", "1s")).await;
    until_phase(&coordinator, "many", "Completed").await;
    assert_eq!(coordinator.metrics.slow_agents.get(), 0);
    assert_eq!(coordinator.metrics.unsent.get(), 0);
    stop(coordinator).await;
    for agent in agents {
        agent.stop().await;
    }
}
