//! Cycles with ten thousand gangs in a hundred queues that wait on five thousand nodes, where nothing fits; and the plan
//! of the evictions for an urgent gang of 64 pods of 8 GPUs on a thousand full nodes.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use phalanx_benches::room::Full;
use phalanx_benches::waiting::{Users, Waiting};

/// Cycles until everybody has been looked at for a hold.
const SETTLING: usize = 30;

fn queues(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("waiting");
    group.sample_size(10);
    for (users, by) in [(Users::Others, "pods-of-others"), (Users::Gangs, "gangs")] {
        for sizes in [3, 30] {
            let mut waiting = Waiting::new(5_000, 100, 10_000, users, sizes);
            let parameter = format!("10000-gangs/100-queues/5000-nodes/full-of-{by}/{sizes}-sizes");
            group.bench_function(format!("nothing-new/{parameter}"), |bencher| {
                bencher.iter_custom(|times| (0..times).map(|_| waiting.cycle()).sum::<Duration>());
            });
            group.bench_function(format!("room-changed/{parameter}"), |bencher| {
                bencher.iter_custom(|times| (0..times).map(|_| waiting.try_all()).sum::<Duration>());
            });
            waiting.grow_old();
            for _ in 0..SETTLING {
                waiting.try_all();
            }
            group.bench_function(format!("room-changed-late/{parameter}"), |bencher| {
                bencher.iter_custom(|times| (0..times).map(|_| waiting.try_all()).sum::<Duration>());
            });
        }
    }
    group.finish();
    let mut group = criterion.benchmark_group("preemption-plan");
    group.sample_size(10);
    let mut full = Full::new(1_000);
    group.bench_function("64x8/1000-full-nodes", |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| full.plan(64)).sum::<Duration>());
    });
    group.finish();
}

criterion_group!(benches, queues);
criterion_main!(benches);
