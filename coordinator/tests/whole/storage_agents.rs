//! Disks that fail under a running cluster: a gang waits with a true reason and nothing is bound, and a store that
//! was set back to a backup gives no GPU to two pods.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::cluster::{agent_of, agents, held, job};
use crate::support::{PATIENCE, apply_ok, ask, config, explain, gang_of, state, stop, until, until_phase};
use phalanx_common::units::Millis;
use phalanx_common::wire::LeaseState;
use phalanx_coordinator::api::faults::{Call, Fault, FaultPlan, FaultyApi};
use phalanx_coordinator::config::Config;
use phalanx_coordinator::coordinator::Coordinator;
use phalanx_core::view::{NodeView, StateView};

fn quick(state_dir: &Path) -> Config {
    let mut config = config(state_dir);
    config.settings.quarantine_ms = Millis(1_000);
    config
}

/// Waits until the reason of a job's gang says this.
async fn until_reason(coordinator: &Coordinator, job: &str, wanted: &[&str]) -> String {
    let began = Instant::now();
    loop {
        let state = state(coordinator).await;
        let gang = gang_of(&state, job).map(|gang| gang.name.name.to_string());
        let text = match gang {
            None => String::new(),
            Some(gang) => {
                let explanation = explain(coordinator, &format!("default/{gang}")).await;
                serde_json::to_string(&explanation).unwrap()
            }
        };
        if wanted.iter().all(|wanted| text.contains(wanted)) {
            return text;
        }
        assert!(began.elapsed() < PATIENCE, "never said {wanted:?}: {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Pods that are bound, as the store has them.
async fn bound(coordinator: &Coordinator) -> usize {
    let answer = ask(coordinator, "GET", "/v1/objects/pod", None).await;
    let pods = answer.json()["items"].as_array().unwrap().clone();
    pods.iter().filter(|pod| pod["spec"].get("nodeName").is_some()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_waits_for_the_disk_of_a_node_and_says_so_and_runs_when_it_is_well() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&quick(directory.path())).await.unwrap();
    let agents = agents(&coordinator, directory.path(), 2, 4).await;
    // A directory where the ledger would be written: fails for every user, root included.
    let in_the_way = directory.path().join("agents/n2/ledger.new");
    while fs::create_dir(&in_the_way).is_err() {
        // The first ledger is being written.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    apply_ok(&coordinator, &job("train", "default", 2, "nvidia.com/gpu: 4", "")).await;
    let disk =
        format!("its ledger cannot be written: {}: cannot be written: Is a directory", in_the_way.display());
    until_reason(&coordinator, "train", &["agents write its leases to disk; node n2: ", &disk]).await;
    until_reason(&coordinator, "train", &["nodes it would use are closed: n2", &disk]).await;
    assert_eq!(bound(&coordinator).await, 0);
    fs::remove_dir(&in_the_way).unwrap();
    until_phase(&coordinator, "train", "Running").await;
    stop(coordinator).await;
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_written_binds_nothing_and_goes_on_when_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let mut api = None;
    let config = quick(directory.path());
    let coordinator = Coordinator::start_on(&config, |inner| {
        let faulty = FaultyApi::new(inner, FaultPlan::none());
        api = Some(faulty.clone());
        faulty
    });
    let coordinator = coordinator.await.unwrap();
    let api = api.unwrap();
    // Pods of its own: a Job would get none before there are nodes that can take them.
    apply_ok(&coordinator, &pair("train-pair")).await;
    until(&coordinator, "pods", |state| gang_of(state, "train").is_some_and(|gang| gang.pods.len() == 2))
        .await;
    // More than are tried while this test runs.
    api.with_plan(|plan| (0..10_000).for_each(|_| plan.push(Call::Write, Fault::StorageFailed)));
    let agents = agents(&coordinator, directory.path(), 2, 4).await;
    let writes = |what: &'static str| coordinator.metrics.writes(what, "Unknown");
    let began = Instant::now();
    while writes("WritePlan") < 2 {
        assert!(began.elapsed() < PATIENCE, "no plan was tried");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for agent in &agents {
        let leases = agent.report().await.unwrap().leases;
        assert!(leases.iter().all(|lease| lease.state == LeaseState::Reserved), "{leases:?}");
    }
    assert_eq!((bound(&coordinator).await, writes("Bind")), (0, 0));
    let answer =
        crate::support::apply(&coordinator, &job("late", "default", 1, "nvidia.com/gpu: 1", "")).await;
    assert_eq!(answer["ok"], false, "{answer:#}");
    assert!(gang_of(&state(&coordinator).await, "late").is_none());
    api.with_plan(FaultPlan::stop);
    until_phase(&coordinator, "train", "Running").await;
    stop(coordinator).await;
    for agent in agents {
        agent.stop().await;
    }
}

/// A PodGroup of two pods of four GPUs each, and its pods.
fn pair(name: &str) -> String {
    let group = format!(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {{name: {name}, namespace: default}}\nspec: \
         {{minMember: 2}}\n"
    );
    let pod = |number: u32| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-{number}, namespace: default, annotations: \
             {{scheduling.k8s.io/group-name: {name}}}}}\nspec: {{schedulerName: phalanx, containers: [{{name: c, resources: \
             {{limits: {{nvidia.com/gpu: 4}}}}}}]}}\n"
        )
    };
    format!("{group}{}{}", pod(0), pod(1))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in ["objects.redb", "objects.confirmed"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn holders(state: &StateView) -> Vec<String> {
    let of_node = |node: &NodeView| -> Vec<String> {
        node.gpus.iter().filter_map(|gpu| gpu.holder.as_ref()).map(|holder| format!("{holder:?}")).collect()
    };
    state.nodes.iter().flat_map(of_node).collect()
}

/// The term in a backup is one that the agents know already, of another process: they do not obey it, the
/// coordinator goes above theirs, and what it does not know any more is given back before it is given away.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_set_back_to_a_backup_gives_no_gpu_to_two_pods() {
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, backup) = (directory.path(), directory.path().join("backup"));
    // Let go at once; the agents dial the same address all the time.
    let quic: SocketAddr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = Config { listen: quic, ..quick(state_dir) };
    stop(Coordinator::start(&config).await.unwrap()).await;
    copy(state_dir, &backup);

    let coordinator = Coordinator::start(&config).await.unwrap();
    let agents = [agent_of(quic, state_dir, 1, 4).await, agent_of(quic, state_dir, 2, 4).await];
    apply_ok(&coordinator, &job("first", "default", 2, "nvidia.com/gpu: 4", "")).await;
    until_phase(&coordinator, "first", "Running").await;
    stop(coordinator).await;
    let known = agents[0].report().await.unwrap();
    assert_eq!((known.highest_term.counter, known.leases.len()), (2, 1));

    copy(&backup, state_dir);
    let coordinator = Coordinator::start(&config).await.unwrap();
    apply_ok(&coordinator, &job("second", "default", 2, "nvidia.com/gpu: 4", "")).await;
    until_phase(&coordinator, "second", "Running").await;
    let after = state(&coordinator).await;
    assert!(gang_of(&after, "first").is_none());
    assert_eq!(holders(&after).len(), 8, "{after:#?}");
    for agent in &agents {
        let report = agent.report().await.unwrap();
        assert!(report.highest_term.counter > 2, "{report:?}");
        // One lease a node: of the second gang, and nothing of the first beside it.
        assert_eq!(report.leases.len(), 1, "{report:?}");
        assert!(report.leases[0].request.gang.name.starts_with("second-"), "{report:?}");
    }
    apply_ok(&coordinator, &job("third", "default", 1, "nvidia.com/gpu: 1", "")).await;
    until(&coordinator, "the third waits", |state| gang_of(state, "third").is_some() && held(state) == 8)
        .await;
    stop(coordinator).await;
    for agent in agents {
        agent.stop().await;
    }
}
