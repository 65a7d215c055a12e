//! The whole path while the API fails at random: everything that fits still runs, and nothing is lost.

use crate::support::cluster::{agents, held, job};
use crate::support::{apply_ok, ask, config, gang_of, stop, until, until_phase};
use phalanx_coordinator::api::faults::{FaultPlan, FaultRates, FaultyApi};
use phalanx_coordinator::coordinator::Coordinator;
use phalanx_coordinator::replay::replay;

/// One call in five fails, in every way.
fn faults(seed: u64) -> FaultPlan {
    FaultPlan::seeded(
        seed,
        FaultRates {
            conflict: 50,
            refused: 0,
            timed_out_not_done: 50,
            timed_out_but_done: 50,
            storage_failed: 50,
            watch_gap: 50,
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_run_and_finish_while_the_api_fails_at_random() {
    for seed in 1..=3 {
        let directory = tempfile::tempdir().unwrap();
        let mut faulty = None;
        let coordinator = Coordinator::start_on(&config(directory.path()), |api| {
            let api = FaultyApi::new(api, FaultPlan::none());
            faulty = Some(api.clone());
            api
        })
        .await
        .unwrap();
        let faulty = faulty.unwrap();
        let agents = agents(&coordinator, directory.path(), 2, 4).await;
        for number in 0..4 {
            let name = format!("train-{number}");
            apply_ok(&coordinator, &job(&name, "default", 2, "nvidia.com/gpu: 2", "500ms")).await;
        }
        apply_ok(&coordinator, &job("serve", "default", 1, "nvidia.com/gpu: 1", "")).await;
        faulty.with_plan(|plan| *plan = faults(seed));
        for number in 0..4 {
            until_phase(&coordinator, &format!("train-{number}"), "Completed").await;
        }
        until_phase(&coordinator, "serve", "Running").await;
        faulty.with_plan(FaultPlan::stop);
        let answer = ask(&coordinator, "DELETE", "/v1/objects/job/default/serve", None).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        until(&coordinator, "all GPUs free", |state| held(state) == 0 && gang_of(state, "serve").is_none())
            .await;

        let recording = coordinator.recording.clone();
        stop(coordinator).await;
        assert_eq!(replay(&recording, &mut Vec::new()).unwrap().difference, None, "seed {seed}");
        for agent in agents {
            agent.stop().await;
        }
    }
}
