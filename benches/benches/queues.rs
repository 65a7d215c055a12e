//! A cycle with ten thousand gangs in a hundred queues that wait on five thousand nodes, where nothing fits.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use phalanx_benches::waiting::Waiting;

fn queues(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("waiting");
    group.sample_size(10);
    let mut waiting = Waiting::new(5_000, 100, 10_000);
    let parameter = "10000-gangs/100-queues/5000-nodes";
    group.bench_function(format!("nothing-new/{parameter}"), |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| waiting.cycle()).sum::<Duration>());
    });
    group.bench_function(format!("all-tried-again/{parameter}"), |bencher| {
        bencher.iter_custom(|times| (0..times).map(|_| waiting.try_all()).sum::<Duration>());
    });
    group.finish();
}

criterion_group!(benches, queues);
criterion_main!(benches);
