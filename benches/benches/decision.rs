//! Decision time of one pod, from the event to its Reserve action, beside a bare scan of the same rows.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use phalanx_benches::{Cluster, rows, scan};

fn decision(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    for nodes in [1_000, 10_000] {
        let mut cluster = Cluster::new(nodes);
        let rows = rows(nodes);
        for gpus in [1_u32, 8] {
            let parameter = format!("{gpus}-gpu/{nodes}-nodes");
            group.bench_function(BenchmarkId::new("event-to-reserve", &parameter), |bencher| {
                bencher.iter_custom(|times| {
                    (0..times).map(|_| cluster.decide(u64::from(gpus))).sum::<Duration>()
                });
            });
            group.bench_function(BenchmarkId::new("bare-scan", &parameter), |bencher| {
                bencher.iter(|| scan(black_box(&rows), black_box(gpus)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
