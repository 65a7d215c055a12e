//! Two coordinators that live at once, the second on a copy of the first one's state: agents obey the later
//! one, and the earlier one gives way as soon as an agent tells it.

use std::path::Path;

use crate::support::cluster::{agent_of, held, job};
use crate::support::{PATIENCE, apply_ok, start, stop, until, until_phase};

/// Objects and authority; agents' ledgers and recordings are others' matter.
fn copy_state(from: &Path, to: &Path) {
    std::fs::copy(from.join("objects.redb"), to.join("objects.redb")).unwrap();
    std::fs::create_dir(to.join("pki")).unwrap();
    for file in std::fs::read_dir(from.join("pki")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join("pki").join(file.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_earlier_of_two_coordinators_gives_way_and_the_later_one_goes_on() {
    let (first_dir, second_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut first = start(first_dir.path()).await;
    let agent = agent_of(first.quic, first_dir.path(), 1, 4).await;
    apply_ok(&first, &job("old", "default", 2, "nvidia.com/gpu: 1", "")).await;
    until_phase(&first, "old", "Running").await;

    copy_state(first_dir.path(), second_dir.path());
    let second = start(second_dir.path()).await;
    agent.stop().await;
    let agent = agent_of(second.quic, first_dir.path(), 1, 4).await;
    until_phase(&second, "old", "Running").await;
    apply_ok(&second, &job("new", "default", 1, "nvidia.com/gpu: 2", "")).await;
    until_phase(&second, "new", "Running").await;

    agent.stop().await;
    let agent = agent_of(first.quic, first_dir.path(), 1, 4).await;
    tokio::time::timeout(PATIENCE, first.failed()).await.unwrap();
    assert!(!first.stop().await, "a coordinator that gave way says so at its end");

    agent.stop().await;
    let agent = agent_of(second.quic, first_dir.path(), 1, 4).await;
    until(&second, "all as before", |state| {
        held(state) == 4 && state.gangs.iter().all(|gang| &*gang.phase == "running")
    })
    .await;
    agent.stop().await;
    stop(second).await;
}
